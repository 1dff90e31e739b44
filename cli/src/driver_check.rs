//! `driver-check`: the table of driver cases against a device node, or against the software NPU.

use crate::arguments::{DeviceChoice, UsageError};
use crate::error::{CliError, one_line};
use crate::npu;
use crate::output::{ProgressLine, answer, note};
use amdxdna_ioctl::{KernelOpener, Opener};
use driver_tests::cases::{self, Case, Group, Outcome, Record, Selection};
use npu_model::{Config, Model};
use std::fmt::Write;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

/// How the outcomes are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Style {
    /// A line a case that did not simply pass, and a summary by group.
    #[default]
    Table,
    /// Test Anything Protocol, version 14.
    Tap,
    /// One JSON object a line.
    Json,
}

/// What `driver-check` was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Options {
    pub(crate) device: DeviceChoice,
    /// All when empty.
    pub(crate) groups: Vec<Group>,
    /// `group::name`; all when empty.
    pub(crate) cases: Vec<String>,
    pub(crate) list: bool,
    pub(crate) style: Style,
    pub(crate) danger: bool,
}

/// Runs the table; an error when a case failed.
pub(crate) fn run(options: &Options) -> Result<(), CliError> {
    let mut selection = Selection {
        groups: options.groups.clone(),
        names: options.cases.clone(),
        danger: options.danger,
        ..Selection::default()
    };
    if let Some(unknown) = options.cases.iter().find(|name| !cases::all().any(|case| case.to_string() == **name)) {
        return Err(UsageError::NoCase(unknown.clone()).into());
    }
    let wanted: Vec<&Case> = cases::all().filter(|case| selection.takes(case)).collect();
    if wanted.is_empty() {
        return Err(UsageError::NoCases.into());
    }
    if options.list {
        return list(&wanted, options.style);
    }
    let (opener, node) = device(&options.device, &mut selection)?;
    let progress = ProgressLine::new();
    let mut out =
        Printer { style: options.style, total: wanted.len(), number: 0, tallies: Vec::new(), stopped: None, progress };
    out.begin(wanted.len(), &node)?;
    let ran = cases::run(&selection, &opener, &node, &mut |record| out.take(record));
    if let Some(stopped) = out.stopped.take() {
        return Err(stopped);
    }
    ran.map_err(|why| CliError::Device(format!("{}: {why}", node.display())))?;
    out.end()
}

/// The software NPU has no node; this is what its opener is asked for.
const SOFTWARE: &str = "the software NPU";

fn device(choice: &DeviceChoice, selection: &mut Selection) -> Result<(Arc<dyn Opener>, PathBuf), CliError> {
    // Each case opens the node for itself; this one is only to know that it can be.
    let device = match choice {
        DeviceChoice::Node(node) => npu::open(node)?,
        DeviceChoice::Npu | DeviceChoice::Virtual => npu::first()?,
        DeviceChoice::Model | DeviceChoice::Timing => return Ok(software(selection)),
        DeviceChoice::Auto => match npu::first() {
            Ok(device) => device,
            Err(reason) => {
                note(&format_args!("checking {SOFTWARE}: {}", one_line(&reason)));
                return Ok(software(selection));
            }
        },
    };
    Ok((Arc::new(KernelOpener), device.node().to_owned()))
}

fn software(selection: &mut Selection) -> (Arc<dyn Opener>, PathBuf) {
    let config = Config::default();
    selection.model = Some(config.clone());
    (Model::new(config), SOFTWARE.into())
}

fn list(wanted: &[&Case], style: Style) -> Result<(), CliError> {
    let mut text = String::new();
    for case in wanted {
        let _ = match style {
            Style::Json => writeln!(
                text,
                "{{\"case\":{},\"group\":{},\"since\":{},\"danger\":{},\"expects\":{}}}",
                json(&case.to_string()),
                json(case.group.name()),
                case.since,
                case.danger,
                json(&case.expects.to_string())
            ),
            Style::Table | Style::Tap => {
                let danger = if case.danger { " (dangerous)" } else { "" };
                writeln!(text, "{case}{danger}: {}", case.expects)
            }
        };
    }
    answer(&text)
}

#[derive(Debug, Default)]
struct Tally {
    pass: usize,
    fail: usize,
    skip: usize,
    timeout: usize,
    seconds: f64,
}

impl Tally {
    fn add(&mut self, record: &Record<'_>) {
        self.seconds += record.took.as_secs_f64();
        match record.outcome {
            Outcome::Pass => self.pass += 1,
            Outcome::Fail(_) => self.fail += 1,
            Outcome::Skip(_) => self.skip += 1,
            Outcome::Timeout => self.timeout += 1,
        }
    }

    fn row(&self, name: &str) -> String {
        let Self { pass, fail, skip, timeout, seconds } = self;
        format!("{name:<10}{pass:>6}{fail:>6}{skip:>6}{timeout:>9}{seconds:>9.2}\n")
    }
}

struct Printer {
    style: Style,
    total: usize,
    number: usize,
    /// Most cases pass and say nothing; some take seconds.
    progress: ProgressLine,
    tallies: Vec<(Group, Tally)>,
    /// Why nothing more can be written.
    stopped: Option<CliError>,
}

impl Printer {
    fn begin(&self, count: usize, node: &std::path::Path) -> Result<(), CliError> {
        match self.style {
            Style::Table => answer(&format!("{count} cases on {}\n", node.display())),
            Style::Tap => answer(&format!("TAP version 14\n1..{count}\n")),
            Style::Json => Ok(()),
        }
    }

    fn take(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        self.number += 1;
        self.progress.clear();
        match self.tallies.last_mut() {
            Some((group, tally)) if *group == record.case.group => tally.add(record),
            _ => {
                let mut tally = Tally::default();
                tally.add(record);
                self.tallies.push((record.case.group, tally));
            }
        }
        match answer(&self.line(record)) {
            Ok(()) => {
                let (number, total) = (self.number, self.total);
                if number < total {
                    self.progress.show(|| format!("{number} of {total} cases"));
                }
                ControlFlow::Continue(())
            }
            Err(error) => {
                self.stopped = Some(error);
                ControlFlow::Break(())
            }
        }
    }

    fn line(&self, record: &Record<'_>) -> String {
        let Record { case, outcome, took, notes } = record;
        match self.style {
            Style::Table => {
                let mut text = String::new();
                if **outcome != Outcome::Pass {
                    let _ = writeln!(text, "{case}: {outcome}");
                    if outcome.is_bad() {
                        let _ = writeln!(text, "    expected: {}", case.expects);
                    }
                }
                for note in *notes {
                    let _ = writeln!(text, "{case}: {note}");
                }
                text
            }
            Style::Tap => {
                let (ok, directive) = match outcome {
                    Outcome::Pass => ("ok", String::new()),
                    Outcome::Skip(why) => ("ok", format!(" # SKIP {why}")),
                    Outcome::Fail(_) | Outcome::Timeout => ("not ok", String::new()),
                };
                let mut text = format!("{ok} {} - {case}: {}{directive}\n", self.number, case.expects);
                if outcome.is_bad() {
                    let _ = write!(text, "  ---\n  outcome: {}\n  ...\n", json(&outcome.to_string()));
                }
                for note in *notes {
                    let _ = writeln!(text, "# {case}: {note}");
                }
                text
            }
            Style::Json => {
                let (word, why) = match outcome {
                    Outcome::Pass => ("pass", ""),
                    Outcome::Fail(why) => ("fail", &**why),
                    Outcome::Skip(why) => ("skip", &**why),
                    Outcome::Timeout => ("timeout", ""),
                };
                let notes: Vec<String> = notes.iter().map(|note| json(note)).collect();
                format!(
                    "{{\"case\":{},\"outcome\":\"{word}\",\"why\":{},\"seconds\":{:.6},\"notes\":[{}]}}\n",
                    json(&case.to_string()),
                    json(why),
                    took.as_secs_f64(),
                    notes.join(",")
                )
            }
        }
    }

    fn end(self) -> Result<(), CliError> {
        let mut all = Tally::default();
        let mut text = String::from("group       pass  fail  skip  timeout  seconds\n");
        for group in Group::ALL {
            let mut sum = Tally::default();
            for (_, tally) in self.tallies.iter().filter(|(of, _)| *of == group) {
                sum.pass += tally.pass;
                sum.fail += tally.fail;
                sum.skip += tally.skip;
                sum.timeout += tally.timeout;
                sum.seconds += tally.seconds;
            }
            if sum.pass + sum.fail + sum.skip + sum.timeout > 0 {
                text += &sum.row(group.name());
            }
            all.pass += sum.pass;
            all.fail += sum.fail;
            all.skip += sum.skip;
            all.timeout += sum.timeout;
            all.seconds += sum.seconds;
        }
        text += &all.row("all");
        if self.style == Style::Table {
            answer(&text)?;
        }
        match all.fail + all.timeout {
            0 => Ok(()),
            bad => Err(CliError::DriverCheckFailed(bad)),
        }
    }
}

/// A JSON string.
fn json(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if u32::from(c) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_strings_are_escaped() {
        assert_eq!(json("a\"b\\c\nd\u{e9}"), "\"a\\\"b\\\\c\\u000ad\u{e9}\"");
    }
}
