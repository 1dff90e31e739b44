//! Ioctls of the DRM core (`drm_ioctl.c`, `drm_gem.c`, `drm_prime.c`, `drm_syncobj.c`).
#![allow(unsafe_code)]

use super::{address, call};
use crate::abi::drm::{
    GemClose, GetCap, PrimeFlags, PrimeHandle, SetClientName, SyncobjCreate, SyncobjCreateFlags, SyncobjDestroy,
    SyncobjEventfd, SyncobjFdFlags, SyncobjHandle, SyncobjQueryFlags, SyncobjTimelineArray, SyncobjTimelineWait,
    SyncobjTransfer, SyncobjWait, SyncobjWaitFlags, Version,
};
use crate::abi::request;
use crate::deadline::Deadline;
use crate::door::{Door, Errno};
use crate::error::IoctlError;
use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// What a driver says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverVersion {
    /// Its name, `amdxdna_accel_driver`.
    pub name: String,
    /// Its description.
    pub description: String,
    /// 0.
    pub major: i32,
    /// Counts features, see `amdxdna_pci_drv.c`.
    pub minor: i32,
    /// 0.
    pub patch: i32,
}

/// VERSION: who drives this node.
///
/// * Since: always.
/// * Errors: `ENOTTY`, `EINVAL`: not a DRM device. `ENODEV`: unplugged.
/// * Blocks: no.
///
/// # Errors
/// [`IoctlError`].
pub fn version(door: &dyn Door) -> Result<DriverVersion, IoctlError> {
    const ROOM: usize = 128;
    let (mut name, mut desc) = ([0u8; ROOM], [0u8; ROOM]);
    let mut argument = Version {
        name_len: ROOM as u64,
        name: address(name.as_mut_ptr()),
        desc_len: ROOM as u64,
        desc: address(desc.as_mut_ptr()),
        ..Version::default()
    };
    // SAFETY: the two buffers have the lengths that stand beside them; the date has none.
    unsafe { call(door, request::VERSION, &mut argument, || "driver name".into())? };
    // The driver may have longer strings than there was room for.
    let text = |bytes: &[u8], len: u64| {
        String::from_utf8_lossy(&bytes[..usize::try_from(len).unwrap_or(ROOM).min(ROOM)]).into_owned()
    };
    Ok(DriverVersion {
        name: text(&name, argument.name_len),
        description: text(&desc, argument.desc_len),
        major: argument.version_major,
        minor: argument.version_minor,
        patch: argument.version_patchlevel,
    })
}

/// GET_CAP: one of [`cap`](crate::abi::drm::cap).
///
/// * Since: always.
/// * Errors: `EINVAL`: unknown capability. `ENODEV`: unplugged.
/// * Blocks: no.
///
/// # Errors
/// [`IoctlError`].
pub fn get_cap(door: &dyn Door, capability: u64) -> Result<u64, IoctlError> {
    let mut argument = GetCap { capability, value: 0 };
    // SAFETY: no pointers.
    unsafe { call(door, request::GET_CAP, &mut argument, || format!("capability {capability:#x}"))? };
    Ok(argument.value)
}

/// GEM_CLOSE: gives a handle back. Jobs in flight and mappings keep the memory alive.
///
/// * Since: always.
/// * Errors: `EINVAL`: no such handle. `ENODEV`: unplugged.
/// * Blocks: no.
///
/// # Errors
/// [`IoctlError`].
pub fn gem_close(door: &dyn Door, handle: u32) -> Result<(), IoctlError> {
    let mut argument = GemClose { handle, pad: 0 };
    // SAFETY: no pointers.
    unsafe { call(door, request::GEM_CLOSE, &mut argument, || format!("BO {handle}")) }
}

/// PRIME_HANDLE_TO_FD: a BO as a dma-buf, mappable and close-on-exec.
///
/// * Since: always.
/// * Errors: `ENOENT`: no such handle. `EOPNOTSUPP`: a DEV BO, or (minor 16) a user-pointer BO.
/// * Blocks: no.
///
/// # Errors
/// [`IoctlError`].
pub fn prime_handle_to_fd(door: &dyn Door, handle: u32) -> Result<OwnedFd, IoctlError> {
    let flags = PrimeFlags::RDWR | PrimeFlags::CLOEXEC;
    let mut argument = PrimeHandle { handle, flags: flags.bits(), fd: -1 };
    // SAFETY: no pointers.
    unsafe { call(door, request::PRIME_HANDLE_TO_FD, &mut argument, || format!("BO {handle}"))? };
    owned(request::PRIME_HANDLE_TO_FD, argument.fd)
}

/// PRIME_FD_TO_HANDLE: a dma-buf as a BO. One of this client's own comes back under the handle it already has, which
/// one [`gem_close`] closes for all.
///
/// * Since: always.
/// * Errors: `EBADF`, `EINVAL`: not a dma-buf. `ENOMEM`.
/// * Blocks: no.
///
/// # Errors
/// [`IoctlError`].
pub fn prime_fd_to_handle(door: &dyn Door, dmabuf: BorrowedFd<'_>) -> Result<u32, IoctlError> {
    let fd = dmabuf.as_raw_fd();
    let mut argument = PrimeHandle { handle: 0, flags: 0, fd };
    // SAFETY: no pointers.
    unsafe { call(door, request::PRIME_FD_TO_HANDLE, &mut argument, || format!("dma-buf {fd}"))? };
    Ok(argument.handle)
}

/// SYNCOBJ_CREATE: a syncobj of the client's own.
///
/// * Since: always.
/// * Errors: `EINVAL`: unknown flag. `ENOMEM`.
/// * Blocks: no.
///
/// # Errors
/// [`IoctlError`].
pub fn syncobj_create(door: &dyn Door, flags: SyncobjCreateFlags) -> Result<u32, IoctlError> {
    let mut argument = SyncobjCreate { handle: 0, flags: flags.bits() };
    // SAFETY: no pointers.
    unsafe { call(door, request::SYNCOBJ_CREATE, &mut argument, || format!("{flags:?}"))? };
    Ok(argument.handle)
}

/// SYNCOBJ_DESTROY: gives a handle back, a context's own included.
///
/// * Since: always.
/// * Errors: `EINVAL`: no such handle.
/// * Blocks: no.
///
/// # Errors
/// [`IoctlError`].
pub fn syncobj_destroy(door: &dyn Door, handle: u32) -> Result<(), IoctlError> {
    let mut argument = SyncobjDestroy { handle, pad: 0 };
    // SAFETY: no pointers.
    unsafe { call(door, request::SYNCOBJ_DESTROY, &mut argument, || format!("syncobj {handle}")) }
}

/// SYNCOBJ_HANDLE_TO_FD: a syncobj, or its fence as a sync file, as a file.
///
/// * Since: always; [`SyncobjFdFlags::TIMELINE`] since Linux 6.16.
/// * Errors: `EINVAL`: no such handle or flag.
/// * Blocks: no.
///
/// # Errors
/// [`IoctlError`].
pub fn syncobj_handle_to_fd(
    door: &dyn Door,
    handle: u32,
    flags: SyncobjFdFlags,
    point: u64,
) -> Result<OwnedFd, IoctlError> {
    let mut argument = SyncobjHandle { handle, flags: flags.bits(), fd: -1, pad: 0, point };
    // SAFETY: no pointers.
    unsafe { call(door, request::SYNCOBJ_HANDLE_TO_FD, &mut argument, || format!("syncobj {handle}, {flags:?}"))? };
    owned(request::SYNCOBJ_HANDLE_TO_FD, argument.fd)
}

/// SYNCOBJ_FD_TO_HANDLE: the way back. With [`SyncobjFdFlags::SYNC_FILE`] the fence goes into the syncobj `into`.
///
/// * Since: always; [`SyncobjFdFlags::TIMELINE`] since Linux 6.16.
/// * Errors: `EINVAL`: not such a file, no such flag.
/// * Blocks: no.
///
/// # Errors
/// [`IoctlError`].
pub fn syncobj_fd_to_handle(
    door: &dyn Door,
    file: BorrowedFd<'_>,
    into: u32,
    flags: SyncobjFdFlags,
    point: u64,
) -> Result<u32, IoctlError> {
    let fd = file.as_raw_fd();
    let mut argument = SyncobjHandle { handle: into, flags: flags.bits(), fd, pad: 0, point };
    // SAFETY: no pointers.
    unsafe { call(door, request::SYNCOBJ_FD_TO_HANDLE, &mut argument, || format!("file {fd}, {flags:?}"))? };
    Ok(argument.handle)
}

/// SYNCOBJ_WAIT: waits for binary syncobjs; says which was first, without [`SyncobjWaitFlags::ALL`].
///
/// * Since: always.
/// * Errors: `ETIME`: the deadline passed. `ENOENT`: no such handle. `EINVAL`: no fence yet and not
///   [`SyncobjWaitFlags::FOR_SUBMIT`].
/// * Blocks: until then; a signal does not end it.
///
/// # Errors
/// [`IoctlError`].
pub fn syncobj_wait(
    door: &dyn Door,
    handles: &[u32],
    deadline: Deadline,
    flags: SyncobjWaitFlags,
) -> Result<u32, IoctlError> {
    let mut argument = SyncobjWait {
        handles: address(handles.as_ptr()),
        timeout_nsec: deadline.nanoseconds(),
        count_handles: count(handles.len()),
        flags: flags.bits(),
        ..SyncobjWait::default()
    };
    // SAFETY: the handles outlive the call and are as many as it says.
    unsafe { call(door, request::SYNCOBJ_WAIT, &mut argument, || format!("syncobjs {handles:?}"))? };
    Ok(argument.first_signaled)
}

/// SYNCOBJ_TIMELINE_WAIT: waits for points of timelines, given as (syncobj, point); says which was first, without
/// [`SyncobjWaitFlags::ALL`]. No points at all are done at once.
///
/// * Since: always.
/// * Errors: `ETIME`: the deadline passed. `ENOENT`: no such handle. `EINVAL`: a point that nobody has submitted, and
///   not [`SyncobjWaitFlags::FOR_SUBMIT`].
/// * Blocks: until then; a signal does not end it. Point 0 waits for everything submitted so far.
///
/// # Errors
/// [`IoctlError`].
pub fn syncobj_timeline_wait(
    door: &dyn Door,
    points: &[(u32, u64)],
    deadline: Deadline,
    flags: SyncobjWaitFlags,
) -> Result<u32, IoctlError> {
    // The one that is waited for most is alone, and needs no allocation.
    let (one_handle, one_point, many);
    let (handles, values): (&[u32], &[u64]) = if let [(handle, point)] = *points {
        (one_handle, one_point) = ([handle], [point]);
        (&one_handle, &one_point)
    } else {
        many = points.iter().copied().unzip::<u32, u64, Vec<u32>, Vec<u64>>();
        (&many.0, &many.1)
    };
    let mut argument = SyncobjTimelineWait {
        handles: address(handles.as_ptr()),
        points: address(values.as_ptr()),
        timeout_nsec: deadline.nanoseconds(),
        count_handles: count(handles.len()),
        flags: flags.bits(),
        ..SyncobjTimelineWait::default()
    };
    // SAFETY: handles and points outlive the call and are as many as it says.
    unsafe { call(door, request::SYNCOBJ_TIMELINE_WAIT, &mut argument, || format!("points {points:?}"))? };
    Ok(argument.first_signaled)
}

/// SYNCOBJ_QUERY: the last signalled point of a timeline (0 for none, and for command 0 done), or the last submitted.
///
/// * Since: always.
/// * Errors: `ENOENT`: no such handle. `EINVAL`: unknown flag.
/// * Blocks: no.
///
/// # Errors
/// [`IoctlError`].
pub fn syncobj_query(door: &dyn Door, handle: u32, flags: SyncobjQueryFlags) -> Result<u64, IoctlError> {
    let handles = [handle];
    let mut points = [0u64];
    let mut argument = SyncobjTimelineArray {
        handles: address(handles.as_ptr()),
        points: address(points.as_mut_ptr()),
        count_handles: 1,
        flags: flags.bits(),
    };
    // SAFETY: one handle and room for one point.
    unsafe { call(door, request::SYNCOBJ_QUERY, &mut argument, || format!("syncobj {handle}"))? };
    Ok(points[0])
}

/// SYNCOBJ_TRANSFER: puts the fence of one syncobj's point on another's.
///
/// * Since: always.
/// * Errors: `ENOENT`: no such handle. `EINVAL`: the point has no fence and not [`SyncobjWaitFlags::FOR_SUBMIT`].
/// * Blocks: with [`SyncobjWaitFlags::FOR_SUBMIT`], until there is one.
///
/// # Errors
/// [`IoctlError`].
pub fn syncobj_transfer(
    door: &dyn Door,
    (src_handle, src_point): (u32, u64),
    (dst_handle, dst_point): (u32, u64),
    flags: SyncobjWaitFlags,
) -> Result<(), IoctlError> {
    let mut argument = SyncobjTransfer { src_handle, dst_handle, src_point, dst_point, flags: flags.bits(), pad: 0 };
    let asked = || format!("{src_handle}:{src_point} to {dst_handle}:{dst_point}");
    // SAFETY: no pointers.
    unsafe { call(door, request::SYNCOBJ_TRANSFER, &mut argument, asked) }
}

/// SYNCOBJ_TIMELINE_SIGNAL: signals a point from the host.
///
/// * Since: always.
/// * Errors: `ENOENT`: no such handle.
/// * Blocks: no.
///
/// # Errors
/// [`IoctlError`].
pub fn syncobj_timeline_signal(door: &dyn Door, handle: u32, point: u64) -> Result<(), IoctlError> {
    let (handles, points) = ([handle], [point]);
    let mut argument = SyncobjTimelineArray {
        handles: address(handles.as_ptr()),
        points: address(points.as_ptr()),
        count_handles: 1,
        flags: 0,
    };
    // SAFETY: one handle and one point.
    unsafe { call(door, request::SYNCOBJ_TIMELINE_SIGNAL, &mut argument, || format!("{handle}:{point}")) }
}

/// SYNCOBJ_EVENTFD: counts an eventfd up when the point signals, for poll loops.
///
/// * Since: Linux 6.6.
/// * Errors: `ENOENT`: no such handle. `EINVAL`: not an eventfd, unknown flag.
/// * Blocks: no.
///
/// # Errors
/// [`IoctlError`].
pub fn syncobj_eventfd(
    door: &dyn Door,
    handle: u32,
    point: u64,
    eventfd: BorrowedFd<'_>,
    flags: SyncobjWaitFlags,
) -> Result<(), IoctlError> {
    let mut argument = SyncobjEventfd { handle, flags: flags.bits(), point, fd: eventfd.as_raw_fd(), pad: 0 };
    // SAFETY: no pointers.
    unsafe { call(door, request::SYNCOBJ_EVENTFD, &mut argument, || format!("{handle}:{point}")) }
}

/// SET_CLIENT_NAME: a name for this client in the file's fdinfo.
///
/// * Since: Linux 6.13.
/// * Errors: `EINVAL`: longer than 63 bytes, or with bytes that are no printable ASCII.
/// * Blocks: no.
///
/// # Errors
/// [`IoctlError`].
pub fn set_client_name(door: &dyn Door, name: &str) -> Result<(), IoctlError> {
    let mut argument = SetClientName { name_len: name.len() as u64, name: address(name.as_ptr()) };
    // SAFETY: the name outlives the call.
    unsafe { call(door, request::SET_CLIENT_NAME, &mut argument, || format!("{name:?}")) }
}

fn count(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

fn owned(request: u32, fd: i32) -> Result<OwnedFd, IoctlError> {
    if fd < 0 {
        return Err(IoctlError::new(request, "a file", Errno::BADF));
    }
    // SAFETY: the driver has just made this descriptor for the caller, nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
