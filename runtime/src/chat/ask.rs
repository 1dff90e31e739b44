//! How an answer is wanted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use super::error::ChatError;
use super::grammar::{Constraint, GrammarError, Grammars, ToolChoice};
use super::sampler::Sampling;
use super::stops::{LoopLimits, StopStream};
use super::tools::Tools;

/// Whether an answer begins with reasoning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Thinking {
    /// It does not.
    #[default]
    Off,
    /// It does, for as long as the model likes.
    On,
    /// It does, for so many tokens at most; then the reasoning is ended for the model.
    Budget(usize),
}

impl Thinking {
    /// Whether there is any.
    #[must_use]
    pub fn is_on(self) -> bool {
        self != Thinking::Off
    }
}

/// What happens when a conversation outgrows the context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    /// The answer is refused, with the numbers.
    #[default]
    Refuse,
    /// The oldest exchanges are left out, from then on. The instructions at the beginning and the last question stay. They
    /// go in blocks of a quarter of the context, so that the turns between read their new tokens only; where the rest begins
    /// depends on the messages alone.
    DropOldest,
}

impl Overflow {
    pub(super) fn drops(self) -> bool {
        self == Overflow::DropOldest
    }
}

/// What an answer is held to, token by token. Reasoning is free.
#[derive(Clone, Debug, Default)]
pub enum Hold<'a> {
    /// Nothing.
    #[default]
    Free,
    /// Calls of the functions in [`Ask::tools`] fit their definitions.
    Calls(ToolChoice),
    /// It is JSON that fits this schema.
    Schema(&'a Value),
    /// It is a JSON object.
    Object,
    /// It is calls of the functions in [`Ask::tools`], which fit their definitions, or else JSON that fits this schema.
    CallsOr(&'a Value),
}

/// Ends an answer from elsewhere: another thread, a signal handler. A copy is the same handle.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// A handle that nobody has used.
    #[must_use]
    pub fn new() -> Cancel {
        Cancel::default()
    }

    /// Ends the answer after the work at hand. One atomic store.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Makes it ready for the next answer.
    pub fn reset(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Whether it was used.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// How an answer is wanted. [`Ask::default`] is greedy, without reasoning, of at most 512 tokens.
#[derive(Clone, Debug)]
pub struct Ask<'a> {
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Whether it begins with reasoning.
    pub thinking: Thinking,
    /// The most tokens of the answer, reasoning included.
    pub max_new: usize,
    /// Strings that end the answer, and are not part of it.
    pub stop: &'a [String],
    /// When an answer that goes round in circles is ended; with a period of 0 it never is.
    pub loop_limits: LoopLimits,
    /// Functions that the model may call.
    pub tools: Option<&'a Tools>,
    /// What it is held to.
    pub hold: Hold<'a>,
    /// What happens when the conversation outgrows the context.
    pub overflow: Overflow,
    /// Control tokens that are written out in messages become those tokens. Only for texts that one wrote oneself.
    pub raw: bool,
    /// A handle that ends it.
    pub cancel: Option<Cancel>,
}

impl Default for Ask<'_> {
    fn default() -> Self {
        Ask {
            sampling: Sampling::default(),
            thinking: Thinking::Off,
            max_new: 512,
            stop: &[],
            loop_limits: LoopLimits::default(),
            tools: None,
            hold: Hold::Free,
            overflow: Overflow::Refuse,
            raw: false,
            cancel: None,
        }
    }
}

impl Ask<'_> {
    /// Refuses what makes no sense for a model of so many tokens, by name.
    ///
    /// # Errors
    /// The first of its values that is out of range.
    pub fn check(&self, vocab: usize) -> Result<(), ChatError> {
        if self.max_new == 0 {
            return Err(ChatError::NothingToSay);
        }
        self.sampling.check(vocab)?;
        StopStream::new(self.stop.to_vec())?;
        Ok(())
    }

    /// What it is held to, if to anything.
    pub(super) fn constraint(&self, grammars: &Grammars) -> Result<Option<Constraint>, GrammarError> {
        let none = Tools::default();
        Ok(match &self.hold {
            Hold::Free => None,
            Hold::Calls(choice) => Some(grammars.tool_calls(self.tools.unwrap_or(&none), choice)?),
            Hold::Schema(schema) => Some(grammars.json_schema(schema)?),
            Hold::Object => Some(grammars.json_object()?),
            Hold::CallsOr(schema) => match self.tools.filter(|tools| !tools.is_empty()) {
                Some(tools) => Some(grammars.calls_or_schema(tools, schema)?),
                None => Some(grammars.json_schema(schema)?),
            },
        })
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(Cancel::is_cancelled)
    }
}
