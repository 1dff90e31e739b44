//! Command packets (ERT, `amdxdna_ctx.c`) and their conversion to the firmware's slots (`aie2_message.c`).

use std::sync::Arc;

use super::bo::Bo;
use crate::firmware::{ChainKind, Feature};
use crate::front::Memory;

/// States of a packet's header.
pub(super) mod state {
    pub(crate) const NEW: u32 = 1;
    pub(crate) const COMPLETED: u32 = 4;
    pub(crate) const ERROR: u32 = 5;
    pub(crate) const ABORT: u32 = 6;
    pub(crate) const TIMEOUT: u32 = 8;
}

const START_CU: u32 = 0;
const CMD_CHAIN: u32 = 19;
const START_NPU: u32 = 20;
const START_NPU_PREEMPT: u32 = 21;
const START_NPU_PREEMPT_ELF: u32 = 22;

/// Bytes of the driver's command buffer, which holds a chain's slots.
pub(super) const COMMAND_BUFFER: usize = 4096;
/// Offset of a chain packet's `error_index`.
pub(super) const ERROR_INDEX_AT: usize = 12;
/// Most words of properties and arguments of a START_NPU family slot.
pub(super) const NPU_ARGS_MAX: usize = 26;
/// Most words of a START_NPU slot of the older layout.
pub(super) const DPU_ARGS_MAX: usize = 34;

/// Why the driver does not hand a packet on. Its client learns nothing: the fence signals, the packet stays NEW.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refused;

/// A packet as read.
struct Packet {
    opcode: u32,
    /// Lowest bit of the first mask word that has one.
    cu: Option<u32>,
    /// `None` where the header's count leaves nothing or too much.
    payload: Option<Vec<u8>>,
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(bytes.iter().rev().fold(0, |word, &byte| word << 8 | u32::from(byte)))
}

/// Writes the state into a header, where nothing else changes.
pub(super) fn set_state(memory: &Memory, state: u32) {
    let mut header = [0; 4];
    memory.read(0, &mut header);
    let header = u32::from_le_bytes(header) & !0xf | state;
    memory.store_u32(0, header);
}

fn parse(memory: &Memory) -> Packet {
    let mut header = [0; 4];
    memory.read(0, &mut header);
    let header = u32::from_le_bytes(header);
    let opcode = header >> 23 & 0x1f;
    let count = (header >> 12 & 0x7ff) as usize;
    let masks = if opcode == CMD_CHAIN { 0 } else { 1 + (header >> 10 & 3) as usize };
    let payload = (count > masks && (count + 1) * 4 <= memory.len()).then(|| {
        let mut payload = vec![0; (count - masks) * 4];
        memory.read((1 + masks) * 4, &mut payload);
        payload
    });
    let mut mask_bytes = vec![0; masks * 4];
    memory.read(4, &mut mask_bytes);
    let cu = mask_bytes.chunks_exact(4).filter_map(|mask| word(mask, 0)).find(|&mask| mask != 0);
    Packet { opcode, cu: cu.map(u32::trailing_zeros), payload }
}

/// A packet as the firmware gets it.
pub(super) struct Converted {
    pub(super) kind: ChainKind,
    pub(super) slots: Vec<u8>,
    pub(super) count: u32,
    /// The first packet of a chain: where the driver leaves what went wrong. `None` for a single packet.
    pub(super) first: Option<Arc<Bo>>,
}

/// Converts a packet; `find` looks a chain's packets up.
pub(super) fn convert(
    memory: &Memory,
    protocol: (u32, u32),
    find: impl Fn(u32) -> Option<Arc<Bo>>,
) -> Result<Converted, Refused> {
    let packet = parse(memory);
    if packet.opcode != CMD_CHAIN {
        let kind = kind(packet.opcode, protocol)?;
        let mut slots = Vec::new();
        push_slot(&mut slots, kind, &packet)?;
        return Ok(Converted { kind, slots, count: 1, first: None });
    }
    let payload = packet.payload.ok_or(Refused)?;
    let count = word(&payload, 0).ok_or(Refused)?;
    if count == 0 || payload.len() < 24 || (payload.len() - 24) / 8 < count as usize {
        return Err(Refused);
    }
    let mut slots = Vec::new();
    let mut first: Option<(Arc<Bo>, u32, ChainKind)> = None;
    for i in 0..count as usize {
        let handle = word(&payload, 24 + 8 * i).ok_or(Refused)?;
        let bo = find(handle).ok_or(Refused)?;
        let packet = parse(bo.packet().ok_or(Refused)?);
        let (_, opcode, kind) = match &first {
            Some(first) => first,
            None => first.insert((Arc::clone(&bo), packet.opcode, kind(packet.opcode, protocol)?)),
        };
        if packet.opcode != *opcode {
            return Err(Refused);
        }
        push_slot(&mut slots, *kind, &packet)?;
    }
    let (first, _, kind) = first.ok_or(Refused)?;
    Ok(Converted { kind, slots, count, first: Some(first) })
}

fn kind(opcode: u32, protocol: (u32, u32)) -> Result<ChainKind, Refused> {
    let slots_say_it = Feature::NpuCommand.of(protocol);
    match opcode {
        START_CU if slots_say_it => Ok(ChainKind::Npu),
        START_NPU if slots_say_it => Ok(ChainKind::Npu),
        START_CU => Ok(ChainKind::Cf),
        START_NPU => Ok(ChainKind::Dpu),
        START_NPU_PREEMPT | START_NPU_PREEMPT_ELF if slots_say_it && Feature::Preempt.of(protocol) => {
            Ok(ChainKind::Npu)
        }
        _ => Err(Refused),
    }
}

fn push(slots: &mut Vec<u8>, words: &[u32]) {
    slots.extend(words.iter().flat_map(|word| word.to_le_bytes()));
}

fn push_slot(slots: &mut Vec<u8>, kind: ChainKind, packet: &Packet) -> Result<(), Refused> {
    let cu = match (packet.opcode, packet.cu) {
        (START_NPU_PREEMPT_ELF, _) => 0,
        (_, cu) => cu.ok_or(Refused)?,
    };
    let payload = packet.payload.as_deref();
    if packet.opcode == START_CU {
        // Without a payload it goes out with no arguments.
        let args = payload.unwrap_or(&[]);
        let words = args.len() as u32 / 4;
        match kind {
            ChainKind::Npu => push(slots, &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, cu, words]),
            ChainKind::Cf | ChainKind::Dpu => push(slots, &[cu, words]),
        }
        slots.extend(args);
        return within(slots);
    }
    let payload = payload.ok_or(Refused)?;
    let head = if packet.opcode == START_NPU { 16 } else { 40 };
    if payload.len() < head {
        return Err(Refused);
    }
    let at = |offset| word(payload, offset).ok_or(Refused);
    let args = &payload[head..];
    let words = args.len() as u32 / 4;
    let most = if kind == ChainKind::Dpu { DPU_ARGS_MAX } else { NPU_ARGS_MAX };
    if packet.opcode != START_NPU_PREEMPT_ELF && words as usize > most {
        return Err(Refused);
    }
    match (packet.opcode, kind) {
        (START_NPU, ChainKind::Dpu) => {
            push(slots, &[at(0)?, at(4)?, at(8)?, at(12)?, cu, words]);
            slots.extend(args);
        }
        (START_NPU, _) => {
            push(slots, &[2, at(0)?, at(4)?, 0, 0, 0, 0, at(8)?, 0, 0, at(12)?, cu, words]);
            slots.extend(args);
        }
        (opcode, _) => {
            let r#type = if opcode == START_NPU_PREEMPT { 3 } else { 4 };
            let mut slot = vec![r#type];
            for i in 0..10 {
                slot.push(at(i * 4)?);
            }
            if opcode == START_NPU_PREEMPT {
                slot.extend([cu, words]);
                push(slots, &slot);
                slots.extend(args);
            } else {
                // One argument, "transaction"; what the packet brought is dropped.
                slot.extend([0, 1, 3]);
                push(slots, &slot);
            }
        }
    }
    within(slots)
}

fn within(slots: &[u8]) -> Result<(), Refused> {
    if slots.len() <= COMMAND_BUFFER { Ok(()) } else { Err(Refused) }
}
