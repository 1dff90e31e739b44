//! A strict reader of instruction streams (TXN), for judging a bundle's files and for inspection.
//!
//! Layouts as aie-rt and aiebu serialise them: the full form (v0.1 and every other version) and the optimised form
//! (v1.0). Files hold binary words or one 8-digit hexadecimal word a line; their names do not tell which.

/// Buffer arguments that a dispatch can have.
pub const MAX_ARGUMENTS: usize = 5;

/// Why a stream was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TxnError {
    /// The file is a Git LFS pointer.
    #[error("the file is a Git LFS pointer, not the stream itself; fetch it with `git lfs pull`")]
    LfsPointer,
    /// A line of the text form is no word.
    #[error("line {line} is no 8-digit hexadecimal word")]
    Text {
        /// The line, from 1.
        line: usize,
    },
    /// Too short, or no multiple of four bytes.
    #[error("{bytes} bytes are no instruction stream: it has a 16-byte header and 32-bit words")]
    Length {
        /// The file's size.
        bytes: usize,
    },
    /// An NPU1 sequence of 2023.
    #[error("an NPU1 sequence of the old form (first word 0x00000011), not a TXN stream")]
    Legacy,
    /// The header's size is not the file's.
    #[error("the header claims {header} bytes, the file holds {file}")]
    Size {
        /// Bytes by the header.
        header: u32,
        /// Bytes of the file.
        file: usize,
    },
    /// Something is wrong with an operation.
    #[error("operation {index} at byte {offset}: {what}")]
    Operation {
        /// Its place in the stream.
        index: u32,
        /// Its byte offset.
        offset: usize,
        /// What is wrong.
        what: String,
    },
    /// The operations end before the stream does.
    #[error("{bytes} bytes follow the last of {operations} operations")]
    Trailing {
        /// Bytes left.
        bytes: usize,
        /// Operations by the header.
        operations: u32,
    },
}

/// The two serialisations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// v0.1, and whatever captured streams have in their version bytes.
    Full,
    /// v1.0.
    Optimised,
}

/// An operation's place and meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    /// Byte offset in the binary stream.
    pub offset: usize,
    /// Bytes.
    pub size: usize,
    /// What it does.
    pub kind: OperationKind,
}

/// What an operation does. Addresses are tile addresses: column << 25 | row << 20 | offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperationKind {
    /// WRITE32.
    Write {
        /// Register.
        address: u32,
        /// Value.
        value: u32,
    },
    /// BLOCKWRITE.
    BlockWrite {
        /// First register.
        address: u32,
        /// 32-bit words, which end the operation.
        words: usize,
    },
    /// MASKWRITE.
    MaskWrite {
        /// Register.
        address: u32,
        /// Value.
        value: u32,
        /// Bits that change.
        mask: u32,
    },
    /// MASKPOLL and MASKPOLL_BUSY.
    MaskPoll {
        /// Register.
        address: u32,
        /// Value waited for.
        value: u32,
        /// Bits compared.
        mask: u32,
    },
    /// NOOP.
    Noop,
    /// PREEMPT.
    Preempt {
        /// 0 none, 1 memory tile, 2 core tile, 3 core registers.
        level: u8,
    },
    /// LOADPDI.
    LoadPdi {
        /// The PDI's id.
        id: u16,
    },
    /// An operation that carries no more than its code here: scratchpad, state table, timers, register reads.
    Other {
        /// The code.
        code: u8,
    },
    /// TCT: waits for one token of each channel of a rectangle of tiles.
    Wait {
        /// Whether the channel brings data into the array (MM2S) or out of it.
        input: bool,
        /// First column.
        column: u8,
        /// First row.
        row: u8,
        /// Columns.
        columns: u8,
        /// Rows.
        rows: u8,
        /// Channel.
        channel: u8,
    },
    /// DDR_PATCH: puts a buffer argument's address into a descriptor.
    Patch {
        /// Word 1 of a shim descriptor.
        register: u32,
        /// Which argument.
        argument: u32,
        /// Bytes from the argument's start.
        offset: u64,
    },
}

/// A stream that holds together.
#[derive(Debug, Clone)]
pub struct Stream {
    bytes: Vec<u8>,
    form: Form,
    text: bool,
    operations: Vec<Operation>,
    extents: Vec<u64>,
    waits_for_outputs: bool,
}

impl Stream {
    /// Reads a stream, binary or text, told apart by content. Version, generation and size of the array in the header
    /// are not judged: captured streams are known to have garbage there and to run all the same.
    ///
    /// # Errors
    /// Where the stream stops making sense, and why.
    pub fn parse(file: &[u8]) -> Result<Self, TxnError> {
        if file.starts_with(b"version https://git-lfs") {
            return Err(TxnError::LfsPointer);
        }
        let text = !file.is_empty() && file.iter().all(|b| b.is_ascii_hexdigit() || b.is_ascii_whitespace());
        let bytes = if text { words_of_text(file)? } else { file.to_vec() };
        if bytes.len() < 16 || !bytes.len().is_multiple_of(4) {
            return Err(TxnError::Length { bytes: bytes.len() });
        }
        if word(&bytes, 0) == 0x11 {
            return Err(TxnError::Legacy);
        }
        let (count, size) = (word(&bytes, 8), word(&bytes, 12));
        if size as usize != bytes.len() {
            return Err(TxnError::Size { header: size, file: bytes.len() });
        }
        let form = if bytes[..2] == [1, 0] { Form::Optimised } else { Form::Full };
        let mut operations = Vec::with_capacity((count as usize).min(bytes.len() / 4));
        let mut dma = Dma::default();
        let mut offset = 16;
        for index in 0..count {
            let fail = |what| TxnError::Operation { index, offset, what };
            let operation = operation(&bytes[offset..], form).map_err(fail)?;
            let operation = Operation { offset, ..operation };
            dma.follow(&bytes, &operation).map_err(fail)?;
            offset += operation.size;
            operations.push(operation);
        }
        if offset != bytes.len() {
            return Err(TxnError::Trailing { bytes: bytes.len() - offset, operations: count });
        }
        let waits_for_outputs = dma.outputs_waited_for();
        Ok(Self { form, text, operations, extents: dma.extents, waits_for_outputs, bytes })
    }

    /// The stream as the device wants it, binary.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Which serialisation it is.
    pub fn form(&self) -> Form {
        self.form
    }

    /// Whether the file was text.
    pub fn was_text(&self) -> bool {
        self.text
    }

    /// Generation, rows and columns of the array by the header; NPU2 is (4, 6, 8).
    pub fn array(&self) -> (u8, u8, u8) {
        (self.bytes[2], self.bytes[3], self.bytes[4])
    }

    /// The operations, in order.
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// For each buffer argument, the end of what the stream's transfers reach, in bytes from the argument's start;
    /// index = argument. An argument without a transfer that this stream describes in full has 0. The length is one
    /// more than the highest argument that is used.
    pub fn extents(&self) -> &[u64] {
        &self.extents
    }

    /// Whether every channel that writes to memory and was given a task is waited for after its last task.
    pub fn waits_for_outputs(&self) -> bool {
        self.waits_for_outputs
    }
}

/// The words of the text form.
fn words_of_text(file: &[u8]) -> Result<Vec<u8>, TxnError> {
    let mut out = Vec::with_capacity(file.len() / 2);
    for (i, line) in file.split(|&b| b == b'\n').enumerate() {
        let line = line.trim_ascii();
        if line.is_empty() {
            continue;
        }
        let digits = std::str::from_utf8(line).ok().filter(|l| l.len() == 8);
        let word = digits.and_then(|l| u32::from_str_radix(l, 16).ok()).ok_or(TxnError::Text { line: i + 1 })?;
        out.extend(word.to_le_bytes());
    }
    Ok(out)
}

/// The word at a byte offset; 0 past the end, which callers have excluded.
fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}

/// Reads the operation at the start of `rest`; its offset is not filled in.
fn operation(rest: &[u8], form: Form) -> Result<Operation, String> {
    let Some(&code) = rest.first() else {
        return Err("the stream ends before it".to_owned());
    };
    let full = form == Form::Full;
    let w = |i: usize| word(rest, 4 * i);
    let size = match code {
        0 => [12, 24][usize::from(full)],
        1 => w(if full { 3 } else { 2 }) as usize,
        3 | 4 | 7 => [16, 28][usize::from(full)],
        5 | 6 | 13 => 4,
        9 | 11 => 8,
        12 => 12,
        8 | 10 => 16,
        128.. => w(1) as usize,
        2 | 14 | 15 => return Err(format!("operation code {code}, whose layout is not published")),
        _ => return Err(format!("unknown operation code {code}")),
    };
    let least = match code {
        1 => [12, 16][usize::from(full)],
        128 => 16,
        129 => [24, 48][usize::from(full)],
        130.. => 8,
        _ => size,
    };
    let exact = matches!(code, 128 | 129);
    if size < least || !size.is_multiple_of(4) || (exact && size != least) {
        return Err(format!("operation code {code} with a size of {size} bytes"));
    }
    if size > rest.len() {
        return Err(format!("operation code {code} needs {size} bytes, {} are left", rest.len()));
    }
    // The full form spells addresses with 64 bits and repeats the size at the end.
    let (a, v) = if full { (2, 4) } else { (1, 2) };
    if full && matches!(code, 0 | 3 | 4 | 7) {
        if w(3) != 0 {
            return Err(format!("register address {:#x}_{:08x} beyond 32 bits", w(3), w(2)));
        }
        let repeated = w(size / 4 - 1) as usize;
        if repeated != size {
            return Err(format!("operation code {code} says it has {repeated} bytes, not {size}"));
        }
    }
    let kind = match code {
        0 => OperationKind::Write { address: w(a), value: w(v) },
        1 => OperationKind::BlockWrite { address: w(a), words: (size - least) / 4 },
        3 => OperationKind::MaskWrite { address: w(a), value: w(v), mask: w(v + 1) },
        4 | 7 => OperationKind::MaskPoll { address: w(a), value: w(v), mask: w(v + 1) },
        5 => OperationKind::Noop,
        6 => OperationKind::Preempt { level: rest[1] },
        8 => OperationKind::LoadPdi { id: (w(0) >> 16) as u16 },
        128 => OperationKind::Wait {
            input: rest[8] != 0,
            row: rest[9],
            column: rest[10],
            rows: rest[13],
            columns: rest[14],
            channel: rest[15],
        },
        129 if full => {
            let offset = u64::from(w(10)) | u64::from(w(11)) << 32;
            OperationKind::Patch { register: w(6), argument: w(8), offset }
        }
        129 => {
            let offset = u64::from(w(4)) | u64::from(w(5)) << 32;
            OperationKind::Patch { register: w(2), argument: u32::from(rest[12]), offset }
        }
        _ => OperationKind::Other { code },
    };
    Ok(Operation { offset: 0, size, kind })
}

/// What a reader can know of the shim DMA: which argument a descriptor points at, and how far its tasks reach.
#[derive(Debug, Default)]
struct Dma {
    /// By register of word 0.
    descriptors: std::collections::BTreeMap<u32, Descriptor>,
    extents: Vec<u64>,
    /// Output channels with tasks that no wait has followed, as (column, channel).
    open: std::collections::BTreeSet<(u32, u32)>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Descriptor {
    words: Option<[u32; 8]>,
    target: Option<(u32, u64)>,
}

/// Registers of a shim tile's descriptors and task queues.
const DESCRIPTORS: std::ops::Range<u32> = 0x1D000..0x1D200;
const QUEUES: std::ops::Range<u32> = 0x1D200..0x1D220;

impl Dma {
    fn follow(&mut self, bytes: &[u8], operation: &Operation) -> Result<(), String> {
        match operation.kind {
            OperationKind::BlockWrite { address, words: 8 } if shim(address, &DESCRIPTORS) && address % 32 == 0 => {
                let data = operation.offset + operation.size - 32;
                let words = std::array::from_fn(|i| word(bytes, data + 4 * i));
                self.descriptors.insert(address, Descriptor { words: Some(words), target: None });
            }
            OperationKind::Write { address, value } if shim(address, &QUEUES) && address % 8 == 4 => {
                let column = address & !0x1FF_FFFF;
                if address & 0x1F < 0x10 {
                    self.open.insert((column >> 25, address >> 3 & 1));
                }
                let descriptor = self.descriptors.get(&(column + DESCRIPTORS.start + 32 * (value & 0xF)));
                if let Some(&Descriptor { words: Some(words), target: Some((argument, offset)) }) = descriptor {
                    let end = offset.saturating_add(reach(&words, u64::from(value >> 16 & 0xFF) + 1));
                    let extent = &mut self.extents[argument as usize];
                    *extent = end.max(*extent);
                }
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
                if argument as usize >= MAX_ARGUMENTS {
                    return Err(format!("patch with buffer argument {argument}; a dispatch has {MAX_ARGUMENTS}"));
                }
                self.extents.resize(self.extents.len().max(argument as usize + 1), 0);
                self.descriptors.entry(address).or_default().target = Some((argument, offset));
            }
            _ => {}
        }
        Ok(())
    }

    fn outputs_waited_for(&self) -> bool {
        self.open.is_empty()
    }
}

/// Whether a register lies in row 0 and in the range.
fn shim(address: u32, range: &std::ops::Range<u32>) -> bool {
    range.contains(&(address & 0x1FF_FFFF))
}

/// Bytes from a descriptor's address to the end of what `runs` executions touch.
fn reach(words: &[u32; 8], runs: u64) -> u64 {
    let field = |word: usize, shift: u32, bits: u32| u64::from(words[word] >> shift & ((1 << bits) - 1));
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

#[cfg(test)]
#[path = "txn_tests.rs"]
mod tests;
