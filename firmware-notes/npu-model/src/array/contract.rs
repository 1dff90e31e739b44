//! What an opaque kernel's stream computes: its contract, as a bundle's manifest tells it.

use host_ops::pack::Format;

/// The computation of one instruction stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contract {
    /// Matrix times matrix; arguments A, B, C.
    Gemm(GemmContract),
    /// Matrix times vector; arguments x, W, y.
    Gemv(GemvContract),
}

/// C = epilogue(A B + bias).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GemmContract {
    /// Rows of one chunk, a multiple of 64.
    pub m: usize,
    /// Chunks in this dispatch.
    pub chunks: usize,
    /// Rows of B, a multiple of 128.
    pub k: usize,
    /// Columns of B, a multiple of 64.
    pub n: usize,
    /// Row stride of A in elements.
    pub lda: usize,
    /// Row stride of C in elements.
    pub c_stride: usize,
    /// Whether B has bias chunks.
    pub bias: bool,
    /// What happens to the accumulator.
    pub epilogue: Epilogue,
    /// The number format.
    pub format: Format,
}

/// y = W x + bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GemvContract {
    /// Results.
    pub m: usize,
    /// Length of x, a multiple of 128.
    pub k: usize,
    /// How W lies.
    pub order: Order,
    /// Whether W has bias chunks (stream order only).
    pub bias: bool,
    /// The number format.
    pub format: Format,
}

/// What happens to a GEMM's accumulator before its one rounding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Epilogue {
    /// Nothing.
    #[default]
    None,
    /// GELU, tanh form.
    GeluTanh,
    /// x * sigmoid(x).
    Silu,
    /// 32 gate and 32 up columns a block give 32 results, silu(gate) * up.
    PairedSwiglu,
}

/// The order of a GEMV's weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// The GEMM stream's: 64-column blocks.
    Stream,
    /// Groups of eight rows.
    Rows,
}
