//! Weights of the tower in the forms that a bundle may hold them in: with factors, without, some of either, in two parts.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use driver_tests::contracts::{self, ContractError};
use driver_tests::forward::Forward;
use driver_tests::tiny;
use host_ops::pack::BStream;
use host_ops::pool::Pool;
use npu_model::{Config, Model};
use runtime::bundle::Bundle;
use runtime::image::Rgb;
use runtime::npu::Npu;
use runtime::verify::Identity;
use runtime::{Chat, LoadOptions, Turn};

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        Self(Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("tower-{name}-{}", std::process::id())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The tensors of a bundle: type and shape as they are listed, and bytes.
type Tensors = BTreeMap<String, (String, String, Vec<u8>)>;

fn tensors(bundle: &Path) -> Tensors {
    let data = fs::read(bundle.join("tensors.bin")).unwrap();
    let index = fs::read_to_string(bundle.join("tensors.txt")).unwrap();
    let read = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let (start, length): (usize, usize) = (words[3].parse().unwrap(), words[4].parse().unwrap());
        (words[0].to_owned(), (words[1].to_owned(), words[2].to_owned(), data[start..start + length].to_vec()))
    };
    index.lines().map(read).collect()
}

fn replace(bundle: &Path, tensors: &Tensors) {
    let (mut index, mut data) = (String::new(), Vec::new());
    for (name, (dtype, shape, bytes)) in tensors {
        data.resize(data.len().next_multiple_of(64), 0);
        let shape = if dtype == "u8" && !name.starts_with("ref.") { bytes.len().to_string() } else { shape.clone() };
        writeln!(index, "{name} {dtype} {shape} {} {}", data.len(), bytes.len()).unwrap();
        data.extend(bytes);
    }
    fs::write(bundle.join("tensors.txt"), index).unwrap();
    fs::write(bundle.join("tensors.bin"), data).unwrap();
}

/// The cosine of what the NPU sees in a picture and what the plain forward does.
fn cosine(bundle: &Path) -> f64 {
    let device = Model::new(Config { coherent: false, ..Config::default() });
    let npu = Npu::open(&*device, Path::new("/dev/accel/accel0")).unwrap();
    let options = LoadOptions { max_ctx: 512, ..LoadOptions::default() };
    let mut chat = Chat::load(Bundle::open(bundle).unwrap(), npu, options, &mut |_| {}).unwrap();
    let image = Rgb { width: 256, height: 256, data: (0..256 * 256 * 3).map(|i| (i * 7 / 500) as u8).collect() };
    let turn =
        Turn { system: None, images: std::slice::from_ref(&image), text: "what is it?", thinking: false, max_new: 1 };
    let prompt = chat.prompt(&turn, &mut |_| ControlFlow::Continue(())).unwrap().unwrap();
    let patches = chat.prepare(&image).unwrap();
    let expected = Forward::new(chat.model().bundle()).tower(&patches.data, patches.grid).unwrap();
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let found = &prompt.vision;
    dot(found, &expected) / (dot(found, found) * dot(&expected, &expected)).sqrt()
}

/// A weight with a factor a column is multiplied by it, one without is not, whatever the others are.
#[test]
fn factors_are_a_matter_of_each_weight() {
    let scratch = Scratch::new("factors");
    let bundle = tiny::bundle(&scratch.0).unwrap();
    let open = || Bundle::open(&bundle).unwrap();
    assert_eq!(Identity::of(&open()).vision, Some("w8"));
    let before = cosine(&bundle);

    let mut all = tensors(&bundle);
    let gemm = open().manifest.gemms["v_qkv"].clone();
    let layout = BStream::new(gemm.format.packing(), gemm.k, gemm.n, gemm.bias).unwrap();
    let mut weights = layout.unpack(&all["vis.b0.qkv"].2).unwrap();
    let mut bias = layout.unpack_bias(&all["vis.b0.qkv"].2).unwrap();
    let (_, _, factors) = all.remove("vis.b0.qkv.f").unwrap();
    let factors: Vec<f32> = factors.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    assert!(factors.iter().any(|factor| *factor > 1.1));
    for ((row, bias), factor) in weights.chunks_mut(gemm.k).zip(&mut bias).zip(&factors) {
        row.iter_mut().for_each(|weight| *weight *= factor);
        *bias *= factor;
    }
    let out = &mut all.get_mut("vis.b0.qkv").unwrap().2;
    let row = |n: usize, row: &mut [f32]| row.copy_from_slice(&weights[n * gemm.k..][..gemm.k]);
    layout.pack(&Pool::new(2), &row, Some(&bias), out).unwrap();
    replace(&bundle, &all);

    assert_eq!(Identity::of(&open()).vision, Some("w8 and bfp16"));
    let after = cosine(&bundle);
    println!("cosine {before:.6} with all factors, {after:.6} without those of qkv");
    assert!(before > 0.999 && after > 0.999);
}

/// GELU behind `fc1` is the kernel's or the host's, for all blocks alike: a kernel is one.
#[test]
fn fc1_has_factors_in_all_blocks_or_in_none() {
    let scratch = Scratch::new("mixed");
    let bundle = tiny::bundle(&scratch.0).unwrap();
    // A tower of two blocks.
    let manifest = fs::read_to_string(bundle.join("manifest.txt")).unwrap();
    assert!(manifest.contains("param v.depth 1\n"));
    fs::write(bundle.join("manifest.txt"), manifest.replace("param v.depth 1\n", "param v.depth 2\n")).unwrap();
    let mut all = tensors(&bundle);
    let second = |(name, tensor): (&String, &(String, String, Vec<u8>))| {
        name.strip_prefix("vis.b0.").map(|part| (format!("vis.b1.{part}"), tensor.clone()))
    };
    let blocks: Tensors = all.iter().filter_map(second).collect();
    all.extend(blocks);
    replace(&bundle, &all);
    Bundle::open(&bundle).unwrap();
    all.remove("vis.b0.fc1.f").unwrap();
    replace(&bundle, &all);
    let why = Bundle::open(&bundle).unwrap_err().to_string();
    assert!(why.contains("vis.b0.fc1.f") && why.contains("vis.b1.fc1.f") && why.contains("GELU"), "{why}");
}

/// How the two parts of a weight interleave is not known: such a bundle opens, since kernels take the bytes as they are,
/// and the software NPU, which would have to know, refuses it by name.
#[test]
fn weights_in_two_parts_open_and_are_refused_by_the_software_npu() {
    let scratch = Scratch::new("two-parts");
    let bundle = tiny::bundle(&scratch.0).unwrap();
    let mut all = tensors(&bundle);
    all.retain(|name, _| !(name.starts_with("vis.") && name.ends_with(".f")));
    for (name, (dtype, _, bytes)) in &mut all {
        if name.starts_with("vis.") && dtype == "u8" {
            bytes.extend(bytes.clone());
        }
    }
    replace(&bundle, &all);
    let path = bundle.join("manifest.txt");
    let manifest = fs::read_to_string(&path).unwrap();
    assert!(manifest.contains("v.weights w8"));
    // Others say nothing of biases.
    let manifest = manifest.replace("v.weights w8", "v.weights bfp16x2").replace(" bias=1", "");
    fs::write(&path, manifest).unwrap();
    let opened = Bundle::open(&bundle).unwrap();
    let gemms = opened.manifest.gemms.values().filter(|gemm| gemm.key.starts_with("v_"));
    assert!(gemms.clone().count() == 7 && gemms.clone().all(|gemm| gemm.in_two_parts() && gemm.bias));
    assert_eq!(Identity::of(&opened).vision, Some("bfp16x2"));
    let error = contracts::teach(&Model::new(Config::default()), &opened).unwrap_err();
    assert!(matches!(error, ContractError::TwoParts(_)));
    assert!(error.to_string().contains("v.weights bfp16x2"), "{error}");
}
