//! What loading reads, and when.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs::OpenOptions;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use driver_tests::tiny;
use npu_model::{Config, Model};
use runtime::bundle::Bundle;
use runtime::image::Rgb;
use runtime::npu::Npu;
use runtime::{Chat, Event, LoadOptions, Progress, Turn};

/// A bundle of a test's own, gone with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        Folder(std::env::temp_dir().join(format!("qwen35-loading-{name}-{}", std::process::id())))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn load(bundle: &Path, progress: &mut dyn FnMut(Progress)) -> Result<(Chat, Arc<Model>), runtime::ChatError> {
    let device = Model::new(Config::default());
    let npu = Npu::open(&*device, Path::new("/dev/accel/accel0")).unwrap();
    let options = LoadOptions { max_ctx: 512, ..LoadOptions::default() };
    Ok((Chat::load(Bundle::open(bundle).unwrap(), npu, options, progress)?, device))
}

/// Bytes of the tensors whose names `wanted` takes.
fn bytes(bundle: &Bundle, wanted: impl Fn(&str) -> bool) -> u64 {
    let names = bundle.tensor_names().filter(|name| wanted(name));
    names.map(|name| bundle.tensor_bytes(name).unwrap() as u64).sum()
}

/// Gives what was said of the tower meanwhile.
fn answer(chat: &mut Chat, images: &[Rgb]) -> Vec<(u64, u64)> {
    let turn = Turn { system: None, images, text: "hello", thinking: false, max_new: 4 };
    let mut told = Vec::new();
    chat.turn(&turn, &mut |event| {
        if let Event::Tower { done, total } = event {
            told.push((done, total));
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    told
}

#[test]
fn the_tower_is_read_when_there_is_a_picture_and_nothing_is_read_twice() {
    let folder = Folder::new("tower");
    let bundle = tiny::bundle(&folder.0).unwrap();
    let mut shown = Vec::new();
    let (mut chat, device) = load(&bundle, &mut |progress| shown.push(progress)).unwrap();

    let bundle = Bundle::open(&bundle).unwrap();
    let text = bytes(&bundle, |name| !name.starts_with("vis.") && !name.starts_with("ref."));
    let tower = bytes(&bundle, |name| name.starts_with("vis."));
    assert!(tower > 0);
    let read = |chat: &mut Chat| chat.model_mut().bundle().bytes_read();
    assert_eq!(read(&mut chat), text, "after loading");
    let buffers = device.counts().bytes_live;
    assert_eq!(answer(&mut chat, &[]), []);
    assert_eq!(read(&mut chat), text, "after a turn without a picture: embeddings come from the head's buffers");
    // Commands are made at first use, and each has a page.
    assert!(device.counts().bytes_live < buffers + tower / 10);

    let picture = Rgb { width: 64, height: 64, data: vec![99; 64 * 64 * 3] };
    for turn in 0..2 {
        let told = answer(&mut chat, std::slice::from_ref(&picture));
        assert_eq!(told.is_empty(), turn > 0);
        assert!(told.is_sorted() && told.last().is_none_or(|(done, total)| done == total && *total > tower / 2));
        assert_eq!(read(&mut chat), text + tower, "after picture {turn}");
    }
    assert!(device.counts().bytes_live > buffers + tower * 3 / 4);

    // What a progress bar shows: bytes that grow up to what was promised.
    let weights = shown.iter().filter_map(|progress| match progress {
        Progress::Weights { done, total } => Some((*done, *total)),
        _ => None,
    });
    let weights: Vec<_> = weights.collect();
    let (done, total) = weights[weights.len() - 1];
    assert!(weights.is_sorted() && weights.iter().all(|w| w.1 == total));
    assert_eq!(done, total);
}

/// It was a signal that killed the process where tensors were read through a mapping.
#[test]
fn a_file_that_is_cut_short_while_it_is_loaded_is_an_error_by_name() {
    let folder = Folder::new("short");
    let bundle = tiny::text_bundle(&folder.0).unwrap();
    let data = bundle.join("tensors.bin");
    let size = data.metadata().unwrap().len();
    let error = load(&bundle, &mut |progress| {
        if matches!(progress, Progress::Weights { .. }) {
            OpenOptions::new().write(true).open(&data).unwrap().set_len(4096).unwrap();
        }
    });
    let message = error.map(|_| ()).unwrap_err().to_string();
    let expected = format!("tensors.bin was {size} bytes when the bundle was opened and is 4096 now");
    assert!(message.contains(&expected), "{message}");
}
