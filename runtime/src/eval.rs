//! How well a model foretells a text: its perplexity, by which formats and bundles are compared with one number.
//!
//! The text goes in as a prompt, and the logits after each token are asked how likely the next one was.
//! A text longer than the context is cut into windows that know nothing of each other; the first token of a window is
//! foretold by nothing and not counted.

use std::ops::ControlFlow;

use crate::model::{Input, Model, ModelError, Positions};

/// Tokens that go in together: their outputs are kept.
const PIECE: usize = 2048;
/// No token.
const NOTHING: u32 = u32::MAX;

/// How a text came out.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Evaluation {
    /// Tokens of the text.
    pub tokens: usize,
    /// Those that were foretold.
    pub predicted: usize,
    /// Sum over them of minus the natural logarithm of the probability that each was given.
    pub loss: f64,
}

impl Evaluation {
    /// `e` to the mean loss: among how many equally likely tokens the model was torn. 1 where nothing was foretold.
    #[must_use]
    pub fn perplexity(&self) -> f64 {
        if self.predicted == 0 { 1.0 } else { (self.loss / self.predicted as f64).exp() }
    }
}

/// Foretells `ids` in windows of at most `window` tokens, cut down to the context. `progress` gets the tokens that are
/// in and may break off, which gives nothing.
///
/// # Errors
/// Unknown tokens, failures of the device.
pub fn run(
    model: &mut Model,
    ids: &[u32],
    window: usize,
    progress: &mut dyn FnMut(usize) -> ControlFlow<()>,
) -> Result<Option<Evaluation>, ModelError> {
    let mut all = Evaluation { tokens: ids.len(), ..Evaluation::default() };
    let mut done = 0;
    for window in ids.chunks(window.min(model.max_ctx()).max(2)) {
        model.reset();
        // The last token of a window foretells nothing.
        let mut next = window[1..].to_vec();
        next.push(NOTHING);
        for (ids, next) in window.chunks(PIECE).zip(next.chunks(PIECE)) {
            // Whatever stands there is a word, be it the one that elsewhere stands for a part of a picture.
            let positions = Positions::text(model.next_position(), ids.len());
            let input = Input { ids, positions: &positions, vision: &[] };
            let Some(foretold) = model.foretell(&input, next, &mut |piece| progress(done + piece))? else {
                return Ok(None);
            };
            let counted = foretold.iter().zip(next).filter(|(_, next)| **next != NOTHING);
            for (foretold, _) in counted {
                all.loss += foretold.loss;
                all.predicted += 1;
            }
            done += ids.len();
            if progress(done).is_break() {
                return Ok(None);
            }
        }
    }
    Ok(Some(all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perplexity_is_e_to_the_mean_loss() {
        let all = Evaluation { tokens: 3, predicted: 2, loss: 2.0 * 5.0_f64.ln() };
        assert!((all.perplexity() - 5.0).abs() < 1e-12);
        assert_eq!(Evaluation::default().perplexity(), 1.0);
    }
}
