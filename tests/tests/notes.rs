//! The notes on driver and firmware name the case that holds each rule; it must exist.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use driver_tests::cases::{Group, all};

#[test]
fn every_named_case_exists() {
    let cases: BTreeSet<String> = all().map(ToString::to_string).collect();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../firmware-notes");
    let mut named = BTreeSet::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "md") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        for span in text.split('`').skip(1).step_by(2) {
            let Some((group, name)) = span.split_once("::") else { continue };
            // `fence::tests::...` are unit tests.
            if Group::named(group).is_none() || name.starts_with("tests") {
                continue;
            }
            assert!(cases.contains(span), "{} names `{span}`, which is not in the table", path.display());
            named.insert(span.to_owned());
        }
    }
    assert!(named.len() > 80, "only {} cases are named", named.len());
}
