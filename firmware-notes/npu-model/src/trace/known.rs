//! What a trace remembers of one open file, so that an address of a packet can be told as a place in a buffer.

use std::collections::{BTreeMap, HashMap};

use amdxdna_ioctl::abi::{BoType, HEAP_BASE, HEAP_MAX, INVALID_ADDR};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::hex;
use crate::front::read_user;

/// Longest instruction stream that is hashed.
const LONGEST_STREAM: usize = 16 << 20;

/// A buffer.
#[derive(Clone, Copy, Debug)]
struct Buffer {
    kind: u32,
    size: u64,
    map_offset: u64,
    device_address: u64,
}

/// The buffers of an open file, and where they are.
#[derive(Debug, Default)]
pub(super) struct Known {
    buffers: BTreeMap<u32, Buffer>,
    /// Address and length by mmap offset.
    mapped: HashMap<u64, (u64, u64)>,
    /// Hashes by address and length, until a DEV buffer comes or goes.
    streams: HashMap<(u64, u32), String>,
}

impl Known {
    pub(super) fn created(&mut self, handle: u32, kind: u32, size: u64) {
        self.streams.clear();
        let size = size.next_multiple_of(crate::front::PAGE);
        let buffer = Buffer { kind, size, map_offset: INVALID_ADDR, device_address: INVALID_ADDR };
        self.buffers.insert(handle, buffer);
    }

    pub(super) fn described(&mut self, handle: u32, map_offset: u64, device_address: u64) {
        if let Some(buffer) = self.buffers.get_mut(&handle) {
            buffer.map_offset = map_offset;
            buffer.device_address = device_address;
        }
    }

    pub(super) fn closed(&mut self, handle: u32) {
        let heap = BoType::DevHeap as u32;
        // A heap chunk lives on without a handle. Nothing else does that matters here.
        if self.buffers.get(&handle).is_some_and(|buffer| buffer.kind != heap) {
            self.streams.clear();
            self.buffers.remove(&handle);
        }
    }

    pub(super) fn mapped(&mut self, offset: u64, addr: u64, len: u64) {
        self.mapped.insert(offset, (addr, len));
    }

    pub(super) fn unmapped(&mut self, addr: u64) {
        self.mapped.retain(|_, (at, _)| *at != addr);
    }

    /// The mmap offset of a mapping.
    pub(super) fn offset_at(&self, addr: u64) -> Option<u64> {
        self.mapped.iter().find(|(_, (at, _))| *at == addr).map(|(&offset, _)| offset)
    }

    /// A buffer's address in the client.
    fn address(&self, buffer: &Buffer) -> Option<u64> {
        if buffer.kind == BoType::Dev as u32 {
            return self.heap_address(buffer.device_address);
        }
        self.mapped.get(&buffer.map_offset).map(|&(addr, _)| addr)
    }

    /// Where the client sees an address of the heap window.
    fn heap_address(&self, device: u64) -> Option<u64> {
        self.buffers.values().filter(|buffer| buffer.kind == BoType::DevHeap as u32).find_map(|heap| {
            let into = device.checked_sub(heap.device_address).filter(|&into| into < heap.size)?;
            self.mapped.get(&heap.map_offset).map(|&(addr, _)| addr + into)
        })
    }

    /// The handle of the buffer that a device address lies in, and how far in.
    fn find(&self, device: u64) -> Option<(u32, u64)> {
        let in_window = (HEAP_BASE..HEAP_BASE + HEAP_MAX).contains(&device);
        self.buffers.iter().find_map(|(&handle, buffer)| {
            let start = match BoType::try_from(buffer.kind) {
                Ok(BoType::DevHeap) => return None,
                Ok(BoType::Dev) => buffer.device_address,
                _ if in_window => return None,
                _ => match self.mapped.get(&buffer.map_offset) {
                    // Without shared addresses the driver names one, and it is no user address.
                    Some(&(addr, _)) if buffer.device_address == INVALID_ADDR => addr,
                    None if buffer.device_address == INVALID_ADDR => return None,
                    _ => buffer.device_address,
                },
            };
            device.checked_sub(start).filter(|&into| into < buffer.size).map(|into| (handle, into))
        })
    }

    /// An address of the device, told as a place in a buffer where it is one.
    pub(super) fn place(&self, device: u64) -> Value {
        match self.find(device) {
            Some((handle, offset)) => json!({ "addr": hex(device), "bo": handle, "offset": offset }),
            None => json!({ "addr": hex(device) }),
        }
    }

    /// The first words of a buffer.
    pub(super) fn words(&self, handle: u32, count: usize) -> Option<Vec<u32>> {
        let buffer = self.buffers.get(&handle)?;
        let mut words = vec![0u32; count.min(buffer.size as usize / 4)];
        read_user(self.address(buffer)?, bytemuck::cast_slice_mut(&mut words)).ok()?;
        Some(words)
    }

    /// SHA-256 of an instruction stream.
    pub(super) fn stream(&mut self, device: u64, bytes: u32) -> Option<String> {
        if let Some(hash) = self.streams.get(&(device, bytes)) {
            return Some(hash.clone());
        }
        let (handle, into) = self.find(device)?;
        let left = self.buffers.get(&handle)?.size - into;
        if u64::from(bytes) > left || bytes as usize > LONGEST_STREAM {
            return None;
        }
        let addr = match self.heap_address(device) {
            Some(addr) => addr,
            None => self.address(self.buffers.get(&handle)?)? + into,
        };
        let mut stream = vec![0; bytes as usize];
        read_user(addr, &mut stream).ok()?;
        let hash: String = Sha256::digest(&stream).iter().map(|byte| format!("{byte:02x}")).collect();
        self.streams.insert((device, bytes), hash.clone());
        Some(hash)
    }
}
