//! A hardware context as a queue of bound commands.
//!
//! ```text
//! submit: one ioctl (EXEC_CMD)
//! wait:   look at the state word in the command's BO for a while, then one ioctl (SYNCOBJ_TIMELINE_WAIT)
//! ```
//!
//! Neither allocates. The driver writes COMPLETED as the last thing that it does to a packet, so that state ends the wait
//! without asking anybody. A failure's state is followed by its data, and a packet that was refused shows no state at all:
//! for both the fence is asked. Commands of a context end in the order in which they were submitted, so one wait answers
//! for all that were before.
//!
//! A pipeline keeps one [`Queue`] a context and buffers of its own for each stage: while a command runs, the host works
//! on other buffers than those that the command writes.

use crate::bound::{Bound, Flight};
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::hwctx::{Held, HwCtx};
use crate::ioctl;
use crate::packet::{CommandOutcome, State};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Commands that the driver takes for one context before EXEC_CMD blocks.
const MAX_DEPTH: usize = 4;
/// Looks at the state word between two looks at the clock.
const LOOKS: u32 = 64;
/// Less than the shortest command takes costs nothing; more than it costs to be woken gains nothing.
const SPIN: Duration = Duration::from_micros(50);

/// What a queue has asked of the driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounters {
    /// EXEC_CMD ioctls, one a command.
    pub submits: u64,
    /// SYNCOBJ_TIMELINE_WAIT ioctls.
    pub waits: u64,
    /// Waits that a look at the state word ended.
    pub spun: u64,
    /// Looks at state words.
    pub spins: u64,
}

/// A submitted command of one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a ticket is to be waited for"]
pub struct Ticket {
    queue: u64,
    number: u64,
}

/// A command that did not complete.
#[derive(Debug)]
pub struct Failure {
    /// Which. It may be submitted again.
    pub bound: Arc<Bound>,
    /// How it ended.
    pub outcome: CommandOutcome,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    seq: u64,
    flight: Flight,
}

/// The commands of one context that are in flight, oldest first.
///
/// It owns a share of each, and with it of all buffers: they live until the command has been seen to end. Dropped before
/// that, it leaves them to the context.
#[derive(Debug)]
pub struct Queue {
    id: u64,
    in_flight: VecDeque<Entry>,
    submitted: u64,
    depth: usize,
    spin: Duration,
    counters: QueueCounters,
    context: Arc<HwCtx>,
}

impl Queue {
    /// A queue on a context, with at most `depth` commands (1 to 4, what the driver takes without blocking) in flight.
    #[must_use]
    pub fn new(context: Arc<HwCtx>, depth: usize) -> Queue {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Queue {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            in_flight: VecDeque::with_capacity(MAX_DEPTH),
            submitted: 0,
            depth: depth.clamp(1, MAX_DEPTH),
            spin: SPIN,
            counters: QueueCounters::default(),
            context,
        }
    }

    /// How long a wait looks at the state word before it asks the driver; 50 us at first. Zero: it does not
    /// look at all, and every wait is an ioctl.
    pub fn set_spin(&mut self, spin: Duration) {
        self.spin = spin;
    }

    /// The context.
    #[must_use]
    pub fn context(&self) -> &Arc<HwCtx> {
        &self.context
    }

    /// What has been asked of the driver.
    #[must_use]
    pub fn counters(&self) -> QueueCounters {
        self.counters
    }

    /// Commands in flight.
    #[must_use]
    pub fn len(&self) -> usize {
        self.in_flight.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// The oldest command in flight.
    #[must_use]
    pub fn oldest(&self) -> Option<&Arc<Bound>> {
        self.in_flight.front().map(|entry| entry.flight.bound())
    }

    /// The ticket of the oldest command in flight.
    #[must_use]
    pub fn oldest_ticket(&self) -> Option<Ticket> {
        self.in_flight.front().map(|entry| self.ticket(entry.number))
    }

    /// The ticket of the newest command in flight.
    #[must_use]
    pub fn newest_ticket(&self) -> Option<Ticket> {
        self.in_flight.back().map(|entry| self.ticket(entry.number))
    }

    /// The ticket of a command, if it is in flight here.
    #[must_use]
    pub fn ticket_of(&self, bound: &Arc<Bound>) -> Option<Ticket> {
        let entry = self.in_flight.iter().find(|entry| Arc::ptr_eq(entry.flight.bound(), bound))?;
        Some(self.ticket(entry.number))
    }

    /// Whether the ticket is one of this queue.
    #[must_use]
    pub fn issued(&self, ticket: Ticket) -> bool {
        ticket.queue == self.id
    }

    fn ticket(&self, number: u64) -> Ticket {
        Ticket { queue: self.id, number }
    }

    /// Submits a command: one ioctl, no allocation. After it and all before it have ended it may be submitted again.
    ///
    /// # Errors
    /// [`Error::QueueFull`]; [`Error::Busy`]: the command is in flight already; [`Error::InUse`]: the host is at one of
    /// its buffers; [`Error::Foreign`], [`Error::Ioctl`]. Nothing has been submitted then.
    pub fn submit(&mut self, bound: &Arc<Bound>) -> Result<Ticket> {
        if !Arc::ptr_eq(bound.device(), self.context.device()) {
            return Err(Error::Foreign { what: "the command" });
        }
        if self.in_flight.len() >= self.depth {
            return Err(Error::QueueFull { depth: self.depth });
        }
        let door = self.context.device().door()?;
        let flight = bound.begin()?;
        self.counters.submits += 1;
        // SAFETY: the packet is the one that `Bound::new` made of a stream and of views that the stream stays inside.
        // The flight owns all of them, and goes into a set that is emptied only of commands that are known to be done;
        // what is left goes to the context, which keeps it until it is destroyed. Meanwhile the buffers refuse the host.
        let seq = unsafe { ioctl::exec_cmd(door, self.context.handle(), bound.command(), bound.handles()) }?;
        flight.submitted(seq);
        let number = self.submitted;
        self.submitted += 1;
        self.in_flight.push_back(Entry { number, seq, flight });
        Ok(self.ticket(number))
    }

    /// Whether [`Queue::wait`] would return at once. Costs no ioctl while the command runs, nor after it has completed. A
    /// packet that the driver refused never shows here: only a wait tells.
    #[must_use]
    pub fn poll(&self, ticket: Ticket) -> bool {
        if ticket.queue != self.id {
            return false;
        }
        let Some(entry) = self.in_flight.iter().find(|entry| entry.number == ticket.number) else {
            return ticket.number < self.submitted;
        };
        self.context.is_done(entry.seq)
            || match entry.flight.bound().state() {
                Some(State::Completed) => true,
                Some(state) if state.is_final() => self.context.wait(entry.seq, Deadline::POLL).is_ok(),
                _ => false,
            }
    }

    /// Waits until the ticket's command, and so all before it, have ended. Returns the first of those that did not
    /// complete; each is told once.
    ///
    /// # Errors
    /// [`Error::Timeout`] (all are still in flight), [`Error::Foreign`], [`Error::Ioctl`].
    pub fn wait(&mut self, ticket: Ticket, deadline: Deadline) -> Result<Option<Failure>> {
        if ticket.queue != self.id {
            return Err(Error::Foreign { what: "the ticket" });
        }
        let Some(at) = self.in_flight.iter().rposition(|entry| entry.number <= ticket.number) else { return Ok(None) };
        let seq = self.in_flight[at].seq;
        if !self.context.is_done(seq) {
            if self.spin(at, deadline) {
                self.counters.spun += 1;
                self.context.set_done(seq);
            } else {
                self.counters.waits += 1;
                self.context.wait(seq, deadline)?;
            }
        }
        let mut first = None;
        for entry in self.in_flight.drain(..=at) {
            let outcome = entry.flight.outcome();
            if !outcome.is_completed() && first.is_none() {
                first = Some(Failure { bound: Arc::clone(entry.flight.bound()), outcome });
            }
        }
        Ok(first)
    }

    /// Looks at the state word of a command for a bounded time; true when it has completed.
    fn spin(&mut self, at: usize, deadline: Deadline) -> bool {
        if self.spin.is_zero() {
            return false;
        }
        let bound = self.in_flight[at].flight.bound();
        let mut started = None;
        loop {
            for _ in 0..LOOKS {
                self.counters.spins += 1;
                match bound.state() {
                    Some(State::Completed) => return true,
                    Some(state) if state.is_final() => return false,
                    _ => std::hint::spin_loop(),
                }
            }
            // The clock is read through the vDSO: no system call.
            let started = *started.get_or_insert_with(Instant::now);
            if started.elapsed() >= self.spin || deadline.has_passed() {
                return false;
            }
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        for Entry { seq, flight, .. } in self.in_flight.drain(..) {
            if !self.context.is_done(seq) {
                self.context.hold(seq, Held::Flight(flight));
            }
        }
    }
}
