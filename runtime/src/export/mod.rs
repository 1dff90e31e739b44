//! From a Hugging Face checkpoint to a bundle.

use std::path::PathBuf;

use crate::bundle::WeightFormat;

/// What to do with the vision tower.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VisionExport {
    /// Eight-bit weights with a factor a column (plain f32 if the format is [`WeightFormat::F32`]).
    W8,
    /// Leave it out.
    None,
}

/// What to export.
#[derive(Debug, Clone)]
pub struct ExportOptions {
    /// Directory of the checkpoint.
    pub checkpoint: PathBuf,
    /// Directory of the bundle to write; must not exist.
    pub out: PathBuf,
    /// Folder of reference runs to take along.
    pub refs: Option<PathBuf>,
    /// The vision tower.
    pub vision: VisionExport,
    /// Format of the weights: [`WeightFormat::Bfp16`] or [`WeightFormat::F32`].
    pub format: WeightFormat,
    /// Take kernels and shapes from this bundle.
    pub kernels_from: Option<PathBuf>,
    /// Rows the text streams take in one dispatch; a multiple of 256. By default 2048, or 1024 for a small model.
    pub max_prompt: Option<usize>,
    /// Parts of the head. By default as many as keep a part under 49664 rows, and two for a small model.
    pub head_parts: Option<usize>,
    /// Threads to pack with; 0 takes what the machine has.
    pub threads: usize,
}

impl ExportOptions {
    /// Exports `checkpoint` to `out` with everything else as by default.
    #[must_use]
    pub fn new(checkpoint: PathBuf, out: PathBuf) -> Self {
        Self {
            checkpoint,
            out,
            refs: None,
            vision: VisionExport::W8,
            format: WeightFormat::Bfp16,
            kernels_from: None,
            max_prompt: None,
            head_parts: None,
            threads: 0,
        }
    }
}

/// How far an export is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress<'a> {
    /// Bytes of tensors written.
    pub done: u64,
    /// Bytes of tensors in all.
    pub total: u64,
    /// The tensor being written.
    pub tensor: &'a str,
}

/// What an export wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// The bundle.
    pub out: PathBuf,
    /// Tensors in it.
    pub tensors: usize,
    /// Bytes of `tensors.bin`.
    pub bytes: u64,
    /// Instruction streams.
    pub streams: usize,
    /// Reference runs.
    pub refs: usize,
}

/// An export that failed; nothing that loads is left behind.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ExportError(pub String);

/// Writes a bundle.
///
/// # Errors
/// See [`ExportError`].
pub fn export(_options: &ExportOptions, _progress: &mut dyn FnMut(Progress<'_>)) -> Result<Summary, ExportError> {
    todo!()
}
