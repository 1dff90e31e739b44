//! What a turn is asked, and what it says.

use std::time::Duration;

use crate::image::Rgb;

/// How a bundle is loaded.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// The most tokens of prompt and answer together; the key/value cache is sized by it.
    pub max_ctx: usize,
    /// Commands that may be in flight a hardware context, 1 to 4.
    pub commands_in_flight: usize,
    /// Threads of the host math; 0 takes what the machine has.
    pub threads: usize,
    /// How long one command may take before it counts as lost.
    pub deadline: Duration,
    /// Whether the vision tower is loaded where the bundle has one.
    pub vision: bool,
}

impl Default for LoadOptions {
    fn default() -> Self {
        LoadOptions {
            max_ctx: 8192,
            commands_in_flight: 4,
            threads: 0,
            deadline: Duration::from_secs(10),
            vision: true,
        }
    }
}

/// Where loading stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The tokenizer is being read.
    Tokenizer,
    /// Contexts and instruction streams are being made; `done` of `total` streams.
    Kernels {
        /// Streams that are in place.
        done: usize,
        /// Streams of the bundle.
        total: usize,
    },
    /// Weights are being copied; bytes.
    Weights {
        /// Bytes that are in place.
        done: u64,
        /// Bytes in all.
        total: u64,
    },
    /// All is in place.
    Ready,
}

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
    /// A picture has been encoded.
    Image {
        /// Its index in the turn.
        index: usize,
        /// Tokens it takes in the prompt.
        tokens: usize,
    },
    /// Tokens of the prompt that have been read, of all.
    Prompt {
        /// Tokens read.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// More text of the answer; whole characters, never taken back.
    Text(&'a str),
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
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the answer, without the stop token.
    pub tokens: Vec<u32>,
    /// The answer: all [`Event::Text`] in one.
    pub text: String,
    /// Why it ended.
    pub stop: Stop,
    /// Where the time went.
    pub timing: Timing,
}
