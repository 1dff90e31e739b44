//! `synth-bundle`: a bundle of a real size with random weights, to measure and to load, without a checkpoint.
//!
//! Shapes, kernels and tensors are those that an export of the real checkpoint would have. Weights are random blocks,
//! about as large as trained ones, drawn from one short stretch of random bytes: neither time nor memory goes into them.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use runtime::bundle::{Bundle, GemmRecord, LayerKind, Manifest};
use runtime::export::{ExportError, ExportOptions, manifest_for, write_kernels};
use serde_json::{Map, Value, json};

/// The numbers in which the sizes differ.
#[derive(Clone, Copy)]
struct Size {
    name: &'static str,
    hidden: usize,
    intermediate: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    key_heads: usize,
    value_heads: usize,
    linear_dim: usize,
    vocab: usize,
    /// Tokens before the added ones.
    words: usize,
    tied: bool,
    sections: [usize; 3],
    /// The tower: width, MLP, blocks, heads, edge of the position table.
    tower: [usize; 5],
}

/// From the published configurations; `tiny` is for tests.
const SIZES: [Size; 5] = [
    Size {
        name: "2b",
        hidden: 2048,
        intermediate: 6144,
        layers: 24,
        heads: 8,
        kv_heads: 2,
        head_dim: 256,
        key_heads: 16,
        value_heads: 16,
        linear_dim: 128,
        vocab: 248_320,
        words: 248_044,
        tied: true,
        sections: [11, 11, 10],
        tower: [1024, 4096, 24, 16, 48],
    },
    Size {
        name: "0.8b",
        hidden: 1024,
        intermediate: 3584,
        layers: 24,
        heads: 8,
        kv_heads: 2,
        head_dim: 256,
        key_heads: 16,
        value_heads: 16,
        linear_dim: 128,
        vocab: 248_320,
        words: 248_044,
        tied: true,
        sections: [11, 11, 10],
        tower: [768, 3072, 12, 12, 48],
    },
    Size {
        name: "4b",
        hidden: 2560,
        intermediate: 9216,
        layers: 32,
        heads: 16,
        kv_heads: 4,
        head_dim: 256,
        key_heads: 16,
        value_heads: 32,
        linear_dim: 128,
        vocab: 248_320,
        words: 248_044,
        tied: true,
        sections: [11, 11, 10],
        tower: [1024, 4096, 24, 16, 48],
    },
    Size {
        name: "9b",
        hidden: 4096,
        intermediate: 12_288,
        layers: 32,
        heads: 16,
        kv_heads: 4,
        head_dim: 256,
        key_heads: 16,
        value_heads: 32,
        linear_dim: 128,
        vocab: 248_320,
        words: 248_044,
        tied: false,
        sections: [11, 11, 10],
        tower: [1152, 4304, 27, 16, 48],
    },
    Size {
        name: "tiny",
        hidden: 512,
        intermediate: 1024,
        layers: 4,
        heads: 8,
        kv_heads: 2,
        head_dim: 64,
        key_heads: 8,
        value_heads: 8,
        linear_dim: 64,
        vocab: 2048,
        words: 2000,
        tied: true,
        sections: [3, 3, 2],
        tower: [512, 2048, 2, 8, 24],
    },
];

/// Every so many layers, one has attention.
const INTERVAL: usize = 4;

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
    let [width, mlp, _, heads, side] = whole.tower;
    let part = Size { vocab: 2048, words: 2000, tower: [width, mlp, 1, heads, side], ..whole };
    let written = match sample {
        Sample::Whole => write_bundle(out, &whole, whole.layers, INTERVAL),
        Sample::Linear => write_bundle(out, &part, 2, 3),
        Sample::Attention => write_bundle(out, &part, 2, 1),
        Sample::Tiny => write_bundle(out, &tiny, tiny.layers, INTERVAL),
    };
    written.map(drop)
}

const USAGE: &str = "usage: cargo xtask synth-bundle <out> [--size 2b|0.8b|4b|9b|tiny] [--layers N]";

/// Writes the bundle that the arguments ask for.
pub(crate) fn run(arguments: &[OsString]) -> Result<bool, String> {
    let (out, size, layers) = parse(arguments)?;
    match write_bundle(&out, size, layers, INTERVAL) {
        Ok(bytes) => {
            eprintln!("{}: {} with {layers} layers, {bytes} bytes of tensors", out.display(), size.name);
            Ok(true)
        }
        Err(error) => {
            eprintln!("synth-bundle: {error}");
            Ok(false)
        }
    }
}

fn parse(arguments: &[OsString]) -> Result<(PathBuf, &'static Size, usize), String> {
    use lexopt::prelude::*;
    let usage = |error: lexopt::Error| format!("{error}; {USAGE}");
    let mut parser = lexopt::Parser::from_args(arguments.iter().cloned());
    let (mut out, mut size, mut layers) = (None, &SIZES[0], None);
    while let Some(argument) = parser.next().map_err(usage)? {
        match argument {
            Long("size") => {
                let name = parser.value().and_then(|value| value.string()).map_err(usage)?;
                let found = SIZES.iter().find(|size| size.name == name);
                size = found.ok_or_else(|| format!("no size `{name}`; {USAGE}"))?;
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
    Ok((out, size, layers.unwrap_or(size.layers)))
}

/// Writes everything and has the reader check it. What was written of a failed bundle is removed.
fn write_bundle(out: &Path, size: &Size, layers: usize, interval: usize) -> Result<u64, String> {
    let nothing = Value::Null;
    let options = ExportOptions::new(PathBuf::new(), PathBuf::new());
    let generation = json!({"eos_token_id": [size.words + 2, size.words]});
    let manifest = manifest_for(&config(size, layers, interval), &generation, &nothing, &options)
        .map_err(|error| error.to_string())?;
    fs::create_dir(out).map_err(|error| format!("cannot create {}: {error}", out.display()))?;
    let written = files(out, size, &manifest).map_err(|error| format!("cannot write {}: {error}", out.display()));
    let checked = written.and_then(|bytes| Bundle::open(out).map(|_| bytes).map_err(|error| error.to_string()));
    if checked.is_err() {
        let _ = fs::remove_dir_all(out);
    }
    checked
}

fn config(size: &Size, layers: usize, interval: usize) -> Value {
    let [width, mlp, depth, heads, side] = size.tower;
    json!({
        "model_type": "qwen3_5",
        "tie_word_embeddings": size.tied,
        "image_token_id": size.words + 12,
        "vision_start_token_id": size.words + 9,
        "vision_end_token_id": size.words + 10,
        "text_config": {
            "hidden_size": size.hidden, "intermediate_size": size.intermediate, "num_hidden_layers": layers,
            "full_attention_interval": interval, "vocab_size": size.vocab, "rms_norm_eps": 1e-6,
            "num_attention_heads": size.heads, "num_key_value_heads": size.kv_heads, "head_dim": size.head_dim,
            "linear_num_key_heads": size.key_heads, "linear_num_value_heads": size.value_heads,
            "linear_key_head_dim": size.linear_dim, "linear_value_head_dim": size.linear_dim,
            "linear_conv_kernel_dim": 4,
            "rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.25, "mrope_section": size.sections},
        },
        "vision_config": {
            "hidden_size": width, "intermediate_size": mlp, "depth": depth, "num_heads": heads, "patch_size": 16,
            "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": size.hidden,
            "num_position_embeddings": side * side,
        },
    })
}

fn files(out: &Path, size: &Size, manifest: &Manifest) -> io::Result<u64> {
    fs::create_dir(out.join("kernels"))?;
    let write = |name: &str, bytes: &[u8]| fs::write(out.join(name), bytes);
    let mut kernel = |name: &str, bytes: &[u8]| write(name, bytes).map_err(|error| ExportError(error.to_string()));
    write_kernels(manifest, &mut kernel).map_err(io::Error::other)?;
    write("tokenizer.json", tokenizer(size.words).to_string().as_bytes())?;
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

/// The added tokens in the order of the real tokenizer; those from `<think>` on show in decoded text.
const ADDED: [&str; 26] = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
];
const SHOWN: [&str; 6] = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"];

/// A byte-level tokenizer with as many words as the real one: bytes, then pairs of letters, then triples.
fn tokenizer(words: usize) -> Value {
    let mut spare = 256_u32..;
    let symbols: Vec<char> = (0..=255_u8)
        .map(|byte| match byte {
            // Bytes that print stand for themselves, the others for the characters from 256 on.
            33..=126 | 161..=172 | 174..=255 => char::from(byte),
            _ => spare.next().and_then(char::from_u32).unwrap_or('\u{fffd}'),
        })
        .collect();
    let mut vocab: Map<String, Value> = Map::new();
    for (byte, symbol) in symbols.iter().enumerate() {
        vocab.insert(symbol.to_string(), json!(byte));
    }
    let letters: Vec<String> = ('a'..='z').chain('A'..='Z').chain('\u{100}'..='\u{120}').map(String::from).collect();
    let mut merges: Vec<[String; 2]> = Vec::new();
    let mut pairs = Vec::new();
    'full: for left in [true, false] {
        let heads = if left { letters.clone() } else { std::mem::take(&mut pairs) };
        for head in &heads {
            for tail in &letters {
                if vocab.len() == words {
                    break 'full;
                }
                let word = format!("{head}{tail}");
                vocab.insert(word.clone(), json!(vocab.len()));
                merges.push([head.clone(), tail.clone()]);
                if left {
                    pairs.push(word);
                }
            }
        }
    }
    let added = ADDED.iter().enumerate().map(|(index, content)| {
        json!({"id": words + index, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": !SHOWN.contains(content)})
    });
    let split = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
        ]},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab,
                  "merges": merges},
    })
}
