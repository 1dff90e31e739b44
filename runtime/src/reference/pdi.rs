//! The PDI of a reference kernel: a valid image whose configuration does nothing but name the kernel.

use super::{Kind, VERSION};

/// What the payload of the naming NOP starts with.
const MARKER: &[u8; 16] = b"qwen35-reference";
/// CDO command NOP.
const NOP: u32 = 0x111;

/// The image.
pub(super) fn pdi(kind: Kind) -> Vec<u8> {
    let marker = MARKER.chunks_exact(4).map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]]));
    let mut commands = vec![NOP, NOP | 6 << 16];
    commands.extend(marker);
    commands.extend([
        match kind {
            Kind::Gemm => 1,
            Kind::Gemv => 2,
        },
        VERSION,
        NOP,
    ]);
    // CDO header: words that follow the first, identification, version, payload length, checksum.
    let mut cdo = vec![4, u32::from_le_bytes(*b"CDO\0"), 0x0200, commands.len() as u32];
    cdo.push(checksum(&cdo));
    cdo.extend(commands);

    let mut words = vec![0x0000_00DD, 0x1122_3344, 0x5566_7788, 0x99AA_BBCC];
    // (byte offset from the start of the table, value)
    words.extend(table(
        32,
        &[
            (0x00, 0x0004_0000), // version
            (0x04, 1),           // images
            (0x08, 0x24),        // image header, in words from the start of the file
            (0x0C, 1),           // partitions
            (0x10, 0x34),        // partition header, in words
            (0x18, 0x14CA_8093), // id code
            (0x28, u32::from_le_bytes(*b"IDPP")),
            (0x2C, 0x0020_1020),
            (0x30, 0x30),
            (0x44, 1),
        ],
    ));
    words.extend(table(
        16,
        &[
            (0x00, 0x34), // first partition header, in words
            (0x04, 1),    // partitions
            (0x10, u32::from_le_bytes(*b"aie_")),
            (0x14, u32::from_le_bytes(*b"imag")),
            (0x18, u32::from_le_bytes(*b"e\0\0\0")),
            (0x20, 0x1C00_0000), // image id
        ],
    ));
    let length = cdo.len() as u32;
    words.extend(table(
        32,
        &[
            (0x00, length), // encrypted, unencrypted and total length in words
            (0x04, length),
            (0x08, length),
            (0x18, u32::MAX), // load address: none
            (0x1C, u32::MAX),
            (0x20, 0x54),        // data, in words from the start of the file
            (0x24, 0x0200_0006), // attributes
            (0x28, 1),           // sections
        ],
    ));
    words.extend(cdo);
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

/// Whether a PDI is a reference kernel's, of any version: one that the software NPU runs and real cores do not.
#[must_use]
pub fn is_reference(pdi: &[u8]) -> bool {
    pdi.windows(MARKER.len()).any(|part| part == MARKER)
}

/// A header table of `words` words, the last one its checksum.
fn table(words: usize, fields: &[(usize, u32)]) -> Vec<u32> {
    let mut table = vec![0; words - 1];
    for &(offset, value) in fields {
        table[offset / 4] = value;
    }
    table.push(checksum(&table));
    table
}

/// The complement of the sum.
fn checksum(words: &[u32]) -> u32 {
    !words.iter().fold(0u32, |sum, &w| sum.wrapping_add(w))
}
