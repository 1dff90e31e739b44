//! A model that computes nothing and takes the time that an NPU would take.
//!
//! A command's traffic and arithmetic follow from its instruction stream, so that its time can be told without doing
//! it: it begins `latency` after it was handed over or when the array is free, whichever is later, and holds the array
//! for the longer of its traffic at `bandwidth` and its arithmetic at `rate`. The array runs one command at a time,
//! whatever context it comes from. The latency of commands that are queued behind others is thus hidden, and that of a
//! command whose input is the result of the one before is not.
//!
//! Results are left as they were, except that the first time an address is written to it is given random numbers
//! about as large as real ones: the host's arithmetic behind it should meet ordinary values.
//!
//! Two clocks. The *real* one lets commands end when their time has come, for clients that do something else
//! meanwhile. The *virtual* one ends them at once, and its time is the device's alone: it moves on where a client waits,
//! as if all that the host does took no time.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// What the time of a timing model is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    /// Commands end when their time has come.
    #[default]
    Real,
    /// Commands end at once; their time is only counted.
    Virtual,
}

/// How fast a timing model is. The defaults are what users of a Ryzen AI 9 HX 370 measured: 63 to 66 us for a command
/// that does nothing, 47 to 57 GB/s of reads, 12 to 15 TFLOP/s of bf16 matrix products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// From the hand-over of a command to its begin, on an idle array.
    pub latency: Duration,
    /// Bytes a second that commands move, at most.
    pub bandwidth: u64,
    /// Operations a second, two for each multiplication with its addition.
    pub rate: u64,
    /// What it takes to go from one context's kernels to another's.
    pub switch: Duration,
    /// The clock.
    pub clock: Clock,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            latency: Duration::from_micros(65),
            bandwidth: 50_000_000_000,
            rate: 12_000_000_000_000,
            switch: Duration::ZERO,
            clock: Clock::Real,
        }
    }
}

impl Timing {
    /// How long a command holds the array.
    fn work(&self, cost: &Cost) -> i64 {
        let ns = |amount: u64, a_second: u64| {
            let ns = u128::from(amount) * 1_000_000_000 / u128::from(a_second.max(1));
            i64::try_from(ns).unwrap_or(i64::MAX)
        };
        ns(cost.bytes, self.bandwidth).max(ns(cost.operations, self.rate))
    }
}

/// What a command moves and computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cost {
    /// Bytes between memory and array.
    pub(crate) bytes: u64,
    /// Two for each multiplication with its addition.
    pub(crate) operations: u64,
    /// Of the bytes, those that are results.
    pub(crate) written: u64,
    /// Bytes of one result.
    pub(crate) element: usize,
}

/// How close to a moment a thread sleeps: the kernel's timers and the way back from an idle core take this long.
const SPIN_NS: i64 = 90_000;

/// Nanoseconds of `CLOCK_MONOTONIC`.
fn monotonic() -> i64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec)
}

/// This thread plays the device, which needs no processor: it takes one from the client's threads at once when its time
/// has come, as far as the system lets it.
pub(crate) fn take_precedence() {
    thread_local! {
        static DONE: Cell<bool> = const { Cell::new(false) };
    }
    if !DONE.replace(true) {
        // Without it sleeps are longer by 50 us.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        // Without it a client that keeps all cores busy holds its own NPU up by a scheduler's slice or two a command.
        let _ = rustix::process::setpriority_process(None, -20);
    }
}

/// When the array is free, and what is known of streams.
#[derive(Debug)]
struct State {
    /// When the last command that was scheduled ends.
    free: i64,
    /// Costs by the hash of a stream.
    costs: HashMap<u64, Cost>,
    /// Result addresses that have been written to.
    filled: HashSet<u64>,
}

/// What was scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scheduled {
    /// When the command ends.
    pub(crate) due: i64,
    /// How long it holds the array.
    pub(crate) work: i64,
    /// How long it keeps a client waiting that has nothing else to wait for: from the later of its hand-over and the
    /// end of the command before.
    pub(crate) exposed: i64,
}

/// The array's time.
#[derive(Debug)]
pub(crate) struct Timeline {
    timing: Timing,
    hasher: RandomState,
    state: Mutex<State>,
    /// Where the virtual clock stands.
    virtual_now: AtomicI64,
    /// When the command that holds the array ends.
    due: AtomicI64,
}

impl Timeline {
    pub(crate) fn new(timing: Timing) -> Self {
        Self {
            timing,
            hasher: RandomState::new(),
            state: Mutex::new(State { free: 0, costs: HashMap::new(), filled: HashSet::new() }),
            virtual_now: AtomicI64::new(0),
            due: AtomicI64::new(0),
        }
    }

    /// Now.
    pub(crate) fn now(&self) -> i64 {
        match self.timing.clock {
            Clock::Real => monotonic(),
            Clock::Virtual => self.virtual_now.load(Ordering::Relaxed),
        }
    }

    /// Whether commands take their time.
    pub(crate) fn is_real(&self) -> bool {
        self.timing.clock == Clock::Real
    }

    /// When the command that holds the array ends.
    pub(crate) fn due(&self) -> i64 {
        self.due.load(Ordering::Acquire)
    }

    /// Somebody has waited for a command that ended at `due`.
    pub(crate) fn waited(&self, due: i64) {
        self.virtual_now.fetch_max(due, Ordering::Relaxed);
    }

    /// A stream's cost, worked out by `find` the first time.
    pub(crate) fn cost<E>(&self, stream: &[u8], find: impl FnOnce() -> Result<Cost, E>) -> Result<Cost, E> {
        let key = self.hasher.hash_one(stream);
        if let Some(cost) = self.lock().costs.get(&key) {
            return Ok(*cost);
        }
        let cost = find()?;
        self.lock().costs.insert(key, cost);
        Ok(cost)
    }

    /// Whether this is the first command that writes to `address`.
    pub(crate) fn first_to(&self, address: u64) -> bool {
        self.lock().filled.insert(address)
    }

    /// Puts a command that was handed over at `submitted` behind all others.
    pub(crate) fn schedule(&self, submitted: i64, cost: &Cost, switched: bool) -> Scheduled {
        let ns = |time: Duration| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
        let mut state = self.lock();
        let switch = if switched { ns(self.timing.switch) } else { 0 };
        let work = self.timing.work(cost).saturating_add(switch);
        let begin = submitted.saturating_add(ns(self.timing.latency)).max(state.free);
        let due = begin.saturating_add(work);
        let exposed = due - submitted.max(state.free);
        state.free = due;
        self.due.store(due, Ordering::Release);
        Scheduled { due, work, exposed }
    }

    /// Waits for the end of a command: sleeps while there is time, then spins.
    pub(crate) fn wait(&self, due: i64) {
        if !self.is_real() {
            return;
        }
        take_precedence();
        loop {
            let left = due - monotonic();
            if left <= 0 {
                return;
            }
            match u64::try_from(left - SPIN_NS) {
                Ok(sleep) if sleep > 0 => std::thread::sleep(Duration::from_nanos(sleep)),
                _ => std::hint::spin_loop(),
            }
        }
    }

    /// For how long somebody who waits for a command may sleep, before it is worth to spin.
    pub(crate) fn nap(&self) -> Option<Duration> {
        let left = self.due() - monotonic();
        match u64::try_from(left - SPIN_NS) {
            Ok(sleep) if sleep > 0 => Some(Duration::from_nanos(sleep)),
            // Long over: nothing is known of what is being waited for.
            _ if left < -SPIN_NS => Some(Duration::from_micros(30)),
            _ => None,
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Different numbers among the [`ordinary_values`]; a prime, so that no two rows of a buffer are the same for long.
const ORDINARY: usize = 131_071;

/// Numbers that look like activations, as they would lie in a buffer: about N(0, 1), always the same ones. They repeat
/// themselves: making each one anew would take longer than the commands do whose results they stand for.
pub(crate) fn ordinary_values(bytes: usize, element: usize) -> Vec<u8> {
    static VALUES: OnceLock<Vec<[u8; 4]>> = OnceLock::new();
    let values = VALUES.get_or_init(|| {
        let mut seed = 0x9E37_79B9_7F4A_7C15_u64;
        let mut uniform = || {
            // xorshift64*
            seed ^= seed >> 12;
            seed ^= seed << 25;
            seed ^= seed >> 27;
            (seed.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 40) as f32 / (1u32 << 24) as f32
        };
        // Variance 4 / 12 of four, times 3.
        let mut value = || ((0..4).map(|_| uniform()).sum::<f32>() - 2.0) * 3f32.sqrt();
        (0..ORDINARY).map(|_| value().to_le_bytes()).collect()
    });
    let skip = 4 - element.clamp(1, 4);
    let period: Vec<u8> = values.iter().flat_map(|value| &value[skip..]).copied().collect();
    let mut out = period.repeat(bytes.div_ceil(period.len()).max(1));
    out.truncate(bytes);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(bytes: u64, operations: u64) -> Cost {
        Cost { bytes, operations, written: 0, element: 2 }
    }

    #[test]
    fn queued_commands_hide_their_latency_and_serial_ones_do_not() {
        let timing = Timing { clock: Clock::Virtual, ..Timing::default() };
        // 5 MB at 50 GB/s are 100 us.
        let one = cost(5_000_000, 1);
        let queued = Timeline::new(timing);
        let ends: Vec<i64> = (0..3).map(|_| queued.schedule(0, &one, false).due).collect();
        assert_eq!(ends, [165_000, 265_000, 365_000]);
        let serial = Timeline::new(timing);
        for i in 1..=3 {
            let done = serial.schedule(serial.now(), &one, false);
            assert_eq!((done.due, done.exposed), (i * 165_000, 165_000));
            serial.waited(done.due);
        }
    }

    #[test]
    fn the_slower_of_traffic_and_arithmetic_counts() {
        let timing = Timing { switch: Duration::from_micros(7), ..Timing::default() };
        let timeline = Timeline::new(timing);
        assert_eq!(timeline.schedule(0, &cost(50_000, 24_000_000), false).work, 2_000);
        assert_eq!(timeline.schedule(0, &cost(150_000, 24_000_000), false).work, 3_000);
        assert_eq!(timeline.schedule(0, &cost(150_000, 24_000_000), true).work, 10_000);
    }

    #[test]
    fn ordinary_values_are_about_normal() {
        for element in [2, 4] {
            let bytes = ordinary_values(40_000, element);
            assert_eq!(bytes.len(), 40_000);
            let values: Vec<f32> = bytes
                .chunks_exact(element)
                .map(|b| {
                    let mut word = [0; 4];
                    word[4 - element..].copy_from_slice(b);
                    f32::from_le_bytes(word)
                })
                .collect();
            let n = values.len() as f32;
            let mean = values.iter().sum::<f32>() / n;
            let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f32>() / n;
            assert!(mean.abs() < 0.05 && (variance - 1.0).abs() < 0.1, "{mean} {variance}");
        }
    }
}
