//! What the driver sees when it pins pages of the process (`amdxdna_ubuf.c`): whether they are there, and writable.

/// Whether every page of `[addr, addr + len)` is mapped for reading, and for writing where that is asked for. Where the
/// kernel does not list the process's mappings, the caller's word is taken.
pub(super) fn mapped(addr: u64, len: u64, write: bool) -> bool {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return true };
    covered(&maps, addr, len, if write { "rw" } else { "r" })
}

/// The same, of a text as in `/proc/self/maps`, whose lines are in the order of addresses.
fn covered(maps: &str, addr: u64, len: u64, wanted: &str) -> bool {
    let Some(end) = addr.checked_add(len) else { return false };
    let mut next = addr;
    for line in maps.lines() {
        let mut words = line.split_ascii_whitespace();
        let (Some(range), Some(access)) = (words.next(), words.next()) else { continue };
        let Some((from, to)) = range.split_once('-') else { continue };
        let (Ok(from), Ok(to)) = (u64::from_str_radix(from, 16), u64::from_str_radix(to, 16)) else { continue };
        if (from..to).contains(&next) && access.starts_with(wanted) {
            next = to;
        }
    }
    next >= end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_must_be_mapped_and_writable_without_a_gap() {
        let maps =
            "1000-3000 rw-p 0 00:00 0\n3000-4000 rw-s 0 00:00 0 /x\n4000-5000 r--p 0 00:00 0\n6000-7000 rw-p 0\n";
        let writable = |addr, len| covered(maps, addr, len, "rw");
        assert!(writable(0x1000, 0x3000) && writable(0x2000, 0x1000));
        assert!(!writable(0x3000, 0x2000), "the last page is read-only");
        assert!(covered(maps, 0x3000, 0x2000, "r"));
        assert!(!writable(0x5000, 0x1000) && !writable(0x6000, 0x2000));
        assert!(!writable(u64::MAX - 0xfff, 0x2000));
    }

    #[test]
    fn a_variable_is_writable_and_page_zero_is_not() {
        let mut here = 0u8;
        let addr = (&raw mut here).addr() as u64 & !0xfff;
        assert!(mapped(addr, 4096, true));
        assert!(!mapped(0x1000, 4096, false));
    }
}
