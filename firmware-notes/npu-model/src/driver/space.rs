//! What the device can address on behalf of one client: its heap window, and its buffers at their device addresses.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use amdxdna_ioctl::Errno;
use amdxdna_ioctl::abi::{DEV_ALIGN, HEAP_BASE, HEAP_CHUNK, HEAP_MAX, INVALID_ADDR};

use super::bo::Bo;
use super::ranges::Ranges;
use crate::array::MemoryFault;
use crate::config::AddressMode;
use crate::firmware::ContextMemory;
use crate::front::{Memory, Region};

/// A client's heap: chunks one behind the other in the window, and the ranges taken of it.
#[derive(Debug)]
struct Heap {
    window: Option<Arc<Region>>,
    /// Kept until the client closes, closed handle or not.
    chunks: Vec<Arc<Bo>>,
    ranges: Ranges,
}

/// Memory at a device address.
#[derive(Debug)]
struct Mapped {
    len: u64,
    memory: Arc<Memory>,
}

/// One client's device addresses.
#[derive(Debug)]
pub(super) struct Space {
    mode: AddressMode,
    heap: Mutex<Heap>,
    map: Mutex<BTreeMap<u64, Mapped>>,
}

/// A range of the heap window, given back when dropped.
#[derive(Debug)]
pub(super) struct DevRange {
    space: Arc<Space>,
    pub(super) start: u64,
}

impl Drop for DevRange {
    fn drop(&mut self) {
        self.space.heap().ranges.free(self.start);
    }
}

/// Part of a heap chunk.
pub(super) struct Piece {
    pub(super) memory: Arc<Memory>,
    pub(super) offset: usize,
    pub(super) len: usize,
}

impl Space {
    /// Nothing yet.
    pub(super) fn new(mode: AddressMode) -> Self {
        let heap = Heap { window: None, chunks: Vec::new(), ranges: Ranges::new(HEAP_BASE, HEAP_MAX) };
        Self { mode, heap: Mutex::new(heap), map: Mutex::default() }
    }

    fn heap(&self) -> MutexGuard<'_, Heap> {
        self.heap.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn map(&self) -> MutexGuard<'_, BTreeMap<u64, Mapped>> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes memory reachable at a device address.
    pub(super) fn attach(&self, addr: u64, len: u64, memory: Arc<Memory>) {
        self.map().insert(addr, Mapped { len, memory });
    }

    /// Takes it away again.
    pub(super) fn detach(&self, addr: u64) {
        self.map().remove(&addr);
    }

    /// Adds a chunk to the heap: `pages` makes its memory at an offset of the window, `make` gets it and its device
    /// address.
    ///
    /// # Errors
    /// `EINVAL` for a size that is no multiple of 64 MiB, `ENOSPC` past 512 MiB, or what `make` says.
    pub(super) fn add_heap(
        &self,
        size: u64,
        pages: impl FnOnce(&Arc<Region>, usize) -> Result<Memory, Errno>,
        make: impl FnOnce(Arc<Memory>, u64) -> Result<Arc<Bo>, Errno>,
    ) -> Result<Arc<Bo>, Errno> {
        if size == 0 || !size.is_multiple_of(HEAP_CHUNK) {
            return Err(Errno::INVAL);
        }
        let mut heap = self.heap();
        let before = heap.total();
        if before.saturating_add(size) > HEAP_MAX {
            return Err(Errno::NOSPC);
        }
        let window = match &heap.window {
            Some(window) => Arc::clone(window),
            None => Arc::clone(heap.window.insert(Arc::new(Region::reserve(HEAP_MAX as usize)?))),
        };
        let memory = pages(&window, before as usize)?;
        let bo = make(Arc::new(memory), HEAP_BASE + before)?;
        heap.chunks.push(Arc::clone(&bo));
        Ok(bo)
    }

    /// Whether there is a heap.
    pub(super) fn has_heap(&self) -> bool {
        !self.heap().chunks.is_empty()
    }

    /// Takes a range of the heap window.
    ///
    /// # Errors
    /// `EAGAIN` without a heap, with one that is too small, or with one that is not mapped where the range lies;
    /// `ENOSPC` when the window is full; `EINVAL` when the range spans chunks that are not mapped back to back.
    pub(super) fn alloc_dev(self: &Arc<Self>, size: u64) -> Result<DevRange, Errno> {
        let mut heap = self.heap();
        if heap.chunks.is_empty() {
            return Err(Errno::AGAIN);
        }
        let start = heap.ranges.alloc(size, DEV_ALIGN).ok_or(Errno::NOSPC)?;
        let checked = heap.check_range(start, size);
        if let Err(errno) = checked {
            heap.ranges.free(start);
            return Err(errno);
        }
        drop(heap);
        Ok(DevRange { space: Arc::clone(self), start })
    }

    /// The CPU address of a range of the window, as far as its chunk is mapped.
    pub(super) fn heap_vaddr(&self, start: u64) -> u64 {
        let heap = self.heap();
        match heap.chunk(start) {
            Some((chunk, offset)) if chunk.first_mapping() != INVALID_ADDR => chunk.first_mapping() + offset,
            _ => INVALID_ADDR,
        }
    }

    /// The parts of the chunks that a range of the window covers; what lies outside is left out.
    pub(super) fn pieces(&self, start: u64, len: u64) -> Vec<Piece> {
        let heap = self.heap();
        let end = start.saturating_add(len);
        let mut pieces = Vec::new();
        let mut at = HEAP_BASE;
        for chunk in &heap.chunks {
            let (from, to) = (start.max(at), end.min(at + chunk.size));
            if let (true, Some(memory)) = (from < to, &chunk.memory) {
                let memory = Arc::clone(memory);
                pieces.push(Piece { memory, offset: (from - at) as usize, len: (to - from) as usize });
            }
            at += chunk.size;
        }
        pieces
    }

    /// 64 MiB pieces of the heap and the address that the driver would announce for each.
    pub(super) fn announcements(&self) -> Vec<u64> {
        let heap = self.heap();
        let mut out = Vec::new();
        for chunk in &heap.chunks {
            let base = match self.mode {
                AddressMode::Sva => chunk.first_mapping(),
                AddressMode::Iova | AddressMode::Carveout(_) => chunk.fixed_address().unwrap_or(INVALID_ADDR),
            };
            out.extend((0..chunk.size / HEAP_CHUNK).map(|i| base.saturating_add(i * HEAP_CHUNK)));
        }
        out
    }

    /// Bytes of the heap, and bytes taken of it.
    pub(super) fn heap_usage(&self) -> (u64, u64) {
        let heap = self.heap();
        (heap.total(), heap.ranges.used())
    }

    /// Lets go of everything, at close.
    pub(super) fn clear(&self) {
        self.map().clear();
        self.heap().chunks.clear();
    }

    /// Finds the memory of `[addr, addr + len)`, inside one buffer.
    fn find(&self, addr: u64, len: usize) -> Option<Found> {
        let end = addr.checked_add(len as u64)?;
        if (HEAP_BASE..HEAP_BASE + HEAP_MAX).contains(&addr) {
            let heap = self.heap();
            let (start, taken) = heap.ranges.containing(addr)?;
            if end > start + taken {
                return None;
            }
            let (chunk, offset) = heap.chunk(addr)?;
            return Some(Found { memory: chunk.memory.clone()?, offset: offset as usize, rest: start + taken - addr });
        }
        let map = self.map();
        let (&start, mapped) = map.range(..=addr).next_back()?;
        let rest = (start + mapped.len).checked_sub(addr)?;
        if end > start + mapped.len {
            return None;
        }
        Some(Found { memory: Arc::clone(&mapped.memory), offset: (addr - start) as usize, rest })
    }
}

/// Where a device address leads.
struct Found {
    memory: Arc<Memory>,
    offset: usize,
    /// Bytes to the end of the buffer.
    rest: u64,
}

impl Heap {
    fn total(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.size).sum()
    }

    fn chunk(&self, addr: u64) -> Option<(&Arc<Bo>, u64)> {
        let mut offset = addr.checked_sub(HEAP_BASE)?;
        for chunk in &self.chunks {
            if offset < chunk.size {
                return Some((chunk, offset));
            }
            offset -= chunk.size;
        }
        None
    }

    fn check_range(&self, start: u64, size: u64) -> Result<(), Errno> {
        if start + size > HEAP_BASE + self.total() {
            return Err(Errno::AGAIN);
        }
        let mut base = HEAP_BASE;
        let mut expected = None;
        for chunk in &self.chunks {
            if base < start + size && start < base + chunk.size {
                let at = chunk.first_mapping();
                if at == INVALID_ADDR {
                    return Err(Errno::AGAIN);
                }
                if expected.is_some_and(|expected| expected != at) {
                    return Err(Errno::INVAL);
                }
                expected = Some(at + chunk.size);
            }
            base += chunk.size;
        }
        Ok(())
    }
}

/// A client's memory as one command sees it: what it resolved stays alive until the command ends.
#[derive(Debug)]
pub(super) struct Held {
    space: Arc<Space>,
    held: Mutex<Vec<Arc<Memory>>>,
}

impl Held {
    /// For one command.
    pub(super) fn new(space: &Arc<Space>) -> Self {
        Self { space: Arc::clone(space), held: Mutex::default() }
    }
}

impl crate::array::DeviceMemory for Held {
    fn resolve(&self, addr: u64, len: usize, write: bool) -> Result<(NonNull<u8>, usize), MemoryFault> {
        let fault = MemoryFault { addr, len, write };
        let Found { memory, offset, .. } = self.space.find(addr, len).ok_or(fault)?;
        // A DEV BO may lie in two chunks of the heap.
        let len = len.min(memory.len() - offset);
        let ptr = memory.device(offset, len).ok_or(fault)?;
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if !held.iter().any(|known| Arc::ptr_eq(known, &memory)) {
            held.push(memory);
        }
        Ok((ptr, len))
    }

    fn unshared(&self, addr: u64, len: usize) -> Option<NonNull<u8>> {
        let shared = self.space.find(addr, len)?.memory.is_shared();
        let (ptr, whole) = self.resolve(addr, len, false).ok()?;
        (!shared && whole == len).then_some(ptr)
    }
}

impl ContextMemory for Held {
    fn extent(&self, addr: u64) -> Option<u64> {
        self.space.find(addr, 1).map(|found| found.rest)
    }
}
