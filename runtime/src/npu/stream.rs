//! A bundle's instruction streams on the device: the one place where somebody vouches for what a stream does.
#![allow(unsafe_code)]

use std::sync::Arc;

use amdxdna_ioctl::{Argument, Device, Stream};

use super::error::NpuError;
use crate::txn;

/// What a stream does with its buffer arguments, as far as its descriptors tell.
fn arguments(stream: &txn::Stream) -> Vec<Argument> {
    let argument = |t: &txn::Traffic| Argument { reach: t.end, writes: t.written > 0 || t.unknown > 0 };
    stream.traffic().iter().map(argument).collect()
}

/// Puts a stream into the device heap. `name` is for messages.
pub(super) fn load(device: &Arc<Device>, name: &str, file: &[u8]) -> Result<Arc<Stream>, NpuError> {
    let parsed = txn::Stream::parse(file).map_err(|source| NpuError::Stream { kernel: name.to_owned(), source })?;
    // SAFETY: in every stream the transfers that are described by descriptors of its own were followed, and their reach
    // and direction are what is passed on; a binding to shorter or read-only views is refused. What a stream may do
    // besides (descriptors that are already in the array, addresses that it writes itself) cannot be read from it: a
    // bundle's kernels are programs, and loading one is trusting it, as running an executable is.
    Ok(unsafe { Stream::new(device, parsed.bytes(), &arguments(&parsed)) }?)
}
