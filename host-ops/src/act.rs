//! Activations, elementwise over slices.

use crate::simd::{self, kernel, map, zip};

/// `1 / (1 + e^-x)`.
pub fn sigmoid(x: f32) -> f32 {
    let mut x = [x];
    sigmoid_in_place(&mut x);
    x[0]
}

/// `x * sigmoid(x)`.
pub fn silu(x: f32) -> f32 {
    let mut x = [x];
    silu_in_place(&mut x);
    x[0]
}

/// `ln(1 + e^x)`, `x` itself above 20.
pub fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { f64::from(x).exp().ln_1p() as f32 }
}

/// `0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`.
pub fn gelu_tanh(x: f32) -> f32 {
    let mut x = [x];
    gelu_tanh_in_place(&mut x);
    x[0]
}

/// `0.5 x (1 + erf(x / sqrt(2)))`.
pub fn gelu_erf(x: f32) -> f32 {
    let mut x = [x];
    gelu_erf_in_place(&mut x);
    x[0]
}

kernel! {
    /// [`sigmoid`] over a slice.
    pub fn sigmoid_in_place<V>(x: &mut [f32]) {
        map::<V>(x, |x| simd::sigmoid(x));
    }
}

kernel! {
    /// [`silu`] over a slice.
    pub fn silu_in_place<V>(x: &mut [f32]) {
        map::<V>(x, |x| simd::silu(x));
    }
}

kernel! {
    /// [`gelu_tanh`] over a slice.
    pub fn gelu_tanh_in_place<V>(x: &mut [f32]) {
        // (1 + tanh u) / 2 is sigmoid(2u); written so it loses nothing to cancellation.
        const TWICE: f32 = 1.595_769_2;
        map::<V>(x, |x| {
            let cube = x.mul(x).mul(x);
            let u2 = cube.fma(V::splat(0.044_715 * TWICE), x.mul(V::splat(TWICE)));
            x.div(simd::one_and_exp_of_minus(u2))
        });
    }
}

kernel! {
    /// [`gelu_erf`] over a slice.
    pub fn gelu_erf_in_place<V>(x: &mut [f32]) {
        map::<V>(x, |x| {
            let erf = simd::erf(x.mul(V::splat(std::f32::consts::FRAC_1_SQRT_2)));
            x.mul(V::splat(0.5)).mul(erf.add(V::splat(1.0)))
        });
    }
}

kernel! {
    /// `out = silu(gate) * up`.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn swiglu<V>(gate: &[f32], up: &[f32], out: &mut [f32]) {
        assert!(gate.len() == out.len() && up.len() == out.len());
        zip::<V>(gate, up, out, |g, u| simd::silu(g).mul(u));
    }
}

kernel! {
    /// SwiGLU from the paired order of the `gu` projection: blocks of 64 values, 32 gates then their 32 ups (see
    /// [`crate::pack::Paired`]). `x`: `[n, 2 * width]`, `out`: `[n, width]` with `width % 32 == 0`.
    ///
    /// # Panics
    /// If the lengths do not fit.
    pub fn swiglu_paired<V>(x: &[f32], out: &mut [f32]) {
        assert!(x.len() == 2 * out.len() && out.len().is_multiple_of(32));
        for (x, out) in x.as_chunks::<64>().0.iter().zip(out.as_chunks_mut::<32>().0) {
            zip::<V>(&x[..32], &x[32..], out, |g, u| simd::silu(g).mul(u));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        simd::plain,
        testing::{Random, bits},
    };

    /// x in -20..20 and what `f` says, against `exact` in f64: the error relative to max(|x|, tiny).
    fn worst(f: impl Fn(f32) -> f32, exact: impl Fn(f64) -> f64) -> f64 {
        (-20_000..=20_000)
            .map(|i| {
                let x = i as f32 * 1e-3;
                (f64::from(f(x)) - exact(f64::from(x))).abs() / f64::from(x).abs().max(0.1)
            })
            .fold(0.0, f64::max)
    }

    #[test]
    fn close_to_f64() {
        let sigma = |x: f64| 1.0 / (1.0 + (-x).exp());
        assert!(worst(sigmoid, sigma) < 1e-6);
        assert!(worst(silu, |x| x * sigma(x)) < 2e-7);
        assert!(worst(softplus, |x| x.exp().ln_1p()) < 1e-6);
        let tanh = |x: f64| 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh());
        assert!(worst(gelu_tanh, tanh) < 2e-7);
        let erf = |x: f64| 0.5 * x * (1.0 + libm::erf(x / std::f64::consts::SQRT_2));
        assert!(worst(gelu_erf, erf) < 2e-7);
    }

    #[test]
    fn both_gelus_have_the_same_bits_without_vectors_and_end_well() {
        let mut x = Random::new(8).normal(1003);
        x.iter_mut().for_each(|x| *x *= 4.0);
        for gelu in [gelu_tanh_in_place, gelu_erf_in_place] {
            let (mut wide, mut narrow) = (x.clone(), x.clone());
            gelu(&mut wide);
            plain(|| gelu(&mut narrow));
            assert_eq!(bits(&wide), bits(&narrow));
            let mut ends = [0.0, 30.0, -30.0, 1e30, f32::INFINITY, f32::NAN];
            gelu(&mut ends);
            assert_eq!([ends[0], ends[4]], [0.0, f32::INFINITY]);
            assert!((ends[1] / 30.0 - 1.0).abs() < 2e-7 && (ends[3] / 1e30 - 1.0).abs() < 2e-7, "{ends:?}");
            assert!(ends[2].abs() < 1e-5 && ends[5].is_nan(), "{ends:?}");
        }
    }

    #[test]
    fn known_values() {
        // torch.nn.functional on float64.
        assert!((gelu_erf(1.0) - 0.841_344_7).abs() < 1e-7);
        assert!((gelu_tanh(1.0) - 0.841_192).abs() < 1e-7);
        assert!((silu(1.0) - 0.731_058_6).abs() < 1e-7);
        assert!((softplus(0.0) - std::f32::consts::LN_2).abs() < 1e-7);
        assert_eq!(softplus(20.5), 20.5);
        assert_eq!(sigmoid(f32::NEG_INFINITY), 0.0);
        assert_eq!(sigmoid(f32::INFINITY), 1.0);
        assert!(silu(f32::NAN).is_nan());
    }

    #[test]
    fn paired_is_swiglu_in_another_order() {
        let mut random = Random::new(4);
        let width = 96;
        let (gate, up) = (random.normal(2 * width), random.normal(2 * width));
        let mut paired = vec![0.0; 4 * width];
        for row in 0..2 {
            for n in 0..2 * width {
                paired[row * 2 * width + n] = match crate::pack::Paired::of(n) {
                    crate::pack::Paired::Gate(i) => gate[row * width + i],
                    crate::pack::Paired::Up(i) => up[row * width + i],
                };
            }
        }
        let (mut a, mut b, mut c) = (vec![0.0; 2 * width], vec![0.0; 2 * width], vec![0.0; 2 * width]);
        swiglu(&gate, &up, &mut a);
        swiglu_paired(&paired, &mut b);
        plain(|| swiglu(&gate, &up, &mut c));
        assert_eq!(bits(&a), bits(&b));
        assert_eq!(bits(&a), bits(&c));
        assert!((a[5] - silu(gate[5]) * up[5]).abs() < 1e-6);
    }

    #[test]
    fn a_value_does_not_depend_on_its_place() {
        let x = Random::new(5).normal(37);
        let mut all = x.clone();
        silu_in_place(&mut all);
        assert_eq!(bits(&all), x.iter().map(|&x| silu(x).to_bits()).collect::<Vec<_>>());
    }
}
