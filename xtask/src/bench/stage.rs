//! Whole stages: what is left of a turn's parts when the device takes no time.

use npu_model::{Clock, Timing};

use super::host::{ATTENTION, ATTENTION_TOKEN, GRID};
use super::ours::{self, Lines, Place};
use super::{Bench, supervised};
use crate::synth::Sample;

pub(super) const PICTURE: &str = "picture, 1040 patches";
pub(super) const PROMPT: &str = "prompt, 778 tokens";
pub(super) const TOKEN: &str = "token at 1024";

/// A device that takes no time.
pub(super) const FREE: Timing = Timing {
    latency: std::time::Duration::ZERO,
    bandwidth: u64::MAX,
    rate: u64::MAX,
    switch: std::time::Duration::ZERO,
    clock: Clock::Real,
};

/// What is not the device's: everything but the time spent on submitting and waiting.
pub(super) fn host(lines: &Lines, kind: &str) -> Option<f64> {
    let (totals, npu) = (lines.all(&format!("{kind}.total")), lines.all(&format!("{kind}.npu")));
    let rest: Vec<f64> = totals.iter().zip(&npu).map(|(total, npu)| total - npu).collect();
    super::measure::median(&rest)
}

pub(super) fn run(bench: &mut Bench) {
    let sample = if bench.effort.quick { Sample::Tiny } else { Sample::Whole };
    let bundle = match bench.bundle(sample) {
        Ok(bundle) => bundle,
        Err(why) => return bench.gap("whole stages", why),
    };
    let (ctx, tokens, grid) = if bench.effort.quick { (600, 2, [16, 16]) } else { (4096, 16, GRID) };
    let prompts: &[(&str, usize)] = if bench.effort.quick {
        &[(PROMPT, 20)]
    } else {
        &[(PROMPT, 778), ("token at 512", 512), (TOKEN, 1024), ("token at 2047", 2047)]
    };
    for round in 0..bench.effort.rounds {
        for &(name, prompt) in prompts {
            let wanted = if name == PROMPT { 1 } else { tokens };
            let kind = if name == PROMPT { "prompt" } else { "token" };
            match ours::text(Place::Here(Some(FREE)), &bundle, ctx, prompt, wanted) {
                Ok(lines) => {
                    let row = bench.report.row("stage", &format!("{name}: host"), "ms");
                    row.ours.extend(host(&lines, kind).map(|s| 1e3 * s));
                }
                Err(why) => bench.gap(name, why),
            }
            let Some(program) = bench.peer.clone() else { continue };
            let (prompt, wanted, ctx) = (prompt.to_string(), wanted.to_string(), ctx.to_string());
            let words = ["text".as_ref(), bundle.as_os_str(), ctx.as_ref(), prompt.as_ref(), wanted.as_ref()];
            match supervised::run(FREE, &program, &words) {
                Ok(ran) => {
                    let row = bench.report.row("stage", &format!("{name}: host"), "ms");
                    row.peer.extend(host(&ran.lines, kind).map(|s| 1e3 * s));
                }
                Err(why) => bench.gap("the peer's stages", why),
            }
        }
        match ours::picture(Place::Here(Some(FREE)), &bundle, grid) {
            Ok(lines) => {
                let row = bench.report.row("stage", &format!("{PICTURE}: host"), "ms");
                row.ours.extend(host(&lines, "picture").map(|s| 1e3 * s));
            }
            Err(why) => bench.gap(PICTURE, why),
        }
        // A minute: once is enough.
        if let Some(program) = bench.peer.clone().filter(|_| round == 0) {
            let [rows, columns] = grid.map(|n| n.to_string());
            let words = ["picture".as_ref(), bundle.as_os_str(), rows.as_ref(), columns.as_ref()];
            match supervised::run(FREE, &program, &words) {
                Ok(ran) => {
                    let row = bench.report.row("stage", &format!("{PICTURE}: host"), "ms");
                    row.peer.extend(host(&ran.lines, "picture").map(|s| 1e3 * s));
                    row.note = "peer: once".into();
                }
                Err(why) => bench.gap("the peer's picture", why),
            }
        }
    }
    contexts(bench);
}

/// Longer contexts: what is the same for every token, and the attention at its measured time for each token of context.
fn contexts(bench: &mut Bench) {
    let find = |group: &str, name: &str| bench.report.find(group, name).map(|row| (row.ours(), row.peer()));
    let Some(((short, short_peer), (long, long_peer))) =
        find("stage", "token at 512: host").zip(find("stage", "token at 2047: host"))
    else {
        return;
    };
    let measured = find("host", ATTENTION_TOKEN).and_then(|(ours, _)| ours);
    let line = |short: Option<f64>, long: Option<f64>, slope: Option<f64>, context: f64| {
        let (short, long) = (short?, long?);
        let slope = slope.unwrap_or((long - short) / (2047.0 - 512.0));
        Some(short + slope * (context - 512.0))
    };
    let mut rows = Vec::new();
    for (name, context) in
        [("token at 8192: host", 8192.0), ("token at 65536: host", 65536.0), ("token at 262144: host", 262_144.0)]
    {
        // The other layers' time does not depend on the context.
        let ours = line(short, long, measured.map(|ms| ms / 8192.0), context);
        rows.push((name, ours, line(short_peer, long_peer, None, context)));
    }
    for (name, ours, peer) in rows {
        let row = bench.report.row("stage", name, "ms");
        row.ours.extend(ours);
        row.peer.extend(peer);
        let layers = ATTENTION;
        row.note = format!(
            "a straight line: ours from 512 with the {layers} layers' attention at 8192, where that was measured; the \
             peer's through 512 and 2047, where its prompts end"
        );
    }
}
