//! Reasoning and answer, told apart as they come; and a budget for the reasoning.
//!
//! A prompt that asks for reasoning ends with the opening tag, so the text that a model gives begins inside of the
//! block and has the closing tag only. A tag may come in several pieces, and may not come at all.

use super::template::is_space;

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

/// What a piece of text belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// What the model thinks before it speaks.
    Reasoning,
    /// What it says.
    Answer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// At the beginning of a text; an opening tag is still possible.
    Start(Channel),
    /// Inside of the block.
    Reasoning,
    /// Behind the closing tag; line ends do not count yet.
    Between,
    Answer,
}

/// Tells reasoning and answer apart.
///
/// Both come without the tags and without the white space around them, as templates put it back. What may be part of a
/// tag or of such white space is held back. All pieces together do not depend on how the text was cut.
#[derive(Clone, Debug)]
pub struct ThinkingSplit {
    state: State,
    held: String,
    closed: bool,
}

impl ThinkingSplit {
    /// For a text behind a prompt that ends inside of the block (`thinking`) or behind it.
    #[must_use]
    pub fn new(thinking: bool) -> ThinkingSplit {
        let channel = if thinking { Channel::Reasoning } else { Channel::Answer };
        ThinkingSplit { state: State::Start(channel), held: String::new(), closed: false }
    }

    /// Whether the text is inside of the block: what comes now is reasoning until the closing tag.
    #[must_use]
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Reasoning | State::Start(Channel::Reasoning))
    }

    /// What there is of a closing tag that is not whole yet.
    #[must_use]
    pub fn pending(&self) -> &str {
        let tag = (1..CLOSE.len()).rev().find(|&n| self.is_open() && self.held.ends_with(&CLOSE[..n])).unwrap_or(0);
        &self.held[self.held.len() - tag..]
    }

    /// Whether a token ends the block and has some of the answer in it.
    pub(super) fn closes_early(&self, token: &[u8]) -> bool {
        let pending = self.pending();
        let rest = token.strip_prefix(&CLOSE.as_bytes()[pending.len()..]);
        !pending.is_empty() && rest.is_some_and(|rest| rest.iter().any(|&byte| byte != b'\n'))
    }

    /// Whether a block was closed. If the text is over and [`ThinkingSplit::is_open`], there is no answer.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Takes a piece of text; `emit` gets what is certain.
    pub fn push(&mut self, text: &str, emit: &mut dyn FnMut(Channel, &str)) {
        if self.state == State::Answer {
            if !text.is_empty() {
                emit(Channel::Answer, text);
            }
            return;
        }
        self.held.push_str(text);
        while self.step(emit) {}
    }

    /// The text is over: what was held back belongs to where it stands.
    pub fn finish(&mut self, emit: &mut dyn FnMut(Channel, &str)) {
        let held = std::mem::take(&mut self.held);
        let (channel, rest) = match self.state {
            State::Start(Channel::Reasoning) => (Channel::Reasoning, held.trim_matches(is_space)),
            State::Reasoning => (Channel::Reasoning, held.trim_end_matches(is_space)),
            State::Start(Channel::Answer) | State::Answer => (Channel::Answer, held.as_str()),
            State::Between => (Channel::Answer, held.trim_start_matches('\n')),
        };
        if !rest.is_empty() {
            emit(channel, rest);
        }
    }

    /// One change of state, or nothing left to do.
    fn step(&mut self, emit: &mut dyn FnMut(Channel, &str)) -> bool {
        match self.state {
            State::Start(channel) => {
                let begun = self.held.trim_start_matches(is_space);
                if let Some(rest) = begun.strip_prefix(OPEN) {
                    self.held = rest.to_owned();
                    self.state = State::Start(Channel::Reasoning);
                    return true;
                }
                if OPEN.starts_with(begun) {
                    return false;
                }
                match channel {
                    Channel::Reasoning => {
                        self.held = begun.to_owned();
                        self.state = State::Reasoning;
                    }
                    Channel::Answer => self.state = State::Answer,
                }
                if channel == Channel::Answer {
                    emit(Channel::Answer, &std::mem::take(&mut self.held));
                }
                channel == Channel::Reasoning
            }
            State::Reasoning => {
                if let Some(at) = self.held.find(CLOSE) {
                    let reasoning = self.held[..at].trim_end_matches(is_space);
                    if !reasoning.is_empty() {
                        emit(Channel::Reasoning, reasoning);
                    }
                    self.held.drain(..at + CLOSE.len());
                    (self.state, self.closed) = (State::Between, true);
                    return true;
                }
                let tag = (1..CLOSE.len()).rev().find(|&n| self.held.ends_with(&CLOSE[..n])).unwrap_or(0);
                let certain = self.held[..self.held.len() - tag].trim_end_matches(is_space).len();
                if certain > 0 {
                    emit(Channel::Reasoning, &self.held[..certain]);
                    self.held.drain(..certain);
                }
                false
            }
            State::Between => {
                let rest = self.held.trim_start_matches('\n');
                if rest.is_empty() {
                    self.held.clear();
                    return false;
                }
                emit(Channel::Answer, rest);
                self.held.clear();
                self.state = State::Answer;
                false
            }
            State::Answer => false,
        }
    }
}

/// Ends reasoning that takes too long, by tokens that the engine puts in the model's mouth.
///
/// ```text
/// let token = match budget.forced(split.is_open()) { Some(token) => token, None => sampler.choose(..)?.token };
/// ```
#[derive(Clone, Debug)]
pub struct ThinkingBudget {
    /// Tokens of reasoning that are left; `None`: as many as it likes.
    left: Option<usize>,
    closing: Vec<u32>,
    /// How many of `closing` have been given; `None` before the first.
    given: Option<usize>,
}

impl ThinkingBudget {
    /// What is put behind reasoning that has to end, in a model's own manner of ending it.
    pub const CLOSING: &'static str = "\n</think>\n\n";

    /// A budget of `limit` tokens, after which `closing` is forced: the tokens of [`ThinkingBudget::CLOSING`].
    #[must_use]
    pub fn new(limit: Option<usize>, closing: Vec<u32>) -> ThinkingBudget {
        ThinkingBudget { left: limit, closing, given: None }
    }

    /// To be asked before each token of an answer. The token that has to come, if it is not free; `open` is
    /// [`ThinkingSplit::is_open`].
    pub fn forced(&mut self, open: bool) -> Option<u32> {
        if let Some(given) = self.given {
            let token = self.closing.get(given).copied();
            self.given = Some(given + 1);
            return token;
        }
        if !open {
            return None;
        }
        match &mut self.left {
            None => None,
            Some(0) => {
                self.given = Some(1);
                self.closing.first().copied()
            }
            Some(left) => {
                *left -= 1;
                None
            }
        }
    }

    /// Whether the budget was used up and the end forced.
    #[must_use]
    pub fn was_forced(&self) -> bool {
        self.given.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(thinking: bool, pieces: &[&str]) -> (String, String, bool, bool) {
        let mut split = ThinkingSplit::new(thinking);
        let (mut reasoning, mut answer) = (String::new(), String::new());
        let mut emit = |channel, text: &str| {
            assert!(!text.is_empty());
            match channel {
                Channel::Reasoning => {
                    assert!(answer.is_empty(), "reasoning behind the answer");
                    reasoning.push_str(text);
                }
                Channel::Answer => answer.push_str(text),
            }
        };
        pieces.iter().for_each(|piece| split.push(piece, &mut emit));
        split.finish(&mut emit);
        (reasoning, answer, split.is_open(), split.is_closed())
    }

    #[test]
    fn every_cut_gives_the_same_reasoning_and_answer() {
        for (thinking, text, reasoning, answer, open) in [
            (true, "\nI think.\n\nSo.\n</think>\n\nHi é</think>\n", "I think.\n\nSo.", "Hi é</think>\n", false),
            (true, "cut off by the limi", "cut off by the limi", "", true),
            (true, "cut inside </thi", "cut inside </thi", "", true),
            (true, "a <b> </ c>\n \n", "a <b> </ c>", "", true),
            (true, "", "", "", true),
            (true, "</think>\n\nat once", "", "at once", false),
            (true, "<think>\ntwice\n</think>x", "twice", "x", false),
            (true, "never closed\n</think>", "never closed", "", false),
            (false, "just an answer", "just an answer", "just an answer", false),
            (false, "\n <think>\nall the same</think>\n\n 1", "all the same", " 1", false),
            (false, "x <think>y</think>", "", "x <think>y</think>", false),
            (false, " lead", "", " lead", false),
            (false, "<thin", "", "<thin", false),
            (false, "<think>open", "open", "", true),
        ] {
            let reasoning = if text == "just an answer" { "" } else { reasoning };
            let places: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
            for &i in &places {
                for &j in places.iter().filter(|&&j| j >= i) {
                    let (r, a, o, _) = split(thinking, &[&text[..i], &text[i..j], &text[j..]]);
                    assert_eq!((r.as_str(), a.as_str(), o), (reasoning, answer, open), "{text:?} {i} {j}");
                }
            }
            let single: Vec<&str> = places.windows(2).map(|w| &text[w[0]..w[1]]).collect();
            let (r, a, ..) = split(thinking, &single);
            assert_eq!((r.as_str(), a.as_str()), (reasoning, answer), "{text:?} by character");
        }
    }

    #[test]
    fn reasoning_comes_while_it_is_thought() {
        let mut split = ThinkingSplit::new(true);
        let mut shown = |text: &str| {
            let mut out = String::new();
            split.push(text, &mut |_, text| out.push_str(text));
            out
        };
        assert_eq!(shown("so"), "so");
        assert_eq!(shown(" far <"), " far");
        assert_eq!(shown("b"), " <b");
        assert_eq!(shown("\n</think>"), "");
        assert_eq!(shown("\n\n"), "");
        assert_eq!(shown("Yes"), "Yes");
        assert_eq!(shown("\n\n"), "\n\n");
        assert!(split.is_closed() && !split.is_open());
    }

    #[test]
    fn a_token_that_closes_and_says_something_is_seen() {
        for (text, token, early) in [
            ("so </think", ">{", true),
            ("so </think", ">\n\n", false),
            ("so </think", ">", false),
            ("so </thin", ">{", false),
            ("so", ">{", false),
            ("</thi", "nk>\n1", true),
            ("a</think>", ">{", false),
        ] {
            let mut split = ThinkingSplit::new(true);
            split.push(text, &mut |_, _| {});
            assert_eq!(split.closes_early(token.as_bytes()), early, "{text} {token}");
        }
    }

    #[test]
    fn the_budget_forces_the_end_once() {
        let run = |limit, closes_at: usize| {
            let mut budget = ThinkingBudget::new(limit, vec![7, 8, 9]);
            let mut open = true;
            let forced: Vec<Option<u32>> = (0..8)
                .map(|at| {
                    let token = budget.forced(open);
                    open &= at < closes_at && token != Some(8);
                    token
                })
                .collect();
            (forced, budget.was_forced())
        };
        let none = None;
        assert_eq!(run(Some(2), 9), (vec![none, none, Some(7), Some(8), Some(9), none, none, none], true));
        assert_eq!(run(Some(0), 9).0[..4], [Some(7), Some(8), Some(9), none]);
        assert_eq!(run(Some(5), 3), (vec![none; 8], false), "it closed by itself");
        assert_eq!(run(None, 99), (vec![none; 8], false));
        assert_eq!(ThinkingBudget::new(Some(0), vec![7]).forced(false), none);
    }
}
