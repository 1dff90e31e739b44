//! A device that stops answering, fails, raises errors, does not wake, or is taken away: the run that meets it ends in
//! one line that says so, nothing hangs, and the next run works.

use super::{Bench, complete, question};
use crate::vm::{Done, Step, scenario};
use npu_model::Faults;

/// What ends a command of this number ends it in the middle of an answer.
const COMMAND: u64 = 60;
/// Longer than the five seconds after which the driver suspends an idle device (`amdxdna_pm.c`).
const IDLE_MS: u32 = 7000;
/// What a client may take to notice that its device is gone.
const NOTICE: u32 = 60;

/// A fault, what the run that meets it has to say, and whether the module is loaded anew before the next run.
struct Case {
    name: &'static str,
    faults: fn(&mut Faults),
    /// Idle time before the run that meets it; a run goes before.
    idle: bool,
    says: &'static [&'static str],
    reload: bool,
}

const CASES: [Case; 5] = [
    Case {
        name: "a command that never ends",
        faults: |f| f.hang_command = Some(COMMAND),
        idle: false,
        says: &["context", "kernel", "TIMEOUT"],
        reload: false,
    },
    Case {
        name: "a command that fails",
        faults: |f| f.fail_command = Some(COMMAND),
        idle: false,
        says: &["context", "kernel", "ERROR"],
        reload: false,
    },
    Case {
        name: "a firmware that stops answering",
        faults: |f| f.silent_from = Some(COMMAND),
        idle: false,
        says: &["context", "kernel", "TIMEOUT"],
        reload: true,
    },
    Case {
        name: "an error of the array that nobody asked for",
        faults: |f| f.async_error = Some(COMMAND),
        idle: false,
        says: &["array", "column 0"],
        reload: false,
    },
    Case {
        name: "a device that does not wake",
        faults: |f| f.no_resume = true,
        idle: true,
        says: &["/dev/accel/accel0"],
        reload: true,
    },
];

pub(super) fn run(bench: &mut Bench) {
    for case in &CASES {
        let outcome = shown(bench, case);
        bench.record(case.name, outcome);
    }
    let outcome = unbound(bench);
    bench.record("the device taken away under a client", outcome);
    let outcome = slept(bench);
    bench.record("asleep and awake again", outcome);
    let outcome = reset(bench);
    bench.record("reset as a PCI function", outcome);
}

fn ask() -> Step {
    Step::Run(question(None, "What is qwen35-direct?"))
}

fn shown(bench: &Bench, case: &Case) -> Result<String, String> {
    let mut steps = Vec::new();
    if case.idle {
        steps.extend([ask(), Step::Sleep(IDLE_MS)]);
    }
    let meets = steps.len();
    steps.push(ask());
    if case.reload {
        steps.extend([Step::Unload, Step::Load]);
    }
    // A client that left something behind would keep the module.
    steps.extend([ask(), Step::Unload]);
    let asked = steps.len();
    let mut boot = bench.boot(steps);
    (case.faults)(&mut boot.faults);
    let ended = scenario(boot)?;
    let seconds = ended.seconds;
    let done = ended.done;
    if done.len() != asked {
        return Err(format!("the machine ended after {} of {asked} steps: {}", done.len(), all(&done)));
    }
    let counts = &ended.counts;
    if counts.contexts_created != counts.contexts_destroyed {
        let (made, ended) = (counts.contexts_created, counts.contexts_destroyed);
        return Err(format!("{made} contexts were made on the device and {ended} destroyed"));
    }
    let said = says(&done[meets], case.says)?;
    match done.iter().enumerate().find(|(i, step)| *i != meets && !step.is_fine()) {
        Some((_, step)) => Err(format!("{step}: {}; after: {said}", step.stderr.trim())),
        None => Ok(format!("{said:?}; the next run works ({seconds:.1} s)")),
    }
}

/// One line on standard error with all these words, and exit code 1.
fn says(done: &Done, words: &[&str]) -> Result<String, String> {
    let said = done.stderr.trim();
    let fine = done.exit == Some(1) && said.lines().count() == 1 && words.iter().all(|word| said.contains(word));
    if fine { Ok(said.to_owned()) } else { Err(format!("{done}, with {said:?}, where {words:?} were expected")) }
}

fn all(done: &[Done]) -> String {
    done.iter().map(|step| format!("{step} {:?}; ", step.stderr.trim())).collect()
}

fn unbound(bench: &Bench) -> Result<String, String> {
    let story = "Tell me about yourself.";
    let mut words = question(Some("three-shapes.png"), story);
    words.extend(["--max-new".to_owned(), "900".to_owned()]);
    let steps = vec![Step::Start(words), Step::Sleep(4000), Step::Unbind, Step::Finish(NOTICE), Step::Bind, ask()];
    let ended = scenario(bench.boot(steps))?;
    let seconds = ended.seconds;
    let [started, _, unbind, finish, bind, next] = complete(ended)?;
    for step in [&unbind, &bind, &next] {
        if !step.is_fine() {
            return Err(format!("{step}: {}", step.stderr.trim()));
        }
    }
    match (finish.exit, started.stderr.trim()) {
        (Some(1), said) if said.lines().count() == 1 => {
            Ok(format!("{said:?}; bound again, the next run works ({seconds:.1} s)"))
        }
        (_, said) => Err(format!("{finish}: {said:?}")),
    }
}

fn slept(bench: &Bench) -> Result<String, String> {
    let ended = scenario(bench.boot(vec![ask(), Step::Sleep(IDLE_MS), ask()]))?;
    let seconds = ended.seconds;
    let [first, _, second] = complete(ended)?;
    match first.is_fine() && second.is_fine() && first.stdout == second.stdout {
        true => Ok(format!("the same answer ({seconds:.1} s)")),
        false => Err(format!("{first}: {}; {second}: {}", first.stderr.trim(), second.stderr.trim())),
    }
}

/// The driver knows nothing of a reset that it did not ask for: the next run may fail, but does not hang.
fn reset(bench: &Bench) -> Result<String, String> {
    let steps = vec![ask(), Step::Reset, ask(), Step::Unload, Step::Load, ask()];
    let ended = scenario(bench.boot(steps))?;
    let seconds = ended.seconds;
    let [first, reset, after, unload, load, last] = complete(ended)?;
    for step in [&first, &reset, &unload, &load, &last] {
        if !step.is_fine() {
            return Err(format!("{step}: {}", step.stderr.trim()));
        }
    }
    let said = match after.exit {
        Some(0) => "the run after it works".to_owned(),
        _ => format!("the run after it: {:?}", after.stderr.trim()),
    };
    Ok(format!("{said}; with the module loaded anew the next one works ({seconds:.1} s)"))
}
