//! `doctor`: everything from the hardware to a token, a line each, with what to do where something is wrong.
//!
//! It takes the path that a run takes, through the same functions: where it is green, a run works.

mod device;
mod machine;
mod report;
#[cfg(test)]
mod tests;

pub(crate) use machine::process;

use crate::arguments::{DeviceChoice, RunOptions};
use crate::device as places;
use crate::device::Loaded;
use crate::error::{CliError, one_line};
use crate::npu;
use crate::output::{ProgressLine, answer};
use amdxdna_ioctl::Device;
use report::{Findings, Verdict};
use runtime::Turn;
use runtime::verify;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Looks at everything that a run of `bundle`, or of none, would use.
pub(crate) fn run(bundle: Option<&Path>, json: bool, run: &RunOptions) -> Result<(), CliError> {
    let mut findings = Findings::default();
    let software = match bundle {
        // As a run decides: a bundle for the software NPU alone goes there.
        Some(path) if run.device == DeviceChoice::Auto => {
            places::open(path).and_then(|bundle| npu::is_for_software(&bundle)).unwrap_or(false)
        }
        _ => matches!(run.device, DeviceChoice::Model | DeviceChoice::Timing),
    };
    if software {
        findings.skip("hardware", "the software NPU needs none");
    } else {
        machine::hardware(&mut findings);
    }
    machine::limits(&mut findings);
    let open = || match &run.device {
        DeviceChoice::Node(node) => npu::open(node),
        _ if software => places::software_device(),
        _ => npu::first(),
    };
    examine(&mut findings, run.device == DeviceChoice::Auto, &open, bundle, &|path| places::load(path, run, true));
    let text = if json { format!("{:#}\n", findings.json()) } else { findings.text() };
    answer(&text)?;
    match findings.count(Verdict::Fail) {
        0 => Ok(()),
        count => Err(CliError::Ill(count)),
    }
}

/// The device, the bundle, and both together. `lenient`: a run would go on without an NPU.
fn examine(
    findings: &mut Findings,
    lenient: bool,
    open: &dyn Fn() -> Result<Arc<Device>, CliError>,
    bundle: Option<&Path>,
    load: &dyn Fn(&Path) -> Result<Loaded, CliError>,
) {
    match open() {
        Ok(device) => device::all(findings, &device),
        Err(error) if lenient => {
            findings.warn("device", &one_line(&error), "until then a run takes the software NPU, which is slow");
        }
        Err(error) => findings.fail("device", &one_line(&error)),
    }
    let Some(path) = bundle else {
        return findings.skip("bundle", "none was named: `doctor <bundle>` goes on to one token");
    };
    if whole(findings, path) {
        token(findings, path, load);
    } else {
        findings.skip("token", "the bundle has to be whole first");
    }
}

/// Whether the bundle is what it should be.
fn whole(findings: &mut Findings, path: &Path) -> bool {
    let mut line = ProgressLine::new();
    let found = verify::verify(path, &mut |progress| {
        line.share("comparing checksums", progress.done, progress.total);
        ControlFlow::Continue(())
    });
    line.clear();
    match found {
        Err(error) => findings.fail("bundle", &one_line(&error)),
        Ok(None) => {}
        Ok(Some(found)) if found.passed() => {
            let what = found.identity.as_ref().map_or_else(|| "whole".to_owned(), |identity| one_line(identity));
            match found.sums {
                verify::Sums::Absent => {
                    findings.ok("bundle", &format!("{what}; it has no checksums, so a changed byte would not show"));
                }
                _ => findings.ok("bundle", &format!("{what}; all checksums are right")),
            }
            return true;
        }
        Ok(Some(found)) => {
            for problem in &found.problems {
                findings.fail("bundle", &one_line(problem));
            }
        }
    }
    false
}

/// Loads as a run does, which dispatches some of the bundle's commands, and asks for one token.
fn token(findings: &mut Findings, path: &Path, load: &dyn Fn(&Path) -> Result<Loaded, CliError>) {
    let mut loaded = match load(path) {
        Ok(loaded) => loaded,
        Err(error) => {
            findings.fail("loading", &one_line(&error));
            return findings.skip("token", "the bundle has to load first");
        }
    };
    let counters = loaded.chat.counters();
    findings.ok("loading", &format!("on {} in {:.1} s", loaded.device, loaded.seconds));
    match loaded.chat.model().fallback() {
        Some(why) => findings.warn(
            "dispatch",
            &format!("{why}: commands go one at a time, which is slower"),
            "answers are right all the same; please report it with your kernel's and firmware's version",
        ),
        None => findings.ok("dispatch", &format!("{} commands came out as they should", counters.commands)),
    }
    let start = Instant::now();
    let turn = Turn { system: None, images: &[], text: "Hi", thinking: false, max_new: 1 };
    match loaded.chat.turn(&turn, &mut |_| ControlFlow::Continue(())) {
        Ok(outcome) => {
            let (tokens, took) = (outcome.prompt_tokens, start.elapsed().as_secs_f64());
            findings.ok("token", &format!("the first one, after {tokens} tokens of prompt, in {took:.2} s"));
        }
        Err(error) => findings.fail("token", &one_line(&error)),
    }
}
