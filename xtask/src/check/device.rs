//! `cargo xtask check --device NODE`: a machine that has an NPU. The table of driver cases without the dangerous ones,
//! of which no one changes what outlives it (power modes, other programs' contexts), and a bundle's references.

use super::cargo;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The whole table on the software NPU takes seconds; a case has a minute of its own.
const TABLE: Duration = Duration::from_secs(30 * 60);
/// Reference runs of a large bundle.
const REFERENCES: Duration = Duration::from_secs(60 * 60);
/// A release build from nothing.
const BUILD: Duration = Duration::from_secs(60 * 60);

const USAGE: &str = "cargo xtask check --device NODE [--bundle B]";

pub(super) fn run(root: &Path, words: &[OsString]) -> Result<bool, String> {
    let (node, bundle) = parse(words)?;
    if !node.exists() {
        return Err(format!("{}: no such device node; `qwen35-direct devices` lists what there is", node.display()));
    }
    let mut build = cargo(root, &["build", "--quiet", "--release", "--locked", "-p", "qwen35-direct"]);
    let built = crate::timed::status(&mut build, BUILD)?;
    if !built.success() {
        return Err(format!("the release build: {built}"));
    }
    let binary = crate::vm::target_directory(root).join("release/qwen35-direct");
    let on = |command: &str| {
        let mut run = Command::new(&binary);
        run.arg(command).arg("--device").arg(&node);
        run
    };
    let mut good = stage("driver table", &mut on("driver-check"), TABLE)?;
    match bundle {
        Some(bundle) => good &= stage("references", on("check").arg(bundle), REFERENCES)?,
        None => crate::print("SKIP references  no bundle was named: --bundle B\n"),
    }
    Ok(good)
}

fn stage(name: &str, command: &mut Command, limit: Duration) -> Result<bool, String> {
    crate::print(&format!("==== {name}\n"));
    let status = crate::timed::status(command, limit)?;
    crate::print(&format!("{} {name}\n", if status.success() { "PASS" } else { "FAIL" }));
    Ok(status.success())
}

fn parse(words: &[OsString]) -> Result<(PathBuf, Option<PathBuf>), String> {
    let (mut node, mut bundle) = (None, None);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let place = match word.to_str() {
            Some("--device") => &mut node,
            Some("--bundle") => &mut bundle,
            _ => return Err(format!("{word:?} does not go with --device: {USAGE}")),
        };
        let value = words.next().ok_or_else(|| format!("{word:?} needs a value: {USAGE}"))?;
        if place.replace(PathBuf::from(value)).is_some() {
            return Err(format!("{word:?} was given twice"));
        }
    }
    Ok((node.ok_or_else(|| format!("--bundle goes with --device: {USAGE}"))?, bundle))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_and_a_bundle_are_understood() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        let node = PathBuf::from("/dev/accel/accel0");
        assert_eq!(parse(&words("--device /dev/accel/accel0")), Ok((node.clone(), None)));
        assert_eq!(parse(&words("--bundle b --device /dev/accel/accel0")), Ok((node, Some("b".into()))));
        for wrong in ["--device", "--bundle b", "--device a --device b", "--device a fmt"] {
            assert!(parse(&words(wrong)).is_err(), "{wrong}");
        }
    }
}
