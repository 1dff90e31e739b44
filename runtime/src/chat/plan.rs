//! From a conversation to the tokens of its prompt.

use std::ops::Range;

use super::ask::Ask;
use super::encoding::{Encoding, Shown};
use super::error::ChatError;
use super::guard::Rendered;
use super::message::{Message, Part, Role};
use super::state::Tokens;
use super::template::{IMAGE_PAD, Request, Template, TemplateError};
use super::tokenizer::Tokenizer;
use super::tools::Tools;

/// A prompt that is ready to be read.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) tokens: Tokens,
    /// Places to which a later prompt is likely to go back.
    pub(super) marks: Vec<usize>,
    /// Messages that had to be left out.
    pub(super) dropped: Range<usize>,
}

/// What prompts are made with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Planner<'a> {
    pub(super) template: &'a Template,
    pub(super) tokenizer: &'a Tokenizer,
    pub(super) max_ctx: usize,
}

impl Planner<'_> {
    /// The prompt for an answer to `messages`, whose pictures are `pictures` in order. Where the context is too small and
    /// `ask` allows it, the oldest exchanges are left out.
    pub(super) fn plan(
        &self,
        messages: &[Message],
        pictures: &[Shown],
        ask: &Ask<'_>,
        encoding: &mut Encoding,
    ) -> Result<Plan, ChatError> {
        let Planner { max_ctx, .. } = *self;
        // Told before a long text is spelled out.
        let shown: usize = pictures.iter().map(|picture| picture.tokens).sum();
        if shown >= max_ctx && !ask.overflow.drops() {
            return Err(ChatError::PromptTooLong { prompt: shown, max_ctx });
        }
        let first = messages.iter().take_while(|message| message.role == Role::System).count();
        let mut dropped = first..first;
        loop {
            let kept = [&messages[..first], &messages[dropped.end..]].concat();
            let gone: usize = messages[dropped.clone()].iter().map(Message::images).sum();
            let before: usize = messages[..first].iter().map(Message::images).sum();
            let pictures = [&pictures[..before], &pictures[before + gone..]].concat();
            let (tokens, marks) = self.render(kept, &pictures, ask, encoding)?;
            let prompt = tokens.ids.len();
            // An answer needs room; and where something has to go, a quarter of the context is made free, since all that
            // stays is read again.
            let room = if dropped.is_empty() { ask.max_new.min(max_ctx / 8) } else { max_ctx / 4 };
            let next = next_question(messages, dropped.end).filter(|_| ask.overflow.drops());
            match next {
                Some(next) if prompt + room > max_ctx => dropped.end = next,
                _ if prompt >= max_ctx => return Err(ChatError::PromptTooLong { prompt, max_ctx }),
                _ => return Ok(Plan { tokens, marks, dropped }),
            }
        }
    }

    fn render(
        &self,
        mut messages: Vec<Message>,
        pictures: &[Shown],
        ask: &Ask<'_>,
        encoding: &mut Encoding,
    ) -> Result<(Tokens, Vec<usize>), ChatError> {
        let text = self.text(&messages, ask, true)?;
        encoding.update(text, self.tokenizer)?;
        // Where this prompt will part from the next one: found by rendering what might come next. A template that refuses
        // these has no such places, and reading again from an older one is slower, no more.
        let mut others = Vec::new();
        if let Some(last) = messages.last_mut().filter(|last| last.role == Role::User) {
            let other = if last.all_text().starts_with('1') { "2" } else { "1" };
            let question = std::mem::replace(&mut last.content, vec![Part::Text(other.to_owned())]);
            others.extend(self.text(&messages, ask, true));
            if let Some(last) = messages.last_mut() {
                last.content = question;
            }
        }
        messages.push(Message::assistant(None, "1"));
        messages.push(Message::user("1"));
        others.extend(self.text(&messages, ask, false));
        Ok(encoding.expand(self.tokenizer.id(IMAGE_PAD), pictures, &others)?)
    }

    fn text(&self, messages: &[Message], ask: &Ask<'_>, prompt: bool) -> Result<Rendered, TemplateError> {
        let request = Request {
            messages,
            tools: ask.tools.map_or(&[], Tools::values),
            add_generation_prompt: prompt,
            thinking: ask.thinking.is_on(),
            variables: None,
        };
        if ask.raw {
            self.template.render_raw(&request)
        } else {
            self.template.render(&request, self.tokenizer.control_tokens())
        }
    }
}

/// The first question behind the one at `from`, if there is one: what lies between is an exchange.
fn next_question(messages: &[Message], from: usize) -> Option<usize> {
    let behind = messages.get(from + 1..)?;
    behind.iter().position(|message| message.role == Role::User).map(|at| from + 1 + at)
}
