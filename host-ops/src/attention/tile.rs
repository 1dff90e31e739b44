//! Some queries against one block of keys and values.
//!
//! Both matrix products of a block run over panels of [`PANEL`] columns: as many queries as have their sums in registers
//! go together ([`group`]), and a panel is read front to back, which is also how memory likes to be read when there is a
//! single token and the cache is large.

use crate::simd::{self, LANES, Lanes, Stored, exp_of_negative, kernel};
use crate::wide::{Vector, WIDE};
use half::{bf16, f16};

/// Keys of a block, and tokens of a cache page.
pub const BLOCK: usize = 128;

/// Keys of a panel of keys, and columns of a panel of values.
pub(super) const PANEL: usize = WIDE;

/// Queries that one call can take.
pub(super) const MAX_QUERIES: usize = 48;

/// Queries that share what is loaded.
fn group() -> usize {
    #[cfg(target_arch = "x86_64")]
    if simd::level() == simd::Level::Avx512 {
        return crate::wide::Zmm::ROWS;
    }
    <simd::Plain as Vector>::ROWS
}

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

/// Queries as [`attend`] wants them: in [groups](group) (the last one of what is left), each `[head_dim, queries]`. `query`
/// gives the values of a query.
pub(super) fn pack<'a>(head_dim: usize, n: usize, query: impl Fn(usize) -> &'a [f32], out: &mut [f32]) {
    let group = group();
    for (g, out) in out[..n * head_dim].chunks_mut(group * head_dim).enumerate() {
        let rows = out.len() / head_dim;
        for r in 0..rows {
            for (out, &x) in out.iter_mut().skip(r).step_by(rows).zip(query(g * group + r)) {
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
    fn attend_full<V, W>(
        head_dim: usize,
        q: &[f32],
        block: Data<'_, f32, f32>,
        visible: &[usize],
        online: &mut Online,
        acc: &mut [f32],
    ) {
        attend_block::<V, W, f32, f32>(head_dim, q, block, visible, online, acc);
    }
}

kernel! {
    fn attend_half<V, W>(
        head_dim: usize,
        q: &[f32],
        block: Data<'_, f16, bf16>,
        visible: &[usize],
        online: &mut Online,
        acc: &mut [f32],
    ) {
        attend_block::<V, W, f16, bf16>(head_dim, q, block, visible, online, acc);
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

/// Calls `$f` with the number of rows as a constant.
macro_rules! for_rows {
    ($rows:expr, $f:ident::<$($t:ty),*>($($arg:expr),*)) => {
        match $rows {
            1 => $f::<$($t),*, 1>($($arg),*),
            2 => $f::<$($t),*, 2>($($arg),*),
            3 => $f::<$($t),*, 3>($($arg),*),
            4 => $f::<$($t),*, 4>($($arg),*),
            5 => $f::<$($t),*, 5>($($arg),*),
            6 => $f::<$($t),*, 6>($($arg),*),
            7 if W::ROWS > 6 => $f::<$($t),*, 7>($($arg),*),
            8 if W::ROWS > 6 => $f::<$($t),*, 8>($($arg),*),
            9 if W::ROWS > 6 => $f::<$($t),*, 9>($($arg),*),
            10 if W::ROWS > 6 => $f::<$($t),*, 10>($($arg),*),
            11 if W::ROWS > 6 => $f::<$($t),*, 11>($($arg),*),
            12 if W::ROWS > 6 => $f::<$($t),*, 12>($($arg),*),
            rows => unreachable!("{rows} rows"),
        }
    };
}

#[inline(always)]
fn attend_block<V: Lanes, W: Vector, K: Stored, E: Stored>(
    head_dim: usize,
    q: &[f32],
    block: Data<'_, K, E>,
    visible: &[usize],
    online: &mut Online,
    acc: &mut [f32],
) {
    let n = visible.len();
    let most = visible.last().map_or(0, |&v| v.min(BLOCK));
    let mut scores = [[0.0; BLOCK]; MAX_QUERIES];
    for (p, keys) in block.keys.chunks_exact(head_dim * PANEL).enumerate().take(most.div_ceil(PANEL)) {
        let keys = keys.as_chunks::<PANEL>().0;
        for (q, scores) in q[..n * head_dim].chunks(W::ROWS * head_dim).zip(scores[..n].chunks_mut(W::ROWS)) {
            for_rows!(scores.len(), score::<W, K>(q, keys, p, scores));
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
        for first in (0..n).step_by(W::ROWS) {
            let rows = first..(first + W::ROWS).min(n);
            let part = Weighed {
                scores: &scores[rows.clone()],
                scales: &scales[rows.clone()],
                visible: &visible[rows.clone()],
            };
            let acc = &mut acc[first * head_dim..rows.end * head_dim];
            // A width is a multiple of a vector of eight.
            match width {
                PANEL => for_rows!(rows.len(), weigh::<W, E>(head_dim, d, &part, values, acc)),
                _ => for_rows!(rows.len(), weigh::<V, E>(head_dim, d, &part, values, acc)),
            }
        }
    }
}

/// Scores of `R` queries with a panel of keys.
#[inline(always)]
fn score<W: Vector, K: Stored, const R: usize>(
    q: &[f32],
    keys: &[[K; PANEL]],
    panel: usize,
    scores: &mut [[f32; BLOCK]],
) {
    let mut sums = [W::all(0.0); R];
    for (q, keys) in q.as_chunks::<R>().0.iter().zip(keys) {
        let keys = W::read(keys);
        for r in 0..R {
            sums[r] = sums[r].plus(keys, W::all(q[r]));
        }
    }
    for (scores, sums) in scores.iter_mut().zip(sums) {
        sums.write(&mut scores[panel * PANEL..][..PANEL]);
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

/// `acc = scales acc + scores values` for `R` queries and a vector of columns, key by key.
#[inline(always)]
fn weigh<W: Vector, E: Stored, const R: usize>(
    head_dim: usize,
    d: usize,
    part: &Weighed<'_>,
    values: &[E],
    acc: &mut [f32],
) {
    let mut sums = [W::all(0.0); R];
    for r in 0..R {
        sums[r] = W::read(&acc[r * head_dim + d..][..W::LEN]).times(W::all(part.scales[r]));
    }
    let scores = &part.scores[..R];
    // What all of them see. The rest each on its own: a query must not meet a value that it does not see, because 0
    // times an infinity is no zero.
    let common = part.visible[0].min(BLOCK);
    for (j, values) in values.chunks_exact(W::LEN).enumerate().take(BLOCK) {
        if j >= common {
            break;
        }
        let values = W::read(values);
        for r in 0..R {
            sums[r] = sums[r].plus(values, W::all(scores[r][j]));
        }
    }
    for r in 0..R {
        for (j, values) in values.chunks_exact(W::LEN).enumerate().take(part.visible[r].min(BLOCK)).skip(common) {
            sums[r] = sums[r].plus(W::read(values), W::all(scores[r][j]));
        }
        sums[r].write(&mut acc[r * head_dim + d..][..W::LEN]);
    }
}
