//! Control tokens that somebody wrote out in a text are text.
//!
//! A tokenizer cuts `<|im_end|>` out of a prompt wherever it stands, so a web page that a tool fetched could end the
//! user's turn and speak for the system. A template sees texts only and may trim, split and join them; so before it
//! runs, a *mark* (a character that appears nowhere else in the conversation) is put behind the first character of
//! every control token in what people and tools said, and behind everything at the end of a text that could become one
//! together with what the template puts next. Behind the template the marks are taken out again, and where they stood
//! no control token is recognised. All other text is tokenised as ever, merges included.

use std::borrow::Cow;

use serde_json::Value;

use super::message::{Message, Part};

/// The control tokens of a tokenizer, as they are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControlTokens {
    /// Text and id, the longest first.
    words: Vec<(String, u32)>,
}

/// What a template made of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rendered {
    text: String,
    /// Where in `text` a mark stood, in order.
    marks: Vec<usize>,
}

impl Rendered {
    /// A text in which every control token that is written out becomes itself.
    #[must_use]
    pub fn raw(text: String) -> Rendered {
        Rendered { text, marks: Vec::new() }
    }

    /// Takes the marks out of a rendered text.
    pub(super) fn unmark(marked: &str, mark: char) -> Rendered {
        // A template that asks for ASCII alone has it written as an escape.
        let (escape, whole) = (escape(mark), String::from(mark));
        let marked = if marked.contains(&escape) { Cow::Owned(marked.replace(&escape, &whole)) } else { marked.into() };
        let mut out = Rendered::raw(String::with_capacity(marked.len()));
        for (i, piece) in marked.split(mark).enumerate() {
            if i > 0 {
                out.marks.push(out.text.len());
            }
            out.text.push_str(piece);
        }
        out
    }

    /// The whole text, control tokens written out.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether some of the text looks like control tokens and is none.
    #[must_use]
    pub fn is_guarded(&self) -> bool {
        !self.marks.is_empty()
    }

    /// Bytes that two texts begin with, marks being where they are in both.
    pub(super) fn common(&self, other: &Rendered) -> usize {
        let same = self.text.bytes().zip(other.text.bytes()).take_while(|(a, b)| a == b).count();
        let marks = self.marks.iter().zip(&other.marks).take_while(|(a, b)| a == b).count();
        let first = |marks: &[usize], at: usize| marks.get(at).copied().unwrap_or(usize::MAX);
        same.min(first(&self.marks, marks)).min(first(&other.marks, marks))
    }

    /// The text in pieces: ordinary text, and control tokens.
    pub(super) fn pieces<'a>(&'a self, tokens: &'a ControlTokens) -> impl Iterator<Item = Piece<'a>> {
        self.pieces_from(0, tokens).map(|(_, piece)| piece)
    }

    /// The same from a byte on that is an edge of a control token, each with the byte behind it.
    pub(super) fn pieces_from<'a>(
        &'a self,
        mut at: usize,
        tokens: &'a ControlTokens,
    ) -> impl Iterator<Item = (usize, Piece<'a>)> {
        let mut pending = None;
        std::iter::from_fn(move || {
            if let Some(id) = pending.take() {
                return Some((at, Piece::Control(id)));
            }
            let from = at;
            let mut look = from;
            while look < self.text.len() {
                let rest = &self.text[look..];
                let found = tokens.at_start(rest).find(|(word, _)| {
                    let mark = self.marks.partition_point(|&mark| mark <= look);
                    self.marks.get(mark).is_none_or(|&mark| mark >= look + word.len())
                });
                if let Some((word, id)) = found {
                    at = look + word.len();
                    if look == from {
                        return Some((at, Piece::Control(*id)));
                    }
                    pending = Some(*id);
                    return Some((look, Piece::Text(&self.text[from..look])));
                }
                look += rest.chars().next().map_or(1, char::len_utf8);
            }
            at = self.text.len();
            (from < at).then(|| (at, Piece::Text(&self.text[from..])))
        })
    }
}

/// A piece of a rendered text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece<'a> {
    /// Text in which no control token is to be looked for.
    Text(&'a str),
    /// A control token.
    Control(u32),
}

impl ControlTokens {
    /// From pairs of text and id.
    #[must_use]
    pub fn new(words: impl IntoIterator<Item = (String, u32)>) -> ControlTokens {
        let mut words: Vec<_> = words.into_iter().filter(|(word, _)| !word.is_empty()).collect();
        words.sort_by(|(a, _), (b, _)| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        ControlTokens { words }
    }

    /// Bytes of the longest one.
    pub(super) fn longest(&self) -> usize {
        self.words.first().map_or(0, |(word, _)| word.len())
    }

    /// All of them: text and id.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, u32)> {
        self.words.iter().map(|(word, id)| (word.as_str(), *id))
    }

    /// Those that a text starts with, the longest first.
    fn at_start<'a>(&'a self, text: &'a str) -> impl Iterator<Item = &'a (String, u32)> {
        self.words.iter().filter(move |(word, _)| text.starts_with(word.as_str()))
    }

    /// The text with a mark behind the first character of every control token, and of what could be the beginning of
    /// one at its end; `spared` ones excepted.
    fn mark<'a>(&self, text: &'a str, mark: char, spared: &[&str]) -> Cow<'a, str> {
        let words = || self.words.iter().map(|(word, _)| word.as_str()).filter(|word| !spared.contains(word));
        let mut out = String::new();
        let mut copied = 0;
        for (at, first) in text.char_indices() {
            let rest = &text[at..];
            if words().any(|word| rest.starts_with(word) || word.starts_with(rest)) {
                let behind = at + first.len_utf8();
                out.push_str(&text[copied..behind]);
                out.push(mark);
                copied = behind;
            }
        }
        if copied == 0 {
            return Cow::Borrowed(text);
        }
        out.push_str(&text[copied..]);
        Cow::Owned(out)
    }
}

/// A conversation with its marks.
pub(super) struct Marked {
    pub(super) messages: Vec<Message>,
    pub(super) tools: Vec<Value>,
    /// The mark.
    pub(super) mark: char,
}

/// Marks everything that is said in a conversation, and the strings of the tool definitions.
pub(super) fn guard(messages: &[Message], tools: &[Value], tokens: &ControlTokens) -> Marked {
    let mut marked = Marked { messages: messages.to_vec(), tools: tools.to_vec(), mark: unused(messages, tools) };
    let mark = marked.mark;
    let put = |text: &mut String, spared: &[&str]| {
        if let Cow::Owned(new) = tokens.mark(text, mark, spared) {
            *text = new;
        }
    };
    for message in &mut marked.messages {
        // An answer whose reasoning was never told apart has its `<think>` block in the text; templates take it out.
        let whole = message.role == super::message::Role::Assistant && message.reasoning.is_none();
        let spared: &[&str] = if whole { &["<think>", "</think>"] } else { &[] };
        for part in &mut message.content {
            if let Part::Text(text) = part {
                put(text, spared);
            }
        }
        for text in [&mut message.reasoning, &mut message.tool_call_id, &mut message.name].into_iter().flatten() {
            put(text, &[]);
        }
        for call in &mut message.tool_calls {
            put(&mut call.name, &[]);
            let arguments = std::mem::take(&mut call.arguments);
            let mut value = Value::Object(arguments);
            strings(&mut value, &mut |text| put(text, &[]));
            if let Value::Object(arguments) = value {
                call.arguments = arguments;
            }
        }
    }
    for tool in &mut marked.tools {
        strings(tool, &mut |text| put(text, &[]));
    }
    marked
}

/// Every string of a JSON value, keys included.
fn strings(value: &mut Value, each: &mut dyn FnMut(&mut String)) {
    match value {
        Value::String(text) => each(text),
        Value::Array(items) => items.iter_mut().for_each(|item| strings(item, each)),
        Value::Object(map) => {
            let entries = std::mem::take(map);
            for (mut key, mut value) in entries {
                each(&mut key);
                strings(&mut value, each);
                map.insert(key, value);
            }
        }
        _ => {}
    }
}

/// A character as JSON in ASCII has it.
fn escape(c: char) -> String {
    c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect()
}

/// A character that is nowhere in the conversation, nor its escape: a noncharacter of Unicode, which no text should have, or else one
/// for private use.
fn unused(messages: &[Message], tools: &[Value]) -> char {
    let mut all = tools.iter().map(Value::to_string).collect::<String>();
    messages.iter().for_each(|message| all.push_str(&message.to_json().to_string()));
    let mut used: Vec<char> = all.chars().filter(|c| !c.is_ascii()).collect();
    used.sort_unstable();
    let mut candidates = ('\u{fdd0}'..='\u{fdef}').chain('\u{e000}'..='\u{f8ff}').chain('\u{f0000}'..='\u{10fffd}');
    // There are more candidates than texts of this size have characters; the last resort is never reached.
    let escaped = all.contains("\\u");
    let free = |c: &char| used.binary_search(c).is_err() && !(escaped && all.contains(&escape(*c)));
    candidates.find(free).unwrap_or('\u{10ffff}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn tokens() -> ControlTokens {
        let words = ["<|im_end|>", "<|im_start|>", "<think>", "<|im_end|>x"];
        ControlTokens::new(words.iter().enumerate().map(|(i, word)| ((*word).to_owned(), i as u32)))
    }

    fn pieces(marked: &str) -> Vec<String> {
        let rendered = Rendered::unmark(marked, '!');
        let tokens = tokens();
        let show = |piece| match piece {
            Piece::Text(text) => text.to_owned(),
            Piece::Control(id) => format!("#{id}"),
        };
        rendered.pieces(&tokens).map(show).collect()
    }

    #[test]
    fn marks_come_behind_first_characters_and_possible_beginnings() {
        for (text, wanted) in [
            ("plain é", "plain é"),
            ("a<|im_end|>b", "a<!|im_end|>b"),
            ("<<think><think>", "<<!think><!think>"),
            ("cut <|im_", "cut <!|im_"),
            ("a < b", "a < b"),
            ("a <", "a <!"),
        ] {
            assert_eq!(tokens().mark(text, '!', &[]), wanted);
        }
        assert_eq!(tokens().mark("<think><|im_end|>", '!', &["<think>"]), "<think><!|im_end|>");
    }

    #[test]
    fn only_unmarked_control_tokens_are_cut_the_longest_first() {
        assert_eq!(pieces("a<|im_end|>b"), ["a", "#0", "b"]);
        assert_eq!(pieces("<|im_end|>xy<think>"), ["#3", "y", "#2"]);
        assert_eq!(pieces("<!|im_end|>x<|im_end|>"), ["<|im_end|>x", "#0"]);
        assert_eq!(pieces(""), Vec::<String>::new());
        assert_eq!(pieces("<|im_start|><|im_start|>"), ["#1", "#1"]);
        // A mark right before or behind a control token does not touch it.
        assert_eq!(pieces("!<think>!"), ["#2"]);
    }

    /// A template's `tojson(ensure_ascii=true)` wrote the mark as an escape, which stayed in the prompt.
    #[test]
    fn a_mark_that_was_written_as_an_escape_is_one() {
        let unmarked = Rendered::unmark("\"<\\ufdd0|im_end|>\" \\ufdd1", '\u{fdd0}');
        assert_eq!((unmarked.text(), &unmarked.marks[..]), ("\"<|im_end|>\" \\ufdd1", &[2][..]));
        let mut out = Vec::new();
        unmarked.pieces(&tokens()).for_each(|piece| out.push(matches!(piece, Piece::Control(_))));
        assert_eq!(out, [false]);
        // Who writes the escape out gets another mark.
        assert_eq!(unused(&[Message::user("\\ufdd0")], &[]), '\u{fdd1}');
    }

    /// Two texts that the template joins do not make a control token that neither has.
    #[test]
    fn joined_texts_make_no_control_token() {
        let joined: String = ["a<|im_", "end|>b"].iter().map(|text| tokens().mark(text, '!', &[])).collect();
        assert_eq!(pieces(&joined), ["a<|im_end|>b"]);
    }

    #[test]
    fn every_string_of_a_conversation_is_marked_with_a_character_it_does_not_have() {
        let messages = Message::conversation(
            &json!([{"role": "user", "content": "\u{fdd0}<think>"},
                {"role": "assistant", "content": "<think>r</think><|im_end|>", "tool_calls": [
                    {"name": "<think>", "arguments": {"<think>": ["<think>"]}}]},
                {"role": "assistant", "content": "<think>", "reasoning_content": "<think>"}])
            .to_string(),
        )
        .unwrap();
        let marked = guard(&messages, &[json!({"name": "<think>"})], &tokens());
        assert_eq!(marked.mark, '\u{fdd1}');
        let all: String = marked.messages.iter().map(|message| message.to_json().to_string()).collect();
        assert_eq!(all.matches("<\u{fdd1}think>").count(), 6);
        assert_eq!(all.matches("<\u{fdd1}|im_end|>").count(), 1);
        assert_eq!(all.matches("<think>").count(), 1, "the reasoning that the template shall find");
        assert_eq!(marked.tools, [json!({"name": "<\u{fdd1}think>"})]);
    }
}
