//! Between f32 and bf16: round to nearest even; a NaN stays a NaN.

pub use half::bf16;

/// `out[i] = x[i]`, exact.
///
/// # Panics
/// If the lengths differ.
pub fn to_f32(x: &[bf16], out: &mut [f32]) {
    assert_eq!(x.len(), out.len());
    todo!()
}

/// `out[i] = x[i]` rounded to nearest, ties to even. A NaN keeps its sign and upper mantissa bits, with the quiet bit
/// set.
///
/// # Panics
/// If the lengths differ.
pub fn from_f32(x: &[f32], out: &mut [bf16]) {
    assert_eq!(x.len(), out.len());
    todo!()
}

/// `x[i] += y[i]`, `y` widened: the residual add of a projection's output.
///
/// # Panics
/// If the lengths differ.
pub fn add(x: &mut [f32], y: &[bf16]) {
    assert_eq!(x.len(), y.len());
    todo!()
}
