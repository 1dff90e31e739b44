//! This runtime's requests beside those of a runtime that is known to work on hardware.
//!
//! `witness.jsonl` is the trace of `taconite-qwen35` 0.1.1 (`direct`) with the text-only bundle of `driver_tests::tiny`, the
//! prompt "Hi" and two new tokens, recorded with `cargo xtask supervise --trace`; `cargo xtask check peer` records it
//! again, where the peer can be had.
#![allow(clippy::unwrap_used, reason = "a test")]

use driver_tests::sequence::{INTENDED, compare, facts, own_trace};
use driver_tests::tiny;
use npu_model::trace::Record;

#[test]
fn requests_differ_from_the_witness_only_where_they_should() {
    let witness = Record::parse_all(include_str!("witness.jsonl")).unwrap();
    let folder = std::env::temp_dir().join(format!("qwen35-witness-{}", std::process::id()));
    let ours = own_trace(&tiny::text_bundle(&folder).unwrap()).unwrap();
    std::fs::remove_dir_all(folder).unwrap();
    let differences = compare(&facts(&ours, false), &facts(&witness, false));
    for found in &differences {
        let (subject, ours, witness) = (&found.subject, &found.ours, &found.witness);
        assert!(found.reason().is_some(), "{subject}\nours: {ours}\nwitness: {witness}\nand nothing says why");
    }
    for (subject, _) in INTENDED {
        assert!(differences.iter().any(|found| found.subject == *subject), "{subject} is the same now");
    }
}
