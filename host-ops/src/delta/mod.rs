//! Gated DeltaNet: causal convolution, gates, the recurrence of the delta rule, gated norm.

use crate::pool::Pool;

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
    conv: Vec<f32>,
    recurrent: Vec<f32>,
}

impl State {
    /// The state before the first token.
    pub fn new(shape: Shape) -> Self {
        State { shape, conv: Vec::new(), recurrent: Vec::new() }
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
        let _ = self.shape;
        todo!()
    }
}

/// Memory for the steps in between, kept from call to call.
#[derive(Debug, Default)]
pub struct Scratch {
    _private: (),
}

/// Runs `n` tokens through the mixer, between its `in` and `o` projections.
///
/// * `hidden`: `[n, D]`, the normed input of the layer (the gates a and b are made from it, D = `ba.len() / (2 *
///   value_heads)`)
/// * `projected`: `[n, input_width]`: q | k | v | z
/// * `out`: `[n, value_width]`
///
/// # Panics
/// If the lengths do not fit.
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
    let _ = (pool, shape, weights, state, hidden, projected, out, scratch);
    todo!()
}
