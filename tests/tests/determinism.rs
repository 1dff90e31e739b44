//! The same bits, however the work is cut: threads, commands in flight, pieces of a prompt, contexts that take turns.
//!
//! All on a tiny random model; what it says is gibberish, but it has to be the same gibberish.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use driver_tests::tiny;
use npu_model::{Config, Counts, Faults, Model};
use runtime::bundle::Bundle;
use runtime::chat::Prompt;
use runtime::export::{ExportOptions, export};
use runtime::image::Rgb;
use runtime::model::Input;
use runtime::npu::Npu;
use runtime::{Chat, ChatError, Event, LoadOptions, Stop, Turn};

/// An empty folder of this process, inside the build directory. No test knows that it is the last one, so the next run
/// removes what ended ones have left.
fn folder() -> PathBuf {
    let all = Path::new(env!("CARGO_TARGET_TMPDIR")).join("determinism");
    std::fs::create_dir_all(&all).unwrap();
    for left in std::fs::read_dir(&all).unwrap().flatten() {
        if !Path::new("/proc").join(left.file_name()).exists() {
            let _ = std::fs::remove_dir_all(left.path());
        }
    }
    let own = all.join(std::process::id().to_string());
    let _ = std::fs::remove_dir_all(&own);
    own
}

fn bundle() -> &'static Path {
    static BUNDLE: OnceLock<PathBuf> = OnceLock::new();
    BUNDLE.get_or_init(|| {
        let folder = folder();
        tiny::checkpoint(&folder.join("checkpoint")).unwrap();
        // More parts of the head than fit into a queue.
        let mut options = ExportOptions::new(folder.join("checkpoint"), folder.join("bundle"));
        options.head_parts = Some(5);
        export(&options, &mut |_| ControlFlow::Continue(())).unwrap().out
    })
}

fn load_on(config: Config, options: LoadOptions) -> (Chat, Arc<Model>) {
    let device = Model::new(config);
    let npu = Npu::open(&*device, Path::new("/dev/accel/accel0")).unwrap();
    let options = LoadOptions { max_ctx: 2048, ..options };
    (Chat::load(Bundle::open(bundle()).unwrap(), npu, options, &mut |_| {}).unwrap(), device)
}

/// Memory that is not coherent: a result that was not dropped from the cache, or data that was not written back, shows.
fn incoherent() -> Config {
    Config { coherent: false, ..Config::default() }
}

fn picture() -> Rgb {
    let (width, height) = (150, 90);
    let data = (0..width * height * 3).map(|i| (i * i / 7 % 251) as u8).collect();
    Rgb { width, height, data }
}

fn prompt_of(chat: &mut Chat, images: &[Rgb], text: &str) -> Prompt {
    let turn = Turn { system: None, images, text, thinking: false, max_new: 1 };
    chat.prompt(&turn, &mut |_| ControlFlow::Continue(())).unwrap().unwrap()
}

/// A text of exactly so many tokens, template and all.
fn prompt_of_length(chat: &mut Chat, length: usize) -> Prompt {
    let frame = prompt_of(chat, &[], "").ids.len();
    let prompt = prompt_of(chat, &[], &"a7".repeat(length)[..length - frame]);
    assert_eq!(prompt.ids.len(), length, "a letter or digit is a token");
    prompt
}

/// The bits of the prompt's logits and of three tokens after it.
fn bits(chat: &mut Chat, prompt: &Prompt, piece: usize) -> Vec<u32> {
    let model = chat.model_mut();
    model.reset();
    model.set_max_piece(piece);
    let input = Input { ids: &prompt.ids, positions: &prompt.positions, vision: &prompt.vision };
    model.prefill(&input, &mut |_| ControlFlow::Continue(())).unwrap();
    let mut out: Vec<u32> = model.logits().unwrap().iter().map(|x| x.to_bits()).collect();
    for id in [5, 17, 200] {
        out.extend(model.decode(id).unwrap().iter().map(|x| x.to_bits()));
    }
    assert!(out.iter().all(|b| f32::from_bits(*b).is_finite()) && out.iter().any(|b| *b != out[0]));
    out
}

/// Nor does a memory that needs no write-back: no flush is missing.
#[test]
fn threads_and_commands_in_flight_change_no_bit() {
    let mut first: Option<Vec<u32>> = None;
    let runs = [(1, 1, false), (2, 4, true), (2, 4, false), (2, 1, false), (1, 4, false), (3, 2, false)];
    for (threads, commands_in_flight, coherent) in runs {
        let options = LoadOptions { threads, commands_in_flight, ..LoadOptions::default() };
        let (mut chat, _device) = load_on(Config { threads, coherent, ..Config::default() }, options);
        let prompt = prompt_of(&mut chat, &[picture()], "What is in the picture?");
        let got = bits(&mut chat, &prompt, usize::MAX);
        match &first {
            Some(first) => {
                assert!(*first == got, "{threads} threads, {commands_in_flight} in flight, coherent {coherent}");
            }
            None => first = Some(got),
        }
    }
}

#[test]
fn a_prompt_cut_anywhere_changes_no_bit() {
    let (mut chat, _device) = load_on(incoherent(), LoadOptions::default());
    for length in [40, 255, 256, 257, 511, 513] {
        let prompt = prompt_of_length(&mut chat, length);
        let whole = bits(&mut chat, &prompt, usize::MAX);
        for piece in [1, 255, 256, 257, 511] {
            // Cutting a long prompt into single tokens says nothing that a short one does not.
            if piece < length && (piece > 1 || length == 40) {
                assert!(whole == bits(&mut chat, &prompt, piece), "{length} tokens in pieces of {piece}");
            }
        }
    }
}

/// The rows of an image are taken up where the last piece left them.
#[test]
fn an_image_across_the_edge_of_a_piece_changes_no_bit() {
    let (mut chat, _device) = load_on(incoherent(), LoadOptions::default());
    let prompt = prompt_of(&mut chat, &[picture(), picture()], "Which is larger?");
    let image = chat.model().bundle().manifest.vision.as_ref().unwrap().image_token;
    let first = prompt.ids.iter().position(|&id| id == image).unwrap();
    let whole = bits(&mut chat, &prompt, usize::MAX);
    for piece in [first, first + 1, first + 7, prompt.image_tokens / 2 + first + 3] {
        assert!(whole == bits(&mut chat, &prompt, piece), "pieces of {piece}");
    }
    // And the picture matters at all.
    let mut other = prompt.clone();
    other.vision.iter_mut().for_each(|x| *x = -*x);
    assert!(whole != bits(&mut chat, &other, usize::MAX));
}

/// A prompt longer than the streams' rows goes in several pieces by itself.
#[test]
fn a_prompt_is_limited_by_the_context_alone() {
    let (mut chat, _device) = load_on(incoherent(), LoadOptions::default());
    let rows = chat.model().bundle().manifest.text.max_prompt;
    assert!(rows < 2000, "{rows}");
    let prompt = prompt_of_length(&mut chat, rows + 300);
    let whole = bits(&mut chat, &prompt, usize::MAX);
    assert!(whole == bits(&mut chat, &prompt, 300));
    let text = "a7".repeat(2048);
    let turn = Turn { system: None, images: &[], text: &text, thinking: false, max_new: 5 };
    match chat.turn(&turn, &mut |_| ControlFlow::Continue(())) {
        Err(ChatError::PromptTooLong { prompt, max_ctx: 2048 }) => assert!(prompt > 4096),
        other => panic!("{other:?}"),
    }
}

/// One slot for three contexts: they take turns, and say so.
#[test]
fn contexts_that_take_turns_change_no_bit() {
    let (mut chat, _device) = load_on(incoherent(), LoadOptions::default());
    let prompt = prompt_of(&mut chat, &[picture()], "Hm?");
    let resident = bits(&mut chat, &prompt, usize::MAX);
    assert_eq!(chat.counters().context_switches, 0);

    let (mut chat, device) = load_on(Config { slots: 1, ..incoherent() }, LoadOptions::default());
    let prompt = prompt_of(&mut chat, &[picture()], "Hm?");
    let taking_turns = bits(&mut chat, &prompt, usize::MAX);
    assert!(resident == taking_turns);
    let switches = chat.counters().context_switches;
    assert!(switches > 0);
    assert_eq!(device.counts().contexts_created, 1 + switches);
}

/// `down` reads what `gu` wrote without a wait in between: in two contexts they would have run at the same time.
#[test]
fn kernels_of_a_prompt_in_two_contexts_are_refused() {
    let copy = bundle().with_file_name("two-contexts");
    for (line, what) in [("gemm down ctx=gemm ", "prompt"), ("gemm v_proj ctx=vis ", "picture")] {
        let _ = std::fs::remove_dir_all(&copy);
        copy_tree(bundle(), &copy);
        let manifest = std::fs::read_to_string(copy.join("manifest.txt")).unwrap();
        assert!(manifest.contains(line), "{line}");
        let other = if what == "prompt" { "ctx=vis " } else { "ctx=gemm " };
        let key = line.split(' ').nth(1).unwrap();
        let moved = manifest.replace(line, &format!("gemm {key} {other}"));
        std::fs::write(copy.join("manifest.txt"), moved).unwrap();
        let npu = Npu::open(&*Model::new(Config::default()), Path::new("/dev/accel/accel0")).unwrap();
        let loaded = Chat::load(Bundle::open(&copy).unwrap(), npu, LoadOptions::default(), &mut |_| {});
        // The tower is loaded with the first picture.
        let refused = loaded.and_then(|mut chat| {
            let turn = Turn { system: None, images: &[picture()], text: "x", thinking: false, max_new: 1 };
            chat.turn(&turn, &mut |_| ControlFlow::Continue(())).map(drop)
        });
        let error = refused.unwrap_err().to_string();
        assert!(error.contains(&format!("all kernels of a {what} have to be in one")), "{error}");
    }
}

fn copy_tree(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().flatten() {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_tree(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

fn ioctls(after: &Counts, before: &Counts, name: &str) -> u64 {
    let of = |counts: &Counts| counts.ioctls.get(name).copied().unwrap_or(0);
    of(after) - of(before)
}

/// A token costs a submission a command and at most one wait a hop, nothing else: no buffer is made, nothing is asked. A
/// look at the state word can spare the wait. Of the five parts of the head the fifth has to wait for the first.
#[test]
fn a_token_takes_at_most_two_ioctls_a_hop_and_independent_commands_go_out_together() {
    for (commands_in_flight, together) in [(4, true), (1, false)] {
        let options = LoadOptions { commands_in_flight, ..LoadOptions::default() };
        let (mut chat, device) = load_on(incoherent(), options);
        let text = chat.model().bundle().manifest.text.clone();
        let prompt = prompt_of(&mut chat, &[], "Hello");
        // The first token binds the commands.
        bits(&mut chat, &prompt, usize::MAX);
        let (before, own) = (device.counts(), chat.counters());
        chat.model_mut().decode(7).unwrap();
        let (after, own) = (device.counts(), chat.counters().since(&own));

        let layers = text.layers.len() as u64;
        let commands = layers * (3 + text.down_slices as u64) + text.head_parts as u64;
        // Each part of the head is waited for, since its logits are read while the others run.
        let hops = layers * 4 + text.head_parts as u64;
        assert!(commands >= hops);
        let waits = if together { hops } else { commands };
        assert_eq!(ioctls(&after, &before, "EXEC_CMD"), commands);
        let asked = ioctls(&after, &before, "SYNCOBJ_TIMELINE_WAIT");
        assert_eq!(asked + own.spun, waits, "{:?}", after.ioctls);
        let all: u64 = after.ioctls.values().sum::<u64>() - before.ioctls.values().sum::<u64>();
        assert_eq!(all, commands + asked);
        assert_eq!((own.commands, own.ioctls), (commands, commands + asked));
        println!("{commands_in_flight} in flight: a token takes {commands} commands in {all} ioctls");

        let before = device.counts();
        let model = chat.model_mut();
        model.reset();
        let input = Input { ids: &prompt.ids, positions: &prompt.positions, vision: &[] };
        model.prefill(&input, &mut |_| ControlFlow::Continue(())).unwrap();
        model.logits().unwrap();
        let after = device.counts();
        let all: u64 = after.ioctls.values().sum::<u64>() - before.ioctls.values().sum::<u64>();
        assert_eq!(ioctls(&after, &before, "EXEC_CMD"), commands, "a prompt takes the commands of a token");
        println!("{commands_in_flight} in flight: a prompt takes {commands} commands in {all} ioctls");
    }
}

/// A command that fails is named, costs one turn, and the next turn says what it would have said.
#[test]
fn a_failed_command_is_named_and_costs_one_turn() {
    let (mut chat, device) = load_on(incoherent(), LoadOptions::default());
    let turn = Turn { system: None, images: &[], text: "Hello", thinking: false, max_new: 4 };
    let good = chat.turn(&turn, &mut |_| ControlFlow::Continue(())).unwrap();
    let next = device.counts().commands;
    // The last down slice of the first layer, in the prompt.
    let text = &chat.model().bundle().manifest.text;
    let command = next + 2 + text.down_slices as u64;
    device.set_faults(Faults { fail_command: Some(command), ..Faults::default() });
    let error = chat.turn(&turn, &mut |_| ControlFlow::Continue(())).unwrap_err().to_string();
    assert!(error.contains("kernel `down x1` in context `") && error.contains("ERROR"), "{error}");
    device.set_faults(Faults::default());
    let again = chat.turn(&turn, &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!((good.tokens, good.text), (again.tokens, again.text));
}

/// The driver's hang detection ends a command: its health record is told, and the context lives on.
#[test]
fn a_hang_is_told_with_its_health_record() {
    let (mut chat, device) = load_on(Config { tdr_ms: 50, ..incoherent() }, LoadOptions::default());
    let turn = Turn { system: None, images: &[], text: "Hello", thinking: false, max_new: 4 };
    let good = chat.turn(&turn, &mut |_| ControlFlow::Continue(())).unwrap();
    device.set_faults(Faults { hang_command: Some(device.counts().commands + 1), ..Faults::default() });
    let error = chat.turn(&turn, &mut |_| ControlFlow::Continue(())).unwrap_err().to_string();
    assert!(error.contains("kernel `o x1`") && error.contains("TIMEOUT"), "{error}");
    device.set_faults(Faults::default());
    let again = chat.turn(&turn, &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(good.tokens, again.tokens);
}

/// Where nothing ends a command, the deadline does; what it may still write to is never used again.
#[test]
fn a_command_past_its_deadline_is_lost_and_nothing_runs_after_it() {
    let deadline = std::time::Duration::from_millis(300);
    let options = LoadOptions { deadline, ..LoadOptions::default() };
    let (mut chat, device) = load_on(Config { tdr_ms: 0, destroy_wait_ms: 10, ..incoherent() }, options);
    let turn = Turn { system: None, images: &[], text: "Hello", thinking: false, max_new: 4 };
    device.set_faults(Faults { hang_command: Some(device.counts().commands), ..Faults::default() });
    let error = chat.turn(&turn, &mut |_| ControlFlow::Continue(())).unwrap_err().to_string();
    assert!(error.contains("has not finished after 0.3 s"), "{error}");
    let before = device.counts();
    let error = chat.turn(&turn, &mut |_| ControlFlow::Continue(())).unwrap_err().to_string();
    assert!(error.contains("never finished"), "{error}");
    assert_eq!(ioctls(&device.counts(), &before, "EXEC_CMD"), 0);
}

#[test]
fn a_turn_can_be_broken_off_anywhere() {
    let (mut chat, _device) = load_on(incoherent(), LoadOptions::default());
    let images = [picture()];
    let turn = Turn { system: None, images: &images, text: "Hello", thinking: false, max_new: 6 };
    let whole = chat.turn(&turn, &mut |_| ControlFlow::Continue(())).unwrap();
    assert!(matches!(whole.stop, Stop::Budget | Stop::Token(_)));
    assert_eq!(whole.image_tokens, 7 * 11, "150 x 90 is enlarged to 352 x 224");
    // Where each sort of event comes for the first time, and the places around: inside the picture, after it, inside the
    // prompt, between tokens.
    let mut first: Vec<(&str, usize)> = Vec::new();
    let mut events = 0;
    chat.turn(&turn, &mut |event| {
        let kind = match event {
            Event::Tower { .. } => "tower",
            Event::Patches { .. } => "patches",
            Event::Image { .. } => "image",
            Event::Prompt { .. } => "prompt",
            Event::Token { .. } | Event::Text(_) => "token",
            other => panic!("{other:?}"),
        };
        if first.iter().all(|(known, _)| *known != kind) {
            first.push((kind, events));
        }
        events += 1;
        ControlFlow::Continue(())
    })
    .unwrap();
    assert!(first.len() >= 4 && first[1].1 > 4, "a picture is worth several steps: {first:?}");
    let places = first.iter().flat_map(|(_, at)| [*at, at + 1, at + 2]);
    for at in places.filter(|at| at + 1 < events) {
        let mut events = 0;
        let mut text = String::new();
        let cut = chat
            .turn(&turn, &mut |event| {
                if let Event::Text(more) = event {
                    text.push_str(more);
                }
                events += 1;
                if events > at { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
            .unwrap();
        assert_eq!(cut.stop, Stop::Cancelled);
        assert!(whole.text.starts_with(text.trim_end_matches('\u{fffd}')) && cut.text == text);
        assert!(cut.tokens.len() < whole.tokens.len());
        // And nothing of it is left.
        assert_eq!(chat.turn(&turn, &mut |_| ControlFlow::Continue(())).unwrap().tokens, whole.tokens);
    }
}

/// Units of a prompt that is broken off have come to different layers: the sequence starts over.
#[test]
fn a_prompt_broken_off_inside_leaves_nothing_behind() {
    let (mut chat, _device) = load_on(incoherent(), LoadOptions::default());
    let prompt = prompt_of_length(&mut chat, 600);
    let whole = bits(&mut chat, &prompt, usize::MAX);
    let input = Input { ids: &prompt.ids, positions: &prompt.positions, vision: &prompt.vision };
    for calls in [1, 3, 5] {
        let model = chat.model_mut();
        model.reset();
        model.set_max_piece(usize::MAX);
        let (mut left, mut seen) = (calls, Vec::new());
        let appended = model.prefill(&input, &mut |done| {
            left -= 1;
            seen.push(done);
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert_eq!((appended.unwrap(), model.len(), seen.len()), (0, 0, calls));
        assert!(seen.is_sorted() && seen.iter().all(|&done| done < 600), "{seen:?}");
        assert!(whole == bits(&mut chat, &prompt, usize::MAX));
    }
}

#[test]
fn nothing_to_generate_is_an_error() {
    let (mut chat, _device) = load_on(incoherent(), LoadOptions { vision: false, ..LoadOptions::default() });
    let turn = Turn { system: None, images: &[], text: "Hello", thinking: false, max_new: 0 };
    assert!(matches!(chat.turn(&turn, &mut |_| ControlFlow::Continue(())), Err(ChatError::NothingToSay)));
    let images = [picture()];
    let turn = Turn { images: &images, max_new: 1, ..turn };
    let error = chat.turn(&turn, &mut |_| ControlFlow::Continue(())).unwrap_err();
    assert!(matches!(error, ChatError::NoVision { images: 1 }));
}
