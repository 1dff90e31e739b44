//! The AIE_PARTITION section: columns and device images.

use super::{Bytes, XclbinError, at, bad};

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
#[derive(Debug, Clone)]
pub struct Partition<'a> {
    /// Its name, often empty.
    pub name: String,
    /// Columns of the array that the kernels occupy, 1..=8.
    pub column_width: u16,
    /// Columns where the partition may begin.
    pub start_columns: Vec<u16>,
    /// Operations per cycle, a hint for the driver.
    pub ops_per_cycle: u32,
    /// The device images. Never empty.
    pub images: Vec<Image<'a>>,
}

/// A device image.
#[derive(Debug, Clone)]
pub struct Image<'a> {
    /// Its id.
    pub uuid: [u8; 16],
    /// Where it begins in the file.
    pub offset: usize,
    /// The PDI.
    pub bytes: &'a [u8],
    /// The groups of kernels that it serves.
    pub groups: Vec<Group>,
}

/// A group of kernels of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// 0 unknown, 1 primary, 2 lite, 3 pre and post.
    pub kind: u8,
    /// Id of the image.
    pub pdi_id: u64,
    /// The kernels' ids.
    pub kernel_ids: Vec<u16>,
}

impl<'a> Partition<'a> {
    pub(super) fn parse(section: Bytes<'a>) -> Result<Self, XclbinError> {
        section.slice(0, HEADER)?;
        let column_width = section.u16(0x20)?;
        if !(1..=8).contains(&column_width) {
            return bad(section.base + 0x20, format!("column width {column_width}; expected 1 to 8"));
        }
        let name = string(section, section, 4, "the partition's name")?;
        string(section, section, 0x80, "the kernel commit id")?;
        let start_columns = section.array(section, 0x28, 2, "start columns", 256)?;
        let start_columns = start_columns.into_iter().map(|column| column.u16(0)).collect::<Result<_, _>>()?;
        let mut images = Vec::new();
        let mut total = 0_usize;
        for entry in section.array(section, 0x78, PDI_ENTRY, "device images", MOST_IMAGES)? {
            let image = image(section, entry)?;
            total += image.bytes.len();
            if total > MOST_BYTES {
                return bad(
                    entry.base + 16,
                    format!("device images of more than {MOST_BYTES} bytes; they would not fit the device heap"),
                );
            }
            images.push(image);
        }
        if images.is_empty() {
            return bad(section.base + 0x78, "no device image");
        }
        Ok(Self { name, column_width, start_columns, ops_per_cycle: section.u32(8)?, images })
    }

    /// The image for a kernel: the first whose groups list its id.
    #[must_use]
    pub fn image(&self, kernel: u16) -> Option<&Image<'a>> {
        self.images.iter().find(|image| image.groups.iter().any(|group| group.kernel_ids.contains(&kernel)))
    }
}

/// An image and the groups of its kernels. The arrays' descriptions lie in their entries, the elements in the section.
fn image<'a>(section: Bytes<'a>, entry: Bytes<'a>) -> Result<Image<'a>, XclbinError> {
    let (size, offset) = (entry.u32(16)? as usize, entry.u32(20)? as usize);
    if size == 0 || size > MOST_BYTES {
        return bad(entry.base + 16, format!("a device image of {size} bytes; expected 1 to {MOST_BYTES}"));
    }
    let bytes = section.slice(offset, size).map_err(|_| {
        let (begin, end) = (section.base + offset, section.base + section.bytes.len());
        at(entry.base + 16, format!("a device image of {size} bytes at byte {begin} goes past byte {end}"))
    })?;
    let groups = section.array(entry, 24, GROUP_ENTRY, "groups", MOST_GROUPS)?;
    let groups = groups.into_iter().map(|entry| group(section, entry)).collect::<Result<_, _>>()?;
    Ok(Image { uuid: entry.uuid(0)?, offset: section.base + offset, bytes, groups })
}

fn group(section: Bytes<'_>, entry: Bytes<'_>) -> Result<Group, XclbinError> {
    let name = string(section, entry, 0, "a group's name")?;
    section.array(entry, 24, 4, "preceding groups", MOST_GROUPS)?;
    let mut kernel_ids = Vec::new();
    for place in section.array(entry, 16, 8, "kernel ids", MOST_IDS)? {
        // The low half is the id; the rest of the word must be clear for it to be one.
        let id = place.u64(0)?;
        let id = u16::try_from(id).map_err(|_| at(place.base, format!("kernel id {id:#x}; expected 16 bits")))?;
        kernel_ids.push(id);
    }
    Ok(Group { name, kind: entry.u8(4)?, pdi_id: entry.u64(8)?, kernel_ids })
}

/// The string whose offset in the section stands at `place` of `holder`; it must end inside the section.
fn string(section: Bytes<'_>, holder: Bytes<'_>, place: usize, what: &str) -> Result<String, XclbinError> {
    let offset = holder.u32(place)? as usize;
    let tail = section.bytes.get(offset..).unwrap_or(&[]);
    match tail.iter().position(|byte| *byte == 0) {
        Some(end) => Ok(String::from_utf8_lossy(&tail[..end]).into_owned()),
        None => bad(
            holder.base + place,
            format!("{what} at byte {} does not end inside AIE_PARTITION", section.base + offset),
        ),
    }
}
