//! One device: contexts, buffers and submission queues.
//!
//! [`Npu`] is an opened device. [`Kernels`] are the hardware contexts of a bundle with their instruction streams, and
//! the commands that run them; [`Buffer`] and [`Weights`] are what commands work on.
//!
//! A command is bound once ([`Kernels::bind`]) and keeps its stream and buffers alive. [`Kernels::submit`] then costs one
//! ioctl and no allocation, and returns a [`Ticket`]; [`Kernels::poll`] looks at the command's state word, and
//! [`Kernels::wait`] looks at it for a while before it blocks. Several commands can be in flight, of one context in their
//! order. Between submit and wait the host is free to work on other buffers: those of the command refuse it.

mod buffer;
mod error;
mod kernels;
mod queue;
mod stream;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use amdxdna_ioctl::abi::query::AsyncError;
use amdxdna_ioctl::{Device, Opener, QueueCounters};

pub use amdxdna_ioctl::View;
pub use buffer::{Buffer, Element, Source, Weights};
pub use error::NpuError;
pub use kernels::{CommandId, ContextId, KernelId, Kernels, Ticket};

/// What has been asked of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Commands submitted.
    pub commands: u64,
    /// Ioctls that commands took: one to submit each, and one for each wait that a look at the command's state word did
    /// not end. A wait may be for several commands.
    pub ioctls: u64,
    /// Waits that a look at the state word ended.
    pub spun: u64,
    /// Looks at state words.
    pub spins: u64,
    /// Times that a context had to make room for another.
    pub context_switches: u64,
    /// Time spent in waits.
    pub waiting: Duration,
}

impl Counters {
    /// Adds what a queue has asked between two looks at it.
    fn count(&mut self, before: &QueueCounters, after: &QueueCounters) {
        self.commands += after.submits - before.submits;
        self.ioctls += after.submits - before.submits + after.waits - before.waits;
        self.spun += after.spun - before.spun;
        self.spins += after.spins - before.spins;
    }

    /// What was asked since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Counters) -> Counters {
        Counters {
            commands: self.commands - earlier.commands,
            ioctls: self.ioctls - earlier.ioctls,
            spun: self.spun - earlier.spun,
            spins: self.spins - earlier.spins,
            context_switches: self.context_switches - earlier.context_switches,
            waiting: self.waiting.saturating_sub(earlier.waiting),
        }
    }
}

/// An opened NPU with its heap mapped; nothing loaded.
#[derive(Clone, Debug)]
pub struct Npu {
    device: Arc<Device>,
}

impl Npu {
    /// Opens the node (`/dev/accel/accelN`) and gives it a heap.
    ///
    /// # Errors
    /// What the driver refused, with the errno and what to do about it.
    pub fn open(opener: &dyn Opener, node: &Path) -> Result<Npu, NpuError> {
        Ok(Npu::from_device(Device::open(opener, node)?))
    }

    /// Takes a device that is open already, such as [`discover::open`](amdxdna_ioctl::discover::open) gives.
    #[must_use]
    pub fn from_device(device: Arc<Device>) -> Npu {
        Npu { device }
    }

    /// The array's last asynchronous error, of whichever program; `None` too where the driver does not tell.
    #[must_use]
    pub fn array_error(&self) -> Option<AsyncError> {
        self.device.last_async_error().ok().flatten()
    }

    /// The node that was opened.
    #[must_use]
    pub fn node(&self) -> &Path {
        self.device.node()
    }

    /// The driver's device.
    #[must_use]
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }
}
