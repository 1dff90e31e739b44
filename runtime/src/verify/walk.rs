//! The files of a directory, and what a download leaves among them.

use std::fs;
use std::io::Read;
use std::path::Path;

use super::Problem;
use crate::files;

/// Deeper than any bundle, so that a link in a circle ends.
const DEEPEST: usize = 8;
/// How a Git LFS pointer begins. Longer ones than this there are none.
const POINTER: &str = "version https://git-lfs.github.com/spec/";
const LONGEST_POINTER: u64 = 1024;
/// How the names end that downloads give to what they have not finished: huggingface_hub, curl and wget wrappers, aria2,
/// browsers.
const UNFINISHED: [&str; 6] = [".incomplete", ".part", ".partial", ".aria2", ".crdownload", ".download"];

/// The paths of all files below `dir`, with `/` between folders, sorted. A repository's own folder is left out.
pub(super) fn files(dir: &Path) -> Vec<String> {
    let mut all = Vec::new();
    gather(dir, "", 0, &mut all);
    all.sort_unstable();
    all
}

fn gather(dir: &Path, prefix: &str, depth: usize, all: &mut Vec<String>) {
    // What cannot be listed is missed by name where it is needed.
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        let path = entry.path();
        if path.is_dir() {
            if entry.file_name() != ".git" && depth < DEEPEST {
                gather(&path, &format!("{name}/"), depth + 1, all);
            }
        } else {
            all.push(name);
        }
    }
}

/// What the file says of a download that is not whole.
pub(super) fn download_problem(dir: &Path, name: &str) -> Option<Problem> {
    if UNFINISHED.iter().any(|end| name.ends_with(end)) {
        return Some(Problem::Unfinished { file: name.to_owned() });
    }
    let file = files::open(&dir.join(name)).ok()?;
    if file.metadata().ok()?.len() > LONGEST_POINTER {
        return None;
    }
    let mut text = Vec::new();
    file.take(LONGEST_POINTER).read_to_end(&mut text).ok()?;
    let text = String::from_utf8(text).ok().filter(|text| text.starts_with(POINTER))?;
    let size = text.lines().find_map(|line| line.strip_prefix("size ")?.trim().parse().ok());
    Some(Problem::Pointer { file: name.to_owned(), size })
}
