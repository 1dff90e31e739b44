//! The orders in which packed weights lie in memory: the GEMM's B stream, the row layout of the head, and the pairing
//! of gate and up.

use crate::pool::Pool;

/// How 8 consecutive values along k are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// 9 bytes, see [`crate::bfp16`].
    Bfp16,
    /// 32 bytes: 8 little-endian f32. Only the reference kernels know it.
    F32,
}

impl Format {
    /// Bytes of 8 values.
    pub const fn block_bytes(self) -> usize {
        match self {
            Format::Bfp16 => 9,
            Format::F32 => 32,
        }
    }
}

/// A shape or length that the packed layouts cannot hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PackError {
    /// A dimension is no multiple of what the layout needs.
    #[error("{what} = {value} is no positive multiple of {of}; pad the weight")]
    Multiple {
        /// Which dimension.
        what: &'static str,
        /// Its value.
        value: usize,
        /// What it has to be a multiple of.
        of: usize,
    },
    /// A buffer has the wrong length.
    #[error("{what} is {got} long where the layout needs {expected}")]
    Length {
        /// Which buffer.
        what: &'static str,
        /// The layout's length.
        expected: usize,
        /// The buffer's.
        got: usize,
    },
}

/// The B stream of a GEMM `C[M, N] = A[M, K] B[K, N]`, B being a torch weight `[N, K]` transposed.
///
/// Outermost first: column block (64 n), k slice (128), column group (8 n), 8 k, column, 8 consecutive k = a block. With
/// a bias, each column block starts with a chunk as large as one k slice, whose first 64 values (bf16, or f32 in
/// [`Format::F32`]) are the biases of its columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BStream {
    format: Format,
    k: usize,
    n: usize,
    bias: bool,
}

/// Fills a row of a weight: `source(n, row)` writes the K weights of output n.
pub type RowSource<'a> = dyn Fn(usize, &mut [f32]) + Sync + 'a;

impl BStream {
    /// Columns of a column block.
    pub const BLOCK_COLUMNS: usize = 64;
    /// Values of k in a slice.
    pub const SLICE_K: usize = 128;

    /// A layout for `k` inputs and `n` outputs.
    ///
    /// # Errors
    /// [`PackError::Multiple`] unless `k % 512 == 0` and `n % 64 == 0`.
    pub fn new(format: Format, k: usize, n: usize, bias: bool) -> Result<Self, PackError> {
        Ok(BStream { format, k, n, bias })
    }

    /// The format.
    pub fn format(&self) -> Format {
        self.format
    }
    /// Inputs.
    pub fn k(&self) -> usize {
        self.k
    }
    /// Outputs.
    pub fn n(&self) -> usize {
        self.n
    }
    /// Whether bias chunks are there.
    pub fn has_bias(&self) -> bool {
        self.bias
    }
    /// Bytes of one bias chunk, 0 without bias.
    pub fn bias_bytes(&self) -> usize {
        if self.bias { Self::SLICE_K * Self::BLOCK_COLUMNS / 8 * self.format.block_bytes() } else { 0 }
    }
    /// Bytes of one column block, its bias chunk included.
    pub fn column_block_bytes(&self) -> usize {
        self.bias_bytes() + self.k * Self::BLOCK_COLUMNS / 8 * self.format.block_bytes()
    }
    /// Bytes of the whole stream.
    pub fn bytes(&self) -> usize {
        self.n / Self::BLOCK_COLUMNS * self.column_block_bytes()
    }
    /// Where the block of `k & !7 ..` of column `n` starts.
    pub fn block_offset(&self, k: usize, n: usize) -> usize {
        let _ = (k, n);
        todo!()
    }

    /// Packs a weight given by rows (parallel over column blocks). `bias`: `[n]`, required iff the layout has bias;
    /// rounded to bf16 in [`Format::Bfp16`].
    ///
    /// # Errors
    /// [`PackError::Length`].
    pub fn pack(
        &self,
        pool: &Pool,
        source: &RowSource<'_>,
        bias: Option<&[f32]>,
        out: &mut [u8],
    ) -> Result<(), PackError> {
        let _ = (pool, source, bias, out);
        todo!()
    }

    /// The decoded weights as the torch weight `[n, k]`.
    ///
    /// # Errors
    /// [`PackError::Length`].
    pub fn unpack(&self, bytes: &[u8]) -> Result<Vec<f32>, PackError> {
        let _ = bytes;
        todo!()
    }

    /// The biases, `[n]`; empty without bias.
    ///
    /// # Errors
    /// [`PackError::Length`].
    pub fn unpack_bias(&self, bytes: &[u8]) -> Result<Vec<f32>, PackError> {
        let _ = bytes;
        todo!()
    }
}

/// The row layout of the head: groups of 8 rows, in a group the blocks in k order, in a block 8 rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rows {
    format: Format,
    rows: usize,
    k: usize,
}

impl Rows {
    /// A layout for `rows` rows of `k` values.
    ///
    /// # Errors
    /// [`PackError::Multiple`] unless `rows % 8 == 0` and `k % 8 == 0`.
    pub fn new(format: Format, rows: usize, k: usize) -> Result<Self, PackError> {
        Ok(Rows { format, rows, k })
    }

    /// The format.
    pub fn format(&self) -> Format {
        self.format
    }
    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows
    }
    /// Values of a row.
    pub fn k(&self) -> usize {
        self.k
    }
    /// Bytes of all rows.
    pub fn bytes(&self) -> usize {
        self.rows * self.k / 8 * self.format.block_bytes()
    }
    /// Where the block of `k & !7 ..` of row `row` starts.
    pub fn block_offset(&self, row: usize, k: usize) -> usize {
        let _ = (row, k);
        todo!()
    }

    /// Packs rows (parallel over groups).
    ///
    /// # Errors
    /// [`PackError::Length`].
    pub fn pack(&self, pool: &Pool, source: &RowSource<'_>, out: &mut [u8]) -> Result<(), PackError> {
        let _ = (pool, source, out);
        todo!()
    }

    /// Decodes one row, `[k]`: an embedding.
    ///
    /// # Errors
    /// [`PackError::Length`] if `bytes` or `out` do not fit or there is no such row.
    pub fn decode_row(&self, bytes: &[u8], row: usize, out: &mut [f32]) -> Result<(), PackError> {
        let _ = (bytes, row, out);
        todo!()
    }

    /// Decodes all rows, `[rows, k]`.
    ///
    /// # Errors
    /// [`PackError::Length`].
    pub fn unpack(&self, bytes: &[u8]) -> Result<Vec<f32>, PackError> {
        let _ = bytes;
        todo!()
    }
}

/// Which weight a column of the paired `gu` projection comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Paired {
    /// This row of `gate_proj`.
    Gate(usize),
    /// This row of `up_proj`.
    Up(usize),
}

impl Paired {
    /// The source of stream column `n`: 64-column block p is gate rows 32p.. then up rows 32p...
    pub fn of(n: usize) -> Self {
        let (block, at) = (n / 64, n % 64);
        if at < 32 { Paired::Gate(32 * block + at) } else { Paired::Up(32 * block + at - 32) }
    }
}
