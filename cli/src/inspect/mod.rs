//! `inspect`: what a file of the NPU's world says, told apart by content and read by the runtime's own parsers.

mod bundle;
mod image;
mod operations;
mod sheet;
mod stream;
#[cfg(test)]
mod tests;
mod trace;
mod xclbin;

use crate::error::CliError;
use crate::output::answer;
use runtime::files;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::fs;
use std::io::Read;
use std::path::Path;

/// Version of the JSON form.
const VERSION: u32 = 1;
/// The device heap's size: no container, image or stream that is larger could be used. Traces may be longer.
const LARGEST: u64 = 64 << 20;

/// What there is to say about a file.
#[derive(Debug)]
struct Report {
    text: String,
    json: Value,
    /// What is wrong with a part, where the rest could be told.
    damage: Option<String>,
}

/// What a file holds, by its first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    Xclbin,
    Pdi,
    Trace,
    Elf,
    LfsPointer,
    Picture,
    /// What nothing else is: streams have no mark.
    Stream,
}

impl Content {
    fn of(bytes: &[u8]) -> Self {
        if bytes.starts_with(b"xclbin2") {
            Self::Xclbin
        } else if runtime::pdi::is_pdi(bytes) {
            Self::Pdi
        } else if bytes.starts_with(b"\x7FELF") {
            Self::Elf
        } else if bytes.starts_with(b"version https://git-lfs") {
            Self::LfsPointer
        } else if bytes.trim_ascii_start().starts_with(b"{") {
            Self::Trace
        } else if bytes.starts_with(b"\x89PNG") || bytes.starts_with(b"\xFF\xD8\xFF") {
            Self::Picture
        } else {
            Self::Stream
        }
    }
}

/// Explains a file or a bundle directory on standard output.
pub(crate) fn run(path: &Path, as_json: bool, ops: bool) -> Result<(), CliError> {
    let wrong = |what: String| CliError::Inspect { path: path.to_owned(), what };
    let io = |error: std::io::Error| wrong(error.to_string());
    let report = if fs::metadata(path).map_err(io)?.is_dir() {
        bundle::explain(path, ops).map_err(|source| CliError::Bundle { path: path.to_owned(), source })?
    } else {
        let mut file = files::open(path).map_err(io)?;
        let mut bytes = Vec::new();
        file.by_ref().take(4096).read_to_end(&mut bytes).map_err(io)?;
        // A trace may be long; anything else has to fit the device heap.
        let most = if Content::of(&bytes) == Content::Trace { 16 * LARGEST } else { LARGEST };
        file.take(most).read_to_end(&mut bytes).map_err(io)?;
        if bytes.len() as u64 > most {
            return Err(wrong(format!("more than {most} bytes: no xclbin, PDI, instruction stream or trace")));
        }
        explain(&bytes, ops).map_err(wrong)?
    };
    let mut out = report.text;
    if as_json {
        out = report.json.to_string();
        out.push('\n');
    }
    answer(&out)?;
    report.damage.map_or(Ok(()), |what| Err(wrong(what)))
}

/// Explains a file's bytes; the error says what is wrong with them, and where.
fn explain(bytes: &[u8], ops: bool) -> Result<Report, String> {
    if bytes.starts_with(b"{\"traceEvents\"") || bytes.starts_with(b"{\n\"traceEvents\"") {
        return Err(
            "a timeline as `--trace` writes it, for Perfetto; the traces that are explained here are those of a \
                    client's calls, a JSON object a line"
                .to_owned(),
        );
    }
    let mut report = match Content::of(bytes) {
        Content::Xclbin => xclbin::explain(bytes, ops)?,
        Content::Pdi => image::explain(bytes, ops)?,
        Content::Trace => trace::explain(bytes, ops)?,
        Content::Stream => stream::explain(bytes, ops)?,
        Content::Picture => return Err("byte 0: a picture; pictures are for --image".to_owned()),
        Content::LfsPointer => {
            return Err("byte 0: a Git LFS pointer, not the file itself; fetch it with `git lfs pull`".to_owned());
        }
        Content::Elf => {
            return Err("byte 0: an ELF file; control code in ELF form is not read, expected an xclbin, a PDI, an \
                        instruction stream, a trace or a bundle"
                .to_owned());
        }
    };
    if let Value::Object(fields) = &mut report.json {
        fields.insert("version".to_owned(), json!(VERSION));
        fields.insert("bytes".to_owned(), json!(bytes.len()));
        fields.insert("sha256".to_owned(), json!(sha256(bytes)));
        if let Some(damage) = &report.damage {
            fields.insert("damage".to_owned(), json!(damage));
        }
    }
    Ok(report)
}

/// The hash of some bytes, in hexadecimal.
fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
