//! The README's commands, run as a reader would.

use super::{Outcome, Tally, timed};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// What the README's question is answered with: what its picture shows, in the words of the demo model's training.
const ANSWER: &str = "There is a red circle on the left, a blue star in the middle and a green square on the right. The \
                      background is white.";

/// A release build from nothing on two cores, and an answer.
const LIMIT: Duration = Duration::from_secs(15 * 60);

pub(super) fn run(root: &Path) -> Outcome {
    let Ok(readme) = std::fs::read_to_string(root.join("README.md")) else {
        return Outcome::Skip("no README.md yet".into());
    };
    if !root.join("cli/demo/bundle/manifest.txt").is_file() {
        return Outcome::Skip("the demo model is not in the tree".into());
    }
    let Some(line) = readme.lines().map(str::trim).find(|line| line.starts_with("cargo run --release -- demo")) else {
        return Outcome::Fail(Tally::ONE_FAILED, "README.md shows no `cargo run --release -- demo ...`".into());
    };
    if !readme.lines().any(|line| line.trim() == "cargo xtask check") {
        return Outcome::Fail(Tally::ONE_FAILED, "README.md does not show `cargo xtask check`".into());
    }
    let mut command = Command::new("sh");
    command.current_dir(root).args(["-c", line]);
    match timed(&mut command, LIMIT) {
        Ok(answer) if answer.trim_end() != ANSWER => {
            Outcome::Fail(Tally::ONE_FAILED, format!("{line}: {answer:?}; expected {ANSWER:?}"))
        }
        Ok(answer) => {
            crate::print(&format!("$ {line}\n{answer}"));
            Outcome::Pass(Tally::ONE_PASSED)
        }
        Err(why) => Outcome::Fail(Tally::ONE_FAILED, why),
    }
}
