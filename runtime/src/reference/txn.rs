//! Writing instruction streams: TXN v0.1 in its full form, as aie-rt serialises it, and shim DMA descriptors.

use super::SpecError;

/// Device generation of NPU2 in the header.
const GENERATION: u8 = 4;
/// Rows of the array: shim, memtile, four of cores.
const ROWS: u8 = 6;
/// Columns.
pub(super) const COLUMNS: usize = 8;

/// The direction of a DMA channel, seen from the array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    /// Array to memory.
    S2mm,
    /// Memory to array.
    Mm2s,
}

/// One channel of a shim tile's DMA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Channel {
    /// Column of the tile.
    pub(super) column: usize,
    /// Direction.
    pub(super) direction: Direction,
    /// 0 or 1.
    pub(super) index: u32,
}

impl Channel {
    /// Address of the control register; the task queue's follows it.
    fn control(self) -> u32 {
        let base = match self.direction {
            Direction::S2mm => 0x1D200,
            Direction::Mm2s => 0x1D210,
        };
        tile(self.column, 0) + base + 8 * self.index
    }
}

/// Base address of a tile.
pub(super) const fn tile(column: usize, row: usize) -> u32 {
    (column as u32) << 25 | (row as u32) << 20
}

/// A shim DMA descriptor. Lengths, wraps and steps are in 32-bit words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Descriptor {
    /// Words of one execution.
    pub(super) length: usize,
    /// Wrap and step of the innermost dimension; wrap 0 = linear.
    pub(super) d0: (usize, usize),
    /// Wrap and step of the next; wrap 0 = until the length is exhausted.
    pub(super) d1: (usize, usize),
    /// Step of the outermost.
    pub(super) d2: usize,
    /// Executions until the start is the first one's again, and the step between their starts.
    pub(super) iteration: (usize, usize),
}

/// Largest step in words.
pub(super) const MAX_STEP: usize = 1 << 20;
/// Largest iteration wrap.
pub(super) const MAX_ITERATIONS: usize = 64;
/// Executions of one task.
pub(super) const MAX_RUNS: usize = 256;

impl Descriptor {
    /// One contiguous run.
    pub(super) fn linear(length: usize) -> Self {
        Self { length, d0: (0, 1), d1: (0, 1), d2: 1, iteration: (1, 1) }
    }

    /// The eight words of the descriptor, with the argument's byte offset where the address will be patched in.
    fn words(&self, offset: u64) -> Result<[u32; 8], SpecError> {
        let step = |what, step: usize| match step {
            1..=MAX_STEP => Ok(step as u32 - 1),
            value => Err(SpecError::Size { what, value, rule: "a step of 1 to 2^20 words" }),
        };
        let wrap = |what, wrap: usize| match wrap {
            0..=1023 => Ok(wrap as u32),
            value => Err(SpecError::Size { what, value, rule: "a wrap of at most 1023" }),
        };
        let length = u32::try_from(self.length).ok().filter(|&l| l > 0).ok_or(SpecError::Size {
            what: "transfer length",
            value: self.length,
            rule: "1 to 2^32 - 1 words",
        })?;
        let iterations = match self.iteration.0 {
            1..=MAX_ITERATIONS => self.iteration.0 as u32 - 1,
            value => return Err(SpecError::Size { what: "iterations", value, rule: "1 to 64" }),
        };
        Ok([
            length,
            offset as u32,
            (offset >> 32) as u32 & 0xFFFF,
            wrap("D0 wrap", self.d0.0)? << 20 | step("D0 step", self.d0.1)?,
            BURST_512 | wrap("D1 wrap", self.d1.0)? << 20 | step("D1 step", self.d1.1)?,
            AXCACHE_NORMAL | step("D2 step", self.d2)?,
            iterations << 20 | step("iteration step", self.iteration.1)?,
            VALID,
        ])
    }
}

/// 512-byte bursts, word 4.
const BURST_512: u32 = 3 << 30;
/// Normal cacheability, word 5.
const AXCACHE_NORMAL: u32 = 2 << 24;
/// The valid bit, word 7.
const VALID: u32 = 1 << 25;
/// The controller that takes the tokens, in a channel's control register.
const CONTROLLER: u32 = 0xF00;
/// The bits of it.
const CONTROLLER_MASK: u32 = 0x1F00;

/// Builds one stream.
#[derive(Debug)]
pub(super) struct Writer {
    bytes: Vec<u8>,
    ops: u32,
}

impl Writer {
    /// An empty stream.
    pub(super) fn new() -> Self {
        Self { bytes: vec![0; 16], ops: 0 }
    }

    fn op(&mut self, words: &[u32]) {
        self.ops += 1;
        self.bytes.extend(words.iter().flat_map(|w| w.to_le_bytes()));
    }

    /// WRITE32.
    pub(super) fn write(&mut self, address: u32, value: u32) {
        self.op(&[0, 0, address, 0, value, 24]);
    }

    /// BLOCKWRITE.
    pub(super) fn block_write(&mut self, address: u32, data: &[u32]) {
        self.op(&[1, 0, address, 16 + 4 * data.len() as u32]);
        self.bytes.extend(data.iter().flat_map(|w| w.to_le_bytes()));
    }

    /// MASKWRITE.
    fn mask_write(&mut self, address: u32, value: u32, mask: u32) {
        self.op(&[3, 0, address, 0, value, mask, 28]);
    }

    /// Writes a shim descriptor and has the firmware put `argument`'s address plus `offset` bytes into it.
    ///
    /// # Errors
    /// A field of the descriptor overflows.
    pub(super) fn descriptor(
        &mut self,
        column: usize,
        id: u32,
        descriptor: &Descriptor,
        argument: u32,
        offset: u64,
    ) -> Result<(), SpecError> {
        let address = tile(column, 0) + 0x1D000 + 0x20 * id;
        self.block_write(address, &descriptor.words(offset)?);
        self.op(&[129, 48, 0, 0, 0, 0, address + 4, 0, argument, 0, offset as u32, (offset >> 32) as u32]);
        Ok(())
    }

    /// Names the controller that a channel's tokens go to.
    pub(super) fn token_controller(&mut self, channel: Channel) {
        self.mask_write(channel.control(), CONTROLLER, CONTROLLER_MASK);
    }

    /// Queues `runs` (1..=256) executions of descriptor `id`.
    pub(super) fn push(&mut self, channel: Channel, id: u32, runs: usize, token: bool) {
        self.write(channel.control() + 4, u32::from(token) << 31 | (runs as u32 - 1) << 16 | id);
    }

    /// Waits for a channel's next token and takes it.
    pub(super) fn wait(&mut self, channel: Channel) {
        let direction = match channel.direction {
            Direction::S2mm => 0,
            Direction::Mm2s => 1,
        };
        self.op(&[128, 16, (channel.column as u32) << 16 | direction, channel.index << 24 | 1 << 16 | 1 << 8]);
    }

    /// The finished stream.
    pub(super) fn finish(mut self) -> Vec<u8> {
        let size = self.bytes.len() as u32;
        self.bytes[..8].copy_from_slice(&[0, 1, GENERATION, ROWS, COLUMNS as u8, 1, 0, 0]);
        self.bytes[8..12].copy_from_slice(&self.ops.to_le_bytes());
        self.bytes[12..16].copy_from_slice(&size.to_le_bytes());
        self.bytes
    }
}
