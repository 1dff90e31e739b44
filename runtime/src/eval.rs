//! How well a model foretells a text: its perplexity, by which formats and bundles are compared with one number.
//!
//! Each token goes in as a token of an answer would, and the logits after it are asked how likely the next one was.
//! A text longer than the context is cut into windows that know nothing of each other; the first token of a window is
//! foretold by nothing and not counted.

use std::ops::ControlFlow;

use crate::model::{Model, ModelError};

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
        for pair in window.windows(2) {
            all.loss += loss(model.decode(pair[0])?, pair[1]);
            all.predicted += 1;
            done += 1;
            if progress(done).is_break() {
                return Ok(None);
            }
        }
        // The last token of a window foretells nothing.
        done += 1;
    }
    Ok(Some(all))
}

/// Minus the logarithm of the probability of token `id`; infinite where there is no such token.
fn loss(logits: &[f32], id: u32) -> f64 {
    let Some(logit) = logits.get(id as usize) else { return f64::INFINITY };
    let most = logits.iter().fold(f32::NEG_INFINITY, |most, logit| most.max(*logit));
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - most).exp()).sum();
    sum.ln() - f64::from(logit - most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_of_known_distributions() {
        assert!((loss(&[3.0; 8], 5) - 8.0_f64.ln()).abs() < 1e-12);
        let (a, b) = (loss(&[0.0, 3.0_f32.ln()], 0), loss(&[0.0, 3.0_f32.ln()], 1));
        assert!((a - 4.0_f64.ln()).abs() < 1e-6 && (b - (4.0_f64 / 3.0).ln()).abs() < 1e-6);
        assert_eq!(loss(&[1e30, 0.0], 0), 0.0);
        assert_eq!(loss(&[0.0], 1), f64::INFINITY);
        let all = Evaluation { tokens: 3, predicted: 2, loss: 2.0 * 5.0_f64.ln() };
        assert!((all.perplexity() - 5.0).abs() < 1e-12);
        assert_eq!(Evaluation::default().perplexity(), 1.0);
    }
}
