//! The guest's memory as the device sees it: ranges of bus addresses that QEMU mapped, each a piece of a shared file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::ptr::NonNull;
use std::sync::{PoisonError, RwLock};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A file of guest memory, mapped once and whole.
#[derive(Debug)]
struct Backing {
    identity: (u64, u64),
    base: NonNull<u8>,
    len: usize,
}

impl Drop for Backing {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `GuestMemory::backing`, with this length, and every pointer into it was
        // handed out under the lock that guards the `GuestMemory` being dropped.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Bus address ranges and the host memory behind them. Ranges may be added while others are in use; files stay as long as
/// the value does.
#[derive(Debug, Default)]
pub(super) struct GuestMemory(RwLock<Ranges>);

#[derive(Debug, Default)]
struct Ranges {
    files: Vec<Backing>,
    /// Start -> (length, host address). Ranges never overlap: QEMU unmaps before it maps anew.
    ranges: BTreeMap<u64, (u64, NonNull<u8>)>,
}

// SAFETY: the pointers are into shared mappings that live as long as the value; access through them is raw copying,
// as a device's DMA is.
unsafe impl Send for Ranges {}
// SAFETY: as above; `&self` methods only look up addresses.
unsafe impl Sync for Ranges {}

impl Ranges {
    fn backing(&mut self, file: &File) -> io::Result<&Backing> {
        let meta = file.metadata()?;
        let identity = (meta.dev(), meta.ino());
        if let Some(i) = self.files.iter().position(|b| b.identity == identity) {
            return Ok(&self.files[i]);
        }
        let len = usize::try_from(meta.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        // SAFETY: a new shared mapping at an address of the kernel's choice.
        let base =
            unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0)? };
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        self.files.push(Backing { identity, base, len });
        // The element was pushed on the line above.
        self.files.last().ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))
    }
}

impl GuestMemory {
    /// Adds a range. It need not wait for DMA that is under way, and must not: QEMU waits for the answer, and gives up.
    pub(super) fn map(&self, file: &File, offset: u64, address: u64, size: u64) -> io::Result<()> {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let backing = all.backing(file)?;
        let end = offset.checked_add(size).filter(|&e| e <= backing.len as u64);
        if end.is_none() || size == 0 {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        // SAFETY: offset + size was just checked against the mapping's length.
        let host = unsafe { backing.base.add(offset as usize) };
        all.ranges.insert(address, (size, host));
        Ok(())
    }

    /// Takes ranges away, which nobody uses then.
    pub(super) fn unmap(&mut self, address: u64, size: u64) {
        let ranges = &mut self.0.get_mut().unwrap_or_else(PoisonError::into_inner).ranges;
        let end = address.saturating_add(size);
        let gone: Vec<u64> = ranges.range(address..end).map(|(&start, _)| start).collect();
        for start in gone {
            ranges.remove(&start);
        }
    }

    /// Host memory at a bus address and how many bytes are contiguous there.
    pub(super) fn at(&self, address: u64) -> Option<(NonNull<u8>, u64)> {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let (&start, &(size, host)) = all.ranges.range(..=address).next_back()?;
        let inside = address - start;
        // SAFETY: `inside` is less than the range's size, which `map` checked against the mapping.
        (inside < size).then(|| (unsafe { host.add(inside as usize) }, size - inside))
    }

    /// Copies guest memory out; `None` where a part is not mapped.
    pub(super) fn read(&self, address: u64, len: usize) -> Option<Vec<u8>> {
        let mut out = Vec::with_capacity(len.min(1 << 20));
        while out.len() < len {
            let (host, there) = self.at(address.checked_add(out.len() as u64)?)?;
            let n = (len - out.len()).min(usize::try_from(there).unwrap_or(usize::MAX));
            // SAFETY: `at` gave `there` readable bytes and n is no more; the guest may write meanwhile, so the bytes
            // are copied before anything looks at them.
            out.extend_from_slice(unsafe { std::slice::from_raw_parts(host.as_ptr(), n) });
        }
        Some(out)
    }

    /// Copies into guest memory; `false` where a part is not mapped.
    pub(super) fn write(&self, address: u64, bytes: &[u8]) -> bool {
        let mut done = 0;
        while done < bytes.len() {
            let Some((host, there)) = address.checked_add(done as u64).and_then(|a| self.at(a)) else { return false };
            let n = (bytes.len() - done).min(usize::try_from(there).unwrap_or(usize::MAX));
            // SAFETY: `at` gave `there` writable bytes and n is no more; source and guest memory do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(bytes[done..].as_ptr(), host.as_ptr(), n) };
            done += n;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Seek, Write};

    fn file() -> File {
        let fd = rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let mut f = File::from(fd);
        f.write_all(&(0..=255_u8).cycle().take(8192).collect::<Vec<_>>()).unwrap();
        f.rewind().unwrap();
        f
    }

    #[test]
    fn scattered_pages_read_as_one_range() {
        let f = file();
        let mut m = GuestMemory::default();
        m.map(&f, 4096, 0x1000, 4096).unwrap();
        m.map(&f, 0, 0x2000, 4096).unwrap();
        let got = m.read(0x1ffe, 4).unwrap();
        assert_eq!(got, [254, 255, 0, 1]);
        assert!(m.write(0x1fff, &[9, 8]));
        assert_eq!(m.read(0x1ffe, 4).unwrap(), [254, 9, 8, 1]);
        m.unmap(0x2000, 4096);
        assert_eq!(m.read(0x1ffe, 4), None);
        assert!(!m.write(0x1fff, &[0, 0]));
    }

    /// QEMU gave up on a mapping that waited for the end of a long command.
    #[test]
    fn memory_is_added_while_other_memory_is_in_use() {
        let f = file();
        let guest = RwLock::new(GuestMemory::default());
        guest.read().unwrap().map(&f, 0, 0x1000, 4096).unwrap();
        let command = guest.read().unwrap();
        let used = command.at(0x1000);
        std::thread::scope(|scope| {
            scope.spawn(|| guest.read().unwrap().map(&f, 4096, 0x2000, 4096).unwrap()).join().unwrap();
        });
        assert!(used.is_some() && command.at(0x2000).is_some());
    }

    #[test]
    fn a_range_past_the_file_is_refused() {
        let f = file();
        let m = GuestMemory::default();
        assert!(m.map(&f, 4096, 0, 8192).is_err());
        assert!(m.map(&f, u64::MAX, 0, 2).is_err());
        assert_eq!(m.at(0), None);
    }
}
