//! The table of driver cases: on the software NPU and through the real driver, side by side.

use super::{Bench, LIMIT};
use crate::timed;
use crate::vm::{Scenario, Step, scenario};
use npu_model::Npu;
use std::collections::BTreeMap;
use std::process::Command;

/// Groups whose cases have one right outcome whatever the machine's speed. `fault` and `power` wait for the driver's
/// own timers, and `perf` measures: they run in a boot of their own, and are shown, not judged.
const JUDGED: [&str; 10] = ["open", "query", "bo", "heap", "context", "exec", "chain", "fence", "share", "multi"];
const SHOWN: [&str; 3] = ["fault", "power", "perf"];

/// One line of `driver-check --json`.
#[derive(Debug, Clone, PartialEq)]
struct Line {
    case: String,
    outcome: String,
    why: String,
    seconds: f64,
}

impl Line {
    fn group(&self) -> &str {
        self.case.split("::").next().unwrap_or_default()
    }

    fn is_bad(&self) -> bool {
        !matches!(&*self.outcome, "pass" | "skip")
    }
}

/// Reads what `driver-check --json` wrote; a run that was cut short gives fewer lines.
fn lines(text: &str) -> Vec<Line> {
    let line = |line: &str| {
        let value: serde_json::Value = serde_json::from_str(line).ok()?;
        let word = |key: &str| value.get(key)?.as_str().map(str::to_owned);
        Some(Line {
            case: word("case")?,
            outcome: word("outcome")?,
            why: word("why").unwrap_or_default(),
            seconds: value.get("seconds")?.as_f64()?,
        })
    };
    text.lines().filter_map(line).collect()
}

fn words(groups: &[&str], more: &[&str]) -> Vec<String> {
    let mut words = ["driver-check", "--json"].map(str::to_owned).to_vec();
    words.extend(more.iter().map(|word| (*word).to_owned()));
    for group in groups {
        words.extend(["--group".to_owned(), (*group).to_owned()]);
    }
    words
}

/// The table through the real driver, in one boot.
fn through_the_driver(boot: Scenario) -> Result<(Vec<Line>, f64), String> {
    let ended = scenario(boot)?;
    let Some(done) = ended.done.first() else { return Err("the machine ended before the table did".into()) };
    let lines = lines(&done.stdout);
    match done.exit {
        Some(0 | 1) if !lines.is_empty() => Ok((lines, ended.seconds)),
        _ => Err(format!("{done}: {}", done.stderr.trim())),
    }
}

pub(super) fn run(bench: &mut Bench) {
    let model = in_process(bench);
    let mut driver = Vec::new();
    for (groups, judged) in [(&JUDGED[..], true), (&SHOWN[..], false)] {
        let boot =
            Scenario { trees: Vec::new(), ..bench.boot(vec![Step::Run(words(groups, &["--device", "virtual"]))]) };
        match through_the_driver(boot) {
            Ok((lines, seconds)) => {
                if judged {
                    let outcome =
                        judge(bench, &lines, Scenario::default()).map(|said| format!("{said} ({seconds:.1} s)"));
                    bench.record("table of cases", outcome);
                }
                driver.extend(lines);
            }
            Err(why) if judged => bench.record("table of cases", Err(why)),
            Err(why) => crate::print(&format!("driver: shown, not judged: {why}\n")),
        }
    }
    for line in driver.iter().filter(|line| line.is_bad()) {
        crate::print(&format!("{}: {} {}\n", line.case, line.outcome, line.why));
    }
    match model {
        Ok(model) => crate::print(&side_by_side(&model, &driver)),
        Err(why) => bench.record("table of cases on the software NPU", Err(why)),
    }
}

/// What failed, once more in a boot of its own: the machine is emulated, its clock is the host's, and a host that was
/// busy can be too slow for a deadline once. What fails twice is wrong; what does not is told.
fn judge(bench: &Bench, lines: &[Line], like: Scenario) -> Result<String, String> {
    let passed = lines.iter().filter(|line| line.outcome == "pass").count();
    let skipped = lines.iter().filter(|line| line.outcome == "skip").count();
    let bad: Vec<&Line> = lines.iter().filter(|line| line.is_bad()).collect();
    if bad.is_empty() {
        return Ok(format!("{passed} pass, {skipped} skip, 0 fail"));
    }
    let mut again = words(&[], &["--device", "virtual", "--danger"]);
    for line in &bad {
        again.extend(["--case".to_owned(), line.case.clone()]);
    }
    let names: Vec<String> = bad.iter().map(|line| format!("{}: {} {}", line.case, line.outcome, line.why)).collect();
    let names = names.join("; ");
    let boot = Scenario { binary: bench.binary.clone(), steps: vec![Step::Run(again)], trees: Vec::new(), ..like };
    match through_the_driver(boot) {
        Ok((second, _)) if second.len() == bad.len() && !second.iter().any(Line::is_bad) => {
            Ok(format!("{} pass, {skipped} skip, 0 fail; at the second try only: {names}", passed + bad.len()))
        }
        Ok(_) => Err(format!("failed twice: {names}")),
        Err(why) => Err(format!("{names}; and again: {why}")),
    }
}

/// The same table on the software NPU in the program's own process.
fn in_process(bench: &Bench) -> Result<Vec<Line>, String> {
    let mut command = Command::new(&bench.binary);
    command.args(words(&[], &["--device", "model"]));
    let out = timed::output(&mut command, LIMIT)?;
    let lines = lines(&String::from_utf8_lossy(&out.stdout));
    match lines.iter().find(|line| line.is_bad()) {
        Some(bad) => Err(format!("{}: {} {}", bad.case, bad.outcome, bad.why)),
        None if lines.is_empty() => Err(String::from_utf8_lossy(&out.stderr).into_owned()),
        None => Ok(lines),
    }
}

#[derive(Default, Clone, Copy)]
struct Sum {
    pass: u32,
    skip: u32,
    bad: u32,
    seconds: f64,
}

impl Sum {
    fn add(&mut self, line: &Line) {
        self.seconds += line.seconds;
        match &*line.outcome {
            "pass" => self.pass += 1,
            "skip" => self.skip += 1,
            _ => self.bad += 1,
        }
    }
}

/// A row a group: pass, skip, fail and seconds, of the software NPU and of the driver.
fn side_by_side(model: &[Line], driver: &[Line]) -> String {
    let mut groups: BTreeMap<usize, (&str, [Sum; 2])> = BTreeMap::new();
    let order = |name: &str| JUDGED.iter().chain(&SHOWN).position(|group| *group == name).unwrap_or(usize::MAX);
    for (column, lines) in [model, driver].into_iter().enumerate() {
        for line in lines {
            let name = line.group();
            groups.entry(order(name)).or_insert((name, [Sum::default(); 2])).1[column].add(line);
        }
    }
    let mut text = format!("{:10}{:>32}{:>34}\n", "", "software NPU, in process", "real driver, in the machine");
    let head = format!("{:>6}{:>6}{:>6}{:>10}", "pass", "skip", "fail", "seconds");
    text += &format!("{:10}{head:>32}{head:>34}\n", "group");
    let row = |name: &str, sums: &[Sum; 2]| {
        let cells = sums.map(|s| format!("{:>6}{:>6}{:>6}{:>10.2}", s.pass, s.skip, s.bad, s.seconds));
        format!("{name:10}{:>32}{:>34}\n", cells[0], cells[1])
    };
    let mut all = [Sum::default(); 2];
    for (name, sums) in groups.values() {
        text += &row(name, sums);
        for (all, sum) in all.iter_mut().zip(sums) {
            all.pass += sum.pass;
            all.skip += sum.skip;
            all.bad += sum.bad;
            all.seconds += sum.seconds;
        }
    }
    text + &row("all", &all)
}

/// A boot that is not the usual one.
type Other = (&'static str, fn(&mut Scenario));

const OTHERS: [Other; 7] = [
    ("firmware protocol 6.12", |boot| boot.protocol = Some((6, 12))),
    ("firmware protocol 6.18", |boot| boot.protocol = Some((6, 18))),
    ("firmware protocol 6.24", |boot| boot.protocol = Some((6, 24))),
    ("firmware protocol 7.0", |boot| boot.protocol = Some((7, 0))),
    ("contiguous buffers in a reserved range", |boot| boot.carveout = true),
    ("NPU5", |boot| boot.npu = Npu::Npu5),
    ("NPU6", |boot| boot.npu = Npu::Npu6),
];

/// The whole table, dangerous cases too, on other firmware, parts and address modes; and firmware that the driver
/// refuses.
pub(super) fn others(bench: &mut Bench) {
    for (name, change) in OTHERS {
        let mut boot = Scenario {
            binary: bench.binary.clone(),
            steps: vec![Step::Run(words(&[], &["--device", "virtual", "--danger"]))],
            ..Scenario::default()
        };
        change(&mut boot);
        let mut like = Scenario::default();
        change(&mut like);
        let outcome = through_the_driver(boot)
            .and_then(|(lines, seconds)| judge(bench, &lines, like).map(|said| format!("{said} ({seconds:.1} s)")));
        bench.record(name, outcome);
    }
    for protocol in [(5, 9), (6, 11)] {
        let outcome = refused(bench, protocol);
        bench.record(&format!("firmware protocol {}.{}, refused", protocol.0, protocol.1), outcome);
    }
}

/// The driver does not take the device, and `devices` says what to do.
fn refused(bench: &Bench, protocol: (u32, u32)) -> Result<String, String> {
    let steps = vec![Step::Run(vec!["devices".to_owned()])];
    let boot = Scenario { binary: bench.binary.clone(), protocol: Some(protocol), steps, ..Scenario::default() };
    let ended = scenario(boot)?;
    let Some(done) = ended.done.first() else { return Err("the machine ended early".into()) };
    let said = done.stderr.trim();
    match done.exit == Some(1) && said.contains("firmware and driver of different protocols") {
        true => Ok(format!("{said:?}")),
        false => Err(format!("{done}: {:?} {said:?}", done.stdout.trim())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_read_and_summed_by_group() {
        let text = "noise\n{\"case\":\"bo::a\",\"outcome\":\"pass\",\"why\":\"\",\"seconds\":0.5,\"notes\":[]}\n\
                    {\"case\":\"bo::b\",\"outcome\":\"skip\",\"why\":\"no\",\"seconds\":0.25,\"notes\":[]}\n\
                    {\"case\":\"open::c\",\"outcome\":\"timeout\",\"why\":\"\",\"seconds\":1.0,\"notes\":[]}\n\
                    {\"case\":\"open::cut";
        let read = lines(text);
        assert_eq!(read.len(), 3);
        assert!(read[2].is_bad() && !read[1].is_bad());
        let table = side_by_side(&read[..2], &read);
        let row = |name: &str| -> Vec<String> {
            let row = table.lines().find(|line| line.starts_with(name)).unwrap_or_default();
            row.split_whitespace().skip(1).map(str::to_owned).collect()
        };
        assert_eq!(row("bo "), ["1", "1", "0", "0.75", "1", "1", "0", "0.75"]);
        assert_eq!(row("all"), ["1", "1", "0", "0.75", "1", "1", "1", "1.75"]);
    }
}
