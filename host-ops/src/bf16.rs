//! Between f32 and bf16: round to nearest even; a NaN stays a NaN.

use crate::simd::kernel;
pub use half::bf16;

/// The upper half of an f32, rounded to nearest even: adding 0x7fff plus the lowest kept bit carries exactly when it
/// should. A NaN is cut instead (the carry could make it an infinity), its quiet bit set.
#[inline(always)]
fn round(x: f32) -> u16 {
    let x = x.to_bits();
    let rounded = x.wrapping_add(0x7fff + ((x >> 16) & 1)) >> 16;
    let cut = (x >> 16) | 0x40;
    (if x & 0x7fff_ffff > 0x7f80_0000 { cut } else { rounded }) as u16
}

#[inline(always)]
fn widen(x: bf16) -> f32 {
    f32::from_bits(u32::from(x.to_bits()) << 16)
}

kernel! {
    /// `out[i] = x[i]`, exact.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn to_f32<V>(x: &[bf16], out: &mut [f32]) {
        assert_eq!(x.len(), out.len());
        for (o, &x) in out.iter_mut().zip(x) {
            *o = widen(x);
        }
    }
}

kernel! {
    /// `out[i] = x[i]` rounded to nearest, ties to even. A NaN keeps its sign and upper mantissa bits, with the quiet
    /// bit set.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn from_f32<V>(x: &[f32], out: &mut [bf16]) {
        assert_eq!(x.len(), out.len());
        for (o, &x) in out.iter_mut().zip(x) {
            *o = bf16::from_bits(round(x));
        }
    }
}

kernel! {
    /// `x[i] += y[i]`, `y` widened: the residual add of a projection's output.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn add<V>(x: &mut [f32], y: &[bf16]) {
        assert_eq!(x.len(), y.len());
        for (x, &y) in x.iter_mut().zip(y) {
            *x += widen(y);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{simd::plain, testing::Random};

    fn convert(x: &[f32]) -> Vec<u16> {
        let mut out = vec![bf16::ZERO; x.len()];
        from_f32(x, &mut out);
        out.iter().map(|x| x.to_bits()).collect()
    }

    #[test]
    fn rounds_as_the_half_crate_does() {
        let mut random = Random::new(3);
        let mut x: Vec<f32> = (0..100_003).map(|_| f32::from_bits(random.next() as u32)).collect();
        x.extend([0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN_POSITIVE, 1e-45]);
        let ours = convert(&x);
        for (&x, &ours) in x.iter().zip(&ours) {
            assert_eq!(ours, bf16::from_f32(x).to_bits(), "{x} = {:08x}", x.to_bits());
        }
        assert_eq!(ours, plain(|| convert(&x)));
    }

    #[test]
    fn ties_go_to_even_and_nan_stays_nan() {
        let x = [0x3f80_8000, 0x3f81_8000, 0x3f80_8001, 0x7f80_0001, 0xffff_ffff].map(f32::from_bits);
        assert_eq!(convert(&x), [0x3f80, 0x3f82, 0x3f81, 0x7fc0, 0xffff]);
    }

    #[test]
    fn there_and_back_is_exact() {
        let all: Vec<bf16> = (0..=u16::MAX).map(bf16::from_bits).filter(|x| !x.is_nan()).collect();
        let (mut wide, mut back) = (vec![0.0; all.len()], vec![bf16::ZERO; all.len()]);
        to_f32(&all, &mut wide);
        from_f32(&wide, &mut back);
        assert!(all.iter().zip(&back).all(|(a, b)| a.to_bits() == b.to_bits()));
        let mut sum = vec![1.0; all.len()];
        add(&mut sum, &all);
        assert!(sum.iter().zip(&all).all(|(s, x)| s.to_bits() == (1.0 + x.to_f32()).to_bits()));
    }
}
