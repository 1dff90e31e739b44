//! What the automaton cannot be asked for: that numbers have an end, and that no string is taken for a tag of the format.
//! One of a call could end its value, one of an answer begin a call.
//!
//! Digits of a fraction or of an exponent may go on for ever by every schema, and a model that is held to something
//! unfamiliar likes to. So the text is followed, and where a number is long enough, it has to end; its exponent is one that
//! every reader can hold.

use std::collections::BTreeSet;

/// Bytes of a number: more digits than any reader of JSON keeps.
const NUMBER: usize = 40;
/// Digits of an exponent. With those of the number it stays below 1.8e308.
const EXPONENT: usize = 2;

/// Tags that a string must not have in it: of a call, and of an answer that may be one instead.
const CLOSE: &[u8] = b"</parameter>";
const OPEN: &[u8] = b"<tool_call>";

/// Functions and their parameters that may be JSON.
pub(super) type Parameters = BTreeSet<(String, String)>;

/// Where in a text of JSON one is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Json {
    #[default]
    Between,
    /// Bytes of the tag that the string's end may be the beginning of.
    String { escaped: bool, tag: usize },
    Number {
        bytes: usize,
        /// Digits of the exponent, from its letter on.
        exponent: Option<usize>,
    },
}

impl Json {
    fn push(self, byte: u8, end: &[u8]) -> Json {
        match (self, byte) {
            (Json::String { escaped: true, .. }, _) => Json::String { escaped: false, tag: 0 },
            (Json::String { .. }, b'\\') => Json::String { escaped: true, tag: 0 },
            (Json::String { .. }, b'"') => Json::Between,
            (Json::String { tag, .. }, _) => Json::String { escaped: false, tag: follow(end, tag, byte) },
            (Json::Number { bytes, .. }, b'e' | b'E') => Json::Number { bytes: bytes + 1, exponent: Some(0) },
            (Json::Number { bytes, exponent }, b'0'..=b'9') => {
                Json::Number { bytes: bytes + 1, exponent: exponent.map(|digits| digits + 1) }
            }
            (Json::Number { bytes, exponent }, b'-' | b'+' | b'.') => Json::Number { bytes: bytes + 1, exponent },
            (_, b'-' | b'0'..=b'9') => Json::Number { bytes: 1, exponent: None },
            (_, b'"') => Json::String { escaped: false, tag: 0 },
            _ => Json::Between,
        }
    }

    /// Whether a number is longer than it may be, or a string has the tag in it that ends the value.
    fn is_too_long(self, end: &[u8]) -> bool {
        match self {
            Json::Between => false,
            Json::String { tag, .. } => tag > 0 && tag == end.len(),
            Json::Number { bytes, exponent } => bytes > NUMBER || exponent.is_some_and(|digits| digits > EXPONENT),
        }
    }
}

/// How much of a tag there is with another byte. Only its first one is `<`.
fn follow(end: &[u8], tag: usize, byte: u8) -> usize {
    match end.get(tag) {
        Some(&next) if next == byte => tag + 1,
        _ => usize::from(end.first() == Some(&byte)),
    }
}

/// Where in a call one is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    /// In a line of tags.
    Tags(Vec<u8>),
    /// Before a value that may be JSON.
    Value,
    Json(Json),
    /// In another value; bytes of its end that there are.
    Text(usize),
}

/// Follows what is written.
#[derive(Clone, Debug)]
pub(super) struct Watch {
    parameters: Parameters,
    function: String,
    place: Place,
    /// Whether it is a call.
    call: bool,
    /// What no string may have in it.
    end: &'static [u8],
}

impl Watch {
    /// Of JSON, until a call begins, if there may be `calls`.
    pub(super) fn new(parameters: Parameters, calls: bool) -> Watch {
        let end = if calls { OPEN } else { &[] };
        Watch { parameters, function: String::new(), place: Place::Json(Json::Between), call: false, end }
    }

    /// A call begins.
    pub(super) fn call(&mut self) {
        (self.call, self.end) = (true, CLOSE);
        self.place = Place::Tags(Vec::new());
    }

    /// Takes what was written.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.byte(byte));
    }

    fn byte(&mut self, byte: u8) {
        match &mut self.place {
            Place::Json(json) => {
                let inside = matches!(json, Json::String { .. });
                *json = json.push(byte, self.end);
                if self.call && !inside && byte == b'<' {
                    self.place = Place::Tags(vec![byte]);
                }
            }
            Place::Value => match byte {
                b' ' | b'\n' | b'\r' | b'\t' => {}
                b'-' | b'0'..=b'9' | b'[' | b'{' | b'"' => self.place = Place::Json(Json::Between.push(byte, self.end)),
                _ => self.place = Place::Text(follow(CLOSE, 0, byte)),
            },
            Place::Text(tag) => {
                *tag = follow(CLOSE, *tag, byte);
                if *tag == CLOSE.len() {
                    self.place = Place::Tags(Vec::new());
                }
            }
            Place::Tags(line) if byte != b'\n' => line.push(byte),
            Place::Tags(line) => {
                let line = String::from_utf8_lossy(&std::mem::take(line)).into_owned();
                let name = |tag: &str| Some(line.strip_prefix(tag)?.strip_suffix('>')?.to_owned());
                if let Some(function) = name("<function=") {
                    self.function = function;
                } else if let Some(parameter) = name("<parameter=") {
                    let key = (self.function.clone(), parameter);
                    self.place = if self.parameters.contains(&key) { Place::Value } else { Place::Text(0) };
                }
            }
        }
    }

    /// Whether what may come has to be looked at.
    pub(super) fn is_wary(&self) -> bool {
        match self.place {
            Place::Json(Json::Number { .. }) => true,
            Place::Json(Json::String { tag, .. }) => tag > 0,
            _ => false,
        }
    }

    /// Whether a number or a string would become what it must not.
    pub(super) fn forbids(&self, bytes: &[u8]) -> bool {
        let Place::Json(mut json) = self.place else { return false };
        bytes.iter().any(|&byte| {
            json = json.push(byte, self.end);
            json.is_too_long(self.end)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(call: bool, text: &str) -> Watch {
        let mut watch = Watch::new(Parameters::from([("f".to_owned(), "x".to_owned())]), true);
        if call {
            watch.call();
        }
        watch.push(text.as_bytes());
        watch
    }

    #[test]
    fn numbers_have_to_end_and_other_digits_may_go_on() {
        let digits = "1".repeat(40);
        for (text, next, forbidden) in [
            (&*digits, "1", true),
            (&digits, ".", true),
            (&digits, ",", false),
            (&digits[1..], "1", false),
            (&digits[1..], "11", true),
            ("[1, -2.5e+30", "7", true),
            ("[1, -2.5e+3", "7", false),
            ("[1, -2.5e+3", "77]", true),
            ("{\"a1e1111", "1", false),
            ("{\"a\\\"", "1e111", false),
            ("{\"a\\\"\": ", "1e111", true),
            ("{\"a\": \"<tool_", "call>", true),
            ("{\"a\": \"<tool_", "calls>", false),
        ] {
            assert_eq!(watch(false, text).forbids(next.as_bytes()), forbidden, "{text} {next}");
        }
        assert!(watch(false, "12").is_wary() && !watch(false, "\"12").is_wary());
    }

    #[test]
    fn in_calls_only_values_that_may_be_json_are_looked_at() {
        let head = "\n<function=f>\n<parameter=y>\n1e11111\n</parameter>\n<parameter=x>\n";
        for (text, next, forbidden) in [
            ("1e11", "1", true),
            (" {\"a\": 1e11", "1", true),
            ("{\"a\": \"</param", "eter>", true),
            ("{\"a\": \"<</parameter", ">", true),
            ("{\"a\": \"<\\/parameter", ">", false),
            ("{\"a\": 1}\n</parameter", ">", false),
            ("[1]\n</parameter>\n<parameter=y>\n1e11", "1", false),
            ("plain </parame", "ter>", false),
        ] {
            assert_eq!(watch(true, &format!("{head}{text}")).forbids(next.as_bytes()), forbidden, "{text} {next}");
        }
    }
}
