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
            let found = others.iter().chain(&strings).find_map(|schema| read(text, schema).ok());
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
    if size.is_some_and(outside) {
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

fn allows_string(schema: &Value) -> bool {
    schema.as_object().is_none_or(|object| {
        let kinds = kinds(object);
        kinds.is_empty() || kinds.contains(&"string")
    })
}

/// Whether a text of any sort can be the value: a string is allowed, by itself or as an alternative.
pub(super) fn allows_text(schema: &Value) -> bool {
    let either = schema
        .as_object()
        .into_iter()
        .flat_map(|object| ["anyOf", "oneOf"].into_iter().flat_map(|name| alternatives(object, name)));
    let mut either = either.peekable();
    if either.peek().is_some() { either.any(allows_text) } else { allows_string(schema) }
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
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn text_is_read_as_what_the_schema_wants() {
        for (schema, text, wanted) in [
            (json!({"type": "string"}), "42", json!("42")),
            (json!({"type": "string"}), " a\nb ", json!(" a\nb ")),
            (json!({"type": "integer"}), " 42\n", json!(42)),
            (json!({"type": "integer"}), "42.0", json!(42.0)),
            (json!({"type": "number"}), "-1.5e3", json!(-1500.0)),
            (json!({"type": "boolean"}), "True", json!(true)),
            (json!({"type": "boolean"}), "false", json!(false)),
            (json!({"type": "null"}), "None", json!(null)),
            (json!({"type": ["string", "null"]}), "null", json!(null)),
            (json!({"type": ["string", "integer"]}), "7", json!(7)),
            (json!({"type": ["integer", "string"]}), "seven", json!("seven")),
            (json!({"type": "array", "items": {"type": "integer"}}), "[1, 2]", json!([1, 2])),
            (json!({"type": "object"}), r#"{"a": {"b": 1}}"#, json!({"a": {"b": 1}})),
            (json!({"enum": ["a", 1]}), "a", json!("a")),
            (json!({"enum": ["a", 1]}), "1", json!(1)),
            (json!({"type": "string", "enum": ["1"]}), "1", json!("1")),
            (json!({"anyOf": [{"type": "string"}, {"type": "array"}]}), "[1]", json!([1])),
            (json!({"anyOf": [{"type": "integer"}, {"type": "string"}]}), "x", json!("x")),
            (json!({}), "[1]", json!([1])),
            (json!({}), "[1", json!("[1")),
            (json!(true), "x", json!("x")),
        ] {
            assert_eq!(read(text, &schema), Ok(wanted), "{schema} {text}");
        }
    }

    #[test]
    fn what_does_not_fit_is_named_with_its_place() {
        let nested = json!({"type": "object", "required": ["a"], "additionalProperties": false,
            "properties": {"a": {"type": "array", "maxItems": 2, "items": {"type": "integer", "minimum": 0}}}});
        for (schema, text, path, words) in [
            (json!({"type": "integer"}), "1.5", "", "wanted integer, found `1.5`"),
            (json!({"type": "integer"}), "one", "", "wanted integer, found `one`"),
            (json!({"type": "boolean"}), "yes", "", "wanted boolean"),
            (json!({"type": "string", "enum": ["a", "b"]}), "c", "", r#"wanted one of ["a","b"], found `"c"`"#),
            (json!({"const": 3}), "4", "", "wanted 3"),
            (json!({"type": "string", "maxLength": 2}), "äöü", "", "wanted string, maxLength 2"),
            (json!({"type": "number", "maximum": 2}), "3", "", "maximum 2"),
            (json!({"anyOf": [{"type": "integer"}, {"type": "null"}]}), "x", "", "another value"),
            (nested.clone(), r#"{"a": [1, -1]}"#, ".a[1]", "minimum 0"),
            (nested.clone(), r#"{"a": [1, 2, 3]}"#, ".a", "maxItems 2"),
            (nested.clone(), "{}", ".a", "found missing"),
            (nested.clone(), r#"{"a": [], "b": 1}"#, ".b", "wanted nothing"),
            (nested, "[]", "", "wanted object"),
        ] {
            let what = read(text, &schema).unwrap_err();
            assert_eq!(what.path, path, "{schema} {text}");
            let said = format!("wanted {}, found {}", what.wanted, what.found);
            assert!(said.contains(words), "{said}");
        }
    }

    #[test]
    fn schemas_that_are_none_are_refused() {
        for (schema, said) in [
            (json!(3), "a schema is a number"),
            (json!({"type": "text"}), "`type` is `text`, wanted one of string, number"),
            (json!({"type": 1}), "`type` is a number"),
            (json!({"properties": []}), "`properties` is an array"),
            (json!({"properties": {"a": {"items": {"type": "int"}}}}), "property `a`: `items`: `type` is `int`"),
            (json!({"enum": "a"}), "`enum` is a string"),
        ] {
            let error = check(&schema).unwrap_err();
            assert!(error.starts_with(said), "{error}");
        }
        assert_eq!(check(&json!({"type": ["string", "null"], "description": "d", "format": "date"})), Ok(()));
    }
}
