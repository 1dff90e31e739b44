//! An instruction stream.

use super::sheet::{Sheet, count, ranges};
use super::{Report, operations, sha256};
use runtime::txn::{Form, MAX_ARGUMENTS, OperationKind, Stream, Traffic, TxnError, code_name};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The array of NPU2.
const ROWS: u8 = 6;
const COLUMNS: u8 = 8;

/// Explains a file that is a stream or nothing.
pub(super) fn explain(bytes: &[u8], ops: bool) -> Result<Report, String> {
    let stream = Stream::read(bytes).map_err(|error| refusal(bytes, &error))?;
    let summary = Summary::of(&stream);
    let mut sheet = Sheet::default();
    let form = if stream.form() == Form::Full { "full form" } else { "optimised form" };
    let written = if stream.was_text() { "text" } else { "binary" };
    sheet.line(format_args!("instruction stream, {written}, {form}"));
    sheet.row("sha256", sha256(stream.bytes()));
    let (generation, rows, columns) = stream.array();
    let ((major, minor), device) = (stream.version(), device(generation));
    sheet.row(
        "header",
        format_args!("version {major}.{minor}, generation {generation} ({device}), {rows} rows, {columns} columns"),
    );
    sheet.row(
        "size",
        format_args!("{} bytes, {}", stream.bytes().len(), count(stream.operations().len() as u64, "operation")),
    );
    for note in notes(&stream) {
        sheet.row("note", note);
    }
    let counts = summary.counts.iter().map(|(code, (count, bytes))| {
        [code_name(*code).to_owned(), code.to_string(), count.to_string(), bytes.to_string()]
    });
    sheet.table(["operation", "code", "count", "bytes"], &counts.collect::<Vec<_>>());
    let arguments = stream.traffic().iter().enumerate().filter(|(_, traffic)| traffic.patches > 0);
    let arguments: Vec<[String; 7]> = arguments.map(|(index, traffic)| argument_row(index, traffic)).collect();
    sheet.table(["argument", "patches", "into", "tasks", "bytes read", "bytes written", "reach"], &arguments);
    let waits: Vec<[String; 3]> = summary
        .waits
        .iter()
        .map(|((input, row, channel), columns)| {
            let direction = if *input { "MM2S" } else { "S2MM" };
            let total: u64 = columns.values().sum();
            [
                format!("{direction} {channel}"),
                format!("row {row}, columns {}", ranges(columns.keys().copied())),
                total.to_string(),
            ]
        })
        .collect();
    sheet.table(["wait for", "tiles", "tokens"], &waits);
    if ops {
        list(&mut sheet, &stream);
    }
    Ok(Report { text: sheet.finish(), json: json(&stream, &summary, ops), damage: None })
}

/// The operations, one a line.
pub(super) fn list(sheet: &mut Sheet, stream: &Stream) {
    let rows = stream.operations().iter().enumerate().map(|(index, operation)| {
        let name = code_name(stream.code(operation));
        let line = operations::text(stream, operation);
        [index.to_string(), format!("{:#08x}", operation.offset), name.to_owned(), line]
    });
    sheet.table(["#", "byte", "operation", ""], &rows.collect::<Vec<_>>());
}

/// The same for a program.
pub(super) fn list_json(stream: &Stream) -> Value {
    stream.operations().iter().map(|operation| operations::json(stream, operation)).collect()
}

/// What an error is called for a file that had no mark of anything.
fn refusal(bytes: &[u8], error: &TxnError) -> String {
    let text = error.to_string();
    let header = bytes.get(12..16).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]) as usize);
    // A stream by its own account, even if it was cut or grew.
    let plausible = matches!(error, TxnError::Legacy | TxnError::Text { .. })
        || header.is_some_and(|size| size == bytes.len() || size.is_multiple_of(4) && (16..1 << 26).contains(&size));
    if plausible {
        format!("instruction stream: {text}")
    } else {
        format!("neither xclbin nor PDI nor trace; as an instruction stream: {text}")
    }
}

/// What the device generation of a header means.
fn device(generation: u8) -> &'static str {
    match generation {
        3 => "NPU1",
        4 => "NPU2",
        5 | 8 | 9 => "a later NPU2",
        _ => "unknown",
    }
}

/// What is odd and does no harm.
fn notes(stream: &Stream) -> Vec<String> {
    let mut notes = Vec::new();
    let (generation, rows, columns) = stream.array();
    if !matches!(stream.version(), (0, 1) | (1, 0)) {
        notes.push("no tool writes this version; everything but 1.0 is read as the full form".to_owned());
    }
    if device(generation) == "unknown" || rows != ROWS || !(1..=COLUMNS).contains(&columns) {
        notes.push("the header's array is none that exists; nothing depends on it".to_owned());
    }
    if stream.traffic().len() > MAX_ARGUMENTS {
        notes.push(format!("more buffer arguments than the {MAX_ARGUMENTS} of a dispatch"));
    }
    if !stream.waits_for_outputs() {
        notes.push("an output channel is not waited for after its last task".to_owned());
    }
    let unknown: u64 = stream.traffic().iter().map(|traffic| traffic.unknown).sum();
    if unknown > 0 {
        notes.push(format!("{} on descriptors that the stream does not hold: bytes not known", count(unknown, "task")));
    }
    notes
}

fn argument_row(index: usize, traffic: &Traffic) -> [String; 7] {
    let columns = ranges(traffic.descriptors.iter().map(|(column, _)| u32::from(*column)));
    let mut ids: Vec<u32> = traffic.descriptors.iter().map(|(_, id)| u32::from(*id)).collect();
    ids.sort_unstable();
    [
        index.to_string(),
        traffic.patches.to_string(),
        format!("columns {columns}; BDs {}", ranges(ids)),
        traffic.tasks.to_string(),
        traffic.read.to_string(),
        traffic.written.to_string(),
        if traffic.end == 0 { String::new() } else { format!("{:#x}..{:#x}", traffic.start, traffic.end) },
    ]
}

/// Tokens waited for: by direction (input), row and channel, those of each column.
type Waits = BTreeMap<(bool, u8, u8), BTreeMap<u32, u64>>;

/// Totals over the operations.
struct Summary {
    /// By code: how many, and their bytes.
    counts: BTreeMap<u8, (u64, u64)>,
    waits: Waits,
}

impl Summary {
    fn of(stream: &Stream) -> Self {
        let mut summary = Self { counts: BTreeMap::new(), waits: BTreeMap::new() };
        for operation in stream.operations() {
            let count = summary.counts.entry(stream.code(operation)).or_default();
            *count = (count.0 + 1, count.1 + operation.size as u64);
            if let OperationKind::Wait { input, column, row, columns, rows, channel } = operation.kind {
                // No rectangle is larger than the array, whatever its bytes say.
                for row in row..row.saturating_add(rows.min(ROWS)) {
                    let columns = u32::from(column)..u32::from(column) + u32::from(columns.min(COLUMNS));
                    let waits = summary.waits.entry((input, row, channel)).or_default();
                    columns.for_each(|column| *waits.entry(column).or_default() += 1);
                }
            }
        }
        summary
    }
}

fn json(stream: &Stream, summary: &Summary, ops: bool) -> Value {
    let (generation, rows, columns) = stream.array();
    let (major, minor) = stream.version();
    let mut report = json!({
        "kind": "stream",
        "form": if stream.form() == Form::Full { "full" } else { "optimised" },
        "text": stream.was_text(),
        "stream_sha256": sha256(stream.bytes()),
        "stream_bytes": stream.bytes().len(),
        "header": { "major": major, "minor": minor, "generation": generation, "rows": rows, "columns": columns },
        "operations": stream.operations().len(),
        "counts": summary.counts.iter().map(|(code, (count, bytes))| {
            json!({ "name": code_name(*code), "code": code, "count": count, "bytes": bytes })
        }).collect::<Vec<_>>(),
        "arguments": arguments(stream),
        "waits": summary.waits.iter().flat_map(|((input, row, channel), columns)| {
            columns.iter().map(move |(column, tokens)| json!({
                "direction": if *input { "MM2S" } else { "S2MM" },
                "channel": channel, "row": row, "column": column, "tokens": tokens,
            }))
        }).collect::<Vec<_>>(),
        "waits_for_outputs": stream.waits_for_outputs(),
        "notes": notes(stream),
    });
    if ops && let Value::Object(fields) = &mut report {
        fields.insert("ops".to_owned(), list_json(stream));
    }
    report
}

/// What the stream does with its buffer arguments.
pub(super) fn arguments(stream: &Stream) -> Value {
    let arguments = stream.traffic().iter().enumerate().filter(|(_, traffic)| traffic.patches > 0);
    let argument = |(index, traffic): (usize, &Traffic)| {
        json!({
            "argument": index,
            "patches": traffic.patches,
            "descriptors": traffic.descriptors.iter().map(|(column, id)| json!([column, id])).collect::<Vec<_>>(),
            "tasks": traffic.tasks,
            "unknown_tasks": traffic.unknown,
            "bytes_read": traffic.read,
            "bytes_written": traffic.written,
            "start": traffic.start,
            "end": traffic.end,
        })
    };
    arguments.map(argument).collect()
}
