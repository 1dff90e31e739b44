//! Access to device memory: the one place of the array that touches raw pointers.
#![expect(unsafe_code, reason = "device memory is host memory that others share")]

use std::ptr::NonNull;

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
            // SAFETY: `resolve` promises `got` readable bytes while `memory` lives; `out` is as long and our own.
            unsafe { pointer.as_ptr().copy_to_nonoverlapping(out.as_mut_ptr(), got) };
        })
    })
}

/// Writes `data` to bytes `[start, start + data.len())` of the sequence that `pieces` form.
pub(super) fn write(memory: &dyn DeviceMemory, pieces: &[Piece], start: u64, data: &[u8]) -> Result<(), MemoryFault> {
    parts(pieces, start, data.len(), |position, addr, len| {
        resolved(memory, addr, len, true, |done, pointer, got| {
            let data = &data[position + done..position + done + got];
            // SAFETY: `resolve` promises `got` writable bytes while `memory` lives; `data` is as long and our own, and
            // only one thread of the array writes at a time.
            unsafe { pointer.as_ptr().copy_from_nonoverlapping(data.as_ptr(), got) };
        })
    })
}

/// Bytes `[start, start + len)` of the sequence: in place where they lie in one piece, else gathered in `scratch`.
///
/// Meant for weights: the host must not write them while the command runs.
pub(super) fn bytes<'a>(
    memory: &'a dyn DeviceMemory,
    pieces: &[Piece],
    start: u64,
    len: usize,
    scratch: &'a mut Vec<u8>,
) -> Result<&'a [u8], MemoryFault> {
    let mut whole = None;
    parts(pieces, start, len, |_, addr, part| {
        if part == len {
            let (pointer, got) = memory.resolve(addr, len, false)?;
            whole = (got >= len).then_some(pointer);
        }
        Ok(())
    })?;
    if let Some(pointer) = whole {
        // SAFETY: `resolve` promises `len` readable bytes while `memory` lives, and the result does not outlive it.
        // Command buffers belong to the device until the command has completed, so nobody writes them meanwhile.
        return Ok(unsafe { std::slice::from_raw_parts(pointer.as_ptr(), len) });
    }
    scratch.clear();
    scratch.resize(len, 0);
    read(memory, pieces, start, scratch)?;
    Ok(scratch)
}
