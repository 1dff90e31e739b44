//! The device's BARs as plain memory.

/// Sizes in bytes: registers and mailbox registers, MSI-X table and pending bits, SRAM, none (the upper half of the
/// 64-bit BAR2), PSP, SMU. They are this device's choice: the driver maps what it finds.
pub(super) const SIZES: [usize; 6] = [0x80000, 0x2000, 0x40000, 0, 0x1000, 0x1000];

#[derive(Debug)]
pub(super) struct Bars {
    memory: [Vec<u8>; 6],
}

impl Bars {
    pub(super) fn new() -> Self {
        Self { memory: SIZES.map(|n| vec![0; n]) }
    }

    /// A register or SRAM word; all ones outside, as a bus gives.
    pub(super) fn get(&self, bar: usize, at: usize) -> u32 {
        match self.bytes(bar, at, 4) {
            Some(&[a, b, c, d]) => u32::from_le_bytes([a, b, c, d]),
            _ => u32::MAX,
        }
    }

    /// Writes a word; ignored outside.
    pub(super) fn set(&mut self, bar: usize, at: usize, value: u32) {
        if let Some(to) = self.bytes_mut(bar, at, 4) {
            to.copy_from_slice(&value.to_le_bytes());
        }
    }

    pub(super) fn bytes(&self, bar: usize, at: usize, len: usize) -> Option<&[u8]> {
        self.memory.get(bar)?.get(at..at.checked_add(len)?)
    }

    pub(super) fn bytes_mut(&mut self, bar: usize, at: usize, len: usize) -> Option<&mut [u8]> {
        self.memory.get_mut(bar)?.get_mut(at..at.checked_add(len)?)
    }
}
