//! One device: contexts, buffers and submission queues.
//!
//! [`Npu`] is an opened device. [`Kernels`] are the hardware contexts of a bundle with their instruction streams, and
//! the commands that run them; [`Buffer`] and [`Weights`] are what commands work on.

mod buffer;
mod error;
mod kernels;
mod queue;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use amdxdna_ioctl::{Device, Opener};

pub use buffer::{Buffer, Element, View, Weights};
pub use error::NpuError;
pub use kernels::{CommandId, ContextId, KernelId, Kernels, Ticket};

/// What has been asked of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Commands submitted, one ioctl each.
    pub commands: u64,
    /// Waits for commands, one ioctl each.
    pub waits: u64,
    /// Times that a context had to make room for another.
    pub context_switches: u64,
    /// Time spent in waits.
    pub waiting: Duration,
}

/// An opened NPU with its heap mapped; nothing loaded.
#[derive(Clone, Debug)]
pub struct Npu {
    node: PathBuf,
    device: Arc<Device>,
}

impl Npu {
    /// Opens the node (`/dev/accel/accelN`) and gives it a heap.
    ///
    /// # Errors
    /// What the driver refused, with the errno and what to do about it.
    pub fn open(opener: &dyn Opener, node: &Path) -> Result<Npu, NpuError> {
        Ok(Npu { node: node.to_owned(), device: Device::open(opener, node)? })
    }

    /// The node that was opened.
    #[must_use]
    pub fn node(&self) -> &Path {
        &self.node
    }

    /// The driver's device.
    #[must_use]
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }
}
