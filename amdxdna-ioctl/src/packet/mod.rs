//! ERT command packets: what a command BO holds (`ert.h` of XRT, `amdxdna_ctx.h` and `aie2_message.c` of the driver).
//!
//! A packet is a header word, for all opcodes but CMD_CHAIN one to four CU mask words, and a payload. Builders here
//! always write one mask word, which reaches every CU that a context can have (32). [`Packet::read`] reads any packet
//! back; [`CommandOutcome::read`] reads what the driver left in one.

mod build;
mod outcome;

pub use build::{CmdChain, Encode, IronKernel, Packet, StartCu, StartNpu, StartNpuPreempt};
pub use outcome::{CommandOutcome, Health};

/// Most words behind the header that the count field can say.
pub const MAX_COUNT: usize = 2047;
/// The unit that `MLIR_AIE` kernels are asked for in [`IronKernel`]: run an instruction transaction.
pub const IRON_OPCODE: u64 = 3;
/// Buffer arguments of an [`IronKernel`].
pub const IRON_BUFFERS: usize = 5;
/// Bytes of the driver's command buffer, into which all slots of a chain have to fit.
pub const CHAIN_BUFFER: usize = 4096;

/// Opcodes that AIE2 knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Opcode {
    /// `ERT_START_CU`: arguments for a CU, opaque to the driver.
    StartCu = 0,
    /// `ERT_CMD_CHAIN`: several commands as one.
    CmdChain = 19,
    /// `ERT_START_NPU`: an instruction buffer and arguments.
    StartNpu = 20,
    /// `ERT_START_NPU_PREEMPT`: the same with save and restore buffers (firmware with preemption).
    StartNpuPreempt = 21,
    /// `ERT_START_NPU_PREEMPT_ELF`: the same for a full ELF, arguments patched in beforehand.
    StartNpuPreemptElf = 22,
}

impl TryFrom<u8> for Opcode {
    type Error = u8;

    fn try_from(value: u8) -> Result<Self, u8> {
        Ok(match value {
            0 => Opcode::StartCu,
            19 => Opcode::CmdChain,
            20 => Opcode::StartNpu,
            21 => Opcode::StartNpuPreempt,
            22 => Opcode::StartNpuPreemptElf,
            other => return Err(other),
        })
    }
}

/// States that a header can carry; the amdxdna driver writes 1, 4, 5, 6 and 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum State {
    /// Built, or handed to the firmware.
    New = 1,
    /// Never written by this driver.
    Queued = 2,
    /// Never written by this driver.
    Running = 3,
    /// The firmware reported success.
    Completed = 4,
    /// The firmware reported a failure.
    Error = 5,
    /// The context went away underneath.
    Abort = 6,
    /// Never written by this driver.
    Submitted = 7,
    /// The driver's hang detection ended it.
    Timeout = 8,
    /// Never written by this driver.
    NoResponse = 9,
}

impl State {
    /// The command will not run any further.
    #[must_use]
    pub fn is_final(self) -> bool {
        matches!(self, State::Completed | State::Error | State::Abort | State::Timeout | State::NoResponse)
    }
}

impl TryFrom<u8> for State {
    type Error = u8;

    fn try_from(value: u8) -> Result<Self, u8> {
        Ok(match value {
            1 => State::New,
            2 => State::Queued,
            3 => State::Running,
            4 => State::Completed,
            5 => State::Error,
            6 => State::Abort,
            7 => State::Submitted,
            8 => State::Timeout,
            9 => State::NoResponse,
            other => return Err(other),
        })
    }
}

/// Value 3 of a header's type field: a CU command. The driver ignores the field.
pub const TYPE_CU: u8 = 3;

/// A packet's header word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Header(pub u32);

impl Header {
    /// A header in state NEW with one CU mask word (none for CMD_CHAIN); `count` words follow it.
    ///
    /// # Errors
    /// [`PacketError::TooLong`] if the field cannot hold `count`.
    pub fn new(opcode: Opcode, r#type: u8, count: usize) -> Result<Self, PacketError> {
        if count > MAX_COUNT {
            return Err(PacketError::TooLong { words: count + 1, room: MAX_COUNT + 1 });
        }
        Ok(Header(u32::from(r#type & 15) << 28 | (opcode as u32) << 23 | (count as u32) << 12 | State::New as u32))
    }

    /// Bits 3:0.
    #[must_use]
    pub fn state_bits(self) -> u8 {
        (self.0 & 15) as u8
    }

    /// Bits 3:0; `None` for a value without a meaning.
    #[must_use]
    pub fn state(self) -> Option<State> {
        State::try_from(self.state_bits()).ok()
    }

    /// The same header in another state.
    #[must_use]
    pub fn with_state(self, state: State) -> Self {
        Header(self.0 & !15 | state as u32)
    }

    /// Bits 11:10: CU mask words beyond the first.
    #[must_use]
    pub fn extra_cu_masks(self) -> usize {
        (self.0 >> 10 & 3) as usize
    }

    /// Bits 22:12: words behind the header.
    #[must_use]
    pub fn count(self) -> usize {
        (self.0 >> 12 & 0x7ff) as usize
    }

    /// Bits 27:23.
    #[must_use]
    pub fn opcode_bits(self) -> u8 {
        (self.0 >> 23 & 31) as u8
    }

    /// Bits 27:23; `None` for an opcode that AIE2 does not know.
    #[must_use]
    pub fn opcode(self) -> Option<Opcode> {
        Opcode::try_from(self.opcode_bits()).ok()
    }

    /// Bits 31:28.
    #[must_use]
    pub fn r#type(self) -> u8 {
        (self.0 >> 28) as u8
    }
}

/// A packet that cannot be built, or words that are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    /// More words than there is room for.
    #[error("the packet has {words} words, there is room for {room}: use a larger command BO or a shorter packet")]
    TooLong {
        /// Wanted.
        words: usize,
        /// There.
        room: usize,
    },
    /// Fewer words than the opcode needs.
    #[error("the packet ends after {words} words, its opcode needs {needed}")]
    TooShort {
        /// There.
        words: usize,
        /// Needed.
        needed: usize,
    },
    /// An opcode that AIE2 does not know.
    #[error("opcode {0} is not one of AIE2 (0, 19, 20, 21, 22)")]
    Opcode(u8),
    /// A CU that no context can have.
    #[error("CU {0}: a context has at most 32, numbered from 0")]
    Cu(u32),
    /// No bit in the CU mask.
    #[error("the CU mask is empty")]
    NoCu,
    /// More properties than words.
    #[error("{properties} properties, but only {words} words follow")]
    Properties {
        /// Said.
        properties: usize,
        /// There.
        words: usize,
    },
    /// A chain without commands; the driver's versions differ on it.
    #[error("a chain needs at least one command")]
    EmptyChain,
}
