//! The demo model: where it lies.

use crate::error::CliError;
use std::path::PathBuf;

/// Names the demo model's directory, before all other places.
const VARIABLE: &str = "QWEN35_DEMO_BUNDLE";

/// The demo model's bundle: as named by the environment, beside the executable as a package installs it, or in the
/// source tree that the executable was built from.
pub(crate) fn bundle() -> Result<PathBuf, CliError> {
    if let Some(named) = std::env::var_os(VARIABLE) {
        return Ok(named.into());
    }
    let mut places = Vec::new();
    if let Some(directory) = std::env::current_exe().ok().and_then(|exe| exe.parent().map(PathBuf::from)) {
        places.push(directory.join("demo-bundle"));
        places.push(directory.join("../share/qwen35-direct/demo-bundle"));
        // target/release/qwen35-direct, target/debug/...
        places.push(directory.join("../../cli/demo/bundle"));
    }
    places.push(PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/demo/bundle")));
    if let Some(found) = places.iter().find(|place| place.join("manifest.txt").is_file()) {
        return Ok(found.clone());
    }
    let looked: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
    Err(CliError::NoDemo(looked.join(", ")))
}
