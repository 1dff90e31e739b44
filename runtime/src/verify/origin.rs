//! What a download says of itself: the revision it fetched, and the digests of the files.
//!
//! Hugging Face's client leaves both behind. In its cache a folder is called after the revision, and the files are links
//! to blobs that are called after their SHA-256. In a folder of the user's choice it keeps, for each file, a small text
//! in `.cache/huggingface/download`: revision, digest, time. Small files have a digest of another kind, Git's, which is
//! left alone here.

use std::fs;
use std::path::Path;

use crate::checksums::{self, Checksums};

/// Where a directory came from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Origin {
    /// The revision, forty hexadecimal digits.
    pub revision: String,
    /// The digests that are known.
    pub(super) sums: Checksums,
}

fn is_hex(word: &str, digits: usize) -> bool {
    word.len() == digits && word.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// What is known of `dir`, which holds `files`. Nothing if files of several revisions lie in it.
pub(super) fn of(dir: &Path, files: &[String]) -> Option<Origin> {
    let snapshot = snapshot(dir);
    let mut found = Origin::default();
    for name in files {
        let known = match &snapshot {
            Some(revision) => Some((revision.clone(), blob(&dir.join(name)).unwrap_or_default())),
            None => noted(dir, name),
        };
        let Some((revision, digest)) = known else { continue };
        if !found.revision.is_empty() && found.revision != revision {
            return None;
        }
        found.revision = revision;
        if let Some(digest) = checksums::unhex(&digest) {
            found.sums.insert(name, digest);
        }
    }
    (!found.revision.is_empty()).then_some(found)
}

/// The revision of `<cache>/snapshots/<revision>`.
fn snapshot(dir: &Path) -> Option<String> {
    let dir = fs::canonicalize(dir).ok()?;
    let revision = dir.file_name()?.to_str()?.to_owned();
    (dir.parent()?.file_name()? == "snapshots" && is_hex(&revision, 40)).then_some(revision)
}

/// The name of the blob that a file of the cache is a link to.
fn blob(path: &Path) -> Option<String> {
    Some(fs::read_link(path).ok()?.file_name()?.to_str()?.to_owned())
}

/// Revision and digest of a file, as its download noted them.
fn noted(dir: &Path, name: &str) -> Option<(String, String)> {
    let path = dir.join(".cache/huggingface/download").join(format!("{name}.metadata"));
    let text = String::from_utf8(crate::files::read(&path).ok()?).ok()?;
    let mut lines = text.lines().map(|line| line.trim().trim_matches('"').to_owned());
    let (revision, digest) = (lines.next()?, lines.next()?);
    is_hex(&revision, 40).then_some((revision, digest))
}
