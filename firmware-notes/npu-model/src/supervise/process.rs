//! The process behind a call.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::sync::Arc;

use amdxdna_ioctl::Errno;
use rustix::process::{ForeignRawFd, Pid, PidfdFlags, PidfdGetfdFlags};

use super::sys::{self, Listener};
use crate::driver::Piece;
use crate::front::Process;

/// Longest path that the kernel takes.
const PATH_MAX: usize = 4096;
/// Pages end here at the latest: a string may end right before one that is not there.
const CHUNK: usize = 256;

/// The thread that waits in a call.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) tid: u32,
    /// Of its process.
    pub(super) pid: u32,
    pub(super) notification: u64,
    pub(super) listener: Arc<Listener>,
}

impl Caller {
    /// A path in its memory.
    pub(super) fn path(&self, mut addr: u64) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        while out.len() < PATH_MAX {
            let n = CHUNK - addr as usize % CHUNK;
            let mut bytes = vec![0; n];
            self.read(addr, &mut bytes).ok()?;
            if let Some(end) = bytes.iter().position(|&byte| byte == 0) {
                out.extend_from_slice(&bytes[..end]);
                return Some(out);
            }
            out.extend_from_slice(&bytes);
            addr = addr.checked_add(n as u64)?;
        }
        None
    }
}

impl Process for Caller {
    fn read(&self, addr: u64, out: &mut [u8]) -> Result<(), Errno> {
        sys::read_memory(self.tid, addr, out)
    }

    fn write(&self, addr: u64, bytes: &[u8]) -> Result<(), Errno> {
        sys::write_memory(self.tid, addr, bytes)
    }

    fn take(&self, fd: RawFd) -> Result<OwnedFd, Errno> {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw).ok_or(Errno::BADF)?;
        let process = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
        rustix::process::pidfd_getfd(&process, fd as ForeignRawFd, PidfdGetfdFlags::empty())
    }

    fn give(&self, fd: OwnedFd) -> Result<RawFd, Errno> {
        self.listener.give(self.notification, fd.as_fd(), None, true, false)
    }
}

/// The process of a thread.
pub(super) fn of_thread(tid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()
}

/// Whether a process is there and not only waiting to be asked for its exit code.
pub(super) fn is_alive(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|status| status_is_alive(&status))
}

/// The first thread of a process may end before the others.
fn status_is_alive(status: &str) -> bool {
    let field = |name| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let over = field("State:").is_none_or(|state| state.starts_with(['Z', 'X']));
    let others = field("Threads:").and_then(|threads| threads.parse().ok()).is_some_and(|threads: u32| threads > 1);
    !over || others
}

/// File numbers of a process.
pub(super) fn files(pid: u32) -> Vec<RawFd> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The pieces of a file that a process has mapped, by address.
pub(super) fn mappings(pid: u32, inode: u64) -> Vec<Piece> {
    let Ok(maps) = fs::File::open(format!("/proc/{pid}/maps")) else { return Vec::new() };
    let mut pieces: Vec<Piece> = Vec::new();
    let mut maps = BufReader::with_capacity(1 << 16, maps);
    let mut line = Vec::new();
    while maps.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
        let piece = std::str::from_utf8(&line).ok().and_then(|line| mapping(line, inode));
        line.clear();
        let Some(piece) = piece else { continue };
        match pieces.last_mut() {
            // One mapping whose parts have other properties.
            Some(last) if last.addr + last.len == piece.addr && last.offset + last.len == piece.offset => {
                last.len += piece.len;
            }
            _ => pieces.push(piece),
        }
    }
    pieces
}

/// One line of `/proc/<pid>/maps`, if it is of that file.
fn mapping(line: &str, inode: u64) -> Option<Piece> {
    let mut fields = line.split_ascii_whitespace();
    let (range, _access, offset, _device, found) =
        (fields.next()?, fields.next()?, fields.next()?, fields.next()?, fields.next()?);
    if found.parse() != Ok(inode) || !fields.next()?.starts_with("/memfd:") {
        return None;
    }
    let hex = |text| u64::from_str_radix(text, 16).ok();
    let (start, end) = range.split_once('-')?;
    let addr = hex(start)?;
    Some(Piece { addr, len: hex(end)?.checked_sub(addr)?, offset: hex(offset)? })
}

#[cfg(test)]
mod tests {
    use super::{Piece, mapping, status_is_alive};

    #[test]
    fn lines_of_maps() {
        let line = "7f0c00000000-7f0c04000000 rw-s 100000000 00:01 1042                    /memfd:accel0 (deleted)\n";
        let piece = Piece { addr: 0x7f0c_0000_0000, len: 64 << 20, offset: 1 << 32 };
        assert_eq!(mapping(line, 1042), Some(piece));
        assert_eq!(mapping(line, 1043), None);
        assert_eq!(mapping("7f0c00000000-7f0c04000000 rw-p 00000000 08:01 1042 /lib/x.so", 1042), None);
        assert_eq!(mapping("7f0c00000000-7f0c04000000 rw-p 00000000 00:00 0", 0), None);
    }

    #[test]
    fn zombies_are_gone() {
        assert!(status_is_alive("Name:\tx\nState:\tS (sleeping)\nThreads:\t1\n"));
        assert!(!status_is_alive("Name:\tx\nState:\tZ (zombie)\nThreads:\t1\n"));
        assert!(status_is_alive("Name:\tx\nState:\tZ (zombie)\nThreads:\t3\n"));
    }
}
