//! Programs on the timing device: a supervisor plays the node.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use npu_model::supervise::Supervisor;
use npu_model::{Config, Counts, Timing};

use super::ours::Lines;

const NODE: &str = "/dev/accel/accel0";
/// For one run. A picture takes the peer minutes on a slow machine.
const LIMIT: Duration = Duration::from_secs(20 * 60);

/// What a program said, and what it asked of the device.
#[derive(Debug)]
pub(super) struct Ran {
    pub(super) lines: Lines,
    pub(super) counts: Counts,
}

/// Runs a program to its end.
///
/// # Errors
/// That it did not end well, with its last words.
pub(super) fn run(timing: Timing, program: &Path, arguments: &[&OsStr]) -> Result<Ran, String> {
    let config = Config { timing: Some(timing), ..Config::default() };
    let supervisor = Supervisor::new(config, NODE).map_err(|error| error.to_string())?;
    // Through files: pipes would have to be read while the program runs.
    let log = |what: &str| std::env::temp_dir().join(format!("qwen35-bench-{}-{what}", std::process::id()));
    let (out, err) = (log("out"), log("err"));
    let create = |path: &PathBuf| fs::File::create(path).map_err(|error| format!("{}: {error}", path.display()));
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(create(&out)?).stderr(create(&err)?);
    let status = supervisor.run_within(&mut command, LIMIT).map_err(|error| error.to_string());
    let (said, complained) =
        (fs::read_to_string(&out).unwrap_or_default(), fs::read_to_string(&err).unwrap_or_default());
    let _ = (fs::remove_file(out), fs::remove_file(err));
    let status = status?;
    if !status.success() {
        let fault = supervisor.model().last_fault().unwrap_or_default();
        let words = complained.lines().last().unwrap_or("no word of it");
        return Err(format!("{} ended with {status}: {words} {fault}", program.display()));
    }
    Ok(Ran { lines: Lines::parse(&said), counts: supervisor.model().counts() })
}

/// This program, to run as a child on the node.
pub(super) fn own() -> Result<PathBuf, String> {
    std::env::current_exe().map_err(|error| format!("this program does not know where it is: {error}"))
}

/// What a command of the smallest kernel takes under supervision, in seconds.
pub(super) fn probe(timing: Timing, bundle: &Path) -> Result<f64, String> {
    let arguments = ["bench", "--child", "probe"].map(OsStr::new);
    let ran = run(timing, &own()?, &[&arguments[..], &[bundle.as_os_str()]].concat())?;
    ran.lines.median("dispatch").ok_or_else(|| "the probe said nothing".to_owned())
}

/// What supervising adds to a command: measured with commands whose time is known.
pub(super) fn overhead(bundle: &Path) -> Result<Duration, String> {
    let latency = Duration::from_micros(200);
    let timing = Timing { latency, bandwidth: u64::MAX, rate: u64::MAX, ..Timing::default() };
    Ok(Duration::from_secs_f64((probe(timing, bundle)? - latency.as_secs_f64()).max(0.0)))
}
