//! The container of a reference kernel: an AXLF file with the seven sections that mlir-aie's tools write.

use super::Kind;
use super::pdi::pdi;

/// Buffer arguments that the kernel declares.
const BUFFERS: usize = 5;
/// The kernel id that ties the XML, the IP layout and the partition's PDI together.
const KERNEL_ID: u32 = 0x901;
/// Columns of the partition.
const COLUMN_WIDTH: u16 = 8;
/// Start of the section table.
const TABLE: usize = 0x1C8;
/// Bytes of a section's header.
const SECTION_HEADER: usize = 40;

/// A valid AXLF container of one reference kernel: seven sections, an 8-column partition, kernel `MLIR_AIE`.
/// Same bytes at every call.
pub fn xclbin(kind: Kind) -> Vec<u8> {
    let uuid = match kind {
        Kind::Gemm => *b"q35-ref-gemm-v01",
        Kind::Gemv => *b"q35-ref-gemv-v01",
    };
    let sections: [(u32, &[u8], Vec<u8>); 7] = [
        (6, b"mem_topology", memories()),
        (32, b"aie_partition", partition(&uuid, &pdi(kind))),
        (2, b"embedded_metad", metadata()),
        (8, b"ip_layout", ip_layout()),
        (7, b"connectivity", connectivity(1)),
        (27, b"group_connect", connectivity(2)),
        (26, b"group_topology", memories()),
    ];
    let mut file = Bytes::default();
    file.raw(b"xclbin2\0").u32(u32::MAX).fill(28 + 256, 0xFF);
    file.u64(STAMP);
    let length_at = file.len();
    file.u64(0).u64(STAMP).u64(0);
    file.raw(&75u16.to_le_bytes()).raw(&[2, 21]); // version 2.21.75
    file.fill(4 + 16 + 64, 0); // mode, actions, interface uuid, platform
    file.raw(&uuid).fill(16, 0).u32(sections.len() as u32).u32(0);
    debug_assert_eq!(file.len(), TABLE);
    let mut offset = (TABLE + SECTION_HEADER * sections.len()).next_multiple_of(8);
    for (kind, name, payload) in &sections {
        file.u32(*kind).padded(name, 20).u64(offset as u64).u64(payload.len() as u64);
        offset = (offset + payload.len()).next_multiple_of(8);
    }
    for (.., payload) in &sections {
        file.align(8).raw(payload);
    }
    file.align(8);
    let length = file.len() as u64;
    file.0[length_at..length_at + 8].copy_from_slice(&length.to_le_bytes());
    file.0
}

/// Time of creation and unique id: fixed, so that exports are reproducible (2026-01-01).
const STAMP: u64 = 1_767_225_600;

/// MEM_TOPOLOGY: host memory, and the window of the device heap that instructions live in.
fn memories() -> Vec<u8> {
    let mut out = Bytes::default();
    out.u32(2).u32(0);
    for (tag, kilobytes) in [(b"HOST", 0x10000), (b"SRAM", 0xC000)] {
        // type 2 (DRAM), used, size, base, tag
        out.raw(&[2, 1]).fill(6, 0).u64(kilobytes).u64(0x0400_0000).padded(tag, 16);
    }
    out.0
}

/// IP_LAYOUT: the one compute unit.
fn ip_layout() -> Vec<u8> {
    let mut out = Bytes::default();
    // type 7 (PS kernel); properties: subtype 1 (DPU), functional 0, kernel id in the high half; no base address
    out.u32(1).u32(0).u32(7).u32(KERNEL_ID << 16 | 1).u64(u64::MAX).padded(b"MLIR_AIE:MLIRAIE", 64);
    out.0
}

/// CONNECTIVITY: the instruction argument to SRAM, the buffers to host memory; the group form repeats the list.
fn connectivity(times: u32) -> Vec<u8> {
    let mut out = Bytes::default();
    let entries: Vec<(u32, u32)> = std::iter::once((1, 1)).chain((0..BUFFERS as u32).map(|b| (3 + b, 0))).collect();
    out.u32(times * entries.len() as u32);
    for _ in 0..times {
        for &(argument, memory) in &entries {
            out.u32(argument).u32(0).u32(memory);
        }
    }
    out.0
}

/// EMBEDDED_METADATA: the kernel's arguments in XML. An argument's offset is its place in the command's payload.
fn metadata() -> Vec<u8> {
    let mut arguments = vec![("opcode".to_owned(), 8, "uint64_t"), ("instr".to_owned(), 8, "char *")];
    arguments.push(("ninstr".to_owned(), 4, "uint32_t"));
    arguments.extend((0..BUFFERS).map(|b| (format!("bo{b}"), 8, "void*")));
    let mut xml = String::from(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<project name=\"binary\">\n  <platform>\n    \
         <device name=\"fpga0\">\n      <core name=\"OCL_REGION_0\">\n        <kernel name=\"MLIR_AIE\" type=\"dpu\">\n",
    );
    xml += &format!("          <extended-data subtype=\"1\" functional=\"0\" dpu_kernel_id=\"{KERNEL_ID:#x}\"/>\n");
    let mut offset = 0;
    for (id, (name, size, kind)) in arguments.iter().enumerate() {
        let qualifier = u32::from(*kind != "uint64_t" && *kind != "uint32_t");
        xml += &format!(
            "          <arg name=\"{name}\" id=\"{id}\" addressQualifier=\"{qualifier}\" size=\"{size:#x}\" \
             offset=\"{offset:#x}\" hostOffset=\"0x0\" hostSize=\"{size:#x}\" type=\"{kind}\"/>\n"
        );
        offset += size;
    }
    xml += "          <instance name=\"MLIRAIE\"/>\n        </kernel>\n      </core>\n    </device>\n  </platform>\n\
            </project>\n";
    xml.into_bytes()
}

/// AIE_PARTITION: one PDI with one group. Offsets are from the section's start.
fn partition(uuid: &[u8; 16], image: &[u8]) -> Vec<u8> {
    const HEADER: usize = 184;
    let strings = HEADER; // an empty name and commit id
    let columns = strings + 2;
    let pdi = (columns + 2).next_multiple_of(16);
    let name = pdi + image.len();
    let kernel_ids = (name + 4).next_multiple_of(8);
    let pre_groups = kernel_ids + 8;
    let group = pre_groups + 8;
    let pdis = group + 96;

    let mut out = Bytes::default();
    let array = |out: &mut Bytes, count: usize, offset: usize| {
        out.u32(count as u32).u32(offset as u32);
    };
    out.u32(0).u32(strings as u32).u32(2048).u32(0); // schema, name, operations a cycle
    out.u64(23423).u64(12345); // fingerprints, the tools' defaults
    out.raw(&COLUMN_WIDTH.to_le_bytes()).fill(6, 0);
    array(&mut out, 1, columns);
    out.fill(72, 0);
    array(&mut out, 1, pdis);
    out.u32(strings as u32 + 1).fill(52, 0);
    debug_assert_eq!(out.len(), HEADER);
    out.fill(2, 0).raw(&0u16.to_le_bytes()); // strings; start column 0
    out.align(16).raw(image).raw(b"DPU\0");
    out.align(8).u64(u64::from(KERNEL_ID)).u32(0xC1).u32(0);
    out.u32(name as u32).u32(1).u64(1); // group: name, type primary, PDI id
    array(&mut out, 1, kernel_ids);
    array(&mut out, 1, pre_groups);
    out.fill(64, 0);
    out.raw(uuid);
    array(&mut out, image.len(), pdi);
    array(&mut out, 1, group);
    out.fill(64, 0);
    debug_assert_eq!(out.len(), pdis + 96);
    out.0
}

/// Little-endian bytes under construction.
#[derive(Debug, Default)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn u32(&mut self, value: u32) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    fn u64(&mut self, value: u64) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    fn fill(&mut self, count: usize, byte: u8) -> &mut Self {
        self.0.resize(self.0.len() + count, byte);
        self
    }

    /// A string in a field of `width` bytes.
    fn padded(&mut self, text: &[u8], width: usize) -> &mut Self {
        self.raw(text).fill(width - text.len(), 0)
    }

    fn align(&mut self, to: usize) -> &mut Self {
        self.fill(self.0.len().next_multiple_of(to) - self.0.len(), 0)
    }
}
