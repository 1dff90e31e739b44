//! The model beside another process: an unmodified program opens the device's node and finds the model behind it.
//!
//! The program runs under a seccomp filter that asks this process about the few system calls that can concern the device
//! (`filter`). Opening the node gives the program a file number of an in-memory file that holds all buffers; its ioctls
//! are carried out here by the model, which reads and writes the program's memory through the kernel; its mmap calls go
//! to the kernel, which maps that file. Buffers are shared memory, so that loads, stores and cache flushes of the
//! program run as they are.
//!
//! Needs Linux 5.19 on x86-64, no privileges. What differs from a device:
//!
//! * Memory is coherent: a flush that is missing does not show.
//! * `stat` of the node, and sysfs, are the host's: a program that looks for devices has to be told the node.
//! * User-pointer buffers are refused with `EOPNOTSUPP`, and so is the import of another client's buffer in other modes
//!   than SVA. A dma-buf cannot be mapped by itself, and what is exported is kept to the end.
//! * munmap does not wait for commands; the model keeps the mapping until they are over.
//! * A file counts as closed when no process holds it that has used it; processes that end are noticed when somebody
//!   opens the node, makes a context or asks for information, and at the end.
//! * Processes that outlive the program get `ENOSYS` for the calls that the filter asks about.

mod files;
mod filter;
mod process;
#[allow(unsafe_code)]
mod sys;

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use amdxdna_ioctl::abi::{drm, request};
use amdxdna_ioctl::{Door, Errno};
use rustix::fs::{Mode, OFlags};
use serde_json::{Value, json};

use self::files::{File, Files};
use self::process::Caller;
use self::sys::{Listener, Notification};
use crate::Model;
use crate::config::Config;
use crate::driver::{Device, known_request};
use crate::front::{Process, Store};
use crate::trace::{Fields, Trace};

/// Threads that wait for calls when nothing happens.
const IDLE_THREADS: usize = 4;
/// `_IOC_WRITE`: the driver reads the argument.
const IOC_WRITE: u32 = 1 << 30;
/// `_IOC_READ`: the driver writes the argument.
const IOC_READ: u32 = 1 << 31;
/// The part of mmap flags that says how a mapping is shared.
const MAP_TYPE: u64 = 0xf;

/// Why a program could not be supervised.
#[derive(Debug, thiserror::Error)]
pub enum SuperviseError {
    /// The configuration asks for what only a client in this process can have.
    #[error("a model beside another process has one coherent memory: `coherent` has to be true")]
    Incoherent,
    /// No memory for buffers.
    #[error("no in-memory file for the buffers: {0}")]
    Store(Errno),
    /// The program did not start.
    #[error("{program} did not start under the filter: {source} (it needs Linux 5.19 or later on x86-64)")]
    Start {
        /// As given.
        program: String,
        /// What failed.
        source: io::Error,
    },
    /// The program's end was missed.
    #[error("waiting for the program: {0}")]
    Wait(io::Error),
    /// The program took too long, and was killed.
    #[error("{program} was still running after {} s and was killed", .limit.as_secs())]
    Deadline {
        /// As given.
        program: String,
        /// What it was given.
        limit: Duration,
    },
}

/// A device for programs that run under it.
#[derive(Debug)]
pub struct Supervisor {
    model: Arc<Model>,
    node: PathBuf,
    trace: Option<Arc<Trace>>,
}

impl Supervisor {
    /// A device whose node is `node`, whether a file of that name exists or not.
    ///
    /// # Errors
    /// [`SuperviseError::Incoherent`], [`SuperviseError::Store`].
    pub fn new(config: Config, node: impl Into<PathBuf>) -> Result<Self, SuperviseError> {
        if !config.coherent {
            return Err(SuperviseError::Incoherent);
        }
        let store = Store::new("accel0").map_err(SuperviseError::Store)?;
        let model = Arc::new(Model { device: Device::with_store(config, Some(store)) });
        Ok(Self { model, node: node.into(), trace: None })
    }

    /// Records what programs do.
    #[must_use]
    pub fn with_trace(mut self, trace: Arc<Trace>) -> Self {
        self.trace = Some(trace);
        self
    }

    /// The model, to be taught and asked. It cannot be opened from this process.
    #[must_use]
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Runs a program to its end.
    ///
    /// # Errors
    /// [`SuperviseError::Start`], [`SuperviseError::Wait`].
    pub fn run(&self, command: &mut Command) -> Result<ExitStatus, SuperviseError> {
        self.run_to(command, &mut Child::wait)
    }

    /// Runs a program to its end, which may be that it takes longer than `limit`.
    ///
    /// # Errors
    /// [`SuperviseError::Start`], [`SuperviseError::Wait`], [`SuperviseError::Deadline`].
    pub fn run_within(&self, command: &mut Command, limit: Duration) -> Result<ExitStatus, SuperviseError> {
        let started = Instant::now();
        let mut late = false;
        let status = self.run_to(command, &mut |child| {
            loop {
                if let Some(status) = child.try_wait()? {
                    return Ok(status);
                }
                if started.elapsed() > limit {
                    late = true;
                    child.kill()?;
                    return child.wait();
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        match status {
            Ok(_) if late => Err(SuperviseError::Deadline { program: command_name(command), limit }),
            other => other,
        }
    }

    fn run_to(
        &self,
        command: &mut Command,
        wait: &mut dyn FnMut(&mut Child) -> io::Result<ExitStatus>,
    ) -> Result<ExitStatus, SuperviseError> {
        let program = command_name(command);
        let start = |source| SuperviseError::Start { program: program.clone(), source };
        let (mut child, listener) = match sys::spawn(command, filter::program()) {
            Ok(started) => started,
            Err(source) => return Err(start(source)),
        };
        let session = Arc::new(Session {
            device: Arc::clone(&self.model.device),
            node: self.node.clone(),
            trace: self.trace.clone(),
            listener: Arc::new(listener),
            files: Files::default(),
            idle: AtomicUsize::new(0),
        });
        session.add_thread().map_err(start)?;
        let status = wait(&mut child).map_err(SuperviseError::Wait);
        session.files.clear();
        status
    }

    /// Lets an interrupt from the terminal be the program's affair from now on: this process ignores it.
    pub fn ignore_interrupts() {
        sys::ignore_interrupts();
    }
}

fn command_name(command: &Command) -> String {
    command.get_program().to_string_lossy().into_owned()
}

/// One program, and what it started.
#[derive(Debug)]
struct Session {
    device: Arc<Device>,
    node: PathBuf,
    trace: Option<Arc<Trace>>,
    listener: Arc<Listener>,
    files: Files,
    /// Threads that wait for a call.
    idle: AtomicUsize,
}

/// How a call goes on.
enum Answer {
    /// By itself, in the kernel.
    GoOn,
    /// It returns this.
    Return(Result<i64, Errno>),
    /// It has returned already.
    Done,
}

impl Session {
    /// Starts a thread that carries out calls.
    fn add_thread(self: &Arc<Self>) -> io::Result<()> {
        self.idle.fetch_add(1, Ordering::SeqCst);
        let session = Arc::clone(self);
        let thread = std::thread::Builder::new().name("npu-supervise".into());
        thread.spawn(move || session.work()).map(drop).inspect_err(|_| {
            self.idle.fetch_sub(1, Ordering::SeqCst);
        })
    }

    /// Carries out one call after another. Some block, so that there is always another thread to take the next; when
    /// all of them are busy and no more can be had, calls wait.
    fn work(self: &Arc<Self>) {
        while let Some(notification) = self.listener.receive() {
            if self.idle.fetch_sub(1, Ordering::SeqCst) == 1 {
                let _ = self.add_thread();
            }
            match self.handle(&notification) {
                Answer::GoOn => self.listener.go_on(notification.id),
                Answer::Return(result) => self.listener.answer(notification.id, result),
                Answer::Done => {}
            }
            if self.idle.fetch_add(1, Ordering::SeqCst) >= IDLE_THREADS {
                break;
            }
        }
        self.idle.fetch_sub(1, Ordering::SeqCst);
    }

    fn handle(&self, notification: &Notification) -> Answer {
        let &Notification { id, tid, call, args } = notification;
        let caller =
            Caller { tid, pid: self.files.process(tid), notification: id, listener: Arc::clone(&self.listener) };
        match call {
            libc::SYS_openat => self.open(caller, args[1], args[2]),
            libc::SYS_open => self.open(caller, args[0], args[1]),
            libc::SYS_openat2 => {
                let mut flags = [0; 8];
                match caller.read(args[2], &mut flags) {
                    Ok(()) => self.open(caller, args[1], u64::from_ne_bytes(flags)),
                    Err(_) => Answer::GoOn,
                }
            }
            libc::SYS_mmap => self.mmap(&caller, args),
            libc::SYS_close => self.close(&caller, args[0] as RawFd),
            libc::SYS_ioctl => self.ioctl(caller, args[0] as RawFd, args[1] as u32, args[2]),
            _ => Answer::GoOn,
        }
    }

    fn record(&self, file: u32, call: &str, result: Result<(), Errno>, input: Value) {
        if let (Some(trace), Value::Object(input)) = (&self.trace, input) {
            let started = trace.begin();
            trace.end(started, file, call, result, input, Fields::new());
        }
    }

    fn open(&self, caller: Caller, path: u64, flags: u64) -> Answer {
        let wanted = self.node.as_os_str().as_bytes();
        if flags as i32 & libc::O_ACCMODE != libc::O_RDWR || caller.path(path).as_deref() != Some(wanted) {
            return Answer::GoOn;
        }
        let cloexec = flags as i32 & libc::O_CLOEXEC != 0;
        let flags = if cloexec { "O_RDWR|O_CLOEXEC" } else { "O_RDWR" };
        let input = json!({ "path": self.node.display().to_string(), "flags": flags });
        self.files.reap();
        match self.open_file(&caller) {
            Ok((number, file)) => {
                let traced = file.traced.as_ref().map_or(0, |traced| traced.file());
                self.record(traced, "open", Ok(()), input);
                // Known before the program is: its next call may come at once.
                self.files.insert(caller.pid, number as RawFd, Arc::clone(&file));
                let given =
                    self.listener.give(caller.notification, file.description.as_fd(), Some(number), cloexec, true);
                match given {
                    Ok(_) => Answer::Done,
                    Err(errno) => {
                        self.files.remove(caller.pid, number as RawFd);
                        Answer::Return(Err(errno))
                    }
                }
            }
            Err(errno) => {
                self.record(0, "open", Err(errno), input);
                Answer::Return(Err(errno))
            }
        }
    }

    fn open_file(&self, caller: &Caller) -> Result<(u32, Arc<File>), Errno> {
        let number = self.files.free_number(caller).ok_or(Errno::MFILE)?;
        let remote = self.device.open_remote(caller.pid)?;
        let store = self.device.store_file().ok_or(Errno::NODEV)?;
        // An open file of its own, so that those of one device can be told apart.
        let path = format!("/proc/self/fd/{}", store.as_raw_fd());
        let description = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let inode = rustix::fs::fstat(&description)?.st_ino;
        let traced = self.trace.as_ref().map(|trace| trace.door(Arc::clone(&remote) as Arc<dyn Door>));
        Ok((number, Arc::new(File::new(remote, traced, description, inode, caller.pid))))
    }

    fn mmap(&self, caller: &Caller, args: [u64; 6]) -> Answer {
        let [_, len, prot, flags, fd, offset] = args;
        let Some(file) = self.files.find(caller, fd as RawFd) else { return Answer::GoOn };
        let private = flags & MAP_TYPE == libc::MAP_PRIVATE as u64;
        let result = if private { Err(Errno::INVAL) } else { file.remote.check_map(len, offset) };
        let number = file.traced.as_ref().map_or(0, |traced| traced.file());
        let input = json!({
            "fixed": flags & (libc::MAP_FIXED as u64) != 0,
            "len": len,
            "prot": protection(prot),
            "offset": format!("{offset:#x}"),
        });
        self.record(number, "mmap", result, input);
        if let Err(errno) = result {
            return Answer::Return(Err(errno));
        }
        // Which of two mappings was first counts.
        file.sync(caller, false);
        file.will_map(caller, offset);
        Answer::GoOn
    }

    fn close(&self, caller: &Caller, fd: RawFd) -> Answer {
        drop(self.files.remove(caller.pid, fd));
        Answer::GoOn
    }

    fn ioctl(&self, caller: Caller, fd: RawFd, asked: u32, address: u64) -> Answer {
        let Some(file) = self.files.find(&caller, fd) else { return Answer::GoOn };
        let mut argument = vec![0; request::argument_size(asked)];
        if asked & IOC_WRITE != 0 && caller.read(address, &mut argument).is_err() {
            return Answer::Return(Err(Errno::FAULT));
        }
        // The thread may be gone and its number another's: what was read is nothing then.
        if !self.listener.is_waiting(caller.notification) {
            return Answer::Done;
        }
        let handle = |at: usize| {
            argument.get(at..at + 4).map_or(0, |bytes| u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
        };
        let known = known_request(asked).unwrap_or(asked);
        let about = match known {
            request::GET_BO_INFO => handle(std::mem::offset_of!(amdxdna_ioctl::abi::GetBoInfo, handle)),
            request::GEM_CLOSE => handle(std::mem::offset_of!(drm::GemClose, handle)),
            _ => 0,
        };
        // The end of a process comes without notice, and others may ask about what it had.
        if matches!(known, request::GET_INFO | request::GET_ARRAY | request::CREATE_HWCTX) {
            self.files.reap();
        }
        // So does unmapping.
        file.sync(&caller, about != 0 && file.remote.is_mapped(about));
        let caller = Arc::new(caller);
        let process: Arc<dyn Process> = Arc::clone(&caller) as _;
        let mut result = sys::ioctl_for(&process, file.door(), asked, &mut argument);
        if asked & IOC_READ != 0 && caller.write(address, &argument).is_err() {
            result = result.and(Err(Errno::FAULT));
        }
        Answer::Return(result.map(|()| 0))
    }
}

fn protection(prot: u64) -> String {
    let names = [(libc::PROT_READ, "PROT_READ"), (libc::PROT_WRITE, "PROT_WRITE"), (libc::PROT_EXEC, "PROT_EXEC")];
    let set: Vec<&str> = names.iter().filter(|(bit, _)| prot & *bit as u64 != 0).map(|(_, name)| *name).collect();
    if set.is_empty() { "PROT_NONE".into() } else { set.join("|") }
}
