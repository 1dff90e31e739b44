//! A software NPU: driver rules, firmware and array behind the driver's door.
//!
//! [`Model`] stands where `/dev/accel/accelN` stands: it is an [`Opener`], and every [`Door`] that it opens is a client
//! with its own handles, heap and contexts. Three layers, as in the machine:
//!
//! 1. `driver`: what each ioctl accepts, errnos, handles, lifetimes, queue depth, syncobj timelines
//!    (`drivers/accel/amdxdna` of Linux 7.3.4 and the DRM core).
//! 2. `firmware`: contexts, CU configuration, commands in order, status words.
//! 3. `array`: instruction stream to shim DMA descriptors to the kernel's arithmetic.
#![deny(unsafe_code)]

mod array;
mod config;

use std::path::Path;
use std::sync::Arc;

use amdxdna_ioctl::{Door, Errno, Opener};

pub use array::{Contract, Epilogue, Format, GemmContract, GemvContract, Order};
pub use config::{AddressMode, Config, Counts, DriverVersion, Faults, Npu};

/// A software NPU: one device, as many clients as open it.
#[derive(Debug)]
pub struct Model {}

impl Model {
    /// Makes a device.
    #[must_use]
    pub fn new(config: Config) -> Arc<Self> {
        let _ = config;
        todo!()
    }

    /// Opens the device without a path, past the injected error of `open`.
    #[must_use]
    pub fn open_client(&self) -> Arc<dyn Door> {
        todo!()
    }

    /// Tells the array what the kernel behind an instruction stream computes, by the stream's SHA-256.
    pub fn teach(&self, stream_sha256: [u8; 32], contract: Contract) {
        let _ = (stream_sha256, contract);
        todo!()
    }

    /// What has happened so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        todo!()
    }

    /// Changes the faults to show from now on. Counts of commands are not reset.
    pub fn set_faults(&self, faults: Faults) {
        let _ = faults;
        todo!()
    }
}

impl Opener for Model {
    fn open(&self, _node: &Path) -> Result<Arc<dyn Door>, Errno> {
        todo!()
    }
}
