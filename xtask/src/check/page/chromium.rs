//! Where Chromium comes from.

use std::path::{Path, PathBuf};

/// Names under which distributions and their makers install it.
const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

/// The browser as the words of a command; else why there is none.
pub(super) fn found(_folder: &Path) -> Result<Vec<String>, String> {
    if let Some(named) = std::env::var_os("QWEN35_CHROMIUM") {
        return Ok(vec![named.to_string_lossy().into_owned()]);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let there = |name: &str| std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file());
    NAMES
        .iter()
        .find_map(|name| there(name))
        .map(|file: PathBuf| vec![file.display().to_string()])
        .ok_or_else(|| "no Chromium here: install it, or name one in QWEN35_CHROMIUM".to_owned())
}
