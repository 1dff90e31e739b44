//! The demo model against transformers: the references that its bundle carries, end to end on the software NPU.

use super::{Outcome, Tally, cargo, timed};
use std::path::Path;
use std::time::Duration;

/// A release build from nothing on two cores, and the references.
const LIMIT: Duration = Duration::from_secs(15 * 60);

pub(super) fn run(root: &Path) -> Outcome {
    let words = ["run", "--release", "--quiet", "--locked", "--", "check", "cli/demo/bundle", "--device", "model"];
    match timed(&mut cargo(root, &words), LIMIT) {
        Ok(table) => {
            crate::print(&table);
            match table.lines().last() {
                Some("PASS") => Outcome::Pass(Tally::ONE_PASSED),
                last => Outcome::Fail(Tally::ONE_FAILED, format!("the last line is {last:?}, not PASS")),
            }
        }
        Err(why) => Outcome::Fail(Tally::ONE_FAILED, why),
    }
}
