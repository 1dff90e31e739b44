//! The grammar of calls: Qwen3.5's form, with each value as its schema wants it and as [`schema::read`] reads it back.
//!
//! A value is a *text* as it is, one of some *words*, or JSON. Where several of them are possible, they differ in how they
//! begin: what could be a number, a list or an object is one, and no text. What a value of a definition cannot be held to
//! is refused by name.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use super::{GrammarError, quoted, spaced};
use crate::chat::schema;
use crate::chat::tools::Tool;

/// Ends a value. No text has it in it.
const END: &str = "</parameter>";

/// The rules that all functions need.
pub(super) const RULES: &str = "END: /(?s:.*)<\\/parameter>(?s:.*)/\n";

/// Writes the rules of a function, the `i`th. Gives its parameters whose values may be JSON.
pub(super) fn function(grammar: &mut String, i: usize, tool: &Tool) -> Result<Vec<String>, GrammarError> {
    let refused = |what: String| GrammarError::Definition { what: format!("function `{}`: {what}", tool.name) };
    if let Some(name) = BESIDE.iter().find(|name| tool.parameters.contains_key(**name)) {
        return Err(refused(format!("calls cannot be held to `{name}` of its parameters")));
    }
    let (mut head, mut rules, mut found) = (quoted(&format!("<function={}>\n", tool.name)), String::new(), Vec::new());
    for (j, (name, schema)) in tool.all_parameters().into_iter().enumerate() {
        let refused = |what: String| refused(format!("parameter `{name}`: {what}"));
        let required = schema::required(&tool.parameters).any(|other| other == name);
        if name.is_empty() || name.contains(['>', '\n']) {
            return Err(refused("this cannot be written in a call".into()));
        }
        let mut forms = Forms::default();
        forms.add(&schema).map_err(refused)?;
        forms.settle(&schema).map_err(refused)?;
        if forms.is_empty() {
            if required {
                return Err(refused("it is required, but no value fits it".into()));
            }
            continue;
        }
        if !forms.json.is_empty() {
            found.push(name.clone());
        }
        let _ = write!(head, " p{i}_{j}{}", if required { "" } else { "?" });
        let _ = writeln!(rules, "p{i}_{j}: {} v{i}_{j}", quoted(&format!("<parameter={name}>\n")));
        forms.write(&mut rules, &format!("{i}_{j}"), &tool.parameters).map_err(refused)?;
    }
    let _ = write!(grammar, "f{i}: {head}\n{rules}");
    Ok(found)
}

/// Parts of a schema of parameters that bind several of them together.
const BESIDE: [&str; 14] = [
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "then",
    "else",
    "$ref",
    "dependentRequired",
    "dependentSchemas",
    "minProperties",
    "maxProperties",
    "propertyNames",
    "patternProperties",
];

/// What says nothing about a string.
const OF_OTHERS: [&str; 19] = [
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "items",
    "prefixItems",
    "additionalItems",
    "minItems",
    "maxItems",
    "uniqueItems",
    "contains",
    "properties",
    "required",
    "additionalProperties",
    "patternProperties",
    "minProperties",
    "maxProperties",
    "propertyNames",
];

/// A text.
#[derive(Debug, Default, PartialEq)]
struct Text {
    least: u64,
    most: Option<u64>,
    pattern: Option<String>,
}

/// How a parameter's value may be written.
#[derive(Debug, Default)]
struct Forms {
    words: Vec<String>,
    texts: Vec<Text>,
    /// Schemas of values that are no strings, and so do not begin as ones that may.
    json: Vec<Value>,
}

impl Forms {
    fn is_empty(&self) -> bool {
        self.words.is_empty() && self.texts.is_empty() && self.json.is_empty()
    }

    /// Adds what fits a schema.
    fn add(&mut self, schema: &Value) -> Result<(), String> {
        let object = match schema {
            Value::Bool(false) => return Ok(()),
            Value::Object(object) => object,
            _ => {
                self.texts.push(Text::default());
                return Ok(());
            }
        };
        let mut kinds = schema::kinds(object);
        if ["enum", "const"].iter().any(|name| object.contains_key(*name)) {
            let listed = object.get("enum").and_then(Value::as_array).cloned();
            let listed = listed.or_else(|| object.get("const").map(|value| vec![value.clone()])).unwrap_or_default();
            for value in listed.iter().filter(|value| schema::validate(value, schema).is_ok()) {
                self.words.push(value.as_str().map_or_else(|| value.to_string(), str::to_owned));
            }
            return allowed(object, &[&["enum", "const", "type"], &TEXTS[..], &OF_OTHERS].concat());
        }
        let may_be_text = kinds.is_empty() || kinds.contains(&"string");
        if !may_be_text {
            self.json.push(schema.clone());
            return Ok(());
        }
        for name in ["anyOf", "oneOf"] {
            if let Some(all) = object.get(name).and_then(Value::as_array) {
                allowed(object, &[name])?;
                return self.alternatives(name, all);
            }
        }
        allowed(object, &[&["type"], &TEXTS[..], &OF_OTHERS].concat())?;
        if kinds.is_empty() && OF_OTHERS.iter().any(|name| object.contains_key(*name)) {
            // Meant for a list or an object; a string is written as JSON then.
            self.json.push(schema.clone());
            return Ok(());
        }
        let bound = |name: &str| object.get(name).and_then(Value::as_f64).map(|bound| bound as u64);
        let pattern = object.get("pattern").and_then(Value::as_str).map(whole).transpose()?;
        let (least, most) = (bound("minLength").unwrap_or(0), bound("maxLength"));
        if most.is_none_or(|most| least <= most) {
            self.texts.push(Text { least, most, pattern });
        }
        kinds.retain(|kind| *kind != "string");
        for (kind, words) in [("null", &["null"][..]), ("boolean", &["true", "false"])] {
            if kinds.contains(&kind) {
                self.words.extend(words.iter().map(|word| (*word).to_owned()));
                kinds.retain(|other| *other != kind);
            }
        }
        if !kinds.is_empty() {
            let mut rest = object.clone();
            TEXTS.iter().for_each(|name| drop(rest.remove(*name)));
            rest.insert("type".into(), json!(kinds));
            self.json.push(rest.into());
        }
        Ok(())
    }

    fn alternatives(&mut self, name: &str, all: &[Value]) -> Result<(), String> {
        let (mut json, mut texts) = (Vec::new(), 0);
        for schema in all {
            let before = (self.texts.len(), self.json.len());
            self.add(schema)?;
            texts += usize::from(self.texts.len() > before.0);
            json.extend(self.json.drain(before.1..));
        }
        if name == "anyOf" || json.len() < 2 {
            self.json.append(&mut json);
        } else {
            // Whether they exclude each other is told when it is compiled.
            self.json.push(json!({"oneOf": json}));
        }
        let mut words: Vec<&String> = self.words.iter().collect();
        words.sort_unstable();
        let twice = words.windows(2).any(|pair| pair[0] == pair[1]);
        let both = texts > 1
            || texts == 1 && self.words.iter().any(|word| !["null", "true", "false"].contains(&word.as_str()));
        if name == "oneOf" && (twice || both) {
            return Err("`oneOf` with alternatives that are texts and may be the same".into());
        }
        Ok(())
    }

    /// Leaves away what is not needed or could not be read back.
    fn settle(&mut self, schema: &Value) -> Result<(), String> {
        if let Some(word) = self.words.iter().find(|word| word.contains(END)) {
            return Err(format!("the value `{word}` would end itself in a call"));
        }
        if self.json.iter().any(|schema| schema.to_string().contains(END)) {
            return Err(format!("its schema has `{END}` in it"));
        }
        self.words.sort_unstable();
        self.words.dedup();
        self.words.retain(|word| schema::read(word, schema).is_ok());
        // Whatever is read of a text that may be anything fits, where all that is asked of other values is checked then.
        if self.texts.contains(&Text::default()) && self.json.iter().all(schema::is_checked) {
            *self = Forms { texts: vec![Text::default()], ..Forms::default() };
        }
        Ok(())
    }

    /// Writes the rule `v{name}`, the closing tag included.
    fn write(&self, rules: &mut String, name: &str, root: &Map<String, Value>) -> Result<(), String> {
        let close = quoted(&format!("\n{END}\n"));
        let mut ways = Vec::new();
        if !(self.texts.is_empty() && self.words.is_empty()) {
            ways.push(format!("V{name}"));
            let firsts: String = self.json.iter().map(first).collect();
            let mut all: Vec<String> = self.texts.iter().map(|text| text.terminal(&firsts)).collect();
            all.extend(self.words.iter().map(|word| if word.is_empty() { "/()/".to_owned() } else { quoted(word) }));
            let _ = writeln!(rules, "V{name}: ({}) {close}", all.join(" | "));
        }
        for (at, schema) in self.json.iter().enumerate() {
            let mut schema = schema.clone();
            for place in ["$defs", "definitions"] {
                if let (Some(schema), Some(definitions)) = (schema.as_object_mut(), root.get(place)) {
                    schema.entry(place).or_insert_with(|| definitions.clone());
                }
            }
            elsewhere(&schema)?;
            ways.push(format!("j{name}_{at} {close}"));
            let _ = writeln!(rules, "j{name}_{at}: %json {}", spaced(&schema));
        }
        let _ = writeln!(rules, "v{name}: {}", ways.join(" | "));
        Ok(())
    }
}

/// What says something about a string, and is kept to. A format is a remark.
const TEXTS: [&str; 6] = ["minLength", "maxLength", "pattern", "format", "contentEncoding", "contentMediaType"];

/// Refuses what is neither a remark nor one of these.
fn allowed(object: &Map<String, Value>, names: &[&str]) -> Result<(), String> {
    match object.keys().find(|name| schema::asserts(name) && !names.contains(&name.as_str())) {
        Some(name) => Err(format!("a text cannot be held to `{name}` here")),
        None => Ok(()),
    }
}

/// References that lead out of the definitions, which come along.
fn elsewhere(schema: &Value) -> Result<(), String> {
    match schema {
        Value::Object(object) => {
            if let Some(Value::String(place)) = object.get("$ref")
                && !(place.starts_with("#/$defs/") || place.starts_with("#/definitions/"))
            {
                return Err(format!("`$ref` to `{place}`: only `#/$defs/` and `#/definitions/` can be referred to"));
            }
            object.values().try_for_each(elsewhere)
        }
        Value::Array(all) => all.iter().try_for_each(elsewhere),
        _ => Ok(()),
    }
}

/// Characters that a value of this schema may begin with, for a class of a regular expression.
fn first(schema: &Value) -> String {
    let kinds = schema.as_object().map(schema::kinds).unwrap_or_default();
    let all = [("number", "0-9\\-"), ("integer", "0-9\\-"), ("array", "\\["), ("object", "{"), ("null", "n")];
    let all = all.into_iter().chain([("boolean", "tf"), ("", "\"")]);
    all.filter(|(kind, _)| kinds.is_empty() || kinds.contains(kind)).map(|(_, first)| first).collect()
}

impl Text {
    fn terminal(&self, firsts: &str) -> String {
        let most = self.most.map_or_else(String::new, |most| most.to_string());
        let mut out = match (self.least, self.most) {
            (0, None) => "(/(?s:.*)/".to_owned(),
            (least, _) => format!("(/(?s:.{{{least},{most}}})/"),
        };
        if let Some(pattern) = &self.pattern {
            let _ = write!(out, " & /{pattern}/");
        }
        if !firsts.is_empty() {
            let _ = write!(out, " & ~/[ \\n\\r\\t]*[{firsts}](?s:.*)/");
        }
        out + " & ~END)"
    }
}

/// A pattern that a text only has to contain, as one of the whole text. Anchors elsewhere than at its ends are refused.
fn whole(pattern: &str) -> Result<String, String> {
    let mut body = pattern;
    let begins = body.strip_prefix('^').map(|rest| body = rest).is_some();
    let escaped = |text: &str| (text.len() - text.trim_end_matches('\\').len()) & 1 == 1;
    let ends = body.strip_suffix('$').filter(|rest| !escaped(rest)).map(|rest| body = rest).is_some();
    let (mut depth, mut class, mut quoted, mut odd) = (0_usize, false, false, false);
    for c in body.chars() {
        match c {
            _ if quoted => {
                odd |= !class && matches!(c, 'b' | 'B');
                quoted = false;
            }
            '\\' => quoted = true,
            ']' => class = false,
            _ if class => {}
            '[' => class = true,
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            '^' | '$' => odd = true,
            '|' => odd |= depth == 0 && (begins || ends),
            _ => {}
        }
    }
    if odd {
        return Err(format!("the pattern `{pattern}` has anchors that cannot be kept to"));
    }
    let around = |is: bool| if is { "" } else { "(?s:.*)" };
    Ok(format!("{}({}){}", around(begins), llguidance::regex_to_lark(body, "dw"), around(ends)))
}
