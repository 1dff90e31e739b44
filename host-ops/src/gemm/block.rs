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
    /// Adds atom `i` times `x[8 i..]`, for all i and for G groups of 8 columns side by side: one fused multiply-add a
    /// k. `tame` starts as what [`super::tame`] says of all of x and is kept from call to call of one chain. What lies
    /// `AHEAD` bytes behind the atoms is fetched meanwhile, nothing if that is 0.
    fn chain<const G: usize, const AHEAD: usize>(
        atoms: [&[[u8; 72]]; G],
        x: &[f32],
        acc: &mut [Self; G],
        tame: &mut bool,
    );
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

    #[inline(always)]
    fn chain<const G: usize, const AHEAD: usize>(
        atoms: [&[[u8; 72]]; G],
        x: &[f32],
        acc: &mut [Self; G],
        _: &mut bool,
    ) {
        super::groups(atoms, x, acc, &|atom| Plain::bfp16_atom(atom));
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

        /// Not the weights are scaled but the accumulators, from the exponents of one atom to those of the next: one
        /// multiplication instead of eight. A power of two commutes with rounding where nothing overflows or is lost
        /// below the normal numbers:
        ///
        /// * x is 0 or in 2^-60 ..= 2^20, an exponent in 90 ..= 140, and there are at most 2^16 k. So an accumulator
        ///   stays below 2^50, and below 2^117 when it is scaled, unless an exponent above 140 was met: then scaling
        ///   is over for good.
        /// * Products are multiples of 2^-126, accumulators of 2^-149: a sum below the normal numbers is exact, and
        ///   remains so when it is scaled, which is upwards by 2^17 at least.
        ///
        /// Exponents are looked at when a piece is done: if one was outside, what came of it is thrown away.
        #[inline(always)]
        fn chain<const G: usize, const AHEAD: usize>(
            atoms: [&[[u8; 72]]; G],
            x: &[f32],
            acc: &mut [Self; G],
            tame: &mut bool,
        ) {
            for (piece, x) in x.chunks(8 * PIECE).enumerate() {
                let atoms = atoms.map(|atoms| &atoms[piece * PIECE..][..x.len() / 8]);
                if *tame && scaled::<G, AHEAD>(atoms, x.as_chunks().0, acc) {
                    continue;
                }
                *tame &= !atoms.iter().any(|atoms| atoms.iter().any(|atom| Fields::of(atom).is_large()));
                super::super::groups(atoms, x, acc, &|atom| Avx::bfp16_atom(atom));
            }
        }
    }

    /// Atoms of a group after which exponents are looked at.
    const PIECE: usize = 16;

    /// Exponent bits in all lanes.
    #[inline(always)]
    fn exponent(bits: u32) -> __m256i {
        // SAFETY: AVX2 is there, see `Avx`.
        unsafe { _mm256_set1_epi32(bits.cast_signed()) }
    }

    /// 2^(a - b) of exponents at the place that f32 has them.
    #[inline(always)]
    fn quotient(a: __m256i, b: __m256i) -> Avx {
        // SAFETY: AVX2 is there, see `Avx`.
        Avx(unsafe { _mm256_castsi256_ps(_mm256_add_epi32(_mm256_sub_epi32(a, b), exponent(127 << 23))) })
    }

    /// Adds a piece with scaled accumulators. False if an exponent was outside of 90 ..= 140: then nothing is added.
    #[inline(always)]
    fn scaled<const G: usize, const AHEAD: usize>(atoms: [&[[u8; 72]]; G], x: &[[f32; 8]], acc: &mut [Avx; G]) -> bool {
        // Sums are times 2^(157 - e), e being what is here: with 157 they are as they are.
        let plain = exponent(157 << 23);
        let (mut sums, mut scale) = (*acc, [plain; G]);
        let (least, span) = (exponent(90 << 23), exponent(50 << 23));
        let mut outside = exponent(0);
        for sum in &mut sums {
            *sum = turned(*sum);
        }
        for (i, x) in x.iter().enumerate() {
            for atoms in &atoms {
                prefetch::<AHEAD>(atoms, i);
            }
            // Loops, not `from_fn`: that one is not always inlined, and each intrinsic is then a call.
            let mut fields = [Fields::of(&atoms[0][i]); G];
            for g in 1..G {
                fields[g] = Fields::of(&atoms[g][i]);
            }
            for g in 0..G {
                let exponents = fields[g].exponents;
                // SAFETY: AVX2 is there, see `Avx`. Below 90 the difference wraps.
                outside = unsafe { _mm256_max_epu32(outside, _mm256_sub_epi32(exponents, least)) };
                sums[g] = sums[g].mul(quotient(scale[g], exponents));
                scale[g] = exponents;
            }
            step::<0, G>(&fields, x, &mut sums);
            step::<1, G>(&fields, x, &mut sums);
            step::<2, G>(&fields, x, &mut sums);
            step::<3, G>(&fields, x, &mut sums);
            step::<4, G>(&fields, x, &mut sums);
            step::<5, G>(&fields, x, &mut sums);
            step::<6, G>(&fields, x, &mut sums);
            step::<7, G>(&fields, x, &mut sums);
        }
        // SAFETY: AVX2 is there, see `Avx`. Exponents have 31 bits, so that no difference within the span looks negative.
        let fine = unsafe { _mm256_movemask_epi8(_mm256_cmpeq_epi32(_mm256_max_epu32(outside, span), span)) == -1 };
        if fine {
            for g in 0..G {
                acc[g] = turned(sums[g].mul(quotient(scale[g], plain)));
            }
        }
        fine
    }

    /// Between the order of columns and that of [`Fields`], either way.
    #[inline(always)]
    fn turned(x: Avx) -> Avx {
        // SAFETY: AVX2 is there, see `Avx`.
        Avx(unsafe { _mm256_castsi256_ps(_mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_castps_si256(x.0))) })
    }

    /// An atom taken apart: a lane for each column, in the order 0 1 4 5 2 3 6 7.
    #[derive(Clone, Copy)]
    struct Fields {
        /// Mantissas of k 0 to 3 and 4 to 7, a byte each.
        mantissas: [__m256i; 2],
        /// Exponents at the place that f32 has them.
        exponents: __m256i,
    }

    /// One k of all groups. K is a constant: so the compiler has the shuffle's pattern in memory.
    #[inline(always)]
    fn step<const K: usize, const G: usize>(fields: &[Fields; G], x: &[f32; 8], acc: &mut [Avx; G]) {
        let x = Avx::splat(x[K]);
        for g in 0..G {
            acc[g] = fields[g].mantissas::<K>().fma(x, acc[g]);
        }
    }

    /// Fetches what is `AHEAD` bytes behind atom `i`, in whole lines: 8 atoms are 9 of them.
    #[inline(always)]
    fn prefetch<const AHEAD: usize>(atoms: &[[u8; 72]], i: usize) {
        const LINE: usize = 64;
        if AHEAD == 0 {
            return;
        }
        let at = atoms.as_ptr().cast::<i8>().wrapping_add(AHEAD + (i + i / 8) * LINE);
        // SAFETY: a prefetch is a hint: it touches nothing, whatever the address.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(at);
            if i % 8 == 7 {
                _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(LINE));
            }
        }
    }

    /// A byte that no source goes to.
    const N: i8 = -1;
    /// The byte of each lane to its top.
    const TOP: [[i8; 16]; 4] = [
        [N, N, N, 0, N, N, N, 4, N, N, N, 8, N, N, N, 12],
        [N, N, N, 1, N, N, N, 5, N, N, N, 9, N, N, N, 13],
        [N, N, N, 2, N, N, N, 6, N, N, N, 10, N, N, N, 14],
        [N, N, N, 3, N, N, N, 7, N, N, N, 11, N, N, N, 15],
    ];
    /// Bytes of a vector, moved inside each half.
    #[repr(align(32))]
    struct Pattern([i8; 32]);

    /// From a column on, the mantissas of k 0 to 3 of two columns, beside their exponents; so in both halves, since 16
    /// bytes behind the columns 0 and 1 there are 2 and 3, two bytes late.
    static FIRST: [Pattern; 2] = [
        Pattern([
            1, 2, 3, 4, 10, 11, 12, 13, N, N, N, 0, N, N, N, 9, //
            3, 4, 5, 6, 12, 13, 14, 15, N, N, N, 2, N, N, N, 11,
        ]),
        Pattern([
            N, N, N, 0, N, N, N, 9, 1, 2, 3, 4, 10, 11, 12, 13, //
            N, N, N, 2, N, N, N, 11, 3, 4, 5, 6, 12, 13, 14, 15,
        ]),
    ];
    /// From four bytes later on: k 4 to 7.
    static LAST: [Pattern; 2] = [
        Pattern([
            1, 2, 3, 4, 10, 11, 12, 13, N, N, N, N, N, N, N, N, //
            3, 4, 5, 6, 12, 13, 14, 15, N, N, N, N, N, N, N, N,
        ]),
        Pattern([
            N, N, N, N, N, N, N, N, 1, 2, 3, 4, 10, 11, 12, 13, //
            N, N, N, N, N, N, N, N, 3, 4, 5, 6, 12, 13, 14, 15,
        ]),
    ];

    /// Moves bytes of both halves alike.
    #[inline(always)]
    fn shuffle(x: __m256i, pattern: &'static [i8; 16]) -> __m256i {
        // SAFETY: AVX2 is there, see `Avx`; the pattern has the 16 bytes that are loaded.
        unsafe { _mm256_shuffle_epi8(x, _mm256_broadcastsi128_si256(_mm_loadu_si128(pattern.as_ptr().cast()))) }
    }

    impl Fields {
        #[inline(always)]
        fn of(atom: &[u8; 72]) -> Fields {
            // SAFETY: AVX2 is there, see `Avx`; each load of 32 bytes starts at 40 at most, inside the atom; patterns are
            // aligned.
            unsafe {
                let moved = |byte: usize, pattern: &'static Pattern| {
                    let bytes = _mm256_loadu_si256(atom.as_ptr().add(byte).cast());
                    _mm256_shuffle_epi8(bytes, _mm256_load_si256(pattern.0.as_ptr().cast()))
                };
                // Columns 0 to 3, then 4 to 7, 36 bytes later.
                let (p, q) = (moved(0, &FIRST[0]), moved(36, &FIRST[1]));
                let (r, s) = (moved(4, &LAST[0]), moved(40, &LAST[1]));
                Fields {
                    mantissas: [_mm256_blend_epi32::<0xCC>(p, q), _mm256_or_si256(r, s)],
                    exponents: _mm256_srli_epi32::<1>(_mm256_alignr_epi8::<8>(q, p)),
                }
            }
        }

        /// Whether an exponent is above 140.
        #[inline(always)]
        fn is_large(&self) -> bool {
            // SAFETY: AVX2 is there, see `Avx`.
            unsafe { _mm256_movemask_epi8(_mm256_cmpgt_epi32(self.exponents, exponent(140 << 23))) != 0 }
        }

        /// Mantissas of one k, times 2^24.
        #[inline(always)]
        fn mantissas<const K: usize>(&self) -> Avx {
            let top = shuffle(self.mantissas[K / 4], &TOP[K % 4]);
            // SAFETY: AVX2 is there, see `Avx`.
            Avx(unsafe { _mm256_cvtepi32_ps(top) })
        }
    }
}
