//! The array: instruction streams to shim DMA descriptors to the kernels' arithmetic.
#![allow(dead_code, reason = "filled in by the layers around it")]

use std::ptr::NonNull;

/// What the kernel behind an opaque instruction stream computes.
#[derive(Clone, Debug, PartialEq)]
pub enum Contract {
    /// A matrix product.
    Gemm(GemmContract),
    /// A matrix-vector product.
    Gemv(GemvContract),
}

/// Shape and strides of a matrix product.
#[derive(Clone, Debug, PartialEq)]
pub struct GemmContract {}

/// Shape and order of a matrix-vector product.
#[derive(Clone, Debug, PartialEq)]
pub struct GemvContract {}

/// A device address that does not lie in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("device access to {len} bytes at {addr:#x} (write: {write}) hits no single buffer object")]
pub(crate) struct MemoryFault {
    /// First address.
    pub(crate) addr: u64,
    /// Bytes.
    pub(crate) len: usize,
    /// Whether it was a write.
    pub(crate) write: bool,
}

/// Memory as the device sees it.
pub(crate) trait DeviceMemory: Sync {
    /// Resolves `[addr, addr + len)`, without the shim's 0x8000_0000 offset, to host memory inside one buffer object.
    /// The memory stays valid as long as `self` does.
    fn resolve(&self, addr: u64, len: usize, write: bool) -> Result<NonNull<u8>, MemoryFault>;
}

/// What a stream did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Executed {
    /// Operations executed.
    pub(crate) ops: u64,
    /// Bytes read from memory by shim DMA.
    pub(crate) bytes_read: u64,
    /// Bytes written to memory by shim DMA.
    pub(crate) bytes_written: u64,
}

/// Why a stream stopped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("operation {op_index} of the instruction stream: {what}")]
pub(crate) struct Fault {
    /// Index of the operation.
    pub(crate) op_index: u32,
    /// What was wrong.
    pub(crate) what: String,
}
