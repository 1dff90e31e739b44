//! The prompt of a conversation: the checkpoint's own Jinja template, or the built-in one.

mod builtin;
mod jinja;
mod python;

use std::string::FromUtf8Error;

use serde_json::{Map, Value};

use self::jinja::Jinja;
pub(in crate::chat) use self::python::is_space;
use super::error::ChatError;
use super::guard::{ControlTokens, Rendered, guard};
use super::message::Message;
use crate::bundle::Bundle;

/// The template's name in a bundle.
const FILE: &str = "chat_template.jinja";
/// Before the pad tokens of a picture.
pub(super) const VISION_START: &str = "<|vision_start|>";
/// Stands for one row of a picture's embedding.
pub(super) const IMAGE_PAD: &str = "<|image_pad|>";
/// After the pad tokens of a picture.
pub(super) const VISION_END: &str = "<|vision_end|>";

/// How a conversation becomes a prompt.
#[derive(Debug, Default)]
pub struct Template {
    /// None: the built-in one.
    jinja: Option<Jinja>,
}

/// What is to be rendered.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The conversation.
    pub messages: &'a [Message],
    /// Definitions of the functions that the model may call, as JSON; the order of their fields is kept.
    pub tools: &'a [Value],
    /// Whether the prompt ends where the model shall go on as the assistant.
    pub add_generation_prompt: bool,
    /// Whether the answer begins with reasoning.
    pub thinking: bool,
    /// Further variables for the template, by name. The built-in one has none.
    pub variables: Option<&'a Map<String, Value>>,
}

/// Why there is no prompt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The template does not compile.
    #[error("the chat template is not usable: {what}")]
    Source {
        /// What the compiler said.
        what: String,
    },
    /// Nothing has been said.
    #[error("the conversation has no messages: an answer needs at least one")]
    Empty,
    /// The template refuses the conversation.
    #[error("the chat template refuses this conversation: {what}")]
    Refused {
        /// In the template's words.
        what: String,
    },
    /// The template failed.
    #[error("the chat template failed: {what}; if it is meant for another model, leave --chat-template away")]
    Render {
        /// What went wrong.
        what: String,
    },
    /// Not as many pictures in the prompt as there should be.
    #[error("the prompt has {found} places for pictures, but the conversation has {wanted} pictures")]
    Pictures {
        /// `<|image_pad|>` in the prompt.
        found: usize,
        /// Pictures.
        wanted: usize,
    },
}

/// A value as JSON, in Python's layout.
pub(super) fn json(value: &Value) -> String {
    python::dumps(value, &python::Layout::default())
}

impl<'a> Request<'a> {
    /// The prompt for an answer.
    #[must_use]
    pub fn answer(messages: &'a [Message], thinking: bool) -> Request<'a> {
        Request { messages, tools: &[], add_generation_prompt: true, thinking, variables: None }
    }
}

impl Template {
    /// Qwen3.5's format, without a file.
    #[must_use]
    pub fn builtin() -> Template {
        Template::default()
    }

    /// A `chat_template.jinja`.
    ///
    /// # Errors
    /// A template that does not compile.
    pub fn from_jinja(source: &str) -> Result<Template, TemplateError> {
        Ok(Template { jinja: Some(Jinja::new(source)?) })
    }

    /// The one that a bundle brings along, or else the built-in one.
    ///
    /// # Errors
    /// One that cannot be read or does not compile.
    pub fn of(bundle: &Bundle) -> Result<Template, ChatError> {
        if !bundle.dir().join(FILE).is_file() {
            return Ok(Template::builtin());
        }
        let source = bundle.file(FILE)?;
        let what = |error: FromUtf8Error| TemplateError::Source { what: error.to_string() };
        Ok(Template::from_jinja(&String::from_utf8(source).map_err(what)?)?)
    }

    /// Whether this is the built-in one.
    #[must_use]
    pub fn is_builtin(&self) -> bool {
        self.jinja.is_none()
    }

    /// Renders a conversation so that nothing in its texts is taken for one of `tokens`. Each picture is one
    /// `<|image_pad|>`.
    ///
    /// The text is the one that `apply_chat_template` gives. Where a template looks for control tokens in what a user
    /// said (`<tool_response>` in Qwen3.5's), it does not find them.
    ///
    /// # Errors
    /// Conversations that the template refuses or cannot take.
    pub fn render(&self, request: &Request<'_>, tokens: &ControlTokens) -> Result<Rendered, TemplateError> {
        let marked = guard(request.messages, request.tools, tokens);
        let request = Request { messages: &marked.messages, tools: &marked.tools, ..*request };
        Ok(Rendered::unmark(&self.text(&request)?, marked.mark))
    }

    /// Renders a conversation as `apply_chat_template` does: a control token that is written out in a text becomes
    /// that token.
    ///
    /// # Errors
    /// Conversations that the template refuses or cannot take.
    pub fn render_raw(&self, request: &Request<'_>) -> Result<Rendered, TemplateError> {
        Ok(Rendered::raw(self.text(request)?))
    }

    fn text(&self, request: &Request<'_>) -> Result<String, TemplateError> {
        if request.messages.is_empty() {
            return Err(TemplateError::Empty);
        }
        let Some(jinja) = &self.jinja else { return builtin::render(request) };
        let mut variables = request.variables.cloned().unwrap_or_default();
        variables.insert("messages".into(), request.messages.iter().map(Message::to_json).collect());
        variables.insert("tools".into(), if request.tools.is_empty() { Value::Null } else { request.tools.into() });
        variables.insert("add_generation_prompt".into(), request.add_generation_prompt.into());
        variables.insert("enable_thinking".into(), request.thinking.into());
        jinja.render(&Value::Object(variables))
    }
}

/// The prompt of one user turn. `images` holds the tokens of each picture; pictures come before the text.
///
/// Texts are trimmed as the template's `trim` does it. Control tokens in them are not escaped: a user who types
/// `<|im_end|>` gets the token, as with the reference.
#[must_use]
pub fn prompt(system: Option<&str>, images: &[usize], text: &str, thinking: bool) -> String {
    let mut user = String::new();
    for &tokens in images {
        user.push_str(VISION_START);
        for _ in 0..tokens {
            user.push_str(IMAGE_PAD);
        }
        user.push_str(VISION_END);
    }
    user.push_str(text);
    let mut out = String::with_capacity(user.len() + 128);
    if let Some(system) = system {
        message(&mut out, "system", system);
    }
    message(&mut out, "user", &user);
    out.push_str("<|im_start|>assistant\n<think>\n");
    if !thinking {
        out.push_str("\n</think>\n\n");
    }
    out
}

fn message(out: &mut String, role: &str, text: &str) {
    for part in ["<|im_start|>", role, "\n", text.trim_matches(is_space), "<|im_end|>\n"] {
        out.push_str(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The expected strings are what the checkpoint's Jinja template gives.

    #[test]
    fn thinking_off_closes_the_reasoning() {
        assert_eq!(
            prompt(None, &[], "Hello", false),
            "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
        );
        assert_eq!(
            prompt(None, &[], "Hello", true),
            "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n<think>\n"
        );
    }

    #[test]
    fn a_system_text_comes_first_and_both_are_trimmed() {
        assert_eq!(
            prompt(Some(" Be brief.\n"), &[], "\u{1f}\u{a0} Hi\u{2003}\n", true),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n"
        );
        assert!(
            prompt(Some(""), &[], "", true).starts_with("<|im_start|>system\n<|im_end|>\n<|im_start|>user\n<|im_end|>")
        );
    }

    #[test]
    fn pictures_come_before_the_text_with_nothing_between() {
        assert_eq!(
            prompt(None, &[2, 1], " what? ", true),
            "<|im_start|>user\n<|vision_start|><|image_pad|><|image_pad|><|vision_end|><|vision_start|><|image_pad|>\
             <|vision_end|> what?<|im_end|>\n<|im_start|>assistant\n<think>\n"
        );
    }
}
