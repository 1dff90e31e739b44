//! The model's side of the door.

use std::ptr::NonNull;
use std::sync::Arc;

use amdxdna_ioctl::{Door, Errno};

use super::Client;
use crate::front;

/// One open file of the model; closed when dropped.
#[derive(Debug)]
pub(super) struct ModelDoor {
    client: Arc<Client>,
}

impl ModelDoor {
    pub(super) fn new(client: Arc<Client>) -> Self {
        Self { client }
    }
}

impl Drop for ModelDoor {
    fn drop(&mut self) {
        self.client.close();
    }
}

impl Door for ModelDoor {
    unsafe fn ioctl(&self, request: u32, argument: &mut [u8]) -> Result<(), Errno> {
        // The caller's promise about the argument's pointers is what `front` builds on.
        self.client.ioctl(request, argument)
    }

    unsafe fn map(&self, at: Option<NonNull<u8>>, len: usize, offset: u64) -> Result<NonNull<u8>, Errno> {
        let bo = self.client.mappable(len, offset)?;
        let memory = bo.memory.as_ref().ok_or(Errno::INVAL)?;
        // SAFETY: the caller owns the range at `at`.
        let ptr = unsafe { memory.map(at, len)? };
        self.client.note_mapping(ptr, len, Arc::clone(&bo));
        Ok(ptr)
    }

    unsafe fn unmap(&self, ptr: NonNull<u8>, len: usize) {
        self.client.forget_mapping(ptr);
        // SAFETY: one whole mapping that nothing refers to, as the caller promises.
        unsafe { front::unmap(ptr, len) };
    }

    unsafe fn flush(&self, ptr: NonNull<u8>, len: usize) {
        self.client.flush(ptr, len);
    }
}
