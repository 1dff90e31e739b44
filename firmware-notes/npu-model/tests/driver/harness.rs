//! Raw calls through a door.

use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use amdxdna_ioctl::abi::{self, drm, request};
use amdxdna_ioctl::{Door, Errno, Opener};
use bytemuck::{Pod, Zeroable};

pub const PAGE: usize = 4096;
pub const NEW: u32 = 1;
pub const COMPLETED: u32 = 4;
pub const ERROR: u32 = 5;
pub const START_CU: u32 = 0;
pub const CMD_CHAIN: u32 = 19;
pub const START_NPU: u32 = 20;

/// What a case runs against.
pub struct Node<'a> {
    pub opener: &'a dyn Opener,
}

impl Node<'_> {
    pub fn open(&self) -> Client {
        Client { door: self.opener.open(Path::new("/dev/accel/accel0")).unwrap() }
    }
}

/// An open file.
#[derive(Clone)]
pub struct Client {
    pub door: Arc<dyn Door>,
}

/// A mapping.
#[derive(Clone, Copy, Debug)]
pub struct Map {
    pub ptr: NonNull<u8>,
    pub len: usize,
}

// SAFETY: tests pass mappings to threads that only touch them by atomics and copies.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    pub fn word(&self, index: usize) -> u32 {
        assert!(index * 4 + 4 <= self.len);
        // SAFETY: in bounds and aligned; the driver writes words atomically.
        unsafe { AtomicU32::from_ptr(self.ptr.as_ptr().add(index * 4).cast()).load(Ordering::Acquire) }
    }

    pub fn set_word(&self, index: usize, value: u32) {
        assert!(index * 4 + 4 <= self.len);
        // SAFETY: as in `word`.
        unsafe { AtomicU32::from_ptr(self.ptr.as_ptr().add(index * 4).cast()).store(value, Ordering::Release) };
    }

    pub fn set_words(&self, words: &[u32]) {
        for (i, &word) in words.iter().enumerate() {
            self.set_word(i, word);
        }
    }

    /// The part that begins at a byte.
    pub fn part(&self, offset: usize) -> Map {
        assert!(offset <= self.len);
        // SAFETY: in bounds.
        Map { ptr: unsafe { self.ptr.add(offset) }, len: self.len - offset }
    }
}

/// A buffer that may hold a packet, mapped.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    pub handle: u32,
    pub map: Map,
}

impl Packet {
    pub fn state(&self) -> u32 {
        self.map.word(0) & 0xf
    }
}

/// A context with a heap, one configured CU and a stream without operations.
pub struct Ready {
    pub client: Client,
    pub heap: Map,
    pub context: u32,
    pub syncobj: u32,
    pub stream: u32,
    pub stream_addr: u64,
}

/// The header of an instruction stream of no operations.
pub const EMPTY_STREAM: [u32; 4] = [0x0604_0100, 0x0000_0108, 0, 16];

pub fn header(opcode: u32, count: u32) -> u32 {
    opcode << 23 | count << 12 | NEW
}

impl Client {
    pub fn call<T: Pod>(&self, request: u32, argument: &mut T) -> Result<(), Errno> {
        // SAFETY: each case passes pointers to its own live memory, or addresses that must be refused.
        unsafe { self.door.ioctl(request, bytemuck::bytes_of_mut(argument)) }
    }

    pub fn create_bo(&self, r#type: u32, size: u64) -> Result<u32, Errno> {
        let mut a = abi::CreateBo { size, r#type, ..Zeroable::zeroed() };
        self.call(request::CREATE_BO, &mut a).map(|()| a.handle)
    }

    pub fn dev(&self, size: u64) -> Result<u32, Errno> {
        self.create_bo(3, size)
    }

    pub fn info(&self, handle: u32) -> Result<abi::GetBoInfo, Errno> {
        let mut a = abi::GetBoInfo { handle, ..Zeroable::zeroed() };
        self.call(request::GET_BO_INFO, &mut a).map(|()| a)
    }

    pub fn address(&self, handle: u32) -> u64 {
        self.info(handle).unwrap().xdna_addr
    }

    pub fn map_at(&self, handle: u32, len: usize, at: Option<NonNull<u8>>) -> Result<Map, Errno> {
        let offset = self.info(handle)?.map_offset;
        // SAFETY: `at` is from a reservation of the test's own.
        let ptr = unsafe { self.door.map(at, len, offset)? };
        Ok(Map { ptr, len })
    }

    pub fn map(&self, handle: u32, len: usize) -> Map {
        self.map_at(handle, len, None).unwrap()
    }

    pub fn unmap(&self, map: Map) {
        // SAFETY: whole mappings of this client, last used here.
        unsafe { self.door.unmap(map.ptr, map.len) };
    }

    pub fn flush(&self, map: Map) {
        // SAFETY: a live mapping.
        unsafe { self.door.flush(map.ptr, map.len) };
    }

    /// A heap of one chunk, mapped on a 64 MiB boundary. The reservation is never given back.
    pub fn heap(&self) -> Map {
        let reserved = reserve(2 * abi::HEAP_CHUNK as usize);
        self.heap_chunk(aligned(reserved))
    }

    pub fn heap_chunk(&self, at: NonNull<u8>) -> Map {
        let handle = self.create_bo(2, abi::HEAP_CHUNK).unwrap();
        self.map_at(handle, abi::HEAP_CHUNK as usize, Some(at)).unwrap()
    }

    pub fn create_hwctx(&self) -> Result<(u32, u32), Errno> {
        let qos = abi::QosInfo::zeroed();
        let mut a = abi::CreateHwctx { qos_p: addr_of(&qos), max_opc: 2048, num_tiles: 32, ..Zeroable::zeroed() };
        self.call(request::CREATE_HWCTX, &mut a).map(|()| (a.handle, a.syncobj_handle))
    }

    pub fn config_cu(&self, context: u32, pdis: &[u32]) -> Result<(), Errno> {
        let table = cu_table(pdis);
        let mut a = abi::ConfigHwctx {
            handle: context,
            param_val: table.as_ptr().addr() as u64,
            param_val_size: table.len() as u32 * 4,
            ..Zeroable::zeroed()
        };
        self.call(request::CONFIG_HWCTX, &mut a)
    }

    pub fn packet(&self, words: &[u32]) -> Packet {
        let handle = self.create_bo(4, PAGE as u64).unwrap();
        let map = self.map(handle, PAGE);
        map.set_words(words);
        Packet { handle, map }
    }

    pub fn exec(&self, context: u32, command: u32, args: &[u32]) -> Result<u64, Errno> {
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

    pub fn wait_points(&self, points: &[(u32, u64)], flags: u32, timeout_nsec: i64) -> Result<u32, Errno> {
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
    pub fn wait(&self, syncobj: u32, point: u64) {
        self.wait_points(&[(syncobj, point)], 2, i64::MAX).unwrap();
    }

    /// Heap, context, CU and stream.
    pub fn ready(&self) -> Ready {
        let heap = self.heap();
        let (context, syncobj) = self.create_hwctx().unwrap();
        let pdi = self.dev(PAGE as u64).unwrap();
        let pdi_map = heap.part((self.address(pdi) - abi::HEAP_BASE) as usize);
        self.flush(Map { len: PAGE, ..pdi_map });
        self.config_cu(context, &[pdi]).unwrap();
        let stream = self.dev(PAGE as u64).unwrap();
        let stream_addr = self.address(stream);
        let map = heap.part((stream_addr - abi::HEAP_BASE) as usize);
        map.set_words(&EMPTY_STREAM);
        self.flush(Map { len: PAGE, ..map });
        Ready { client: self.clone(), heap, context, syncobj, stream, stream_addr }
    }
}

impl Ready {
    /// An IRON packet that runs a stream.
    pub fn words(&self, stream: u64, bytes: u32) -> Vec<u32> {
        let mut words = vec![header(START_CU, 16) | 3 << 28, 1, 3, 0, stream as u32, (stream >> 32) as u32, bytes];
        words.extend([0; 10]);
        words
    }

    pub fn good(&self) -> Packet {
        self.client.packet(&self.words(self.stream_addr, 16))
    }

    pub fn run(&self, packet: Packet) -> u32 {
        let seq = self.client.exec(self.context, packet.handle, &[self.stream]).unwrap();
        self.client.wait(self.syncobj, seq);
        packet.state()
    }
}

/// The words of a CONFIG_CU table.
pub fn cu_table(pdis: &[u32]) -> Vec<u32> {
    let mut table = vec![pdis.len() as u32, 0];
    for &pdi in pdis {
        table.extend([pdi, 0]);
    }
    table
}

pub fn addr_of<T>(value: &T) -> u64 {
    std::ptr::from_ref(value).addr() as u64
}

pub fn reserve(len: usize) -> NonNull<u8> {
    use rustix::mm::{MapFlags, ProtFlags};
    // SAFETY: a new mapping at an address of the kernel's choice.
    let ptr = unsafe {
        rustix::mm::mmap_anonymous(
            std::ptr::null_mut(),
            len,
            ProtFlags::empty(),
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )
    };
    NonNull::new(ptr.unwrap().cast()).unwrap()
}

/// The first 64 MiB boundary.
pub fn aligned(ptr: NonNull<u8>) -> NonNull<u8> {
    let chunk = abi::HEAP_CHUNK as usize;
    let at = ptr.as_ptr().addr();
    // SAFETY: the reservations of these tests are at least one chunk longer than what is mapped in them.
    unsafe { ptr.add(at.next_multiple_of(chunk) - at) }
}
