//! From a Hugging Face checkpoint to a bundle.
//!
//! The bundle is written beside its place and moved there when it is whole and [`Bundle::open`] accepts it. Weights are
//! read a row at a time and packed a tensor at a time, one being written while the next is packed: memory holds two
//! packed tensors, whatever the size of the checkpoint. Without
//! [`ExportOptions::kernels_from`] its kernels are reference kernels ([`crate::reference`]), which the software NPU
//! runs; on hardware a bundle needs kernels compiled for the AIE cores, taken from a bundle that has them.
//!
//! What the format cannot say is said in parameters of our own, written only where they are needed: `lin_vheads`, `o_k`,
//! `down_k`, `embed`, `v.fc2_slices`, `v.m_slices`, `gemv_format f32`, `v.weights f32` and the record `ref2`; see
//! [`crate::bundle`].

mod config;
mod plan;
mod quantisation;
mod refs;
mod safetensors;
mod staging;
mod text;
mod vision;
mod writer;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use host_ops::pool::Pool;
pub use quantisation::Quantisation;
use serde_json::Value;

use crate::bundle::{Bundle, Manifest, WeightFormat};
use crate::chat::Tokenizer;
use crate::files;
use crate::reference::{self, Epilogue, GemmSpec, GemvSpec, Kind, Order};

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
    /// Format of the text model's weights. The tower's go with it: in f32 beside f32, else packed in bfp16.
    pub format: WeightFormat,
    /// Take kernels and shapes from this bundle.
    pub kernels_from: Option<PathBuf>,
    /// Rows the text streams take in one dispatch; a multiple of 256. By default 2048, or 1024 for a small model.
    pub max_prompt: Option<usize>,
    /// Parts of the head. By default as many as keep a part under 49664 rows, and two for a small model.
    pub head_parts: Option<usize>,
    /// The longest K slice of the tower's long linears. By default the tower's width where the format expects that,
    /// else 2048.
    pub tower_slice: Option<usize>,
    /// Take the head for speculation (`mtp.*`) along.
    pub speculation: bool,
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
            tower_slice: None,
            speculation: false,
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
    /// The tensor being written; empty at the end.
    pub tensor: &'a str,
}

/// What an export wrote.
#[derive(Debug, Clone, PartialEq)]
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
    /// What the format took from each packed weight, in the order of the file; also in the bundle's `quantisation.txt`.
    pub quantisation: Vec<Quantisation>,
}

/// An export that failed; nothing that loads is left behind.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ExportError(pub String);

/// Writes a bundle. `progress` may break the export off.
///
/// # Errors
/// What is wrong with the checkpoint, the references, the other bundle or the disk, or that `progress` broke it off.
pub fn export(
    options: &ExportOptions,
    progress: &mut dyn FnMut(Progress<'_>) -> ControlFlow<()>,
) -> Result<Summary, ExportError> {
    if !options.checkpoint.is_dir() {
        return Err(ExportError(format!("{} is not a directory with a checkpoint", options.checkpoint.display())));
    }
    let mut config = config::Config::read(&options.checkpoint)?;
    if options.vision == VisionExport::None {
        config.vision = None;
    }
    let other = options.kernels_from.as_deref().map(Bundle::open).transpose();
    let other = other.map_err(|error| ExportError(format!("the bundle to take kernels from: {error}")))?;
    let mut manifest = match &other {
        Some(other) => plan::manifest_on(&config, options, other)?,
        None => plan::manifest(&config, options)?,
    };
    let tokenizer = options.checkpoint.join("tokenizer.json");
    let tokenizer = files::read(&tokenizer).map_err(|error| staging::failed("read", &tokenizer, &error))?;
    Tokenizer::from_json(&tokenizer).map_err(|error| ExportError(error.to_string()))?;
    let references =
        options.refs.as_deref().map(|dir| refs::References::read(dir, config.vision.is_some())).transpose()?;
    if let Some(references) = &references {
        manifest.tokcases.clone_from(&references.tokcases);
        manifest.refs.clone_from(&references.refs);
    }
    manifest.recheck().map_err(|error| ExportError(format!("the checkpoint's shapes do not work out: {error}")))?;
    let tensors = safetensors::Tensors::checkpoint(&options.checkpoint)?;
    let mut jobs = text::jobs(&manifest, &tensors, options.speculation)?;
    if let (Some(vision), Some(tower)) = (&manifest.vision, &config.vision) {
        jobs.extend(vision::jobs(&manifest, vision, tower.temporal, &tensors)?);
    }
    if let Some(references) = &references {
        jobs.extend(references.jobs()?);
    }

    let staging = staging::Staging::new(&options.out)?;
    staging.write("tokenizer.json", &tokenizer)?;
    if options.checkpoint.join("chat_template.jinja").exists() {
        copy(&staging, &options.checkpoint, "chat_template.jinja")?;
    }
    match &other {
        Some(other) => copy_kernels(&staging, &manifest, other)?,
        None => write_kernels(&manifest, &mut |name, bytes| staging.write(name, bytes))?,
    }
    let pool = Pool::new(options.threads);
    let written = writer::write(&staging, &jobs, &pool, progress)?;
    staging.write("quantisation.txt", quantisation::render(&written.quantisation).as_bytes())?;
    // Last, so that what is left of an export that was killed is no bundle.
    staging.write_last("manifest.txt", manifest.render().as_bytes())?;
    Bundle::open(&staging.dir)
        .map_err(|error| ExportError(format!("the bundle that was written is not sound: {error}")))?;
    staging.finish()?;
    Ok(Summary {
        out: options.out.clone(),
        tensors: jobs.len(),
        bytes: written.bytes,
        streams: manifest.gemms.values().map(|gemm| gemm.chunks.len()).sum::<usize>() + manifest.gemvs.len(),
        refs: manifest.refs.len(),
        quantisation: written.quantisation,
    })
}

/// The manifest of the bundle that an export of this configuration would write, without test cases. The values are the
/// checkpoint's `config.json`, `generation_config.json` and `preprocessor_config.json`; the last two may be null.
///
/// # Errors
/// A configuration that is not implemented, or shapes that do not work out.
pub fn manifest_for(
    config: &Value,
    generation: &Value,
    processor: &Value,
    options: &ExportOptions,
) -> Result<Manifest, ExportError> {
    let manifest = plan::manifest(&config::Config::from_json(config, generation, processor)?, options)?;
    manifest.recheck().map_err(|error| ExportError(error.to_string()))?;
    Ok(manifest)
}

/// Takes a file of the checkpoint along unchanged.
fn copy(staging: &staging::Staging, checkpoint: &Path, name: &str) -> Result<(), ExportError> {
    let path = checkpoint.join(name);
    let bytes = files::read(&path).map_err(|error| staging::failed("read", &path, &error))?;
    staging.write(name, &bytes)
}

/// Takes the kernels that the manifest names out of another bundle.
fn copy_kernels(staging: &staging::Staging, manifest: &Manifest, other: &Bundle) -> Result<(), ExportError> {
    let mut names: Vec<&str> = manifest.xclbins.values().map(|xclbin| xclbin.path.as_str()).collect();
    names.extend(manifest.gemms.values().flat_map(|gemm| &gemm.chunks).map(|stream| stream.insts.as_str()));
    names.extend(manifest.gemvs.values().map(|gemv| gemv.insts.as_str()));
    names.sort_unstable();
    names.dedup();
    for name in names {
        let bytes = other.file(name).map_err(|error| ExportError(error.to_string()))?;
        staging.write(name, &bytes)?;
    }
    Ok(())
}

/// Takes a file of a bundle: its name inside the bundle, and its bytes.
pub type WriteFile<'a> = dyn FnMut(&str, &[u8]) -> Result<(), ExportError> + 'a;

/// Makes the reference kernels that a manifest names and hands each file to `write`.
///
/// # Errors
/// A shape that the reference kernels cannot have, or an error of `write`.
pub fn write_kernels(manifest: &Manifest, write: &mut WriteFile<'_>) -> Result<(), ExportError> {
    for (key, xclbin) in &manifest.xclbins {
        let kind = if manifest.gemvs.values().any(|gemv| gemv.ctx == *key) { Kind::Gemv } else { Kind::Gemm };
        write(&xclbin.path, &reference::xclbin(kind))?;
    }
    let refused = |key: &str, error: reference::SpecError| ExportError(format!("`{key}`: {error}"));
    for gemm in manifest.gemms.values() {
        for (index, stream) in gemm.chunks.iter().enumerate() {
            let spec = GemmSpec {
                chunks: index + 1,
                k: gemm.k,
                n: gemm.n,
                lda: gemm.lda,
                c_stride: gemm.c_stride,
                bias: gemm.bias,
                epilogue: if gemm.key == "gu" { Epilogue::PairedSwiglu } else { Epilogue::None },
                format: gemm.format.packing(),
            };
            let bytes = reference::gemm_stream(&spec).map_err(|error| refused(&gemm.key, error))?;
            write(&stream.insts, &bytes)?;
        }
    }
    for gemv in manifest.gemvs.values() {
        let format = gemv.format.packing();
        let order = if gemv.key == "head" { Order::Rows } else { Order::Stream };
        let spec = GemvSpec { m: gemv.m, k: gemv.k, order, bias: gemv.bias, format };
        let bytes = reference::gemv_stream(&spec).map_err(|error| refused(&gemv.key, error))?;
        write(&gemv.insts, &bytes)?;
    }
    Ok(())
}

/// Reads a JSON file.
fn json(path: &Path) -> Result<Value, ExportError> {
    let bytes = files::read(path).map_err(|error| staging::failed("read", path, &error))?;
    serde_json::from_slice(&bytes).map_err(|error| ExportError(format!("{}: {error}", path.display())))
}
