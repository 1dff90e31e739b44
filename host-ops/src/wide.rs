//! Sixteen f32 side by side, for sums whose lanes never meet: one register of AVX-512, or two vectors of eight.
//!
//! Every lane goes through the same operations in the same order whatever holds it, so results are the same bits.

use crate::simd::{LANES, Lanes, Stored};

/// Values that a panel has side by side.
pub(crate) const WIDE: usize = 2 * LANES;

/// Some f32 side by side. The names are others than those of [`Lanes`], whose implementors are vectors too.
pub(crate) trait Vector: Copy {
    /// How many.
    const LEN: usize;
    /// Sums of a matrix product that fit into the registers, beside what they are made of.
    const ROWS: usize;
    /// All `x`.
    fn all(x: f32) -> Self;
    /// The first values of a slice, widened. It has as many.
    fn read<E: Stored>(x: &[E]) -> Self;
    /// To the first places of a slice. It has as many.
    fn write(self, out: &mut [f32]);
    fn times(self, b: Self) -> Self;
    fn less(self, b: Self) -> Self;
    /// `self + a * b`, rounded once.
    fn plus(self, a: Self, b: Self) -> Self;
}

impl<V: Lanes> Vector for V {
    const LEN: usize = LANES;
    const ROWS: usize = 6;
    #[inline(always)]
    fn all(x: f32) -> Self {
        V::splat(x)
    }
    #[inline(always)]
    fn read<E: Stored>(x: &[E]) -> Self {
        E::load(&x.as_chunks::<LANES>().0[0])
    }
    #[inline(always)]
    fn write(self, out: &mut [f32]) {
        self.store(&mut out.as_chunks_mut::<LANES>().0[0]);
    }
    #[inline(always)]
    fn times(self, b: Self) -> Self {
        self.mul(b)
    }
    #[inline(always)]
    fn less(self, b: Self) -> Self {
        self.sub(b)
    }
    #[inline(always)]
    fn plus(self, a: Self, b: Self) -> Self {
        a.fma(b, self)
    }
}

/// Two vectors of eight.
#[derive(Clone, Copy)]
pub(crate) struct Two<V>(V, V);

impl<V: Lanes> Vector for Two<V> {
    const LEN: usize = WIDE;
    const ROWS: usize = 6;
    #[inline(always)]
    fn all(x: f32) -> Self {
        Two(V::splat(x), V::splat(x))
    }
    #[inline(always)]
    fn read<E: Stored>(x: &[E]) -> Self {
        let x = &x.as_chunks::<WIDE>().0[0].as_chunks::<LANES>().0;
        Two(E::load(&x[0]), E::load(&x[1]))
    }
    #[inline(always)]
    fn write(self, out: &mut [f32]) {
        let out = out.as_chunks_mut::<WIDE>().0[0].as_chunks_mut::<LANES>().0;
        self.0.store(&mut out[0]);
        self.1.store(&mut out[1]);
    }
    #[inline(always)]
    fn times(self, b: Self) -> Self {
        Two(self.0.mul(b.0), self.1.mul(b.1))
    }
    #[inline(always)]
    fn less(self, b: Self) -> Self {
        Two(self.0.sub(b.0), self.1.sub(b.1))
    }
    #[inline(always)]
    fn plus(self, a: Self, b: Self) -> Self {
        Two(a.0.fma(b.0, self.0), a.1.fma(b.1, self.1))
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::Zmm;

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Vector, WIDE};
    use crate::simd::Stored;
    use half::{bf16, f16};
    use std::arch::x86_64::*;

    /// A register of AVX-512. Used only by code that [`crate::simd::kernel!`] compiles for it, after it was found at run
    /// time; each SAFETY line below rests on that.
    #[derive(Clone, Copy)]
    pub(crate) struct Zmm(__m512);

    impl Zmm {
        #[inline(always)]
        pub(crate) fn load(x: &[f32; WIDE]) -> Self {
            // SAFETY: AVX-512 is there, see `Zmm`; `x` is 16 readable f32, and the load needs no alignment.
            Zmm(unsafe { _mm512_loadu_ps(x.as_ptr()) })
        }
        #[inline(always)]
        pub(crate) fn load_bf16(x: &[bf16; WIDE]) -> Self {
            // SAFETY: AVX-512 is there, see `Zmm`; `x` is 32 readable bytes, and the load needs no alignment.
            unsafe {
                let x = _mm512_cvtepu16_epi32(_mm256_loadu_si256(x.as_ptr().cast()));
                Zmm(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(x)))
            }
        }
        #[inline(always)]
        pub(crate) fn load_f16(x: &[f16; WIDE]) -> Self {
            // SAFETY: AVX-512 is there, see `Zmm`; `x` is 32 readable bytes, and the load needs no alignment.
            Zmm(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(x.as_ptr().cast())) })
        }
    }

    impl Vector for Zmm {
        const LEN: usize = WIDE;
        const ROWS: usize = 12;
        #[inline(always)]
        fn all(x: f32) -> Self {
            // SAFETY: AVX-512 is there, see `Zmm`.
            Zmm(unsafe { _mm512_set1_ps(x) })
        }
        #[inline(always)]
        fn read<E: Stored>(x: &[E]) -> Self {
            E::load_zmm(&x.as_chunks::<WIDE>().0[0])
        }
        #[inline(always)]
        fn write(self, out: &mut [f32]) {
            let out = &mut out.as_chunks_mut::<WIDE>().0[0];
            // SAFETY: AVX-512 is there, see `Zmm`; `out` is 16 writable f32, and the store needs no alignment.
            unsafe { _mm512_storeu_ps(out.as_mut_ptr(), self.0) }
        }
        #[inline(always)]
        fn times(self, b: Self) -> Self {
            // SAFETY: AVX-512 is there, see `Zmm`.
            Zmm(unsafe { _mm512_mul_ps(self.0, b.0) })
        }
        #[inline(always)]
        fn less(self, b: Self) -> Self {
            // SAFETY: AVX-512 is there, see `Zmm`.
            Zmm(unsafe { _mm512_sub_ps(self.0, b.0) })
        }
        #[inline(always)]
        fn plus(self, a: Self, b: Self) -> Self {
            // SAFETY: AVX-512 is there, see `Zmm`.
            Zmm(unsafe { _mm512_fmadd_ps(a.0, b.0, self.0) })
        }
    }
}
