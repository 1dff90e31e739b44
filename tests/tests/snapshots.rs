//! Going back in a sequence, and taking it up again in another process: the same bits as never having left.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use driver_tests::checkpoint::{Form, Size, TINY};
use npu_model::{Config, Faults, Model as Device};
use runtime::bundle::Bundle;
use runtime::export::{ExportOptions, export};
use runtime::image::Rgb;
use runtime::model::{Input, KvFormat, LoadOptions, Model, OtherModel, Positions, Sequence, Snapshot, StateError};
use runtime::npu::Npu;

/// Two models of one shape and different weights, in folders of this process.
fn bundles() -> &'static [PathBuf; 2] {
    static BUNDLES: OnceLock<[PathBuf; 2]> = OnceLock::new();
    BUNDLES.get_or_init(|| {
        let all = Path::new(env!("CARGO_TARGET_TMPDIR")).join("snapshots");
        let _ = std::fs::remove_dir_all(&all);
        // A longer table of embeddings moves all random numbers that come after it.
        [TINY.vocab, TINY.vocab + 32].map(|vocab| {
            let own = all.join(format!("{}-{vocab}", std::process::id()));
            Size { vocab, ..TINY }.write(&own.join("checkpoint"), Form::USUAL).unwrap();
            let options = ExportOptions::new(own.join("checkpoint"), own.join("bundle"));
            export(&options, &mut |_| ControlFlow::Continue(())).unwrap().out
        })
    })
}

fn load(bundle: &Path, kv: KvFormat, max_ctx: usize) -> (Model, Arc<Device>) {
    load_with(bundle, kv, max_ctx, 4)
}

fn load_with(bundle: &Path, kv: KvFormat, max_ctx: usize, commands_in_flight: usize) -> (Model, Arc<Device>) {
    let device = Device::new(Config { coherent: false, ..Config::default() });
    let npu = Npu::open(&*device, Path::new("/dev/accel/accel0")).unwrap();
    let options = LoadOptions { max_ctx, kv: Some(kv), commands_in_flight, ..LoadOptions::default() };
    (Model::load(Bundle::open(bundle).unwrap(), npu, &options, &mut |_| {}).unwrap(), device)
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|x| x.to_bits()).collect()
}

/// A picture between words.
struct Picture {
    ids: Vec<u32>,
    grid: [usize; 2],
    rows: Vec<f32>,
}

impl Picture {
    fn new(model: &mut Model) -> Picture {
        let (width, height) = (150, 90);
        let data = (0..width * height * 3).map(|i| (i * i / 7 % 251) as u8).collect();
        let patches = model.prepare(&Rgb { width, height, data }).unwrap();
        let rows = model.encode(&patches).unwrap();
        let image = model.bundle().manifest.vision.as_ref().unwrap().image_token;
        let pads = vec![image; model.image_tokens(&patches).unwrap()];
        Picture { ids: [&[3, 4], &pads[..], &[5]].concat(), grid: patches.grid, rows }
    }

    fn append(&self, model: &mut Model) -> Vec<u32> {
        let positions = model.positions(&self.ids, &[self.grid]).unwrap();
        append(model, &self.ids, &positions, &self.rows)
    }
}

fn append(model: &mut Model, ids: &[u32], positions: &Positions, vision: &[f32]) -> Vec<u32> {
    model.prefill(&Input { ids, positions, vision }, &mut |_| ControlFlow::Continue(())).unwrap();
    bits(model.logits().unwrap())
}

fn words(model: &mut Model, n: u32, seed: u32) -> Vec<u32> {
    let ids: Vec<u32> = (0..n).map(|i| (i * 7 + seed) % 190).collect();
    let positions = model.positions(&ids, &[]).unwrap();
    append(model, &ids, &positions, &[])
}

/// The bits of what a conversation goes on with: words, a picture, words of an answer.
fn go_on(model: &mut Model, picture: &Picture) -> Vec<u32> {
    let mut out = words(model, 21, 2);
    out.extend(picture.append(model));
    for id in [5, 17, 100] {
        out.extend(bits(model.decode(id).unwrap()));
    }
    out
}

#[test]
fn coming_back_and_going_on_gives_the_bits_of_never_having_left() {
    for kv in [KvFormat::F32, KvFormat::Half] {
        let (mut model, _device) = load(&bundles()[0], kv, 4096);
        let picture = Picture::new(&mut model);
        picture.append(&mut model);
        let (len, next) = (model.len(), model.next_position());
        assert!(u32::try_from(len).unwrap() > next, "a picture takes fewer positions than tokens");
        let early = model.snapshot();
        assert_eq!((early.len(), early.next_position(), early.is_empty()), (len, next, false));
        let logits = bits(model.logits().unwrap());
        // Across pages and chunks of a prompt, then into the middle of a chunk of the recurrence.
        words(&mut model, 300, 1);
        model.decode(9).unwrap();
        let late = model.snapshot();
        let wanted = go_on(&mut model, &picture);
        let end = model.len();
        for _ in 0..2 {
            model.restore(&late).unwrap();
            assert_eq!(model.len(), late.len());
            assert!(go_on(&mut model, &picture) == wanted, "{kv:?}");
            assert_eq!(model.len(), end);
        }
        // A branch, back to its root, and forth to where the first one was, though its rows are overwritten here.
        model.restore(&early).unwrap();
        assert!(bits(model.logits().unwrap()) == logits, "the logits at the place itself");
        assert!(go_on(&mut model, &picture) != wanted);
        model.restore(&late).unwrap();
        assert!(go_on(&mut model, &picture) == wanted, "{kv:?}");
        model.reset();
        words(&mut model, 400, 3);
        model.restore(&late).unwrap();
        assert!(go_on(&mut model, &picture) == wanted, "{kv:?}");
        model.restore(&early).unwrap();
        words(&mut model, 300, 1);
        model.decode(9).unwrap();
        assert!(go_on(&mut model, &picture) == wanted);
    }
}

/// Several conversations on one model.
#[test]
fn sequences_take_turns_and_branches_know_nothing_of_each_other() {
    let (mut model, _device) = load(&bundles()[0], KvFormat::Half, 4096);
    let picture = Picture::new(&mut model);
    let mut other = Sequence::new(&model);
    assert!(other.is_empty());
    words(&mut model, 90, 0);
    let place = model.snapshot();
    let wanted = go_on(&mut model, &picture);

    model.restore(&place).unwrap();
    let (mut fork, mut again) = (model.fork(), place.sequence());
    assert_eq!((fork.len(), again.len(), fork.next_position()), (90, 90, 90));
    model.swap_sequence(&mut other).unwrap();
    assert!(model.is_empty() && other.len() == 90);
    words(&mut model, 70, 4);
    for sequence in [&mut other, &mut fork, &mut again] {
        model.swap_sequence(sequence).unwrap();
        assert!(go_on(&mut model, &picture) == wanted);
        model.swap_sequence(sequence).unwrap();
        assert_eq!(model.len(), 70);
    }
    // A snapshot of one sequence is a place to begin another at.
    model.restore(&place).unwrap();
    assert!(go_on(&mut model, &picture) == wanted);

    let (mut stranger, _device) = load(&bundles()[0], KvFormat::Half, 4096);
    words(&mut stranger, 20, 0);
    assert_eq!(stranger.restore(&place), Err(OtherModel { len: 90 }));
    assert_eq!(stranger.swap_sequence(&mut fork), Err(OtherModel { len: fork.len() }));
    assert_eq!(stranger.len(), 20);
}

/// The bits of a prompt that ended at the place: at edges of units and of chunks of the recurrence, and between them.
#[test]
fn a_snapshot_inside_a_prompt_is_that_of_a_prompt_that_ends_there() {
    let marks = [0, 1, 15, 16, 17, 255, 256, 257, 400, 511, 513, 599, 600];
    let ids: Vec<u32> = (0..600).map(|i| (i * 7 + 1) % 190).collect();
    for (kv, commands_in_flight) in [(KvFormat::Half, 4), (KvFormat::F32, 1)] {
        let (mut model, device) = load_with(&bundles()[0], kv, 4096, commands_in_flight);
        let picture = Picture::new(&mut model);
        words(&mut model, 37, 5);
        let start = model.snapshot();
        let positions = model.positions(&ids, &[]).unwrap();
        let input = Input { ids: &ids, positions: &positions, vision: &[] };
        let before = device.counts().commands;
        assert_eq!(model.prefill(&input, &mut |_| ControlFlow::Continue(())).unwrap(), 600);
        let plain = (device.counts().commands - before, bits(model.logits().unwrap()));
        model.restore(&start).unwrap();
        let before = device.counts().commands;
        let places = model.prefill_marked(&input, &marks, &mut |_| ControlFlow::Continue(())).unwrap().unwrap();
        let marked = (device.counts().commands - before, bits(model.logits().unwrap()));
        assert!(plain.1 == marked.1, "marks change no bit");
        // Units before the last one leave out what nobody wants of the last layer: o, gu and the slices of down.
        let units = if commands_in_flight == 1 { 1 } else { 600_u64.div_ceil(256) };
        let left_out = (units - 1) * (2 + model.bundle().manifest.text.down_slices as u64);
        assert_eq!(marked.0, plain.0 + left_out, "marks cost the last layer of their units, no more");
        assert_eq!(places.iter().map(Snapshot::len).collect::<Vec<_>>(), marks.map(|mark| 37 + mark));
        for (mark, place) in marks.into_iter().zip(&places) {
            model.restore(&start).unwrap();
            if mark > 0 {
                let positions = model.positions(&ids[..mark], &[]).unwrap();
                append(&mut model, &ids[..mark], &positions, &[]);
            }
            let end = (bits(model.logits().unwrap()), model.next_position(), words(&mut model, 30, 9));
            model.restore(place).unwrap();
            let found = (bits(model.logits().unwrap()), model.next_position(), words(&mut model, 30, 9));
            assert!(end == found, "{mark}, {kv:?}");
        }
        model.restore(&start).unwrap();
        let broken = model.prefill_marked(&input, &marks, &mut |_| ControlFlow::Break(()));
        assert!(broken.unwrap().is_none() && model.is_empty());
        model.restore(&places[5]).unwrap();
        for wrong in [&[3, 3][..], &[5, 4], &[601]] {
            let said = model.prefill_marked(&input, wrong, &mut |_| ControlFlow::Continue(())).unwrap_err();
            assert!(said.to_string().contains("of a prompt of 600 tokens"), "{said}");
        }
        assert_eq!(model.len(), 37 + 255);
        // A picture: the position after it is not the number of tokens.
        let positions = model.positions(&picture.ids, &[picture.grid]).unwrap();
        let input = Input { ids: &picture.ids, positions: &positions, vision: &picture.rows };
        let marks = [2, picture.ids.len() - 1, picture.ids.len()];
        let places = model.prefill_marked(&input, &marks, &mut |_| ControlFlow::Continue(())).unwrap().unwrap();
        let next: Vec<u32> = places.iter().map(Snapshot::next_position).collect();
        assert_eq!(next, [positions.tokens[2][0], positions.next - 1, positions.next]);
    }
}

/// A prompt that is broken off, or fails, costs itself and nothing else.
#[test]
fn a_break_off_or_a_failure_can_be_undone() {
    let (mut model, device) = load(&bundles()[0], KvFormat::F32, 4096);
    let picture = Picture::new(&mut model);
    words(&mut model, 100, 0);
    let place = model.snapshot();
    let wanted = go_on(&mut model, &picture);
    let ids = vec![7; 600];
    for calls in [1, 2, 4] {
        model.restore(&place).unwrap();
        let (positions, mut left) = (model.positions(&ids, &[]).unwrap(), calls);
        let appended = model.prefill(&Input { ids: &ids, positions: &positions, vision: &[] }, &mut |_| {
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert_eq!((appended.unwrap(), model.len()), (0, 0));
        model.restore(&place).unwrap();
        assert!(go_on(&mut model, &picture) == wanted);
    }
    for command in [1, 6] {
        model.restore(&place).unwrap();
        device.set_faults(Faults { fail_command: Some(device.counts().commands + command), ..Faults::default() });
        assert!(model.decode(7).is_err() && model.is_empty());
        device.set_faults(Faults::default());
        model.restore(&place).unwrap();
        assert!(go_on(&mut model, &picture) == wanted);
    }
}

#[test]
fn going_back_and_forth_takes_no_more_memory() {
    let (mut model, _device) = load(&bundles()[0], KvFormat::Half, 16_384);
    words(&mut model, 100, 0);
    let mut place = model.snapshot();
    words(&mut model, 300, 0);
    let (own, sequence) = (place.bytes(), model.sequence_bytes());
    assert!(own > 0 && sequence > own);
    for i in 0..8 {
        model.restore(&place).unwrap();
        words(&mut model, 300, i);
        model.restore(&place).unwrap();
        assert!(model.sequence_bytes() < sequence, "pages are let go");
        model.snapshot_into(&mut place);
        assert_eq!((place.bytes(), place.len()), (own, 100));
    }
    // A longer sequence has larger caches, not larger snapshots; an empty one gives them back.
    words(&mut model, 5000, 0);
    assert_eq!(model.snapshot().bytes(), own);
    let long = model.sequence_bytes();
    model.reset();
    assert!(long > sequence && model.sequence_bytes() < long);
    let unused = model.sequence_bytes();
    words(&mut model, 4000, 0);
    assert_eq!(model.sequence_bytes(), unused, "some are kept for the next");
}

fn saved(model: &Model) -> Vec<u8> {
    let mut bytes = b"before".to_vec();
    model.save_state(&mut bytes).unwrap();
    bytes.extend(b"after");
    bytes
}

#[test]
fn a_saved_sequence_goes_on_in_another_process_with_the_same_bits() {
    for kv in [KvFormat::F32, KvFormat::Half] {
        let (mut model, _device) = load(&bundles()[0], kv, 4096);
        let picture = Picture::new(&mut model);
        picture.append(&mut model);
        words(&mut model, 130, 1);
        model.decode(9).unwrap();
        let (len, next) = (model.len(), model.next_position());
        let (logits, bytes) = (bits(model.logits().unwrap()), saved(&model));
        let wanted = go_on(&mut model, &picture);

        let (mut fresh, _device) = load(&bundles()[0], kv, 4096);
        // In place of a longer one.
        words(&mut fresh, 700, 5);
        let before = fresh.snapshot();
        let mut from = &bytes[6..];
        fresh.load_state(&mut from).unwrap();
        assert_eq!((from, fresh.len(), fresh.next_position()), (&b"after"[..], len, next));
        let mut at_snapshot = Vec::new();
        fresh.save_snapshot(&before, &mut at_snapshot).unwrap();
        assert_eq!(fresh.read_sequence(&mut &at_snapshot[..]).unwrap().len(), 700);
        assert!(bits(fresh.logits().unwrap()) == logits);
        assert!(go_on(&mut fresh, &picture) == wanted, "{kv:?}");
        // The same bytes again, after everything.
        model.load_state(&mut &bytes[6..]).unwrap();
        assert!(saved(&model) == bytes);
    }
}

#[test]
fn a_sequence_that_does_not_fit_or_is_damaged_is_refused_by_name() {
    let (mut model, _device) = load(&bundles()[0], KvFormat::F32, 4096);
    words(&mut model, 70, 0);
    let mut good = Vec::new();
    model.save_state(&mut good).unwrap();
    let read = |model: &mut Model, bytes: &[u8]| model.load_state(&mut &bytes[..]);

    // Told by the head: the sequence that is there stays.
    words(&mut model, 10, 0);
    let changed = |at: usize, with: &[u8]| {
        let mut bytes = good.clone();
        bytes[at..at + with.len()].copy_from_slice(with);
        bytes
    };
    let cases: [(Vec<u8>, &str); 7] = [
        (b"GGUF".repeat(30), "this is not a saved sequence"),
        (changed(8, &[2]), "is of version 2, this program reads 1"),
        (changed(12, &[9]), "it has 9 layers"),
        (changed(20, &[2]), "has keys and values in 16 bits, they are kept in f32 here"),
        (changed(24, &[0, 17]), "has 4352 tokens, the context holds 4096"),
        (changed(31, &[255]), "the context holds 4096"),
        (changed(40, &[good[40] ^ 1]), "its weights are others"),
    ];
    for (bytes, said) in cases {
        let error = read(&mut model, &bytes).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
        assert_eq!(model.len(), 80);
    }
    // Told by what follows: it stays then, too.
    for end in [0, 30, 67, 68, 100, good.len() / 2, good.len() - 33, good.len() - 1] {
        assert!(matches!(read(&mut model, &good[..end]), Err(StateError::Truncated)), "{end}");
        assert_eq!(model.len(), 80);
    }
    // Fewer tokens than there are, another position, any bit of the rest.
    let places = [24, 32, 68, 72, 400, good.len() / 2, good.len() - 40, good.len() - 1];
    for at in places {
        let error = read(&mut model, &changed(at, &[good[at] ^ 3])).unwrap_err();
        let cut = at == 24;
        assert!(matches!(error, StateError::Damaged) || cut && matches!(error, StateError::Truncated), "{at}: {error}");
        assert_eq!(model.len(), 80);
    }
    read(&mut model, &good).unwrap();
    assert_eq!(model.len(), 70);

    let (mut other, _device) = load(&bundles()[1], KvFormat::F32, 4096);
    assert!(matches!(read(&mut other, &good), Err(StateError::OtherModel { .. })));
    let (mut half, _device) = load(&bundles()[0], KvFormat::Half, 4096);
    assert!(matches!(read(&mut half, &good), Err(StateError::Format { .. })));
    let (mut short, _device) = load(&bundles()[0], KvFormat::F32, 69);
    assert!(matches!(read(&mut short, &good), Err(StateError::TooLong { tokens: 70, max_ctx: 69 })));
}

/// A checksum says that bytes are as somebody wrote them, not that this program did.
#[test]
fn a_sequence_that_goes_on_at_a_position_past_all_numbers_is_refused() {
    let (mut model, _device) = load(&bundles()[0], KvFormat::F32, 4096);
    words(&mut model, 70, 0);
    let mut bytes = Vec::new();
    model.save_state(&mut bytes).unwrap();
    let end = bytes.len() - 32;
    for (position, fits) in [(u32::MAX, false), (u32::MAX / 2 + 1, false), (u32::MAX / 2, true)] {
        bytes[32..36].copy_from_slice(&position.to_le_bytes());
        let digest = runtime::checksums::digest(&bytes[..end]);
        bytes[end..].copy_from_slice(&digest);
        match model.load_state(&mut &bytes[..]) {
            Ok(()) => {
                assert!(fits, "{position}");
                words(&mut model, 300, 1);
                model.decode(7).unwrap();
                assert_eq!(model.next_position(), position + 301);
            }
            Err(StateError::Position { found }) => assert!(!fits && found == position),
            Err(error) => panic!("{position}: {error}"),
        }
    }
}

fn duplicate(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            duplicate(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// What was read depends on the embeddings, which lie in the head.
#[test]
fn a_sequence_of_a_model_that_differs_in_its_head_alone_is_refused() {
    let bundle = &bundles()[0];
    let (mut model, _device) = load(bundle, KvFormat::F32, 4096);
    words(&mut model, 70, 0);
    let mut bytes = Vec::new();
    model.save_state(&mut bytes).unwrap();
    let copy = bundle.with_file_name("other-head");
    duplicate(bundle, &copy);
    let index = std::fs::read_to_string(copy.join("tensors.txt")).unwrap();
    let line = index.lines().find(|line| line.starts_with("head0 ")).unwrap();
    let at: usize = line.split_whitespace().nth(3).unwrap().parse().unwrap();
    let mut tensors = std::fs::read(copy.join("tensors.bin")).unwrap();
    tensors[at + 1] ^= 1;
    std::fs::write(copy.join("tensors.bin"), tensors).unwrap();
    let (mut other, _device) = load(&copy, KvFormat::F32, 4096);
    let said = other.load_state(&mut &bytes[..]).unwrap_err().to_string();
    assert!(said.contains("its weights are others"), "{said}");
}
