//! One hardware context as a queue of commands.

use std::sync::Arc;
use std::time::Duration;

use amdxdna_ioctl::abi::QosInfo;
use amdxdna_ioctl::packet::CommandOutcome;
use amdxdna_ioctl::{Bo, BoKind, Bound, Cu, Deadline, HwCtx, HwCtxOptions, Queue, Ticket};

use super::error::NpuError;
use super::{Counters, Npu};
use crate::xclbin::Xclbin;

/// An xclbin, resident on the device or not, and what is in flight in it.
#[derive(Debug)]
pub(super) struct Context {
    key: String,
    xclbin: Xclbin,
    operations: u32,
    queue: Option<Queue>,
    last_use: u64,
    /// The driver has given up on the hardware context, or has reset it: it makes way for a new one.
    broken: bool,
}

/// How the queues of all contexts work.
#[derive(Clone, Copy, Debug)]
pub(super) struct Manner {
    /// Commands in flight in a context.
    pub(super) in_flight: usize,
    /// How long each has to finish.
    pub(super) deadline: Duration,
    /// How long a wait looks at the state word before it blocks.
    pub(super) spin: Duration,
}

impl Context {
    pub(super) fn new(key: &str, xclbin: Xclbin, operations: u32) -> Context {
        Context { key: key.to_owned(), xclbin, operations, queue: None, last_use: 0, broken: false }
    }

    pub(super) fn is_resident(&self) -> bool {
        self.queue.is_some()
    }

    pub(super) fn last_use(&self) -> u64 {
        self.last_use
    }

    pub(super) fn depth(&self) -> usize {
        self.queue.as_ref().map_or(0, Queue::len)
    }

    pub(super) fn oldest(&self) -> Option<Ticket> {
        self.queue.as_ref()?.oldest_ticket()
    }

    pub(super) fn newest(&self) -> Option<Ticket> {
        self.queue.as_ref()?.newest_ticket()
    }

    /// The ticket of a command, if it is in flight.
    pub(super) fn ticket_of(&self, bound: &Arc<Bound>) -> Option<Ticket> {
        self.queue.as_ref()?.ticket_of(bound)
    }

    pub(super) fn poll(&self, ticket: Ticket) -> bool {
        // What was in flight in an earlier context of this xclbin has ended: only an empty one makes way.
        self.queue.as_ref().is_none_or(|queue| !queue.issued(ticket) || queue.poll(ticket))
    }

    /// Makes the hardware context and gives it its PDI.
    pub(super) fn create(&mut self, npu: &Npu, manner: &Manner) -> Result<(), NpuError> {
        let qos = QosInfo { gops: self.operations, ..QosInfo::default() };
        let options = HwCtxOptions { columns: Some(self.xclbin.column_width), qos, ..HwCtxOptions::default() };
        let hwctx = HwCtx::create(npu.device(), &options)
            .map_err(|source| NpuError::Context { context: self.key.clone(), source })?;
        let pdi = Bo::with_contents(npu.device(), BoKind::Dev, &self.xclbin.pdi)?;
        hwctx.config_cu(vec![Cu { pdi, func: self.xclbin.cu_func }])?;
        let mut queue = Queue::new(hwctx, manner.in_flight);
        queue.set_spin(manner.spin);
        self.queue = Some(queue);
        Ok(())
    }

    pub(super) fn set_spin(&mut self, spin: Duration) {
        if let Some(queue) = &mut self.queue {
            queue.set_spin(spin);
        }
    }

    /// Gives the place on the device away. Nothing may be in flight.
    pub(super) fn destroy(&mut self) {
        self.queue = None;
        self.broken = false;
    }

    /// Gives up a hardware context that is broken, once nothing is in flight in it. The next command makes a new one.
    fn renew(&mut self) {
        if self.broken && self.depth() == 0 {
            self.destroy();
        }
    }

    pub(super) fn submit(&mut self, bound: &Arc<Bound>, now: u64, counters: &mut Counters) -> Result<Ticket, NpuError> {
        let Some(queue) = &mut self.queue else { return Err(NpuError::Lost) };
        let before = queue.counters();
        let submitted = queue.submit(bound);
        match submitted {
            Ok(ticket) => {
                counters.count(&before, &queue.counters());
                self.last_use = now;
                Ok(ticket)
            }
            // The host is at a buffer: the driver was not asked.
            Err(error @ amdxdna_ioctl::Error::InUse { .. }) => Err(error.into()),
            Err(error) => {
                self.broken = true;
                self.renew();
                Err(error.into())
            }
        }
    }

    /// Waits for a command and takes it and all before it out of the queue.
    pub(super) fn retire(
        &mut self,
        ticket: Ticket,
        patience: Duration,
        counters: &mut Counters,
        name: &dyn Fn(&Arc<Bound>) -> String,
    ) -> Result<(), NpuError> {
        let Some(queue) = self.queue.as_mut().filter(|queue| queue.issued(ticket)) else { return Ok(()) };
        let before = queue.counters();
        let waited = queue.wait(ticket, Deadline::after(patience));
        counters.count(&before, &queue.counters());
        let failure = match waited {
            Ok(failure) => failure,
            Err(amdxdna_ioctl::Error::Timeout { .. }) => {
                // The first of the queue is the one that holds it up.
                let kernel = queue.oldest().map_or_else(String::new, name);
                return Err(NpuError::Timeout { kernel, context: self.key.clone(), after: patience });
            }
            Err(error) => return Err(error.into()),
        };
        let Some(failure) = failure else {
            self.renew();
            return Ok(());
        };
        // What the context was reset by may have left it without its kernel, or not there at all.
        self.broken |= !matches!(failure.outcome, CommandOutcome::Failed { .. });
        self.renew();
        let (kernel, context) = (name(&failure.bound), self.key.clone());
        Err(NpuError::Command { kernel, context, outcome: failure.outcome })
    }
}
