//! One hardware context as a queue of commands.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use amdxdna_ioctl::abi::QosInfo;
use amdxdna_ioctl::packet::CommandOutcome;
use amdxdna_ioctl::{Bo, BoKind, Cu, Deadline, HwCtx, HwCtxOptions};

use super::Npu;
use super::error::NpuError;
use super::kernels::Bound;
use crate::xclbin::Xclbin;

/// A command that the driver has and that has not been seen to finish.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    /// Counts on over the contexts that this one has been.
    number: u64,
    /// The driver's sequence number in the context that it is now.
    seq: u64,
    /// Index of the command.
    command: usize,
}

/// An xclbin, resident on the device or not, and what is in flight in it.
#[derive(Debug)]
pub(super) struct Context {
    key: String,
    xclbin: Xclbin,
    operations: u32,
    hwctx: Option<Arc<HwCtx>>,
    in_flight: VecDeque<InFlight>,
    submitted: u64,
    last_use: u64,
    /// The driver has given up on the hardware context, or has reset it: it makes way for a new one.
    broken: bool,
}

impl Context {
    pub(super) fn new(key: &str, xclbin: Xclbin, operations: u32) -> Context {
        Context {
            key: key.to_owned(),
            xclbin,
            operations,
            hwctx: None,
            in_flight: VecDeque::new(),
            submitted: 0,
            last_use: 0,
            broken: false,
        }
    }

    pub(super) fn is_resident(&self) -> bool {
        self.hwctx.is_some()
    }

    pub(super) fn last_use(&self) -> u64 {
        self.last_use
    }

    pub(super) fn depth(&self) -> usize {
        self.in_flight.len()
    }

    pub(super) fn first_in_flight(&self) -> Option<u64> {
        self.in_flight.front().map(|c| c.number)
    }

    pub(super) fn last_in_flight(&self) -> Option<u64> {
        self.in_flight.back().map(|c| c.number)
    }

    /// The number of a command, if it is in flight.
    pub(super) fn position_of(&self, command: usize) -> Option<u64> {
        self.in_flight.iter().find(|c| c.command == command).map(|c| c.number)
    }

    /// Makes the hardware context and gives it its PDI.
    pub(super) fn create(&mut self, npu: &Npu) -> Result<(), NpuError> {
        let qos = QosInfo { gops: self.operations, ..QosInfo::default() };
        let options = HwCtxOptions { columns: Some(self.xclbin.column_width), qos, ..HwCtxOptions::default() };
        let hwctx = HwCtx::create(npu.device(), &options)
            .map_err(|source| NpuError::Context { context: self.key.clone(), source })?;
        let pdi = Bo::with_contents(npu.device(), BoKind::Dev, &self.xclbin.pdi)?;
        hwctx.config_cu(vec![Cu { pdi, func: self.xclbin.cu_func }])?;
        self.hwctx = Some(hwctx);
        Ok(())
    }

    /// Gives the place on the device away. Nothing may be in flight.
    pub(super) fn destroy(&mut self) {
        self.hwctx = None;
        self.broken = false;
    }

    /// Gives up a hardware context that is broken, once nothing is in flight in it. The next command makes a new one.
    fn renew(&mut self) {
        if self.broken && self.in_flight.is_empty() {
            self.destroy();
        }
    }

    pub(super) fn submit(&mut self, index: usize, bound: &mut Bound, now: u64) -> Result<u64, NpuError> {
        let Some(hwctx) = &self.hwctx else { return Err(NpuError::Lost) };
        let seq = match hwctx.submit(&mut bound.command, &bound.handles) {
            Ok(seq) => seq,
            Err(error) => {
                self.broken = true;
                self.renew();
                return Err(error.into());
            }
        };
        let number = self.submitted;
        self.submitted += 1;
        self.last_use = now;
        self.in_flight.push_back(InFlight { number, seq, command: index });
        Ok(number)
    }

    /// Waits for command `number`, once: the queue is in order, so all before it have finished too.
    pub(super) fn retire(
        &mut self,
        number: u64,
        commands: &mut [Bound],
        patience: Duration,
        name: &dyn Fn(&Bound) -> String,
    ) -> Result<(), NpuError> {
        let Some(hwctx) = &self.hwctx else { return Ok(()) };
        let Some(last) = self.in_flight.iter().rev().find(|c| c.number <= number).copied() else { return Ok(()) };
        match hwctx.wait(last.seq, Deadline::after(patience)) {
            Ok(()) => {}
            Err(amdxdna_ioctl::Error::Timeout { .. }) => {
                // The first of the queue is the one that holds it up.
                let first = self.in_flight.front().map_or(last.command, |c| c.command);
                let kernel = name(&commands[first]);
                return Err(NpuError::Timeout { kernel, context: self.key.clone(), after: patience });
            }
            Err(error) => return Err(error.into()),
        }
        let mut first_failure = Ok(());
        while self.in_flight.front().is_some_and(|c| c.number <= number) {
            let Some(done) = self.in_flight.pop_front() else { break };
            let bound = &mut commands[done.command];
            // Known to be done, so this asks nobody.
            let outcome = bound.command.wait(Deadline::POLL)?;
            if outcome.is_completed() {
                continue;
            }
            // What the context was reset by may have left it without its kernel, or not there at all.
            self.broken |= !matches!(outcome, CommandOutcome::Failed { .. });
            // The driver has filled the packet with 0xFF: those bytes must never be submitted as addresses.
            bound.command.write(&bound.packet)?;
            if first_failure.is_ok() {
                let (kernel, context) = (name(bound), self.key.clone());
                first_failure = Err(NpuError::Command { kernel, context, outcome });
            }
        }
        self.renew();
        first_failure
    }
}
