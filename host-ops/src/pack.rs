//! The orders in which packed weights lie in memory: the GEMM's B stream, the row layout of the head, and the pairing
//! of gate and up.
//!
//! Both layouts are made of 72-byte atoms in bfp16, 8 outputs x 8 k; they differ in the order of the atoms.

use crate::{bfp16, pool::Pool};
use half::bf16;

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

    /// Encodes consecutive blocks; a negative zero becomes a positive one first (see [`bfp16::encode_block`]).
    fn encode(self, x: &mut [f32], out: &mut [u8]) {
        match self {
            Format::Bfp16 => {
                x.iter_mut().for_each(|x| *x += 0.0);
                bfp16::encode(x, out);
            }
            Format::F32 => {
                for (x, out) in x.iter().zip(out.as_chunks_mut().0) {
                    *out = x.to_le_bytes();
                }
            }
        }
    }

    /// Decodes one block.
    fn decode(self, block: &[u8], out: &mut [f32]) {
        match self {
            Format::Bfp16 => bfp16::decode(block, out),
            Format::F32 => {
                for (x, out) in block.as_chunks().0.iter().zip(out) {
                    *out = f32::from_le_bytes(*x);
                }
            }
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
    /// The packed weight is larger than memory can be.
    #[error("{outputs} x {inputs} weights are more than this machine can address")]
    TooLarge {
        /// Outputs (columns of B, rows of the head).
        outputs: usize,
        /// Inputs.
        inputs: usize,
    },
    /// A buffer has the wrong length.
    #[error("{what}: {got} long where the layout needs {expected}")]
    Length {
        /// Which buffer.
        what: &'static str,
        /// The layout's length.
        expected: usize,
        /// The buffer's.
        got: usize,
    },
    /// There is no such row.
    #[error("row {row} of a weight with {rows} rows")]
    Row {
        /// The row asked for.
        row: usize,
        /// Rows there are.
        rows: usize,
    },
}

fn multiple(what: &'static str, value: usize, of: usize) -> Result<(), PackError> {
    if value > 0 && value.is_multiple_of(of) { Ok(()) } else { Err(PackError::Multiple { what, value, of }) }
}

fn addressable(outputs: usize, inputs: usize) -> Result<(), PackError> {
    // 8 bytes a weight cover the widest format and its bias chunks.
    let bytes = outputs.checked_mul(inputs).and_then(|n| n.checked_mul(8));
    bytes.filter(|&b| isize::try_from(b).is_ok()).map(|_| ()).ok_or(PackError::TooLarge { outputs, inputs })
}

fn length(what: &'static str, expected: usize, got: usize) -> Result<(), PackError> {
    if expected == got { Ok(()) } else { Err(PackError::Length { what, expected, got }) }
}

/// Fills a row of a weight: `source(n, row)` writes the K weights of output n. Called once for each output, from any
/// thread; `row` holds zeros at the call.
pub type RowSource<'a> = dyn Fn(usize, &mut [f32]) + Sync + 'a;

/// The B stream of a GEMM `C[M, N] = A[M, K] B[K, N]`, B being a torch weight `[N, K]` transposed.
///
/// Outermost first: column block (64 n), k slice (128), column group (8 n), 8 k, column, 8 consecutive k = a block. With
/// a bias, each column block starts with a chunk as large as one k slice, whose first 64 values (bf16, or f32 in
/// [`Format::F32`]) are the biases of its columns; the rest of the chunk is zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BStream {
    format: Format,
    k: usize,
    n: usize,
    bias: bool,
}

impl BStream {
    /// Columns of a column block.
    pub const BLOCK_COLUMNS: usize = 64;
    /// Values of k in a slice.
    pub const SLICE_K: usize = 128;
    /// K has to be a multiple of this.
    pub const TILE_K: usize = 512;

    /// A layout for `k` inputs and `n` outputs.
    ///
    /// # Errors
    /// [`PackError::Multiple`] unless `k % 512 == 0` and `n % 64 == 0`; [`PackError::TooLarge`].
    pub fn new(format: Format, k: usize, n: usize, bias: bool) -> Result<Self, PackError> {
        multiple("K", k, Self::TILE_K)?;
        multiple("N", n, Self::BLOCK_COLUMNS)?;
        addressable(n, k)?;
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

    /// Where the block with the values `k & !7 ..` of column `n` starts.
    pub fn block_offset(&self, k: usize, n: usize) -> usize {
        n / Self::BLOCK_COLUMNS * self.column_block_bytes() + self.bias_bytes() + self.offset_within(k, n)
    }

    /// The same from the start of the column block's weights.
    fn offset_within(&self, k: usize, n: usize) -> usize {
        let (slice, group, i, column) = (k / Self::SLICE_K, n % Self::BLOCK_COLUMNS / 8, k % Self::SLICE_K / 8, n % 8);
        (((slice * 8 + group) * 16 + i) * 8 + column) * self.format.block_bytes()
    }

    /// Packs a weight given by rows (parallel over column blocks). `bias`: `[n]`, needed iff the layout has bias;
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
        length("packed weight", self.bytes(), out.len())?;
        length("bias", if self.bias { self.n } else { 0 }, bias.map_or(0, <[f32]>::len))?;
        let block_bytes = self.format.block_bytes();
        pool.run_chunks(out, self.column_block_bytes(), &|cb, out| {
            let (chunk, weights) = out.split_at_mut(self.bias_bytes());
            let first = cb * Self::BLOCK_COLUMNS;
            chunk.fill(0);
            for (i, bias) in bias.iter().flat_map(|b| &b[first..first + Self::BLOCK_COLUMNS]).enumerate() {
                self.put_bias(chunk, i, *bias);
            }
            let mut blocks = vec![0; self.k / 8 * block_bytes];
            let mut row = vec![0.0; self.k];
            for n in first..first + Self::BLOCK_COLUMNS {
                row.fill(0.0);
                source(n, &mut row);
                self.format.encode(&mut row, &mut blocks);
                for (i, block) in blocks.chunks_exact(block_bytes).enumerate() {
                    let at = self.offset_within(8 * i, n);
                    weights[at..at + block_bytes].copy_from_slice(block);
                }
            }
        });
        Ok(())
    }

    fn put_bias(&self, chunk: &mut [u8], i: usize, bias: f32) {
        match self.format {
            Format::Bfp16 => chunk[2 * i..2 * i + 2].copy_from_slice(&bf16::from_f32(bias).to_le_bytes()),
            Format::F32 => chunk[4 * i..4 * i + 4].copy_from_slice(&bias.to_le_bytes()),
        }
    }

    /// The decoded weights as the torch weight `[n, k]`.
    ///
    /// # Errors
    /// [`PackError::Length`].
    pub fn unpack(&self, bytes: &[u8]) -> Result<Vec<f32>, PackError> {
        length("packed weight", self.bytes(), bytes.len())?;
        let mut out = vec![0.0; self.n * self.k];
        for (n, row) in out.chunks_exact_mut(self.k).enumerate() {
            for (i, block) in row.chunks_exact_mut(8).enumerate() {
                self.format.decode(&bytes[self.block_offset(8 * i, n)..][..self.format.block_bytes()], block);
            }
        }
        Ok(out)
    }

    /// The biases, `[n]`; empty without bias.
    ///
    /// # Errors
    /// [`PackError::Length`].
    pub fn unpack_bias(&self, bytes: &[u8]) -> Result<Vec<f32>, PackError> {
        length("packed weight", self.bytes(), bytes.len())?;
        let mut out = Vec::with_capacity(if self.bias { self.n } else { 0 });
        for block in bytes.chunks_exact(self.column_block_bytes()) {
            let chunk = &block[..self.bias_bytes()];
            match self.format {
                Format::Bfp16 => {
                    let bias = chunk.as_chunks().0.iter().map(|&b| bf16::from_le_bytes(b).to_f32());
                    out.extend(bias.take(Self::BLOCK_COLUMNS));
                }
                Format::F32 => {
                    let bias = chunk.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b));
                    out.extend(bias.take(Self::BLOCK_COLUMNS));
                }
            }
        }
        Ok(out)
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
    /// Rows of a group.
    pub const GROUP: usize = 8;

    /// A layout for `rows` rows of `k` values.
    ///
    /// # Errors
    /// [`PackError::Multiple`] unless `rows % 8 == 0` and `k % 8 == 0`; [`PackError::TooLarge`].
    pub fn new(format: Format, rows: usize, k: usize) -> Result<Self, PackError> {
        multiple("K", k, 8)?;
        multiple("rows", rows, Self::GROUP)?;
        addressable(rows, k)?;
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

    /// Where the block with the values `k & !7 ..` of row `row` starts.
    pub fn block_offset(&self, row: usize, k: usize) -> usize {
        let group = row / Self::GROUP * (self.k / 8);
        ((group + k / 8) * Self::GROUP + row % Self::GROUP) * self.format.block_bytes()
    }

    /// Packs rows (parallel over groups).
    ///
    /// # Errors
    /// [`PackError::Length`].
    pub fn pack(&self, pool: &Pool, source: &RowSource<'_>, out: &mut [u8]) -> Result<(), PackError> {
        length("packed weight", self.bytes(), out.len())?;
        let block_bytes = self.format.block_bytes();
        pool.run_chunks(out, self.k * block_bytes, &|group, out| {
            let mut blocks = vec![0; self.k / 8 * block_bytes];
            let mut values = vec![0.0; self.k];
            for row in 0..Self::GROUP {
                values.fill(0.0);
                source(group * Self::GROUP + row, &mut values);
                self.format.encode(&mut values, &mut blocks);
                for (i, block) in blocks.chunks_exact(block_bytes).enumerate() {
                    out[(i * Self::GROUP + row) * block_bytes..][..block_bytes].copy_from_slice(block);
                }
            }
        });
        Ok(())
    }

    /// Decodes one row, `[k]`: an embedding.
    ///
    /// # Errors
    /// [`PackError::Length`] if `bytes` or `out` do not fit, [`PackError::Row`] if there is no such row.
    pub fn decode_row(&self, bytes: &[u8], row: usize, out: &mut [f32]) -> Result<(), PackError> {
        length("packed weight", self.bytes(), bytes.len())?;
        length("row", self.k, out.len())?;
        if row >= self.rows {
            return Err(PackError::Row { row, rows: self.rows });
        }
        for (i, block) in out.chunks_exact_mut(8).enumerate() {
            self.format.decode(&bytes[self.block_offset(row, 8 * i)..][..self.format.block_bytes()], block);
        }
        Ok(())
    }

    /// Decodes all rows, `[rows, k]`.
    ///
    /// # Errors
    /// [`PackError::Length`].
    pub fn unpack(&self, bytes: &[u8]) -> Result<Vec<f32>, PackError> {
        length("packed weight", self.bytes(), bytes.len())?;
        let mut out = vec![0.0; self.rows * self.k];
        for (row, out) in out.chunks_exact_mut(self.k).enumerate() {
            self.decode_row(bytes, row, out)?;
        }
        Ok(out)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Random, fixture, fixture_f32};

    const K: usize = 512;
    const N: usize = 128;

    /// Output n of a B matrix `[k, n]`.
    fn column(b: &[f32], n: usize, width: usize, row: &mut [f32]) {
        for (k, x) in row.iter_mut().enumerate() {
            *x = b[k * width + n];
        }
    }

    #[test]
    fn golden_stream_with_and_without_bias() {
        let (b, bias, golden) = (fixture_f32("gemm.b.f32"), fixture_f32("gemm.bias.f32"), fixture("gemm.stream.u8"));
        let with = BStream::new(Format::Bfp16, K, N, true).unwrap();
        assert_eq!((with.bias_bytes(), with.column_block_bytes()), (9216, 9216 + 72 * K));
        for threads in [1, 3] {
            let mut out = vec![0xaa; with.bytes()];
            with.pack(&Pool::new(threads), &|n, row| column(&b, n, N, row), Some(&bias), &mut out).unwrap();
            assert!(out == golden);
        }

        let without = BStream::new(Format::Bfp16, K, N, false).unwrap();
        let plain: Vec<u8> = golden.chunks(with.column_block_bytes()).flat_map(|b| b[9216..].to_vec()).collect();
        let mut out = vec![0xaa; without.bytes()];
        without.pack(&Pool::serial(), &|n, row| column(&b, n, N, row), None, &mut out).unwrap();
        assert!(out == plain);

        let (weights, decoded_bias) = (with.unpack(&golden).unwrap(), with.unpack_bias(&golden).unwrap());
        assert!(weights == without.unpack(&plain).unwrap());
        assert!(without.unpack_bias(&plain).unwrap().is_empty());
        assert_eq!(decoded_bias, bias.iter().map(|&x| bf16::from_f32(x).to_f32()).collect::<Vec<_>>());
        for n in 0..N {
            let mut row = vec![0.0; K];
            column(&b, n, N, &mut row);
            let mut quantised = vec![0.0; K];
            bfp16::quantise(&row, &mut quantised);
            assert_eq!(weights[n * K..][..K], quantised);
        }
    }

    #[test]
    fn golden_head_rows() {
        let (w, golden) = (fixture_f32("head.w.f32"), fixture("head.bytes.u8"));
        let rows = Rows::new(Format::Bfp16, 24, 512).unwrap();
        let mut out = vec![0xaa; rows.bytes()];
        rows.pack(&Pool::new(2), &|r, row| row.copy_from_slice(&w[r * 512..][..512]), &mut out).unwrap();
        assert!(out == golden);
        let mut quantised = vec![0.0; w.len()];
        bfp16::quantise(&w, &mut quantised);
        assert!(rows.unpack(&golden).unwrap() == quantised);
        let mut row = vec![0.0; 512];
        rows.decode_row(&golden, 13, &mut row).unwrap();
        assert_eq!(row, quantised[13 * 512..14 * 512]);
        assert_eq!(rows.decode_row(&golden, 24, &mut row), Err(PackError::Row { row: 24, rows: 24 }));
    }

    #[test]
    fn f32_keeps_every_bit_in_the_same_order() {
        let mut random = Random::new(10);
        let (w, bias) = (random.normal(N * K), random.normal(N));
        let wide = BStream::new(Format::F32, K, N, true).unwrap();
        let mut out = vec![0; wide.bytes()];
        wide.pack(&Pool::serial(), &|n, row| row.copy_from_slice(&w[n * K..][..K]), Some(&bias), &mut out).unwrap();
        assert_eq!(wide.unpack(&out).unwrap(), w);
        assert_eq!(wide.unpack_bias(&out).unwrap(), bias);
        let narrow = BStream::new(Format::Bfp16, K, N, true).unwrap();
        for (k, n) in [(0, 0), (8, 0), (0, 1), (300, 70), (511, 127)] {
            assert_eq!(wide.block_offset(k, n) / 32, narrow.block_offset(k, n) / 9);
        }

        let rows = Rows::new(Format::F32, N, K).unwrap();
        let mut out = vec![0; rows.bytes()];
        rows.pack(&Pool::serial(), &|n, row| row.copy_from_slice(&w[n * K..][..K]), &mut out).unwrap();
        assert_eq!(rows.unpack(&out).unwrap(), w);
    }

    #[test]
    fn a_unit_of_128_k_and_8_columns_is_contiguous() {
        let stream = BStream::new(Format::Bfp16, 1024, 192, true).unwrap();
        let mut seen: Vec<usize> = (128..256)
            .step_by(8)
            .flat_map(|k| (72..80).map(move |n| (k, n)))
            .map(|(k, n)| stream.block_offset(k, n))
            .collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..128).map(|i| seen[0] + 9 * i).collect::<Vec<_>>());
        assert_eq!(seen[0], stream.column_block_bytes() + 9216 + 1152 * (8 + 1));
    }

    #[test]
    fn negative_zeros_do_not_become_a_step() {
        let stream = BStream::new(Format::Bfp16, K, 64, false).unwrap();
        let mut out = vec![0; stream.bytes()];
        stream.pack(&Pool::serial(), &|_, row| (row.fill(-0.0), row[0] = 1.0).1, None, &mut out).unwrap();
        let back = stream.unpack(&out).unwrap();
        assert!(back.iter().enumerate().all(|(i, &x)| x == f32::from(u8::from(i % K == 0))));
    }

    #[test]
    fn pairing_covers_both_weights_once() {
        let width = 96;
        let (mut gate, mut up) = (vec![0; width], vec![0; width]);
        for n in 0..2 * width {
            match Paired::of(n) {
                Paired::Gate(i) => gate[i] += 1,
                Paired::Up(i) => up[i] += 1,
            }
        }
        assert!(gate.iter().chain(&up).all(|&n| n == 1));
        assert_eq!((Paired::of(64), Paired::of(63)), (Paired::Gate(32), Paired::Up(31)));
    }

    #[test]
    fn shapes_and_lengths_are_checked() {
        assert!(matches!(BStream::new(Format::Bfp16, 768, 64, false), Err(PackError::Multiple { what: "K", .. })));
        assert!(matches!(BStream::new(Format::Bfp16, 512, 0, false), Err(PackError::Multiple { what: "N", .. })));
        assert!(matches!(Rows::new(Format::Bfp16, 12, 8), Err(PackError::Multiple { what: "rows", .. })));
        assert!(matches!(Rows::new(Format::F32, 1 << 60, 1 << 10), Err(PackError::TooLarge { .. })));
        let stream = BStream::new(Format::Bfp16, K, 64, false).unwrap();
        let mut out = vec![0; stream.bytes()];
        let pool = Pool::serial();
        assert!(stream.pack(&pool, &|_, _| (), Some(&[0.0; 64]), &mut out).is_err());
        assert!(stream.pack(&pool, &|_, _| (), None, &mut out[1..]).is_err());
        assert!(stream.unpack(&out[..9]).is_err());
        let error = Rows::new(Format::Bfp16, 8, 8).unwrap().unpack(&[0; 71]).unwrap_err();
        assert_eq!(error.to_string(), "packed weight: 71 long where the layout needs 72");
    }
}
