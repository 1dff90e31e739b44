//! CREATE_HWCTX, DESTROY_HWCTX and CONFIG_HWCTX (`amdxdna_ctx.c`, `aie2_ctx.c`, `aie2_solver.c`).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use amdxdna_ioctl::Errno;
use amdxdna_ioctl::abi::{self, BoType, QosInfo, config_hwctx_param};
use bytemuck::Zeroable;

use super::fence::Syncobj;
use super::hwctx::{Cu, Hwctx, Parts};
use super::packet::COMMAND_BUFFER;
use super::{Client, locked};
use crate::config::DriverVersion;
use crate::firmware::{Feature, status};
use crate::front::read_user;

/// Columns of the array.
pub(super) const COLUMNS: u32 = 8;
/// Core tiles of a column.
pub(super) const CORE_ROWS: u32 = 4;
/// Operations a column and cycle that the driver reckons with.
const OPC_PER_COLUMN: u64 = 4096;
/// Highest array clock, MHz.
pub(super) const H_CLOCK_MAX: u64 = 1800;
/// Command buffers that the driver takes of the client's heap for a context.
pub(super) const COMMAND_BUFFERS: usize = 4;
/// Most bytes of a CONFIG_CU table.
const CONFIG_MAX: u32 = 4096;
/// Context ids of one client, Linux 7.3.4.
pub(super) const IDS_PER_CLIENT: u32 = 255;
/// Context ids of the device, newer drivers.
const IDS_PER_DEVICE: u32 = 1024;

impl Client {
    pub(super) fn create_hwctx(&self, a: &mut abi::CreateHwctx) -> Result<(), Errno> {
        if a.ext != 0 || a.ext_flags != 0 {
            return Err(Errno::INVAL);
        }
        let mut qos = QosInfo::zeroed();
        read_user(a.qos_p, bytemuck::bytes_of_mut(&mut qos))?;
        if !self.space.has_heap() {
            return Err(Errno::NOENT);
        }
        let ranges = (0..COMMAND_BUFFERS).map(|_| self.space.alloc_dev(COMMAND_BUFFER as u64));
        let command_buffers = ranges.collect::<Result<Vec<_>, _>>()?;
        let columns = a.num_tiles / CORE_ROWS;
        if a.num_tiles == 0 || columns == 0 || columns > COLUMNS {
            return Err(Errno::INVAL);
        }
        let _management = locked(&self.device.dev_lock);
        self.device.resume()?;
        if too_much(&qos, columns) {
            return Err(Errno::INVAL);
        }
        if locked(&self.device.faults).management_silent {
            self.device.management_dead.store(true, Ordering::Relaxed);
            return Err(Errno::TIME);
        }
        let firmware = &self.device.firmware;
        let channel = firmware.create_context().map_err(|_| Errno::INVAL)?;
        let made = self.announce_all(channel).and_then(|announced| {
            let id = self.context_id()?;
            let syncobj = Arc::new(Syncobj::default());
            let context = Hwctx::start(Parts {
                id,
                pid: self.pid,
                device: Arc::clone(&self.device),
                space: Arc::clone(&self.space),
                buffers: Arc::clone(&self.buffers),
                syncobj: Arc::clone(&syncobj),
                command_buffers,
                channel,
                qos,
                announced,
            })?;
            Ok((context, syncobj))
        });
        let (context, syncobj) = made.inspect_err(|_| firmware.destroy_context(channel))?;
        self.device.shared().contexts.push(Arc::downgrade(&context));
        a.handle = context.id;
        locked(&self.contexts).insert_at(context.id, context);
        a.syncobj_handle = self.add_syncobj(syncobj);
        a.umq_doorbell = abi::INVALID_DOORBELL_OFFSET;
        Ok(())
    }

    /// Tells a new firmware context of the whole heap; how many pieces that is.
    fn announce_all(&self, channel: u32) -> Result<usize, Errno> {
        let pieces = self.space.announcements();
        for (i, &addr) in pieces.iter().enumerate() {
            if i > 0 && !Feature::AddHostBuffer.of(self.device.config.protocol) {
                return Err(Errno::OPNOTSUPP);
            }
            if self.device.firmware.add_heap_piece(channel, addr) != status::SUCCESS {
                return Err(Errno::INVAL);
            }
        }
        Ok(pieces.len())
    }

    fn context_id(&self) -> Result<u32, Errno> {
        if self.device.config.driver == DriverVersion::L7_3_4 {
            let id = locked(&self.contexts).next();
            return if id <= IDS_PER_CLIENT { Ok(id) } else { Err(Errno::BUSY) };
        }
        let live: Vec<u32> = self.device.contexts().iter().map(|context| context.id).collect();
        let mut shared = self.device.shared();
        let last = shared.last_context_id;
        let id = (1..=IDS_PER_DEVICE).map(|step| (last + step - 1) % IDS_PER_DEVICE + 1).find(|id| !live.contains(id));
        let id = id.ok_or(Errno::NOSPC)?;
        shared.last_context_id = id;
        Ok(id)
    }

    pub(super) fn destroy_hwctx(&self, a: &abi::DestroyHwctx) -> Result<(), Errno> {
        if a.pad != 0 {
            return Err(Errno::INVAL);
        }
        let context = locked(&self.contexts).remove(a.handle).ok_or(Errno::INVAL)?;
        context.destroy();
        Ok(())
    }

    pub(super) fn config_hwctx(&self, a: &abi::ConfigHwctx) -> Result<(), Errno> {
        if a.pad != 0 {
            return Err(Errno::INVAL);
        }
        let mut table = Vec::new();
        match a.param_type {
            config_hwctx_param::CONFIG_CU => {
                if a.param_val_size > CONFIG_MAX {
                    return Err(Errno::TOOBIG);
                }
                table = vec![0; a.param_val_size as usize];
                read_user(a.param_val, &mut table)?;
            }
            config_hwctx_param::ASSIGN_DBG_BUF | config_hwctx_param::REMOVE_DBG_BUF => {}
            _ => return Err(Errno::INVAL),
        }
        let _management = locked(&self.device.dev_lock);
        self.device.resume()?;
        let context = self.context(a.handle)?;
        match a.param_type {
            config_hwctx_param::CONFIG_CU => self.config_cu(&context, &table),
            config_hwctx_param::ASSIGN_DBG_BUF => self.assign_debug_buffer(&context, a.param_val),
            _ => self.remove_debug_buffer(&context, a.param_val),
        }
    }

    fn config_cu(&self, context: &Hwctx, table: &[u8]) -> Result<(), Errno> {
        const HEAD: usize = size_of::<abi::HwctxParamConfigCu>();
        const ENTRY: usize = size_of::<abi::CuConfig>();
        let head = table.get(..HEAD).ok_or(Errno::INVAL)?;
        let head: abi::HwctxParamConfigCu = bytemuck::pod_read_unaligned(head);
        let count = usize::from(head.num_cus);
        if head.pad != [0; 3] || count == 0 || count > abi::MAX_NUM_CUS || HEAD + ENTRY * count > table.len() {
            return Err(Errno::INVAL);
        }
        let mut cus = Vec::with_capacity(count);
        for entry in table[HEAD..HEAD + ENTRY * count].chunks_exact(ENTRY) {
            let entry: abi::CuConfig = bytemuck::pod_read_unaligned(entry);
            let bo = self.bo(entry.cu_bo).ok_or(Errno::INVAL)?;
            let addr = bo.dev_address().ok_or(Errno::INVAL)?;
            if entry.pad != [0; 3] {
                return Err(Errno::INVAL);
            }
            let bo = context.keeps_pdis().then_some(bo);
            cus.push(Cu { handle: entry.cu_bo, function: entry.cu_func, bo, addr });
        }
        context.configure(cus)
    }

    fn assign_debug_buffer(&self, context: &Hwctx, handle: u64) -> Result<(), Errno> {
        let bo = u32::try_from(handle).ok().and_then(|handle| self.bo(handle)).ok_or(Errno::INVAL)?;
        if bo.kind != BoType::Dev {
            return Err(Errno::INVAL);
        }
        let mut debug_of = bo.debug_of();
        if debug_of.is_some() {
            return Err(Errno::BUSY);
        }
        *debug_of = Some(context.id);
        context.internal_command();
        Ok(())
    }

    fn remove_debug_buffer(&self, context: &Hwctx, handle: u64) -> Result<(), Errno> {
        let bo = u32::try_from(handle).ok().and_then(|handle| self.bo(handle)).ok_or(Errno::INVAL)?;
        let mut debug_of = bo.debug_of();
        if *debug_of != Some(context.id) {
            return Err(Errno::INVAL);
        }
        *debug_of = None;
        context.internal_command();
        Ok(())
    }
}

/// Whether the array could not do what the hints ask for (`aie2_solver.c`).
fn too_much(qos: &QosInfo, columns: u32) -> bool {
    let by_latency = if qos.latency == 0 { 0 } else { (1000 / u64::from(qos.latency)).max(1) };
    let frames = u64::from(qos.fps).max(by_latency);
    let wanted = frames.saturating_mul(u64::from(qos.gops)).saturating_mul(2);
    wanted > OPC_PER_COLUMN * u64::from(columns) * H_CLOCK_MAX / 1000
}
