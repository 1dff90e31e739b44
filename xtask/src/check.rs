//! `cargo xtask check`: the stages that have to pass before a change lands, one after another, timed.
//!
//! A stage passes, fails or is skipped for a stated reason. The last line counts: every test of the `tests` stage is
//! one, and so is each of the other stages.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

mod clients;
mod demo;
mod device;
mod dist;
mod driver;
mod hygiene;
mod notes;
mod page;
mod peer;
mod readme;
mod xrt;

use crate::abi::Compared;
use crate::timed::timed;

/// How a stage ended.
enum Outcome {
    Pass(Tally),
    Fail(Tally, String),
    Skip(String),
}

/// What a stage counts.
#[derive(Clone, Copy, Default)]
struct Tally {
    passed: u64,
    failed: u64,
    skipped: u64,
}

impl Tally {
    const ONE_PASSED: Self = Self { passed: 1, failed: 0, skipped: 0 };
    const ONE_FAILED: Self = Self { passed: 0, failed: 1, skipped: 0 };
}

type Stage = fn(&Path) -> Outcome;

/// Cheap stages first: a slip of the formatter should not cost a build.
const STAGES: [(&str, Stage); 20] = [
    ("fmt", fmt),
    ("hygiene", hygiene::run),
    ("notes", notes::run),
    ("clippy", clippy),
    ("docs", docs),
    ("abi", abi),
    ("tests", tests),
    ("oracle", oracle),
    ("peer", peer::run),
    ("readme", readme::run),
    ("bench", bench),
    ("demo", demo::run),
    ("page", page::run),
    ("clients", clients::run),
    ("load", load),
    ("dist", dist::run),
    ("xrt", xrt::run),
    ("driver", driver::run),
    ("image", driver::image),
    (OTHERS, driver::others),
];
/// Runs only where it is named: minutes of machine for what changes seldom.
const OTHERS: &str = "driver-others";

pub(crate) const HELP: &str = "\
cargo xtask check [STAGE]...
  runs the stages named, or all but driver-others; a stage passes, fails or says why it was skipped
    fmt hygiene notes clippy docs abi tests oracle peer readme bench demo page clients load dist xrt driver
    image driver-others
  QWEN35_ORACLE=DIR  reference runs for the stage oracle
  QWEN35_CHROMIUM=FILE  a browser for the stage page; QWEN35_PAGE_CASE=WORDS  only cases with these words in their names
  QWEN35_PROGRAM=P   this program in the stages clients and load, instead of a release build
cargo xtask check --device NODE [--bundle B]
  this machine's NPU: the table of driver cases, none of the dangerous ones, and the bundle's references";

/// Runs the stages named, or all; or, with `--device`, what can be said about real hardware. True where none failed.
pub(crate) fn run(wanted: &[OsString]) -> Result<bool, String> {
    if wanted.iter().any(|word| word == "--device" || word == "--bundle") {
        return device::run(&root(), wanted);
    }
    for name in wanted {
        if !STAGES.iter().any(|(stage, _)| name == stage) {
            let known: Vec<&str> = STAGES.iter().map(|(stage, _)| *stage).collect();
            return Err(format!("unknown stage {name:?}: there are {}", known.join(", ")));
        }
    }
    let root = root();
    let mut total = Tally::default();
    let mut table = String::new();
    for (name, stage) in STAGES {
        let named = wanted.iter().any(|w| w == name);
        if !(named || wanted.is_empty() && name != OTHERS) {
            continue;
        }
        crate::print(&format!("==== {name}\n"));
        let start = Instant::now();
        let outcome = stage(&root);
        let seconds = start.elapsed().as_secs_f64();
        let (tally, line) = match outcome {
            Outcome::Pass(tally) => (tally, format!("PASS {name:<8} {seconds:7.1} s\n")),
            Outcome::Fail(tally, why) => (tally, format!("FAIL {name:<8} {seconds:7.1} s  {why}\n")),
            Outcome::Skip(why) => {
                (Tally { skipped: 1, ..Tally::default() }, format!("SKIP {name:<8} {seconds:7.1} s  {why}\n"))
            }
        };
        crate::print(&line);
        table.push_str(&line);
        total.passed += tally.passed;
        total.failed += tally.failed;
        total.skipped += tally.skipped;
    }
    crate::print(&format!("\n{table}\n{} passed, {} failed, {} skipped\n", total.passed, total.failed, total.skipped));
    Ok(total.failed == 0)
}

/// The repository: the directory above this crate's.
pub(crate) fn root() -> PathBuf {
    let mut path = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    path.pop();
    path
}

fn cargo(root: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    command.current_dir(root).args(arguments).stdin(Stdio::null());
    command
}

fn fmt(root: &Path) -> Outcome {
    plain(cargo(root, &["fmt", "--all", "--check"]), "run `cargo fmt --all`")
}

fn clippy(root: &Path) -> Outcome {
    let arguments = ["clippy", "--quiet", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"];
    plain(cargo(root, &arguments), "see above")
}

/// The bench on tiny shapes: that it runs and counts right, not what it measures.
fn bench(_root: &Path) -> Outcome {
    match crate::bench::smoke() {
        Ok(said) => {
            crate::print(&format!("{said}\n"));
            Outcome::Pass(Tally::ONE_PASSED)
        }
        Err(why) => Outcome::Fail(Tally::ONE_FAILED, why),
    }
}

/// A short load: that a server bears it, not how fast it is.
fn load(_root: &Path) -> Outcome {
    match crate::load::under(&crate::load::Load { requests: 400, ..crate::load::Load::default() }) {
        Ok(said) => {
            crate::print(&format!("{said}\n"));
            Outcome::Pass(Tally::ONE_PASSED)
        }
        Err(why) => Outcome::Fail(Tally::ONE_FAILED, why),
    }
}

fn docs(root: &Path) -> Outcome {
    let mut command = cargo(root, &["doc", "--quiet", "--workspace", "--no-deps", "--locked"]);
    command.env("RUSTDOCFLAGS", "-D warnings");
    plain(command, "see above")
}

/// A command whose exit code is the whole answer.
fn plain(mut command: Command, hint: &str) -> Outcome {
    match command.status() {
        Ok(status) if status.success() => Outcome::Pass(Tally::ONE_PASSED),
        Ok(status) => Outcome::Fail(Tally::ONE_FAILED, format!("{status}: {hint}")),
        Err(error) => Outcome::Fail(Tally::ONE_FAILED, format!("{command:?} did not start: {error}")),
    }
}

/// The ABI tables against the kernel's header.
fn abi(_: &Path) -> Outcome {
    match crate::abi::compared(None) {
        Ok(Compared::Same) => Outcome::Pass(Tally::ONE_PASSED),
        Ok(Compared::Different) => {
            Outcome::Fail(Tally::ONE_FAILED, "the header and the tables differ: see above".into())
        }
        Ok(Compared::Nothing(why)) => Outcome::Skip(why),
        Err(why) => Outcome::Fail(Tally::ONE_FAILED, why),
    }
}

/// Tests against reference runs that are too large for the repository. They are ignored elsewhere.
fn oracle(root: &Path) -> Outcome {
    if std::env::var_os("QWEN35_ORACLE").is_none() {
        return Outcome::Skip("QWEN35_ORACLE names no folder of reference runs".into());
    }
    let packages = ["test", "--locked", "--no-fail-fast", "-p", "host-ops", "-p", "runtime", "-p", "driver-tests"];
    let targets = ["--test", "oracle", "--test", "bundles", "--", "--ignored"];
    counted(cargo(root, &[&packages[..], &targets[..]].concat()))
}

/// All tests, in the dev profile, whose arithmetic crates are optimised: the same build as this tool's own, so that
/// only the README's release build comes on top.
fn tests(root: &Path) -> Outcome {
    counted(cargo(root, &["test", "--workspace", "--locked", "--no-fail-fast"]))
}

/// A run of `cargo test`, each test of which counts.
fn counted(mut command: Command) -> Outcome {
    command.stdout(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return Outcome::Fail(Tally::ONE_FAILED, format!("cargo test did not start: {error}")),
    };
    let mut tally = Tally::default();
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).split(b'\n') {
            let Ok(line) = line else { break };
            let line = String::from_utf8_lossy(&line);
            // Hundreds of `... ok` lines hide the one that matters.
            if !line.ends_with("... ok") {
                crate::print(&format!("{line}\n"));
            }
            if let Some(counts) = line.strip_prefix("test result: ") {
                add(&mut tally, counts);
            }
        }
    }
    match child.wait() {
        Ok(status) if status.success() && tally.passed > 0 => Outcome::Pass(tally),
        Ok(status) => {
            tally.failed = tally.failed.max(1);
            Outcome::Fail(tally, format!("{status}: {} failed of {}", tally.failed, tally.failed + tally.passed))
        }
        Err(error) => Outcome::Fail(Tally::ONE_FAILED, format!("cargo test was lost: {error}")),
    }
}

/// Adds `ok. 3 passed; 0 failed; 1 ignored; ...`.
fn add(tally: &mut Tally, counts: &str) {
    for part in counts.split([';', '.']) {
        let mut words = part.split_whitespace();
        let (Some(number), Some(what)) = (words.next(), words.next()) else { continue };
        let Ok(number) = number.parse::<u64>() else { continue };
        match what {
            "passed" => tally.passed += number,
            "failed" => tally.failed += number,
            "ignored" => tally.skipped += number,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests_of_check {
    use super::*;

    #[test]
    fn counts_of_a_test_run_add_up() {
        let mut tally = Tally::default();
        add(&mut tally, "ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s");
        add(&mut tally, "FAILED. 2 passed; 5 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.51s");
        assert_eq!((tally.passed, tally.failed, tally.skipped), (5, 5, 1));
    }
}
