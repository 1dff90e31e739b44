//! What a turn is asked, and what it says.

use std::time::Duration;

use crate::image::Rgb;
use crate::model::Profile;
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
    Token(u32),
    /// More text of the answer; whole characters, never taken back.
    Text(&'a str),
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stop {
    /// The model said so, with this token.
    Token(u32),
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
    /// The answer: all [`Event::Text`] in one.
    pub text: String,
    /// Whether there is an answer at all: not if it was broken off before its first token.
    pub answered: bool,
    /// Why it ended.
    pub stop: Stop,
    /// Where the time went.
    pub timing: Timing,
}

impl Default for Outcome {
    fn default() -> Outcome {
        Outcome {
            prompt_tokens: 0,
            reused_tokens: 0,
            dropped: 0,
            image_tokens: 0,
            tokens: Vec::new(),
            text: String::new(),
            answered: false,
            stop: Stop::Cancelled,
            timing: Timing::default(),
        }
    }
}
