//! The ABI of the Linux `amdxdna` driver for kernel-managed NPUs (AIE2 / AIE2P), typed, behind one [`Door`].
//!
//! Four layers, each usable without the ones above it:
//!
//! * [`abi`] and [`packet`]: numbers, structures, command packets. No code that does anything.
//! * [`Door`]: how bytes leave the process. The kernel stands behind [`KernelOpener`]; a model of the NPU can.
//! * [`ioctl`]: one safe function a request.
//! * [`Device`], [`Bo`], [`HwCtx`], [`Queue`]: who owns what, and in which order it goes.
//!
//! # Submitting
//!
//! The device addresses memory by number, where it shares the process' address space any memory of the process. So
//! addresses get into packets in one safe way only: [`SharedBo`] is a buffer that commands may name, a [`View`] a part of
//! it, [`Stream`] an instruction stream with what it does to its arguments (the one thing that has to be vouched for), and
//! [`Bound`] ties a stream to views: it checks that the stream stays inside them, owns them, and is a packet ready in its
//! command BO. [`Queue::submit`] costs one ioctl and no allocation; the queue keeps what is in flight alive, and the
//! buffers refuse the host meanwhile. [`Command`] is the raw way, for any packet: submitting it is `unsafe`.
//!
//! [`discover`] finds the NPU of a machine, or the reason why there is none to be used.
//!
//! What this crate does not do: user-mode queues (AIE4 parts), waiting for fences on the device (the driver cannot),
//! user-pointer BOs and dma-buf imports beyond the bare ioctls, the firmware log and trace of later drivers.
//!
//! Source of every number: `include/uapi/drm/amdxdna_accel.h` and `drm.h` of Linux 7.3.4.
#![deny(unsafe_code)]

pub mod abi;
#[allow(unsafe_code)]
mod bo;
#[allow(unsafe_code)]
mod bound;
#[allow(unsafe_code)]
mod command;
mod deadline;
mod device;
pub mod discover;
#[allow(unsafe_code)]
mod door;
mod error;
#[allow(unsafe_code)]
mod fork;
#[allow(unsafe_code)]
mod heap;
mod hwctx;
pub mod ioctl;
#[allow(unsafe_code)]
mod kernel;
pub mod packet;
#[allow(unsafe_code)]
mod queue;
#[allow(unsafe_code)]
mod shared;

pub use bo::{Bo, BoKind};
pub use bound::{Argument, Bound, Stream};
pub use command::Command;
pub use deadline::Deadline;
pub use device::Device;
pub use door::{Door, Errno, Opener};
pub use error::{Error, IoctlError, Result, errno_name};
pub use heap::Heap;
pub use hwctx::{Cu, HwCtx, HwCtxOptions};
pub use kernel::KernelOpener;
pub use queue::{Failure, Queue, QueueCounters, Ticket};
pub use shared::{Access, HostRead, HostWrite, SharedBo, View};
