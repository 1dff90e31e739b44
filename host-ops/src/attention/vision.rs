//! Full attention over the patches of one image.

use super::tile::{BLOCK, Block, Data, MAX_QUERIES, Online, PANEL, attend, key_at, pack, values_at};
use crate::{
    pool::Pool,
    rope,
    rows::RowsMut,
    simd::{self, LANES, kernel},
};

/// The shape of one block's attention.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct VisionShape {
    /// Heads.
    pub heads: usize,
    /// Width of a head, a multiple of 8.
    pub head_dim: usize,
}

impl VisionShape {
    /// Width of an output row.
    pub fn width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Whether [`vision_forward`] can run it.
    pub fn is_valid(&self) -> bool {
        self.heads > 0 && self.head_dim > 0 && self.head_dim.is_multiple_of(LANES)
    }
}

/// Memory for the steps in between, kept from call to call.
#[derive(Debug, Default)]
pub struct Scratch {
    /// `[blocks, heads, keys of a block]`, see [`Data`].
    keys: Vec<f32>,
    /// `[blocks, heads, values of a block]`.
    values: Vec<f32>,
    /// Patches whose keys and values these are.
    patches: usize,
    /// One for each thread.
    tiles: Vec<Tile>,
}

/// What a thread needs for a tile of queries.
#[derive(Debug, Default)]
struct Tile {
    /// `[queries, head_dim]`, turned and scaled, and the same packed.
    q: [Vec<f32>; 2],
    /// `[queries, head_dim]`.
    acc: Vec<f32>,
    /// `[queries, heads, head_dim]`: what all heads came to.
    out: Vec<f32>,
}

/// Full attention over `n` patches of one image, online softmax in tiles: no `n` x `n` matrix exists.
///
/// * `rope`: `n` rows over the whole head
/// * `qkv`: `[n, 3 * heads * head_dim]`: queries of all heads, keys, values
/// * `out`: `[n, heads * head_dim]`
///
/// # Panics
/// If the lengths do not fit or the shape is not [valid](VisionShape::is_valid).
pub fn vision_forward(
    pool: &Pool,
    shape: &VisionShape,
    rope: &rope::Table,
    qkv: &[f32],
    out: &mut [f32],
    scratch: &mut Scratch,
) {
    assert_eq!(qkv.len(), 3 * out.len(), "qkv and out");
    vision_keys(pool, shape, rope, qkv, scratch);
    vision_rows(pool, shape, rope, (qkv, 0), RowsMut::Full(out, shape.width()), scratch);
}

/// The first half of [`vision_forward`]: takes in all keys and values.
///
/// # Panics
/// As [`vision_forward`].
pub fn vision_keys(pool: &Pool, shape: &VisionShape, rope: &rope::Table, qkv: &[f32], scratch: &mut Scratch) {
    let (width, hd) = (shape.width(), shape.head_dim);
    assert!(shape.is_valid(), "{shape:?}");
    let n = qkv.len() / (3 * width);
    assert_eq!([qkv.len(), rope.rows()], [3 * n * width, n], "{n} patches");
    assert_eq!(2 * rope.half(), hd, "RoPE over the whole head");
    let blocks = n.div_ceil(BLOCK);
    let page = width * BLOCK;

    scratch.keys.resize(blocks * page, 0.0);
    scratch.values.resize(blocks * page, 0.0);
    scratch.tiles.resize_with(pool.threads().max(scratch.tiles.len()), Tile::default);
    for tile in &mut scratch.tiles {
        tile.q.iter_mut().chain([&mut tile.acc]).for_each(|x| x.resize(MAX_QUERIES * hd, 0.0));
        tile.out.resize(MAX_QUERIES * width, 0.0);
    }
    pool.run_chunks2((&mut scratch.keys, hd * BLOCK), (&mut scratch.values, hd * BLOCK), &|i, keys, values| {
        let (b, h) = (i / shape.heads, i % shape.heads);
        for t in b * BLOCK..((b + 1) * BLOCK).min(n) {
            let (slot, row) = (t % BLOCK, &qkv[(3 * t + 1) * width..][..2 * width]);
            let (key, value) = (&row[h * hd..][..hd], &row[width + h * hd..][..hd]);
            let (a, b) = key.split_at(hd / 2);
            let (cos, sin) = rope.row(t);
            let out = &mut keys[key_at(hd, slot, 0)..];
            for d in 0..hd / 2 {
                out[d * PANEL] = a[d] * cos[d] - b[d] * sin[d];
                out[(hd / 2 + d) * PANEL] = b[d] * cos[d] + a[d] * sin[d];
            }
            for (i, value) in value.chunks(PANEL).enumerate() {
                values[values_at(hd, slot, i * PANEL)].copy_from_slice(value);
            }
        }
    });
    scratch.patches = n;
}

/// The second half: attends from the patches from `from` on, to all whose keys were taken in. `qkv` and `out` are their
/// rows; any cut of the patches gives the same bits.
///
/// # Panics
/// As [`vision_forward`]; if there are no such patches.
pub fn vision_rows(
    pool: &Pool,
    shape: &VisionShape,
    rope: &rope::Table,
    (qkv, from): (&[f32], usize),
    mut out: RowsMut<'_>,
    scratch: &mut Scratch,
) {
    let (width, hd, n) = (shape.width(), shape.head_dim, scratch.patches);
    assert!(shape.is_valid(), "{shape:?}");
    let queries = qkv.len() / (3 * width);
    assert_eq!([qkv.len() % (3 * width), rope.rows()], [0, n], "{n} patches");
    assert!(from + queries <= n && out.holds(queries, width), "{queries} patches from {from} on of {n}");
    let blocks = n.div_ceil(BLOCK);
    let scale = 1.0 / (hd as f32).sqrt();
    let (keys, values) = (&scratch.keys, &scratch.values);
    out.each_group(pool, &mut scratch.tiles, (queries, MAX_QUERIES), &|tile, i, mut to| {
        let first = i * MAX_QUERIES;
        let rows = MAX_QUERIES.min(queries - first);
        let Tile { q: [q, packed], acc, out } = tile;
        let acc = &mut acc[..rows * hd];
        for h in 0..shape.heads {
            for (r, q) in q.chunks_exact_mut(hd).enumerate().take(rows) {
                q.copy_from_slice(&qkv[3 * (first + r) * width + h * hd..][..hd]);
                rope.rotate(from + first + r, q);
                q.iter_mut().for_each(|q| *q *= scale);
            }
            pack(hd, rows, |r| &q[r * hd..][..hd], packed);
            acc.fill(0.0);
            let mut online = Online::START;
            for b in 0..blocks {
                let at = (b * shape.heads + h) * hd * BLOCK;
                let block = Data { keys: &keys[at..][..hd * BLOCK], values: &values[at..][..hd * BLOCK] };
                let visible = [(n - b * BLOCK).min(BLOCK); MAX_QUERIES];
                attend(hd, packed, Block::Full(block), &visible[..rows], &mut online, acc);
            }
            for (r, acc) in acc.chunks_exact(hd).enumerate() {
                divide(acc, online.sum[r], &mut out[r * width + h * hd..][..hd]);
            }
        }
        for (r, out) in out.chunks_exact(width).enumerate().take(rows) {
            to.put(r, out);
        }
    });
}

kernel! {
    fn divide<V>(x: &[f32], by: f32, out: &mut [f32]) {
        simd::zip::<V>(x, x, out, |x, _| x.div(V::splat(by)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Random, bits, max_difference};

    fn table(grid: [usize; 2], head_dim: usize) -> rope::Table {
        let mut table = rope::Table::new();
        rope::Vision::new(head_dim, 1e4).fill(grid, 2, &mut table);
        table
    }

    /// The definition, in f64.
    fn defined(shape: &VisionShape, rope: &rope::Table, qkv: &[f32]) -> Vec<f32> {
        let (width, hd) = (shape.width(), shape.head_dim);
        let n = qkv.len() / (3 * width);
        let head = |t: usize, part: usize, h: usize| -> Vec<f64> {
            let mut x = qkv[(3 * t + part) * width + h * hd..][..hd].to_vec();
            if part < 2 {
                rope.rotate(t, &mut x);
            }
            x.into_iter().map(f64::from).collect()
        };
        let mut out = vec![0.0; n * width];
        for h in 0..shape.heads {
            let keys: Vec<_> = (0..n).map(|t| head(t, 1, h)).collect();
            let values: Vec<_> = (0..n).map(|t| head(t, 2, h)).collect();
            for t in 0..n {
                let q = head(t, 0, h);
                let weights: Vec<f64> = keys
                    .iter()
                    .map(|k| (q.iter().zip(k).map(|(q, k)| q * k).sum::<f64>() / (hd as f64).sqrt()).exp())
                    .collect();
                let sum: f64 = weights.iter().sum();
                for d in 0..hd {
                    let o: f64 = weights.iter().zip(&values).map(|(w, v)| w * v[d]).sum();
                    out[t * width + h * hd + d] = (o / sum) as f32;
                }
            }
        }
        out
    }

    #[test]
    fn follows_the_definition_with_the_same_bits_everywhere() {
        for (grid, head_dim) in [([2, 2], 8), ([8, 10], 16), ([14, 12], 72)] {
            let shape = VisionShape { heads: 3, head_dim };
            let n = grid[0] * grid[1];
            let qkv = Random::new(16).normal(3 * n * shape.width());
            let rope = table(grid, head_dim);
            let run = |threads: usize, scratch: &mut Scratch| {
                let mut out = vec![f32::NAN; n * shape.width()];
                vision_forward(&Pool::new(threads), &shape, &rope, &qkv, &mut out, scratch);
                out
            };
            // A scratch that a larger image has used.
            let mut used =
                Scratch { keys: vec![f32::NAN; 1 << 20], values: vec![f32::NAN; 1 << 20], ..Scratch::default() };
            let one = run(1, &mut Scratch::default());
            let expected = defined(&shape, &rope, &qkv);
            assert!(max_difference(&one, &expected) < 2e-6, "{}", max_difference(&one, &expected));
            assert_eq!(bits(&one), bits(&run(2, &mut used)));
            assert_eq!(bits(&one), bits(&run(3, &mut Scratch::default())));
            assert_eq!(bits(&one), bits(&simd::plain(|| run(1, &mut Scratch::default()))));
            let avx2 = simd::at_level(simd::Level::Avx2, || run(1, &mut Scratch::default()));
            assert_eq!(bits(&one), bits(&avx2));
            // In parts, as a pipeline takes them.
            let (pool, width, mut scratch) = (Pool::new(2), shape.width(), Scratch::default());
            vision_keys(&pool, &shape, &rope, &qkv, &mut scratch);
            let mut parts = vec![f32::NAN; n * width];
            for (i, out) in parts.chunks_mut(5 * width).enumerate() {
                let own = &qkv[15 * i * width..][..3 * out.len()];
                vision_rows(&pool, &shape, &rope, (own, 5 * i), RowsMut::Full(out, width), &mut scratch);
            }
            assert_eq!(bits(&one), bits(&parts));
        }
    }

    #[test]
    fn equal_values_come_out_as_they_are() {
        // Equal values: the weights sum to one.
        let shape = VisionShape { heads: 2, head_dim: 16 };
        let mut qkv = Random::new(17).normal(3 * 64 * 32);
        qkv.chunks_exact_mut(96).for_each(|row| row[64..].fill(-2.5));
        let mut out = vec![0.0; 64 * 32];
        vision_forward(&Pool::serial(), &shape, &table([8, 8], 16), &qkv, &mut out, &mut Scratch::default());
        assert!(out.iter().all(|x| (x + 2.5).abs() < 1e-5));
    }
}
