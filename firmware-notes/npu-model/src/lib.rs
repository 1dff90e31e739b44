//! A software NPU: driver rules, firmware and array behind the driver's door.
//!
//! [`Model`] stands where `/dev/accel/accelN` stands: it is an [`Opener`], and every [`Door`] that it opens is a client
//! with its own handles, heap and contexts. Three layers, as in the machine:
//!
//! 1. `driver`: what each ioctl accepts, errnos, handles, lifetimes, queue depth, syncobj timelines
//!    (`drivers/accel/amdxdna` of Linux 7.3.4 and the DRM core).
//! 2. `firmware`: contexts, CU configuration, commands in order, status words.
//! 3. `array`: instruction stream to shim DMA descriptors to the kernel's arithmetic.
//!
//! With [`Config::timing`] the third layer computes nothing and takes the time that an NPU would take.
#![deny(unsafe_code)]

mod array;
mod config;
mod driver;
mod firmware;
#[allow(unsafe_code)]
mod front;
#[cfg(feature = "pci")]
pub mod pci;
mod stats;
#[cfg(feature = "supervise")]
pub mod supervise;
mod timing;
pub mod trace;

use std::path::Path;
use std::sync::{Arc, PoisonError};

use amdxdna_ioctl::{Door, Errno, Opener};

#[doc(hidden)]
pub use array::bench;
pub use array::{Contract, Epilogue, Format, GemmContract, GemvContract, Order};
pub use config::{AddressMode, Beside, Config, Counts, DriverVersion, Faults, Npu};
pub use timing::{Clock, Timing};

/// A software NPU: one device, as many clients as open it.
#[derive(Debug)]
pub struct Model {
    device: Arc<driver::Device>,
}

impl Model {
    /// Makes a device.
    #[must_use]
    pub fn new(config: Config) -> Arc<Self> {
        Arc::new(Self { device: driver::Device::new(config) })
    }

    /// Opens the device without a path, past everything that could fail.
    #[must_use]
    pub fn open_client(&self) -> Arc<dyn Door> {
        self.device.client()
    }

    /// Tells the array what the kernel behind an instruction stream computes, by the stream's SHA-256.
    pub fn teach(&self, stream_sha256: [u8; 32], contract: Contract) {
        self.device.firmware.teach(stream_sha256, contract);
    }

    /// What has happened so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.device.stats.update(|counts| counts.clone())
    }

    /// The settings that the device was made with.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.device.config
    }

    /// Changes the faults to show from now on. Counts of commands go on.
    pub fn set_faults(&self, faults: Faults) {
        *self.device.faults.lock().unwrap_or_else(PoisonError::into_inner) = faults;
    }

    /// Why the last command that failed did so, in words: what a kernel log might say, for tests and their authors.
    #[must_use]
    pub fn last_fault(&self) -> Option<String> {
        self.device.firmware.last_fault()
    }

    /// Suspends and resumes the device: contexts survive, what is in the array does not.
    pub fn suspend(&self) {
        self.device.suspend();
    }

    /// Takes the device away, as unplugging or a failed reset does: every ioctl gives `ENODEV` from now on.
    pub fn unplug(&self) {
        self.device.unplug();
    }
}

impl Opener for Model {
    fn open(&self, _node: &Path) -> Result<Arc<dyn Door>, Errno> {
        self.device.open()
    }
}

/// Numbers that the notes beside this crate repeat, by the name that they give them.
#[must_use]
pub fn notes_table() -> &'static [(&'static str, u64)] {
    driver::NOTES
}
