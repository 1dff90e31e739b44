//! One device: contexts, buffers and submission queues.

mod error;

use std::path::Path;

use amdxdna_ioctl::Opener;

pub use error::NpuError;

/// What has been asked of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Commands submitted.
    pub commands: u64,
    /// Ioctls that commands took: submissions and waits.
    pub ioctls: u64,
    /// Times that a context had to make room for another.
    pub context_switches: u64,
}

/// An opened NPU with its heap mapped; nothing loaded.
#[derive(Debug)]
pub struct Npu {
    _private: (),
}

impl Npu {
    /// Opens the node (`/dev/accel/accelN`) and gives it a heap.
    ///
    /// # Errors
    /// What the driver refused, with the errno.
    pub fn open(opener: &dyn Opener, node: &Path) -> Result<Npu, NpuError> {
        let _ = (opener, node);
        todo!("open")
    }
}
