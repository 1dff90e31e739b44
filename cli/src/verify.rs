//! `verify`: is this directory a whole bundle, and which?

use crate::error::{CliError, one_line};
use crate::interrupt::Interrupt;
use crate::output::{ProgressLine, answer};
use runtime::verify::{Sums, Verification, verify};
use serde_json::{Value, json};
use std::fmt::Write;
use std::ops::ControlFlow;
use std::path::Path;

pub(crate) fn run(bundle: &Path, json: bool) -> Result<(), CliError> {
    let interrupt = Interrupt::install();
    let mut line = ProgressLine::new();
    let found = interrupt.guarded(|| {
        verify(bundle, &mut |progress| {
            line.share("comparing checksums", progress.done, progress.total);
            if interrupt.asked() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
    });
    line.clear();
    let found = found.map_err(|source| CliError::Bundle { path: bundle.to_owned(), source })?;
    let Some(found) = found else { return Err(CliError::Interrupted) };
    answer(&if json { format!("{:#}\n", as_json(&found)) } else { as_text(&found) })?;
    if found.passed() { Ok(()) } else { Err(CliError::NotVerified(found.problems.len())) }
}

fn as_text(found: &Verification) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    if let Some(identity) = &found.identity {
        let _ = writeln!(out, "{identity}");
    }
    if let Some(origin) = &found.origin {
        let _ = writeln!(out, "downloaded at revision {}", origin.revision);
    }
    let _ = match found.sums {
        Sums::Absent => writeln!(out, "no checksums.txt: whether every byte is as it was written cannot be told"),
        Sums::Downloaded { files, bytes } => {
            writeln!(out, "no checksums.txt; {files} files, {bytes} bytes compared with the digests of their download")
        }
        Sums::Unusable => writeln!(out, "the checksums cannot be used"),
        Sums::Compared { files, bytes } => writeln!(out, "{files} files, {bytes} bytes compared with their checksums"),
    };
    for file in &found.unlisted {
        let _ = writeln!(out, "{file}: in no list of checksums");
    }
    for problem in &found.problems {
        let _ = writeln!(out, "{}: {}", problem.name(), one_line(problem));
    }
    out + if found.passed() { "PASS\n" } else { "FAIL\n" }
}

fn as_json(found: &Verification) -> Value {
    let sums = match found.sums {
        Sums::Absent => Value::Null,
        Sums::Unusable => json!({"usable": false}),
        Sums::Downloaded { files, bytes } => json!({"usable": true, "of": "download", "files": files, "bytes": bytes}),
        Sums::Compared { files, bytes } => json!({"usable": true, "files": files, "bytes": bytes}),
    };
    let identity = found.identity.as_ref().map(|identity| {
        json!({
            "model": identity.model, "layers": identity.layers, "text": identity.text.name(),
            "vision": identity.vision, "kernels": identity.kernels.name(), "like": identity.published(),
        })
    });
    let problems: Vec<Value> = found
        .problems
        .iter()
        .map(|problem| json!({"problem": problem.name(), "message": problem.to_string()}))
        .collect();
    json!({
        "passed": found.passed(), "bundle": identity, "revision": found.origin.as_ref().map(|origin| &origin.revision),
        "checksums": sums, "problems": problems,
        "unlisted": found.unlisted,
    })
}
