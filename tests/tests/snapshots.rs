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
use runtime::model::{Input, KvFormat, LoadOptions, Model, Positions, SnapshotError, StateError};
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
    let device = Device::new(Config { coherent: false, ..Config::default() });
    let npu = Npu::open(&*device, Path::new("/dev/accel/accel0")).unwrap();
    let options = LoadOptions { max_ctx, kv: Some(kv), ..LoadOptions::default() };
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
        // A branch, and back to its root.
        model.restore(&early).unwrap();
        assert!(bits(model.logits().unwrap()) == logits, "the logits at the place itself");
        assert!(go_on(&mut model, &picture) != wanted);
        let stale = model.restore(&late).unwrap_err();
        assert_eq!(stale, SnapshotError::Stale { len: late.len(), left: early.len() });
        assert!(model.len() > early.len(), "nothing has changed");
        model.restore(&early).unwrap();
        words(&mut model, 300, 1);
        model.decode(9).unwrap();
        assert!(go_on(&mut model, &picture) == wanted);
    }
}

/// Rows beyond the place a sequence went back to are never taken for those of a snapshot, wherever it goes.
#[test]
fn a_snapshot_whose_rows_were_overwritten_is_refused_by_name() {
    let (mut model, _device) = load(&bundles()[0], KvFormat::Half, 4096);
    let empty = model.snapshot();
    words(&mut model, 70, 0);
    let late = model.snapshot();
    model.reset();
    let said = model.restore(&late).unwrap_err().to_string();
    assert!(said.contains("snapshot of 70 tokens is stale") && said.contains("went back to 0 tokens"), "{said}");
    words(&mut model, 90, 1);
    assert!(model.restore(&late).is_err() && model.len() == 90);
    model.restore(&empty).unwrap();
    assert!(model.is_empty());
    let (other, _device) = load(&bundles()[0], KvFormat::Half, 4096);
    assert_eq!(model.restore(&other.snapshot()), Err(SnapshotError::OtherModel { len: 0 }));
    assert_eq!(model.restore(&Default::default()), Err(SnapshotError::OtherModel { len: 0 }));
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
    // But once something else stands there, it is too late.
    model.restore(&place).unwrap();
    let positions = model.positions(&ids, &[]).unwrap();
    let input = Input { ids: &ids, positions: &positions, vision: &[] };
    assert_eq!(model.prefill(&input, &mut |_| ControlFlow::Break(())).unwrap(), 0);
    model.decode(3).unwrap();
    assert_eq!(model.restore(&place), Err(SnapshotError::Stale { len: 100, left: 0 }));
}

#[test]
fn going_back_and_forth_takes_no_more_memory() {
    let (mut model, _device) = load(&bundles()[0], KvFormat::Half, 4096);
    words(&mut model, 100, 0);
    let mut place = model.snapshot();
    words(&mut model, 300, 0);
    let (own, sequence) = (place.bytes(), model.sequence_bytes());
    assert!(own > 0 && sequence > own);
    for i in 0..20 {
        model.restore(&place).unwrap();
        words(&mut model, 300, i);
        model.restore(&place).unwrap();
        model.snapshot_into(&mut place);
        assert_eq!((place.bytes(), model.sequence_bytes(), place.len()), (own, sequence, 100));
    }
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
        assert!(bits(fresh.logits().unwrap()) == logits);
        assert!(go_on(&mut fresh, &picture) == wanted, "{kv:?}");
        assert!(fresh.restore(&before).is_err());
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
    // Told by what follows: it is empty then, and usable.
    for end in [0, 30, 67, 68, 100, good.len() / 2, good.len() - 33, good.len() - 1] {
        assert!(matches!(read(&mut model, &good[..end]), Err(StateError::Truncated)), "{end}");
        assert_eq!(model.len(), if end < 68 { 80 } else { 0 });
        model.reset();
        words(&mut model, 80, 0);
    }
    // Fewer tokens than there are, another position, any bit of the rest.
    let places = [24, 32, 68, 72, 400, good.len() / 2, good.len() - 40, good.len() - 1];
    for at in places {
        let error = read(&mut model, &changed(at, &[good[at] ^ 3])).unwrap_err();
        let cut = at == 24;
        assert!(matches!(error, StateError::Damaged) || cut && matches!(error, StateError::Truncated), "{at}: {error}");
        assert!(model.is_empty());
        words(&mut model, 80, 0);
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
