//! The typed records of a manifest: containers, kernels, test cases.

use super::params::WeightFormat;

/// An xclbin of the bundle: one hardware context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XclbinRecord {
    /// What records call it, for example `gemm`.
    pub key: String,
    /// Path inside the bundle.
    pub path: String,
    /// The kernel inside the container.
    pub kernel: String,
}

/// One instruction stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamRecord {
    /// Elements of the A view: at least those of its rows, `(chunks * M - 1) * lda + K`.
    pub a_elems: usize,
    /// Elements of the C view: at least those of its rows.
    pub c_elems: usize,
    /// Key of the xclbin that runs it.
    pub ctx: String,
    /// Path of the instructions inside the bundle.
    pub insts: String,
}

/// A matrix product over whole chunks of rows: C\[rows, N\] = A\[rows, K\] B\[K, N\].
///
/// A and C are row-major with row strides `lda` and `c_stride` elements. `gu` writes `N / 2` columns: SwiGLU is in its
/// epilogue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GemmRecord {
    /// `lin att o gu down` of the text model, `v_patch v_qkv v_proj v_fc1 v_fc2 v_m1 v_m2` of the tower.
    pub key: String,
    /// Rows of one chunk.
    pub m: usize,
    /// Inner length; a multiple of 512.
    pub k: usize,
    /// Columns of B; a multiple of 64.
    pub n: usize,
    /// Row stride of A, elements.
    pub lda: usize,
    /// Row stride of C, elements.
    pub c_stride: usize,
    /// Bytes of the packed B: in an open bundle those of the smallest tensor, whatever the line says.
    pub b_bytes: usize,
    /// Whether B has a bias chunk before each 64-column block.
    pub bias: bool,
    /// Format of B and of the views.
    pub format: WeightFormat,
    /// Key of the xclbin of the one-chunk stream.
    pub ctx: String,
    /// The streams: `chunks[n - 1]` takes n chunks of rows in one dispatch. Never empty.
    pub chunks: Vec<StreamRecord>,
}

impl GemmRecord {
    /// Columns that a row of C gets: `N`, or half of it where the epilogue pairs gate and up.
    #[must_use]
    pub fn columns(&self) -> usize {
        if self.key == "gu" { self.n / 2 } else { self.n }
    }

    /// Whether the tensors of an open bundle hold every weight twice, as a high part and a low one: `v.weights bfp16x2`.
    /// How the two interleave is not known; kernels get the bytes as they are.
    #[must_use]
    pub fn in_two_parts(&self) -> bool {
        let weights = self.format.stream_bytes(self.k, self.n, false);
        weights.and_then(|weights| weights.checked_mul(2)).is_some_and(|both| self.b_bytes >= both)
    }
}

/// A matrix by vector product: y\[M\] = W\[M, K\] x\[K\].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GemvRecord {
    /// `lin att o gu down`, whose W is the packed B of the GEMM, or `head`, whose W is in row layout.
    pub key: String,
    /// Outputs.
    pub m: usize,
    /// Inputs.
    pub k: usize,
    /// 32-bit words of W: in an open bundle those of the smallest tensor, whatever the line says.
    pub w_words: usize,
    /// Whether W has bias chunks (stream order only).
    pub bias: bool,
    /// Format of W, x and y.
    pub format: WeightFormat,
    /// Key of the xclbin that runs it.
    pub ctx: String,
    /// Path of the instructions inside the bundle.
    pub insts: String,
}

/// A text and the ids it must become.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokCase {
    /// The text.
    pub text: String,
    /// Its tokens.
    pub ids: Vec<u32>,
}

/// A run of the reference implementation; its numbers are the tensors `ref.<name>.*`.
///
/// `ids` i32 \[L\], `tokens` i32 \[S\], `top_ids` i32 and `top_logits` f32 \[S, k\]. With one image: `rgb` u8 \[H, W, 3\],
/// `patches` f32 \[n, 3 patch^2\], `grid` i32 \[2\], `vision` f32 \[n / 4, out\]. With several, these four carry the
/// image's number: `rgb.0`, `rgb.1` and so on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefRecord {
    /// Name, part of the tensor names.
    pub name: String,
    /// The user's message.
    pub prompt: String,
    /// The system message, if any.
    pub system: Option<String>,
    /// Whether the template leaves the reasoning open.
    pub thinking: bool,
    /// Images before the message.
    pub images: usize,
}

impl RefRecord {
    /// Whether the format's own `ref` record can say it: no system message and at most one image.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.system.is_none() && self.images <= 1
    }

    /// Name of a tensor of this run.
    #[must_use]
    pub fn tensor(&self, what: &str) -> String {
        format!("ref.{}.{what}", self.name)
    }

    /// Name of a tensor of image `index` (from 0) of this run: `rgb`, `patches`, `grid` or `vision`.
    #[must_use]
    pub fn image_tensor(&self, what: &str, index: usize) -> String {
        if self.images > 1 { format!("ref.{}.{what}.{index}", self.name) } else { format!("ref.{}.{what}", self.name) }
    }
}
