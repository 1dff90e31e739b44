//! The ABI of the Linux `amdxdna` driver for kernel-managed NPUs (AIE2 / AIE2P), typed, behind one [`Door`].
//!
//! Source of every number: `include/uapi/drm/amdxdna_accel.h` and `drm.h` of Linux 7.3.4.
#![deny(unsafe_code)]

pub mod abi;
mod deadline;
#[allow(unsafe_code)]
mod door;
mod error;
pub mod ioctl;
#[allow(unsafe_code)]
mod kernel;
pub mod packet;

pub use deadline::Deadline;
pub use door::{Door, Errno, Opener};
pub use error::{Error, IoctlError, Result, errno_name};
pub use kernel::KernelOpener;
