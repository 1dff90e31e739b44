//! What `cargo xtask dist` makes, looked at with the tools that will read it.

use super::{Outcome, Tally, timed};
use crate::dist;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

pub(super) fn run(root: &Path) -> Outcome {
    if let Err(why) = crate::vm::static_target() {
        return Outcome::Skip(why);
    }
    let target = crate::vm::target_directory(root);
    let (first, second) = (target.join("dist"), target.join("dist-again"));
    let made = match dist::make(root, &first).and_then(|made| dist::make(root, &second).map(|_| made)) {
        Ok(made) => made,
        Err(why) => return Outcome::Fail(Tally::ONE_FAILED, why),
    };
    let mut tally = Tally::default();
    let mut failures = Vec::new();
    for (what, found) in looks(&first, &second, &target) {
        match found {
            Ok(()) => tally.passed += 1,
            Err(why) if why == MISSING => {
                tally.skipped += 1;
                crate::print(&format!("SKIP {what}: the tool is not here\n"));
            }
            Err(why) => {
                tally.failed += 1;
                failures.push(format!("{what}: {why}"));
            }
        }
    }
    crate::print(&format!("{made}\n"));
    if failures.is_empty() { Outcome::Pass(tally) } else { Outcome::Fail(tally, failures.join("; ")) }
}

const MISSING: &str = "the tool is missing";

/// What a tool says, where it is here.
fn tool(program: &str, words: &[&str]) -> Result<String, String> {
    let here =
        std::env::var_os("PATH").is_some_and(|path| std::env::split_paths(&path).any(|p| p.join(program).is_file()));
    if !here {
        return Err(MISSING.into());
    }
    let out = crate::timed::output(Command::new(program).args(words), LIMIT)?;
    let text = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    if out.status.success() { Ok(text) } else { Err(format!("{program} {}: {}\n{text}", words.join(" "), out.status)) }
}

fn looks(first: &Path, second: &Path, target: &Path) -> Vec<(&'static str, Result<(), String>)> {
    let path = |name: &str| first.join(name).display().to_string();
    let silent = |text: String| if text.trim().is_empty() { Ok(()) } else { Err(text) };
    let mut package = fs::read_dir(first).ok().into_iter().flatten().flatten().map(|entry| entry.path());
    let package = package.find(|path| path.extension().is_some_and(|end| end == "deb")).unwrap_or_default();
    let package = package.display().to_string();
    let unpacked = target.join("dist-unpacked");
    let _ = fs::remove_dir_all(&unpacked);
    vec![
        ("the same bytes again", same(first, second)),
        ("checksums", {
            let mut sums = Command::new("sha256sum");
            sums.current_dir(first).args(["--check", "--quiet", "--strict", "SHA256SUMS"]);
            timed(&mut sums, LIMIT).and_then(silent)
        }),
        (
            "manual page",
            tool("man", &["--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", &path("qwen35-direct.1")]).and_then(
                |text| match text.lines().find(|line| line.contains("warning")) {
                    Some(line) => Err(line.to_owned()),
                    None => Ok(()),
                },
            ),
        ),
        ("bash completion", tool("bash", &["-n", &path("qwen35-direct.bash")]).and_then(silent)),
        ("zsh completion", tool("zsh", &["-n", &path("_qwen35-direct")]).and_then(silent)),
        ("fish completion", tool("fish", &["--no-execute", &path("qwen35-direct.fish")]).and_then(silent)),
        ("udev rule", tool("udevadm", &["verify", "--no-summary", &path("70-qwen35-direct.rules")]).and_then(silent)),
        ("systemd unit", unit(first, &unpacked)),
        (
            "package",
            tool("dpkg-deb", &["--info", &package])
                .and_then(|text| if text.contains("Package: qwen35-direct") { Ok(()) } else { Err(text) }),
        ),
        (
            "package unpacked",
            tool("dpkg-deb", &["--extract", &package, &unpacked.display().to_string()]).and_then(|_| {
                let said = timed(Command::new(unpacked.join("usr/bin/qwen35-direct")).arg("--version"), LIMIT)?;
                if said.starts_with("qwen35-direct ") { Ok(()) } else { Err(said) }
            }),
        ),
    ]
}

/// Whether two folders hold the same.
fn same(first: &Path, second: &Path) -> Result<(), String> {
    let sums = |folder: &Path| fs::read_to_string(folder.join("SHA256SUMS")).map_err(|error| error.to_string());
    if sums(first)? == sums(second)? { Ok(()) } else { Err("two runs gave different bytes".into()) }
}

/// The unit, with the binary where it is.
fn unit(first: &Path, scratch: &Path) -> Result<(), String> {
    let text = fs::read_to_string(first.join("qwen35-direct.service")).map_err(|error| error.to_string())?;
    let binary = first.join("qwen35-direct").display().to_string();
    let text = text.replace("/usr/bin/qwen35-direct", &binary).replace("Documentation=man:qwen35-direct(1)\n", "");
    let place = scratch.with_extension("unit");
    fs::create_dir_all(&place).map_err(|error| error.to_string())?;
    let file = place.join("qwen35-direct.service");
    fs::write(&file, text).map_err(|error| error.to_string())?;
    let said = tool("systemd-analyze", &["verify", "--man=no", &file.display().to_string()])?;
    // Only what is said of ours: the machine's own units are not the question.
    match said.lines().find(|line| line.contains("qwen35-direct")) {
        Some(line) => Err(line.to_owned()),
        None => Ok(()),
    }
}
