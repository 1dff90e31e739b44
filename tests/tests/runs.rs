//! All rows of a prompt are asked for, and several tokens of an answer go in at once: beside one token at a time.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use driver_tests::checkpoint::{Form, TINY};
use npu_model::{Config, Model as Device};
use runtime::bundle::{Bundle, WeightFormat};
use runtime::export::{ExportOptions, VisionExport, export};
use runtime::model::{Input, LoadOptions, Model, ModelError, Speculate, Speculator};
use runtime::npu::Npu;

/// A model in bfp16, in f32 and in bfp6s.
fn bundles() -> &'static [PathBuf; 3] {
    static BUNDLES: OnceLock<[PathBuf; 3]> = OnceLock::new();
    BUNDLES.get_or_init(|| {
        let own = Path::new(env!("CARGO_TARGET_TMPDIR")).join("runs");
        let _ = std::fs::remove_dir_all(&own);
        TINY.write(&own.join("checkpoint"), Form::USUAL).unwrap();
        [WeightFormat::Bfp16, WeightFormat::F32, WeightFormat::Bfp6s].map(|format| {
            let vision = VisionExport::None;
            // Parts of the head that no piece of a projection's width ends with.
            let options = ExportOptions::new(own.join("checkpoint"), own.join(format!("{format:?}")));
            let options = ExportOptions { format, vision, head_parts: Some(5), ..options };
            export(&options, &mut |_| ControlFlow::Continue(())).unwrap().out
        })
    })
}

fn load(bundle: &Path, commands_in_flight: usize) -> (Model, Arc<Device>) {
    let device = Device::new(Config { coherent: false, ..Config::default() });
    let npu = Npu::open(&*device, Path::new("/dev/accel/accel0")).unwrap();
    let options = LoadOptions { max_ctx: 2048, commands_in_flight, ..LoadOptions::default() };
    (Model::load(Bundle::open(bundle).unwrap(), npu, &options, &mut |_| {}).unwrap(), device)
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|x| x.to_bits()).collect()
}

fn append(model: &mut Model, ids: &[u32]) {
    let positions = model.positions(ids, &[]).unwrap();
    let input = Input { ids, positions: &positions, vision: &[] };
    model.prefill(&input, &mut |_| ControlFlow::Continue(())).unwrap();
}

fn words(n: u32, seed: u32) -> Vec<u32> {
    (0..n).map(|i| (i * 7 + i / 5 + seed) % 190).collect()
}

fn loss(logits: &[f32], id: u32) -> f64 {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|x| f64::from(x - most).exp()).sum();
    sum.ln() - f64::from(logits[id as usize] - most)
}

/// Over an edge of a chunk, and a shorter prompt. The tolerance is that of bf16 logits, or of the order of f32 sums.
#[test]
fn every_row_foretells_as_a_token_would() {
    for ((bundle, commands_in_flight), tolerance) in [((0, 4), 0.05), ((0, 1), 0.05), ((1, 4), 1e-4), ((2, 4), 0.05)] {
        let (mut model, device) = load(&bundles()[bundle], commands_in_flight);
        for n in [300, 3] {
            let (ids, mut next) = (words(n, 0), words(n, 1)[..].to_vec());
            next[1] = 5000;
            model.reset();
            let positions = model.positions(&ids, &[]).unwrap();
            let input = Input { ids: &ids, positions: &positions, vision: &[] };
            // Copies the head before the commands are counted.
            model.widen_head().unwrap();
            let before = device.counts().commands;
            let rows = model.foretell(&input, &next, &mut |_| ControlFlow::Continue(())).unwrap().unwrap();
            let commands = device.counts().commands - before;
            assert_eq!((rows.len(), model.len()), (ids.len(), ids.len()));
            // Two layers of four sorts of commands for each unit, and the head in one piece for each chunk. With one
            // command in flight a unit is as long as the streams.
            let chunks = u64::from(n).div_ceil(256);
            let units = if commands_in_flight == 1 { 1 } else { chunks };
            let text = &model.bundle().manifest.text;
            assert_eq!(commands, units * 2 * (3 + text.down_slices as u64) + chunks);
            let after = bits(model.logits().unwrap());
            model.reset();
            let (mut worst, mut others) = (0.0_f64, 0);
            for ((id, next), row) in ids.iter().zip(&next).zip(&rows) {
                let logits = model.decode(*id).unwrap();
                let mut sorted = logits.to_vec();
                sorted.sort_by(|a, b| b.total_cmp(a));
                let close = logits[row.best as usize] >= sorted[0] - tolerance as f32 * 4.0;
                assert!(close, "{} instead of {}", logits[row.best as usize], sorted[0]);
                others += usize::from(logits[row.best as usize] < sorted[0]);
                if *next < 320 {
                    worst = worst.max((row.loss - loss(logits, *next)).abs());
                } else {
                    assert_eq!(row.loss, f64::INFINITY);
                }
            }
            println!("{n} rows: losses differ by {worst:.1e} at most, {others} other choices");
            assert!(worst < tolerance, "{worst}");
            // What stays is what a prompt leaves.
            model.reset();
            append(&mut model, &ids);
            assert!(bits(model.logits().unwrap()) == after);
        }
    }
}

#[test]
fn wrong_numbers_of_next_tokens_and_a_break_are_told() {
    let (mut model, _device) = load(&bundles()[0], 4);
    let positions = model.positions(&[1, 2], &[]).unwrap();
    let input = Input { ids: &[1, 2], positions: &positions, vision: &[] };
    let error = model.foretell(&input, &[1], &mut |_| ControlFlow::Continue(())).unwrap_err();
    assert!(matches!(error, ModelError::Next { next: 1, tokens: 2 }));
    let ids = words(600, 0);
    let positions = model.positions(&ids, &[]).unwrap();
    let input = Input { ids: &ids, positions: &positions, vision: &[] };
    assert!(model.foretell(&input, &ids, &mut |_| ControlFlow::Break(())).unwrap().is_none());
}

/// However many tokens of a run are accepted, what stays is what a prompt of these tokens leaves, bit for bit.
#[test]
fn a_run_leaves_what_a_prompt_of_its_accepted_tokens_leaves() {
    for (bundle, wide) in [(0, false), (0, true), (1, true)] {
        let (mut model, _device) = load(&bundles()[bundle], 4);
        if wide {
            assert!(model.widen_head().unwrap() > 0);
        }
        append(&mut model, &words(75, 0));
        let start = model.snapshot();
        let ids = words(23, 40);
        let rest = words(9, 3);
        for accepted in [0, 1, 7, 15, 21, 22] {
            model.restore(&start).unwrap();
            let mut asked = 0;
            let chosen = model
                .decode_run(&ids, &mut |logits| {
                    assert_eq!(logits.len(), 320);
                    asked += 1;
                    Ok(if asked <= accepted { ids[asked] } else { 319 })
                })
                .unwrap();
            assert_eq!((chosen.len(), asked, model.len()), (accepted + 1, accepted + 1, 75 + accepted + 1));
            assert_eq!((&chosen[..accepted], chosen[accepted]), (&ids[1..=accepted], 319));
            let logits = bits(model.logits().unwrap());
            append(&mut model, &rest);
            let end = (logits, bits(model.logits().unwrap()), model.next_position());
            model.restore(&start).unwrap();
            append(&mut model, &ids[..accepted + 1]);
            let logits = bits(model.logits().unwrap());
            append(&mut model, &rest);
            assert!((logits, bits(model.logits().unwrap()), model.next_position()) == end, "{accepted} {wide}");
        }
        // A part of it is taken back.
        model.restore(&start).unwrap();
        let mut asked = 0;
        model
            .decode_run(&ids, &mut |_| {
                asked += 1;
                Ok(if asked <= 12 { ids[asked] } else { 319 })
            })
            .unwrap();
        assert!(!model.take_back(13), "the first token stays");
        assert!(model.take_back(4) && model.take_back(1));
        append(&mut model, &rest);
        let end = bits(model.logits().unwrap());
        assert!(!model.take_back(1), "something else has been appended");
        model.restore(&start).unwrap();
        append(&mut model, &ids[..8]);
        append(&mut model, &rest);
        assert!(bits(model.logits().unwrap()) == end);
        // One token is a step.
        model.restore(&start).unwrap();
        let wanted = bits(model.decode(9).unwrap());
        model.restore(&start).unwrap();
        let mut found = Vec::new();
        model
            .decode_run(&[9], &mut |logits| {
                found = bits(logits);
                Ok(1)
            })
            .unwrap();
        assert!(found == wanted && !model.take_back(1));
        for wrong in [vec![], vec![1; 257]] {
            let said = model.decode_run(&wrong, &mut |_| Ok(0)).unwrap_err().to_string();
            assert!(said.contains("it may have 1 to 256 here"), "{said}");
        }
        let refused = model.decode_run(&ids, &mut |_| Err(ModelError::NoNumbers));
        assert!(matches!(refused, Err(ModelError::NoNumbers)) && model.is_empty());
    }
}

/// What is looked up holds the very answer, as if it had been given before.
#[test]
fn guesses_shorten_an_answer_that_repeats_and_leave_the_same_sequence() {
    let (mut model, device) = load(&bundles()[1], 4);
    let prompt = words(40, 7);
    model.widen_head().unwrap();
    let mut answers: Vec<(Vec<u32>, u64, usize)> = Vec::new();
    for mode in [Speculate::Off, Speculate::Lookup, Speculate::Auto] {
        model.reset();
        append(&mut model, &prompt);
        let mut choose =
            |logits: &[f32]| host_ops::sample::argmax(logits).map(|t| t as u32).ok_or(ModelError::NoNumbers);
        let first = choose(model.logits().unwrap()).unwrap();
        let mut speculator = Speculator::new(mode, &[]);
        let known = answers.first().map_or(&[][..], |(answer, ..)| &answer[..]);
        speculator.begin(&[&prompt[..], known, &prompt].concat());
        let (mut answer, before) = (vec![first], device.counts().commands);
        // Ends in the middle of a run.
        for room in (0..150).rev() {
            let next = speculator.next(&mut model, answer[answer.len() - 1], room, &mut choose).unwrap();
            answer.push(next);
        }
        assert!(speculator.finish(&mut model));
        assert_eq!(model.len(), prompt.len() + 150, "the last token has not been appended");
        let commands = device.counts().commands - before;
        let guesses = speculator.guesses();
        println!("{mode:?}: {commands} commands, {guesses:?}");
        assert!(guesses.accepted <= guesses.guessed && guesses.runs + guesses.steps <= 150);
        if mode == Speculate::Off {
            assert_eq!((guesses.runs, guesses.steps), (0, 150));
        }
        answers.push((answer, commands, guesses.accepted));
    }
    let [off, lookup, auto] = &answers[..] else { panic!() };
    // In f32 only the order of sums differs, so the text is the same.
    assert_eq!((&lookup.0, &auto.0), (&off.0, &off.0));
    assert!(lookup.2 > 120 && lookup.1 < off.1 / 4, "{} accepted, {} commands of {}", lookup.2, lookup.1, off.1);
}
