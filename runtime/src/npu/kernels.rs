//! Hardware contexts with their instruction streams, and the commands that run them.

use std::time::Duration;

use amdxdna_ioctl::packet::{IRON_BUFFERS, IronKernel};
use amdxdna_ioctl::{Bo, BoKind, Command};

use super::buffer::View;
use super::error::NpuError;
use super::queue::Context;
use super::{Counters, Npu};
use crate::xclbin::Xclbin;

/// A hardware context of [`Kernels`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextId(usize);

/// An instruction stream in a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelId(usize);

/// A kernel bound to buffers: a packet that can be submitted again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandId(usize);

/// Submitted commands of one context, up to one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a ticket is to be waited for"]
pub struct Ticket {
    context: usize,
    number: u64,
}

#[derive(Debug)]
struct Kernel {
    name: String,
    context: usize,
    stream: Bo,
    bytes: u32,
}

/// A command with what is needed to submit it.
#[derive(Debug)]
pub(super) struct Bound {
    pub(super) command: Command,
    pub(super) packet: IronKernel,
    pub(super) handles: Vec<u32>,
    pub(super) kernel: usize,
}

/// The contexts, streams and commands of a bundle.
///
/// One hardware context an xclbin, resident for as long as the device has room for all of them; where it has not, the
/// least recently used one makes way, which [`Counters::context_switches`] counts. Each context is a queue: commands
/// run in the order of submission, up to a limit of them in flight.
///
/// Buffers that commands are bound to must outlive this value: it is dropped first, and with it everything that the
/// NPU could still be writing.
#[derive(Debug)]
pub struct Kernels {
    // Contexts go before the streams that their commands run.
    contexts: Vec<Context>,
    bound: Vec<Bound>,
    kernels: Vec<Kernel>,
    npu: Npu,
    in_flight: usize,
    deadline: Duration,
    counters: Counters,
    clock: u64,
    lost: bool,
}

impl Kernels {
    /// No contexts yet. Up to `in_flight` commands (1 to 4, the driver's depth) run at a time in a context, and each
    /// has `deadline` to finish.
    #[must_use]
    pub fn new(npu: Npu, in_flight: usize, deadline: Duration) -> Kernels {
        Kernels {
            contexts: Vec::new(),
            bound: Vec::new(),
            kernels: Vec::new(),
            npu,
            in_flight: in_flight.clamp(1, 4),
            deadline,
            counters: Counters::default(),
            clock: 0,
            lost: false,
        }
    }

    /// The device.
    #[must_use]
    pub fn npu(&self) -> &Npu {
        &self.npu
    }

    /// What has been asked of it.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Makes the hardware context of an xclbin and configures its compute unit. `operations` is the work of one of its
    /// commands in 10^9 operations, a hint for the driver. If the device has no room beside the contexts that are
    /// there, this one is made at its first command.
    ///
    /// # Errors
    /// What the driver refused.
    pub fn add_context(&mut self, key: &str, xclbin: Xclbin, operations: u32) -> Result<ContextId, NpuError> {
        let mut context = Context::new(key, xclbin, operations);
        match context.create(&self.npu) {
            Ok(()) => {}
            Err(error) if self.is_full(&error) && self.contexts.iter().any(Context::is_resident) => {}
            Err(error) => return Err(error),
        }
        self.contexts.push(context);
        Ok(ContextId(self.contexts.len() - 1))
    }

    /// Puts an instruction stream into the device heap. `name` is for messages.
    ///
    /// # Errors
    /// What the driver refused.
    pub fn add_stream(&mut self, context: ContextId, name: &str, stream: &[u8]) -> Result<KernelId, NpuError> {
        let bo = Bo::with_contents(self.npu.device(), BoKind::Dev, stream)?;
        let bytes = stream.len() as u32;
        self.kernels.push(Kernel { name: name.to_owned(), context: context.0, stream: bo, bytes });
        Ok(KernelId(self.kernels.len() - 1))
    }

    /// Builds the command that runs a kernel on these buffers, in the kernel's order of arguments.
    ///
    /// # Errors
    /// What the driver refused, and more buffers than a packet can name.
    pub fn bind(&mut self, kernel: KernelId, args: &[View]) -> Result<CommandId, NpuError> {
        let stream = &self.kernels[kernel.0];
        if args.len() > IRON_BUFFERS {
            let kernel = stream.name.clone();
            return Err(NpuError::Buffers { kernel, buffers: args.len(), limit: IRON_BUFFERS });
        }
        let mut packet = IronKernel {
            cu: 0,
            instructions: stream.stream.address(),
            instruction_bytes: stream.bytes,
            buffers: [0; IRON_BUFFERS],
        };
        let mut handles = vec![stream.stream.handle()];
        for (slot, view) in packet.buffers.iter_mut().zip(args) {
            *slot = view.address;
            if !handles.contains(&view.handle) {
                handles.push(view.handle);
            }
        }
        let command = Command::with_packet(self.npu.device(), &packet)?;
        self.bound.push(Bound { command, packet, handles, kernel: kernel.0 });
        Ok(CommandId(self.bound.len() - 1))
    }

    /// Submits commands in this order and returns with the last one's ticket, before they have finished. They must not
    /// depend on each other unless they are of one context.
    ///
    /// # Errors
    /// What the driver refused, and earlier commands of the queue that ended badly while this one had to wait for
    /// room. Nothing is in flight any more then, unless a command was lost.
    pub fn submit(&mut self, commands: &[CommandId]) -> Result<Vec<Ticket>, NpuError> {
        let mut tickets: Vec<Ticket> = Vec::new();
        for &command in commands {
            let ticket = match self.submit_one(command) {
                Ok(ticket) => ticket,
                Err(error) => {
                    let _ = self.drain();
                    return Err(error);
                }
            };
            // A queue is in order: its last ticket stands for all of them.
            tickets.retain(|t| t.context != ticket.context);
            tickets.push(ticket);
        }
        Ok(tickets)
    }

    /// Submits commands and waits until all have finished.
    ///
    /// # Errors
    /// As [`Kernels::submit`] and [`Kernels::wait`].
    pub fn run(&mut self, commands: &[CommandId]) -> Result<(), NpuError> {
        for ticket in self.submit(commands)? {
            self.wait(ticket)?;
        }
        Ok(())
    }

    /// Waits until the ticket's command and all before it in its queue have finished.
    ///
    /// # Errors
    /// A command that ended badly or not in time, by name. Nothing is in flight any more then, unless a command was
    /// lost.
    pub fn wait(&mut self, ticket: Ticket) -> Result<(), NpuError> {
        let result = self.retire(ticket.context, ticket.number);
        if result.is_err() {
            let _ = self.drain();
        }
        result
    }

    /// Waits for everything that is in flight.
    ///
    /// # Errors
    /// The first command that ended badly.
    pub fn drain(&mut self) -> Result<(), NpuError> {
        let mut first = Ok(());
        for context in 0..self.contexts.len() {
            while let Some(last) = self.contexts[context].last_in_flight() {
                first = first.and(self.retire(context, last));
                // What is lost stays in its queue: waiting for it again would never end.
                if self.lost {
                    return first;
                }
            }
        }
        first
    }

    fn submit_one(&mut self, command: CommandId) -> Result<Ticket, NpuError> {
        if self.lost {
            return Err(NpuError::Lost);
        }
        let context = self.kernels[self.bound[command.0].kernel].context;
        // The same packet cannot be in the queue twice.
        if let Some(number) = self.contexts[context].position_of(command.0) {
            self.retire(context, number)?;
        }
        while self.contexts[context].depth() >= self.in_flight {
            let Some(oldest) = self.contexts[context].first_in_flight() else { break };
            self.retire(context, oldest)?;
        }
        self.make_resident(context)?;
        self.clock += 1;
        let bound = &mut self.bound[command.0];
        let number = match self.contexts[context].submit(command.0, bound, self.clock) {
            Ok(number) => number,
            Err(error) => {
                self.lost |= is_gone(&error);
                return Err(error);
            }
        };
        self.counters.commands += 1;
        self.counters.ioctls += 1;
        Ok(Ticket { context, number })
    }

    /// Gives the context a place on the device, if need be that of the one that was not used for longest.
    fn make_resident(&mut self, context: usize) -> Result<(), NpuError> {
        if self.contexts[context].is_resident() {
            return Ok(());
        }
        loop {
            let error = match self.contexts[context].create(&self.npu) {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            if !self.is_full(&error) {
                return Err(error);
            }
            let oldest = (0..self.contexts.len()).filter(|&c| self.contexts[c].is_resident());
            let Some(oldest) = oldest.min_by_key(|&c| self.contexts[c].last_use()) else { return Err(error) };
            if let Some(last) = self.contexts[oldest].last_in_flight() {
                self.retire(oldest, last)?;
            }
            self.contexts[oldest].destroy();
            self.counters.context_switches += 1;
        }
    }

    /// Whether a context could not be made for want of room, which the end of another would give.
    fn is_full(&self, error: &NpuError) -> bool {
        use amdxdna_ioctl::{Errno, Error};
        match error {
            NpuError::Context { source: Error::HeapFull { .. }, .. } | NpuError::Driver(Error::HeapFull { .. }) => true,
            NpuError::Context { source, .. } => match source.errno() {
                Some(Errno::BUSY | Errno::NOSPC) => true,
                // Says many things. Where the driver cannot tell how full the device is, the usual one is assumed.
                Some(Errno::INVAL) => {
                    self.npu.device().resource_info().map_or(true, |info| info.npu_task_curr >= info.npu_task_max)
                }
                _ => false,
            },
            _ => false,
        }
    }

    /// Waits for command `number` of a context and takes it and those before it out of the queue.
    fn retire(&mut self, context: usize, number: u64) -> Result<(), NpuError> {
        if self.lost {
            return Err(NpuError::Lost);
        }
        let queue = &mut self.contexts[context];
        let name = |bound: &Bound| self.kernels[bound.kernel].name.clone();
        let started = std::time::Instant::now();
        if queue.first_in_flight().is_some_and(|first| first <= number) {
            self.counters.ioctls += 1;
        }
        let result = queue.retire(number, &mut self.bound, self.deadline, &name);
        self.counters.waiting += started.elapsed();
        // A command that ended badly has ended. After any other error nobody knows what the NPU still writes to.
        self.lost |= !matches!(result, Ok(()) | Err(NpuError::Command { .. }));
        result
    }
}

/// Whether the driver says that there is no device any more.
fn is_gone(error: &NpuError) -> bool {
    matches!(error, NpuError::Driver(source) if source.errno() == Some(amdxdna_ioctl::Errno::NODEV))
}
