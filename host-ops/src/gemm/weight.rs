//! A packed weight of either layout as one operand: what a GEMV of the NPU computes with it, by the threads of a pool.

use half::bf16;

use super::{BLOCK_COLUMNS, gemv_block, gemv_rows};
use crate::pack::{BStream, Format, PackError, Rows};
use crate::pool::Pool;

/// A packed weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// The B stream of a GEMM.
    Stream(BStream),
    /// Rows, as the head's.
    Rows(Rows),
}

impl Weight {
    /// Values of the input vector.
    pub fn inputs(&self) -> usize {
        match self {
            Weight::Stream(stream) => stream.k(),
            Weight::Rows(rows) => rows.k(),
        }
    }

    /// Results.
    pub fn outputs(&self) -> usize {
        match self {
            Weight::Stream(stream) => stream.n(),
            Weight::Rows(rows) => rows.rows(),
        }
    }

    /// Bytes of the weight.
    pub fn bytes(&self) -> usize {
        match self {
            Weight::Stream(stream) => stream.bytes(),
            Weight::Rows(rows) => rows.bytes(),
        }
    }

    /// Its number format.
    pub fn format(&self) -> Format {
        match self {
            Weight::Stream(stream) => stream.format(),
            Weight::Rows(rows) => rows.format(),
        }
    }

    /// Results `first..first + y.len()` of the product with `x`, biases added: the f32 sums of [`gemv_block`] and
    /// [`gemv_rows`], the same bits for any number of threads and any cut. `x`: `[inputs]`, already
    /// [`split`](super::split) if the format asks for it. `first` is a multiple of 64, `y` ends at one or at the end.
    ///
    /// # Errors
    /// [`PackError::Length`] if `packed`, `x` or `y` do not fit, [`PackError::Multiple`] if `first` does not.
    pub fn gemv(&self, pool: &Pool, packed: &[u8], x: &[f32], first: usize, y: &mut [f32]) -> Result<(), PackError> {
        let length = |what, expected, got| PackError::Length { what, expected, got };
        if packed.len() < self.bytes() {
            return Err(length("packed weight", self.bytes(), packed.len()));
        }
        if x.len() != self.inputs() {
            return Err(length("input vector", self.inputs(), x.len()));
        }
        if !first.is_multiple_of(BLOCK_COLUMNS) {
            return Err(PackError::Multiple { what: "first result", value: first, of: BLOCK_COLUMNS });
        }
        let rest = self.outputs().saturating_sub(first);
        if y.len() > rest || !(y.len() == rest || y.len().is_multiple_of(BLOCK_COLUMNS)) {
            return Err(length("results", rest, y.len()));
        }
        pool.run_chunks(y, BLOCK_COLUMNS, &|i, y| self.block(packed, x, first + i * BLOCK_COLUMNS, y));
        Ok(())
    }

    /// Up to 64 results.
    fn block(&self, packed: &[u8], x: &[f32], first: usize, y: &mut [f32]) {
        match self {
            Weight::Rows(rows) => {
                let start = rows.piece_offset(first, 0);
                let bytes = rows.format().bytes(y.len() * rows.k());
                gemv_rows(rows.format(), &packed[start..start + bytes], x, y);
            }
            Weight::Stream(stream) => {
                let start = first / BLOCK_COLUMNS * stream.column_block_bytes();
                let (bias, weights) = packed[start..][..stream.column_block_bytes()].split_at(stream.bias_bytes());
                let mut sums = [0.0; BLOCK_COLUMNS];
                gemv_block(stream.format(), weights, x, &mut sums);
                if stream.has_bias() {
                    match stream.format() {
                        Format::F32 => {
                            let biases = bias.as_chunks().0.iter().map(|&bias| f32::from_le_bytes(bias));
                            sums.iter_mut().zip(biases).for_each(|(y, bias)| *y += bias);
                        }
                        _ => {
                            let biases = bias.as_chunks().0.iter().map(|&bias| bf16::from_le_bytes(bias).to_f32());
                            sums.iter_mut().zip(biases).for_each(|(y, bias)| *y += bias);
                        }
                    }
                }
                y.copy_from_slice(&sums[..y.len()]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gemm::split;
    use crate::testing::Random;

    /// Any cut and any number of threads give the bits of one fused multiply-add a k in the order of k, then the bias.
    #[test]
    fn a_product_has_the_bits_of_the_plain_sum() {
        let (k, n) = (512, 192);
        let mut random = Random::new(7);
        let (weights, bias) = (random.normal(n * k), random.normal(n));
        let row = |i: usize, out: &mut [f32]| out.copy_from_slice(&weights[i * k..][..k]);
        let serial = Pool::serial();
        for format in [Format::Bfp16, Format::Bfp6s, Format::F32] {
            let mut x = random.normal(k);
            if format != Format::F32 {
                split(&mut x);
            }
            for biased in [false, true] {
                let stream = BStream::new(format, k, n, biased).unwrap();
                let mut bytes = vec![0; stream.bytes()];
                stream.pack(&serial, &row, biased.then_some(&bias[..]), &mut bytes).unwrap();
                let (w, b) = (stream.unpack(&bytes).unwrap(), stream.unpack_bias(&bytes).unwrap());
                check(Weight::Stream(stream), &bytes, &x, &w, &b);
            }
            // 184 rows: the last block is a short one.
            let rows = Rows::new(format, n - 8, k).unwrap();
            let mut bytes = vec![0; rows.bytes()];
            rows.pack(&serial, &row, &mut bytes).unwrap();
            let w = rows.unpack(&bytes).unwrap();
            check(Weight::Rows(rows), &bytes, &x, &w, &[]);
        }
    }

    fn check(weight: Weight, bytes: &[u8], x: &[f32], w: &[f32], bias: &[f32]) {
        let (k, n) = (weight.inputs(), weight.outputs());
        let plain: Vec<u32> = (0..n)
            .map(|i| w[i * k..][..k].iter().zip(x).fold(0f32, |sum, (w, x)| w.mul_add(*x, sum)))
            .zip(bias.iter().map(Some).chain(std::iter::repeat(None)))
            .map(|(sum, bias)| bias.map_or(sum, |bias| sum + bias).to_bits())
            .collect();
        for threads in [1, 3] {
            let pool = Pool::new(threads);
            for cut in [64, 128, n] {
                let mut y = vec![0.0; n];
                let mut first = 0;
                while first < n {
                    let end = (first + cut).min(n);
                    weight.gemv(&pool, bytes, x, first, &mut y[first..end]).unwrap();
                    first = end;
                }
                let got: Vec<u32> = y.iter().map(|y| y.to_bits()).collect();
                assert!(got == plain, "{weight:?}, {threads} threads, cut at {cut}");
            }
        }
        let pool = Pool::serial();
        let mut y = vec![0.0; n];
        assert!(weight.gemv(&pool, &bytes[1..], x, 0, &mut y).is_err());
        assert!(weight.gemv(&pool, bytes, &x[8..], 0, &mut y).is_err());
        assert!(weight.gemv(&pool, bytes, x, 8, &mut y[..64]).is_err());
        assert!(weight.gemv(&pool, bytes, x, 64, &mut y).is_err());
        assert!(weight.gemv(&pool, bytes, x, 0, &mut y[..8]).is_err());
    }
}
