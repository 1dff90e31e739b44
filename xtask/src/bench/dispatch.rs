//! Both runtimes on the same simulated NPU: ours in this process, the peer under supervision, whose cost is measured
//! first and taken off the device's latency.

use std::path::Path;
use std::time::Duration;

use npu_model::{Clock, Counts, Timing};
use runtime::model::Hybrid;

use super::host::GRID;
use super::ours::{self, Lines, Place};
use super::stage::{PICTURE, PROMPT, TOKEN, host};
use super::{Bench, calls, supervised};
use crate::synth::Sample;

/// Serial hops to the device of one token: four a layer, and the head.
pub(super) const HOPS: f64 = 97.0;

/// With the host's share.
const HYBRID: &str = "token at 1024 with --hybrid";
pub(super) const EMPTY: &str = "an empty command";
pub(super) const COMMANDS: &str = "commands a token";
pub(super) const IOCTLS: &str = "ioctls a token";
pub(super) const NPU_PROMPT: &str = "prompt, 778 tokens: NPU time";

fn ms(seconds: Option<f64>) -> Option<f64> {
    seconds.map(|s| 1e3 * s)
}

pub(super) fn run(bench: &mut Bench) {
    let sample = if bench.effort.quick { Sample::Tiny } else { Sample::Whole };
    let bundle = match bench.bundle(sample) {
        Ok(bundle) => bundle,
        Err(why) => return bench.gap("the timing device", why),
    };
    let clock = if bench.effort.quick { Clock::Virtual } else { Clock::Real };
    let timing = Timing { clock, ..Timing::default() };
    let (ctx, context, prompt, tokens, grid) =
        if bench.effort.quick { (600, 20, 30, 2, [16, 16]) } else { (4096, 1024, 778, 24, GRID) };

    let overhead = match bench.peer.clone() {
        Some(program) => excess(&program, &bundle, timing),
        None => Ok(Duration::ZERO),
    };
    let overhead = match overhead {
        Ok(overhead) => overhead,
        Err(why) => {
            bench.gap("what supervising costs", why);
            Duration::from_micros(35)
        }
    };
    let lowered = Timing { latency: timing.latency.saturating_sub(overhead), ..timing };
    let note = format!(
        "65 us + max(bytes / 50 GB/s, operations / 12 TFLOP/s) a command; the peer under supervision: its waits were \
         found {} us a command longer than the device's time, which is taken off the latency",
        overhead.as_micros()
    );

    for round in 0..bench.effort.rounds {
        empty(bench, timing, lowered);
        match ours::text(Place::Here(Some(timing)), &bundle, ctx, context, tokens) {
            Ok(lines) => own_token(bench, &lines, &note),
            Err(why) => bench.gap(TOKEN, why),
        }
        match ours::shared_text(Place::Here(Some(timing)), &bundle, ctx, context, tokens, Hybrid::Measured) {
            Ok(lines) => hybrid_token(bench, &lines),
            Err(why) => bench.gap(HYBRID, why),
        }
        match ours::text(Place::Here(Some(timing)), &bundle, ctx, prompt, 0) {
            Ok(lines) => {
                bench.report.row("dispatch", PROMPT, "ms").ours.extend(ms(lines.median("prompt.total")));
                bench.report.row("dispatch", NPU_PROMPT, "ms").ours.extend(ms(lines.median("prompt.device")));
            }
            Err(why) => bench.gap(PROMPT, why),
        }
        match ours::picture(Place::Here(Some(timing)), &bundle, grid) {
            Ok(lines) => {
                let device = ms(lines.median("picture.device"));
                let row = bench.report.row("dispatch", PICTURE, "ms");
                row.ours.extend(ms(lines.median("picture.total")));
                row.bound = device.map(|device| (device, "NPU time".to_owned()));
            }
            Err(why) => bench.gap(PICTURE, why),
        }
        peer(bench, &bundle, lowered, round);
    }
    if !bench.effort.quick {
        calls::run(bench, &bundle);
    }
    let bound = bench.report.find("dispatch", NPU_PROMPT).and_then(|row| row.ours());
    bench.report.row("dispatch", PROMPT, "ms").bound = bound.map(|bound| (bound, "NPU time".to_owned()));
}

/// By how much the peer's waits are longer than the device's time, a command: what supervising costs it.
fn excess(program: &Path, bundle: &Path, timing: Timing) -> Result<Duration, String> {
    let words = ["text".as_ref(), bundle.as_os_str(), "512".as_ref(), "32".as_ref(), "16".as_ref()];
    let ran = supervised::run(timing, program, &words)?;
    let waited = ran.lines.median("token.npu").ok_or("it said nothing of its tokens")?;
    // One chunk of prompt and each token have as many commands, and of the same sizes.
    let rounds = 17.0;
    let (device, commands) = (ran.counts.device_ns as f64 / 1e9 / rounds, ran.counts.commands as f64 / rounds);
    // More than the latency cannot be taken off: on a machine that is busy otherwise the peer looks slower than it is.
    Ok(Duration::from_secs_f64(((waited - device) / commands).max(0.0)).min(timing.latency))
}

/// A command that does nothing, with its wait.
fn empty(bench: &mut Bench, timing: Timing, lowered: Timing) {
    let tiny = match bench.bundle(Sample::Tiny) {
        Ok(tiny) => tiny,
        Err(why) => return bench.gap(EMPTY, why),
    };
    let us = |lines: &Lines| lines.median("dispatch").map(|s| 1e6 * s);
    let free = |timing: Timing| Timing { bandwidth: u64::MAX, rate: u64::MAX, ..timing };
    let ours = ours::probe(Place::Here(Some(free(timing))), &tiny).map(|lines| us(&lines));
    let supervised = if bench.peer.is_some() { supervised::probe(free(lowered), &tiny).map(Some) } else { Ok(None) };
    match (ours, supervised) {
        (Ok(ours), Ok(supervised)) => {
            let row = bench.report.row("dispatch", EMPTY, "us");
            row.ours.extend(ours);
            row.peer.extend(supervised.map(|s| 1e6 * s));
            row.bound = Some((timing.latency.as_secs_f64() * 1e6, "the device's latency".into()));
            row.note = "ours in process; under `peer`, also ours, under supervision with the lowered latency".into();
        }
        (ours, supervised) => {
            let why = ours.err().into_iter().chain(supervised.err()).next().unwrap_or_default();
            bench.gap(EMPTY, why);
        }
    }
}

fn own_token(bench: &mut Bench, lines: &Lines, note: &str) {
    // Bytes at the bandwidth, and a latency a serial hop; 0 in a smoke test, whose model is another.
    let array = lines.median("token.array").map(|array| 1e3 * array + HOPS * 0.065);
    let row = bench.report.row("dispatch", TOKEN, "ms");
    row.ours.extend(ms(lines.median("token.total")));
    row.bound = array.map(|array| (array, format!("{HOPS} serial hops and the array's time")));
    row.note = note.to_owned();
    bench.report.row("dispatch", "token at 1024: NPU time", "ms").ours.extend(ms(lines.median("token.device")));
    bench.report.row("dispatch", "token at 1024: host, not overlapped", "ms").ours.extend(ms(host(lines, "token")));
    for (name, unit, from) in [
        (IOCTLS, "calls", "token.ioctls"),
        (COMMANDS, "packets", "token.packets"),
        ("bytes written back a token", "bytes", "token.flushed"),
        ("changes between contexts a token", "changes", "token.switches"),
    ] {
        bench.report.row("dispatch", name, unit).ours.extend(lines.median(from));
    }
}

/// The same where the host takes a share. The device has a bandwidth of its own there, as an NPU that draws half of the
/// memory's has; what is taken from it the host has to bring.
fn hybrid_token(bench: &mut Bench, lines: &Lines) {
    let share = |of: &str| lines.median(of).unwrap_or(0.0);
    let plain = bench.report.find("dispatch", TOKEN).and_then(|row| row.ours());
    let row = bench.report.row("dispatch", HYBRID, "ms");
    row.ours.extend(ms(lines.median("token.total")));
    row.bound = plain.map(|plain| (plain, "without".to_owned()));
    row.note = format!(
        "the host takes {} parts of the head and {} slices of each down, as measured at load",
        share("share.head"),
        share("share.down")
    );
    let row = bench.report.row("dispatch", "commands a token with --hybrid", "packets");
    row.ours.extend(lines.median("token.packets"));
}

fn peer(bench: &mut Bench, bundle: &Path, timing: Timing, round: usize) {
    let Some(program) = bench.peer.clone() else { return };
    let tokens = 24.0;
    let words = ["text".as_ref(), bundle.as_os_str(), "4096".as_ref(), "1024".as_ref(), "24".as_ref()];
    match supervised::run(timing, &program, &words) {
        Ok(ran) => {
            let report = &mut bench.report;
            report.row("dispatch", TOKEN, "ms").peer.extend(ms(ran.lines.median("token.total")));
            report.row("dispatch", "token at 1024: NPU time", "ms").peer.extend(ms(ran.lines.median("token.npu")));
            let left = ms(host(&ran.lines, "token"));
            report.row("dispatch", "token at 1024: host, not overlapped", "ms").peer.extend(left);
            // Its prompt asks for as many commands as a token.
            let calls = |counts: &Counts| {
                let of = |name: &str| counts.ioctls.get(name).copied().unwrap_or(0);
                of("EXEC_CMD") + of("SYNCOBJ_TIMELINE_WAIT")
            };
            let counts = &ran.counts;
            report.row("dispatch", IOCTLS, "calls").peer.push(calls(counts) as f64 / (tokens + 1.0));
            report.row("dispatch", COMMANDS, "packets").peer.push(counts.packets as f64 / (tokens + 1.0));
        }
        Err(why) => bench.gap("the peer's tokens", why),
    }
    let words = ["text".as_ref(), bundle.as_os_str(), "4096".as_ref(), "778".as_ref(), "0".as_ref()];
    match supervised::run(timing, &program, &words) {
        Ok(ran) => {
            let report = &mut bench.report;
            report.row("dispatch", PROMPT, "ms").peer.extend(ms(ran.lines.median("prompt.total")));
            report.row("dispatch", NPU_PROMPT, "ms").peer.push(ran.counts.device_ns as f64 / 1e6);
        }
        Err(why) => bench.gap("the peer's prompt", why),
    }
    if round > 0 {
        return;
    }
    let [rows, columns] = GRID.map(|n| n.to_string());
    let words = ["picture".as_ref(), bundle.as_os_str(), rows.as_ref(), columns.as_ref()];
    match supervised::run(timing, &program, &words) {
        Ok(ran) => {
            let row = bench.report.row("dispatch", PICTURE, "ms");
            row.peer.extend(ms(ran.lines.median("picture.total")));
            row.note = "peer: once".into();
        }
        Err(why) => bench.gap("the peer's picture", why),
    }
}
