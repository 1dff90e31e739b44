//! The request words.

use super::drm::{
    GemClose, GetCap, PrimeHandle, SetClientName, SyncobjCreate, SyncobjDestroy, SyncobjEventfd, SyncobjHandle,
    SyncobjTimelineArray, SyncobjTimelineWait, SyncobjTransfer, SyncobjWait, Version,
};
use super::{
    ConfigHwctx, CreateBo, CreateHwctx, DestroyHwctx, ExecCmd, GetArray, GetBoInfo, GetInfo, SetState, SyncBo, WaitCmd,
};

const IOC_WRITE: u32 = 1;
const IOC_READ: u32 = 2;
/// `DRM_COMMAND_BASE`: where a driver's own ioctls start.
const COMMAND_BASE: u32 = 0x40;

/// `_IOC(direction, 'd', nr, sizeof(T))`.
const fn ioc<T>(direction: u32, nr: u32) -> u32 {
    direction << 30 | (size_of::<T>() as u32) << 16 | (b'd' as u32) << 8 | nr
}

const fn iowr<T>(nr: u32) -> u32 {
    ioc::<T>(IOC_READ | IOC_WRITE, nr)
}

const fn iow<T>(nr: u32) -> u32 {
    ioc::<T>(IOC_WRITE, nr)
}

/// Bytes of the argument that a request word names.
#[must_use]
pub const fn argument_size(request: u32) -> usize {
    (request >> 16 & 0x3fff) as usize
}

macro_rules! requests {
    ($($(#[$doc:meta])* $name:ident = $direction:ident::<$argument:ty>($nr:expr);)*) => {
        $(
            $(#[$doc])*
            #[doc = concat!("\n\nArgument: [`", stringify!($argument), "`].")]
            pub const $name: u32 = $direction::<$argument>($nr);
        )*

        /// The kernel's name of a request, without its prefix; `None` for a word that is not of this ABI.
        #[must_use]
        pub const fn name(request: u32) -> Option<&'static str> {
            match request {
                $($name => Some(stringify!($name)),)*
                _ => None,
            }
        }
    };
}

requests! {
    /// `DRM_IOCTL_AMDXDNA_CREATE_HWCTX`.
    CREATE_HWCTX = iowr::<CreateHwctx>(COMMAND_BASE);
    /// `DRM_IOCTL_AMDXDNA_DESTROY_HWCTX`.
    DESTROY_HWCTX = iowr::<DestroyHwctx>(COMMAND_BASE + 1);
    /// `DRM_IOCTL_AMDXDNA_CONFIG_HWCTX`.
    CONFIG_HWCTX = iowr::<ConfigHwctx>(COMMAND_BASE + 2);
    /// `DRM_IOCTL_AMDXDNA_CREATE_BO`.
    CREATE_BO = iowr::<CreateBo>(COMMAND_BASE + 3);
    /// `DRM_IOCTL_AMDXDNA_GET_BO_INFO`.
    GET_BO_INFO = iowr::<GetBoInfo>(COMMAND_BASE + 4);
    /// `DRM_IOCTL_AMDXDNA_SYNC_BO`.
    SYNC_BO = iowr::<SyncBo>(COMMAND_BASE + 5);
    /// `DRM_IOCTL_AMDXDNA_EXEC_CMD`.
    EXEC_CMD = iowr::<ExecCmd>(COMMAND_BASE + 6);
    /// `DRM_IOCTL_AMDXDNA_GET_INFO`.
    GET_INFO = iowr::<GetInfo>(COMMAND_BASE + 7);
    /// `DRM_IOCTL_AMDXDNA_SET_STATE`; root only.
    SET_STATE = iowr::<SetState>(COMMAND_BASE + 8);
    /// `DRM_IOCTL_AMDXDNA_WAIT_CMD`: the one that only writes.
    WAIT_CMD = iow::<WaitCmd>(COMMAND_BASE + 9);
    /// `DRM_IOCTL_AMDXDNA_GET_ARRAY`; since minor 1.
    GET_ARRAY = iowr::<GetArray>(COMMAND_BASE + 10);
    /// `DRM_IOCTL_VERSION`.
    VERSION = iowr::<Version>(0x00);
    /// `DRM_IOCTL_GEM_CLOSE`.
    GEM_CLOSE = iow::<GemClose>(0x09);
    /// `DRM_IOCTL_GET_CAP`.
    GET_CAP = iowr::<GetCap>(0x0C);
    /// `DRM_IOCTL_PRIME_HANDLE_TO_FD`.
    PRIME_HANDLE_TO_FD = iowr::<PrimeHandle>(0x2D);
    /// `DRM_IOCTL_PRIME_FD_TO_HANDLE`.
    PRIME_FD_TO_HANDLE = iowr::<PrimeHandle>(0x2E);
    /// `DRM_IOCTL_SYNCOBJ_CREATE`.
    SYNCOBJ_CREATE = iowr::<SyncobjCreate>(0xBF);
    /// `DRM_IOCTL_SYNCOBJ_DESTROY`.
    SYNCOBJ_DESTROY = iowr::<SyncobjDestroy>(0xC0);
    /// `DRM_IOCTL_SYNCOBJ_HANDLE_TO_FD`.
    SYNCOBJ_HANDLE_TO_FD = iowr::<SyncobjHandle>(0xC1);
    /// `DRM_IOCTL_SYNCOBJ_FD_TO_HANDLE`.
    SYNCOBJ_FD_TO_HANDLE = iowr::<SyncobjHandle>(0xC2);
    /// `DRM_IOCTL_SYNCOBJ_WAIT`.
    SYNCOBJ_WAIT = iowr::<SyncobjWait>(0xC3);
    /// `DRM_IOCTL_SYNCOBJ_TIMELINE_WAIT`.
    SYNCOBJ_TIMELINE_WAIT = iowr::<SyncobjTimelineWait>(0xCA);
    /// `DRM_IOCTL_SYNCOBJ_QUERY`.
    SYNCOBJ_QUERY = iowr::<SyncobjTimelineArray>(0xCB);
    /// `DRM_IOCTL_SYNCOBJ_TRANSFER`.
    SYNCOBJ_TRANSFER = iowr::<SyncobjTransfer>(0xCC);
    /// `DRM_IOCTL_SYNCOBJ_TIMELINE_SIGNAL`.
    SYNCOBJ_TIMELINE_SIGNAL = iowr::<SyncobjTimelineArray>(0xCD);
    /// `DRM_IOCTL_SYNCOBJ_EVENTFD`.
    SYNCOBJ_EVENTFD = iowr::<SyncobjEventfd>(0xCF);
    /// `DRM_IOCTL_SET_CLIENT_NAME`.
    SET_CLIENT_NAME = iowr::<SetClientName>(0xD1);
}
