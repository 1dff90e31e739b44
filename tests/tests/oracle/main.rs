//! Checkpoints with transformers' answers, through the exporter, the software NPU and back.
//!
//! `QWEN35_ORACLE` names a folder with `tiny-qwen35` and `tiny-qwen35-gva`, each with a `checkpoint` and a set `A` of
//! reference runs. The tests are ignored unless asked for: `cargo xtask check oracle`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "a test")]

mod safetensors;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use driver_tests::forward::Forward;
use npu_model::{Config, Model};
use runtime::bundle::{Bundle, RefRecord, WeightFormat};
use runtime::check::{self, Report};
use runtime::export::{ExportOptions, export};
use runtime::image::Rgb;
use runtime::model::{Input, LayerState, Tap};
use runtime::npu::Npu;
use runtime::{Chat, LoadOptions, Turn};
use safetensors::Safetensors;

const MODELS: [&str; 2] = ["tiny-qwen35", "tiny-qwen35-gva"];

fn oracle() -> PathBuf {
    std::env::var_os("QWEN35_ORACLE").map(PathBuf::from).expect("QWEN35_ORACLE names a folder of reference runs")
}

/// What passed a watch.
type Taps = Vec<(Tap, Vec<f32>)>;

/// A folder that goes with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("qwen35-oracle-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Exports a model of the oracle and loads it on a software NPU whose memory is not coherent with the CPU's caches.
fn load(oracle: &Path, model: &str, format: WeightFormat, scratch: &Scratch) -> (Chat, Arc<Model>) {
    let out = scratch.0.join("bundle");
    let mut options = ExportOptions::new(oracle.join(model).join("checkpoint"), out.clone());
    options.refs = Some(oracle.join(model).join("A"));
    options.format = format;
    // One of the formats with the tower's long linears cut as the 2B has them, in four.
    options.tower_slice = (format == WeightFormat::F32).then_some(512);
    export(&options, &mut |_| ControlFlow::Continue(())).unwrap();
    let device = Model::new(Config { coherent: false, ..Config::default() });
    let npu = Npu::open(&*device, Path::new("/dev/accel/accel0")).unwrap();
    let options = LoadOptions { max_ctx: 1024, deadline: Duration::from_secs(600), ..LoadOptions::default() };
    let chat = Chat::load(Bundle::open(&out).unwrap(), npu, options, &mut |_| {}).unwrap();
    (chat, device)
}

fn checked(chat: &mut Chat, model: &str) -> Report {
    let report = check::run(chat, &mut |_| {}).unwrap();
    println!("{model}\n{report}");
    assert!(report.passed(), "{report}");
    assert_eq!(report.cases.len(), 12);
    assert!(report.tokenizer_cases > 20);
    for case in &report.cases {
        assert_eq!(case.positions_equal, Some(true), "{}", case.name);
        assert!(case.images.is_none_or(|i| i.cosine > 0.999), "{}: {:?}", case.name, case.images);
    }
    assert_eq!(report.cases.iter().filter(|c| c.images.is_some()).count(), 5);
    report
}

#[test]
#[ignore = "needs QWEN35_ORACLE, a folder of reference runs"]
fn bfp16_bundles_pass_the_references() {
    let oracle = oracle();
    for model in MODELS {
        let scratch = Scratch::new(&format!("bfp16-{model}"));
        let (mut chat, _device) = load(&oracle, model, WeightFormat::Bfp16, &scratch);
        let report = checked(&mut chat, model);
        assert!(report.cases.iter().all(|c| c.max_dlogit < 1.0));
    }
}

/// Six bits a weight change what such a model says: it is held against a float run on the weights that the bundle holds.
#[test]
#[ignore = "needs QWEN35_ORACLE, a folder of reference runs"]
fn bfp6s_bundles_agree_with_a_float_run_on_their_weights() {
    let oracle = oracle();
    for model in MODELS {
        let scratch = Scratch::new(&format!("bfp6s-{model}"));
        let (mut chat, _device) = load(&oracle, model, WeightFormat::Bfp6s, &scratch);
        let (mut steps, mut equal, mut largest, mut flips) = (0, 0, 0.0_f32, Vec::new());
        for record in chat.model().bundle().manifest.refs.clone() {
            let found = forced(&mut chat, &record);
            let expected = float_run(chat.model().bundle(), &record);
            assert_eq!(found.len(), expected.len());
            for (found, expected) in found.iter().zip(&expected) {
                let chosen = [found, expected].map(|logits| host_ops::sample::argmax(logits).unwrap());
                let best = expected[chosen[1]];
                let second = expected.iter().enumerate().filter(|(i, _)| *i != chosen[1]);
                let second = second.fold(f32::NEG_INFINITY, |most, (_, logit)| most.max(*logit));
                if chosen[0] == chosen[1] {
                    equal += 1;
                } else {
                    flips.push(best - second);
                }
                largest = largest.max(largest_difference(found, expected));
                steps += 1;
            }
        }
        println!(
            "{model} in bfp6s: {equal} of {steps} top-1, max |dlogit| {largest:.3}, margins of the others {flips:.3?}"
        );
        assert_eq!(steps, 12 * 24);
        assert!(flips.iter().all(|margin| *margin < 0.5), "{flips:?}");
    }
}

/// Logits of the NPU after the prompt and after each token of a reference run but the last.
fn forced(chat: &mut Chat, record: &RefRecord) -> Vec<Vec<f32>> {
    let images = pictures(chat, record);
    let turn = Turn {
        system: record.system.as_deref(),
        images: &images,
        text: &record.prompt,
        thinking: record.thinking,
        max_new: 1,
    };
    let prompt = chat.prompt(&turn, &mut |_| ControlFlow::Continue(())).unwrap().unwrap();
    let tokens = chat.model().bundle().i32s(&record.tensor("tokens")).unwrap().to_vec();
    let model = chat.model_mut();
    model.reset();
    let input = Input { ids: &prompt.ids, positions: &prompt.positions, vision: &prompt.vision };
    model.prefill(&input, &mut |_| ControlFlow::Continue(())).unwrap();
    let mut all = vec![model.logits().unwrap().to_vec()];
    for token in &tokens[..tokens.len() - 1] {
        all.push(model.decode(*token as u32).unwrap().to_vec());
    }
    all
}

/// The same from the plain forward, tower included.
fn float_run(bundle: &Bundle, record: &RefRecord) -> Vec<Vec<f32>> {
    let forward = Forward::new(bundle);
    let ints = |what: &str| bundle.i32s(&record.tensor(what)).unwrap().to_vec();
    let mut vision = Vec::new();
    for image in 0..record.images {
        let grid = bundle.i32s(&record.image_tensor("grid", image)).unwrap();
        let patches = bundle.f32s(&record.image_tensor("patches", image)).unwrap();
        vision.extend(forward.tower(patches, [grid[0] as usize, grid[1] as usize]).unwrap());
    }
    let (ids, tokens, next) = (ints("ids"), ints("tokens"), ints("next_pos")[0] as u32);
    let at = ints("positions");
    let mut positions: Vec<[u32; 3]> = at.chunks(3).map(|at| [at[0], at[1], at[2]].map(|p| p as u32)).collect();
    positions.extend((0..tokens.len() as u32 - 1).map(|step| [next + step; 3]));
    let all: Vec<u32> = ids.iter().chain(&tokens[..tokens.len() - 1]).map(|id| *id as u32).collect();
    forward.logits(&all, &positions, &vision, ids.len() - 1).unwrap()
}

/// The pictures of a reference run.
fn pictures(chat: &Chat, record: &RefRecord) -> Vec<Rgb> {
    let picture = |i| {
        let tensor = chat.model().bundle().tensor(&record.image_tensor("rgb", i)).unwrap();
        Rgb { width: tensor.shape[1], height: tensor.shape[0], data: tensor.bytes.to_vec() }
    };
    (0..record.images).map(picture).collect()
}

/// With the device's arithmetic in f32 nothing is left but the order of sums.
#[test]
#[ignore = "needs QWEN35_ORACLE, a folder of reference runs"]
fn f32_bundles_give_the_reference_logits() {
    let oracle = oracle();
    for model in MODELS {
        let scratch = Scratch::new(&format!("f32-{model}"));
        let (mut chat, _device) = load(&oracle, model, WeightFormat::F32, &scratch);
        let report = checked(&mut chat, model);
        for case in &report.cases {
            assert!(case.max_dlogit < 1e-3, "{}: {}", case.name, case.max_dlogit);
            assert!(case.flips.iter().all(|f| f.margin < 1e-3), "{}: {:?}", case.name, case.flips);
            assert!(case.images.is_none_or(|i| i.cosine > 0.999_999), "{}: {:?}", case.name, case.images);
        }
        first_logits(&mut chat, &oracle.join(model).join("A"));
        hidden_states(&mut chat, &oracle.join(model).join("A"));
    }
}

/// All logits of the last prompt row of a text and of an image case, not only the top k that a bundle carries.
fn first_logits(chat: &mut Chat, folder: &Path) {
    for name in ["long_plain", "system", "two_images"] {
        let record = chat.model().bundle().manifest.refs.iter().find(|r| r.name == name).unwrap().clone();
        let images = pictures(chat, &record);
        let turn = Turn {
            system: record.system.as_deref(),
            images: &images,
            text: &record.prompt,
            thinking: record.thinking,
            max_new: 1,
        };
        let prompt = chat.prompt(&turn, &mut |_| ControlFlow::Continue(())).unwrap().unwrap();
        let model = chat.model_mut();
        model.reset();
        let input = Input { ids: &prompt.ids, positions: &prompt.positions, vision: &prompt.vision };
        model.prefill(&input, &mut |_| ControlFlow::Continue(())).unwrap();
        let (_, expected) = Safetensors::read(&folder.join(format!("{name}.safetensors"))).f32s("logits");
        let difference = largest_difference(model.logits().unwrap(), &expected);
        println!("{name}: max |dlogit| over all {} logits {difference:.2e}", expected.len());
        assert!(difference < 1e-3, "{name}: {difference}");
    }
}

/// Every tap of every layer, and what each layer remembers, against `short_plain.layers`.
fn hidden_states(chat: &mut Chat, folder: &Path) {
    let reference = Safetensors::read(&folder.join("short_plain.layers.safetensors"));
    let record = chat.model().bundle().manifest.refs.iter().find(|r| r.name == "short_plain").unwrap().clone();
    let turn = Turn { system: None, images: &[], text: &record.prompt, thinking: record.thinking, max_new: 1 };
    let prompt = chat.prompt(&turn, &mut |_| ControlFlow::Continue(())).unwrap().unwrap();

    let seen: Arc<Mutex<Taps>> = Arc::default();
    let sink = Arc::clone(&seen);
    let model = chat.model_mut();
    model.watch(Some(Box::new(move |tap, _, rows| sink.lock().unwrap().push((tap, rows.to_vec())))));
    model.reset();
    let input = Input { ids: &prompt.ids, positions: &prompt.positions, vision: &[] };
    model.prefill(&input, &mut |_| ControlFlow::Continue(())).unwrap();
    model.logits().unwrap();
    model.watch(None);

    let layers = chat.model().bundle().manifest.text.layers.len();
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 2 + 6 * layers);
    let mut worst: (f32, String) = (0.0, String::new());
    for (tap, rows) in seen.iter() {
        let name = match tap {
            Tap::Embedding => "embed".to_owned(),
            Tap::Norm1(i) => format!("layer{i}.norm1"),
            Tap::OutputIn(i) => format!("layer{i}.o_in"),
            Tap::Mixer(i) => format!("layer{i}.mixer"),
            Tap::Norm2(i) => format!("layer{i}.norm2"),
            Tap::Mlp(i) => format!("layer{i}.mlp"),
            Tap::Output(i) => format!("layer{i}.out"),
            Tap::FinalNorm => "final_norm".to_owned(),
        };
        let (_, expected) = reference.f32s(&name);
        // The final norm is taken of the last row only.
        let expected = if *tap == Tap::FinalNorm { &expected[expected.len() - rows.len()..] } else { &expected[..] };
        let difference = largest_difference(rows, expected);
        assert!(difference < 1e-3, "{name}: {difference}");
        if difference > worst.0 {
            worst = (difference, name);
        }
    }
    println!("hidden states: at most {:.2e} off, in {}", worst.0, worst.1);
    states(chat, &reference, layers);
}

fn states(chat: &Chat, reference: &Safetensors, layers: usize) {
    for i in 0..layers {
        match chat.model().layer_state(i).unwrap() {
            LayerState::Linear(state) => {
                let (_, recurrent) = reference.f32s(&format!("state{i}.rec"));
                assert!(largest_difference(&state.recurrent(), &recurrent) < 1e-3, "layer {i}");
                // The reference keeps one column more, and channels outermost.
                let (shape, conv) = reference.f32s(&format!("state{i}.conv"));
                let (channels, taps) = (shape[0], shape[1]);
                let expected: Vec<f32> = (1..taps)
                    .flat_map(|t| (0..channels).map(move |c| (c, t)))
                    .map(|(c, t)| conv[c * taps + t])
                    .collect();
                assert!(largest_difference(&state.conv(), &expected) < 1e-3, "layer {i}");
            }
            LayerState::Attention(cache) => {
                let (shape, keys) = reference.f32s(&format!("state{i}.k"));
                let (_, values) = reference.f32s(&format!("state{i}.v"));
                let (heads, tokens, width) = (shape[0], shape[1], shape[2]);
                assert_eq!(cache.len(), tokens);
                for (head, token) in (0..heads).flat_map(|h| (0..tokens).map(move |t| (h, t))) {
                    let at = (head * tokens + token) * width;
                    assert!(largest_difference(&cache.key(token, head), &keys[at..at + width]) < 1e-3);
                    assert!(largest_difference(&cache.value(token, head), &values[at..at + width]) < 1e-3);
                }
            }
        }
    }
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, |most, d| if d > most || d.is_nan() { d } else { most })
}
