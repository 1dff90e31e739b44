//! Hardware contexts with their instruction streams, and the commands that run them.

use std::sync::Arc;
use std::time::Duration;

use amdxdna_ioctl::{Bound, Stream, View};

use super::error::NpuError;
use super::queue::{Context, Manner};
use super::{Counters, Npu, stream};
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
    ticket: amdxdna_ioctl::Ticket,
}

#[derive(Debug)]
struct Kernel {
    name: String,
    context: usize,
    stream: Arc<Stream>,
}

/// A command and its kernel.
#[derive(Debug)]
struct Command {
    bound: Arc<Bound>,
    kernel: usize,
}

/// The contexts, streams and commands of a bundle.
///
/// One hardware context an xclbin, resident for as long as the device has room for all of them; where it has not, the
/// least recently used one makes way, which [`Counters::context_switches`] counts. Each context is a queue: commands
/// run in the order of submission, up to a limit of them in flight. Commands own their streams and buffers, and queues
/// what is in flight: nothing that the NPU could still be writing goes before it has ended or its context is gone.
#[derive(Debug)]
pub struct Kernels {
    contexts: Vec<Context>,
    commands: Vec<Command>,
    kernels: Vec<Kernel>,
    npu: Npu,
    manner: Manner,
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
            commands: Vec::new(),
            kernels: Vec::new(),
            npu,
            manner: Manner { in_flight: in_flight.clamp(1, 4), deadline, spin: Duration::ZERO },
            counters: Counters::default(),
            clock: 0,
            lost: false,
        }
    }

    /// How long a wait looks at a command's state word before it blocks; zero, as at first, for not at all.
    pub fn set_spin(&mut self, spin: Duration) {
        self.manner.spin = spin;
        self.contexts.iter_mut().for_each(|context| context.set_spin(spin));
    }

    /// The device.
    #[must_use]
    pub fn npu(&self) -> &Npu {
        &self.npu
    }

    /// Whether anything can be run at all. A lost command's buffers stay in use, so ask before writing to them.
    ///
    /// # Errors
    /// [`NpuError::Lost`].
    pub fn usable(&self) -> Result<(), NpuError> {
        if self.lost { Err(NpuError::Lost) } else { Ok(()) }
    }

    /// Commands that run at a time in a context.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.manner.in_flight
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
        match context.create(&self.npu, &self.manner) {
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
    /// No stream, or what the driver refused.
    pub fn add_stream(&mut self, context: ContextId, name: &str, stream: &[u8]) -> Result<KernelId, NpuError> {
        let stream = stream::load(self.npu.device(), name, stream)?;
        self.kernels.push(Kernel { name: name.to_owned(), context: context.0, stream });
        Ok(KernelId(self.kernels.len() - 1))
    }

    /// Builds the command that runs a kernel on these buffers, in the kernel's order of arguments. It keeps them alive.
    ///
    /// # Errors
    /// A buffer that the kernel's stream reaches past or writes to without leave, too few or too many of them, or what
    /// the driver refused.
    pub fn bind(&mut self, kernel: KernelId, args: &[View]) -> Result<CommandId, NpuError> {
        use amdxdna_ioctl::Error;
        let Kernel { name, stream, .. } = &self.kernels[kernel.0];
        let bound = Bound::new(stream, args).map_err(|source| match source {
            Error::Arguments { .. } | Error::Reach { .. } | Error::ReadOnly { .. } => {
                NpuError::Bind { kernel: name.clone(), source }
            }
            source => source.into(),
        })?;
        self.commands.push(Command { bound, kernel: kernel.0 });
        Ok(CommandId(self.commands.len() - 1))
    }

    /// A mark of the commands that are bound by now, for [`Kernels::forget_since`].
    #[must_use]
    pub fn mark(&self) -> CommandId {
        CommandId(self.commands.len())
    }

    /// Lets go of the commands that were bound after the mark, and with them of their buffers. Those that are in flight
    /// stay with their queues until they have ended. Their ids mean nothing any more.
    pub fn forget_since(&mut self, mark: CommandId) {
        self.commands.truncate(mark.0);
    }

    /// Submits a command and returns before it has finished. It must not depend on commands of other contexts that are in
    /// flight. If it is in flight itself, or its context has no room, what stands in its way is waited for.
    ///
    /// # Errors
    /// What the driver refused, and earlier commands of the queue that ended badly while this one had to wait for
    /// room. Nothing is in flight any more then, unless a command was lost.
    pub fn submit(&mut self, command: CommandId) -> Result<Ticket, NpuError> {
        let result = self.submit_one(command);
        if result.is_err() {
            let _ = self.drain();
        }
        result
    }

    /// Submits commands in this order and waits until all have finished. They must not depend on each other unless they
    /// are of one context.
    ///
    /// # Errors
    /// As [`Kernels::submit`] and [`Kernels::wait`].
    pub fn run(&mut self, commands: &[CommandId]) -> Result<(), NpuError> {
        for &command in commands {
            let _ = self.submit(command)?;
        }
        // A queue is in order: its last answers for all of it.
        for &command in commands.iter().rev() {
            let context = self.context_of(command);
            if let Some(ticket) = self.contexts[context].ticket_of(&self.commands[command.0].bound) {
                self.wait(Ticket { context, ticket })?;
            }
        }
        Ok(())
    }

    /// Whether [`Kernels::wait`] would return at once. Costs no ioctl unless the command has failed.
    #[must_use]
    pub fn poll(&self, ticket: Ticket) -> bool {
        self.lost || self.contexts[ticket.context].poll(ticket.ticket)
    }

    /// Waits until the ticket's command and all before it in its queue have finished.
    ///
    /// # Errors
    /// A command that ended badly or not in time, by name. Nothing is in flight any more then, unless a command was
    /// lost.
    pub fn wait(&mut self, ticket: Ticket) -> Result<(), NpuError> {
        let result = self.retire(ticket.context, ticket.ticket);
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
            while let Some(newest) = self.contexts[context].newest() {
                first = first.and(self.retire(context, newest));
                // What is lost stays in its queue: waiting for it again would never end.
                if self.lost {
                    return first;
                }
            }
        }
        first
    }

    fn context_of(&self, command: CommandId) -> usize {
        self.kernels[self.commands[command.0].kernel].context
    }

    fn submit_one(&mut self, command: CommandId) -> Result<Ticket, NpuError> {
        if self.lost {
            return Err(NpuError::Lost);
        }
        let context = self.context_of(command);
        // The same packet cannot be in the queue twice.
        if let Some(ticket) = self.contexts[context].ticket_of(&self.commands[command.0].bound) {
            self.retire(context, ticket)?;
        }
        while self.contexts[context].depth() >= self.manner.in_flight {
            let Some(oldest) = self.contexts[context].oldest() else { break };
            self.retire(context, oldest)?;
        }
        self.make_resident(context)?;
        self.clock += 1;
        let bound = &self.commands[command.0].bound;
        match self.contexts[context].submit(bound, self.clock, &mut self.counters) {
            Ok(ticket) => Ok(Ticket { context, ticket }),
            Err(error) => {
                self.lost |= is_gone(&error);
                Err(error)
            }
        }
    }

    /// Gives the context a place on the device, if need be that of the one that was not used for longest.
    fn make_resident(&mut self, context: usize) -> Result<(), NpuError> {
        if self.contexts[context].is_resident() {
            return Ok(());
        }
        loop {
            let error = match self.contexts[context].create(&self.npu, &self.manner) {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            if !self.is_full(&error) {
                return Err(error);
            }
            let oldest = (0..self.contexts.len()).filter(|&c| self.contexts[c].is_resident());
            let Some(oldest) = oldest.min_by_key(|&c| self.contexts[c].last_use()) else { return Err(error) };
            if let Some(newest) = self.contexts[oldest].newest() {
                self.retire(oldest, newest)?;
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

    /// Waits for a command of a context and takes it and those before it out of the queue.
    fn retire(&mut self, context: usize, ticket: amdxdna_ioctl::Ticket) -> Result<(), NpuError> {
        if self.lost {
            return Err(NpuError::Lost);
        }
        let (kernels, commands) = (&self.kernels, &self.commands);
        let name = |bound: &Arc<Bound>| {
            let command = commands.iter().find(|command| Arc::ptr_eq(&command.bound, bound));
            command.map_or_else(String::new, |command| kernels[command.kernel].name.clone())
        };
        let started = std::time::Instant::now();
        let result = self.contexts[context].retire(ticket, self.manner.deadline, &mut self.counters, &name);
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
