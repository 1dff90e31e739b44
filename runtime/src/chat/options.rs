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
pub enum Event<'a> {
    /// A picture is being encoded.
    Patches {
        /// Its index in the turn.
        index: usize,
        /// Steps of the work that have been taken.
        done: usize,
        /// Steps there are.
        total: usize,
    },
    /// A picture has been encoded.
    Image {
        /// Its index in the turn.
        index: usize,
        /// Tokens it takes in the prompt.
        tokens: usize,
    },
    /// How many tokens of the prompt the work done so far amounts to.
    Prompt {
        /// Tokens.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// More text of the answer; whole characters, never taken back.
    Text(&'a str),
    /// A token of the answer that gives no text, or none yet.
    Silent(u32),
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
pub struct Outcome {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Those of them that stand for pictures.
    pub image_tokens: usize,
    /// Tokens of the answer, without the stop token.
    pub tokens: Vec<u32>,
    /// The answer: all [`Event::Text`] in one.
    pub text: String,
    /// Why it ended.
    pub stop: Stop,
    /// Where the time went.
    pub timing: Timing,
}
