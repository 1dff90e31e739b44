//! Generation: one token after the other until something ends it.

use super::options::Stop;

/// Tokens that are chosen one at a time.
pub(super) trait Speaker {
    /// Its failures.
    type Error;
    /// Takes a token into the answer; gives why it ends with it, if it does.
    fn take(&mut self, token: u32) -> Option<Stop>;
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

/// Runs from the first token, which the prompt's logits chose. The token that ends an answer is not part of it. A token is
/// appended only where another one may follow it.
pub(super) fn generate<S: Speaker>(speaker: &mut S, first: u32, limits: &Limits<'_>) -> Result<Stop, S::Error> {
    let budget = limits.max_new.min(limits.room);
    let mut token = first;
    for count in 1.. {
        if limits.stop.contains(&token) {
            return Ok(Stop::Token(token));
        }
        if count > budget {
            break;
        }
        if let Some(stop) = speaker.take(token) {
            return Ok(stop);
        }
        if count == budget {
            break;
        }
        token = speaker.next(token)?;
    }
    Ok(if limits.max_new <= limits.room { Stop::Budget } else { Stop::Context })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts up.
    struct Counting {
        tokens: Vec<u32>,
        cancel_at: Option<u32>,
        decoded: usize,
    }

    impl Speaker for Counting {
        type Error = std::convert::Infallible;
        fn take(&mut self, token: u32) -> Option<Stop> {
            self.tokens.push(token);
            (Some(token) == self.cancel_at).then_some(Stop::Cancelled)
        }
        fn next(&mut self, token: u32) -> Result<u32, Self::Error> {
            self.decoded += 1;
            Ok(token + 1)
        }
    }

    fn run(first: u32, stop: &[u32], max_new: usize, room: usize, cancel_at: Option<u32>) -> (Vec<u32>, Stop, usize) {
        let mut speaker = Counting { tokens: Vec::new(), cancel_at, decoded: 0 };
        let Ok(end) = generate(&mut speaker, first, &Limits { stop, max_new, room });
        (speaker.tokens, end, speaker.decoded)
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
    fn what_the_speaker_says_ends_it_at_once() {
        assert_eq!(run(0, &[], 10, 10, Some(2)), (vec![0, 1, 2], Stop::Cancelled, 2));
    }
}
