//! Guessing what comes next from what has been said: answers repeat their prompts, and themselves.
//!
//! Wherever the last three tokens stand a second time, what followed them there is the guess. A run of guesses costs one
//! pass of a prompt's kernels, whatever its length up to a chunk, so it pays from a few accepted tokens on. How many is a
//! matter of the device, and is measured on the way.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use super::Model;
use super::error::ModelError;

/// Tokens that have to be the same.
const GRAM: usize = 3;
/// Tokens of a first guess, and of the longest.
const REACH: (usize, usize) = (8, 64);

/// Whether answers are guessed at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Speculate {
    /// A token at a time.
    #[default]
    Off,
    /// Wherever the text so far suggests something. The same text every time, but where it comes out of a prompt's
    /// kernels it may differ from that of [`Speculate::Off`] by their rounding.
    Lookup,
    /// As [`Speculate::Lookup`], as long as it is measured to be faster. What is measured differs from time to time, and
    /// so may the rounding.
    Auto,
}

/// What came of guessing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Guesses {
    /// Runs of guesses that went through the model.
    pub runs: usize,
    /// Tokens that were guessed in them.
    pub guessed: usize,
    /// Those that the model would have said.
    pub accepted: usize,
    /// Steps of one token.
    pub steps: usize,
    /// Time of all runs.
    pub run_time: Duration,
    /// Time of all steps of one token.
    pub step_time: Duration,
}

impl Guesses {
    /// What has come since `before`.
    #[must_use]
    pub fn since(&self, before: &Guesses) -> Guesses {
        Guesses {
            runs: self.runs.saturating_sub(before.runs),
            guessed: self.guessed.saturating_sub(before.guessed),
            accepted: self.accepted.saturating_sub(before.accepted),
            steps: self.steps.saturating_sub(before.steps),
            run_time: self.run_time.saturating_sub(before.run_time),
            step_time: self.step_time.saturating_sub(before.step_time),
        }
    }
}

/// What has been said, and where three tokens stood last.
#[derive(Debug, Default)]
struct History {
    tokens: Vec<u32>,
    /// Three tokens, and the place behind them.
    places: HashMap<[u32; GRAM], usize>,
    /// Where the last three stood before.
    matching: Option<usize>,
}

impl History {
    fn push(&mut self, token: u32) {
        self.tokens.push(token);
        let end = self.tokens.len();
        self.matching = self.tokens.last_chunk::<GRAM>().and_then(|gram| self.places.insert(*gram, end));
    }

    fn clear(&mut self) {
        self.tokens.clear();
        self.places.clear();
        self.matching = None;
    }

    /// What followed then, up to `most` tokens, none of `never`. Where it reaches the end, it goes on as it has begun.
    fn guess(&self, most: usize, never: &[u32], out: &mut Vec<u32>) {
        let Some(from) = self.matching else { return };
        let period = self.tokens.len() - from;
        let tokens = (0..most).map(|i| self.tokens[from + i % period]);
        out.extend(tokens.take_while(|token| !never.contains(token)));
    }
}

/// Guesses for one sequence.
#[derive(Debug)]
pub struct Speculator {
    mode: Speculate,
    never: Vec<u32>,
    history: History,
    /// Chosen tokens that have not been asked for; all before each has been appended.
    ready: VecDeque<u32>,
    ids: Vec<u32>,
    reach: usize,
    guesses: Guesses,
    /// What a step of one token and a run take, and the tokens that a run gives.
    step: Mean,
    run: Mean,
    gain: Mean,
    /// Steps to take before the next guess, and how many the next time.
    pause: (usize, usize),
}

/// A mean in which what is new weighs a quarter.
#[derive(Clone, Copy, Debug, Default)]
struct Mean(Option<f64>);

impl Mean {
    fn take(&mut self, value: f64) {
        self.0 = Some(self.0.map_or(value, |mean| mean + (value - mean) / 4.0));
    }
}

impl Speculator {
    /// Guesses nothing yet. Tokens of `never` are not guessed: those that end an answer, those that stand for pictures.
    #[must_use]
    pub fn new(mode: Speculate, never: &[u32]) -> Speculator {
        Speculator {
            mode,
            never: never.to_vec(),
            history: History::default(),
            ready: VecDeque::new(),
            ids: Vec::new(),
            reach: REACH.0,
            guesses: Guesses::default(),
            step: Mean::default(),
            run: Mean::default(),
            gain: Mean::default(),
            pause: (0, 1),
        }
    }

    /// The tokens of the sequence so far, before an answer. What was measured stays.
    pub fn begin(&mut self, tokens: &[u32]) {
        self.history.clear();
        self.ready.clear();
        self.reach = REACH.0;
        if self.mode != Speculate::Off {
            tokens.iter().for_each(|token| self.history.push(*token));
        }
    }

    /// What came of it so far.
    #[must_use]
    pub fn guesses(&self) -> Guesses {
        self.guesses
    }

    /// Appends a token of an answer, and gives the one that follows, of which `choose` decides by the logits. Others may
    /// have been appended with it: the next call has to be about the token that this one gives. `room` is how many more
    /// tokens may follow `token`.
    ///
    /// # Errors
    /// As [`Model::decode_run`].
    pub fn next(
        &mut self,
        model: &mut Model,
        token: u32,
        room: usize,
        choose: &mut dyn FnMut(&[f32]) -> Result<u32, ModelError>,
    ) -> Result<u32, ModelError> {
        if self.mode != Speculate::Off {
            self.history.push(token);
        }
        if let Some(ready) = self.ready.pop_front() {
            return Ok(ready);
        }
        self.ids.clear();
        self.ids.push(token);
        let most = self.reach.min(room.saturating_sub(1)).min(model.longest_run().saturating_sub(1));
        if self.wanted() {
            self.history.guess(most, &self.never, &mut self.ids);
        }
        let started = Instant::now();
        if self.ids.len() == 1 {
            // As a run of one token, without memory for what it gives.
            let chosen = choose(model.decode(token)?)?;
            self.learn(started.elapsed(), 1);
            return Ok(chosen);
        }
        let chosen = model.decode_run(&self.ids, choose)?;
        let took = started.elapsed();
        self.learn(took, chosen.len());
        self.ready.extend(&chosen[1..]);
        Ok(chosen[0])
    }

    /// The answer has ended: what has been appended and not been asked for is taken back. Gives whether the sequence is
    /// what it would be without guesses; it always is if nothing else was appended to it.
    pub fn finish(&mut self, model: &mut Model) -> bool {
        let beyond = self.ready.len();
        self.ready.clear();
        beyond == 0 || model.take_back(beyond)
    }

    fn wanted(&mut self) -> bool {
        if self.mode == Speculate::Off || self.history.matching.is_none() {
            return false;
        }
        if self.mode == Speculate::Auto && self.pause.0 > 0 {
            self.pause.0 -= 1;
            return false;
        }
        true
    }

    /// What a step or run of so many tokens has taken.
    fn learn(&mut self, took: Duration, chosen: usize) {
        let guessed = self.ids.len() - 1;
        if guessed == 0 {
            self.guesses.steps += 1;
            self.guesses.step_time += took;
            self.step.take(took.as_secs_f64());
            return;
        }
        let accepted = chosen - 1;
        self.guesses.runs += 1;
        self.guesses.guessed += guessed;
        self.guesses.accepted += accepted;
        self.guesses.run_time += took;
        self.run.take(took.as_secs_f64());
        self.gain.take(chosen as f64);
        // What was right once tends to go on being right.
        self.reach = if accepted == guessed { (self.reach * 2).min(REACH.1) } else { REACH.0.max(accepted) };
        if let (Mean(Some(step)), Mean(Some(run)), Mean(Some(gain))) = (self.step, self.run, self.gain) {
            if gain * step > run {
                self.pause = (0, 1);
            } else {
                self.pause = (self.pause.1, (self.pause.1 * 2).min(256));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guess(tokens: &[u32], most: usize, never: &[u32]) -> Vec<u32> {
        let mut history = History::default();
        tokens.iter().for_each(|token| history.push(*token));
        let mut out = Vec::new();
        history.guess(most, never, &mut out);
        out
    }

    #[test]
    fn what_followed_the_last_three_tokens_before_is_the_guess() {
        assert_eq!(guess(&[1, 2, 3, 4, 5, 6, 1, 2, 3], 4, &[]), [4, 5, 6, 1]);
        assert_eq!(guess(&[1, 2, 3, 4, 9, 1, 2, 3, 5, 8, 1, 2, 3], 2, &[]), [5, 8], "the latest place counts");
        assert_eq!(guess(&[1, 2, 3, 4, 5, 6, 1, 2, 3], 4, &[6]), [4, 5]);
        assert_eq!(guess(&[1, 2, 3, 4, 2, 3], 4, &[]), [0; 0], "two are not three");
        assert_eq!(guess(&[1, 2, 3], 4, &[]), [0; 0]);
        assert_eq!(guess(&[7, 1, 2, 1, 2, 1, 2], 5, &[]), [1, 2, 1, 2, 1], "a loop goes on");
        assert_eq!(guess(&[5; 4], 3, &[]), [5; 3]);
    }
}
