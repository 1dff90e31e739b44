//! A strict reader of instruction streams (TXN), for judging a bundle's files and for inspection.
//!
//! Layouts as aie-rt and aiebu serialise them: the full form (v0.1 and every other version) and the optimised form
//! (v1.0). Files hold binary words or one 8-digit hexadecimal word a line; their names do not tell which.

mod dma;
mod names;
mod registers;

pub use dma::{ShimDescriptor, Traffic};
pub use names::code_name;
pub use registers::{Place, Register};

use dma::Dma;

/// Buffer arguments that a dispatch can have.
pub const MAX_ARGUMENTS: usize = 5;
/// Arguments that a stream can name at all: one byte in the optimised form.
const NAMEABLE_ARGUMENTS: usize = 256;

/// Why a stream was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TxnError {
    /// The file is a Git LFS pointer.
    #[error("the file is a Git LFS pointer, not the stream itself; fetch it with `git lfs pull`")]
    LfsPointer,
    /// A line of the text form is no word.
    #[error("line {line} at byte {offset}: expected a word of 8 hexadecimal digits")]
    Text {
        /// The line, from 1.
        line: usize,
        /// Byte offset in the text.
        offset: usize,
    },
    /// Too short, or no multiple of four bytes.
    #[error("no instruction stream: it ends at byte {bytes}; expected a 16-byte header and whole 32-bit words")]
    Length {
        /// The file's size.
        bytes: usize,
    },
    /// An NPU1 sequence of 2023.
    #[error("byte 0: an NPU1 sequence of the old form (first word 0x00000011), not a TXN stream")]
    Legacy,
    /// The header's size is not the file's.
    #[error("byte 12: the header claims {header} bytes, there are {file}; the stream may be cut short")]
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
    #[error("byte {offset}: {bytes} bytes follow the last of {operations} operations")]
    Trailing {
        /// Where the last operation ends.
        offset: usize,
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
        /// Bytes of the PDI.
        size: u32,
        /// Where it lies; 0 until patched.
        address: u64,
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
    traffic: Vec<Traffic>,
    extents: Vec<u64>,
    waits_for_outputs: bool,
}

impl Stream {
    /// Reads a stream that a dispatch can run, binary or text, told apart by content. Version, generation and size of
    /// the array in the header are not judged: captured streams are known to have garbage there and to run all the
    /// same.
    ///
    /// # Errors
    /// Where the stream stops making sense, and why; or a buffer argument that a dispatch does not have.
    pub fn parse(file: &[u8]) -> Result<Self, TxnError> {
        Self::with_arguments(file, MAX_ARGUMENTS)
    }

    /// Reads a stream to look at it: as [`Stream::parse`], with more buffer arguments than a dispatch can have.
    ///
    /// # Errors
    /// Where the stream stops making sense, and why.
    pub fn read(file: &[u8]) -> Result<Self, TxnError> {
        Self::with_arguments(file, NAMEABLE_ARGUMENTS)
    }

    fn with_arguments(file: &[u8], most: usize) -> Result<Self, TxnError> {
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
        let mut dma = Dma::new(most);
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
            return Err(TxnError::Trailing { offset, bytes: bytes.len() - offset, operations: count });
        }
        let waits_for_outputs = dma.outputs_waited_for();
        let traffic = dma.traffic;
        let extents = traffic.iter().map(|traffic| traffic.end).collect();
        Ok(Self { form, text, operations, traffic, extents, waits_for_outputs, bytes })
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

    /// Major and minor version by the header.
    pub fn version(&self) -> (u8, u8) {
        (self.bytes[0], self.bytes[1])
    }

    /// Generation, rows and columns of the array by the header; NPU2 is (4, 6, 8).
    pub fn array(&self) -> (u8, u8, u8) {
        (self.bytes[2], self.bytes[3], self.bytes[4])
    }

    /// The operations, in order.
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// The code of an operation of this stream: its first byte.
    pub fn code(&self, operation: &Operation) -> u8 {
        self.bytes.get(operation.offset).copied().unwrap_or(0)
    }

    /// The 32-bit words of an operation of this stream, code and size included.
    pub fn words(&self, operation: &Operation) -> impl ExactSizeIterator<Item = u32> + '_ {
        let bytes = self.bytes.get(operation.offset..operation.offset + operation.size).unwrap_or(&[]);
        bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word))
    }

    /// What the stream does with each buffer argument; index = argument, as long as [`Stream::extents`].
    pub fn traffic(&self) -> &[Traffic] {
        &self.traffic
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
    let mut next = 0;
    for (i, line) in file.split(|&b| b == b'\n').enumerate() {
        let offset = next;
        next += line.len() + 1;
        let line = line.trim_ascii();
        if line.is_empty() {
            continue;
        }
        let digits = std::str::from_utf8(line).ok().filter(|l| l.len() == 8);
        let word =
            digits.and_then(|l| u32::from_str_radix(l, 16).ok()).ok_or(TxnError::Text { line: i + 1, offset })?;
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
        8 => {
            let address = u64::from(w(2)) | u64::from(w(3)) << 32;
            OperationKind::LoadPdi { id: (w(0) >> 16) as u16, size: w(1), address }
        }
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

#[cfg(test)]
#[path = "txn_tests.rs"]
mod tests;
