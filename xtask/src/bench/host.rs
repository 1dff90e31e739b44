//! Host operations, one by one, at the shapes of the 2B model.

use std::ffi::OsStr;

use host_ops::attention::KvFormat;
use host_ops::pool::Pool;
use host_ops::{attention, bf16, delta, norm, rope, sample};
use npu_model::Timing;

use super::measure::{best, seconds};
use super::report::Report;
use super::{Bench, supervised};
use crate::synth::Sample;

/// Layers of the 2B model with DeltaNet, and with attention; blocks of its tower.
pub(super) const LINEAR: f64 = 18.0;
pub(super) const ATTENTION: f64 = 6.0;
pub(super) const BLOCKS: f64 = 24.0;
/// Patches of a picture of 640 x 416.
pub(super) const GRID: [usize; 2] = [26, 40];
const HIDDEN: usize = 2048;
const VOCAB: usize = 248_320;

pub(super) const VISION: &str = "vision attention, 1040 patches x 24";
pub(super) const DELTA_PROMPT: &str = "DeltaNet, 778 tokens x 18";
pub(super) const DELTA_TOKEN: &str = "DeltaNet, 1 token x 18";
pub(super) const ATTENTION_PROMPT: &str = "attention, 2048 tokens x 6";
pub(super) const ATTENTION_TOKEN: &str = "attention, 1 token at 8192 x 6";
const ATTENTION_PROMPT_F32: &str = "attention, 2048 tokens x 6, f32 cache";
const ATTENTION_TOKEN_F32: &str = "attention, 1 token at 8192 x 6, f32 cache";

/// Numbers between -1 and 1.
fn noise(count: usize) -> Vec<f32> {
    let mut seed = 1u32;
    let mut next = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

pub(super) const DELTA: delta::Shape =
    delta::Shape { key_heads: 16, value_heads: 16, key_dim: 128, value_dim: 128, conv_kernel: 4, eps: 1e-6 };
pub(super) const GQA: attention::Shape = attention::Shape { heads: 8, kv_heads: 2, head_dim: 256, eps: 1e-6 };

pub(super) fn run(bench: &mut Bench) {
    let pool = Pool::new(0);
    for _ in 0..bench.effort.rounds {
        vision(bench, &pool);
        linear(bench, &pool);
        gqa(bench, &pool);
        small(bench, &pool);
        peer(bench);
    }
}

fn ours(bench: &mut Bench, name: &str, seconds: f64) {
    bench.report.row("host", name, "ms").ours.push(1e3 * seconds);
}

fn vision(bench: &mut Bench, pool: &Pool) {
    let shape = attention::VisionShape { heads: 16, head_dim: 64 };
    let grid = if bench.effort.quick { [4, 4] } else { GRID };
    let n = grid[0] * grid[1];
    let mut table = rope::Table::new();
    rope::Vision::new(64, 1e4).fill(grid, 2, &mut table);
    let (qkv, mut out) = (noise(n * 3 * shape.width()), vec![0.0; n * shape.width()]);
    let mut scratch = attention::VisionScratch::default();
    let time = best(bench.effort, || attention::vision_forward(pool, &shape, &table, &qkv, &mut out, &mut scratch));
    ours(bench, VISION, BLOCKS * time);
    let (w, b) = (noise(shape.width()), noise(shape.width()));
    let mut normed = vec![0.0; out.len()];
    let time = best(bench.effort, || {
        pool.run_chunks(&mut normed, shape.width(), &|i, y| {
            norm::layer(&out[i * shape.width()..][..shape.width()], &w, &b, 1e-6, y);
        });
    });
    ours(bench, "LayerNorm, 1040 x 1024", time);
}

fn linear(bench: &mut Bench, pool: &Pool) {
    let layers = if bench.effort.quick { 1 } else { LINEAR as usize };
    let (ba, taps) = (noise(2 * 16 * HIDDEN), noise(DELTA.channels() * 4));
    let (a, dt_bias, norm) = (vec![-4.0; 16], vec![-2.0; 16], vec![1.0; 128]);
    let weights = delta::Weights { ba: &ba, taps: &taps, a: &a, dt_bias: &dt_bias, norm: &norm };
    // A state for each layer: one alone would stay in the cache.
    let mut states: Vec<delta::State> = (0..layers).map(|_| delta::State::new(DELTA)).collect();
    let mut scratch = delta::Scratch::default();
    for (name, rows) in [(DELTA_PROMPT, if bench.effort.quick { 5 } else { 778 }), (DELTA_TOKEN, 1)] {
        let (hidden, projected) = (noise(rows * HIDDEN), noise(rows * DELTA.input_width()));
        let mut out = vec![0.0; rows * DELTA.value_width()];
        let time = best(bench.effort, || {
            for state in &mut states {
                delta::forward(pool, &DELTA, &weights, state, &hidden, &projected, &mut out, &mut scratch);
            }
        });
        ours(bench, name, time * LINEAR / layers as f64);
    }
}

fn gqa(bench: &mut Bench, pool: &Pool) {
    // The format that bundles of bf16 activations get, then the other.
    gqa_in(bench, pool, KvFormat::Half, [ATTENTION_PROMPT, ATTENTION_TOKEN]);
    gqa_in(bench, pool, KvFormat::F32, [ATTENTION_PROMPT_F32, ATTENTION_TOKEN_F32]);
}

fn gqa_in(bench: &mut Bench, pool: &Pool, format: KvFormat, names: [&str; 2]) {
    let (q_norm, k_norm) = (vec![0.0; 256], vec![0.0; 256]);
    let weights = attention::Weights { q_norm: &q_norm, k_norm: &k_norm };
    let mut scratch = attention::Scratch::default();
    let mut step = |cache: &mut attention::KvCache, rows: usize| {
        let start = cache.len() as u32;
        let mut table = rope::Table::new();
        let positions: Vec<[u32; 3]> = (start..start + rows as u32).map(|p| [p; 3]).collect();
        rope::Text::new(64, 1e7, [11, 11, 10]).fill(&positions, &mut table);
        let (projected, mut out) = (noise(rows * GQA.input_width()), vec![0.0; rows * GQA.output_width()]);
        seconds(&mut || {
            attention::forward(pool, &GQA, &weights, &table, cache, &projected, &mut out, &mut scratch);
        })
    };
    let (prompt, context) = if bench.effort.quick { (8, 16) } else { (2048, 8192) };
    let new = || attention::KvCache::with_format(GQA, format);
    // The first one finds no memory.
    step(&mut new(), prompt);
    // Several in turn are more than the last level of a cache holds.
    let mut caches = [new(), new(), new()];
    let first = caches.each_mut().map(|cache| step(cache, prompt));
    ours(bench, names[0], ATTENTION * first.into_iter().fold(f64::INFINITY, f64::min));
    for cache in &mut caches {
        while cache.len() + prompt <= context {
            step(cache, prompt);
        }
    }
    let mut least = f64::INFINITY;
    for _ in 0..if bench.effort.quick { 1 } else { 10 } {
        let all: f64 = caches.iter_mut().map(|cache| step(cache, 1)).sum();
        least = least.min(all / caches.len() as f64);
    }
    let bytes = caches[0].bytes() as f64;
    ours(bench, names[1], ATTENTION * least);
    let read = bench.report.machine.read;
    let bound = 1e3 * ATTENTION * bytes / read;
    bench.report.row("host", names[1], "ms").bound =
        Some((bound, format!("{:.0} MB of cache a layer, read at the limit", bytes / 1e6)));
}

fn small(bench: &mut Bench, pool: &Pool) {
    let rows = if bench.effort.quick { 2 } else { 778 };
    let (x, w) = (noise(rows * HIDDEN), noise(HIDDEN));
    let mut out = vec![0.0; x.len()];
    let time = best(bench.effort, || {
        pool.run_chunks(&mut out, HIDDEN, &|i, y| norm::rms(&x[i * HIDDEN..][..HIDDEN], &w, 1e-6, y));
    });
    ours(bench, "RMSNorm, 778 x 2048", time);
    let mut half = vec![bf16::bf16::ZERO; x.len()];
    let time = best(bench.effort, || {
        pool.run_chunks(&mut half, HIDDEN, &|i, y| bf16::from_f32(&x[i * HIDDEN..][..HIDDEN], y));
    });
    ours(bench, "f32 to bf16, 778 x 2048", time);
    let logits = noise(if bench.effort.quick { 100 } else { VOCAB });
    let time = best(bench.effort, || {
        std::hint::black_box(sample::argmax(&logits));
    });
    ours(bench, "greedy choice of 248320", time);
}

/// The peer's: public functions by themselves, private ones as what its model spends on them around a device that
/// takes no time.
fn peer(bench: &mut Bench) {
    let Some(program) = bench.peer.clone() else { return };
    let none = Timing { latency: std::time::Duration::ZERO, bandwidth: u64::MAX, rate: u64::MAX, ..Timing::default() };
    let run = |words: &[&OsStr]| supervised::run(none, &program, words);
    let patches = (GRID[0] * GRID[1]).to_string();
    match run(&["functions".as_ref(), patches.as_ref()]) {
        Ok(ran) => {
            let mut take = |name: &str, from: &str, times: f64| {
                bench.report.row("host", name, "ms").peer.extend(ran.lines.median(from).map(|s| 1e3 * times * s));
            };
            take(VISION, "vision-attention", BLOCKS);
            take("LayerNorm, 1040 x 1024", "layer-norm", 1.0);
        }
        Err(why) => bench.gap("the peer's functions", why),
    }
    let mixers = |bench: &mut Bench, sample: Sample, prompt: usize, tokens: usize| {
        let bundle = bench.bundle(sample)?;
        let (prompt, tokens) = (prompt.to_string(), tokens.to_string());
        let words: [&OsStr; 5] = ["text".as_ref(), bundle.as_ref(), "4096".as_ref(), prompt.as_ref(), tokens.as_ref()];
        let lines = run(&words)?.lines;
        let said = |name: &str| lines.median(name).ok_or_else(|| format!("no {name} in what it said"));
        Ok::<_, String>((said("prompt.mixer")?, said("token.mixer")?))
    };
    // Two layers each.
    let linear = mixers(bench, Sample::Linear, 778, 32);
    let short = mixers(bench, Sample::Attention, 512, 32);
    let long = mixers(bench, Sample::Attention, 2047, 32);
    match (linear, short, long) {
        (Ok(linear), Ok(short), Ok(long)) => {
            let mut peer = |name: &str, seconds: f64| bench.report.row("host", name, "ms").peer.push(1e3 * seconds);
            peer(DELTA_PROMPT, LINEAR / 2.0 * linear.0);
            peer(DELTA_TOKEN, LINEAR / 2.0 * linear.1);
            peer(ATTENTION_PROMPT, ATTENTION / 2.0 * long.0);
            // A straight line through both: its prompts end at 2048 tokens.
            let slope = (long.1 - short.1) / (2047.0 - 512.0);
            peer(ATTENTION_TOKEN, ATTENTION / 2.0 * (long.1 + slope * (8192.0 - 2047.0)));
        }
        (linear, short, long) => {
            let why = [linear.err(), short.err(), long.err()].into_iter().flatten().next().unwrap_or_default();
            bench.gap("the peer's mixers", why);
        }
    }
}

/// What would be possible, and how things were measured.
pub(super) fn bounds(report: &mut Report) {
    let (peak, update) = (report.machine.peak(), report.machine.update);
    let patches = (GRID[0] * GRID[1]) as f64;
    let mut set = |name: &str, bound: Option<(f64, String)>, note: &str| {
        if let Some(row) = report.rows.iter_mut().find(|row| row.group == "host" && row.name == name) {
            row.bound = bound.or(row.bound.take());
            row.note = note.to_owned();
        }
    };
    let vision = BLOCKS * 4.0 * patches * patches * 1024.0;
    set(VISION, Some((1e3 * vision / peak, "4 P^2 D operations a block at the FMA limit".into())), "one block x 24");
    let private = "peer: a private function, taken from its model with two such layers on a device without time";
    set(DELTA_PROMPT, None, private);
    let state = LINEAR * (16 * 128 * 128 * 4) as f64 * 2.0;
    let why = "the states read and written once at the limit of a change in place";
    set(DELTA_TOKEN, Some((1e3 * state / update, why.into())), private);
    let queries = 2048.0;
    let scores = ATTENTION * 4.0 * queries * queries / 2.0 * (8 * 256) as f64;
    let why = "4 D operations a pair of tokens at the FMA limit";
    let note = format!("16-bit cache; {private}; it takes 2047 tokens");
    set(ATTENTION_PROMPT, Some((1e3 * scores / peak, why.into())), &note);
    set(ATTENTION_PROMPT_F32, Some((1e3 * scores / peak, why.into())), "");
    let line = "16-bit cache; peer: a straight line through its contexts 512 and 2047, where its prompts end";
    set(ATTENTION_TOKEN, None, line);
}
