//! The sequence of requests by default is the one that is known to work on hardware: that of the `taconite` runtime,
//! as recorded at the ioctl boundary, kind by kind and field by field. Ours adds VERSION and GET_CAP at the start, asks
//! for a BO's address again once it is mapped, waits once for commands that went out together, and closes syncobjs.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use amdxdna_ioctl::abi::drm::{GemClose, SyncobjDestroy, SyncobjTimelineWait};
use amdxdna_ioctl::abi::{
    ConfigHwctx, CreateBo, CreateHwctx, CuConfig, DestroyHwctx, ExecCmd, GetBoInfo, GetInfo, HwctxParamConfigCu,
    QosInfo, request,
};
use amdxdna_ioctl::{Door, Errno, Opener};
use bytemuck::AnyBitPattern;
use driver_tests::tiny;
use npu_model::{Config, Model};
use runtime::bundle::{Bundle, LayerKind, Manifest};
use runtime::npu::Npu;
use runtime::{Chat, LoadOptions, Turn};

const SHARE: u32 = 1;
const DEV_HEAP: u32 = 2;
const DEV: u32 = 3;
const CMD: u32 = 4;

/// A request that succeeded, with what the driver read and wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Call {
    Version,
    GetCap,
    CreateBo(CreateBo),
    GetBoInfo(GetBoInfo),
    Map { fixed: bool, len: usize },
    GetInfo { param: u32, size: u32 },
    CreateHwctx(CreateHwctx, QosInfo),
    ConfigHwctx { config: ConfigHwctx, num_cus: u16, cu: CuConfig },
    Exec { exec: ExecCmd, args: Vec<u32>, packet: Vec<u32> },
    Wait { wait: SyncobjTimelineWait, handles: Vec<u32>, points: Vec<u64>, served: i64 },
    Destroy(DestroyHwctx),
    SyncobjDestroy(u32),
    GemClose(u32),
    Other(Option<&'static str>),
}

#[derive(Debug, Default)]
struct Log {
    calls: Vec<Call>,
    /// Map offset of each handle, address of each mapping by its offset.
    offsets: BTreeMap<u32, u64>,
    mappings: BTreeMap<u64, usize>,
}

/// A device that writes down what it is asked.
#[derive(Debug)]
struct Recorder {
    model: Arc<Model>,
    log: Arc<Mutex<Log>>,
}

#[derive(Debug)]
struct RecordingDoor {
    inner: Arc<dyn Door>,
    log: Arc<Mutex<Log>>,
}

impl Opener for Recorder {
    fn open(&self, node: &Path) -> Result<Arc<dyn Door>, Errno> {
        Ok(Arc::new(RecordingDoor { inner: self.model.open(node)?, log: Arc::clone(&self.log) }))
    }
}

impl RecordingDoor {
    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap()
    }
}

/// # Safety
/// `address` must be that of `n` values.
unsafe fn values<T: AnyBitPattern>(address: u64, n: usize) -> Vec<T> {
    let first = std::ptr::with_exposed_provenance::<T>(address as usize);
    // SAFETY: the caller's promise.
    (0..n).map(|i| unsafe { first.add(i).read_unaligned() }).collect()
}

impl Log {
    /// # Safety
    /// `argument` must be that of a request that has just been served.
    unsafe fn read(&self, request: u32, argument: &[u8]) -> Call {
        match request {
            request::VERSION => Call::Version,
            request::GET_CAP => Call::GetCap,
            request::CREATE_BO => Call::CreateBo(bytemuck::pod_read_unaligned(argument)),
            request::GET_BO_INFO => Call::GetBoInfo(bytemuck::pod_read_unaligned(argument)),
            request::GET_INFO => {
                let info: GetInfo = bytemuck::pod_read_unaligned(argument);
                Call::GetInfo { param: info.param, size: info.buffer_size }
            }
            request::CREATE_HWCTX => {
                let create: CreateHwctx = bytemuck::pod_read_unaligned(argument);
                // SAFETY: the driver has read the QoS there.
                Call::CreateHwctx(create, unsafe { values(create.qos_p, 1) }[0])
            }
            request::CONFIG_HWCTX => {
                let config: ConfigHwctx = bytemuck::pod_read_unaligned(argument);
                // SAFETY: the driver has read a header and at least one CU there.
                let (head, cu): (HwctxParamConfigCu, _) =
                    unsafe { (values(config.param_val, 1)[0], values(config.param_val + 8, 1)[0]) };
                Call::ConfigHwctx { config, num_cus: head.num_cus, cu }
            }
            request::EXEC_CMD => {
                let exec: ExecCmd = bytemuck::pod_read_unaligned(argument);
                let packet = self.offsets.get(&(exec.cmd_handles as u32)).and_then(|o| self.mappings.get(o)).unwrap();
                // SAFETY: the driver has read the arguments; a command BO is a page that is mapped.
                let (args, packet) =
                    unsafe { (values(exec.args, exec.arg_count as usize), values(*packet as u64, 20)) };
                Call::Exec { exec, args, packet }
            }
            request::SYNCOBJ_TIMELINE_WAIT => {
                let wait: SyncobjTimelineWait = bytemuck::pod_read_unaligned(argument);
                let n = wait.count_handles as usize;
                // SAFETY: the driver has read as many of both.
                let (handles, points) = unsafe { (values(wait.handles, n), values(wait.points, n)) };
                Call::Wait { wait, handles, points, served: now() }
            }
            request::DESTROY_HWCTX => Call::Destroy(bytemuck::pod_read_unaligned(argument)),
            request::SYNCOBJ_DESTROY => {
                Call::SyncobjDestroy(bytemuck::pod_read_unaligned::<SyncobjDestroy>(argument).handle)
            }
            request::GEM_CLOSE => Call::GemClose(bytemuck::pod_read_unaligned::<GemClose>(argument).handle),
            other => Call::Other(request::name(other)),
        }
    }
}

impl Door for RecordingDoor {
    unsafe fn ioctl(&self, request: u32, argument: &mut [u8]) -> Result<(), Errno> {
        // The packet is read before it is run: its state changes.
        // SAFETY: pointers in the argument are the caller's promise, before the call as after it.
        let exec = (request == request::EXEC_CMD).then(|| unsafe { self.log().read(request, argument) });
        // SAFETY: the caller's promise.
        unsafe { self.inner.ioctl(request, argument) }?;
        let mut log = self.log();
        // SAFETY: the request has been served.
        let mut call = unsafe { log.read(request, argument) };
        if let (Call::Exec { packet, .. }, Some(Call::Exec { packet: before, .. })) = (&mut call, exec) {
            *packet = before;
        }
        if let Call::GetBoInfo(info) = &call {
            log.offsets.insert(info.handle, info.map_offset);
        }
        log.calls.push(call);
        Ok(())
    }

    unsafe fn map(&self, at: Option<NonNull<u8>>, len: usize, offset: u64) -> Result<NonNull<u8>, Errno> {
        // SAFETY: the caller's promise.
        let ptr = unsafe { self.inner.map(at, len, offset) }?;
        let mut log = self.log();
        log.mappings.insert(offset, ptr.as_ptr().expose_provenance());
        log.calls.push(Call::Map { fixed: at.is_some(), len });
        Ok(ptr)
    }

    unsafe fn unmap(&self, ptr: NonNull<u8>, len: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.inner.unmap(ptr, len) };
    }

    unsafe fn flush(&self, ptr: NonNull<u8>, len: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.inner.flush(ptr, len) };
    }
}

/// The calls of a run, one after the other.
struct Calls {
    calls: std::vec::IntoIter<Call>,
    /// When the run began.
    started: i64,
    /// What each BO turned out to be: its creation and its last information.
    bos: BTreeMap<u32, (CreateBo, GetBoInfo)>,
}

impl Calls {
    fn next(&mut self) -> Call {
        self.calls.next().expect("another call")
    }

    /// CREATE_BO, GET_BO_INFO, and for what is not a DEV BO its mapping and once more its address.
    fn bo(&mut self, kind: u32) -> CreateBo {
        let Call::CreateBo(create) = self.next() else { panic!("no CREATE_BO") };
        assert_eq!((create.flags, create.vaddr, create.r#type), (0, 0, kind));
        let Call::GetBoInfo(mut info) = self.next() else { panic!("no GET_BO_INFO") };
        assert_eq!((info.ext, info.ext_flags, info.pad, info.handle), (0, 0, 0, create.handle));
        match kind {
            DEV => assert_eq!(info.map_offset, u64::MAX),
            _ => {
                let fixed = kind == DEV_HEAP;
                assert_eq!(self.next(), Call::Map { fixed, len: create.size as usize });
                if let Some(Call::GetBoInfo(again)) = self.calls.as_slice().first()
                    && again.handle == create.handle
                {
                    info = *again;
                    self.next();
                }
            }
        }
        self.bos.insert(create.handle, (create, info));
        create
    }

    fn context(&mut self, gops: u32, streams: usize) -> CreateHwctx {
        let Call::CreateHwctx(create, qos) = self.next() else { panic!("no CREATE_HWCTX") };
        assert_eq!(qos, QosInfo { gops, ..QosInfo::default() });
        let zeroes = [create.umq_bo, create.log_buf_bo, create.mem_size];
        assert_eq!((create.ext, create.ext_flags, zeroes), (0, 0, [0; 3]));
        assert_eq!((create.max_opc, create.num_tiles), (2048, 32));
        let pdi = self.bo(DEV);
        let Call::ConfigHwctx { config, num_cus, cu } = self.next() else { panic!("no CONFIG_HWCTX") };
        assert_eq!((config.handle, config.param_type, config.param_val_size, config.pad), (create.handle, 0, 16, 0));
        assert_eq!((num_cus, cu), (1, CuConfig { cu_bo: pdi.handle, cu_func: 0, pad: [0; 3] }));
        for _ in 0..streams {
            self.bo(DEV);
        }
        create
    }

    /// EXEC_CMD of a context, after the command BO if it is the first use; then the wait for it.
    fn dispatch(&mut self, context: &CreateHwctx, seq: u64) {
        while let Some(Call::CreateBo(_)) = self.calls.as_slice().first() {
            assert_eq!(self.bo(CMD).size, 4096);
        }
        let Call::Exec { exec, args, packet } = self.next() else { panic!("no EXEC_CMD") };
        assert_eq!((exec.ext, exec.ext_flags, exec.r#type), (0, 0, 0));
        assert_eq!((exec.hwctx, exec.cmd_count, exec.arg_count, exec.seq), (context.handle, 1, 4, seq));
        let (stream, info) = &self.bos[&args[0]];
        assert_eq!((stream.r#type, u64::from(packet[6])), (DEV, stream.size));
        assert_eq!(packet[..4], [0x3001_0001, 1, 3, 0]);
        assert_eq!(long(&packet, 4), info.xdna_addr);
        for (i, handle) in args[1..].iter().enumerate() {
            let (create, info) = &self.bos[handle];
            let address = long(&packet, 7 + 2 * i);
            assert!((info.xdna_addr..info.xdna_addr + create.size).contains(&address), "argument {i}");
        }
        assert_eq!(packet[13..17], [0; 4]);
        let Call::Wait { wait, handles, points, served } = self.next() else { panic!("no wait") };
        assert_eq!((handles, points), (vec![context.syncobj_handle], vec![seq]));
        assert_eq!((wait.count_handles, wait.flags, wait.pad), (1, 0, 0));
        // Ten seconds from when it was asked, on the clock that the driver compares with.
        let patience = LoadOptions::default().deadline.as_nanos() as i64;
        assert!((self.started + patience..=served + patience).contains(&wait.timeout_nsec));
    }
}

/// `CLOCK_MONOTONIC`, nanoseconds.
fn now() -> i64 {
    amdxdna_ioctl::Deadline::after(Duration::ZERO).nanoseconds()
}

fn long(words: &[u32], at: usize) -> u64 {
    u64::from(words[at]) | u64::from(words[at + 1]) << 32
}

/// 10^9 operations of the first kernel of the gemm context, as its runtime rounds them.
fn gops(manifest: &Manifest) -> u32 {
    let first = manifest.gemms.values().find(|g| g.ctx == "gemm").unwrap();
    ((2.0 * first.m as f64 * first.k as f64 * first.n as f64) / 1e9).round() as u32
}

#[test]
fn the_default_sequence_is_the_one_known_to_work() {
    let folder = std::env::temp_dir().join(format!("qwen35-sequence-{}", std::process::id()));
    let path = tiny::bundle(&folder).unwrap();
    let started = now();
    let log: Arc<Mutex<Log>> = Arc::default();
    let recorder = Recorder { model: Model::new(Config::default()), log: Arc::clone(&log) };
    let npu = Npu::open(&recorder, Path::new("/dev/accel/accel0")).unwrap();
    // Every wait asks the driver: how often a look at the state word is faster depends on the machine.
    let options = LoadOptions { vision: false, commands_in_flight: 1, spin: Duration::ZERO, ..LoadOptions::default() };
    let mut chat = Chat::load(Bundle::open(&path).unwrap(), npu, options, &mut |_| {}).unwrap();
    let turn = Turn { system: None, images: &[], text: "Hi", thinking: false, max_new: 3 };
    let outcome = chat.turn(&turn, &mut |_| ControlFlow::Continue(())).unwrap();
    let manifest = chat.model().bundle().manifest.clone();
    let text = &manifest.text;
    let slices = text.down_slices;
    let sizes: Vec<u64> = (0..text.layers.len())
        .flat_map(|i| {
            let down = (0..slices).map(move |j| format!("l{i}.g.down{j}"));
            ["in", "o", "gu"].map(|w| format!("l{i}.g.{w}")).into_iter().chain(down)
        })
        .chain((0..text.head_parts).map(|j| format!("head{j}")))
        .map(|name| chat.model().bundle().tensor(&name).unwrap().bytes.len() as u64)
        .collect();
    drop(chat);

    let calls = std::mem::take(&mut log.lock().unwrap().calls);
    let mut calls = Calls { calls: calls.into_iter(), started, bos: BTreeMap::new() };
    assert_eq!([calls.next(), calls.next()], [Call::Version, Call::GetCap]);
    assert_eq!(calls.bo(DEV_HEAP).size, 64 << 20);
    assert_eq!(calls.next(), Call::GetInfo { param: 1, size: 64 });

    let streams = |ctx: &str| manifest.gemms.values().flat_map(|g| &g.chunks).filter(|c| c.ctx == ctx).count();
    let gemm = calls.context(gops(&manifest), streams("gemm"));
    let gemv = calls.context(0, manifest.gemvs.len());

    for size in sizes {
        assert_eq!(calls.bo(SHARE).size, size);
    }
    let kinds = [LayerKind::Linear, LayerKind::Attention].iter().filter(|k| text.layers.contains(k)).count();
    // a, the inputs' C, o's A and C, gu's C, down's C; x, the inputs' y, those of o and gu, down's, the head's.
    for _ in 0..1 + kinds + 2 + 1 + slices + 1 + kinds + 2 + slices + text.head_parts {
        calls.bo(SHARE);
    }

    // A turn asks for the array's last error before and after.
    let asks_of_errors = Call::Other(request::name(request::GET_ARRAY));
    assert_eq!(calls.next(), asks_of_errors);
    let commands = text.layers.len() * (3 + slices);
    for seq in 0..commands {
        calls.dispatch(&gemm, seq as u64);
    }
    let steps = outcome.timing.steps;
    assert!(steps > 0);
    for seq in 0..text.head_parts + steps * (commands + text.head_parts) {
        calls.dispatch(&gemv, seq as u64);
    }

    assert_eq!(calls.next(), asks_of_errors);
    // Contexts go before anything that their commands use; nothing is left open.
    let rest: Vec<Call> = calls.calls.collect();
    let at = |wanted: &dyn Fn(&Call) -> bool| rest.iter().position(wanted).unwrap();
    let destroyed = |ctx: &CreateHwctx| at(&|c| matches!(c, Call::Destroy(d) if d.handle == ctx.handle));
    for context in [&gemm, &gemv] {
        assert!(rest.contains(&Call::SyncobjDestroy(context.syncobj_handle)));
    }
    let mut closed: Vec<u32> = Vec::new();
    for (i, call) in rest.iter().enumerate() {
        match call {
            Call::GemClose(handle) => {
                closed.push(*handle);
                if calls.bos[handle].0.r#type == SHARE {
                    assert!(i > destroyed(&gemm) && i > destroyed(&gemv));
                }
            }
            Call::Destroy(_) | Call::SyncobjDestroy(_) => {}
            other => panic!("{other:?} at the end"),
        }
    }
    closed.sort_unstable();
    assert_eq!(closed, calls.bos.keys().copied().collect::<Vec<_>>());
    let _ = std::fs::remove_dir_all(folder);
}
