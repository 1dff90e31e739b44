//! What the worker is given to do, and what it says meanwhile.

use super::error::ApiError;
use runtime::chat::{Cancel, Said, Sampling, Thinking, ToolCall, ToolChoice, Tools};
use serde_json::Value;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedSender;

/// A request that is to be answered.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) wanted: Wanted,
    /// When it came.
    pub(super) since: Instant,
    /// When it is too late.
    pub(super) deadline: Instant,
    /// Used when the client has gone.
    pub(super) cancel: Cancel,
    /// Where the answer goes. It holds no more than one answer, whose length is bounded.
    pub(super) to: UnboundedSender<Piece>,
}

/// What is to go on.
#[derive(Debug)]
pub(super) enum Subject {
    /// A conversation.
    Chat(Vec<Said>),
    /// A text as it is, control tokens and all.
    Raw(String),
}

/// What an answer is held to.
#[derive(Debug)]
pub(super) enum Held {
    Free,
    Calls(ToolChoice),
    Schema(Value),
    Object,
    /// Calls, or else what fits the schema.
    CallsOr(Value),
}

/// An answer as it is wanted.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) subject: Subject,
    pub(super) sampling: Sampling,
    pub(super) thinking: Thinking,
    /// None: what the context holds.
    pub(super) max_new: Option<usize>,
    pub(super) stop: Vec<String>,
    pub(super) tools: Option<Tools>,
    pub(super) hold: Held,
    /// The answer ends with its first call.
    pub(super) one_call: bool,
}

impl Wanted {
    /// Pixels of its pictures.
    pub(super) fn pixels(&self) -> usize {
        let Subject::Chat(said) = &self.subject else { return 0 };
        let pictures = said.iter().flat_map(|said| &said.pictures);
        pictures.map(|picture| picture.rgb().width * picture.rgb().height).sum()
    }
}

/// A part of an answer.
#[derive(Debug)]
pub(super) enum Piece {
    /// It is being worked on: what could be wrong with the request is not.
    Started,
    /// A token; the text that it makes certain follows.
    Token(Box<Shown>),
    Reasoning(String),
    Text(String),
    Call(ToolCall),
    /// The end.
    Done(Box<Ended>),
    /// The end, too.
    Failed(ApiError),
}

/// A token with its log probability.
#[derive(Debug, Clone)]
pub(super) struct Shown {
    pub(super) bytes: Vec<u8>,
    pub(super) logprob: Option<f32>,
    pub(super) top: Vec<(Vec<u8>, f32)>,
}

/// What is known at the end of an answer.
#[derive(Debug, Clone)]
pub(super) struct Ended {
    /// `stop`, `length` or `tool_calls`.
    pub(super) reason: &'static str,
    pub(super) prompt_tokens: usize,
    pub(super) reused_tokens: usize,
    pub(super) image_tokens: usize,
    pub(super) tokens: usize,
    pub(super) reasoning_tokens: usize,
    /// Waiting in the queue.
    pub(super) queue: Duration,
    pub(super) vision: Duration,
    pub(super) prefill: Duration,
    /// From the request to its first token.
    pub(super) first: Duration,
    pub(super) decode: Duration,
    /// Steps in `decode`.
    pub(super) steps: usize,
    /// Waiting for the NPU.
    pub(super) npu_wait: Duration,
    pub(super) commands: u64,
}
