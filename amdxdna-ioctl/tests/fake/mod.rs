//! A door behind which a few lines stand: enough of a driver to see in which order it is called and to make it fail.
#![allow(dead_code, unreachable_pub, missing_docs)]

use amdxdna_ioctl::abi::drm::{GetCap, SyncobjTimelineWait, Version};
use amdxdna_ioctl::abi::query::{QueryAieMetadata, QueryAieTileMetadata, ResourceInfo, get_info};
use amdxdna_ioctl::abi::{
    BoType, ConfigHwctx, CreateBo, CreateHwctx, DEV_ALIGN, DRIVER_NAME, ExecCmd, GetBoInfo, GetInfo, HEAP_BASE,
    INVALID_ADDR, QosInfo, request,
};
use amdxdna_ioctl::{Door, Errno, Opener};
use bytemuck::Pod;
use rustix::mm::{MapFlags, ProtFlags};
use std::collections::BTreeMap;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

#[derive(Clone, Debug)]
struct FakeBo {
    r#type: u32,
    size: u64,
    device: u64,
    mapped: u64,
}

#[derive(Debug)]
pub struct State {
    /// What was called, one line each.
    pub log: Vec<String>,
    /// The next call of this request fails, once an entry.
    pub failures: Vec<(u32, Errno)>,
    /// What VERSION says.
    pub version: (String, i32, i32),
    /// What GET_CAP says.
    pub timelines: u64,
    /// What RESOURCE_INFO says.
    pub slots: (u64, u64),
    /// Device addresses of SHARE and CMD BOs are given at creation, not by mapping.
    pub iova: bool,
    /// What the last EXEC_CMD had as arguments.
    pub args: Vec<u32>,
    /// Its command BO, and the first words of the packet in it.
    pub command: u32,
    pub packet: [u32; 17],
    /// Command BO and arguments of every EXEC_CMD.
    pub commands: Vec<(u32, Vec<u32>)>,
    /// The last TIMELINE_WAIT's point, deadline and flags.
    pub waited: (u64, i64, u32),
    /// States that commands end with: the header's low bits.
    pub ends: u32,
    /// What a wait says; by default done.
    pub wait: Result<(), Errno>,
    bos: BTreeMap<u32, FakeBo>,
    next: u32,
    seq: u64,
    heap: u64,
    used: u64,
}

#[derive(Clone, Debug)]
pub struct Fake(pub Arc<Mutex<State>>);

impl Fake {
    pub fn new() -> Fake {
        Fake(Arc::new(Mutex::new(State {
            log: Vec::new(),
            failures: Vec::new(),
            version: (DRIVER_NAME.to_owned(), 0, 10),
            timelines: 1,
            slots: (3, 16),
            iova: false,
            args: Vec::new(),
            command: 0,
            packet: [0; 17],
            commands: Vec::new(),
            waited: (0, 0, 0),
            ends: 4,
            wait: Ok(()),
            bos: BTreeMap::new(),
            next: 1,
            seq: 0,
            heap: 0,
            used: 4 * DEV_ALIGN,
        })))
    }

    pub fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        f(&mut self.0.lock().unwrap())
    }

    /// Takes the log.
    pub fn log(&self) -> Vec<String> {
        self.with(|state| std::mem::take(&mut state.log))
    }

    pub fn fail(&self, request: u32, errno: Errno, times: usize) {
        self.with(|state| state.failures.extend(std::iter::repeat_n((request, errno), times)));
    }

    /// Ends a command that is in flight.
    pub fn end(&self, command: u32, ends: u32) {
        self.with(|state| {
            let mapped = state.bos[&command].mapped;
            let header: u32 = peek(mapped);
            poke(mapped, 4, &(header & !15 | ends).to_le_bytes());
        });
    }

    /// Handles that have not been closed.
    pub fn open_handles(&self) -> usize {
        self.with(|state| state.bos.len())
    }
}

impl Opener for Fake {
    fn open(&self, node: &Path) -> Result<Arc<dyn Door>, Errno> {
        self.with(|state| match state.failures.iter().position(|&(request, _)| request == 0) {
            Some(at) => Err(state.failures.remove(at).1),
            None => {
                state.log.push(format!("open {}", node.display()));
                Ok(())
            }
        })?;
        Ok(Arc::new(FakeDoor { fake: self.clone() }))
    }
}

#[derive(Debug)]
struct FakeDoor {
    fake: Fake,
}

impl Drop for FakeDoor {
    fn drop(&mut self) {
        self.fake.with(|state| state.log.push("close".to_owned()));
    }
}

fn read<T: Pod>(argument: &[u8]) -> T {
    bytemuck::pod_read_unaligned(argument)
}

fn write<T: Pod>(argument: &mut [u8], value: &T) {
    argument.copy_from_slice(bytemuck::bytes_of(value));
}

/// Copies to an address that an argument gave.
fn poke(address: u64, room: u64, bytes: &[u8]) {
    let len = bytes.len().min(room as usize);
    let to = std::ptr::with_exposed_provenance_mut(address as usize);
    // SAFETY: the caller of the ioctl vouched for `room` bytes there.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, len) };
}

fn peek<T: Pod>(address: u64) -> T {
    // SAFETY: as above.
    unsafe { std::ptr::read_unaligned(std::ptr::with_exposed_provenance(address as usize)) }
}

impl State {
    fn answer(&mut self, number: u32, argument: &mut [u8]) -> Result<(), Errno> {
        match number {
            request::VERSION => {
                let mut version: Version = read(argument);
                poke(version.name, version.name_len, self.version.0.as_bytes());
                version.name_len = self.version.0.len() as u64;
                version.desc_len = 0;
                (version.version_major, version.version_minor) = (self.version.1, self.version.2);
                write(argument, &version);
            }
            request::GET_CAP => {
                let cap: GetCap = read(argument);
                write(argument, &GetCap { value: self.timelines, ..cap });
            }
            request::CREATE_BO => {
                let mut create: CreateBo = read(argument);
                let mut bo = FakeBo { r#type: create.r#type, size: create.size, device: INVALID_ADDR, mapped: 0 };
                if create.r#type == BoType::Dev as u32 {
                    let end = self.used + create.size.next_multiple_of(DEV_ALIGN);
                    if end > self.heap {
                        return Err(Errno::AGAIN);
                    }
                    bo.device = HEAP_BASE + self.used;
                    self.used = end;
                } else if create.r#type == BoType::DevHeap as u32 {
                    self.heap += create.size;
                } else if self.iova {
                    bo.device = 0x10_0000 * u64::from(self.next);
                }
                create.handle = self.next;
                self.next += 1;
                self.bos.insert(create.handle, bo);
                write(argument, &create);
            }
            request::GET_BO_INFO => {
                let mut info: GetBoInfo = read(argument);
                let bo = self.bos.get(&info.handle).ok_or(Errno::NOENT)?;
                let dev = bo.r#type == BoType::Dev as u32;
                info.map_offset = if dev { INVALID_ADDR } else { u64::from(info.handle) << 32 };
                info.vaddr = INVALID_ADDR;
                info.xdna_addr = if bo.device == INVALID_ADDR && bo.mapped != 0 { bo.mapped } else { bo.device };
                write(argument, &info);
            }
            request::GEM_CLOSE => {
                let handle: u32 = read(&argument[..4]);
                self.bos.remove(&handle).ok_or(Errno::INVAL)?;
            }
            request::CREATE_HWCTX => {
                let mut create: CreateHwctx = read(argument);
                let qos: QosInfo = peek(create.qos_p);
                assert_eq!(qos, QosInfo::default());
                (create.handle, create.syncobj_handle, create.umq_doorbell) = (1, 7, u32::MAX);
                write(argument, &create);
            }
            request::CONFIG_HWCTX => {
                let config: ConfigHwctx = read(argument);
                let head: [u32; 4] = peek(config.param_val);
                let line = format!(
                    "config size {} num_cus {} cu_bo {} func {}",
                    config.param_val_size, head[0], head[2], head[3]
                );
                self.log.push(line);
            }
            request::GET_INFO => {
                let info: GetInfo = read(argument);
                let room = u64::from(info.buffer_size);
                match info.param {
                    get_info::AIE_METADATA => {
                        let core = QueryAieTileMetadata { row_count: 4, row_start: 2, ..Default::default() };
                        let metadata = QueryAieMetadata { cols: 8, rows: 6, core, ..Default::default() };
                        poke(info.buffer, room, bytemuck::bytes_of(&metadata));
                    }
                    get_info::RESOURCE_INFO => {
                        let (npu_task_curr, npu_task_max) = self.slots;
                        let resources = ResourceInfo { npu_task_max, npu_task_curr, ..Default::default() };
                        poke(info.buffer, room, bytemuck::bytes_of(&resources));
                    }
                    _ => return Err(Errno::OPNOTSUPP),
                }
            }
            request::EXEC_CMD => {
                let mut exec: ExecCmd = read(argument);
                self.args = (0..u64::from(exec.arg_count)).map(|i| peek(exec.args + 4 * i)).collect();
                exec.seq = self.seq;
                self.seq += 1;
                self.command = exec.cmd_handles as u32;
                self.commands.push((self.command, self.args.clone()));
                let mapped = self.bos[&self.command].mapped;
                self.packet = peek(mapped);
                let header: u32 = peek(mapped);
                assert_eq!(header & 15, 1, "a command is submitted in state NEW");
                self.log.push(format!("exec ctx {} cmd {} seq {}", exec.hwctx, exec.cmd_handles, exec.seq));
                if self.wait.is_ok() {
                    poke(mapped, 4, &(header & !15 | self.ends).to_le_bytes());
                    if self.ends != 4 {
                        poke(mapped + 4, 4092, &[0xff; 4092]);
                    }
                }
                write(argument, &exec);
            }
            request::SYNCOBJ_TIMELINE_WAIT => {
                let wait: SyncobjTimelineWait = read(argument);
                assert_eq!((wait.count_handles, peek::<u32>(wait.handles)), (1, 7));
                self.waited = (peek(wait.points), wait.timeout_nsec, wait.flags);
                return self.wait;
            }
            request::DESTROY_HWCTX | request::SYNCOBJ_DESTROY => {}
            _ => return Err(Errno::INVAL),
        }
        Ok(())
    }
}

impl Door for FakeDoor {
    unsafe fn ioctl(&self, number: u32, argument: &mut [u8]) -> Result<(), Errno> {
        assert_eq!(argument.len(), request::argument_size(number));
        self.fake.with(|state| {
            let name = request::name(number).unwrap();
            let line = match number {
                request::CREATE_BO => {
                    let create: CreateBo = read(argument);
                    format!("CREATE_BO type {} size {}", create.r#type, create.size)
                }
                request::CREATE_HWCTX => {
                    let create: CreateHwctx = read(argument);
                    format!("CREATE_HWCTX num_tiles {} max_opc {}", create.num_tiles, create.max_opc)
                }
                request::GEM_CLOSE | request::DESTROY_HWCTX | request::SYNCOBJ_DESTROY => {
                    format!("{name} {}", read::<u32>(&argument[..4]))
                }
                _ => name.to_owned(),
            };
            state.log.push(line);
            if let Some(at) = state.failures.iter().position(|&(request, _)| request == number) {
                return Err(state.failures.remove(at).1);
            }
            state.answer(number, argument)
        })
    }

    unsafe fn map(&self, at: Option<NonNull<u8>>, len: usize, offset: u64) -> Result<NonNull<u8>, Errno> {
        let flags = MapFlags::PRIVATE | if at.is_some() { MapFlags::FIXED } else { MapFlags::empty() };
        let hint = at.map_or(std::ptr::null_mut(), |at| at.as_ptr().cast());
        // SAFETY: fresh memory, or in the caller's reservation.
        let ptr = unsafe { rustix::mm::mmap_anonymous(hint, len, ProtFlags::READ | ProtFlags::WRITE, flags)? };
        self.fake.with(|state| {
            let handle = (offset >> 32) as u32;
            state.bos.get_mut(&handle).expect("map of an open BO").mapped = ptr.expose_provenance() as u64;
            let place = match at {
                Some(at) => {
                    format!("at a multiple of {} MiB", (1usize << at.addr().get().trailing_zeros().min(26)) >> 20)
                }
                None => "anywhere".to_owned(),
            };
            state.log.push(format!("map BO {handle} {len} {place}"));
        });
        Ok(NonNull::new(ptr.cast()).unwrap())
    }

    unsafe fn unmap(&self, ptr: NonNull<u8>, len: usize) {
        // SAFETY: as `map` made it.
        unsafe { rustix::mm::munmap(ptr.as_ptr().cast(), len).unwrap() };
        self.fake.with(|state| state.log.push(format!("unmap {len}")));
    }

    unsafe fn flush(&self, _: NonNull<u8>, len: usize) {
        self.fake.with(|state| state.log.push(format!("flush {len}")));
    }
}
