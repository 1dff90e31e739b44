//! `cargo xtask bench`: one command, one table. Our runtime and the peer's in the same run, in turn, and the machine's
//! own limits beside them.

mod allocations;
mod calls;
mod dispatch;
mod host;
mod load;
mod machine;
mod measure;
mod npu;
mod ours;
mod peer;
mod plot;
mod report;
mod speculate;
mod stage;
mod supervised;
mod targets;
mod timeline;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use lexopt::{Arg, Parser, ValueExt};
use runtime::bundle::Bundle;

use self::machine::Machine;
use self::measure::Effort;
use self::report::{GROUPS, Report};
use crate::synth::{Sample, sample};

pub(crate) const HELP: &str = "\
cargo xtask bench [OPTION]...

Measures our runtime and a runtime by others in turn, and the machine's limits, and prints a table. Built and run
optimised, whatever this command is built as.

  --group host|stage|dispatch|load|npu
                     only these groups; may be given more than once            [all]
  --rounds N         alternations                                              [3]
  --json FILE        everything that was measured
  --out DIR          the table, the JSON and a plot of each group
  --bundle DIR       a 2B bundle to use; otherwise one is written to target/bench
  --no-peer          ours alone
  --timeline DIR     nothing of all this, but where the time of a token, a prompt and a picture goes on the timing device:
                     a table and drawings
  --quick            a smoke test: tiny shapes, ours alone, nothing means anything
";

#[derive(Debug)]
struct Options {
    groups: Vec<&'static str>,
    rounds: usize,
    json: Option<PathBuf>,
    out: Option<PathBuf>,
    bundle: Option<PathBuf>,
    peer: bool,
    quick: bool,
    timeline: Option<PathBuf>,
}

/// A run in progress.
#[derive(Debug)]
pub(crate) struct Bench {
    effort: Effort,
    report: Report,
    /// The peer's program.
    peer: Option<PathBuf>,
    /// Where bundles are, and the one for the whole model.
    folder: PathBuf,
    whole: Option<PathBuf>,
}

impl Bench {
    /// A bundle to measure with.
    fn bundle(&self, which: Sample) -> Result<PathBuf, String> {
        let name = match (which, &self.whole) {
            (Sample::Whole, Some(path)) => return Ok(path.clone()),
            (Sample::Whole, None) => "2b",
            (Sample::Linear, _) => "linear",
            (Sample::Attention, _) => "attention",
            (Sample::Tiny, _) => "tiny",
        };
        let path = self.folder.join(name);
        sample(&path, which).map(|()| path)
    }

    /// Something that could not be measured.
    fn gap(&mut self, what: &str, why: String) {
        let gap = format!("{what}: {why}");
        if !self.report.gaps.contains(&gap) {
            eprintln!("bench: {gap}");
            self.report.gaps.push(gap);
        }
    }
}

/// True where everything that was asked for was measured.
pub(crate) fn run(arguments: &[OsString]) -> Result<bool, String> {
    if arguments.first().is_some_and(|word| word == "--child") {
        let words: Vec<String> = arguments[1..].iter().map(|word| word.to_string_lossy().into_owned()).collect();
        return ours::child(&words).map(|()| true);
    }
    let Some(options) = parse(arguments).map_err(|error| error.to_string())? else {
        crate::print(HELP);
        return Ok(true);
    };
    if cfg!(debug_assertions) && !options.quick {
        return optimised(arguments);
    }
    if let Some(folder) = &options.timeline {
        let bundle = options.bundle.clone().unwrap_or_else(|| target().join("bench/2b"));
        if options.bundle.is_none() {
            sample(&bundle, Sample::Whole)?;
        }
        return timeline::run(&bundle, folder).map(|()| true);
    }
    let report = measure(&options)?;
    let table = report.table();
    crate::print(&table);
    save(&options, &report, &table)?;
    Ok(report.gaps.is_empty())
}

/// The same command, built with optimisation.
fn optimised(arguments: &[OsString]) -> Result<bool, String> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["run", "--release", "--quiet", "--package", "xtask", "--", "bench"]).args(arguments);
    let status = command.status().map_err(|error| format!("{command:?} did not start: {error}"))?;
    Ok(status.success())
}

fn parse(arguments: &[OsString]) -> Result<Option<Options>, lexopt::Error> {
    let mut options = Options {
        groups: Vec::new(),
        rounds: 3,
        json: None,
        out: None,
        bundle: None,
        peer: true,
        quick: false,
        timeline: None,
    };
    let mut parser = Parser::from_args(arguments);
    while let Some(argument) = parser.next()? {
        match argument {
            Arg::Long("group") => options.groups.push(parser.value()?.parse_with(|text| {
                GROUPS.into_iter().find(|group| *group == text).ok_or("there are host, stage, dispatch, load and npu")
            })?),
            Arg::Long("rounds") => options.rounds = parser.value()?.parse::<usize>()?.max(1),
            Arg::Long("json") => options.json = Some(parser.value()?.into()),
            Arg::Long("out") => options.out = Some(parser.value()?.into()),
            Arg::Long("bundle") => options.bundle = Some(parser.value()?.into()),
            Arg::Long("timeline") => options.timeline = Some(parser.value()?.into()),
            Arg::Long("no-peer") => options.peer = false,
            Arg::Long("quick") => options.quick = true,
            Arg::Long("help") | Arg::Short('h') => return Ok(None),
            other => return Err(other.unexpected()),
        }
    }
    if options.groups.is_empty() {
        options.groups = GROUPS.into();
    }
    if options.quick {
        (options.rounds, options.peer) = (1, false);
    }
    Ok(Some(options))
}

/// The build directory of this checkout.
fn target() -> PathBuf {
    crate::vm::target_directory(&crate::check::root())
}

/// What supervising adds to a command.
///
/// # Errors
/// Why it cannot be measured.
pub(crate) fn overhead() -> Result<Duration, String> {
    let tiny = target().join("bench/tiny");
    sample(&tiny, Sample::Tiny).and_then(|()| supervised::overhead(&tiny))
}

fn measure(options: &Options) -> Result<Report, String> {
    let effort = Effort { rounds: options.rounds, quick: options.quick };
    let target = target();
    let (peer, missing) = match options.peer.then(|| peer::build(&target)) {
        None => (None, None),
        Some(Ok(program)) => (Some(program), None),
        Some(Err(why)) => (None, Some(why)),
    };
    let report = Report {
        machine: Machine::measure(effort),
        rows: Vec::new(),
        targets: Vec::new(),
        gaps: Vec::new(),
        peer: if peer.is_some() { peer::NAME.to_owned() } else { "none".to_owned() },
        rounds: options.rounds,
    };
    let (folder, whole) = (target.join("bench"), options.bundle.clone());
    let mut bench = Bench { effort, report, peer, folder, whole };
    if let Some(why) = missing {
        bench.gap("the peer", why);
    }
    for group in GROUPS {
        if !options.groups.contains(&group) {
            continue;
        }
        eprintln!("bench: {group}");
        let again = Machine::measure(effort);
        bench.report.machine.improve(&again);
        match group {
            "host" => host::run(&mut bench),
            "stage" => {
                stage::run(&mut bench);
                speculate::run(&mut bench);
            }
            "dispatch" => dispatch::run(&mut bench),
            "load" => load::run(&mut bench),
            _ => npu::run(&mut bench),
        }
    }
    let mut report = bench.report;
    // Last: by then the limits have been measured often.
    host::bounds(&mut report);
    if !options.quick {
        report.targets = targets::judge(&report);
    }
    Ok(report)
}

/// The whole of it on tiny shapes, ours alone: everything gets measured, and the counts are what they have to be. No
/// time is looked at.
///
/// # Errors
/// What is missing or wrong.
pub(crate) fn smoke() -> Result<String, String> {
    let options = Options {
        groups: GROUPS.into(),
        rounds: 1,
        json: None,
        out: None,
        bundle: None,
        peer: false,
        quick: true,
        timeline: None,
    };
    let report = measure(&options)?;
    if let Some(gap) = report.gaps.first() {
        return Err(gap.clone());
    }
    let missing = GROUPS.into_iter().find(|group| plot::chart(&report, group).is_none());
    if let Some(group) = missing {
        return Err(format!("nothing was measured in group {group}"));
    }
    let bundle = target().join("bench/tiny");
    let text = Bundle::open(&bundle).map_err(|error| error.to_string())?.manifest.text;
    let wanted = text.layers.len() * (3 + text.down_slices) + text.head_parts;
    let found = report.find("dispatch", dispatch::COMMANDS).and_then(report::Row::ours).unwrap_or_default();
    if found != wanted as f64 {
        return Err(format!("a token of the tiny model takes {found} commands, its layers and head say {wanted}"));
    }
    Ok(format!("{} figures, {wanted} commands a token", report.rows.len()))
}

fn save(options: &Options, report: &Report, table: &str) -> Result<(), String> {
    let write = |path: &Path, text: &str| {
        let folder = path.parent().map_or(Ok(()), fs::create_dir_all);
        folder.and_then(|()| fs::write(path, text)).map_err(|error| format!("{}: {error}", path.display()))
    };
    let json = format!("{:#}\n", report.json());
    if let Some(path) = &options.json {
        write(path, &json)?;
    }
    if let Some(folder) = &options.out {
        write(&folder.join("bench.json"), &json)?;
        write(&folder.join("README.md"), &format!("# Measured\n\n`cargo xtask bench --out docs/bench`\n\n{table}"))?;
        for group in GROUPS {
            if let Some(chart) = plot::chart(report, group) {
                write(&folder.join(format!("{group}.svg")), &chart)?;
            }
        }
    }
    Ok(())
}
