//! Text and pictures in, text out: the template, the tokenizer, greedy generation and the stream of its text.

mod error;
mod options;

use std::ops::ControlFlow;

pub use error::ChatError;
pub use options::{Event, LoadOptions, Outcome, Progress, Stop, Timing, Turn};

use crate::bundle::Bundle;
use crate::npu::{Counters, Npu};

/// A loaded bundle, ready for turns.
#[derive(Debug)]
pub struct Chat {
    _npu: Npu,
}

impl Chat {
    /// Loads a bundle onto an NPU: contexts, streams, weights and buffers, in the order that is known to work.
    ///
    /// # Errors
    /// What the bundle, the device or the tokenizer refused, each by name.
    pub fn load(
        bundle: Bundle,
        npu: Npu,
        options: LoadOptions,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Chat, ChatError> {
        let _ = (bundle, npu, options, progress);
        todo!("load")
    }

    /// Answers one turn from an empty state. Every piece of finished text goes to `event` as soon as it is certain;
    /// breaking from `event` ends the turn after the token at hand, with [`Stop::Cancelled`].
    ///
    /// # Errors
    /// A prompt longer than the context, images that the bundle cannot take, and failures of the device.
    pub fn turn(
        &mut self,
        turn: &Turn<'_>,
        event: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<Outcome, ChatError> {
        let _ = (turn, event);
        todo!("turn")
    }

    /// Whether the bundle has a vision tower.
    #[must_use]
    pub fn sees(&self) -> bool {
        todo!("sees")
    }

    /// The most tokens that a prompt and its answer may have together.
    #[must_use]
    pub fn max_ctx(&self) -> usize {
        todo!("max_ctx")
    }

    /// What has been asked of the device since it was opened.
    #[must_use]
    pub fn counters(&self) -> Counters {
        todo!("counters")
    }
}
