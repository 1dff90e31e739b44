//! `synth-bundle`: a bundle of a real size with random weights, to measure and to load, without a checkpoint.
//!
//! Shapes, kernels and tensors are those that an export of the real checkpoint would have. Weights are random blocks,
//! about as large as trained ones, drawn from one short stretch of random bytes: neither time nor memory goes into them.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use driver_tests::checkpoint::{Form, SIZES, Size, Tower};
use runtime::bundle::{Bundle, GemmRecord, LayerKind, Manifest};
use runtime::export::{ExportError, ExportOptions, manifest_for, write_kernels};
use serde_json::Value;

/// A bundle to measure with: the first of these that is not there is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sample {
    /// The 2B model.
    Whole,
    /// Two layers of the 2B model with DeltaNet, a small vocabulary.
    Linear,
    /// Two layers of the 2B model with attention, a small vocabulary.
    Attention,
    /// A tiny model, for smoke tests.
    Tiny,
}

/// Writes a sample where it is not there yet.
pub(crate) fn sample(out: &Path, sample: Sample) -> Result<(), String> {
    if Bundle::open(out).is_ok() {
        return Ok(());
    }
    let _ = fs::remove_dir_all(out);
    if let Some(parent) = out.parent() {
        fs::create_dir_all(parent).map_err(|error| format!("cannot create {}: {error}", parent.display()))?;
    }
    let [whole, .., tiny] = SIZES;
    let part = Size { vocab: 2048, words: 2000, layers: 2, tower: Tower { depth: 1, ..whole.tower }, ..whole };
    let written = match sample {
        Sample::Whole => write_bundle(out, &whole),
        Sample::Linear => write_bundle(out, &Size { interval: 3, ..part }),
        Sample::Attention => write_bundle(out, &Size { interval: 1, ..part }),
        Sample::Tiny => write_bundle(out, &tiny),
    };
    written.map(drop)
}

const USAGE: &str = "usage: cargo xtask synth-bundle <out> [--size 2b|0.8b|4b|9b|tiny] [--layers N]";

pub(crate) const HELP: &str = "\
cargo xtask synth-bundle <out> [--size 2b|0.8b|4b|9b|tiny] [--layers N]
  a bundle with the shapes of a real size (default 2b, all its layers) and random weights, for the software NPU";

/// Writes the bundle that the arguments ask for.
pub(crate) fn run(arguments: &[OsString]) -> Result<bool, String> {
    let (out, size) = parse(arguments)?;
    match write_bundle(&out, &size) {
        Ok(bytes) => {
            eprintln!("{}: {} with {} layers, {bytes} bytes of tensors", out.display(), size.name, size.layers);
            Ok(true)
        }
        Err(error) => {
            eprintln!("synth-bundle: {error}");
            Ok(false)
        }
    }
}

fn parse(arguments: &[OsString]) -> Result<(PathBuf, Size), String> {
    use lexopt::prelude::*;
    let usage = |error: lexopt::Error| format!("{error}; {USAGE}");
    let mut parser = lexopt::Parser::from_args(arguments.iter().cloned());
    let (mut out, mut size, mut layers) = (None, SIZES[0], None);
    while let Some(argument) = parser.next().map_err(usage)? {
        match argument {
            Long("size") => {
                let name = parser.value().and_then(|value| value.string()).map_err(usage)?;
                size = Size::named(&name).ok_or_else(|| format!("no size `{name}`; {USAGE}"))?;
            }
            Long("layers") => {
                let count: usize = parser.value().and_then(|value| value.parse()).map_err(usage)?;
                layers = Some(count);
            }
            Value(path) if out.is_none() => out = Some(PathBuf::from(path)),
            other => return Err(usage(other.unexpected())),
        }
    }
    let out = out.ok_or_else(|| USAGE.to_owned())?;
    Ok((out, Size { layers: layers.unwrap_or(size.layers), ..size }))
}

/// Writes everything and has the reader check it. What was written of a failed bundle is removed.
fn write_bundle(out: &Path, size: &Size) -> Result<u64, String> {
    let nothing = Value::Null;
    let options = ExportOptions::new(PathBuf::new(), PathBuf::new());
    let config = size.config(Form::USUAL);
    let manifest = manifest_for(&config, &size.generation(), &nothing, &options).map_err(|error| error.to_string())?;
    fs::create_dir(out).map_err(|error| format!("cannot create {}: {error}", out.display()))?;
    let written = files(out, size, &manifest).map_err(|error| format!("cannot write {}: {error}", out.display()));
    let checked = written.and_then(|bytes| Bundle::open(out).map(|_| bytes).map_err(|error| error.to_string()));
    if checked.is_err() {
        let _ = fs::remove_dir_all(out);
    }
    checked
}

fn files(out: &Path, size: &Size, manifest: &Manifest) -> io::Result<u64> {
    fs::create_dir(out.join("kernels"))?;
    let write = |name: &str, bytes: &[u8]| fs::write(out.join(name), bytes);
    let mut kernel = |name: &str, bytes: &[u8]| write(name, bytes).map_err(|error| ExportError(error.to_string()));
    write_kernels(manifest, &mut kernel).map_err(io::Error::other)?;
    write("tokenizer.json", size.tokenizer().to_string().as_bytes())?;
    let mut tensors = Tensors::new(BufWriter::with_capacity(1 << 20, File::create_new(out.join("tensors.bin"))?));
    text(&mut tensors, manifest)?;
    vision(&mut tensors, manifest)?;
    tensors.file.flush()?;
    write("tensors.txt", tensors.index.as_bytes())?;
    write("manifest.txt", manifest.render().as_bytes())?;
    Ok(tensors.offset)
}

/// Values of a small tensor.
#[derive(Clone, Copy)]
enum Values {
    /// All the same.
    All(f32),
    /// Uniform between the two.
    Between(f32, f32),
}

/// The tensor files as they grow.
struct Tensors {
    file: BufWriter<File>,
    index: String,
    offset: u64,
    random: u64,
    /// Random blocks of nine bytes: an exponent that makes weights of about 0.02, eight mantissas.
    blocks: Vec<u8>,
    /// Where in `blocks` to go on.
    at: usize,
}

/// A prime, so that no shape falls into step with the blocks.
const BLOCKS: usize = 999_983;
const BLOCK: usize = 9;

impl Tensors {
    fn new(file: BufWriter<File>) -> Self {
        let mut this = Self { file, index: String::new(), offset: 0, random: 1, blocks: Vec::new(), at: 0 };
        let mut blocks = Vec::with_capacity(BLOCKS * BLOCK);
        for _ in 0..BLOCKS {
            // 2^(121 - 133) times up to 127, uniform: a standard deviation of 0.018.
            blocks.push(121);
            let mantissas = this.next().to_le_bytes();
            // -128 occurs in no block that a packer makes of ordinary values.
            blocks.extend(mantissas.map(|mantissa| if mantissa == 128 { 129 } else { mantissa }));
        }
        this.blocks = blocks;
        this
    }

    /// splitmix64.
    fn next(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn entry(&mut self, name: &str, dtype: &str, shape: &[usize], bytes: usize) -> io::Result<()> {
        let padding = self.offset.next_multiple_of(64) - self.offset;
        self.file.write_all(&[0; 64][..padding as usize])?;
        self.offset += padding;
        let shape: Vec<String> = shape.iter().map(ToString::to_string).collect();
        self.index += &format!("{name} {dtype} {} {} {bytes}\n", shape.join(","), self.offset);
        self.offset += bytes as u64;
        Ok(())
    }

    fn values(&mut self, name: &str, shape: &[usize], values: Values) -> io::Result<()> {
        let count: usize = shape.iter().product();
        self.entry(name, "f32", shape, count * 4)?;
        for _ in 0..count {
            let value = match values {
                Values::All(value) => value,
                Values::Between(low, high) => low + (high - low) * (self.next() >> 40) as f32 / (1 << 24) as f32,
            };
            self.file.write_all(&value.to_le_bytes())?;
        }
        Ok(())
    }

    fn random_blocks(&mut self, mut bytes: usize) -> io::Result<()> {
        while bytes > 0 {
            let part = bytes.min(self.blocks.len() - self.at);
            self.file.write_all(&self.blocks[self.at..self.at + part])?;
            self.at = (self.at + part) % self.blocks.len();
            bytes -= part;
        }
        Ok(())
    }

    /// Packed weights in row layout.
    fn rows(&mut self, name: &str, bytes: usize) -> io::Result<()> {
        self.entry(name, "u8", &[bytes], bytes)?;
        self.random_blocks(bytes)
    }

    /// Packed weights of a GEMM; biases are zero.
    fn stream(&mut self, name: &str, gemm: &GemmRecord) -> io::Result<()> {
        self.entry(name, "u8", &[gemm.b_bytes], gemm.b_bytes)?;
        let chunk = if gemm.bias { 128 * 64 / 8 * BLOCK } else { 0 };
        let column_block = gemm.k * 64 / 8 * BLOCK;
        for _ in 0..gemm.n / 64 {
            self.file.write_all(&vec![0; chunk])?;
            self.random_blocks(column_block)?;
        }
        Ok(())
    }
}

fn text(tensors: &mut Tensors, manifest: &Manifest) -> io::Result<()> {
    use Values::{All, Between};
    let text = &manifest.text;
    let d = text.hidden;
    for (index, kind) in text.layers.iter().enumerate() {
        let host = |part: &str| format!("l{index}.h.{part}");
        let packed = |part: &str| format!("l{index}.g.{part}");
        tensors.stream(&packed("in"), &manifest.gemms[kind.key()])?;
        for part in ["o", "gu"] {
            tensors.stream(&packed(part), &manifest.gemms[part])?;
        }
        for slice in 0..text.down_slices {
            tensors.stream(&packed(&format!("down{slice}")), &manifest.gemms["down"])?;
        }
        tensors.values(&host("ln1"), &[d], Between(-0.1, 0.1))?;
        tensors.values(&host("ln2"), &[d], Between(-0.1, 0.1))?;
        match kind {
            LayerKind::Linear => {
                let heads = text.lin_value_heads;
                tensors.values(&host("ba"), &[2 * heads, d], Between(-0.03, 0.03))?;
                tensors.values(&host("conv"), &[text.conv_channels(), text.conv_kernel], Between(-0.5, 0.5))?;
                tensors.values(&host("A"), &[heads], Between(-16.0, -1.0))?;
                tensors.values(&host("dt_bias"), &[heads], Between(-4.0, -1.0))?;
                tensors.values(&host("norm"), &[text.lin_value_dim], All(1.0))?;
            }
            LayerKind::Attention => {
                tensors.values(&host("q_norm"), &[text.head_dim], All(0.0))?;
                tensors.values(&host("k_norm"), &[text.head_dim], All(0.0))?;
            }
        }
    }
    tensors.values("ln_f", &[d], All(0.0))?;
    let bytes = manifest.gemvs["head"].w_words * 4;
    for part in 0..text.head_parts {
        tensors.rows(&format!("head{part}"), bytes)?;
        if text.untied {
            tensors.rows(&format!("embed{part}"), bytes)?;
        }
    }
    Ok(())
}

fn vision(tensors: &mut Tensors, manifest: &Manifest) -> io::Result<()> {
    use Values::{All, Between};
    let Some(vision) = &manifest.vision else { return Ok(()) };
    let d = vision.hidden;
    let weight = |tensors: &mut Tensors, name: &str, key: &str, slices: Option<usize>| {
        let gemm = &manifest.gemms[key];
        for slice in 0..slices.unwrap_or(1) {
            let name = slices.map_or(name.to_owned(), |_| format!("{name}.{slice}"));
            tensors.stream(&name, gemm)?;
        }
        tensors.values(&format!("{name}.f"), &[gemm.n], Between(1.0, 2.0))
    };
    weight(tensors, "vis.patch", "v_patch", None)?;
    tensors.values("vis.pos", &[vision.pos_side * vision.pos_side, d], Between(-0.03, 0.03))?;
    for block in 0..vision.depth {
        let name = |part: &str| format!("vis.b{block}.{part}");
        for norm in ["ln1", "ln2"] {
            tensors.values(&name(&format!("{norm}_w")), &[d], All(1.0))?;
            tensors.values(&name(&format!("{norm}_b")), &[d], All(0.0))?;
        }
        weight(tensors, &name("qkv"), "v_qkv", None)?;
        weight(tensors, &name("proj"), "v_proj", None)?;
        weight(tensors, &name("fc1"), "v_fc1", None)?;
        weight(tensors, &name("fc2"), "v_fc2", Some(vision.fc2_slices))?;
    }
    tensors.values("vis.m_ln_w", &[d], All(1.0))?;
    tensors.values("vis.m_ln_b", &[d], All(0.0))?;
    weight(tensors, "vis.m1", "v_m1", Some(vision.merger_slices))?;
    weight(tensors, "vis.m2", "v_m2", Some(vision.merger_slices))
}
