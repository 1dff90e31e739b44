//! What can go wrong on the device.

use std::time::Duration;

use amdxdna_ioctl::abi::query::AsyncError;
use amdxdna_ioctl::packet::CommandOutcome;

/// A failure of the device, the driver or a command.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NpuError {
    /// The driver refused something.
    #[error(transparent)]
    Driver(#[from] amdxdna_ioctl::Error),
    /// No hardware context can be had, even with all others of this program given up.
    #[error("context `{context}`: {source}")]
    Context {
        /// Key of its xclbin.
        context: String,
        /// What the driver said.
        source: amdxdna_ioctl::Error,
    },
    /// A command ended badly.
    #[error("kernel `{kernel}` in context `{context}`: {outcome}")]
    Command {
        /// Key of the kernel.
        kernel: String,
        /// Key of its context.
        context: String,
        /// State and error data of the packet.
        outcome: CommandOutcome,
    },
    /// A command did not end in time. It may still write to its buffers, so nothing is run any more.
    #[error(
        "kernel `{kernel}` in context `{context}` has not finished after {} s: the NPU hangs or is busy with other \
         programs; load the bundle again",
        after.as_secs_f32()
    )]
    Timeout {
        /// Key of the kernel.
        kernel: String,
        /// Key of its context.
        context: String,
        /// The deadline.
        after: Duration,
    },
    /// An earlier command did not end in time, or the device went away while it ran.
    #[error(
        "an earlier command never finished or the device went away, so the buffers cannot be used; load the bundle again"
    )]
    Lost,
    /// The array raised an error while a turn ran, though no command failed: what was computed cannot be trusted.
    #[error(
        "the NPU's array raised {0} while this turn ran: its answer cannot be trusted; ask again, and look into the \
         kernel log if it comes back"
    )]
    Array(AsyncError),
    /// A kernel's instruction stream is none.
    #[error("the instruction stream of kernel `{kernel}`: {source}")]
    Stream {
        /// Key of the kernel.
        kernel: String,
        /// What is wrong with it.
        source: crate::txn::TxnError,
    },
    /// A kernel and the buffers that it is given do not fit.
    #[error("kernel `{kernel}`: {source}; the bundle's stream belongs to another shape, export or fetch it again")]
    Bind {
        /// Key of the kernel.
        kernel: String,
        /// What does not fit.
        source: amdxdna_ioctl::Error,
    },
}
