//! Whether this process is still the one that opened the device, without asking the kernel each time.

use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

const PAGE: usize = 4096;
const HERE: u32 = 1;

/// This process.
pub(crate) fn pid() -> u32 {
    rustix::process::getpid().as_raw_nonzero().get().unsigned_abs()
}

/// Remembers the process that made it. A page that the kernel zeroes in a forked child (`MADV_WIPEONFORK`) tells them
/// apart, since a system call for each flush and submission would be as many as the ioctls themselves.
#[derive(Debug)]
pub(crate) struct Opener {
    pid: u32,
    /// `None` where the kernel does not wipe pages: then it is asked.
    page: Option<NonNull<AtomicU32>>,
}

// SAFETY: the page is the opener's own, for as long as it lives, and is only reached as an atomic.
unsafe impl Send for Opener {}
// SAFETY: as above.
unsafe impl Sync for Opener {}

impl Opener {
    pub(crate) fn new() -> Opener {
        Opener { pid: pid(), page: wiped_page() }
    }

    /// The process that opened.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// This is that process.
    pub(crate) fn is_here(&self) -> bool {
        match self.page {
            // SAFETY: a live mapping of a page.
            Some(page) => unsafe { page.as_ref() }.load(Ordering::Relaxed) == HERE,
            None => pid() == self.pid,
        }
    }
}

fn wiped_page() -> Option<NonNull<AtomicU32>> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
    let page = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), PAGE, access, MapFlags::PRIVATE) }.ok()?;
    // SAFETY: the page just made; no value of Rust is in it yet.
    if unsafe { rustix::mm::madvise(page, PAGE, Advice::LinuxWipeOnFork) }.is_err() {
        // SAFETY: as above; nothing refers to it.
        let _ = unsafe { rustix::mm::munmap(page, PAGE) };
        return None;
    }
    let page = NonNull::new(page.cast::<AtomicU32>())?;
    // SAFETY: live, aligned to a page, and zeroes are an atomic.
    unsafe { page.as_ref() }.store(HERE, Ordering::Relaxed);
    Some(page)
}

impl Drop for Opener {
    fn drop(&mut self) {
        if let Some(page) = self.page {
            // SAFETY: the page made in `wiped_page`; its last user is here.
            let _ = unsafe { rustix::mm::munmap(page.as_ptr().cast(), PAGE) };
        }
    }
}
