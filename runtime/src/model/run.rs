//! What every step needs besides the model: the device, the threads, and a record of where time goes.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use host_ops::pool::Pool;

use super::probe::Probe;
use super::profile::{Profile, Projection, Stage};
use super::trace::Trace;
use crate::npu::{CommandId, Kernels, NpuError, Ticket};

/// What every step needs besides the model.
pub(super) struct Run<'a> {
    pub(super) kernels: &'a mut Kernels,
    pub(super) pool: &'a Pool,
    pub(super) recorder: &'a mut Recorder,
    pub(super) probe: &'a mut Probe,
}

/// A command that has been handed over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) ticket: Ticket,
    pub(super) projection: Projection,
    pub(super) layer: usize,
    at: Instant,
}

/// Where time goes.
#[derive(Debug)]
pub(super) struct Recorder {
    pub(super) profile: Profile,
    pub(super) trace: Option<Trace>,
    /// The longest wait that looks at the state word instead of asking the driver.
    spin: Duration,
    /// How long one token's commands of a projection were last waited for.
    expected: [Duration; Projection::ALL.len()],
    /// Commands that have not been seen to end, in the order of submission, and since when there are any.
    in_flight: VecDeque<Sent>,
    busy_since: Instant,
}

impl Recorder {
    pub(super) fn new(spin: Duration) -> Recorder {
        Recorder {
            profile: Profile::default(),
            trace: None,
            spin,
            expected: [Duration::ZERO; Projection::ALL.len()],
            in_flight: VecDeque::with_capacity(16),
            busy_since: Instant::now(),
        }
    }

    /// Forgets commands whose end nobody will see.
    pub(super) fn clear(&mut self) {
        self.in_flight.clear();
    }

    fn sent(&mut self, sent: Sent) {
        if self.in_flight.is_empty() {
            self.busy_since = sent.at;
        }
        self.profile.asked(sent.projection).commands += 1;
        self.in_flight.push_back(sent);
    }

    /// A command has ended, and with it those before it in its queue.
    fn ended(&mut self, last: Ticket, now: Instant) {
        let Some(at) = self.in_flight.iter().position(|sent| sent.ticket == last) else { return };
        for sent in self.in_flight.drain(..=at) {
            if let Some(trace) = &mut self.trace {
                trace.command(sent.projection, sent.layer, sent.at, now);
            }
        }
        if self.in_flight.is_empty() {
            self.profile.flown(now - self.busy_since);
        }
    }
}

impl Run<'_> {
    /// Books the time since `started` and gives the present time.
    pub(super) fn lap(&mut self, stage: Stage, layer: usize, started: Instant) -> Instant {
        let now = Instant::now();
        self.recorder.profile.add(stage, now - started);
        if let Some(trace) = &mut self.recorder.trace {
            trace.stage(stage, layer, started, now);
        }
        now
    }

    /// Hands a command over.
    pub(super) fn submit(
        &mut self,
        command: CommandId,
        projection: Projection,
        layer: usize,
    ) -> Result<Sent, NpuError> {
        let at = Instant::now();
        let ticket = self.kernels.submit(command).inspect_err(|_| self.recorder.clear())?;
        let sent = Sent { ticket, projection, layer, at };
        self.recorder.sent(sent);
        self.lap(Stage::Submit, layer, at);
        Ok(sent)
    }

    /// Whether [`Run::wait`] would return at once.
    pub(super) fn is_done(&self, sent: &Sent) -> bool {
        self.kernels.poll(sent.ticket)
    }

    /// Waits for a command and those before it in its queue: looks at the state word for as long as the model was told to,
    /// whatever the waits of tokens before were like.
    pub(super) fn wait(&mut self, sent: &Sent) -> Result<(), NpuError> {
        self.wait_with(sent, self.recorder.spin)
    }

    fn wait_with(&mut self, sent: &Sent, spin: Duration) -> Result<(), NpuError> {
        self.kernels.set_spin(spin);
        let started = Instant::now();
        let result = self.kernels.wait(sent.ticket);
        let now = self.lap(Stage::Wait, sent.layer, started);
        self.recorder.profile.asked(sent.projection).waited += now - started;
        match result {
            Ok(()) => self.recorder.ended(sent.ticket, now),
            // Nothing is in flight any more, or nobody will see its end.
            Err(_) => self.recorder.clear(),
        }
        result
    }

    /// How long one token's command of a projection was last waited for.
    pub(super) fn expects(&self, projection: Projection) -> Duration {
        self.recorder.expected[projection as usize]
    }

    /// Waits for the commands of one token, which take as long as the last time: a short wait looks at the state word
    /// until it is over, a long one gives the processor away at once.
    pub(super) fn wait_as_ever(&mut self, sent: &Sent) -> Result<(), NpuError> {
        let index = sent.projection as usize;
        let expected = self.recorder.expected[index];
        let short = expected <= self.recorder.spin;
        let started = Instant::now();
        let result = self.wait_with(sent, if short { self.recorder.spin } else { Duration::ZERO });
        let now = started.elapsed();
        // Half of what is new: one slow wait decides nothing, a change is followed.
        self.recorder.expected[index] = (expected + now) / 2;
        result
    }
}
