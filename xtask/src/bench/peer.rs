//! A runtime by others, measured beside ours: its library from its registry, in a small program of ours that is built
//! outside the workspace.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The library and its version.
pub(super) const NAME: &str = "taconite-qwen35 0.1.1";
const SOURCE: &str = include_str!("peer/main.rs");
const MANIFEST: &str = r#"[package]
name = "peer-bench"
version = "0.0.0"
edition = "2024"
publish = false

[workspace]

[dependencies]
taconite = { version = "=0.1.1", default-features = false }
taconite-bundle = "=0.1.0"
taconite-qwen35 = { version = "=0.1.1", default-features = false, features = ["direct"] }
"#;
/// For download and release build.
const BUILD: Duration = Duration::from_secs(20 * 60);

/// Builds the program; `QWEN35_PEER_BENCH` names one that is there already.
///
/// # Errors
/// Why it cannot be built, such as a registry that does not answer.
pub(super) fn build(target: &Path) -> Result<PathBuf, String> {
    if let Some(program) = std::env::var_os("QWEN35_PEER_BENCH") {
        return Ok(program.into());
    }
    let folder = target.join("peers/bench");
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        // Untouched where nothing is new, or cargo would build it again.
        if fs::read_to_string(&path).is_ok_and(|there| there == text) {
            return Ok(());
        }
        fs::create_dir_all(folder.join("src")).and_then(|()| fs::write(&path, text))
    };
    write("Cargo.toml", MANIFEST)
        .and_then(|()| write("src/main.rs", SOURCE))
        .map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(&folder).args(["build", "--release", "--quiet"]);
    command.env("CARGO_TARGET_DIR", folder.join("build")).env_remove("RUSTFLAGS");
    let output = crate::timed::output(&mut command, BUILD).map_err(|why| format!("{NAME}: {why}"))?;
    if output.status.success() {
        return Ok(folder.join("build/release/peer-bench"));
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let why = said.lines().find(|line| line.starts_with("error")).unwrap_or("no error message");
    Err(format!("{NAME} cannot be built: {why}"))
}
