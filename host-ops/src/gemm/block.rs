//! Packed blocks in vectors.

use crate::bfp16;
use crate::simd::{Lanes, Plain};

/// What a vector of eight f32 can do with the packed formats.
pub(crate) trait Blocks: Sized {
    /// Eight values through bfp16ebs8 and back.
    fn quantise(self) -> Self;
    /// An atom of bfp16ebs8 (8 columns of 8 k, 9 bytes a column): for each k the eight columns.
    fn bfp16_atom(atom: &[u8; 72]) -> [Self; 8];
    /// An atom of f32 (8 columns of 8 k): for each k the eight columns.
    fn f32_atom(atom: &[u8; 256]) -> [Self; 8];
}

/// The f32 atom as rows of columns.
#[inline(always)]
fn f32_rows<V: Lanes>(atom: &[u8; 256]) -> [V; 8] {
    let values = atom.as_chunks::<4>().0;
    std::array::from_fn(|k| V::load(&std::array::from_fn(|column| f32::from_le_bytes(values[8 * column + k]))))
}

impl Blocks for Plain {
    #[inline(always)]
    fn quantise(self) -> Self {
        let mut x = [0.0; 8];
        self.store(&mut x);
        Plain::load(&bfp16::decode_block(&bfp16::encode_block(&x)))
    }

    #[inline(always)]
    fn bfp16_atom(atom: &[u8; 72]) -> [Self; 8] {
        let blocks = atom.as_chunks::<9>().0;
        let columns: [[f32; 8]; 8] = std::array::from_fn(|column| bfp16::decode_block(&blocks[column]));
        std::array::from_fn(|k| Plain::load(&std::array::from_fn(|column| columns[column][k])))
    }

    #[inline(always)]
    fn f32_atom(atom: &[u8; 256]) -> [Self; 8] {
        f32_rows(atom)
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Blocks, Lanes, bfp16, f32_rows};
    use crate::simd::Avx;
    use std::arch::x86_64::*;

    impl Blocks for Avx {
        #[inline(always)]
        fn quantise(self) -> Self {
            // SAFETY: AVX2 is there, see `Avx`.
            unsafe {
                let bits = _mm256_castps_si256(self.0);
                let own = _mm256_and_si256(_mm256_srli_epi32::<23>(bits), _mm256_set1_epi32(0xFF));
                let largest = _mm_max_epi32(_mm256_castsi256_si128(own), _mm256_extracti128_si256::<1>(own));
                let largest = _mm_max_epi32(largest, _mm_shuffle_epi32::<0b01_00_11_10>(largest));
                let largest = _mm_max_epi32(largest, _mm_shuffle_epi32::<0b10_11_00_01>(largest));
                let e = _mm_cvtsi128_si32(largest);
                if _mm256_testz_si256(bits, _mm256_set1_epi32(i32::MAX)) == 1 {
                    return Avx(_mm256_setzero_ps());
                }
                if !(8..=254).contains(&e) {
                    // 2^(133 - e) is no f32, or the block is not finite.
                    let mut x = [0.0; 8];
                    self.store(&mut x);
                    return Avx::load(&bfp16::decode_block(&bfp16::encode_block(&x)));
                }
                let up = _mm256_castsi256_ps(_mm256_set1_epi32((260 - e) << 23));
                let down = _mm256_castsi256_ps(_mm256_set1_epi32((e - 6) << 23));
                let m = _mm256_min_epi32(_mm256_cvtps_epi32(_mm256_mul_ps(self.0, up)), _mm256_set1_epi32(127));
                // A negative value 2^32 below the largest becomes -1; m is 0 there.
                let far = _mm256_cmpgt_epi32(_mm256_set1_epi32(e - 31), own);
                let m = _mm256_or_si256(m, _mm256_and_si256(far, _mm256_srai_epi32::<31>(bits)));
                Avx(_mm256_mul_ps(_mm256_cvtepi32_ps(m), down))
            }
        }

        #[inline(always)]
        fn bfp16_atom(atom: &[u8; 72]) -> [Self; 8] {
            // SAFETY: AVX2 is there, see `Avx`; each load of 8 bytes starts at 1 + 9 * column <= 64, inside the atom.
            unsafe {
                let block = |column: usize| _mm_loadl_epi64(atom.as_ptr().add(1 + 9 * column).cast());
                // Transpose 8 x 8 bytes: columns of mantissas to rows of one k.
                let t0 = _mm_unpacklo_epi8(block(0), block(1));
                let t1 = _mm_unpacklo_epi8(block(2), block(3));
                let t2 = _mm_unpacklo_epi8(block(4), block(5));
                let t3 = _mm_unpacklo_epi8(block(6), block(7));
                let (a, b) = (_mm_unpacklo_epi16(t0, t1), _mm_unpackhi_epi16(t0, t1));
                let (c, d) = (_mm_unpacklo_epi16(t2, t3), _mm_unpackhi_epi16(t2, t3));
                let pairs = [
                    _mm_unpacklo_epi32(a, c),
                    _mm_unpackhi_epi32(a, c),
                    _mm_unpacklo_epi32(b, d),
                    _mm_unpackhi_epi32(b, d),
                ];
                let exponents = u64::from_le_bytes(std::array::from_fn(|column| atom[9 * column]));
                let e = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(exponents as i64));
                // 2^(e - 133): a normal number from e = 7 on, below that one bit of a subnormal.
                let normal = _mm256_slli_epi32::<23>(_mm256_sub_epi32(e, _mm256_set1_epi32(6)));
                let subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(1 << 16), e);
                let small = _mm256_cmpgt_epi32(_mm256_set1_epi32(7), e);
                let scale = _mm256_castsi256_ps(_mm256_blendv_epi8(normal, subnormal, small));
                let row = |m: __m128i| Avx(_mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(m)), scale));
                std::array::from_fn(|k| {
                    let pair = pairs[k / 2];
                    row(if k % 2 == 0 { pair } else { _mm_unpackhi_epi64(pair, pair) })
                })
            }
        }

        #[inline(always)]
        fn f32_atom(atom: &[u8; 256]) -> [Self; 8] {
            f32_rows(atom)
        }
    }
}
