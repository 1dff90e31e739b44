//! The DRM core's ioctls that an NPU client needs (`drm.h`).

use bitflags::bitflags;
use bytemuck::{Pod, Zeroable};

/// Capabilities for [`GetCap`].
pub mod cap {
    /// `DRM_CAP_PRIME`: a bit set of [`PRIME_IMPORT`] and [`PRIME_EXPORT`].
    pub const PRIME: u64 = 0x5;
    /// `DRM_PRIME_CAP_IMPORT`.
    pub const PRIME_IMPORT: u64 = 0x1;
    /// `DRM_PRIME_CAP_EXPORT`.
    pub const PRIME_EXPORT: u64 = 0x2;
    /// `DRM_CAP_SYNCOBJ`.
    pub const SYNCOBJ: u64 = 0x13;
    /// `DRM_CAP_SYNCOBJ_TIMELINE`.
    pub const SYNCOBJ_TIMELINE: u64 = 0x14;
}

bitflags! {
    /// Flags of [`PrimeHandle`] on export.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct PrimeFlags: u32 {
        /// `DRM_RDWR`: the dma-buf can be mapped writable.
        const RDWR = 0o2;
        /// `DRM_CLOEXEC`.
        const CLOEXEC = 0o2_000_000;
    }

    /// `DRM_SYNCOBJ_CREATE_*`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SyncobjCreateFlags: u32 {
        /// Starts out signalled.
        const SIGNALED = 1 << 0;
    }

    /// `DRM_SYNCOBJ_HANDLE_TO_FD_FLAGS_*` and `DRM_SYNCOBJ_FD_TO_HANDLE_FLAGS_*`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SyncobjFdFlags: u32 {
        /// The fd is a sync file, not a syncobj.
        const SYNC_FILE = 1 << 0;
        /// [`SyncobjHandle::point`] counts.
        const TIMELINE = 1 << 1;
    }

    /// `DRM_SYNCOBJ_WAIT_FLAGS_*`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SyncobjWaitFlags: u32 {
        /// Wait for all points, not for one.
        const ALL = 1 << 0;
        /// A point that nobody has submitted yet is waited for, not refused.
        const FOR_SUBMIT = 1 << 1;
        /// Wait only until the point has a fence.
        const AVAILABLE = 1 << 2;
        /// `deadline_nsec` counts.
        const DEADLINE = 1 << 3;
    }

    /// `DRM_SYNCOBJ_QUERY_FLAGS_*`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SyncobjQueryFlags: u32 {
        /// The last submitted point instead of the last signalled one.
        const LAST_SUBMITTED = 1 << 0;
    }
}

/// `struct drm_version`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Version {
    /// Out.
    pub version_major: i32,
    /// Out.
    pub version_minor: i32,
    /// Out.
    pub version_patchlevel: i32,
    /// The C structure's hole.
    pub hole: u32,
    /// In: room at `name`; out: length of the whole name, without NUL.
    pub name_len: u64,
    /// Address of the name's buffer.
    pub name: u64,
    /// As `name_len`.
    pub date_len: u64,
    /// Address of the date's buffer.
    pub date: u64,
    /// As `name_len`.
    pub desc_len: u64,
    /// Address of the description's buffer.
    pub desc: u64,
}

/// `struct drm_gem_close`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct GemClose {
    /// The handle.
    pub handle: u32,
    /// Padding.
    pub pad: u32,
}

/// `struct drm_get_cap`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct GetCap {
    /// One of [`cap`].
    pub capability: u64,
    /// Out.
    pub value: u64,
}

/// `struct drm_prime_handle`, of both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct PrimeHandle {
    /// The GEM handle.
    pub handle: u32,
    /// [`PrimeFlags`], on export only.
    pub flags: u32,
    /// The dma-buf.
    pub fd: i32,
}

/// `struct drm_syncobj_create`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct SyncobjCreate {
    /// Out.
    pub handle: u32,
    /// [`SyncobjCreateFlags`].
    pub flags: u32,
}

/// `struct drm_syncobj_destroy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct SyncobjDestroy {
    /// The syncobj.
    pub handle: u32,
    /// Must be zero.
    pub pad: u32,
}

/// `struct drm_syncobj_handle`, of both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct SyncobjHandle {
    /// The syncobj.
    pub handle: u32,
    /// [`SyncobjFdFlags`].
    pub flags: u32,
    /// The file.
    pub fd: i32,
    /// Must be zero.
    pub pad: u32,
    /// Timeline point, with [`SyncobjFdFlags::TIMELINE`].
    pub point: u64,
}

/// `struct drm_syncobj_wait`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct SyncobjWait {
    /// Address of `count_handles` u32 handles.
    pub handles: u64,
    /// Absolute, `CLOCK_MONOTONIC`; 0 polls.
    pub timeout_nsec: i64,
    /// How many.
    pub count_handles: u32,
    /// [`SyncobjWaitFlags`].
    pub flags: u32,
    /// Out: which one, without [`SyncobjWaitFlags::ALL`].
    pub first_signaled: u32,
    /// Must be zero.
    pub pad: u32,
    /// A hint, with [`SyncobjWaitFlags::DEADLINE`].
    pub deadline_nsec: u64,
}

/// `struct drm_syncobj_timeline_wait`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct SyncobjTimelineWait {
    /// Address of `count_handles` u32 handles.
    pub handles: u64,
    /// Address of as many u64 points.
    pub points: u64,
    /// Absolute, `CLOCK_MONOTONIC`; 0 polls.
    pub timeout_nsec: i64,
    /// How many.
    pub count_handles: u32,
    /// [`SyncobjWaitFlags`].
    pub flags: u32,
    /// Out: which one, without [`SyncobjWaitFlags::ALL`].
    pub first_signaled: u32,
    /// Must be zero.
    pub pad: u32,
    /// A hint, with [`SyncobjWaitFlags::DEADLINE`].
    pub deadline_nsec: u64,
}

/// `struct drm_syncobj_timeline_array`: of QUERY and of TIMELINE_SIGNAL.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct SyncobjTimelineArray {
    /// Address of `count_handles` u32 handles.
    pub handles: u64,
    /// Address of as many u64 points (out for QUERY).
    pub points: u64,
    /// How many.
    pub count_handles: u32,
    /// [`SyncobjQueryFlags`] for QUERY, zero for TIMELINE_SIGNAL.
    pub flags: u32,
}

/// `struct drm_syncobj_transfer`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct SyncobjTransfer {
    /// From.
    pub src_handle: u32,
    /// To.
    pub dst_handle: u32,
    /// Point of the source, 0 for a binary syncobj.
    pub src_point: u64,
    /// Point of the destination, 0 for a binary syncobj.
    pub dst_point: u64,
    /// [`SyncobjWaitFlags::FOR_SUBMIT`] or nothing.
    pub flags: u32,
    /// Must be zero.
    pub pad: u32,
}

/// `struct drm_syncobj_eventfd`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct SyncobjEventfd {
    /// The syncobj.
    pub handle: u32,
    /// [`SyncobjWaitFlags::AVAILABLE`] or nothing.
    pub flags: u32,
    /// The point.
    pub point: u64,
    /// The eventfd.
    pub fd: i32,
    /// Must be zero.
    pub pad: u32,
}

/// `struct drm_set_client_name`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct SetClientName {
    /// Bytes at `name`.
    pub name_len: u64,
    /// Address of the name, NUL not needed.
    pub name: u64,
}
