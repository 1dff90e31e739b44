//! Whole forward passes of small random models against transformers' numbers, with nothing but this crate and plain
//! matrix products.
//!
//! The numbers are large and not part of the repository: set `QWEN35_ORACLE` to a directory with the checkpoints and
//! dumps (`<model>/checkpoint`, `<model>/A`) and run `cargo xtask check oracle`; elsewhere they are ignored.

use host_ops::{act, attention, delta, image, norm, pool::Pool, rope};
use std::{collections::HashMap, path::PathBuf};

type Error = Box<dyn std::error::Error>;

fn oracle() -> Result<PathBuf, Error> {
    Ok(std::env::var_os("QWEN35_ORACLE").ok_or("QWEN35_ORACLE names no folder of reference runs")?.into())
}

/// The tensors of a safetensors file, as f32 whatever they are.
struct Tensors(HashMap<String, (Vec<usize>, Vec<f32>)>);

impl Tensors {
    fn read(path: PathBuf) -> Result<Self, Error> {
        let bytes = std::fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let header = u64::from_le_bytes(bytes[..8].try_into()?) as usize;
        let (header, data) = (&bytes[8..8 + header], &bytes[8 + header..]);
        let header: HashMap<String, serde_json::Value> = serde_json::from_slice(header)?;
        let mut tensors = HashMap::new();
        for (name, entry) in header.into_iter().filter(|(name, _)| name != "__metadata__") {
            let numbers = |v: &serde_json::Value| -> Vec<usize> {
                v.as_array().into_iter().flatten().filter_map(|n| n.as_u64()).map(|n| n as usize).collect()
            };
            let at = numbers(&entry["data_offsets"]);
            let raw = &data[at[0]..at[1]];
            let values = match entry["dtype"].as_str() {
                Some("F32") => raw.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
                Some("BF16") => raw.as_chunks().0.iter().map(|b| half::bf16::from_le_bytes(*b).to_f32()).collect(),
                Some("I32") => raw.as_chunks().0.iter().map(|b| i32::from_le_bytes(*b) as f32).collect(),
                Some("U8") => raw.iter().map(|&b| f32::from(b)).collect(),
                other => return Err(format!("{name}: {other:?}").into()),
            };
            tensors.insert(name, (numbers(&entry["shape"]), values));
        }
        Ok(Tensors(tensors))
    }

    #[track_caller]
    fn get(&self, name: &str) -> &[f32] {
        &self.0.get(name).unwrap_or_else(|| panic!("no tensor {name}")).1
    }

    #[track_caller]
    fn rows(&self, name: &str) -> usize {
        self.0.get(name).unwrap_or_else(|| panic!("no tensor {name}")).0[0]
    }

    /// `x W^T (+ b)` with the torch weight `name.weight`, summed in f64.
    #[track_caller]
    fn linear(&self, pool: &Pool, name: &str, x: &[f32]) -> Vec<f32> {
        let w = self.get(&format!("{name}.weight"));
        let out_width = self.rows(&format!("{name}.weight"));
        let bias = self.0.get(&format!("{name}.bias")).map(|b| &b.1);
        let k = w.len() / out_width;
        let mut out = vec![0.0; x.len() / k * out_width];
        pool.run_chunks(&mut out, out_width, &|r, out| {
            let x = &x[r * k..][..k];
            for (n, (out, w)) in out.iter_mut().zip(w.chunks_exact(k)).enumerate() {
                let mut sums = [0f64; 8];
                for (x, w) in x.chunks(8).zip(w.chunks(8)) {
                    x.iter().zip(w).zip(&mut sums).for_each(|((x, w), s)| *s += f64::from(*x) * f64::from(*w));
                }
                *out = (sums.iter().sum::<f64>() + bias.map_or(0.0, |b| f64::from(b[n]))) as f32;
            }
        });
        out
    }
}

#[track_caller]
fn compare(what: &str, ours: &[f32], theirs: &[f32], bound: f32) {
    assert_eq!(ours.len(), theirs.len(), "{what}");
    let worst = ours.iter().zip(theirs).map(|(a, b)| (a - b).abs()).fold(0f32, |m, d| if d <= m { m } else { d });
    let scale = theirs.iter().fold(0f32, |m, x| m.max(x.abs()));
    eprintln!("{what}: {worst:.2e} of {scale:.2}");
    assert!(worst <= bound && worst.is_finite(), "{what}: {worst:e}, values up to {scale}");
}

fn add(x: &mut [f32], y: &[f32]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}

/// What the two models differ in.
struct Model {
    name: &'static str,
    layers: &'static [&'static str],
    delta: delta::Shape,
    attention: attention::Shape,
    rope_dim: usize,
    sections: [usize; 3],
    vision_depth: usize,
    vision: attention::VisionShape,
    pos_side: usize,
}

const MODELS: [Model; 2] = [
    Model {
        name: "tiny-qwen35",
        layers: &["lin", "lin", "lin", "att"],
        delta: delta::Shape { key_heads: 8, value_heads: 8, key_dim: 64, value_dim: 64, conv_kernel: 4, eps: 1e-6 },
        attention: attention::Shape { heads: 8, kv_heads: 2, head_dim: 64, eps: 1e-6 },
        rope_dim: 16,
        sections: [3, 3, 2],
        vision_depth: 2,
        vision: attention::VisionShape { heads: 8, head_dim: 64 },
        pos_side: 24,
    },
    Model {
        name: "tiny-qwen35-gva",
        layers: &["lin", "att"],
        delta: delta::Shape { key_heads: 4, value_heads: 8, key_dim: 128, value_dim: 128, conv_kernel: 4, eps: 1e-6 },
        attention: attention::Shape { heads: 8, kv_heads: 4, head_dim: 128, eps: 1e-6 },
        rope_dim: 32,
        sections: [6, 5, 5],
        vision_depth: 1,
        vision: attention::VisionShape { heads: 2, head_dim: 64 },
        pos_side: 8,
    },
];

#[test]
#[ignore = "needs QWEN35_ORACLE, a folder of reference runs"]
fn text_layers() -> Result<(), Error> {
    let dir = oracle()?;
    let pool = Pool::new(2);
    for model in &MODELS {
        let weights = Tensors::read(dir.join(model.name).join("checkpoint/model.safetensors"))?;
        let golden = Tensors::read(dir.join(model.name).join("A/short_plain.layers.safetensors"))?;
        let case = Tensors::read(dir.join(model.name).join("A/short_plain.safetensors"))?;
        text(&pool, model, &weights, &golden, &case);
    }
    Ok(())
}

fn text(pool: &Pool, model: &Model, w: &Tensors, golden: &Tensors, case: &Tensors) {
    let prefix = "model.language_model";
    let mut x: Vec<f32> = golden.get("embed").to_vec();
    let n = golden.rows("embed");
    let d = x.len() / n;
    let positions: Vec<[u32; 3]> =
        (0..n).map(|t| std::array::from_fn(|a| case.get("positions")[3 * t + a] as u32)).collect();
    let mut table = rope::Table::new();
    rope::Text::new(model.rope_dim, 1e7, model.sections).fill(&positions, &mut table);
    for (i, kind) in model.layers.iter().enumerate() {
        let at = format!("{prefix}.layers.{i}");
        let say = |part: &str| format!("{} layer {i} {part}", model.name);
        let theirs = |part: &str| golden.get(&format!("layer{i}.{part}"));
        let mut h = vec![0.0; x.len()];
        norm::rms(&x, w.get(&format!("{at}.input_layernorm.weight")), 1e-6, &mut h);
        compare(&say("norm1"), &h, theirs("norm1"), 1e-4);
        let (mixed, o) = if *kind == "lin" {
            (linear_attention(pool, model, w, golden, i, &h), "linear_attn.out_proj")
        } else {
            (full_attention(pool, model, w, golden, i, &h, &table), "self_attn.o_proj")
        };
        compare(&say("o_in"), &mixed, theirs("o_in"), 1e-4);
        let mixed = w.linear(pool, &format!("{at}.{o}"), &mixed);
        compare(&say("mixer"), &mixed, theirs("mixer"), 1e-4);
        add(&mut x, &mixed);
        norm::rms(&x, w.get(&format!("{at}.post_attention_layernorm.weight")), 1e-6, &mut h);
        let (gate, up) =
            (w.linear(pool, &format!("{at}.mlp.gate_proj"), &h), w.linear(pool, &format!("{at}.mlp.up_proj"), &h));
        let mut product = vec![0.0; gate.len()];
        act::swiglu(&gate, &up, &mut product);
        let mlp = w.linear(pool, &format!("{at}.mlp.down_proj"), &product);
        compare(&say("mlp"), &mlp, theirs("mlp"), 1e-4);
        add(&mut x, &mlp);
        compare(&say("out"), &x, theirs("out"), 1e-4);
    }
    let mut last = vec![0.0; x.len()];
    norm::rms(&x, w.get(&format!("{prefix}.norm.weight")), 1e-6, &mut last);
    compare(&format!("{} final norm", model.name), &last, golden.get("final_norm"), 1e-4);
    let head = if w.0.contains_key("lm_head.weight") { "lm_head".to_owned() } else { format!("{prefix}.embed_tokens") };
    let logits = w.linear(pool, &head, &last[(n - 1) * d..]);
    compare(&format!("{} logits", model.name), &logits, case.get("logits"), 1e-4);
}

fn linear_attention(pool: &Pool, model: &Model, w: &Tensors, golden: &Tensors, i: usize, h: &[f32]) -> Vec<f32> {
    let (shape, at) = (&model.delta, format!("model.language_model.layers.{i}.linear_attn"));
    let qkv = w.linear(pool, &format!("{at}.in_proj_qkv"), h);
    let z = w.linear(pool, &format!("{at}.in_proj_z"), h);
    let rows = qkv.chunks_exact(shape.channels()).zip(z.chunks_exact(shape.value_width()));
    let projected: Vec<f32> = rows.flat_map(|(qkv, z)| [qkv, z].concat()).collect();
    let part = |name: &str| w.get(&format!("{at}.{name}"));
    let ba = [part("in_proj_b.weight"), part("in_proj_a.weight")].concat();
    let a: Vec<f32> = part("A_log").iter().map(|a| -a.exp()).collect();
    let weights = delta::Weights {
        ba: &ba,
        taps: &delta::taps(part("conv1d.weight"), 4),
        a: &a,
        dt_bias: part("dt_bias"),
        norm: part("norm.weight"),
    };
    let n = projected.len() / shape.input_width();
    let mut out = vec![0.0; n * shape.value_width()];
    let mut state = delta::State::new(*shape);
    delta::forward(pool, shape, &weights, &mut state, h, &projected, &mut out, &mut delta::Scratch::default());
    let say = |what: &str| format!("{} layer {i} {what}", model.name);
    compare(&say("recurrent state"), &state.recurrent(), golden.get(&format!("state{i}.rec")), 1e-4);
    // Theirs keeps one more column, channel-major.
    let theirs = golden.get(&format!("state{i}.conv"));
    let theirs: Vec<f32> = (1..4).flat_map(|j| theirs.iter().skip(j).step_by(4).copied()).collect();
    compare(&say("convolution state"), &state.conv(), &theirs, 1e-4);
    out
}

fn full_attention(
    pool: &Pool,
    model: &Model,
    w: &Tensors,
    golden: &Tensors,
    i: usize,
    h: &[f32],
    table: &rope::Table,
) -> Vec<f32> {
    let (shape, at) = (&model.attention, format!("model.language_model.layers.{i}.self_attn"));
    let parts = ["q", "k", "v"].map(|p| w.linear(pool, &format!("{at}.{p}_proj"), h));
    let n = table.rows();
    let projected: Vec<f32> =
        (0..n).flat_map(|t| parts.iter().flat_map(move |p| p[t * p.len() / n..][..p.len() / n].to_vec())).collect();
    let weights = attention::Weights {
        q_norm: w.get(&format!("{at}.q_norm.weight")),
        k_norm: w.get(&format!("{at}.k_norm.weight")),
    };
    let mut cache = attention::KvCache::new(*shape);
    let mut out = vec![0.0; n * shape.output_width()];
    let mut scratch = attention::Scratch::default();
    attention::forward(pool, shape, &weights, table, &mut cache, &projected, &mut out, &mut scratch);
    let pairs = || (0..shape.kv_heads).flat_map(|g| (0..n).map(move |t| (t, g)));
    let keys: Vec<f32> = pairs().flat_map(|(t, g)| cache.key(t, g)).collect();
    let values: Vec<f32> = pairs().flat_map(|(t, g)| cache.value(t, g)).collect();
    compare(&format!("{} layer {i} keys", model.name), &keys, golden.get(&format!("state{i}.k")), 1e-4);
    compare(&format!("{} layer {i} values", model.name), &values, golden.get(&format!("state{i}.v")), 1e-4);
    out
}

#[test]
#[ignore = "needs QWEN35_ORACLE, a folder of reference runs"]
fn images_and_vision_tower() -> Result<(), Error> {
    let dir = oracle()?;
    let pool = Pool::new(2);
    for model in &MODELS {
        let weights = Tensors::read(dir.join(model.name).join("checkpoint/model.safetensors"))?;
        for picture in ["a_small", "a_wide"] {
            let golden = Tensors::read(dir.join(model.name).join(format!("A/{picture}.safetensors")))?;
            vision(&pool, model, &weights, &golden, picture)?;
        }
    }
    Ok(())
}

fn vision(pool: &Pool, model: &Model, w: &Tensors, golden: &Tensors, picture: &str) -> Result<(), Error> {
    let config = image::Config { patch: 16, merge: 2, min_pixels: 65_536, max_pixels: 1_048_576 };
    let rgb: Vec<u8> = golden.get("rgb").iter().map(|&v| v as u8).collect();
    let [height, width] = [golden.0["rgb"].0[0], golden.0["rgb"].0[1]];
    let patches = image::preprocess(pool, &rgb, height, width, &config)?;
    assert_eq!(patches.grid.map(|g| g as f32), golden.get("grid"));
    compare(&format!("{picture} patches"), &patches.data, golden.get("patches"), 0.0);

    // Both frames of the temporal kernel see the same image.
    let kernel = w.get("model.visual.patch_embed.proj.weight");
    let summed: Vec<f32> = kernel
        .chunks_exact(512)
        .flat_map(|two| two[..256].iter().zip(&two[256..]).map(|(a, b)| a + b).collect::<Vec<_>>())
        .collect();
    let d = model.vision.width();
    let mut embed = Tensors(HashMap::new());
    embed.0.insert("p.weight".into(), (vec![d, 768], summed));
    embed.0.insert("p.bias".into(), (vec![d], w.get("model.visual.patch_embed.proj.bias").to_vec()));
    let mut x = embed.linear(pool, "p", &patches.data);
    image::add_positions(w.get("model.visual.pos_embed.weight"), model.pos_side, patches.grid, 2, &mut x);

    let mut table = rope::Table::new();
    rope::Vision::new(model.vision.head_dim, 1e4).fill(patches.grid, 2, &mut table);
    let mut scratch = attention::VisionScratch::default();
    let layer_norm = |name: &str, x: &[f32]| {
        let mut out = vec![0.0; x.len()];
        norm::layer(x, w.get(&format!("{name}.weight")), w.get(&format!("{name}.bias")), 1e-6, &mut out);
        out
    };
    for i in 0..model.vision_depth {
        let at = format!("model.visual.blocks.{i}");
        let qkv = w.linear(pool, &format!("{at}.attn.qkv"), &layer_norm(&format!("{at}.norm1"), &x));
        let mut mixed = vec![0.0; x.len()];
        attention::vision_forward(pool, &model.vision, &table, &qkv, &mut mixed, &mut scratch);
        add(&mut x, &w.linear(pool, &format!("{at}.attn.proj"), &mixed));
        let mut wide = w.linear(pool, &format!("{at}.mlp.linear_fc1"), &layer_norm(&format!("{at}.norm2"), &x));
        act::gelu_tanh_in_place(&mut wide);
        add(&mut x, &w.linear(pool, &format!("{at}.mlp.linear_fc2"), &wide));
    }
    compare(&format!("{} {picture} hidden", model.name), &x, golden.get("vision_hidden"), 1e-4);
    let mut wide = w.linear(pool, "model.visual.merger.linear_fc1", &layer_norm("model.visual.merger.norm", &x));
    act::gelu_erf_in_place(&mut wide);
    let out = w.linear(pool, "model.visual.merger.linear_fc2", &wide);
    compare(&format!("{} {picture} vision", model.name), &out, golden.get("vision"), 1e-4);
    Ok(())
}
