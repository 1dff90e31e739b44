//! What a software NPU is made of: the part, its driver, its limits and the faults it should show.

use std::collections::BTreeMap;

use amdxdna_ioctl::Errno;

use crate::timing::Timing;

/// Context slots of the firmware of NPU4 to NPU6.
pub(crate) const SLOTS: usize = 16;
/// Bytes of a column's status. A choice of the model's.
pub(crate) const COLUMN_STATUS: u32 = 1536;
/// The driver's default `tdr_timeout_ms`.
pub(crate) const TDR_MS: u64 = 2000;

/// The part that the model stands for. All three have 8 columns of 6 rows and 16 context slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Npu {
    /// Strix Point, PCI 17f0 revision 10.
    #[default]
    Npu4,
    /// Strix Halo, PCI 17f0 revision 11.
    Npu5,
    /// Krackan, PCI 17f0 revision 20.
    Npu6,
}

/// The driver whose rules apply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DriverVersion {
    /// Linux 7.3.4, which reports itself as 0.10.
    #[default]
    L7_3_4,
    /// The driver of August 2026, which reports itself as 0.16.
    Aug2026,
}

impl DriverVersion {
    /// The minor number that the VERSION ioctl gives.
    #[must_use]
    pub fn minor(self) -> i32 {
        match self {
            Self::L7_3_4 => 10,
            Self::Aug2026 => 16,
        }
    }
}

/// How the device addresses memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AddressMode {
    /// Shared virtual addressing: the device address of a buffer is the user address of its mapping.
    #[default]
    Sva,
    /// An IOMMU domain of the driver's own (`force_iova=1`).
    Iova,
    /// Physical addresses inside a carve-out of this many bytes.
    Carveout(u64),
}

/// What becomes of a command that was handed over while another of its context was in flight, where that is not borne.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beside {
    /// It ends well and has done nothing.
    Dropped,
    /// It ends with an error status.
    Failed,
    /// It never ends.
    Hung,
}

/// Faults to show. All counts are device-wide and start at 0; `None` means never.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// `open` fails with this errno.
    pub open: Option<Errno>,
    /// The firmware answers CREATE_CONTEXT with "not available", as if every slot were in use.
    pub no_context: bool,
    /// The firmware does not answer CREATE_CONTEXT: the management channel is gone afterwards.
    pub management_silent: bool,
    /// The command of this number (chain entries count one each) never ends.
    pub hang_command: Option<u64>,
    /// The command of this number ends with an error status of the firmware.
    pub fail_command: Option<u64>,
    /// From the command of this number on, the firmware of a PCI device answers nothing at all: no command, no
    /// management message.
    pub silent_from: Option<u64>,
    /// A device that does not bear commands of one context beside each other. Every command begins a little later then,
    /// so that those that were to be in flight together are.
    pub beside: Option<Beside>,
    /// The command of this number raises an asynchronous error of the array, and ends well.
    pub async_error: Option<u64>,
    /// A PCI device does not start again after its first suspend.
    pub no_resume: bool,
    /// Every n-th EXEC_CMD or syncobj wait that reaches its blocking point returns EINTR.
    pub interrupt_every: Option<u64>,
    /// CREATE_BO fails with ENOMEM when live buffers would exceed this many bytes.
    pub memory_limit: Option<u64>,
    /// SET_STATE is allowed (the caller has CAP_SYS_ADMIN).
    pub privileged: bool,
}

/// A software NPU's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The part.
    pub npu: Npu,
    /// The driver.
    pub driver: DriverVersion,
    /// Mailbox protocol version of the firmware, (major, minor).
    pub protocol: (u32, u32),
    /// Context slots of the firmware, shared by all clients.
    pub slots: usize,
    /// How the device addresses memory.
    pub mode: AddressMode,
    /// The driver's `tdr_timeout_ms`: how long a hung command lives. 0: for ever. Only injected hangs count: the
    /// time that the model's arithmetic takes on the host is not device time.
    pub tdr_ms: u64,
    /// How long destroying a context waits for a hung command.
    pub destroy_wait_ms: u64,
    /// Threads that the array's arithmetic may use.
    pub threads: usize,
    /// One copy of memory for CPU and device. Otherwise each buffer has a second copy that only the device sees, and
    /// lines move between them on flushes alone.
    pub coherent: bool,
    /// RLIMIT_MEMLOCK for user-pointer buffers, in bytes.
    pub memlock: u64,
    /// Injected faults.
    pub faults: Faults,
    /// Compute nothing and take the time that an NPU would take. `None`: compute.
    pub timing: Option<Timing>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            npu: Npu::Npu4,
            driver: DriverVersion::L7_3_4,
            protocol: (6, 18),
            slots: SLOTS,
            mode: AddressMode::Sva,
            tdr_ms: TDR_MS,
            destroy_wait_ms: 2000,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            coherent: true,
            memlock: 8 << 20,
            faults: Faults::default(),
            timing: None,
        }
    }
}

/// What happened on a model since it was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Ioctls by name, failed ones included.
    pub ioctls: BTreeMap<&'static str, u64>,
    /// Clients that opened the device.
    pub opens: u64,
    /// Command packets handed to the firmware (a chain is one).
    pub packets: u64,
    /// Commands that the firmware ran (a chain's entries count one each).
    pub commands: u64,
    /// Commands that did not end well.
    pub failed_commands: u64,
    /// Operations of instruction streams that were executed.
    pub operations: u64,
    /// Bytes that shim DMA read from memory.
    pub bytes_read: u64,
    /// Bytes that shim DMA wrote to memory.
    pub bytes_written: u64,
    /// Of a PCI device: nanoseconds for which its thread of commands worked.
    pub worked_ns: u64,
    /// In timing mode: nanoseconds for which commands held the array.
    pub array_ns: u64,
    /// In timing mode: nanoseconds for which at least one command was under way, its latency included.
    pub device_ns: u64,
    /// Calls of [`Door::flush`](amdxdna_ioctl::Door::flush).
    pub flushes: u64,
    /// Bytes of whole cache lines in these calls.
    pub flushed_bytes: u64,
    /// Hardware contexts created.
    pub contexts_created: u64,
    /// Hardware contexts destroyed.
    pub contexts_destroyed: u64,
    /// How often the array went from one context to another.
    pub context_switches: u64,
    /// PDI loads: a context's first, and each change between its compute units.
    pub pdi_loads: u64,
    /// Hangs that ended in a reset of a context.
    pub resets: u64,
    /// Buffer objects that are alive.
    pub buffers_live: u64,
    /// Bytes of buffer objects that are alive (DEV buffers count in their heap).
    pub bytes_live: u64,
}
