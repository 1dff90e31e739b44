//! The device heap: the memory that DEV BOs and the driver's own command buffers are pieces of.

use crate::abi::{BoType, HEAP_BASE, HEAP_CHUNK, HEAP_MAX, INVALID_ADDR};
use crate::device::Client;
use crate::door::Errno;
use crate::error::{Error, IoctlError, Result};
use crate::ioctl;
use rustix::mm::{MapFlags, ProtFlags};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const CHUNK: usize = HEAP_CHUNK as usize;
const MAX_CHUNKS: usize = (HEAP_MAX / HEAP_CHUNK) as usize;

/// A range of addresses that nothing else of the process will be mapped into.
#[derive(Debug)]
struct Reservation {
    start: NonNull<u8>,
    len: usize,
    /// The first multiple of [`HEAP_CHUNK`] inside, from which [`HEAP_MAX`] bytes fit.
    base: NonNull<u8>,
}

impl Reservation {
    fn new() -> Result<Self> {
        let len = CHUNK * (MAX_CHUNKS + 1);
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: fresh addresses without access to anything.
        let start = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::empty(), flags) };
        let start = start.map_err(|errno| Error::Map { what: "the device heap's address range", bytes: len, errno })?;
        let misaligned = start.addr() % CHUNK;
        let base = start.cast::<u8>().wrapping_add(if misaligned == 0 { 0 } else { CHUNK - misaligned });
        match (NonNull::new(start.cast()), NonNull::new(base)) {
            (Some(start), Some(base)) => Ok(Reservation { start, len, base }),
            _ => Err(Error::Map { what: "the device heap's address range", bytes: len, errno: Errno::NOMEM }),
        }
    }

    /// Where the n-th chunk goes.
    fn chunk(&self, n: usize) -> NonNull<u8> {
        // SAFETY: at most MAX_CHUNKS chunks from `base` lie in the reservation.
        unsafe { self.base.add(n * CHUNK) }
    }

    /// Gives the addresses back, all but those of the first `chunks` chunks, which are gone already (and may belong to
    /// someone else by now).
    fn release(&self, chunks: usize) {
        let start = self.start.as_ptr();
        let end = start.wrapping_add(self.len);
        let mapped = self.base.as_ptr();
        let after = mapped.wrapping_add(chunks * CHUNK);
        for (from, to) in [(start, mapped), (after, end)] {
            if from < to {
                // SAFETY: still the reservation's own addresses, that nothing refers to.
                let _ = unsafe { rustix::mm::munmap(from.cast(), to.addr() - from.addr()) };
            }
        }
    }
}

/// GEM handles of the chunks.
#[derive(Debug, Default)]
struct Chunks {
    /// In the order of their addresses.
    mapped: Vec<u32>,
    /// One that could not be mapped. The driver keeps a chunk until the file closes and has given it the next device
    /// addresses, so this one has to be mapped before there can be another.
    unmapped: Option<u32>,
}

/// The device heap of one client: 64 MiB chunks, mapped back to back from a 64 MiB boundary, because the firmware takes
/// no other, and added as they are needed, up to 512 MiB (NPU1: 64 MiB).
#[derive(Debug)]
pub struct Heap {
    chunks: Mutex<Chunks>,
    reservation: Reservation,
    client: Arc<Client>,
}

// SAFETY: the pointers are to memory that the heap owns and does not access; the chunks are behind a lock.
unsafe impl Send for Heap {}
// SAFETY: as above.
unsafe impl Sync for Heap {}

impl Heap {
    pub(crate) fn new(client: Arc<Client>) -> Result<Heap> {
        let heap = Heap { chunks: Mutex::default(), reservation: Reservation::new()?, client };
        heap.grow(&mut heap.lock(), HEAP_CHUNK)?;
        Ok(heap)
    }

    fn lock(&self) -> MutexGuard<'_, Chunks> {
        // A panic while the lock was held leaves a list that is shorter than it could be, not a wrong one.
        self.chunks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds one chunk right behind the last.
    fn grow(&self, chunks: &mut Chunks, bytes: u64) -> Result<()> {
        let full = Error::HeapFull { chunks: chunks.mapped.len(), bytes };
        if chunks.mapped.len() == MAX_CHUNKS {
            return Err(full);
        }
        let door = self.client.door()?;
        let handle = match chunks.unmapped.take() {
            Some(handle) => handle,
            None => match ioctl::create_bo(door, BoType::DevHeap, HEAP_CHUNK) {
                Err(error) if error.errno == Errno::NOSPC && !chunks.mapped.is_empty() => return Err(full),
                other => other?,
            },
        };
        let mapped = ioctl::get_bo_info(door, handle).map_err(Error::from).and_then(|info| {
            let at = self.reservation.chunk(chunks.mapped.len());
            // SAFETY: these addresses are the reservation's, and no chunk is there yet.
            unsafe { door.map(Some(at), CHUNK, info.map_offset) }.map_err(|errno| Error::Map {
                what: "a chunk of the device heap",
                bytes: CHUNK,
                errno,
            })
        });
        if let Err(error) = mapped {
            chunks.unmapped = Some(handle);
            return Err(error);
        }
        chunks.mapped.push(handle);
        Ok(())
    }

    /// Does something that takes device heap, with one chunk more each time the driver says that it needs one.
    pub(crate) fn with_room<T>(&self, bytes: u64, mut attempt: impl FnMut() -> Result<T, IoctlError>) -> Result<T> {
        loop {
            let seen = {
                let mut chunks = self.lock();
                // With an IOMMU domain the driver gives room in a chunk that nobody has mapped.
                if chunks.unmapped.is_some() {
                    self.grow(&mut chunks, bytes)?;
                }
                chunks.mapped.len()
            };
            match attempt() {
                Err(error) if error.errno == Errno::AGAIN => {
                    let mut chunks = self.lock();
                    // Unless another thread was faster: then there is room to try again as it is.
                    if chunks.mapped.len() == seen {
                        self.grow(&mut chunks, bytes)?;
                    }
                }
                other => return Ok(other?),
            }
        }
    }

    /// Where the process sees `len` bytes at `address` of the heap window; `None` if they are not all mapped.
    pub(crate) fn host(&self, address: u64, len: usize) -> Option<NonNull<u8>> {
        if address == INVALID_ADDR {
            return None;
        }
        let offset = usize::try_from(address.checked_sub(HEAP_BASE)?).ok()?;
        if offset.checked_add(len)? > self.chunks() * CHUNK {
            return None;
        }
        // SAFETY: inside the mapped chunks.
        Some(unsafe { self.reservation.base.add(offset) })
    }

    /// Chunks of 64 MiB that there are.
    #[must_use]
    pub fn chunks(&self) -> usize {
        self.lock().mapped.len()
    }

    /// Bytes of the heap.
    #[must_use]
    pub fn size(&self) -> usize {
        self.chunks() * CHUNK
    }

    /// Address of the first chunk in this process, a multiple of 64 MiB.
    #[must_use]
    pub fn base(&self) -> usize {
        self.reservation.base.addr().get()
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        let chunks = std::mem::take(&mut *self.lock());
        let Some(door) = self.client.door_to_close() else { return };
        // Unmap, then close: the driver looks at mappings when a BO goes.
        for n in 0..chunks.mapped.len() {
            // SAFETY: one whole chunk; every BO and context that used it is gone, since each holds the device.
            unsafe { door.unmap(self.reservation.chunk(n), CHUNK) };
        }
        self.reservation.release(chunks.mapped.len());
        for handle in chunks.mapped.into_iter().chain(chunks.unmapped) {
            let _ = ioctl::gem_close(door, handle);
        }
    }
}
