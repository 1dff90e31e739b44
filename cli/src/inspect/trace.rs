//! A recorded trace of driver calls: JSON, one call a line.

use super::Report;
use super::sheet::Sheet;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// One call. Whatever a recorder leaves out is absent here.
struct Call {
    number: u64,
    name: String,
    file: Option<u64>,
    at_us: Option<u64>,
    took_us: Option<u64>,
    errno: Option<String>,
    input: Option<Value>,
    output: Option<Value>,
}

impl Call {
    /// Bytes of the buffer that the call created.
    fn created_bytes(&self) -> Option<u64> {
        let created = self.name == "CREATE_BO" && self.errno.is_none();
        self.input.as_ref()?.get("size")?.as_u64().filter(|_| created)
    }
}

/// Totals of the calls of one name.
#[derive(Default)]
struct Total {
    calls: u64,
    failed: u64,
    took_us: u64,
}

/// Dispatches of one instruction stream.
#[derive(Default)]
struct Dispatches {
    commands: u64,
    bytes: Option<u64>,
}

/// Explains a file whose first character opens a JSON object.
pub(super) fn explain(bytes: &[u8], ops: bool) -> Result<Report, String> {
    let mut calls = calls(bytes)?;
    calls.sort_by_key(|call| call.number);
    let mut totals: BTreeMap<&str, Total> = BTreeMap::new();
    let mut errors: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    let mut streams: BTreeMap<&str, Dispatches> = BTreeMap::new();
    for call in &calls {
        let total = totals.entry(&call.name).or_default();
        total.calls += 1;
        total.took_us = total.took_us.saturating_add(call.took_us.unwrap_or(0));
        if let Some(errno) = &call.errno {
            total.failed += 1;
            *errors.entry((&call.name, errno)).or_default() += 1;
        }
        for kernel in call.input.iter().flat_map(kernels) {
            let stream = kernel.get("stream").and_then(Value::as_str).unwrap_or("unknown");
            let dispatches = streams.entry(stream).or_default();
            dispatches.commands += 1;
            dispatches.bytes = kernel.get("instruction_bytes").and_then(Value::as_u64).or(dispatches.bytes);
        }
    }
    let created: u64 = calls.iter().filter_map(Call::created_bytes).fold(0, u64::saturating_add);
    let files: BTreeSet<u64> = calls.iter().filter_map(|call| call.file).collect();
    let begin = calls.iter().filter_map(|call| call.at_us).min();
    let end = calls.iter().filter_map(|call| call.at_us?.checked_add(call.took_us.unwrap_or(0))).max();
    let span = begin.zip(end).map(|(begin, end)| end - begin);

    let mut sheet = Sheet::default();
    sheet.line("trace of driver calls");
    sheet.row("calls", calls.len());
    sheet.row("files", files.len());
    if let Some(span) = span {
        sheet.row("time", format_args!("{span} us"));
    }
    sheet.row("buffers", format_args!("{created} bytes created"));
    let rows = totals.iter().map(|(name, total)| {
        [(*name).to_owned(), total.calls.to_string(), total.failed.to_string(), total.took_us.to_string()]
    });
    sheet.table(["call", "count", "failed", "us"], &rows.collect::<Vec<_>>());
    let rows = errors.iter().map(|((name, errno), count)| [(*name).to_owned(), (*errno).to_owned(), count.to_string()]);
    sheet.table(["failed call", "errno", "count"], &rows.collect::<Vec<_>>());
    let rows = streams.iter().map(|(stream, dispatches)| {
        let bytes = dispatches.bytes.map_or(String::new(), |bytes| bytes.to_string());
        [(*stream).to_owned(), dispatches.commands.to_string(), bytes]
    });
    sheet.table(["stream (sha256)", "dispatches", "bytes"], &rows.collect::<Vec<_>>());
    if ops {
        sheet.table(["#", "us", "call", "errno", ""], &calls.iter().map(row).collect::<Vec<_>>());
    }
    let mut report = json!({
        "kind": "trace",
        "calls": calls.len(),
        "files": files.len(),
        "span_us": span,
        "buffer_bytes": created,
        "counts": totals.iter().map(|(name, total)| {
            json!({ "call": name, "count": total.calls, "failed": total.failed, "took_us": total.took_us })
        }).collect::<Vec<_>>(),
        "errors": errors.iter().map(|((name, errno), count)| {
            json!({ "call": name, "errno": errno, "count": count })
        }).collect::<Vec<_>>(),
        "streams": streams.iter().map(|(stream, dispatches)| {
            json!({ "sha256": stream, "dispatches": dispatches.commands, "bytes": dispatches.bytes })
        }).collect::<Vec<_>>(),
    });
    if ops && let Value::Object(fields) = &mut report {
        let list = calls.iter().map(|call| {
            json!({ "n": call.number, "call": call.name, "file": call.file, "at_us": call.at_us,
                    "took_us": call.took_us, "errno": call.errno, "in": call.input, "out": call.output })
        });
        fields.insert("ops".to_owned(), list.collect());
    }
    Ok(Report { text: sheet.finish(), json: report, damage: None })
}

fn calls(bytes: &[u8]) -> Result<Vec<Call>, String> {
    let mut calls = Vec::new();
    let mut next = 0;
    for (index, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        let offset = next;
        next += line.len() + 1;
        if line.trim_ascii().is_empty() {
            continue;
        }
        let wrong = |at: usize, what: String| format!("trace: line {} at byte {at}: {what}", index + 1);
        let value: Value = serde_json::from_slice(line).map_err(|error| {
            // The line's own columns begin at 1, and there is but one line to it.
            wrong(offset + error.column().saturating_sub(1), "no JSON; expected one object a line".to_owned())
        })?;
        let Value::Object(mut fields) = value else {
            return Err(wrong(offset, "expected a JSON object".to_owned()));
        };
        // A line that calls nothing is a recorder's remark on the whole.
        let Some(Value::String(name)) = fields.remove("call") else {
            if calls.is_empty() {
                continue;
            }
            return Err(wrong(offset, "expected a field `call`".to_owned()));
        };
        calls.push(call(name, fields, calls.len() as u64));
    }
    if calls.is_empty() {
        return Err("trace: byte 0: JSON without one recorded call; expected a field `call` in each line".to_owned());
    }
    Ok(calls)
}

fn call(name: String, mut fields: Map<String, Value>, position: u64) -> Call {
    let number = |name: &str| fields.get(name).and_then(Value::as_u64);
    let errno = match fields.get("errno") {
        Some(Value::String(name)) if !name.is_empty() => Some(name.clone()),
        Some(Value::Number(number)) if number.as_i64() != Some(0) => Some(number.to_string()),
        _ => None,
    };
    Call {
        number: number("n").unwrap_or(position),
        file: number("file"),
        at_us: number("at_us"),
        took_us: number("took_us"),
        errno,
        name,
        input: fields.remove("in"),
        output: fields.remove("out"),
    }
}

/// The kernel commands in a call's fields: one of a plain command, several of a chain.
fn kernels(fields: &Value) -> Vec<&Value> {
    let mut found = Vec::new();
    let mut open = vec![fields];
    while let Some(value) = open.pop() {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    if name == "kernel" && value.is_object() {
                        found.push(value);
                    } else {
                        open.push(value);
                    }
                }
            }
            Value::Array(items) => open.extend(items),
            _ => {}
        }
    }
    found
}

fn row(call: &Call) -> [String; 5] {
    let side = |arrow: &str, fields: &Option<Value>| {
        let text = fields.as_ref().filter(|fields| !fields.is_null()).map(brief).unwrap_or_default();
        if text.is_empty() { text } else { format!("{arrow}{text}") }
    };
    [
        call.number.to_string(),
        call.at_us.map_or(String::new(), |at| at.to_string()),
        call.name.clone(),
        call.errno.clone().unwrap_or_default(),
        side("", &call.input) + &side(" -> ", &call.output),
    ]
}

/// `size=4096 type=1`: the fields of an object, inner ones in braces.
fn brief(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let field = |(name, value): (&String, &Value)| match value {
                Value::Object(_) => format!("{name}={{{}}}", brief(value)),
                _ => format!("{name}={}", brief(value)),
            };
            fields.iter().map(field).collect::<Vec<_>>().join(" ")
        }
        Value::Array(items) => format!("[{}]", items.iter().map(brief).collect::<Vec<_>>().join(" ")),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
