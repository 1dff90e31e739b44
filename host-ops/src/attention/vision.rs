//! Full attention over the patches of one image.

use crate::{pool::Pool, rope};

/// The shape of one block's attention.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct VisionShape {
    /// Heads.
    pub heads: usize,
    /// Width of a head.
    pub head_dim: usize,
}

/// Memory for the steps in between, kept from call to call.
#[derive(Debug, Default)]
pub struct Scratch {
    _private: (),
}

/// Full attention over `n` patches of one image, online softmax in tiles: no `n` x `n` matrix exists.
///
/// * `rope`: `n` rows over the whole head
/// * `qkv`: `[n, 3 * heads * head_dim]`: queries of all heads, keys, values
/// * `out`: `[n, heads * head_dim]`
///
/// # Panics
/// If the lengths do not fit.
pub fn vision_forward(
    pool: &Pool,
    shape: &VisionShape,
    rope: &rope::Table,
    qkv: &[f32],
    out: &mut [f32],
    scratch: &mut Scratch,
) {
    let _ = (pool, shape, rope, qkv, out, scratch);
    todo!()
}
