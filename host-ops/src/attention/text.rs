//! Gated grouped-query attention with a KV cache.

use crate::{pool::Pool, rope};

/// The shape of one layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shape {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; `heads` is a multiple.
    pub kv_heads: usize,
    /// Width of a head.
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
}

/// Host-side weights of one layer, offsets from one.
#[derive(Debug, Clone, Copy)]
pub struct Weights<'a> {
    /// `[head_dim]`.
    pub q_norm: &'a [f32],
    /// `[head_dim]`.
    pub k_norm: &'a [f32],
}

/// Keys and values of one layer, f32, in pages that come as the context grows. `Clone` is a cheap snapshot: full pages
/// are shared.
#[derive(Debug, Clone)]
pub struct KvCache {
    shape: Shape,
    len: usize,
}

impl KvCache {
    /// An empty cache.
    pub fn new(shape: Shape) -> Self {
        KvCache { shape, len: 0 }
    }

    /// Tokens it holds.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Forgets all tokens from `len` on; keeps the memory.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Memory in use by its pages, in bytes.
    pub fn bytes(&self) -> usize {
        0
    }

    /// A copy of the key (normed, turned) of a token and head: `[head_dim]`.
    ///
    /// # Panics
    /// If there is no such token or head.
    pub fn key(&self, token: usize, kv_head: usize) -> Vec<f32> {
        let _ = (token, kv_head, self.shape);
        todo!()
    }

    /// The value of a token and head: `[head_dim]`.
    ///
    /// # Panics
    /// If there is no such token or head.
    pub fn value(&self, token: usize, kv_head: usize) -> &[f32] {
        let _ = (token, kv_head);
        todo!()
    }
}

/// Memory for the steps in between, kept from call to call.
#[derive(Debug, Default)]
pub struct Scratch {
    _private: (),
}

/// Appends `n` tokens to the cache and attends from them, between the `in` and `o` projections.
///
/// * `rope`: `n` rows, the tokens' positions
/// * `projected`: `[n, input_width]`: per head query and gate, then keys, then values
/// * `out`: `[n, output_width]`, already multiplied by the gates
///
/// # Panics
/// If the lengths do not fit.
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
    let _ = (pool, shape, weights, rope, cache, projected, out, scratch);
    todo!()
}
