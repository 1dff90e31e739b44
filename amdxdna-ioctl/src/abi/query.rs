//! What `GET_INFO`, `GET_ARRAY` and `SET_STATE` carry, each parameter with its structure.

use bytemuck::{Pod, Zeroable};

/// `enum amdxdna_drm_get_param`: parameters of `GET_INFO`.
pub mod get_info {
    /// [`super::QueryAieStatus`]: register state of the columns in use.
    pub const AIE_STATUS: u32 = 0;
    /// [`super::QueryAieMetadata`].
    pub const AIE_METADATA: u32 = 1;
    /// [`super::QueryAieVersion`].
    pub const AIE_VERSION: u32 = 2;
    /// [`super::QueryClockMetadata`].
    pub const CLOCK_METADATA: u32 = 3;
    /// An array of [`super::QuerySensor`]; `buffer_size` comes back as the bytes written.
    pub const SENSORS: u32 = 4;
    /// An array of [`super::QueryHwctx`]; `buffer_size` comes back as the bytes left unused.
    pub const HW_CONTEXTS: u32 = 5;
    /// [`super::QueryFirmwareVersion`].
    pub const FIRMWARE_VERSION: u32 = 8;
    /// [`super::GetPowerMode`].
    pub const POWER_MODE: u32 = 9;
    /// [`super::QueryTelemetryHeader`], the map and the data (since minor 5).
    pub const TELEMETRY: u32 = 10;
    /// [`super::AttributeState`] (since minor 6).
    pub const FORCE_PREEMPT_STATE: u32 = 11;
    /// [`super::ResourceInfo`] (since minor 4).
    pub const RESOURCE_INFO: u32 = 12;
    /// [`super::AttributeState`] (since minor 6).
    pub const FRAME_BOUNDARY_PREEMPT_STATE: u32 = 13;
}

/// `DRM_AMDXDNA_*` parameters of `GET_ARRAY`.
pub mod get_array {
    /// Elements are [`super::HwctxEntry`].
    pub const HW_CONTEXT_ALL: u32 = 0;
    /// One [`super::AsyncError`] (since minor 2).
    pub const HW_LAST_ASYNC_ERR: u32 = 2;
    /// One [`super::BoUsage`], `pid` going in (since minor 8).
    pub const BO_USAGE: u32 = 6;
}

/// `enum amdxdna_drm_set_param`: parameters of `SET_STATE`.
pub mod set_state {
    /// [`super::SetPowerMode`].
    pub const POWER_MODE: u32 = 0;
    /// Refused with `EOPNOTSUPP` on AIE2.
    pub const WRITE_AIE_MEM: u32 = 1;
    /// Refused with `EOPNOTSUPP` on AIE2.
    pub const WRITE_AIE_REG: u32 = 2;
    /// [`super::AttributeState`] (since minor 6); counts for contexts created later.
    pub const FORCE_PREEMPT: u32 = 3;
    /// [`super::AttributeState`] (since minor 6).
    pub const FRAME_BOUNDARY_PREEMPT: u32 = 4;
}

/// `enum amdxdna_power_mode_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PowerMode {
    /// The driver chooses by the live contexts.
    Default = 0,
    /// Lowest clock.
    Low = 1,
    /// Half of the clock levels.
    Medium = 2,
    /// Highest clock.
    High = 3,
    /// Highest clock and no clock gating.
    Turbo = 4,
}

impl TryFrom<u8> for PowerMode {
    type Error = u8;

    fn try_from(value: u8) -> Result<Self, u8> {
        Ok(match value {
            0 => PowerMode::Default,
            1 => PowerMode::Low,
            2 => PowerMode::Medium,
            3 => PowerMode::High,
            4 => PowerMode::Turbo,
            other => return Err(other),
        })
    }
}

/// `enum amdxdna_sensor_type`: [`QuerySensor`]'s `type`.
pub mod sensor_type {
    /// Power of the NPU.
    pub const POWER: u8 = 0;
    /// Utilisation of one column, percent (since minor 7).
    pub const COLUMN_UTILIZATION: u8 = 1;
}

/// `AMDXDNA_HWCTX_STATE_*`: [`HwctxEntry`]'s `state`.
pub mod hwctx_state {
    /// No command is running.
    pub const IDLE: u32 = 0;
    /// A command is running.
    pub const ACTIVE: u32 = 1;
}

/// Kinds of telemetry, [`QueryTelemetryHeader`]'s `type`.
pub mod telemetry_type {
    /// Off.
    pub const DISABLED: u32 = 0;
    /// Health.
    pub const HEALTH: u32 = 1;
    /// Error information.
    pub const ERROR_INFO: u32 = 2;
    /// Profiling.
    pub const PROFILING: u32 = 3;
    /// Debug.
    pub const DEBUG: u32 = 4;
}

/// `struct amdxdna_drm_query_aie_status`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct QueryAieStatus {
    /// Address of the buffer.
    pub buffer: u64,
    /// Its bytes.
    pub buffer_size: u32,
    /// Out: bit map of the columns in the buffer.
    pub cols_filled: u32,
}

/// `struct amdxdna_drm_query_aie_version`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct QueryAieVersion {
    /// Major.
    pub major: u32,
    /// Minor.
    pub minor: u32,
}

/// `struct amdxdna_drm_query_aie_tile_metadata`: one kind of tile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct QueryAieTileMetadata {
    /// Rows of this kind.
    pub row_count: u16,
    /// The first of them.
    pub row_start: u16,
    /// DMA channels a tile.
    pub dma_channel_count: u16,
    /// Locks a tile.
    pub lock_count: u16,
    /// Event registers a tile.
    pub event_reg_count: u16,
    /// Padding.
    pub pad: [u16; 3],
}

/// `struct amdxdna_drm_query_aie_metadata`: the array's geometry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct QueryAieMetadata {
    /// Bytes of a column's status.
    pub col_size: u32,
    /// Columns.
    pub cols: u16,
    /// Rows, of all kinds.
    pub rows: u16,
    /// Of the array.
    pub version: QueryAieVersion,
    /// Core tiles.
    pub core: QueryAieTileMetadata,
    /// Memory tiles.
    pub mem: QueryAieTileMetadata,
    /// Shim tiles.
    pub shim: QueryAieTileMetadata,
}

/// `struct amdxdna_drm_query_clock`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct QueryClock {
    /// NUL-padded.
    pub name: [u8; 16],
    /// MHz.
    pub freq_mhz: u32,
    /// Padding.
    pub pad: u32,
}

impl QueryClock {
    /// Its name.
    #[must_use]
    pub fn label(&self) -> String {
        text(&self.name)
    }
}

/// `struct amdxdna_drm_query_clock_metadata`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct QueryClockMetadata {
    /// The management processor's.
    pub mp_npu_clock: QueryClock,
    /// The array's.
    pub h_clock: QueryClock,
}

/// `struct amdxdna_drm_query_sensor`; a value is `10^unitm` times what it says, in `units`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct QuerySensor {
    /// NUL-padded.
    pub label: [u8; 64],
    /// Now.
    pub input: u32,
    /// Highest possible.
    pub max: u32,
    /// Average.
    pub average: u32,
    /// Highest seen.
    pub highest: u32,
    /// NUL-padded.
    pub status: [u8; 64],
    /// NUL-padded.
    pub units: [u8; 16],
    /// Decimal exponent.
    pub unitm: i8,
    /// One of [`sensor_type`].
    pub r#type: u8,
    /// Padding.
    pub pad: [u8; 6],
}

impl QuerySensor {
    /// Its name.
    #[must_use]
    pub fn label(&self) -> String {
        text(&self.label)
    }

    /// What it says now, in [`unit`](Self::unit).
    #[must_use]
    pub fn value(&self) -> f64 {
        f64::from(self.input) * 10f64.powi(self.unitm.into())
    }

    /// The unit of [`value`](Self::value).
    #[must_use]
    pub fn unit(&self) -> String {
        text(&self.units)
    }
}

/// Text that is filled up with NULs.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).trim().to_owned()
}

/// `struct amdxdna_drm_query_hwctx`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct QueryHwctx {
    /// Handle in its client.
    pub context_id: u32,
    /// First column.
    pub start_col: u32,
    /// Columns.
    pub num_col: u32,
    /// Padding.
    pub pad: u32,
    /// Who made it.
    pub pid: i64,
    /// Commands submitted.
    pub command_submissions: u64,
    /// Commands completed.
    pub command_completions: u64,
    /// Moves to another partition.
    pub migrations: u64,
    /// Preemptions.
    pub preemptions: u64,
    /// Errors.
    pub errors: u64,
}

/// `struct amdxdna_drm_get_power_mode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct GetPowerMode {
    /// A [`PowerMode`].
    pub power_mode: u8,
    /// Padding.
    pub pad: [u8; 7],
}

/// `struct amdxdna_drm_set_power_mode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct SetPowerMode {
    /// A [`PowerMode`].
    pub power_mode: u8,
    /// Must be zero.
    pub pad: [u8; 7],
}

/// `struct amdxdna_drm_query_firmware_version`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct QueryFirmwareVersion {
    /// Major.
    pub major: u32,
    /// Minor.
    pub minor: u32,
    /// Patch.
    pub patch: u32,
    /// Build.
    pub build: u32,
}

/// `struct amdxdna_drm_get_resource_info`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct ResourceInfo {
    /// Highest array clock.
    pub npu_clk_max: u64,
    /// Highest TOPS.
    pub npu_tops_max: u64,
    /// Contexts that the device can hold.
    pub npu_task_max: u64,
    /// TOPS now.
    pub npu_tops_curr: u64,
    /// Contexts alive on the device, of all processes.
    pub npu_task_curr: u64,
}

/// `struct amdxdna_drm_attribute_state`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct AttributeState {
    /// 0 or 1.
    pub state: u8,
    /// Must be zero.
    pub pad: [u8; 7],
}

/// `struct amdxdna_drm_query_telemetry_header` without its map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct QueryTelemetryHeader {
    /// Of the firmware's telemetry interface.
    pub major: u32,
    /// Of the firmware's telemetry interface.
    pub minor: u32,
    /// In: one of [`telemetry_type`].
    pub r#type: u32,
    /// Words of the map that follows.
    pub map_num_elements: u32,
}

/// `struct amdxdna_drm_hwctx_entry`: 144 bytes here; later minors append the process' name (160).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct HwctxEntry {
    /// Handle in its client.
    pub context_id: u32,
    /// First column.
    pub start_col: u32,
    /// Columns.
    pub num_col: u32,
    /// The firmware's id of the context.
    pub hwctx_id: u32,
    /// Who made it.
    pub pid: i64,
    /// Commands submitted.
    pub command_submissions: u64,
    /// Commands completed.
    pub command_completions: u64,
    /// Moves to another partition.
    pub migrations: u64,
    /// Preemptions.
    pub preemptions: u64,
    /// Errors.
    pub errors: u64,
    /// Priority.
    pub priority: u64,
    /// Bytes of DEV BOs.
    pub heap_usage: u64,
    /// Suspensions.
    pub suspensions: u64,
    /// One of [`hwctx_state`].
    pub state: u32,
    /// Address-space id on the bus.
    pub pasid: u32,
    /// From [`QosInfo`](super::QosInfo).
    pub gops: u32,
    /// From [`QosInfo`](super::QosInfo).
    pub fps: u32,
    /// From [`QosInfo`](super::QosInfo).
    pub dma_bandwidth: u32,
    /// From [`QosInfo`](super::QosInfo).
    pub latency: u32,
    /// From [`QosInfo`](super::QosInfo).
    pub frame_exec_time: u32,
    /// Last control-code operation; this and the rest need the firmware's health feature, else 0.
    pub txn_op_idx: u32,
    /// Program counter.
    pub ctx_pc: u32,
    /// Not 0 after a crash.
    pub fatal_error_type: u32,
    /// Firmware exception type.
    pub fatal_error_exception_type: u32,
    /// Firmware exception program counter.
    pub fatal_error_exception_pc: u32,
    /// Module of the exception.
    pub fatal_error_app_module: u32,
    /// Padding.
    pub pad: u32,
}

/// `struct amdxdna_async_error`: the device's last array error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct AsyncError {
    /// Number in bits 15:0, module in bits 39:32.
    pub err_code: u64,
    /// Wall clock, microseconds.
    pub ts_us: u64,
    /// Column in bits 7:0, row in bits 15:8.
    pub ex_err_code: u64,
}

impl AsyncError {
    /// What happened, in words (`enum amdxdna_error_num` of `amdxdna_error.h`).
    #[must_use]
    pub fn what(&self) -> &'static str {
        match self.err_code & 0xffff {
            3 => "saturation",
            4 => "a floating point error",
            5 => "a stream error",
            6 => "an illegal access",
            7 => "a bus error",
            8 => "an illegal instruction",
            9 => "an ECC error",
            10 => "a lock error",
            11 => "a DMA error",
            12 => "a parity error",
            _ => "an unknown error",
        }
    }

    /// Where, by kind of tile (`enum amdxdna_error_module`).
    #[must_use]
    pub fn module(&self) -> &'static str {
        match self.err_code >> 32 & 0xff {
            3 => "the core",
            4 => "the memory",
            7 => "the shim",
            _ => "something",
        }
    }

    /// Column of the tile.
    #[must_use]
    pub fn column(&self) -> u8 {
        self.ex_err_code as u8
    }

    /// Row of the tile, counted from the shim.
    #[must_use]
    pub fn row(&self) -> u8 {
        (self.ex_err_code >> 8) as u8
    }
}

impl std::fmt::Display for AsyncError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} in {} of column {}, row {}", self.what(), self.module(), self.column(), self.row())
    }
}

/// `struct amdxdna_drm_bo_usage`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct BoUsage {
    /// In: whose.
    pub pid: i64,
    /// Bytes of all BOs.
    pub total_usage: u64,
    /// Of those, CMD and heap.
    pub internal_usage: u64,
    /// Bytes of DEV BOs.
    pub heap_usage: u64,
}
