//! Normalisations over the last axis. Sums run in a fixed lane order over the width.

/// RMS norm with a weight stored as an offset from one: `out = x / sqrt(mean(x^2) + eps) * (1 + w)`.
/// `x`, `out`: `[n, w.len()]`.
///
/// # Panics
/// If the lengths do not fit.
pub fn rms(x: &[f32], w: &[f32], eps: f32, out: &mut [f32]) {
    let _ = (x, w, eps, out);
    todo!()
}

/// [`rms`] in place.
///
/// # Panics
/// If the lengths do not fit.
pub fn rms_in_place(x: &mut [f32], w: &[f32], eps: f32) {
    let _ = (x, w, eps);
    todo!()
}

/// Gated RMS norm with a plain weight: `out = x / sqrt(mean(x^2) + eps) * w * silu(gate)`.
/// `x`, `gate`, `out`: `[n, w.len()]`.
///
/// # Panics
/// If the lengths do not fit.
pub fn gated_rms(x: &[f32], gate: &[f32], w: &[f32], eps: f32, out: &mut [f32]) {
    let _ = (x, gate, w, eps, out);
    todo!()
}

/// Layer norm with biased variance: `out = (x - mean) / sqrt(var + eps) * w + b`. `x`, `out`: `[n, w.len()]`.
///
/// # Panics
/// If the lengths do not fit.
pub fn layer(x: &[f32], w: &[f32], b: &[f32], eps: f32, out: &mut [f32]) {
    let _ = (x, w, b, eps, out);
    todo!()
}

/// One vector to unit length, times `scale`: `x / sqrt(sum(x^2) + 1e-6) * scale`.
pub fn l2_in_place(x: &mut [f32], scale: f32) {
    let _ = (x, scale);
    todo!()
}
