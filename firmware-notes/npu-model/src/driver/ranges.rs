//! Ranges of an address window, best fit (`drm_mm.c`, `DRM_MM_INSERT_BEST`).

use std::collections::BTreeMap;

/// A window of addresses and what is taken of it.
#[derive(Debug)]
pub(super) struct Ranges {
    base: u64,
    size: u64,
    taken: BTreeMap<u64, u64>,
}

impl Ranges {
    /// An empty window.
    pub(super) fn new(base: u64, size: u64) -> Self {
        Self { base, size, taken: BTreeMap::new() }
    }

    /// Takes `len` addresses, aligned, from the smallest hole that has them; `None` when there is none.
    pub(super) fn alloc(&mut self, len: u64, align: u64) -> Option<u64> {
        let mut best: Option<(u64, u64)> = None;
        let mut from = self.base;
        let window_end = self.base + self.size;
        for (start, taken) in self.taken.iter().map(|(&start, &len)| (start, len)).chain([(window_end, 0)]) {
            let at = from.checked_next_multiple_of(align)?;
            if at.checked_add(len).is_some_and(|end| end <= start) && best.is_none_or(|(hole, _)| start - from < hole) {
                best = Some((start - from, at));
            }
            from = start + taken;
        }
        let (_, at) = best?;
        self.taken.insert(at, len);
        Some(at)
    }

    /// Gives a range back.
    pub(super) fn free(&mut self, start: u64) {
        self.taken.remove(&start);
    }

    /// The taken range that holds an address: (start, length).
    pub(super) fn containing(&self, addr: u64) -> Option<(u64, u64)> {
        let (&start, &len) = self.taken.range(..=addr).next_back()?;
        (addr - start < len).then_some((start, len))
    }

    /// Addresses taken in all.
    pub(super) fn used(&self) -> u64 {
        self.taken.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::Ranges;

    #[test]
    fn the_smallest_hole_that_fits_is_taken() {
        let mut ranges = Ranges::new(0x1000, 0x10000);
        let a = ranges.alloc(0x4000, 0x1000).unwrap();
        let b = ranges.alloc(0x1000, 0x1000).unwrap();
        let c = ranges.alloc(0x2000, 0x1000).unwrap();
        let d = ranges.alloc(0x1000, 0x1000).unwrap();
        assert_eq!([a, b, c, d], [0x1000, 0x5000, 0x6000, 0x8000]);
        ranges.free(a);
        ranges.free(c);
        assert_eq!(ranges.alloc(0x1800, 0x1000), Some(0x6000), "the 8 KiB hole is tighter than the 16 KiB one");
        assert_eq!(ranges.alloc(0x3000, 0x1000), Some(0x1000));
        assert_eq!(ranges.alloc(0x10000, 0x1000), None);
        assert_eq!(ranges.containing(0x67ff), Some((0x6000, 0x1800)));
        assert_eq!(ranges.containing(0x7800), None);
    }

    #[test]
    fn alignment_costs_the_hole_its_beginning() {
        let mut ranges = Ranges::new(0, 0x20000);
        assert_eq!(ranges.alloc(0x1000, 0x8000), Some(0));
        assert_eq!(ranges.alloc(0x1000, 0x8000), Some(0x8000));
        assert_eq!(ranges.alloc(0x10001, 0x8000), None);
        assert_eq!(ranges.used(), 0x2000);
    }
}
