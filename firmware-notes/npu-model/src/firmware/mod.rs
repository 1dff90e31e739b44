//! The NPU's firmware: context slots, compute units, commands in order, status words.
//!
//! The driver above speaks to it in the terms of its mailbox messages (`aie2_msg_priv.h`): CREATE_CONTEXT,
//! MAP_HOST_BUFFER, ADD_HOST_BUFFER, CONFIG_CU, the CHAIN_EXEC family and DESTROY_CONTEXT. What a message names by
//! address is read from device memory here.

mod run;
pub(crate) mod slot;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::SystemTime;

use host_ops::pool::Pool;

use crate::array::{Array, Contract, DeviceMemory};
use crate::config::{Config, Faults};
use crate::front;
use crate::stats::Stats;
use crate::timing::Timeline;

pub(crate) use run::{Chain, ChainKind, ChainStatus, Reply};

/// Bytes that a heap piece must be aligned to, and has.
const HEAP_PIECE: u64 = 64 << 20;

/// Status words of responses (`aie2_msg_priv.h`).
pub(crate) mod status {
    /// Success.
    pub(crate) const SUCCESS: u32 = 0;
    /// Management: not available, all context slots are in use.
    pub(crate) const MGMT_NOAVAIL: u32 = 0x0200_0003;
    /// Management: invalid parameter.
    pub(crate) const MGMT_INVALID_PARAM: u32 = 0x0200_0004;
    /// Array: an access to an address that leads nowhere.
    pub(crate) const AIE_ACCESS: u32 = 0x0100_0004;
    /// Application: the first error of a command.
    pub(crate) const APP_ERROR: u32 = 0x0300_0001;
    /// Application: an instruction that does not exist.
    pub(crate) const APP_INVALID_INSTRUCTION: u32 = 0x0300_0002;
    /// Application: the PDI could not be loaded.
    pub(crate) const APP_LOAD_PDI_FAIL: u32 = 0x0300_0003;
    /// System: a buffer that cannot be one.
    pub(crate) const RTOS_INVALID_BUFFER: u32 = 0x0400_0001;
    /// System: a parameter that cannot be one.
    pub(crate) const RTOS_INVALID_PARAM: u32 = 0x0400_0003;
}

/// What a protocol version brings (`npu4_regs.c`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Feature {
    /// Array state is saved between contexts.
    Preempt,
    /// Command slots that say what they are.
    NpuCommand,
    /// GET_APP_HEALTH.
    AppHealth,
    /// ADD_HOST_BUFFER: heaps of more than one piece.
    AddHostBuffer,
}

impl Feature {
    /// Whether firmware of this protocol version has it.
    pub(crate) fn of(self, (major, minor): (u32, u32)) -> bool {
        let since = match self {
            Self::Preempt => 12,
            Self::NpuCommand => 15,
            Self::AppHealth | Self::AddHostBuffer => 18,
        };
        major == 7 || (major == 6 && minor >= since)
    }
}

/// Whether the driver accepts firmware of this protocol version at all.
pub(crate) fn protocol_accepted((major, minor): (u32, u32)) -> bool {
    major == 7 || (major == 6 && minor >= 12)
}

/// Memory as one context's address space shows it.
pub(crate) trait ContextMemory: DeviceMemory {
    /// Bytes from an address to the end of its buffer.
    fn extent(&self, addr: u64) -> Option<u64>;

    /// Bytes of the PDI at an address: to the end of its buffer, where that is known.
    fn pdi_extent(&self, addr: u64) -> Option<u64> {
        self.extent(addr)
    }
}

/// Copies device memory.
fn read(memory: &dyn ContextMemory, addr: u64, len: usize) -> Result<Vec<u8>, u32> {
    let mut out = vec![0; len];
    front::read_device(memory, addr, &mut out).map_err(|_| status::RTOS_INVALID_BUFFER)?;
    Ok(out)
}

/// One entry of CONFIG_CU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cu {
    /// Where the PDI is, in the heap window.
    addr: u64,
}

/// What a context has.
#[derive(Debug, Default)]
struct ContextState {
    heap_pieces: usize,
    cus: Vec<Cu>,
    /// The array, and whose PDI it holds.
    loaded: Option<(u32, Array)>,
}

/// A context of the firmware.
#[derive(Debug, Default)]
struct Context {
    state: Mutex<ContextState>,
}

impl Context {
    fn lock(&self) -> MutexGuard<'_, ContextState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The firmware of one device.
#[derive(Debug)]
pub(crate) struct Firmware {
    slots: usize,
    contexts: Mutex<BTreeMap<u32, Arc<Context>>>,
    /// Taken while a command runs: contexts share the array in time. Whose command ran last.
    array: Mutex<Option<u32>>,
    pool: Pool,
    contracts: RwLock<HashMap<[u8; 32], Contract>>,
    stats: Arc<Stats>,
    faults: Arc<Mutex<Faults>>,
    /// The array's time, where nothing is computed.
    timeline: Option<Timeline>,
    /// Why the last failed command failed, in words.
    last_fault: Mutex<Option<String>>,
    /// The array's last asynchronous error.
    raised: Mutex<Option<ArrayError>>,
}

/// An asynchronous error of the array: an entry of the event buffer (`aie2_error.c`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ArrayError {
    /// When.
    pub(crate) at: SystemTime,
    /// Row and column of the tile.
    pub(crate) row: u8,
    /// Column of the tile.
    pub(crate) column: u8,
    /// The event: here always a core's illegal access.
    pub(crate) event: u8,
}

impl ArrayError {
    /// A core's event that the driver takes for an illegal access.
    const EVENT_ACCESS: u8 = 60;
    /// The first row of cores.
    const CORE_ROW: u8 = 2;

    fn now() -> Self {
        Self { at: SystemTime::now(), row: Self::CORE_ROW, column: 0, event: Self::EVENT_ACCESS }
    }
}

impl Firmware {
    /// Boots.
    pub(crate) fn new(config: &Config, stats: Arc<Stats>, faults: Arc<Mutex<Faults>>) -> Self {
        Self {
            slots: config.slots,
            contexts: Mutex::default(),
            array: Mutex::default(),
            pool: Pool::new(config.threads),
            contracts: RwLock::default(),
            stats,
            faults,
            timeline: config.timing.map(Timeline::new),
            last_fault: Mutex::default(),
            raised: Mutex::default(),
        }
    }

    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn context(&self, id: u32) -> Option<Arc<Context>> {
        self.contexts.lock().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    /// The array's time, where nothing is computed.
    pub(crate) fn timeline(&self) -> Option<&Timeline> {
        self.timeline.as_ref()
    }

    /// Contexts alive.
    pub(crate) fn live(&self) -> usize {
        self.contexts.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Learns what an opaque stream computes.
    pub(crate) fn teach(&self, stream_sha256: [u8; 32], contract: Contract) {
        self.contracts.write().unwrap_or_else(PoisonError::into_inner).insert(stream_sha256, contract);
    }

    /// Why the last failed command failed.
    pub(crate) fn last_fault(&self) -> Option<String> {
        self.last_fault.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The array's last asynchronous error.
    pub(crate) fn array_error(&self) -> Option<ArrayError> {
        *self.raised.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn raise(&self) {
        *self.raised.lock().unwrap_or_else(PoisonError::into_inner) = Some(ArrayError::now());
    }

    fn note_fault(&self, what: String) {
        *self.last_fault.lock().unwrap_or_else(PoisonError::into_inner) = Some(what);
    }

    /// CREATE_CONTEXT: the id, or a status.
    pub(crate) fn create_context(&self) -> Result<u32, u32> {
        if self.faults().no_context {
            return Err(status::MGMT_NOAVAIL);
        }
        let mut contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner);
        if contexts.len() >= self.slots {
            return Err(status::MGMT_NOAVAIL);
        }
        let id = (0..).find(|id| !contexts.contains_key(id)).unwrap_or(0);
        contexts.insert(id, Arc::default());
        self.stats.update(|counts| counts.contexts_created += 1);
        Ok(id)
    }

    /// DESTROY_CONTEXT.
    pub(crate) fn destroy_context(&self, id: u32) {
        let gone = self.contexts.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
        if gone.is_some() {
            self.stats.update(|counts| counts.contexts_destroyed += 1);
        }
    }

    /// MAP_HOST_BUFFER, and ADD_HOST_BUFFER for each piece after the first.
    pub(crate) fn add_heap_piece(&self, id: u32, addr: u64) -> u32 {
        let Some(context) = self.context(id) else { return status::MGMT_INVALID_PARAM };
        let mut state = context.lock();
        if state.heap_pieces == 0 && !addr.is_multiple_of(HEAP_PIECE) {
            return status::RTOS_INVALID_PARAM;
        }
        state.heap_pieces += 1;
        status::SUCCESS
    }

    /// CONFIG_CU. Words as in the message: address of the PDI in 32 KiB units, function above bit 16. The driver does
    /// not look at the answer.
    pub(crate) fn config_cu(&self, id: u32, words: &[u32], memory: &dyn ContextMemory) -> u32 {
        let Some(context) = self.context(id) else { return status::MGMT_INVALID_PARAM };
        let mut state = context.lock();
        state.cus = words.iter().map(|word| Cu { addr: u64::from(word & 0x1_ffff) << 15 }).collect();
        state.loaded = None;
        // The first unit's PDI is loaded at once; another's when a command first names it.
        self.load(&mut state, 0, memory).err().unwrap_or(status::SUCCESS)
    }

    /// Puts a unit's PDI into the array, unless it is there.
    fn load(&self, state: &mut ContextState, cu: u32, memory: &dyn ContextMemory) -> Result<(), u32> {
        if state.loaded.as_ref().is_some_and(|(loaded, _)| *loaded == cu) {
            return Ok(());
        }
        let fail = |what: String| {
            self.note_fault(format!("load of the PDI of CU {cu}: {what}"));
            status::APP_LOAD_PDI_FAIL
        };
        let entry = *state.cus.get(cu as usize).ok_or_else(|| fail("the CU is not configured".into()))?;
        let len = memory.pdi_extent(entry.addr).ok_or_else(|| fail(format!("no buffer at {:#x}", entry.addr)))?;
        let pdi = read(memory, entry.addr, len as usize).map_err(|_| fail("its buffer cannot be read".into()))?;
        let array = Array::configure(&pdi).map_err(|fault| fail(fault.to_string()))?;
        state.loaded = Some((cu, array));
        self.stats.update(|counts| counts.pdi_loads += 1);
        Ok(())
    }
}
