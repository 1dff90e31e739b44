//! Access to device memory: the one place of the array that touches raw pointers.
#![expect(unsafe_code, reason = "device memory is host memory that others share")]

use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// A device address that does not lie in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("device access to {len} bytes at {addr:#x} (write: {write}) hits no single buffer object")]
pub(crate) struct MemoryFault {
    /// First address.
    pub(crate) addr: u64,
    /// Bytes.
    pub(crate) len: usize,
    /// Whether it was a write.
    pub(crate) write: bool,
}

/// Memory as the device sees it.
pub(crate) trait DeviceMemory: Sync {
    /// Resolves `[addr, addr + len)`, without the shim's 0x8000_0000 offset, to host memory inside one buffer object.
    /// Returns where it starts and how many of its bytes, at least one, lie there in one piece; the rest is asked for
    /// again. The memory stays valid, readable and (if `write`) writable as long as `self` lives.
    fn resolve(&self, addr: u64, len: usize, write: bool) -> Result<(NonNull<u8>, usize), MemoryFault>;

    /// The same for reading, if all of it lies in one piece and nobody can write there while a command runs: no other
    /// process or guest reaches the pages, and the client, which submits from this one, has promised to leave alone what
    /// its commands use. Commands of one device do not run at the same time. Where in doubt it is `None`, and the bytes
    /// are copied.
    fn unshared(&self, addr: u64, len: usize) -> Option<NonNull<u8>> {
        let _ = (addr, len);
        None
    }
}

/// Bytes of one atomic access.
const WORD: usize = size_of::<u64>();

/// Copies out of memory that others may be writing, another process or a guest among them: in single accesses of
/// whole words, each of which gives what was there at some time. A slice of such memory would be a lie to the compiler.
///
/// # Safety
/// `from` is valid for reads and writes of `out.len()` bytes, and no value of Rust lies there.
pub(crate) unsafe fn copy_out(from: NonNull<u8>, out: &mut [u8]) {
    let from = from.as_ptr();
    let head = from.align_offset(WORD).min(out.len());
    let (start, rest) = out.split_at_mut(head);
    // SAFETY: each access lies inside the caller's range, and words are aligned behind the head.
    let byte = |at: usize| unsafe { AtomicU8::from_ptr(from.add(at)) }.load(Ordering::Relaxed);
    for (at, out) in start.iter_mut().enumerate() {
        *out = byte(at);
    }
    let (words, tail) = rest.as_chunks_mut::<WORD>();
    for (at, out) in words.iter_mut().enumerate() {
        // SAFETY: as above.
        let word = unsafe { AtomicU64::from_ptr(from.add(head + at * WORD).cast()) };
        *out = word.load(Ordering::Relaxed).to_ne_bytes();
    }
    let done = head + words.len() * WORD;
    for (at, out) in tail.iter_mut().enumerate() {
        *out = byte(done + at);
    }
}

/// Copies into memory that others may be using, as [`copy_out`] does out of it.
///
/// # Safety
/// As of [`copy_out`].
pub(crate) unsafe fn copy_in(to: NonNull<u8>, data: &[u8]) {
    let to = to.as_ptr();
    let head = to.align_offset(WORD).min(data.len());
    let (start, rest) = data.split_at(head);
    // SAFETY: each access lies inside the caller's range, and words are aligned behind the head.
    let byte = |at: usize, value: u8| unsafe { AtomicU8::from_ptr(to.add(at)) }.store(value, Ordering::Relaxed);
    for (at, &value) in start.iter().enumerate() {
        byte(at, value);
    }
    let (words, tail) = rest.as_chunks::<WORD>();
    for (at, value) in words.iter().enumerate() {
        // SAFETY: as above.
        let word = unsafe { AtomicU64::from_ptr(to.add(head + at * WORD).cast()) };
        word.store(u64::from_ne_bytes(*value), Ordering::Relaxed);
    }
    let done = head + words.len() * WORD;
    for (at, &value) in tail.iter().enumerate() {
        byte(done + at, value);
    }
}

/// A contiguous run of device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Device address.
    pub(super) addr: u64,
    /// Bytes.
    pub(super) len: u64,
}

/// Calls `f(position in the sequence, address, bytes)` for the parts of `pieces` that hold bytes
/// `[start, start + len)` of the sequence they form.
fn parts(
    pieces: &[Piece],
    start: u64,
    len: usize,
    mut f: impl FnMut(usize, u64, usize) -> Result<(), MemoryFault>,
) -> Result<(), MemoryFault> {
    let end = start + len as u64;
    let mut at = 0;
    for piece in pieces {
        let (from, to) = (start.max(at), end.min(at + piece.len));
        if from < to {
            f((from - start) as usize, piece.addr + (from - at), (to - from) as usize)?;
        }
        at += piece.len;
        if at >= end {
            break;
        }
    }
    Ok(())
}

/// Resolves a range and calls `f(offset, pointer, bytes)` for what lies in one piece.
fn resolved(
    memory: &dyn DeviceMemory,
    addr: u64,
    len: usize,
    write: bool,
    mut f: impl FnMut(usize, NonNull<u8>, usize),
) -> Result<(), MemoryFault> {
    let mut done = 0;
    while done < len {
        let (pointer, got) = memory.resolve(addr + done as u64, len - done, write)?;
        let got = got.min(len - done);
        if got == 0 {
            return Err(MemoryFault { addr, len, write });
        }
        f(done, pointer, got);
        done += got;
    }
    Ok(())
}

/// Reads bytes `[start, start + out.len())` of the sequence that `pieces` form.
pub(super) fn read(memory: &dyn DeviceMemory, pieces: &[Piece], start: u64, out: &mut [u8]) -> Result<(), MemoryFault> {
    let len = out.len();
    parts(pieces, start, len, |position, addr, len| {
        resolved(memory, addr, len, false, |done, pointer, got| {
            let out = &mut out[position + done..position + done + got];
            // SAFETY: `resolve` promises `got` bytes while `memory` lives, and `out` is as long. All such memory is mapped
            // writable, which is what an atomic asks for.
            unsafe { copy_out(pointer, out) };
        })
    })
}

/// Writes `data` to bytes `[start, start + data.len())` of the sequence that `pieces` form.
pub(super) fn write(memory: &dyn DeviceMemory, pieces: &[Piece], start: u64, data: &[u8]) -> Result<(), MemoryFault> {
    parts(pieces, start, data.len(), |position, addr, len| {
        resolved(memory, addr, len, true, |done, pointer, got| {
            let data = &data[position + done..position + done + got];
            // SAFETY: `resolve` promises `got` writable bytes while `memory` lives; `data` is as long and our own.
            unsafe { copy_in(pointer, data) };
        })
    })
}

/// Bytes `[start, start + len)` of the sequence: in place where they lie in one piece that nobody else can write, else
/// gathered in `scratch`.
fn bytes<'a>(
    memory: &'a dyn DeviceMemory,
    pieces: &[Piece],
    start: u64,
    len: usize,
    scratch: &'a mut Vec<u8>,
) -> Result<&'a [u8], MemoryFault> {
    let mut whole = None;
    parts(pieces, start, len, |_, addr, part| {
        if part == len {
            whole = memory.unshared(addr, len);
        }
        Ok(())
    })?;
    if let Some(pointer) = whole {
        // SAFETY: `unshared` promises `len` readable bytes while `memory` lives, which the result does not outlive, and
        // that nobody writes them meanwhile. The array itself writes only after what it has read is let go.
        return Ok(unsafe { std::slice::from_raw_parts(pointer.as_ptr(), len) });
    }
    scratch.resize(len, 0);
    read(memory, pieces, start, scratch)?;
    Ok(scratch)
}

/// Calls `f` with bytes `[start, start + len)` of the sequence, as [`bytes`] gives them; each thread keeps its memory
/// for what has to be gathered.
pub(super) fn whole(
    memory: &dyn DeviceMemory,
    pieces: &[Piece],
    start: u64,
    len: usize,
    f: impl FnOnce(&[u8]),
) -> Result<(), MemoryFault> {
    thread_local! { static GATHERED: Cell<Vec<u8>> = const { Cell::new(Vec::new()) }; }
    let mut gathered = GATHERED.take();
    let done = bytes(memory, pieces, start, len, &mut gathered).map(f);
    GATHERED.set(gathered);
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    /// Memory of another process: never in place.
    struct Foreign(NonNull<u8>, usize);

    // SAFETY: reached through atomics only.
    unsafe impl Sync for Foreign {}

    impl DeviceMemory for Foreign {
        fn resolve(&self, addr: u64, len: usize, write: bool) -> Result<(NonNull<u8>, usize), MemoryFault> {
            let fault = MemoryFault { addr, len, write };
            if addr as usize + len > self.1 {
                return Err(fault);
            }
            // SAFETY: in bounds.
            Ok((unsafe { self.0.add(addr as usize) }, len))
        }
    }

    #[test]
    fn copies_are_the_bytes_at_every_alignment_and_touch_nothing_else() {
        let source: Vec<u8> = (0..64).collect();
        for start in 0..17 {
            for len in 0..32 {
                let mut page = [u64::from_ne_bytes([0xEE; 8]); 8];
                let memory = Foreign(NonNull::from(&mut page).cast(), 64);
                let piece = [Piece { addr: start, len: len as u64 }];
                write(&memory, &piece, 0, &source[..len]).unwrap();
                let mut back = vec![0; len];
                read(&memory, &piece, 0, &mut back).unwrap();
                assert_eq!(back, source[..len]);
                let all: Vec<u8> = page.iter().flat_map(|word| word.to_ne_bytes()).collect();
                let around = all.iter().enumerate().filter(|(i, _)| *i < start as usize || *i >= start as usize + len);
                assert!(around.into_iter().all(|(_, &byte)| byte == 0xEE), "{start} {len}");
            }
        }
    }

    /// The fault: slices were made over memory that another process may be writing. What is used has to be a copy that
    /// no longer changes.
    #[test]
    fn bytes_that_others_can_write_are_a_copy() {
        let mut page = vec![0_u64; 512];
        let memory = Foreign(NonNull::from(&mut page[..]).cast(), 4096);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut value = 0_u64;
                while !stop.load(Ordering::Relaxed) {
                    value = value.wrapping_add(1);
                    let piece = [Piece { addr: 0, len: 4096 }];
                    write(&memory, &piece, 0, &value.to_ne_bytes().repeat(512)).unwrap();
                }
            });
            let mut scratch = Vec::new();
            for _ in 0..200 {
                let piece = [Piece { addr: 0, len: 4096 }];
                let bytes = bytes(&memory, &piece, 0, 4096, &mut scratch).unwrap();
                assert!(!memory.0.as_ptr().addr().eq(&bytes.as_ptr().addr()));
                let before = bytes.to_vec();
                std::thread::yield_now();
                assert_eq!(bytes, before);
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
