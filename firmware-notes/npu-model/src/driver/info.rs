//! GET_INFO, GET_ARRAY and SET_STATE (`aie2_pci.c`, `aie2_pm.c`, `amdxdna_error.h`).

use std::sync::{Arc, Weak};
use std::time::SystemTime;

use amdxdna_ioctl::Errno;
use amdxdna_ioctl::abi::query::{self, PowerMode, get_array, get_info, hwctx_state, set_state};
use amdxdna_ioctl::abi::{self, BoType};
use bytemuck::{Pod, bytes_of};

use super::context::{COLUMNS, CORE_ROWS, H_CLOCK_MAX};
use super::hwctx::Hwctx;
use super::{Client, locked};
use crate::config::{COLUMN_STATUS, DriverVersion};
use crate::front::{read_user, write_user};

/// Clocks by level, MHz: management processor, array (`npu4_regs.c`).
const LEVELS: [(u32, u32); 8] =
    [(396, 792), (600, 1056), (792, 1152), (975, 1267), (975, 1267), (1056, 1408), (1152, 1584), (1267, 1800)];
/// Kinds of telemetry.
const TELEMETRY_KINDS: u32 = 5;
/// How the driver names a core's illegal access (`amdxdna_error.h`): number, driver, severity, module, class.
const CORE_ACCESS: u64 = 6 | 4 << 16 | 3 << 24 | 3 << 32 | 2 << 40;
/// Bytes that newer drivers append to an entry of HW_CONTEXT_ALL: the client's name.
const ENTRY_NAME: usize = 16;

fn tops(clock: u64) -> u64 {
    4096 * u64::from(COLUMNS) * clock / 1_000_000
}

/// Copies as much of a structure as the caller has room for.
fn put<T: Pod>(value: &T, a: &abi::GetInfo) -> Result<(), Errno> {
    let bytes = bytes_of(value);
    write_user(a.buffer, &bytes[..bytes.len().min(a.buffer_size as usize)])
}

impl Client {
    fn power_level(&self) -> (u32, u32) {
        match self.device.shared().power_mode {
            1 => LEVELS[0],
            2 => LEVELS[3],
            _ => LEVELS[7],
        }
    }

    /// The contexts that this client may see: 7.3.4 shows everybody's, newer drivers those of the same user, which is
    /// everybody of this process.
    fn visible(&self) -> Vec<Arc<Hwctx>> {
        self.device.contexts().into_iter().filter(|context| context.stats().channel.is_some()).collect()
    }

    pub(super) fn get_info(&self, a: &mut abi::GetInfo) -> Result<(), Errno> {
        let _management = locked(&self.device.dev_lock);
        self.device.resume()?;
        match a.param {
            get_info::AIE_STATUS => self.aie_status(a),
            get_info::AIE_METADATA => put(&metadata(), a),
            get_info::AIE_VERSION => put(&metadata().version, a),
            get_info::CLOCK_METADATA => {
                let (mp, h) = self.power_level();
                let clock = |name: &str, freq_mhz| {
                    let mut clock = query::QueryClock { freq_mhz, ..Default::default() };
                    clock.name[..name.len()].copy_from_slice(name.as_bytes());
                    clock
                };
                let clocks =
                    query::QueryClockMetadata { mp_npu_clock: clock("MP-NPU Clock", mp), h_clock: clock("H Clock", h) };
                put(&clocks, a)
            }
            // What 7.3.4 says on a machine without amd_pmf's sensors.
            get_info::SENSORS if self.device.config.driver == DriverVersion::L7_3_4 => Err(Errno::NODEV),
            get_info::HW_CONTEXTS => self.hw_contexts(a),
            get_info::FIRMWARE_VERSION => {
                let (minor, patch, build) = if self.device.config.protocol.0 == 7 { (1, 2, 64) } else { (0, 0, 63) };
                put(&query::QueryFirmwareVersion { major: 1, minor, patch, build }, a)
            }
            get_info::POWER_MODE => {
                put(&query::GetPowerMode { power_mode: self.device.shared().power_mode, pad: [0; 7] }, a)
            }
            get_info::TELEMETRY => self.telemetry(a),
            get_info::FORCE_PREEMPT_STATE => {
                put(&query::AttributeState { state: self.device.shared().force_preempt, pad: [0; 7] }, a)
            }
            get_info::FRAME_BOUNDARY_PREEMPT_STATE => {
                put(&query::AttributeState { state: self.device.shared().frame_boundary_preempt, pad: [0; 7] }, a)
            }
            get_info::RESOURCE_INFO => {
                let info = query::ResourceInfo {
                    npu_clk_max: H_CLOCK_MAX,
                    npu_tops_max: tops(H_CLOCK_MAX),
                    npu_task_max: self.device.config.slots as u64,
                    npu_tops_curr: tops(u64::from(self.power_level().1)),
                    npu_task_curr: self.device.firmware.live() as u64,
                };
                put(&info, a)
            }
            _ => Err(Errno::OPNOTSUPP),
        }
    }

    fn aie_status(&self, a: &abi::GetInfo) -> Result<(), Errno> {
        let mut status = query::QueryAieStatus::default();
        let n = bytes_of(&status).len();
        if (a.buffer_size as usize) < n {
            return Err(Errno::INVAL);
        }
        read_user(a.buffer, bytemuck::bytes_of_mut(&mut status))?;
        status.cols_filled = if self.visible().is_empty() { 0 } else { (1 << COLUMNS) - 1 };
        let filled = status.cols_filled.count_ones() * COLUMN_STATUS;
        write_user(status.buffer, &vec![0; filled.min(status.buffer_size) as usize])?;
        put(&status, a)
    }

    fn hw_contexts(&self, a: &mut abi::GetInfo) -> Result<(), Errno> {
        let size = size_of::<query::QueryHwctx>();
        let mut left = a.buffer_size as usize;
        let mut at = a.buffer;
        for context in self.visible() {
            if left < size {
                break;
            }
            let stats = context.stats();
            let entry = query::QueryHwctx {
                context_id: context.id,
                start_col: 0,
                num_col: COLUMNS,
                pad: if self.device.config.driver == DriverVersion::Aug2026 { stats.channel.unwrap_or(0) } else { 0 },
                pid: context.pid,
                command_submissions: stats.submissions,
                command_completions: stats.completions,
                migrations: 0,
                preemptions: 0,
                errors: stats.errors,
            };
            write_user(at, bytes_of(&entry))?;
            at += size as u64;
            left -= size;
        }
        a.buffer_size = left as u32;
        Ok(())
    }

    fn telemetry(&self, a: &abi::GetInfo) -> Result<(), Errno> {
        let head = size_of::<query::QueryTelemetryHeader>();
        let map = 4 * self.device.config.slots;
        if (a.buffer_size as usize) <= head + map {
            return Err(Errno::INVAL);
        }
        let mut header = query::QueryTelemetryHeader::default();
        read_user(a.buffer, bytemuck::bytes_of_mut(&mut header))?;
        if header.r#type >= TELEMETRY_KINDS {
            return Err(Errno::INVAL);
        }
        header.major = 1;
        header.minor = 0;
        header.map_num_elements = self.device.config.slots as u32;
        write_user(a.buffer, bytes_of(&header))?;
        let words: Vec<u32> = (0..self.device.config.slots as u32).collect();
        write_user(a.buffer + head as u64, bytemuck::cast_slice(&words))
    }

    pub(super) fn get_array(&self, a: &mut abi::GetArray) -> Result<(), Errno> {
        if a.pad != 0 || a.num_element == 0 || a.element_size == 0 {
            return Err(Errno::INVAL);
        }
        let _management = locked(&self.device.dev_lock);
        self.device.resume()?;
        match a.param {
            get_array::HW_CONTEXT_ALL => self.hw_context_all(a),
            get_array::HW_LAST_ASYNC_ERR => self.last_async_error(a),
            get_array::BO_USAGE => self.bo_usage(a),
            _ => Err(Errno::OPNOTSUPP),
        }
    }

    fn last_async_error(&self, a: &mut abi::GetArray) -> Result<(), Errno> {
        let Some(error) = self.device.firmware.array_error() else {
            a.num_element = 0;
            return Ok(());
        };
        let since = error.at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let entry = query::AsyncError {
            err_code: CORE_ACCESS,
            ts_us: since.as_micros() as u64,
            ex_err_code: u64::from(error.column) | u64::from(error.row) << 8,
        };
        let step = size_of::<query::AsyncError>().min(a.element_size as usize);
        write_user(a.buffer, &bytes_of(&entry)[..step])?;
        (a.num_element, a.element_size) = (1, step as u32);
        Ok(())
    }

    fn hw_context_all(&self, a: &mut abi::GetArray) -> Result<(), Errno> {
        if a.element_size > 4096 || a.num_element > 1024 {
            return Err(Errno::INVAL);
        }
        let newer = self.device.config.driver == DriverVersion::Aug2026;
        let size = size_of::<query::HwctxEntry>() + if newer { ENTRY_NAME } else { 0 };
        let step = size.min(a.element_size as usize);
        let mut count = 0;
        for context in self.visible().into_iter().take(a.num_element as usize) {
            let stats = context.stats();
            let qos = context.qos;
            let entry = query::HwctxEntry {
                context_id: context.id,
                num_col: COLUMNS,
                hwctx_id: stats.channel.unwrap_or(0),
                pid: context.pid,
                command_submissions: stats.submissions,
                command_completions: stats.completions,
                errors: stats.errors,
                priority: u64::from(qos.priority),
                heap_usage: context.space.heap_usage().1,
                suspensions: stats.suspensions,
                state: if stats.active { hwctx_state::ACTIVE } else { hwctx_state::IDLE },
                gops: qos.gops,
                fps: qos.fps,
                dma_bandwidth: qos.dma_bandwidth,
                latency: qos.latency,
                frame_exec_time: qos.frame_exec_time,
                ..Default::default()
            };
            let mut bytes = bytes_of(&entry).to_vec();
            bytes.resize(size, 0);
            write_user(a.buffer + (count * step) as u64, &bytes[..step])?;
            count += 1;
        }
        a.element_size = step as u32;
        a.num_element = count as u32;
        Ok(())
    }

    fn bo_usage(&self, a: &mut abi::GetArray) -> Result<(), Errno> {
        if a.num_element != 1 {
            return Err(Errno::INVAL);
        }
        let mut usage = query::BoUsage::default();
        let n = size_of::<query::BoUsage>().min(a.element_size as usize);
        read_user(a.buffer, &mut bytemuck::bytes_of_mut(&mut usage)[..n])?;
        if usage.pid == 0 {
            return Err(Errno::INVAL);
        }
        let clients: Vec<_> = {
            let mut shared = self.device.shared();
            shared.clients.retain(|client| client.strong_count() > 0);
            shared.clients.iter().filter_map(Weak::upgrade).filter(|client| client.pid == usage.pid).collect()
        };
        for client in clients {
            let (heap, taken) = client.space.heap_usage();
            let buffers: Vec<_> = locked(&client.buffers).iter().map(|(_, bo)| (bo.kind, bo.size)).collect();
            let bytes = |kind| buffers.iter().filter(|(of, _)| *of == kind).map(|(_, size)| size).sum::<u64>();
            usage.total_usage += bytes(BoType::Share) + bytes(BoType::Cmd) + heap;
            usage.internal_usage += bytes(BoType::Cmd) + heap;
            usage.heap_usage += taken;
        }
        write_user(a.buffer, &bytes_of(&usage)[..n])
    }

    pub(super) fn set_state(&self, a: &abi::SetState) -> Result<(), Errno> {
        let _management = locked(&self.device.dev_lock);
        self.device.resume()?;
        let mut value = query::AttributeState::default();
        let known = [set_state::POWER_MODE, set_state::FORCE_PREEMPT, set_state::FRAME_BOUNDARY_PREEMPT];
        if !known.contains(&a.param) {
            return Err(Errno::OPNOTSUPP);
        }
        if (a.buffer_size as usize) < size_of::<query::AttributeState>() {
            return Err(Errno::INVAL);
        }
        read_user(a.buffer, bytemuck::bytes_of_mut(&mut value))?;
        let most = if a.param == set_state::POWER_MODE { PowerMode::Turbo as u8 } else { 1 };
        if value.pad != [0; 7] || value.state > most {
            return Err(Errno::INVAL);
        }
        let older = self.device.config.driver == DriverVersion::L7_3_4;
        if a.param == set_state::POWER_MODE && value.state == most && older && self.device.firmware.live() > 0 {
            return Err(Errno::INVAL);
        }
        let mut shared = self.device.shared();
        match a.param {
            set_state::POWER_MODE => shared.power_mode = value.state,
            set_state::FORCE_PREEMPT => shared.force_preempt = value.state,
            _ => shared.frame_boundary_preempt = value.state,
        }
        Ok(())
    }
}

/// The array's geometry, as the parts are commonly seen: one shim row, one memory row, four core rows. The counts of
/// channels, locks and events are the tile types' of AIE2P.
fn metadata() -> query::QueryAieMetadata {
    let tile = |row_start, row_count, dma_channel_count, lock_count, event_reg_count| query::QueryAieTileMetadata {
        row_count,
        row_start,
        dma_channel_count,
        lock_count,
        event_reg_count,
        pad: [0; 3],
    };
    query::QueryAieMetadata {
        col_size: COLUMN_STATUS,
        cols: COLUMNS as u16,
        rows: 6,
        version: query::QueryAieVersion { major: 1, minor: 1 },
        core: tile(2, CORE_ROWS as u16, 4, 16, 4),
        mem: tile(1, 1, 12, 64, 4),
        shim: tile(0, 1, 4, 16, 4),
    }
}
