//! What `doctor` says of a machine and what a run comes to in the same state: they have to agree. And what `devices`
//! and `top` say while a run goes on.

use super::{Bench, complete, question};
use crate::vm::{Done, Step, scenario};
use npu_model::Faults;
use serde_json::Value;

/// One that is no root, in no group but its own.
const USER: u32 = 1000;
const TENSORS: &str = "/bundle/tensors.bin";
const FIRMWARE: &str = "/lib/firmware/amdnpu/17f0_10";
/// Longer than the five seconds after which the driver suspends an idle device.
const IDLE_MS: u32 = 7000;

/// What a state is to come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Comes {
    /// A run works, and the doctor says so.
    Well,
    /// A run fails, and the doctor says why, in these words.
    Ill(&'static [&'static str]),
    /// A run works, and the doctor warns, in these words.
    Warned(&'static [&'static str]),
    /// A run answers from what is not the bundle, which only the doctor sees, in these words.
    Wrong(&'static [&'static str]),
}

/// A state of the machine: how it comes to be, what it is to come to, and how it is mended.
struct State {
    name: &'static str,
    breaks: Vec<Step>,
    user: Option<u32>,
    comes: Comes,
    mends: Vec<Step>,
}

fn state(name: &'static str, breaks: Vec<Step>, comes: Comes, mends: Vec<Step>) -> State {
    State { name, breaks, user: None, comes, mends }
}

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

fn doctor() -> Vec<String> {
    words("doctor /bundle --device virtual --json")
}

fn answer() -> Vec<String> {
    [question(None, "Hi"), words("--max-new 2")].concat()
}

pub(super) fn run(bench: &mut Bench) {
    let outcome = beside_a_run(bench);
    bench.record("devices, and top beside a run", outcome);
    let outcome = agree(bench, states(), Faults::default());
    bench.record("doctor and a run agree about machines and bundles", outcome);
    let outcome = agree(bench, without(), Faults { no_context: true, ..Faults::default() });
    bench.record("doctor and a run agree about a device that gives no context, and about none", outcome);
    let outcome = faults(bench);
    bench.record("doctor meets the faults that a run meets", outcome);
}

/// With a device that is well.
fn states() -> Vec<State> {
    let moved = |from: &str, to: &str| Step::Move(from.to_owned(), to.to_owned());
    let flip = || Step::Flip(1 << 20, TENSORS.to_owned());
    let pointer = "version https://git-lfs.github.com/spec/v1";
    let away = || vec![moved(FIRMWARE, "/firmware"), Step::Unload, Step::Load];
    let mode = |mode| Step::Mode(mode, "/dev/accel/accel0".to_owned());
    vec![
        state("all is well", vec![], Comes::Well, vec![]),
        State {
            user: Some(USER),
            ..state("a node of root's alone", vec![mode(0o600)], Comes::Ill(&["no permission", "accel0"]), vec![])
        },
        State {
            user: Some(USER),
            ..state("a user without locked memory", vec![mode(0o666), Step::Limit("memlock", 0)], Comes::Well, vec![])
        },
        state(
            "few files",
            vec![Step::Limit("nofile", 32)],
            Comes::Warned(&["ulimit -n"]),
            vec![Step::Limit("nofile", 1024)],
        ),
        state("a byte turned around", vec![flip()], Comes::Wrong(&["tensors.bin", "SHA-256", "again"]), vec![flip()]),
        state(
            "a Git LFS pointer",
            vec![moved(TENSORS, "/tensors"), Step::Write(TENSORS.to_owned(), pointer.to_owned())],
            Comes::Ill(&["git lfs pull"]),
            vec![moved("/tensors", TENSORS)],
        ),
        state("no driver", vec![Step::Unload], Comes::Ill(&["sudo modprobe amdxdna"]), vec![Step::Load]),
        state(
            "no firmware",
            away(),
            Comes::Ill(&["linux-firmware", "kernel log"]),
            vec![moved("/firmware", FIRMWARE), Step::Unload, Step::Load],
        ),
        // The last: what is cut off is gone.
        state("half a download", vec![Step::Cut(9 << 20, TENSORS.to_owned())], Comes::Ill(&["tensors.bin"]), vec![]),
    ]
}

/// With a device that has no context to give, which is taken out then.
fn without() -> Vec<State> {
    let out = Step::Write("/sys/bus/pci/devices/{device}/remove".to_owned(), "1".to_owned());
    vec![
        state("no context", vec![], Comes::Ill(&["CREATE_HWCTX", "firmware has refused", "modprobe -r"]), vec![]),
        state("no NPU", vec![out], Comes::Ill(&["no NPU", "Ryzen AI"]), vec![]),
    ]
}

/// In each state first the doctor, then a run.
fn agree(bench: &Bench, states: Vec<State>, faults: Faults) -> Result<String, String> {
    let mut steps = Vec::new();
    let mut looks = Vec::new();
    for state in &states {
        steps.extend(state.breaks.iter().cloned());
        looks.push(steps.len());
        for words in [doctor(), answer()] {
            steps.push(match state.user {
                Some(user) => Step::As(user, words),
                None => Step::Run(words),
            });
        }
        steps.extend(state.mends.iter().cloned());
    }
    let count = steps.len();
    let mut boot = bench.boot(steps);
    boot.faults = faults;
    let ended = scenario(boot)?;
    if ended.done.len() != count {
        return Err(format!("the machine ended after {} of {count} steps", ended.done.len()));
    }
    let mut slowest: f64 = 0.0;
    for (state, &at) in states.iter().zip(&looks) {
        let (doctor, run) = (&ended.done[at], &ended.done[at + 1]);
        judged(state.comes, doctor, run).map_err(|why| format!("{}: {why}", state.name))?;
        slowest = slowest.max(doctor.seconds);
    }
    let is_look = |i: usize| looks.iter().any(|&at| i == at || i == at + 1);
    if let Some((_, step)) = ended.done.iter().enumerate().find(|(i, step)| !is_look(*i) && !step.is_fine()) {
        return Err(step.to_string());
    }
    let seconds = ended.seconds;
    Ok(format!("{} states, the slowest look {slowest:.1} s ({seconds:.1} s)", states.len()))
}

/// Whether both came to what they should.
fn judged(comes: Comes, doctor: &Done, run: &Done) -> Result<(), String> {
    let (verdict, said) = verdict(doctor)?;
    let (expected, works, words) = match comes {
        Comes::Well => ("ok", true, &[][..]),
        Comes::Warned(words) => ("warn", true, words),
        Comes::Ill(words) => ("fail", false, words),
        Comes::Wrong(words) => ("fail", true, words),
    };
    if (run.exit == Some(0)) != works {
        return Err(format!("a run: {run}, {:?}", run.stderr.trim()));
    }
    if verdict != expected || (doctor.exit == Some(0)) == (expected == "fail") {
        return Err(format!("the doctor: {verdict}, where {expected} was to be: {doctor}, {said}"));
    }
    match words.iter().find(|word| !said.contains(**word)) {
        None => Ok(()),
        Some(word) => Err(format!("the doctor does not say {word:?}: {said}")),
    }
}

/// The worst of the doctor's findings, and what it says of those that are not well.
fn verdict(doctor: &Done) -> Result<(&'static str, String), String> {
    let report: Value = serde_json::from_str(&doctor.stdout)
        .map_err(|e| format!("{doctor}: no JSON ({e}): {:?}, {:?}", doctor.stdout, doctor.stderr.trim()))?;
    let findings = report["findings"].as_array().cloned().unwrap_or_default();
    let text = |finding: &Value, key: &str| finding[key].as_str().unwrap_or_default().to_owned();
    let has = |verdict: &str| findings.iter().any(|finding| text(finding, "verdict") == verdict);
    let worst = ["fail", "warn", "ok"].into_iter().find(|verdict| has(verdict)).unwrap_or("nothing");
    if report["passed"] != Value::Bool(worst != "fail") {
        return Err(format!("the report says passed: {}, and its worst finding is {worst}", report["passed"]));
    }
    let ill: Vec<String> = findings
        .iter()
        .filter(|finding| matches!(&*text(finding, "verdict"), "fail" | "warn"))
        .map(|finding| ["what", "text", "remedy"].map(|key| text(finding, key)).join(" "))
        .collect();
    Ok((worst, ill.join("; ")))
}

/// One boot for all that happens once. `trouble` shows what a run says that meets these.
///
/// Loading takes 36 commands of the demo model, and a short answer more than 20: each fault but the last falls into
/// the answer of the command that it is for.
fn faults(bench: &Bench) -> Result<String, String> {
    let sleeps = || Step::Run(words("doctor --device virtual --json"));
    let (look, ask) = (|| Step::Run(doctor()), || Step::Run(answer()));
    // Asleep; a hang; a failure, which the run meets; an error of the array; silence.
    let steps = vec![
        sleeps(),
        Step::Sleep(IDLE_MS),
        sleeps(),
        look(),
        ask(),
        look(),
        look(),
        ask(),
        Step::Unload,
        Step::Load,
        look(),
        ask(),
    ];
    let mut boot = bench.boot(steps);
    boot.faults = Faults {
        no_resume: true,
        hang_command: Some(40),
        fail_command: Some(85),
        async_error: Some(132),
        silent_from: Some(175),
        ..Faults::default()
    };
    let ended = scenario(boot)?;
    let seconds = ended.seconds;
    let [first, _, woken, hang, failing, array, silent, unheard, unload, load, after, works] = complete(ended)?;
    let ill = |what: &str, done: &Done, words: &[&str]| -> Result<(), String> {
        let (worst, said) = verdict(done)?;
        let fine = worst == "fail" && done.exit == Some(1) && words.iter().all(|word| said.contains(word));
        if fine { Ok(()) } else { Err(format!("{what}: {worst}, {done}: {said}, where {words:?} were expected")) }
    };
    let (worst, said) = verdict(&woken)?;
    if !first.is_fine() || worst != "warn" || !woken.is_fine() || !said.contains("when asked again") {
        return Err(format!("a device that does not wake at first: {worst}, {woken}: {said}"));
    }
    ill("a hang", &hang, &["TIMEOUT", "modprobe -r", "kernel log"])?;
    if failing.exit != Some(1) || !failing.stderr.contains("ERROR") {
        return Err(format!("a failing command: {failing}: {}", failing.stderr.trim()));
    }
    ill("an error of the array", &array, &["array", "column 0"])?;
    ill("silence", &silent, &["modprobe -r", "kernel log"])?;
    if unheard.exit != Some(1) {
        return Err(format!("a run while the firmware is silent: {unheard}: {:?}", unheard.stdout));
    }
    match [&unload, &load, &after, &works].into_iter().find(|done| !done.is_fine()) {
        Some(done) => Err(format!("after silence, the module loaded anew: {done}: {}", done.stderr.trim())),
        None => Ok(format!("asleep, a hang, a failure, an error, silence; mended by loading anew ({seconds:.1} s)")),
    }
}

/// Looks of `top` at a run, and the time between them: slow machines need seconds to load the model.
const LOOKS: usize = 10;
const BETWEEN_MS: u32 = 600;

/// While a run answers at length.
fn beside_a_run(bench: &Bench) -> Result<String, String> {
    let mut long = question(None, "Tell me about yourself.");
    // With one document at its end: all commands of the machine write to the same place.
    long.extend(words("--max-new 900 --json"));
    let look = |line: &str| Step::Run(words(line));
    let mut steps = vec![look("top --once --json"), look("devices"), Step::Run(doctor()), Step::Start(long)];
    for _ in 0..LOOKS {
        steps.extend([Step::Sleep(BETWEEN_MS), look("top --once --json")]);
    }
    steps.extend([Step::Finish(60), look("top --once")]);
    let count = steps.len();
    let ended = scenario(bench.boot(steps))?;
    let seconds = ended.seconds;
    if let Some(done) = ended.done.iter().find(|done| !done.is_fine()) {
        return Err(format!("{done}: {}", done.stderr.trim()));
    }
    let [first, devices, doctor, .., after] = &ended.done[..] else { return Err("the machine ended early".into()) };
    if ended.done.len() != count {
        return Err(format!("the machine ended after {} of {count} steps", ended.done.len()));
    }
    let parsed = |done: &Done| serde_json::from_str::<Value>(&done.stdout).map_err(|e| format!("{done}: {e}"));
    let idle = parsed(first)?;
    // The run's end may have come into one.
    let looks: Vec<Value> = ended.done[4..].iter().filter_map(|done| parsed(done).ok()).collect();
    let contexts = |look: &Value| look["contexts"].as_array().cloned().unwrap_or_default();
    let number = |context: &Value, key: &str| context[key].as_u64().unwrap_or_default();
    let worked = |look: &&Value| contexts(look).iter().any(|context| number(context, "completions") > 0);
    let busy =
        looks.iter().find(worked).ok_or_else(|| format!("top: of {LOOKS} looks none shows the run: {looks:?}"))?;
    let (before, now) = (contexts(&idle), contexts(busy));
    let sane = |context: &Value| {
        let (given, done) = (number(context, "submissions"), number(context, "completions"));
        given >= done && number(context, "columns") == 8 && number(context, "pid") > 1
    };
    if !before.is_empty() || !now.iter().all(sane) || busy["contexts_max"] != idle["contexts_max"] {
        return Err(format!("top: idle {idle}, busy {busy}"));
    }
    if !devices.stdout.contains("/dev/accel/accel0  Ryzen AI of Strix Point (XDNA2)")
        || !devices.stdout.contains("can be opened, 8 columns, driver 0.10")
    {
        return Err(format!("devices: {:?}", devices.stdout));
    }
    if !after.stdout.contains("nobody uses it") {
        return Err(format!("top, nothing left: {:?}", after.stdout));
    }
    match verdict(doctor)? {
        ("ok", _) => Ok(format!("{} contexts of the run are seen ({seconds:.1} s)", now.len())),
        (worst, said) => Err(format!("the doctor before a run: {worst}, {said}")),
    }
}
