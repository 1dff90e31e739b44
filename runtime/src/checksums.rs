//! `checksums.txt`: the SHA-256 of every other file of a bundle, in the form of `sha256sum`, so that
//! `sha256sum -c checksums.txt` checks it too.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Read};
use std::ops::ControlFlow;

use sha2::{Digest as _, Sha256};

/// Name of the file inside a bundle.
pub const FILE: &str = "checksums.txt";

/// A SHA-256 digest.
pub type Digest = [u8; 32];

/// A list of checksums that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("checksums.txt:{line}: {what}")]
pub struct ChecksumError {
    /// Line, from 1.
    pub line: usize,
    /// What was found and what was expected.
    pub what: String,
}

/// Digests by file name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Checksums {
    files: BTreeMap<String, Digest>,
}

impl Checksums {
    /// Takes in a file.
    pub fn insert(&mut self, name: &str, digest: Digest) {
        self.files.insert(name.to_owned(), digest);
    }

    /// The files in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Digest)> {
        self.files.iter().map(|(name, digest)| (name.as_str(), digest))
    }

    /// Whether a file is listed.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.files.contains_key(name)
    }

    /// The text of the file: a line of digest, two blanks and name for each file.
    #[must_use]
    pub fn render(&self) -> String {
        let mut out = String::new();
        for (name, digest) in &self.files {
            // Writing to a string does not fail.
            let _ = writeln!(out, "{}  {name}", hex(digest));
        }
        out
    }

    /// Reads such a text; `digest *name`, which marks a binary file, is the same.
    ///
    /// # Errors
    /// A line that is something else, a name that leaves the bundle, a name that is listed twice.
    pub fn parse(text: &str) -> Result<Self, ChecksumError> {
        let mut all = Self::default();
        for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let wrong = |what: String| ChecksumError { line: index + 1, what };
            let parts = line.split_once("  ").or_else(|| line.split_once(" *"));
            let parsed = parts.and_then(|(digest, name)| Some((unhex(digest)?, name)));
            let expected = || wrong("expected 64 hexadecimal digits, two blanks and the name of a file".to_owned());
            let (digest, name) = parsed.filter(|(_, name)| !name.is_empty()).ok_or_else(expected)?;
            if name.starts_with('/') || name.split('/').any(|part| part == "..") {
                return Err(wrong(format!("`{name}` leaves the bundle")));
            }
            if all.files.insert(name.to_owned(), digest).is_some() {
                return Err(wrong(format!("`{name}` a second time")));
            }
        }
        Ok(all)
    }
}

/// The digest of some bytes.
#[must_use]
pub fn digest(bytes: &[u8]) -> Digest {
    Sha256::digest(bytes).into()
}

/// The digest of everything that can be read. `progress` gets the bytes of each piece; when it breaks off, there is none.
///
/// # Errors
/// A failed read.
pub fn digest_of(mut from: impl Read, progress: &mut dyn FnMut(u64) -> ControlFlow<()>) -> io::Result<Option<Digest>> {
    let (mut hasher, mut piece) = (Sha256::new(), vec![0; 1 << 20]);
    loop {
        let count = match from.read(&mut piece) {
            Ok(0) => return Ok(Some(hasher.finalize().into())),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        hasher.update(&piece[..count]);
        if progress(count as u64).is_break() {
            return Ok(None);
        }
    }
}

/// Lower-case hexadecimal digits.
#[must_use]
pub fn hex(digest: &Digest) -> String {
    digest.iter().fold(String::new(), |mut out, byte| {
        // Writing to a string does not fail.
        let _ = write!(out, "{byte:02x}");
        out
    })
}

/// Reads hexadecimal digits.
pub(crate) fn unhex(text: &str) -> Option<Digest> {
    let mut out = Digest::default();
    if text.len() != 2 * out.len() || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (index, byte) in out.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).ok()?;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The digest of "abc" in FIPS 180-2.
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn written_and_read_as_sha256sum_does() {
        let mut sums = Checksums::default();
        sums.insert("kernels/a b.bin", digest(b"abc"));
        assert_eq!(sums.render(), format!("{ABC}  kernels/a b.bin\n"));
        assert_eq!(Checksums::parse(&sums.render()), Ok(sums.clone()));
        assert_eq!(Checksums::parse(&format!("\n{} *kernels/a b.bin\r\n", ABC.to_uppercase())), Ok(sums));
        let pieces = digest_of(&b"abc"[..], &mut |_| ControlFlow::Continue(())).unwrap();
        assert_eq!(pieces, Some(digest(b"abc")));
        assert_eq!(digest_of(&b"abc"[..], &mut |_| ControlFlow::Break(())).unwrap(), None);
    }

    #[test]
    fn lines_that_are_none() {
        let message = |text: &str| Checksums::parse(text).unwrap_err().to_string();
        for text in ["x", ABC, &ABC[1..], &format!("{ABC} a"), &format!("{ABC}  "), &format!("g{}  a", &ABC[1..])] {
            assert!(message(text).starts_with("checksums.txt:1: expected 64"), "{text}");
        }
        for name in ["../a", "/a", "a/../../b"] {
            assert!(message(&format!("\n{ABC}  {name}")).starts_with("checksums.txt:2: `"), "{name}");
        }
        assert!(message(&format!("{ABC}  a\n{ABC}  a")).contains("a second time"));
    }
}
