//! The demo's answers through the driver, to the letter those of the software NPU in process; before and after the
//! module was loaded anew.

use super::{Bench, LIMIT, complete, question};
use crate::timed::timed;
use crate::vm::{Step, scenario};
use std::process::Command;

const QUESTIONS: [(Option<&str>, &str); 2] =
    [(Some("three-shapes.png"), "What colour is the star?"), (None, "What is qwen35-direct?")];

pub(super) fn run(bench: &mut Bench) {
    let outcome = answers(bench);
    bench.record("answers as in process, the module unloaded and loaded between them", outcome);
}

fn answers(bench: &Bench) -> Result<String, String> {
    let [first, second] = QUESTIONS.map(|(picture, text)| in_process(bench, picture, text));
    let expected = [first?, second?];
    let [one, two] = QUESTIONS.map(|(picture, text)| Step::Run(question(picture, text)));
    let ended = scenario(bench.boot(vec![one, Step::Unload, Step::Load, two]))?;
    let (seconds, start, bytes) = (ended.seconds, ended.start_seconds.unwrap_or_default(), ended.initramfs_bytes);
    let [one, unload, load, two] = complete(ended)?;
    for step in [&one, &unload, &load, &two] {
        if !step.is_fine() {
            return Err(format!("{step}\n{}", step.stderr));
        }
    }
    for (done, expected) in [&one, &two].into_iter().zip(&expected) {
        if done.stdout != *expected || expected.trim().is_empty() {
            return Err(format!("in process: {expected:?}; through the driver: {:?}", done.stdout));
        }
    }
    let binary = std::fs::metadata(&bench.binary).map(|m| m.len()).unwrap_or_default();
    Ok(format!(
        "{:?}, {:?}; boot {start:.1} s, {seconds:.1} s in all; static binary {:.1} MB, initramfs with the demo model \
         {:.1} MB",
        one.stdout.trim(),
        two.stdout.trim(),
        binary as f64 / 1e6,
        bytes as f64 / 1e6
    ))
}

/// The answer of the software NPU in the program's own process.
fn in_process(bench: &Bench, picture: Option<&str>, text: &str) -> Result<String, String> {
    let mut command = Command::new(&bench.binary);
    command.arg(bench.demo.join("bundle")).args(["--device", "model", "--prompt", text]);
    if let Some(name) = picture {
        command.arg("--image").arg(bench.demo.join("samples").join(name));
    }
    timed(&mut command, LIMIT)
}
