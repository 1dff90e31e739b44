//! A checkpoint's own `chat_template.jinja`, with the functions and filters that `apply_chat_template` gives it.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, State};
use minijinja_contrib::pycompat;
use serde_json::Value as Json;

use super::TemplateError;
use super::python::{Layout, dumps, float, is_space};
use crate::date;

/// The steps that rendering may take, a string counting as one for each 64 bytes: many times what a full context needs, a
/// second in a template that would run for ever, and half a GB in one that would fill the memory.
const FUEL: u64 = 8_000_000;

/// A compiled template.
#[derive(Debug)]
pub(super) struct Jinja {
    environment: Environment<'static>,
}

const NAME: &str = "chat_template";

impl Jinja {
    /// Compiles a template.
    pub(super) fn new(source: &str) -> Result<Jinja, TemplateError> {
        Jinja::with_fuel(source, FUEL)
    }

    fn with_fuel(source: &str, fuel: u64) -> Result<Jinja, TemplateError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|e| template_error(&e))?);
        environment.set_fuel(Some(fuel));
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_unknown_method_callback(method);
        environment.set_formatter(|out, state, value| match real(value) {
            Some(x) => write!(out, "{}", float(x)).map_err(Error::from),
            None => minijinja::escape_formatter(out, state, value),
        });
        environment.add_filter("tojson", tojson);
        environment.add_filter("string", |value: &Value| match real(value) {
            Some(x) => Value::from(float(x)),
            None if value.kind() == ValueKind::String => value.clone(),
            None => Value::from(value.to_string()),
        });
        environment.add_filter("trim", trim);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", |format: String| date::now(&format));
        environment
            .add_template_owned(NAME, without_generation_tags(source))
            .map_err(|e| TemplateError::Source { what: told(&e) })?;
        Ok(Jinja { environment })
    }

    /// Renders with these variables.
    pub(super) fn render(&self, variables: &Json) -> Result<String, TemplateError> {
        let template = self.environment.get_template(NAME).map_err(|e| template_error(&e))?;
        template.render(Serde(variables)).map_err(|e| template_error(&e))
    }
}

/// What a template refused with `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

fn raise_exception(message: String) -> Result<Value, Error> {
    let error = Error::new(ErrorKind::InvalidOperation, message.clone());
    Err(error.with_source(Raised(message)))
}

fn template_error(error: &Error) -> TemplateError {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(inner) = source {
        if let Some(Raised(what)) = inner.downcast_ref() {
            return TemplateError::Refused { what: what.clone() };
        }
        source = inner.source();
    }
    TemplateError::Render { what: told(error) }
}

fn told(error: &Error) -> String {
    let line = error.line().map_or_else(String::new, |line| format!("line {line}: "));
    format!("{line}{}", error.detail().map_or_else(|| error.kind().to_string(), str::to_owned))
}

/// A number that is not an integer; Python writes these in its own way.
fn real(value: &Value) -> Option<f64> {
    (value.kind() == ValueKind::Number && !value.is_integer()).then(|| f64::try_from(value.clone()).ok()).flatten()
}

/// `json.dumps` with its keyword arguments; nothing is escaped for HTML.
fn tojson(value: &Value, options: Kwargs) -> Result<String, Error> {
    if value.is_undefined() {
        return Err(Error::new(ErrorKind::UndefinedError, "an undefined value has no JSON"));
    }
    let mut layout = Layout {
        ensure_ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        ..Layout::default()
    };
    if let Some(indent) = options.get::<Option<Value>>("indent")?.filter(|value| !value.is_none()) {
        let width = usize::try_from(indent.clone()).unwrap_or(0).min(64);
        layout.indent = Some(indent.as_str().map_or_else(|| " ".repeat(width), str::to_owned));
        layout.item_separator = ",".into();
    }
    if let Some((item, key)) = options.get::<Option<Value>>("separators")?.as_ref().and_then(pair) {
        (layout.item_separator, layout.key_separator) = (item, key);
    }
    options.assert_all_used()?;
    let json = serde_json::to_value(value).map_err(|e| Error::new(ErrorKind::BadSerialization, e.to_string()))?;
    Ok(dumps(&json, &layout))
}

fn pair(value: &Value) -> Option<(String, String)> {
    let mut items = value.try_iter().ok()?;
    Some((items.next()?.as_str()?.to_owned(), items.next()?.as_str()?.to_owned()))
}

/// Jinja's `trim` is Python's `strip`.
fn trim(value: &Value, chars: Option<String>) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    strip(&text, chars.as_deref(), true, true).to_owned()
}

fn strip<'a>(text: &'a str, chars: Option<&str>, start: bool, end: bool) -> &'a str {
    let gone = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    let text = if start { text.trim_start_matches(gone) } else { text };
    if end { text.trim_end_matches(gone) } else { text }
}

/// Methods of Python's values: those whose idea of white space differs from Rust's, those that are missing elsewhere,
/// and the rest.
fn method(state: &mut State<'_, '_>, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    if let (ValueKind::String, Some(text)) = (value.kind(), value.as_str()) {
        match name {
            "strip" | "lstrip" | "rstrip" => {
                let (chars,): (Option<&str>,) = from_args(args)?;
                return Ok(strip(text, chars, name != "rstrip", name != "lstrip").into());
            }
            "removeprefix" => {
                let (prefix,): (&str,) = from_args(args)?;
                return Ok(text.strip_prefix(prefix).unwrap_or(text).into());
            }
            "removesuffix" => {
                let (suffix,): (&str,) = from_args(args)?;
                return Ok(text.strip_suffix(suffix).unwrap_or(text).into());
            }
            _ => {}
        }
    }
    pycompat::unknown_method_callback(state, value, name, args)
}

/// `{% generation %}` marks the model's own text for training and renders what is inside: a block that is always taken.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let Some(end) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let inner = &tag[2..end];
        let word = inner.trim_matches(|c: char| c.is_whitespace() || matches!(c, '-' | '+'));
        match word {
            "generation" => out.extend(["{%", &inner.replace(word, "if true"), "%}"]),
            "endgeneration" => out.extend(["{%", &inner.replace(word, "endif"), "%}"]),
            _ => out.push_str(&tag[..end + 2]),
        }
        rest = &tag[end + 2..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_that_would_run_for_ever_is_stopped() {
        let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}{% endfor %}{% endfor %}";
        let said = Jinja::with_fuel(endless, 100_000).unwrap().render(&Json::Null).unwrap_err();
        assert!(said.to_string().contains("fuel"), "{said}");
    }

    /// Fuel for 12.8 GB of strings was there; now it is for less than a small machine has, and more than a long talk takes.
    #[test]
    fn strings_that_would_fill_the_memory_are_stopped_and_long_conversations_are_not() {
        let doubling =
            "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}";
        let said = Jinja::new(doubling).unwrap().render(&Json::Null).unwrap_err();
        assert!(said.to_string().contains("fuel"), "{said}");
        let source = include_str!("../../../../cli/demo/bundle/chat_template.jinja");
        let messages: Vec<Json> = (0..3000)
            .map(|i| serde_json::json!({"role": if i % 2 == 0 { "user" } else { "assistant" }, "content": "word ".repeat(200)}))
            .collect();
        let talk = serde_json::json!({"messages": messages, "add_generation_prompt": true});
        let text = Jinja::with_fuel(source, FUEL / 4).unwrap().render(&talk).unwrap();
        assert!(text.len() > 2_990_000, "{}", text.len());
    }

    #[test]
    fn generation_tags_go_and_leave_their_white_space_control() {
        let source = "a {%- generation -%} b {% endgeneration %}{% if x %}{% endif %} {% generation_x %} {% open";
        let wanted = "a {%- if true -%} b {% endif %}{% if x %}{% endif %} {% generation_x %} {% open";
        assert_eq!(without_generation_tags(source), wanted);
    }
}
