//! Some queries against one block of keys and values.

use crate::simd::{LANES, Lanes, exp, kernel};

/// Keys of a block, and tokens of a cache page.
pub const BLOCK: usize = 64;

/// Queries that one call can take.
pub(super) const MAX_QUERIES: usize = 32;

/// The softmax of some queries while it is under way.
#[derive(Clone, Copy)]
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
#[derive(Clone, Copy)]
pub(super) struct Block<'a> {
    /// `[head_dim, BLOCK]`: keys, transposed.
    pub(super) keys: &'a [f32],
    /// `[BLOCK, head_dim]`.
    pub(super) values: &'a [f32],
}

kernel! {
    /// Attends from some queries to a block.
    ///
    /// * `q`: queries, scaled; query i is the `head_dim` values at `offsets[i]`
    /// * `visible`: how many keys of the block each query sees, not 0
    /// * `acc`: sums of values weighted by `e^(score - max)`, query i at `offsets[i]`
    pub(super) fn attend<V>(
        head_dim: usize,
        q: &[f32],
        offsets: &[usize],
        block: Block<'_>,
        visible: &[usize],
        online: &mut Online,
        acc: &mut [f32],
    ) {
        let n = offsets.len();
        let mut scores = [[0.0; BLOCK]; MAX_QUERIES];
        let mut first = 0;
        while n - first >= 4 {
            score::<V, 4, 2>(head_dim, q, &offsets[first..], block.keys, &mut scores[first..]);
            first += 4;
        }
        for i in first..n {
            score::<V, 1, 8>(head_dim, q, &offsets[i..], block.keys, &mut scores[i..]);
        }
        for i in 0..n {
            let scale = soften::<V>(&mut scores[i], visible[i], &mut online.max[i], &mut online.sum[i]);
            for x in acc[offsets[i]..][..head_dim].as_chunks_mut().0 {
                V::load(x).mul(V::splat(scale)).store(x);
            }
        }
        let mut first = 0;
        while n - first >= 4 {
            let seen = &visible[first..first + 4];
            // Queries with different views must not touch each other's values: 0 times an infinity is no zero.
            if seen.iter().all(|&v| v == seen[0]) {
                weigh::<V, 4>(head_dim, &scores[first..], &offsets[first..], block.values, seen[0], acc);
            } else {
                for i in first..first + 4 {
                    weigh::<V, 1>(head_dim, &scores[i..], &offsets[i..], block.values, visible[i], acc);
                }
            }
            first += 4;
        }
        for i in first..n {
            weigh::<V, 1>(head_dim, &scores[i..], &offsets[i..], block.values, visible[i], acc);
        }
    }
}

/// Scores of `R` queries with all keys of the block, `W` vectors of keys at a time.
#[inline(always)]
fn score<V: Lanes, const R: usize, const W: usize>(
    head_dim: usize,
    q: &[f32],
    offsets: &[usize],
    keys: &[f32],
    scores: &mut [[f32; BLOCK]],
) {
    let mut queries: [&[f32]; R] = [&[]; R];
    for r in 0..R {
        queries[r] = &q[offsets[r]..][..head_dim];
    }
    let keys = &keys.as_chunks::<BLOCK>().0[..head_dim];
    for part in 0..BLOCK / (W * LANES) {
        let mut sums = [[V::splat(0.0); W]; R];
        for (d, keys) in keys.iter().enumerate() {
            let keys = &keys.as_chunks::<LANES>().0[part * W..][..W];
            let mut part = [V::splat(0.0); W];
            for w in 0..W {
                part[w] = V::load(&keys[w]);
            }
            for r in 0..R {
                let q = V::splat(queries[r][d]);
                for w in 0..W {
                    sums[r][w] = part[w].fma(q, sums[r][w]);
                }
            }
        }
        for r in 0..R {
            let out = &mut scores[r].as_chunks_mut::<LANES>().0[part * W..][..W];
            for w in 0..W {
                sums[r][w].store(&mut out[w]);
            }
        }
    }
}

/// Turns scores into `e^(score - max)`, 0 past `visible`; returns what the sums so far have to be multiplied with.
#[inline(always)]
fn soften<V: Lanes>(scores: &mut [f32; BLOCK], visible: usize, max: &mut f32, sum: &mut f32) -> f32 {
    scores[visible..].fill(f32::NEG_INFINITY);
    let scores = scores.as_chunks_mut::<LANES>().0;
    let mut lanes = V::splat(f32::NEG_INFINITY);
    for s in scores.iter() {
        lanes = V::load(s).max(lanes);
    }
    let mut each = [0.0; LANES];
    lanes.store(&mut each);
    let new = each.iter().fold(*max, |m, &x| if x > m { x } else { m });
    let mut total = V::splat(0.0);
    for s in scores {
        let e = exp(V::load(s).sub(V::splat(new)));
        e.store(s);
        total = total.add(e);
    }
    let scale = exp_of::<V>(*max - new);
    *max = new;
    *sum = sum.mul_add(scale, total.sum());
    scale
}

#[inline(always)]
fn exp_of<V: Lanes>(x: f32) -> f32 {
    let mut out = [0.0; LANES];
    exp(V::splat(x)).store(&mut out);
    out[0]
}

/// `acc += scores values` for `R` queries over the first `visible` values, key by key.
#[inline(always)]
fn weigh<V: Lanes, const R: usize>(
    head_dim: usize,
    scores: &[[f32; BLOCK]],
    offsets: &[usize],
    values: &[f32],
    visible: usize,
    acc: &mut [f32],
) {
    let mut d = 0;
    while head_dim - d >= 2 * LANES {
        weigh_columns::<V, R, 2>(head_dim, d, scores, offsets, values, visible, acc);
        d += 2 * LANES;
    }
    if d < head_dim {
        weigh_columns::<V, R, 1>(head_dim, d, scores, offsets, values, visible, acc);
    }
}

#[inline(always)]
fn weigh_columns<V: Lanes, const R: usize, const W: usize>(
    head_dim: usize,
    d: usize,
    scores: &[[f32; BLOCK]],
    offsets: &[usize],
    values: &[f32],
    visible: usize,
    acc: &mut [f32],
) {
    let mut sums = [[V::splat(0.0); W]; R];
    for r in 0..R {
        let at = acc[offsets[r] + d..].as_chunks::<LANES>().0;
        for w in 0..W {
            sums[r][w] = V::load(&at[w]);
        }
    }
    for (j, values) in values.chunks_exact(head_dim).enumerate().take(visible.min(BLOCK)) {
        let values = values[d..d + W * LANES].as_chunks::<LANES>().0;
        let mut part = [V::splat(0.0); W];
        for w in 0..W {
            part[w] = V::load(&values[w]);
        }
        for r in 0..R {
            let weight = V::splat(scores[r][j]);
            for w in 0..W {
                sums[r][w] = part[w].fma(weight, sums[r][w]);
            }
        }
    }
    for r in 0..R {
        let at = acc[offsets[r] + d..].as_chunks_mut::<LANES>().0;
        for w in 0..W {
            sums[r][w].store(&mut at[w]);
        }
    }
}
