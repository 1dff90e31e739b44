//! Gated DeltaNet: causal convolution, gates, the recurrence of the delta rule, gated norm.

//!
//! A head's state `[key_dim, value_dim]` falls into panels of 32 value columns that never meet: a panel and one
//! token's k, v, q are all that a step of the recurrence needs. So a panel is the unit of work, it stays in the first
//! level cache for all tokens of a call, and it is how the state is stored.

mod recurrence;

use crate::{
    act, norm,
    pool::Pool,
    simd::{self, LANES, kernel},
};
use recurrence::{PANEL, Tokens};

/// The shape of one layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shape {
    /// Query/key heads.
    pub key_heads: usize,
    /// Value heads, a multiple of `key_heads`; value head `h` uses key head `h / (value_heads / key_heads)`.
    pub value_heads: usize,
    /// Width of a query or key head.
    pub key_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
    /// Taps of the convolution.
    pub conv_kernel: usize,
    /// Epsilon of the gated norm.
    pub eps: f32,
}

impl Shape {
    /// Width of all keys.
    pub fn key_width(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Width of all values, and of the output.
    pub fn value_width(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Channels of the convolution: q | k | v.
    pub fn channels(&self) -> usize {
        2 * self.key_width() + self.value_width()
    }

    /// Width of an input row: q | k | v | z.
    pub fn input_width(&self) -> usize {
        self.channels() + self.value_width()
    }

    /// Whether [`forward`] can run it.
    pub fn is_valid(&self) -> bool {
        let Shape { key_heads, value_heads, key_dim, value_dim, conv_kernel, .. } = *self;
        ![key_heads, value_heads, key_dim, value_dim, conv_kernel].contains(&0) && value_heads.is_multiple_of(key_heads)
    }

    /// Panels of a head.
    fn panels(&self) -> usize {
        self.value_dim.div_ceil(PANEL)
    }
}

/// Host-side weights of one layer.
#[derive(Debug, Clone, Copy)]
pub struct Weights<'a> {
    /// `[2 * value_heads, D]`: rows of b, then rows of a.
    pub ba: &'a [f32],
    /// `[channels, conv_kernel]`, the newest input last.
    pub conv: &'a [f32],
    /// `[value_heads]`: `-exp(A_log)`.
    pub a: &'a [f32],
    /// `[value_heads]`.
    pub dt_bias: &'a [f32],
    /// `[value_dim]`, a plain factor.
    pub norm: &'a [f32],
}

/// What a layer remembers. `Clone` is a snapshot.
#[derive(Debug, Clone)]
pub struct State {
    shape: Shape,
    /// `[conv_kernel - 1, channels]`.
    conv: Vec<f32>,
    /// `[value_heads, panels, key_dim, PANEL]`; columns past `value_dim` are zero.
    recurrent: Vec<f32>,
}

impl State {
    /// The state before the first token.
    pub fn new(shape: Shape) -> Self {
        State {
            shape,
            conv: vec![0.0; shape.conv_kernel.saturating_sub(1) * shape.channels()],
            recurrent: vec![0.0; shape.value_heads * shape.panels() * shape.key_dim * PANEL],
        }
    }

    /// Back to the state before the first token, keeping the memory.
    pub fn reset(&mut self) {
        self.conv.fill(0.0);
        self.recurrent.fill(0.0);
    }

    /// The last `conv_kernel - 1` inputs of the convolution, oldest first: `[conv_kernel - 1, channels]`.
    pub fn conv(&self) -> &[f32] {
        &self.conv
    }

    /// A copy of the recurrent state as `[value_heads, key_dim, value_dim]`.
    pub fn recurrent(&self) -> Vec<f32> {
        let Shape { value_heads, key_dim, value_dim, .. } = self.shape;
        let mut out = Vec::with_capacity(value_heads * key_dim * value_dim);
        let head_len = self.shape.panels() * key_dim * PANEL;
        for head in self.recurrent.chunks_exact(head_len) {
            for i in 0..key_dim {
                out.extend((0..value_dim).map(|j| head[(j / PANEL * key_dim + i) * PANEL + j % PANEL]));
            }
        }
        out
    }

    /// Bytes of memory it takes, the same for any number of tokens.
    pub fn bytes(&self) -> usize {
        size_of_val(&self.conv[..]) + size_of_val(&self.recurrent[..])
    }
}

/// Memory for the steps in between, kept from call to call.
#[derive(Debug, Default)]
pub struct Scratch {
    /// Convolution taps as `[conv_kernel, channels]`.
    taps: Vec<f32>,
    /// `[n, channels]`: convolved q | k | v, then q and k normed.
    qkv: Vec<f32>,
    /// `[n, 2 * value_heads]`: beta, then decay.
    gates: Vec<f32>,
    /// `[value_heads, panels, n, PANEL]`.
    mixed: Vec<f32>,
}

/// Tokens run together. More would only need more memory in between: the result does not depend on it.
const PIECE: usize = 256;

/// Runs `n` tokens through the mixer, between its `in` and `o` projections.
///
/// * `hidden`: `[n, D]`, the normed input of the layer (the gates a and b are made from it, D = `ba.len() / (2 *
///   value_heads)`)
/// * `projected`: `[n, input_width]`: q | k | v | z
/// * `out`: `[n, value_width]`
///
/// # Panics
/// If the lengths do not fit, the state is of another shape, or the shape is not [valid](Shape::is_valid).
#[expect(clippy::too_many_arguments)]
pub fn forward(
    pool: &Pool,
    shape: &Shape,
    weights: &Weights<'_>,
    state: &mut State,
    hidden: &[f32],
    projected: &[f32],
    out: &mut [f32],
    scratch: &mut Scratch,
) {
    assert!(shape.is_valid(), "{shape:?}");
    let width = weights.ba.len() / (2 * shape.value_heads);
    let (input, channels, value) = (shape.input_width(), shape.channels(), shape.value_width());
    let n = projected.len() / input;
    assert_eq!(state.shape, *shape, "the state is another layer's");
    assert_eq!(weights.ba.len(), 2 * shape.value_heads * width, "ba");
    assert_eq!(weights.conv.len(), channels * shape.conv_kernel, "conv");
    assert_eq!([weights.a.len(), weights.dt_bias.len()], [shape.value_heads; 2], "a, dt_bias");
    assert_eq!(weights.norm.len(), shape.value_dim, "norm");
    assert_eq!([hidden.len(), projected.len(), out.len()], [n * width, n * input, n * value], "{n} tokens");

    scratch.taps.resize(weights.conv.len(), 0.0);
    for (c, taps) in weights.conv.chunks_exact(shape.conv_kernel).enumerate() {
        for (j, &tap) in taps.iter().enumerate() {
            scratch.taps[j * channels + c] = tap;
        }
    }
    for first in (0..n).step_by(PIECE) {
        let rows = PIECE.min(n - first);
        let hidden = &hidden[first * width..][..rows * width];
        let projected = &projected[first * input..][..rows * input];
        gates(pool, shape, weights, hidden, rows, &mut scratch.gates);
        convolve(pool, shape, &scratch.taps, &mut state.conv, projected, rows, &mut scratch.qkv);

        let panel = shape.key_dim * PANEL;
        scratch.mixed.resize(state.recurrent.len() / panel * rows * PANEL, 0.0);
        let tokens = Tokens { shape, qkv: &scratch.qkv, gates: &scratch.gates };
        pool.run_chunks2((&mut state.recurrent, panel), (&mut scratch.mixed, rows * PANEL), &|i, panel, mixed| {
            recurrence::run(&tokens, i / shape.panels(), i % shape.panels(), panel, mixed);
        });

        let mixed = &scratch.mixed;
        pool.run_chunks(&mut out[first * value..][..rows * value], value, &|t, out| {
            let z = &projected[t * input + channels..][..value];
            gather(shape, mixed, rows, t, out);
            for (out, z) in out.chunks_exact_mut(shape.value_dim).zip(z.chunks_exact(shape.value_dim)) {
                norm::gated_rms_in_place(out, z, weights.norm, shape.eps);
            }
        });
    }
}

/// `[n, 2 * value_heads]`: beta = sigmoid(b), then decay = exp(A softplus(a + dt_bias)).
fn gates(pool: &Pool, shape: &Shape, weights: &Weights<'_>, hidden: &[f32], n: usize, out: &mut Vec<f32>) {
    let heads = shape.value_heads;
    let width = hidden.len() / n;
    out.resize(n * 2 * heads, 0.0);
    pool.run_chunks(out, 2 * heads, &|t, out| {
        let x = &hidden[t * width..][..width];
        for (o, w) in out.iter_mut().zip(weights.ba.chunks_exact(width)) {
            *o = simd::dot(w, x);
        }
        let (beta, decay) = out.split_at_mut(heads);
        act::sigmoid_in_place(beta);
        for ((d, &a), &bias) in decay.iter_mut().zip(weights.a).zip(weights.dt_bias) {
            *d = f64::from(a * act::softplus(*d + bias)).exp() as f32;
        }
    });
}

/// The causal depthwise convolution and silu into `[n, channels]`, then q and k to unit length (q with the scale of the
/// scores). Leaves the last inputs in `state`.
fn convolve(
    pool: &Pool,
    shape: &Shape,
    taps: &[f32],
    state: &mut [f32],
    projected: &[f32],
    n: usize,
    out: &mut Vec<f32>,
) {
    let (input, channels, key) = (shape.input_width(), shape.channels(), shape.key_width());
    let before = shape.conv_kernel - 1;
    out.resize(n * channels, 0.0);
    let remembered = &*state;
    pool.run_chunks(out, channels, &|t, out| {
        out.fill(0.0);
        for (j, taps) in taps.chunks_exact(channels).enumerate() {
            let x = match (t + j).checked_sub(before) {
                None => &remembered[(t + j) * channels..][..channels],
                Some(t) => &projected[t * input..][..channels],
            };
            multiply_add(taps, x, out);
        }
        act::silu_in_place(out);
        let (q, k) = out[..2 * key].split_at_mut(key);
        let scale = 1.0 / (shape.key_dim as f32).sqrt();
        q.chunks_exact_mut(shape.key_dim).for_each(|q| norm::l2_in_place(q, scale));
        k.chunks_exact_mut(shape.key_dim).for_each(|k| norm::l2_in_place(k, 1.0));
    });
    // The new state: inputs n .. n + before of the stream.
    let kept = before.saturating_sub(n);
    state.copy_within((before - kept) * channels.., 0);
    for (i, state) in state.chunks_exact_mut(channels).enumerate().skip(kept) {
        let t = n + i - before;
        state.copy_from_slice(&projected[t * input..][..channels]);
    }
}

kernel! {
    /// `out[i] += a[i] * b[i]`.
    fn multiply_add<V>(a: &[f32], b: &[f32], out: &mut [f32]) {
        let ((a, ra), (b, rb), (out, rest)) = (a.as_chunks(), b.as_chunks(), out.as_chunks_mut::<LANES>());
        for ((a, b), o) in a.iter().zip(b).zip(out) {
            V::load(a).fma(V::load(b), V::load(o)).store(o);
        }
        for ((a, b), o) in ra.iter().zip(rb).zip(rest) {
            *o = a.mul_add(*b, *o);
        }
    }
}

/// Token `t` of `[value_heads, panels, n, PANEL]` as `[value_heads, value_dim]`.
fn gather(shape: &Shape, mixed: &[f32], n: usize, t: usize, out: &mut [f32]) {
    for (h, out) in out.chunks_exact_mut(shape.value_dim).enumerate() {
        for (p, out) in out.chunks_mut(PANEL).enumerate() {
            let at = ((h * shape.panels() + p) * n + t) * PANEL;
            out.copy_from_slice(&mixed[at..at + out.len()]);
        }
    }
}

#[cfg(test)]
mod tests;
