//! What a packet says after its fence has signalled.

use super::{Header, Opcode, State};
use std::fmt;

/// The firmware's last words about a command that hung (8 words; firmware with the health feature only).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Health {
    /// 0 for AIE2.
    pub npu_gen: u32,
    /// Index of the last operation of the instruction stream; [`u32::MAX`] for not started, or finished.
    pub txn_op_idx: u32,
    /// Program counter of the context.
    pub ctx_pc: u32,
    /// Not 0 after a crash.
    pub fatal_error_type: u32,
    /// Firmware exception type.
    pub exception_type: u32,
    /// Firmware exception program counter.
    pub exception_pc: u32,
    /// Module of the exception.
    pub app_module: u32,
}

impl Health {
    /// Words of the record.
    pub const WORDS: usize = 8;
    /// The only version of the record that is known.
    pub const VERSION: u32 = 1;

    /// Reads a record; `None` unless it says that it is one, version 1 (firmware without the feature leaves 0xFF).
    #[must_use]
    pub fn read(words: &[u32]) -> Option<Health> {
        let record: &[u32; Self::WORDS] = words.get(..Self::WORDS)?.try_into().ok()?;
        let &[version, npu_gen, txn_op_idx, ctx_pc, fatal_error_type, exception_type, exception_pc, app_module] =
            record;
        (version == Self::VERSION).then_some(Health {
            npu_gen,
            txn_op_idx,
            ctx_pc,
            fatal_error_type,
            exception_type,
            exception_pc,
            app_module,
        })
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.txn_op_idx {
            u32::MAX => write!(f, "no stream operation was running")?,
            index => write!(f, "stream operation {index}")?,
        }
        write!(f, ", pc {:#x}", self.ctx_pc)?;
        if self.fatal_error_type != 0 {
            write!(
                f,
                ", fatal error {} (exception {} at {:#x}, module {})",
                self.fatal_error_type, self.exception_type, self.exception_pc, self.app_module
            )?;
        }
        Ok(())
    }
}

/// How a command ended. Waiting for its fence cannot tell: a fence signals in all these cases.
///
/// After anything but [`CommandOutcome::Completed`] the packet is no packet any more (the driver fills it with 0xFF)
/// and has to be built again; of a chain, that of the first command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum CommandOutcome {
    /// It ran.
    Completed,
    /// The firmware reported an error.
    Failed {
        /// Of a chain: the command that failed.
        error_index: Option<u32>,
    },
    /// The context was destroyed, suspended or reset underneath.
    Aborted,
    /// The driver's hang detection stopped it.
    TimedOut {
        /// Of a chain: the command that hung.
        error_index: Option<u32>,
        /// The firmware's record; of a chain it is in the first command's BO instead ([`Health::read`]).
        health: Option<Health>,
    },
    /// The fence signalled and the state is still NEW: the driver refused the packet, or dropped the job.
    Rejected,
    /// A state that the amdxdna driver does not write.
    Unknown(u8),
}

impl CommandOutcome {
    /// Reads the outcome of the command in `words`, whose fence has signalled.
    pub fn read(words: &[u32]) -> CommandOutcome {
        let Some(&first) = words.first() else { return CommandOutcome::Rejected };
        let header = Header(first);
        let chain = header.opcode() == Some(Opcode::CmdChain);
        let error_index = || if chain { words.get(3).copied() } else { None };
        match header.state() {
            Some(State::Completed) => CommandOutcome::Completed,
            Some(State::Error) => CommandOutcome::Failed { error_index: error_index() },
            Some(State::Abort) => CommandOutcome::Aborted,
            Some(State::Timeout) => CommandOutcome::TimedOut {
                error_index: error_index(),
                health: if chain { None } else { Health::read(&words[1..]) },
            },
            Some(State::New) => CommandOutcome::Rejected,
            _ => CommandOutcome::Unknown(header.state_bits()),
        }
    }

    /// It ran.
    #[must_use]
    pub fn is_completed(&self) -> bool {
        matches!(self, CommandOutcome::Completed)
    }
}

impl fmt::Display for CommandOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = |f: &mut fmt::Formatter<'_>, index: &Option<u32>| match index {
            Some(index) => write!(f, " at command {index} of the chain"),
            None => Ok(()),
        };
        match self {
            CommandOutcome::Completed => f.write_str("completed"),
            CommandOutcome::Failed { error_index } => {
                f.write_str("ERROR: the firmware reported a failure")?;
                at(f, error_index)?;
                f.write_str("; see the last asynchronous error and the kernel log")
            }
            CommandOutcome::Aborted => {
                f.write_str("ABORT: the context was destroyed, suspended or reset while the command was in flight")
            }
            CommandOutcome::TimedOut { error_index, health } => {
                f.write_str("TIMEOUT: the driver's hang detection (tdr_timeout_ms, 2 s by default) stopped it")?;
                at(f, error_index)?;
                match health {
                    Some(health) => write!(f, "; {health}"),
                    None => f.write_str("; no health record"),
                }
            }
            CommandOutcome::Rejected => f.write_str(
                "NEW after its fence: the driver refused the packet or the context has lost its firmware channel",
            ),
            CommandOutcome::Unknown(state) => write!(f, "state {state}, which the amdxdna driver does not write"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(state: u32) -> [u32; 1024] {
        let mut words = [u32::MAX; 1024];
        words[0] = 0x3001_0000 | state;
        words
    }

    #[test]
    fn states_are_told_apart() {
        assert_eq!(CommandOutcome::read(&packet(4)), CommandOutcome::Completed);
        assert_eq!(CommandOutcome::read(&packet(5)), CommandOutcome::Failed { error_index: None });
        assert_eq!(CommandOutcome::read(&packet(6)), CommandOutcome::Aborted);
        assert_eq!(CommandOutcome::read(&packet(1)), CommandOutcome::Rejected);
        for state in [0, 2, 3, 7, 9, 15] {
            assert_eq!(CommandOutcome::read(&packet(state)), CommandOutcome::Unknown(state as u8));
        }
    }

    #[test]
    fn health_counts_only_in_version_1() {
        let none = CommandOutcome::TimedOut { error_index: None, health: None };
        assert_eq!(CommandOutcome::read(&packet(8)), none, "0xFF is no record");
        let mut words = packet(8);
        words[1..9].copy_from_slice(&[1, 0, 77, 0x100, 2, 3, 0x200, 5]);
        let CommandOutcome::TimedOut { health: Some(health), .. } = CommandOutcome::read(&words) else { panic!() };
        assert_eq!((health.txn_op_idx, health.exception_pc, health.app_module), (77, 0x200, 5));
        words[1] = 2;
        assert_eq!(CommandOutcome::read(&words), none);
        assert_eq!(CommandOutcome::read(&words[..8]), none, "a record that does not fit is none");
    }

    #[test]
    fn a_chain_names_its_command() {
        let mut words = [0; 16];
        words[0] = 19 << 23 | 10 << 12 | 5;
        words[1] = 2;
        words[3] = 1;
        assert_eq!(CommandOutcome::read(&words), CommandOutcome::Failed { error_index: Some(1) });
        words[0] = words[0] & !15 | 8;
        assert_eq!(CommandOutcome::read(&words), CommandOutcome::TimedOut { error_index: Some(1), health: None });
    }
}
