//! The kernel's side of supervising a process: seccomp notifications, and access to the process's memory and files.

use std::ffi::c_void;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::Arc;

use amdxdna_ioctl::{Door, Errno};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};

use crate::front::{Process, on_behalf_of};

/// A system call that a client waits in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Notification {
    pub(super) id: u64,
    /// Of the thread.
    pub(super) tid: u32,
    pub(super) call: i64,
    pub(super) args: [u64; 6],
}

/// Where notifications come from.
#[derive(Debug)]
pub(super) struct Listener {
    fd: OwnedFd,
}

fn last() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Puts the filter on this thread.
fn install(program: &[libc::sock_filter]) -> io::Result<OwnedFd> {
    rustix::thread::set_no_new_privs(true)?;
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    // Without the second flag a signal makes a call that was answered already run again.
    let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    // SAFETY: the kernel reads `len` instructions, which are there; the filter affects this thread and its children,
    // and lets everything pass that it does not ask about.
    let fd = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this file for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

fn send_fd(socket: &UnixStream, fd: BorrowedFd<'_>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [fd];
    control.push(SendAncillaryMessage::ScmRights(&fds));
    rustix::net::sendmsg(socket, &[io::IoSlice::new(&[0])], &mut control, SendFlags::empty())?;
    Ok(())
}

fn receive_fd(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    rustix::net::recvmsg(socket, &mut [io::IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut fds = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let fd = fds.next().and_then(|mut fds| fds.next());
    fd.ok_or_else(|| io::Error::other("the program ended before its filter was in place"))
}

/// Starts a program with the filter on it.
pub(super) fn spawn(command: &mut Command, program: Vec<libc::sock_filter>) -> io::Result<(Child, Listener)> {
    let (ours, theirs) = UnixStream::pair()?;
    let child = {
        let theirs = theirs.as_fd().try_clone_to_owned()?;
        let theirs = UnixStream::from(theirs);
        // SAFETY: between fork and exec this only makes system calls on memory that exists already: no allocation, no
        // lock. None of its calls is one that the filter asks about.
        unsafe {
            command.pre_exec(move || {
                let listener = install(&program)?;
                send_fd(&theirs, listener.as_fd())
            });
        }
        command.spawn()?
    };
    drop(theirs);
    let listener = Listener { fd: receive_fd(&ours)? };
    // A hint that the two take turns; kernels before 6.6 do not know it.
    let _ = listener.ioctl(libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS, std::ptr::without_provenance_mut(1));
    Ok((child, listener))
}

impl Listener {
    fn ioctl(&self, request: libc::Ioctl, argument: *mut c_void) -> Result<i32, Errno> {
        // SAFETY: private to this type, whose methods pass what each request of a seccomp listener wants.
        let result = unsafe { libc::ioctl(self.fd.as_raw_fd(), request, argument) };
        if result < 0 { Err(last()) } else { Ok(result) }
    }

    /// Waits for a call. `None` when nobody is left who could make one.
    pub(super) fn receive(&self) -> Option<Notification> {
        loop {
            // SAFETY: integers alone; the kernel wants zeroes.
            let mut got: libc::seccomp_notif = unsafe { std::mem::zeroed() };
            match self.ioctl(libc::SECCOMP_IOCTL_NOTIF_RECV, (&raw mut got).cast()) {
                Ok(_) => {
                    let libc::seccomp_data { nr, args, .. } = got.data;
                    return Some(Notification { id: got.id, tid: got.pid, call: i64::from(nr), args });
                }
                Err(Errno::INTR) => {}
                // The caller died meanwhile, or all of them have.
                Err(Errno::NOENT) if !self.is_over() => {}
                Err(_) => return None,
            }
        }
    }

    fn is_over(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, which is ours.
        let ready = unsafe { libc::poll(&raw mut poll, 1, 0) };
        ready > 0 && poll.revents & libc::POLLHUP != 0
    }

    /// Whether the call is still waiting: what was read of its process since it came is of that process.
    pub(super) fn is_waiting(&self, id: u64) -> bool {
        let mut id = id;
        self.ioctl(libc::SECCOMP_IOCTL_NOTIF_ID_VALID, (&raw mut id).cast()).is_ok()
    }

    /// Lets the call return. That its thread may be gone is not an error.
    pub(super) fn answer(&self, id: u64, result: Result<i64, Errno>) {
        let (val, error) = match result {
            Ok(value) => (value, 0),
            Err(errno) => (0, -errno.raw_os_error()),
        };
        let mut answer = libc::seccomp_notif_resp { id, val, error, flags: 0 };
        let _ = self.ioctl(libc::SECCOMP_IOCTL_NOTIF_SEND, (&raw mut answer).cast());
    }

    /// Lets the kernel carry the call out.
    pub(super) fn go_on(&self, id: u64) {
        let flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
        let mut answer = libc::seccomp_notif_resp { id, val: 0, error: 0, flags };
        let _ = self.ioctl(libc::SECCOMP_IOCTL_NOTIF_SEND, (&raw mut answer).cast());
    }

    /// Gives the caller a file, under the number `at` (replacing what is there) if one is given, and lets its call
    /// return that number if `answer`.
    pub(super) fn give(
        &self,
        id: u64,
        fd: BorrowedFd<'_>,
        at: Option<u32>,
        cloexec: bool,
        answer: bool,
    ) -> Result<RawFd, Errno> {
        let mut flags = 0;
        if at.is_some() {
            flags |= libc::SECCOMP_ADDFD_FLAG_SETFD;
        }
        if answer {
            flags |= libc::SECCOMP_ADDFD_FLAG_SEND;
        }
        let mut add = libc::seccomp_notif_addfd {
            id,
            flags: flags as u32,
            srcfd: fd.as_raw_fd() as u32,
            newfd: at.unwrap_or(0),
            newfd_flags: if cloexec { libc::O_CLOEXEC as u32 } else { 0 },
        };
        self.ioctl(libc::SECCOMP_IOCTL_NOTIF_ADDFD, (&raw mut add).cast())
    }
}

/// Reads the memory of a process, all of `out` or nothing that counts.
pub(super) fn read_memory(tid: u32, addr: u64, out: &mut [u8]) -> Result<(), Errno> {
    let local = libc::iovec { iov_base: out.as_mut_ptr().cast(), iov_len: out.len() };
    let remote = libc::iovec { iov_base: std::ptr::without_provenance_mut(addr as usize), iov_len: out.len() };
    // SAFETY: the kernel writes at most `out.len()` bytes to `out`; the other address is not of this process.
    let n = unsafe { libc::process_vm_readv(tid as i32, &raw const local, 1, &raw const remote, 1, 0) };
    if n == out.len() as isize { Ok(()) } else { Err(Errno::FAULT) }
}

/// Writes the memory of a process.
pub(super) fn write_memory(tid: u32, addr: u64, bytes: &[u8]) -> Result<(), Errno> {
    let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: std::ptr::without_provenance_mut(addr as usize), iov_len: bytes.len() };
    // SAFETY: the kernel only reads `bytes`; the other address is not of this process.
    let n = unsafe { libc::process_vm_writev(tid as i32, &raw const local, 1, &raw const remote, 1, 0) };
    if n == bytes.len() as isize { Ok(()) } else { Err(Errno::FAULT) }
}

/// Whether a file number of another process means the same open file as ours.
pub(super) fn is_same_file(ours: BorrowedFd<'_>, tid: u32, fd: RawFd) -> bool {
    /// `KCMP_FILE`.
    const FILE: libc::c_int = 0;
    let me = std::process::id() as libc::pid_t;
    // SAFETY: numbers in, a number out.
    let order = unsafe { libc::syscall(libc::SYS_kcmp, me, tid as libc::pid_t, FILE, ours.as_raw_fd(), fd) };
    order == 0
}

/// Issues an ioctl whose pointers are those of another process.
pub(super) fn ioctl_for(
    process: &Arc<dyn Process>,
    door: &dyn Door,
    request: u32,
    argument: &mut [u8],
) -> Result<(), Errno> {
    // SAFETY: for the time of the call the model takes every pointer as one into `process`, and goes there through the
    // kernel, which checks it. It has no other door here.
    on_behalf_of(process, || unsafe { door.ioctl(request, argument) })
}

/// The terminal's interrupt is the program's to handle; the supervisor has to outlive it.
pub(super) fn ignore_interrupts() {
    for signal in [libc::SIGINT, libc::SIGQUIT] {
        // SAFETY: ignoring a signal runs no code of ours.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}
