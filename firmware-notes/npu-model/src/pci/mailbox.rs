//! The mailbox: rings in SRAM, heads and tails in registers (`amdxdna_mailbox.c`).
//!
//! Channel 0 is management, channel n the context in slot n. Each has 4 KiB of SRAM (half for each direction) and
//! 64 bytes of registers. The offsets are this device's choice; it tells them to the driver in the alive block and in
//! the answers to CREATE_CONTEXT.

use super::bars::Bars;

/// Bytes of one ring. A power of two, or the driver refuses it.
pub(super) const RING: u32 = 0x800;
/// What a writer leaves where a packet did not fit before the ring's end.
const TOMBSTONE: u32 = 0xDEAD_FACE;
/// Bytes of the packet header: payload size, payload size and protocol, id, opcode.
const HEADER: u32 = 16;

/// First channel's registers in BAR0.
pub(super) const REGISTERS: usize = 0x40000;
const REGISTERS_STRIDE: usize = 0x40;
const SRAM_STRIDE: usize = 0x1000;
/// Channels: management and 16 contexts.
pub(super) const CHANNELS: usize = 17;

/// Device address of BAR0 and of BAR2 (`npu4_regs.c`: mailbox and SRAM apertures).
const REGISTER_BASE: u32 = 0x0300_0000;
pub(super) const SRAM_BASE: u32 = 0x0360_0000;

/// One channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Channel(pub usize);

/// A message of the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Message {
    pub id: u32,
    pub opcode: u32,
    pub payload: Vec<u8>,
}

impl Channel {
    fn registers(self) -> usize {
        REGISTERS + self.0 * REGISTERS_STRIDE
    }
    fn x2i_head(self) -> usize {
        self.registers()
    }
    pub(super) fn x2i_tail(self) -> usize {
        self.registers() + 4
    }
    fn i2x_tail(self) -> usize {
        self.registers() + 8
    }
    fn i2x_head(self) -> usize {
        self.registers() + 16
    }
    /// The interrupt register stands right behind the head: the driver looks for it there.
    fn interrupt(self) -> usize {
        self.i2x_head() + 4
    }
    fn x2i_ring(self) -> usize {
        self.0 * SRAM_STRIDE
    }
    fn i2x_ring(self) -> usize {
        self.x2i_ring() + RING as usize
    }

    /// The channel whose x2i tail register is at this offset of BAR0: the driver's doorbell.
    pub(super) fn rung_at(offset: usize) -> Option<Self> {
        let at = offset.checked_sub(REGISTERS)?;
        let channel = Self(at / REGISTERS_STRIDE);
        (channel.0 < CHANNELS && offset == channel.x2i_tail()).then_some(channel)
    }

    /// Ring descriptions as device addresses: x2i (head, tail, buffer, size), then i2x.
    pub(super) fn rings(self) -> [u32; 8] {
        let register = |at: usize| REGISTER_BASE + at as u32;
        let sram = |at: usize| SRAM_BASE + at as u32;
        [
            register(self.x2i_head()),
            register(self.x2i_tail()),
            sram(self.x2i_ring()),
            RING,
            register(self.i2x_head()),
            register(self.i2x_tail()),
            sram(self.i2x_ring()),
            RING,
        ]
    }

    /// Empties both rings.
    pub(super) fn reset(self, bars: &mut Bars) {
        for word in 0..REGISTERS_STRIDE / 4 {
            bars.set(0, self.registers() + word * 4, 0);
        }
    }

    /// Takes the oldest message of the driver, if there is a whole one.
    pub(super) fn take(self, bars: &mut Bars) -> Option<Message> {
        loop {
            let head = bars.get(0, self.x2i_head());
            let tail = bars.get(0, self.x2i_tail());
            if head == tail || head >= RING || tail > RING {
                return None;
            }
            let at = self.x2i_ring() + head as usize;
            let size = bars.get(2, at);
            if size == TOMBSTONE {
                bars.set(0, self.x2i_head(), 0);
                continue;
            }
            let end = head.checked_add(HEADER)?.checked_add(size)?;
            if !size.is_multiple_of(4) || end > RING {
                return None;
            }
            let message = Message {
                id: bars.get(2, at + 8),
                opcode: bars.get(2, at + 12),
                payload: bars.bytes(2, at + HEADER as usize, size as usize)?.to_vec(),
            };
            bars.set(0, self.x2i_head(), end);
            return Some(message);
        }
    }

    /// Puts an answer into the ring and marks it in the interrupt register; `false` where the ring is full, which
    /// means that the driver stopped reading.
    pub(super) fn put(self, bars: &mut Bars, id: u32, opcode: u32, payload: &[u8]) -> bool {
        let size = HEADER + payload.len() as u32;
        let head = bars.get(0, self.i2x_head()) % RING;
        let mut tail = bars.get(0, self.i2x_tail());
        if tail + size > RING - 4 {
            if head > tail || size >= head {
                return false;
            }
            bars.set(2, self.i2x_ring() + tail as usize, TOMBSTONE);
            tail = 0;
        } else if head > tail && tail + size >= head {
            return false;
        }
        let at = self.i2x_ring() + tail as usize;
        let length = payload.len() as u32;
        for (i, word) in [length, length | 1 << 16, id, opcode].into_iter().enumerate() {
            bars.set(2, at + 4 * i, word);
        }
        if let Some(to) = bars.bytes_mut(2, at + HEADER as usize, payload.len()) {
            to.copy_from_slice(payload);
        }
        bars.set(0, self.i2x_tail(), tail + size);
        // After the tail: the driver clears this, drains the ring and looks again.
        bars.set(0, self.interrupt(), 1);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send(bars: &mut Bars, channel: Channel, at: u32, payload: &[u8]) -> u32 {
        let base = channel.x2i_ring() + at as usize;
        let n = payload.len() as u32;
        for (i, w) in [n, n | 1 << 16, 0x1d00_0001, 0x18].into_iter().enumerate() {
            bars.set(2, base + 4 * i, w);
        }
        bars.bytes_mut(2, base + 16, payload.len()).unwrap().copy_from_slice(payload);
        at + 16 + n
    }

    #[test]
    fn a_tombstone_sends_the_reader_to_the_start() {
        let mut bars = Bars::new();
        let c = Channel(3);
        bars.set(0, c.x2i_head(), RING - 8);
        bars.set(2, c.x2i_ring() + RING as usize - 8, TOMBSTONE);
        let tail = send(&mut bars, c, 0, &[7; 12]);
        bars.set(0, c.x2i_tail(), tail);
        assert_eq!(c.take(&mut bars).unwrap().payload, [7; 12]);
        assert_eq!(c.take(&mut bars), None);
    }

    #[test]
    fn a_size_past_the_ring_is_not_read() {
        let mut bars = Bars::new();
        let c = Channel(0);
        bars.set(2, c.x2i_ring(), 0xffff_fff0);
        bars.set(0, c.x2i_tail(), 32);
        assert_eq!(c.take(&mut bars), None);
    }

    #[test]
    fn answers_wrap_and_stop_at_the_readers_head() {
        let mut bars = Bars::new();
        let c = Channel(1);
        let mut sent = 0;
        while c.put(&mut bars, sent, 1, &[0; 84]) {
            sent += 1;
        }
        // 100 bytes each, four kept free for the tombstone, and one slot free so that full is not empty.
        assert_eq!(sent, 20);
        bars.set(0, c.i2x_head(), 500);
        assert!(c.put(&mut bars, sent, 1, &[0; 84]));
        assert_eq!(bars.get(2, c.i2x_ring() + 2000), TOMBSTONE);
        assert_eq!(bars.get(0, c.i2x_tail()), 100);
    }

    #[test]
    fn only_the_tail_register_rings() {
        assert_eq!(Channel::rung_at(Channel(16).x2i_tail()), Some(Channel(16)));
        assert_eq!(Channel::rung_at(Channel(16).x2i_tail() + 4), None);
        assert_eq!(Channel::rung_at(Channel(17).x2i_tail()), None);
    }
}
