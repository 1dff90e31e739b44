//! The xclbin container (AXLF): what of it a hardware context needs.
//!
//! Layout as in `xclbin.h` of XRT. A context wants three things of it: the device image (PDI) that configures the
//! array, how many columns that takes, and the kernel's `cu_func`. The way to the image is the one XRT goes: the XML
//! gives the kernel's id, the IP layout must list an instance of the kernel, and the first image of the partition
//! whose groups list the id is the kernel's.
//!
//! [`Container`] is all that the file says, [`Xclbin`] what of it one kernel's context needs. Every message names a
//! byte of the file.

mod layout;
mod partition;
mod xml;

pub use layout::{Instance, Memory};
pub use partition::{Group, Image, Partition};
pub use xml::{Argument, Kernel};

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

/// An error at a byte of the file.
fn at(offset: usize, what: impl std::fmt::Display) -> XclbinError {
    XclbinError(format!("byte {offset}: {what}"))
}

fn bad<T>(offset: usize, what: impl std::fmt::Display) -> Result<T, XclbinError> {
    Err(at(offset, what))
}

/// A piece of the file.
#[derive(Debug, Clone, Copy)]
struct Bytes<'a> {
    bytes: &'a [u8],
    /// Where it begins in the file.
    base: usize,
    /// For messages: what it is.
    what: &'static str,
}

impl<'a> Bytes<'a> {
    fn slice(self, offset: usize, len: usize) -> Result<&'a [u8], XclbinError> {
        offset.checked_add(len).and_then(|end| self.bytes.get(offset..end)).ok_or_else(|| {
            let (what, end) = (self.what, self.base + self.bytes.len());
            at(self.base.saturating_add(offset), format!("expected {len} bytes here, {what} ends at byte {end}"))
        })
    }

    /// The same as a piece, called `what`.
    fn piece(self, offset: usize, len: usize, what: &'static str) -> Result<Self, XclbinError> {
        Ok(Self { bytes: self.slice(offset, len)?, base: self.base + offset, what })
    }

    fn u8(self, offset: usize) -> Result<u8, XclbinError> {
        Ok(self.slice(offset, 1)?[0])
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

    /// Sixteen bytes.
    fn uuid(self, offset: usize) -> Result<[u8; 16], XclbinError> {
        let mut uuid = [0; 16];
        uuid.copy_from_slice(self.slice(offset, 16)?);
        Ok(uuid)
    }

    /// A string in a field that zeroes fill up.
    fn text(self, offset: usize, width: usize) -> Result<String, XclbinError> {
        let field = self.slice(offset, width)?;
        let end = field.iter().position(|byte| *byte == 0).unwrap_or(width);
        Ok(String::from_utf8_lossy(&field[..end]).into_owned())
    }

    /// The array {count, offset} that `holder` describes at `at`, of elements of `size` bytes in this piece.
    fn array(
        self,
        holder: Bytes<'_>,
        place: usize,
        size: usize,
        name: &'static str,
        most: usize,
    ) -> Result<Vec<Self>, XclbinError> {
        let (count, offset) = (holder.u32(place)? as usize, holder.u32(place + 4)? as usize);
        if count > most {
            return bad(holder.base + place, format!("{count} {name}; expected at most {most}"));
        }
        // No overflow: both are small.
        let all = self.slice(offset, count * size).map_err(|_| {
            let end = self.base + self.bytes.len();
            at(holder.base + place, format!("{count} {name} at byte {} go past byte {end}", self.base + offset))
        })?;
        let pieces = all.chunks_exact(size).enumerate();
        Ok(pieces.map(|(i, bytes)| Self { bytes, base: self.base + offset + i * size, what: name }).collect())
    }
}

/// A section of a container.
#[derive(Debug, Clone)]
pub struct Section<'a> {
    /// Its kind.
    pub kind: u32,
    /// Its name, free text.
    pub name: String,
    /// Where it begins in the file.
    pub offset: usize,
    /// What is in it.
    pub bytes: &'a [u8],
}

impl Section<'_> {
    /// What the kind is called in `xclbin.h`.
    #[must_use]
    pub fn kind_name(&self) -> &'static str {
        match self.kind {
            0 => "BITSTREAM",
            EMBEDDED_METADATA => "EMBEDDED_METADATA",
            MEM_TOPOLOGY => "MEM_TOPOLOGY",
            7 => "CONNECTIVITY",
            IP_LAYOUT => "IP_LAYOUT",
            14 => "BUILD_METADATA",
            18 => "PDI",
            22 => "SYSTEM_METADATA",
            25 => "AIE_METADATA",
            26 => "GROUP_TOPOLOGY",
            27 => "GROUP_CONNECTIVITY",
            31 => "VENDER_METADATA",
            AIE_PARTITION => "AIE_PARTITION",
            _ => "unknown",
        }
    }
}

/// The sections of a container, checked against the file.
fn sections(bytes: &[u8]) -> Result<Vec<Section<'_>>, XclbinError> {
    let file = Bytes { bytes, base: 0, what: "the file" };
    if bytes.len() < TABLE + SECTION_HEADER {
        let least = TABLE + SECTION_HEADER;
        return bad(bytes.len(), format!("the file ends here; expected at least {least} bytes"));
    }
    if !bytes.starts_with(MAGIC) {
        return bad(0, "it does not begin with `xclbin2`");
    }
    let length = file.u64(0x130)?;
    if length != bytes.len() as u64 {
        let what = format!("the header says {length} bytes, the file has {}; it may be cut short", bytes.len());
        return bad(0x130, what);
    }
    let count = file.u32(0x1C0)? as usize;
    if count == 0 || count > MOST_SECTIONS {
        return bad(0x1C0, format!("{count} sections; expected 1 to {MOST_SECTIONS}"));
    }
    let end = TABLE + count * SECTION_HEADER;
    let mut found: Vec<Section<'_>> = Vec::with_capacity(count);
    for index in 0..count {
        let place = TABLE + index * SECTION_HEADER;
        let (kind, offset, size) = (file.u32(place)?, file.u64(place + 24)?, file.u64(place + 32)?);
        let inside = offset.checked_add(size).is_some_and(|end| end <= length);
        if !inside || (size > 0 && offset < end as u64) {
            let what = format!("section {index} (kind {kind}): {size} bytes at {offset} are not in the file's body");
            return bad(place, what);
        }
        if is_single(kind) && found.iter().any(|other| other.kind == kind) {
            return bad(place, format!("a second section of kind {kind}"));
        }
        // In bounds: checked above.
        let payload = file.slice(offset as usize, size as usize)?;
        found.push(Section { kind, name: file.text(place + 4, 16)?, offset: offset as usize, bytes: payload });
    }
    Ok(found)
}

fn is_single(kind: u32) -> bool {
    matches!(kind, EMBEDDED_METADATA | MEM_TOPOLOGY | IP_LAYOUT | AIE_PARTITION)
}

/// The header of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Major, minor, patch of the tools.
    pub version: (u8, u8, u16),
    /// Seconds since 1970.
    pub timestamp: u64,
    /// Mode; 0 from the open tools.
    pub mode: u16,
    /// Actions; bit 0 loads AIE, bit 1 the PDI.
    pub actions: u16,
    /// The container's id.
    pub uuid: [u8; 16],
    /// The platform it was made for, often empty.
    pub platform: String,
    /// Whether a signature follows.
    pub signed: bool,
}

/// All that a container says.
#[derive(Debug, Clone)]
pub struct Container<'a> {
    /// The header.
    pub header: Header,
    /// The sections in the order of the table.
    pub sections: Vec<Section<'a>>,
    /// The memories of MEM_TOPOLOGY.
    pub memories: Vec<Memory>,
    /// The kernels of EMBEDDED_METADATA, in the order of the XML.
    pub kernels: Vec<Kernel>,
    /// The entries of IP_LAYOUT.
    pub instances: Vec<Instance>,
    /// The AIE_PARTITION.
    pub partition: Partition<'a>,
}

impl<'a> Container<'a> {
    /// Parses a container.
    ///
    /// # Errors
    /// Anything malformed, or a section missing that every NPU container has.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, XclbinError> {
        let sections = sections(bytes)?;
        let section = |kind: u32, name: &'static str| match sections.iter().find(|found| found.kind == kind) {
            Some(found) => Ok(Bytes { bytes: found.bytes, base: found.offset, what: name }),
            None => bad(TABLE, format!("no {name} section (kind {kind})")),
        };
        let memories = layout::memories(section(MEM_TOPOLOGY, "MEM_TOPOLOGY")?)?;
        let kernels = xml::kernels(section(EMBEDDED_METADATA, "EMBEDDED_METADATA")?)?;
        let instances = layout::instances(section(IP_LAYOUT, "IP_LAYOUT")?)?;
        let partition = Partition::parse(section(AIE_PARTITION, "AIE_PARTITION")?)?;
        let file = Bytes { bytes, base: 0, what: "the file" };
        let header = Header {
            version: (file.u8(0x14A)?, file.u8(0x14B)?, file.u16(0x148)?),
            timestamp: file.u64(0x138)?,
            mode: file.u16(0x14C)?,
            actions: file.u16(0x14E)?,
            uuid: file.uuid(0x1A0)?,
            platform: file.text(0x160, 64)?,
            signed: file.u32(8)? != u32::MAX,
        };
        Ok(Self { header, sections, memories, kernels, instances, partition })
    }

    /// Where a section of this kind begins in the file; 0 without one.
    fn section(&self, kind: u32) -> usize {
        self.sections.iter().find(|section| section.kind == kind).map_or(0, |section| section.offset)
    }

    /// The kernel of this name with its id and its image, found as XRT finds them.
    ///
    /// # Errors
    /// No such kernel, no instance of it, no id, or no image for the id.
    pub fn kernel(&self, name: &str) -> Result<(&Kernel, u16, &Image<'a>), XclbinError> {
        let metadata = self.section(EMBEDDED_METADATA);
        let Some(kernel) = self.kernels.iter().find(|kernel| kernel.name == name) else {
            let names: Vec<&str> = self.kernels.iter().map(|kernel| kernel.name.as_str()).collect();
            return bad(metadata, format!("no kernel `{name}`; there is: {}", names.join(", ")));
        };
        let Some(id) = kernel.id else { return bad(metadata, format!("kernel `{name}` has no dpu_kernel_id")) };
        if !self.instances.iter().any(|instance| instance.kernel() == name) {
            return bad(self.section(IP_LAYOUT), format!("IP_LAYOUT has no instance of kernel `{name}`"));
        }
        match self.partition.image(id) {
            Some(image) => Ok((kernel, id, image)),
            None => bad(self.section(AIE_PARTITION), format!("no device image for kernel `{name}` (id {id:#x})")),
        }
    }
}

impl Xclbin {
    /// Parses a container and finds `kernel` in it.
    ///
    /// # Errors
    /// Anything malformed, no kernel of that name, or no device image for it.
    pub fn parse(bytes: &[u8], kernel: &str) -> Result<Self, XclbinError> {
        let container = Container::parse(bytes)?;
        let (described, id, image) = container.kernel(kernel)?;
        Ok(Self {
            kernel: kernel.to_owned(),
            kernel_id: id,
            cu_func: described.functional,
            buffers: described.buffers(),
            column_width: container.partition.column_width,
            ops_per_cycle: container.partition.ops_per_cycle,
            pdi: image.bytes.to_vec(),
        })
    }
}

#[cfg(test)]
mod tests;
