//! The numbers in `firmware-notes/*.md` against the code's.
//!
//! A note states a number that matters as `<!-- check: name = value -->` beside the sentence that uses it; the software
//! NPU states it in `npu_model::notes_table()`. Each has to be in the other, with the same value.

use super::{Outcome, Tally};
use std::collections::BTreeMap;
use std::path::Path;

pub(super) fn run(root: &Path) -> Outcome {
    let mut complaints = Vec::new();
    let mut stated: BTreeMap<String, u64> = BTreeMap::new();
    let folder = root.join("firmware-notes");
    let files = match std::fs::read_dir(&folder) {
        Ok(entries) => entries.filter_map(Result::ok).map(|entry| entry.path()),
        Err(error) => return Outcome::Fail(Tally::ONE_FAILED, format!("{}: {error}", folder.display())),
    };
    let mut files: Vec<_> = files.filter(|path| path.extension().is_some_and(|end| end == "md")).collect();
    files.sort();
    for path in &files {
        let Ok(text) = std::fs::read_to_string(path) else {
            complaints.push(format!("{}: not readable as UTF-8", path.display()));
            continue;
        };
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        for (line, statement) in statements(&text) {
            match parse(statement) {
                Some((what, value)) => {
                    if stated.insert(what.to_owned(), value).is_some_and(|before| before != value) {
                        complaints.push(format!("{name}:{line}: {what} has another value elsewhere"));
                    }
                }
                None => complaints.push(format!("{name}:{line}: cannot read {statement:?} as `name = value`")),
            }
        }
    }
    let code: BTreeMap<&str, u64> = npu_model::notes_table().iter().copied().collect();
    for (name, value) in &stated {
        match code.get(name.as_str()) {
            None => complaints.push(format!("{name} = {value} stands in a note but not in the code")),
            Some(other) if other != value => {
                complaints.push(format!("{name} is {value} in a note and {other} in the code"));
            }
            Some(_) => {}
        }
    }
    for (name, value) in &code {
        if !stated.contains_key(*name) {
            complaints.push(format!("{name} = {value} stands in the code but in no note"));
        }
    }
    for complaint in &complaints {
        crate::print(&format!("{complaint}\n"));
    }
    if !complaints.is_empty() {
        Outcome::Fail(Tally::ONE_FAILED, format!("{} complaints, above", complaints.len()))
    } else if stated.is_empty() {
        Outcome::Skip("the notes state no number yet".into())
    } else {
        crate::print(&format!("{} numbers in {} notes\n", stated.len(), files.len()));
        Outcome::Pass(Tally::ONE_PASSED)
    }
}

/// What stands between `<!-- check:` and `-->`, with its line from 1. Examples in code spans are left alone.
fn statements(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().flat_map(|(index, line)| {
        line.match_indices("<!-- check:")
            .filter(move |(at, _)| !line[..*at].ends_with('`'))
            .map(move |(at, mark)| (index + 1, line[at + mark.len()..].split("-->").next().unwrap_or_default().trim()))
    })
}

fn parse(statement: &str) -> Option<(&str, u64)> {
    let (name, value) = statement.split_once('=')?;
    let value = value.trim().replace('_', "");
    let number = match value.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok()?,
        None => value.parse().ok()?,
    };
    Some((name.trim(), number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_are_found_and_read() {
        let text = "a <!-- check: x = 4 --> b <!-- check: y=0x1_0 -->\n`<!-- check: z = 1 -->`\n<!-- check: w -->";
        let found: Vec<_> = statements(text).map(|(line, s)| (line, parse(s))).collect();
        assert_eq!(found, [(1, Some(("x", 4))), (1, Some(("y", 16))), (3, None)]);
    }
}
