//! What has to be reached, and whether it is.

use super::report::{Report, Target, figure};
use super::{calls, dispatch, host, load, npu, stage};

/// One condition of a target: a figure, and whether it is good enough.
struct Part {
    shown: String,
    met: Option<bool>,
}

fn at_least(what: &str, value: Option<f64>, least: f64, unit: &str) -> Part {
    let shown = value.map_or("-".to_owned(), figure);
    Part { shown: format!("{shown}{unit} {what}"), met: value.map(|value| value >= least) }
}

fn at_most(what: &str, value: Option<f64>, most: f64, unit: &str) -> Part {
    let shown = value.map_or("-".to_owned(), figure);
    Part { shown: format!("{shown}{unit} {what}"), met: value.map(|value| value <= most) }
}

fn target(what: &'static str, wanted: &str, parts: Vec<Part>) -> Target {
    // One that fails is enough; all have to be known for a yes.
    let failed = parts.iter().any(|part| part.met == Some(false));
    let all = parts.iter().all(|part| part.met == Some(true));
    let measured = parts.iter().map(|part| part.shown.as_str()).collect::<Vec<_>>().join("; ");
    Target { what, wanted: wanted.to_owned(), measured, met: if failed { Some(false) } else { all.then_some(true) } }
}

/// All of them, from what was measured.
pub(super) fn judge(report: &Report) -> Vec<Target> {
    let row = |group: &str, name: &str| report.find(group, name);
    let ratio = |group: &str, name: &str| row(group, name).and_then(|row| row.ratio());
    let reached = |group: &str, name: &str| row(group, name).and_then(|row| row.reached()).map(|part| 100.0 * part);
    let ours = |group: &str, name: &str| row(group, name).and_then(|row| row.ours());
    let over = |a: Option<f64>, b: Option<f64>| Some(a? / b?);
    let bound = |group: &str, name: &str| row(group, name).and_then(|row| row.bound.as_ref()).map(|bound| bound.0);

    let peer_times = |group: &str, name: &str, least: f64| at_least("the peer", ratio(group, name), least, "x");
    let of_limit = |group: &str, name: &str, least: f64| at_least("of the limit", reached(group, name), least, " %");
    let token_host = "token at 1024: host";
    let prompt_host = ours("stage", &format!("{}: host", stage::PROMPT));
    let prompt_npu = ours("dispatch", dispatch::NPU_PROMPT);
    let longer = prompt_host.zip(prompt_npu).map(|(host, npu)| host.max(npu));
    vec![
        target(
            "vision attention, 1040 patches x 24 blocks",
            ">= 50 % of FMA peak; >= 15x the peer's",
            vec![of_limit("host", host::VISION, 50.0), peer_times("host", host::VISION, 15.0)],
        ),
        target(
            "whole vision host part, 1040 patches",
            ">= 10x the peer",
            vec![peer_times("stage", &format!("{}: host", stage::PICTURE), 10.0)],
        ),
        target(
            "DeltaNet prefill, 778 tokens x 18",
            ">= 5x the peer",
            vec![peer_times("host", host::DELTA_PROMPT, 5.0)],
        ),
        target(
            "DeltaNet one token x 18",
            ">= 70 % of bandwidth over the state; >= 3x the peer",
            vec![of_limit("host", host::DELTA_TOKEN, 70.0), peer_times("host", host::DELTA_TOKEN, 3.0)],
        ),
        target(
            "attention, prefill 2048 tokens x 6",
            ">= 10x the peer",
            vec![peer_times("host", host::ATTENTION_PROMPT, 10.0)],
        ),
        target(
            "attention, one token at 8192 x 6",
            ">= 70 % of bandwidth over the cache; >= 4x the peer",
            vec![of_limit("host", host::ATTENTION_TOKEN, 70.0), peer_times("host", host::ATTENTION_TOKEN, 4.0)],
        ),
        target(
            "all host work of a token at 1024",
            "<= 1/4 of the peer's",
            vec![at_least("the peer", ratio("stage", token_host), 4.0, "x")],
        ),
        target(
            "timing device: a token at 1024",
            "<= NPU time of 97 serial hops + 10 %",
            vec![at_most(
                "of the NPU time",
                over(ours("dispatch", stage::TOKEN), bound("dispatch", stage::TOKEN)),
                1.1,
                "x",
            )],
        ),
        target(
            "timing device: prompt of 778 tokens",
            "<= 1.15 x max(NPU, host); >= 6x the peer",
            vec![
                at_most("max(NPU, host)", over(ours("dispatch", stage::PROMPT), longer), 1.15, "x"),
                peer_times("dispatch", stage::PROMPT, 6.0),
            ],
        ),
        target(
            "system calls a token",
            "<= 200 ioctls, an occasional futex, nothing else; no allocations",
            vec![
                at_most("ioctls", ours("dispatch", dispatch::IOCTLS), 200.0, ""),
                at_most("futex", ours("dispatch", calls::FUTEX), 10.0, ""),
                at_most("others", ours("dispatch", calls::OTHER), 0.5, ""),
                at_most("allocations", ours("dispatch", calls::ALLOCATIONS), 0.0, ""),
            ],
        ),
        target(
            "loading 2.5 GB",
            "peak <= 1.1 x the weights; <= 1.2 x reading the file; <= 1/2 of the peer's",
            vec![
                at_most("the weights", over(ours("load", load::MEMORY), bound("load", load::MEMORY)), 1.1, "x"),
                at_most("reading", over(ours("load", load::SECONDS), bound("load", load::SECONDS)), 1.2, "x"),
                peer_times("load", load::SECONDS, 2.0),
            ],
        ),
        target(
            "software NPU: a token",
            ">= 70 % of bandwidth over the weights",
            vec![of_limit("npu", npu::TOKEN, 70.0)],
        ),
    ]
}
