//! The AIE_PARTITION section: columns and device images.

use super::{Bytes, XclbinError, bad};

const HEADER: usize = 184;
const PDI_ENTRY: usize = 96;
const GROUP_ENTRY: usize = 96;
/// Images: real files have up to 31.
const MOST_IMAGES: usize = 64;
const MOST_GROUPS: usize = 64;
const MOST_IDS: usize = 4096;
/// All images of a container must fit into the device heap.
const MOST_BYTES: usize = 64 << 20;

/// What a partition says.
#[derive(Debug)]
pub(super) struct Partition<'a> {
    pub(super) column_width: u16,
    pub(super) ops_per_cycle: u32,
    /// Each image with the ids of the kernels it serves.
    images: Vec<(&'a [u8], Vec<u16>)>,
}

impl<'a> Partition<'a> {
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, XclbinError> {
        let section = Bytes { bytes, what: "AIE_PARTITION" };
        section.slice(0, HEADER)?;
        let column_width = section.u16(0x20)?;
        if !(1..=8).contains(&column_width) {
            return bad(format!("column width {column_width}; expected 1 to 8"));
        }
        string(section, section.u32(4)?, "the partition's name")?;
        string(section, section.u32(0x80)?, "the kernel commit id")?;
        section.array(0x28, 2, "start columns", 256)?;
        let mut images = Vec::new();
        let mut total = 0_usize;
        for entry in section.array(0x78, PDI_ENTRY, "device images", MOST_IMAGES)? {
            let (image, ids) = image(section, Bytes { bytes: entry, what: "a device image's entry" })?;
            total += image.len();
            if total > MOST_BYTES {
                return bad(format!(
                    "device images of more than {MOST_BYTES} bytes; they would not fit the device heap"
                ));
            }
            images.push((image, ids));
        }
        if images.is_empty() {
            return bad("no device image");
        }
        Ok(Self { column_width, ops_per_cycle: section.u32(8)?, images })
    }

    /// The image for a kernel: the first whose groups list its id.
    pub(super) fn image(&self, kernel: u16) -> Option<&'a [u8]> {
        self.images.iter().find(|(_, ids)| ids.contains(&kernel)).map(|(image, _)| *image)
    }
}

/// An image and the kernel ids of its groups.
fn image<'a>(section: Bytes<'a>, entry: Bytes<'a>) -> Result<(&'a [u8], Vec<u16>), XclbinError> {
    let (size, offset) = (entry.u32(16)? as usize, entry.u32(20)? as usize);
    if size == 0 || size > MOST_BYTES {
        return bad(format!("a device image of {size} bytes; expected 1 to {MOST_BYTES}"));
    }
    let image = section.slice(offset, size)?;
    let mut ids = Vec::new();
    // The array's own description lies in the entry, the elements it points at in the section.
    for group in nested(section, entry, 24, GROUP_ENTRY, "groups", MOST_GROUPS)? {
        let group = Bytes { bytes: group, what: "a group" };
        string(section, group.u32(0)?, "a group's name")?;
        nested(section, group, 24, 4, "preceding groups", MOST_GROUPS)?;
        for id in nested(section, group, 16, 8, "kernel ids", MOST_IDS)? {
            // The low half is the id; the rest of the word must be clear for it to be one.
            let id = Bytes { bytes: id, what: "a kernel id" }.u64(0)?;
            ids.push(u16::try_from(id).map_err(|_| XclbinError(format!("kernel id {id:#x}; expected 16 bits")))?);
        }
    }
    Ok((image, ids))
}

fn nested<'a>(
    section: Bytes<'a>,
    holder: Bytes<'a>,
    at: usize,
    size: usize,
    name: &str,
    most: usize,
) -> Result<Vec<&'a [u8]>, XclbinError> {
    let (count, offset) = (holder.u32(at)? as usize, holder.u32(at + 4)? as usize);
    if count > most {
        return bad(format!("{count} {name}; expected at most {most}"));
    }
    let bytes = section.slice(offset, count * size).map_err(|error| XclbinError(format!("{name}: {}", error.0)))?;
    Ok(bytes.chunks_exact(size).collect())
}

/// Checks that a string begins and ends inside the section.
fn string(section: Bytes<'_>, offset: u32, what: &str) -> Result<(), XclbinError> {
    let tail = section.bytes.get(offset as usize..).unwrap_or(&[]);
    if tail.contains(&0) { Ok(()) } else { bad(format!("{what} at {offset} does not end inside AIE_PARTITION")) }
}
