//! Normalisations over the last axis. Sums run in a fixed lane order over the width.

use crate::simd::{self, Lanes, dot_lanes, kernel, map, zip, zip_in_place};

#[inline(always)]
fn inverse_rms<V: Lanes>(x: &[f32], eps: f32) -> f32 {
    1.0 / (dot_lanes::<V>(x, x) / x.len() as f32 + eps).sqrt()
}

#[inline(always)]
fn sum<V: Lanes>(x: &[f32]) -> f32 {
    let (full, rest) = x.as_chunks();
    let mut acc: V = simd::load_padded(rest);
    for x in full {
        acc = acc.add(V::load(x));
    }
    acc.sum()
}

kernel! {
    /// RMS norm with a weight stored as an offset from one: `out = x / sqrt(mean(x^2) + eps) * (1 + w)`.
    /// `x`, `out`: `[n, w.len()]`.
    ///
    /// # Panics
    /// If the lengths do not fit.
    pub fn rms<V>(x: &[f32], w: &[f32], eps: f32, out: &mut [f32]) {
        assert!(x.len() == out.len() && x.len().is_multiple_of(w.len()));
        for (x, out) in x.chunks_exact(w.len()).zip(out.chunks_exact_mut(w.len())) {
            let scale = V::splat(inverse_rms::<V>(x, eps));
            zip::<V>(x, w, out, |x, w| x.mul(scale).mul(w.add(V::splat(1.0))));
        }
    }
}

kernel! {
    /// [`rms`] in place.
    ///
    /// # Panics
    /// If the lengths do not fit.
    pub fn rms_in_place<V>(x: &mut [f32], w: &[f32], eps: f32) {
        assert!(x.len().is_multiple_of(w.len()));
        for x in x.chunks_exact_mut(w.len()) {
            let scale = V::splat(inverse_rms::<V>(x, eps));
            zip_in_place::<V>(x, w, |x, w| x.mul(scale).mul(w.add(V::splat(1.0))));
        }
    }
}

kernel! {
    /// Gated RMS norm with a plain weight: `x = x / sqrt(mean(x^2) + eps) * w * silu(gate)`.
    /// `x`, `gate`: `[n, w.len()]`.
    ///
    /// # Panics
    /// If the lengths do not fit.
    pub fn gated_rms_in_place<V>(x: &mut [f32], gate: &[f32], w: &[f32], eps: f32) {
        assert!(gate.len() == x.len() && x.len().is_multiple_of(w.len()));
        for (x, gate) in x.chunks_exact_mut(w.len()).zip(gate.chunks_exact(w.len())) {
            let scale = V::splat(inverse_rms::<V>(x, eps));
            zip_in_place::<V>(x, w, |x, w| x.mul(scale).mul(w));
            zip_in_place::<V>(x, gate, |x, gate| x.mul(simd::silu(gate)));
        }
    }
}

kernel! {
    /// Layer norm with biased variance: `out = (x - mean) / sqrt(var + eps) * w + b`. `x`, `out`: `[n, w.len()]`.
    ///
    /// # Panics
    /// If the lengths do not fit.
    pub fn layer<V>(x: &[f32], w: &[f32], b: &[f32], eps: f32, out: &mut [f32]) {
        assert!(x.len() == out.len() && w.len() == b.len() && x.len().is_multiple_of(w.len()));
        let width = w.len();
        for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
            let mean = sum::<V>(x) / width as f32;
            for (o, &x) in out.iter_mut().zip(x) {
                *o = x - mean;
            }
            let scale = 1.0 / (dot_lanes::<V>(out, out) / width as f32 + eps).sqrt();
            for ((o, &w), &b) in out.iter_mut().zip(w).zip(b) {
                *o = *o * scale * w + b;
            }
        }
    }
}

kernel! {
    /// One vector to unit length, times `scale`: `x / sqrt(sum(x^2) + 1e-6) * scale`.
    pub fn l2_in_place<V>(x: &mut [f32], scale: f32) {
        let inverse = V::splat(1.0 / (dot_lanes::<V>(x, x) + 1e-6).sqrt());
        map::<V>(x, |x| x.mul(inverse).mul(V::splat(scale)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        simd::plain,
        testing::{Random, bits, max_difference},
    };

    /// The same in f64, element by element: mean, variance about it.
    fn moments(x: &[f32]) -> (f64, f64, f64) {
        let n = x.len() as f64;
        let mean = x.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
        let variance = x.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / n;
        let square = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / n;
        (mean, variance, square)
    }

    #[test]
    fn close_to_f64_at_any_width() {
        let mut random = Random::new(6);
        for width in [1, 3, 8, 64, 100, 128, 2048] {
            let (x, w, b) = (random.normal(2 * width), random.normal(width), random.normal(width));
            let gate = random.normal(2 * width);
            let mut out = vec![0.0; 2 * width];
            let against = |f: &dyn Fn(usize, (f64, f64, f64), f64) -> f64| -> Vec<f32> {
                (0..2 * width)
                    .map(|i| f(i, moments(&x[i / width * width..][..width]), f64::from(x[i])) as f32)
                    .collect()
            };
            rms(&x, &w, 1e-6, &mut out);
            let expected = against(&|i, m, x| x / (m.2 + 1e-6).sqrt() * (1.0 + f64::from(w[i % width])));
            assert!(max_difference(&out, &expected) < 1e-5, "rms {width}");
            let mut in_place = x.clone();
            rms_in_place(&mut in_place, &w, 1e-6);
            assert_eq!(bits(&in_place), bits(&out));

            out.copy_from_slice(&x);
            gated_rms_in_place(&mut out, &gate, &w, 1e-6);
            let expected = against(&|i, m, x| {
                let g = f64::from(gate[i]);
                x / (m.2 + 1e-6).sqrt() * f64::from(w[i % width]) * g / (1.0 + (-g).exp())
            });
            assert!(max_difference(&out, &expected) < 2e-5, "gated {width}");

            layer(&x, &w, &b, 1e-6, &mut out);
            let expected =
                against(&|i, m, x| (x - m.0) / (m.1 + 1e-6).sqrt() * f64::from(w[i % width]) + f64::from(b[i % width]));
            // One value has no variance: x - mean is 0 on both sides.
            assert!(max_difference(&out, &expected) < 2e-5, "layer {width}");

            let mut unit = x[..width].to_vec();
            l2_in_place(&mut unit, 0.5);
            let length = unit.iter().map(|x| x * x).sum::<f32>();
            let raw = x[..width].iter().map(|x| x * x).sum::<f32>();
            assert!((length - 0.25 * raw / (raw + 1e-6)).abs() < 1e-5);
        }
    }

    #[test]
    fn both_implementations_and_any_cut_give_the_same_bits() {
        let mut random = Random::new(7);
        for width in [5, 64, 200] {
            let (x, w, b, gate) =
                (random.normal(6 * width), random.normal(width), random.normal(width), random.normal(6 * width));
            let run = |rows: std::ops::Range<usize>| {
                let at = rows.start * width..rows.end * width;
                let mut out = vec![vec![0.0; at.len()]; 3];
                rms(&x[at.clone()], &w, 1e-6, &mut out[0]);
                out[1].copy_from_slice(&x[at.clone()]);
                gated_rms_in_place(&mut out[1], &gate[at.clone()], &w, 1e-6);
                layer(&x[at], &w, &b, 1e-6, &mut out[2]);
                out
            };
            let (whole, first, rest, narrow) = (run(0..6), run(0..1), run(1..6), plain(|| run(0..6)));
            for i in 0..3 {
                assert_eq!(bits(&whole[i]), bits(&[&first[i][..], &rest[i]].concat()));
                assert_eq!(bits(&whole[i]), bits(&narrow[i]));
            }
        }
    }

    #[test]
    fn zero_rows_stay_finite() {
        let mut out = vec![1.0; 16];
        rms(&[0.0; 16], &[0.0; 16], 1e-6, &mut out);
        assert_eq!(out, [0.0; 16]);
        l2_in_place(&mut out, 1.0);
        assert_eq!(out, [0.0; 16]);
    }
}
