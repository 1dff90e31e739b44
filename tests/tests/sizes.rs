//! Every published size: a checkpoint of its shape with random weights, exported, loaded onto the software NPU and
//! asked, against a plain f32 forward of the weights that the bundle holds.
//!
//! Small models with the sizes' peculiarities run always. The true widths, cut to four layers and a short vocabulary,
//! take minutes and gigabytes: `cargo test -p driver-tests --test sizes -- --ignored true_`. The forward itself is held
//! against transformers: always by the demo model's references, and by those that `QWEN35_ORACLE` names.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "a test")]

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use driver_tests::checkpoint::{Form, ODD, Size, TINY};
use driver_tests::forward::Forward;
use npu_model::{Config, Model};
use runtime::bundle::{Bundle, WeightFormat};
use runtime::export::{ExportOptions, export};
use runtime::image::Rgb;
use runtime::model::Input;
use runtime::npu::Npu;
use runtime::{Chat, LoadOptions, Turn, eval};

/// A folder that goes with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let name = name.replace(' ', "-");
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("sizes-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn exported(size: &Size, form: Form, format: WeightFormat, scratch: &Scratch) -> PathBuf {
    let checkpoint = scratch.0.join("checkpoint");
    size.write(&checkpoint, form).unwrap();
    let options = ExportOptions {
        format,
        max_prompt: Some(256),
        ..ExportOptions::new(checkpoint.clone(), scratch.0.join("bundle"))
    };
    export(&options, &mut |_| ControlFlow::Continue(())).unwrap();
    // Nothing but the bundle is needed from here on.
    std::fs::remove_dir_all(checkpoint).unwrap();
    options.out
}

fn load(bundle: &Path) -> (Chat, Arc<Model>) {
    let device = Model::new(Config { coherent: false, ..Config::default() });
    let npu = Npu::open(&*device, Path::new("/dev/accel/accel0")).unwrap();
    let options = LoadOptions { max_ctx: 512, deadline: Duration::from_secs(1800), ..LoadOptions::default() };
    (Chat::load(Bundle::open(bundle).unwrap(), npu, options, &mut |_| {}).unwrap(), device)
}

/// 256 x 256: the smallest that is not enlarged, 64 tokens.
fn picture() -> Rgb {
    let (width, height) = (256, 256);
    let data = (0..width * height * 3).map(|i| (i / 3 % 251 + i % 3 * 40 + i / 7000) as u8).collect();
    Rgb { width, height, data }
}

/// How two runs over the same tokens differ.
#[derive(Debug)]
struct Difference {
    /// Largest difference of a logit, in units of the standard deviation of the logits.
    logits: f32,
    /// Smallest cosine of a step's logits.
    cosine: f64,
    /// Steps with another first choice, and how far apart the reference's first two logits were there.
    flips: Vec<f32>,
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

fn difference(found: &[Vec<f32>], expected: &[Vec<f32>]) -> Difference {
    let mut all = Difference { logits: 0.0, cosine: 1.0, flips: Vec::new() };
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(found.len(), expected.len());
        let count = expected.len() as f32;
        let mean = expected.iter().sum::<f32>() / count;
        let deviation = (expected.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / count).sqrt();
        assert!(deviation > 0.1, "logits that hardly differ show nothing: {deviation}");
        let largest = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        all.logits = all.logits.max(largest / deviation);
        all.cosine = all.cosine.min(cosine(found, expected));
        let chosen = host_ops::sample::argmax(found).unwrap();
        let mut sorted = expected.clone();
        sorted.sort_by(|a, b| b.total_cmp(a));
        if expected[chosen] < sorted[0] {
            all.flips.push(sorted[0] - sorted[1]);
        }
    }
    all
}

/// The runtime's logits for a prompt and the tokens that it chooses itself, and the plain forward's for the same
/// tokens; and the cosine of the picture's rows.
fn compare(chat: &mut Chat, images: &[Rgb], steps: usize) -> (Difference, Option<f64>) {
    let turn = Turn { system: None, images, text: "the tin in the hut: 7 or 9?", thinking: false, max_new: 1 };
    let prompt = chat.prompt(&turn, &mut |_| ControlFlow::Continue(())).unwrap().unwrap();
    let model = chat.model_mut();
    model.reset();
    let input = Input { ids: &prompt.ids, positions: &prompt.positions, vision: &prompt.vision };
    model.prefill(&input, &mut |_| ControlFlow::Continue(())).unwrap();
    let mut found = vec![model.logits().unwrap().to_vec()];
    let (mut ids, mut positions) = (prompt.ids.clone(), prompt.positions.tokens.clone());
    while found.len() < steps {
        let chosen = host_ops::sample::argmax(found.last().unwrap()).unwrap() as u32;
        // A chosen placeholder of a picture would stand for no row.
        let image = model.bundle().manifest.vision.as_ref().map(|vision| vision.image_token);
        let id = if Some(chosen) == image { 0 } else { chosen };
        ids.push(id);
        positions.push([model.next_position(); 3]);
        found.push(model.decode(id).unwrap().to_vec());
    }
    let first = prompt.ids.len() - 1;
    let forward = Forward::new(chat.model().bundle());
    let expected = forward.logits(&ids, &positions, &prompt.vision, first).unwrap();
    let seen = images.first().map(|image| {
        let patches = chat.prepare(image).unwrap();
        let rows = forward.tower(&patches.data, patches.grid).unwrap();
        cosine(&prompt.vision, &rows)
    });
    (difference(&found, &expected), seen)
}

/// Exports, loads, asks with and without a picture, and prints what came out.
fn agree(size: &Size, form: Form, format: WeightFormat, steps: usize) {
    let scratch = Scratch::new(&format!("{}-{}", size.name, format.name()));
    let bundle = exported(size, form, format, &scratch);
    let (mut chat, _device) = load(&bundle);
    let text = compare(&mut chat, &[], steps).0;
    let (image, seen) = compare(&mut chat, &[picture()], steps);
    let seen = seen.unwrap();
    println!("{} in {}: text {text:?}, image {image:?}, cosine of the picture {seen:.6}", size.name, format.name());
    for found in [&text, &image] {
        if format == WeightFormat::F32 {
            // Nothing is left but the order of sums.
            assert!(found.logits < 1e-3 && found.flips.iter().all(|margin| *margin < 1e-3), "{found:?}");
        } else {
            // Activations are rounded to bf16 at each of the NPU's doors.
            assert!(found.cosine > 0.998 && found.flips.iter().all(|margin| *margin < 0.5), "{found:?}");
        }
    }
    assert!(seen > if format == WeightFormat::F32 { 0.999_999 } else { 0.999 }, "{seen}");
}

#[test]
fn odd_shapes_in_f32() {
    for (size, old) in ODD.iter().zip([false, true, false]) {
        agree(size, Form { old, shards: 1 }, WeightFormat::F32, 3);
    }
}

#[test]
fn odd_shapes_in_bfp16() {
    for (size, shards) in [TINY].iter().chain(&ODD).zip([1, 2, 1, 3]) {
        agree(size, Form { old: false, shards }, WeightFormat::Bfp16, 4);
    }
}

#[test]
fn odd_shapes_in_bfp6s() {
    for (size, shards) in [TINY].iter().chain(&ODD).zip([1, 1, 2, 1]) {
        agree(size, Form { old: false, shards }, WeightFormat::Bfp6s, 4);
    }
}

/// The same bundle that runtimes by others are held against.
#[test]
fn a_bfp6s_bundle_passes_the_references_of_its_own_weights() {
    let scratch = Scratch::new("six-bits");
    let (mut chat, _device) = load(&driver_tests::tiny::six_bit_bundle(&scratch.0).unwrap());
    let report = runtime::check::run(&mut chat, &mut |_| {}).unwrap();
    println!("{report}");
    assert!(report.passed() && report.cases.len() == 3 && report.tokenizer_cases == 3, "{report}");
}

/// In windows of twelve: what the plain forward says of each, and no token of another window.
#[test]
fn a_perplexity_is_that_of_the_plain_forward() {
    let scratch = Scratch::new("perplexity");
    let (mut chat, _device) = load(&exported(&TINY, Form::USUAL, WeightFormat::F32, &scratch));
    let ids = chat.tokenizer().encode("the hut in the tin, and 7 or 9.").unwrap();
    assert!(ids.len() > 13, "{ids:?}");
    let mut seen = 0;
    let found = eval::run(chat.model_mut(), &ids, 12, &mut |done| {
        seen = done;
        ControlFlow::Continue(())
    });
    let found = found.unwrap().unwrap();
    assert_eq!(seen, ids.len());
    let forward = Forward::new(chat.model().bundle());
    let (mut loss, mut count) = (0.0, 0);
    for window in ids.chunks(12) {
        let positions: Vec<[u32; 3]> = (0..window.len() as u32).map(|at| [at; 3]).collect();
        let logits = forward.logits(window, &positions, &[], 0).unwrap();
        for (logits, next) in logits.iter().zip(&window[1..]) {
            let sum: f64 = logits.iter().map(|logit| f64::from(*logit).exp()).sum();
            loss += sum.ln() - f64::from(logits[*next as usize]);
            count += 1;
        }
    }
    assert_eq!((found.tokens, found.predicted), (ids.len(), count));
    assert!((found.loss - loss).abs() < 1e-4 * loss, "{found:?}, expected {loss}");
    let broken_off = eval::run(chat.model_mut(), &ids, 12, &mut |_| ControlFlow::Break(()));
    assert_eq!(broken_off.unwrap(), None);
}

/// The widths of a published size; four layers, and a vocabulary that does not outweigh them.
fn true_size(name: &str) {
    let size = Size::named(name).unwrap();
    let tower = driver_tests::checkpoint::Tower { depth: 2, ..size.tower };
    let size = Size { layers: 4, vocab: 4096, words: 4000, tower, ..size };
    for format in [WeightFormat::Bfp16, WeightFormat::Bfp6s] {
        agree(&size, Form { old: false, shards: 2 }, format, 3);
    }
}

#[test]
#[ignore = "takes minutes"]
fn true_widths_of_the_0_8b() {
    true_size("0.8b");
}

#[test]
#[ignore = "takes minutes"]
fn true_widths_of_the_2b() {
    true_size("2b");
}

#[test]
#[ignore = "takes minutes and 2 GB"]
fn true_widths_of_the_4b() {
    true_size("4b");
}

#[test]
#[ignore = "takes minutes and 4 GB"]
fn true_widths_of_the_9b() {
    true_size("9b");
}

/// Holds the plain forward against transformers' logits, in the references of a bundle. Gives the largest difference
/// and the number of pictures.
fn against_references(bundle: &Bundle, most: usize) -> (f32, usize) {
    let (mut largest, mut pictures) = (0.0_f32, 0);
    let forward = Forward::new(bundle);
    for record in bundle.manifest.refs.iter().take(most) {
        let ints = |what: &str| bundle.i32s(&record.tensor(what)).unwrap().to_vec();
        let (ids, tokens, top_ids) = (ints("ids"), ints("tokens"), ints("top_ids"));
        let top_logits = bundle.f32s(&record.tensor("top_logits")).unwrap();
        let mut vision = Vec::new();
        for image in 0..record.images {
            let tensor = |what: &str| record.image_tensor(what, image);
            let grid = bundle.i32s(&tensor("grid")).unwrap();
            let patches = bundle.f32s(&tensor("patches")).unwrap();
            let rows = forward.tower(patches, [grid[0] as usize, grid[1] as usize]).unwrap();
            let seen = cosine(&rows, bundle.f32s(&tensor("vision")).unwrap());
            assert!(seen > 0.999, "{}: {seen}", record.name);
            vision.extend(rows);
            pictures += 1;
        }
        let mut positions: Vec<[u32; 3]> =
            ints("positions").chunks(3).map(|at| [at[0] as u32, at[1] as u32, at[2] as u32]).collect();
        let next = ints("next_pos")[0] as u32;
        positions.extend((0..tokens.len() as u32 - 1).map(|step| [next + step; 3]));
        let all: Vec<u32> = ids.iter().chain(&tokens[..tokens.len() - 1]).map(|id| *id as u32).collect();
        let logits = forward.logits(&all, &positions, &vision, ids.len() - 1).unwrap();
        let k = top_ids.len() / tokens.len();
        for (step, logits) in logits.iter().enumerate() {
            let (ids, expected) = (&top_ids[step * k..][..k], &top_logits[step * k..][..k]);
            for (id, expected) in ids.iter().zip(expected) {
                largest = largest.max((logits[*id as usize] - expected).abs());
            }
            let chosen = host_ops::sample::argmax(logits).unwrap() as i32;
            assert!(chosen == tokens[step] || expected[0] - expected[1] < 0.5, "{} step {step}", record.name);
        }
    }
    (largest, pictures)
}

/// The demo's weights are blocks of what transformers computed with, which costs some of a logit.
#[test]
fn the_plain_forward_says_what_transformers_said_of_the_demo() {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cli/demo/bundle");
    let (largest, pictures) = against_references(&Bundle::open(&demo).unwrap(), usize::MAX);
    println!("largest difference of a logit {largest}");
    assert!(largest < 1.0 && pictures > 0, "{largest}");
}

#[test]
#[ignore = "needs QWEN35_ORACLE, a folder of reference runs"]
fn the_plain_forward_gives_the_oracle_logits() {
    let oracle = std::env::var_os("QWEN35_ORACLE").map(PathBuf::from).expect("QWEN35_ORACLE names a folder");
    for model in ["tiny-qwen35", "tiny-qwen35-gva"] {
        let scratch = Scratch::new(&format!("oracle-{model}"));
        let mut options = ExportOptions::new(oracle.join(model).join("checkpoint"), scratch.0.join("bundle"));
        options.refs = Some(oracle.join(model).join("A"));
        options.format = WeightFormat::F32;
        export(&options, &mut |_| ControlFlow::Continue(())).unwrap();
        let (largest, pictures) = against_references(&Bundle::open(&options.out).unwrap(), usize::MAX);
        println!("{model}: largest difference of a logit {largest}");
        assert!(largest < 1e-3 && pictures == 6, "{largest} over {pictures} pictures");
    }
}
