//! Commands: the CHAIN_EXEC messages.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;

use super::slot::{self, Command};
use super::{Context, ContextMemory, Firmware, read, status};
use crate::array::Fault;
use crate::front;
use crate::timing::ordinary_values;

/// Bytes of an instruction stream's header, whose last word is the stream's size.
const STREAM_HEADER: usize = 16;

/// How the slots of a chain are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChainKind {
    /// CHAIN_EXEC_BUFFER_CF: START_CU packets.
    Cf,
    /// CHAIN_EXEC_DPU: START_NPU packets.
    Dpu,
    /// CHAIN_EXEC_NPU: each slot says what it is.
    Npu,
}

/// A CHAIN_EXEC message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chain {
    /// Layout of the slots.
    pub(crate) kind: ChainKind,
    /// Their address.
    pub(crate) buffer: u64,
    /// Their bytes.
    pub(crate) bytes: u32,
    /// How many.
    pub(crate) count: u32,
    /// When the client handed it over, in timing mode.
    pub(crate) submitted: i64,
}

/// The answer to a CHAIN_EXEC message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChainStatus {
    /// 0, or that something failed.
    pub(crate) status: u32,
    /// Which command failed.
    pub(crate) fail_index: u32,
    /// And how; never 0 if one did.
    pub(crate) fail_status: u32,
}

/// What comes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// An answer.
    Answer(ChainStatus),
    /// No answer, ever: a command hangs.
    Silence {
        /// Which one.
        index: u32,
    },
}

/// Why a command did not end well.
enum Failure {
    Status(u32),
    Hang,
}

impl Firmware {
    /// Runs a chain's commands in order, up to the first that fails.
    pub(crate) fn run_chain(&self, id: u32, chain: Chain, memory: &dyn ContextMemory) -> Reply {
        let mut due = chain.submitted;
        let reply = self.run_slots(id, chain, memory, &mut due);
        if let Some(timeline) = &self.timeline {
            timeline.wait(due);
        }
        reply
    }

    /// As [`Firmware::run_chain`], without taking the time of a timing mode: `due` is when the last command ends.
    fn run_slots(&self, id: u32, chain: Chain, memory: &dyn ContextMemory, due: &mut i64) -> Reply {
        let done = ChainStatus { status: status::SUCCESS, fail_index: 0, fail_status: 0 };
        let failed = |fail_index, fail_status| {
            self.stats.update(|counts| counts.failed_commands += 1);
            Reply::Answer(ChainStatus { status: status::APP_ERROR, fail_index, fail_status })
        };
        let Some(context) = self.context(id) else { return failed(0, status::MGMT_INVALID_PARAM) };
        if context.lock().heap_pieces == 0 {
            return failed(0, status::RTOS_INVALID_BUFFER);
        }
        let slots = match read(memory, chain.buffer, chain.bytes as usize) {
            Ok(slots) => slots,
            Err(status) => return failed(0, status),
        };
        let mut rest = &slots[..];
        for index in 0..chain.count {
            let parsed = slot::parse(chain.kind, rest);
            let (command, taken) = match parsed {
                Ok(parsed) => parsed,
                Err(status) => {
                    self.note_fault(format!("command slot {index} is malformed"));
                    return failed(index, status);
                }
            };
            rest = &rest[taken..];
            match self.run_command(id, &context, command.as_ref(), memory, chain.submitted, due) {
                Ok(()) => {}
                Err(Failure::Hang) => return Reply::Silence { index },
                Err(Failure::Status(status)) => return failed(index, status),
            }
        }
        Reply::Answer(done)
    }

    fn run_command(
        &self,
        id: u32,
        context: &Context,
        command: Option<&Command>,
        memory: &dyn ContextMemory,
        submitted: i64,
        due: &mut i64,
    ) -> Result<(), Failure> {
        let mut array = self.array.lock().unwrap_or_else(PoisonError::into_inner);
        let switched = array.replace(id).is_some_and(|last| last != id);
        let number = self.stats.update(|counts| {
            counts.context_switches += u64::from(switched);
            counts.commands += 1;
            counts.commands - 1
        });
        let [hang, fail, raises] = {
            let faults = self.faults();
            [faults.hang_command, faults.fail_command, faults.async_error].map(|at| at == Some(number))
        };
        if raises {
            self.raise();
        }
        if hang {
            return Err(Failure::Hang);
        }
        if fail {
            self.note_fault(format!("command {number} fails as it was told to"));
            return Err(Failure::Status(status::APP_ERROR));
        }
        let mut state = context.lock();
        let cu = command.map_or(0, |command| command.cu);
        self.load(&mut state, cu, memory).map_err(Failure::Status)?;
        let Some(command) = command else { return Ok(()) };
        let stream = self.stream(command, memory).map_err(Failure::Status)?;
        let Some((_, loaded)) = &mut state.loaded else { return Err(Failure::Status(status::APP_LOAD_PDI_FAIL)) };
        let contracts =
            |sha256: [u8; 32]| self.contracts.read().unwrap_or_else(PoisonError::into_inner).get(&sha256).copied();
        if let Some(timeline) = &self.timeline {
            let cost = timeline.cost(&stream, || loaded.cost(&stream, command.args.len(), &contracts));
            let cost = cost.map_err(|fault| {
                self.note_fault(fault.to_string());
                Failure::Status(status::AIE_ACCESS)
            })?;
            if let Some(&output) = command.args.get(2)
                && timeline.first_to(output)
            {
                let bytes = memory.extent(output).unwrap_or(0).min(cost.written) as usize;
                let filled = front::write_device(memory, output, &ordinary_values(bytes, cost.element));
                filled.map_err(|_| Failure::Status(status::AIE_ACCESS))?;
            }
            let scheduled = timeline.schedule(submitted, &cost, switched);
            *due = scheduled.due;
            self.stats.update(|counts| {
                counts.bytes_read += cost.bytes - cost.written;
                counts.bytes_written += cost.written;
                counts.array_ns += scheduled.work as u64;
                counts.device_ns += scheduled.exposed as u64;
            });
            return Ok(());
        }
        // A defect of the array layer must not take the worker with it: its client would wait for ever.
        let result =
            catch_unwind(AssertUnwindSafe(|| loaded.execute(&stream, &command.args, memory, &contracts, &self.pool)));
        let result = result.unwrap_or_else(|_| {
            Err(Fault { op_index: u32::MAX, what: "the array model panicked".into(), hangs: false })
        });
        match result {
            Ok(executed) => {
                self.stats.update(|counts| {
                    counts.operations += executed.ops;
                    counts.bytes_read += executed.bytes_read;
                    counts.bytes_written += executed.bytes_written;
                });
                Ok(())
            }
            Err(fault) => {
                self.note_fault(fault.to_string());
                Err(if fault.hangs { Failure::Hang } else { Failure::Status(status::AIE_ACCESS) })
            }
        }
    }

    /// The instruction stream of a command. Its header knows its size; the packet's word must be that many bytes, or
    /// that many words, as older hosts passed.
    fn stream(&self, command: &Command, memory: &dyn ContextMemory) -> Result<Vec<u8>, u32> {
        let (addr, len) = command.stream;
        let header = read(memory, addr, STREAM_HEADER).inspect_err(|_| {
            self.note_fault(format!("no instruction stream at {addr:#x}"));
        })?;
        let size = header[12..].iter().rev().fold(0, |word, &byte| word << 8 | u32::from(byte));
        if size < STREAM_HEADER as u32 || (size != len && u64::from(size) != u64::from(len) * 4) {
            self.note_fault(format!(
                "the instruction stream at {addr:#x} has {size} bytes by its header, {len} by its command"
            ));
            return Err(status::RTOS_INVALID_PARAM);
        }
        if memory.extent(addr).is_none_or(|rest| rest < u64::from(size)) {
            self.note_fault(format!("the instruction stream at {addr:#x} of {size} bytes leaves its buffer"));
            return Err(status::RTOS_INVALID_BUFFER);
        }
        read(memory, addr, size as usize)
    }
}
