//! Buffer objects: memory that the process and the NPU both see.

use crate::abi::{BoType, HEAP_MAX, INVALID_ADDR};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::ioctl;
use bytemuck::{AnyBitPattern, Pod};
use rustix::fd::OwnedFd;
use std::ops::{Bound, RangeBounds};
use std::ptr::NonNull;
use std::sync::Arc;

/// What a [`Bo`] is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BoKind {
    /// Weights, inputs and outputs: pages of its own.
    Share,
    /// A command packet: as [`BoKind::Share`], accounted apart.
    Cmd,
    /// Instruction streams and PDIs: a piece of the device heap, in multiples of 32 KiB of its addresses.
    Dev,
}

impl BoKind {
    fn r#type(self) -> BoType {
        match self {
            BoKind::Share => BoType::Share,
            BoKind::Cmd => BoType::Cmd,
            BoKind::Dev => BoType::Dev,
        }
    }
}

/// A GEM handle that closes itself.
#[derive(Debug)]
struct Gem {
    handle: u32,
    device: Arc<Device>,
}

impl Drop for Gem {
    fn drop(&mut self) {
        if let Some(door) = self.device.client().door_to_close() {
            let _ = ioctl::gem_close(door, self.handle);
        }
    }
}

/// A mapping of a BO that unmaps itself; the driver waits for commands that use it.
#[derive(Debug)]
struct Mapping {
    ptr: NonNull<u8>,
    len: usize,
    device: Arc<Device>,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if let Some(door) = self.device.client().door_to_close() {
            // SAFETY: one whole mapping; the only references into it borrow from the BO that is being dropped.
            unsafe { door.unmap(self.ptr, self.len) };
        }
    }
}

/// A buffer object: one handle, one mapping, one device address, for life.
///
/// **Cache.** NPU DMA is not coherent with CPU caches. After writing, [`Bo::flush`] what was written before a command
/// reads it; before reading what a command wrote, [`Bo::flush`] that. A new SHARE BO is zero, and written back once.
///
/// **Who may touch it when.** To the language the memory is the owner's: reading borrows the BO, writing borrows it
/// mutably. A command that is in flight is outside the language, like another process with the same file mapped: the
/// types do not stop the owner from looking at bytes that a command is about to write, and what is seen then is either.
/// Wait for the command first.
#[derive(Debug)]
pub struct Bo {
    // Drop order: unmap before the handle closes (a mapping's addresses are known to the device by that handle).
    _mapping: Option<Mapping>,
    gem: Gem,
    ptr: NonNull<u8>,
    size: usize,
    address: u64,
    kind: BoKind,
}

// SAFETY: the memory is the BO's own and is reached only through borrows of it.
unsafe impl Send for Bo {}
// SAFETY: as above; shared borrows only read.
unsafe impl Sync for Bo {}

impl Bo {
    /// Makes a BO of `size` bytes, zeroed if it is not a DEV BO, and maps it. A DEV BO makes the heap grow when it has
    /// no room.
    ///
    /// # Errors
    /// [`Error::Size`], [`Error::HeapFull`], [`Error::Ioctl`], [`Error::Map`].
    pub fn new(device: &Arc<Device>, kind: BoKind, size: usize) -> Result<Bo> {
        let bo = Bo::unflushed(device, kind, size)?;
        if kind == BoKind::Share {
            // The kernel's zeroes may still be in the cache, and would overwrite what the device writes.
            bo.flush(..)?;
        }
        Ok(bo)
    }

    /// Makes a SHARE BO of zeroes and writes nothing back: for one that is about to be written whole. Whoever does so
    /// flushes all of it before a command reads it.
    ///
    /// # Errors
    /// As of [`Bo::new`].
    pub fn unwritten(device: &Arc<Device>, size: usize) -> Result<Bo> {
        Bo::unflushed(device, BoKind::Share, size)
    }

    /// Makes a BO, lets `fill` write it and writes it back once: for weights, streams and PDIs. The bytes that `fill`
    /// is given are zero if it is not a DEV BO.
    ///
    /// # Errors
    /// As of [`Bo::new`], and those of `fill`.
    pub fn filled<E: From<Error>>(
        device: &Arc<Device>,
        kind: BoKind,
        size: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<Bo, E> {
        let mut bo = Bo::unflushed(device, kind, size)?;
        fill(bo.bytes_mut())?;
        bo.flush(..)?;
        Ok(bo)
    }

    /// Makes a BO that holds `contents`, written back.
    ///
    /// # Errors
    /// As of [`Bo::new`].
    pub fn with_contents(device: &Arc<Device>, kind: BoKind, contents: &[u8]) -> Result<Bo> {
        Bo::filled(device, kind, contents.len(), |bytes| {
            bytes.copy_from_slice(contents);
            Ok::<(), Error>(())
        })
    }

    fn unflushed(device: &Arc<Device>, kind: BoKind, size: usize) -> Result<Bo> {
        let (what, limit) = match kind {
            BoKind::Share => ("SHARE BO", isize::MAX as u64),
            BoKind::Cmd => ("CMD BO", isize::MAX as u64),
            BoKind::Dev => ("DEV BO", HEAP_MAX),
        };
        let bytes = size as u64;
        if bytes == 0 || bytes > limit {
            return Err(Error::Size { what, bytes, limit });
        }
        let door = device.door()?;
        let create = || ioctl::create_bo(door, kind.r#type(), bytes);
        let handle = if kind == BoKind::Dev { device.heap().with_room(bytes, create)? } else { create()? };
        let gem = Gem { handle, device: Arc::clone(device) };
        let info = ioctl::get_bo_info(door, handle)?;
        if kind == BoKind::Dev {
            let ptr = device.heap().host(info.xdna_addr, size).ok_or_else(|| Error::Implausible {
                what: format!("a DEV BO of {size} bytes at {:#x}, outside its heap", info.xdna_addr),
            })?;
            return Ok(Bo { _mapping: None, gem, ptr, size, address: info.xdna_addr, kind });
        }
        // SAFETY: no fixed address.
        let ptr = unsafe { door.map(None, size, info.map_offset) }.map_err(|errno| Error::Map {
            what,
            bytes: size,
            errno,
        })?;
        let mapping = Mapping { ptr, len: size, device: Arc::clone(device) };
        // With an address space of the device's own, the address was fixed at creation. Where the device shares the
        // process' address space, it is the mapping's, known from now on.
        let address = match info.xdna_addr {
            INVALID_ADDR => match ioctl::get_bo_info(door, handle)?.xdna_addr {
                INVALID_ADDR => ptr.as_ptr().expose_provenance() as u64,
                address => address,
            },
            address => address,
        };
        Ok(Bo { _mapping: Some(mapping), gem, ptr, size, address, kind })
    }

    /// The GEM handle, for [`HwCtx::submit`](crate::HwCtx::submit).
    #[must_use]
    pub fn handle(&self) -> u32 {
        self.gem.handle
    }

    /// The address of the first byte that goes into packets.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// What it is for.
    #[must_use]
    pub fn kind(&self) -> BoKind {
        self.kind
    }

    /// The device that it is on.
    #[must_use]
    pub fn device(&self) -> &Arc<Device> {
        &self.gem.device
    }

    /// The first byte; valid for [`Bo::size`] bytes as long as the BO is.
    #[must_use]
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    /// The bytes. [`Bo::flush`] first what a command wrote.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is that long and lives as long as the BO; nobody writes while it is borrowed, but for
        // commands in flight, as the type's documentation says.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.size) }
    }

    /// The bytes, to write. [`Bo::flush`] afterwards what a command is to read.
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.size) }
    }

    /// The BO as elements of `T`, as many as fit. BOs start on page boundaries.
    #[must_use]
    pub fn slice<T: AnyBitPattern>(&self) -> &[T] {
        let whole = whole_elements::<T>(self.size);
        bytemuck::cast_slice(&self.bytes()[..whole])
    }

    /// The BO as elements of `T`, to write, as many as fit. BOs start on page boundaries.
    #[must_use]
    pub fn slice_mut<T: Pod>(&mut self) -> &mut [T] {
        let whole = whole_elements::<T>(self.size);
        bytemuck::cast_slice_mut(&mut self.bytes_mut()[..whole])
    }

    /// Writes the cache lines of a range of bytes back to memory and drops them from the cache: after the CPU has
    /// written, before the CPU reads.
    ///
    /// # Errors
    /// [`Error::Range`], [`Error::Forked`].
    pub fn flush(&self, range: impl RangeBounds<usize>) -> Result<()> {
        let (start, end) = self.resolve(range)?;
        // SAFETY: inside the mapping.
        unsafe { self.device().door()?.flush(self.ptr.add(start), end - start) };
        Ok(())
    }

    /// The BO as a dma-buf.
    ///
    /// # Errors
    /// [`Error::Ioctl`]: DEV BOs cannot be exported.
    pub fn export(&self) -> Result<OwnedFd> {
        Ok(ioctl::prime_handle_to_fd(self.device().door()?, self.handle())?)
    }

    fn resolve(&self, range: impl RangeBounds<usize>) -> Result<(usize, usize)> {
        let start = match range.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&last) => last.saturating_add(1),
            Bound::Excluded(&end) => end,
            Bound::Unbounded => self.size,
        };
        if start > end || end > self.size {
            return Err(Error::Range { start, end, size: self.size });
        }
        Ok((start, end))
    }
}

/// The part of `size` bytes that whole elements fill.
fn whole_elements<T>(size: usize) -> usize {
    size - size.checked_rem(size_of::<T>()).unwrap_or(0)
}
