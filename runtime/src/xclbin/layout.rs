//! The small sections: MEM_TOPOLOGY and IP_LAYOUT.

use super::{Bytes, XclbinError, bad};

/// A memory of MEM_TOPOLOGY.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Memory {
    /// `HOST`, `SRAM`.
    pub tag: String,
    /// Size in KiB.
    pub kilobytes: u64,
    /// Address.
    pub base: u64,
    /// Whether it is used.
    pub used: bool,
}

/// An entry of IP_LAYOUT: a compute unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    /// `<kernel>:<instance>`.
    pub name: String,
    /// Type; 7 is a PS kernel, which DPU kernels are.
    pub kind: u32,
    /// Subtype and function in the low half, kernel id in the high one.
    pub properties: u32,
}

impl Instance {
    /// The kernel that it is an instance of.
    #[must_use]
    pub fn kernel(&self) -> &str {
        self.name.split(':').next().unwrap_or("")
    }
}

const ENTRIES: usize = 8;
const MOST: usize = 4096;

/// The entries of a section that holds their number at byte 0 and them from byte 8.
fn entries<'a>(section: Bytes<'a>, size: usize, name: &'static str) -> Result<Vec<Bytes<'a>>, XclbinError> {
    let count = section.u32(0)? as usize;
    if count > MOST {
        return bad(section.base, format!("{} lists {count} {name}; expected at most {MOST}", section.what));
    }
    (0..count).map(|index| section.piece(ENTRIES + index * size, size, name)).collect()
}

pub(super) fn memories(section: Bytes<'_>) -> Result<Vec<Memory>, XclbinError> {
    let memory = |entry: Bytes<'_>| {
        Ok(Memory {
            tag: entry.text(24, 16)?,
            kilobytes: entry.u64(8)?,
            base: entry.u64(16)?,
            used: entry.slice(1, 1)? != [0],
        })
    };
    entries(section, 40, "memories")?.into_iter().map(memory).collect()
}

pub(super) fn instances(section: Bytes<'_>) -> Result<Vec<Instance>, XclbinError> {
    let instance = |entry: Bytes<'_>| {
        if !entry.slice(16, 64)?.contains(&0) {
            return bad(entry.base + 16, "IP_LAYOUT has a name without an end");
        }
        Ok(Instance { name: entry.text(16, 64)?, kind: entry.u32(0)?, properties: entry.u32(4)? })
    };
    entries(section, 80, "instances")?.into_iter().map(instance).collect()
}
