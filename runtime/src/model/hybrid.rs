//! Parts of the head and slices of `down` that the host multiplies itself, beside the NPU.
//!
//! Parts of one product are commands of their own, and the NPU draws no more than half of the memory's bandwidth: so
//! the host takes the last ones, out of the same buffers, and the NPU has fewer to run. Vectors and results are rounded
//! as a buffer between would round them, and sums are taken in the order of the software NPU, so that there no bit
//! depends on who has multiplied. The cores of a real NPU may add in another order: then the last bits differ, as they
//! do between any two kernels.
//!
//! How many parts pay is found out at load, with the commands and weights of the bundle itself.

use std::time::{Duration, Instant};

use half::bf16;
use host_ops::gemm::{self, Weight};
use host_ops::pack::{BStream, Format, PackError, Rows};
use host_ops::pool::Pool;

use super::error::ModelError;
use super::options::Hybrid;
use super::profile::{Projection, Stage};
use super::run::Run;
use super::shared::Shared;
use super::text::Text;
use crate::bundle::TextParams;
use crate::npu::Weights;

/// Bytes of weights that the host multiplies before it looks at the NPU's queue again: well below a millisecond.
const STEP: usize = 8 << 20;
/// Less than this part of the time saved is noise.
const WORTH: f64 = 0.02;
/// Times that each way is measured; the shortest counts.
const LOOKS: usize = 3;

/// The host's share of the products.
#[derive(Debug)]
pub(super) struct Share {
    pub(super) head: Product,
    pub(super) down: Product,
}

/// One product that is cut into parts.
#[derive(Debug)]
pub(super) struct Product {
    /// Parts that the host takes.
    pub(super) parts: usize,
    /// A part.
    weight: Weight,
    /// The vector, as the NPU would have it.
    x: Vec<f32>,
    /// Results of the slices.
    pub(super) y: Vec<f32>,
    rounded: Vec<bf16>,
}

impl Share {
    /// None yet, for weights of this format.
    pub(super) fn new(format: Format, params: &TextParams, shared: &Shared) -> Result<Share, ModelError> {
        let unfit = |e: PackError| ModelError::Shape(format!("the host cannot multiply: {e}"));
        let down = &shared.down.1.record;
        let head = Rows::new(format, params.head_rows, params.hidden).map_err(unfit)?;
        let down = BStream::new(format, down.k, down.m, down.bias).map_err(unfit)?;
        Ok(Share { head: Product::new(Weight::Rows(head)), down: Product::new(Weight::Stream(down)) })
    }
}

impl Product {
    fn new(weight: Weight) -> Product {
        Product { parts: 0, weight, x: Vec::new(), y: Vec::new(), rounded: Vec::new() }
    }

    /// Takes the vector that the parts are multiplied with: `[inputs]`.
    pub(super) fn set_x(&mut self, x: &[f32]) {
        self.x.clear();
        self.x.extend_from_slice(x);
        round(self.weight.format(), &mut self.x, &mut self.rounded);
        if self.weight.format() != Format::F32 {
            gemm::split(&mut self.x);
        }
    }

    /// Results of one step.
    pub(super) fn step(&self) -> usize {
        let a_block = (self.weight.bytes() / self.weight.outputs().div_ceil(gemm::BLOCK_COLUMNS)).max(1);
        (STEP / a_block).max(1) * gemm::BLOCK_COLUMNS
    }

    /// Results from `first` on of one part, as the NPU would leave them.
    pub(super) fn multiply(
        &mut self,
        pool: &Pool,
        part: &Weights,
        first: usize,
        y: &mut [f32],
    ) -> Result<(), ModelError> {
        let unfit = |e: PackError| ModelError::Shape(format!("the host cannot multiply: {e}"));
        self.weight.gemv(pool, &part.read()?, &self.x, first, y).map_err(unfit)?;
        round(self.weight.format(), y, &mut self.rounded);
        Ok(())
    }

    /// The whole of slice `place` of those that the host takes, into `y`.
    pub(super) fn multiply_slice(&mut self, pool: &Pool, slice: &Weights, place: usize) -> Result<(), ModelError> {
        let m = self.weight.outputs();
        let mut y = std::mem::take(&mut self.y);
        y.resize(y.len().max((place + 1) * m), 0.0);
        let done = self.multiply(pool, slice, 0, &mut y[place * m..][..m]);
        self.y = y;
        done
    }

    /// Results of slice `place`.
    pub(super) fn slice(&self, place: usize) -> &[f32] {
        &self.y[place * self.weight.outputs()..][..self.weight.outputs()]
    }
}

/// Rounds to what an activation buffer holds.
fn round(format: Format, x: &mut [f32], rounded: &mut Vec<bf16>) {
    if format == Format::F32 {
        return;
    }
    rounded.resize(rounded.len().max(x.len()), bf16::ZERO);
    let rounded = &mut rounded[..x.len()];
    host_ops::bf16::from_f32(x, rounded);
    host_ops::bf16::to_f32(rounded, x);
}

impl Text {
    /// Finds out which share of the products the host had better take. State and results of the model stay as they are.
    pub(super) fn tune(&mut self, run: &mut Run<'_>, hybrid: Hybrid) -> Result<(), ModelError> {
        let (heads, slices) = (self.head.len(), self.params.down_slices);
        let (head, down) = match hybrid {
            Hybrid::Off => (0, 0),
            Hybrid::Fixed { head, down } => (head.min(heads), down.min(slices)),
            Hybrid::Measured => {
                // Any vector: its values change no time.
                let width = self.shared.x.len();
                let x: Vec<f32> = (0..width).map(|i| (i % 17) as f32 / 16.0 - 0.5).collect();
                self.shared.x.write_rows(run.pool, width, width, &x)?;
                let d = self.params.hidden;
                self.token.normed.clear();
                self.token.normed.extend_from_slice(&x[..d]);
                let head = best(
                    heads,
                    timed(|parts| {
                        self.share.head.parts = parts;
                        self.head_parts(run)
                    }),
                )?;
                self.share.head.parts = head;
                let k = self.shared.down.1.record.k;
                self.token.activated.clear();
                self.token.activated.extend_from_slice(&x[..slices * k]);
                let down = best(
                    slices,
                    timed(|parts| {
                        self.share.down.parts = parts;
                        for layer in 0..self.layers.len() {
                            self.token.down(run, &self.shared, &mut self.share, &mut self.layers[layer], layer)?;
                        }
                        Ok(())
                    }),
                )?;
                self.logits.fill(0.0);
                (head, down)
            }
        };
        (self.share.head.parts, self.share.down.parts) = (head, down);
        Ok(())
    }
}

/// The shortest time of a few passes, in seconds.
fn timed(mut pass: impl FnMut(usize) -> Result<(), ModelError>) -> impl FnMut(usize) -> Result<f64, ModelError> {
    move |parts| {
        let mut least = Duration::MAX;
        for _ in 0..LOOKS {
            let started = Instant::now();
            pass(parts)?;
            least = least.min(started.elapsed());
        }
        Ok(least.as_secs_f64())
    }
}

/// How many of all parts the host had better take, where `measure(parts)` tells how long all of them take with so many
/// on the host.
fn best(all: usize, mut measure: impl FnMut(usize) -> Result<f64, ModelError>) -> Result<usize, ModelError> {
    let (npu, host) = (measure(0)?, measure(all)?);
    let expected = guess(all, npu, host);
    let mut found = (0, npu * (1.0 - WORTH));
    // Together they may be slower than each alone: they share the memory. So it is tried, around the guess.
    for parts in (1..=all).filter(|parts| (expected.max(1) - 1..=expected + 1).contains(parts)) {
        let took = if parts == all { host } else { measure(parts)? };
        if took < found.1 {
            found = (parts, took);
        }
    }
    Ok(found.0)
}

/// The parts of all that even the times out, where the NPU takes so long for all of them and the host so long.
fn guess(all: usize, npu: f64, host: f64) -> usize {
    let part = |parts: usize, of: f64| of * parts as f64 / all as f64;
    let took = |parts: usize| part(parts, host).max(part(all - parts, npu));
    (0..=all).min_by(|&a, &b| took(a).total_cmp(&took(b))).unwrap_or(0)
}

/// Books what the host multiplies.
pub(super) fn took(run: &mut Run<'_>, projection: Projection, layer: usize, parts: usize, started: Instant) -> Instant {
    run.recorder.profile.asked(projection).taken += parts as u64;
    run.lap(Stage::Product, layer, started)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where a part takes the NPU `npu` and the host `host`, and both work side by side.
    fn chosen(all: usize, npu: f64, host: f64) -> usize {
        best(all, |parts| Ok((host * parts as f64).max(npu * (all - parts) as f64))).unwrap()
    }

    #[test]
    fn the_guess_evens_the_times_out() {
        assert_eq!(guess(8, 80.0, 80.0), 4);
        assert_eq!(guess(8, 80.0, 160.0), 2);
        assert_eq!(guess(8, 80.0, 10_000.0), 0);
        assert_eq!(guess(8, 80.0, 0.1), 8);
        assert_eq!(guess(3, 30.0, 100.0), 0);
        assert_eq!(guess(3, 30.0, 40.0), 1);
        assert_eq!(guess(1, 1.0, 2.0), 0);
        assert_eq!(guess(0, 1.0, 2.0), 0);
    }

    #[test]
    fn parts_are_taken_that_pay_and_no_others() {
        assert_eq!(chosen(4, 20.0, 20.0), 2);
        assert_eq!(chosen(3, 5.0, 200.0), 0);
        assert_eq!(chosen(2, 100.0, 1.0), 2);
        // One part in a hundred is gained: noise.
        assert_eq!(chosen(100, 1.0, 99.0), 0);
    }
}
