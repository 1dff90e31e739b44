//! Activations, elementwise over slices.

/// `1 / (1 + e^-x)`.
pub fn sigmoid(x: f32) -> f32 {
    let _ = x;
    todo!()
}

/// `x * sigmoid(x)`.
pub fn silu(x: f32) -> f32 {
    let _ = x;
    todo!()
}

/// `ln(1 + e^x)`, `x` itself above 20.
pub fn softplus(x: f32) -> f32 {
    let _ = x;
    todo!()
}

/// `0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`.
pub fn gelu_tanh(x: f32) -> f32 {
    let _ = x;
    todo!()
}

/// `0.5 x (1 + erf(x / sqrt(2)))`.
pub fn gelu_erf(x: f32) -> f32 {
    let _ = x;
    todo!()
}

/// [`gelu_tanh`] over a slice.
pub fn gelu_tanh_in_place(x: &mut [f32]) {
    let _ = x;
    todo!()
}

/// [`gelu_erf`] over a slice.
pub fn gelu_erf_in_place(x: &mut [f32]) {
    let _ = x;
    todo!()
}

/// `out = silu(gate) * up`.
///
/// # Panics
/// If the lengths differ.
pub fn swiglu(gate: &[f32], up: &[f32], out: &mut [f32]) {
    let _ = (gate, up, out);
    todo!()
}

/// SwiGLU from the paired order of the `gu` projection: blocks of 64 values, 32 gates then their 32 ups (see
/// [`crate::pack::Paired`]). `x`: `[n, 2 * width]`, `out`: `[n, width]` with `width % 32 == 0`.
///
/// # Panics
/// If the lengths do not fit.
pub fn swiglu_paired(x: &[f32], out: &mut [f32]) {
    let _ = (x, out);
    todo!()
}
