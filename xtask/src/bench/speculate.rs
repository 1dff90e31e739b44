//! Guesses: what a run of them costs beside a token, and what answers gain and lose by them.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use npu_model::Timing;
use runtime::model::{Guesses, Input, Model, ModelError, Positions, Sequence, Speculate, Speculator};

use super::Bench;
use super::ours::{self, Lines, Place};
use crate::synth::Sample;

/// Tokens of a run.
const RUNS: [usize; 4] = [4, 8, 16, 64];
const PROMPT: usize = 1024;
const ANSWER: usize = 96;

/// A token that is said nowhere else, or what an answer repeats.
fn said(i: usize) -> u32 {
    2 + (i * 7919 % 100_003) as u32
}

/// What an answer says.
#[derive(Clone, Copy)]
enum Answer {
    /// A stretch of the prompt.
    Copied,
    /// Nothing that has been said before.
    Fresh,
    /// Three tokens of the prompt at a time, and then something else.
    Teasing,
}

impl Answer {
    const ALL: [(Answer, &str); 3] = [
        (Answer::Copied, "an answer that repeats its prompt"),
        (Answer::Fresh, "an answer that repeats nothing"),
        (Answer::Teasing, "an answer that seems to repeat and does not"),
    ];

    fn token(self, i: usize) -> u32 {
        match self {
            Answer::Copied => said(200 + i),
            Answer::Fresh => said(5000 + i),
            Answer::Teasing if i % 4 < 3 => said(200 + i),
            Answer::Teasing => said(9000 + i),
        }
    }
}

fn words(error: ModelError) -> String {
    error.to_string()
}

/// In this process, on a device that takes an NPU's time. The model's logits mean nothing there, so what it chooses is
/// laid down.
pub(super) fn measure(bundle: &Path, timing: Timing) -> Result<Lines, String> {
    let (mut model, _device) = ours::loaded(Place::Here(Some(timing)), bundle, 4096)?;
    let mut lines = Lines::default();
    let prompt: Vec<u32> = (0..PROMPT).map(said).collect();
    let positions = Positions::text(0, PROMPT);
    let input = Input { ids: &prompt, positions: &positions, vision: &[] };
    model.prefill(&input, &mut |_| ControlFlow::Continue(())).map_err(words)?;
    let place = model.snapshot();
    for i in 0..12 {
        let start = Instant::now();
        model.decode(said(i)).map_err(words)?;
        // The first one binds the commands.
        if i > 1 {
            lines.say("step", start.elapsed().as_secs_f64());
        }
    }
    for wide in [false, true] {
        if wide {
            let start = Instant::now();
            lines.say("head.bytes", model.widen_head().map_err(words)? as f64);
            lines.say("head.copy", start.elapsed().as_secs_f64());
        }
        for tokens in RUNS {
            let ids: Vec<u32> = (0..tokens).map(said).collect();
            for round in 0..4 {
                for accepted in [tokens - 1, 0] {
                    model.restore(&place).map_err(|error| error.to_string())?;
                    let (start, mut asked) = (Instant::now(), 0);
                    let choose = &mut |_: &[f32]| {
                        asked += 1;
                        Ok(if asked <= accepted { ids[asked] } else { 1 })
                    };
                    model.decode_run(&ids, choose).map_err(words)?;
                    if round > 0 {
                        let kind = if accepted > 0 { "accepted" } else { "refused" };
                        let head = if wide { "product" } else { "vectors" };
                        lines.say(&format!("run.{head}.{kind}.{tokens}"), start.elapsed().as_secs_f64());
                    }
                }
            }
        }
    }
    for (answer, name) in Answer::ALL {
        for (mode, word) in [(Speculate::Off, "off"), (Speculate::Lookup, "lookup"), (Speculate::Auto, "auto")] {
            model.restore(&place).map_err(|error| error.to_string())?;
            let (took, guesses) = answered(&mut model, &prompt, answer, mode)?;
            lines.say(&format!("{name}.{word}"), took.as_secs_f64() / ANSWER as f64);
            lines.say(&format!("{name}.{word}.runs"), guesses.runs as f64);
            lines.say(&format!("{name}.{word}.accepted"), guesses.accepted as f64);
        }
    }
    Ok(lines)
}

fn answered(model: &mut Model, prompt: &[u32], answer: Answer, mode: Speculate) -> Result<(Duration, Guesses), String> {
    let mut speculator = Speculator::new(mode, &[]);
    let mut chosen = 0;
    speculator.begin(prompt);
    let start = Instant::now();
    for i in 0..ANSWER {
        let room = ANSWER - i;
        let mut choose = |logits: &[f32]| {
            std::hint::black_box(host_ops::sample::argmax(logits));
            chosen += 1;
            Ok(answer.token(chosen))
        };
        let next = speculator.next(model, answer.token(i), room, &mut choose).map_err(words)?;
        if next != answer.token(i + 1) {
            return Err(format!("token {i} of the answer is {next}"));
        }
    }
    speculator.finish(model);
    Ok((start.elapsed(), speculator.guesses()))
}

/// Tokens after so many others, whose keys and values nobody has computed.
pub(super) fn contexts(bundle: &Path, timing: Timing) -> Result<Lines, String> {
    let (mut model, _device) = ours::loaded(Place::Here(Some(timing)), bundle, 262_144)?;
    let mut lines = Lines::default();
    for tokens in [1024, 32_768, 131_072, 262_144 - 16] {
        let mut sequence = Sequence::synthetic(&model, tokens);
        lines.say(&format!("context.{tokens}.bytes"), sequence.bytes() as f64);
        model.swap_sequence(&mut sequence).map_err(|error| error.to_string())?;
        for i in 0..8 {
            let (start, before) = (Instant::now(), model.profile());
            model.decode(said(i)).map_err(words)?;
            let (total, profile) = (start.elapsed(), model.profile().since(&before));
            if i > 1 {
                let npu = profile.part(runtime::model::Part::Npu).1;
                lines.say(&format!("context.{tokens}.total"), total.as_secs_f64());
                lines.say(&format!("context.{tokens}.host"), total.saturating_sub(npu).as_secs_f64());
            }
        }
        let start = Instant::now();
        let snapshot = model.snapshot();
        lines.say(&format!("context.{tokens}.snapshot"), start.elapsed().as_secs_f64());
        lines.say(&format!("context.{tokens}.snapshot.bytes"), snapshot.bytes() as f64);
        drop(snapshot);
        model.swap_sequence(&mut sequence).map_err(|error| error.to_string())?;
    }
    Ok(lines)
}

pub(super) fn run(bench: &mut Bench) {
    if bench.effort.quick {
        return;
    }
    let lines = match bench.bundle(Sample::Whole).and_then(|bundle| measure(&bundle, Timing::default())) {
        Ok(lines) => lines,
        Err(why) => return bench.gap("guesses", why),
    };
    let row = bench.report.row("stage", "token at 1024, an NPU's time", "ms");
    row.ours.extend(lines.all("step").iter().map(|s| 1e3 * s));
    for tokens in RUNS {
        let row = bench.report.row("stage", &format!("run of {tokens} guesses, all right"), "ms");
        row.ours.extend(lines.all(&format!("run.product.accepted.{tokens}")).iter().map(|s| 1e3 * s));
    }
    for (_, name) in Answer::ALL {
        for word in ["off", "lookup", "auto"] {
            let row = bench.report.row("stage", &format!("{name}: a token, guesses {word}"), "ms");
            row.ours.extend(lines.all(&format!("{name}.{word}")).iter().map(|s| 1e3 * s));
        }
    }
}
