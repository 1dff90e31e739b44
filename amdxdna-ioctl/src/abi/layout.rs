//! The kernel header's own numbers: sizes and offsets of every structure, request words and constants, each beside what
//! the compiler made of this crate's definitions.
//!
//! The unit test holds the two columns against each other; `cargo xtask abi` holds the first against a C compiler's
//! reading of `amdxdna_accel.h` and `drm.h`, where it finds them.

use super::{
    BoType, ConfigHwctx, CreateBo, CreateHwctx, CuConfig, DestroyHwctx, ExecCmd, GetArray, GetBoInfo, GetInfo,
    HwctxParamConfigCu, QosInfo, SetState, SyncBo, VaEntry, VaTbl, WaitCmd, cmd_type, config_hwctx_param, device_type,
    priority, sync_direction,
};
use super::{drm, query, request};
use core::mem::offset_of;

/// One structure of the kernel's headers.
#[derive(Clone, Copy, Debug)]
pub struct Struct {
    /// Its tag in C.
    pub c_name: &'static str,
    /// `sizeof` in C, a flexible array not counted.
    pub size: usize,
    /// `size_of` of this crate's type.
    pub rust_size: usize,
    /// Its members.
    pub fields: &'static [Field],
}

/// One member of a [`Struct`].
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its name in C, which may be a raw identifier (`r#type`) here: see [`Field::c_name`].
    name: &'static str,
    /// `offsetof` in C.
    pub offset: usize,
    /// `sizeof` in C.
    pub size: usize,
    /// `offset_of!` here.
    pub rust_offset: usize,
    /// `size_of` here.
    pub rust_size: usize,
}

impl Field {
    /// The member's name in C.
    #[must_use]
    pub fn c_name(&self) -> &'static str {
        self.name.strip_prefix("r#").unwrap_or(self.name)
    }
}

/// One request word.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The macro in C.
    pub c_name: &'static str,
    /// Its value in C.
    pub value: u32,
    /// Its value here.
    pub rust_value: u32,
}

/// One constant, widened.
#[derive(Clone, Copy, Debug)]
pub struct Constant {
    /// The macro or enumerator in C.
    pub c_name: &'static str,
    /// Its value in C.
    pub value: u64,
    /// Its value here.
    pub rust_value: u64,
}

/// Everything that can be compared.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// Structures.
    pub structs: &'static [Struct],
    /// Request words.
    pub requests: &'static [Request],
    /// Constants.
    pub constants: &'static [Constant],
}

/// The table.
pub const TABLE: Table = Table { structs: STRUCTS, requests: REQUESTS, constants: CONSTANTS };

const fn size_of_field<S, F>(_: fn(&S) -> &F) -> usize {
    size_of::<F>()
}

macro_rules! structs {
    ($($rust:path as $c:literal ($size:literal) { $($field:ident @ $offset:literal ($bytes:literal),)* })*) => {
        const STRUCTS: &[Struct] = &[$(Struct {
            c_name: $c,
            size: $size,
            rust_size: size_of::<$rust>(),
            fields: &[$(Field {
                name: stringify!($field),
                offset: $offset,
                size: $bytes,
                rust_offset: offset_of!($rust, $field),
                rust_size: {
                    type S = $rust;
                    size_of_field(|s: &S| &s.$field)
                },
            },)*],
        },)*];
    };
}

macro_rules! requests {
    ($prefix:literal $($name:ident = $value:literal,)*) => {
        &[$(Request {
            c_name: concat!($prefix, stringify!($name)),
            value: $value,
            rust_value: request::$name,
        },)*]
    };
}

macro_rules! constants {
    ($($c:ident = $value:literal: $rust:expr,)*) => {
        const CONSTANTS: &[Constant] =
            &[$(Constant { c_name: stringify!($c), value: $value, rust_value: $rust as u64 },)*];
    };
}

structs! {
    QosInfo as "amdxdna_qos_info" (24) {
        gops @ 0 (4), fps @ 4 (4), dma_bandwidth @ 8 (4), latency @ 12 (4), frame_exec_time @ 16 (4),
        priority @ 20 (4),
    }
    CreateHwctx as "amdxdna_drm_create_hwctx" (56) {
        ext @ 0 (8), ext_flags @ 8 (8), qos_p @ 16 (8), umq_bo @ 24 (4), log_buf_bo @ 28 (4), max_opc @ 32 (4),
        num_tiles @ 36 (4), mem_size @ 40 (4), umq_doorbell @ 44 (4), handle @ 48 (4), syncobj_handle @ 52 (4),
    }
    DestroyHwctx as "amdxdna_drm_destroy_hwctx" (8) {
        handle @ 0 (4), pad @ 4 (4),
    }
    CuConfig as "amdxdna_cu_config" (8) {
        cu_bo @ 0 (4), cu_func @ 4 (1), pad @ 5 (3),
    }
    HwctxParamConfigCu as "amdxdna_hwctx_param_config_cu" (8) {
        num_cus @ 0 (2), pad @ 2 (6),
    }
    ConfigHwctx as "amdxdna_drm_config_hwctx" (24) {
        handle @ 0 (4), param_type @ 4 (4), param_val @ 8 (8), param_val_size @ 16 (4), pad @ 20 (4),
    }
    VaEntry as "amdxdna_drm_va_entry" (16) {
        vaddr @ 0 (8), len @ 8 (8),
    }
    VaTbl as "amdxdna_drm_va_tbl" (8) {
        dmabuf_fd @ 0 (4), num_entries @ 4 (4),
    }
    CreateBo as "amdxdna_drm_create_bo" (32) {
        flags @ 0 (8), vaddr @ 8 (8), size @ 16 (8), r#type @ 24 (4), handle @ 28 (4),
    }
    GetBoInfo as "amdxdna_drm_get_bo_info" (48) {
        ext @ 0 (8), ext_flags @ 8 (8), handle @ 16 (4), pad @ 20 (4), map_offset @ 24 (8), vaddr @ 32 (8),
        xdna_addr @ 40 (8),
    }
    SyncBo as "amdxdna_drm_sync_bo" (24) {
        handle @ 0 (4), direction @ 4 (4), offset @ 8 (8), size @ 16 (8),
    }
    ExecCmd as "amdxdna_drm_exec_cmd" (56) {
        ext @ 0 (8), ext_flags @ 8 (8), hwctx @ 16 (4), r#type @ 20 (4), cmd_handles @ 24 (8), args @ 32 (8),
        cmd_count @ 40 (4), arg_count @ 44 (4), seq @ 48 (8),
    }
    WaitCmd as "amdxdna_drm_wait_cmd" (16) {
        hwctx @ 0 (4), timeout @ 4 (4), seq @ 8 (8),
    }
    GetInfo as "amdxdna_drm_get_info" (16) {
        param @ 0 (4), buffer_size @ 4 (4), buffer @ 8 (8),
    }
    SetState as "amdxdna_drm_set_state" (16) {
        param @ 0 (4), buffer_size @ 4 (4), buffer @ 8 (8),
    }
    GetArray as "amdxdna_drm_get_array" (24) {
        param @ 0 (4), element_size @ 4 (4), num_element @ 8 (4), pad @ 12 (4), buffer @ 16 (8),
    }
    query::QueryAieStatus as "amdxdna_drm_query_aie_status" (16) {
        buffer @ 0 (8), buffer_size @ 8 (4), cols_filled @ 12 (4),
    }
    query::QueryAieVersion as "amdxdna_drm_query_aie_version" (8) {
        major @ 0 (4), minor @ 4 (4),
    }
    query::QueryAieTileMetadata as "amdxdna_drm_query_aie_tile_metadata" (16) {
        row_count @ 0 (2), row_start @ 2 (2), dma_channel_count @ 4 (2), lock_count @ 6 (2),
        event_reg_count @ 8 (2), pad @ 10 (6),
    }
    query::QueryAieMetadata as "amdxdna_drm_query_aie_metadata" (64) {
        col_size @ 0 (4), cols @ 4 (2), rows @ 6 (2), version @ 8 (8), core @ 16 (16), mem @ 32 (16),
        shim @ 48 (16),
    }
    query::QueryClock as "amdxdna_drm_query_clock" (24) {
        name @ 0 (16), freq_mhz @ 16 (4), pad @ 20 (4),
    }
    query::QueryClockMetadata as "amdxdna_drm_query_clock_metadata" (48) {
        mp_npu_clock @ 0 (24), h_clock @ 24 (24),
    }
    query::QuerySensor as "amdxdna_drm_query_sensor" (168) {
        label @ 0 (64), input @ 64 (4), max @ 68 (4), average @ 72 (4), highest @ 76 (4), status @ 80 (64),
        units @ 144 (16), unitm @ 160 (1), r#type @ 161 (1), pad @ 162 (6),
    }
    query::QueryHwctx as "amdxdna_drm_query_hwctx" (64) {
        context_id @ 0 (4), start_col @ 4 (4), num_col @ 8 (4), pad @ 12 (4), pid @ 16 (8),
        command_submissions @ 24 (8), command_completions @ 32 (8), migrations @ 40 (8), preemptions @ 48 (8),
        errors @ 56 (8),
    }
    query::GetPowerMode as "amdxdna_drm_get_power_mode" (8) {
        power_mode @ 0 (1), pad @ 1 (7),
    }
    query::SetPowerMode as "amdxdna_drm_set_power_mode" (8) {
        power_mode @ 0 (1), pad @ 1 (7),
    }
    query::QueryFirmwareVersion as "amdxdna_drm_query_firmware_version" (16) {
        major @ 0 (4), minor @ 4 (4), patch @ 8 (4), build @ 12 (4),
    }
    query::ResourceInfo as "amdxdna_drm_get_resource_info" (40) {
        npu_clk_max @ 0 (8), npu_tops_max @ 8 (8), npu_task_max @ 16 (8), npu_tops_curr @ 24 (8),
        npu_task_curr @ 32 (8),
    }
    query::AttributeState as "amdxdna_drm_attribute_state" (8) {
        state @ 0 (1), pad @ 1 (7),
    }
    query::QueryTelemetryHeader as "amdxdna_drm_query_telemetry_header" (16) {
        major @ 0 (4), minor @ 4 (4), r#type @ 8 (4), map_num_elements @ 12 (4),
    }
    query::HwctxEntry as "amdxdna_drm_hwctx_entry" (144) {
        context_id @ 0 (4), start_col @ 4 (4), num_col @ 8 (4), hwctx_id @ 12 (4), pid @ 16 (8),
        command_submissions @ 24 (8), command_completions @ 32 (8), migrations @ 40 (8), preemptions @ 48 (8),
        errors @ 56 (8), priority @ 64 (8), heap_usage @ 72 (8), suspensions @ 80 (8), state @ 88 (4),
        pasid @ 92 (4), gops @ 96 (4), fps @ 100 (4), dma_bandwidth @ 104 (4), latency @ 108 (4),
        frame_exec_time @ 112 (4), txn_op_idx @ 116 (4), ctx_pc @ 120 (4), fatal_error_type @ 124 (4),
        fatal_error_exception_type @ 128 (4), fatal_error_exception_pc @ 132 (4), fatal_error_app_module @ 136 (4),
        pad @ 140 (4),
    }
    query::AsyncError as "amdxdna_async_error" (24) {
        err_code @ 0 (8), ts_us @ 8 (8), ex_err_code @ 16 (8),
    }
    query::BoUsage as "amdxdna_drm_bo_usage" (32) {
        pid @ 0 (8), total_usage @ 8 (8), internal_usage @ 16 (8), heap_usage @ 24 (8),
    }
    drm::Version as "drm_version" (64) {
        version_major @ 0 (4), version_minor @ 4 (4), version_patchlevel @ 8 (4), name_len @ 16 (8), name @ 24 (8),
        date_len @ 32 (8), date @ 40 (8), desc_len @ 48 (8), desc @ 56 (8),
    }
    drm::GemClose as "drm_gem_close" (8) {
        handle @ 0 (4), pad @ 4 (4),
    }
    drm::GetCap as "drm_get_cap" (16) {
        capability @ 0 (8), value @ 8 (8),
    }
    drm::PrimeHandle as "drm_prime_handle" (12) {
        handle @ 0 (4), flags @ 4 (4), fd @ 8 (4),
    }
    drm::SyncobjCreate as "drm_syncobj_create" (8) {
        handle @ 0 (4), flags @ 4 (4),
    }
    drm::SyncobjDestroy as "drm_syncobj_destroy" (8) {
        handle @ 0 (4), pad @ 4 (4),
    }
    drm::SyncobjHandle as "drm_syncobj_handle" (24) {
        handle @ 0 (4), flags @ 4 (4), fd @ 8 (4), pad @ 12 (4), point @ 16 (8),
    }
    drm::SyncobjWait as "drm_syncobj_wait" (40) {
        handles @ 0 (8), timeout_nsec @ 8 (8), count_handles @ 16 (4), flags @ 20 (4), first_signaled @ 24 (4),
        pad @ 28 (4), deadline_nsec @ 32 (8),
    }
    drm::SyncobjTimelineWait as "drm_syncobj_timeline_wait" (48) {
        handles @ 0 (8), points @ 8 (8), timeout_nsec @ 16 (8), count_handles @ 24 (4), flags @ 28 (4),
        first_signaled @ 32 (4), pad @ 36 (4), deadline_nsec @ 40 (8),
    }
    drm::SyncobjTimelineArray as "drm_syncobj_timeline_array" (24) {
        handles @ 0 (8), points @ 8 (8), count_handles @ 16 (4), flags @ 20 (4),
    }
    drm::SyncobjTransfer as "drm_syncobj_transfer" (32) {
        src_handle @ 0 (4), dst_handle @ 4 (4), src_point @ 8 (8), dst_point @ 16 (8), flags @ 24 (4),
        pad @ 28 (4),
    }
    drm::SyncobjEventfd as "drm_syncobj_eventfd" (24) {
        handle @ 0 (4), flags @ 4 (4), point @ 8 (8), fd @ 16 (4), pad @ 20 (4),
    }
    drm::SetClientName as "drm_set_client_name" (16) {
        name_len @ 0 (8), name @ 8 (8),
    }
}

const REQUESTS: &[Request] = {
    const DRIVER: &[Request] = requests! { "DRM_IOCTL_AMDXDNA_"
        CREATE_HWCTX = 0xC038_6440,
        DESTROY_HWCTX = 0xC008_6441,
        CONFIG_HWCTX = 0xC018_6442,
        CREATE_BO = 0xC020_6443,
        GET_BO_INFO = 0xC030_6444,
        SYNC_BO = 0xC018_6445,
        EXEC_CMD = 0xC038_6446,
        GET_INFO = 0xC010_6447,
        SET_STATE = 0xC010_6448,
        WAIT_CMD = 0x4010_6449,
        GET_ARRAY = 0xC018_644A,
    };
    const CORE: &[Request] = requests! { "DRM_IOCTL_"
        VERSION = 0xC040_6400,
        GEM_CLOSE = 0x4008_6409,
        GET_CAP = 0xC010_640C,
        PRIME_HANDLE_TO_FD = 0xC00C_642D,
        PRIME_FD_TO_HANDLE = 0xC00C_642E,
        SYNCOBJ_CREATE = 0xC008_64BF,
        SYNCOBJ_DESTROY = 0xC008_64C0,
        SYNCOBJ_HANDLE_TO_FD = 0xC018_64C1,
        SYNCOBJ_FD_TO_HANDLE = 0xC018_64C2,
        SYNCOBJ_WAIT = 0xC028_64C3,
        SYNCOBJ_TIMELINE_WAIT = 0xC030_64CA,
        SYNCOBJ_QUERY = 0xC018_64CB,
        SYNCOBJ_TRANSFER = 0xC020_64CC,
        SYNCOBJ_TIMELINE_SIGNAL = 0xC018_64CD,
        SYNCOBJ_EVENTFD = 0xC018_64CF,
        SET_CLIENT_NAME = 0xC010_64D1,
    };
    const ALL: [Request; DRIVER.len() + CORE.len()] = {
        let mut all = [DRIVER[0]; DRIVER.len() + CORE.len()];
        let mut i = 0;
        while i < all.len() {
            all[i] = if i < DRIVER.len() { DRIVER[i] } else { CORE[i - DRIVER.len()] };
            i += 1;
        }
        all
    };
    &ALL
};

constants! {
    AMDXDNA_INVALID_ADDR = 0xffff_ffff_ffff_ffff: super::INVALID_ADDR,
    AMDXDNA_INVALID_CTX_HANDLE = 0: super::INVALID_CTX_HANDLE,
    AMDXDNA_INVALID_BO_HANDLE = 0: super::INVALID_BO_HANDLE,
    AMDXDNA_INVALID_FENCE_HANDLE = 0: super::INVALID_FENCE_HANDLE,
    AMDXDNA_INVALID_DOORBELL_OFFSET = 0xffff_ffff: super::INVALID_DOORBELL_OFFSET,
    AMDXDNA_QOS_REALTIME_PRIORITY = 0x100: priority::REALTIME,
    AMDXDNA_QOS_HIGH_PRIORITY = 0x180: priority::HIGH,
    AMDXDNA_QOS_NORMAL_PRIORITY = 0x200: priority::NORMAL,
    AMDXDNA_QOS_LOW_PRIORITY = 0x280: priority::LOW,
    AMDXDNA_DEV_TYPE_KMQ = 0: device_type::KMQ,
    AMDXDNA_DEV_TYPE_UMQ = 1: device_type::UMQ,
    AMDXDNA_DEV_TYPE_PF = 2: device_type::PF,
    AMDXDNA_BO_SHARE = 1: BoType::Share,
    AMDXDNA_BO_DEV_HEAP = 2: BoType::DevHeap,
    AMDXDNA_BO_DEV = 3: BoType::Dev,
    AMDXDNA_BO_CMD = 4: BoType::Cmd,
    DRM_AMDXDNA_HWCTX_CONFIG_CU = 0: config_hwctx_param::CONFIG_CU,
    DRM_AMDXDNA_HWCTX_ASSIGN_DBG_BUF = 1: config_hwctx_param::ASSIGN_DBG_BUF,
    DRM_AMDXDNA_HWCTX_REMOVE_DBG_BUF = 2: config_hwctx_param::REMOVE_DBG_BUF,
    AMDXDNA_CMD_SUBMIT_EXEC_BUF = 0: cmd_type::SUBMIT_EXEC_BUF,
    AMDXDNA_CMD_SUBMIT_DEPENDENCY = 1: cmd_type::SUBMIT_DEPENDENCY,
    AMDXDNA_CMD_SUBMIT_SIGNAL = 2: cmd_type::SUBMIT_SIGNAL,
    SYNC_DIRECT_TO_DEVICE = 0: sync_direction::TO_DEVICE,
    SYNC_DIRECT_FROM_DEVICE = 1: sync_direction::FROM_DEVICE,
    DRM_AMDXDNA_QUERY_AIE_STATUS = 0: query::get_info::AIE_STATUS,
    DRM_AMDXDNA_QUERY_AIE_METADATA = 1: query::get_info::AIE_METADATA,
    DRM_AMDXDNA_QUERY_AIE_VERSION = 2: query::get_info::AIE_VERSION,
    DRM_AMDXDNA_QUERY_CLOCK_METADATA = 3: query::get_info::CLOCK_METADATA,
    DRM_AMDXDNA_QUERY_SENSORS = 4: query::get_info::SENSORS,
    DRM_AMDXDNA_QUERY_HW_CONTEXTS = 5: query::get_info::HW_CONTEXTS,
    DRM_AMDXDNA_QUERY_FIRMWARE_VERSION = 8: query::get_info::FIRMWARE_VERSION,
    DRM_AMDXDNA_GET_POWER_MODE = 9: query::get_info::POWER_MODE,
    DRM_AMDXDNA_QUERY_TELEMETRY = 10: query::get_info::TELEMETRY,
    DRM_AMDXDNA_GET_FORCE_PREEMPT_STATE = 11: query::get_info::FORCE_PREEMPT_STATE,
    DRM_AMDXDNA_QUERY_RESOURCE_INFO = 12: query::get_info::RESOURCE_INFO,
    DRM_AMDXDNA_GET_FRAME_BOUNDARY_PREEMPT_STATE = 13: query::get_info::FRAME_BOUNDARY_PREEMPT_STATE,
    DRM_AMDXDNA_HW_CONTEXT_ALL = 0: query::get_array::HW_CONTEXT_ALL,
    DRM_AMDXDNA_HW_LAST_ASYNC_ERR = 2: query::get_array::HW_LAST_ASYNC_ERR,
    DRM_AMDXDNA_BO_USAGE = 6: query::get_array::BO_USAGE,
    DRM_AMDXDNA_SET_POWER_MODE = 0: query::set_state::POWER_MODE,
    DRM_AMDXDNA_WRITE_AIE_MEM = 1: query::set_state::WRITE_AIE_MEM,
    DRM_AMDXDNA_WRITE_AIE_REG = 2: query::set_state::WRITE_AIE_REG,
    DRM_AMDXDNA_SET_FORCE_PREEMPT = 3: query::set_state::FORCE_PREEMPT,
    DRM_AMDXDNA_SET_FRAME_BOUNDARY_PREEMPT = 4: query::set_state::FRAME_BOUNDARY_PREEMPT,
    POWER_MODE_DEFAULT = 0: query::PowerMode::Default,
    POWER_MODE_LOW = 1: query::PowerMode::Low,
    POWER_MODE_MEDIUM = 2: query::PowerMode::Medium,
    POWER_MODE_HIGH = 3: query::PowerMode::High,
    POWER_MODE_TURBO = 4: query::PowerMode::Turbo,
    AMDXDNA_SENSOR_TYPE_POWER = 0: query::sensor_type::POWER,
    AMDXDNA_SENSOR_TYPE_COLUMN_UTILIZATION = 1: query::sensor_type::COLUMN_UTILIZATION,
    AMDXDNA_HWCTX_STATE_IDLE = 0: query::hwctx_state::IDLE,
    AMDXDNA_HWCTX_STATE_ACTIVE = 1: query::hwctx_state::ACTIVE,
    DRM_CAP_PRIME = 5: drm::cap::PRIME,
    DRM_PRIME_CAP_IMPORT = 1: drm::cap::PRIME_IMPORT,
    DRM_PRIME_CAP_EXPORT = 2: drm::cap::PRIME_EXPORT,
    DRM_CAP_SYNCOBJ = 0x13: drm::cap::SYNCOBJ,
    DRM_CAP_SYNCOBJ_TIMELINE = 0x14: drm::cap::SYNCOBJ_TIMELINE,
    DRM_RDWR = 0o2: drm::PrimeFlags::RDWR.bits(),
    DRM_CLOEXEC = 0o2_000_000: drm::PrimeFlags::CLOEXEC.bits(),
    DRM_SYNCOBJ_CREATE_SIGNALED = 1: drm::SyncobjCreateFlags::SIGNALED.bits(),
    DRM_SYNCOBJ_HANDLE_TO_FD_FLAGS_EXPORT_SYNC_FILE = 1: drm::SyncobjFdFlags::SYNC_FILE.bits(),
    DRM_SYNCOBJ_HANDLE_TO_FD_FLAGS_TIMELINE = 2: drm::SyncobjFdFlags::TIMELINE.bits(),
    DRM_SYNCOBJ_FD_TO_HANDLE_FLAGS_IMPORT_SYNC_FILE = 1: drm::SyncobjFdFlags::SYNC_FILE.bits(),
    DRM_SYNCOBJ_FD_TO_HANDLE_FLAGS_TIMELINE = 2: drm::SyncobjFdFlags::TIMELINE.bits(),
    DRM_SYNCOBJ_WAIT_FLAGS_WAIT_ALL = 1: drm::SyncobjWaitFlags::ALL.bits(),
    DRM_SYNCOBJ_WAIT_FLAGS_WAIT_FOR_SUBMIT = 2: drm::SyncobjWaitFlags::FOR_SUBMIT.bits(),
    DRM_SYNCOBJ_WAIT_FLAGS_WAIT_AVAILABLE = 4: drm::SyncobjWaitFlags::AVAILABLE.bits(),
    DRM_SYNCOBJ_WAIT_FLAGS_WAIT_DEADLINE = 8: drm::SyncobjWaitFlags::DEADLINE.bits(),
    DRM_SYNCOBJ_QUERY_FLAGS_LAST_SUBMITTED = 1: drm::SyncobjQueryFlags::LAST_SUBMITTED.bits(),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_are_the_headers() {
        for s in TABLE.structs {
            assert_eq!(s.rust_size, s.size, "sizeof(struct {})", s.c_name);
            for f in s.fields {
                assert_eq!(f.rust_offset, f.offset, "offsetof(struct {}, {})", s.c_name, f.c_name());
                assert_eq!(f.rust_size, f.size, "sizeof(struct {}.{})", s.c_name, f.c_name());
            }
            let named: usize = s.fields.iter().map(|f| f.size).sum();
            let hole = if s.c_name == "drm_version" { 4 } else { 0 };
            assert_eq!(named + hole, s.size, "struct {} has a member that the table does not", s.c_name);
        }
    }

    #[test]
    fn request_words_are_the_headers() {
        assert_eq!(TABLE.requests.len(), 27);
        for r in TABLE.requests {
            assert_eq!(r.rust_value, r.value, "{}", r.c_name);
            let short = request::name(r.value).unwrap();
            assert!(r.c_name.ends_with(short), "{} is called {short}", r.c_name);
        }
        assert_eq!(request::name(0xC038_6441), None);
    }

    #[test]
    fn constants_are_the_headers() {
        for c in TABLE.constants {
            assert_eq!(c.rust_value, c.value, "{}", c.c_name);
        }
    }
}
