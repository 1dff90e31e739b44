//! Some queries against one block of keys and values.
//!
//! Both matrix products of a block run over panels of [`PANEL`] columns, two vectors: [`ROWS`] queries times two
//! vectors are twelve sums in registers, and a panel is read front to back, which is also how memory likes to be read
//! when there is a single token and the cache is large.

use crate::simd::{LANES, Lanes, Stored, exp_of_negative, kernel};
use half::{bf16, f16};

/// Keys of a block, and tokens of a cache page.
pub const BLOCK: usize = 128;

/// Keys of a panel of keys, and columns of a panel of values.
pub(super) const PANEL: usize = 2 * LANES;

/// Queries that one call can take.
pub(super) const MAX_QUERIES: usize = 48;

/// Queries that share what is loaded.
const ROWS: usize = 6;

/// Where key `slot`, value `d` of it, stands in a block's keys.
#[inline(always)]
pub(super) fn key_at(head_dim: usize, slot: usize, d: usize) -> usize {
    (slot / PANEL * head_dim + d) * PANEL + slot % PANEL
}

/// Where the panel of values that begins with column `d` (a multiple of [`PANEL`]) holds those of `slot`, and how many.
#[inline(always)]
pub(super) fn values_at(head_dim: usize, slot: usize, d: usize) -> std::ops::Range<usize> {
    let width = PANEL.min(head_dim - d);
    let at = d * BLOCK + slot * width;
    at..at + width
}

/// The softmax of some queries while it is under way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Online {
    /// The largest score so far.
    pub(super) max: [f32; MAX_QUERIES],
    /// The sum of `e^(score - max)`.
    pub(super) sum: [f32; MAX_QUERIES],
}

impl Online {
    pub(super) const START: Self = Online { max: [f32::NEG_INFINITY; MAX_QUERIES], sum: [0.0; MAX_QUERIES] };
}

/// One block of keys and values of one head.
#[derive(Debug, Clone, Copy)]
pub(super) enum Block<'a> {
    /// In f32.
    Full(Data<'a, f32, f32>),
    /// In 16 bits.
    Half(Data<'a, f16, bf16>),
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Data<'a, K, V> {
    /// `[BLOCK / PANEL, head_dim, PANEL]`: keys stand side by side, so that one query value meets eight in a vector.
    pub(super) keys: &'a [K],
    /// `[head_dim / PANEL, BLOCK, PANEL]`, the last panel as wide as what is left.
    pub(super) values: &'a [V],
}

/// Queries as [`attend`] wants them: groups of [`ROWS`] (the last one of what is left), each `[head_dim, queries]`.
/// `query` gives the values of a query.
pub(super) fn pack<'a>(head_dim: usize, n: usize, query: impl Fn(usize) -> &'a [f32], out: &mut [f32]) {
    for (g, out) in out[..n * head_dim].chunks_mut(ROWS * head_dim).enumerate() {
        let rows = out.len() / head_dim;
        for r in 0..rows {
            for (out, &x) in out.iter_mut().skip(r).step_by(rows).zip(query(g * ROWS + r)) {
                *out = x;
            }
        }
    }
}

/// Attends from some queries to a block.
///
/// * `q`: [packed](pack), scaled
/// * `visible`: how many keys of the block each query sees, ascending
/// * `acc`: `[n, head_dim]`: sums of values weighted by `e^(score - max)`
pub(super) fn attend(
    head_dim: usize,
    q: &[f32],
    block: Block<'_>,
    visible: &[usize],
    online: &mut Online,
    acc: &mut [f32],
) {
    match block {
        Block::Full(data) => attend_full(head_dim, q, data, visible, online, acc),
        Block::Half(data) => attend_half(head_dim, q, data, visible, online, acc),
    }
}

kernel! {
    fn attend_full<V>(
        head_dim: usize,
        q: &[f32],
        block: Data<'_, f32, f32>,
        visible: &[usize],
        online: &mut Online,
        acc: &mut [f32],
    ) {
        attend_block::<V, f32, f32>(head_dim, q, block, visible, online, acc);
    }
}

kernel! {
    fn attend_half<V>(
        head_dim: usize,
        q: &[f32],
        block: Data<'_, f16, bf16>,
        visible: &[usize],
        online: &mut Online,
        acc: &mut [f32],
    ) {
        attend_block::<V, f16, bf16>(head_dim, q, block, visible, online, acc);
    }
}

kernel! {
    /// A 16-bit block in f32, for many queries.
    pub(super) fn widen<V>(block: Data<'_, f16, bf16>, keys: &mut [f32], values: &mut [f32]) {
        let (from, to) = (block.keys.as_chunks().0, keys.as_chunks_mut().0);
        from.iter().zip(to).for_each(|(x, out)| V::load_f16(x).store(out));
        let (from, to) = (block.values.as_chunks().0, values.as_chunks_mut().0);
        from.iter().zip(to).for_each(|(x, out)| V::load_bf16(x).store(out));
    }
}

#[inline(always)]
fn attend_block<V: Lanes, K: Stored, W: Stored>(
    head_dim: usize,
    q: &[f32],
    block: Data<'_, K, W>,
    visible: &[usize],
    online: &mut Online,
    acc: &mut [f32],
) {
    let n = visible.len();
    let most = visible.last().map_or(0, |&v| v.min(BLOCK));
    let mut scores = [[0.0; BLOCK]; MAX_QUERIES];
    for (p, keys) in block.keys.chunks_exact(head_dim * PANEL).enumerate().take(most.div_ceil(PANEL)) {
        let keys = keys.as_chunks::<PANEL>().0;
        for (q, scores) in q[..n * head_dim].chunks(ROWS * head_dim).zip(scores[..n].chunks_mut(ROWS)) {
            match scores.len() {
                6 => score::<V, K, 6>(q, keys, p, scores),
                5 => score::<V, K, 5>(q, keys, p, scores),
                4 => score::<V, K, 4>(q, keys, p, scores),
                3 => score::<V, K, 3>(q, keys, p, scores),
                2 => score::<V, K, 2>(q, keys, p, scores),
                _ => score::<V, K, 1>(q, keys, p, scores),
            }
        }
    }
    let (mut scales, mut totals) = ([0.0; MAX_QUERIES], [0.0; MAX_QUERIES]);
    for (i, scores) in scores[..n].iter_mut().enumerate() {
        (scales[i], totals[i]) = soften::<V>(scores, visible[i], &mut online.max[i]);
    }
    for scales in scales.as_chunks_mut().0 {
        exp_of_negative(V::load(scales)).store(scales);
    }
    for (i, sum) in online.sum[..n].iter_mut().enumerate() {
        *sum = sum.mul_add(scales[i], totals[i]);
    }
    for d in (0..head_dim).step_by(PANEL) {
        let width = PANEL.min(head_dim - d);
        let values = &block.values[d * BLOCK..][..BLOCK * width];
        for first in (0..n).step_by(ROWS) {
            let rows = first..(first + ROWS).min(n);
            let part = Weighed {
                scores: &scores[rows.clone()],
                scales: &scales[rows.clone()],
                visible: &visible[rows.clone()],
            };
            let acc = &mut acc[first * head_dim..rows.end * head_dim];
            match (width, rows.len()) {
                (PANEL, 6) => weigh::<V, W, 6, 2>(head_dim, d, &part, values, acc),
                (PANEL, 5) => weigh::<V, W, 5, 2>(head_dim, d, &part, values, acc),
                (PANEL, 4) => weigh::<V, W, 4, 2>(head_dim, d, &part, values, acc),
                (PANEL, 3) => weigh::<V, W, 3, 2>(head_dim, d, &part, values, acc),
                (PANEL, 2) => weigh::<V, W, 2, 2>(head_dim, d, &part, values, acc),
                (PANEL, _) => weigh::<V, W, 1, 2>(head_dim, d, &part, values, acc),
                (_, 6) => weigh::<V, W, 6, 1>(head_dim, d, &part, values, acc),
                _ => {
                    for r in 0..rows.len() {
                        let part = Weighed {
                            scores: &part.scores[r..=r],
                            scales: &part.scales[r..=r],
                            visible: &part.visible[r..=r],
                        };
                        weigh::<V, W, 1, 1>(head_dim, d, &part, values, &mut acc[r * head_dim..]);
                    }
                }
            }
        }
    }
}

/// Scores of `R` queries with a panel of keys.
#[inline(always)]
fn score<V: Lanes, K: Stored, const R: usize>(
    q: &[f32],
    keys: &[[K; PANEL]],
    panel: usize,
    scores: &mut [[f32; BLOCK]],
) {
    let mut sums = [[V::splat(0.0); 2]; R];
    for (q, keys) in q.as_chunks::<R>().0.iter().zip(keys) {
        let keys = keys.as_chunks::<LANES>().0;
        let (a, b): (V, V) = (K::load(&keys[0]), K::load(&keys[1]));
        for r in 0..R {
            let q = V::splat(q[r]);
            sums[r][0] = a.fma(q, sums[r][0]);
            sums[r][1] = b.fma(q, sums[r][1]);
        }
    }
    for (scores, sums) in scores.iter_mut().zip(sums) {
        let out = &mut scores.as_chunks_mut::<LANES>().0[2 * panel..][..2];
        sums[0].store(&mut out[0]);
        sums[1].store(&mut out[1]);
    }
}

/// Turns scores into `e^(score - max)`, 0 past `visible`; returns by how much the largest score has grown, negative, and
/// the sum.
#[inline(always)]
fn soften<V: Lanes>(scores: &mut [f32; BLOCK], visible: usize, max: &mut f32) -> (f32, f32) {
    if visible == 0 {
        // Nothing changes; -infinity less -infinity would be no number.
        return (0.0, 0.0);
    }
    // What is not looked at would add nothing but zeros, and nobody reads it.
    let used = BLOCK.min(visible.next_multiple_of(LANES));
    scores[visible.min(BLOCK)..used].fill(f32::NEG_INFINITY);
    let scores = scores[..used].as_chunks_mut::<LANES>().0;
    let mut lanes = V::load(&scores[0]);
    for s in &scores[1..] {
        lanes = V::load(s).max(lanes);
    }
    let largest = lanes.largest();
    let new = if largest > *max { largest } else { *max };
    let mut total = V::splat(0.0);
    for s in scores {
        let e = exp_of_negative(V::load(s).sub(V::splat(new)));
        e.store(s);
        total = total.add(e);
    }
    let grown = *max - new;
    *max = new;
    (grown, total.sum())
}

/// What [`weigh`] needs of some queries.
struct Weighed<'a> {
    scores: &'a [[f32; BLOCK]],
    scales: &'a [f32],
    visible: &'a [usize],
}

/// `acc = scales acc + scores values` for `R` queries and `W` vectors of columns, key by key.
#[inline(always)]
fn weigh<V: Lanes, E: Stored, const R: usize, const W: usize>(
    head_dim: usize,
    d: usize,
    part: &Weighed<'_>,
    values: &[E],
    acc: &mut [f32],
) {
    let mut sums = [[V::splat(0.0); W]; R];
    for r in 0..R {
        let at = &acc[r * head_dim + d..].as_chunks::<LANES>().0[..W];
        for w in 0..W {
            sums[r][w] = V::load(&at[w]).mul(V::splat(part.scales[r]));
        }
    }
    let values = values.as_chunks::<LANES>().0;
    let scores = &part.scores[..R];
    // What all of them see. The rest each on its own: a query must not meet a value that it does not see, because 0
    // times an infinity is no zero.
    let common = part.visible[0].min(BLOCK);
    for (j, values) in values.chunks_exact(W).enumerate().take(BLOCK) {
        if j >= common {
            break;
        }
        let mut loaded = [V::splat(0.0); W];
        for w in 0..W {
            loaded[w] = E::load(&values[w]);
        }
        for r in 0..R {
            let weight = V::splat(scores[r][j]);
            for w in 0..W {
                sums[r][w] = loaded[w].fma(weight, sums[r][w]);
            }
        }
    }
    for r in 0..R {
        for (j, values) in values.chunks_exact(W).enumerate().take(part.visible[r].min(BLOCK)).skip(common) {
            for w in 0..W {
                sums[r][w] = E::load::<V>(&values[w]).fma(V::splat(scores[r][j]), sums[r][w]);
            }
        }
        let at = &mut acc[r * head_dim + d..].as_chunks_mut::<LANES>().0[..W];
        for w in 0..W {
            sums[r][w].store(&mut at[w]);
        }
    }
}
