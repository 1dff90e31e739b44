//! The device image (PDI) that configures the array: headers, checksums, and the configuration commands (CDO) in it.
//!
//! The platform loader's format for Versal, as the NPU tools use it: one image of one partition. The commands come in
//! two encodings: the plain one of mlir-aie, and the grouped one of AMD's production overlays, whose lengths describe
//! the expanded form and whose last checksum is not kept up.

use std::collections::BTreeMap;

/// A PDI that does not hold together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("byte {offset}: {what}")]
pub struct PdiError {
    /// Where, from the PDI's first byte.
    pub offset: usize,
    /// What was found and what was expected.
    pub what: String,
}

/// How the commands are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// One command after the other.
    Plain,
    /// Groups of like commands, then memory images.
    Grouped,
}

/// The checksum of a header table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checksum {
    /// Which table.
    pub table: &'static str,
    /// Where it stands, from the PDI's first byte.
    pub offset: usize,
    /// As it stands there.
    pub stored: u32,
    /// As it comes out.
    pub computed: u32,
}

/// A command of the plain encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Command {
    /// From the PDI's first byte.
    pub offset: usize,
    /// Module in the high byte, function in the low one.
    pub code: u16,
    /// Where the payload begins.
    payload: usize,
    /// Words of payload.
    pub words: usize,
}

/// A group of the grouped encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Group {
    /// From the PDI's first byte.
    pub offset: usize,
    /// 2 masked writes, 3 writes, 5 block sets.
    pub code: u32,
    /// How many.
    pub entries: usize,
}

/// A PDI that holds together.
#[derive(Debug, Clone)]
pub struct Pdi<'a> {
    bytes: &'a [u8],
    /// Device id code.
    pub id_code: u32,
    /// Name of the image.
    pub name: String,
    /// Id of the image.
    pub image_id: u32,
    /// Words of the partition: encrypted, unencrypted, total.
    pub lengths: [u32; 3],
    /// The encoding of the commands.
    pub encoding: Encoding,
    /// The tables' checksums. Those that do not come out were let pass because they never do in the grouped encoding.
    pub checksums: Vec<Checksum>,
    /// Version of the command format.
    pub cdo_version: u32,
    /// Words of commands by their header.
    pub cdo_words: u32,
    /// The commands of the plain encoding.
    pub commands: Vec<Command>,
    /// The groups of the grouped encoding.
    pub groups: Vec<Group>,
    /// Bytes after the groups: memory images.
    pub tail: usize,
}

/// What every PDI begins with.
const BUS_WIDTH: [u32; 4] = [0x0000_00DD, 0x1122_3344, 0x5566_7788, 0x99AA_BBCC];
const IMAGE_TABLE: usize = 0x10;
const IMAGE_HEADER: usize = 0x90;
const PARTITION_HEADER: usize = 0xD0;
const CDO: usize = 0x150;
const COMMANDS: usize = CDO + 20;

/// Whether a file begins as a PDI does.
#[must_use]
pub fn is_pdi(bytes: &[u8]) -> bool {
    BUS_WIDTH.iter().enumerate().all(|(i, &expected)| word(bytes, 4 * i) == Some(expected))
}

/// The name of a command's code.
#[must_use]
pub fn command_name(code: u16) -> &'static str {
    match code {
        0x101 => "MASK_POLL",
        0x102 => "MASK_WRITE",
        0x103 => "WRITE",
        0x104 => "DELAY",
        0x105 => "DMA_WRITE",
        0x106 => "MASK_POLL64",
        0x107 => "MASK_WRITE64",
        0x108 => "WRITE64",
        0x111 => "NOP",
        _ => "unknown",
    }
}

/// The name of a group's code.
#[must_use]
pub fn group_name(code: u32) -> &'static str {
    match code {
        2 => "MASK_WRITE",
        3 => "WRITE",
        5 => "BLOCK_SET",
        _ => "unknown",
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at.checked_add(4)?).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}

fn bad<T>(offset: usize, what: impl Into<String>) -> Result<T, PdiError> {
    Err(PdiError { offset, what: what.into() })
}

/// The word at a place, or where the file ends before it.
fn need(bytes: &[u8], at: usize, what: &str) -> Result<u32, PdiError> {
    word(bytes, at)
        .map_or_else(|| bad(bytes.len(), format!("it ends here; expected {what} at byte {at}, four bytes")), Ok)
}

fn expect(bytes: &[u8], at: usize, expected: u32, what: &str) -> Result<(), PdiError> {
    match need(bytes, at, what)? {
        found if found == expected => Ok(()),
        found => bad(at, format!("{what} is {found:#x}; expected {expected:#x}")),
    }
}

/// The checksum at the end of a table: the complement of the sum of its words.
fn checksum(bytes: &[u8], table: &'static str, start: usize, offset: usize) -> Result<Checksum, PdiError> {
    let stored = need(bytes, offset, "a checksum")?;
    let words = (start..offset).step_by(4).filter_map(|at| word(bytes, at));
    let computed = !words.fold(0, u32::wrapping_add);
    Ok(Checksum { table, offset, stored, computed })
}

impl<'a> Pdi<'a> {
    /// Reads a PDI and checks it: the shape that all NPU images have, checksums, and every command.
    ///
    /// # Errors
    /// Where the image stops making sense, and what was expected there.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, PdiError> {
        for (i, &expected) in BUS_WIDTH.iter().enumerate() {
            expect(bytes, 4 * i, expected, "a bus width word")?;
        }
        for (at, expected, what) in [
            (0x10, 0x0004_0000, "the version of the image table"),
            (0x14, 1, "the number of images"),
            (0x18, IMAGE_HEADER as u32 / 4, "the place of the image header, in words,"),
            (0x1C, 1, "the number of partitions"),
            (0x20, PARTITION_HEADER as u32 / 4, "the place of the partition header, in words,"),
            (0x38, u32::from_le_bytes(*b"IDPP"), "the identification"),
        ] {
            expect(bytes, at, expected, what)?;
        }
        let mut checksums = vec![
            checksum(bytes, "image table", IMAGE_TABLE, 0x8C)?,
            checksum(bytes, "image header", IMAGE_HEADER, 0xCC)?,
        ];
        expect(bytes, 0x94, 1, "the number of the image's partitions")?;
        expect(bytes, 0xF0, CDO as u32 / 4, "the place of the data, in words,")?;
        let encoding = match need(bytes, 0x140, "the encoding")? {
            0 => Encoding::Plain,
            1 => Encoding::Grouped,
            other => return bad(0x140, format!("encoding {other}; expected 0 (plain) or 1 (grouped)")),
        };
        checksums.push(checksum(bytes, "partition header", PARTITION_HEADER, 0x14C)?);
        let kept = if encoding == Encoding::Plain { 3 } else { 2 };
        if let Some(wrong) = checksums.iter().take(kept).find(|sum| sum.stored != sum.computed) {
            let Checksum { table, offset, stored, computed } = wrong;
            return bad(*offset, format!("checksum {stored:#010x} of the {table}; its words give {computed:#010x}"));
        }
        let lengths = [need(bytes, 0xD0, "a length")?, need(bytes, 0xD4, "a length")?, need(bytes, 0xD8, "a length")?];
        let mut pdi = Self {
            bytes,
            id_code: need(bytes, 0x28, "the id code")?,
            name: text(&bytes[0xA0..0xB0]),
            image_id: need(bytes, 0xB0, "the image's id")?,
            lengths,
            encoding,
            checksums,
            cdo_version: 0,
            cdo_words: 0,
            commands: Vec::new(),
            groups: Vec::new(),
            tail: 0,
        };
        let total = CDO as u64 + 4 * u64::from(lengths[2]);
        if encoding == Encoding::Plain && total != bytes.len() as u64 {
            let what = format!("the partition header makes it {total} bytes, there are {}", bytes.len());
            return bad(0xD8, what + "; the PDI may be cut short");
        }
        pdi.cdo()?;
        Ok(pdi)
    }

    /// The header of the commands, then the commands.
    fn cdo(&mut self) -> Result<(), PdiError> {
        let bytes = self.bytes;
        expect(bytes, CDO, 4, "the length of the CDO header")?;
        expect(bytes, CDO + 4, u32::from_le_bytes(*b"CDO\0"), "the identification of the CDO")?;
        self.cdo_version = need(bytes, CDO + 8, "the version of the CDO")?;
        self.cdo_words = need(bytes, CDO + 12, "the length of the CDO")?;
        let sum = checksum(bytes, "CDO header", CDO, CDO + 16)?;
        if sum.stored != sum.computed {
            let what =
                format!("checksum {:#010x} of the CDO header; its words give {:#010x}", sum.stored, sum.computed);
            return bad(sum.offset, what);
        }
        self.checksums.push(sum);
        match self.encoding {
            Encoding::Plain => self.plain(),
            Encoding::Grouped => self.grouped(),
        }
    }

    /// The commands end where the unencrypted length says; zeroes fill the last 16 bytes up.
    fn plain(&mut self) -> Result<(), PdiError> {
        let end = COMMANDS as u64 + 4 * u64::from(self.cdo_words);
        if end != CDO as u64 + 4 * u64::from(self.lengths[1]) {
            let what = format!("{} words of commands; the partition header has {}", self.cdo_words, self.lengths[1]);
            return bad(CDO + 12, what + " with their header of 5");
        }
        let rest = usize::try_from(end).ok().and_then(|end| self.bytes.get(end..));
        let filled = rest.is_some_and(|rest| rest.len() < 16 && rest.iter().all(|byte| *byte == 0));
        if !filled {
            let what =
                format!("{} words of commands end at byte {end}, the PDI at {}", self.cdo_words, self.bytes.len());
            return bad(CDO + 12, what);
        }
        // In bounds: there is a rest.
        let bytes = &self.bytes[..end as usize];
        let mut at = COMMANDS;
        while at < bytes.len() {
            let head = need(bytes, at, "a command")?;
            let code = head as u16;
            let (payload, words) = match head >> 16 & 0xFF {
                255 => (at + 8, need(bytes, at + 4, "a command's length")? as usize),
                words => (at + 4, words as usize),
            };
            let fits = match code {
                0x101 => words >= 3,
                0x102 => words == 3,
                0x103 => words == 2,
                0x105 => words >= 2,
                _ => true,
            };
            if head >> 24 != 0 || !fits {
                let name = command_name(code);
                return bad(at, format!("command {head:#010x} ({name}) with {words} words of payload makes no sense"));
            }
            let end = words.checked_mul(4).and_then(|size| payload.checked_add(size)).filter(|end| *end <= bytes.len());
            let Some(end) = end else {
                let left = bytes.len().saturating_sub(payload) / 4;
                return bad(at, format!("command {code:#x} needs {words} words of payload, {left} are left"));
            };
            self.commands.push(Command { offset: at, code, payload, words });
            at = end;
        }
        Ok(())
    }

    fn grouped(&mut self) -> Result<(), PdiError> {
        let bytes = self.bytes;
        let size = need(bytes, 0x144, "the length of the groups")? as usize;
        let end = COMMANDS.checked_add(size).filter(|end| *end <= bytes.len() && size.is_multiple_of(4));
        let Some(end) = end else {
            return bad(0x144, format!("groups of {size} bytes from byte {COMMANDS}; the PDI has {}", bytes.len()));
        };
        let mut at = COMMANDS;
        while at < end {
            let (code, entries) = (need(bytes, at, "a group")?, need(bytes, at + 4, "a group's length")? as usize);
            let words = match code {
                2 => 3,
                3 => 2,
                5 => 4,
                other => return bad(at, format!("group of code {other}; expected 2, 3 or 5")),
            };
            let next = entries.checked_mul(4 * words).and_then(|size| size.checked_add(at + 8));
            let Some(next) = next.filter(|next| *next <= end) else {
                return bad(at + 4, format!("group of {entries} entries of {words} words goes past byte {end}"));
            };
            self.groups.push(Group { offset: at, code, entries });
            at = next;
        }
        self.tail = bytes.len() - end;
        Ok(())
    }

    /// The words of a command's payload.
    pub fn payload(&self, command: &Command) -> impl ExactSizeIterator<Item = u32> + 'a {
        let end = command.payload.saturating_add(command.words.saturating_mul(4));
        let bytes: &'a [u8] = self.bytes.get(command.payload..end).unwrap_or(&[]);
        bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word))
    }

    /// How often each command comes, by name.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        let name = |name: &str, code: u32| if name == "unknown" { format!("{code:#x}") } else { name.to_owned() };
        for command in &self.commands {
            *counts.entry(name(command_name(command.code), command.code.into())).or_default() += 1;
        }
        for group in &self.groups {
            *counts.entry(name(group_name(group.code), group.code)).or_default() += group.entries;
        }
        counts
    }
}

/// A string in a field that zeroes fill up.
fn text(field: &[u8]) -> String {
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..end]).into_owned()
}

#[cfg(test)]
#[path = "pdi_tests.rs"]
mod tests;
