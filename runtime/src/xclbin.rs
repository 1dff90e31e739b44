//! The xclbin container (AXLF): what of it a hardware context needs.
//!
//! Layout as in `xclbin.h` of XRT. A context wants three things of it: the device image (PDI) that configures the
//! array, how many columns that takes, and the kernel's `cu_func`. The way to the image is the one XRT goes: the XML
//! gives the kernel's id, the IP layout must list an instance of the kernel, and the first image of the partition
//! whose groups list the id is the kernel's.

mod partition;
mod xml;

/// What a container says about its kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Xclbin {
    /// Name of the kernel (`MLIR_AIE`).
    pub kernel: String,
    /// The kernel's id, as the partition's groups list it.
    pub kernel_id: u16,
    /// The `cu_func` of the kernel's compute unit: 0 for a DPU kernel.
    pub cu_func: u8,
    /// Buffer arguments a command may carry (after opcode, instructions and their length).
    pub buffers: usize,
    /// Columns of the array that the kernel occupies, 1..=8.
    pub column_width: u16,
    /// Operations per cycle, a hint for the driver.
    pub ops_per_cycle: u32,
    /// The device image that configures the array.
    pub pdi: Vec<u8>,
}

/// A malformed container.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a usable xclbin: {0}")]
pub struct XclbinError(pub String);

const MAGIC: &[u8] = b"xclbin2\0";
/// Where the section headers begin, and the size of one.
const TABLE: usize = 0x1C8;
const SECTION_HEADER: usize = 40;
/// Sections: real files have up to 13.
const MOST_SECTIONS: usize = 64;

/// Section kinds that every NPU container has exactly once.
const EMBEDDED_METADATA: u32 = 2;
const MEM_TOPOLOGY: u32 = 6;
const IP_LAYOUT: u32 = 8;
const AIE_PARTITION: u32 = 32;

fn bad<T>(what: impl Into<String>) -> Result<T, XclbinError> {
    Err(XclbinError(what.into()))
}

/// Numbers out of a byte slice, with bounds.
#[derive(Debug, Clone, Copy)]
struct Bytes<'a> {
    bytes: &'a [u8],
    /// For messages: what these bytes are.
    what: &'static str,
}

impl<'a> Bytes<'a> {
    fn slice(self, offset: usize, len: usize) -> Result<&'a [u8], XclbinError> {
        offset.checked_add(len).and_then(|end| self.bytes.get(offset..end)).ok_or_else(|| {
            XclbinError(format!("{} has {} bytes; expected {len} at {offset}", self.what, self.bytes.len()))
        })
    }

    fn u16(self, offset: usize) -> Result<u16, XclbinError> {
        let bytes = self.slice(offset, 2)?;
        Ok(u16::from_le_bytes([bytes[0], bytes[1]]))
    }

    fn u32(self, offset: usize) -> Result<u32, XclbinError> {
        let bytes = self.slice(offset, 4)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    fn u64(self, offset: usize) -> Result<u64, XclbinError> {
        Ok(u64::from(self.u32(offset)?) | u64::from(self.u32(offset + 4)?) << 32)
    }

    /// The array {count, offset} described at `at`, of elements of `size` bytes.
    fn array(self, at: usize, size: usize, name: &str, most: usize) -> Result<Vec<&'a [u8]>, XclbinError> {
        let (count, offset) = (self.u32(at)? as usize, self.u32(at + 4)? as usize);
        if count > most {
            return bad(format!("{count} {name}; expected at most {most}"));
        }
        // No overflow: both are small.
        let bytes = self.slice(offset, count * size).map_err(|error| XclbinError(format!("{name}: {}", error.0)))?;
        Ok(bytes.chunks_exact(size).collect())
    }
}

/// The sections of a container by kind, checked against the file.
fn sections(bytes: &[u8]) -> Result<Vec<(u32, &[u8])>, XclbinError> {
    let file = Bytes { bytes, what: "the file" };
    if bytes.len() < TABLE + SECTION_HEADER {
        return bad(format!("{} bytes; expected at least {}", bytes.len(), TABLE + SECTION_HEADER));
    }
    if !bytes.starts_with(MAGIC) {
        return bad("it does not begin with `xclbin2`");
    }
    let length = file.u64(0x130)?;
    if length != bytes.len() as u64 {
        return bad(format!("the header says {length} bytes, the file has {}; it may be cut short", bytes.len()));
    }
    let count = file.u32(0x1C0)? as usize;
    if count == 0 || count > MOST_SECTIONS {
        return bad(format!("{count} sections; expected 1 to {MOST_SECTIONS}"));
    }
    let end = TABLE + count * SECTION_HEADER;
    let mut found: Vec<(u32, &[u8])> = Vec::with_capacity(count);
    for index in 0..count {
        let at = TABLE + index * SECTION_HEADER;
        let (kind, offset, size) = (file.u32(at)?, file.u64(at + 24)?, file.u64(at + 32)?);
        let inside = offset.checked_add(size).is_some_and(|end| end <= length);
        if !inside || (size > 0 && offset < end as u64) {
            return bad(format!("section {index} (kind {kind}): {size} bytes at {offset} are not in the file's body"));
        }
        if is_single(kind) && found.iter().any(|(other, _)| *other == kind) {
            return bad(format!("a second section of kind {kind}"));
        }
        // In bounds: checked above.
        found.push((kind, file.slice(offset as usize, size as usize)?));
    }
    Ok(found)
}

fn is_single(kind: u32) -> bool {
    matches!(kind, EMBEDDED_METADATA | MEM_TOPOLOGY | IP_LAYOUT | AIE_PARTITION)
}

/// Whether the IP layout lists an instance `<kernel>:...`.
fn has_instance(section: &[u8], kernel: &str) -> Result<bool, XclbinError> {
    const ENTRY: usize = 80;
    let layout = Bytes { bytes: section, what: "IP_LAYOUT" };
    let count = layout.u32(0)? as usize;
    if count > 4096 {
        return bad(format!("IP_LAYOUT lists {count} instances; expected at most 4096"));
    }
    let mut found = false;
    for entry in layout.slice(8, count * ENTRY)?.chunks_exact(ENTRY) {
        let name = &entry[16..];
        let Some(end) = name.iter().position(|byte| *byte == 0) else {
            return bad("IP_LAYOUT has a name without an end");
        };
        let name = name[..end].split(|byte| *byte == b':').next().unwrap_or(&[]);
        found |= name == kernel.as_bytes();
    }
    Ok(found)
}

impl Xclbin {
    /// Parses a container and finds `kernel` in it.
    ///
    /// # Errors
    /// Anything malformed, no kernel of that name, or no device image for it.
    pub fn parse(bytes: &[u8], kernel: &str) -> Result<Self, XclbinError> {
        let sections = sections(bytes)?;
        let section = |kind: u32, name: &str| match sections.iter().find(|(found, _)| *found == kind) {
            Some((_, bytes)) => Ok(*bytes),
            None => bad(format!("no {name} section (kind {kind})")),
        };
        section(MEM_TOPOLOGY, "MEM_TOPOLOGY")?;
        let described = xml::kernel(section(EMBEDDED_METADATA, "EMBEDDED_METADATA")?, kernel)?;
        if !has_instance(section(IP_LAYOUT, "IP_LAYOUT")?, kernel)? {
            return bad(format!("IP_LAYOUT has no instance of kernel `{kernel}`"));
        }
        let partition = partition::Partition::parse(section(AIE_PARTITION, "AIE_PARTITION")?)?;
        let pdi = partition
            .image(described.id)
            .ok_or_else(|| XclbinError(format!("no device image for kernel `{kernel}` (id {:#x})", described.id)))?;
        Ok(Self {
            kernel: kernel.to_owned(),
            kernel_id: described.id,
            cu_func: described.functional,
            buffers: described.buffers,
            column_width: partition.column_width,
            ops_per_cycle: partition.ops_per_cycle,
            pdi: pdi.to_vec(),
        })
    }
}

#[cfg(test)]
mod tests;
