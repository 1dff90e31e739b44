//! The array: instruction streams to shim DMA descriptors to the kernels' arithmetic.
//!
//! A PDI with our marker holds a *reference kernel*: its streams are obeyed operation by operation, and what they say
//! is all there is. Any other PDI is *opaque*: its streams are only walked, and a [`Contract`] says what they compute.

pub mod bench;
mod contract;
mod cost;
mod gemm;
mod gemv;
mod kernel;
mod memory;
mod numbers;
mod opaque;
mod run;
mod shim;
mod step;
mod txn;

pub use contract::{Contract, Epilogue, GemmContract, GemvContract, Order};
pub use host_ops::pack::Format;
pub(crate) use memory::{DeviceMemory, MemoryFault, copy_in, copy_out};

use host_ops::pool::Pool;
use sha2::{Digest, Sha256};

use kernel::Kernel;
use run::Run;
use step::{Scratch, Traffic};
use txn::Ops;

/// Numbers that the notes beside this crate repeat.
pub(crate) mod numbers_of_notes {
    pub(crate) use super::kernel::{BARRIER, PARAMETER_ADDRESS, PARAMETERS, VERSION};
    pub(crate) use super::shim::{DESCRIPTORS, QUEUE_DEPTH};
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
    /// Hardware would not stop there: it would wait for ever.
    pub(crate) hangs: bool,
}

/// The array as one compute unit of a hardware context sees it.
#[derive(Debug)]
pub(crate) struct Array {
    kernel: Kernel,
    scratch: Scratch,
}

impl Array {
    /// Takes a PDI: a marked one is a reference kernel, any other is opaque.
    ///
    /// # Errors
    /// An empty PDI, or a reference kernel of another version.
    pub(crate) fn configure(pdi: &[u8]) -> Result<Self, Fault> {
        let kernel = Kernel::of_pdi(pdi).map_err(|what| Fault { op_index: 0, what, hangs: false })?;
        Ok(Self { kernel, scratch: Scratch::default() })
    }

    /// Runs an instruction stream; `args` are the packet's buffer addresses as the device knows them. `contracts` is
    /// asked for the contract of an opaque kernel's stream, by its SHA-256.
    ///
    /// # Errors
    /// The operation at which the stream stopped making sense, and why. What was written before stays written.
    pub(crate) fn execute(
        &mut self,
        stream: &[u8],
        args: &[u64],
        memory: &dyn DeviceMemory,
        contracts: &dyn Fn([u8; 32]) -> Option<Contract>,
        pool: &Pool,
    ) -> Result<Executed, Fault> {
        let mut index = 0;
        let mut hangs = false;
        let result = match self.kernel {
            Kernel::Reference(kind) => {
                let mut run = Run::new(kind, args, memory, pool, &mut self.scratch);
                let done = each(stream, &mut index, &mut |op| run.op(op)).and_then(|()| run.finish());
                hangs = run.hangs;
                done.map(|()| run.traffic)
            }
            Kernel::Opaque(pdi) => each(stream, &mut index, &mut |op| opaque::check(op, args.len())).and_then(|()| {
                if index == 0 {
                    return Ok(Traffic::default());
                }
                let contract = contract_of(stream, &pdi, contracts)?;
                opaque::run(&contract, args, memory, pool, &mut self.scratch)
            }),
        };
        match result {
            Ok(traffic) => Ok(Executed { ops: index, bytes_read: traffic.read, bytes_written: traffic.written }),
            Err(what) => Err(Fault { op_index: index as u32, what, hangs }),
        }
    }
}

/// Calls `f` for each operation, counting them.
fn each(stream: &[u8], index: &mut u64, f: &mut dyn FnMut(txn::Op<'_>) -> Result<(), String>) -> Result<(), String> {
    let mut ops = Ops::new(stream)?;
    while let Some(op) = ops.next()? {
        f(op)?;
        *index += 1;
    }
    Ok(())
}

/// What is known of an opaque kernel's stream.
fn contract_of(
    stream: &[u8],
    pdi: &[u8; 32],
    contracts: &dyn Fn([u8; 32]) -> Option<Contract>,
) -> Result<Contract, String> {
    let hash = stream_hash(stream);
    contracts(hash).ok_or_else(|| {
        format!(
            "nothing says what this stream (SHA-256 {}) computes on the kernel of PDI {}, and without the AIE cores it \
             cannot be run",
            hex(&hash),
            hex(pdi)
        )
    })
}

/// The hash of a stream, of as many bytes as its header claims.
fn stream_hash(stream: &[u8]) -> [u8; 32] {
    let size = stream.get(12..16).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]) as usize);
    Sha256::digest(&stream[..size.min(stream.len())]).into()
}

/// Hexadecimal digits.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
