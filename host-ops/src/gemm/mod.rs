//! Matrix kernels over packed weights: what a GEMM or GEMV kernel of the NPU computes, bit for bit reproducible.
//!
//! Every output has one f32 accumulator that starts at zero and takes one fused multiply-add per k, k ascending.
//! Nothing else touches it before the bias, so GEMM and GEMV, plain and vector code, and any number of threads give
//! the same bits.
//!
//! With blocks ([`Format::Bfp16`], [`Format::Bfp6s`]) an activation is what the cores make of it: per 8 consecutive k, `hi = Q(a)` and
//! `lo = Q(a - hi)`, where Q rounds to bfp16ebs8; `hi + lo` is then exact in f32 and multiplies the decoded weight. With
//! [`Format::F32`] nothing is rounded but the accumulator.
//!
//! The working unit is an *atom*: 8 columns of 8 consecutive k, eight blocks one after the other (72 bytes of bfp16).
//! Units of bfp6s are expanded to sixteen such atoms that hold the same values.

#[allow(unsafe_code)]
pub(crate) mod block;
mod weight;

use crate::bfp6s::{self, Atoms, UNIT_BYTES};
use crate::pack::Format;
use crate::simd::{Lanes, kernel};
use crate::wide::{Vector, WIDE};
use block::Blocks as _;
use std::ops::Range;
pub use weight::Weight;

/// Columns of B that [`gemm`] works on at a time: one column block of the stream.
pub const BLOCK_COLUMNS: usize = 64;
/// Rows of A that are interleaved by [`pack_rows`].
pub const TILE_ROWS: usize = 4;
/// Columns of one panel.
const PANEL: usize = WIDE;
/// k that a tile of C takes at a time, so that its piece of a panel stays in the L1 cache.
const K_SLICE: usize = 256;
/// k of one slice of the stream.
const STREAM_K: usize = 128;
/// Bytes between what is fetched and what is worked on. In the stream, two k slices of a column block: its groups are
/// walked side by side in pieces that are too short for the hardware to see where they lead. In rows, some lines.
const STREAM_AHEAD: usize = 2 * 8 * 16 * 72;
const ROWS_AHEAD: usize = 2048;

/// Replaces activations by what a bfp16 core multiplies with: `hi + lo`, per 8 values.
///
/// # Panics
/// If the length is no multiple of 8.
pub fn split(x: &mut [f32]) {
    assert!(x.len().is_multiple_of(8), "activations come in groups of 8");
    split_kernel(x);
}

kernel! {
    fn split_kernel<V>(x: &mut [f32]) {
        for group in x.as_chunks_mut().0 {
            split_group(V::load(group)).store(group);
        }
    }
}

#[inline(always)]
fn split_group<V: Lanes>(a: V) -> V {
    let hi = a.quantise();
    hi.add(a.sub(hi).quantise())
}

/// Prepares rows of A for [`gemm`]: `rows` is `[R, k]` row-major, R a multiple of [`TILE_ROWS`]; `out`, as long, takes
/// `[R / 4, k, 4]`, the values split as [`split`] does if `format` asks for it.
///
/// # Panics
/// If the lengths do not fit.
pub fn pack_rows(format: Format, rows: &[f32], k: usize, out: &mut [f32]) {
    assert!(k > 0 && k.is_multiple_of(8) && rows.len().is_multiple_of(k * TILE_ROWS) && rows.len() == out.len());
    for (rows, out) in rows.chunks_exact(k * TILE_ROWS).zip(out.chunks_exact_mut(k * TILE_ROWS)) {
        pack_kernel(format, rows, k, out);
    }
}

kernel! {
    fn pack_kernel<V>(format: Format, rows: &[f32], k: usize, out: &mut [f32]) {
        let out = out.as_chunks_mut::<TILE_ROWS>().0;
        for (r, row) in rows.chunks_exact(k).enumerate() {
            for (group, out) in row.as_chunks::<8>().0.iter().zip(out.as_chunks_mut::<8>().0) {
                let mut values = *group;
                if format != Format::F32 {
                    split_group(V::load(group)).store(&mut values);
                }
                for (value, out) in values.iter().zip(out) {
                    out[r] = *value;
                }
            }
        }
    }
}

/// Decodes one column block of a B stream (without its bias chunk) for [`gemm`]: `k` rows of 64 columns;
/// `panels`: `[4, k, 16]`.
///
/// # Panics
/// If `k` is no multiple of 128 or the lengths do not fit.
pub fn unpack_block(format: Format, packed: &[u8], k: usize, panels: &mut [f32]) {
    assert!(k > 0 && k.is_multiple_of(STREAM_K) && packed.len() == format.bytes(k * BLOCK_COLUMNS));
    assert!(panels.len() == k * BLOCK_COLUMNS);
    unpack_kernel(format, packed, k, panels);
}

kernel! {
    fn unpack_kernel<V>(format: Format, packed: &[u8], k: usize, panels: &mut [f32]) {
        match format {
            Format::Bfp16 => unpack::<V, 72>(packed, k, panels, |atom| V::bfp16_atom(atom)),
            Format::Bfp6s => {
                let mut atoms = [[0; 72]; 16];
                for (u, unit) in packed.as_chunks().0.iter().enumerate() {
                    bfp6s::expand(unit, &mut atoms);
                    unpack_unit(u, &atoms, k, panels, |atom| V::bfp16_atom(atom));
                }
            }
            Format::F32 => unpack::<V, 256>(packed, k, panels, |atom| V::f32_atom(atom)),
        }
    }
}

#[inline(always)]
fn unpack<V: Lanes, const ATOM: usize>(
    packed: &[u8],
    k: usize,
    panels: &mut [f32],
    decode: impl Fn(&[u8; ATOM]) -> [V; 8],
) {
    let atoms = packed.as_chunks::<ATOM>().0;
    for (u, unit) in atoms.chunks_exact(STREAM_K / 8).enumerate() {
        unpack_unit(u, unit, k, panels, &decode);
    }
}

/// The sixteen atoms of unit `u` of a column block.
#[inline(always)]
fn unpack_unit<V: Lanes, const ATOM: usize>(
    u: usize,
    unit: &[[u8; ATOM]],
    k: usize,
    panels: &mut [f32],
    decode: impl Fn(&[u8; ATOM]) -> [V; 8],
) {
    let (slice, group) = (u / 8, u % 8);
    let start = group / 2 * k * PANEL + slice * STREAM_K * PANEL;
    let rows = panels[start..start + STREAM_K * PANEL].as_chunks_mut::<PANEL>().0;
    for (atom, rows) in unit.iter().zip(rows.as_chunks_mut::<8>().0) {
        for (values, row) in decode(atom).into_iter().zip(rows) {
            values.store(&mut row.as_chunks_mut::<8>().0[group % 2]);
        }
    }
}

/// One column block of a matrix product: `a` from [`pack_rows`], `panels` from [`unpack_block`],
/// `out` `[R, 64]` row-major f32 accumulators.
///
/// # Panics
/// If the lengths do not fit.
pub fn gemm(a: &[f32], panels: &[f32], k: usize, out: &mut [f32]) {
    assert!(k > 0 && panels.len() == k * BLOCK_COLUMNS);
    assert!(a.len().is_multiple_of(k * TILE_ROWS) && out.len() == a.len() / k * BLOCK_COLUMNS);
    gemm_kernel(a, panels, k, out);
}

kernel! {
    fn gemm_kernel<V, W>(a: &[f32], panels: &[f32], k: usize, out: &mut [f32]) {
        out.fill(0.0);
        for k0 in (0..k).step_by(K_SLICE) {
            let slice = k0..(k0 + K_SLICE).min(k);
            // As many panels together as have their sums in registers.
            if W::ROWS >= 2 * TILE_ROWS {
                columns::<W, 2>(a, panels, k, slice, out);
            } else {
                columns::<W, 1>(a, panels, k, slice, out);
            }
        }
    }
}

/// Some k of all columns, `P` panels at a time.
#[inline(always)]
fn columns<W: Vector, const P: usize>(a: &[f32], panels: &[f32], k: usize, slice: Range<usize>, out: &mut [f32]) {
    for (p, panels) in panels.chunks_exact(P * k * PANEL).enumerate() {
        let mut parts = [&[][..]; P];
        for (part, panel) in parts.iter_mut().zip(panels.chunks_exact(k * PANEL)) {
            *part = panel[slice.start * PANEL..slice.end * PANEL].as_chunks::<PANEL>().0;
        }
        for (rows, out) in a.chunks_exact(k * TILE_ROWS).zip(out.chunks_exact_mut(TILE_ROWS * BLOCK_COLUMNS)) {
            let rows = rows[slice.start * TILE_ROWS..slice.end * TILE_ROWS].as_chunks::<TILE_ROWS>().0;
            tile::<W, P>(rows, parts, out, p * P);
        }
    }
}

/// Adds to four rows of some panels' columns, the first of which is `p`.
#[inline(always)]
fn tile<W: Vector, const P: usize>(rows: &[[f32; TILE_ROWS]], panels: [&[[f32; PANEL]]; P], out: &mut [f32], p: usize) {
    let at = |r: usize, part: usize| r * BLOCK_COLUMNS + (p + part) * PANEL;
    let mut acc = [[W::all(0.0); P]; TILE_ROWS];
    for r in 0..TILE_ROWS {
        for part in 0..P {
            acc[r][part] = W::read(&out[at(r, part)..][..PANEL]);
        }
    }
    let panels = panels.map(|panel| &panel[..rows.len()]);
    for (i, a) in rows.iter().enumerate() {
        let mut b = [W::all(0.0); P];
        for part in 0..P {
            b[part] = W::read(&panels[part][i]);
        }
        for r in 0..TILE_ROWS {
            let a = W::all(a[r]);
            for part in 0..P {
                acc[r][part] = acc[r][part].plus(a, b[part]);
            }
        }
    }
    for r in 0..TILE_ROWS {
        for part in 0..P {
            acc[r][part].write(&mut out[at(r, part)..][..PANEL]);
        }
    }
}

/// A matrix-vector product over one column block of a B stream (without its bias chunk): `x` `[k]`, already
/// [`split`] if the format asks for it; `y` takes the 64 f32 accumulators.
///
/// # Panics
/// If the lengths do not fit or k is no multiple of 128.
pub fn gemv_block(format: Format, packed: &[u8], x: &[f32], y: &mut [f32; BLOCK_COLUMNS]) {
    let k = x.len();
    assert!(k > 0 && k.is_multiple_of(STREAM_K) && packed.len() == format.bytes(k * BLOCK_COLUMNS));
    gemv_block_kernel(format, packed, x, y);
}

kernel! {
    fn gemv_block_kernel<V>(format: Format, packed: &[u8], x: &[f32], y: &mut [f32; BLOCK_COLUMNS]) {
        match format {
            Format::Bfp16 => {
                let mut tame = tame(x);
                stream_block::<V, 72>(packed, x, y, |atoms, x, acc| V::chain::<4, STREAM_AHEAD>(atoms, x, acc, &mut tame));
            }
            Format::Bfp6s => {
                let mut tame = tame(x);
                let (mut acc, mut atoms) = ([[V::splat(0.0); 4]; 2], [[[0; 72]; 16]; 4]);
                for (x, slice) in x.chunks_exact(STREAM_K).zip(packed.as_chunks().0.chunks_exact(8)) {
                    for (acc, units) in acc.iter_mut().zip(slice.as_chunks().0) {
                        six::<V, 4>(units.each_ref(), x, acc, &mut atoms, &mut tame);
                    }
                }
                for (v, y) in acc.into_iter().flatten().zip(y.as_chunks_mut().0) {
                    v.store(y);
                }
            }
            Format::F32 => {
                stream_block::<V, 256>(packed, x, y, |atoms, x, acc| groups(atoms, x, acc, &|atom| V::f32_atom(atom)));
            }
        }
    }
}

#[inline(always)]
fn stream_block<V: Lanes, const ATOM: usize>(
    packed: &[u8],
    x: &[f32],
    y: &mut [f32; BLOCK_COLUMNS],
    mut chain: impl FnMut([&[[u8; ATOM]]; 4], &[f32], &mut [V; 4]),
) {
    const UNIT: usize = STREAM_K / 8;
    let mut acc = [[V::splat(0.0); 4]; 2];
    let atoms = packed.as_chunks::<ATOM>().0;
    for (x, slice) in x.chunks_exact(STREAM_K).zip(atoms.chunks_exact(8 * UNIT)) {
        for (acc, units) in acc.iter_mut().zip(slice.chunks_exact(4 * UNIT)) {
            chain(std::array::from_fn(|g| &units[g * UNIT..][..UNIT]), x, acc);
        }
    }
    for (v, y) in acc.into_iter().flatten().zip(y.as_chunks_mut().0) {
        v.store(y);
    }
}

/// A matrix-vector product over rows in the row layout: `packed` holds `y.len() / 8` groups of `x.len() / 8` atoms; `x`
/// is already [`split`] if the format asks for it.
///
/// # Panics
/// If the lengths do not fit; in [`Format::Bfp6s`] x comes in multiples of 128.
pub fn gemv_rows(format: Format, packed: &[u8], x: &[f32], y: &mut [f32]) {
    assert!(!x.is_empty() && x.len().is_multiple_of(8) && y.len().is_multiple_of(8));
    assert!(packed.len() == format.bytes(y.len() * x.len()));
    assert!(format != Format::Bfp6s || x.len().is_multiple_of(STREAM_K));
    gemv_rows_kernel(format, packed, x, y);
}

kernel! {
    fn gemv_rows_kernel<V>(format: Format, packed: &[u8], x: &[f32], y: &mut [f32]) {
        match format {
            Format::Bfp16 => {
                let tame = tame(x);
                row_groups::<V, 72>(
                    packed,
                    x,
                    y,
                    |atoms, x, acc| V::chain::<4, ROWS_AHEAD>(atoms, x, acc, &mut { tame }),
                    |atoms, x, acc| V::chain::<1, ROWS_AHEAD>(atoms, x, acc, &mut { tame }),
                );
            }
            Format::Bfp6s => six_rows::<V>(packed, x, y),
            Format::F32 => row_groups::<V, 256>(
                packed,
                x,
                y,
                |atoms, x, acc| groups(atoms, x, acc, &|atom| V::f32_atom(atom)),
                |atoms, x, acc| groups(atoms, x, acc, &|atom| V::f32_atom(atom)),
            ),
        }
    }
}

#[inline(always)]
fn row_groups<V: Lanes, const ATOM: usize>(
    packed: &[u8],
    x: &[f32],
    y: &mut [f32],
    four: impl Fn([&[[u8; ATOM]]; 4], &[f32], &mut [V; 4]),
    one: impl Fn([&[[u8; ATOM]]; 1], &[f32], &mut [V; 1]),
) {
    let n = x.len() / 8;
    let atoms = packed.as_chunks::<ATOM>().0;
    let fours = y.len() / 32;
    for (y, atoms) in y.chunks_exact_mut(32).zip(atoms.chunks_exact(4 * n)) {
        let mut acc = [V::splat(0.0); 4];
        four(std::array::from_fn(|g| &atoms[g * n..][..n]), x, &mut acc);
        for (v, y) in acc.into_iter().zip(y.as_chunks_mut().0) {
            v.store(y);
        }
    }
    for (y, atoms) in y[fours * 32..].as_chunks_mut().0.iter_mut().zip(atoms[fours * 4 * n..].chunks_exact(n)) {
        let mut acc = [V::splat(0.0)];
        one([atoms], x, &mut acc);
        acc[0].store(y);
    }
}

/// Adds 128 k of G groups of eight columns, a unit each.
#[inline(always)]
fn six<V: Lanes, const G: usize>(
    units: [&[u8; UNIT_BYTES]; G],
    x: &[f32],
    acc: &mut [V; G],
    atoms: &mut [Atoms; G],
    tame: &mut bool,
) {
    for (unit, atoms) in units.into_iter().zip(&mut *atoms) {
        bfp6s::expand(unit, atoms);
    }
    V::chain::<G, 0>(atoms.each_ref().map(|atoms| &atoms[..]), x, acc, tame);
}

#[inline(always)]
fn six_rows<V: Lanes>(packed: &[u8], x: &[f32], y: &mut [f32]) {
    let (units, n) = (packed.as_chunks::<UNIT_BYTES>().0, x.len() / STREAM_K);
    let (all_tame, mut atoms) = (tame(x), [[[0; 72]; 16]; 4]);
    let fours = y.len() / 32;
    for (y, units) in y.chunks_exact_mut(32).zip(units.chunks_exact(4 * n)) {
        let (mut acc, mut tame) = ([V::splat(0.0); 4], all_tame);
        for (i, x) in x.chunks_exact(STREAM_K).enumerate() {
            six::<V, 4>(std::array::from_fn(|g| &units[g * n + i]), x, &mut acc, &mut atoms, &mut tame);
        }
        for (v, y) in acc.into_iter().zip(y.as_chunks_mut().0) {
            v.store(y);
        }
    }
    let mut atoms = [[[0; 72]; 16]];
    for (y, units) in y[fours * 32..].as_chunks_mut().0.iter_mut().zip(units[fours * 4 * n..].chunks_exact(n)) {
        let (mut acc, mut tame) = ([V::splat(0.0)], all_tame);
        for (unit, x) in units.iter().zip(x.chunks_exact(STREAM_K)) {
            six::<V, 1>([unit], x, &mut acc, &mut atoms, &mut tame);
        }
        acc[0].store(y);
    }
}

/// Whether activations are such that accumulators can be scaled in place of weights, see `chain` of the vectors.
#[inline(always)]
fn tame(x: &[f32]) -> bool {
    const LEAST: u32 = (127 - 60) << 23;
    const MOST: u32 = (127 + 20) << 23;
    let value = |x: &f32| {
        let size = x.to_bits() & 0x7fff_ffff;
        size == 0 || size.wrapping_sub(LEAST) <= MOST - LEAST
    };
    x.len() <= 1 << 16 && x.iter().fold(true, |all, x| all & value(x))
}

/// Walks G groups of 8 columns side by side: their chains of additions are independent and hide each other's latency.
#[inline(always)]
fn groups<V: Lanes, const G: usize, const ATOM: usize>(
    atoms: [&[[u8; ATOM]]; G],
    x: &[f32],
    acc: &mut [V; G],
    decode: &impl Fn(&[u8; ATOM]) -> [V; 8],
) {
    for (i, x) in x.as_chunks::<8>().0.iter().enumerate() {
        for (acc, atoms) in acc.iter_mut().zip(atoms) {
            for (w, &x) in decode(&atoms[i]).into_iter().zip(x) {
                *acc = w.fma(V::splat(x), *acc);
            }
        }
    }
}

#[cfg(test)]
mod tests;
