//! A runtime by others on the software NPU: its own check of a bundle that our exporter wrote, and its requests beside
//! ours.
//!
//! The peer is installed from its registry into `target/peers`; without a network, or without what it takes to build
//! it, the stage is skipped. `QWEN35_PEER` names a binary that is there already, `QWEN35_ORACLE` a folder of reference
//! checkpoints with transformers' answers, which the check needs.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use driver_tests::sequence::{NEW_TOKENS, PROMPT, compare, facts, own_trace};
use driver_tests::tiny;
use npu_model::Config;
use npu_model::supervise::Supervisor;
use npu_model::trace::{Record, Trace};
use runtime::export::{ExportOptions, VisionExport, export};

use super::{Outcome, Tally, cargo};

const CRATE: &str = "taconite-qwen35";
const VERSION: &str = "0.1.1";
const BINARY: &str = "qwen35";
/// For download and release build.
const INSTALL: Duration = Duration::from_secs(20 * 60);
/// For one supervised run on a tiny model.
const RUN: Duration = Duration::from_secs(10 * 60);
const NODE: &str = "/dev/accel/accel0";

pub(super) fn run(root: &Path) -> Outcome {
    let folder = root.join("target/peers");
    let peer = match installed(root, &folder) {
        Ok(peer) => peer,
        Err(why) => return Outcome::Skip(why),
    };
    let mut tally = Tally::default();
    let mut failures = Vec::new();
    let mut count = |name: &str, result: Result<String, String>| match result {
        Ok(said) => {
            crate::print(&format!("{name}: {said}\n"));
            tally.passed += 1;
        }
        Err(why) => {
            crate::print(&format!("{name}: {why}\n"));
            tally.failed += 1;
            failures.push(name.to_owned());
        }
    };
    count("requests", requests(&peer, &folder));
    count("check in bfp6s", check_in_six_bits(&peer, &folder));
    match std::env::var_os("QWEN35_ORACLE") {
        Some(oracle) => count("check", check(&peer, &folder, Path::new(&oracle))),
        None => {
            crate::print("check: skipped, QWEN35_ORACLE names no folder of reference runs\n");
            tally.skipped += 1;
        }
    }
    if failures.is_empty() { Outcome::Pass(tally) } else { Outcome::Fail(tally, failures.join(", ")) }
}

/// The peer's binary.
fn installed(root: &Path, folder: &Path) -> Result<PathBuf, String> {
    if let Some(peer) = std::env::var_os("QWEN35_PEER") {
        return Ok(peer.into());
    }
    let binary = folder.join("bin").join(BINARY);
    if binary.is_file() {
        return Ok(binary);
    }
    let version = ["install", CRATE, "--version", VERSION, "--locked", "--quiet", "--root"];
    let mut command = cargo(root, &version);
    command.arg(folder).args(["--no-default-features", "--features", "direct,cli"]);
    command.env("CARGO_TARGET_DIR", folder.join("build"));
    let output = crate::timed::output(&mut command, INSTALL).map_err(|why| format!("{CRATE} {VERSION}: {why}"))?;
    if output.status.success() {
        return Ok(binary);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let why = said.lines().find(|line| line.starts_with("error")).unwrap_or("no error message");
    Err(format!("{CRATE} {VERSION} cannot be installed: {why}"))
}

fn supervised(supervisor: &Supervisor, peer: &Path, arguments: &[OsString]) -> Result<String, String> {
    // The output goes through a file: a pipe would have to be read while the program runs.
    let log = std::env::temp_dir().join(format!("qwen35-peer-{}", std::process::id()));
    let file = std::fs::File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
    let errors = file.try_clone().map_err(|error| error.to_string())?;
    let mut command = Command::new(peer);
    command.args(arguments).stdin(Stdio::null()).stdout(file).stderr(errors);
    let status = supervisor.run_within(&mut command, RUN);
    let said = std::fs::read_to_string(&log).unwrap_or_default();
    let _ = std::fs::remove_file(&log);
    let status = status.map_err(|error| error.to_string())?;
    if status.success() {
        return Ok(said);
    }
    let fault = supervisor.model().last_fault().unwrap_or_default();
    Err(format!("{} ended with {status}: {fault}\n{said}", peer.display()))
}

/// One prompt and one token more, of the peer and of ours.
fn requests(peer: &Path, folder: &Path) -> Result<String, String> {
    let bundle = tiny::text_bundle(&folder.join("tiny"))?;
    let trace = Trace::in_memory();
    let supervisor = Supervisor::new(Config::default(), NODE).map_err(|error| error.to_string())?;
    let supervisor = supervisor.with_trace(Arc::clone(&trace));
    let tokens = NEW_TOKENS.to_string();
    let arguments: Vec<OsString> =
        [bundle.as_os_str(), "--prompt".as_ref(), PROMPT.as_ref(), "--max-new".as_ref(), tokens.as_ref()]
            .map(OsString::from)
            .into();
    supervised(&supervisor, peer, &arguments)?;
    let theirs = trace.records();
    let recorded = folder.join("witness.jsonl");
    let lines: String = theirs.iter().map(|record: &Record| record.to_line() + "\n").collect();
    std::fs::write(&recorded, lines).map_err(|error| format!("{}: {error}", recorded.display()))?;
    let ours = own_trace(&bundle)?;
    let (ours_facts, their_facts) = (facts(&ours, true), facts(&theirs, true));
    let mut unexplained = String::new();
    let mut explained = String::new();
    for found in compare(&ours_facts, &their_facts) {
        let text = format!("  {}\n    ours: {}\n    peer: {}\n", found.subject, found.ours, found.witness);
        match found.reason() {
            Some(reason) => explained.push_str(&format!("{text}    meant: {reason}\n")),
            None => unexplained.push_str(&text),
        }
    }
    crate::print(&explained);
    if unexplained.is_empty() {
        Ok(format!("{} of ours, {} of the peer, {} facts compared", ours.len(), theirs.len(), their_facts.len()))
    } else {
        Err(format!("differences that nothing explains:\n{unexplained}"))
    }
}

/// The peer's check of a checkpoint with transformers' answers.
fn check(peer: &Path, folder: &Path, oracle: &Path) -> Result<String, String> {
    let out = folder.join("oracle-bundle");
    let _ = std::fs::remove_dir_all(&out);
    let model = oracle.join("tiny-qwen35");
    let options = ExportOptions {
        refs: Some(model.join("A")),
        vision: VisionExport::None,
        ..ExportOptions::new(model.join("checkpoint"), out.clone())
    };
    export(&options, &mut |_| std::ops::ControlFlow::Continue(())).map_err(|error| error.to_string())?;
    checked(peer, &out)
}

/// The same of six bits a weight, which change what a model says: the answers are those of a float run on the weights
/// that the bundle holds.
fn check_in_six_bits(peer: &Path, folder: &Path) -> Result<String, String> {
    checked(peer, &tiny::six_bit_bundle(&folder.join("six-bits"))?)
}

fn checked(peer: &Path, bundle: &Path) -> Result<String, String> {
    let supervisor = Supervisor::new(Config::default(), NODE).map_err(|error| error.to_string())?;
    let said = supervised(&supervisor, peer, &["check".into(), bundle.into()])?;
    let verdict = said.lines().last().unwrap_or("").to_owned();
    crate::print(&said);
    if verdict == "PASS" { Ok(verdict) } else { Err(format!("the last line is {verdict:?}")) }
}
