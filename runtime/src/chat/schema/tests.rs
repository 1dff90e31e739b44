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
