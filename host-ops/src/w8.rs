//! 8-bit weights with a factor per output channel, as bfp16 blocks can hold them exactly.

use crate::simd::{kernel, zip};

/// Quantises one output channel: `row[i] ~ f * q[i] * 2^e` with q in -127..127 and f in [1, 2). Replaces `row` by the
/// values `q * 2^e` and returns f. Never leaves a negative zero behind; a row of zeros has the factor 1.
///
/// The largest `|q|` of a block sets a mantissa step of at most `2^e`, so a bfp16 block holds the values exactly. K
/// slices of one weight share f: quantise the whole row, then cut it.
pub fn quantise(row: &mut [f32]) -> f32 {
    let largest = row.iter().fold(0f32, |m, x| m.max(x.abs()));
    // f 2^e is the step. Below the smallest normal number there is nothing to keep.
    let step = largest / 127.0;
    if !step.is_normal() {
        row.fill(0.0);
        return 1.0;
    }
    let bits = step.to_bits();
    let f = f32::from_bits((bits & 0x7f_ffff) | 0x3f80_0000);
    let power = f32::from_bits(bits & 0x7f80_0000);
    for x in row {
        let q = (*x / step).round_ties_even().clamp(-127.0, 127.0);
        *x = q * power + 0.0;
    }
    f
}

kernel! {
    /// `x[r, c] *= f[c]` for all rows. `x`: `[n, f.len()]`.
    ///
    /// # Panics
    /// If the lengths do not fit.
    pub fn scale_columns<V>(x: &mut [f32], f: &[f32]) {
        assert!(x.len().is_multiple_of(f.len()));
        for x in x.chunks_exact_mut(f.len()) {
            for (x, f) in x.iter_mut().zip(f) {
                *x *= f;
            }
        }
    }
}

kernel! {
    /// `out[r, c] = x[r, c] * f[c]` for all rows. `x`, `out`: `[n, f.len()]`.
    ///
    /// # Panics
    /// If the lengths do not fit.
    pub fn scaled_columns<V>(x: &[f32], f: &[f32], out: &mut [f32]) {
        assert!(x.len() == out.len() && x.len().is_multiple_of(f.len()));
        for (x, out) in x.chunks_exact(f.len()).zip(out.chunks_exact_mut(f.len())) {
            zip::<V>(x, f, out, |x, f| x.mul(f));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        bfp16,
        pack::{BStream, Format},
        pool::Pool,
        testing::{Random, bits, fixture, fixture_f32},
    };
    use std::sync::Mutex;

    #[test]
    fn golden_factors_and_stream() {
        const K: usize = 1024;
        const N: usize = 64;
        let (w, golden_f, golden) = (fixture_f32("w8.w.f32"), fixture_f32("w8.f.f32"), fixture("w8.stream.u8"));
        let f = Mutex::new(vec![0.0; N]);
        let stream = BStream::new(Format::Bfp16, K, N, false).unwrap();
        let mut out = vec![0; stream.bytes()];
        let source = |n: usize, row: &mut [f32]| {
            row.iter_mut().enumerate().for_each(|(k, x)| *x = w[k * N + n]);
            f.lock().unwrap()[n] = quantise(row);
        };
        stream.pack(&Pool::new(2), &source, None, &mut out).unwrap();
        assert_eq!(f.into_inner().unwrap(), golden_f);
        assert!(out == golden);
    }

    #[test]
    fn bfp16_holds_the_values_exactly() {
        let mut random = Random::new(11);
        for scale in [1.0, 1e-5, 3e4, 1e-30] {
            let mut row = random.normal(4096);
            row.iter_mut().for_each(|x| *x *= scale);
            row[7] = -0.0;
            let original = row.clone();
            let f = quantise(&mut row);
            assert!((1.0..2.0).contains(&f));
            let largest = original.iter().fold(0f32, |m, x| m.max(x.abs()));
            for (q, x) in row.iter().zip(&original) {
                assert!((f * q - x).abs() <= largest / 127.0 * 0.500_001);
            }
            let mut packed = vec![0.0; 4096];
            bfp16::quantise(&row, &mut packed);
            assert_eq!(bits(&packed), bits(&row));
        }
    }

    #[test]
    fn nothing_to_quantise() {
        let mut zero = [-0.0, 0.0, 1e-44];
        assert_eq!(quantise(&mut zero), 1.0);
        assert_eq!(bits(&zero), [0; 3]);
        let mut none = [];
        assert_eq!(quantise(&mut none), 1.0);
    }

    #[test]
    fn columns_are_scaled() {
        let (f, x) = ([2.0, 0.5, 1.0], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let (mut in_place, mut out) = (x, [0.0; 6]);
        scale_columns(&mut in_place, &f);
        scaled_columns(&x, &f, &mut out);
        assert_eq!(out, [2.0, 1.0, 3.0, 8.0, 2.5, 6.0]);
        assert_eq!(in_place, out);
    }
}
