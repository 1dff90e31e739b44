//! One device: contexts, buffers and submission queues.
//!
//! [`Npu`] is an opened device. [`Kernels`] are the hardware contexts of a bundle with their instruction streams, and
//! the commands that run them; [`Buffer`] and [`Weights`] are what commands work on.

mod buffer;
mod error;
mod kernels;
mod queue;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use amdxdna_ioctl::abi::query::AsyncError;
use amdxdna_ioctl::{Device, Opener};

pub use buffer::{Buffer, Element, View, Weights};
pub use error::NpuError;
pub use kernels::{CommandId, ContextId, KernelId, Kernels, Ticket};

/// What has been asked of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Commands submitted.
    pub commands: u64,
    /// Ioctls that commands took: one to submit each, one for each wait. A wait may be for several.
    pub ioctls: u64,
    /// Times that a context had to make room for another.
    pub context_switches: u64,
    /// Time spent in waits.
    pub waiting: Duration,
}

impl Counters {
    /// What was asked since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Counters) -> Counters {
        Counters {
            commands: self.commands - earlier.commands,
            ioctls: self.ioctls - earlier.ioctls,
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
