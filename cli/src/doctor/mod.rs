//! `doctor`: everything from the hardware to a token, a line each, with what to do where something is wrong.
//!
//! It takes the path that a run takes, through the same functions: where it is green, a run works.

mod device;
mod kernel_log;
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
    let begun = findings.0.len();
    examine(&mut findings, run.device == DeviceChoice::Auto, &open, bundle, &|path| places::load(path, run, true));
    if !software {
        kernel_log::told(&mut findings, begun);
    }
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
    let mut of_device = Findings::default();
    open_device(&mut of_device, open);
    let there = of_device.count(Verdict::Fail) == 0;
    if lenient {
        of_device.soften("until then a run takes the software NPU, which is slow");
    }
    findings.0.append(&mut of_device.0);
    match bundle {
        None => findings.skip("bundle", "none was named: `doctor <bundle>` goes on to one token"),
        Some(path) if !whole(findings, path) => findings.skip("token", "the bundle has to be whole first"),
        Some(_) if !there && !lenient => findings.skip("token", "the NPU has to be usable first"),
        Some(path) => token(findings, path, load),
    }
}

/// Opens the device and asks it everything. One that has slept may fail once and answer then.
fn open_device(findings: &mut Findings, open: &dyn Fn() -> Result<Arc<Device>, CliError>) {
    let first = match open() {
        Ok(device) => return device::all(findings, &device),
        Err(first) => first,
    };
    match open() {
        Ok(device) => {
            let text = format!("it answered when asked again; before that: {}", one_line(&first));
            findings.warn("device", &text, "ask again if a run says this after the NPU has been idle");
            device::all(findings, &device);
        }
        Err(error) => findings.fail("device", &one_line(&error)),
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
            findings.remedy(
                "fetch the files that are named again, or export the bundle anew: a run answers wrongly or not at all",
            );
        }
    }
    false
}

/// Loads as a run does, which dispatches some of the bundle's commands, and asks for one token.
fn token(findings: &mut Findings, path: &Path, load: &dyn Fn(&Path) -> Result<Loaded, CliError>) {
    let mut loaded = match load(path) {
        Ok(loaded) => loaded,
        Err(error) => {
            failed(findings, "loading", &error);
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
        Err(error) => failed(findings, "token", &error.into()),
    }
}

/// A failure of the device's can be a matter of once.
fn failed(findings: &mut Findings, what: &'static str, error: &CliError) {
    findings.fail(what, &one_line(error));
    if error.is_device() {
        findings.remedy(
            "try again; if it fails again, load the driver anew (sudo modprobe -r amdxdna; sudo modprobe amdxdna) or reboot",
        );
    }
}
