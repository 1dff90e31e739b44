//! Choosing a token from logits.

use crate::{bf16, simd::kernel};
use half::bf16 as Bf16;

/// Values looked at together: the largest of a block is found without branches, and only a block that beats the best
/// so far is searched.
const BLOCK: usize = 256;

kernel! {
    fn largest<V>(x: &[f32]) -> f32 {
        let mut lanes = V::splat(f32::NEG_INFINITY);
        let (full, rest) = x.as_chunks();
        for x in full {
            // `max` gives its second operand for a NaN, which is the best so far here.
            lanes = V::load(x).max(lanes);
        }
        let mut best = [0.0; 8];
        lanes.store(&mut best);
        best.iter().chain(rest).fold(f32::NEG_INFINITY, |m, &x| if x > m { x } else { m })
    }
}

/// The index of the largest value, the first one of equals; NaN is never chosen. `None` if there is nothing but NaN and
/// negative infinity.
pub fn argmax(logits: &[f32]) -> Option<usize> {
    let (mut best, mut at) = (f32::NEG_INFINITY, None);
    for (i, block) in logits.chunks(BLOCK).enumerate() {
        let candidate = largest(block);
        if candidate > best {
            best = candidate;
            at = block.iter().position(|&x| x == candidate).map(|j| i * BLOCK + j);
        }
    }
    at
}

/// [`argmax`] over bf16.
pub fn argmax_bf16(logits: &[Bf16]) -> Option<usize> {
    let mut wide = [0.0; BLOCK];
    let (mut best, mut at) = (f32::NEG_INFINITY, None);
    for (i, block) in logits.chunks(BLOCK).enumerate() {
        let wide = &mut wide[..block.len()];
        bf16::to_f32(block, wide);
        let candidate = largest(wide);
        if candidate > best {
            best = candidate;
            at = wide.iter().position(|&x| x == candidate).map(|j| i * BLOCK + j);
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{simd::plain, testing::Random};

    fn defined(x: &[f32]) -> Option<usize> {
        let mut at = None;
        for (i, &x_i) in x.iter().enumerate() {
            if x_i > at.map_or(f32::NEG_INFINITY, |j: usize| x[j]) {
                at = Some(i);
            }
        }
        at
    }

    #[test]
    fn first_of_equals_as_defined() {
        let mut random = Random::new(12);
        for n in [0, 1, 7, 8, 255, 256, 257, 1000, 2048] {
            for _ in 0..20 {
                // Few values, so that ties are common; some NaN.
                let x: Vec<f32> = (0..n)
                    .map(|_| match random.next() % 9 {
                        0 => f32::NAN,
                        v => v as f32 - 5.0,
                    })
                    .collect();
                assert_eq!(argmax(&x), defined(&x));
                assert_eq!(plain(|| argmax(&x)), defined(&x));
                let narrow: Vec<Bf16> = x.iter().map(|&x| Bf16::from_f32(x)).collect();
                assert_eq!(argmax_bf16(&narrow), defined(&x));
            }
        }
        assert_eq!(argmax(&[f32::NAN, f32::NEG_INFINITY]), None);
        assert_eq!(argmax(&[f32::NAN, -3.0, f32::INFINITY, f32::INFINITY]), Some(2));
    }
}
