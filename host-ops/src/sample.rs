//! Choosing a token from logits.

use half::bf16;

/// The index of the largest value, the first one of equals; NaN is never chosen. `None` for an empty slice.
pub fn argmax(logits: &[f32]) -> Option<usize> {
    let _ = logits;
    todo!()
}

/// [`argmax`] over bf16.
pub fn argmax_bf16(logits: &[bf16]) -> Option<usize> {
    let _ = logits;
    todo!()
}
