//! What a turn is asked, and what it says.

use std::time::Duration;

use super::message::ToolCall;
use super::stops::Circle;
use super::tools::ToolError;
use crate::image::Rgb;
use crate::model::{Guesses, Profile};
use crate::npu::Counters;

/// One question.
#[derive(Clone, Copy, Debug)]
pub struct Turn<'a> {
    /// The system text, if any.
    pub system: Option<&'a str>,
    /// Pictures; they come before the text.
    pub images: &'a [Rgb],
    /// What the user says.
    pub text: &'a str,
    /// Whether the answer begins with reasoning.
    pub thinking: bool,
    /// The most tokens of the answer.
    pub max_new: usize,
}

/// What happens during a turn.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The conversation outgrew the context, and its oldest messages are left out.
    Dropped {
        /// How many.
        messages: usize,
    },
    /// The vision tower is being loaded, for the first picture; bytes.
    Tower {
        /// Bytes that are in place.
        done: u64,
        /// Bytes in all.
        total: u64,
    },
    /// A picture is being encoded. One that the conversation has had before is not encoded again.
    Patches {
        /// Its index among the pictures that are new.
        index: usize,
        /// Steps of the work that have been taken.
        done: usize,
        /// Steps there are.
        total: usize,
    },
    /// A picture has been encoded.
    Image {
        /// Its index among the pictures that are new.
        index: usize,
        /// Tokens it takes in the prompt.
        tokens: usize,
    },
    /// How many tokens of the prompt the work done so far amounts to.
    Prompt {
        /// Tokens, those included that the model held already.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// A token of the answer; what it makes certain follows.
    Token {
        /// The token.
        token: u32,
        /// Its log probability, if [`Sampling::logprobs`](super::Sampling::logprobs) asks for it and it was not forced.
        logprob: Option<f32>,
        /// The most probable tokens in its place, with theirs.
        top: &'a [(u32, f32)],
    },
    /// More of what the model thinks before it answers.
    Reasoning(&'a str),
    /// A call of a function. What stands between its tags is no text of the answer.
    Call(&'a ToolCall),
    /// Something that was meant to be a call of a function, and is none.
    Refused {
        /// What was written between the tags.
        text: &'a str,
        /// Why it is none; fit to be told to the model.
        error: &'a ToolError,
    },
    /// More text of the answer; whole characters, never taken back.
    Text(&'a str),
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stop {
    /// The model said so, with this token.
    Token(u32),
    /// This stop string came up, by its index.
    String(usize),
    /// It went round in circles.
    Circle(Circle),
    /// `max_new` tokens were written.
    Budget,
    /// The context is full.
    Context,
    /// The caller broke off.
    Cancelled,
}

/// Where the time of a turn went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timing {
    /// Resizing pictures and the vision tower.
    pub vision: Duration,
    /// Reading the prompt, to the first logits.
    pub prefill: Duration,
    /// All decode steps.
    pub decode: Duration,
    /// Decode steps that were taken.
    pub steps: usize,
    /// What came of guesses; all nothing where none were made.
    pub guesses: Guesses,
    /// All of it by part of the host's work; waits for the NPU are one part.
    pub profile: Profile,
    /// What was asked of the device.
    pub counters: Counters,
}

/// An answer.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Outcome {
    /// Tokens of the prompt: all of the conversation.
    pub prompt_tokens: usize,
    /// Those of them that the model held already.
    pub reused_tokens: usize,
    /// Messages that were left out, since the conversation outgrew the context.
    pub dropped: usize,
    /// Those of them that stand for pictures.
    pub image_tokens: usize,
    /// Tokens of the answer, without the stop token.
    pub tokens: Vec<u32>,
    /// What was thought before: all [`Event::Reasoning`] in one.
    pub reasoning: String,
    /// The answer: all [`Event::Text`] in one.
    pub text: String,
    /// Functions that were called.
    pub calls: Vec<ToolCall>,
    /// What was meant to be calls and is none: what was written, and why.
    pub refused: Vec<(String, ToolError)>,
    /// Log probabilities of `tokens`, if they were asked for.
    pub logprobs: Vec<TokenLogprob>,
    /// Whether there is an answer at all: not if it was broken off before its first token.
    pub answered: bool,
    /// Why it ended.
    pub stop: Stop,
    /// Where the time went.
    pub timing: Timing,
}

/// A token with its log probability.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub token: u32,
    /// Its log probability in the model's own distribution; none if the token was forced.
    pub logprob: Option<f32>,
    /// The most probable tokens in its place, with theirs.
    pub top: Vec<(u32, f32)>,
}

impl Outcome {
    /// Why it ended, in the words of the common interfaces: `stop`, `length`, `tool_calls` or `cancelled`.
    #[must_use]
    pub fn finish_reason(&self) -> &'static str {
        match self.stop {
            Stop::Token(_) if !self.calls.is_empty() => "tool_calls",
            Stop::Token(_) | Stop::String(_) => "stop",
            Stop::Budget | Stop::Context | Stop::Circle(_) => "length",
            Stop::Cancelled => "cancelled",
        }
    }
}

impl Default for Outcome {
    fn default() -> Outcome {
        Outcome {
            prompt_tokens: 0,
            reused_tokens: 0,
            dropped: 0,
            image_tokens: 0,
            tokens: Vec::new(),
            reasoning: String::new(),
            text: String::new(),
            calls: Vec::new(),
            refused: Vec::new(),
            logprobs: Vec::new(),
            answered: false,
            stop: Stop::Cancelled,
            timing: Timing::default(),
        }
    }
}
