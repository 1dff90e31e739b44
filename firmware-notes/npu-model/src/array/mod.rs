//! The array: instruction streams, shim DMA, and the arithmetic of the kernels.
#![allow(dead_code, reason = "filled in by the layers around it")]

mod contract;

pub use contract::{Contract, Epilogue, GemmContract, GemvContract, Order};
pub use host_ops::pack::Format;

use std::ptr::NonNull;

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
    /// Returns where it starts and how many of its bytes, at least one, lie there in one piece; the rest is asked for
    /// again. The memory stays valid, readable and (if `write`) writable as long as `self` lives.
    fn resolve(&self, addr: u64, len: usize, write: bool) -> Result<(NonNull<u8>, usize), MemoryFault>;
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

/// The array as one hardware context sees it.
#[derive(Debug)]
pub(crate) struct Array {}

impl Array {
    /// Takes a PDI: a marked one is a reference kernel, any other is opaque.
    pub(crate) fn configure(pdi: &[u8]) -> Result<Self, Fault> {
        let _ = pdi;
        todo!()
    }

    /// Runs an instruction stream; `args` are the packet's buffer addresses.
    pub(crate) fn execute(
        &mut self,
        stream: &[u8],
        args: &[u64],
        memory: &dyn DeviceMemory,
        contracts: &dyn Fn([u8; 32]) -> Option<Contract>,
        pool: &host_ops::pool::Pool,
    ) -> Result<Executed, Fault> {
        let _ = (stream, args, memory, contracts, pool);
        todo!()
    }
}
