//! Greedy generation: one token after the other until something ends it.

use std::ops::ControlFlow;

use super::options::Stop;

/// Tokens that are chosen one at a time.
pub(super) trait Decoder {
    /// Its failures.
    type Error;
    /// Appends a token and says which one comes next.
    fn next(&mut self, token: u32) -> Result<u32, Self::Error>;
}

/// What a generation may use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits<'a> {
    /// Tokens that end an answer.
    pub(super) stop: &'a [u32],
    /// The most tokens of the answer.
    pub(super) max_new: usize,
    /// Places that are left in the context.
    pub(super) room: usize,
}

/// Runs from the first token, which the prompt's logits chose, and hands each token of the answer to `emit`. The token
/// that ends an answer is not part of it. A token is decoded only where another one may follow it.
pub(super) fn generate<D: Decoder>(
    decoder: &mut D,
    first: u32,
    limits: &Limits<'_>,
    emit: &mut dyn FnMut(u32) -> ControlFlow<()>,
) -> Result<Stop, D::Error> {
    let budget = limits.max_new.min(limits.room);
    let mut token = first;
    for count in 1.. {
        if limits.stop.contains(&token) {
            return Ok(Stop::Token(token));
        }
        if count > budget {
            break;
        }
        if emit(token).is_break() {
            return Ok(Stop::Cancelled);
        }
        if count == budget {
            break;
        }
        token = decoder.next(token)?;
    }
    Ok(if limits.max_new <= limits.room { Stop::Budget } else { Stop::Context })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts up.
    struct Counting {
        decoded: usize,
    }

    impl Decoder for Counting {
        type Error = std::convert::Infallible;
        fn next(&mut self, token: u32) -> Result<u32, Self::Error> {
            self.decoded += 1;
            Ok(token + 1)
        }
    }

    fn run(first: u32, stop: &[u32], max_new: usize, room: usize, cancel_at: Option<u32>) -> (Vec<u32>, Stop, usize) {
        let (mut decoder, mut tokens) = (Counting { decoded: 0 }, Vec::new());
        let Ok(end) = generate(&mut decoder, first, &Limits { stop, max_new, room }, &mut |t| {
            tokens.push(t);
            if Some(t) == cancel_at { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        (tokens, end, decoder.decoded)
    }

    #[test]
    fn a_stop_token_ends_the_answer_and_is_not_part_of_it() {
        assert_eq!(run(5, &[9, 8], 100, 100, None), (vec![5, 6, 7], Stop::Token(8), 3));
        assert_eq!(run(8, &[8], 100, 100, None), (vec![], Stop::Token(8), 0));
    }

    #[test]
    fn the_smaller_of_budget_and_context_ends_it_without_a_useless_step() {
        assert_eq!(run(0, &[], 3, 10, None), (vec![0, 1, 2], Stop::Budget, 2));
        assert_eq!(run(0, &[], 10, 3, None), (vec![0, 1, 2], Stop::Context, 2));
        assert_eq!(run(0, &[], 10, 0, None), (vec![], Stop::Context, 0));
        assert_eq!(run(0, &[], 1, 1, None), (vec![0], Stop::Budget, 0));
    }

    #[test]
    fn a_break_ends_it_at_once() {
        assert_eq!(run(0, &[], 10, 10, Some(2)), (vec![0, 1, 2], Stop::Cancelled, 2));
    }
}
