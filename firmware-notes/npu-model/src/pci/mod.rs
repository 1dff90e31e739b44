//! The software NPU as a PCI device: its firmware and array layers behind a vfio-user server, so that the real amdxdna
//! driver in a virtual machine is the layer above.
//!
//! Registers and messages: `npu4_regs.c`, `aie_psp.c`, `aie_smu.c`, `aie2_msg_priv.h`, `amdxdna_mailbox.c` of Linux.
//! Commands run on a thread of their own, so that the guest's processors go on; management answers at once.

mod bars;
mod config_space;
#[allow(unsafe_code)]
mod guest;
mod mailbox;
mod memory;
mod messages;
mod trouble;

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Instant;

use vfio_user::{DmaMapFlags, DmaUnmapFlags, IrqInfo, Server, ServerBackend, ServerRegion};

use self::bars::Bars;
use self::config_space::ConfigSpace;
use self::guest::GuestMemory;
use self::mailbox::{Channel, Message};
use self::memory::ContextView;
use self::messages::{Fields, opcode};
use self::trouble::Trouble;
use crate::array::Contract;
use crate::config::{Config, Counts};
use crate::firmware::{ArrayError, Chain, ChainKind, Firmware, Reply, status};
use crate::stats::Stats;
use crate::timing::Timeline;

/// Security processor: command and status share a register of BAR4, the doorbell follows.
const PSP_COMMAND: usize = 0xaec;
const PSP_DOORBELL: usize = 0xa24;
const PSP_READY: u32 = 1 << 31;
const PSP_START: u32 = 2;
/// Its first argument in BAR0, where the answer appears too.
const PSP_ANSWER: usize = 0x10078;
/// Power management: command, argument and answer in BAR5.
const SMU_COMMAND: usize = 0x900;
const SMU_ANSWER: usize = 0x9f4;
const SMU_OK: u32 = 1;
const SMU_POWER_OFF: u32 = 4;
/// BAR0: bit 0 says that the firmware waits after SUSPEND.
const WAIT_MODE: usize = 0x1003c;
/// BAR2: device address of the management channel's description, once the firmware is alive.
const ALIVE: usize = 0x1e000;
/// BAR2: where that description stands.
const ALIVE_BLOCK: usize = 0x1f000;
/// "_NPU".
const ALIVE_MAGIC: u32 = 0x5550_4e5f;

/// vfio regions: six BARs, ROM, configuration space, VGA.
const REGIONS: [usize; 9] = [
    bars::SIZES[0],
    bars::SIZES[1],
    bars::SIZES[2],
    bars::SIZES[3],
    bars::SIZES[4],
    bars::SIZES[5],
    0,
    config_space::SIZE,
    0,
];
const CONFIG_REGION: u32 = 7;
/// vfio interrupt index of MSI-X.
const MSIX: u32 = 2;

/// A context as the mailbox sees it.
#[derive(Debug)]
struct Context {
    channel: Channel,
    heaps: Vec<(u64, u64)>,
    /// Tells a new context on a channel from the one before it.
    generation: u64,
}

/// What the register accesses and the command thread share.
#[derive(Debug)]
struct State {
    bars: Bars,
    vectors: Vec<Option<File>>,
    contexts: BTreeMap<u32, Context>,
    generation: u64,
    /// Parked REGISTER_ASYNC_EVENT messages: (id, buffer, bytes).
    async_events: Vec<(u32, u64, u32)>,
    trouble: Trouble,
    log: Option<File>,
    started: Instant,
}

impl State {
    fn say(&mut self, line: &str) {
        let at = self.started.elapsed().as_secs_f64();
        if let Some(log) = &mut self.log {
            let _ = writeln!(log, "[{at:9.4}] {line}");
        }
    }

    fn send(&mut self, channel: Channel, id: u32, opcode: u32, words: &[u32]) {
        let payload: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        if !channel.put(&mut self.bars, id, opcode, &payload) {
            self.say(&format!("channel {} is full, answer {opcode:#x} dropped", channel.0));
            return;
        }
        match self.vectors.get_mut(channel.0).and_then(Option::as_mut) {
            Some(event) => {
                let _ = event.write_all(&1_u64.to_ne_bytes());
            }
            None => self.say(&format!("vector {} has no listener", channel.0)),
        }
    }
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    guest: RwLock<GuestMemory>,
    firmware: Firmware,
    stats: Arc<Stats>,
    config: Config,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A command of a context's channel.
#[derive(Debug)]
struct Job {
    context: u32,
    generation: u64,
    message: Message,
}

/// A virtual NPU that serves one virtual machine.
#[derive(Debug, Clone)]
pub struct PciNpu {
    shared: Arc<Shared>,
}

impl PciNpu {
    /// What happened on it.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.shared.stats.update(|counts| counts.clone())
    }

    /// Teaches what an opaque instruction stream computes.
    pub fn teach(&self, stream_sha256: [u8; 32], contract: Contract) {
        self.shared.firmware.teach(stream_sha256, contract);
    }

    /// Why the last failed command failed.
    #[must_use]
    pub fn last_fault(&self) -> Option<String> {
        self.shared.firmware.last_fault()
    }
}

/// Listens at `socket` for one virtual machine and serves it on threads of its own. Register traffic worth reading
/// goes to `log`.
///
/// # Errors
/// Where the socket or the log cannot be made.
pub fn serve(socket: &Path, config: Config, log: &Path) -> io::Result<PciNpu> {
    let irqs = (0..5)
        .map(|index| {
            let count = if index == MSIX { config_space::VECTORS } else { 0 };
            // VFIO_IRQ_INFO_EVENTFD and VFIO_IRQ_INFO_NORESIZE.
            IrqInfo { index, flags: if count > 0 { 1 | 8 } else { 0 }, count }
        })
        .collect();
    let regions = REGIONS.iter().enumerate().map(|(i, &size)| {
        let info = vfio_bindings::bindings::vfio::vfio_region_info {
            argsz: 32,
            index: i as u32,
            size: size as u64,
            // Readable and writable.
            flags: if size > 0 { 3 } else { 0 },
            ..Default::default()
        };
        ServerRegion { region_info: info, sparse_areas: Vec::new(), mmap_fd: None }
    });
    let server = Server::new(socket, true, irqs, regions.collect()).map_err(|e| io::Error::other(e.to_string()))?;
    let stats = Arc::new(Stats::default());
    let faults = Arc::new(Mutex::new(config.faults.clone()));
    let shared = Arc::new(Shared {
        state: Mutex::new(State {
            bars: Bars::new(),
            vectors: (0..config_space::VECTORS).map(|_| None).collect(),
            contexts: BTreeMap::new(),
            generation: 0,
            async_events: Vec::new(),
            trouble: Trouble::default(),
            log: Some(File::create(log)?),
            started: Instant::now(),
        }),
        guest: RwLock::default(),
        firmware: Firmware::new(&config, Arc::clone(&stats), faults),
        stats,
        config,
    });
    let (jobs, queue) = channel();
    let worker = Arc::clone(&shared);
    std::thread::Builder::new().name("npu-commands".into()).spawn(move || run_jobs(&worker, &queue))?;
    let mut device = Device { config_space: ConfigSpace::new(shared.config.npu), shared: Arc::clone(&shared), jobs };
    std::thread::Builder::new().name("npu-registers".into()).spawn(move || {
        let ended = server.run(&mut device);
        device.shared.state().say(&format!("the machine is gone: {ended:?}"));
    })?;
    Ok(PciNpu { shared })
}

/// The side that answers register accesses.
struct Device {
    config_space: ConfigSpace,
    shared: Arc<Shared>,
    jobs: Sender<Job>,
}

impl Device {
    /// The security processor starts the firmware: empty channels, and the alive word.
    fn psp(&self, state: &mut State) {
        let command = state.bars.get(4, PSP_COMMAND);
        state.say(&format!("PSP command {command}"));
        if command == PSP_START {
            self.lose_contexts(state);
            let [xh, xt, xb, xs, ih, it, ib, is] = Channel(0).rings();
            let (major, minor) = self.shared.config.protocol;
            let words = [xt, xh, xb, xs, it, ih, ib, is, ALIVE_MAGIC, 0, major, minor, 0, 0, 0, 0];
            for (i, word) in words.into_iter().enumerate() {
                state.bars.set(2, ALIVE_BLOCK + 4 * i, word);
            }
            if state.trouble.starts(&self.shared.config.faults) {
                state.bars.set(2, ALIVE, mailbox::SRAM_BASE + ALIVE_BLOCK as u32);
            } else {
                state.say("the firmware does not start, as it was told");
            }
        }
        state.bars.set(4, PSP_COMMAND, PSP_READY);
        state.bars.set(0, PSP_ANSWER, 0);
    }

    fn lose_contexts(&self, state: &mut State) {
        for id in std::mem::take(&mut state.contexts).into_keys() {
            self.shared.firmware.destroy_context(id);
        }
        state.async_events.clear();
        for c in 0..mailbox::CHANNELS {
            Channel(c).reset(&mut state.bars);
        }
    }

    fn doorbell(&self, state: &mut State, channel: Channel) {
        while let Some(message) = channel.take(&mut state.bars) {
            let Message { id, opcode, .. } = message;
            state.say(&format!("channel {} opcode {opcode:#x} id {id:#x} {} bytes", channel.0, message.payload.len()));
            let commands = self.shared.stats.update(|counts| counts.commands);
            if state.trouble.is_silent(&self.shared.config.faults, commands) {
                state.say("not answered, as it was told");
                continue;
            }
            if channel.0 == 0 {
                state.trouble.told(opcode);
                let guest = self.shared.guest.read().unwrap_or_else(PoisonError::into_inner);
                let answer = messages::answer(&message, state, &guest, &self.shared.firmware, &self.shared.config);
                if let Some(words) = answer {
                    state.send(channel, id, opcode, &words);
                }
            } else if let Some((&context, of)) = state.contexts.iter().find(|(_, c)| c.channel == channel) {
                let _ = self.jobs.send(Job { context, generation: of.generation, message });
            }
        }
    }
}

/// Runs the commands of all contexts, one after the other: they share one array.
fn run_jobs(shared: &Shared, queue: &Receiver<Job>) {
    // Contexts whose array waits for ever: whatever is sent behind that waits too, until the context is made again.
    let mut stuck = HashSet::new();
    // The last error of the array that the driver knows of.
    let mut told = None;
    while let Ok(Job { context, generation, message }) = queue.recv() {
        let current =
            |state: &State| state.contexts.get(&context).filter(|c| c.generation == generation).map(|c| c.channel);
        let before = shared.stats.update(|counts| counts.commands);
        let heaps = {
            let mut state = shared.state();
            if current(&state).is_none() || stuck.contains(&(context, generation)) {
                continue;
            }
            if state.trouble.is_silent(&shared.config.faults, before) {
                state.say("a command not run, as it was told");
                continue;
            }
            state.contexts.get(&context).map(|c| c.heaps.clone()).unwrap_or_default()
        };
        let begun = Instant::now();
        let answer = {
            // Held while the command runs: memory that goes away waits for the DMA that uses it.
            let guest = shared.guest.read().unwrap_or_else(PoisonError::into_inner);
            command(&shared.firmware, context, &message, &ContextView { guest: &guest, heaps: &heaps })
        };
        shared.stats.update(|counts| counts.worked_ns += begun.elapsed().as_nanos() as u64);
        let mut state = shared.state();
        let raised = shared.firmware.array_error();
        if let Some(error) = raised.filter(|_| raised != told) {
            told = raised;
            tell_error(shared, &mut state, &error);
        }
        match (answer, current(&state)) {
            (Some(words), Some(channel)) => state.send(channel, message.id, message.opcode, &words),
            (Some(_), None) => state.say(&format!("context {context} is gone, its answer with it")),
            (None, _) => {
                stuck.insert((context, generation));
                state.say(&format!("context {context} does not answer id {:#x}", message.id));
            }
        }
    }
}

/// Answers the oldest parked REGISTER_ASYNC_EVENT with an error of the array.
fn tell_error(shared: &Shared, state: &mut State, error: &ArrayError) {
    if state.async_events.is_empty() {
        state.say("an error of the array is not told: the driver has parked no buffer for it");
        return;
    }
    let (id, buffer, _) = state.async_events.remove(0);
    let guest = shared.guest.read().unwrap_or_else(PoisonError::into_inner);
    let written = trouble::write_error(&guest, buffer, error);
    state.say(&format!("error of the array; its buffer at {buffer:#x} was written: {written}"));
    // Status, and the type: an error of the array.
    state.send(Channel(0), id, opcode::REGISTER_ASYNC_EVENT, &[status::SUCCESS, 0]);
}

/// Runs one message of a context's channel; `None` where it never answers.
fn command(firmware: &Firmware, context: u32, message: &Message, memory: &ContextView<'_>) -> Option<Vec<u32>> {
    let f = Fields(&message.payload);
    let chain = |kind| {
        let (buffer, bytes, count) = match kind {
            ChainKind::Npu => (f.long(8), f.word(16), f.word(20)),
            ChainKind::Cf | ChainKind::Dpu => (f.long(0), f.word(8), f.word(12)),
        };
        let submitted = firmware.timeline().map_or(0, Timeline::now);
        match firmware.run_chain(context, Chain { kind, buffer, bytes, count, submitted }, memory) {
            Reply::Answer(s) => Some(vec![s.status, s.fail_index, s.fail_status]),
            Reply::Silence { .. } => None,
        }
    };
    match message.opcode {
        opcode::CHAIN_EXEC_BUFFER_CF => chain(ChainKind::Cf),
        opcode::CHAIN_EXEC_DPU => chain(ChainKind::Dpu),
        opcode::CHAIN_EXEC_NPU => chain(ChainKind::Npu),
        opcode::CONFIG_CU => {
            let count = (f.word(0) as usize).min(32);
            let words: Vec<u32> = (0..count).map(|i| f.word(4 + 4 * i)).collect();
            Some(vec![firmware.config_cu(context, &words, memory)])
        }
        opcode::SYNC_BO | opcode::CONFIG_DEBUG_BO => Some(vec![status::SUCCESS]),
        // Only sent with the module parameter force_cmdlist=0.
        opcode::EXECUTE_BUFFER_CF | opcode::EXEC_DPU => Some(vec![status::APP_ERROR]),
        _ => Some(vec![status::RTOS_INVALID_PARAM]),
    }
}

impl ServerBackend for Device {
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> io::Result<()> {
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        if region == CONFIG_REGION {
            self.config_space.read(offset, data);
            return Ok(());
        }
        let state = self.shared.state();
        match state.bars.bytes(region as usize, offset, data.len()) {
            Some(bytes) => data.copy_from_slice(bytes),
            None => data.fill(0xff),
        }
        let fixed = match (region, offset) {
            (0, WAIT_MODE) => 1_u32,
            (4, PSP_COMMAND) => state.bars.get(4, PSP_COMMAND) | PSP_READY,
            _ => return Ok(()),
        };
        let n = data.len().min(4);
        data[..n].copy_from_slice(&fixed.to_le_bytes()[..n]);
        Ok(())
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> io::Result<()> {
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        if region == CONFIG_REGION {
            self.config_space.write(offset, data);
            return Ok(());
        }
        let shared = Arc::clone(&self.shared);
        let mut state = shared.state();
        let Some(to) = state.bars.bytes_mut(region as usize, offset, data.len()) else { return Ok(()) };
        to.copy_from_slice(data);
        let value = Fields(data).word(0);
        match (region, offset) {
            (4, PSP_DOORBELL) if value == 1 => self.psp(&mut state),
            (5, SMU_COMMAND) => {
                state.say(&format!("SMU command {value}"));
                if value == SMU_POWER_OFF {
                    state.trouble.power_off();
                    self.lose_contexts(&mut state);
                }
                state.bars.set(5, SMU_ANSWER, SMU_OK);
            }
            (0, at) => {
                if let Some(channel) = Channel::rung_at(at) {
                    self.doorbell(&mut state, channel);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn dma_map(&mut self, _: DmaMapFlags, offset: u64, address: u64, size: u64, fd: Option<File>) -> io::Result<()> {
        // A mapping without a file cannot be reached from here; only memory that is shared by file descriptor is used.
        let Some(file) = fd else { return Ok(()) };
        self.shared.guest.read().unwrap_or_else(PoisonError::into_inner).map(&file, offset, address, size)
    }

    fn dma_unmap(&mut self, _: DmaUnmapFlags, address: u64, size: u64) -> io::Result<()> {
        self.shared.guest.write().unwrap_or_else(PoisonError::into_inner).unmap(address, size);
        Ok(())
    }

    fn reset(&mut self) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.state();
        state.say("reset");
        self.lose_contexts(&mut state);
        Ok(())
    }

    fn set_irqs(&mut self, index: u32, _: u32, start: u32, count: u32, fds: Vec<File>) -> io::Result<()> {
        if index != MSIX {
            return Ok(());
        }
        let mut state = self.shared.state();
        if count == 0 {
            state.vectors.iter_mut().for_each(|v| *v = None);
        }
        let mut fds = fds.into_iter();
        for i in start..start.saturating_add(count).min(config_space::VECTORS) {
            if let Some(vector) = state.vectors.get_mut(i as usize) {
                *vector = fds.next();
            }
        }
        Ok(())
    }
}
