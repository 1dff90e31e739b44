//! System calls a token: counted by strace around the programs on the supervised node.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::Path;

use npu_model::Timing;

use super::{Bench, supervised};

pub(super) const OTHER: &str = "system calls a token: neither ioctl nor futex";
pub(super) const FUTEX: &str = "system calls a token: futex";
pub(super) const IOCTL: &str = "system calls a token: ioctl";
pub(super) const ALLOCATIONS: &str = "allocations a token";

/// Tokens of the two runs whose difference counts.
const TOKENS: [usize; 2] = [8, 72];

/// Calls a token that two runs differ by anyway: what loading does depends on how its threads meet.
const NOISE: f64 = 0.25;

/// The table that `strace -c` leaves: calls by name.
fn parse(text: &str) -> BTreeMap<String, u64> {
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        // % time, seconds, usecs/call, calls, errors where there are some, name.
        let name = words.get(4..)?.last().filter(|name| **name != "total")?;
        Some(((*name).to_owned(), words[3].parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

fn counted(bundle: &Path, program: &Path, first: &[&str], tokens: usize) -> Result<BTreeMap<String, u64>, String> {
    let log = std::env::temp_dir().join(format!("qwen35-bench-{}-strace", std::process::id()));
    let tokens = tokens.to_string();
    let mut words: Vec<OsString> = ["-f", "-c", "-o"].map(OsString::from).into();
    words.push(log.clone().into());
    words.push(program.into());
    words.extend(first.iter().map(OsString::from));
    words.extend([bundle.as_os_str(), "512".as_ref(), "32".as_ref(), tokens.as_ref()].map(OsString::from));
    let words: Vec<&OsStr> = words.iter().map(OsString::as_os_str).collect();
    let ran = supervised::run(Timing::default(), Path::new("strace"), &words);
    let said = fs::read_to_string(&log).unwrap_or_default();
    let _ = fs::remove_file(log);
    ran.map(|_| parse(&said))
}

pub(super) fn run(bench: &mut Bench, bundle: &Path) {
    match supervised::own() {
        Ok(own) => {
            side(bench, bundle, &own, &["bench", "--child", "text"], true);
            allocations(bench, bundle, &own);
        }
        Err(why) => bench.gap("system calls", why),
    }
    if let Some(peer) = bench.peer.clone() {
        side(bench, bundle, &peer, &["text"], false);
    }
}

fn side(bench: &mut Bench, bundle: &Path, program: &Path, first: &[&str], mine: bool) {
    let [few, many] = TOKENS;
    let counts = counted(bundle, program, first, few)
        .and_then(|few| counted(bundle, program, first, many).map(|many| (few, many)));
    let (before, after) = match counts {
        Ok(counts) => counts,
        Err(why) => return bench.gap("system calls", why),
    };
    let a_token = |wanted: &dyn Fn(&str) -> bool| {
        let of = |counts: &BTreeMap<String, u64>| -> f64 {
            counts.iter().filter(|(name, _)| wanted(name)).map(|(_, calls)| *calls as f64).sum()
        };
        (of(&after) - of(&before)) / (many - few) as f64
    };
    let mut add = |name: &str, value: f64| {
        let row = bench.report.row("dispatch", name, "calls");
        // A call more in the shorter run, of all those of loading, is no negative number of calls a token.
        let shown = if value.abs() < NOISE { 0.0 } else { value };
        if mine { &mut row.ours } else { &mut row.peer }.push(shown);
        row.note = format!(
            "the difference of runs of {few} and of {many} tokens; less than {NOISE} either way is what loading differs by"
        );
    };
    add(IOCTL, a_token(&|name| name == "ioctl"));
    add(FUTEX, a_token(&|name| name == "futex"));
    add(OTHER, a_token(&|name| name != "ioctl" && name != "futex"));
}

/// Of our runtime alone: in a process without the model.
fn allocations(bench: &mut Bench, bundle: &Path, own: &Path) {
    let words = ["bench", "--child", "text"].map(OsStr::new);
    let rest = [bundle.as_os_str(), "512".as_ref(), "32".as_ref(), "16".as_ref()];
    match supervised::run(Timing::default(), own, &[&words[..], &rest[..]].concat()) {
        Ok(ran) => {
            let row = bench.report.row("dispatch", ALLOCATIONS, "calls");
            row.ours.extend(ran.lines.median("token.allocations"));
        }
        Err(why) => bench.gap(ALLOCATIONS, why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_strace_is_read_with_and_without_errors() {
        let text = "% time     seconds  usecs/call     calls    errors syscall\n\
                    ------ ----------- ----------- --------- --------- ----------------\n \
                    98.00    0.200000          10       298           ioctl\n  \
                    2.00    0.000010           1        12         3 futex\n\
                    100.00    0.200010                   310         3 total\n";
        let parsed = parse(text);
        assert_eq!((parsed["ioctl"], parsed["futex"], parsed.len()), (298, 12, 2));
    }
}
