//! The driver's ioctls that make and run things (`amdxdna_ctx.c`, `amdxdna_gem.c`, `aie2_ctx.c`).
#![allow(unsafe_code)]

use super::{address, call};
use crate::abi::{
    BoType, ConfigHwctx, CreateBo, CreateHwctx, CuConfig, DestroyHwctx, ExecCmd, GetBoInfo, HwctxParamConfigCu,
    QosInfo, SyncBo, VaEntry, VaTbl, WaitCmd, cmd_type, config_hwctx_param, request,
};
use crate::door::Door;
use crate::error::IoctlError;

/// CREATE_HWCTX: a context over `num_tiles` = columns times core rows. The answer has `handle` and `syncobj_handle`;
/// the syncobj is the caller's to destroy.
///
/// * Since: always.
/// * Errors: `ENOENT`: no heap. `EAGAIN`: heap not mapped, or too small for the context's command buffers (128 KiB of
///   heap a context): add a chunk. `EINVAL`: `num_tiles`, too high a QoS, or all context slots of the device in use.
///   `ENOSPC`, `EBUSY`: ids or heap window exhausted. `EOPNOTSUPP`: several heap chunks and a firmware without
///   ADD_HOST_BUFFER. `ETIME`: firmware silent. `ENODEV`: unplugged, or (NPU1) no free columns.
/// * Blocks: for firmware round trips, under a lock of the device; wakes it.
///
/// # Errors
/// [`IoctlError`].
pub fn create_hwctx(door: &dyn Door, qos: &QosInfo, num_tiles: u32, max_opc: u32) -> Result<CreateHwctx, IoctlError> {
    let mut argument = CreateHwctx { qos_p: address(qos), max_opc, num_tiles, ..CreateHwctx::default() };
    // SAFETY: the QoS structure outlives the call.
    unsafe { call(door, request::CREATE_HWCTX, &mut argument, || format!("{num_tiles} tiles"))? };
    Ok(argument)
}

/// DESTROY_HWCTX: commands in flight end as ABORT, all points of its timeline signal.
///
/// * Since: always.
/// * Errors: `EINVAL`: no such context. `ENODEV`: unplugged.
/// * Blocks: up to 2 s for the last command, and for the firmware.
///
/// # Errors
/// [`IoctlError`].
pub fn destroy_hwctx(door: &dyn Door, hwctx: u32) -> Result<(), IoctlError> {
    let mut argument = DestroyHwctx { handle: hwctx, pad: 0 };
    // SAFETY: no pointers.
    unsafe { call(door, request::DESTROY_HWCTX, &mut argument, || format!("context {hwctx}")) }
}

/// CONFIG_HWCTX with CONFIG_CU: the PDIs of a context, once in its life. Each BO has to stay open as long as the
/// context: up to Linux 7.3 the driver looks its handle up again after every suspend.
///
/// * Since: always.
/// * Errors: `EINVAL`: no CUs or more than 32, a BO that is no DEV BO, a second configuration. `E2BIG`. `ENODEV`: the
///   context lost its firmware channel. `ETIME`: firmware silent.
/// * Blocks: under a lock of the device; does not wait for the firmware's answer, so that a bad PDI shows as failing
///   commands.
///
/// # Errors
/// [`IoctlError`].
pub fn config_cu(door: &dyn Door, hwctx: u32, cus: &[CuConfig]) -> Result<(), IoctlError> {
    let head = HwctxParamConfigCu { num_cus: u16::try_from(cus.len()).unwrap_or(u16::MAX), pad: [0; 3] };
    let mut bytes = bytemuck::bytes_of(&head).to_vec();
    bytes.extend_from_slice(bytemuck::cast_slice(cus));
    let mut argument = ConfigHwctx {
        handle: hwctx,
        param_type: config_hwctx_param::CONFIG_CU,
        param_val: address(bytes.as_ptr()),
        param_val_size: u32::try_from(bytes.len()).unwrap_or(u32::MAX),
        pad: 0,
    };
    let asked = || format!("context {hwctx}, {} CUs", cus.len());
    // SAFETY: the configuration outlives the call and has the size that stands beside it.
    unsafe { call(door, request::CONFIG_HWCTX, &mut argument, asked) }
}

/// CONFIG_HWCTX with ASSIGN_DBG_BUF (`assign`) or REMOVE_DBG_BUF: a DEV BO that takes the firmware's debug output.
///
/// * Since: minor 3.
/// * Errors: `EINVAL`: not a DEV BO, not assigned, or the firmware refused. `EBUSY`: assigned already.
/// * Blocks: until the firmware has it; takes a sequence number.
///
/// # Errors
/// [`IoctlError`].
pub fn config_debug_bo(door: &dyn Door, hwctx: u32, bo: u32, assign: bool) -> Result<(), IoctlError> {
    let param_type = if assign { config_hwctx_param::ASSIGN_DBG_BUF } else { config_hwctx_param::REMOVE_DBG_BUF };
    let mut argument = ConfigHwctx { handle: hwctx, param_type, param_val: u64::from(bo), param_val_size: 0, pad: 0 };
    // SAFETY: `param_val` is a handle here, no pointer.
    unsafe { call(door, request::CONFIG_HWCTX, &mut argument, || format!("context {hwctx}, debug BO {bo}")) }
}

/// CREATE_BO: a buffer object of the driver's own memory.
///
/// * Since: always.
/// * Errors: `EINVAL`: a size that the type does not take. `ENOMEM`. DEV: `EAGAIN`: no heap, heap not mapped, or no
///   room: add a chunk. `ENOSPC`: heap window full; for DEV_HEAP: 512 MiB (NPU1: 64 MiB) are there already.
///   `EOPNOTSUPP`: a firmware without ADD_HOST_BUFFER.
/// * Blocks: DEV may announce heap chunks to the firmware, the others do not.
///
/// # Errors
/// [`IoctlError`].
pub fn create_bo(door: &dyn Door, r#type: BoType, size: u64) -> Result<u32, IoctlError> {
    let mut argument = CreateBo { size, r#type: r#type as u32, ..CreateBo::default() };
    // SAFETY: no pointers.
    unsafe { call(door, request::CREATE_BO, &mut argument, || format!("{type:?}, {size} bytes"))? };
    Ok(argument.handle)
}

/// CREATE_BO of memory that the process already has; its pages are pinned and count against RLIMIT_MEMLOCK.
///
/// * Since: minor 0 of Linux 6.17 and later.
/// * Errors: `EINVAL`: not page-aligned, not SHARE or CMD, not one range of addresses. `EPERM`, `ENOMEM`: memlock.
///   `EFAULT`: unmapped or not writable.
/// * Blocks: while it faults the pages in.
///
/// # Safety
/// The memory must stay mapped, and belong to the caller, until the BO is gone: the device writes into it.
///
/// # Errors
/// [`IoctlError`].
pub unsafe fn create_user_bo(door: &dyn Door, r#type: BoType, pieces: &[VaEntry]) -> Result<u32, IoctlError> {
    let head = VaTbl { dmabuf_fd: -1, num_entries: u32::try_from(pieces.len()).unwrap_or(u32::MAX) };
    let mut table = bytemuck::bytes_of(&head).to_vec();
    table.extend_from_slice(bytemuck::cast_slice(pieces));
    let mut argument = CreateBo { vaddr: address(table.as_ptr()), r#type: r#type as u32, ..CreateBo::default() };
    let asked = || format!("{type:?} of user memory, {} pieces", pieces.len());
    // SAFETY: the table outlives the call; the memory is the caller's promise.
    unsafe { call(door, request::CREATE_BO, &mut argument, asked)? };
    Ok(argument.handle)
}

/// GET_BO_INFO: where a BO can be mapped and what its device address is (that of SHARE and CMD only after mmap, where
/// the device shares the process' address space).
///
/// * Since: always.
/// * Errors: `ENOENT`: no such handle. `ENODEV`: unplugged.
/// * Blocks: no.
///
/// # Errors
/// [`IoctlError`].
pub fn get_bo_info(door: &dyn Door, handle: u32) -> Result<GetBoInfo, IoctlError> {
    let mut argument = GetBoInfo { handle, ..GetBoInfo::default() };
    // SAFETY: no pointers.
    unsafe { call(door, request::GET_BO_INFO, &mut argument, || format!("BO {handle}"))? };
    Ok(argument)
}

/// SYNC_BO, to the device: the kernel's own write-back of a range's cache lines; [`Door::flush`] does the same without
/// a call, and works for imports of Linux 7.3 too.
///
/// * Since: always.
/// * Errors: `ENOENT`: no such handle. `EINVAL`: the range starts outside. `EOPNOTSUPP`: an import (7.3).
/// * Blocks: no.
///
/// # Errors
/// [`IoctlError`].
pub fn sync_bo(door: &dyn Door, handle: u32, direction: u32, offset: u64, size: u64) -> Result<(), IoctlError> {
    let mut argument = SyncBo { handle, direction, offset, size };
    let asked = || format!("BO {handle}, {size} bytes at {offset}");
    // SAFETY: no pointers.
    unsafe { call(door, request::SYNC_BO, &mut argument, asked) }
}

/// EXEC_CMD: puts the command in a CMD (or SHARE) BO into a context's queue; its sequence number is its point on the
/// context's timeline. `args` are the BOs that it uses, each once.
///
/// Nothing of the packet is looked at here: see [`CommandOutcome`](crate::packet::CommandOutcome).
///
/// * Since: always.
/// * Errors: `EINVAL`: no such context, no such command BO. `ENOENT`: no such argument BO. `EALREADY`: a BO twice.
///   `EFAULT`, `ETIME`: a mapping could not be re-validated. `ENODEV`: unplugged.
/// * Blocks: while four commands of the context are outstanding; while the device wakes up.
///
/// # Safety
/// As of [`HwCtx::submit`](crate::HwCtx::submit): the packet, and the instruction streams that it names, let the device
/// read and write memory by address. Packet, streams and all that memory must stay valid until the command is known to
/// be done or the context is gone, and the program must leave alone what the device uses.
///
/// # Errors
/// [`IoctlError`].
pub unsafe fn exec_cmd(door: &dyn Door, hwctx: u32, command: u32, args: &[u32]) -> Result<u64, IoctlError> {
    let mut argument = ExecCmd {
        hwctx,
        r#type: cmd_type::SUBMIT_EXEC_BUF,
        cmd_handles: u64::from(command),
        args: address(args.as_ptr()),
        cmd_count: 1,
        arg_count: u32::try_from(args.len()).unwrap_or(u32::MAX),
        ..ExecCmd::default()
    };
    let asked = || format!("context {hwctx}, command BO {command}, argument BOs {args:?}");
    // SAFETY: the handles outlive the call and are as many as it says. What the command then does is the caller's
    // promise.
    unsafe { call(door, request::EXEC_CMD, &mut argument, asked)? };
    Ok(argument.seq)
}

/// WAIT_CMD: not implemented for AIE2 in Linux; wait on the context's timeline.
///
/// * Since: header only.
/// * Errors: `EOPNOTSUPP`, always.
/// * Blocks: no.
///
/// # Errors
/// [`IoctlError`].
pub fn wait_cmd(door: &dyn Door, hwctx: u32, seq: u64, timeout_ms: u32) -> Result<(), IoctlError> {
    let mut argument = WaitCmd { hwctx, timeout: timeout_ms, seq };
    // SAFETY: no pointers.
    unsafe { call(door, request::WAIT_CMD, &mut argument, || format!("context {hwctx}, command {seq}")) }
}
