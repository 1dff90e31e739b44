//! One context's address space on the PCI device: the heap window, and bus addresses for everything else.

use std::ptr::NonNull;

use super::guest::GuestMemory;
use crate::array::{DeviceMemory, MemoryFault};
use crate::firmware::ContextMemory;

/// Where MAP_HOST_BUFFER's buffer appears to the firmware and the array.
pub(super) const HEAP_WINDOW: u64 = 0x0400_0000;

/// Where a PDI's partition header has its length in words, and where the data begins.
const PDI_TOTAL_WORDS: usize = 0xd8;
const PDI_DATA: u64 = 0x150;
/// More of a PDI than this is not read: the marker of a reference kernel stands at its start.
const PDI_READ_LIMIT: u64 = 1 << 20;

/// Guest memory as a context sees it.
#[derive(Debug)]
pub(super) struct ContextView<'a> {
    pub guest: &'a GuestMemory,
    /// (bus address, bytes) of each heap buffer, in window order.
    pub heaps: &'a [(u64, u64)],
}

impl ContextView<'_> {
    /// The bus address behind a device address, and how far that translation holds.
    fn bus(&self, addr: u64) -> (u64, u64) {
        let Some(mut inside) = addr.checked_sub(HEAP_WINDOW) else { return (addr, HEAP_WINDOW - addr) };
        for &(start, bytes) in self.heaps {
            if inside < bytes {
                return (start.wrapping_add(inside), bytes - inside);
            }
            inside -= bytes;
        }
        (addr, u64::MAX - addr)
    }
}

impl DeviceMemory for ContextView<'_> {
    fn resolve(&self, addr: u64, len: usize, write: bool) -> Result<(NonNull<u8>, usize), MemoryFault> {
        let fault = MemoryFault { addr, len, write };
        let (bus, holds) = self.bus(addr);
        let (host, there) = self.guest.at(bus).ok_or(fault)?;
        let n = holds.min(there).min(len as u64);
        Ok((host, n as usize))
    }
}

impl ContextMemory for ContextView<'_> {
    /// The device knows no buffer's end, only the heap's.
    fn extent(&self, addr: u64) -> Option<u64> {
        Some(self.bus(addr).1)
    }

    /// A PDI's header says how long it is.
    fn pdi_extent(&self, addr: u64) -> Option<u64> {
        let (bus, holds) = self.bus(addr);
        let header = self.guest.read(bus, PDI_DATA as usize)?;
        let at = &header[PDI_TOTAL_WORDS..PDI_TOTAL_WORDS + 4];
        let words = at.iter().rev().fold(0_u64, |w, &b| w << 8 | u64::from(b));
        Some((PDI_DATA + 4 * words).min(holds).min(PDI_READ_LIMIT))
    }
}
