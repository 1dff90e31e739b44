//! GET_INFO, GET_ARRAY and SET_STATE, a function a parameter (`aie2_pci.c`, `amdxdna_pci_drv.c`).
//!
//! All of them wake the device, take its lock and so wait for whoever talks to its firmware; `ENODEV` (unplugged) and
//! the errors of a failed wake-up (`EINVAL`, `ETIME`, `EIO`) can come from each. A parameter that the driver does not
//! know is `EOPNOTSUPP`.
#![allow(unsafe_code)]

use super::{address, call};
use crate::abi::query::{
    AsyncError, AttributeState, BoUsage, GetPowerMode, HwctxEntry, PowerMode, QueryAieMetadata, QueryAieStatus,
    QueryAieVersion, QueryClockMetadata, QueryFirmwareVersion, QueryHwctx, QuerySensor, QueryTelemetryHeader,
    ResourceInfo, SetPowerMode, get_array, get_info, set_state,
};
use crate::abi::{GetArray, GetInfo, SetState, request};
use crate::door::{Door, Errno};
use crate::error::IoctlError;
use bytemuck::{Pod, Zeroable};

/// The parameter `param` into `buffer`; returns `buffer_size` as it came back.
///
/// # Safety
/// Addresses inside `buffer`, where the parameter has some, must be valid for what the driver writes there.
unsafe fn info(door: &dyn Door, param: u32, buffer: &mut [u8], what: &str) -> Result<u32, IoctlError> {
    let buffer_size = u32::try_from(buffer.len()).unwrap_or(u32::MAX);
    let mut argument = GetInfo { param, buffer_size, buffer: address(buffer.as_mut_ptr()) };
    // SAFETY: the buffer outlives the call and has that many bytes; what is inside is the caller's promise.
    unsafe { call(door, request::GET_INFO, &mut argument, || what.to_owned())? };
    Ok(argument.buffer_size)
}

/// A parameter that is one plain structure without addresses.
fn one<T: Pod>(door: &dyn Door, param: u32, what: &str) -> Result<T, IoctlError> {
    let mut value = T::zeroed();
    // SAFETY: none of the structures that this is called with holds an address.
    unsafe { info(door, param, bytemuck::bytes_of_mut(&mut value), what)? };
    Ok(value)
}

/// The array's geometry.
///
/// * Since: always. Errors: as of the module. Blocks: as of the module.
///
/// # Errors
/// [`IoctlError`].
pub fn aie_metadata(door: &dyn Door) -> Result<QueryAieMetadata, IoctlError> {
    one(door, get_info::AIE_METADATA, "AIE metadata")
}

/// The array's version.
///
/// * Since: always. Errors: as of the module. Blocks: as of the module.
///
/// # Errors
/// [`IoctlError`].
pub fn aie_version(door: &dyn Door) -> Result<QueryAieVersion, IoctlError> {
    one(door, get_info::AIE_VERSION, "AIE version")
}

/// Register state of the columns that live contexts use: `col_size` bytes a column, and their bit map.
///
/// * Since: always. Errors: `EINVAL`: too small a buffer for the firmware. Blocks: a firmware round trip.
///
/// # Errors
/// [`IoctlError`].
pub fn aie_status(door: &dyn Door, columns: &mut [u8]) -> Result<u32, IoctlError> {
    let mut status = QueryAieStatus {
        buffer: address(columns.as_mut_ptr()),
        buffer_size: u32::try_from(columns.len()).unwrap_or(u32::MAX),
        cols_filled: 0,
    };
    // SAFETY: the inner buffer outlives the call and has the size that stands beside it.
    unsafe { info(door, get_info::AIE_STATUS, bytemuck::bytes_of_mut(&mut status), "AIE status")? };
    Ok(status.cols_filled)
}

/// Clocks.
///
/// * Since: always. Errors: as of the module. Blocks: as of the module.
///
/// # Errors
/// [`IoctlError`].
pub fn clock_metadata(door: &dyn Door) -> Result<QueryClockMetadata, IoctlError> {
    one(door, get_info::CLOCK_METADATA, "clocks")
}

/// Sensors: power, and since minor 7 the utilisation of each column.
///
/// * Since: always. Errors: `EOPNOTSUPP`: a kernel without amd_pmf. Blocks: as of the module.
///
/// # Errors
/// [`IoctlError`].
pub fn sensors(door: &dyn Door) -> Result<Vec<QuerySensor>, IoctlError> {
    let mut sensors = vec![QuerySensor::zeroed(); 64];
    // SAFETY: the structure holds no address.
    let written = unsafe { info(door, get_info::SENSORS, bytemuck::cast_slice_mut(&mut sensors), "sensors")? };
    sensors.truncate(written as usize / size_of::<QuerySensor>());
    Ok(sensors)
}

/// Contexts on the device, of this user (minor 16) or of everyone.
///
/// * Since: always. Errors: as of the module. Blocks: a firmware round trip a context.
///
/// # Errors
/// [`IoctlError`].
pub fn hw_contexts(door: &dyn Door) -> Result<Vec<QueryHwctx>, IoctlError> {
    let mut contexts = vec![QueryHwctx::zeroed(); 64];
    let bytes = contexts.len() * size_of::<QueryHwctx>();
    // SAFETY: the structure holds no address. What comes back is the room that was not needed.
    let unused = unsafe { info(door, get_info::HW_CONTEXTS, bytemuck::cast_slice_mut(&mut contexts), "contexts")? };
    contexts.truncate(bytes.saturating_sub(unused as usize) / size_of::<QueryHwctx>());
    Ok(contexts)
}

/// The firmware's version (of its build, not of its protocol).
///
/// * Since: always. Errors: as of the module. Blocks: as of the module.
///
/// # Errors
/// [`IoctlError`].
pub fn firmware_version(door: &dyn Door) -> Result<QueryFirmwareVersion, IoctlError> {
    one(door, get_info::FIRMWARE_VERSION, "firmware version")
}

/// The power mode; `Err` of the number for one that is not known.
///
/// * Since: always. Errors: as of the module. Blocks: as of the module.
///
/// # Errors
/// [`IoctlError`].
pub fn power_mode(door: &dyn Door) -> Result<Result<PowerMode, u8>, IoctlError> {
    one::<GetPowerMode>(door, get_info::POWER_MODE, "power mode").map(|mode| PowerMode::try_from(mode.power_mode))
}

/// Firmware telemetry of one [`telemetry_type`](crate::abi::query::telemetry_type): header, map and data in `buffer`
/// (which has to have room for the header and one word a context slot, at least).
///
/// * Since: minor 5. Errors: `EINVAL`: type, or too small. `EPERM` (minor 16): not visible. Blocks: a firmware round
///   trip.
///
/// # Errors
/// [`IoctlError`].
pub fn telemetry(door: &dyn Door, r#type: u32, buffer: &mut [u8]) -> Result<(), IoctlError> {
    let header = QueryTelemetryHeader { r#type, ..QueryTelemetryHeader::default() };
    let Some(head) = buffer.get_mut(..size_of::<QueryTelemetryHeader>()) else {
        return Err(IoctlError::new(request::GET_INFO, "telemetry, too small a buffer", Errno::INVAL));
    };
    head.copy_from_slice(bytemuck::bytes_of(&header));
    // SAFETY: the structure holds no address.
    unsafe { info(door, get_info::TELEMETRY, buffer, "telemetry")? };
    Ok(())
}

/// Whether contexts are made to be preempted.
///
/// * Since: minor 6. Errors: as of the module. Blocks: as of the module.
///
/// # Errors
/// [`IoctlError`].
pub fn force_preempt(door: &dyn Door) -> Result<bool, IoctlError> {
    one::<AttributeState>(door, get_info::FORCE_PREEMPT_STATE, "force preempt").map(|it| it.state != 0)
}

/// Whether contexts are preempted at frame boundaries.
///
/// * Since: minor 6. Errors: as of the module. Blocks: as of the module.
///
/// # Errors
/// [`IoctlError`].
pub fn frame_boundary_preempt(door: &dyn Door) -> Result<bool, IoctlError> {
    one::<AttributeState>(door, get_info::FRAME_BOUNDARY_PREEMPT_STATE, "frame boundary preempt")
        .map(|it| it.state != 0)
}

/// Clocks, TOPS and context slots: what the device has and what is in use, by all processes.
///
/// * Since: minor 4. Errors: as of the module. Blocks: as of the module.
///
/// # Errors
/// [`IoctlError`].
pub fn resource_info(door: &dyn Door) -> Result<ResourceInfo, IoctlError> {
    one(door, get_info::RESOURCE_INFO, "resources")
}

/// As many elements of an array parameter as there are, at most as many as `elements` has.
fn array<T: Pod>(door: &dyn Door, param: u32, elements: &mut Vec<T>, what: &str) -> Result<(), IoctlError> {
    let mut argument = GetArray {
        param,
        element_size: size_of::<T>() as u32,
        num_element: u32::try_from(elements.len()).unwrap_or(u32::MAX),
        pad: 0,
        buffer: address(elements.as_mut_ptr()),
    };
    // SAFETY: the elements outlive the call and are as many, and as large, as it says; they hold no addresses.
    unsafe { call(door, request::GET_ARRAY, &mut argument, || what.to_owned())? };
    elements.truncate(argument.num_element as usize);
    Ok(())
}

/// Contexts on the device, with their health.
///
/// * Since: minor 1. Errors: as of the module. Blocks: a firmware round trip a context.
///
/// # Errors
/// [`IoctlError`].
pub fn hwctx_entries(door: &dyn Door) -> Result<Vec<HwctxEntry>, IoctlError> {
    let mut entries = vec![HwctxEntry::zeroed(); 256];
    array(door, get_array::HW_CONTEXT_ALL, &mut entries, "all contexts")?;
    Ok(entries)
}

/// The device's last asynchronous array error, if there has been one.
///
/// * Since: minor 2. Errors: as of the module. Blocks: as of the module.
///
/// # Errors
/// [`IoctlError`].
pub fn last_async_error(door: &dyn Door) -> Result<Option<AsyncError>, IoctlError> {
    let mut errors = vec![AsyncError::zeroed()];
    array(door, get_array::HW_LAST_ASYNC_ERR, &mut errors, "last asynchronous error")?;
    Ok(errors.pop().filter(|error| error.err_code != 0))
}

/// BO memory that a process has on the device.
///
/// * Since: minor 8. Errors: `EINVAL`: pid 0. Blocks: as of the module.
///
/// # Errors
/// [`IoctlError`].
pub fn bo_usage(door: &dyn Door, pid: i64) -> Result<BoUsage, IoctlError> {
    let mut usage = vec![BoUsage { pid, ..BoUsage::default() }];
    array(door, get_array::BO_USAGE, &mut usage, "BO usage")?;
    usage.pop().ok_or_else(|| IoctlError::new(request::GET_ARRAY, "BO usage", Errno::NOENT))
}

fn set<T: Pod>(door: &dyn Door, param: u32, value: &T, what: &str) -> Result<(), IoctlError> {
    let mut argument = SetState { param, buffer_size: size_of::<T>() as u32, buffer: address(value) };
    // SAFETY: the value outlives the call and has that size.
    unsafe { call(door, request::SET_STATE, &mut argument, || what.to_owned()) }
}

/// Sets the device's power mode, for everyone, until the module is unloaded.
///
/// * Since: always. Errors: `EACCES`: not root. `EINVAL`: TURBO with a live context (7.3). Blocks: up to 3.5 s.
///
/// # Errors
/// [`IoctlError`].
pub fn set_power_mode(door: &dyn Door, mode: PowerMode) -> Result<(), IoctlError> {
    let value = SetPowerMode { power_mode: mode as u8, pad: [0; 7] };
    set(door, set_state::POWER_MODE, &value, &format!("power mode {mode:?}"))
}

/// Makes contexts that are created from now on preemptible.
///
/// * Since: minor 6. Errors: `EACCES`: not root. Blocks: as of the module.
///
/// # Errors
/// [`IoctlError`].
pub fn set_force_preempt(door: &dyn Door, on: bool) -> Result<(), IoctlError> {
    set(door, set_state::FORCE_PREEMPT, &AttributeState { state: on.into(), pad: [0; 7] }, "force preempt")
}

/// Preempts at frame boundaries.
///
/// * Since: minor 6. Errors: `EACCES`: not root. Blocks: a firmware round trip.
///
/// # Errors
/// [`IoctlError`].
pub fn set_frame_boundary_preempt(door: &dyn Door, on: bool) -> Result<(), IoctlError> {
    let value = AttributeState { state: on.into(), pad: [0; 7] };
    set(door, set_state::FRAME_BOUNDARY_PREEMPT, &value, "frame boundary preempt")
}
