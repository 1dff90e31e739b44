//! Runs the peer's library on the device's node and prints what it took, one `name value...` a line. Built outside the
//! workspace, by `cargo xtask bench`.

use std::path::Path;
use std::time::Instant;

use taconite::Timing;
use taconite::cpu::{self, Attn, Rows};
use taconite_bundle::{Manifest, Store};
use taconite_qwen35::Qwen35;
use taconite_qwen35::model::Model;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["functions", patches] => functions(patches.parse()?),
        ["load", bundle] => load(Path::new(bundle)),
        ["text", bundle, ctx, prompt, tokens] => text(Path::new(bundle), ctx.parse()?, prompt.parse()?, tokens.parse()?),
        ["picture", bundle, rows, columns] => picture(Path::new(bundle), [rows.parse()?, columns.parse()?]),
        _ => Err("functions PATCHES | load BUNDLE | text BUNDLE CTX PROMPT TOKENS | picture BUNDLE ROWS COLUMNS".into()),
    }
}

/// Numbers between -1 and 1.
fn noise(count: usize) -> Vec<f32> {
    let mut seed = 1u32;
    let mut next = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// The least of a few runs.
fn best(name: &str, mut work: impl FnMut() -> f32) {
    let mut least = f64::INFINITY;
    let whole = Instant::now();
    for run in 0..20 {
        let start = Instant::now();
        std::hint::black_box(work());
        least = least.min(start.elapsed().as_secs_f64());
        if run >= 1 && whole.elapsed().as_secs_f64() > 1.0 {
            break;
        }
    }
    println!("{name} {least}");
}

/// Public functions at the shapes of the 2B model.
fn functions(n: usize) -> Result<()> {
    let (d, heads) = (1024, 16);
    let (q, k, qkv) = (noise(n * d), noise(n * d), noise(n * 3 * d));
    let options = Attn { heads, valid: None, bias: None, causal: false };
    best("vision-attention", || cpu::attention(&q, d, Rows::f32(&k, d), Rows::strided(&qkv, n, 3 * d, 2 * d), &options)[0]);
    let (w, b) = (noise(d), noise(d));
    best("layer-norm", || cpu::layer_norm(&q, d, &w, &b, 1e-6)[0]);
    Ok(())
}

fn load(bundle: &Path) -> Result<()> {
    let start = Instant::now();
    let loaded = Qwen35::load(bundle, 4096)?;
    println!("load {}", start.elapsed().as_secs_f64());
    drop(loaded);
    Ok(())
}

fn entries(kind: &str, total: f64, timing: &Timing) {
    let mixer = timing.get("mixer").as_secs_f64();
    println!("{kind}.total {total}\n{kind}.mixer {mixer}\n{kind}.npu {}", timing.npu_total().as_secs_f64());
}

/// A prompt, then tokens.
fn text(bundle: &Path, ctx: usize, prompt: usize, tokens: usize) -> Result<()> {
    let (manifest, store) = (Manifest::load(bundle, 1)?, Store::load(bundle)?);
    let mut model = Model::load(&manifest, &store, ctx)?;
    let ids: Vec<u32> = (0..prompt).map(|i| (i * 37 % 1900) as u32).collect();
    let mut timing = Timing::default();
    let start = Instant::now();
    model.prefill(&store, &ids, None, &mut timing)?;
    entries("prompt", start.elapsed().as_secs_f64(), &timing);
    for i in 0..tokens {
        let mut timing = Timing::default();
        let start = Instant::now();
        let logits = model.decode(&store, (i * 37 % 1900) as u32, &mut timing)?;
        let best = logits.iter().fold(f32::MIN, |best, logit| best.max(*logit));
        let total = start.elapsed().as_secs_f64();
        std::hint::black_box(best);
        entries("token", total, &timing);
    }
    Ok(())
}

fn picture(bundle: &Path, [rows, columns]: [usize; 2]) -> Result<()> {
    let (manifest, store) = (Manifest::load(bundle, 1)?, Store::load(bundle)?);
    let mut model = Model::load(&manifest, &store, 512)?;
    let patches = noise(rows * columns * 768);
    let mut timing = Timing::default();
    let start = Instant::now();
    model.encode_image(&patches, (rows, columns), &mut timing)?;
    println!("picture.total {}", start.elapsed().as_secs_f64());
    println!("picture.npu {}", timing.npu_total().as_secs_f64());
    println!("picture.attention {}", timing.get("v.attn").as_secs_f64());
    Ok(())
}
