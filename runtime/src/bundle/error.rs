//! What can be wrong with a bundle.

use std::io;
use std::path::PathBuf;

/// A bundle that cannot be used, and where the trouble lies.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BundleError {
    /// A file could not be read.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was asked, as a verb.
        action: &'static str,
        /// Of which file.
        path: PathBuf,
        /// What the system answered.
        source: io::Error,
    },
    /// The path is no directory, or one without a manifest.
    #[error("{} is not a bundle: {what}", path.display())]
    NotABundle {
        /// The path that was given.
        path: PathBuf,
        /// What is missing.
        what: String,
    },
    /// A file is a Git LFS pointer: the repository was cloned without its large files.
    #[error("{} is a Git LFS pointer, not the file itself; fetch the large files (`git lfs pull`) and try again", path.display())]
    LfsPointer {
        /// The pointer.
        path: PathBuf,
    },
    /// A line of `manifest.txt` or `tensors.txt` breaks the grammar or a rule.
    #[error("{file}:{line}: {what}")]
    Line {
        /// The file inside the bundle.
        file: &'static str,
        /// Line, from 1.
        line: usize,
        /// What was found and what was expected.
        what: String,
    },
    /// The manifest lacks something or contradicts itself.
    #[error("manifest.txt: {what}")]
    Manifest {
        /// What was found and what was expected.
        what: String,
    },
    /// A tensor is missing, or has another type or size than the manifest calls for.
    #[error("tensor `{name}`: {what}")]
    Tensor {
        /// The tensor.
        name: String,
        /// What was found and what was expected.
        what: String,
    },
    /// A kernel file is not usable.
    #[error("{}: {what}", path.display())]
    Kernel {
        /// The file.
        path: PathBuf,
        /// What was found and what was expected.
        what: String,
    },
    /// A path in the manifest leaves the bundle.
    #[error("manifest.txt:{line}: `{path}` leaves the bundle; kernel paths must stay inside it")]
    Outside {
        /// Line, from 1.
        line: usize,
        /// The path as written.
        path: String,
    },
    /// A file became shorter after the bundle was opened.
    #[error("{} was {expected} bytes when the bundle was opened and is {found} now; something is writing to the bundle", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
        /// Size at opening.
        expected: u64,
        /// Size now.
        found: u64,
    },
}
