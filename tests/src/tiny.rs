//! The bundle that our exporter makes of a tiny checkpoint with random weights ([`TINY`]). It talks gibberish through the
//! very same path as a real one: two layers, a vision tower of one block.

use crate::checkpoint::{Form, TINY};
use runtime::bundle::{Bundle, WeightFormat};
use runtime::export::{ExportOptions, VisionExport, export};
use std::path::{Path, PathBuf};

/// What marks the device image of a kernel that only the software NPU runs.
pub const MARKER: &[u8] = b"qwen35-reference";

/// Writes the checkpoint and exports it; both lie in `folder`, which is emptied first. The bundle is `folder/bundle`.
///
/// # Errors
/// What the file system or the exporter refused.
pub fn bundle(folder: &Path) -> Result<PathBuf, String> {
    exported(folder, VisionExport::W8, None)
}

/// As [`bundle`], without the vision tower, and with a head of two parts, which do not depend on each other.
///
/// # Errors
/// As [`bundle`].
pub fn text_bundle(folder: &Path) -> Result<PathBuf, String> {
    exported(folder, VisionExport::None, Some(2))
}

/// As [`text_bundle`] with the text model in bfp6s, and with reference runs of these weights by the plain forward.
///
/// # Errors
/// As [`bundle`], and a bundle that the forward cannot compute with.
pub fn six_bit_bundle(folder: &Path) -> Result<PathBuf, String> {
    let plain = text_bundle(folder)?;
    std::fs::remove_dir_all(&plain).map_err(|error| error.to_string())?;
    let (first, refs) = (folder.join("first"), folder.join("refs"));
    let mut options = ExportOptions {
        vision: VisionExport::None,
        head_parts: Some(2),
        format: WeightFormat::Bfp6s,
        ..ExportOptions::new(folder.join("checkpoint"), first)
    };
    let run = |options: &ExportOptions| {
        export(options, &mut |_| std::ops::ControlFlow::Continue(())).map_err(|error| format!("export: {error}"))
    };
    run(&options)?;
    let bundle = Bundle::open(&options.out).map_err(|error| error.to_string())?;
    crate::references::write(&bundle, &["Why is the sky blue?", "the hut in the tin", "7 or 9"], 12, &refs)?;
    options.refs = Some(refs);
    options.out = folder.join("bundle");
    Ok(run(&options)?.out)
}

fn exported(folder: &Path, vision: VisionExport, head_parts: Option<usize>) -> Result<PathBuf, String> {
    let _ = std::fs::remove_dir_all(folder);
    let checkpoint = folder.join("checkpoint");
    self::checkpoint(&checkpoint).map_err(|error| format!("{}: {error}", checkpoint.display()))?;
    let out = folder.join("bundle");
    let options = ExportOptions { vision, head_parts, ..ExportOptions::new(checkpoint, out) };
    let summary =
        export(&options, &mut |_| std::ops::ControlFlow::Continue(())).map_err(|error| format!("export: {error}"))?;
    Ok(summary.out)
}

/// Writes the checkpoint's files into `folder`.
///
/// # Errors
/// What the file system refused.
pub fn checkpoint(folder: &Path) -> std::io::Result<()> {
    TINY.write(folder, Form::USUAL)
}
