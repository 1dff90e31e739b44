//! Gated grouped-query attention with a KV cache.

use super::{
    cache::{KvCache, KvFormat},
    tile::{BLOCK, Block, Data, MAX_QUERIES, Online, attend, pack, widen},
};
use crate::{
    norm,
    pool::Pool,
    rope,
    rows::{Rows, RowsMut},
    simd::{self, LANES, kernel, zip_in_place},
};
use std::sync::Arc;

/// The shape of one layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shape {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; `heads` is a multiple, at most 32 times.
    pub kv_heads: usize,
    /// Width of a head, a multiple of 8.
    pub head_dim: usize,
    /// Epsilon of the query and key norms.
    pub eps: f32,
}

impl Shape {
    /// Width of an input row: per head query and gate, then keys, then values.
    pub fn input_width(&self) -> usize {
        (2 * self.heads + 2 * self.kv_heads) * self.head_dim
    }

    /// Width of an output row.
    pub fn output_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of all keys, or of all values.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Whether [`forward`] can run it.
    pub fn is_valid(&self) -> bool {
        self.kv_heads > 0
            && self.heads.is_multiple_of(self.kv_heads)
            && (1..=MAX_GROUP).contains(&self.group())
            && self.head_dim > 0
            && self.head_dim.is_multiple_of(LANES)
    }

    /// Query heads of a key/value head.
    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }
}

/// Host-side weights of one layer, offsets from one.
#[derive(Debug, Clone, Copy)]
pub struct Weights<'a> {
    /// `[head_dim]`.
    pub q_norm: &'a [f32],
    /// `[head_dim]`.
    pub k_norm: &'a [f32],
}

/// Memory for the steps in between, kept from call to call.
#[derive(Debug, Default)]
pub struct Scratch {
    /// `[n, heads, head_dim]`: queries, normed, turned, scaled.
    q: Vec<f32>,
    /// `[n, kv_heads, head_dim]`: keys, normed and turned.
    k: Vec<f32>,
    /// `[n, kv_heads, head_dim]`: values.
    v: Vec<f32>,
    /// `[items, queries, head_dim + 2]`: what a span of keys gave each query: sums, their weight, the largest score.
    spans: Vec<f32>,
    /// `[n, heads, head_dim]`: what few tokens came to.
    few: Vec<f32>,
    /// One for each thread.
    tiles: Vec<Tile>,
}

/// What a thread needs for a tile of queries.
#[derive(Debug, Default)]
struct Tile {
    /// Queries, packed.
    q: Vec<f32>,
    /// `[queries, head_dim]`: sums of a span.
    part: Vec<f32>,
    /// `[queries, head_dim]`: sums of all spans.
    total: Vec<f32>,
    /// A block of keys and of values in f32.
    wide: [Vec<f32>; 2],
    /// `[tokens, heads, head_dim]`: what it came to.
    out: Vec<f32>,
    /// `[head_dim]`: a head's gates.
    gate: Vec<f32>,
}

impl Tile {
    fn fit(&mut self, shape: &Shape, format: KvFormat) {
        for x in [&mut self.q, &mut self.part, &mut self.total] {
            x.resize(MAX_QUERIES * shape.head_dim, 0.0);
        }
        if format == KvFormat::Half {
            self.wide.iter_mut().for_each(|x| x.resize(BLOCK * shape.head_dim, 0.0));
        }
        self.out.resize(MAX_QUERIES / shape.group() * shape.output_width(), 0.0);
        self.gate.resize(shape.head_dim, 0.0);
    }
}

/// Query heads of a key/value head, at most.
const MAX_GROUP: usize = 32;

/// Keys of a span, in blocks: spans are summed on their own and then merged, so that one token's attention can run on
/// several threads. Always, not only then: the bits may not depend on it.
const SPAN: usize = 4;

/// Appends `n` tokens to the cache and attends from them, between the `in` and `o` projections.
///
/// * `rope`: `n` rows, the tokens' positions
/// * `projected`: `[n, input_width]`: per head query and gate, then keys, then values
/// * `out`: `[n, output_width]`, already multiplied by the gates
///
/// # Panics
/// If the lengths do not fit, the cache is of another shape, or the shape is not [valid](Shape::is_valid).
#[expect(clippy::too_many_arguments)]
pub fn forward(
    pool: &Pool,
    shape: &Shape,
    weights: &Weights<'_>,
    rope: &rope::Table,
    cache: &mut KvCache,
    projected: &[f32],
    out: &mut [f32],
    scratch: &mut Scratch,
) {
    let (input, width, n) = (shape.input_width(), shape.output_width(), rope.rows());
    assert_eq!([projected.len(), out.len()], [n * input, n * width], "{n} tokens");
    let (projected, out) = (Rows::Full(projected, input), RowsMut::Full(out, width));
    forward_rows(pool, shape, weights, rope, cache, projected, out, scratch);
}

/// As [`forward`], for as many tokens as `rope` has rows, between buffers that have strides and may hold bf16.
///
/// # Panics
/// As [`forward`].
#[expect(clippy::too_many_arguments)]
pub fn forward_rows(
    pool: &Pool,
    shape: &Shape,
    weights: &Weights<'_>,
    rope: &rope::Table,
    cache: &mut KvCache,
    projected: Rows<'_>,
    mut out: RowsMut<'_>,
    scratch: &mut Scratch,
) {
    let (width, hd, n) = (shape.output_width(), shape.head_dim, rope.rows());
    assert!(out.holds(n, width), "{n} tokens");
    let before = cache.len();
    scratch.q.resize(n * width, 0.0);
    take_in(pool, shape, weights, rope, cache, projected, scratch, true);

    let Scratch { q, spans, few, tiles, .. } = scratch;
    tiles.resize_with(pool.threads().max(tiles.len()), Tile::default);
    tiles.iter_mut().for_each(|tile| tile.fit(shape, cache.format()));
    let run = Run { shape, cache, q, before };
    let open_gates = |t: usize, x: &mut [f32], gate: &mut [f32]| {
        for (h, x) in x.chunks_exact_mut(hd).enumerate() {
            projected.read(t, (2 * h + 1) * hd..(2 * h + 2) * hd, gate);
            open_gate(gate, x);
        }
    };
    if n * shape.kv_heads < 4 * pool.threads().max(2) {
        few.resize(n * width, 0.0);
        run.few(pool, n, few, spans, tiles);
        for (t, x) in few.chunks_exact_mut(width).enumerate() {
            open_gates(t, x, &mut tiles[0].gate[..hd]);
            out.put(t, x);
        }
    } else {
        let rows = MAX_QUERIES / shape.group();
        out.each_group(pool, tiles, (n, rows), &|tile, i, mut out| {
            let first = i * rows;
            let mut x = std::mem::take(&mut tile.out);
            let x_rows = &mut x[..rows.min(n - first) * width];
            for g in 0..shape.kv_heads {
                run.tile(first, g, tile, x_rows);
            }
            for (r, x) in x_rows.chunks_exact_mut(width).enumerate() {
                open_gates(first + r, x, &mut tile.gate[..hd]);
                out.put(r, x);
            }
            tile.out = x;
        });
    }
}

/// The part of [`forward_rows`] that later tokens need: appends keys and values to the cache and attends from none.
///
/// # Panics
/// As [`forward`].
pub fn remember_rows(
    pool: &Pool,
    shape: &Shape,
    weights: &Weights<'_>,
    rope: &rope::Table,
    cache: &mut KvCache,
    projected: Rows<'_>,
    scratch: &mut Scratch,
) {
    take_in(pool, shape, weights, rope, cache, projected, scratch, false);
}

/// Norms and turns keys, and queries where they are wanted, into the scratch, and appends keys and values to the cache.
#[expect(clippy::too_many_arguments)]
fn take_in(
    pool: &Pool,
    shape: &Shape,
    weights: &Weights<'_>,
    rope: &rope::Table,
    cache: &mut KvCache,
    projected: Rows<'_>,
    scratch: &mut Scratch,
    queries: bool,
) {
    let (input, width, kv, hd) = (shape.input_width(), shape.output_width(), shape.kv_width(), shape.head_dim);
    assert!(shape.is_valid(), "{shape:?}");
    assert_eq!(cache.shape(), shape, "the cache is another layer's");
    let n = rope.rows();
    assert!(projected.holds(n, input), "{n} tokens");
    assert_eq!([weights.q_norm.len(), weights.k_norm.len()], [hd; 2], "q_norm, k_norm");
    assert!(2 * rope.half() <= hd, "RoPE of {} values in a head of {hd}", 2 * rope.half());

    scratch.k.resize(n * kv, 0.0);
    scratch.v.resize(n * kv, 0.0);
    let scale = 1.0 / (hd as f32).sqrt();
    if queries {
        pool.run_chunks(&mut scratch.q, width, &|t, q| {
            for (h, q) in q.chunks_exact_mut(hd).enumerate() {
                projected.read(t, 2 * h * hd..(2 * h + 1) * hd, q);
                norm::rms_in_place(q, weights.q_norm, shape.eps);
                rope.rotate(t, q);
                multiply(q, scale);
            }
        });
    }
    pool.run_chunks2((&mut scratch.k, kv), (&mut scratch.v, kv), &|t, k, v| {
        projected.read(t, 2 * width..2 * width + kv, k);
        projected.read(t, 2 * width + kv..input, v);
        for k in k.chunks_exact_mut(hd) {
            norm::rms_in_place(k, weights.k_norm, shape.eps);
            rope.rotate(t, k);
        }
    });
    append(pool, shape, cache, &scratch.k, &scratch.v, n);
}

/// Writes the new keys and values into the cache, page by page.
fn append(pool: &Pool, shape: &Shape, cache: &mut KvCache, k: &[f32], v: &[f32], n: usize) {
    let kv = shape.kv_width();
    let (pages, slot) = cache.grow(n);
    pool.run_chunks(pages, 1, &|i, page| {
        // `grow` left these pages with one owner.
        let Some(page) = Arc::get_mut(&mut page[0]) else { return };
        let tokens = (i * BLOCK).saturating_sub(slot)..((i + 1) * BLOCK - slot).min(n);
        for t in tokens {
            page.put(shape.head_dim, (slot + t) % BLOCK, &k[t * kv..][..kv], &v[t * kv..][..kv]);
        }
    });
}

/// What all tiles of a call share.
struct Run<'a> {
    shape: &'a Shape,
    cache: &'a KvCache,
    /// `[n, heads, head_dim]`.
    q: &'a [f32],
    /// Tokens in the cache before this call's.
    before: usize,
}

impl Run<'_> {
    /// Attends from some tokens, the first being `t`, with the heads of group `g`. `out`: `[rows, heads, head_dim]`, of
    /// which the group's heads are written.
    fn tile(&self, t: usize, g: usize, tile: &mut Tile, out: &mut [f32]) {
        let (hd, width, group) = (self.shape.head_dim, self.shape.output_width(), self.shape.group());
        let n = out.len() / width * group;
        let at = |i: usize| i / group * width + (g * group + i % group) * hd;
        let mut ends = [0; MAX_QUERIES];
        for (i, end) in ends[..n].iter_mut().enumerate() {
            *end = self.before + t + i / group + 1;
        }
        let ends = &ends[..n];
        let Tile { q, part, total, wide, .. } = tile;
        pack(hd, n, |i| &self.q[t * width + at(i)..][..hd], q);
        let (part, total) = (&mut part[..n * hd], &mut total[..n * hd]);
        total.fill(0.0);
        let mut so_far = Online::START;
        for span in 0..ends[n - 1].div_ceil(SPAN * BLOCK) {
            let mut online = Online::START;
            part.fill(0.0);
            self.span(span, g, q, ends, wide, &mut online, part);
            for (i, (part, total)) in part.chunks_exact(hd).zip(total.chunks_exact_mut(hd)).enumerate() {
                // One that has seen nothing of this span.
                if online.max[i] == f32::NEG_INFINITY && online.sum[i] == 0.0 {
                    continue;
                }
                let part = (part, online.sum[i], online.max[i]);
                merge(part, total, &mut so_far.sum[i], &mut so_far.max[i]);
            }
        }
        for (i, total) in total.chunks_exact(hd).enumerate() {
            let out = &mut out[at(i)..][..hd];
            out.copy_from_slice(total);
            finish(out, so_far.sum[i]);
        }
    }

    /// Some queries against one span. `ends`: how many tokens of the cache each query sees, ascending.
    #[expect(clippy::too_many_arguments)]
    fn span(
        &self,
        span: usize,
        g: usize,
        q: &[f32],
        ends: &[usize],
        wide: &mut [Vec<f32>; 2],
        online: &mut Online,
        acc: &mut [f32],
    ) {
        let most = ends.last().map_or(0, |end| end.div_ceil(BLOCK));
        for b in span * SPAN..((span + 1) * SPAN).min(most) {
            let mut visible = [0; MAX_QUERIES];
            for (v, &end) in visible.iter_mut().zip(ends) {
                *v = end.saturating_sub(b * BLOCK).min(BLOCK);
            }
            let mut block = self.cache.block(b, g);
            // Few queries read it as it is, where memory is the limit; for many it is cheaper to widen it once.
            if let Block::Half(data) = block
                && ends.len() > 12
            {
                let [keys, values] = wide;
                widen(data, keys, values);
                block = Block::Full(Data { keys, values });
            }
            attend(self.shape.head_dim, q, block, &visible[..ends.len()], online, acc);
        }
    }

    /// Few tokens: every span of every (token, group) is an item of its own.
    fn few(&self, pool: &Pool, n: usize, out: &mut [f32], spans: &mut Vec<f32>, tiles: &mut [Tile]) {
        let (hd, group, groups) = (self.shape.head_dim, self.shape.group(), self.shape.kv_heads);
        let per_item = group * (hd + 2);
        let most = (self.before + n).div_ceil(SPAN * BLOCK);
        spans.resize(n * groups * most * per_item, 0.0);
        pool.run_chunks_with(tiles, (spans, per_item), &|tile, i, part| {
            let (t, g, span) = (i / (groups * most), i / most % groups, i % most);
            let end = self.before + t + 1;
            if span * SPAN * BLOCK >= end {
                return;
            }
            let (acc, rest) = part.split_at_mut(group * hd);
            acc.fill(0.0);
            let mut online = Online::START;
            let q = &self.q[(t * groups + g) * group * hd..];
            pack(hd, group, |i| &q[i * hd..][..hd], &mut tile.q);
            self.span(span, g, &tile.q, &[end; MAX_QUERIES][..group], &mut tile.wide, &mut online, acc);
            let (sum, max) = rest.split_at_mut(group);
            sum.copy_from_slice(&online.sum[..group]);
            max.copy_from_slice(&online.max[..group]);
        });
        for (item, out) in out.chunks_exact_mut(group * hd).enumerate() {
            let end = self.before + item / groups + 1;
            let used = end.div_ceil(SPAN * BLOCK);
            let parts = || spans[item * most * per_item..].chunks_exact(per_item).take(used);
            for (h, out) in out.chunks_exact_mut(hd).enumerate() {
                out.fill(0.0);
                let (mut sum, mut max) = (0.0, f32::NEG_INFINITY);
                for part in parts() {
                    let (acc, rest) = part.split_at(group * hd);
                    merge((&acc[h * hd..][..hd], rest[h], rest[group + h]), out, &mut sum, &mut max);
                }
                finish(out, sum);
            }
        }
    }
}

kernel! {
    /// Adds a span's (sums, weight, largest score) to a query's.
    fn merge<V>(part: (&[f32], f32, f32), out: &mut [f32], sum: &mut f32, max: &mut f32) {
        let new = if part.2 > *max { part.2 } else { *max };
        let mut scales = [*max, part.2, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0].map(|m| m - new);
        simd::exp(V::load(&scales)).store(&mut scales);
        let [old, fresh, ..] = scales;
        *sum = (*sum).mul_add(old, part.1 * fresh);
        *max = new;
        zip_in_place::<V>(out, part.0, |o, p| o.fma(V::splat(old), p.mul(V::splat(fresh))));
    }
}

kernel! {
    fn finish<V>(out: &mut [f32], sum: f32) {
        simd::map::<V>(out, |x| x.div(V::splat(sum)));
    }
}

kernel! {
    /// `out *= sigmoid(gate)`.
    fn open_gate<V>(gate: &[f32], out: &mut [f32]) {
        zip_in_place::<V>(out, gate, |x, gate| x.mul(simd::sigmoid(gate)));
    }
}

kernel! {
    fn multiply<V>(x: &mut [f32], by: f32) {
        simd::map::<V>(x, |x| x.mul(V::splat(by)));
    }
}

#[cfg(test)]
#[path = "text_tests.rs"]
mod tests;
