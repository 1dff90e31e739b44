//! Numbers that the notes beside this crate repeat.

use amdxdna_ioctl::abi;

use super::{context, hwctx, packet};
use crate::array::numbers_of_notes as array;
use crate::config;
use crate::firmware::{slot, status};

/// Name and value.
pub(crate) const TABLE: &[(&str, u64)] = &[
    ("abi::HEAP_BASE", abi::HEAP_BASE),
    ("abi::HEAP_CHUNK", abi::HEAP_CHUNK),
    ("abi::HEAP_MAX", abi::HEAP_MAX),
    ("abi::DEV_ALIGN", abi::DEV_ALIGN),
    ("abi::MAX_COMMANDS", abi::MAX_COMMANDS as u64),
    ("abi::MAX_ARG_COUNT", abi::MAX_ARG_COUNT as u64),
    ("abi::MAX_NUM_CUS", abi::MAX_NUM_CUS as u64),
    ("hwctx::COMMAND_BUFFERS", context::COMMAND_BUFFERS as u64),
    ("hwctx::IDS_PER_CLIENT", context::IDS_PER_CLIENT as u64),
    ("hwctx::HEALTH_BYTES", size_of_val(&hwctx::HEALTH_WORDS) as u64),
    ("config::SLOTS", config::SLOTS as u64),
    ("config::TDR_MS", config::TDR_MS),
    ("packet::COMMAND_BUFFER", packet::COMMAND_BUFFER as u64),
    ("packet::NPU_ARGS_MAX", packet::NPU_ARGS_MAX as u64),
    ("packet::DPU_ARGS_MAX", packet::DPU_ARGS_MAX as u64),
    ("slot::NPU_HEAD", slot::NPU_HEAD as u64),
    ("slot::DPU_HEAD", slot::DPU_HEAD as u64),
    ("slot::CF_HEAD", slot::CF_HEAD as u64),
    ("status::MGMT_NOAVAIL", status::MGMT_NOAVAIL as u64),
    ("status::APP_LOAD_PDI_FAIL", status::APP_LOAD_PDI_FAIL as u64),
    ("array::VERSION", array::VERSION as u64),
    ("array::PARAMETER_ADDRESS", array::PARAMETER_ADDRESS as u64),
    ("array::PARAMETERS", array::PARAMETERS as u64),
    ("array::BARRIER", array::BARRIER as u64),
    ("array::QUEUE_DEPTH", array::QUEUE_DEPTH as u64),
    ("array::DESCRIPTORS", array::DESCRIPTORS as u64),
    ("status::RTOS_INVALID_PARAM", status::RTOS_INVALID_PARAM as u64),
];
