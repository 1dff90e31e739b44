//! What an ioctl's argument points to: memory and files of the process that it comes from.
//!
//! That is this process, unless a thread has said that it acts [for another](on_behalf_of): what a kernel calls
//! `current`.

use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd, RawFd};
#[cfg(feature = "supervise")]
use std::{cell::RefCell, fmt::Debug, sync::Arc};

use amdxdna_ioctl::Errno;

use super::PAGE;

/// End of the user half of the address space.
const USER_END: u64 = 1 << 47;

/// Another process.
#[cfg(feature = "supervise")]
pub(crate) trait Process: Debug + Send + Sync {
    /// Reads its memory; `EFAULT`.
    fn read(&self, addr: u64, out: &mut [u8]) -> Result<(), Errno>;
    /// Writes its memory; `EFAULT`.
    fn write(&self, addr: u64, bytes: &[u8]) -> Result<(), Errno>;
    /// Duplicates a file of its into this process; `EBADF`.
    fn take(&self, fd: RawFd) -> Result<OwnedFd, Errno>;
    /// Gives it a file, close-on-exec, and says under which number.
    fn give(&self, fd: OwnedFd) -> Result<RawFd, Errno>;
}

#[cfg(feature = "supervise")]
thread_local! {
    static CURRENT: RefCell<Option<Arc<dyn Process>>> = const { RefCell::new(None) };
}

/// Runs `f` with the pointers and file numbers of ioctl arguments being another process's.
#[cfg(feature = "supervise")]
pub(crate) fn on_behalf_of<R>(process: &Arc<dyn Process>, f: impl FnOnce() -> R) -> R {
    /// Restores on unwinding too: the thread will serve others.
    struct Restore(Option<Arc<dyn Process>>);
    impl Drop for Restore {
        fn drop(&mut self) {
            CURRENT.set(self.0.take());
        }
    }
    let _restore = Restore(CURRENT.replace(Some(Arc::clone(process))));
    f()
}

#[cfg(feature = "supervise")]
fn current() -> Option<Arc<dyn Process>> {
    CURRENT.with_borrow(Clone::clone)
}

/// Whether a user pointer can be one: not in the first page, inside the user half.
pub(super) fn check_user(addr: u64, len: usize) -> Result<(), Errno> {
    let end = addr.checked_add(len as u64).ok_or(Errno::FAULT)?;
    if addr < PAGE || end > USER_END { Err(Errno::FAULT) } else { Ok(()) }
}

/// Reads from a pointer of an ioctl's argument.
///
/// # Errors
/// `EFAULT` for addresses that no process has. Anything else is the promise of whoever called the door's `ioctl`; in
/// another process, `EFAULT` for all that is not readable.
pub(crate) fn read_user(addr: u64, out: &mut [u8]) -> Result<(), Errno> {
    if out.is_empty() {
        return Ok(());
    }
    check_user(addr, out.len())?;
    #[cfg(feature = "supervise")]
    if let Some(process) = current() {
        return process.read(addr, out);
    }
    // SAFETY: the caller of `Door::ioctl` promises that the argument's pointers are valid for what the request reads.
    unsafe {
        std::ptr::copy_nonoverlapping(std::ptr::with_exposed_provenance(addr as usize), out.as_mut_ptr(), out.len());
    }
    Ok(())
}

/// Writes to a pointer of an ioctl's argument.
///
/// # Errors
/// As [`read_user`].
pub(crate) fn write_user(addr: u64, bytes: &[u8]) -> Result<(), Errno> {
    if bytes.is_empty() {
        return Ok(());
    }
    check_user(addr, bytes.len())?;
    #[cfg(feature = "supervise")]
    if let Some(process) = current() {
        return process.write(addr, bytes);
    }
    // SAFETY: the caller of `Door::ioctl` promises that the argument's pointers are valid for what the request writes.
    unsafe {
        std::ptr::copy_nonoverlapping(
            bytes.as_ptr(),
            std::ptr::with_exposed_provenance_mut(addr as usize),
            bytes.len(),
        );
    }
    Ok(())
}

/// Duplicates a file descriptor of an ioctl's argument.
///
/// # Errors
/// `EBADF`.
pub(crate) fn dup_user(fd: RawFd) -> Result<OwnedFd, Errno> {
    if fd < 0 {
        return Err(Errno::BADF);
    }
    #[cfg(feature = "supervise")]
    if let Some(process) = current() {
        return process.take(fd);
    }
    // SAFETY: the number is only handed to fcntl, which checks it; it is not closed and not kept.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    rustix::io::fcntl_dupfd_cloexec(borrowed, 0)
}

/// Gives a file descriptor away to the client, as the number that an ioctl returns.
///
/// # Errors
/// Another process may have no room for it.
pub(crate) fn give_fd(fd: OwnedFd) -> Result<RawFd, Errno> {
    #[cfg(feature = "supervise")]
    if let Some(process) = current() {
        return process.give(fd);
    }
    Ok(fd.into_raw_fd())
}
