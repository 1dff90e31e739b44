//! What the machine can do at best, measured with the vectors that the kernels use: yardsticks, no math of the model.

use crate::pool::Pool;
use crate::simd::{LANES, kernel};
use crate::wide::{Vector, WIDE};

/// Floating-point operations of one round of [`multiply_add_eight`].
pub const OPERATIONS_OF_EIGHT: usize = 2 * LANES * CHAINS;
/// Independent chains: enough for two units of five cycles' latency.
const CHAINS: usize = 12;

kernel! {
    /// Fused multiply-adds that depend on nothing but registers, in vectors of eight. The result is of no interest; use it
    /// all the same.
    pub fn multiply_add_eight<V>(rounds: usize) -> f32 {
        let (scale, step) = (V::splat(0.999_999), V::splat(1e-6));
        let mut chains: [V; CHAINS] = std::array::from_fn(|i| V::splat(i as f32));
        for _ in 0..rounds {
            for chain in &mut chains {
                *chain = chain.fma(scale, step);
            }
        }
        chains.into_iter().fold(V::splat(0.0), |sum, chain| sum.add(chain)).sum()
    }
}

kernel! {
    /// As [`multiply_add_eight`], in the longest vectors that there are. Gives the operations of a round, too.
    pub fn multiply_add<V, W>(rounds: usize) -> (f32, usize) {
        let (scale, step) = (W::all(0.999_999), W::all(1e-6));
        let mut chains: [W; CHAINS] = std::array::from_fn(|i| W::all(i as f32));
        for _ in 0..rounds {
            for chain in &mut chains[..W::ROWS] {
                *chain = step.plus(*chain, scale);
            }
        }
        let mut out = [0.0; WIDE];
        chains.into_iter().fold(step, |sum, chain| sum.plus(chain, scale)).write(&mut out);
        (out.iter().sum(), 2 * WIDE * W::ROWS)
    }
}

kernel! {
    fn sum_of<V>(x: &[f32]) -> f32 {
        let mut sums = [V::splat(0.0); 8];
        for group in x.as_chunks::<{ 8 * LANES }>().0 {
            for (sum, x) in sums.iter_mut().zip(group.as_chunks().0) {
                *sum = sum.add(V::load(x));
            }
        }
        sums.into_iter().fold(V::splat(0.0), |sum, other| sum.add(other)).sum()
    }
}

/// Values that one thread takes at a time from memory.
const PIECE: usize = 1 << 18;

/// Reads all of `x`, on all threads of the pool.
pub fn read(pool: &Pool, x: &[f32]) -> f32 {
    let mut sums = vec![0.0; x.len().div_ceil(PIECE)];
    pool.run_chunks(&mut sums, 1, &|i, sum| sum[0] = sum_of(&x[i * PIECE..((i + 1) * PIECE).min(x.len())]));
    sums.iter().sum()
}

/// Copies `x` to `out`, on all threads of the pool.
///
/// # Panics
/// If the lengths differ.
pub fn copy(pool: &Pool, x: &[f32], out: &mut [f32]) {
    assert_eq!(x.len(), out.len());
    pool.run_chunks(out, PIECE, &|i, out| out.copy_from_slice(&x[i * PIECE..][..out.len()]));
}

/// Changes all of `x` where it is, on all threads of the pool: what a state costs that is read and written back.
pub fn update(pool: &Pool, x: &mut [f32]) {
    pool.run_chunks(x, PIECE, &|_, x| x.iter_mut().for_each(|x| *x = *x * 0.5 + 1.0));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yardsticks_do_what_they_say() {
        let pool = Pool::new(2);
        let mut x: Vec<f32> = vec![1.0; PIECE + 640];
        assert_eq!(read(&pool, &x), (PIECE + 640) as f32);
        let mut y = vec![0.0; x.len()];
        copy(&pool, &x, &mut y);
        assert_eq!(x, y);
        update(&pool, &mut x);
        assert!(x.iter().all(|x| *x == 1.5));
        assert!(multiply_add_eight(1000).is_finite());
        let (sum, operations) = multiply_add(1000);
        assert!(sum.is_finite() && operations.is_multiple_of(2 * WIDE));
    }
}
