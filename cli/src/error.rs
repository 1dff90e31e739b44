//! How a run can end badly, and the code that the shell sees.

use crate::arguments::UsageError;
use crate::serve::ServeError;
use runtime::ChatError;
use runtime::bundle::BundleError;
use runtime::chat::StoreError;
use runtime::export::ExportError;
use runtime::npu::NpuError;
use std::path::{Path, PathBuf};

/// Why the program did not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum CliError {
    /// The command line means nothing.
    #[error("{0} (see `qwen35-direct --help`)")]
    Usage(#[from] UsageError),
    /// Whoever read standard output has gone. Nothing to say, and nobody to say it to.
    #[error("standard output was closed")]
    Closed,
    /// Standard output cannot be written for another reason, such as a full disk.
    #[error("writing the answer to standard output: {0}")]
    Output(std::io::Error),
    /// A trace cannot be written.
    #[error("--trace {}: {source}", path.display())]
    Trace {
        /// Where to.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// There is no server.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// Ctrl-C.
    #[error("interrupted")]
    Interrupted,
    /// The bundle is not usable.
    #[error("{}", of_bundle(path, source))]
    Bundle {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        source: BundleError,
    },
    /// The bundle's tokenizer is not usable.
    #[error("bundle {}: {source}", path.display())]
    Tokenizer {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        source: ChatError,
    },
    /// Loading or answering failed.
    #[error(transparent)]
    Chat(#[from] ChatError),
    /// The export failed.
    #[error("export: {0}")]
    Export(#[from] ExportError),
    /// A picture cannot be used.
    #[error("picture {}: {what}", path.display())]
    Picture {
        /// Which.
        path: PathBuf,
        /// Why not.
        what: String,
    },
    /// A file is not what it should be, or damaged.
    #[error("{}: {what}", path.display())]
    Inspect {
        /// Which.
        path: PathBuf,
        /// What is wrong with it, and where.
        what: String,
    },
    /// A prompt cannot be read.
    #[error("prompt from {from}: {what}")]
    Prompt {
        /// The file, or standard input.
        from: String,
        /// Why not.
        what: String,
    },
    /// A file that a flag names cannot be used.
    #[error("--{flag} {}: {what}", path.display())]
    Wish {
        /// The flag.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        what: String,
    },
    /// A line that asks for what there is not, or cannot be done now.
    #[error("{0}")]
    Order(String),
    /// Functions that are called and called again.
    #[error("{0}")]
    Tool(String),
    /// A saved conversation cannot be written or read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A text to foretell cannot be used.
    #[error("text {}: {what}", path.display())]
    Text {
        /// The file.
        path: PathBuf,
        /// Why not.
        what: String,
    },
    /// No NPU can be used, and one was asked for.
    #[error("{0}")]
    Device(String),
    /// The references of a bundle did not come out.
    #[error("check failed: see the table")]
    CheckFailed,
    /// A bundle is not whole.
    #[error("verify: {}: see above", problems(*.0))]
    NotVerified(usize),
    /// Something keeps a run from working.
    #[error("doctor: {}: see above", problems(*.0))]
    Ill(usize),
    /// Some driver cases did not come out.
    #[error("driver-check: {0} cases failed: see above")]
    DriverCheckFailed(usize),
    /// There is nothing to check with.
    #[error("bundle {}: it holds no reference runs; export with --refs to have some", .0.display())]
    NoReferences(PathBuf),
    /// The demo model is not where it should be.
    #[error("the demo model was not found: looked for {0}; set QWEN35_DEMO_BUNDLE to its directory")]
    NoDemo(String),
}

fn problems(count: usize) -> String {
    if count == 1 { "1 problem".to_owned() } else { format!("{count} problems") }
}

impl CliError {
    /// Whether the device is to blame: another one may do better.
    pub(crate) fn is_device(&self) -> bool {
        match self {
            Self::Device(_) => true,
            Self::Chat(error) => error.is_device(),
            _ => false,
        }
    }

    /// Whether no later turn of the session can work: the device is lost, or may still write our buffers.
    pub(crate) fn ends_session(&self) -> bool {
        matches!(self, Self::Chat(ChatError::Npu(NpuError::Lost | NpuError::Timeout { .. })))
    }

    /// 0 fine, 1 failed, 2 wrong use, 130 interrupted.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Closed => 0,
            Self::Usage(_) | Self::Serve(ServeError::Open(_)) => 2,
            Self::Interrupted => 130,
            _ => 1,
        }
    }
}

/// The message, with the bundle's path where it does not hold it already.
fn of_bundle(path: &Path, source: &BundleError) -> String {
    let (path, message) = (path.display().to_string(), source.to_string());
    if message.contains(&path) { message } else { format!("bundle {path}: {message}") }
}

/// An error on one line, whatever its parts put into it.
pub(crate) fn one_line(error: &dyn std::fmt::Display) -> String {
    error.to_string().split(['\n', '\r']).map(str::trim).filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}
