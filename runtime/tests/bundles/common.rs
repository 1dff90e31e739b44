//! A small checkpoint with random weights in a folder of its own.

use std::fs;
use std::path::{Path, PathBuf};

use half::bf16;
use runtime::bundle::LayerKind;
use serde_json::{Map, Value, json};

/// Widths of the vision tower.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tower {
    pub(crate) hidden: usize,
    pub(crate) intermediate: usize,
    pub(crate) heads: usize,
}

/// Widths of a model.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    pub(crate) layers: Vec<LayerKind>,
    pub(crate) hidden: usize,
    pub(crate) intermediate: usize,
    pub(crate) vocab: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) key_heads: usize,
    pub(crate) value_heads: usize,
    pub(crate) linear_dim: usize,
    pub(crate) tied: bool,
    pub(crate) vision: Option<Tower>,
}

impl Shape {
    /// As the 2B: equal head counts, tied, a tower of 512.
    pub(crate) fn plain() -> Self {
        Self {
            layers: vec![LayerKind::Linear, LayerKind::Attention],
            hidden: 512,
            intermediate: 512,
            vocab: 320,
            heads: 8,
            kv_heads: 2,
            head_dim: 64,
            key_heads: 8,
            value_heads: 8,
            linear_dim: 64,
            tied: true,
            vision: Some(Tower { hidden: 512, intermediate: 2048, heads: 8 }),
        }
    }

    /// As `plain` with a smaller tower, for what is not about weights.
    pub(crate) fn light() -> Self {
        Self { vision: Some(Tower { hidden: 128, intermediate: 256, heads: 2 }), ..Self::plain() }
    }

    /// As the 4B and 9B: grouped value heads, `o` wider than D, untied, widths that need padding, a short last slice.
    pub(crate) fn grouped() -> Self {
        Self {
            intermediate: 800,
            vocab: 310,
            kv_heads: 4,
            head_dim: 128,
            key_heads: 4,
            linear_dim: 128,
            tied: false,
            vision: Some(Tower { hidden: 128, intermediate: 208, heads: 2 }),
            ..Self::plain()
        }
    }
}

/// Tensors by name: shape and values.
pub(crate) struct Weights(pub(crate) Vec<(String, Vec<usize>, Vec<bf16>)>);

impl Weights {
    pub(crate) fn values(&self, name: &str) -> Vec<f32> {
        let found = self.0.iter().find(|(other, ..)| other == name).unwrap_or_else(|| panic!("no tensor {name}"));
        found.2.iter().map(|value| value.to_f32()).collect()
    }
}

/// A checkpoint on disk. The folder is removed when it is dropped.
pub(crate) struct Checkpoint {
    pub(crate) folder: PathBuf,
    pub(crate) dir: PathBuf,
    pub(crate) weights: Weights,
}

impl Drop for Checkpoint {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A fresh, empty folder.
pub(crate) fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// Values about as large as those of a trained model, different for each name.
fn random(name: &str, count: usize) -> Vec<bf16> {
    let mut state = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32
    };
    (0..count).map(|_| bf16::from_f32((uniform() + uniform() + uniform() - 1.5) * 0.05)).collect()
}

impl Checkpoint {
    pub(crate) fn new(name: &str, shape: &Shape) -> Self {
        let folder = folder(name);
        let dir = folder.join("checkpoint");
        fs::create_dir(&dir).unwrap();
        let weights = shapes(shape).into_iter().map(|(name, shape)| {
            let values = random(&name, shape.iter().product());
            (name, shape, values)
        });
        let checkpoint = Self { folder, dir, weights: Weights(weights.collect()) };
        Self::write_config(&checkpoint.dir, shape);
        fs::write(checkpoint.dir.join("tokenizer.json"), tokenizer().to_string()).unwrap();
        checkpoint.write();
        checkpoint
    }

    pub(crate) fn write(&self) {
        self.write_as("BF16", |value| bf16::from_f32(value).to_le_bytes().to_vec());
    }

    /// Writes the weights as one file of this element type.
    pub(crate) fn write_as(&self, dtype: &str, encode: fn(f32) -> Vec<u8>) {
        let _ = fs::remove_file(self.dir.join("model.safetensors.index.json"));
        let tensors: Vec<_> = self.weights.0.iter().collect();
        safetensors(&self.dir.join("model.safetensors"), &tensors, dtype, encode);
    }

    /// Writes the weights as two shards and an index.
    pub(crate) fn split_in_two(&self) {
        fs::remove_file(self.dir.join("model.safetensors")).unwrap();
        let mut map = Map::new();
        for (number, file) in ["model-1.safetensors", "model-2.safetensors"].into_iter().enumerate() {
            let tensors: Vec<_> = self.weights.0.iter().skip(number).step_by(2).collect();
            map.extend(tensors.iter().map(|(name, ..)| (name.clone(), Value::from(file))));
            safetensors(&self.dir.join(file), &tensors, "BF16", |value| bf16::from_f32(value).to_le_bytes().to_vec());
        }
        let index = json!({"metadata": {}, "weight_map": map});
        fs::write(self.dir.join("model.safetensors.index.json"), index.to_string()).unwrap();
    }

    /// A folder of made-up reference runs of every form.
    pub(crate) fn references(&self) -> PathBuf {
        let dir = self.folder.join("references");
        fs::create_dir(&dir).unwrap();
        let ints = |values: &[i32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        let floats = |count: usize| (0..count).flat_map(|value| (value as f32).to_le_bytes()).collect::<Vec<u8>>();
        raw_safetensors(
            &dir.join("case.safetensors"),
            &[
                ("ids", "I32", &[3], ints(&[1, 2, 3])),
                ("tokens", "I32", &[2], ints(&[5, 6])),
                ("top_ids", "I32", &[2, 2], ints(&[5, 1, 6, 2])),
                ("top_logits", "F32", &[2, 2], floats(4)),
                ("positions", "I32", &[3, 3], ints(&[0, 0, 0, 1, 1, 1, 2, 2, 2])),
            ],
        );
        raw_safetensors(
            &dir.join("image.safetensors"),
            &[
                ("rgb", "U8", &[2, 3, 3], vec![7; 18]),
                ("grid", "I32", &[2], ints(&[2, 2])),
                ("patches", "F32", &[4, 768], floats(4 * 768)),
                ("vision", "F32", &[1, 512], floats(512)),
            ],
        );
        let case = |name: &str, images: &[&str], system: Option<&str>| {
            json!({"name": name, "file": "case.safetensors", "message": "Grüße\n", "system": system,
                   "thinking": true, "images": images})
        };
        let index = json!({
            "images": {"a": {"file": "image.safetensors"}},
            "cases": [case("plain", &[], None), case("image", &["a"], None), case("two", &["a", "a"], None),
                      case("system", &[], Some(" Be brief. "))],
            "tokenizer": [{"text": "", "ids": []}, {"text": "xy", "ids": [120, 121]}],
        });
        fs::write(dir.join("index.json"), index.to_string()).unwrap();
        dir
    }

    pub(crate) fn write_config(dir: &Path, shape: &Shape) {
        let layers: Vec<&str> = shape
            .layers
            .iter()
            .map(|kind| if *kind == LayerKind::Linear { "linear_attention" } else { "full_attention" })
            .collect();
        let text = json!({
            "model_type": "qwen3_5_text", "hidden_size": shape.hidden, "intermediate_size": shape.intermediate,
            "num_hidden_layers": layers.len(), "layer_types": layers, "vocab_size": shape.vocab,
            "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads, "head_dim": shape.head_dim,
            "linear_num_key_heads": shape.key_heads, "linear_num_value_heads": shape.value_heads,
            "linear_key_head_dim": shape.linear_dim, "linear_value_head_dim": shape.linear_dim,
            "linear_conv_kernel_dim": 4, "rms_norm_eps": 1e-6, "eos_token_id": 300,
            "rope_parameters": {"rope_theta": 1e7, "partial_rotary_factor": 0.25, "rope_type": "default"},
        });
        let mut config = json!({
            "model_type": "qwen3_5", "tie_word_embeddings": shape.tied, "text_config": text, "image_token_id": 304,
            "vision_start_token_id": 302, "vision_end_token_id": 303,
        });
        if let Some(vision) = shape.vision {
            config["vision_config"] = json!({
                "depth": 1, "hidden_size": vision.hidden, "intermediate_size": vision.intermediate,
                "num_heads": vision.heads, "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2,
                "out_hidden_size": shape.hidden, "num_position_embeddings": 16,
            });
        }
        let write = |name: &str, value: &Value| fs::write(dir.join(name), value.to_string()).unwrap();
        write("config.json", &config);
        write("generation_config.json", &json!({"eos_token_id": [302, 300]}));
        write("preprocessor_config.json", &json!({"size": {"shortest_edge": 4096, "longest_edge": 65536}}));
    }
}

/// A byte-level tokenizer of Qwen3.5's sort: a token a byte.
fn tokenizer() -> Value {
    let mut vocab = Map::new();
    let mut spare = 256..;
    for byte in 0..=255_u8 {
        // Bytes that print stand for themselves, the others for the characters from 256 on.
        let symbol = match byte {
            33..=126 | 161..=172 | 174..=255 => char::from(byte),
            _ => char::from_u32(spare.next().unwrap()).unwrap(),
        };
        vocab.insert(symbol.to_string(), json!(byte));
    }
    let split = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    json!({
        "version": "1.0", "added_tokens": [], "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
        ]},
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    })
}

/// Names and shapes of a checkpoint's tensors.
fn shapes(shape: &Shape) -> Vec<(String, Vec<usize>)> {
    let (d, i) = (shape.hidden, shape.intermediate);
    let (key, value) = (shape.key_heads * shape.linear_dim, shape.value_heads * shape.linear_dim);
    let mut all: Vec<(String, Vec<usize>)> = Vec::new();
    let mut put = |name: String, shape: &[usize]| all.push((name, shape.to_vec()));
    put("model.language_model.embed_tokens.weight".to_owned(), &[shape.vocab, d]);
    put("model.language_model.norm.weight".to_owned(), &[d]);
    if !shape.tied {
        put("lm_head.weight".to_owned(), &[shape.vocab, d]);
    }
    for (index, kind) in shape.layers.iter().enumerate() {
        let mut put = |name: &str, shape: &[usize]| put(format!("model.language_model.layers.{index}.{name}"), shape);
        put("input_layernorm.weight", &[d]);
        put("post_attention_layernorm.weight", &[d]);
        put("mlp.gate_proj.weight", &[i, d]);
        put("mlp.up_proj.weight", &[i, d]);
        put("mlp.down_proj.weight", &[d, i]);
        if *kind == LayerKind::Linear {
            put("linear_attn.in_proj_qkv.weight", &[2 * key + value, d]);
            put("linear_attn.in_proj_z.weight", &[value, d]);
            put("linear_attn.in_proj_a.weight", &[shape.value_heads, d]);
            put("linear_attn.in_proj_b.weight", &[shape.value_heads, d]);
            put("linear_attn.out_proj.weight", &[d, value]);
            put("linear_attn.conv1d.weight", &[2 * key + value, 1, 4]);
            put("linear_attn.A_log", &[shape.value_heads]);
            put("linear_attn.dt_bias", &[shape.value_heads]);
            put("linear_attn.norm.weight", &[shape.linear_dim]);
        } else {
            put("self_attn.q_proj.weight", &[2 * shape.heads * shape.head_dim, d]);
            put("self_attn.k_proj.weight", &[shape.kv_heads * shape.head_dim, d]);
            put("self_attn.v_proj.weight", &[shape.kv_heads * shape.head_dim, d]);
            put("self_attn.o_proj.weight", &[d, shape.heads * shape.head_dim]);
            put("self_attn.q_norm.weight", &[shape.head_dim]);
            put("self_attn.k_norm.weight", &[shape.head_dim]);
        }
    }
    if let Some(vision) = shape.vision {
        let (v, vi) = (vision.hidden, vision.intermediate);
        let mut linear = |name: &str, shape: &[usize]| {
            put(format!("model.visual.{name}.weight"), shape);
            put(format!("model.visual.{name}.bias"), &shape[..1]);
        };
        linear("patch_embed.proj", &[v, 3, 2, 16, 16]);
        linear("blocks.0.norm1", &[v]);
        linear("blocks.0.norm2", &[v]);
        linear("blocks.0.attn.qkv", &[3 * v, v]);
        linear("blocks.0.attn.proj", &[v, v]);
        linear("blocks.0.mlp.linear_fc1", &[vi, v]);
        linear("blocks.0.mlp.linear_fc2", &[v, vi]);
        linear("merger.norm", &[v]);
        linear("merger.linear_fc1", &[4 * v, 4 * v]);
        linear("merger.linear_fc2", &[d, 4 * v]);
        put("model.visual.pos_embed.weight".to_owned(), &[16, v]);
    }
    all
}

fn safetensors(path: &Path, tensors: &[&(String, Vec<usize>, Vec<bf16>)], dtype: &str, encode: fn(f32) -> Vec<u8>) {
    let encoded: Vec<Vec<u8>> =
        tensors.iter().map(|(_, _, values)| values.iter().flat_map(|value| encode(value.to_f32())).collect()).collect();
    let entries: Vec<(&str, &str, &[usize], Vec<u8>)> = tensors
        .iter()
        .zip(encoded)
        .map(|((name, shape, _), bytes)| (name.as_str(), dtype, shape.as_slice(), bytes))
        .collect();
    raw_safetensors(path, &entries);
}

fn raw_safetensors(path: &Path, tensors: &[(&str, &str, &[usize], Vec<u8>)]) {
    let mut header = Map::new();
    let mut data: Vec<u8> = Vec::new();
    for (name, dtype, shape, bytes) in tensors {
        let start = data.len();
        data.extend(bytes);
        header.insert((*name).to_owned(), json!({"dtype": dtype, "shape": shape, "data_offsets": [start, data.len()]}));
    }
    let header = Value::Object(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(data);
    fs::write(path, file).unwrap();
}
