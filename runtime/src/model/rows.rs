//! What the model makes of every row of a prompt, not only of its last: how likely it took the token that followed.

use std::ops::ControlFlow;

use host_ops::pool::Pool;

use super::error::ModelError;
use super::head::Piece;
use super::keep::Keep;
use super::run::Run;
use super::sequence::Marks;
use super::{Input, Model};

/// How a token was foretold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Foretold {
    /// The token with the largest logit, the lowest of equals.
    pub best: u32,
    /// Minus the natural logarithm of the probability of the token that followed; infinite where there is no such token,
    /// not a number where the logits are none.
    pub loss: f64,
}

/// A row's logits while they come in piece by piece.
#[derive(Clone, Copy, Debug)]
struct Row {
    next: usize,
    best: (usize, f32),
    /// Sum of `e^(logit - largest)`.
    sum: f64,
    wanted: f32,
}

impl Row {
    fn new(next: u32) -> Row {
        Row { next: next as usize, best: (0, f32::NEG_INFINITY), sum: 0.0, wanted: f32::NEG_INFINITY }
    }

    fn take(&mut self, first: usize, logits: &[f32]) {
        let before = self.best.1;
        for (column, logit) in logits.iter().enumerate() {
            if *logit > self.best.1 {
                self.best = (first + column, *logit);
            }
        }
        let most = self.best.1;
        if most > before && before > f32::NEG_INFINITY {
            self.sum *= f64::from(before - most).exp();
        }
        self.sum += logits.iter().map(|logit| f64::from((logit - most).exp())).sum::<f64>();
        if let Some(logit) = self.next.checked_sub(first).and_then(|column| logits.get(column)) {
            self.wanted = *logit;
        }
    }

    fn foretold(&self) -> Foretold {
        let loss = self.sum.ln() - f64::from(self.wanted - self.best.1);
        Foretold { best: self.best.0 as u32, loss }
    }
}

fn take(pool: &Pool, rows: &mut [Row], piece: &Piece<'_>) {
    pool.run_chunks(rows, 1, &|r, row| row[0].take(piece.first, &piece.logits[r * piece.width..][..piece.width]));
}

impl Model {
    /// Appends tokens as [`Model::prefill`] does, and tells of each how the one after it was foretold: `next` are those,
    /// one for each. The logits of all rows come out of the kernels of a prompt, which round in other places than those
    /// of a token do. The first call copies the head for them, see [`Model::widen_head`]. None if it was broken off.
    ///
    /// # Errors
    /// As [`Model::prefill`], but where only the logits failed the tokens stay appended; a number of next tokens that is not
    /// that of the tokens.
    pub fn foretell(
        &mut self,
        input: &Input<'_>,
        next: &[u32],
        progress: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> Result<Option<Vec<Foretold>>, ModelError> {
        if next.len() != input.ids.len() {
            return Err(ModelError::Next { next: next.len(), tokens: input.ids.len() });
        }
        if self.append(input, Keep::Outputs, Marks::default(), progress)?.is_none() {
            return Ok(None);
        }
        let mut rows: Vec<Row> = next.iter().map(|next| Row::new(*next)).collect();
        let Model { kernels, text, pool, probe, recorder, .. } = self;
        let mut run = Run { kernels, pool, recorder, probe };
        text.logits_of_rows(&mut run, 0..next.len(), &mut |run, range, piece| {
            take(run.pool, &mut rows[range], &piece);
        })?;
        Ok(Some(rows.iter().map(Row::foretold).collect()))
    }

    /// Copies the head into an order that the kernels of a prompt take, so that the logits of many tokens cost one
    /// product; as large as the head, once. Gives its bytes.
    ///
    /// # Errors
    /// No memory on the device; a head that no such kernel can multiply by.
    pub fn widen_head(&mut self) -> Result<usize, ModelError> {
        let Model { kernels, text, .. } = self;
        Ok(text.widen_head(kernels.npu())?.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logits_in_pieces_give_what_they_give_as_a_whole() {
        let logits: Vec<f32> = (0..100).map(|i| ((i * 37 % 100) as f32 * 0.31).sin() * 9.0).collect();
        let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|x| f64::from(x - most).exp()).sum();
        for cut in [1, 7, 50, 100] {
            for next in [0_u32, 55, 99] {
                let mut row = Row::new(next);
                logits.chunks(cut).enumerate().for_each(|(i, piece)| row.take(i * cut, piece));
                let wanted = sum.ln() - f64::from(logits[next as usize] - most);
                let found = row.foretold();
                assert_eq!(logits[found.best as usize], most);
                assert!((found.loss - wanted).abs() < 1e-5, "{cut} {next}: {} {wanted}", found.loss);
            }
        }
        let mut equal = Row::new(200);
        equal.take(0, &[1.0, 3.0, 3.0]);
        equal.take(3, &[3.0]);
        assert_eq!((equal.foretold().best, equal.foretold().loss), (1, f64::INFINITY));
    }
}
