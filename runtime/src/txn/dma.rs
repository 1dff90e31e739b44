//! What a reader can know of the shim DMA: which argument a descriptor points at, what its tasks move, how far they
//! reach.

use super::{Operation, OperationKind, word};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Registers of a shim tile's descriptors and task queues.
const DESCRIPTORS: std::ops::Range<u32> = 0x1D000..0x1D200;
const QUEUES: std::ops::Range<u32> = 0x1D200..0x1D220;
/// The arguments whose addresses the firmware shifts into the shim's view of memory. For the others compilers put the
/// shift into the patch's offset.
const SHIFTED_ARGUMENTS: u32 = 5;
const SHIFT: u64 = 0x8000_0000;

/// What a stream does with one buffer argument. Bytes are what the channels move: data sent twice count twice.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Traffic {
    /// DDR_PATCH operations.
    pub patches: u64,
    /// Descriptors that were patched, as (column, descriptor).
    pub descriptors: BTreeSet<(u8, u8)>,
    /// Tasks queued on a descriptor that points at the argument.
    pub tasks: u64,
    /// Tasks among them whose descriptor the stream does not hold: what they move is not known.
    pub unknown: u64,
    /// Bytes from memory into the array.
    pub read: u64,
    /// Bytes from the array to memory.
    pub written: u64,
    /// First byte that a transfer touches, from the argument's start; 0 without a transfer.
    pub start: u64,
    /// End of what transfers touch; 0 without a transfer.
    pub end: u64,
}

#[derive(Debug)]
pub(super) struct Dma {
    most_arguments: usize,
    /// By register of word 0.
    descriptors: BTreeMap<u32, Descriptor>,
    pub(super) traffic: Vec<Traffic>,
    /// Output channels with tasks that no wait has followed, as (column, channel).
    open: BTreeSet<(u32, u32)>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Descriptor {
    words: Option<[u32; 8]>,
    target: Option<(u32, u64)>,
}

impl Dma {
    pub(super) fn new(most_arguments: usize) -> Self {
        Self { most_arguments, descriptors: BTreeMap::new(), traffic: Vec::new(), open: BTreeSet::new() }
    }

    pub(super) fn follow(&mut self, bytes: &[u8], operation: &Operation) -> Result<(), String> {
        match operation.kind {
            OperationKind::BlockWrite { address, words: 8 } if shim(address, &DESCRIPTORS) && address % 32 == 0 => {
                let data = operation.offset + operation.size - 32;
                let words = std::array::from_fn(|i| word(bytes, data + 4 * i));
                self.descriptors.insert(address, Descriptor { words: Some(words), target: None });
            }
            OperationKind::Write { address, value } if shim(address, &QUEUES) && address % 8 == 4 => {
                self.push(address, value);
            }
            OperationKind::Wait { input: false, column, columns, channel, .. } => {
                for column in u32::from(column)..u32::from(column) + u32::from(columns) {
                    self.open.remove(&(column, u32::from(channel)));
                }
            }
            OperationKind::Patch { register, argument, offset } => {
                let address = register.wrapping_sub(4);
                if !shim(address, &DESCRIPTORS) || address % 32 != 0 {
                    return Err(format!("patch of register {register:#x}, which is not word 1 of a shim descriptor"));
                }
                if argument as usize >= self.most_arguments {
                    return Err(format!(
                        "patch with buffer argument {argument}; a dispatch has {}",
                        self.most_arguments
                    ));
                }
                let index = argument as usize;
                self.traffic.resize(self.traffic.len().max(index + 1), Traffic::default());
                self.traffic[index].patches += 1;
                self.traffic[index].descriptors.insert(((address >> 25) as u8, (address >> 5 & 0xF) as u8));
                let shifted = argument >= SHIFTED_ARGUMENTS && offset >= SHIFT;
                let offset = if shifted { offset - SHIFT } else { offset };
                self.descriptors.entry(address).or_default().target = Some((argument, offset));
            }
            _ => {}
        }
        Ok(())
    }

    /// A task comes to a queue.
    fn push(&mut self, address: u32, value: u32) {
        let column = address & !0x1FF_FFFF;
        let output = address & 0x1F < 0x10;
        if output {
            self.open.insert((column >> 25, address >> 3 & 1));
        }
        let descriptor = self.descriptors.get(&(column + DESCRIPTORS.start + 32 * (value & 0xF)));
        let Some(&Descriptor { words, target: Some((argument, offset)) }) = descriptor else { return };
        // A target was only taken from a patch that made room for its argument.
        let Some(traffic) = self.traffic.get_mut(argument as usize) else { return };
        traffic.tasks += 1;
        let Some(words) = words else {
            traffic.unknown += 1;
            return;
        };
        let runs = u64::from(value >> 16 & 0xFF) + 1;
        let moved = 4 * u64::from(words[0]) * runs;
        let total = if output { &mut traffic.written } else { &mut traffic.read };
        *total = total.saturating_add(moved);
        if moved == 0 {
            return;
        }
        let end = offset.saturating_add(reach(&words, runs));
        traffic.start = if traffic.end == 0 { offset } else { traffic.start.min(offset) };
        traffic.end = traffic.end.max(end);
    }

    pub(super) fn outputs_waited_for(&self) -> bool {
        self.open.is_empty()
    }
}

/// Whether a register lies in row 0 and in the range.
fn shim(address: u32, range: &std::ops::Range<u32>) -> bool {
    range.contains(&(address & 0x1FF_FFFF))
}

/// The bits of a descriptor's word.
fn field(words: &[u32; 8], word: usize, shift: u32, bits: u32) -> u32 {
    words[word] >> shift & ((1 << bits) - 1)
}

/// Bytes from a descriptor's address to the end of what `runs` executions touch.
pub(super) fn reach(words: &[u32; 8], runs: u64) -> u64 {
    let field = |word, shift, bits| u64::from(field(words, word, shift, bits));
    let (length, w0, s0) = (u64::from(words[0]), field(3, 20, 10), field(3, 0, 20) + 1);
    let (w1, s1, s2) = (field(4, 20, 10), field(4, 0, 20) + 1, field(5, 0, 20) + 1);
    let Some(last) = length.checked_sub(1) else { return 0 };
    let at = |x: u64| match (w0, w1) {
        (0, _) => x * s0,
        (_, 0) => x % w0 * s0 + x / w0 * s1,
        _ => x % w0 * s0 + x / w0 % w1 * s1 + x / w0 / w1 * s2,
    };
    // The farthest word is the last one, or ends the last whole row, or the last whole plane.
    let whole = |group: u64| if group == 0 || length < group { 0 } else { at(length / group * group - 1) };
    let farthest = at(last).max(whole(w0)).max(whole(w0 * w1));
    let (current, wrap, step) = (field(6, 26, 6), field(6, 20, 6) + 1, field(6, 0, 20) + 1);
    let iteration = (current + runs - 1).min(wrap - 1);
    4 * (iteration * step + farthest + 1)
}

/// A shim DMA descriptor, taken apart. Lengths, wraps and steps count 32-bit words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShimDescriptor {
    /// Words of one execution.
    pub length: u32,
    /// Byte address, 48 bits.
    pub address: u64,
    /// Wrap and step of the innermost dimension; wrap 0 = linear.
    pub d0: (u32, u32),
    /// Wrap and step of the next; wrap 0 = until the length is exhausted.
    pub d1: (u32, u32),
    /// Step of the outermost.
    pub d2: u32,
    /// Current iteration, iterations, and the step between their starts.
    pub iteration: (u32, u32, u32),
    /// Bytes of a burst.
    pub burst: u32,
    /// Packet id, if the data leave as a packet.
    pub packet: Option<u8>,
    /// The descriptor that follows of itself.
    pub next: Option<u8>,
    /// The lock that is acquired before, and the value; negative = at least.
    pub acquire: Option<(u8, i8)>,
    /// The lock that is released after, and what is added to it; `None` where that is nothing.
    pub release: Option<(u8, i8)>,
    /// Whether the array takes it.
    pub valid: bool,
}

impl ShimDescriptor {
    /// Takes the eight words apart.
    #[must_use]
    pub fn new(words: &[u32; 8]) -> Self {
        let f = |word, shift, bits| field(words, word, shift, bits);
        // Sign extension of seven bits.
        let signed = |value: u32| ((value as u8) << 1) as i8 >> 1;
        let release = signed(f(7, 18, 7));
        Self {
            length: words[0],
            address: u64::from(words[1] & !3) | u64::from(f(2, 0, 16)) << 32,
            d0: (f(3, 20, 10), f(3, 0, 20) + 1),
            d1: (f(4, 20, 10), f(4, 0, 20) + 1),
            d2: f(5, 0, 20) + 1,
            iteration: (f(6, 26, 6), f(6, 20, 6) + 1, f(6, 0, 20) + 1),
            burst: 64 << f(4, 30, 2),
            packet: (f(2, 30, 1) == 1).then(|| f(2, 19, 5) as u8),
            next: (f(7, 26, 1) == 1).then(|| f(7, 27, 4) as u8),
            acquire: (f(7, 12, 1) == 1).then(|| (f(7, 0, 4) as u8, signed(f(7, 5, 7)))),
            release: (release != 0).then(|| (f(7, 13, 4) as u8, release)),
            valid: f(7, 25, 1) == 1,
        }
    }
}

impl fmt::Display for ShimDescriptor {
    /// `4096 words at 0x40, rows 16 of 32 x128, then x16, iterations 8 x2048`: only what is not trivial.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} words at {:#x}", self.length, self.address)?;
        match (self.d0, self.d1) {
            ((0, 1), _) => {}
            ((0, step), _) => write!(f, ", step {step}")?,
            ((wrap, step), (0, outer)) => write!(f, ", {wrap} x{step}, then x{outer}")?,
            ((wrap, step), (wrap1, step1)) => write!(f, ", {wrap} x{step}, {wrap1} x{step1}, then x{}", self.d2)?,
        }
        match self.iteration {
            (0, 1, _) => {}
            (0, wrap, step) => write!(f, ", iterations {wrap} x{step}")?,
            (current, wrap, step) => write!(f, ", iterations {wrap} x{step} from {current}")?,
        }
        if let Some(packet) = self.packet {
            write!(f, ", packet {packet}")?;
        }
        if let Some((lock, value)) = self.acquire {
            write!(f, ", acquires lock {lock} ({value})")?;
        }
        if let Some((lock, value)) = self.release {
            write!(f, ", releases lock {lock} ({value:+})")?;
        }
        if let Some(next) = self.next {
            write!(f, ", then BD {next}")?;
        }
        if self.valid { Ok(()) } else { f.write_str(", not valid") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_taken_apart() {
        // A GEMM's A: 16-word runs, 32 rows of stride 128 words, 8 tiles of stride 16 words.
        let a = ShimDescriptor::new(&[0x1000, 0x40, 1, 0x0100_0000, 0x8200_007F, 0x0200_000F, 0, 0x0200_0000]);
        assert_eq!((a.length, a.address, a.d0, a.d1, a.d2), (4096, 0x1_0000_0040, (16, 1), (32, 128), 16));
        assert_eq!((a.iteration, a.burst, a.packet, a.next, a.valid), ((0, 1, 1), 256, None, None, true));
        assert_eq!(a.to_string(), "4096 words at 0x100000040, 16 x1, 32 x128, then x16");
        let b = ShimDescriptor::new(&[8, 0, 1 << 30 | 5 << 19, 0, 3 << 30, 0, 0x0010_1FFF, 0x1400_0000 | 0x7F << 18]);
        assert_eq!(
            b.to_string(),
            "8 words at 0x0, iterations 2 x8192, packet 5, releases lock 0 (-1), then BD 2, not valid"
        );
        assert_eq!(b.burst, 512);
    }
}
