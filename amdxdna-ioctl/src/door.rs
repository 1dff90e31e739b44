//! The door: what a driver for an NPU has to offer, and no more.

use std::fmt::Debug;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

/// The errno that an ioctl came back with.
pub type Errno = rustix::io::Errno;

/// Opens a [`Door`] at a device node.
pub trait Opener: Debug + Send + Sync {
    /// Opens the node, read and write, close-on-exec.
    ///
    /// # Errors
    /// The errno of `open(2)`.
    fn open(&self, node: &Path) -> Result<Arc<dyn Door>, Errno>;
}

/// One open file of the driver: a client with its own handles, heap and contexts.
///
/// Dropping the last reference closes the file, with everything that the driver does at close.
pub trait Door: Debug + Send + Sync {
    /// Issues `ioctl(fd, request, argument)`; `argument` holds exactly the bytes that the request word sizes and is
    /// written back, on failure too, as the DRM core does. `EINTR` is reported, not retried.
    ///
    /// # Safety
    /// Pointers inside the argument must be valid for what the request lets the driver do with them, until it returns.
    ///
    /// # Errors
    /// The errno of the ioctl.
    unsafe fn ioctl(&self, request: u32, argument: &mut [u8]) -> Result<(), Errno>;

    /// Maps `len` bytes at the file offset `offset` (from `GET_BO_INFO`), shared, readable and writable; at exactly
    /// `at` (replacing what is mapped there) where given. Never locked into memory.
    ///
    /// # Safety
    /// `at`, where given, must be a range of an address-space reservation that the caller owns.
    ///
    /// # Errors
    /// The errno of `mmap(2)`.
    unsafe fn map(&self, at: Option<NonNull<u8>>, len: usize, offset: u64) -> Result<NonNull<u8>, Errno>;

    /// Unmaps what [`Door::map`] returned.
    ///
    /// # Safety
    /// The range must be one whole mapping of this door and nothing may refer to it any more.
    unsafe fn unmap(&self, ptr: NonNull<u8>, len: usize);

    /// Writes dirty cache lines of the range back to memory and drops them from the CPU's caches, so that the device
    /// sees what the CPU wrote and the CPU will see what the device writes.
    ///
    /// # Safety
    /// The range must lie in a live mapping of this door.
    unsafe fn flush(&self, ptr: NonNull<u8>, len: usize);
}
