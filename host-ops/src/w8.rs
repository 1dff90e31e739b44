//! 8-bit weights with a factor per output channel, as bfp16 blocks can hold them exactly.

/// Quantises one output channel: `row[i] ~ f * q[i] * 2^e` with q in -127..127 and f in [1, 2). Replaces `row` by the
/// values `q * 2^e` and returns f. Never leaves a negative zero behind.
///
/// K slices of one weight share f: quantise the whole row, then cut it.
pub fn quantise(row: &mut [f32]) -> f32 {
    let _ = row;
    todo!()
}

/// `x[r, c] *= f[c]` for all rows. `x`: `[n, f.len()]`.
///
/// # Panics
/// If the lengths do not fit.
pub fn scale_columns(x: &mut [f32], f: &[f32]) {
    let _ = (x, f);
    todo!()
}
