//! The delta rule, one panel of value columns at a time:
//! `S = decay S; r = S^T k; S += k (beta (v - r))^T; o = S^T q`.

use super::Shape;
use crate::simd::{LANES, Lanes, kernel, load_padded};

/// Value columns of a panel: four vectors, whose sums and deltas all stay in registers.
pub(super) const PANEL: usize = 4 * LANES;

/// What the recurrence reads of each token.
pub(super) struct Tokens<'a> {
    pub(super) shape: &'a Shape,
    /// `[n, channels]`.
    pub(super) qkv: &'a [f32],
    /// `[n, 2 * value_heads]`.
    pub(super) gates: &'a [f32],
}

kernel! {
    /// Runs all tokens through panel `p` of `head`. `state`: `[key_dim, PANEL]`, `out`: `[n, PANEL]`.
    pub(super) fn run<V>(tokens: &Tokens<'_>, head: usize, p: usize, state: &mut [f32], out: &mut [f32]) {
        let shape = tokens.shape;
        let (key, dk) = (shape.key_width(), shape.key_dim);
        let key_head = head / (shape.value_heads / shape.key_heads);
        let first = 2 * key + head * shape.value_dim + p * PANEL;
        let columns = PANEL.min(shape.value_dim - p * PANEL);
        let rows = tokens.qkv.chunks_exact(shape.channels()).zip(tokens.gates.chunks_exact(2 * shape.value_heads));
        let state = state.as_chunks_mut::<PANEL>().0;
        for ((x, gates), out) in rows.zip(out.as_chunks_mut::<PANEL>().0) {
            let (q, k) = (&x[key_head * dk..][..dk], &x[key + key_head * dk..][..dk]);
            let v = &x[first..first + columns];
            step::<V>(state, q, k, v, gates[head], gates[shape.value_heads + head], out);
        }
    }
}

/// One token.
#[inline(always)]
fn step<V: Lanes>(
    state: &mut [[f32; PANEL]],
    q: &[f32],
    k: &[f32],
    v: &[f32],
    beta: f32,
    decay: f32,
    out: &mut [f32; PANEL],
) {
    let (beta, decay) = (V::splat(beta), V::splat(decay));
    let mut recalled = [V::splat(0.0); 4];
    for (s, &k) in state.iter().zip(k) {
        let k = V::splat(k);
        for (r, s) in recalled.iter_mut().zip(s.as_chunks().0) {
            *r = V::load(s).fma(k, *r);
        }
    }
    let mut delta = recalled;
    for (i, d) in delta.iter_mut().enumerate() {
        let v: V = load_padded(v.get(i * LANES..).map_or(&[], |v| &v[..v.len().min(LANES)]));
        *d = v.sub(d.mul(decay)).mul(beta);
    }
    let mut sums = [V::splat(0.0); 4];
    for ((s, &k), &q) in state.iter_mut().zip(k).zip(q) {
        let (k, q) = (V::splat(k), V::splat(q));
        for ((s, &d), o) in s.as_chunks_mut().0.iter_mut().zip(&delta).zip(&mut sums) {
            let new = k.fma(d, V::load(s).mul(decay));
            new.store(s);
            *o = new.fma(q, *o);
        }
    }
    for (o, sum) in out.as_chunks_mut().0.iter_mut().zip(sums) {
        sum.store(o);
    }
}
