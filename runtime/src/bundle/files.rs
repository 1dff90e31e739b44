//! The files of a bundle: which may be opened, and what is recognised in place of them.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use super::error::BundleError;
use crate::files;

/// No text file of a bundle is longer; a tokenizer of a quarter million tokens is 20 MB.
const LONGEST: u64 = 256 << 20;
/// How a Git LFS pointer begins.
const LFS: &[u8] = b"version https://git-lfs.github.com/spec/";

/// The files that every bundle has.
pub const OWN_FILES: [&str; 4] = ["manifest.txt", "tensors.txt", "tensors.bin", "tokenizer.json"];

/// A bundle's directory, resolved once.
#[derive(Debug)]
pub(super) struct Directory {
    /// As given.
    pub(super) path: PathBuf,
    resolved: PathBuf,
}

impl Directory {
    pub(super) fn open(path: &Path) -> Result<Self, BundleError> {
        let missing = |what: &str| BundleError::NotABundle { path: path.to_owned(), what: what.to_owned() };
        let resolved = fs::canonicalize(path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => missing("there is nothing of that name"),
            _ => BundleError::Io { action: "open", path: path.to_owned(), source },
        })?;
        if !resolved.is_dir() {
            return Err(missing("it is a file; a bundle is a directory"));
        }
        let directory = Self { path: path.to_owned(), resolved };
        for name in OWN_FILES {
            if !directory.path.join(name).exists() {
                return Err(missing(&format!("it has no {name}")));
            }
        }
        Ok(directory)
    }

    /// The path of one of the four files that every bundle has; links are treated as everywhere.
    pub(super) fn own(&self, name: &str) -> Result<PathBuf, BundleError> {
        self.inside(name, 0).map_err(|error| match error {
            BundleError::Outside { .. } => BundleError::NotABundle {
                path: self.path.clone(),
                what: format!("{name} is a link that leads out of it"),
            },
            other => other,
        })
    }

    /// The path of a file of the bundle that is named on `line` of the manifest.
    ///
    /// Refused are absolute paths, `..`, and links that lead out of the directory, except into the `blobs` beside
    /// `snapshots`, where the Hugging Face cache keeps the files of a snapshot.
    pub(super) fn inside(&self, name: &str, line: usize) -> Result<PathBuf, BundleError> {
        let outside = || BundleError::Outside { line, path: name.to_owned() };
        let plain = Path::new(name).components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        if !plain || name.is_empty() {
            return Err(outside());
        }
        let path = self.path.join(name);
        let resolved =
            fs::canonicalize(&path).map_err(|source| BundleError::Io { action: "open", path: path.clone(), source })?;
        if resolved.starts_with(&self.resolved) || self.blobs().is_some_and(|blobs| resolved.starts_with(blobs)) {
            Ok(path)
        } else {
            Err(outside())
        }
    }

    /// `<cache>/blobs` if this is `<cache>/snapshots/<revision>`.
    fn blobs(&self) -> Option<PathBuf> {
        let snapshots = self.resolved.parent()?;
        (snapshots.file_name()? == "snapshots").then(|| Some(snapshots.parent()?.join("blobs")))?
    }
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> BundleError {
    move |source| BundleError::Io { action, path: path.to_owned(), source }
}

/// Opens a regular file and refuses a Git LFS pointer; gives its size too.
pub(super) fn open(path: &Path) -> Result<(File, u64), BundleError> {
    let mut file = files::open(path).map_err(failed("open", path))?;
    let length = file.metadata().map_err(failed("open", path))?.len();
    if length < 1024 {
        let mut head = Vec::new();
        file.by_ref().take(LFS.len() as u64).read_to_end(&mut head).map_err(failed("read", path))?;
        if head == LFS {
            return Err(BundleError::LfsPointer { path: path.to_owned() });
        }
        io::Seek::rewind(&mut file).map_err(failed("read", path))?;
    }
    Ok((file, length))
}

/// The bytes of a file of bounded size.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, BundleError> {
    let (file, size) = open(path)?;
    if size > LONGEST {
        let source = io::Error::new(io::ErrorKind::InvalidData, format!("{size} bytes; expected at most {LONGEST}"));
        return Err(failed("read", path)(source));
    }
    let mut bytes = Vec::with_capacity(size as usize);
    file.take(LONGEST).read_to_end(&mut bytes).map_err(failed("read", path))?;
    Ok(bytes)
}

/// The text of a file of bounded size.
pub(super) fn read_text(path: &Path) -> Result<String, BundleError> {
    String::from_utf8(read(path)?).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let source = io::Error::new(io::ErrorKind::InvalidData, format!("byte {at} is not UTF-8 text"));
        failed("read", path)(source)
    })
}
