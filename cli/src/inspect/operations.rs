//! One operation of an instruction stream, in words.

use super::sheet::count;
use runtime::txn::{Operation, OperationKind, Place, Register, ShimDescriptor, Stream, code_name};
use serde_json::{Value, json};
use std::fmt::Write;

/// Data words of a block that a line shows.
const SHOWN: usize = 8;

/// What an operation does.
pub(super) fn text(stream: &Stream, operation: &Operation) -> String {
    match operation.kind {
        OperationKind::Write { address, value } => write(Place::new(address), value),
        OperationKind::BlockWrite { address, words } => block(stream, operation, address, words),
        OperationKind::MaskWrite { address, value, mask } => {
            format!("{} = {value:#x} under {mask:#x}", Place::new(address))
        }
        OperationKind::MaskPoll { address, value, mask } => {
            format!("until {} is {value:#x} under {mask:#x}", Place::new(address))
        }
        OperationKind::Noop => String::new(),
        OperationKind::Preempt { level } => {
            let level = match level {
                0 => "nothing",
                1 => "memory tiles",
                2 => "core tiles",
                3 => "core registers",
                _ => "unknown level",
            };
            format!("may give way here, saving {level}")
        }
        OperationKind::LoadPdi { id, size, address } => format!("PDI {id}, {size} bytes at {address:#x}"),
        OperationKind::Wait { input, column, row, columns, rows, channel } => {
            let direction = if input { "MM2S" } else { "S2MM" };
            let mut line = format!("a token of {direction} {channel} of tile ({column},{row})");
            if (columns, rows) != (1, 1) {
                // Writing to a string does not fail.
                let _ = write!(line, " and of each in {columns} columns x {rows} rows from there");
            }
            line
        }
        OperationKind::Patch { register, argument, offset } => {
            let bd = match Place::new(register) {
                Place { column, row, register: Register::Descriptor { id, .. } } => {
                    format!("tile ({column},{row}) BD {id}")
                }
                place => place.to_string(),
            };
            format!("{bd} points at argument {argument} + {offset:#x}")
        }
        OperationKind::Other { .. } => hexadecimal(stream.words(operation).skip(1)),
    }
}

/// A value that goes to a register.
pub(super) fn write(place: Place, value: u32) -> String {
    match place.register {
        Register::Queue { .. } => {
            let runs = count(u64::from(value >> 16 & 0xFF) + 1, "run");
            let token = if value >> 31 == 1 { ", token" } else { "" };
            // Descriptor ids have six bits in memory tiles, four elsewhere.
            let id = if place.row == 1 { value & 0x3F } else { value & 0xF };
            format!("{place} takes BD {id}, {runs}{token}")
        }
        _ => format!("{place} = {value:#x}"),
    }
}

fn block(stream: &Stream, operation: &Operation, address: u32, words: usize) -> String {
    let place = Place::new(address);
    let all = stream.words(operation);
    let skip = all.len().saturating_sub(words);
    let data: Vec<u32> = all.skip(skip).take(SHOWN).collect();
    if let (0, Register::Descriptor { word: 0, .. }, 8, Ok(words)) =
        (place.row, place.register, words, <&[u32; 8]>::try_from(data.as_slice()))
    {
        return format!("{place}: {}", ShimDescriptor::new(words));
    }
    let more = if words > data.len() { " .." } else { "" };
    format!("{place}, {}: {}{more}", count(words as u64, "word"), hexadecimal(data.into_iter()))
}

fn hexadecimal(words: impl Iterator<Item = u32>) -> String {
    words.take(SHOWN).map(|word| format!("{word:08x}")).collect::<Vec<_>>().join(" ")
}

/// The same for a program: fields, and the line.
pub(super) fn json(stream: &Stream, operation: &Operation) -> Value {
    let mut value = match operation.kind {
        OperationKind::Write { address, value } => json!({ "address": address, "value": value }),
        OperationKind::BlockWrite { address, words } => {
            let skip = (operation.size / 4).saturating_sub(words);
            json!({ "address": address, "words": stream.words(operation).skip(skip).collect::<Vec<_>>() })
        }
        OperationKind::MaskWrite { address, value, mask } | OperationKind::MaskPoll { address, value, mask } => {
            json!({ "address": address, "value": value, "mask": mask })
        }
        OperationKind::Preempt { level } => json!({ "level": level }),
        OperationKind::LoadPdi { id, size, address } => json!({ "pdi": id, "size": size, "address": address }),
        OperationKind::Wait { input, column, row, columns, rows, channel } => json!({
            "direction": if input { "MM2S" } else { "S2MM" },
            "channel": channel, "column": column, "row": row, "columns": columns, "rows": rows,
        }),
        OperationKind::Patch { register, argument, offset } => {
            json!({ "register": register, "argument": argument, "offset": offset })
        }
        OperationKind::Noop => json!({}),
        OperationKind::Other { .. } => json!({ "words": stream.words(operation).skip(1).collect::<Vec<_>>() }),
    };
    if let Value::Object(fields) = &mut value {
        fields.insert("offset".to_owned(), json!(operation.offset));
        fields.insert("name".to_owned(), json!(code_name(stream.code(operation))));
        fields.insert("text".to_owned(), json!(text(stream, operation)));
    }
    value
}
