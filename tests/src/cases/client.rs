//! Raw calls through a door: a client that can ask for anything, and cleans up behind itself.
//!
//! The typed layer of `amdxdna-ioctl` cannot do what most cases do, which is the wrong thing. Every mapping is a
//! client's own and goes before its file is closed; no reference to mapped memory is ever formed.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use amdxdna_ioctl::abi::{self, drm, request};
use amdxdna_ioctl::{Door, Errno};
use bytemuck::{Pod, Zeroable};
use rustix::mm::{MapFlags, ProtFlags};

pub(super) const PAGE: usize = 4096;
pub(super) const SHARE: u32 = abi::BoType::Share as u32;
pub(super) const HEAP: u32 = abi::BoType::DevHeap as u32;
pub(super) const DEV: u32 = abi::BoType::Dev as u32;
pub(super) const CMD: u32 = abi::BoType::Cmd as u32;
/// Flags of a wait for a point of a timeline (`drm.h`).
pub(super) const WAIT_ALL: u32 = 1;
pub(super) const FOR_SUBMIT: u32 = 2;
pub(super) const AVAILABLE: u32 = 4;

/// A mapping, or a part of one. It must not be used after its client is gone or has unmapped it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Map {
    ptr: NonNull<u8>,
    pub(super) len: usize,
}

// SAFETY: a mapping is plain memory of the process, read and written by atomic words alone.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    pub(super) fn addr(&self) -> u64 {
        self.ptr.as_ptr().addr() as u64
    }

    /// A word; 0 past the end.
    pub(super) fn word(&self, index: usize) -> u32 {
        if index * 4 + 4 > self.len {
            return 0;
        }
        // SAFETY: in bounds, and aligned since mappings are of pages; the driver writes words atomically.
        unsafe { AtomicU32::from_ptr(self.ptr.as_ptr().add(index * 4).cast()).load(Ordering::Acquire) }
    }

    /// Writes a word; nothing past the end.
    pub(super) fn set_word(&self, index: usize, value: u32) {
        if index * 4 + 4 > self.len {
            return;
        }
        // SAFETY: as in `word`.
        unsafe { AtomicU32::from_ptr(self.ptr.as_ptr().add(index * 4).cast()).store(value, Ordering::Release) };
    }

    pub(super) fn set_words(&self, words: &[u32]) {
        for (i, &word) in words.iter().enumerate() {
            self.set_word(i, word);
        }
    }

    pub(super) fn set_bytes(&self, bytes: &[u8]) {
        for (i, word) in bytes.chunks(4).enumerate() {
            let mut four = [0; 4];
            four[..word.len()].copy_from_slice(word);
            self.set_word(i, u32::from_le_bytes(four));
        }
    }

    pub(super) fn words(&self, from: usize, n: usize) -> Vec<u32> {
        (from..from + n).map(|i| self.word(i)).collect()
    }

    /// The part of `len` bytes that begins at a byte, cut to what there is.
    pub(super) fn part(&self, offset: usize, len: usize) -> Map {
        let offset = offset.min(self.len);
        // SAFETY: in bounds, just made so.
        Map { ptr: unsafe { self.ptr.add(offset) }, len: len.min(self.len - offset) }
    }
}

/// Address space without access. What was mapped in it belongs to the mapping; the rest is given back when dropped.
#[derive(Debug)]
struct Reservation {
    ptr: NonNull<u8>,
    len: usize,
    /// Offsets and lengths of what was mapped in it.
    placed: Vec<(usize, usize)>,
}

// SAFETY: a range of addresses; nothing is read or written through it.
unsafe impl Send for Reservation {}

impl Reservation {
    /// Room for `len` bytes from a 64 MiB boundary on.
    fn new(len: usize) -> Result<Self, Errno> {
        let len = len + abi::HEAP_CHUNK as usize;
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let ptr = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        };
        Ok(Self { ptr: NonNull::new(ptr.cast()).ok_or(Errno::NOMEM)?, len, placed: Vec::new() })
    }

    /// The first 64 MiB boundary.
    fn start(&self) -> Place {
        let start = self.ptr.as_ptr().addr();
        let offset = start.next_multiple_of(abi::HEAP_CHUNK as usize) - start;
        // SAFETY: in bounds: there is a chunk more than what was asked for.
        Place { ptr: unsafe { self.ptr.add(offset) }, room: self.len - offset }
    }

    /// Gives a range to what was mapped there, if it is this reservation's.
    fn place(&mut self, map: Map) {
        let offset = map.ptr.as_ptr().addr().wrapping_sub(self.ptr.as_ptr().addr());
        if offset < self.len {
            self.placed.push((offset, map.len));
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // A mapping's range may be somebody else's by now.
        self.placed.sort_unstable();
        let mut from = 0;
        for &(offset, len) in self.placed.iter().chain([&(self.len, 0)]) {
            if from < offset {
                // SAFETY: a part of our own range where nothing has been mapped.
                let _ = unsafe { rustix::mm::munmap(self.ptr.as_ptr().add(from).cast(), offset - from) };
            }
            from = from.max(offset + len);
        }
    }
}

/// Where in a reservation a mapping goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    ptr: NonNull<u8>,
    room: usize,
}

impl Place {
    /// The place some bytes further on.
    pub(super) fn after(self, bytes: usize) -> Self {
        let bytes = bytes.min(self.room);
        // SAFETY: in bounds of the reservation, just made so.
        Self { ptr: unsafe { self.ptr.add(bytes) }, room: self.room - bytes }
    }
}

/// Pages of the process, for user-pointer buffers and for pointers that must be refused.
#[derive(Debug)]
pub(super) struct Pages {
    map: Map,
}

impl Pages {
    pub(super) fn new(len: usize, writable: bool) -> Result<Self, Errno> {
        let access = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let ptr = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, access, MapFlags::PRIVATE)? };
        Ok(Self { map: Map { ptr: NonNull::new(ptr.cast()).ok_or(Errno::NOMEM)?, len } })
    }

    /// The first pages of a file that can be mapped.
    pub(super) fn of_file(file: BorrowedFd<'_>, len: usize) -> Result<Self, Errno> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: as in `new`.
        let ptr = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, file, 0)? };
        Ok(Self { map: Map { ptr: NonNull::new(ptr.cast()).ok_or(Errno::NOMEM)?, len } })
    }

    /// The pages; writable ones alone may be written to.
    pub(super) fn map(&self) -> Map {
        self.map
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: our own range, made in `new`.
        let _ = unsafe { rustix::mm::munmap(self.map.ptr.as_ptr().cast(), self.map.len) };
    }
}

/// An open file, shared by whoever holds it. The last one to go unmaps and closes.
#[derive(Clone, Debug)]
pub(super) struct Client {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    door: Arc<dyn Door>,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    maps: Vec<Map>,
    reservations: Vec<Reservation>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        let open = std::mem::take(self.open.get_mut().unwrap_or_else(PoisonError::into_inner));
        for map in open.maps {
            // SAFETY: a whole mapping of this door; by the rule of `Map` nobody uses it any more.
            unsafe { self.door.unmap(map.ptr, map.len) };
        }
    }
}

/// Mappings that outlived their file.
#[derive(Debug)]
pub(super) struct Leftover {
    maps: Vec<Map>,
    _reservations: Vec<Reservation>,
}

impl Drop for Leftover {
    fn drop(&mut self) {
        for map in &self.maps {
            // SAFETY: whole mappings that were a closed client's; nobody uses them any more.
            let _ = unsafe { rustix::mm::munmap(map.ptr.as_ptr().cast(), map.len) };
        }
    }
}

impl Client {
    pub(super) fn new(door: Arc<dyn Door>) -> Self {
        Self { inner: Arc::new(Inner { door, open: Mutex::default() }) }
    }

    fn open(&self) -> std::sync::MutexGuard<'_, Open> {
        self.inner.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the file, if this is the last hold on it, and leaves its mappings in place.
    pub(super) fn close_file(self) -> Leftover {
        let open = std::mem::take(&mut *self.open());
        Leftover { maps: open.maps, _reservations: open.reservations }
    }

    /// Any ioctl of a case's own making.
    pub(super) fn call<T: Pod>(&self, request: u32, argument: &mut T) -> Result<(), Errno> {
        self.call_bytes(request, bytemuck::bytes_of_mut(argument))
    }

    pub(super) fn call_bytes(&self, request: u32, argument: &mut [u8]) -> Result<(), Errno> {
        // SAFETY: each case passes pointers to its own live memory, or addresses that must be refused.
        unsafe { self.inner.door.ioctl(request, argument) }
    }

    pub(super) fn create_bo(&self, r#type: u32, size: u64) -> Result<u32, Errno> {
        let mut a = abi::CreateBo { size, r#type, ..Zeroable::zeroed() };
        self.call(request::CREATE_BO, &mut a).map(|()| a.handle)
    }

    pub(super) fn share(&self, size: u64) -> Result<u32, Errno> {
        self.create_bo(SHARE, size)
    }

    pub(super) fn dev(&self, size: u64) -> Result<u32, Errno> {
        self.create_bo(DEV, size)
    }

    pub(super) fn info(&self, handle: u32) -> Result<abi::GetBoInfo, Errno> {
        let mut a = abi::GetBoInfo { handle, ..Zeroable::zeroed() };
        self.call(request::GET_BO_INFO, &mut a).map(|()| a)
    }

    pub(super) fn address(&self, handle: u32) -> Result<u64, Errno> {
        Ok(self.info(handle)?.xdna_addr)
    }

    pub(super) fn close(&self, handle: u32) -> Result<(), Errno> {
        self.call(request::GEM_CLOSE, &mut drm::GemClose { handle, pad: 0 })
    }

    /// Maps at an offset of the case's own choice.
    pub(super) fn map_offset(&self, at: Option<Place>, len: usize, offset: u64) -> Result<Map, Errno> {
        if at.is_some_and(|at| at.room < len) {
            return Err(Errno::NOMEM);
        }
        // SAFETY: `at` is inside a reservation of this case, with room for the mapping.
        let ptr = unsafe { self.inner.door.map(at.map(|at| at.ptr), len, offset)? };
        let map = Map { ptr, len };
        let mut open = self.open();
        open.maps.push(map);
        if at.is_some() {
            open.reservations.iter_mut().for_each(|reservation| reservation.place(map));
        }
        Ok(map)
    }

    pub(super) fn map_at(&self, handle: u32, len: usize, at: Option<Place>) -> Result<Map, Errno> {
        self.map_offset(at, len, self.info(handle)?.map_offset)
    }

    pub(super) fn map(&self, handle: u32, len: usize) -> Result<Map, Errno> {
        self.map_at(handle, len, None)
    }

    /// Unmaps a whole mapping.
    pub(super) fn unmap(&self, map: Map) {
        self.open().maps.retain(|other| other.ptr != map.ptr);
        // SAFETY: a whole mapping of this client, which the case uses no more.
        unsafe { self.inner.door.unmap(map.ptr, map.len) };
    }

    pub(super) fn flush(&self, map: Map) {
        // SAFETY: a live mapping.
        unsafe { self.inner.door.flush(map.ptr, map.len) };
    }

    /// Address space that lives as long as the client.
    pub(super) fn reserve(&self, len: usize) -> Result<Place, Errno> {
        let reservation = Reservation::new(len)?;
        let at = reservation.start();
        self.open().reservations.push(reservation);
        Ok(at)
    }

    /// A heap of one chunk, mapped on a 64 MiB boundary.
    pub(super) fn heap(&self) -> Result<Map, Errno> {
        let at = self.reserve(abi::HEAP_CHUNK as usize)?;
        self.heap_chunk(at)
    }

    pub(super) fn heap_chunk(&self, at: Place) -> Result<Map, Errno> {
        let handle = self.create_bo(HEAP, abi::HEAP_CHUNK)?;
        self.map_at(handle, abi::HEAP_CHUNK as usize, Some(at))
    }

    pub(super) fn create_hwctx(&self) -> Result<(u32, u32), Errno> {
        let qos = abi::QosInfo::zeroed();
        let mut a = abi::CreateHwctx { qos_p: addr_of(&qos), max_opc: 2048, num_tiles: 32, ..Zeroable::zeroed() };
        self.call(request::CREATE_HWCTX, &mut a).map(|()| (a.handle, a.syncobj_handle))
    }

    pub(super) fn destroy_hwctx(&self, handle: u32) -> Result<(), Errno> {
        self.call(request::DESTROY_HWCTX, &mut abi::DestroyHwctx { handle, pad: 0 })
    }

    pub(super) fn config_cu(&self, context: u32, pdis: &[u32]) -> Result<(), Errno> {
        let table = cu_table(pdis);
        let mut a = abi::ConfigHwctx {
            handle: context,
            param_val: table.as_ptr().addr() as u64,
            param_val_size: table.len() as u32 * 4,
            ..Zeroable::zeroed()
        };
        self.call(request::CONFIG_HWCTX, &mut a)
    }

    pub(super) fn exec(&self, context: u32, command: u32, args: &[u32]) -> Result<u64, Errno> {
        let mut a = abi::ExecCmd {
            hwctx: context,
            cmd_handles: u64::from(command),
            args: args.as_ptr().addr() as u64,
            cmd_count: 1,
            arg_count: args.len() as u32,
            ..Zeroable::zeroed()
        };
        self.call(request::EXEC_CMD, &mut a).map(|()| a.seq)
    }

    pub(super) fn wait_points(&self, points: &[(u32, u64)], flags: u32, timeout_nsec: i64) -> Result<u32, Errno> {
        let handles: Vec<u32> = points.iter().map(|(handle, _)| *handle).collect();
        let values: Vec<u64> = points.iter().map(|(_, point)| *point).collect();
        let mut a = drm::SyncobjTimelineWait {
            handles: handles.as_ptr().addr() as u64,
            points: values.as_ptr().addr() as u64,
            timeout_nsec,
            count_handles: points.len() as u32,
            flags,
            ..Zeroable::zeroed()
        };
        self.call(request::SYNCOBJ_TIMELINE_WAIT, &mut a).map(|()| a.first_signaled)
    }

    /// Waits for one point, submitted or not, as long as it takes.
    pub(super) fn wait(&self, syncobj: u32, point: u64) -> Result<(), Errno> {
        loop {
            match self.wait_points(&[(syncobj, point)], FOR_SUBMIT, i64::MAX) {
                Err(Errno::INTR) => {}
                result => return result.map(drop),
            }
        }
    }

    /// GET_INFO of one structure.
    pub(super) fn get<T: Pod>(&self, param: u32) -> Result<T, Errno> {
        let mut value = T::zeroed();
        let buffer = std::ptr::from_mut(&mut value).addr() as u64;
        let mut a = abi::GetInfo { param, buffer_size: size_of::<T>() as u32, buffer };
        self.call(request::GET_INFO, &mut a).map(|()| value)
    }
}

/// The words of a CONFIG_CU table.
pub(super) fn cu_table(pdis: &[u32]) -> Vec<u32> {
    let mut table = vec![pdis.len() as u32, 0];
    for &pdi in pdis {
        table.extend([pdi, 0]);
    }
    table
}

pub(super) fn addr_of<T>(value: &T) -> u64 {
    std::ptr::from_ref(value).addr() as u64
}

/// CLOCK_MONOTONIC, in nanoseconds.
pub(super) fn now() -> i64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// Takes a descriptor that an ioctl has just given, to close it when dropped.
pub(super) fn own_fd(fd: i32) -> Option<OwnedFd> {
    use std::os::fd::FromRawFd;
    // SAFETY: the ioctl gave the descriptor to its caller, who passes it on here and nowhere else.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A descriptor that is neither a buffer nor a syncobj.
pub(super) fn plain_file() -> Result<OwnedFd, Errno> {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)
}

/// Runs the body in a child process and gives its exit code: what the body returned, or 255 where it did not end.
///
/// The child has this one thread; the body must not touch what other threads could have held when it began.
pub(super) fn in_child(body: impl FnOnce() -> u8) -> Result<Child, Errno> {
    // SAFETY: the child runs the body and ends without unwinding or running anybody's destructors. Memory can be
    // allocated there: the C library takes its allocator's locks across fork.
    match unsafe { libc::fork() } {
        -1 => Err(Errno::AGAIN),
        0 => {
            let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(255);
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(i32::from(code)) }
        }
        pid => Ok(Child { pid: rustix::process::Pid::from_raw(pid).ok_or(Errno::CHILD)?, reaped: false }),
    }
}

/// A child process; killed and waited for when dropped.
#[derive(Debug)]
pub(super) struct Child {
    pid: rustix::process::Pid,
    reaped: bool,
}

impl Child {
    /// Ends it.
    pub(super) fn kill(&self) -> Result<(), Errno> {
        rustix::process::kill_process(self.pid, rustix::process::Signal::KILL)
    }

    /// Waits for its end; the exit code, or none where a signal ended it.
    pub(super) fn wait(mut self) -> Result<Option<i32>, Errno> {
        self.reap()
    }

    fn reap(&mut self) -> Result<Option<i32>, Errno> {
        loop {
            match rustix::process::waitpid(Some(self.pid), rustix::process::WaitOptions::empty()) {
                Err(Errno::INTR) => {}
                result => {
                    self.reaped = true;
                    return Ok(result?.and_then(|(_, status)| status.exit_status()));
                }
            }
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.reaped {
            let _ = self.kill();
            let _ = self.reap();
        }
    }
}
