//! Commands that are prepared once: an instruction stream bound to views of buffers, its packet in its command BO.

use crate::bo::{Bo, BoKind};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::packet::{CommandOutcome, Encode, Header, Health, IRON_BUFFERS, IronKernel, State};
use crate::shared::{Access, SharedBo, View};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Bytes of the packet's BO.
const SIZE: usize = 4096;
/// Words of an [`IronKernel`] packet.
const WORDS: usize = 17;
/// Words that can say how a command ended: the header and a health record.
const OUTCOME: usize = 1 + Health::WORDS;

/// What an instruction stream does with one of its buffer arguments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Argument {
    /// Bytes from the argument's start to the end of all that is read or written; 0 if it is not used.
    pub reach: u64,
    /// Some of it is written.
    pub writes: bool,
}

/// An instruction stream in the device heap, and what it does with its arguments.
#[derive(Debug)]
pub struct Stream {
    bo: Bo,
    bytes: u32,
    arguments: Vec<Argument>,
}

impl Stream {
    /// Puts a stream into the device heap.
    ///
    /// # Safety
    /// In every context to which it is submitted, the stream must leave all memory alone but that of its arguments,
    /// there must stay within [`Argument::reach`], and must write only where [`Argument::writes`] says so. Nothing
    /// below looks into it: the device runs it with the process' own rights to its memory.
    ///
    /// # Errors
    /// As of [`Bo::new`]; [`Error::Arguments`] for more than a packet can name.
    pub unsafe fn new(device: &Arc<Device>, stream: &[u8], arguments: &[Argument]) -> Result<Arc<Stream>> {
        if arguments.len() > IRON_BUFFERS {
            return Err(Error::Arguments { given: arguments.len(), least: 0, most: IRON_BUFFERS });
        }
        let bo = Bo::with_contents(device, BoKind::Dev, stream)?;
        // A DEV BO is smaller than 4 GiB.
        Ok(Arc::new(Stream { bo, bytes: stream.len() as u32, arguments: arguments.to_vec() }))
    }

    /// What it does with its arguments, in their order.
    #[must_use]
    pub fn arguments(&self) -> &[Argument] {
        &self.arguments
    }
}

/// A stream bound to buffers: a packet that is written once and submitted as often as wanted, one flight at a time.
///
/// It owns what its packet names: the stream and the buffers live as long as it does, whoever else has dropped them. A
/// [`Queue`](crate::Queue) keeps it as long as it is in flight.
#[derive(Debug)]
pub struct Bound {
    packet: Bo,
    words: [u32; WORDS],
    views: Vec<View>,
    /// The stream's BO and the views', each once.
    handles: Vec<u32>,
    /// The driver has the packet.
    in_flight: AtomicBool,
    /// Of the last flight.
    seq: AtomicU64,
    /// The packet in the BO is not `words` any more: the driver has overwritten it.
    spoiled: AtomicBool,
    stream: Arc<Stream>,
}

impl Bound {
    /// Binds CU 0 of a context, a stream and its arguments, in the stream's order.
    ///
    /// # Errors
    /// [`Error::Arguments`]: fewer than the stream uses or more than a packet names. [`Error::Reach`]: a view is shorter
    /// than the stream reaches. [`Error::ReadOnly`]: the stream writes to a view of [`Access::Read`].
    /// [`Error::Foreign`], and those of [`Bo::new`].
    pub fn new(stream: &Arc<Stream>, views: &[View]) -> Result<Arc<Bound>> {
        let (device, wanted) = (stream.bo.device(), &stream.arguments);
        if views.len() > IRON_BUFFERS || views.len() < wanted.len() {
            return Err(Error::Arguments { given: views.len(), least: wanted.len(), most: IRON_BUFFERS });
        }
        for (argument, view) in views.iter().enumerate() {
            if !Arc::ptr_eq(view.bo().device(), device) {
                return Err(Error::Foreign { what: "a buffer of the command" });
            }
            let Argument { reach, writes } = wanted.get(argument).copied().unwrap_or_default();
            if reach > view.size() as u64 {
                return Err(Error::Reach { argument, reach, bytes: view.size() as u64 });
            }
            if writes && view.access() == Access::Read {
                return Err(Error::ReadOnly { argument });
            }
        }
        let mut kernel = IronKernel {
            cu: 0,
            instructions: stream.bo.address(),
            instruction_bytes: stream.bytes,
            buffers: [0; IRON_BUFFERS],
        };
        let mut handles = vec![stream.bo.handle()];
        for (slot, view) in kernel.buffers.iter_mut().zip(views) {
            *slot = view.address();
            if !handles.contains(&view.bo().handle()) {
                handles.push(view.bo().handle());
            }
        }
        let mut words = [0; WORDS];
        kernel.encode(&mut words)?;
        let mut packet = Bo::new(device, BoKind::Cmd, SIZE)?;
        packet.slice_mut()[..WORDS].copy_from_slice(&words);
        packet.flush(..size_of_val(&words))?;
        Ok(Arc::new(Bound {
            packet,
            words,
            views: views.to_vec(),
            handles,
            in_flight: AtomicBool::new(false),
            seq: AtomicU64::new(0),
            spoiled: AtomicBool::new(false),
            stream: Arc::clone(stream),
        }))
    }

    /// The stream that it runs.
    #[must_use]
    pub fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }

    /// Its buffers, in the order of the stream's arguments.
    #[must_use]
    pub fn views(&self) -> &[View] {
        &self.views
    }

    /// The device that it is on.
    #[must_use]
    pub fn device(&self) -> &Arc<Device> {
        self.packet.device()
    }

    /// Whether it has been submitted and not been seen to end.
    #[must_use]
    pub fn is_in_flight(&self) -> bool {
        self.in_flight.load(Ordering::Acquire)
    }

    pub(crate) fn command(&self) -> u32 {
        self.packet.handle()
    }

    pub(crate) fn handles(&self) -> &[u32] {
        &self.handles
    }

    /// A word of the packet; the driver may be writing it.
    fn word(&self, index: usize) -> &AtomicU32 {
        debug_assert!(index < SIZE / size_of::<u32>());
        // SAFETY: inside the live, page-aligned mapping, which from `new` on is reached through this function only. The
        // driver's writes are plain stores of whole words from outside the program.
        unsafe { AtomicU32::from_ptr(self.packet.as_ptr().cast::<u32>().add(index).as_ptr()) }
    }

    /// The state in the packet; what the device and the driver wrote before it is visible too.
    pub(crate) fn state(&self) -> Option<State> {
        Header(self.word(0).load(Ordering::Acquire)).state()
    }

    /// Makes it ready for the driver: its buffers in use, the packet whole and in state NEW.
    pub(crate) fn begin(self: &Arc<Self>) -> Result<Flight> {
        if self.in_flight.swap(true, Ordering::AcqRel) {
            return Err(Error::Busy { seq: self.seq.load(Ordering::Relaxed) });
        }
        // From here on the flight gives back what was taken.
        let mut flight = Flight { bound: Arc::clone(self), taken: 0 };
        for view in &self.views {
            view.bo().take(view.device_use())?;
            flight.taken += 1;
        }
        // After a failure the driver leaves 0xFF where the addresses were.
        let words = if self.spoiled.swap(false, Ordering::AcqRel) { WORDS } else { 1 };
        for (index, &word) in self.words[..words].iter().enumerate().rev() {
            self.word(index).store(word, Ordering::Release);
        }
        self.packet.flush(..words * size_of::<u32>())?;
        Ok(flight)
    }
}

/// A command that the driver has, or may have. While it lives the command's buffers are in use.
#[derive(Debug)]
pub(crate) struct Flight {
    bound: Arc<Bound>,
    /// Views whose use has been counted.
    taken: usize,
}

impl Flight {
    pub(crate) fn bound(&self) -> &Arc<Bound> {
        &self.bound
    }

    pub(crate) fn submitted(&self, seq: u64) {
        self.bound.seq.store(seq, Ordering::Relaxed);
    }

    /// How it ended; it is known to have.
    pub(crate) fn outcome(&self) -> CommandOutcome {
        let words: [u32; OUTCOME] = std::array::from_fn(|i| self.bound.word(i).load(Ordering::Acquire));
        CommandOutcome::read(&words)
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        // Only what has completed is as it was; nobody need have asked how it ended.
        if self.bound.state() != Some(State::Completed) {
            self.bound.spoiled.store(true, Ordering::Release);
        }
        for view in &self.bound.views[..self.taken] {
            SharedBo::give(view.bo(), view.device_use());
        }
        self.bound.in_flight.store(false, Ordering::Release);
    }
}
