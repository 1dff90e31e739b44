//! A program under the supervisor: this test binary itself, started again as a client of the kernel's door.
#![cfg(all(feature = "supervise", target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use amdxdna_ioctl::abi::{CreateBo, GetBoInfo, drm, request};
use amdxdna_ioctl::packet::IronKernel;
use amdxdna_ioctl::{Bo, BoKind, Command as NpuCommand, Cu, Deadline, Device, Door, Errno, HwCtx, HwCtxOptions};
use amdxdna_ioctl::{KernelOpener, Opener};
use bytemuck::Pod;
use npu_model::supervise::{SuperviseError, Supervisor};
use npu_model::trace::{Record, Trace};
use npu_model::{Config, Counts, Faults};

/// Not a node of this machine, even if it has an NPU.
const NODE: &str = "/dev/accel/accel-of-the-model";
/// Says to the client that it is one.
const SIGN: &str = "NPU_MODEL_CLIENT";

/// Runs one of the clients below under a supervisor.
fn supervised(client: &str, config: Config) -> (Vec<Record>, Counts) {
    let trace = Trace::in_memory();
    let supervisor = Supervisor::new(config, NODE).unwrap().with_trace(Arc::clone(&trace));
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", client, "--ignored", "--nocapture", "--test-threads=1"]).env(SIGN, "1");
    let status = supervisor.run(&mut command).unwrap();
    assert!(status.success(), "{client}: {status}");
    let records = trace.records();
    assert!(!records.is_empty(), "{client} did not run");
    (records, supervisor.model().counts())
}

#[test]
fn a_program_that_never_ends_is_killed_at_its_deadline() {
    let supervisor = Supervisor::new(Config::default(), NODE).unwrap();
    let late = supervisor.run_within(Command::new("sleep").arg("3600"), Duration::from_millis(20));
    assert!(matches!(late, Err(SuperviseError::Deadline { .. })), "{late:?}");
    assert!(supervisor.run_within(&mut Command::new("true"), Duration::from_secs(60)).unwrap().success());
}

/// False where a client is started by hand.
fn is_client() -> bool {
    std::env::var_os(SIGN).is_some()
}

fn device() -> Arc<Device> {
    Device::open(&KernelOpener, Path::new(NODE)).unwrap()
}

/// An ioctl that points to nothing but its argument.
fn raw<T: Pod>(door: &dyn Door, asked: u32, argument: &mut T) -> Result<(), Errno> {
    // SAFETY: the callers below pass no pointers, or ones that are meant to be refused.
    unsafe { door.ioctl(asked, bytemuck::bytes_of_mut(argument)) }
}

/// A context with a unit that does nothing, and a stream without operations for it.
fn context(device: &Arc<Device>) -> (Arc<HwCtx>, Bo) {
    let context = HwCtx::create(device, &HwCtxOptions::default()).unwrap();
    let pdi = Bo::with_contents(device, BoKind::Dev, &[0; 4096]).unwrap();
    context.config_cu(vec![Cu { pdi, func: 0 }]).unwrap();
    let mut stream = [0u8; 16];
    stream[..4].copy_from_slice(&[0, 1, 4, 6]);
    stream[4] = 8;
    stream[12] = 16;
    (context, Bo::with_contents(device, BoKind::Dev, &stream).unwrap())
}

fn command(device: &Arc<Device>, stream: &Bo, data: &Bo) -> NpuCommand {
    let mut command = NpuCommand::new(device).unwrap();
    let buffers = [data.address(), 0, 0, 0, 0];
    let kernel = IronKernel { cu: 0, instructions: stream.address(), instruction_bytes: 16, buffers };
    command.write(&kernel).unwrap();
    command
}

fn submit(context: &Arc<HwCtx>, command: &mut NpuCommand, args: &[u32]) -> Result<u64, amdxdna_ioctl::Error> {
    // SAFETY: the stream has no operations, and the callers keep it and the data until the context is gone.
    unsafe { context.submit(command, args) }
}

#[test]
#[ignore = "a client"]
fn client_commands() {
    if !is_client() {
        return;
    }
    let device = device();
    let (context, stream) = context(&device);
    let data = Bo::new(&device, BoKind::Share, 1 << 16).unwrap();
    let mut command = command(&device, &stream, &data);
    for expected in 0..8 {
        let seq = submit(&context, &mut command, &[stream.handle(), data.handle()]).unwrap();
        assert_eq!(seq, expected);
        let outcome = command.wait(Deadline::after(Duration::from_secs(20))).unwrap();
        assert!(outcome.is_completed(), "{outcome:?}");
    }
}

#[test]
fn an_unmodified_client_runs_commands() {
    let (records, counts) = supervised("client_commands", Config::default());
    assert_eq!((counts.commands, counts.failed_commands, counts.contexts_destroyed), (8, 0, 1));
    let calls: Vec<&str> = records.iter().map(|record| record.call.as_str()).collect();
    assert_eq!(calls[..5], ["open", "VERSION", "GET_CAP", "CREATE_BO", "GET_BO_INFO"]);
    assert_eq!(calls.last(), Some(&"close"));
    assert_eq!(counts.buffers_live, 0, "everything was closed");
    // The addresses of a packet are the client's own, and lie in the buffers that EXEC_CMD names.
    let exec = records.iter().find(|record| record.call == "EXEC_CMD").unwrap();
    let kernel = &exec.input["packet"]["kernel"];
    assert_eq!(kernel["instruction_bytes"], 16);
    let named = [&kernel["instructions"]["bo"], &kernel["buffers"][0]["bo"]];
    assert_eq!(exec.input["args"].as_array().unwrap().iter().collect::<Vec<_>>(), named);
    assert_eq!(kernel["stream"].as_str().map(str::len), Some(64));
    // A trace is read as it was written.
    let lines: String = records.iter().map(|record| record.to_line() + "\n").collect();
    let read = Record::parse_all(&lines).unwrap();
    assert_eq!(read.len(), records.len());
    assert!(read.iter().zip(&records).all(|(a, b)| (a.number, &a.call, &a.input) == (b.number, &b.call, &b.input)));
}

#[test]
#[ignore = "a client"]
fn client_blocked() {
    if !is_client() {
        return;
    }
    let device = device();
    let (context, stream) = context(&device);
    let data = Bo::new(&device, BoKind::Share, 4096).unwrap();
    let handles = [stream.handle(), data.handle()];
    let mut commands: Vec<NpuCommand> = (0..6).map(|_| command(&device, &stream, &data)).collect();
    let returned = AtomicU32::new(0);
    let start = Instant::now();
    thread::scope(|scope| {
        // The first hangs until the driver's timer ends it; the fifth has to wait for that.
        scope.spawn(|| {
            for command in &mut commands {
                submit(&context, command, &handles).unwrap();
                returned.fetch_add(1, Ordering::SeqCst);
            }
        });
        // Meanwhile others are served.
        let mut served = 0;
        while returned.load(Ordering::SeqCst) < 6 {
            Bo::new(&device, BoKind::Share, 4096).unwrap();
            served += u32::from(returned.load(Ordering::SeqCst) == 4);
            assert!(start.elapsed() < Duration::from_secs(60));
        }
        assert!(served > 10, "{served} calls while one was blocked");
    });
}

#[test]
fn a_call_that_blocks_holds_nobody_else_up() {
    let faults = Faults { hang_command: Some(0), ..Faults::default() };
    let (records, counts) = supervised("client_blocked", Config { tdr_ms: 500, faults, ..Config::default() });
    assert_eq!(counts.resets, 1);
    assert!(records.iter().any(|record| record.call == "EXEC_CMD" && record.took > Duration::from_millis(300)));
}

#[test]
#[ignore = "a client"]
fn client_pointers() {
    if !is_client() {
        return;
    }
    let door = KernelOpener.open(Path::new(NODE)).unwrap();
    let mut bo = CreateBo { size: 64 << 20, r#type: 2, ..CreateBo::default() };
    raw(&*door, request::CREATE_BO, &mut bo).unwrap();
    // Addresses that nobody has are found out by the kernel, not by a crash of the supervisor.
    let mut version = drm::Version { name: 8192, name_len: 64, ..drm::Version::default() };
    assert_eq!(raw(&*door, request::VERSION, &mut version), Err(Errno::FAULT));
    let mut wait = drm::SyncobjTimelineWait { handles: 1 << 40, count_handles: 1, ..Default::default() };
    assert_eq!(raw(&*door, request::SYNCOBJ_TIMELINE_WAIT, &mut wait), Err(Errno::FAULT));
    // An address is the mapping's, as long as there is one.
    let mut bo = CreateBo { size: 8192, r#type: 1, ..CreateBo::default() };
    raw(&*door, request::CREATE_BO, &mut bo).unwrap();
    let info = || {
        let mut info = GetBoInfo { handle: bo.handle, ..GetBoInfo::default() };
        raw(&*door, request::GET_BO_INFO, &mut info).unwrap();
        info
    };
    assert_eq!(info().xdna_addr, u64::MAX);
    // SAFETY: no address is given; the mapping is touched by nobody after it is gone.
    unsafe {
        let at = door.map(None, 8192, info().map_offset).unwrap();
        at.write(7);
        assert_eq!(info().xdna_addr, at.as_ptr().addr() as u64);
        assert_eq!(door.map(None, 8192, info().map_offset + 4096), Err(Errno::INVAL));
        assert_eq!(door.map(None, 12288, info().map_offset), Err(Errno::INVAL));
        door.unmap(at, 8192);
    }
    assert_eq!(info().xdna_addr, u64::MAX);
    // Another open file is another client.
    let other = KernelOpener.open(Path::new(NODE)).unwrap();
    let mut info = GetBoInfo { handle: bo.handle, ..GetBoInfo::default() };
    assert_eq!(raw(&*other, request::GET_BO_INFO, &mut info), Err(Errno::NOENT));
}

#[test]
fn pointers_and_mappings_are_the_clients() {
    let (records, _) = supervised("client_pointers", Config::default());
    assert_eq!(records.iter().filter(|record| record.errno.as_deref() == Some("EFAULT")).count(), 2);
}

#[test]
#[ignore = "a client"]
fn client_interrupted() {
    extern "C" fn noted(_: i32) {
        SIGNALS.fetch_add(1, Ordering::Relaxed);
    }
    static SIGNALS: AtomicU64 = AtomicU64::new(0);
    if !is_client() {
        return;
    }
    let door = KernelOpener.open(Path::new(NODE)).unwrap();
    let every = libc::timeval { tv_sec: 0, tv_usec: 100 };
    // SAFETY: the handler counts, which may be done at any time.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = noted as extern "C" fn(i32) as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(libc::SIGALRM, &raw const action, std::ptr::null_mut());
        let timer = libc::itimerval { it_interval: every, it_value: every };
        libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut());
    }
    let mut last = 0;
    for _ in 0..2000 {
        let mut bo = CreateBo { size: 4096, r#type: 1, ..CreateBo::default() };
        match raw(&*door, request::CREATE_BO, &mut bo) {
            // Handles count up by one: no call was carried out twice.
            Ok(()) => assert_eq!(bo.handle, last + 1),
            Err(errno) => panic!("{errno}"),
        }
        last = bo.handle;
    }
    assert!(SIGNALS.load(Ordering::Relaxed) > 100);
}

#[test]
fn a_signal_does_not_make_a_call_run_twice() {
    let (_, counts) = supervised("client_interrupted", Config::default());
    assert_eq!(counts.ioctls["CREATE_BO"], 2000);
}

#[test]
fn what_is_no_device_goes_by() {
    let supervisor = Supervisor::new(Config::default(), NODE).unwrap();
    let shell = |script: &str| supervisor.run(Command::new("sh").args(["-c", script])).unwrap().code();
    assert_eq!(shell("exec 3<>/dev/null && echo x >&3 && exit 7"), Some(7));
    assert_eq!(shell("test -e /dev/accel/accel-of-the-model"), Some(1));
    assert!(supervisor.run(&mut Command::new("/nonexistent/program")).is_err());
    assert_eq!(supervisor.model().counts().opens, 0);
}

#[test]
fn two_copies_of_memory_cannot_be_shared() {
    assert!(Supervisor::new(Config { coherent: false, ..Config::default() }, NODE).is_err());
}
