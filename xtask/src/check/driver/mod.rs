//! The real amdxdna driver, in a virtual machine on the virtual NPU: the demo's answers as in process, the table of
//! driver cases, a device that misbehaves, and the image that serves.

mod answers;
mod health;
mod image;
mod table;
mod trouble;

use super::{Outcome, Tally};
use crate::vm::{self, Done, Ended, Scenario, Step};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// For a command on the host.
const LIMIT: Duration = Duration::from_secs(15 * 60);

/// What every part needs: where things are, and what has come out so far.
struct Bench {
    demo: PathBuf,
    binary: PathBuf,
    tally: Tally,
    failed: Vec<String>,
}

impl Bench {
    /// A boot with the demo model in it.
    fn boot(&self, steps: Vec<Step>) -> Scenario {
        let trees = ["bundle", "samples"].map(|name| (name.to_owned(), self.demo.join(name)));
        Scenario { binary: self.binary.clone(), trees: trees.into(), steps, ..Scenario::default() }
    }

    fn record(&mut self, name: &str, outcome: Result<String, String>) {
        match outcome {
            Ok(said) => {
                crate::print(&format!("driver: {name}: {said}\n"));
                self.tally.passed += 1;
            }
            Err(why) => {
                crate::print(&format!("driver: {name}: FAILED: {why}\n"));
                self.tally.failed += 1;
                self.failed.push(name.to_owned());
            }
        }
    }
}

/// A question to the demo model: the words of a command in the machine.
fn question(picture: Option<&str>, text: &str) -> Vec<String> {
    let mut words = ["/bundle", "--device", "virtual", "--prompt", text].map(str::to_owned).to_vec();
    if let Some(name) = picture {
        words.extend(["--image".to_owned(), format!("/samples/{name}")]);
    }
    words
}

/// The steps' outcomes, where there is one for each.
fn complete<const N: usize>(ended: Ended) -> Result<[Done; N], String> {
    let count = ended.done.len();
    ended.done.try_into().map_err(|_| format!("the machine ended after {count} of {N} steps"))
}

/// The part that lands with every change.
pub(super) fn run(root: &Path) -> Outcome {
    with(root, |bench| {
        answers::run(bench);
        table::run(bench);
        trouble::run(bench);
        health::run(bench);
    })
}

/// The image: one boot, asked from outside.
pub(super) fn image(root: &Path) -> Outcome {
    with(root, |bench| image::run(bench, root))
}

/// Other firmware, other parts, other address modes: the table on each.
pub(super) fn others(root: &Path) -> Outcome {
    with(root, table::others)
}

fn with(root: &Path, parts: impl FnOnce(&mut Bench)) -> Outcome {
    if let Err(why) = vm::available() {
        return Outcome::Skip(why);
    }
    match vm::fetched(root) {
        Ok(Ok(())) => {}
        Ok(Err(why)) => return Outcome::Skip(why),
        Err(why) => return Outcome::Fail(Tally::ONE_FAILED, why),
    }
    let binary = match vm::static_binary_of(root) {
        Ok(binary) => binary,
        Err(why) => return Outcome::Fail(Tally::ONE_FAILED, why),
    };
    let mut bench = Bench { demo: root.join("cli/demo"), binary, tally: Tally::default(), failed: Vec::new() };
    parts(&mut bench);
    match bench.failed.is_empty() {
        true => Outcome::Pass(bench.tally),
        false => Outcome::Fail(bench.tally, bench.failed.join(", ")),
    }
}
