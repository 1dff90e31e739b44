//! The GEMV stream.
use super::{Format, Order, SpecError};

/// y[M] = W[M, K] x[K] + bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GemvSpec {
    /// Results: a multiple of 64 (of 8 in row order).
    pub m: usize,
    /// Length of x, a multiple of 512.
    pub k: usize,
    /// How the weights lie.
    pub order: Order,
    /// Whether a bias chunk stands before each 64-column block (stream order only).
    pub bias: bool,
    /// The number format.
    pub format: Format,
}

/// The instruction stream of a GEMV dispatch; arguments: x, W, y.
///
/// # Errors
/// A size that the kernel's tiles or the descriptors' fields cannot hold.
pub fn gemv_stream(spec: &GemvSpec) -> Result<Vec<u8>, SpecError> {
    let _ = spec;
    todo!()
}
