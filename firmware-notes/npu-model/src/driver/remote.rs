//! A client in another process: it maps the file that holds all buffers for itself, and the model learns of its
//! mappings afterwards.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use amdxdna_ioctl::abi::INVALID_ADDR;
use amdxdna_ioctl::{Door, Errno};

use super::bo::Bo;
use super::{Client, ClientMapping, Device, locked};
use crate::front::Memory;

/// A piece of the store's file in the client's address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Address in the client.
    pub(crate) addr: u64,
    /// Bytes.
    pub(crate) len: u64,
    /// Position in the file, which is an mmap offset.
    pub(crate) offset: u64,
}

/// What came of looking at a client's mappings.
#[derive(Debug)]
pub(crate) struct Changes {
    /// False where a mapping is gone whose buffer is still in use: real munmap waits for that, so the model keeps the
    /// mapping until it is asked again.
    pub(crate) settled: bool,
    /// Mappings of buffers that were not known before.
    pub(crate) new: Vec<Piece>,
}

/// One open file of a client in another process; closed when dropped. Ioctls have to be issued
/// [on behalf of](crate::front::on_behalf_of) the process.
#[derive(Debug)]
pub(crate) struct Remote {
    client: Arc<Client>,
}

impl Device {
    /// Opens the device for another process.
    ///
    /// # Errors
    /// As [`Device::open`].
    pub(crate) fn open_remote(self: &Arc<Self>, pid: u32) -> Result<Arc<Remote>, Errno> {
        self.check_open()?;
        Ok(Arc::new(Remote { client: self.new_client(i64::from(pid)) }))
    }

    /// The file that holds all buffers.
    pub(crate) fn store_file(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.store.as_ref().map(crate::front::Store::file)
    }
}

impl Remote {
    /// Closes the file: contexts end, and whoever waits for them comes back. What the process still has mapped, as of
    /// the last [`Remote::set_mappings`], keeps its pages for as long as what is returned lives.
    pub(crate) fn close(&self) -> Vec<Arc<Memory>> {
        let mapped = locked(&self.client.mappings).values().filter_map(|mapping| mapping.bo.memory.clone()).collect();
        self.client.close();
        mapped
    }

    /// Whether mmap of that many bytes at that offset is right, as the DRM core checks it.
    ///
    /// # Errors
    /// `EINVAL`, `EACCES`.
    pub(crate) fn check_map(&self, len: u64, offset: u64) -> Result<(), Errno> {
        self.client.mappable(usize::try_from(len).map_err(|_| Errno::INVAL)?, offset).map(drop)
    }

    /// Whether the model knows of a mapping of the buffer, or of the one that holds it.
    pub(crate) fn is_mapped(&self, handle: u32) -> bool {
        self.client.bo(handle).is_some_and(|bo| bo.first_mapping() != INVALID_ADDR || bo.dev_address().is_some())
    }

    /// Takes over what the process has mapped now.
    pub(crate) fn set_mappings(&self, pieces: &[Piece]) -> Changes {
        let client = &self.client;
        let now = self.by_buffer(pieces);
        let is = |known: &BTreeMap<usize, ClientMapping>, at: usize, len: usize, bo: &Arc<Bo>| {
            known.get(&at).is_some_and(|old| old.len == len && Arc::ptr_eq(&old.bo, bo))
        };
        // New ones first: a buffer that is mapped elsewhere by now has not been without a mapping.
        let mut new = Vec::new();
        for (&at, (len, bo)) in &now {
            if !is(&locked(&client.mappings), at, *len, bo) {
                new.push(Piece { addr: at as u64, len: *len as u64, offset: bo.map_offset });
                client.note_mapping_at(at, *len, Arc::clone(bo));
            }
        }
        let mut known = locked(&client.mappings);
        let gone: Vec<usize> = known.keys().filter(|at| !now.contains_key(at)).copied().collect();
        let mut settled = true;
        for at in gone {
            if known.get(&at).is_some_and(|old| !old.bo.busy().is_empty()) {
                settled = false;
            } else if let Some(old) = known.remove(&at) {
                client.space.detach(at as u64);
                old.bo.unmapped();
            }
        }
        drop(known);
        Changes { settled, new }
    }

    /// Cuts what the process has mapped, which the kernel merges where it can, into mappings of buffers. The start of
    /// a buffer counts as mapped even if that part of it is not any more.
    fn by_buffer(&self, pieces: &[Piece]) -> BTreeMap<usize, (usize, Arc<Bo>)> {
        let shared = self.client.device.shared();
        let mut out: BTreeMap<usize, (usize, Arc<Bo>)> = BTreeMap::new();
        for piece in pieces {
            let end = piece.offset.saturating_add(piece.len);
            for (&start, bo) in shared.by_offset.range(..end).rev() {
                let Some(bo) = Weak::upgrade(bo) else { continue };
                if start + bo.size <= piece.offset {
                    break;
                }
                let Some(at) = (piece.addr + start).checked_sub(piece.offset) else { continue };
                let len = (end - start).min(bo.size) as usize;
                let entry = out.entry(at as usize).or_insert((len, bo));
                entry.0 = entry.0.max(len);
            }
        }
        out
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.client.close();
    }
}

impl Door for Remote {
    unsafe fn ioctl(&self, request: u32, argument: &mut [u8]) -> Result<(), Errno> {
        // The pointers are another process's and are read as such.
        self.client.ioctl(request, argument)
    }

    unsafe fn map(&self, _at: Option<NonNull<u8>>, _len: usize, _offset: u64) -> Result<NonNull<u8>, Errno> {
        Err(Errno::OPNOTSUPP)
    }

    unsafe fn unmap(&self, _ptr: NonNull<u8>, _len: usize) {}

    unsafe fn flush(&self, _ptr: NonNull<u8>, _len: usize) {}
}
