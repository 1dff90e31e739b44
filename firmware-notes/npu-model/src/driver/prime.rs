//! Sharing of buffers by file descriptor (`drm_prime.c`, `amdxdna_gem.c`). A memfd, the buffer's own, stands for the
//! dma-buf.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use amdxdna_ioctl::Errno;
use amdxdna_ioctl::abi::BoType;
use amdxdna_ioctl::abi::drm::{PrimeFlags, PrimeHandle};
use rustix::io::{FdFlags, fcntl_setfd};

use super::bo::Bo;
use super::syncobj::inode;
use super::{Client, locked};
use crate::config::AddressMode;
use crate::front::{Memory, dup_user, give_fd};

impl Client {
    pub(super) fn prime_handle_to_fd(&self, a: &mut PrimeHandle) -> Result<(), Errno> {
        let flags = PrimeFlags::from_bits(a.flags).ok_or(Errno::INVAL)?;
        let bo = self.bo(a.handle).ok_or(Errno::NOENT)?;
        let memory = bo.memory.as_ref().filter(|_| bo.kind != BoType::Dev);
        let fd = match memory.and_then(|memory| memory.file()) {
            Some(file) => rustix::io::fcntl_dupfd_cloexec(file, 0)?,
            None if memory.is_some() && self.device.store.is_some() => self.stand_in(&bo)?,
            None => return Err(Errno::OPNOTSUPP),
        };
        if !flags.contains(PrimeFlags::CLOEXEC) {
            fcntl_setfd(&fd, FdFlags::empty())?;
        }
        let mut shared = self.device.shared();
        shared.dma_bufs.retain(|_, bo| bo.strong_count() > 0);
        shared.dma_bufs.insert(inode(&fd)?, Arc::downgrade(&bo));
        a.fd = give_fd(fd)?;
        Ok(())
    }

    /// A file that stands for a buffer in the store: of its size, without its bytes. One buffer has one, for good.
    fn stand_in(&self, bo: &Arc<Bo>) -> Result<OwnedFd, Errno> {
        let mut shared = self.device.shared();
        let known = shared.stand_ins.iter().find(|(_, known)| Arc::ptr_eq(known, bo));
        if let Some((file, _)) = known {
            return rustix::io::fcntl_dupfd_cloexec(file, 0);
        }
        let file = rustix::fs::memfd_create("dmabuf", rustix::fs::MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&file, bo.size)?;
        let fd = rustix::io::fcntl_dupfd_cloexec(&file, 0)?;
        shared.stand_ins.push((file, Arc::clone(bo)));
        Ok(fd)
    }

    pub(super) fn prime_fd_to_handle(&self, a: &mut PrimeHandle) -> Result<(), Errno> {
        let file = dup_user(a.fd)?;
        if self.device.store.is_some() {
            let bo = self.import(a.fd, BoType::Share)?;
            let handle =
                locked(&self.buffers).iter().find(|(_, known)| Arc::ptr_eq(known, &bo)).map(|(handle, _)| handle);
            a.handle = handle.unwrap_or_else(|| self.publish(bo));
            return Ok(());
        }
        let key = inode(&file)?;
        // One buffer has one handle in a client, whether it is the client's own or was imported before.
        let same = |bo: &Bo| bo.memory.as_ref().and_then(|memory| memory.file()).is_some_and(|f| inode(f) == Ok(key));
        if let Some((handle, _)) = locked(&self.buffers).iter().find(|(_, bo)| same(bo)) {
            a.handle = handle;
            return Ok(());
        }
        let bo = self.import(a.fd, BoType::Share)?;
        self.device.shared().dma_bufs.entry(key).or_insert_with(|| Arc::downgrade(&bo));
        a.handle = self.publish(bo);
        Ok(())
    }

    /// The buffer behind a file: this device's own, or a new one over the file's pages.
    pub(super) fn import(&self, fd: i32, kind: BoType) -> Result<Arc<Bo>, Errno> {
        let file = dup_user(fd)?;
        let known = self.device.shared().dma_bufs.get(&inode(&file)?).and_then(Weak::upgrade);
        if self.device.store.is_some() {
            let known = known.ok_or(Errno::INVAL)?;
            // Two addresses of one buffer are not modelled there.
            let shared = self.device.config.mode == AddressMode::Sva || self.owns(&known);
            return if shared { Ok(known) } else { Err(Errno::OPNOTSUPP) };
        }
        if let Some(known) = known
            && (self.device.config.mode == AddressMode::Sva || self.owns(&known))
        {
            return Ok(known);
        }
        // Only a memfd can stand for a dma-buf.
        rustix::fs::fcntl_get_seals(&file).map_err(|_| Errno::INVAL)?;
        let memory = Memory::import(file, self.device.config.coherent)?;
        let offset = self.map_offset(memory.len() as u64);
        self.wrap(kind, memory, offset, true)
    }

    fn owns(&self, bo: &Arc<Bo>) -> bool {
        locked(&self.buffers).iter().any(|(_, known)| Arc::ptr_eq(known, bo))
    }
}
