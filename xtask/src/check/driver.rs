//! The real amdxdna driver, in a virtual machine on the virtual NPU: the demo's answers as in process, and the table of
//! driver cases.

use super::{Outcome, Tally, timed};
use crate::vm;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Questions whose answers have to be the same, to the letter, in process and through the driver.
const QUESTIONS: [(Option<&str>, &str); 2] =
    [(Some("three-shapes.png"), "What colour is the star?"), (None, "What is qwen35-direct?")];

const LIMIT: Duration = Duration::from_secs(15 * 60);

pub(super) fn run(root: &Path) -> Outcome {
    if let Err(why) = vm::available() {
        return Outcome::Skip(why);
    }
    match vm::fetched(root) {
        Ok(Ok(())) => {}
        Ok(Err(why)) => return Outcome::Skip(why),
        Err(why) => return Outcome::Fail(Tally::ONE_FAILED, why),
    }
    let demo = root.join("cli/demo");
    let binary = match vm::static_binary_of(root) {
        Ok(binary) => binary,
        Err(why) => return Outcome::Fail(Tally::ONE_FAILED, why),
    };
    let mut tally = Tally::default();
    let mut failed = Vec::new();
    for (picture, question) in QUESTIONS {
        let mut note = |what: String| {
            tally.failed += 1;
            crate::print(&format!("{question}: {what}\n"));
            failed.push(question.to_owned());
        };
        let mut host = Command::new(&binary);
        host.arg(demo.join("bundle")).args(["--device", "model", "--prompt", question]);
        let mut guest =
            vec!["/bundle".to_owned(), "--device".into(), "virtual".into(), "--prompt".into(), question.into()];
        if let Some(name) = picture {
            host.arg("--image").arg(demo.join("samples").join(name));
            guest.extend(["--image".into(), format!("/samples/{name}")]);
        }
        let trees = [("bundle", demo.join("bundle")), ("samples", demo.join("samples"))];
        match (timed(&mut host, LIMIT), vm::ask(&binary, &trees, &guest)) {
            (Ok(expected), Ok(got)) if got.exit == 0 && got.stdout == expected && !expected.trim().is_empty() => {
                crate::print(&format!("{question} {expected}  ({:.1} s, boot to power-off)\n", got.seconds));
                tally.passed += 1;
            }
            (Ok(expected), Ok(got)) => note(format!(
                "in process: {expected:?}; through the driver: {:?}, exit code {}, {}",
                got.stdout, got.exit, got.stderr
            )),
            (Err(why), _) | (_, Err(why)) => note(why),
        }
    }
    table(&binary, &mut tally, &mut failed);
    match failed.is_empty() {
        true => Outcome::Pass(tally),
        false => Outcome::Fail(tally, failed.join(", ")),
    }
}

/// Groups whose cases have one right outcome whatever the machine's speed. `fault` and `power` wait for the driver's
/// own timers, and `perf` measures: they run in a boot of their own, and are shown, not judged.
const JUDGED: [&str; 10] = ["open", "query", "bo", "heap", "context", "exec", "chain", "fence", "share", "multi"];
const SHOWN: [&str; 3] = ["fault", "power", "perf"];

/// The table of driver cases; its own lines say what failed.
fn table(binary: &Path, tally: &mut Tally, failed: &mut Vec<String>) {
    let trees: [(&str, PathBuf); 0] = [];
    for (groups, judged) in [(&JUDGED[..], true), (&SHOWN[..], false)] {
        let mut words = ["driver-check", "--device", "virtual"].map(str::to_owned).to_vec();
        for group in groups {
            words.extend(["--group".to_owned(), (*group).to_owned()]);
        }
        let ask = || {
            let got = vm::ask(binary, &trees, &words);
            if let Ok(got) = &got {
                crate::print(&got.stdout);
                let how = if judged { "judged" } else { "shown, not judged" };
                crate::print(&format!("driver table, {how}: exit code {}, {:.1} s\n", got.exit, got.seconds));
            }
            got
        };
        let mut got = ask();
        if !judged {
            continue;
        }
        // The machine is emulated, and its clock is the host's: a host that was busy can be too slow for a deadline once.
        // What fails in a second boot too is wrong.
        if !got.as_ref().is_ok_and(|got| got.exit == 0) {
            crate::print("driver table: a second boot, since the first failed as above\n");
            got = ask();
        }
        match got {
            Ok(got) if got.exit == 0 => tally.passed += 1,
            Ok(_) => {
                tally.failed += 1;
                failed.push("the driver table".into());
            }
            Err(why) => {
                tally.failed += 1;
                failed.push(why);
            }
        }
    }
}
