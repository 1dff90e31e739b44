//! The tensors of a checkpoint, and files with random values for them.

use super::Size;
use serde_json::{Map, Value, json};
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// A tensor with more values than this repeats a stretch of random ones: neither time nor memory goes into it.
const LONGEST: usize = 8 << 20;
/// A prime, so that no shape falls into step with the stretch.
const STRETCH: usize = 999_983;

/// Every tensor with its shape.
fn shapes(size: &Size) -> Vec<(String, Vec<usize>)> {
    let mut all = Vec::new();
    let mut put = |name: String, shape: &[usize]| all.push((name, shape.to_vec()));
    let (d, i) = (size.hidden, size.intermediate);
    let (heads, kv) = (size.heads * size.head_dim, size.kv_heads * size.head_dim);
    let (key, value) = (size.key_heads * size.linear_dim, size.value_heads * size.linear_dim);
    let text = "model.language_model";
    put(format!("{text}.embed_tokens.weight"), &[size.vocab, d]);
    put(format!("{text}.norm.weight"), &[d]);
    if !size.tied {
        put("lm_head.weight".to_owned(), &[size.vocab, d]);
    }
    for layer in 0..size.layers {
        let l = format!("{text}.layers.{layer}");
        put(format!("{l}.input_layernorm.weight"), &[d]);
        put(format!("{l}.post_attention_layernorm.weight"), &[d]);
        put(format!("{l}.mlp.gate_proj.weight"), &[i, d]);
        put(format!("{l}.mlp.up_proj.weight"), &[i, d]);
        put(format!("{l}.mlp.down_proj.weight"), &[d, i]);
        if (layer + 1).is_multiple_of(size.interval) {
            let m = format!("{l}.self_attn");
            put(format!("{m}.q_proj.weight"), &[2 * heads, d]);
            put(format!("{m}.k_proj.weight"), &[kv, d]);
            put(format!("{m}.v_proj.weight"), &[kv, d]);
            put(format!("{m}.o_proj.weight"), &[d, heads]);
            put(format!("{m}.q_norm.weight"), &[size.head_dim]);
            put(format!("{m}.k_norm.weight"), &[size.head_dim]);
        } else {
            let m = format!("{l}.linear_attn");
            put(format!("{m}.in_proj_qkv.weight"), &[2 * key + value, d]);
            put(format!("{m}.in_proj_z.weight"), &[value, d]);
            put(format!("{m}.in_proj_a.weight"), &[size.value_heads, d]);
            put(format!("{m}.in_proj_b.weight"), &[size.value_heads, d]);
            put(format!("{m}.conv1d.weight"), &[2 * key + value, 1, 4]);
            put(format!("{m}.A_log"), &[size.value_heads]);
            put(format!("{m}.dt_bias"), &[size.value_heads]);
            put(format!("{m}.norm.weight"), &[size.linear_dim]);
            put(format!("{m}.out_proj.weight"), &[d, value]);
        }
    }
    let (v, vi) = (size.tower.hidden, size.tower.intermediate);
    let vision = "model.visual";
    put(format!("{vision}.patch_embed.proj.weight"), &[v, 3, 2, 16, 16]);
    put(format!("{vision}.patch_embed.proj.bias"), &[v]);
    put(format!("{vision}.pos_embed.weight"), &[size.tower.side * size.tower.side, v]);
    let mut linear = |name: String, out: usize, inner: usize| {
        put(format!("{name}.weight"), &[out, inner]);
        put(format!("{name}.bias"), &[out]);
    };
    for block in 0..size.tower.depth {
        let b = format!("{vision}.blocks.{block}");
        linear(format!("{b}.attn.qkv"), 3 * v, v);
        linear(format!("{b}.attn.proj"), v, v);
        linear(format!("{b}.mlp.linear_fc1"), vi, v);
        linear(format!("{b}.mlp.linear_fc2"), v, vi);
    }
    linear(format!("{vision}.merger.linear_fc1"), 4 * v, 4 * v);
    linear(format!("{vision}.merger.linear_fc2"), d, 4 * v);
    let norms = (0..size.tower.depth).flat_map(|b| [1, 2].map(|n| format!("{vision}.blocks.{b}.norm{n}")));
    for norm in norms.chain([format!("{vision}.merger.norm")]) {
        put(format!("{norm}.weight"), &[v]);
        put(format!("{norm}.bias"), &[v]);
    }
    // A head for speculation comes along with every published checkpoint.
    put("mtp.norm.weight".to_owned(), &[d]);
    put("mtp.pre_fc_norm_embedding.weight".to_owned(), &[d]);
    put("mtp.pre_fc_norm_hidden.weight".to_owned(), &[d]);
    put("mtp.fc.weight".to_owned(), &[d, 2 * d]);
    let l = "mtp.layers.0";
    put(format!("{l}.input_layernorm.weight"), &[d]);
    put(format!("{l}.post_attention_layernorm.weight"), &[d]);
    put(format!("{l}.mlp.gate_proj.weight"), &[i, d]);
    put(format!("{l}.mlp.up_proj.weight"), &[i, d]);
    put(format!("{l}.mlp.down_proj.weight"), &[d, i]);
    put(format!("{l}.self_attn.q_proj.weight"), &[2 * heads, d]);
    put(format!("{l}.self_attn.k_proj.weight"), &[kv, d]);
    put(format!("{l}.self_attn.v_proj.weight"), &[kv, d]);
    put(format!("{l}.self_attn.o_proj.weight"), &[d, heads]);
    put(format!("{l}.self_attn.q_norm.weight"), &[size.head_dim]);
    put(format!("{l}.self_attn.k_norm.weight"), &[size.head_dim]);
    all
}

/// What a tensor's values are, by its name: this much, and a random number times that much. Random in general, around
/// one where the tensor is a factor. `width` is what the tensor's part of the model sums over.
fn values(name: &str, width: usize) -> (f32, f32) {
    let norm = name.contains("norm") && name.ends_with("weight");
    let plain = norm && (name.contains("visual") || name.contains("linear_attn"));
    let scale = (512.0 / width as f32).sqrt();
    if plain {
        (1.0, 0.1)
    } else if name.ends_with("A_log") {
        (0.5, 0.5)
    } else if norm || name.ends_with("bias") {
        (0.0, 0.1)
    } else if name.contains("conv1d") {
        (0.0, 0.5)
    } else if name.contains("attn") {
        // What was said before has to outweigh the last word.
        (0.0, 0.2 * scale)
    } else {
        (0.0, 0.08 * scale)
    }
}

/// Whether the published checkpoints keep it in f32; everything else is bf16.
fn is_f32(name: &str) -> bool {
    name.ends_with("A_log") || name.ends_with("linear_attn.norm.weight")
}

/// xorshift64, as numbers from -1 to 1.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// Writes `model.safetensors`, or as many shards and their index.
pub(super) fn write(folder: &Path, size: &Size, shards: usize) -> io::Result<()> {
    let all = shapes(size);
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    if shards <= 1 {
        return file(&folder.join("model.safetensors"), size, &all, &mut random);
    }
    let mut map = Map::new();
    for (number, part) in all.chunks(all.len().div_ceil(shards)).enumerate() {
        let name = format!("model-{:05}-of-{shards:05}.safetensors", number + 1);
        map.extend(part.iter().map(|(tensor, _)| (tensor.clone(), json!(name))));
        file(&folder.join(name), size, part, &mut random)?;
    }
    let index = json!({"metadata": {}, "weight_map": map});
    std::fs::write(folder.join("model.safetensors.index.json"), index.to_string())
}

/// `safetensors`: the header's length, the header, the tensors one after another.
fn file(path: &Path, size: &Size, tensors: &[(String, Vec<usize>)], random: &mut Random) -> io::Result<()> {
    let (mut header, mut end) = (Map::new(), 0_usize);
    for (name, shape) in tensors {
        let (dtype, bytes) = if is_f32(name) { ("F32", 4) } else { ("BF16", 2) };
        let start = end;
        end += shape.iter().product::<usize>() * bytes;
        header.insert(name.clone(), json!({"dtype": dtype, "shape": shape, "data_offsets": [start, end]}));
    }
    let mut header = Value::Object(header).to_string();
    // Padded, so that the tensors start at a multiple of 8.
    header.extend(std::iter::repeat_n(' ', header.len().next_multiple_of(8) - header.len()));
    let mut file = BufWriter::with_capacity(1 << 20, std::fs::File::create(path)?);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    for (name, shape) in tensors {
        let width = if name.contains("visual") { size.tower.hidden } else { size.hidden };
        let count: usize = shape.iter().product();
        let drawn = if count > LONGEST { STRETCH } else { count };
        let (base, scale) = values(name, width);
        let values = (0..drawn).map(|_| base + scale * random.next());
        let values: Vec<u8> = if is_f32(name) {
            values.flat_map(f32::to_le_bytes).collect()
        } else {
            values.flat_map(|value| half::bf16::from_f32(value).to_le_bytes()).collect()
        };
        let mut left = values.len() / drawn * count;
        while left > 0 {
            let part = left.min(values.len());
            file.write_all(&values[..part])?;
            left -= part;
        }
    }
    file.flush()
}
