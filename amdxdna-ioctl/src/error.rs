//! What can go wrong, said so that the reader knows what to do.

use crate::abi::request;
use crate::door::Errno;
use crate::packet::PacketError;
use std::path::PathBuf;

/// Shorthand.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An ioctl that the driver refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} ({asked}) failed with {}: {remedy}", self.name(), show(*errno))]
pub struct IoctlError {
    /// The request word.
    pub request: u32,
    /// What it was asked for.
    pub asked: String,
    /// What came back.
    pub errno: Errno,
    /// What this usually means and what can be done.
    pub remedy: String,
}

impl IoctlError {
    /// An error with the usual remedy for this request and errno.
    #[must_use]
    pub fn new(request: u32, asked: impl Into<String>, errno: Errno) -> Self {
        IoctlError { request, asked: asked.into(), errno, remedy: remedy(request, errno).to_owned() }
    }

    /// The kernel's name of the request.
    #[must_use]
    pub fn name(&self) -> &'static str {
        request::name(self.request).unwrap_or("ioctl")
    }
}

/// What a use of the NPU can fail with.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An ioctl failed.
    #[error(transparent)]
    Ioctl(#[from] IoctlError),
    /// The node could not be opened.
    #[error("open({}) failed with {}: {}", node.display(), show(*errno), open_remedy(*errno))]
    Open {
        /// The node.
        node: PathBuf,
        /// What `open(2)` said.
        errno: Errno,
    },
    /// The node belongs to another driver.
    #[error("{} is driven by {driver:?}, not by \"amdxdna_accel_driver\": choose another node", node.display())]
    NotAmdxdna {
        /// The node.
        node: PathBuf,
        /// What VERSION said.
        driver: String,
    },
    /// A driver of another generation of the ABI.
    #[error(
        "the amdxdna driver of {} has version {major}.{minor}, this program speaks 0.x: use the driver of the Linux \
         kernel (6.14 or later) instead of the old out-of-tree module", node.display()
    )]
    DriverMajor {
        /// The node.
        node: PathBuf,
        /// Its major version.
        major: i32,
        /// Its minor version.
        minor: i32,
    },
    /// Something that a later driver has.
    #[error(
        "{what} needs version 0.{needs} of the amdxdna driver, this one is 0.{minor}: update the kernel, or do without"
    )]
    DriverMinor {
        /// What was asked for.
        what: &'static str,
        /// The minor version that brought it.
        needs: i32,
        /// The minor version that runs.
        minor: i32,
    },
    /// The driver has no timeline syncobjs, the only way to wait for a command.
    #[error("the driver reports no timeline syncobjs (capability 0x14): it is too old, update the kernel")]
    NoTimelines,
    /// What the device says of itself makes no sense.
    #[error("the device reports {what}: the firmware and the driver do not fit each other, see the kernel log")]
    Implausible {
        /// What it says.
        what: String,
    },
    /// Memory of a BO could not be mapped.
    #[error("mmap of {what} ({bytes} bytes) failed with {}: {}", show(*errno), map_remedy(*errno))]
    Map {
        /// Of what.
        what: &'static str,
        /// Its size.
        bytes: usize,
        /// What `mmap(2)` said.
        errno: Errno,
    },
    /// A size that no BO can have.
    #[error("a {what} of {bytes} bytes: the size must be between 1 and {limit}")]
    Size {
        /// Which kind.
        what: &'static str,
        /// The size asked for.
        bytes: u64,
        /// The most there can be.
        limit: u64,
    },
    /// The device heap is as large as it can get.
    #[error(
        "the device heap is full: {chunks} chunks of 64 MiB and no room for {bytes} bytes more; fewer or smaller \
         instruction streams and PDIs, or fewer contexts"
    )]
    HeapFull {
        /// Chunks there are.
        chunks: usize,
        /// What did not fit.
        bytes: u64,
    },
    /// More columns than the device has, or none.
    #[error("a context over {asked} columns: this NPU has {columns}")]
    Columns {
        /// Wanted.
        asked: u16,
        /// There.
        columns: u16,
    },
    /// A wait ended at its deadline; the command is still running and owns its memory.
    #[error(
        "command {seq} of context {context} is not done at its deadline: the NPU is busy with other work or hangs (the \
         driver ends a hang after tdr_timeout_ms, 2 s by default)"
    )]
    Timeout {
        /// The context's handle.
        context: u32,
        /// The command's sequence number.
        seq: u64,
    },
    /// The command is still running: its packet must not be touched, nor be submitted again.
    #[error("the command is still in flight (sequence {seq}): wait for it first")]
    Busy {
        /// Its sequence number.
        seq: u64,
    },
    /// The command has not been submitted, so there is nothing to wait for.
    #[error("the command has not been submitted")]
    NotSubmitted,
    /// A packet that cannot be built.
    #[error(transparent)]
    Packet(#[from] PacketError),
    /// A range that is not inside a BO.
    #[error("bytes {start}..{end} of a BO of {size} bytes")]
    Range {
        /// First byte.
        start: usize,
        /// One past the last.
        end: usize,
        /// The BO's size.
        size: usize,
    },
    /// A buffer that cannot be used by two at a time.
    #[error(
        "BO {handle} is in use: a command that names it was not waited for, or never finished (if the device went away, \
         load anew), or the host holds it in another place"
    )]
    InUse {
        /// Its handle.
        handle: u32,
    },
    /// More or fewer buffers than a stream takes.
    #[error("{given} buffers for an instruction stream that takes {least} to {most}")]
    Arguments {
        /// Given.
        given: usize,
        /// Used by the stream.
        least: usize,
        /// Most that a packet can name.
        most: usize,
    },
    /// A stream reaches past a buffer that it is given.
    #[error("the instruction stream reaches byte {reach} of argument {argument}, which has {bytes}")]
    Reach {
        /// Which argument, from 0.
        argument: usize,
        /// End of what the stream reads or writes.
        reach: u64,
        /// Bytes of the view.
        bytes: u64,
    },
    /// A stream writes to a view that is only to be read.
    #[error("the instruction stream writes to argument {argument}, which is given to be read only")]
    ReadOnly {
        /// Which argument, from 0.
        argument: usize,
    },
    /// As many commands in flight as the queue takes.
    #[error("{depth} commands are in flight, as many as the queue takes: wait for the oldest first")]
    QueueFull {
        /// What it takes.
        depth: usize,
    },
    /// A BO, or a context, of another open file of the device; or a ticket of another queue.
    #[error("{what} belongs to another open of the device, or to another queue: they cannot be mixed")]
    Foreign {
        /// What.
        what: &'static str,
    },
    /// The process has forked: the child's address space is not the one that the NPU sees.
    #[error("the NPU was opened by process {opener}, this is process {process}: open it again after fork()")]
    Forked {
        /// Who opened it.
        opener: u32,
        /// Who asks.
        process: u32,
    },
}

impl Error {
    /// The errno behind the error, where there is one.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Error::Ioctl(error) => Some(error.errno),
            Error::Open { errno, .. } | Error::Map { errno, .. } => Some(*errno),
            _ => None,
        }
    }
}

/// An errno as a reader knows it: name, number, text.
pub(crate) fn show(errno: Errno) -> String {
    let text = std::io::Error::from(errno).to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    match errno_name(errno) {
        Some(name) => format!("{name} ({text})"),
        None => format!("errno {} ({text})", errno.raw_os_error()),
    }
}

/// The symbol of an errno; `None` for one that this ABI never returns.
#[must_use]
pub fn errno_name(errno: Errno) -> Option<&'static str> {
    macro_rules! names {
        ($($name:ident)*) => {
            Some(match errno {
                $(Errno::$name => concat!("E", stringify!($name)),)*
                Errno::TOOBIG => "E2BIG",
                _ => return None,
            })
        };
    }
    names! {
        PERM NOENT INTR IO NXIO BADF AGAIN NOMEM ACCESS FAULT BUSY EXIST NODEV NOTDIR ISDIR INVAL NFILE MFILE NOTTY
        NOSPC ROFS NOSYS LOOP NAMETOOLONG OVERFLOW OPNOTSUPP TIME TIMEDOUT ALREADY PROTO CONNRESET CANCELED
    }
    .map(|name| if name == "EACCESS" { "EACCES" } else { name })
}

const UNPLUGGED: &str = "the device is gone or its firmware channel is: load the driver anew (sudo modprobe -r amdxdna; \
                         sudo modprobe amdxdna), else reboot; see the kernel log (sudo dmesg)";
const FIRMWARE_SILENT: &str = "the firmware did not answer within 5 s: try again; if it stays so, load the driver anew \
                               (sudo modprobe -r amdxdna; sudo modprobe amdxdna), else reboot; see the kernel log \
                               (sudo dmesg)";
const MEMORY: &str = "the system is out of memory: close other programs, or use a smaller model";
const TOO_OLD: &str = "this driver or firmware does not have it: update the kernel and linux-firmware";

/// What an errno of an ioctl usually means, and what can be done.
fn remedy(asked: u32, errno: Errno) -> &'static str {
    use crate::abi::request as r;
    match (asked, errno) {
        (_, Errno::NODEV) => UNPLUGGED,
        (r::EXEC_CMD, Errno::TIME) => {
            "a mapping could not be re-validated within 1 s, the system is short of memory: try again"
        }
        (_, Errno::TIME) => FIRMWARE_SILENT,
        (r::CREATE_HWCTX, Errno::INVAL) => {
            "most often all context slots of the device are in use: close other programs that use the NPU; the kernel \
             log tells"
        }
        (r::CREATE_HWCTX, Errno::NOENT) => "the client has no device heap",
        (r::CREATE_HWCTX, Errno::BUSY | Errno::NOSPC) => {
            "context ids or device heap are exhausted: destroy contexts before making new ones"
        }
        (r::CONFIG_HWCTX, Errno::INVAL) => {
            "a CU's BO is no DEV BO, or the context has been configured before: a context takes one configuration"
        }
        (r::CREATE_BO | r::CREATE_HWCTX, Errno::AGAIN) => "the device heap has no room and could not be extended",
        (r::CREATE_BO, Errno::PERM) => "RLIMIT_MEMLOCK is 0: raise it (ulimit -l), or do not use user-pointer BOs",
        (r::CREATE_BO, Errno::FAULT) => "the memory is not mapped writable: copy it into a BO",
        (r::CREATE_BO, Errno::NOSPC) => "the device heap is as large as it can get",
        (r::EXEC_CMD, Errno::ALREADY) => "a BO is among the arguments twice",
        (r::EXEC_CMD, Errno::NOENT) => "an argument BO has been closed",
        (r::EXEC_CMD, Errno::INVAL) => {
            "the context is gone or the command BO is none; kernels up to 6.14 also refuse commands without arguments"
        }
        (r::EXEC_CMD, Errno::IO | Errno::OPNOTSUPP) => {
            "the driver is older than the firmware or this program: update the kernel"
        }
        (r::SET_STATE, Errno::ACCESS) => "only root may do this: use sudo, or do without",
        (r::SYNC_BO, Errno::INVAL) => {
            "the range is not inside the BO, or it is synchronised from the device and is no debug BO"
        }
        (r::SYNCOBJ_TIMELINE_WAIT | r::SYNCOBJ_WAIT, Errno::INVAL) => "nobody has submitted that point yet",
        (r::VERSION, Errno::NOTTY | Errno::INVAL) => "this is no DRM device: choose another node",
        (_, Errno::NOMEM) => MEMORY,
        (_, Errno::OPNOTSUPP) => TOO_OLD,
        (_, Errno::NOENT) => "no such handle: it has been closed",
        (_, Errno::ACCESS | Errno::PERM) => "the process may not do this",
        (_, Errno::FAULT) => "a pointer does not lead to memory of this process: a defect of this program",
        (_, Errno::INVAL) => "the driver does not take these values; see the kernel log",
        _ => "see the kernel log (sudo dmesg)",
    }
}

/// What an errno of `open(2)` on a node of amdxdna usually means (`amdxdna_pci_drv.c`).
pub(crate) fn open_remedy(errno: Errno) -> &'static str {
    match errno {
        Errno::NOENT => "there is no such node: is the amdxdna module loaded (modprobe amdxdna)?",
        Errno::ACCESS | Errno::PERM => {
            "join the group that owns the node (usermod -aG render $USER, then log in again), or add a udev rule: \
             SUBSYSTEM==\"accel\", GROUP=\"render\", MODE=\"0660\""
        }
        Errno::INVAL => {
            "the process got no address space on the device (PASID): switch the IOMMU and SVM on in the firmware \
             setup, and do not boot with iommu=off; the kernel log says \"SVA bind device failed\""
        }
        Errno::NODEV => {
            "the device is gone, or the IOMMU is off (firmware setup, kernel option iommu=off): see the kernel log"
        }
        Errno::OPNOTSUPP => {
            "the IOMMU cannot share address spaces (SVA): switch the IOMMU on in the firmware setup and use a kernel \
             with AMD IOMMU SVA; on machines other than x86-64 there is no NPU"
        }
        Errno::NOSPC => {
            "the IOMMU has no address-space id left (virtual machine, or IOMMU in pass-through): see the kernel log"
        }
        Errno::NXIO => "the node has no device behind it: is the driver bound?",
        Errno::MFILE | Errno::NFILE => "too many open files: raise ulimit -n",
        Errno::BUSY => "another program holds the device exclusively",
        Errno::ISDIR | Errno::NOTDIR => "this is no device node: give /dev/accel/accelN",
        Errno::NOMEM => MEMORY,
        _ => "see the kernel log (sudo dmesg)",
    }
}

fn map_remedy(errno: Errno) -> &'static str {
    match errno {
        Errno::AGAIN => "memory that must be locked: raise RLIMIT_MEMLOCK, or clear MCL_FUTURE",
        Errno::NOMEM => "the address space or the memory is exhausted (ulimit -v?)",
        Errno::ACCESS => "the BO is not this client's",
        _ => "see the kernel log (sudo dmesg)",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_the_ioctl_the_errno_and_a_way_out() {
        let error = IoctlError::new(request::CREATE_HWCTX, "32 tiles", Errno::INVAL);
        let text = error.to_string();
        assert!(text.starts_with("CREATE_HWCTX (32 tiles) failed with EINVAL (Invalid argument): "), "{text}");
        assert!(text.contains("context slots"), "{text}");
        let text = Error::Open { node: "/dev/accel/accel0".into(), errno: Errno::ACCESS }.to_string();
        assert!(text.contains("EACCES (Permission denied)") && text.contains("udev rule"), "{text}");
    }

    #[test]
    fn names_are_the_c_librarys() {
        for (errno, name) in [
            (Errno::TIME, Some("ETIME")),
            (Errno::TOOBIG, Some("E2BIG")),
            (Errno::ALREADY, Some("EALREADY")),
            (Errno::OPNOTSUPP, Some("EOPNOTSUPP")),
            (Errno::XDEV, None),
        ] {
            assert_eq!(errno_name(errno), name);
        }
        assert_eq!(show(Errno::XDEV), "errno 18 (Invalid cross-device link)");
    }
}
