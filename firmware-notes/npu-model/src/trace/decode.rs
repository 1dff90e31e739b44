//! Arguments of ioctls, field by field. What a pointer leads to is read from the process that the call comes from.

use amdxdna_ioctl::abi::{self, config_hwctx_param, drm, query, request};
use bytemuck::{Pod, Zeroable};
use serde_json::{Value, json};

use super::known::Known;
use super::{Fields, hex, packet};
use crate::front::read_user;

/// Most elements of an array that are shown.
const MOST: usize = 4096;

/// Adds fields of a structure by their names.
macro_rules! put {
    ($out:ident, $argument:ident: $($field:ident)*) => {
        $($out.insert(stringify!($field).trim_start_matches("r#").into(), json!($argument.$field));)*
    };
}

/// Adds fields that are addresses or offsets.
macro_rules! put_hex {
    ($out:ident, $argument:ident: $($field:ident)*) => {
        $($out.insert(stringify!($field).into(), hex($argument.$field));)*
    };
}

/// The argument as a structure, extended with zeroes or cut as the DRM core does.
pub(super) fn read<T: Pod>(argument: &[u8]) -> T {
    let mut value = T::zeroed();
    let n = argument.len().min(size_of::<T>());
    bytemuck::bytes_of_mut(&mut value)[..n].copy_from_slice(&argument[..n]);
    value
}

fn pointed<T: Pod>(addr: u64) -> Option<T> {
    let mut value = T::zeroed();
    read_user(addr, bytemuck::bytes_of_mut(&mut value)).ok()?;
    Some(value)
}

fn array<T: Pod + Zeroable>(addr: u64, count: u64) -> Option<Vec<T>> {
    let mut values = vec![T::zeroed(); usize::try_from(count).ok()?.min(MOST)];
    read_user(addr, bytemuck::cast_slice_mut(&mut values)).ok()?;
    Some(values)
}

/// Microseconds until an absolute time.
fn from_now(deadline: i64) -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    deadline.saturating_sub(now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec)) / 1000
}

fn text(addr: u64, len: u64) -> Value {
    array::<u8>(addr, len).map_or(Value::Null, |bytes| json!(String::from_utf8_lossy(&bytes)))
}

/// Fields that the driver reads.
pub(super) fn inputs(asked: u32, argument: &[u8], known: &mut Known) -> Fields {
    let mut out = Fields::new();
    match asked {
        request::CREATE_HWCTX => {
            let a: abi::CreateHwctx = read(argument);
            put!(out, a: ext ext_flags umq_bo log_buf_bo max_opc num_tiles mem_size);
            out.insert("qos".into(), pointed::<abi::QosInfo>(a.qos_p).map_or(Value::Null, qos));
        }
        request::DESTROY_HWCTX => {
            let a: abi::DestroyHwctx = read(argument);
            put!(out, a: handle pad);
        }
        request::CONFIG_HWCTX => {
            let a: abi::ConfigHwctx = read(argument);
            put!(out, a: handle param_type param_val_size pad);
            if a.param_type == config_hwctx_param::CONFIG_CU {
                out.insert("cus".into(), cus(a.param_val, a.param_val_size));
            } else {
                put!(out, a: param_val);
            }
        }
        request::CREATE_BO => {
            let a: abi::CreateBo = read(argument);
            put!(out, a: flags size r#type);
            out.insert("table".into(), if a.vaddr == 0 { Value::Null } else { table(a.vaddr) });
        }
        request::GET_BO_INFO => {
            let a: abi::GetBoInfo = read(argument);
            put!(out, a: ext ext_flags handle pad);
        }
        request::SYNC_BO => {
            let a: abi::SyncBo = read(argument);
            put!(out, a: handle direction offset size);
        }
        request::EXEC_CMD => {
            let a: abi::ExecCmd = read(argument);
            put!(out, a: ext ext_flags hwctx r#type cmd_handles cmd_count arg_count);
            let args = array::<u32>(a.args, u64::from(a.arg_count));
            out.insert("args".into(), json!(args));
            let handle = u32::try_from(a.cmd_handles).unwrap_or(0);
            out.insert("packet".into(), packet::describe(known, handle));
        }
        request::GET_INFO | request::SET_STATE => {
            let a: abi::GetInfo = read(argument);
            put!(out, a: param buffer_size);
            if asked == request::SET_STATE {
                let state = pointed::<query::AttributeState>(a.buffer).map(|state| state.state);
                out.insert("state".into(), json!(state));
            }
        }
        request::WAIT_CMD => {
            let a: abi::WaitCmd = read(argument);
            put!(out, a: hwctx timeout seq);
        }
        request::GET_ARRAY => {
            let a: abi::GetArray = read(argument);
            put!(out, a: param element_size num_element pad);
        }
        request::VERSION => {
            let a: drm::Version = read(argument);
            put!(out, a: name_len date_len desc_len);
        }
        request::GEM_CLOSE => {
            let a: drm::GemClose = read(argument);
            put!(out, a: handle pad);
        }
        request::GET_CAP => {
            let a: drm::GetCap = read(argument);
            put!(out, a: capability);
        }
        request::PRIME_HANDLE_TO_FD => {
            let a: drm::PrimeHandle = read(argument);
            put!(out, a: handle flags);
        }
        request::PRIME_FD_TO_HANDLE => {
            let a: drm::PrimeHandle = read(argument);
            put!(out, a: fd);
        }
        request::SYNCOBJ_CREATE => {
            let a: drm::SyncobjCreate = read(argument);
            put!(out, a: flags);
        }
        request::SYNCOBJ_DESTROY => {
            let a: drm::SyncobjDestroy = read(argument);
            put!(out, a: handle pad);
        }
        request::SYNCOBJ_HANDLE_TO_FD => {
            let a: drm::SyncobjHandle = read(argument);
            put!(out, a: handle flags pad point);
        }
        request::SYNCOBJ_FD_TO_HANDLE => {
            let a: drm::SyncobjHandle = read(argument);
            put!(out, a: fd flags pad point);
        }
        request::SYNCOBJ_WAIT => {
            let a: drm::SyncobjWait = read(argument);
            out.insert("timeout_in_us".into(), json!(from_now(a.timeout_nsec)));
            put!(out, a: timeout_nsec count_handles flags pad deadline_nsec);
            out.insert("handles".into(), json!(array::<u32>(a.handles, u64::from(a.count_handles))));
        }
        request::SYNCOBJ_TIMELINE_WAIT => {
            let a: drm::SyncobjTimelineWait = read(argument);
            out.insert("timeout_in_us".into(), json!(from_now(a.timeout_nsec)));
            put!(out, a: timeout_nsec count_handles flags pad deadline_nsec);
            out.insert("handles".into(), json!(array::<u32>(a.handles, u64::from(a.count_handles))));
            out.insert("points".into(), json!(array::<u64>(a.points, u64::from(a.count_handles))));
        }
        request::SYNCOBJ_QUERY | request::SYNCOBJ_TIMELINE_SIGNAL => {
            let a: drm::SyncobjTimelineArray = read(argument);
            put!(out, a: count_handles flags);
            out.insert("handles".into(), json!(array::<u32>(a.handles, u64::from(a.count_handles))));
            if asked == request::SYNCOBJ_TIMELINE_SIGNAL {
                out.insert("points".into(), json!(array::<u64>(a.points, u64::from(a.count_handles))));
            }
        }
        request::SYNCOBJ_TRANSFER => {
            let a: drm::SyncobjTransfer = read(argument);
            put!(out, a: src_handle dst_handle src_point dst_point flags pad);
        }
        request::SYNCOBJ_EVENTFD => {
            let a: drm::SyncobjEventfd = read(argument);
            put!(out, a: handle flags point fd pad);
        }
        request::SET_CLIENT_NAME => {
            let a: drm::SetClientName = read(argument);
            out.insert("name".into(), text(a.name, a.name_len));
        }
        _ => {}
    }
    out
}

/// Fields that the driver has written.
pub(super) fn outputs(asked: u32, argument: &[u8]) -> Fields {
    let mut out = Fields::new();
    match asked {
        request::CREATE_HWCTX => {
            let a: abi::CreateHwctx = read(argument);
            put!(out, a: umq_doorbell handle syncobj_handle);
        }
        request::CREATE_BO => {
            let a: abi::CreateBo = read(argument);
            put!(out, a: handle);
        }
        request::GET_BO_INFO => {
            let a: abi::GetBoInfo = read(argument);
            put_hex!(out, a: map_offset vaddr xdna_addr);
        }
        request::EXEC_CMD => {
            let a: abi::ExecCmd = read(argument);
            put!(out, a: seq);
        }
        request::GET_INFO => {
            let a: abi::GetInfo = read(argument);
            put!(out, a: buffer_size);
            if a.param == query::get_info::AIE_METADATA
                && let Some(found) = pointed::<query::QueryAieMetadata>(a.buffer)
            {
                let (cols, rows, core_rows) = (found.cols, found.rows, found.core.row_count);
                out.insert("metadata".into(), json!({ "cols": cols, "rows": rows, "core_rows": core_rows }));
            }
        }
        request::GET_ARRAY => {
            let a: abi::GetArray = read(argument);
            put!(out, a: element_size num_element);
        }
        request::VERSION => {
            let a: drm::Version = read(argument);
            put!(out, a: version_major version_minor version_patchlevel name_len);
            // The length is the whole name's; a caller that asked for it has no room for it.
            if a.name != 0 {
                out.insert("name".into(), text(a.name, a.name_len));
            }
        }
        request::GET_CAP => {
            let a: drm::GetCap = read(argument);
            put!(out, a: value);
        }
        request::PRIME_HANDLE_TO_FD => {
            let a: drm::PrimeHandle = read(argument);
            put!(out, a: fd);
        }
        request::PRIME_FD_TO_HANDLE => {
            let a: drm::PrimeHandle = read(argument);
            put!(out, a: handle);
        }
        request::SYNCOBJ_CREATE => {
            let a: drm::SyncobjCreate = read(argument);
            put!(out, a: handle);
        }
        request::SYNCOBJ_HANDLE_TO_FD => {
            let a: drm::SyncobjHandle = read(argument);
            put!(out, a: fd);
        }
        request::SYNCOBJ_FD_TO_HANDLE => {
            let a: drm::SyncobjHandle = read(argument);
            put!(out, a: handle);
        }
        request::SYNCOBJ_WAIT => {
            let a: drm::SyncobjWait = read(argument);
            put!(out, a: first_signaled);
        }
        request::SYNCOBJ_TIMELINE_WAIT => {
            let a: drm::SyncobjTimelineWait = read(argument);
            put!(out, a: first_signaled);
        }
        request::SYNCOBJ_QUERY => {
            let a: drm::SyncobjTimelineArray = read(argument);
            out.insert("points".into(), json!(array::<u64>(a.points, u64::from(a.count_handles))));
        }
        _ => {}
    }
    out
}

fn qos(a: abi::QosInfo) -> Value {
    let mut out = Fields::new();
    put!(out, a: gops fps dma_bandwidth latency frame_exec_time priority);
    Value::Object(out)
}

fn cus(addr: u64, bytes: u32) -> Value {
    const HEAD: usize = size_of::<abi::HwctxParamConfigCu>();
    let Some(table) = array::<u8>(addr, u64::from(bytes)).filter(|table| table.len() >= HEAD) else {
        return Value::Null;
    };
    let head: abi::HwctxParamConfigCu = read(&table);
    let entries = table[HEAD..].chunks_exact(size_of::<abi::CuConfig>()).take(usize::from(head.num_cus));
    let entries: Vec<Value> = entries
        .map(|entry| {
            let cu: abi::CuConfig = read(entry);
            json!({ "cu_bo": cu.cu_bo, "cu_func": cu.cu_func })
        })
        .collect();
    json!(entries)
}

fn table(addr: u64) -> Value {
    let Some(head) = pointed::<abi::VaTbl>(addr) else { return Value::Null };
    let entries = addr
        .checked_add(size_of::<abi::VaTbl>() as u64)
        .and_then(|entries| array::<abi::VaEntry>(entries, u64::from(head.num_entries)));
    let entries: Vec<Value> = entries
        .unwrap_or_default()
        .iter()
        .map(|entry| json!({ "vaddr": hex(entry.vaddr), "len": entry.len }))
        .collect();
    json!({ "dmabuf_fd": head.dmabuf_fd, "entries": entries })
}
