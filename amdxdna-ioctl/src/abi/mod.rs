//! The ABI, raw: request words, argument structures, parameters and flags, named as in the kernel's headers.
//!
//! A structure `amdxdna_drm_create_hwctx` of `amdxdna_accel.h` is [`CreateHwctx`] here, `drm_syncobj_wait` of `drm.h`
//! is [`drm::SyncobjWait`]; fields keep their names. All of them are plain data without padding bytes, so that a byte
//! slice of the right length is one ([`bytemuck::Pod`]). Integers are little-endian, as the machine's.
//!
//! The state is Linux 7.3.4 (driver version 0.10). Additions of later minors and everything that only the user-mode
//! queues of AIE4 parts use are left out, except where a structure's meaning changes for an older client.
//!
//! [`layout`] holds the kernel header's own numbers beside the ones the compiler made of this module.

pub mod drm;
pub mod layout;
pub mod query;
pub mod request;

use bytemuck::{Pod, Zeroable};

/// `AMDXDNA_INVALID_ADDR`: no address (a BO that is not mapped yet, a DEV BO's mmap offset).
pub const INVALID_ADDR: u64 = u64::MAX;
/// `AMDXDNA_INVALID_CTX_HANDLE`.
pub const INVALID_CTX_HANDLE: u32 = 0;
/// `AMDXDNA_INVALID_BO_HANDLE`.
pub const INVALID_BO_HANDLE: u32 = 0;
/// `AMDXDNA_INVALID_FENCE_HANDLE`.
pub const INVALID_FENCE_HANDLE: u32 = 0;
/// `AMDXDNA_INVALID_DOORBELL_OFFSET`: what kernel-managed queues return for a doorbell.
pub const INVALID_DOORBELL_OFFSET: u32 = u32::MAX;

/// The name that DRM `VERSION` reports for this driver.
pub const DRIVER_NAME: &str = "amdxdna_accel_driver";
/// The major version that this ABI belongs to.
pub const DRIVER_MAJOR: i32 = 0;

/// Device address where the device heap window starts (`aie2_pci.c`).
pub const HEAP_BASE: u64 = 0x0400_0000;
/// Granule, alignment and first size of the device heap: 64 MiB (`aie2_pci.c`).
pub const HEAP_CHUNK: u64 = 64 << 20;
/// Most device heap a client can have on NPU4-6 (NPU1: one [`HEAP_CHUNK`]).
pub const HEAP_MAX: u64 = 512 << 20;
/// DEV BOs start on multiples of this in the heap window.
pub const DEV_ALIGN: u64 = 32 << 10;
/// Commands of one context that may be outstanding before `EXEC_CMD` blocks (`HWCTX_MAX_CMDS`, `aie2_ctx.c`).
pub const MAX_COMMANDS: usize = 4;
/// Most argument handles that one `EXEC_CMD` takes.
pub const MAX_ARG_COUNT: usize = 4095;
/// Most CUs that one `CONFIG_HWCTX` takes.
pub const MAX_NUM_CUS: usize = 32;
/// The `max_opc` of every context that is known to work (the driver stores it and nothing else).
pub const DEFAULT_MAX_OPC: u32 = 2048;

/// `AMDXDNA_QOS_*_PRIORITY`; any other value is the driver's default.
pub mod priority {
    /// Real time.
    pub const REALTIME: u32 = 0x100;
    /// High.
    pub const HIGH: u32 = 0x180;
    /// Normal.
    pub const NORMAL: u32 = 0x200;
    /// Low.
    pub const LOW: u32 = 0x280;
}

/// `enum amdxdna_device_type`, as sysfs' `device_type` prints it.
pub mod device_type {
    /// Kernel-managed queues: AIE2 and AIE2P, what this crate drives.
    pub const KMQ: i32 = 0;
    /// User-mode queues (AIE4).
    pub const UMQ: i32 = 1;
    /// Physical function of an AIE4 part (since minor 9).
    pub const PF: i32 = 2;
}

/// `enum amdxdna_bo_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum BoType {
    /// `AMDXDNA_BO_SHARE` (also spelt `SHMEM`): cached host pages, seen by the device at an address of their own.
    Share = 1,
    /// `AMDXDNA_BO_DEV_HEAP`: a chunk of the client's device heap.
    DevHeap = 2,
    /// `AMDXDNA_BO_DEV`: a piece of the device heap.
    Dev = 3,
    /// `AMDXDNA_BO_CMD`: a command packet's memory; a SHARE BO in all but accounting.
    Cmd = 4,
}

impl TryFrom<u32> for BoType {
    type Error = u32;

    fn try_from(value: u32) -> Result<Self, u32> {
        Ok(match value {
            1 => BoType::Share,
            2 => BoType::DevHeap,
            3 => BoType::Dev,
            4 => BoType::Cmd,
            other => return Err(other),
        })
    }
}

/// `enum amdxdna_drm_config_hwctx_param`.
pub mod config_hwctx_param {
    /// `param_val` points to a [`super::HwctxParamConfigCu`] with its [`super::CuConfig`]s behind it.
    pub const CONFIG_CU: u32 = 0;
    /// `param_val` is the handle of a DEV BO (since minor 3).
    pub const ASSIGN_DBG_BUF: u32 = 1;
    /// `param_val` is the handle of an assigned BO (since minor 3).
    pub const REMOVE_DBG_BUF: u32 = 2;
}

/// `enum amdxdna_cmd_type`: what [`ExecCmd`] submits.
pub mod cmd_type {
    /// A command BO; the only type that AIE2 accepts.
    pub const SUBMIT_EXEC_BUF: u32 = 0;
    /// Defined, refused with `EINVAL`.
    pub const SUBMIT_DEPENDENCY: u32 = 1;
    /// Defined, refused with `EINVAL`.
    pub const SUBMIT_SIGNAL: u32 = 2;
}

/// `SYNC_DIRECT_*` of [`SyncBo`].
pub mod sync_direction {
    /// Flush before the device reads; right for both purposes.
    pub const TO_DEVICE: u32 = 0;
    /// The same flush, then a debug-BO read-back that fails with `EINVAL` for every other BO.
    pub const FROM_DEVICE: u32 = 1;
}

/// `struct amdxdna_qos_info`: hints for [`CreateHwctx`]; all zero asks for nothing and gives the top clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct QosInfo {
    /// Giga operations a frame.
    pub gops: u32,
    /// Frames per second.
    pub fps: u32,
    /// DMA bandwidth.
    pub dma_bandwidth: u32,
    /// Frame latency, ms.
    pub latency: u32,
    /// Frame execution time.
    pub frame_exec_time: u32,
    /// One of [`priority`].
    pub priority: u32,
}

/// `struct amdxdna_drm_create_hwctx`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct CreateHwctx {
    /// Must be zero.
    pub ext: u64,
    /// Must be zero.
    pub ext_flags: u64,
    /// Address of a [`QosInfo`]; never null.
    pub qos_p: u64,
    /// User-mode queue BO; ignored on AIE2.
    pub umq_bo: u32,
    /// Log buffer BO; ignored on AIE2.
    pub log_buf_bo: u32,
    /// Most operations per cycle; stored only.
    pub max_opc: u32,
    /// Columns times core rows.
    pub num_tiles: u32,
    /// Tile memory; ignored.
    pub mem_size: u32,
    /// Out: [`INVALID_DOORBELL_OFFSET`] on AIE2.
    pub umq_doorbell: u32,
    /// Out: the context's handle.
    pub handle: u32,
    /// Out: the timeline syncobj of the context, owned by the client.
    pub syncobj_handle: u32,
}

/// `struct amdxdna_drm_destroy_hwctx`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct DestroyHwctx {
    /// The context.
    pub handle: u32,
    /// Must be zero.
    pub pad: u32,
}

/// `struct amdxdna_cu_config`: one CU of a [`HwctxParamConfigCu`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct CuConfig {
    /// Handle of the DEV BO that holds the PDI.
    pub cu_bo: u32,
    /// Functional of the CU.
    pub cu_func: u8,
    /// Must be zero.
    pub pad: [u8; 3],
}

/// `struct amdxdna_hwctx_param_config_cu` without its flexible array of [`CuConfig`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct HwctxParamConfigCu {
    /// How many [`CuConfig`]s follow.
    pub num_cus: u16,
    /// Must be zero.
    pub pad: [u16; 3],
}

/// `struct amdxdna_drm_config_hwctx`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct ConfigHwctx {
    /// The context.
    pub handle: u32,
    /// One of [`config_hwctx_param`].
    pub param_type: u32,
    /// Pointer or value, by `param_type`.
    pub param_val: u64,
    /// Bytes behind the pointer, at most 4096.
    pub param_val_size: u32,
    /// Must be zero.
    pub pad: u32,
}

/// `struct amdxdna_drm_va_entry`: one piece of a user-pointer BO.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct VaEntry {
    /// Page-aligned address.
    pub vaddr: u64,
    /// Page-aligned length.
    pub len: u64,
}

/// `struct amdxdna_drm_va_tbl` without its flexible array of [`VaEntry`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct VaTbl {
    /// The dma-buf to import where `num_entries` is 0.
    pub dmabuf_fd: i32,
    /// How many [`VaEntry`]s follow.
    pub num_entries: u32,
}

/// `struct amdxdna_drm_create_bo`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct CreateBo {
    /// Must be zero.
    pub flags: u64,
    /// 0, or the address of a [`VaTbl`] for SHARE and CMD.
    pub vaddr: u64,
    /// Bytes; ignored with a [`VaTbl`].
    pub size: u64,
    /// A [`BoType`].
    pub r#type: u32,
    /// Out: the GEM handle.
    pub handle: u32,
}

/// `struct amdxdna_drm_get_bo_info`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct GetBoInfo {
    /// Must be zero.
    pub ext: u64,
    /// Must be zero.
    pub ext_flags: u64,
    /// The BO.
    pub handle: u32,
    /// Must be zero.
    pub pad: u32,
    /// Out: offset for mmap; [`INVALID_ADDR`] for DEV.
    pub map_offset: u64,
    /// Out: address of the first mapping, or [`INVALID_ADDR`].
    pub vaddr: u64,
    /// Out: the device's address, or [`INVALID_ADDR`] while there is none.
    pub xdna_addr: u64,
}

/// `struct amdxdna_drm_sync_bo`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct SyncBo {
    /// The BO.
    pub handle: u32,
    /// One of [`sync_direction`].
    pub direction: u32,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
}

/// `struct amdxdna_drm_exec_cmd`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct ExecCmd {
    /// Must be zero.
    pub ext: u64,
    /// Must be zero.
    pub ext_flags: u64,
    /// The context.
    pub hwctx: u32,
    /// One of [`cmd_type`].
    pub r#type: u32,
    /// The command BO's handle itself (`cmd_count` is 1).
    pub cmd_handles: u64,
    /// Address of `arg_count` u32 handles.
    pub args: u64,
    /// Must be 1.
    pub cmd_count: u32,
    /// Handles at `args`, each BO once.
    pub arg_count: u32,
    /// Out: the context's sequence number of this command, from 0.
    pub seq: u64,
}

/// `struct amdxdna_drm_wait_cmd`; no handler on AIE2 in Linux 7.3.4.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct WaitCmd {
    /// The context.
    pub hwctx: u32,
    /// Milliseconds, 0 for ever.
    pub timeout: u32,
    /// The command.
    pub seq: u64,
}

/// `struct amdxdna_drm_get_info`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct GetInfo {
    /// One of [`query::get_info`].
    pub param: u32,
    /// In: bytes at `buffer`; out: by parameter.
    pub buffer_size: u32,
    /// Address of the parameter's structure.
    pub buffer: u64,
}

/// `struct amdxdna_drm_set_state`; root only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct SetState {
    /// One of [`query::set_state`].
    pub param: u32,
    /// Bytes at `buffer`.
    pub buffer_size: u32,
    /// Address of the parameter's structure.
    pub buffer: u64,
}

/// `struct amdxdna_drm_get_array` (since minor 1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct GetArray {
    /// One of [`query::get_array`].
    pub param: u32,
    /// In: bytes an element may have; out: bytes it has.
    pub element_size: u32,
    /// In: elements there is room for; out: elements written.
    pub num_element: u32,
    /// Must be zero.
    pub pad: u32,
    /// Address of the elements.
    pub buffer: u64,
}
