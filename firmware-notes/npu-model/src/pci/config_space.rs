//! The PCI configuration space of the virtual NPU.

use crate::config::Npu;

/// Bytes of PCI Express configuration space.
pub(super) const SIZE: usize = 4096;
/// MSI-X vectors: one for management and one for each of the 16 contexts, rounded up.
pub(super) const VECTORS: u32 = 32;

/// Capability offsets, in list order.
const POWER: usize = 0x48;
const EXPRESS: usize = 0x64;
const MSIX: usize = 0xa0;

/// Bytes that the guest may change (QEMU keeps the BARs and the interrupt line's routing itself).
const WRITABLE: [(usize, u8); 11] = [
    (0x04, 0xff), // command
    (0x05, 0xff),
    (0x3c, 0xff),      // interrupt line
    (POWER + 4, 0xff), // power state
    (POWER + 5, 0xff),
    (EXPRESS + 8, 0xff), // device control
    (EXPRESS + 9, 0xff),
    (EXPRESS + 16, 0xff), // link control
    (EXPRESS + 17, 0xff),
    (MSIX + 2, 0x00),
    (MSIX + 3, 0xc0), // MSI-X enable and function mask
];

#[derive(Debug)]
pub(super) struct ConfigSpace {
    bytes: Vec<u8>,
}

impl ConfigSpace {
    pub(super) fn new(npu: Npu) -> Self {
        let mut c = vec![0_u8; SIZE];
        let mut put16 = |at: usize, v: u16| c[at..at + 2].copy_from_slice(&v.to_le_bytes());
        for base in [0x00, 0x2c] {
            put16(base, 0x1022);
            put16(base + 2, 0x17f0);
        }
        put16(0x06, 0x0010); // status: there is a capability list
        put16(0x0a, 0x1180); // class: signal processing controller
        put16(POWER, 0x01 | (EXPRESS as u16) << 8);
        put16(POWER + 2, 0x0003);
        put16(EXPRESS, 0x10 | (MSIX as u16) << 8);
        put16(EXPRESS + 2, 0x0002); // version 2, endpoint
        put16(EXPRESS + 4, 0x8000); // role-based error reporting
        put16(EXPRESS + 12, 0x0011); // link: x1, 2.5 GT/s
        put16(EXPRESS + 18, 0x0011);
        put16(MSIX, 0x11);
        put16(MSIX + 2, VECTORS as u16 - 1);
        put16(MSIX + 4, 0x0001); // table: BAR1 + 0
        put16(MSIX + 8, 0x1001); // pending bits: BAR1 + 0x1000
        c[0x08] = match npu {
            Npu::Npu4 => 0x10,
            Npu::Npu5 => 0x11,
            Npu::Npu6 => 0x20,
        };
        c[0x18] = 0x0c; // BAR2: 64-bit, prefetchable
        c[0x34] = POWER as u8;
        Self { bytes: c }
    }

    pub(super) fn read(&self, offset: usize, data: &mut [u8]) {
        for (i, byte) in data.iter_mut().enumerate() {
            *byte = self.bytes.get(offset + i).copied().unwrap_or(0xff);
        }
    }

    pub(super) fn write(&mut self, offset: usize, data: &[u8]) {
        for (i, &byte) in data.iter().enumerate() {
            let at = offset + i;
            let mask = WRITABLE.iter().find(|w| w.0 == at).map_or(0, |w| w.1);
            if let Some(old) = self.bytes.get_mut(at) {
                *old = (*old & !mask) | (byte & mask);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_revision_tells_the_part() {
        for (npu, revision) in [(Npu::Npu4, 0x10), (Npu::Npu5, 0x11), (Npu::Npu6, 0x20)] {
            let mut b = [0; 4];
            ConfigSpace::new(npu).read(8, &mut b);
            assert_eq!(b, [revision, 0, 0x80, 0x11]);
        }
    }

    #[test]
    fn the_capability_list_ends_at_msix() {
        let c = ConfigSpace::new(Npu::Npu4);
        let byte = |at: usize| {
            let mut b = [0];
            c.read(at, &mut b);
            usize::from(b[0])
        };
        let mut seen = Vec::new();
        let mut at = byte(0x34);
        while at != 0 {
            seen.push(byte(at));
            at = byte(at + 1);
        }
        assert_eq!(seen, [0x01, 0x10, 0x11]);
    }

    #[test]
    fn identity_is_read_only() {
        let mut c = ConfigSpace::new(Npu::Npu4);
        c.write(0, &[0xff; 16]);
        let mut b = [0; 6];
        c.read(0, &mut b);
        assert_eq!(b, [0x22, 0x10, 0xf0, 0x17, 0xff, 0xff]);
    }
}
