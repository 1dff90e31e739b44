//! A tiny Qwen3.5 checkpoint with random weights, written in Hugging Face's form, and the bundle that our exporter makes
//! of it. It talks gibberish through the very same path as a real one: two layers, a vision tower of one block.

use runtime::export::{ExportOptions, Summary, VisionExport, export};
use serde_json::{Map, Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};

const D: usize = 512;
const INTERMEDIATE: usize = 512;
const HEADS: usize = 8;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 64;
const CONV: usize = 4;
const VISION: usize = 512;
const VISION_INTERMEDIATE: usize = 2048;
const POSITIONS: usize = 64;
const VOCAB: usize = 320;

/// Added tokens in the real order, from this id on.
const FIRST_SPECIAL: usize = 260;
const SPECIAL: [&str; 26] = [
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
/// From here on, added tokens show in decoded text: `<think>` and `</think>`.
const FIRST_SHOWN: usize = 24;

const MERGES: [(&str, &str); 4] = [("h", "e"), ("Ġ", "t"), ("Ġt", "he"), ("i", "n")];
const SPLIT: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// What marks the device image of a kernel that only the software NPU runs.
pub const MARKER: &[u8] = b"qwen35-reference";

/// Writes the checkpoint and exports it; both lie in `folder`, which is emptied first. The bundle is `folder/bundle`.
///
/// # Errors
/// What the file system or the exporter refused.
pub fn bundle(folder: &Path) -> Result<PathBuf, String> {
    exported(folder, VisionExport::W8, None)
}

/// As [`bundle`], without the vision tower, and with a head of two parts, which do not depend on each other.
///
/// # Errors
/// As [`bundle`].
pub fn text_bundle(folder: &Path) -> Result<PathBuf, String> {
    exported(folder, VisionExport::None, Some(2))
}

fn exported(folder: &Path, vision: VisionExport, head_parts: Option<usize>) -> Result<PathBuf, String> {
    let _ = std::fs::remove_dir_all(folder);
    let checkpoint = folder.join("checkpoint");
    self::checkpoint(&checkpoint).map_err(|error| format!("{}: {error}", checkpoint.display()))?;
    let out = folder.join("bundle");
    let options = ExportOptions { vision, head_parts, ..ExportOptions::new(checkpoint, out.clone()) };
    let summary: Summary =
        export(&options, &mut |_| std::ops::ControlFlow::Continue(())).map_err(|error| format!("export: {error}"))?;
    Ok(summary.out)
}

/// Writes the checkpoint's files into `folder`.
///
/// # Errors
/// What the file system refused.
pub fn checkpoint(folder: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let write = |name: &str, value: &Value| std::fs::write(folder.join(name), format!("{value:#}\n"));
    write("config.json", &config())?;
    write("generation_config.json", &json!({"eos_token_id": [FIRST_SPECIAL + 2, FIRST_SPECIAL], "do_sample": false}))?;
    write("preprocessor_config.json", &preprocessor())?;
    write("tokenizer.json", &tokenizer())?;
    weights(&folder.join("model.safetensors"))
}

fn config() -> Value {
    json!({
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "image_token_id": FIRST_SPECIAL + 12,
        "video_token_id": FIRST_SPECIAL + 13,
        "vision_start_token_id": FIRST_SPECIAL + 9,
        "vision_end_token_id": FIRST_SPECIAL + 10,
        "tie_word_embeddings": true,
        "dtype": "bfloat16",
        "text_config": {
            "attention_bias": false,
            "head_dim": HEAD_DIM,
            "hidden_act": "silu",
            "hidden_size": D,
            "intermediate_size": INTERMEDIATE,
            "layer_types": ["linear_attention", "full_attention"],
            "linear_conv_kernel_dim": CONV,
            "linear_key_head_dim": HEAD_DIM,
            "linear_num_key_heads": HEADS,
            "linear_num_value_heads": HEADS,
            "linear_value_head_dim": HEAD_DIM,
            "max_position_embeddings": 4096,
            "model_type": "qwen3_5_text",
            "num_attention_heads": HEADS,
            "num_hidden_layers": 2,
            "num_key_value_heads": KV_HEADS,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {
                "mrope_interleaved": true,
                "mrope_section": [3, 3, 2],
                "partial_rotary_factor": 0.25,
                "rope_theta": 10_000_000.0,
                "rope_type": "default"
            },
            "tie_word_embeddings": true,
            "eos_token_id": FIRST_SPECIAL,
            "vocab_size": VOCAB
        },
        "vision_config": {
            "depth": 1,
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_size": VISION,
            "in_channels": 3,
            "intermediate_size": VISION_INTERMEDIATE,
            "model_type": "qwen3_5_vision",
            "num_heads": HEADS,
            "num_position_embeddings": POSITIONS,
            "out_hidden_size": D,
            "patch_size": 16,
            "rope_parameters": {"rope_theta": 10_000.0, "rope_type": "axial"},
            "spatial_merge_size": 2,
            "temporal_patch_size": 2
        }
    })
}

fn preprocessor() -> Value {
    json!({
        "size": {"longest_edge": 1_048_576, "shortest_edge": 65_536},
        "patch_size": 16,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "rescale_factor": 1.0 / 255.0,
        "resample": 3,
        "do_convert_rgb": true,
        "processor_class": "Qwen3VLProcessor",
        "image_processor_type": "Qwen2VLImageProcessorFast"
    })
}

/// GPT-2's name for a byte: itself where it prints, else a letter from U+0100 on.
fn byte_symbol(byte: u8) -> char {
    let prints = |b: u8| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    if prints(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|b| !prints(*b)).count();
    char::from_u32(0x100 + before as u32).unwrap_or('?')
}

fn tokenizer() -> Value {
    let mut vocab = Map::new();
    for byte in 0..=u8::MAX {
        vocab.insert(byte_symbol(byte).to_string(), json!(byte));
    }
    for (index, (left, right)) in MERGES.iter().enumerate() {
        vocab.insert(format!("{left}{right}"), json!(256 + index));
    }
    let added: Vec<Value> = SPECIAL
        .iter()
        .enumerate()
        .map(|(index, content)| {
            json!({
                "id": FIRST_SPECIAL + index, "content": content, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": index < FIRST_SHOWN
            })
        })
        .collect();
    let merges: Vec<[&str; 2]> = MERGES.iter().map(|(left, right)| [*left, *right]).collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false}
        ]},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": merges
        }
    })
}

/// Every tensor with its shape.
fn shapes() -> Vec<(String, Vec<usize>)> {
    let mut all = Vec::new();
    let mut put = |name: String, shape: &[usize]| all.push((name, shape.to_vec()));
    let (heads, key) = (HEADS * HEAD_DIM, HEADS * HEAD_DIM);
    let text = "model.language_model";
    put(format!("{text}.embed_tokens.weight"), &[VOCAB, D]);
    put(format!("{text}.norm.weight"), &[D]);
    for layer in 0..2 {
        let l = format!("{text}.layers.{layer}");
        put(format!("{l}.input_layernorm.weight"), &[D]);
        put(format!("{l}.post_attention_layernorm.weight"), &[D]);
        put(format!("{l}.mlp.gate_proj.weight"), &[INTERMEDIATE, D]);
        put(format!("{l}.mlp.up_proj.weight"), &[INTERMEDIATE, D]);
        put(format!("{l}.mlp.down_proj.weight"), &[D, INTERMEDIATE]);
        if layer == 0 {
            let m = format!("{l}.linear_attn");
            put(format!("{m}.in_proj_qkv.weight"), &[3 * key, D]);
            put(format!("{m}.in_proj_z.weight"), &[key, D]);
            put(format!("{m}.in_proj_a.weight"), &[HEADS, D]);
            put(format!("{m}.in_proj_b.weight"), &[HEADS, D]);
            put(format!("{m}.conv1d.weight"), &[3 * key, 1, CONV]);
            put(format!("{m}.A_log"), &[HEADS]);
            put(format!("{m}.dt_bias"), &[HEADS]);
            put(format!("{m}.norm.weight"), &[HEAD_DIM]);
            put(format!("{m}.out_proj.weight"), &[D, key]);
        } else {
            let m = format!("{l}.self_attn");
            put(format!("{m}.q_proj.weight"), &[2 * heads, D]);
            put(format!("{m}.k_proj.weight"), &[KV_HEADS * HEAD_DIM, D]);
            put(format!("{m}.v_proj.weight"), &[KV_HEADS * HEAD_DIM, D]);
            put(format!("{m}.o_proj.weight"), &[D, heads]);
            put(format!("{m}.q_norm.weight"), &[HEAD_DIM]);
            put(format!("{m}.k_norm.weight"), &[HEAD_DIM]);
        }
    }
    let vision = "model.visual";
    put(format!("{vision}.patch_embed.proj.weight"), &[VISION, 3, 2, 16, 16]);
    put(format!("{vision}.patch_embed.proj.bias"), &[VISION]);
    put(format!("{vision}.pos_embed.weight"), &[POSITIONS, VISION]);
    let mut linear = |name: String, out: usize, inner: usize| {
        put(format!("{name}.weight"), &[out, inner]);
        put(format!("{name}.bias"), &[out]);
    };
    let b = format!("{vision}.blocks.0");
    linear(format!("{b}.attn.qkv"), 3 * VISION, VISION);
    linear(format!("{b}.attn.proj"), VISION, VISION);
    linear(format!("{b}.mlp.linear_fc1"), VISION_INTERMEDIATE, VISION);
    linear(format!("{b}.mlp.linear_fc2"), VISION, VISION_INTERMEDIATE);
    linear(format!("{vision}.merger.linear_fc1"), 4 * VISION, 4 * VISION);
    linear(format!("{vision}.merger.linear_fc2"), D, 4 * VISION);
    for norm in [format!("{b}.norm1"), format!("{b}.norm2"), format!("{vision}.merger.norm")] {
        put(format!("{norm}.weight"), &[VISION]);
        put(format!("{norm}.bias"), &[VISION]);
    }
    all
}

/// A value by name: random in general, around one where the tensor is a factor.
fn value(name: &str, random: f32) -> f32 {
    let norm = name.contains("norm") && name.ends_with("weight");
    let plain = norm && (name.contains("visual") || name.contains("linear_attn"));
    if plain {
        1.0 + 0.1 * random
    } else if name.ends_with("A_log") {
        random.abs()
    } else if norm || name.ends_with("bias") {
        0.1 * random
    } else if name.contains("conv1d") {
        0.5 * random
    } else if name.contains("attn") {
        // What was said before has to outweigh the last word.
        0.2 * random
    } else {
        0.08 * random
    }
}

/// `safetensors`: the header's length, the header, the tensors one after another. All bf16, but what the real
/// checkpoints keep in f32.
fn weights(path: &Path) -> std::io::Result<()> {
    let mut header = Map::new();
    let mut data: Vec<u8> = Vec::new();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    for (name, shape) in shapes() {
        let start = data.len();
        let f32 = name.ends_with("A_log") || name.ends_with("linear_attn.norm.weight");
        for _ in 0..shape.iter().product() {
            let value = value(&name, next());
            if f32 {
                data.extend(value.to_le_bytes());
            } else {
                data.extend(half::bf16::from_f32(value).to_le_bytes());
            }
        }
        let dtype = if f32 { "F32" } else { "BF16" };
        header.insert(name, json!({"dtype": dtype, "shape": shape, "data_offsets": [start, data.len()]}));
    }
    let mut header = Value::Object(header).to_string();
    // Padded, so that the tensors start at a multiple of 8.
    header.extend(std::iter::repeat_n(' ', header.len().next_multiple_of(8) - header.len()));
    let mut file = std::fs::File::create(path)?;
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    file.write_all(&data)
}
