//! From tokens to what is shown of them.

use std::ops::ControlFlow;

use super::ask::Ask;
use super::error::ChatError;
use super::options::{Event, Outcome, Stop};
use super::stream::TextStream;
use super::tokenizer::Tokenizer;
use crate::model::ModelError;

/// Where events go.
pub(super) type Listener<'a> = dyn FnMut(Event<'_>) -> ControlFlow<()> + 'a;

/// Chooses tokens, and makes text of them.
pub(super) struct Writer<'a> {
    tokenizer: &'a Tokenizer,
    stream: TextStream,
    outcome: &'a mut Outcome,
    event: &'a mut Listener<'a>,
}

impl<'a> Writer<'a> {
    pub(super) fn new(
        tokenizer: &'a Tokenizer,
        _ask: &Ask<'_>,
        outcome: &'a mut Outcome,
        event: &'a mut Listener<'a>,
    ) -> Writer<'a> {
        Writer { tokenizer, stream: TextStream::new(), outcome, event }
    }

    /// The token that comes next.
    pub(super) fn choose(&mut self, logits: &[f32]) -> Result<u32, ChatError> {
        Ok(host_ops::sample::argmax(logits).map(|token| token as u32).ok_or(ModelError::NoNumbers)?)
    }

    /// Takes it; all that it makes certain is told, even if the listener breaks off.
    pub(super) fn take(&mut self, token: u32) -> Option<Stop> {
        self.outcome.tokens.push(token);
        let mut flow = (self.event)(Event::Token(token));
        let text = &mut self.outcome.text;
        let at = text.len();
        self.stream.push(self.tokenizer.bytes(token), text);
        if text.len() > at {
            let told = (self.event)(Event::Text(&text[at..]));
            flow = if told.is_break() { told } else { flow };
        }
        flow.is_break().then_some(Stop::Cancelled)
    }

    /// What still waited for more.
    pub(super) fn finish(&mut self) {
        let text = &mut self.outcome.text;
        let at = text.len();
        self.stream.finish(text);
        if text.len() > at {
            let _ = (self.event)(Event::Text(&text[at..]));
        }
    }
}
