//! The ABI of the Linux `amdxdna` driver for kernel-managed NPUs (AIE2 / AIE2P), typed, behind one [`Door`].
//!
//! Source of every number: `include/uapi/drm/amdxdna_accel.h` and `drm.h` of Linux 7.3.4.
#![deny(unsafe_code)]

pub mod abi;
#[allow(unsafe_code)]
mod door;

pub mod packet;

pub use door::{Door, Errno, Opener};
