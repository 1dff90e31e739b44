//! A directory that appears complete or not at all.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::ExportError;
use crate::checksums::{self, Checksums, Digest};

/// A bundle that is being written beside its final place. Dropped unfinished, it removes itself.
#[derive(Debug)]
pub(super) struct Staging {
    /// Where files are written now.
    pub(super) dir: PathBuf,
    out: PathBuf,
    sums: RefCell<Checksums>,
    finished: bool,
}

impl Staging {
    /// Makes the directory `.<name>.partial-<pid>` beside `out`, which must not exist.
    pub(super) fn new(out: &Path) -> Result<Self, ExportError> {
        if fs::symlink_metadata(out).is_ok() {
            return Err(ExportError(format!("{} exists already; remove it or choose another name", out.display())));
        }
        let name = out.file_name().and_then(|name| name.to_str());
        let name = name.ok_or_else(|| ExportError(format!("{} is no name for a directory", out.display())))?;
        let parent = match out.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        if !parent.is_dir() {
            return Err(ExportError(format!("{} is not a directory to write a bundle into", parent.display())));
        }
        let dir = parent.join(format!(".{name}.partial-{}", std::process::id()));
        // Left by a process of the same number that was killed.
        if dir.exists() {
            fs::remove_dir_all(&dir).map_err(|error| failed("remove", &dir, &error))?;
        }
        fs::create_dir(&dir).map_err(|error| failed("create", &dir, &error))?;
        let staging = Self { dir, out: out.to_owned(), sums: RefCell::default(), finished: false };
        staging.subdirectory("kernels")?;
        Ok(staging)
    }

    /// Makes a directory inside, parents too.
    fn subdirectory(&self, name: &str) -> Result<(), ExportError> {
        let path = self.dir.join(name);
        fs::create_dir_all(&path).map_err(|error| failed("create", &path, &error))
    }

    /// Writes a file to the disk, and remembers its checksum.
    pub(super) fn write(&self, name: &str, bytes: &[u8]) -> Result<(), ExportError> {
        if let Some((folder, _)) = name.rsplit_once('/') {
            self.subdirectory(folder)?;
        }
        let path = self.dir.join(name);
        let write = || -> io::Result<()> {
            let mut file = File::create_new(&path)?;
            file.write_all(bytes)?;
            file.sync_all()
        };
        write().map_err(|error| failed("write", &path, &error))?;
        self.written(name, checksums::digest(bytes));
        Ok(())
    }

    /// Remembers the checksum of a file that was written by other means.
    pub(super) fn written(&self, name: &str, digest: Digest) {
        self.sums.borrow_mut().insert(name, digest);
    }

    /// Writes the checksums of all files, and of `last`, which is written after them: what a directory without it holds
    /// is no bundle.
    pub(super) fn write_last(&self, name: &str, last: &[u8]) -> Result<(), ExportError> {
        self.written(name, checksums::digest(last));
        let text = self.sums.borrow().render();
        self.write(checksums::FILE, text.as_bytes())?;
        self.write(name, last)
    }

    /// Moves the directory to its final place.
    pub(super) fn finish(mut self) -> Result<(), ExportError> {
        sync(&self.dir.join("kernels"))?;
        sync(&self.dir)?;
        if fs::symlink_metadata(&self.out).is_ok() {
            return Err(ExportError(format!("{} has appeared meanwhile; it was left alone", self.out.display())));
        }
        fs::rename(&self.dir, &self.out).map_err(|error| failed("move the bundle to", &self.out, &error))?;
        self.finished = true;
        match self.out.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => sync(parent),
            _ => sync(Path::new(".")),
        }
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if !self.finished {
            // What stays if this fails is no bundle: the manifest is written last.
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}

fn sync(dir: &Path) -> Result<(), ExportError> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(|error| failed("sync", dir, &error))
}

/// An error about a file.
pub(super) fn failed(action: &str, path: &Path, error: &io::Error) -> ExportError {
    ExportError(format!("cannot {action} {}: {error}", path.display()))
}
