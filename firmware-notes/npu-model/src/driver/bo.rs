//! Buffer objects (`amdxdna_gem.c`): what they are made of, where the device sees them, how long they live.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use amdxdna_ioctl::abi::{BoType, INVALID_ADDR};

use super::buffers::PinnedBytes;
use super::fence::{Fence, Fences};
use super::ranges::Ranges;
use super::space::{DevRange, Space};
use crate::front::Memory;
use crate::stats::Stats;

/// The client's mappings of a buffer.
#[derive(Debug)]
struct Mappings {
    /// Address of the mapping that was made while no other existed: it may be gone while others live.
    first: u64,
    count: u32,
}

/// An address that the driver chose for the device.
#[derive(Debug)]
pub(super) struct Fixed {
    /// The address.
    pub(super) addr: u64,
    /// Where it is attached, unless it is a heap.
    pub(super) space: Option<Arc<Space>>,
    /// Where it was taken.
    pub(super) ranges: Arc<Mutex<Ranges>>,
}

impl Drop for Fixed {
    fn drop(&mut self) {
        if let Some(space) = &self.space {
            space.detach(self.addr);
        }
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner).free(self.addr);
    }
}

/// The client's own pages behind a user-pointer buffer.
#[derive(Debug)]
pub(super) struct Pinned {
    /// Where they are.
    pub(super) addr: u64,
    /// Where they are attached, if the device uses user addresses.
    pub(super) space: Option<Arc<Space>>,
    /// What they count for.
    pub(super) _lock: PinnedBytes,
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(space) = &self.space {
            space.detach(self.addr);
        }
    }
}

/// A buffer object.
#[derive(Debug)]
pub(super) struct Bo {
    /// As created. CMD and SHARE differ in accounting alone.
    pub(super) kind: BoType,
    /// Bytes.
    pub(super) size: u64,
    /// Pages; none for DEV, whose are the heap's.
    pub(super) memory: Option<Arc<Memory>>,
    /// Offset for mmap, or [`INVALID_ADDR`].
    pub(super) map_offset: u64,
    /// Whether its pages came from another driver's buffer.
    pub(super) imported: bool,
    /// Where a heap chunk begins in the window.
    heap_addr: Option<u64>,
    pub(super) pinned: Option<Pinned>,
    fixed: Option<Fixed>,
    range: Option<DevRange>,
    mappings: Mutex<Mappings>,
    fences: Mutex<Fences>,
    /// The hardware context that it is the debug buffer of.
    debug_of: Mutex<Option<u32>>,
    stats: Arc<Stats>,
}

/// What a buffer is made of; the rest begins empty.
pub(super) struct Parts {
    pub(super) kind: BoType,
    pub(super) size: u64,
    pub(super) memory: Option<Arc<Memory>>,
    pub(super) map_offset: u64,
    pub(super) imported: bool,
    pub(super) heap_addr: Option<u64>,
    pub(super) pinned: Option<Pinned>,
    pub(super) fixed: Option<Fixed>,
    pub(super) range: Option<DevRange>,
}

impl Bo {
    pub(super) fn new(parts: Parts, stats: &Arc<Stats>) -> Arc<Self> {
        let Parts { kind, size, memory, map_offset, imported, heap_addr, pinned, fixed, range } = parts;
        let bytes = if memory.is_some() { size } else { 0 };
        stats.update(|counts| {
            counts.buffers_live += 1;
            counts.bytes_live += bytes;
        });
        Arc::new(Self {
            kind,
            size,
            memory,
            map_offset,
            imported,
            heap_addr,
            pinned,
            fixed,
            range,
            mappings: Mutex::new(Mappings { first: INVALID_ADDR, count: 0 }),
            fences: Mutex::default(),
            debug_of: Mutex::default(),
            stats: Arc::clone(stats),
        })
    }

    fn mappings(&self) -> MutexGuard<'_, Mappings> {
        self.mappings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a mapping.
    pub(super) fn mapped(&self, addr: u64) {
        let mut mappings = self.mappings();
        if mappings.count == 0 {
            mappings.first = addr;
        }
        mappings.count += 1;
    }

    /// Notes that a mapping is gone.
    pub(super) fn unmapped(&self) {
        let mut mappings = self.mappings();
        mappings.count = mappings.count.saturating_sub(1);
        if mappings.count == 0 {
            mappings.first = INVALID_ADDR;
        }
    }

    /// Address of the first mapping, or [`INVALID_ADDR`].
    pub(super) fn first_mapping(&self) -> u64 {
        self.pinned.as_ref().map_or_else(|| self.mappings().first, |pinned| pinned.addr)
    }

    /// The address that the driver chose for the device, where it chooses.
    pub(super) fn fixed_address(&self) -> Option<u64> {
        self.fixed.as_ref().map(|fixed| fixed.addr)
    }

    /// Start in the heap window, of a DEV buffer.
    pub(super) fn dev_address(&self) -> Option<u64> {
        self.range.as_ref().map(|range| range.start)
    }

    /// What GET_BO_INFO calls `xdna_addr`.
    pub(super) fn device_address(&self) -> u64 {
        self.dev_address().or(self.heap_addr).or_else(|| self.fixed_address()).unwrap_or_else(|| self.first_mapping())
    }

    /// The pages of a buffer that may hold a command packet.
    pub(super) fn packet(&self) -> Option<&Arc<Memory>> {
        if matches!(self.kind, BoType::Share | BoType::Cmd) { self.memory.as_ref() } else { None }
    }

    /// Adds the fence of a command that uses the buffer.
    pub(super) fn add_fence(&self, fence: &Arc<Fence>) {
        let mut fences = self.fences.lock().unwrap_or_else(PoisonError::into_inner);
        fences.retain(|fence| !fence.done());
        fences.push(Arc::clone(fence));
    }

    /// Fences of the commands that still use the buffer.
    pub(super) fn busy(&self) -> Fences {
        let fences = self.fences.lock().unwrap_or_else(PoisonError::into_inner);
        fences.iter().filter(|fence| !fence.done()).cloned().collect()
    }

    /// The context that it is the debug buffer of.
    pub(super) fn debug_of(&self) -> MutexGuard<'_, Option<u32>> {
        self.debug_of.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Bo {
    fn drop(&mut self) {
        let bytes = if self.memory.is_some() { self.size } else { 0 };
        self.stats.update(|counts| {
            counts.buffers_live = counts.buffers_live.saturating_sub(1);
            counts.bytes_live = counts.bytes_live.saturating_sub(bytes);
        });
    }
}
