//! The orders in which packed weights lie in memory: the GEMM's B stream, the row layout of the head, and the pairing
//! of gate and up.
//!
//! Both layouts are made of atoms, 8 outputs x 8 k, in bfp16 of 72 bytes; they differ in the order of the atoms. In bfp6s
//! sixteen atoms along k are one unit of 832 bytes ([`crate::bfp6s`]), and units take the places of such sixteen.

use crate::{bfp6s, bfp16, pool::Pool};
use half::bf16;

/// How consecutive values along k are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// 9 bytes for 8, see [`crate::bfp16`].
    Bfp16,
    /// 13 bytes for 16, see [`crate::bfp6s`].
    Bfp6s,
    /// Little-endian f32. Only the reference kernels know it.
    F32,
}

impl Format {
    /// Bytes of `values` weights, a whole number of blocks.
    pub const fn bytes(self, values: usize) -> usize {
        match self {
            Format::Bfp16 => values / bfp16::BLOCK_VALUES * bfp16::BLOCK_BYTES,
            Format::Bfp6s => values / bfp6s::BLOCK_VALUES * 13,
            Format::F32 => 4 * values,
        }
    }

    /// Bytes of an activation, result or bias: bf16 beside blocks, else f32.
    pub const fn element_bytes(self) -> usize {
        match self {
            Format::Bfp16 | Format::Bfp6s => 2,
            Format::F32 => 4,
        }
    }

    /// Values along k of a piece, the smallest run of bytes that no layout cuts: of one output, or in bfp6s of eight.
    const fn unit_k(self) -> usize {
        match self {
            Format::Bfp16 | Format::F32 => 8,
            Format::Bfp6s => bfp6s::UNIT_K,
        }
    }

    /// Where the piece of a group of eight outputs starts that holds k of one of them.
    const fn offset(self, k: usize, output: usize) -> usize {
        let first = k / self.unit_k() * self.unit_k() * 8;
        match self {
            Format::Bfp16 | Format::F32 => self.bytes(first + output % 8 * 8),
            Format::Bfp6s => self.bytes(first),
        }
    }

    /// Encodes one output and puts its pieces where `place(k)` says the one that holds k begins. Of a piece that holds
    /// several outputs this is number `output`; the others' bits stay.
    fn put(self, x: &mut [f32], output: usize, place: impl Fn(usize) -> usize, out: &mut [u8]) {
        match self {
            Format::Bfp16 => {
                // A negative zero becomes a positive one, see `bfp16::encode_block`.
                x.iter_mut().for_each(|x| *x += 0.0);
                let mut blocks = vec![0; self.bytes(x.len())];
                bfp16::encode(x, &mut blocks);
                for (i, block) in blocks.as_chunks::<{ bfp16::BLOCK_BYTES }>().0.iter().enumerate() {
                    out[place(8 * i)..][..block.len()].copy_from_slice(block);
                }
            }
            Format::Bfp6s => {
                let mut blocks = vec![bfp6s::Block::ZERO; x.len() / bfp6s::BLOCK_VALUES];
                bfp6s::encode(x, &mut blocks);
                for (i, blocks) in blocks.chunks(8).enumerate() {
                    let unit = out[place(bfp6s::UNIT_K * i)..].first_chunk_mut();
                    // The layouts are made of whole units.
                    let Some(unit) = unit else { return };
                    for (tile, block) in blocks.iter().enumerate() {
                        bfp6s::put(unit, output, tile, block);
                    }
                }
            }
            Format::F32 => {
                for (i, x) in x.as_chunks::<8>().0.iter().enumerate() {
                    let out = out[place(8 * i)..].as_chunks_mut().0;
                    out.iter_mut().zip(x).for_each(|(out, x)| *out = x.to_le_bytes());
                }
            }
        }
    }

    /// Decodes one output, number `output` in its pieces.
    fn get(self, bytes: &[u8], output: usize, place: impl Fn(usize) -> usize, x: &mut [f32]) {
        match self {
            Format::Bfp16 => {
                for (i, x) in x.chunks_exact_mut(bfp16::BLOCK_VALUES).enumerate() {
                    bfp16::decode(&bytes[place(8 * i)..][..bfp16::BLOCK_BYTES], x);
                }
            }
            Format::Bfp6s => {
                for (i, x) in x.as_chunks_mut().0.iter_mut().enumerate() {
                    let Some(unit) = bytes[place(bfp6s::UNIT_K * i)..].first_chunk() else { return };
                    bfp6s::decode_output(unit, output, x);
                }
            }
            Format::F32 => {
                for (i, x) in x.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                    let values = bytes[place(8 * i)..].as_chunks().0;
                    x.iter_mut().zip(values).for_each(|(x, value)| *x = f32::from_le_bytes(*value));
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
        if self.bias { self.format.bytes(Self::SLICE_K * Self::BLOCK_COLUMNS) } else { 0 }
    }

    /// Bytes of one column block, its bias chunk included.
    pub fn column_block_bytes(&self) -> usize {
        self.bias_bytes() + self.format.bytes(self.k * Self::BLOCK_COLUMNS)
    }

    /// Bytes of the whole stream.
    pub fn bytes(&self) -> usize {
        self.n / Self::BLOCK_COLUMNS * self.column_block_bytes()
    }

    /// Where the piece with the value (k, n) starts: the block of 8 values of column n, or the unit of 8 columns.
    pub fn piece_offset(&self, k: usize, n: usize) -> usize {
        n / Self::BLOCK_COLUMNS * self.column_block_bytes() + self.bias_bytes() + self.offset_within(k, n)
    }

    /// The same from the start of the column block's weights.
    fn offset_within(&self, k: usize, n: usize) -> usize {
        let unit = k / Self::SLICE_K * 8 + n % Self::BLOCK_COLUMNS / 8;
        self.format.bytes(unit * Self::SLICE_K * 8) + self.format.offset(k % Self::SLICE_K, n)
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
        pool.run_chunks(out, self.column_block_bytes(), &|cb, out| {
            out.fill(0);
            let (chunk, weights) = out.split_at_mut(self.bias_bytes());
            let first = cb * Self::BLOCK_COLUMNS;
            for (i, bias) in bias.iter().flat_map(|b| &b[first..first + Self::BLOCK_COLUMNS]).enumerate() {
                self.put_bias(chunk, i, *bias);
            }
            let mut row = vec![0.0; self.k];
            for n in first..first + Self::BLOCK_COLUMNS {
                row.fill(0.0);
                source(n, &mut row);
                self.format.put(&mut row, n % 8, |k| self.offset_within(k, n), weights);
            }
        });
        Ok(())
    }

    fn put_bias(&self, chunk: &mut [u8], i: usize, bias: f32) {
        match self.format {
            Format::Bfp16 | Format::Bfp6s => {
                chunk[2 * i..2 * i + 2].copy_from_slice(&bf16::from_f32(bias).to_le_bytes());
            }
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
            self.format.get(bytes, n % 8, |k| self.piece_offset(k, n), row);
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
                Format::Bfp16 | Format::Bfp6s => {
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

/// The row layout of the head: groups of 8 rows, in a group the atoms in k order.
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
    /// [`PackError::Multiple`] unless `rows % 8 == 0` and `k % 8 == 0`, `k % 128 == 0` in bfp6s;
    /// [`PackError::TooLarge`].
    pub fn new(format: Format, rows: usize, k: usize) -> Result<Self, PackError> {
        multiple("K", k, format.unit_k())?;
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
        self.format.bytes(self.rows * self.k)
    }

    /// Where the piece with value k of row `row` starts: the block of 8 values, or the unit of 8 rows.
    pub fn piece_offset(&self, row: usize, k: usize) -> usize {
        self.format.bytes(row / Self::GROUP * Self::GROUP * self.k) + self.format.offset(k, row)
    }

    /// Packs rows (parallel over groups).
    ///
    /// # Errors
    /// [`PackError::Length`].
    pub fn pack(&self, pool: &Pool, source: &RowSource<'_>, out: &mut [u8]) -> Result<(), PackError> {
        length("packed weight", self.bytes(), out.len())?;
        pool.run_chunks(out, self.format.bytes(Self::GROUP * self.k), &|group, out| {
            out.fill(0);
            let mut values = vec![0.0; self.k];
            for row in 0..Self::GROUP {
                values.fill(0.0);
                source(group * Self::GROUP + row, &mut values);
                self.format.put(&mut values, row, |k| self.format.offset(k, row), out);
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
        self.format.get(bytes, row % Self::GROUP, |k| self.piece_offset(row, k), out);
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
            assert_eq!(wide.piece_offset(k, n) / 32, narrow.piece_offset(k, n) / 9);
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
            .map(|(k, n)| stream.piece_offset(k, n))
            .collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..128).map(|i| seen[0] + 9 * i).collect::<Vec<_>>());
        assert_eq!(seen[0], stream.column_block_bytes() + 9216 + 1152 * (8 + 1));
    }

    #[test]
    fn golden_rows_in_six_bits() {
        let (bytes, mantissas, exponents) =
            (fixture("bfp6s.bytes.u8"), fixture("bfp6s.mantissa.i8"), fixture("bfp6s.exponent.u8"));
        let rows = Rows::new(Format::Bfp6s, 16, 384).unwrap();
        let expected: Vec<f32> = mantissas
            .iter()
            .enumerate()
            .map(|(i, m)| f32::from(*m as i8) * 2f32.powi(i32::from(exponents[i / 16]) - 133))
            .collect();
        assert_eq!(rows.unpack(&bytes).unwrap(), expected);
        let mut out = vec![0xaa; rows.bytes()];
        for threads in [1, 3] {
            rows.pack(&Pool::new(threads), &|r, row| row.copy_from_slice(&expected[384 * r..][..384]), &mut out)
                .unwrap();
            assert_eq!(rows.unpack(&out).unwrap(), expected);
        }
        assert!(matches!(Rows::new(Format::Bfp6s, 8, 64), Err(PackError::Multiple { of: 128, .. })));
    }

    #[test]
    fn six_bits_take_the_places_of_units_and_half_of_the_weights() {
        let mut random = Random::new(12);
        let (w, bias) = (random.normal(N * K), random.normal(N));
        let stream = BStream::new(Format::Bfp6s, K, N, true).unwrap();
        assert_eq!((stream.bias_bytes(), stream.column_block_bytes()), (6656, 6656 + 52 * K));
        let mut out = vec![0xaa; stream.bytes()];
        stream.pack(&Pool::new(2), &|n, row| row.copy_from_slice(&w[n * K..][..K]), Some(&bias), &mut out).unwrap();
        let mut quantised = vec![0.0; w.len()];
        bfp6s::quantise(&w, &mut quantised);
        assert_eq!(stream.unpack(&out).unwrap(), quantised);
        let rounded: Vec<f32> = bias.iter().map(|&b| bf16::from_f32(b).to_f32()).collect();
        assert_eq!(stream.unpack_bias(&out).unwrap(), rounded);
        let unit = |k, n| (stream.piece_offset(k, n) - 6656 * (1 + n / 64)) / 832;
        assert_eq!([unit(0, 0), unit(127, 7), unit(0, 8), unit(128, 0), unit(511, 127)], [0, 0, 1, 8, 63]);
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
