//! The notes beside the crate name numbers; they must be the code's.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs;
use std::path::Path;

fn pages() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut pages = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "md") {
            pages.push((path.file_name().unwrap().to_string_lossy().into_owned(), fs::read_to_string(&path).unwrap()));
        }
    }
    assert!(pages.len() >= 8);
    pages
}

#[test]
fn every_checked_number_is_the_codes() {
    let table = npu_model::notes_table();
    let mut seen = Vec::new();
    for (page, text) in pages() {
        for line in text.lines() {
            let Some(check) = line.strip_prefix("<!-- check: ").and_then(|line| line.strip_suffix(" -->")) else {
                continue;
            };
            let (name, value) = check.split_once(" = ").unwrap();
            let value = match value.strip_prefix("0x") {
                Some(hex) => u64::from_str_radix(hex, 16).unwrap(),
                None => value.parse().unwrap(),
            };
            assert!(table.contains(&(name, value)), "{page}: {check}");
            seen.push(name.to_owned());
        }
    }
    for (name, value) in table {
        assert!(seen.iter().any(|seen| seen == name), "no note says {name} = {value}");
    }
}
