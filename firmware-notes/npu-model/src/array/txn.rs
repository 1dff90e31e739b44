//! The instruction stream as the firmware's controller reads it: TXN, full form and optimised form.

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op<'a> {
    /// One register.
    Write { addr: u32, value: u32 },
    /// Consecutive registers, four bytes each.
    BlockWrite { addr: u32, data: &'a [u8] },
    /// Some bits of a register.
    MaskWrite { addr: u32, value: u32, mask: u32 },
    /// Waits until some bits of a register have a value.
    MaskPoll { addr: u32 },
    /// Nothing that this model has to do: a hint, a timer, a preemption point.
    Nothing,
    /// Waits for a token of each channel in a rectangle of tiles.
    Wait { direction: u8, row: usize, column: usize, rows: usize, columns: usize, channel: usize },
    /// Puts a buffer's address into a descriptor.
    Patch { register: u32, argument: usize, offset: u64 },
    /// Something that only real firmware does; the name of it.
    Foreign(&'static str),
}

/// Reads the operations of a stream.
#[derive(Clone, Debug)]
pub(super) struct Ops<'a> {
    rest: &'a [u8],
    left: u32,
    optimised: bool,
}

impl<'a> Ops<'a> {
    /// Reads the header. Captured streams are known to have garbage in its first eight bytes, so only the two that
    /// select the form, the number of operations and the size count.
    pub(super) fn new(stream: &'a [u8]) -> Result<Self, String> {
        if stream.len() < 16 {
            return Err(format!("{} bytes are no instruction stream: its header has 16", stream.len()));
        }
        let (left, size) = (word(stream, 2), word(stream, 3) as usize);
        if size < 16 || size > stream.len() || !size.is_multiple_of(4) {
            return Err(format!("the header claims {size} bytes, the buffer has {}", stream.len()));
        }
        Ok(Self { rest: &stream[16..size], left, optimised: stream[..2] == [1, 0] })
    }

    /// The next operation, `None` after the last.
    pub(super) fn next(&mut self) -> Result<Option<Op<'a>>, String> {
        if self.left == 0 {
            return match self.rest.len() {
                0 => Ok(None),
                n => Err(format!("{n} bytes after the last operation")),
            };
        }
        self.left -= 1;
        let Some(&code) = self.rest.first() else {
            return Err(format!("the stream ends with {} operations missing", self.left + 1));
        };
        let fixed = |full: usize, short: usize| if self.optimised { short } else { full };
        let size = match code {
            0 => fixed(24, 12),
            3 | 4 | 7 => fixed(28, 16),
            1 => self.size_at(fixed(3, 2), fixed(16, 12))?,
            5 | 6 | 13 => 4,
            8 | 10 => 16,
            9 | 11 => 8,
            12 => 12,
            128.. => self.size_at(1, if code == 129 { fixed(48, 24) } else { 8 })?,
            _ => return Err(format!("unknown operation {code}")),
        };
        if size > self.rest.len() {
            return Err(format!("operation {code} of {size} bytes runs past the end of the stream"));
        }
        let (op, rest) = self.rest.split_at(size);
        self.rest = rest;
        self.read(code, op).map(Some)
    }

    /// A size that word `at` of the operation holds.
    fn size_at(&self, at: usize, least: usize) -> Result<usize, String> {
        let size = self.rest.get(4 * at..4 * at + 4).map_or(0, |_| word(self.rest, at) as usize);
        if size < least || !size.is_multiple_of(4) {
            return Err(format!("operation {} of {size} bytes", self.rest[0]));
        }
        Ok(size)
    }

    fn read(&self, code: u8, op: &'a [u8]) -> Result<Op<'a>, String> {
        let w = |i| word(op, i);
        // The full form has 64-bit addresses whose high half is 0, and repeats its size in the last word.
        let (a, b) = if self.optimised { (1, 2) } else { (2, 4) };
        if !self.optimised && matches!(code, 0 | 3 | 4 | 7) && (w(3) != 0 || w(op.len() / 4 - 1) as usize != op.len()) {
            return Err(format!("operation {code} with a high address half of {:#x} or a wrong size", w(3)));
        }
        Ok(match code {
            0 => Op::Write { addr: w(a), value: w(b) },
            1 if self.optimised => Op::BlockWrite { addr: w(1), data: &op[12..] },
            1 => Op::BlockWrite { addr: w(2), data: &op[16..] },
            3 => Op::MaskWrite { addr: w(a), value: w(b), mask: w(b + 1) },
            4 | 7 => Op::MaskPoll { addr: w(a) },
            5 | 6 | 131 => Op::Nothing,
            8 => Op::Foreign("LOADPDI"),
            9 => Op::Foreign("LOAD_PM_START"),
            10 => Op::Foreign("CREATE_SCRATCHPAD"),
            11 => Op::Foreign("UPDATE_STATE_TABLE"),
            12 => Op::Foreign("UPDATE_REG"),
            13 => Op::Foreign("UPDATE_SCRATCH"),
            128 if op.len() == 16 => Op::Wait {
                direction: op[8],
                row: op[9].into(),
                column: op[10].into(),
                rows: op[13].into(),
                columns: op[14].into(),
                channel: op[15].into(),
            },
            129 if self.optimised => {
                Op::Patch { register: w(2), argument: op[12].into(), offset: u64::from(w(4)) | u64::from(w(5)) << 32 }
            }
            129 => {
                if w(5) != 0 {
                    return Err(format!("address patch with action {}", w(5)));
                }
                let offset = u64::from(w(10)) | u64::from(w(11)) << 32;
                Op::Patch { register: w(6), argument: w(8) as usize, offset }
            }
            130 => Op::Foreign("READ_REGS"),
            132 => Op::Foreign("MERGE_SYNC"),
            _ => return Err(format!("unknown operation {code} of {} bytes", op.len())),
        })
    }
}

/// A word of the stream; the caller has checked that it is there.
fn word(bytes: &[u8], index: usize) -> u32 {
    bytes.get(4 * index..4 * index + 4).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(head: [u8; 2], words: &[u32], ops: u32) -> Vec<u8> {
        let mut out = vec![head[0], head[1], 4, 6, 8, 1, 0, 0];
        out.extend(ops.to_le_bytes());
        out.extend((16 + 4 * words.len() as u32).to_le_bytes());
        out.extend(words.iter().flat_map(|w| w.to_le_bytes()));
        out
    }

    fn all(stream: &[u8]) -> Result<Vec<Op<'_>>, String> {
        let mut ops = Ops::new(stream)?;
        let mut out = Vec::new();
        while let Some(op) = ops.next()? {
            out.push(op);
        }
        Ok(out)
    }

    #[test]
    fn the_same_operations_in_both_forms() {
        let full = [
            &[0, 0, 0x1D204, 0, 0x8000_0003, 24][..],
            &[1, 0, 0x1D000, 24, 7, 8],
            &[3, 0, 0x1D200, 0, 0xF00, 0x1F00, 28],
            &[128, 16, 0x0002_0001, 0x0101_0100],
            &[129, 48, 0, 0, 0, 0, 0x1D004, 0, 2, 0, 0x40, 1],
            &[5],
        ]
        .concat();
        let short = [
            &[0, 0x1D204, 0x8000_0003][..],
            &[1, 0x1D000, 20, 7, 8],
            &[3, 0x1D200, 0xF00, 0x1F00],
            &[128, 16, 0x0002_0001, 0x0101_0100],
            &[129, 24, 0x1D004, 2, 0x40, 1],
            &[5],
        ]
        .concat();
        let (full, short) = (stream([0, 1], &full, 6), stream([1, 0], &short, 6));
        let ops = all(&full).unwrap();
        assert_eq!(ops, all(&short).unwrap());
        assert_eq!(ops[0], Op::Write { addr: 0x1D204, value: 0x8000_0003 });
        assert_eq!(ops[1], Op::BlockWrite { addr: 0x1D000, data: &[7, 0, 0, 0, 8, 0, 0, 0] });
        assert_eq!(ops[2], Op::MaskWrite { addr: 0x1D200, value: 0xF00, mask: 0x1F00 });
        assert_eq!(ops[3], Op::Wait { direction: 1, row: 0, column: 2, rows: 1, columns: 1, channel: 1 });
        assert_eq!(ops[4], Op::Patch { register: 0x1D004, argument: 2, offset: 0x1_0000_0040 });
    }

    #[test]
    fn headers_with_garbage_are_read_and_lies_about_size_are_not() {
        let mut captured = stream([29, 87], &[5, 5], 2);
        captured[2..8].fill(0xAB);
        assert_eq!(all(&captured).unwrap().len(), 2);
        assert_eq!(all(&stream([0, 1], &[], 0)).unwrap(), []);
        for (ops, size) in [(1, 24), (3, 24), (2, 28), (2, 23), (2, 12), (2, 0)] {
            let mut bad = stream([0, 1], &[5, 5], ops);
            bad[12..16].copy_from_slice(&u32::to_le_bytes(size));
            assert!(all(&bad).is_err(), "{ops} operations, {size} bytes");
        }
    }

    #[test]
    fn what_no_tool_emits_is_refused() {
        for words in [&[2u32, 0, 0, 0][..], &[14], &[200, 4], &[1, 0, 0x1D000, 15], &[0, 0, 0, 1, 0, 24], &[129, 44]] {
            assert!(all(&stream([0, 1], words, 1)).is_err(), "{words:?}");
        }
    }
}
