//! A door that records what passes it.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use amdxdna_ioctl::abi::{self, drm, request};
use amdxdna_ioctl::{Door, Errno};
use serde_json::json;

use super::known::Known;
use super::{Fields, Trace, decode, hex};
use crate::driver::known_request;

/// A door that records. Pointers of arguments are followed as the driver behind it does, in reading only: the promises
/// of [`Door::ioctl`]'s caller cover it. Flushes are not recorded: they are no calls of the kernel.
#[derive(Debug)]
pub struct TracedDoor {
    trace: Arc<Trace>,
    file: u32,
    inner: Arc<dyn Door>,
    known: Mutex<Known>,
}

impl TracedDoor {
    pub(super) fn new(trace: Arc<Trace>, file: u32, inner: Arc<dyn Door>) -> Self {
        Self { trace, file, inner, known: Mutex::default() }
    }

    /// Its number in the trace.
    pub(crate) fn file(&self) -> u32 {
        self.file
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes where another process has mapped a buffer.
    #[cfg(feature = "supervise")]
    pub(crate) fn mapped(&self, offset: u64, addr: u64, len: u64) {
        self.known().mapped(offset, addr, len);
    }

    /// Remembers what a successful call means for later ones.
    fn learn(&self, asked: u32, argument: &[u8]) {
        match asked {
            request::CREATE_BO => {
                let a: abi::CreateBo = decode::read(argument);
                self.known().created(a.handle, a.r#type, a.size);
            }
            request::GET_BO_INFO => {
                let a: abi::GetBoInfo = decode::read(argument);
                self.known().described(a.handle, a.map_offset, a.xdna_addr);
            }
            request::GEM_CLOSE => {
                let a: drm::GemClose = decode::read(argument);
                self.known().closed(a.handle);
            }
            _ => {}
        }
    }
}

impl Door for TracedDoor {
    unsafe fn ioctl(&self, asked: u32, argument: &mut [u8]) -> Result<(), Errno> {
        // The driver goes by the number alone.
        let request = known_request(asked).unwrap_or(asked);
        let mut input = decode::inputs(request, argument, &mut self.known());
        if request != asked {
            input.insert("request".into(), hex(u64::from(asked)));
        }
        let started = self.trace.begin();
        // SAFETY: the caller's promise is for the door behind this one.
        let result = unsafe { self.inner.ioctl(asked, argument) };
        let output = if result.is_ok() {
            self.learn(request, argument);
            decode::outputs(request, argument)
        } else {
            Fields::new()
        };
        let call = request::name(request).map_or_else(|| format!("ioctl {asked:#x}"), str::to_owned);
        self.trace.end(started, self.file, call, result, input, output);
        result
    }

    unsafe fn map(&self, at: Option<NonNull<u8>>, len: usize, offset: u64) -> Result<NonNull<u8>, Errno> {
        let started = self.trace.begin();
        // SAFETY: as above.
        let result = unsafe { self.inner.map(at, len, offset) };
        let mut input = Fields::new();
        input.insert("fixed".into(), json!(at.is_some()));
        input.insert("len".into(), json!(len));
        input.insert("prot".into(), json!("PROT_READ|PROT_WRITE"));
        input.insert("offset".into(), hex(offset));
        let mut output = Fields::new();
        if let Ok(ptr) = result {
            let addr = ptr.as_ptr().expose_provenance() as u64;
            self.known().mapped(offset, addr, len as u64);
            output.insert("addr".into(), hex(addr));
        }
        self.trace.end(started, self.file, "mmap", result.map(drop), input, output);
        result
    }

    unsafe fn unmap(&self, ptr: NonNull<u8>, len: usize) {
        let started = self.trace.begin();
        let addr = ptr.as_ptr().addr() as u64;
        let mut input = Fields::new();
        let offset = self.known().offset_at(addr);
        input.insert("offset".into(), offset.map_or(serde_json::Value::Null, hex));
        input.insert("len".into(), json!(len));
        // SAFETY: as above.
        unsafe { self.inner.unmap(ptr, len) };
        self.known().unmapped(addr);
        self.trace.end(started, self.file, "munmap", Ok(()), input, Fields::new());
    }

    unsafe fn flush(&self, ptr: NonNull<u8>, len: usize) {
        // SAFETY: as above.
        unsafe { self.inner.flush(ptr, len) };
    }
}

impl Drop for TracedDoor {
    fn drop(&mut self) {
        let started = self.trace.begin();
        self.trace.end(started, self.file, "close", Ok(()), Fields::new(), Fields::new());
    }
}
