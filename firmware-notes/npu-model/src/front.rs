//! Where the model touches memory that it does not own as Rust values: the pages of buffer objects, which the client
//! maps a second time, and the pointers inside ioctl arguments.
//!
//! No reference to such memory is ever formed. Everything is copied through raw pointers, and bounds are checked here.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use amdxdna_ioctl::Errno;
use rustix::fs::{FallocateFlags, MemfdFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::array::{DeviceMemory, MemoryFault, copy_in, copy_out};

mod user;

use user::check_user;
#[cfg(feature = "supervise")]
pub(crate) use user::{Process, on_behalf_of};
pub(crate) use user::{dup_user, give_fd, read_user, write_user};

/// Bytes of a CPU cache line.
pub(crate) const LINE: usize = 64;
/// Bytes of a page.
pub(crate) const PAGE: u64 = 4096;
/// A reservation of address space, or a mapping; unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Region {
    ptr: NonNull<u8>,
    len: usize,
}

// SAFETY: a region is plain memory of the process; whoever reads or writes it does so through raw copies.
unsafe impl Send for Region {}
// SAFETY: as above; the region itself has no interior state.
unsafe impl Sync for Region {}

impl Region {
    /// Anonymous zeroes, allocated when touched.
    fn anonymous(len: usize) -> Result<Self, Errno> {
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let ptr = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        };
        // Large pages where the kernel has them: fewer faults to fill them, fewer misses to read them. As good without.
        // SAFETY: advice on the mapping that was just made; it changes no contents.
        let _ = unsafe { rustix::mm::madvise(ptr, len, rustix::mm::Advice::LinuxHugepage) };
        Ok(Self { ptr: NonNull::new(ptr.cast()).ok_or(Errno::NOMEM)?, len })
    }

    /// Address space without access.
    pub(crate) fn reserve(len: usize) -> Result<Self, Errno> {
        // SAFETY: as above.
        let ptr = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        };
        Ok(Self { ptr: NonNull::new(ptr.cast()).ok_or(Errno::NOMEM)?, len })
    }

    /// A shared mapping of a file, from `start` on.
    fn shared(fd: BorrowedFd<'_>, start: u64, len: usize) -> Result<Self, Errno> {
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let ptr = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                fd,
                start,
            )?
        };
        Ok(Self { ptr: NonNull::new(ptr.cast()).ok_or(Errno::NOMEM)?, len })
    }

    /// Puts a shared mapping of a file, from a position on, or anonymous zeroes, inside this reservation.
    fn place(&self, offset: usize, len: usize, file: Option<(BorrowedFd<'_>, u64)>) -> Result<NonNull<u8>, Errno> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(Errno::INVAL);
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the range was just checked to lie in this reservation, which is ours; nothing refers to its pages
        // before the buffer that is placed here is made.
        let ptr = unsafe {
            let at = self.ptr.as_ptr().add(offset).cast();
            match file {
                Some((fd, start)) => rustix::mm::mmap(at, len, access, MapFlags::SHARED | MapFlags::FIXED, fd, start)?,
                None => rustix::mm::mmap_anonymous(
                    at,
                    len,
                    access,
                    MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE,
                )?,
            }
        };
        NonNull::new(ptr.cast()).ok_or(Errno::NOMEM)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the range is this region's own and the last owner is gone.
        let _ = unsafe { rustix::mm::munmap(self.ptr.as_ptr().cast(), self.len) };
    }
}

/// The device's copy of a buffer, where memory is not coherent.
///
/// A flushed line is written to the device if the CPU changed it since its last flush, or if it was never flushed: the
/// zeroes of a new buffer are dirty lines too. Otherwise the CPU receives the device's line.
#[derive(Debug)]
struct Split {
    /// What the CPU saw when it last flushed.
    shadow: Region,
    /// One bit a line: flushed before.
    flushed: Mutex<Vec<u64>>,
}

/// One file that holds the pages of all buffers of a device, each at its mmap offset: a client in another process maps
/// it for itself.
#[derive(Debug)]
pub(crate) struct Store {
    file: Arc<OwnedFd>,
}

/// Bytes of a store's file, none of which cost anything before they are written: more than offsets will ever count.
const STORE: u64 = 1 << 50;

impl Store {
    /// A new file.
    #[cfg(feature = "supervise")]
    pub(crate) fn new(name: &str) -> Result<Self, Errno> {
        let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&file, STORE)?;
        Ok(Self { file: Arc::new(file) })
    }

    /// The file.
    #[cfg(feature = "supervise")]
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The range of a [`Store`] that a buffer's pages are; given back when dropped.
#[derive(Debug)]
struct Stored {
    file: Arc<OwnedFd>,
    start: u64,
    len: usize,
}

impl Drop for Stored {
    fn drop(&mut self) {
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // Pages that stay would be a leak and nothing worse: offsets are not used twice.
        let _ = rustix::fs::fallocate(&*self.file, how, self.start, self.len as u64);
    }
}

/// The pages of one buffer object.
#[derive(Debug)]
pub(crate) struct Memory {
    len: usize,
    /// A file of its own.
    file: Option<OwnedFd>,
    /// What the CPU sees.
    cpu: NonNull<u8>,
    /// What the device sees; the same as `cpu` where memory is coherent.
    device: NonNull<u8>,
    split: Option<Split>,
    _owned: Vec<Region>,
    _window: Option<Arc<Region>>,
    /// Another process may have the device's copy mapped.
    shared: AtomicBool,
    /// After the mappings of it.
    _stored: Option<Stored>,
}

// SAFETY: the pointers are to mappings that live as long as the value, and all access is by bounds-checked raw copies.
unsafe impl Send for Memory {}
// SAFETY: as above; `flushed` has its own lock.
unsafe impl Sync for Memory {}

impl Memory {
    /// New zeroed pages. With `window` the device's copy lies at that offset of the reservation.
    pub(crate) fn new(len: usize, window: Option<(&Arc<Region>, usize)>, coherent: bool) -> Result<Self, Errno> {
        let file = rustix::fs::memfd_create("amdxdna-bo", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&file, len as u64)?;
        let mut memory = Self::of_file(file.as_fd(), 0, len, window, coherent)?;
        memory.file = Some(file);
        Ok(memory)
    }

    /// New zeroed pages, in `store` from the position `start` on; nobody may have used the range before.
    pub(crate) fn stored(
        store: &Store,
        start: u64,
        len: usize,
        window: Option<(&Arc<Region>, usize)>,
    ) -> Result<Self, Errno> {
        if start.checked_add(len as u64).is_none_or(|end| end > STORE) {
            return Err(Errno::NOMEM);
        }
        let stored = Stored { file: Arc::clone(&store.file), start, len };
        let mut memory = Self::of_file(store.file.as_fd(), start, len, window, true)?;
        memory._stored = Some(stored);
        memory.shared = AtomicBool::new(true);
        Ok(memory)
    }

    /// The pages of a file, an imported buffer.
    pub(crate) fn import(file: OwnedFd, coherent: bool) -> Result<Self, Errno> {
        let len = usize::try_from(rustix::fs::fstat(&file)?.st_size).map_err(|_| Errno::INVAL)?;
        if len == 0 {
            return Err(Errno::INVAL);
        }
        // The rest of the last page is there too.
        let len = len.checked_next_multiple_of(PAGE as usize).ok_or(Errno::INVAL)?;
        let mut memory = Self::of_file(file.as_fd(), 0, len, None, coherent)?;
        memory.file = Some(file);
        memory.shared = AtomicBool::new(coherent);
        Ok(memory)
    }

    fn of_file(
        file: BorrowedFd<'_>,
        start: u64,
        len: usize,
        window: Option<(&Arc<Region>, usize)>,
        coherent: bool,
    ) -> Result<Self, Errno> {
        let mut owned = Vec::new();
        let mut own = |region: Region| {
            let ptr = region.ptr;
            owned.push(region);
            ptr
        };
        let (cpu, device, split) = if coherent {
            let ptr = match window {
                Some((window, offset)) => window.place(offset, len, Some((file, start)))?,
                None => own(Region::shared(file, start, len)?),
            };
            (ptr, ptr, None)
        } else {
            let cpu = own(Region::shared(file, start, len)?);
            let device = match window {
                Some((window, offset)) => window.place(offset, len, None)?,
                None => own(Region::anonymous(len)?),
            };
            (cpu, device, Some(Split::new(len)?))
        };
        Ok(Self {
            len,
            file: None,
            cpu,
            device,
            split,
            _owned: owned,
            _window: window.map(|(window, _)| Arc::clone(window)),
            shared: AtomicBool::new(false),
            _stored: None,
        })
    }

    /// Memory of the client's own, pinned.
    ///
    /// The caller of CREATE_BO promises by passing the table that the pages stay mapped while the buffer lives; a real
    /// driver would keep the pages and let the mapping go.
    pub(crate) fn pinned(addr: u64, len: usize, coherent: bool) -> Result<Self, Errno> {
        check_user(addr, len)?;
        let cpu = NonNull::new(std::ptr::with_exposed_provenance_mut(addr as usize)).ok_or(Errno::FAULT)?;
        let mut owned = Vec::new();
        let (device, split) = if coherent {
            (cpu, None)
        } else {
            let region = Region::anonymous(len)?;
            let ptr = region.ptr;
            owned.push(region);
            (ptr, Some(Split::new(len)?))
        };
        Ok(Self {
            len,
            file: None,
            cpu,
            device,
            split,
            _owned: owned,
            _window: None,
            shared: AtomicBool::new(false),
            _stored: None,
        })
    }

    /// Bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether another process may have the device's copy mapped.
    pub(crate) fn is_shared(&self) -> bool {
        self.shared.load(Ordering::Relaxed)
    }

    /// The file behind the pages, to be given away.
    pub(crate) fn file(&self) -> Option<BorrowedFd<'_>> {
        if self.split.is_none() {
            self.shared.store(true, Ordering::Relaxed);
        }
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// Where the device's copy of `[offset, offset + len)` is.
    pub(crate) fn device(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
        self.check(offset, len)?;
        // SAFETY: in bounds of the mapping, just checked.
        Some(unsafe { self.device.add(offset) })
    }

    /// Reads as the kernel does, through the CPU's caches. Bytes past the end read as zero.
    pub(crate) fn read(&self, offset: usize, out: &mut [u8]) {
        out.fill(0);
        let n = out.len().min(self.len.saturating_sub(offset));
        // SAFETY: `n` bytes at `offset` are in bounds of the mapping; `out` is not part of it.
        unsafe { std::ptr::copy_nonoverlapping(self.cpu.as_ptr().add(offset.min(self.len)), out.as_mut_ptr(), n) };
    }

    /// Writes as the kernel does, through the CPU's caches. Bytes past the end are dropped.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        let n = bytes.len().min(self.len.saturating_sub(offset));
        // SAFETY: as in `read`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.cpu.as_ptr().add(offset.min(self.len)), n) };
    }

    /// Writes and flushes, as the kernel does with buffers of its own.
    pub(crate) fn write_flushed(&self, offset: usize, bytes: &[u8]) {
        self.write(offset, bytes);
        self.flush(offset, bytes.len());
    }

    /// Fills `[offset, end)` with a byte, through the CPU's caches.
    pub(crate) fn fill_from(&self, offset: usize, byte: u8) {
        let offset = offset.min(self.len);
        // SAFETY: the rest of the mapping is in bounds.
        unsafe { std::ptr::write_bytes(self.cpu.as_ptr().add(offset), byte, self.len - offset) };
    }

    /// Stores a word so that a thread which reads it with acquire ordering sees everything written before.
    pub(crate) fn store_u32(&self, offset: usize, value: u32) {
        if offset.is_multiple_of(4) && self.check(offset, 4).is_some() {
            // SAFETY: in bounds, aligned (mappings are page-aligned), and only accessed atomically or by copies of the
            // client's, whose race is its own.
            unsafe {
                let word: *mut u32 =
                    std::ptr::with_exposed_provenance_mut(self.cpu.as_ptr().add(offset).expose_provenance());
                AtomicU32::from_ptr(word).store(value, Ordering::Release);
            }
        }
    }

    /// Exchanges the lines that touch `[offset, offset + len)` with the device's copy.
    pub(crate) fn flush(&self, offset: usize, len: usize) {
        let Some(split) = &self.split else { return };
        if len == 0 || offset >= self.len {
            return;
        }
        let first = offset / LINE;
        let last = offset.saturating_add(len).min(self.len).div_ceil(LINE);
        let mut flushed = split.flushed.lock().unwrap_or_else(PoisonError::into_inner);
        for line in first..last {
            let at = line * LINE;
            let n = LINE.min(self.len - at);
            let (mut cpu, mut shadow) = ([0u8; LINE], [0u8; LINE]);
            let seen = flushed[line / 64] >> (line % 64) & 1 == 1;
            flushed[line / 64] |= 1 << (line % 64);
            // SAFETY: `n` bytes at `at` are in bounds of the three mappings, which are all `len` bytes long; they and
            // the local arrays do not overlap.
            unsafe {
                let (c, d, s) =
                    (self.cpu.as_ptr().add(at), self.device.as_ptr().add(at), split.shadow.ptr.as_ptr().add(at));
                std::ptr::copy_nonoverlapping(c, cpu.as_mut_ptr(), n);
                std::ptr::copy_nonoverlapping(s, shadow.as_mut_ptr(), n);
                if seen && cpu == shadow {
                    std::ptr::copy_nonoverlapping(d, c, n);
                    std::ptr::copy_nonoverlapping(d, s, n);
                } else {
                    std::ptr::copy_nonoverlapping(c, d, n);
                    std::ptr::copy_nonoverlapping(c, s, n);
                }
            }
        }
    }

    /// Maps the pages for the client, at `at` where given.
    ///
    /// # Safety
    /// `at` must be address space of the caller's.
    pub(crate) unsafe fn map(&self, at: Option<NonNull<u8>>, len: usize) -> Result<NonNull<u8>, Errno> {
        let file = self.file.as_ref().ok_or(Errno::INVAL)?;
        let fixed = if at.is_some() { MapFlags::FIXED } else { MapFlags::empty() };
        // SAFETY: without `at` nothing is replaced, with it the caller owns the range.
        let ptr = unsafe {
            rustix::mm::mmap(
                at.map_or(std::ptr::null_mut(), |at| at.as_ptr().cast()),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | fixed,
                file,
                0,
            )?
        };
        NonNull::new(ptr.cast()).ok_or(Errno::NOMEM)
    }

    fn check(&self, offset: usize, len: usize) -> Option<()> {
        offset.checked_add(len).is_some_and(|end| end <= self.len).then_some(())
    }
}

impl Split {
    fn new(len: usize) -> Result<Self, Errno> {
        let words = len.div_ceil(LINE).div_ceil(64);
        Ok(Self { shadow: Region::anonymous(len)?, flushed: Mutex::new(vec![0; words]) })
    }
}

/// Unmaps a mapping of the client.
///
/// # Safety
/// The range must be one whole mapping that nothing refers to.
pub(crate) unsafe fn unmap(ptr: NonNull<u8>, len: usize) {
    // SAFETY: the caller's promise.
    let _ = unsafe { rustix::mm::munmap(ptr.as_ptr().cast(), len) };
}

/// Copies device memory.
///
/// # Errors
/// What [`DeviceMemory::resolve`] says.
pub(crate) fn read_device(memory: &dyn DeviceMemory, addr: u64, out: &mut [u8]) -> Result<(), MemoryFault> {
    let mut done = 0;
    while done < out.len() {
        let (at, left) = (addr.wrapping_add(done as u64), out.len() - done);
        let (ptr, n) = memory.resolve(at, left, false)?;
        let n = n.min(left);
        if n == 0 {
            return Err(MemoryFault { addr: at, len: left, write: false });
        }
        // SAFETY: `n` bytes at `ptr` are what `memory` just resolved, and it lives on.
        unsafe { copy_out(ptr, &mut out[done..done + n]) };
        done += n;
    }
    Ok(())
}

/// Writes device memory.
///
/// # Errors
/// What [`DeviceMemory::resolve`] says.
pub(crate) fn write_device(memory: &dyn DeviceMemory, addr: u64, bytes: &[u8]) -> Result<(), MemoryFault> {
    let mut done = 0;
    while done < bytes.len() {
        let (at, left) = (addr.wrapping_add(done as u64), bytes.len() - done);
        let (ptr, n) = memory.resolve(at, left, true)?;
        let n = n.min(left);
        if n == 0 {
            return Err(MemoryFault { addr: at, len: left, write: true });
        }
        // SAFETY: `n` bytes at `ptr` are what `memory` just resolved for writing, and it lives on.
        unsafe { copy_in(ptr, &bytes[done..done + n]) };
        done += n;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{LINE, Memory};

    /// Plays the device.
    fn device_write(memory: &Memory, offset: usize, byte: u8) {
        let ptr = memory.device(offset, 1).unwrap();
        // SAFETY: one byte in bounds, and nobody else is there.
        unsafe { ptr.write(byte) };
    }

    fn device_read(memory: &Memory, offset: usize) -> u8 {
        // SAFETY: as above.
        unsafe { memory.device(offset, 1).unwrap().read() }
    }

    fn cpu_read(memory: &Memory, offset: usize) -> u8 {
        let mut byte = [0];
        memory.read(offset, &mut byte);
        byte[0]
    }

    #[test]
    fn a_flush_carries_a_line_the_way_it_changed() {
        let memory = Memory::new(4096, None, false).unwrap();
        memory.flush(0, 4096);
        memory.write(0, &[1]);
        assert_eq!(device_read(&memory, 0), 0, "not flushed");
        memory.flush(0, 1);
        assert_eq!(device_read(&memory, 0), 1);
        device_write(&memory, 2, 9);
        assert_eq!(cpu_read(&memory, 2), 0, "stale");
        memory.flush(5, 1);
        assert_eq!((cpu_read(&memory, 0), cpu_read(&memory, 2)), (1, 9));
        device_write(&memory, LINE, 7);
        memory.write(LINE + 8, &[3]);
        memory.flush(LINE, 1);
        assert_eq!((device_read(&memory, LINE), cpu_read(&memory, LINE)), (0, 0), "a dirty line wins whole");
        assert_eq!(device_read(&memory, LINE + 8), 3);
    }

    #[test]
    fn the_zeroes_of_a_new_buffer_are_dirty() {
        let memory = Memory::new(4096, None, false).unwrap();
        device_write(&memory, 0, 5);
        memory.flush(0, 64);
        assert_eq!((cpu_read(&memory, 0), device_read(&memory, 0)), (0, 0), "the result is lost");
        device_write(&memory, 0, 6);
        memory.flush(0, 64);
        assert_eq!(cpu_read(&memory, 0), 6);
    }

    #[test]
    fn one_copy_needs_no_flush() {
        let memory = Memory::new(4096, None, true).unwrap();
        device_write(&memory, 17, 5);
        assert_eq!(cpu_read(&memory, 17), 5);
    }

    #[test]
    fn accesses_past_the_end_do_nothing() {
        let memory = Memory::new(4096, None, false).unwrap();
        memory.write(4090, &[1; 20]);
        let mut bytes = [9; 10];
        memory.read(4092, &mut bytes);
        assert_eq!(bytes, [1, 1, 1, 1, 0, 0, 0, 0, 0, 0]);
        memory.read(1 << 40, &mut bytes);
        memory.flush(1 << 40, 64);
        memory.flush(4000, usize::MAX);
        assert!(memory.device(4096, 1).is_none() && memory.device(usize::MAX, 2).is_none());
    }
}
