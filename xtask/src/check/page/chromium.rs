//! Where Chromium comes from: the host's, or Debian's, unpacked beside it.

use crate::{timed, vm};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Names under which distributions and its makers install it.
const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
/// For saying its version.
const LIMIT: Duration = Duration::from_secs(60);
/// Folders of libraries that look for each other by name.
const LIBRARIES: [&str; 2] = ["usr/lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu/pulseaudio"];

/// The browser as the words of a command; else why there is none.
pub(super) fn found(root: &Path) -> Result<Vec<String>, String> {
    if let Some(named) = std::env::var_os("QWEN35_CHROMIUM") {
        return Ok(vec![named.to_string_lossy().into_owned()]);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let there = |name: &&str| std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file());
    // Some distributions have a name only that tells people to install something else.
    let hosts = NAMES.iter().filter_map(there).map(|file| vec![file.display().to_string()]);
    if let Some(program) = hosts.into_iter().find(|program| version(program).is_ok()) {
        return Ok(program);
    }
    let without = "no Chromium here: install it, or name one in QWEN35_CHROMIUM";
    let program = vm::chromium(root).and_then(|folder| beside(&folder)).map_err(|why| format!("{without} ({why})"))?;
    version(&program).map_err(|why| format!("{without} (Debian's does not run: {why})"))?;
    Ok(program)
}

/// A command for the unpacked packages: their libraries are found before the host's, and letters in both places.
fn beside(folder: &Path) -> Result<Vec<String>, String> {
    let folder = std::path::absolute(folder).map_err(|error| error.to_string())?;
    let at = |name: &str| folder.join(name).display().to_string();
    let fonts = folder.join("fonts.conf");
    let text = format!(
        "<?xml version=\"1.0\"?>\n<fontconfig><dir>/usr/share/fonts</dir><dir>{}</dir><cachedir>{}</cachedir></fontconfig>\n",
        at("usr/share/fonts"),
        at("fonts-cache")
    );
    std::fs::write(&fonts, text).map_err(|error| format!("write {}: {error}", fonts.display()))?;
    let libraries = LIBRARIES.map(at).join(":");
    Ok(vec![
        "env".to_owned(),
        format!("LD_LIBRARY_PATH={libraries}"),
        format!("FONTCONFIG_FILE={}", fonts.display()),
        at("usr/lib/chromium/chromium"),
    ])
}

/// What it says of itself; this is also whether it runs.
fn version(program: &[String]) -> Result<String, String> {
    let [first, more @ ..] = program else { return Err("no program".into()) };
    let out = timed::output(Command::new(first).args(more).arg("--version"), LIMIT)?;
    if out.status.success() {
        return Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned());
    }
    let said = String::from_utf8_lossy(&out.stderr);
    Err(said.lines().next_back().unwrap_or("it says nothing").to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_only_says_what_to_install_is_no_browser() {
        let sh = |script: &str| ["sh", "-c", script].map(str::to_owned).to_vec();
        assert!(version(&sh("echo 'install the snap' >&2; exit 1")).is_err_and(|why| why == "install the snap"));
        assert_eq!(version(&sh("echo Chromium 1")), Ok("Chromium 1".to_owned()));
        assert!(version(&["no-such-browser".to_owned()]).is_err());
    }

    #[test]
    fn unpacked_packages_are_found_beside_the_hosts() {
        let folder = std::env::temp_dir().join(format!("qwen35-beside-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let words = beside(&folder).unwrap();
        let fonts = std::fs::read_to_string(folder.join("fonts.conf")).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(words[1].contains("/usr/lib/x86_64-linux-gnu:/") && words[3].ends_with("/usr/lib/chromium/chromium"));
        assert!(fonts.contains("<dir>/usr/share/fonts</dir>"));
    }
}
