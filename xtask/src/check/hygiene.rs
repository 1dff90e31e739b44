//! What does not belong in the repository: big files, and paths of the machine that something was written on.

use super::{Outcome, Tally};
use std::path::Path;
use std::process::Command;

/// The demo model is the one big thing that ships.
const BIG_ALLOWED: &str = "cli/demo/bundle/";
const BIG: u64 = 3 << 20;
/// The whole of what is tracked.
const ALL: u64 = 60 << 20;

pub(super) fn run(root: &Path) -> Outcome {
    let listed = Command::new("git").current_dir(root).args(["ls-files", "-z"]).output();
    let listed = match listed {
        Ok(output) if output.status.success() => output.stdout,
        _ => return Outcome::Skip("not a git work tree".into()),
    };
    let mut complaints = Vec::new();
    let mut total = 0;
    for name in listed.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let name = String::from_utf8_lossy(name).into_owned();
        // A file that was deleted but not yet committed is no offence.
        let Ok(bytes) = std::fs::read(root.join(&name)) else { continue };
        total += bytes.len() as u64;
        if bytes.len() as u64 > BIG && !name.starts_with(BIG_ALLOWED) {
            complaints.push(format!("{name}: {} bytes, more than {BIG}", bytes.len()));
        }
        if let Ok(text) = std::str::from_utf8(&bytes) {
            complaints.extend(own_paths(text).map(|line| format!("{name}:{line}: an absolute path of some machine")));
        }
    }
    if total > ALL {
        complaints.push(format!("{total} bytes are tracked, more than {ALL}"));
    }
    for complaint in &complaints {
        crate::print(&format!("{complaint}\n"));
    }
    if complaints.is_empty() {
        Outcome::Pass(Tally::ONE_PASSED)
    } else {
        Outcome::Fail(Tally::ONE_FAILED, format!("{} complaints, above", complaints.len()))
    }
}

/// Lines (from 1) that hold a home directory or another private place. The needles are put together here so that this
/// file does not complain about itself.
fn own_paths(text: &str) -> impl Iterator<Item = usize> + '_ {
    let needles = [["/ho", "me/"].concat(), ["/ro", "ot/"].concat(), ["/Us", "ers/"].concat(), ["/wo", "rk/"].concat()];
    text.lines()
        .enumerate()
        .filter_map(move |(index, line)| needles.iter().any(|needle| holds_path(line, needle)).then_some(index + 1))
}

/// Whether an absolute path starts with `needle`: in the middle of a relative one it is somebody else's business.
fn holds_path(line: &str, needle: &str) -> bool {
    line.match_indices(needle).any(|(at, _)| {
        line[..at].chars().next_back().is_none_or(|before| !(before.is_alphanumeric() || "._-~}>:/".contains(before)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absolute_paths_are_found_and_relative_ones_left_alone() {
        let text = ["a = \"/ho", "me/me/x\"\nsee frame/wo", "rk/x\nhttps://a.b/ho", "me/x\n(/wo", "rk/y)"].concat();
        assert_eq!(own_paths(&text).collect::<Vec<_>>(), [1, 4]);
    }
}
