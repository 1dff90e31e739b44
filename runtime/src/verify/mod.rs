//! Is this directory a whole bundle, and which?
//!
//! [`verify`] does what loading does short of an NPU: [`Bundle::open`], the tokenizer and its test cases, and it looks
//! where loading does not: at the checksums, at every value that the host computes with, and at what a download leaves
//! behind when it breaks off.

mod identity;
mod origin;
mod walk;

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::path::Path;

pub use identity::{Identity, KernelKind};
pub use origin::Origin;

use crate::bundle::{Bundle, BundleError, DType, Manifest, OWN_FILES};
use crate::chat::Tokenizer;
use crate::checksums::{self, Checksums};
use crate::files;
use crate::pdi::{self, Pdi};

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// A Git LFS pointer stands in place of the file.
    Pointer {
        /// The file.
        file: String,
        /// How long the file itself is, if the pointer says so.
        size: Option<u64>,
    },
    /// A download has left this: it broke off, or is still going on.
    Unfinished {
        /// The file.
        file: String,
    },
    /// A file that the bundle names, or that every bundle has, is not there.
    Missing {
        /// The file.
        file: String,
        /// What names it; nothing for those that every bundle has.
        by: Option<&'static str>,
    },
    /// A file has other contents than the checksums say.
    Changed {
        /// The file.
        file: String,
        /// The digest that is listed, in hexadecimal digits.
        expected: String,
        /// The digest of the file.
        found: String,
    },
    /// A file cannot be read.
    Unreadable {
        /// The file.
        file: String,
        /// What the system said.
        what: String,
    },
    /// A tensor that the host computes with holds a value that is no number.
    NotFinite {
        /// The tensor.
        tensor: String,
        /// Where in it, counted in values.
        at: usize,
    },
    /// Loading refuses it.
    Refused {
        /// What loading says.
        what: String,
    },
}

impl Problem {
    /// One word for programs.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Pointer { .. } => "pointer",
            Self::Unfinished { .. } => "unfinished",
            Self::Missing { .. } => "missing",
            Self::Changed { .. } => "changed",
            Self::Unreadable { .. } => "unreadable",
            Self::NotFinite { .. } => "not_finite",
            Self::Refused { .. } => "refused",
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pointer { file, size } => {
                write!(f, "{file}: a Git LFS pointer, not the file itself")?;
                match size {
                    Some(size) => write!(f, ", which has {size} bytes; `git lfs pull` fetches it"),
                    None => f.write_str("; `git lfs pull` fetches it"),
                }
            }
            Self::Unfinished { file } => write!(f, "{file}: left by a download that is not finished; download again"),
            Self::Missing { file, by: Some(by) } => {
                write!(f, "{file}: not there, but {by} names it; the download is not whole")
            }
            Self::Missing { file, by: None } => {
                write!(f, "{file}: not there, but every bundle has it; the download is not whole, or this is no bundle")
            }
            Self::Changed { file, expected, found } => {
                write!(f, "{file}: other contents than when it was written (SHA-256 {found}, listed {expected})")
            }
            Self::Unreadable { file, what } => write!(f, "{file}: {what}"),
            Self::NotFinite { tensor, at } => write!(f, "tensor `{tensor}`: value {at} is not a finite number"),
            Self::Refused { what } => f.write_str(what),
        }
    }
}

/// What became of the checksums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sums {
    /// The bundle has no `checksums.txt`, and its download has left no digests.
    Absent,
    /// There is no list, but the download has noted the digests of this many files, and they were compared.
    Downloaded {
        /// Files, the missing ones too.
        files: usize,
        /// Bytes that were read.
        bytes: u64,
    },
    /// This many files were compared.
    Compared {
        /// Files, the missing ones too.
        files: usize,
        /// Bytes that were read.
        bytes: u64,
    },
    /// The list itself is not usable.
    Unusable,
}

/// What was found.
#[derive(Debug, Clone, PartialEq)]
pub struct Verification {
    /// What kind of bundle it is, where it could be opened.
    pub identity: Option<Identity>,
    /// What its download says of where it came from.
    pub origin: Option<Origin>,
    /// The checksums.
    pub sums: Sums,
    /// Everything that is wrong.
    pub problems: Vec<Problem>,
    /// Files that the checksums do not list; they do no harm.
    pub unlisted: Vec<String>,
}

impl Verification {
    /// Whether nothing is wrong.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.problems.is_empty()
    }
}

/// How far a verification is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress<'a> {
    /// Bytes compared.
    pub done: u64,
    /// Bytes in all.
    pub total: u64,
    /// The file that is read now.
    pub file: &'a str,
}

/// Looks at everything. Gives nothing if `progress` breaks it off.
///
/// # Errors
/// A path that is no directory.
pub fn verify(
    dir: &Path,
    progress: &mut dyn FnMut(Progress<'_>) -> ControlFlow<()>,
) -> Result<Option<Verification>, BundleError> {
    let not_a_bundle = |what: &str| BundleError::NotABundle { path: dir.to_owned(), what: what.to_owned() };
    match fs::metadata(dir) {
        Ok(meta) if meta.is_dir() => {}
        Ok(_) => return Err(not_a_bundle("it is a file; a bundle is a directory")),
        Err(error) if error.kind() == ErrorKind::NotFound => return Err(not_a_bundle("there is nothing of that name")),
        Err(source) => return Err(BundleError::Io { action: "open", path: dir.to_owned(), source }),
    }
    let files = walk::files(dir);
    let mut found = Verification {
        identity: None,
        origin: origin::of(dir, &files),
        sums: Sums::Absent,
        problems: Vec::new(),
        unlisted: Vec::new(),
    };
    for file in &files {
        if let Some(problem) = walk::download_problem(dir, file) {
            found.problems.push(problem);
        }
    }
    if !found.compare(dir, &files, progress) {
        return Ok(None);
    }
    found.own_files(dir);
    found.named_by_the_manifest(dir, &files);
    match Bundle::open(dir) {
        Ok(bundle) => {
            found.identity = Some(Identity::of(&bundle));
            found.tokenizer(&bundle);
            found.finite(&bundle);
            found.images(&bundle);
        }
        // Said above already, file by file.
        Err(BundleError::LfsPointer { .. }) => {}
        Err(BundleError::NotABundle { .. }) if found.lacks_files() => {}
        Err(BundleError::Io { source, .. }) if source.kind() == ErrorKind::NotFound && !found.passed() => {}
        Err(error) => found.problems.push(Problem::Refused { what: error.to_string() }),
    }
    Ok(Some(found))
}

fn unreadable(file: &str, error: &std::io::Error) -> Problem {
    Problem::Unreadable { file: file.to_owned(), what: format!("cannot be read: {error}") }
}

impl Verification {
    /// Compares the files with their checksums; `false` when it was broken off.
    fn compare(
        &mut self,
        dir: &Path,
        files: &[String],
        progress: &mut dyn FnMut(Progress<'_>) -> ControlFlow<()>,
    ) -> bool {
        let text = match files::read(&dir.join(checksums::FILE)) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == ErrorKind::NotFound => return self.compare_with_download(dir, progress),
            Err(error) => {
                self.sums = Sums::Unusable;
                self.problems.push(unreadable(checksums::FILE, &error));
                return true;
            }
        };
        let sums = match Checksums::parse(&text) {
            Ok(sums) => sums,
            Err(error) => {
                self.sums = Sums::Unusable;
                // A pointer was reported as one.
                if !self.is_pointer(checksums::FILE) {
                    self.problems.push(Problem::Refused { what: error.to_string() });
                }
                return true;
            }
        };
        let Some((count, done)) = self.digests(dir, &sums, progress) else { return false };
        self.sums = Sums::Compared { files: count, bytes: done };
        let listed = |file: &&String| *file == checksums::FILE || sums.has(file);
        self.unlisted = files.iter().filter(|file| !listed(file)).cloned().collect();
        true
    }

    /// As [`Verification::compare`], with what the download has noted.
    fn compare_with_download(&mut self, dir: &Path, progress: &mut dyn FnMut(Progress<'_>) -> ControlFlow<()>) -> bool {
        let sums = self.origin.as_ref().map(|origin| origin.sums.clone()).unwrap_or_default();
        if sums.iter().next().is_some() {
            let Some((files, bytes)) = self.digests(dir, &sums, progress) else { return false };
            self.sums = Sums::Downloaded { files, bytes };
        }
        true
    }

    /// Compares the files with digests; how many files and bytes, or nothing when it was broken off.
    fn digests(
        &mut self,
        dir: &Path,
        sums: &Checksums,
        progress: &mut dyn FnMut(Progress<'_>) -> ControlFlow<()>,
    ) -> Option<(usize, u64)> {
        let size = |name: &str| fs::metadata(dir.join(name)).map_or(0, |meta| meta.len());
        let total = sums.iter().map(|(name, _)| size(name)).sum();
        let (mut done, mut count) = (0, 0);
        for (name, expected) in sums.iter() {
            count += 1;
            if self.is_pointer(name) {
                continue;
            }
            let file = match files::open(&dir.join(name)) {
                Ok(file) => file,
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    self.problems.push(Problem::Missing { file: name.to_owned(), by: Some(checksums::FILE) });
                    continue;
                }
                Err(error) => {
                    self.problems.push(unreadable(name, &error));
                    continue;
                }
            };
            let mut step = |bytes: u64| {
                done += bytes;
                progress(Progress { done, total, file: name })
            };
            match checksums::digest_of(file, &mut step) {
                Ok(Some(digest)) if digest == *expected => {}
                Ok(Some(digest)) => self.problems.push(Problem::Changed {
                    file: name.to_owned(),
                    expected: checksums::hex(expected),
                    found: checksums::hex(&digest),
                }),
                Ok(None) => return None,
                Err(error) => self.problems.push(unreadable(name, &error)),
            }
        }
        Some((count, done))
    }

    fn lacks_files(&self) -> bool {
        self.problems.iter().any(|problem| matches!(problem, Problem::Missing { .. }))
    }

    fn misses(&self, name: &str) -> bool {
        self.problems.iter().any(|problem| matches!(problem, Problem::Missing { file, .. } if file == name))
    }

    /// Notes which of the files that every bundle has are not there, all of them where loading would stop at the first.
    fn own_files(&mut self, dir: &Path) {
        for name in OWN_FILES.into_iter().filter(|name| !dir.join(name).exists()) {
            if !self.misses(name) {
                self.problems.push(Problem::Missing { file: name.to_owned(), by: None });
            }
        }
    }

    /// Notes the kernels that are not there, all of them where loading would stop at the first.
    fn named_by_the_manifest(&mut self, dir: &Path, files: &[String]) {
        let manifest = files::read(&dir.join("manifest.txt")).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        // Loading says what is wrong with it.
        let Some(manifest) = manifest.and_then(|text| Manifest::parse(&text).ok()) else { return };
        let streams = manifest.gemms.values().flat_map(|gemm| &gemm.chunks).map(|stream| &stream.insts);
        let streams = streams.chain(manifest.gemvs.values().map(|gemv| &gemv.insts));
        let named: BTreeSet<&String> = manifest.xclbins.values().map(|xclbin| &xclbin.path).chain(streams).collect();
        for name in named.into_iter().filter(|name| files.binary_search(name).is_err() && !dir.join(name).exists()) {
            if !self.misses(name) {
                self.problems.push(Problem::Missing { file: name.clone(), by: Some("manifest.txt") });
            }
        }
    }

    fn is_pointer(&self, name: &str) -> bool {
        self.problems.iter().any(|problem| matches!(problem, Problem::Pointer { file, .. } if file == name))
    }

    /// The array's configurations hold checksums of their own, which loading leaves to the firmware.
    fn images(&mut self, bundle: &Bundle) {
        for (key, record) in &bundle.manifest.xclbins {
            let Ok(xclbin) = bundle.xclbin(key) else { continue };
            if let Some(error) = pdi::is_pdi(&xclbin.pdi).then(|| Pdi::parse(&xclbin.pdi).err()).flatten() {
                let what = format!("{}: damaged PDI: {error}", record.path);
                self.problems.push(Problem::Refused { what });
            }
        }
    }

    /// The tokenizer and its test cases.
    fn tokenizer(&mut self, bundle: &Bundle) {
        let mut refuse = |what: String| self.problems.push(Problem::Refused { what });
        let tokenizer = match bundle.tokenizer_json() {
            Ok(json) => Tokenizer::from_json(&json),
            Err(error) => return refuse(error.to_string()),
        };
        let tokenizer = match tokenizer {
            Ok(tokenizer) => tokenizer,
            Err(error) => return refuse(error.to_string()),
        };
        let wrong =
            bundle.manifest.tokcases.iter().filter(|case| tokenizer.encode(&case.text).ok() != Some(case.ids.clone()));
        let wrong = wrong.count();
        if wrong > 0 {
            let all = bundle.manifest.tokcases.len();
            refuse(format!("tokenizer.json: {wrong} of {all} test cases of the manifest become other tokens"));
        }
    }

    /// Every f32 value.
    fn finite(&mut self, bundle: &Bundle) {
        for name in bundle.tensor_names() {
            match bundle.tensor(name) {
                Ok(tensor) if tensor.dtype == DType::F32 => {
                    let at = tensor.f32s().and_then(|values| values.iter().position(|value| !value.is_finite()));
                    self.problems.extend(at.map(|at| Problem::NotFinite { tensor: name.to_owned(), at }));
                }
                Ok(_) => {}
                Err(error) => self.problems.push(Problem::Refused { what: error.to_string() }),
            }
        }
    }
}
