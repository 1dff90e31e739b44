//! The GEMM stream.
use super::{Epilogue, Format, SpecError};

/// C = epilogue(A B + bias), with A `[256*chunks, K]` at row stride `lda` and C `[256*chunks, N or N/2]` at row stride
/// `c_stride`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GemmSpec {
    /// Chunks of 256 rows in one dispatch, 1..=16.
    pub chunks: usize,
    /// Rows of the weight stream, a multiple of 512.
    pub k: usize,
    /// Columns of the weight stream, a multiple of 64.
    pub n: usize,
    /// Row stride of A in elements.
    pub lda: usize,
    /// Row stride of C in elements.
    pub c_stride: usize,
    /// Whether a bias chunk stands before each 64-column block of the stream.
    pub bias: bool,
    /// What happens to the accumulator.
    pub epilogue: Epilogue,
    /// The number format.
    pub format: Format,
}

/// The instruction stream of a GEMM dispatch; arguments: A, B (the weight stream), C.
///
/// # Errors
/// A size that the kernel's tiles or the descriptors' fields cannot hold.
pub fn gemm_stream(spec: &GemmSpec) -> Result<Vec<u8>, SpecError> {
    let _ = spec;
    todo!()
}
