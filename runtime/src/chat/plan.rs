//! From a conversation to the tokens of its prompt.

use std::collections::VecDeque;
use std::ops::Range;

use super::ask::Ask;
use super::encoding::{Encoding, Shown};
use super::error::ChatError;
use super::guard::Rendered;
use super::message::{Message, Part, Role};
use super::room::{self, Sizes, Start};
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
    /// Tokens that have been left out since the conversation began.
    pub(super) gone: usize,
}

/// What a conversation remembers of its last prompt.
#[derive(Debug)]
pub(super) struct Memory<'a> {
    pub(super) encoding: &'a mut Encoding,
    pub(super) sizes: &'a mut Sizes,
}

/// What prompts are made with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Planner<'a> {
    pub(super) template: &'a Template,
    pub(super) tokenizer: &'a Tokenizer,
    pub(super) max_ctx: usize,
}

impl Planner<'_> {
    /// The prompt for an answer to `messages`, whose pictures are `pictures` in order; `gone` tokens were left out before
    /// them. Where the context is too small and `ask` allows it, the oldest exchanges are left out.
    pub(super) fn plan(
        &self,
        messages: &[Message],
        pictures: &[Shown],
        gone: usize,
        ask: &Ask<'_>,
        memory: Memory<'_>,
    ) -> Result<Plan, ChatError> {
        let Planner { max_ctx, .. } = *self;
        // Told before a long text is spelled out.
        let shown: usize = pictures.iter().map(|picture| picture.tokens).sum();
        if shown >= max_ctx && !ask.overflow.drops() {
            return Err(ChatError::PromptTooLong { prompt: shown, max_ctx });
        }
        let first = messages.iter().take_while(|message| message.role == Role::System).count();
        let whole = Start { message: first, gone, rest: 0 };
        let mut starts = VecDeque::from([whole]);
        if ask.overflow.drops() {
            let sizes = memory.sizes.of(messages, pictures, self.tokenizer)?;
            starts = room::starts(messages, &sizes, first, gone, max_ctx).into();
        }
        let before: usize = messages[..first].iter().map(Message::images).sum();
        loop {
            let start = starts.pop_front().unwrap_or(whole);
            let last = starts.is_empty();
            // An answer needs room.
            let room = ask.max_new.min(max_ctx / 8);
            if !last && start.rest + room > max_ctx {
                continue;
            }
            let dropped = first..start.message;
            let kept = [&messages[..first], &messages[dropped.end..]].concat();
            let left: usize = messages[dropped.clone()].iter().map(Message::images).sum();
            let pictures = [&pictures[..before], &pictures[before + left..]].concat();
            memory.encoding.update(self.text(&kept, ask, true)?, self.tokenizer)?;
            let prompt = memory.encoding.len(&pictures);
            if !last && prompt + room > max_ctx {
                continue;
            }
            if prompt >= max_ctx {
                return Err(ChatError::PromptTooLong { prompt, max_ctx });
            }
            let others = self.others(kept, ask);
            let (tokens, marks) = memory.encoding.expand(self.tokenizer.id(IMAGE_PAD), &pictures, &others)?;
            return Ok(Plan { tokens, marks, dropped, gone: start.gone });
        }
    }

    /// Prompts that may come after that of `messages`: where it parts from them, it is likely to be gone back to. A
    /// template that refuses these has no such places, and reading again from an older one is slower, no more.
    fn others(&self, mut messages: Vec<Message>, ask: &Ask<'_>) -> Vec<Rendered> {
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
        others
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
