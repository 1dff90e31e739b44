//! The part of JSON Schema that function definitions use: what a value may be, and what a text is meant to be.

use serde_json::{Map, Value};

use super::message::kind_name;

/// The names of the kinds that `type` can have.
const KINDS: [&str; 7] = ["string", "number", "integer", "boolean", "object", "array", "null"];

/// Why a value is not what a schema wants. The path is the place within the value: `.city`, `[2]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mismatch {
    pub(super) path: String,
    pub(super) wanted: String,
    pub(super) found: String,
}

/// Whether `type` names kinds that there are, here and in everything below.
pub(super) fn check(schema: &Value) -> Result<(), String> {
    let object = match schema {
        Value::Bool(_) => return Ok(()),
        Value::Object(object) => object,
        other => return Err(format!("a schema is {}, wanted an object", kind_name(other))),
    };
    for kind in kinds(object) {
        if !KINDS.contains(&kind) {
            return Err(format!("`type` is `{kind}`, wanted one of {}", KINDS.join(", ")));
        }
    }
    let sort = object.get("type").unwrap_or(&Value::Null);
    if !(sort.is_null() || sort.is_string() || sort.is_array()) {
        return Err(format!("`type` is {}, wanted a string or an array", kind_name(sort)));
    }
    match object.get("properties") {
        None => {}
        Some(Value::Object(properties)) => {
            for (name, schema) in properties {
                check(schema).map_err(|what| format!("property `{name}`: {what}"))?;
            }
        }
        Some(other) => return Err(format!("`properties` is {}, wanted an object", kind_name(other))),
    }
    for name in ["items", "additionalProperties"] {
        if let Some(schema) = object.get(name) {
            check(schema).map_err(|what| format!("`{name}`: {what}"))?;
        }
    }
    for name in ["anyOf", "oneOf"] {
        for schema in alternatives(object, name) {
            check(schema).map_err(|what| format!("`{name}`: {what}"))?;
        }
    }
    match object.get("enum") {
        None | Some(Value::Array(_)) => Ok(()),
        Some(other) => Err(format!("`enum` is {}, wanted an array", kind_name(other))),
    }
}

/// Reads the text of a parameter as what its schema wants. Text that may be a string is one, unless another kind that
/// is allowed too fits; what JSON spells and Python differently (`True`, `None`) is read both ways.
pub(super) fn read(text: &str, schema: &Value) -> Result<Value, Mismatch> {
    let any = Map::new();
    let object = schema.as_object().unwrap_or(&any);
    for name in ["anyOf", "oneOf"] {
        let mut either = alternatives(object, name).peekable();
        if either.peek().is_some() {
            let all: Vec<&Value> = either.collect();
            // Strings take everything, so they come last.
            let (strings, others): (Vec<&Value>, Vec<&Value>) = all.iter().partition(|schema| allows_string(schema));
            let fits = |value: &Value| validate(value, schema).is_ok();
            let mut found = others.iter().chain(&strings).filter_map(|either| read(text, either).ok());
            let found = found.find(fits);
            return found.ok_or_else(|| mismatch(schema, text));
        }
    }
    let kinds = kinds(object);
    let typed = |kind: &str| match kind {
        "string" => Some(Value::from(text)),
        "boolean" => match text.trim() {
            "true" | "True" => Some(true.into()),
            "false" | "False" => Some(false.into()),
            _ => None,
        },
        "null" => matches!(text.trim(), "null" | "None").then_some(Value::Null),
        _ => serde_json::from_str::<Value>(text.trim()).ok(),
    };
    let fits = |value: &Value| validate(value, schema).is_ok();
    if kinds.is_empty() {
        // Nothing said: an enumeration decides, or JSON if it is some.
        let json = serde_json::from_str::<Value>(text.trim()).ok();
        let found = json.into_iter().chain([Value::from(text)]).find(fits);
        return found.ok_or_else(|| mismatch(schema, text));
    }
    let ordered = kinds.iter().filter(|kind| **kind != "string").chain(kinds.iter().filter(|kind| **kind == "string"));
    let mut refused = None;
    for value in ordered.filter_map(|kind| typed(kind)) {
        match validate(&value, schema) {
            Ok(()) => return Ok(value),
            Err(what) => refused = Some(what),
        }
    }
    Err(refused.unwrap_or_else(|| mismatch(schema, text)))
}

/// Whether a value is what a schema wants.
pub(super) fn validate(value: &Value, schema: &Value) -> Result<(), Mismatch> {
    let object = match schema {
        Value::Bool(false) => return Err(mismatch_value(schema, value)),
        Value::Object(object) => object,
        _ => return Ok(()),
    };
    let kinds = kinds(object);
    let is = |kind: &str| match (kind, value) {
        ("string", Value::String(_)) | ("boolean", Value::Bool(_)) | ("null", Value::Null) => true,
        ("number", Value::Number(_)) | ("object", Value::Object(_)) | ("array", Value::Array(_)) => true,
        ("integer", Value::Number(n)) => n.as_f64().is_some_and(|x| x.fract() == 0.0),
        _ => false,
    };
    let listed = object.get("enum").and_then(Value::as_array).is_none_or(|list| list.contains(value));
    let constant = object.get("const").is_none_or(|wanted| wanted == value);
    if !(kinds.is_empty() || kinds.into_iter().any(is)) || !listed || !constant {
        return Err(mismatch_value(schema, value));
    }
    for name in ["anyOf", "oneOf"] {
        let mut either = alternatives(object, name).peekable();
        if either.peek().is_some() && !either.any(|schema| validate(value, schema).is_ok()) {
            return Err(mismatch_value(schema, value));
        }
    }
    let bound = |name: &str| object.get(name).and_then(Value::as_f64);
    let size = match value {
        Value::Number(n) => n.as_f64().map(|x| (x, "minimum", "maximum")),
        Value::String(text) => Some((text.chars().count() as f64, "minLength", "maxLength")),
        Value::Array(items) => Some((items.len() as f64, "minItems", "maxItems")),
        _ => None,
    };
    let outside = |(size, least, most): (f64, &str, &str)| {
        bound(least).is_some_and(|least| size < least) || bound(most).is_some_and(|most| size > most)
    };
    let beyond = |x: f64| {
        bound("exclusiveMinimum").is_some_and(|least| x <= least)
            || bound("exclusiveMaximum").is_some_and(|most| x >= most)
    };
    if size.is_some_and(outside) || value.as_f64().is_some_and(beyond) {
        return Err(mismatch_value(schema, value));
    }
    match value {
        Value::Array(items) => {
            if let Some(schema) = object.get("items") {
                for (at, item) in items.iter().enumerate() {
                    validate(item, schema).map_err(|what| what.inside(&format!("[{at}]")))?;
                }
            }
        }
        Value::Object(map) => members(map, object)?,
        _ => {}
    }
    Ok(())
}

fn members(map: &Map<String, Value>, schema: &Map<String, Value>) -> Result<(), Mismatch> {
    for name in required(schema) {
        if !map.contains_key(name) {
            let found = "missing".to_owned();
            return Err(Mismatch { path: format!(".{name}"), wanted: "a value".into(), found });
        }
    }
    let properties = schema.get("properties").and_then(Value::as_object);
    for (name, value) in map {
        let property = properties.and_then(|properties| properties.get(name));
        if let Some(schema) = property.or_else(|| schema.get("additionalProperties")) {
            validate(value, schema).map_err(|what| what.inside(&format!(".{name}")))?;
        }
    }
    Ok(())
}

/// The names of properties that have to be there.
pub(super) fn required(schema: &Map<String, Value>) -> impl Iterator<Item = &str> {
    schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

/// The kinds that `type` names; none: all.
pub(super) fn kinds(schema: &Map<String, Value>) -> Vec<&str> {
    match schema.get("type") {
        Some(Value::String(kind)) => vec![kind],
        Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

/// Remarks: what says nothing about values.
const REMARKS: [&str; 13] = [
    "title",
    "description",
    "default",
    "examples",
    "example",
    "$comment",
    "$schema",
    "$id",
    "deprecated",
    "readOnly",
    "writeOnly",
    "$defs",
    "definitions",
];

/// Whether a word of a schema may say something about values.
pub(super) fn asserts(name: &str) -> bool {
    !REMARKS.contains(&name) && !name.starts_with("x-")
}

/// Whether [`validate`] looks at everything that a schema says.
pub(super) fn is_checked(schema: &Value) -> bool {
    const CHECKED: [&str; 12] = [
        "type",
        "enum",
        "const",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "required",
    ];
    let Value::Object(object) = schema else { return true };
    object.iter().all(|(name, inner)| match name.as_str() {
        "properties" => inner.as_object().is_some_and(|all| all.values().all(is_checked)),
        "items" | "additionalProperties" => !inner.is_array() && is_checked(inner),
        "anyOf" => inner.as_array().is_some_and(|all| all.iter().all(is_checked)),
        other => CHECKED.contains(&other) || !asserts(other),
    })
}

/// The schema with what it refers to in its place, here and in its alternatives, as far as `root` has it and `left` places
/// suffice: a schema may lead to itself.
pub(super) fn inline(schema: &Value, root: &Value, left: &mut usize) -> Value {
    let Value::Object(object) = schema else { return schema.clone() };
    let Some(rest) = left.checked_sub(1) else { return schema.clone() };
    *left = rest;
    let alone = |name: &str| object.keys().all(|other| other == name || !asserts(other));
    if let Some(place) = object.get("$ref").and_then(Value::as_str).filter(|_| alone("$ref"))
        && let Some(found) = place.strip_prefix('#').and_then(|place| root.pointer(place))
    {
        return inline(found, root, left);
    }
    if let Some([one]) = object.get("allOf").and_then(Value::as_array).map(Vec::as_slice).filter(|_| alone("allOf")) {
        return inline(one, root, left);
    }
    let mut object = object.clone();
    for name in ["anyOf", "oneOf"] {
        if let Some(Value::Array(all)) = object.get_mut(name) {
            all.iter_mut().for_each(|either| *either = inline(either, root, left));
        }
    }
    object.into()
}

fn allows_string(schema: &Value) -> bool {
    schema.as_object().is_none_or(|object| {
        let kinds = kinds(object);
        kinds.is_empty() || kinds.contains(&"string")
    })
}

fn alternatives<'a>(schema: &'a Map<String, Value>, name: &str) -> impl Iterator<Item = &'a Value> {
    schema.get(name).and_then(Value::as_array).into_iter().flatten()
}

impl Mismatch {
    fn inside(mut self, place: &str) -> Mismatch {
        self.path.insert_str(0, place);
        self
    }
}

fn mismatch(schema: &Value, text: &str) -> Mismatch {
    Mismatch { path: String::new(), wanted: wanted(schema), found: format!("`{}`", short(text)) }
}

fn mismatch_value(schema: &Value, value: &Value) -> Mismatch {
    Mismatch { path: String::new(), wanted: wanted(schema), found: format!("`{}`", short(&value.to_string())) }
}

fn short(text: &str) -> String {
    let mut out: String = text.chars().take(60).collect();
    if out.len() < text.len() {
        out.push('…');
    }
    out
}

/// What a schema wants, in words.
fn wanted(schema: &Value) -> String {
    let Some(object) = schema.as_object() else { return "nothing".into() };
    if let Some(list) = object.get("enum") {
        return format!("one of {}", short(&list.to_string()));
    }
    if let Some(value) = object.get("const") {
        return short(&value.to_string());
    }
    let kinds = kinds(object);
    let mut out = if kinds.is_empty() { "another value".to_owned() } else { kinds.join(" or ") };
    for name in ["minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems"] {
        if let Some(bound) = object.get(name) {
            out.push_str(&format!(", {name} {bound}"));
        }
    }
    out
}

#[cfg(test)]
mod tests;
