use super::*;

/// A container built by hand from the description of the format: sections in the order tools write them.
struct Maker {
    sections: Vec<(u32, Vec<u8>)>,
}

fn partition(width: u16, id: u64, pdi: &[u8]) -> Vec<u8> {
    let mut section = vec![0_u8; 184];
    let put = |section: &mut Vec<u8>, at: usize, value: u32| section[at..at + 4].copy_from_slice(&value.to_le_bytes());
    put(&mut section, 4, 184);
    put(&mut section, 8, 2048);
    section[0x20..0x22].copy_from_slice(&width.to_le_bytes());
    section.extend_from_slice(&[0; 8]);
    put(&mut section, 0x80, 184);
    put(&mut section, 0x28, 1);
    put(&mut section, 0x2C, 192);
    section.extend_from_slice(&[0; 16]);
    let image = section.len() as u32;
    section.extend_from_slice(pdi);
    section.resize(section.len().next_multiple_of(16), 0);
    let name = section.len() as u32;
    section.extend_from_slice(b"DPU\0\0\0\0\0");
    let ids = section.len() as u32;
    section.extend_from_slice(&id.to_le_bytes());
    let pre = section.len() as u32;
    section.extend_from_slice(&0xC1_u32.to_le_bytes());
    section.resize(section.len().next_multiple_of(8), 0);
    let group = section.len();
    section.extend_from_slice(&[0; 96]);
    for (at, value) in [(0, name), (4, 1), (8, 1), (16, 1), (20, ids), (24, 1), (28, pre)] {
        put(&mut section, group + at, value);
    }
    let entry = section.len();
    section.extend_from_slice(&[0; 96]);
    for (at, value) in [(16, pdi.len() as u32), (20, image), (24, 1), (28, group as u32)] {
        put(&mut section, entry + at, value);
    }
    put(&mut section, 0x78, 1);
    put(&mut section, 0x7C, entry as u32);
    section
}

impl Maker {
    fn good() -> Self {
        let xml = "<project><platform><device><core><kernel name=\"MLIR_AIE\" type=\"dpu\"><extended-data \
                   subtype=\"1\" functional=\"0\" dpu_kernel_id=\"0x901\"/><arg id=\"3\"/></kernel></core></device>\
                   </platform></project>\n";
        let mut layout = 1_u32.to_le_bytes().to_vec();
        layout.resize(8 + 80, 0);
        layout[24..24 + 16].copy_from_slice(b"MLIR_AIE:MLIRAIE");
        let sections = vec![
            (6, vec![0; 8]),
            (32, partition(8, 0x901, b"device image")),
            (2, xml.as_bytes().to_vec()),
            (8, layout),
            (0, Vec::new()),
        ];
        Self { sections }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut out = vec![0xFF; TABLE + self.sections.len() * SECTION_HEADER];
        out[..8].copy_from_slice(MAGIC);
        out[0x1C0..0x1C4].copy_from_slice(&(self.sections.len() as u32).to_le_bytes());
        for (index, (kind, payload)) in self.sections.iter().enumerate() {
            let at = TABLE + index * SECTION_HEADER;
            out.resize(out.len().next_multiple_of(8), 0);
            let offset = out.len() as u64;
            out[at..at + 4].copy_from_slice(&kind.to_le_bytes());
            out[at + 24..at + 32].copy_from_slice(&offset.to_le_bytes());
            out[at + 32..at + 40].copy_from_slice(&(payload.len() as u64).to_le_bytes());
            out.extend_from_slice(payload);
        }
        let length = out.len() as u64;
        out[0x130..0x138].copy_from_slice(&length.to_le_bytes());
        out
    }

    /// What is wrong, without the place.
    fn message(&self) -> String {
        placeless(Xclbin::parse(&self.bytes(), "MLIR_AIE"))
    }
}

/// The message behind `byte N: `.
fn placeless<T: std::fmt::Debug>(result: Result<T, XclbinError>) -> String {
    let message = result.unwrap_err().0;
    let (place, what) = message.split_once(": ").unwrap();
    assert!(place.strip_prefix("byte ").unwrap().parse::<usize>().is_ok(), "{message}");
    what.to_owned()
}

#[test]
fn a_good_container() {
    let parsed = Xclbin::parse(&Maker::good().bytes(), "MLIR_AIE").unwrap();
    let expected = Xclbin {
        kernel: "MLIR_AIE".to_owned(),
        kernel_id: 0x901,
        cu_func: 0,
        buffers: 1,
        column_width: 8,
        ops_per_cycle: 2048,
        pdi: b"device image".to_vec(),
    };
    assert_eq!(parsed, expected);
}

#[test]
fn order_of_sections_does_not_matter() {
    let mut maker = Maker::good();
    maker.sections.reverse();
    assert_eq!(Xclbin::parse(&maker.bytes(), "MLIR_AIE").unwrap().pdi, b"device image");
}

#[test]
fn every_cut_is_refused() {
    let bytes = Maker::good().bytes();
    for end in 0..bytes.len() {
        placeless(Xclbin::parse(&bytes[..end], "MLIR_AIE"));
        // Also where the header has been told.
        let mut lying = bytes[..end].to_vec();
        if let Some(length) = lying.get_mut(0x130..0x138) {
            length.copy_from_slice(&(end as u64).to_le_bytes());
        }
        placeless(Xclbin::parse(&lying, "MLIR_AIE"));
    }
}

#[test]
fn no_changed_byte_panics() {
    let bytes = Maker::good().bytes();
    for at in 0..bytes.len() {
        for value in [0, 1, 0x7F, 0x80, 0xFF] {
            let mut changed = bytes.clone();
            changed[at] = value;
            let _ = Xclbin::parse(&changed, "MLIR_AIE");
        }
    }
}

#[test]
fn missing_and_repeated_sections() {
    for (kind, name) in [(2, "EMBEDDED_METADATA"), (6, "MEM_TOPOLOGY"), (8, "IP_LAYOUT"), (32, "AIE_PARTITION")] {
        let mut maker = Maker::good();
        maker.sections.retain(|(found, _)| *found != kind);
        assert_eq!(maker.message(), format!("no {name} section (kind {kind})"));
        let mut maker = Maker::good();
        let again = maker.sections.iter().find(|(found, _)| *found == kind).unwrap().clone();
        maker.sections.push(again);
        assert_eq!(maker.message(), format!("a second section of kind {kind}"));
    }
}

#[test]
fn sections_outside_the_file() {
    let mut bytes = Maker::good().bytes();
    let at = TABLE + 24;
    bytes[at..at + 8].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(Xclbin::parse(&bytes, "MLIR_AIE").unwrap_err().0.contains("are not in the file's body"));
    bytes[at..at + 8].copy_from_slice(&8_u64.to_le_bytes());
    assert!(Xclbin::parse(&bytes, "MLIR_AIE").unwrap_err().0.contains("are not in the file's body"));
}

#[test]
fn partitions_that_make_no_sense() {
    let with = |section: Vec<u8>| {
        let mut maker = Maker::good();
        maker.sections[1].1 = section;
        maker.message()
    };
    assert_eq!(with(partition(0, 0x901, b"x")), "column width 0; expected 1 to 8");
    assert_eq!(with(partition(9, 0x901, b"x")), "column width 9; expected 1 to 8");
    assert_eq!(with(partition(8, 0x902, b"x")), "no device image for kernel `MLIR_AIE` (id 0x901)");
    assert_eq!(with(partition(8, 0x1_0901, b"x")), "kernel id 0x10901; expected 16 bits");
    assert!(with(partition(8, 0x901, b"")).starts_with("a device image of 0 bytes"));
    assert!(
        with(partition(8, 0x901, b"x")[..180].to_vec())
            .starts_with("expected 184 bytes here, AIE_PARTITION ends at byte ")
    );
    let mut section = partition(8, 0x901, b"x");
    section[0x78..0x7C].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(with(section).contains("device images; expected at most 64"));
    let mut section = partition(8, 0x901, b"x");
    section[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(with(section).contains("does not end inside AIE_PARTITION"));
}

#[test]
fn other_names() {
    assert_eq!(placeless(Xclbin::parse(&Maker::good().bytes(), "DPU")), "no kernel `DPU`; there is: MLIR_AIE");
    let mut maker = Maker::good();
    maker.sections[3].1[24] = b'X';
    assert_eq!(maker.message(), "IP_LAYOUT has no instance of kernel `MLIR_AIE`");
}

#[test]
fn all_that_a_reference_container_says() {
    use crate::reference::{Kind, is_reference, xclbin};
    let bytes = xclbin(Kind::Gemm);
    let container = Container::parse(&bytes).unwrap();
    let names: Vec<_> = container.sections.iter().map(|section| (section.kind_name(), section.name.as_str())).collect();
    assert_eq!(names[1], ("AIE_PARTITION", "aie_partition"));
    assert_eq!(names.len(), 7);
    assert_eq!(container.header.version, (2, 21, 75));
    assert_eq!(container.memories.iter().map(|memory| memory.tag.as_str()).collect::<Vec<_>>(), ["HOST", "SRAM"]);
    let (kernel, id, image) = container.kernel("MLIR_AIE").unwrap();
    assert_eq!((id, kernel.arguments.len(), kernel.arguments[4].offset), (0x901, 8, Some(0x1C)));
    assert_eq!(image.groups[0], Group { name: "DPU".into(), kind: 1, pdi_id: 1, kernel_ids: vec![0x901] });
    assert!(is_reference(image.bytes) && bytes[image.offset..].starts_with(image.bytes));
    assert_eq!(
        (container.partition.start_columns.as_slice(), container.instances[0].name.as_str()),
        (&[0][..], "MLIR_AIE:MLIRAIE")
    );
}
