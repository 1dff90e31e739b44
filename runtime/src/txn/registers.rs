//! What a tile address is: column, row and register, by the register map of AIE-ML and AIE2P.

use std::fmt;

/// A tile and a register of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Column, relative to the partition.
    pub column: u8,
    /// Row: 0 shim, 1 memory tile, then cores.
    pub row: u8,
    /// The register.
    pub register: Register,
}

/// A register or a piece of memory of a tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Register {
    /// A word of a DMA descriptor.
    Descriptor {
        /// Which descriptor.
        id: u8,
        /// Which word.
        word: u8,
    },
    /// A DMA channel's control register.
    Control {
        /// Memory to stream, else stream to memory.
        input: bool,
        /// Channel.
        channel: u8,
    },
    /// A DMA channel's task queue.
    Queue {
        /// Memory to stream, else stream to memory.
        input: bool,
        /// Channel.
        channel: u8,
    },
    /// A DMA channel's status.
    Status {
        /// Memory to stream, else stream to memory.
        input: bool,
        /// Channel.
        channel: u8,
    },
    /// The value of a lock.
    Lock(u8),
    /// A byte of data memory.
    Data(u32),
    /// A byte of program memory.
    Program(u32),
    /// The control register of a core: bit 0 enable, bit 1 reset.
    Core,
    /// The multiplexer from the DMA to the stream switch.
    Mux,
    /// The demultiplexer from the stream switch to the DMA.
    Demux,
    /// The stream switch, by tile offset.
    Switch(u32),
    /// Anything else, by tile offset.
    Other(u32),
}

impl Place {
    /// Takes an address apart: column << 25 | row << 20 | offset.
    #[must_use]
    pub fn new(address: u32) -> Self {
        let (column, row) = ((address >> 25) as u8, (address >> 20 & 0x1F) as u8);
        let offset = address & 0xF_FFFF;
        let register = match row {
            0 => shim(offset),
            1 => memory(offset),
            _ => core(offset),
        };
        Self { column, row, register }
    }
}

/// A channel's control register and queue, eight bytes a channel, `each` channels a direction.
fn channel(offset: u32, outputs: u32, inputs: u32, each: u32) -> Option<Register> {
    [(outputs, false), (inputs, true)].into_iter().find_map(|(base, input)| {
        let at = offset.checked_sub(base).filter(|at| *at < 8 * each)?;
        let channel = (at / 8) as u8;
        Some(if at % 8 < 4 { Register::Control { input, channel } } else { Register::Queue { input, channel } })
    })
}

fn descriptor(offset: u32, base: u32, words: u32) -> Register {
    let at = offset - base;
    let (id, word) = (at / 32, at % 32 / 4);
    if word < words { Register::Descriptor { id: id as u8, word: word as u8 } } else { Register::Other(offset) }
}

fn shim(offset: u32) -> Register {
    match offset {
        0x14000..0x14100 => Register::Lock((offset >> 4 & 0xF) as u8),
        0x1D000..0x1D200 => descriptor(offset, 0x1D000, 8),
        0x1D220..0x1D230 => {
            let index = offset >> 2 & 3;
            Register::Status { input: index >= 2, channel: (index & 1) as u8 }
        }
        0x1F000..0x1F004 => Register::Mux,
        0x1F004..0x1F008 => Register::Demux,
        0x3F000..0x40000 => Register::Switch(offset),
        _ => channel(offset, 0x1D200, 0x1D210, 2).unwrap_or(Register::Other(offset)),
    }
}

fn memory(offset: u32) -> Register {
    match offset {
        0..0x8_0000 => Register::Data(offset),
        0xA_0000..0xA_0600 => descriptor(offset, 0xA_0000, 8),
        0xB_0000..0xC_0000 => Register::Switch(offset),
        0xC_0000..0xC_0400 => Register::Lock((offset >> 4 & 0x3F) as u8),
        _ => channel(offset, 0xA_0600, 0xA_0630, 6).unwrap_or(Register::Other(offset)),
    }
}

fn core(offset: u32) -> Register {
    match offset {
        0..0x1_0000 => Register::Data(offset),
        0x1_D000..0x1_D200 => descriptor(offset, 0x1_D000, 6),
        0x1_F000..0x1_F100 => Register::Lock((offset >> 4 & 0xF) as u8),
        0x2_0000..0x2_4000 => Register::Program(offset - 0x2_0000),
        0x3_2000 => Register::Core,
        0x3_F000..0x4_0000 => Register::Switch(offset),
        _ => channel(offset, 0x1_DE00, 0x1_DE10, 2).unwrap_or(Register::Other(offset)),
    }
}

/// `S2MM` or `MM2S`.
fn direction(input: bool) -> &'static str {
    if input { "MM2S" } else { "S2MM" }
}

impl fmt::Display for Register {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Descriptor { id, word: 0 } => write!(f, "BD {id}"),
            Self::Descriptor { id, word } => write!(f, "BD {id} word {word}"),
            Self::Control { input, channel } => write!(f, "{} {channel} control", direction(input)),
            Self::Queue { input, channel } => write!(f, "{} {channel} queue", direction(input)),
            Self::Status { input, channel } => write!(f, "{} {channel} status", direction(input)),
            Self::Lock(lock) => write!(f, "lock {lock}"),
            Self::Data(at) => write!(f, "data memory {at:#x}"),
            Self::Program(at) => write!(f, "program memory {at:#x}"),
            Self::Core => f.write_str("core control"),
            Self::Mux => f.write_str("DMA mux"),
            Self::Demux => f.write_str("DMA demux"),
            Self::Switch(at) => write!(f, "stream switch {at:#x}"),
            Self::Other(at) => write!(f, "register {at:#x}"),
        }
    }
}

impl fmt::Display for Place {
    /// `tile (2,0) S2MM 0 queue`: column, row, register.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tile ({},{}) {}", self.column, self.row, self.register)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_have_names() {
        for (address, name) in [
            (0x0201_D024, "tile (1,0) BD 1 word 1"),
            (0x0201_D020, "tile (1,0) BD 1"),
            (0x0201_D200, "tile (1,0) S2MM 0 control"),
            (0x0001_D21C, "tile (0,0) MM2S 1 queue"),
            (0x0001_D22C, "tile (0,0) MM2S 1 status"),
            (0x0001_D224, "tile (0,0) S2MM 1 status"),
            (0x0001_4030, "tile (0,0) lock 3"),
            (0x0001_F004, "tile (0,0) DMA demux"),
            (0x001A_05E4, "tile (0,1) BD 47 word 1"),
            (0x001A_065C, "tile (0,1) MM2S 5 queue"),
            (0x001C_03F0, "tile (0,1) lock 63"),
            (0x0E30_1000, "tile (7,3) data memory 0x1000"),
            (0x0E31_F0A0, "tile (7,3) lock 10"),
            (0x0E33_2000, "tile (7,3) core control"),
            (0x0022_0000, "tile (0,2) program memory 0x0"),
            (0x0021_DE14, "tile (0,2) MM2S 0 queue"),
            (0x0024_0000, "tile (0,2) register 0x40000"),
        ] {
            assert_eq!(Place::new(address).to_string(), name, "{address:#x}");
        }
    }

    #[test]
    fn no_address_panics() {
        for tile in 0..3 {
            for offset in (0..1 << 20).step_by(4) {
                let _ = Place::new(tile << 20 | offset).to_string();
            }
        }
    }
}
