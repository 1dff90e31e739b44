//! A hardware context: its queue, the thread that feeds the firmware, hangs and resets (`aie2_ctx.c`).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use amdxdna_ioctl::Errno;
use amdxdna_ioctl::abi::{HEAP_BASE, MAX_COMMANDS, QosInfo};

use super::bo::Bo;
use super::fence::{Fence, Fences, Syncobj, now};
use super::handles::Handles;
use super::packet::{self, Converted, state};
use super::space::{DevRange, Held, Space};
use super::{Device, locked};
use crate::config::{Beside, DriverVersion};
use crate::firmware::{Chain, ChainStatus, Feature, Reply, status};
use crate::timing::Timeline;

/// The health record that a timeout leaves behind the packet's header: version 1, of an AIE2, operation not known.
pub(super) const HEALTH_WORDS: [u32; 8] = [1, 0, u32::MAX, 0, 0, 0, 0, 0];

/// By how much commands begin later on a device that does not bear them beside each other.
const LATER: Duration = Duration::from_millis(2);

/// Ends of commands that are kept: more than can be in flight.
const DUES: usize = 4 * MAX_COMMANDS;

/// A submitted command. It holds its buffers until it is over, whatever becomes of their handles.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) seq: u64,
    pub(super) command: Arc<Bo>,
    pub(super) args: Vec<Arc<Bo>>,
    fence: Arc<Fence>,
    /// When it was handed over, in timing mode.
    submitted: i64,
    /// Others of this context were in flight then.
    beside: bool,
}

/// A unit as configured.
#[derive(Clone, Debug)]
pub(super) struct Cu {
    pub(super) handle: u32,
    pub(super) function: u8,
    /// Kept by newer drivers alone.
    pub(super) bo: Option<Arc<Bo>>,
    pub(super) addr: u64,
}

#[derive(Debug, Default)]
struct Queue {
    jobs: VecDeque<Job>,
    outstanding: usize,
    next_seq: u64,
    /// The firmware's context; `None` after a restart that failed.
    channel: Option<u32>,
    cus: Option<Vec<Cu>>,
    /// A command hangs.
    hung: bool,
    /// The context goes: what is in flight is called back without an answer.
    abort: bool,
    /// The worker ends when the queue is empty.
    closed: bool,
    /// When the last commands ended, in timing mode, by their numbers.
    dues: VecDeque<(u64, i64)>,
    submissions: u64,
    completions: u64,
    errors: u64,
    suspensions: u64,
}

/// What a context is made with.
pub(super) struct Parts {
    pub(super) id: u32,
    pub(super) pid: i64,
    pub(super) device: Arc<Device>,
    pub(super) space: Arc<Space>,
    pub(super) buffers: Arc<Mutex<Handles<Arc<Bo>>>>,
    pub(super) syncobj: Arc<Syncobj>,
    pub(super) command_buffers: Vec<DevRange>,
    pub(super) channel: u32,
    pub(super) qos: QosInfo,
    pub(super) announced: usize,
}

/// A hardware context.
#[derive(Debug)]
pub(super) struct Hwctx {
    pub(super) id: u32,
    pub(super) pid: i64,
    device: Arc<Device>,
    pub(super) space: Arc<Space>,
    buffers: Arc<Mutex<Handles<Arc<Bo>>>>,
    syncobj: Arc<Syncobj>,
    /// Four, used in turn; hidden in the client's heap.
    command_buffers: Mutex<Vec<DevRange>>,
    pub(super) qos: QosInfo,
    /// Heap pieces that the firmware knows of.
    announced: AtomicUsize,
    queue: Mutex<Queue>,
    changed: Condvar,
    worker: Mutex<Option<JoinHandle<()>>>,
}

/// Numbers for GET_INFO and GET_ARRAY.
pub(super) struct ContextStats {
    pub(super) channel: Option<u32>,
    pub(super) submissions: u64,
    pub(super) completions: u64,
    pub(super) errors: u64,
    pub(super) suspensions: u64,
    pub(super) active: bool,
}

impl Hwctx {
    /// Starts a context.
    ///
    /// # Errors
    /// `ENOMEM` where there is no thread for it.
    pub(super) fn start(parts: Parts) -> Result<Arc<Self>, Errno> {
        let Parts { id, pid, device, space, buffers, syncobj, command_buffers, channel, qos, announced } = parts;
        let context = Arc::new(Self {
            id,
            pid,
            device,
            space,
            buffers,
            syncobj,
            command_buffers: Mutex::new(command_buffers),
            qos,
            announced: AtomicUsize::new(announced),
            queue: Mutex::new(Queue { channel: Some(channel), ..Queue::default() }),
            changed: Condvar::new(),
            worker: Mutex::default(),
        });
        let worker = Arc::clone(&context);
        let thread = std::thread::Builder::new().name(format!("npu-hwctx-{id}")).spawn(move || worker.work());
        *locked(&context.worker) = Some(thread.map_err(|_| Errno::NOMEM)?);
        Ok(context)
    }

    /// Waits until fewer than four commands are outstanding, and takes a place.
    pub(super) fn take_place(&self) -> Result<(), Errno> {
        let mut queue = locked(&self.queue);
        if queue.outstanding >= MAX_COMMANDS && self.device.interrupted() {
            return Err(Errno::INTR);
        }
        while queue.outstanding >= MAX_COMMANDS {
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        queue.outstanding += 1;
        Ok(())
    }

    /// Gives a place back unused.
    pub(super) fn leave_place(&self) {
        locked(&self.queue).outstanding -= 1;
        self.changed.notify_all();
    }

    /// Queues a command, in the place that was taken.
    pub(super) fn submit(&self, command: Arc<Bo>, args: Vec<Arc<Bo>>) -> Result<u64, Errno> {
        let fence = Arc::new(Fence::default());
        let submitted = self.device.firmware.timeline().map_or(0, Timeline::now);
        let mut queue = locked(&self.queue);
        if queue.closed {
            drop(queue);
            self.leave_place();
            return Err(Errno::INVAL);
        }
        let seq = queue.next_seq;
        queue.next_seq += 1;
        queue.submissions += 1;
        command.add_fence(&fence);
        for bo in &args {
            bo.add_fence(&fence);
        }
        self.device.hub.change(|| self.syncobj.add_point(seq, vec![Arc::clone(&fence)]));
        let beside = queue.outstanding > 1;
        queue.jobs.push_back(Job { seq, command, args, fence, submitted, beside });
        drop(queue);
        self.changed.notify_all();
        Ok(seq)
    }

    /// A command of the driver's own, over at once. It takes a number like any other.
    pub(super) fn internal_command(&self) {
        let mut queue = locked(&self.queue);
        let seq = queue.next_seq;
        queue.next_seq += 1;
        self.device.hub.change(|| self.syncobj.add_point(seq, Fences::new()));
    }

    /// Tells the firmware of heap pieces that it does not know.
    pub(super) fn announce_heap(&self) -> Result<(), Errno> {
        let pieces = self.space.announcements();
        let known = self.announced.load(Ordering::Relaxed);
        for &addr in pieces.iter().skip(known) {
            if !Feature::AddHostBuffer.of(self.device.config.protocol) {
                return Err(Errno::OPNOTSUPP);
            }
            let channel = locked(&self.queue).channel;
            if let Some(channel) = channel
                && self.device.firmware.add_heap_piece(channel, addr) != status::SUCCESS
            {
                return Err(Errno::INVAL);
            }
            self.announced.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// CONFIG_CU, once.
    pub(super) fn configure(&self, cus: Vec<Cu>) -> Result<(), Errno> {
        let mut queue = locked(&self.queue);
        if queue.cus.is_some() {
            return Err(Errno::INVAL);
        }
        let channel = queue.channel.ok_or(Errno::NODEV)?;
        self.send_cus(channel, &cus);
        queue.cus = Some(cus);
        Ok(())
    }

    fn send_cus(&self, channel: u32, cus: &[Cu]) {
        let word = |cu: &Cu| (cu.addr >> 15) as u32 & 0x1_ffff | u32::from(cu.function) << 17;
        let words: Vec<u32> = cus.iter().map(word).collect();
        // The driver drops the answer: a PDI that cannot be loaded shows in the first command.
        let _ = self.device.firmware.config_cu(channel, &words, &Held::new(&self.space));
    }

    /// When the command at a point of this context's timeline ended, where the model keeps time.
    pub(super) fn due(&self, syncobj: &Arc<Syncobj>, point: u64) -> Option<i64> {
        if !Arc::ptr_eq(syncobj, &self.syncobj) {
            return None;
        }
        let queue = locked(&self.queue);
        let found = queue.dues.iter().find(|(seq, _)| *seq == point);
        // Point 0 is the head of the timeline as well as the first command.
        if point == 0 { queue.dues.back().or(found) } else { found }.map(|(_, due)| *due)
    }

    /// Numbers.
    pub(super) fn stats(&self) -> ContextStats {
        let queue = locked(&self.queue);
        ContextStats {
            channel: queue.channel,
            submissions: queue.submissions,
            completions: queue.completions,
            errors: queue.errors,
            suspensions: queue.suspensions,
            active: queue.outstanding > 0,
        }
    }

    /// Ends the context; its handle is gone already.
    pub(super) fn destroy(&self) {
        let mut queue = locked(&self.queue);
        queue.closed = true;
        self.changed.notify_all();
        let mut hung_since: Option<Instant> = None;
        let patience = Duration::from_millis(self.device.config.destroy_wait_ms);
        while queue.outstanding > 0 {
            // Only a hang runs into the driver's patience: the time that the model's arithmetic takes does not count.
            let waited =
                if queue.hung { hung_since.get_or_insert_with(Instant::now).elapsed() } else { Duration::ZERO };
            if waited >= patience {
                queue.abort = true;
                self.changed.notify_all();
            }
            let left = patience.saturating_sub(waited).clamp(Duration::from_millis(1), Duration::from_millis(100));
            queue = self.changed.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let channel = queue.channel.take();
        drop(queue);
        if let Some(worker) = locked(&self.worker).take() {
            // A worker that panicked has nothing left to wait for.
            let _ = worker.join();
        }
        if let Some(channel) = channel {
            self.device.firmware.destroy_context(channel);
        }
        locked(&self.command_buffers).clear();
        locked(&self.queue).cus = None;
    }

    /// Loses the array's contents and the firmware context, as a suspend with resume does; idle contexts alone.
    pub(super) fn suspend(&self) {
        let mut queue = locked(&self.queue);
        while queue.outstanding > 0 && !queue.hung {
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        queue.suspensions += 1;
        drop(queue);
        self.restart();
    }

    /// Destroys the firmware context and makes a new one with the same heap and units.
    fn restart(&self) {
        let (old, cus) = {
            let mut queue = locked(&self.queue);
            (queue.channel.take(), queue.cus.clone())
        };
        if let Some(old) = old {
            self.device.firmware.destroy_context(old);
        }
        let Ok(channel) = self.device.firmware.create_context() else { return };
        let announced = self.announced.load(Ordering::Relaxed);
        for &addr in self.space.announcements().iter().take(announced) {
            self.device.firmware.add_heap_piece(channel, addr);
        }
        if let Some(cus) = cus {
            // Linux 7.3.4 kept handles alone, and looks them up again: a PDI buffer that was closed is missed now.
            let buffers = locked(&self.buffers);
            let found = cus.iter().all(|cu| {
                cu.bo.is_some() || buffers.get(cu.handle).is_some_and(|bo| bo.dev_address() == Some(cu.addr))
            });
            drop(buffers);
            if found {
                self.send_cus(channel, &cus);
            }
        }
        locked(&self.queue).channel = Some(channel);
    }

    fn work(&self) {
        loop {
            let mut queue = locked(&self.queue);
            let (job, abort) = loop {
                if let Some(job) = queue.jobs.pop_front() {
                    break (job, queue.abort);
                }
                if queue.closed {
                    return;
                }
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            };
            let channel = queue.channel;
            drop(queue);
            match channel {
                Some(channel) => self.run(job, channel, abort),
                None => self.finish(job, false),
            }
        }
    }

    fn convert(&self, job: &Job) -> Result<Converted, packet::Refused> {
        let memory = job.command.packet().ok_or(packet::Refused)?;
        packet::convert(memory, self.device.config.protocol, |handle| locked(&self.buffers).get(handle))
    }

    /// Takes one command to the firmware and back.
    fn run(&self, job: Job, channel: u32, abort: bool) {
        let (Ok(converted), Some(memory)) = (self.convert(&job), job.command.packet()) else {
            return self.finish(job, false);
        };
        packet::set_state(memory, state::NEW);
        if abort {
            self.abort(&job, &converted);
            return self.finish(job, true);
        }
        let fault = locked(&self.device.faults).beside;
        if let Some(fault) = fault {
            std::thread::sleep(LATER);
            if job.beside {
                return self.misbehave(job, &converted, fault);
            }
        }
        self.device.stats.update(|counts| counts.packets += 1);
        self.device.touch();
        let buffer = self.fill_command_buffer(job.seq, &converted.slots);
        let bytes = converted.slots.len() as u32;
        let chain = Chain { kind: converted.kind, buffer, bytes, count: converted.count, submitted: job.submitted };
        let reply = self.device.firmware.run_chain(channel, chain, &Held::new(&self.space));
        if let Some(timeline) = self.device.firmware.timeline() {
            let mut queue = locked(&self.queue);
            queue.dues.push_back((job.seq, timeline.due()));
            if queue.dues.len() > DUES {
                queue.dues.pop_front();
            }
        }
        self.device.touch();
        match reply {
            Reply::Answer(answer) => {
                let failed = self.answer(&job, &converted, answer);
                self.finish(job, failed);
            }
            Reply::Silence { index } => self.hang(job, &converted, index),
        }
    }

    /// What a command comes to that is not borne beside others.
    fn misbehave(&self, job: Job, converted: &Converted, fault: Beside) {
        match fault {
            Beside::Dropped => {
                Self::set_state(&job, state::COMPLETED);
                self.finish(job, false);
            }
            Beside::Failed => {
                let status = status::APP_ERROR;
                self.answer(&job, converted, ChainStatus { status, fail_index: 0, fail_status: status });
                self.finish(job, true);
            }
            Beside::Hung => self.hang(job, converted, 0),
        }
    }

    /// Puts slots where the firmware will read them.
    fn fill_command_buffer(&self, seq: u64, slots: &[u8]) -> u64 {
        let buffers = locked(&self.command_buffers);
        let Some(start) = buffers.get(seq as usize % buffers.len().max(1)).map(|range| range.start) else {
            return HEAP_BASE;
        };
        let mut at = 0;
        for piece in self.space.pieces(start, slots.len() as u64) {
            piece.memory.write_flushed(piece.offset, &slots[at..at + piece.len]);
            at += piece.len;
        }
        start
    }

    /// Where the driver leaves what went wrong: behind the header of the packet, or of a chain's first packet.
    fn remains<'a>(job: &'a Job, converted: &'a Converted) -> Option<&'a crate::front::Memory> {
        converted.first.as_ref().unwrap_or(&job.command).packet().map(AsRef::as_ref)
    }

    fn write_remains(job: &Job, converted: &Converted, error_index: Option<u32>, health: bool) {
        if let Some(remains) = Self::remains(job, converted) {
            remains.fill_from(4, 0xff);
            if health {
                let bytes: Vec<u8> = HEALTH_WORDS.iter().flat_map(|word| word.to_le_bytes()).collect();
                remains.write(4, &bytes);
            }
        }
        if let (Some(index), Some(_), Some(packet)) = (error_index, &converted.first, job.command.packet()) {
            let index = if index >= converted.count { 0 } else { index };
            packet.write(packet::ERROR_INDEX_AT, &index.to_le_bytes());
        }
    }

    fn set_state(job: &Job, state: u32) {
        if let Some(memory) = job.command.packet() {
            packet::set_state(memory, state);
        }
    }

    /// Writes what an answer means; true if it means failure.
    fn answer(&self, job: &Job, converted: &Converted, answer: ChainStatus) -> bool {
        if answer.status == status::SUCCESS {
            Self::set_state(job, state::COMPLETED);
            return false;
        }
        if answer.fail_status == status::SUCCESS {
            self.abort(job, converted);
            return true;
        }
        Self::write_remains(job, converted, Some(answer.fail_index), false);
        Self::set_state(job, state::ERROR);
        true
    }

    fn abort(&self, job: &Job, converted: &Converted) {
        Self::write_remains(job, converted, None, false);
        Self::set_state(job, state::ABORT);
    }

    /// Lets go of a command: buffers first, then its place, then the fence, so that whoever waited finds all of it
    /// done.
    fn finish(&self, job: Job, failed: bool) {
        let Job { command, args, fence, .. } = job;
        drop((command, args));
        let mut queue = locked(&self.queue);
        queue.outstanding -= 1;
        queue.completions += 1;
        queue.errors += u64::from(failed);
        drop(queue);
        self.device.hub.signal(&fence);
        self.changed.notify_all();
    }

    /// A command that never ends: until the driver's timer (TDR) or the end of the context.
    fn hang(&self, job: Job, converted: &Converted, index: u32) {
        let limit = self.device.config.tdr_ms;
        let limit_ns = i64::try_from(limit.saturating_mul(1_000_000)).unwrap_or(i64::MAX);
        let mut queue = locked(&self.queue);
        queue.hung = true;
        self.changed.notify_all();
        let mut expiry = now().saturating_add(limit_ns);
        let timed_out = loop {
            if queue.abort {
                break false;
            }
            let left = if limit == 0 { i64::MAX } else { expiry - now() };
            if left <= 0 {
                // Any command of any context that came or went lately hides the hang for another round.
                let idle = now() - self.device.last_activity.load(Ordering::Relaxed);
                if idle >= limit_ns {
                    break true;
                }
                expiry = now().saturating_add(limit_ns);
                continue;
            }
            let left = Duration::from_nanos(left.unsigned_abs()).min(Duration::from_secs(3600));
            queue = self.changed.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
        };
        if !timed_out {
            drop(queue);
            self.abort(&job, converted);
            return self.finish(job, true);
        }
        let others: Vec<Job> = queue.jobs.drain(..).collect();
        drop(queue);
        self.device.stats.update(|counts| counts.resets += 1);
        let health = Feature::AppHealth.of(self.device.config.protocol);
        Self::write_remains(&job, converted, Some(index), health);
        Self::set_state(&job, state::TIMEOUT);
        // The new context is there before anybody learns of the old one's end.
        let mut ended = vec![(job, true)];
        for job in others {
            let converted = self.convert(&job);
            if let Ok(converted) = &converted {
                self.abort(&job, converted);
            }
            ended.push((job, converted.is_ok()));
        }
        self.restart();
        locked(&self.queue).hung = false;
        for (job, failed) in ended {
            self.finish(job, failed);
        }
        self.device.touch();
    }

    /// Whether this driver keeps the buffers of PDIs.
    pub(super) fn keeps_pdis(&self) -> bool {
        self.device.config.driver == DriverVersion::Aug2026
    }
}
