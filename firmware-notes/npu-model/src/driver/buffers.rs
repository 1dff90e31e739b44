//! CREATE_BO, GET_BO_INFO and SYNC_BO (`amdxdna_gem.c`, `amdxdna_ubuf.c`).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use amdxdna_ioctl::Errno;
use amdxdna_ioctl::abi::{self, BoType, HEAP_MAX, INVALID_ADDR};

use super::bo::{Bo, Fixed, Parts, Pinned};
use super::{Client, locked, user_pages};
use crate::config::{AddressMode, DriverVersion};
use crate::front::{Memory, PAGE, Region, read_user};

/// Largest SHARE buffer: more than any machine with these parts has.
const SHARE_MAX: u64 = 1 << 38;
/// Most entries of a user-pointer table that the model reads.
const MOST_ENTRIES: u32 = 1 << 16;

impl Client {
    pub(super) fn create_bo(&self, a: &mut abi::CreateBo) -> Result<(), Errno> {
        if a.flags != 0 {
            return Err(Errno::INVAL);
        }
        let kind = BoType::try_from(a.r#type).map_err(|_| Errno::INVAL)?;
        let bo = match kind {
            BoType::Share | BoType::Cmd if a.vaddr != 0 => self.create_from_table(kind, a.vaddr)?,
            BoType::Share | BoType::Cmd => self.create_shared(kind, a.size)?,
            BoType::DevHeap => self.create_heap(a.size)?,
            BoType::Dev => self.create_dev(a.size)?,
        };
        a.handle = self.publish(bo);
        Ok(())
    }

    /// Gives a buffer a handle.
    pub(super) fn publish(&self, bo: Arc<Bo>) -> u32 {
        locked(&self.buffers).insert(bo)
    }

    /// Whether there is memory for `bytes` more.
    fn check_memory(&self, bytes: u64) -> Result<(), Errno> {
        let live = self.device.stats.update(|counts| counts.bytes_live);
        match locked(&self.device.faults).memory_limit {
            Some(limit) if live.saturating_add(bytes) > limit => Err(Errno::NOMEM),
            _ => Ok(()),
        }
    }

    /// Takes a range of mmap offsets.
    pub(super) fn map_offset(&self, size: u64) -> u64 {
        let mut shared = self.device.shared();
        let offset = shared.next_offset;
        shared.next_offset += size;
        offset
    }

    fn register_offset(&self, bo: &Arc<Bo>) {
        if bo.map_offset != INVALID_ADDR {
            let mut shared = self.device.shared();
            shared.by_offset.retain(|_, bo| bo.strong_count() > 0);
            shared.by_offset.insert(bo.map_offset, Arc::downgrade(bo));
        }
    }

    /// An address for the device, where the driver chooses it.
    fn fixed(&self, size: u64, align: u64, memory: Option<&Arc<Memory>>) -> Result<Option<Fixed>, Errno> {
        let failed = match self.device.config.mode {
            AddressMode::Sva => return Ok(None),
            AddressMode::Iova => Errno::NOSPC,
            AddressMode::Carveout(_) => Errno::NOMEM,
        };
        let addr = locked(&self.device.addresses).alloc(size, align).ok_or(failed)?;
        let space = memory.map(|memory| {
            self.space.attach(addr, size, Arc::clone(memory));
            Arc::clone(&self.space)
        });
        Ok(Some(Fixed { addr, space, ranges: Arc::clone(&self.device.addresses) }))
    }

    /// A SHARE or CMD buffer of `memory`.
    pub(super) fn wrap(&self, kind: BoType, memory: Memory, map_offset: u64, imported: bool) -> Result<Arc<Bo>, Errno> {
        let size = (memory.len() as u64).next_multiple_of(PAGE);
        let memory = Arc::new(memory);
        let bo = Bo::new(
            Parts {
                kind,
                size,
                map_offset,
                imported,
                heap_addr: None,
                pinned: None,
                fixed: self.fixed(size, PAGE, Some(&memory))?,
                range: None,
                memory: Some(memory),
            },
            &self.device.stats,
        );
        self.register_offset(&bo);
        Ok(bo)
    }

    fn create_shared(&self, kind: BoType, size: u64) -> Result<Arc<Bo>, Errno> {
        if size == 0 {
            // No room of nothing in the table of mmap offsets; a carve-out refuses earlier.
            return Err(if matches!(self.device.config.mode, AddressMode::Carveout(_)) {
                Errno::INVAL
            } else {
                Errno::NOSPC
            });
        }
        let size = size.checked_next_multiple_of(PAGE).filter(|&size| size <= SHARE_MAX).ok_or(Errno::NOMEM)?;
        self.check_memory(size)?;
        let offset = self.map_offset(size);
        self.wrap(kind, self.device.pages(offset, size as usize, None)?, offset, false)
    }

    fn create_heap(&self, size: u64) -> Result<Arc<Bo>, Errno> {
        let offset = self.map_offset(size);
        let pages = |window: &Arc<Region>, at| self.device.pages(offset, size as usize, Some((window, at)));
        let bo = self.space.add_heap(size, pages, |memory, heap_addr| {
            self.check_memory(size)?;
            Ok(Bo::new(
                Parts {
                    kind: BoType::DevHeap,
                    size,
                    memory: Some(memory),
                    map_offset: offset,
                    imported: false,
                    heap_addr: Some(heap_addr),
                    pinned: None,
                    // The array sees a heap in its window alone, so it is not attached anywhere else.
                    fixed: self.fixed(size, abi::HEAP_CHUNK, None)?,
                    range: None,
                },
                &self.device.stats,
            ))
        })?;
        self.register_offset(&bo);
        Ok(bo)
    }

    fn create_dev(&self, size: u64) -> Result<Arc<Bo>, Errno> {
        if size == 0 || size > HEAP_MAX {
            return Err(Errno::INVAL);
        }
        let size = size.next_multiple_of(PAGE);
        let range = self.space.alloc_dev(size)?;
        let bo = Bo::new(
            Parts {
                kind: BoType::Dev,
                size,
                memory: None,
                map_offset: INVALID_ADDR,
                imported: false,
                heap_addr: None,
                pinned: None,
                fixed: None,
                range: Some(range),
            },
            &self.device.stats,
        );
        let contexts: Vec<_> = locked(&self.contexts).iter().map(|(_, context)| Arc::clone(context)).collect();
        for context in contexts {
            context.announce_heap()?;
        }
        Ok(bo)
    }

    /// SHARE or CMD with a table: a dma-buf to import, or the client's own pages.
    fn create_from_table(&self, kind: BoType, table: u64) -> Result<Arc<Bo>, Errno> {
        let mut head = abi::VaTbl::default();
        read_user(table, bytemuck::bytes_of_mut(&mut head)).map_err(|_| Errno::INVAL)?;
        if head.num_entries == 0 {
            return self.import(head.dmabuf_fd, kind);
        }
        if head.num_entries > MOST_ENTRIES {
            return Err(Errno::NOMEM);
        }
        let mut entries = vec![abi::VaEntry::default(); head.num_entries as usize];
        read_user(table + size_of::<abi::VaTbl>() as u64, bytemuck::cast_slice_mut(&mut entries))?;
        let newer = self.device.config.driver == DriverVersion::Aug2026;
        let mut size = 0u64;
        let mut contiguous = true;
        let mut next = entries.first().map_or(0, |entry| entry.vaddr);
        for entry in &entries {
            if !entry.vaddr.is_multiple_of(PAGE) || !entry.len.is_multiple_of(PAGE) || (newer && entry.len == 0) {
                return Err(Errno::INVAL);
            }
            contiguous &= entry.vaddr == next;
            next = entry.vaddr.checked_add(entry.len).ok_or(Errno::INVAL)?;
            size = size.checked_add(entry.len).ok_or(Errno::INVAL)?;
        }
        // The older driver takes scattered entries and the device then sees the first range alone; the model has no
        // way to show the CPU one buffer of several ranges, in any mode.
        if !contiguous || size == 0 {
            return Err(Errno::INVAL);
        }
        if matches!(self.device.config.mode, AddressMode::Carveout(_)) && size > PAGE {
            return Err(Errno::INVAL);
        }
        self.pin(kind, entries[0].vaddr, size)
    }

    fn pin(&self, kind: BoType, addr: u64, size: u64) -> Result<Arc<Bo>, Errno> {
        self.device.own_files()?;
        let limit = self.device.config.memlock;
        let privileged = locked(&self.device.faults).privileged;
        if !privileged && limit == 0 {
            return Err(Errno::PERM);
        }
        let already = self.device.pinned.fetch_add(size, Ordering::Relaxed);
        let lock = PinnedBytes { device: Arc::clone(&self.device), bytes: size };
        if !privileged && already.saturating_add(size) > limit {
            return Err(Errno::NOMEM);
        }
        // Read-only pages are pinned as such by the newer driver; the model's array never knows the difference.
        if !user_pages::mapped(addr, size, self.device.config.driver != DriverVersion::Aug2026) {
            return Err(Errno::FAULT);
        }
        let memory = Arc::new(Memory::pinned(addr, size as usize, self.device.config.coherent)?);
        let sva = self.device.config.mode == AddressMode::Sva;
        if sva {
            self.space.attach(addr, size, Arc::clone(&memory));
        }
        Ok(Bo::new(
            Parts {
                kind,
                size,
                map_offset: INVALID_ADDR,
                imported: false,
                heap_addr: None,
                pinned: Some(Pinned { addr, space: sva.then(|| Arc::clone(&self.space)), _lock: lock }),
                fixed: self.fixed(size, PAGE, Some(&memory))?,
                range: None,
                memory: Some(memory),
            },
            &self.device.stats,
        ))
    }

    pub(super) fn get_bo_info(&self, a: &mut abi::GetBoInfo) -> Result<(), Errno> {
        if a.ext != 0 || a.ext_flags != 0 || a.pad != 0 {
            return Err(Errno::INVAL);
        }
        let bo = self.bo(a.handle).ok_or(Errno::NOENT)?;
        a.map_offset = bo.map_offset;
        a.xdna_addr = bo.device_address();
        // Whatever the device's address is, the driver remembers where the client mapped a buffer.
        a.vaddr = match bo.dev_address() {
            Some(start) => self.space.heap_vaddr(start),
            None => bo.first_mapping(),
        };
        Ok(())
    }

    pub(super) fn sync_bo(&self, a: &abi::SyncBo) -> Result<(), Errno> {
        let bo = self.bo(a.handle).ok_or(Errno::NOENT)?;
        let carveout = matches!(self.device.config.mode, AddressMode::Carveout(_));
        if (bo.imported && self.device.config.driver == DriverVersion::L7_3_4) || carveout {
            return Err(Errno::OPNOTSUPP);
        }
        // Of a DEV buffer the driver flushes what of the range lies in the heap, and asks no more.
        if bo.kind != BoType::Dev && (a.offset >= bo.size || a.offset.checked_add(a.size).is_none()) {
            return Err(Errno::INVAL);
        }
        let len = a.size.min(bo.size.saturating_sub(a.offset));
        match (&bo.memory, bo.dev_address()) {
            (Some(memory), _) => memory.flush(a.offset as usize, len as usize),
            (None, Some(start)) => {
                for piece in self.space.pieces(start.saturating_add(a.offset), len) {
                    piece.memory.flush(piece.offset, piece.len);
                }
            }
            (None, None) => {}
        }
        if a.direction == abi::sync_direction::FROM_DEVICE && bo.debug_of().is_none() {
            return Err(Errno::INVAL);
        }
        Ok(())
    }
}

/// User pages that count against RLIMIT_MEMLOCK until dropped.
#[derive(Debug)]
pub(super) struct PinnedBytes {
    device: Arc<super::Device>,
    bytes: u64,
}

impl Drop for PinnedBytes {
    fn drop(&mut self) {
        self.device.pinned.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
