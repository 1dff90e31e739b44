//! The management channel: what the firmware answers to each message (`aie2_msg_priv.h`, `aie2_message.c`).

use super::State;
use super::guest::GuestMemory;
use super::mailbox::{Channel, Message};
use crate::config::{COLUMN_STATUS, Config};
use crate::firmware::{Firmware, status};

/// What the mailbox's messages are called.
pub(super) mod opcode {
    pub(crate) const CREATE_CONTEXT: u32 = 0x002;
    pub(crate) const DESTROY_CONTEXT: u32 = 0x003;
    pub(crate) const GET_TELEMETRY: u32 = 0x004;
    pub(crate) const SYNC_BO: u32 = 0x007;
    pub(crate) const EXECUTE_BUFFER_CF: u32 = 0x00c;
    pub(crate) const QUERY_COL_STATUS: u32 = 0x00d;
    pub(crate) const QUERY_AIE_TILE_INFO: u32 = 0x00e;
    pub(crate) const QUERY_AIE_VERSION: u32 = 0x00f;
    pub(crate) const EXEC_DPU: u32 = 0x010;
    pub(crate) const CONFIG_CU: u32 = 0x011;
    pub(crate) const CHAIN_EXEC_BUFFER_CF: u32 = 0x012;
    pub(crate) const CHAIN_EXEC_DPU: u32 = 0x013;
    pub(crate) const CONFIG_DEBUG_BO: u32 = 0x014;
    pub(crate) const CHAIN_EXEC_NPU: u32 = 0x018;
    pub(crate) const SUSPEND: u32 = 0x101;
    pub(crate) const RESUME: u32 = 0x102;
    pub(crate) const ASSIGN_MGMT_PASID: u32 = 0x103;
    pub(crate) const MAP_HOST_BUFFER: u32 = 0x106;
    pub(crate) const GET_FIRMWARE_VERSION: u32 = 0x108;
    pub(crate) const SET_RUNTIME_CONFIG: u32 = 0x10a;
    pub(crate) const GET_RUNTIME_CONFIG: u32 = 0x10b;
    pub(crate) const REGISTER_ASYNC_EVENT: u32 = 0x10c;
    pub(crate) const UPDATE_PROPERTY: u32 = 0x113;
    pub(crate) const GET_APP_HEALTH: u32 = 0x114;
    pub(crate) const ADD_HOST_BUFFER: u32 = 0x115;
    pub(crate) const GET_DEV_REVISION: u32 = 0x117;
    pub(crate) const GET_PROTOCOL_VERSION: u32 = 0x301;
}

/// The answer to an opcode that the firmware does not know.
const INVALID_COMMAND: u32 = 0x0400_0002;
/// Bytes of the application health report, and of its version 2.0.
const HEALTH_BYTES: usize = 560;

/// Reads the fields of a payload; what is not there is zero.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fields<'a>(pub &'a [u8]);

impl Fields<'_> {
    pub(super) fn word(self, at: usize) -> u32 {
        self.0.get(at..at + 4).map_or(0, |b| b.iter().rev().fold(0, |w, &b| w << 8 | u32::from(b)))
    }
    pub(super) fn long(self, at: usize) -> u64 {
        u64::from(self.word(at)) | u64::from(self.word(at + 4)) << 32
    }
}

/// Answers one management message; `None` where no answer is due now.
pub(super) fn answer(
    message: &Message,
    state: &mut State,
    guest: &GuestMemory,
    firmware: &Firmware,
    config: &Config,
) -> Option<Vec<u32>> {
    let f = Fields(&message.payload);
    Some(match message.opcode {
        opcode::CREATE_CONTEXT => {
            if config.faults.management_silent {
                return None;
            }
            create_context(state, firmware)
        }
        opcode::DESTROY_CONTEXT => {
            let id = f.word(0);
            match state.contexts.remove(&id) {
                Some(context) => {
                    context.channel.reset(&mut state.bars);
                    firmware.destroy_context(id);
                    vec![status::SUCCESS]
                }
                None => vec![status::MGMT_INVALID_PARAM],
            }
        }
        opcode::MAP_HOST_BUFFER | opcode::ADD_HOST_BUFFER => {
            let (id, addr, bytes) = (f.word(0), f.long(4), f.long(12));
            let answered = firmware.add_heap_piece(id, addr);
            if let (status::SUCCESS, Some(context)) = (answered, state.contexts.get_mut(&id)) {
                context.heaps.push((addr, bytes));
            }
            vec![answered]
        }
        opcode::GET_TELEMETRY => vec![1, 0, 0, status::SUCCESS],
        opcode::QUERY_COL_STATUS => column_status(f, guest),
        opcode::QUERY_AIE_TILE_INFO => tile_info(),
        opcode::QUERY_AIE_VERSION => vec![status::SUCCESS, 2],
        opcode::GET_FIRMWARE_VERSION => vec![status::SUCCESS, 1, 5, 2, 1],
        opcode::GET_RUNTIME_CONFIG => vec![status::SUCCESS, 0, 0],
        opcode::REGISTER_ASYNC_EVENT => {
            state.async_events.push((message.id, f.long(0), f.word(8)));
            return None;
        }
        opcode::GET_APP_HEALTH => health(f, guest),
        opcode::GET_DEV_REVISION => vec![status::SUCCESS, 0, 0],
        opcode::GET_PROTOCOL_VERSION => vec![status::SUCCESS, config.protocol.0, config.protocol.1],
        opcode::SUSPEND
        | opcode::RESUME
        | opcode::ASSIGN_MGMT_PASID
        | opcode::SET_RUNTIME_CONFIG
        | opcode::UPDATE_PROPERTY => vec![status::SUCCESS],
        _ => vec![INVALID_COMMAND],
    })
}

/// 76 bytes: status, context id, vector and number of ring pairs, two ring pairs of which one is used.
fn create_context(state: &mut State, firmware: &Firmware) -> Vec<u32> {
    let mut out = vec![0; 19];
    let taken = |c: usize| state.contexts.values().any(|x| x.channel.0 == c);
    let free = (1..super::mailbox::CHANNELS).find(|&c| !taken(c));
    match (firmware.create_context(), free) {
        (Ok(id), Some(index)) => {
            let channel = Channel(index);
            channel.reset(&mut state.bars);
            state.generation += 1;
            let context = super::Context { channel, heaps: Vec::new(), generation: state.generation };
            state.contexts.insert(id, context);
            out[1] = id;
            out[2] = index as u32 | 1 << 16;
            out[3..11].copy_from_slice(&channel.rings());
        }
        (Ok(id), None) => {
            firmware.destroy_context(id);
            out[0] = status::MGMT_NOAVAIL;
        }
        (Err(answer), _) => out[0] = answer,
    }
    out
}

/// Version 2.0, 8 columns of 6 rows: shim, memory, four of cores; DMA channels, locks and events of AIE2P tiles.
fn tile_info() -> Vec<u32> {
    let halves: [u16; 20] = [2, 0, 8, 6, 4, 1, 1, 2, 1, 0, 2, 6, 2, 16, 64, 16, 128, 160, 128, 0];
    let mut out = vec![status::SUCCESS, COLUMN_STATUS];
    out.extend(halves.chunks_exact(2).map(|p| u32::from(p[0]) | u32::from(p[1]) << 16));
    out
}

/// Writes the state of the columns asked for: nothing to be told of any.
fn column_status(f: Fields<'_>, guest: &GuestMemory) -> Vec<u32> {
    let (addr, room, columns) = (f.long(0), f.word(8), f.word(16).count_ones());
    let bytes = (columns * COLUMN_STATUS).min(room);
    match guest.write(addr, &vec![0; bytes as usize]) {
        true => vec![status::SUCCESS, bytes],
        false => vec![status::RTOS_INVALID_BUFFER, 0],
    }
}

/// Writes a report in which nothing is wrong but that no operation is under way.
fn health(f: Fields<'_>, guest: &GuestMemory) -> Vec<u32> {
    let (context, size, addr) = (f.word(0), f.word(4) as usize, f.long(8));
    let mut report = vec![0_u8; HEALTH_BYTES];
    for (at, word) in [(0, 2), (4, HEALTH_BYTES as u32), (8, context), (16, u32::MAX)] {
        report[at..at + 4].copy_from_slice(&word.to_le_bytes());
    }
    let written = guest.write(addr, &report[..size.min(HEALTH_BYTES)]);
    let mut out = vec![0; 9];
    out[0] = if written { status::SUCCESS } else { status::RTOS_INVALID_BUFFER };
    out[1] = HEALTH_BYTES as u32;
    out
}
