//! The kernel behind the door.

use crate::door::{Door, Errno, Opener};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode};
use rustix::mm::{MapFlags, ProtFlags};
use std::ffi::c_void;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

/// Opens a device node of the running kernel.
///
/// The NPU is a part of x86-64 processors, and the write-back of cache lines is theirs too: on other machines
/// [`Opener::open`] fails with `EOPNOTSUPP` rather than hand out a door whose flush does nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct KernelOpener;

impl Opener for KernelOpener {
    fn open(&self, node: &Path) -> Result<Arc<dyn Door>, Errno> {
        if cfg!(not(target_arch = "x86_64")) {
            return Err(Errno::OPNOTSUPP);
        }
        let fd = rustix::fs::open(node, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Arc::new(KernelDoor { fd }))
    }
}

/// One open file of the kernel's driver.
#[derive(Debug)]
struct KernelDoor {
    fd: OwnedFd,
}

/// An ioctl as this crate has it: a request word and the bytes it sizes.
struct Raw<'a> {
    request: u32,
    argument: &'a mut [u8],
}

// SAFETY: the opcode and the pointer are what the caller of `Door::ioctl` vouches for; nothing is made of the output.
unsafe impl Ioctl for Raw<'_> {
    type Output = ();

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        self.request as Opcode
    }

    fn as_ptr(&mut self) -> *mut c_void {
        self.argument.as_mut_ptr().cast()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> Result<(), Errno> {
        Ok(())
    }
}

impl Door for KernelDoor {
    unsafe fn ioctl(&self, request: u32, argument: &mut [u8]) -> Result<(), Errno> {
        // SAFETY: `argument` has as many bytes as the request word says (checked, since the driver copies that many);
        // what its pointers refer to is the caller's promise.
        if argument.len() != crate::abi::request::argument_size(request) {
            return Err(Errno::INVAL);
        }
        // SAFETY: as above.
        unsafe { rustix::ioctl::ioctl(&self.fd, Raw { request, argument }) }
    }

    unsafe fn map(&self, at: Option<NonNull<u8>>, len: usize, offset: u64) -> Result<NonNull<u8>, Errno> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let (hint, flags) = match at {
            Some(at) => (at.as_ptr().cast(), MapFlags::SHARED | MapFlags::FIXED),
            None => (std::ptr::null_mut(), MapFlags::SHARED),
        };
        // SAFETY: a fixed address is in a reservation of the caller's, who promises so; any other is fresh memory.
        let ptr = unsafe { rustix::mm::mmap(hint, len, prot, flags, &self.fd, offset)? };
        NonNull::new(ptr.cast()).ok_or(Errno::INVAL)
    }

    unsafe fn unmap(&self, ptr: NonNull<u8>, len: usize) {
        // SAFETY: a whole mapping that nothing refers to, as the caller promises. It cannot fail for such a range.
        let _ = unsafe { rustix::mm::munmap(ptr.as_ptr().cast(), len) };
    }

    unsafe fn flush(&self, ptr: NonNull<u8>, len: usize) {
        // SAFETY: the range is mapped, as the caller promises.
        unsafe { flush_lines(ptr.as_ptr(), len) };
    }
}

/// Bytes of a cache line on every processor that has this NPU.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;

/// Writes back and drops the cache lines that the range touches, ordered against everything around it.
///
/// # Safety
/// The range must be mapped.
#[cfg(target_arch = "x86_64")]
unsafe fn flush_lines(ptr: *mut u8, len: usize) {
    use std::arch::asm;
    use std::arch::x86_64::{_mm_clflush, _mm_mfence};

    if len == 0 {
        return;
    }
    let misaligned = ptr.addr() % LINE;
    let first = ptr.wrapping_sub(misaligned);
    let lines = (misaligned + len).div_ceil(LINE);
    let optimised = has_clflushopt();
    // SAFETY: lines of mapped memory; clflush and clflushopt change no memory contents and no flags, and the processor
    // has clflushopt where it is used. SSE2 (mfence, clflush) is part of x86-64.
    unsafe {
        _mm_mfence();
        for line in 0..lines {
            let at = first.wrapping_add(line * LINE);
            if optimised {
                asm!("clflushopt [{at}]", at = in(reg) at, options(nostack, preserves_flags));
            } else {
                _mm_clflush(at);
            }
        }
        // clflushopt is ordered by nothing weaker; for clflush it orders what the device is told next.
        _mm_mfence();
    }
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn flush_lines(_: *mut u8, _: usize) {
    unreachable!("no kernel door is opened on this machine");
}

/// CPUID leaf 7, EBX bit 23.
#[cfg(target_arch = "x86_64")]
fn has_clflushopt() -> bool {
    use std::arch::x86_64::{__cpuid_count, __get_cpuid_max};
    use std::sync::OnceLock;

    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| {
        #[allow(unused_unsafe)]
        // SAFETY: every x86-64 processor has CPUID, and leaf 7 is asked for only where it exists.
        unsafe {
            __get_cpuid_max(0).0 >= 7 && __cpuid_count(7, 0).ebx >> 23 & 1 == 1
        }
    })
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn flush_leaves_the_bytes_alone_at_every_alignment() {
        let mut bytes: Vec<u8> = (0..1024u32).map(|i| i as u8).collect();
        let before = bytes.clone();
        for (start, len) in [(0, 1024), (1, 1), (63, 2), (5, 0), (100, 513)] {
            // SAFETY: inside `bytes`.
            unsafe { flush_lines(bytes.as_mut_ptr().add(start), len) };
        }
        assert_eq!(bytes, before);
    }

    #[test]
    fn errors_of_the_kernel_come_through() {
        let open = |path: &str| KernelOpener.open(Path::new(path)).map(|_| ());
        assert_eq!(open("/dev/accel/no-such-node"), Err(Errno::NOENT));
        assert_eq!(open("/"), Err(Errno::ISDIR));
        // /dev/null opens and has no such ioctl.
        let door = KernelOpener.open(Path::new("/dev/null")).unwrap();
        let mut argument = [0u8; 64];
        // SAFETY: no pointer in the argument is valid, and /dev/null looks at none.
        let answer = unsafe { door.ioctl(crate::abi::request::VERSION, &mut argument) };
        assert_eq!(answer, Err(Errno::NOTTY));
        // SAFETY: as above.
        let short = unsafe { door.ioctl(crate::abi::request::VERSION, &mut argument[..8]) };
        assert_eq!(short, Err(Errno::INVAL));
    }
}
