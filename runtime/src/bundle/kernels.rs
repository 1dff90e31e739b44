//! The kernel files: containers parse, streams hold together and stay inside the buffers that the records give them.

use super::error::BundleError;
use super::files::{self, Directory};
use super::manifest::Manifest;
use super::records::{GemmRecord, GemvRecord, StreamRecord};
use crate::txn::Stream;
use crate::xclbin::Xclbin;

/// What the buffer arguments of a kernel are called, in order.
const GEMM: [&str; 3] = ["A", "B", "C"];
const GEMV: [&str; 3] = ["x", "W", "y"];

/// Checks every kernel file that the manifest names.
pub(super) fn check(manifest: &Manifest, directory: &Directory) -> Result<(), BundleError> {
    for key in manifest.xclbins.keys() {
        xclbin(manifest, directory, key)?;
    }
    // First the files by line, so that a path or a file that is amiss is reported with its line.
    for (line, name) in &manifest.streams {
        directory.inside(name, *line)?;
    }
    for gemm in manifest.gemms.values() {
        for chunk in &gemm.chunks {
            reach(directory, &chunk.insts, GEMM, gemm_buffers(gemm, chunk))?;
        }
    }
    for gemv in manifest.gemvs.values() {
        reach(directory, &gemv.insts, GEMV, gemv_buffers(gemv))?;
    }
    Ok(())
}

/// The container with this key.
pub(super) fn xclbin(manifest: &Manifest, directory: &Directory, key: &str) -> Result<Xclbin, BundleError> {
    let record = manifest.xclbins.get(key);
    let record = record.ok_or_else(|| BundleError::Manifest { what: format!("there is no `xclbin {key}`") })?;
    let line = manifest.xclbin_lines.get(key).copied().unwrap_or(0);
    let path = directory.inside(&record.path, line)?;
    let bytes = files::read(&path)?;
    Xclbin::parse(&bytes, &record.kernel).map_err(|error| BundleError::Kernel { path, what: error.to_string() })
}

/// A stream that holds together.
pub(super) fn stream(directory: &Directory, name: &str) -> Result<Stream, BundleError> {
    let path = directory.inside(name, 0)?;
    let bytes = files::read(&path)?;
    Stream::parse(&bytes).map_err(|error| BundleError::Kernel { path, what: error.to_string() })
}

/// Bytes of A, B and C. A view that begins at a column reaches as many elements into the spare row after it.
fn gemm_buffers(gemm: &GemmRecord, chunk: &StreamRecord) -> [u64; 3] {
    let element = gemm.format.element_bytes();
    [chunk.a_elems * element, gemm.b_bytes, chunk.c_elems * element].map(|bytes| bytes as u64)
}

/// Bytes of x, W and y.
fn gemv_buffers(gemv: &GemvRecord) -> [u64; 3] {
    let element = gemv.format.element_bytes();
    [gemv.k * element, gemv.w_words * 4, gemv.m * element].map(|bytes| bytes as u64)
}

/// Whether a stream's transfers stay inside its buffers.
fn reach(directory: &Directory, name: &str, arguments: [&str; 3], buffers: [u64; 3]) -> Result<(), BundleError> {
    let stream = stream(directory, name)?;
    let extents = stream.extents();
    let wrong = |what: String| BundleError::Kernel { path: directory.path.join(name), what };
    if extents.len() > buffers.len() {
        return Err(wrong(format!("transfers of {} buffer arguments; a kernel has {}", extents.len(), buffers.len())));
    }
    for ((argument, extent), buffer) in arguments.iter().zip(extents).zip(buffers) {
        if *extent > buffer {
            return Err(wrong(format!(
                "transfers reach byte {extent} of {argument}, which has {buffer} by the manifest; the stream belongs to another shape"
            )));
        }
    }
    Ok(())
}
