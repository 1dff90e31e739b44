//! Raw commands: any packet in a CMD BO, and whether it is in flight. [`Bound`](crate::Bound) is the safe way.

use crate::bo::{Bo, BoKind};
use crate::deadline::Deadline;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::hwctx::{Held, HwCtx};
use crate::packet::{CommandOutcome, Encode, Header, State};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes of a [`Command`]'s BO.
const SIZE: usize = 4096;

#[derive(Debug)]
enum Stage {
    /// Nothing in it that could be submitted: new, or overwritten with an error's data.
    Empty,
    /// A packet of that many words, ready to be submitted (again).
    Ready(usize),
    /// The driver has it.
    InFlight { words: usize, context: Arc<HwCtx>, seq: u64 },
}

/// A raw command: its packet is written once and may be submitted many times, one at a time.
///
/// The packet says what it likes, so submitting it is `unsafe`: see [`HwCtx::submit`].
///
/// While it is in flight the driver owns the packet: writing and submitting it are refused ([`Error::Busy`]), after a
/// wait that ran into its deadline as well. Dropping it then leaves the packet with the context, which keeps it until
/// the command is known to be done or the context is destroyed.
#[derive(Debug)]
pub struct Command {
    /// `None` only while being dropped.
    packet: Option<Bo>,
    stage: Stage,
    device: Arc<Device>,
    handle: u32,
}

impl Command {
    /// Makes a command with room for 1024 words.
    ///
    /// # Errors
    /// As of [`Bo::new`].
    pub fn new(device: &Arc<Device>) -> Result<Command> {
        let packet = Bo::new(device, BoKind::Cmd, SIZE)?;
        let handle = packet.handle();
        Ok(Command { packet: Some(packet), stage: Stage::Empty, device: Arc::clone(device), handle })
    }

    /// Makes a command of a packet.
    ///
    /// # Errors
    /// As of [`Bo::new`] and [`Command::write`].
    pub fn with_packet(device: &Arc<Device>, packet: &impl Encode) -> Result<Command> {
        let mut command = Command::new(device)?;
        command.write(packet)?;
        Ok(command)
    }

    /// Writes the packet, in place of what was there.
    ///
    /// # Errors
    /// [`Error::Busy`], [`Error::Packet`]; after the latter there is no packet in the command.
    pub fn write(&mut self, packet: &impl Encode) -> Result<()> {
        self.settle()?;
        let Some(bo) = &mut self.packet else { return Err(Error::NotSubmitted) };
        self.stage = Stage::Empty;
        let words = packet.encode(bo.slice_mut())?;
        self.stage = Stage::Ready(words);
        Ok(())
    }

    /// The handle of its BO, for a chain.
    #[must_use]
    pub fn handle(&self) -> u32 {
        self.handle
    }

    /// The device that it is on.
    #[must_use]
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Its sequence number while it is in flight.
    #[must_use]
    pub fn in_flight(&self) -> Option<u64> {
        match &self.stage {
            Stage::InFlight { seq, .. } => Some(*seq),
            _ => None,
        }
    }

    /// Waits for its end and reads the outcome. After [`CommandOutcome::Completed`] it can be submitted again as it is;
    /// after any other it has to be written first, because the driver has overwritten it.
    ///
    /// # Errors
    /// [`Error::Timeout`]: it is still in flight, wait again or drop it. [`Error::NotSubmitted`], [`Error::Ioctl`].
    pub fn wait(&mut self, deadline: Deadline) -> Result<CommandOutcome> {
        let Stage::InFlight { context, seq, .. } = &self.stage else { return Err(Error::NotSubmitted) };
        context.wait(*seq, deadline)?;
        Ok(self.finish())
    }

    /// Looks whether it has ended; `None` while it is in flight. Costs no ioctl while the command runs, nor after it has
    /// completed. A packet that the driver refused never shows here: only [`Command::wait`] tells.
    pub fn poll(&mut self) -> Option<CommandOutcome> {
        self.is_over().then(|| self.finish())
    }

    /// The words of the packet's BO, as the driver left them: error data, health records of chains.
    ///
    /// # Errors
    /// [`Error::Busy`].
    pub fn words(&mut self) -> Result<&[u32]> {
        self.settle()?;
        Ok(self.packet.as_ref().map_or(&[], |bo| bo.slice()))
    }

    /// Makes the packet ready for the driver: state NEW, written back. Called by [`HwCtx::submit`].
    pub(crate) fn prepare(&mut self) -> Result<()> {
        self.settle()?;
        let (Stage::Ready(words), Some(bo)) = (&self.stage, &mut self.packet) else {
            return Err(Error::NotSubmitted);
        };
        let bytes = words * size_of::<u32>();
        let header = &mut bo.slice_mut::<u32>()[0];
        *header = Header(*header).with_state(State::New).0;
        // The kernel reads packets through the cache; writing them back costs one or two lines and is what every
        // client known to run on the hardware does.
        bo.flush(..bytes)
    }

    /// The driver has taken it. Called by [`HwCtx::submit`].
    pub(crate) fn submitted(&mut self, context: Arc<HwCtx>, seq: u64) {
        if let Stage::Ready(words) = self.stage {
            self.stage = Stage::InFlight { words, context, seq };
        }
    }

    /// Leaves flight if the command is known to be done.
    fn settle(&mut self) -> Result<()> {
        if let Stage::InFlight { seq, .. } = &self.stage {
            if !self.is_over() {
                return Err(Error::Busy { seq: *seq });
            }
            let _ = self.finish();
        }
        Ok(())
    }

    /// It is in flight and the driver is done with the packet.
    fn is_over(&self) -> bool {
        let Stage::InFlight { context, seq, .. } = &self.stage else { return false };
        if context.is_done(*seq) {
            return true;
        }
        match self.state() {
            Some(State::Completed) => true,
            // The driver writes a failure's state first and its data after that (`amdxdna_cmd_set_error`): only the
            // fence says that all of it is there.
            Some(state) if state.is_final() => context.wait(*seq, Deadline::POLL).is_ok(),
            _ => false,
        }
    }

    /// The state in the packet; what the driver wrote before it is visible too.
    fn state(&self) -> Option<State> {
        let bo = self.packet.as_ref()?;
        // SAFETY: the first word of a live, page-aligned mapping, written by the driver and, between flights, by the
        // owner, who is here.
        let word = unsafe { AtomicU32::from_ptr(bo.as_ptr().cast::<u32>().as_ptr()) };
        Header(word.load(Ordering::Acquire)).state()
    }

    /// The command is done: reads how, and takes it out of flight.
    fn finish(&mut self) -> CommandOutcome {
        let (Stage::InFlight { words, .. }, Some(bo)) = (&self.stage, &self.packet) else {
            return CommandOutcome::Rejected;
        };
        let outcome = CommandOutcome::read(bo.slice());
        self.stage = if outcome.is_completed() { Stage::Ready(*words) } else { Stage::Empty };
        outcome
    }
}

impl Drop for Command {
    fn drop(&mut self) {
        if self.settle().is_err()
            && let (Stage::InFlight { context, seq, .. }, Some(packet)) = (&self.stage, self.packet.take())
        {
            context.hold(*seq, Held::Packet(packet));
        }
    }
}
