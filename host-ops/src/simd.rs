//! Vectors of eight f32, twice: plain Rust and AVX2 with FMA and F16C.
//!
//! A kernel is written once over [`Lanes`] and compiled for every [`Level`] by [`kernel!`], which chooses at run time. All
//! of them do the same operations in the same order (a fused multiply-add is fused in all), so their results are the same
//! bits.

#[cfg(target_arch = "x86_64")]
use crate::wide::Zmm;
use half::{bf16, f16};
use std::sync::atomic::{AtomicU8, Ordering};

/// Values in a vector.
pub(crate) const LANES: usize = 8;

/// Eight f32.
pub(crate) trait Lanes: Copy + crate::gemm::block::Blocks {
    /// All lanes `x`.
    fn splat(x: f32) -> Self;
    /// Eight consecutive values.
    fn load(x: &[f32; LANES]) -> Self;
    /// Eight consecutive values.
    fn store(self, out: &mut [f32; LANES]);
    fn add(self, b: Self) -> Self;
    fn sub(self, b: Self) -> Self;
    fn mul(self, b: Self) -> Self;
    fn div(self, b: Self) -> Self;
    /// `self * b + c`, rounded once.
    fn fma(self, b: Self, c: Self) -> Self;
    /// `self > b ? self : b` (b if one is NaN).
    fn max(self, b: Self) -> Self;
    /// `self < b ? self : b` (b if one is NaN).
    fn min(self, b: Self) -> Self;
    /// `2^self` of integers in -126..=127; 0 for -127.
    fn exp2_int(self) -> Self;
    /// Sum in the order ((0+4)+(2+6)) + ((1+5)+(3+7)).
    fn sum(self) -> f32;
    /// The largest lane, compared in the order of [`Lanes::sum`].
    fn largest(self) -> f32;
    /// Eight bf16, widened.
    fn load_bf16(x: &[bf16; LANES]) -> Self;
    /// Eight f16, widened.
    fn load_f16(x: &[f16; LANES]) -> Self;
}

/// What memory holds a number as.
pub(crate) trait Stored: Copy + Default + Send + Sync {
    /// Eight of them, widened.
    fn load<V: Lanes>(x: &[Self; LANES]) -> V;
    /// Sixteen of them, widened.
    #[cfg(target_arch = "x86_64")]
    fn load_zmm(x: &[Self; 2 * LANES]) -> Zmm;
}

impl Stored for f32 {
    #[inline(always)]
    fn load<V: Lanes>(x: &[f32; LANES]) -> V {
        V::load(x)
    }
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn load_zmm(x: &[f32; 2 * LANES]) -> Zmm {
        Zmm::load(x)
    }
}

impl Stored for bf16 {
    #[inline(always)]
    fn load<V: Lanes>(x: &[bf16; LANES]) -> V {
        V::load_bf16(x)
    }
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn load_zmm(x: &[bf16; 2 * LANES]) -> Zmm {
        Zmm::load_bf16(x)
    }
}

impl Stored for f16 {
    #[inline(always)]
    fn load<V: Lanes>(x: &[f16; LANES]) -> V {
        V::load_f16(x)
    }
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn load_zmm(x: &[f16; 2 * LANES]) -> Zmm {
        Zmm::load_f16(x)
    }
}

/// The plain implementation.
#[derive(Clone, Copy)]
pub(crate) struct Plain([f32; LANES]);

impl Plain {
    #[inline(always)]
    fn zip(self, b: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Plain(std::array::from_fn(|i| f(self.0[i], b.0[i])))
    }
}

impl Lanes for Plain {
    #[inline(always)]
    fn splat(x: f32) -> Self {
        Plain([x; LANES])
    }
    #[inline(always)]
    fn load(x: &[f32; LANES]) -> Self {
        Plain(*x)
    }
    #[inline(always)]
    fn store(self, out: &mut [f32; LANES]) {
        *out = self.0;
    }
    #[inline(always)]
    fn add(self, b: Self) -> Self {
        self.zip(b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, b: Self) -> Self {
        self.zip(b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, b: Self) -> Self {
        self.zip(b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, b: Self) -> Self {
        self.zip(b, |a, b| a / b)
    }
    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        Plain(std::array::from_fn(|i| self.0[i].mul_add(b.0[i], c.0[i])))
    }
    #[inline(always)]
    fn max(self, b: Self) -> Self {
        self.zip(b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min(self, b: Self) -> Self {
        self.zip(b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn exp2_int(self) -> Self {
        Plain(self.0.map(|x| f32::from_bits(((x as i32).wrapping_add(127) as u32) << 23)))
    }
    #[inline(always)]
    fn sum(self) -> f32 {
        let x = self.0;
        ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]))
    }
    #[inline(always)]
    fn largest(self) -> f32 {
        let max = |a: f32, b: f32| if a > b { a } else { b };
        let x = self.0;
        max(max(max(x[0], x[4]), max(x[2], x[6])), max(max(x[1], x[5]), max(x[3], x[7])))
    }
    #[inline(always)]
    fn load_bf16(x: &[bf16; LANES]) -> Self {
        Plain(x.map(|x| f32::from_bits(u32::from(x.to_bits()) << 16)))
    }
    #[inline(always)]
    fn load_f16(x: &[f16; LANES]) -> Self {
        Plain(x.map(f16::to_f32))
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::Avx;

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{LANES, Lanes};
    use half::{bf16, f16};
    use std::arch::x86_64::*;

    /// The AVX2 + FMA + F16C implementation. Used only by code that [`super::kernel!`] compiles for these features, after
    /// they were found at run time; each SAFETY line below rests on that.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx(pub(crate) __m256);

    impl Lanes for Avx {
        #[inline(always)]
        fn splat(x: f32) -> Self {
            // SAFETY: AVX is there, see `Avx`.
            Avx(unsafe { _mm256_set1_ps(x) })
        }
        #[inline(always)]
        fn load(x: &[f32; LANES]) -> Self {
            // SAFETY: AVX is there, see `Avx`; `x` is 8 readable f32, and the load needs no alignment.
            Avx(unsafe { _mm256_loadu_ps(x.as_ptr()) })
        }
        #[inline(always)]
        fn store(self, out: &mut [f32; LANES]) {
            // SAFETY: AVX is there, see `Avx`; `out` is 8 writable f32, and the store needs no alignment.
            unsafe { _mm256_storeu_ps(out.as_mut_ptr(), self.0) }
        }
        #[inline(always)]
        fn add(self, b: Self) -> Self {
            // SAFETY: AVX is there, see `Avx`.
            Avx(unsafe { _mm256_add_ps(self.0, b.0) })
        }
        #[inline(always)]
        fn sub(self, b: Self) -> Self {
            // SAFETY: AVX is there, see `Avx`.
            Avx(unsafe { _mm256_sub_ps(self.0, b.0) })
        }
        #[inline(always)]
        fn mul(self, b: Self) -> Self {
            // SAFETY: AVX is there, see `Avx`.
            Avx(unsafe { _mm256_mul_ps(self.0, b.0) })
        }
        #[inline(always)]
        fn div(self, b: Self) -> Self {
            // SAFETY: AVX is there, see `Avx`.
            Avx(unsafe { _mm256_div_ps(self.0, b.0) })
        }
        #[inline(always)]
        fn fma(self, b: Self, c: Self) -> Self {
            // SAFETY: FMA is there, see `Avx`.
            Avx(unsafe { _mm256_fmadd_ps(self.0, b.0, c.0) })
        }
        #[inline(always)]
        fn max(self, b: Self) -> Self {
            // SAFETY: AVX is there, see `Avx`.
            Avx(unsafe { _mm256_max_ps(self.0, b.0) })
        }
        #[inline(always)]
        fn min(self, b: Self) -> Self {
            // SAFETY: AVX is there, see `Avx`.
            Avx(unsafe { _mm256_min_ps(self.0, b.0) })
        }
        #[inline(always)]
        fn exp2_int(self) -> Self {
            // SAFETY: AVX2 is there, see `Avx`.
            unsafe {
                let n = _mm256_add_epi32(_mm256_cvttps_epi32(self.0), _mm256_set1_epi32(127));
                Avx(_mm256_castsi256_ps(_mm256_slli_epi32::<23>(n)))
            }
        }
        #[inline(always)]
        fn sum(self) -> f32 {
            // SAFETY: AVX is there, see `Avx`.
            unsafe {
                let x = _mm_add_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
                let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
                _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)))
            }
        }
        #[inline(always)]
        fn largest(self) -> f32 {
            // SAFETY: AVX is there, see `Avx`.
            unsafe {
                let x = _mm_max_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
                let x = _mm_max_ps(x, _mm_movehl_ps(x, x));
                _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)))
            }
        }
        #[inline(always)]
        fn load_bf16(x: &[bf16; LANES]) -> Self {
            // SAFETY: AVX2 is there, see `Avx`; `x` is 16 readable bytes, and the load needs no alignment.
            unsafe {
                let x = _mm256_cvtepu16_epi32(_mm_loadu_si128(x.as_ptr().cast()));
                Avx(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(x)))
            }
        }
        #[inline(always)]
        fn load_f16(x: &[f16; LANES]) -> Self {
            // SAFETY: F16C is there, see `Avx`; `x` is 16 readable bytes, and the load needs no alignment.
            Avx(unsafe { _mm256_cvtph_ps(_mm_loadu_si128(x.as_ptr().cast())) })
        }
    }
}

/// What kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// Any processor.
    Plain = 1,
    /// AVX2, FMA, F16C.
    Avx2,
    /// The same vectors with AVX-512's registers, twice as many, and its instructions (F, VL, BW, DQ).
    Avx512,
}

/// The level that runs here.
#[inline]
pub(crate) fn level() -> Level {
    #[cfg(test)]
    if let Some(level) = LEVEL.get() {
        return level;
    }
    found()
}

#[inline]
fn found() -> Level {
    static FOUND: AtomicU8 = AtomicU8::new(0);
    match FOUND.load(Ordering::Relaxed) {
        1 => Level::Plain,
        2 => Level::Avx2,
        3 => Level::Avx512,
        _ => {
            let level = detect();
            FOUND.store(level as u8, Ordering::Relaxed);
            level
        }
    }
}

#[cold]
fn detect() -> Level {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c") {
        let more = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq");
        return if more { Level::Avx512 } else { Level::Avx2 };
    }
    Level::Plain
}

#[cfg(test)]
thread_local! { static LEVEL: std::cell::Cell<Option<Level>> = const { std::cell::Cell::new(None) }; }

/// Runs `f` with the plain kernels on this thread.
#[cfg(test)]
pub(crate) fn plain<R>(f: impl FnOnce() -> R) -> R {
    at_level(Level::Plain, f)
}

/// Runs `f` with the kernels of a level on this thread, or of the highest one below it that is there.
#[cfg(test)]
pub(crate) fn at_level<R>(level: Level, f: impl FnOnce() -> R) -> R {
    let before = LEVEL.replace(Some(level.min(found())));
    let r = f();
    LEVEL.set(before);
    r
}

/// Defines a function whose body is compiled for each [`Level`] and chosen at run time: with `V` as [`Plain`], or as `Avx`. A
/// second name behind V stands for sixteen lanes, see [`crate::wide`].
///
/// Everything the body calls with a `V` has to be `#[inline(always)]` or a closure written in the body (closures take
/// over the features of the function around them): a vector that crosses into code without AVX goes through memory,
/// and each operation there is a call.
macro_rules! kernel {
    ($(#[$meta:meta])* $vis:vis fn $name:ident<$v:ident $(, $w:ident)?>($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        #[allow(
            unsafe_code,
            dead_code,
            clippy::too_many_arguments,
            clippy::redundant_closure,
            clippy::allow_attributes,
            reason = "what fits one kernel is not there in another; a closure has the features, a function's name not"
        )]
        $vis fn $name($($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            match $crate::simd::level() {
                $crate::simd::Level::Avx512 => {
                    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512vl,avx512bw,avx512dq")]
                    fn avx512($($arg: $ty),*) $(-> $ret)? {
                        #[allow(unused_imports, clippy::allow_attributes)]
                        use $crate::simd::Lanes as _;
                        type $v = $crate::simd::Avx;
                        $(type $w = $crate::wide::Zmm;)?
                        $body
                    }
                    // SAFETY: `avx512` needs what `level` found.
                    return unsafe { avx512($($arg),*) };
                }
                $crate::simd::Level::Avx2 => {
                    #[target_feature(enable = "avx2,fma,f16c")]
                    fn avx2($($arg: $ty),*) $(-> $ret)? {
                        #[allow(unused_imports, clippy::allow_attributes)]
                        use $crate::simd::Lanes as _;
                        type $v = $crate::simd::Avx;
                        $(type $w = $crate::wide::Two<$v>;)?
                        $body
                    }
                    // SAFETY: `avx2` needs AVX2, FMA and F16C, which `level` found.
                    return unsafe { avx2($($arg),*) };
                }
                $crate::simd::Level::Plain => {}
            }
            #[allow(unused_imports, clippy::allow_attributes)]
            use $crate::simd::Lanes as _;
            type $v = $crate::simd::Plain;
            $(type $w = $crate::wide::Two<$v>;)?
            $body
        }
    };
}
pub(crate) use kernel;

// x = n ln 2 + r with |r| <= ln 2 / 2. ln 2 in two parts: the first has few bits, so n times it is exact.
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;
/// Adding 1.5 * 2^23 leaves no bits for a fraction: rounds to an integer.
const ROUND: f32 = 12_582_912.0;

/// `e^r` for |r| up to 0.35: the Taylor series, whose remainder there is 5e-9.
#[inline(always)]
fn exp_series<V: Lanes>(r: V) -> V {
    let mut p = V::splat(1.0 / 5040.0);
    for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = p.fma(r, V::splat(c));
    }
    p
}

/// `e^x`, within 1.5 ulp; 0 and infinity where f32 ends.
#[inline(always)]
pub(crate) fn exp<V: Lanes>(x: V) -> V {
    let x = V::splat(89.0).min(V::splat(-104.0).max(x));
    let n = x.fma(V::splat(std::f32::consts::LOG2_E), V::splat(ROUND)).sub(V::splat(ROUND));
    let r = n.fma(V::splat(-LN2_HIGH), x);
    let r = n.fma(V::splat(-LN2_LOW), r);
    let p = exp_series(r);
    // 2^n in two factors: n = -150 and n = 128 are no f32 exponents.
    let half = n.fma(V::splat(0.5), V::splat(ROUND)).sub(V::splat(ROUND));
    p.mul(half.exp2_int()).mul(n.sub(half).exp2_int())
}

/// `e^x` of what is not above 88, in fewer steps than [`exp`]: within 1.5 ulp down to -87.3, then 0.
#[inline(always)]
pub(crate) fn exp_of_negative<V: Lanes>(x: V) -> V {
    let x = V::splat(-88.0).max(x);
    let n = x.fma(V::splat(std::f32::consts::LOG2_E), V::splat(ROUND)).sub(V::splat(ROUND));
    let r = n.fma(V::splat(-LN2_HIGH), x);
    let r = n.fma(V::splat(-LN2_LOW), r);
    // n is -127 at the least, where `exp2_int` gives 0.
    exp_series(r).mul(n.exp2_int())
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub(crate) fn sigmoid<V: Lanes>(x: V) -> V {
    let one = V::splat(1.0);
    one.div(one.add(exp(V::splat(0.0).sub(x))))
}

/// `1 + e^-x`; below -88 it is `1 + e^88`.
#[inline(always)]
pub(crate) fn one_and_exp_of_minus<V: Lanes>(x: V) -> V {
    V::splat(1.0).add(exp_of_negative(V::splat(88.0).min(V::splat(0.0).sub(x))))
}

/// `x / (1 + e^-x)`; below -88, where that is less than 1e-36, it is `x / (1 + e^88)`.
#[inline(always)]
pub(crate) fn silu<V: Lanes>(x: V) -> V {
    x.div(one_and_exp_of_minus(x))
}

/// The error function, within 4e-7: `x P(x^2) / Q(x^2)`, between -4 and 4 where f32 is one of its ends; the coefficients
/// are those of Eigen.
#[inline(always)]
pub(crate) fn erf<V: Lanes>(x: V) -> V {
    let x = V::splat(4.0).min(V::splat(-4.0).max(x));
    let square = x.mul(x);
    let horner = |first: f32, rest: &[f32]| rest.iter().fold(V::splat(first), |p, &c| p.fma(square, V::splat(c)));
    let above = horner(
        -2.726_142_3e-10,
        &[2.770_681_3e-8, -2.101_024e-6, -5.692_506_3e-5, -7.349_906_4e-4, -2.954_6e-3, -1.609_603_3e-2],
    );
    let below = horner(-1.456_607_2e-5, &[-2.133_740_5e-4, -1.682_827e-3, -7.373_329_3e-3, -1.426_473_9e-2]);
    x.mul(above).div(below)
}

/// Eight values of a slice, zeros past its end.
#[inline(always)]
pub(crate) fn load_padded<V: Lanes>(x: &[f32]) -> V {
    let mut full = [0.0; LANES];
    full[..x.len()].copy_from_slice(x);
    V::load(&full)
}

/// The first `out.len()` lanes.
#[inline(always)]
pub(crate) fn store_cut<V: Lanes>(v: V, out: &mut [f32]) {
    let mut full = [0.0; LANES];
    v.store(&mut full);
    out.copy_from_slice(&full[..out.len()]);
}

/// `x[i] = f(x[i])`.
#[inline(always)]
pub(crate) fn map<V: Lanes>(x: &mut [f32], f: impl Fn(V) -> V) {
    let (full, rest) = x.as_chunks_mut::<LANES>();
    for c in full {
        f(V::load(c)).store(c);
    }
    if !rest.is_empty() {
        store_cut(f(load_padded(rest)), rest);
    }
}

/// `out[i] = f(a[i], b[i])`; the lengths are equal.
#[inline(always)]
pub(crate) fn zip<V: Lanes>(a: &[f32], b: &[f32], out: &mut [f32], f: impl Fn(V, V) -> V) {
    let ((a, ra), (b, rb), (out, rest)) = (a.as_chunks(), b.as_chunks(), out.as_chunks_mut());
    for ((a, b), o) in a.iter().zip(b).zip(out) {
        f(V::load(a), V::load(b)).store(o);
    }
    if !rest.is_empty() {
        store_cut(f(load_padded(ra), load_padded(rb)), rest);
    }
}

/// `x[i] = f(x[i], b[i])`; the lengths are equal.
#[inline(always)]
pub(crate) fn zip_in_place<V: Lanes>(x: &mut [f32], b: &[f32], f: impl Fn(V, V) -> V) {
    let ((x, rest), (b, rb)) = (x.as_chunks_mut(), b.as_chunks());
    for (x, b) in x.iter_mut().zip(b) {
        f(V::load(x), V::load(b)).store(x);
    }
    if !rest.is_empty() {
        store_cut(f(load_padded(rest), load_padded(rb)), rest);
    }
}

/// `sum a[i] b[i]`: four vectors take turns, then their lanes are added.
#[inline(always)]
pub(crate) fn dot_lanes<V: Lanes>(a: &[f32], b: &[f32]) -> f32 {
    let mut acc = [V::splat(0.0); 4];
    let (a4, a) = a.as_chunks::<{ 4 * LANES }>();
    let (b4, b) = b.as_chunks::<{ 4 * LANES }>();
    for (a, b) in a4.iter().zip(b4) {
        let (a, b) = (a.as_chunks::<LANES>().0, b.as_chunks::<LANES>().0);
        for i in 0..4 {
            acc[i] = V::load(&a[i]).fma(V::load(&b[i]), acc[i]);
        }
    }
    let ((a1, a), (b1, b)) = (a.as_chunks(), b.as_chunks());
    for (i, (a, b)) in a1.iter().zip(b1).enumerate() {
        acc[i] = V::load(a).fma(V::load(b), acc[i]);
    }
    if !a.is_empty() {
        acc[3] = load_padded::<V>(a).fma(load_padded(b), acc[3]);
    }
    acc[0].add(acc[1]).add(acc[2].add(acc[3])).sum()
}

kernel! {
    /// `sum a[i] b[i]` over equal lengths.
    pub(crate) fn dot<V>(a: &[f32], b: &[f32]) -> f32 {
        dot_lanes::<V>(a, b)
    }
}

kernel! {
    /// [`dot`] of `a` with `b` and with `c`.
    pub(crate) fn dot_pair<V>(a: &[f32], b: &[f32], c: &[f32]) -> [f32; 2] {
        if !a.len().is_multiple_of(4 * LANES) {
            return [dot_lanes::<V>(a, b), dot_lanes::<V>(a, c)];
        }
        let mut acc = [[V::splat(0.0); 4]; 2];
        let (a, b, c) = (a.as_chunks().0, b.as_chunks().0, c.as_chunks().0);
        for ((a, b), c) in a.chunks_exact(4).zip(b.chunks_exact(4)).zip(c.chunks_exact(4)) {
            for i in 0..4 {
                let a = V::load(&a[i]);
                acc[0][i] = a.fma(V::load(&b[i]), acc[0][i]);
                acc[1][i] = a.fma(V::load(&c[i]), acc[1][i]);
            }
        }
        acc.map(|acc| acc[0].add(acc[1]).add(acc[2].add(acc[3])).sum())
    }
}

kernel! {
    /// `x[i] = e^x[i]`.
    #[cfg(test)]
    pub(crate) fn exp_in_place<V>(x: &mut [f32]) {
        map::<V>(x, |x| exp(x));
    }
}

/// Reads a value of every cache line of the first `bytes` bytes.
pub(crate) fn touch<T: Copy>(x: &[T], bytes: usize) {
    const LINE: usize = 64;
    let size = size_of::<T>().max(1);
    x[..x.len().min(bytes / size)].iter().step_by((LINE / size).max(1)).for_each(|x| {
        std::hint::black_box(*x);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Random, bits};

    #[test]
    fn exp_is_within_an_ulp_and_a_half_everywhere() {
        let mut x: Vec<f32> = (0..200_000).map(|i| -104.0 + i as f32 * (193.0 / 200_000.0)).collect();
        let inputs = x.clone();
        exp_in_place(&mut x);
        for (&y, &x) in x.iter().zip(&inputs) {
            let expected = f64::from(x).exp();
            if expected > f64::from(f32::MAX) {
                continue;
            }
            let ulp = (expected * f64::from(f32::EPSILON)).max(1.5e-45);
            assert!((f64::from(y) - expected).abs() <= 1.5 * ulp, "exp({x}) = {y}, not {expected}");
        }
    }

    #[test]
    fn exp_at_the_ends() {
        let mut x = [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e30, -1e30, 89.0, -104.0];
        exp_in_place(&mut x);
        assert_eq!(x[..4], [1.0, 1.0, f32::INFINITY, 0.0]);
        assert!(x[4].is_nan());
        assert_eq!(x[5..], [f32::INFINITY, 0.0, f32::INFINITY, 0.0]);
    }

    #[test]
    fn all_levels_give_the_same_bits() {
        let mut random = Random::new(1);
        for n in [0, 1, 7, 8, 9, 31, 32, 33, 64, 71, 255, 1024] {
            let (a, b) = (random.normal(n), random.normal(n));
            let all = || {
                let mut exp = a.clone();
                exp_in_place(&mut exp);
                (dot(&a, &b).to_bits(), dot(&a, &a).to_bits(), bits(&dot_pair(&a, &b, &a)), bits(&exp))
            };
            let here = all();
            assert_eq!(here.2, [here.0, here.1], "{n}");
            assert!(plain(all) == here && at_level(Level::Avx2, all) == here, "{n}");
        }
    }

    /// Which of them runs is decided once; a level that is not there must never be.
    #[test]
    fn a_level_is_never_above_what_is_there() {
        assert_eq!(level(), detect());
        assert_eq!(plain(level), Level::Plain);
        assert!(at_level(Level::Avx512, level) == detect() && at_level(Level::Avx2, level) <= detect());
    }

    kernel! {
        fn exp_of_negative_in_place<V>(x: &mut [f32]) {
            map::<V>(x, |x| exp_of_negative(x));
        }
    }

    #[test]
    fn exp_of_negatives_is_as_close_down_to_the_last_normal_number_then_zero() {
        let x: Vec<f32> = (0..=200_000).map(|i| i as f32 * (-87.3 / 200_000.0)).collect();
        let (mut wide, mut narrow) = (x.clone(), x.clone());
        exp_of_negative_in_place(&mut wide);
        plain(|| exp_of_negative_in_place(&mut narrow));
        assert_eq!(bits(&wide), bits(&narrow));
        for (&y, &x) in wide.iter().zip(&x) {
            let expected = f64::from(x).exp();
            assert!((f64::from(y) - expected).abs() <= 1.5 * expected * f64::from(f32::EPSILON), "exp({x}) = {y}");
        }
        let mut ends = [0.0, -0.0, -88.1, -1e30, f32::NEG_INFINITY, f32::NAN];
        exp_of_negative_in_place(&mut ends);
        assert_eq!(ends[..5], [1.0, 1.0, 0.0, 0.0, 0.0]);
        assert!(ends[5].is_nan());
    }

    kernel! {
        fn widen_all<V>(a: &[bf16], b: &[f16], out: &mut [f32]) {
            let (to_a, to_b) = out.split_at_mut(a.len());
            a.as_chunks().0.iter().zip(to_a.as_chunks_mut().0).for_each(|(x, o)| V::load_bf16(x).store(o));
            b.as_chunks().0.iter().zip(to_b.as_chunks_mut().0).for_each(|(x, o)| V::load_f16(x).store(o));
        }
    }

    #[test]
    fn sixteen_bit_numbers_are_widened_as_the_half_crate_does() {
        let a: Vec<bf16> = (0..=u16::MAX).map(bf16::from_bits).filter(|x| !x.is_nan()).collect();
        let b: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).filter(|x| !x.is_nan()).collect();
        let (a, b) = (&a[..a.len() / 8 * 8], &b[..b.len() / 8 * 8]);
        let expected: Vec<f32> = a.iter().map(|x| x.to_f32()).chain(b.iter().map(|x| x.to_f32())).collect();
        let mut out = vec![0.0; expected.len()];
        widen_all(a, b, &mut out);
        assert_eq!(bits(&out), bits(&expected));
        out.fill(0.0);
        plain(|| widen_all(a, b, &mut out));
        assert_eq!(bits(&out), bits(&expected));
    }

    #[test]
    fn the_largest_lane() {
        let mut random = Random::new(3);
        for _ in 0..100 {
            let x: [f32; 8] = random.normal(8).try_into().unwrap();
            let expected = x.iter().fold(f32::MIN, |m, &x| m.max(x));
            assert_eq!(Plain::load(&x).largest(), expected);
            #[cfg(target_arch = "x86_64")]
            if level() > Level::Plain {
                assert_eq!(Avx::load(&x).largest(), expected);
            }
        }
    }

    #[test]
    fn dot_is_close_to_f64() {
        let mut random = Random::new(2);
        for n in [1, 5, 8, 40, 100, 2048] {
            let (a, b) = (random.normal(n), random.normal(n));
            let exact: f64 = a.iter().zip(&b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            assert!((f64::from(dot(&a, &b)) - exact).abs() < 1e-6 * (n as f64).sqrt() * 4.0);
        }
    }
}
