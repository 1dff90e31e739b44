//! From logits to tokens, and from tokens to what is shown of them.

use std::ops::ControlFlow;

use super::ask::{Ask, Hold, Thinking};
use super::error::ChatError;
use super::grammar::{Constraint, GrammarError};
use super::options::{Event, Outcome, Stop, TokenLogprob};
use super::sampler::{Sampler, TokenSet};
use super::stops::{LoopGuard, StopStream};
use super::stream::TextStream;
use super::thinking::{Channel, ThinkingBudget, ThinkingSplit};
use super::tokenizer::Tokenizer;
use super::tools::{ToolEvent, ToolParser};

/// Where events go.
pub(super) type Listener<'a> = dyn FnMut(Event<'_>) -> ControlFlow<()> + 'a;

/// Chooses tokens, and makes text of them.
///
/// ```text
/// logits -> (forced | sampler) -> token -> bytes -> whole characters -> reasoning
///                                                                    -> answer -> up to a stop string -> text, calls
/// ```
pub(super) struct Writer<'a> {
    tokenizer: &'a Tokenizer,
    sampler: &'a mut Sampler,
    budget: ThinkingBudget,
    hold: Option<Held>,
    guard: LoopGuard,
    stream: TextStream,
    split: ThinkingSplit,
    /// Log probability of the token that was chosen last, and the most probable ones; not of one that was forced.
    logprob: Option<f32>,
    top: Vec<(u32, f32)>,
    fresh: String,
    page: Page<'a>,
}

/// What an answer is held to.
struct Held {
    constraint: Constraint,
    allowed: TokenSet,
    /// A token that it did not allow, which must have been forced.
    failed: Option<GrammarError>,
}

/// Where text is put.
struct Page<'a> {
    outcome: &'a mut Outcome,
    event: &'a mut Listener<'a>,
    stops: StopStream,
    tools: Option<ToolParser<'a>>,
    /// Calls that the conversation has had.
    calls: usize,
    certain: String,
    /// Why the answer ends here.
    end: Option<Stop>,
}

impl Page<'_> {
    fn tell(&mut self, event: Event<'_>) {
        if (self.event)(event).is_break() {
            self.end.get_or_insert(Stop::Cancelled);
        }
    }

    fn put(&mut self, channel: Channel, text: &str) {
        match channel {
            Channel::Reasoning => {
                self.outcome.reasoning.push_str(text);
                self.tell(Event::Reasoning(text));
            }
            Channel::Answer => {
                let mut certain = std::mem::take(&mut self.certain);
                let stop = self.stops.push(text, &mut certain);
                self.answer(&certain);
                certain.clear();
                self.certain = certain;
                // It is over here, whatever the listener says.
                self.end = stop.map(Stop::String).or(self.end);
            }
        }
    }

    fn answer(&mut self, text: &str) {
        match self.tools.take() {
            None => self.text(text),
            Some(mut parser) => {
                parser.push(text, &mut |event| self.tool(event));
                self.tools = Some(parser);
            }
        }
    }

    fn tool(&mut self, event: ToolEvent) {
        match event {
            ToolEvent::Text(text) => self.text(&text),
            ToolEvent::Call(mut call) => {
                self.calls += 1;
                call.id = Some(format!("call_{}", self.calls));
                self.tell(Event::Call(&call));
                self.outcome.calls.push(call);
            }
            ToolEvent::Refused { text, error } => {
                self.tell(Event::Refused { text: &text, error: &error });
                self.outcome.refused.push((text, error));
            }
        }
    }

    fn text(&mut self, text: &str) {
        if !text.is_empty() {
            self.outcome.text.push_str(text);
            self.tell(Event::Text(text));
        }
    }
}

impl<'a> Writer<'a> {
    pub(super) fn new(
        tokenizer: &'a Tokenizer,
        sampler: &'a mut Sampler,
        ask: &Ask<'a>,
        calls: usize,
        constraint: Option<Constraint>,
        outcome: &'a mut Outcome,
        event: &'a mut Listener<'a>,
    ) -> Result<Writer<'a>, ChatError> {
        let limit = match ask.thinking {
            Thinking::Budget(tokens) => Some(tokens),
            Thinking::Off | Thinking::On => None,
        };
        let closing = if limit.is_some() { tokenizer.encode(ThinkingBudget::CLOSING)? } else { Vec::new() };
        let vocab = sampler.vocab();
        let stops = StopStream::new(ask.stop.to_vec())?;
        Ok(Writer {
            tokenizer,
            sampler,
            budget: ThinkingBudget::new(limit, closing),
            hold: constraint.map(|constraint| Held { constraint, allowed: TokenSet::new(vocab), failed: None }),
            guard: LoopGuard::new(ask.loop_limits),
            stream: TextStream::new(),
            split: ThinkingSplit::new(ask.thinking.is_on()),
            logprob: None,
            top: Vec::new(),
            fresh: String::new(),
            page: Page {
                outcome,
                event,
                stops,
                // Where there can be no call, nothing is one.
                tools: ask
                    .tools
                    .filter(|tools| !tools.is_empty() && !matches!(ask.hold, Hold::Schema(_) | Hold::Object))
                    .map(ToolParser::new),
                calls,
                certain: String::new(),
                end: None,
            },
        })
    }

    /// The token that comes next.
    pub(super) fn choose(&mut self, logits: &[f32]) -> Result<u32, ChatError> {
        self.top.clear();
        if let Some(forced) = self.budget.forced(self.split.is_open()) {
            self.logprob = None;
            return Ok(forced);
        }
        let mut allowed = None;
        if let Some(hold) = &mut self.hold {
            if !self.split.is_open() {
                if let Some(error) = hold.failed.take() {
                    return Err(error.into());
                }
                allowed = hold.constraint.mask(&mut hold.allowed)?.then_some(&hold.allowed);
            } else if !self.split.pending().is_empty() {
                // A token that ends the reasoning and begins the answer would not be held to anything.
                hold.allowed.fill();
                for token in 0..self.tokenizer.vocab() as u32 {
                    if self.split.closes_early(self.tokenizer.bytes(token)) {
                        hold.allowed.remove(token);
                    }
                }
                allowed = Some(&hold.allowed);
            }
        }
        let chosen = self.sampler.choose(logits, allowed)?;
        self.logprob = chosen.logprob;
        self.top.extend_from_slice(chosen.top);
        Ok(chosen.token)
    }

    /// Takes it; all that it makes certain is told, even if the listener breaks off. Gives why the answer ends here, if it
    /// does.
    pub(super) fn take(&mut self, token: u32) -> Option<Stop> {
        self.sampler.accept(token);
        if let Some(hold) = self.hold.as_mut().filter(|_| !self.split.is_open()) {
            hold.failed = hold.constraint.accept(token).err();
        }
        let Writer { page, top, logprob, fresh, .. } = self;
        page.outcome.tokens.push(token);
        if self.sampler.sampling().logprobs.is_some() {
            page.outcome.logprobs.push(TokenLogprob { token, logprob: *logprob, top: top.clone() });
        }
        page.tell(Event::Token { token, logprob: *logprob, top });
        fresh.clear();
        self.stream.push(self.tokenizer.bytes(token), fresh);
        self.split.push(fresh, &mut |channel, text| page.put(channel, text));
        let circle = self.guard.push(token).map(Stop::Circle);
        page.end.or(circle)
    }

    /// What still waited for more. Gives the stop string that it made whole, if it did.
    pub(super) fn finish(self) -> Option<Stop> {
        let Writer { mut stream, mut split, mut fresh, mut page, .. } = self;
        fresh.clear();
        stream.finish(&mut fresh);
        split.push(&fresh, &mut |channel, text| page.put(channel, text));
        split.finish(&mut |channel, text| page.put(channel, text));
        let mut certain = std::mem::take(&mut page.certain);
        page.stops.finish(&mut certain);
        page.answer(&certain);
        if let Some(mut parser) = page.tools.take() {
            parser.finish(&mut |event| page.tool(event));
        }
        page.end.filter(|end| matches!(end, Stop::String(_)))
    }
}

#[cfg(test)]
#[path = "writer_tests.rs"]
mod tests;
