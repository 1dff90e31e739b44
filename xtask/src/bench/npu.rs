//! The software NPU itself, computing: a token of the 2B model.

use super::Bench;
use super::ours::{self, Place};
use crate::synth::Sample;

pub(super) const TOKEN: &str = "token on the software NPU";

pub(super) fn run(bench: &mut Bench) {
    let sample = if bench.effort.quick { Sample::Tiny } else { Sample::Whole };
    let bundle = match bench.bundle(sample) {
        Ok(bundle) => bundle,
        Err(why) => return bench.gap("the software NPU", why),
    };
    for _ in 0..bench.effort.rounds {
        match ours::text(Place::Here(None), &bundle, 512, 8, if bench.effort.quick { 1 } else { 4 }) {
            Ok(lines) => {
                let (total, bytes) = (lines.median("token.npu"), lines.median("token.read"));
                let read = bench.report.machine.read;
                let row = bench.report.row("npu", TOKEN, "ms");
                row.ours.extend(total.map(|s| 1e3 * s));
                row.bound = bytes.map(|bytes| (1e3 * bytes / read, format!("{:.2} GB read at the limit", bytes / 1e9)));
                let prompt = lines.median("prompt.npu");
                bench
                    .report
                    .row("npu", "prompt of 8 tokens (one chunk of 256 rows)", "ms")
                    .ours
                    .extend(prompt.map(|s| 1e3 * s));
            }
            Err(why) => return bench.gap("the software NPU", why),
        }
    }
}
