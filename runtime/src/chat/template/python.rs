//! How Python writes values: `json.dumps`, `str`, and what its `str.strip` takes for white space.

use std::fmt::Write;

use serde_json::{Number, Value};

/// Layout of [`dumps`]: `json.dumps`'s keyword arguments.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub(super) ensure_ascii: bool,
    pub(super) indent: Option<String>,
    pub(super) item_separator: String,
    pub(super) key_separator: String,
    pub(super) sort_keys: bool,
}

impl Default for Layout {
    /// As `apply_chat_template` calls it.
    fn default() -> Self {
        let (item_separator, key_separator) = (", ".to_owned(), ": ".to_owned());
        Layout { ensure_ascii: false, indent: None, item_separator, key_separator, sort_keys: false }
    }
}

/// `json.dumps`.
pub(super) fn dumps(value: &Value, layout: &Layout) -> String {
    let mut out = String::new();
    dump(&mut out, value, layout, 0);
    out
}

fn dump(out: &mut String, value: &Value, layout: &Layout, depth: usize) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(yes) => out.push_str(if *yes { "true" } else { "false" }),
        Value::Number(n) => out.push_str(&number(n)),
        Value::String(text) => quote(out, text, layout.ensure_ascii),
        Value::Array(items) => list(out, ['[', ']'], items.iter(), layout, depth, |out, item| {
            dump(out, item, layout, depth + 1);
        }),
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            if layout.sort_keys {
                entries.sort_by_key(|(key, _)| *key);
            }
            list(out, ['{', '}'], entries.into_iter(), layout, depth, |out, (key, value)| {
                quote(out, key, layout.ensure_ascii);
                out.push_str(&layout.key_separator);
                dump(out, value, layout, depth + 1);
            });
        }
    }
}

fn list<T>(
    out: &mut String,
    [open, close]: [char; 2],
    items: impl ExactSizeIterator<Item = T>,
    layout: &Layout,
    depth: usize,
    mut each: impl FnMut(&mut String, T),
) {
    out.push(open);
    let empty = items.len() == 0;
    let line = |out: &mut String, depth: usize| {
        if let Some(indent) = &layout.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    };
    for (i, item) in items.enumerate() {
        if i > 0 {
            out.push_str(&layout.item_separator);
        }
        line(out, depth + 1);
        each(out, item);
    }
    if !empty {
        line(out, depth);
    }
    out.push(close);
}

fn quote(out: &mut String, text: &str, ensure_ascii: bool) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' || (ensure_ascii && !matches!(c, ' '..='~')) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// `repr` of a number.
fn number(n: &Number) -> String {
    match n.as_f64() {
        Some(x) if n.is_f64() => float(x),
        _ => n.to_string(),
    }
}

/// `repr(float)`: the shortest digits that read back as the same number, with an exponent below 1e-4 and from 1e16 on.
pub(super) fn float(x: f64) -> String {
    let scientific = format!("{x:e}");
    let Some((mantissa, exponent)) = scientific.split_once('e') else { return scientific };
    let Ok(exponent) = exponent.parse::<i32>() else { return scientific };
    if (-4..16).contains(&exponent) {
        let plain = format!("{x}");
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs())
}

/// `str(value)` of what is no container; containers as JSON.
pub(super) fn text(value: &Value) -> String {
    match value {
        Value::Null => "None".into(),
        Value::Bool(true) => "True".into(),
        Value::Bool(false) => "False".into(),
        Value::Number(n) => number(n),
        Value::String(text) => text.clone(),
        other => dumps(other, &Layout::default()),
    }
}

/// What `str.strip` takes off: Unicode white space, and the four separators U+001C..U+001F that Rust does not count.
pub(in crate::chat) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The right-hand sides are what Python 3's `json.dumps(x, ensure_ascii=False)` prints.
    #[test]
    fn json_is_python_s() {
        for (value, wanted) in [
            (
                json!({"b": [1, -2.0, 1e16, 1e-5, 0.1, 123456.789e3], "a": {}}),
                r#"{"b": [1, -2.0, 1e+16, 1e-05, 0.1, 123456789.0], "a": {}}"#,
            ),
            (
                json!([1.5e300, 9007199254740993u64, 1e15, 0.0001, -0.0]),
                "[1.5e+300, 9007199254740993, 1000000000000000.0, 0.0001, -0.0]",
            ),
            (json!("é<&>'\u{7f}\"\\\u{1}\u{8}\u{c}\r\n\t/🙂"), "\"é<&>'\u{7f}\\\"\\\\\\u0001\\b\\f\\r\\n\\t/🙂\""),
            (json!([true, false, null, [], ""]), r#"[true, false, null, [], ""]"#),
        ] {
            assert_eq!(dumps(&value, &Layout::default()), wanted);
        }
        let layout = Layout {
            ensure_ascii: true,
            indent: Some("  ".into()),
            item_separator: ",".into(),
            sort_keys: true,
            ..Layout::default()
        };
        let value = json!({"b": [1, []], "a": "é🙂", "c": {}});
        let wanted = "{\n  \"a\": \"\\u00e9\\ud83d\\ude42\",\n  \"b\": [\n    1,\n    []\n  ],\n  \"c\": {}\n}";
        assert_eq!(dumps(&value, &layout), wanted);
    }

    #[test]
    fn values_read_as_python_prints_them() {
        let shown: Vec<String> =
            [json!(null), json!(true), json!(2.0), json!(3), json!("x"), json!([1, "a"])].iter().map(text).collect();
        assert_eq!(shown, ["None", "True", "2.0", "3", "x", r#"[1, "a"]"#]);
    }
}
