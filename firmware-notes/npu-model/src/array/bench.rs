//! One dispatch without a driver: for tests and benchmarks of streams.

use std::ptr::NonNull;

use host_ops::pool::Pool;

use super::{Array, Contract, DeviceMemory, MemoryFault};

/// What a dispatch did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Operations executed.
    pub ops: u64,
    /// Bytes read by shim DMA.
    pub bytes_read: u64,
    /// Bytes written by shim DMA.
    pub bytes_written: u64,
}

/// A kernel, ready for dispatches on buffers of this process.
#[derive(Debug)]
pub struct Bench {
    array: Array,
    pool: Pool,
    contract: Option<Contract>,
}

impl Bench {
    /// Loads a PDI.
    ///
    /// # Errors
    /// What the array says about it.
    pub fn new(pdi: &[u8], threads: usize) -> Result<Self, String> {
        let array = Array::configure(pdi).map_err(|fault| fault.to_string())?;
        Ok(Self { array, pool: Pool::new(threads), contract: None })
    }

    /// The contract that every stream gets if the kernel is opaque.
    pub fn teach(&mut self, contract: Contract) {
        self.contract = Some(contract);
    }

    /// Runs a stream; each buffer is an argument.
    ///
    /// # Errors
    /// The fault, in words.
    pub fn run(&mut self, stream: &[u8], buffers: &mut [&mut [u8]]) -> Result<Outcome, String> {
        let memory = Buffers(
            buffers
                .iter_mut()
                .enumerate()
                .map(|(i, buffer)| (address(i), NonNull::from(&mut **buffer).cast(), buffer.len()))
                .collect(),
        );
        let args: Vec<u64> = (0..buffers.len()).map(address).collect();
        let contract = self.contract;
        self.array
            .execute(stream, &args, &memory, &|_| contract, &self.pool)
            .map(|done| Outcome { ops: done.ops, bytes_read: done.bytes_read, bytes_written: done.bytes_written })
            .map_err(|fault| fault.to_string())
    }
}

/// Device address of argument `i`: far apart, so that no run past a buffer's end finds another.
fn address(i: usize) -> u64 {
    (i as u64 + 1) << 40
}

/// The buffers of one dispatch: address, memory, length.
struct Buffers(Vec<(u64, NonNull<u8>, usize)>);

#[expect(unsafe_code, reason = "shared by the threads of a pool")]
// SAFETY: the pointers come from exclusive slices that outlive the dispatch; the array's own rules for concurrent
// access apply to all implementations alike.
unsafe impl Sync for Buffers {}

impl DeviceMemory for Buffers {
    fn resolve(&self, addr: u64, len: usize, write: bool) -> Result<(NonNull<u8>, usize), MemoryFault> {
        let fault = MemoryFault { addr, len, write };
        let &(base, pointer, size) = self.0.iter().find(|(base, ..)| addr >> 40 == base >> 40).ok_or(fault)?;
        let offset = (addr - base) as usize;
        if offset.checked_add(len).is_none_or(|end| end > size) {
            return Err(fault);
        }
        #[expect(unsafe_code, reason = "address arithmetic on a raw buffer")]
        // SAFETY: `offset + len` is within the buffer.
        let pointer = unsafe { pointer.add(offset) };
        Ok((pointer, len))
    }

    /// They come from exclusive slices.
    fn unshared(&self, addr: u64, len: usize) -> Option<NonNull<u8>> {
        self.resolve(addr, len, false).ok().map(|(pointer, _)| pointer)
    }
}
