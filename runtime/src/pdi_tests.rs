use super::*;
use crate::reference::{Kind, xclbin};
use crate::xclbin::Xclbin;

fn reference() -> Vec<u8> {
    Xclbin::parse(&xclbin(Kind::Gemv), "MLIR_AIE").unwrap().pdi
}

fn put(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// Puts the sums right that a change has made wrong.
fn seal(bytes: &mut [u8]) {
    for (start, at) in [(0x10, 0x8C), (0x90, 0xCC), (0xD0, 0x14C), (0x150, 0x160)] {
        let sum = (start..at).step_by(4).fold(0_u32, |sum, at| sum.wrapping_add(word(bytes, at).unwrap()));
        put(bytes, at, !sum);
    }
}

/// A PDI with other commands.
fn with(commands: &[u32]) -> Vec<u8> {
    let mut bytes = reference();
    bytes.truncate(COMMANDS);
    bytes.extend(commands.iter().flat_map(|word| word.to_le_bytes()));
    for at in [0xD0, 0xD4, 0xD8] {
        put(&mut bytes, at, commands.len() as u32 + 5);
    }
    put(&mut bytes, CDO + 12, commands.len() as u32);
    seal(&mut bytes);
    bytes
}

#[test]
fn a_reference_image() {
    let bytes = reference();
    assert!(is_pdi(&bytes) && !is_pdi(&bytes[..12]));
    let pdi = Pdi::parse(&bytes).unwrap();
    assert_eq!((pdi.name.as_str(), pdi.image_id, pdi.id_code), ("aie_image", 0x1C00_0000, 0x14CA_8093));
    assert_eq!((pdi.encoding, pdi.cdo_version, pdi.checksums.len()), (Encoding::Plain, 0x200, 4));
    assert_eq!(pdi.counts(), BTreeMap::from([("NOP".to_owned(), 3)]));
}

#[test]
fn commands_of_the_plain_encoding() {
    let long: Vec<u32> = [0x00FF_0105, 300].into_iter().chain(0..300).collect();
    let commands = [&[0x0003_0102, 0x1D200, 0xF00, 0xF00][..], &[0x0002_0103, 0x32000, 1], &[0x111], &long].concat();
    let bytes = with(&commands);
    let pdi = Pdi::parse(&bytes).unwrap();
    let listed: Vec<_> = pdi.commands.iter().map(|c| (c.offset - COMMANDS, c.code, c.words)).collect();
    assert_eq!(listed, [(0, 0x102, 3), (16, 0x103, 2), (28, 0x111, 0), (32, 0x105, 300)]);
    assert!(pdi.payload(&pdi.commands[3]).eq(0..300));

    let message = |commands: &[u32]| Pdi::parse(&with(commands)).unwrap_err().to_string();
    assert_eq!(
        message(&[0x111, 0x0005_0103]),
        "byte 360: command 0x00050103 (WRITE) with 5 words of payload makes no sense"
    );
    assert_eq!(message(&[0x0002_0103, 1]), "byte 356: command 0x103 needs 2 words of payload, 1 are left");
    assert!(message(&[0x0100_0111]).starts_with("byte 356: command 0x01000111"));
    assert!(message(&[0x00FF_0105, u32::MAX]).contains("needs 4294967295 words"));
    assert_eq!(message(&[0x00FF_0105]), "byte 360: it ends here; expected a command's length at byte 360, four bytes");
}

#[test]
fn zeroes_fill_the_image_up_to_sixteen_bytes() {
    let with_fill = |fill: &[u32]| {
        let mut bytes = with(&[0x0002_0103, 0x32000, 1]);
        bytes.extend(fill.iter().flat_map(|word| word.to_le_bytes()));
        for at in [0xD0, 0xD8] {
            put(&mut bytes, at, 8 + fill.len() as u32);
        }
        seal(&mut bytes);
        bytes
    };
    for words in 0..4 {
        assert_eq!(Pdi::parse(&with_fill(&[0; 3][..words])).unwrap().commands.len(), 1);
    }
    assert!(Pdi::parse(&with_fill(&[0; 4])).unwrap_err().to_string().starts_with("byte 348: 3 words of commands end"));
    assert!(Pdi::parse(&with_fill(&[0, 1])).unwrap_err().to_string().starts_with("byte 348: 3 words of commands end"));
    let mut short = with_fill(&[0, 0]);
    put(&mut short, 0xD4, 9);
    seal(&mut short);
    assert!(Pdi::parse(&short).unwrap_err().to_string().contains("the partition header has 9 with their header of 5"));
}

#[test]
fn groups_are_counted_and_their_lengths_believed() {
    let groups = [3, 2, 0x1000, 1, 0x1004, 2, 2, 1, 0x1008, 3, 1, 5, 1, 0, 0x2000, 0, 64];
    let mut bytes = with(&[&groups[..], &[0, u32::MAX, 7, 7]].concat());
    put(&mut bytes, 0x140, 1);
    put(&mut bytes, 0x144, 4 * groups.len() as u32);
    // The lengths are those of the expanded form, and the partition's checksum is left as it was.
    put(&mut bytes, 0xD8, 99_999);
    put(&mut bytes, CDO + 12, 99_994);
    let (kept, at) = (word(&bytes, 0x14C).unwrap(), 0x14C);
    seal(&mut bytes);
    put(&mut bytes, at, kept);
    let pdi = Pdi::parse(&bytes).unwrap();
    assert_eq!(pdi.encoding, Encoding::Grouped);
    let names = ["BLOCK_SET", "MASK_WRITE", "WRITE"].map(str::to_owned);
    assert_eq!(pdi.counts(), names.into_iter().zip([1, 1, 2]).collect());
    assert_eq!(pdi.tail, 16);
    assert_ne!(pdi.checksums[2].stored, pdi.checksums[2].computed);

    put(&mut bytes, 0x144, 4 * groups.len() as u32 - 4);
    assert!(Pdi::parse(&bytes).unwrap_err().to_string().contains("group of 1 entries of 4 words goes past byte"));
    put(&mut bytes, 0x144, 1 << 20);
    assert!(Pdi::parse(&bytes).unwrap_err().to_string().starts_with("byte 324: groups of 1048576 bytes"));
}

#[test]
fn checksums_are_held() {
    for (at, table) in
        [(0x2C, "image table"), (0xA4, "image header"), (0xE0, "partition header"), (0x158, "CDO header")]
    {
        let mut bytes = reference();
        bytes[at] ^= 0x40;
        let error = Pdi::parse(&bytes).unwrap_err();
        assert!(error.what.starts_with("checksum 0x") && error.what.contains(table), "{error}");
    }
}

#[test]
fn every_cut_says_where() {
    let bytes = reference();
    for end in 0..bytes.len() {
        let error = Pdi::parse(&bytes[..end]).unwrap_err();
        assert!(error.offset <= end.max(0xD8) && error.to_string().starts_with("byte "), "{end}: {error}");
    }
}

#[test]
fn no_changed_byte_panics() {
    let bytes = with(&[0x0003_0102, 1, 2, 3, 0x0002_0103, 1, 2, 0x00FF_0105, 3, 0, 1, 2]);
    for at in 0..bytes.len() {
        for value in [0, 1, 0x7F, 0xFF] {
            let mut changed = bytes.clone();
            changed[at] = value;
            let _ = Pdi::parse(&changed);
            seal(&mut changed);
            let _ = Pdi::parse(&changed);
        }
    }
}
