//! From transfers to queue pushes: who may be pushed when, with four tasks a queue and a handful of descriptors.

use super::SpecError;
use super::txn::{Channel, Descriptor, Direction, Writer};

/// Tasks that a channel's queue holds.
const QUEUE_DEPTH: usize = 4;

/// Executions of one descriptor.
#[derive(Debug, Clone, Copy)]
pub(super) struct Task {
    /// What is transferred.
    pub(super) descriptor: Descriptor,
    /// Which buffer argument.
    pub(super) argument: u32,
    /// Byte offset in it.
    pub(super) offset: u64,
    /// Executions, 1..=256.
    pub(super) runs: usize,
    /// The step of the kernel's work that first needs it. Tasks are pushed in this order.
    pub(super) step: usize,
}

/// All that one channel transfers.
#[derive(Debug)]
pub(super) struct Lane {
    /// The channel.
    pub(super) channel: Channel,
    /// The first of four descriptors that are this lane's own.
    pub(super) first_id: u32,
    /// The tasks, in order.
    pub(super) tasks: Vec<Task>,
}

/// What a lane has under way.
struct State {
    /// The task that each of the four descriptors holds.
    loaded: [Option<(Descriptor, u32, u64)>; QUEUE_DEPTH],
    /// Descriptor of each task pushed and not known to be done, oldest first.
    outstanding: Vec<usize>,
    next_slot: usize,
    /// Whether every task gives a token: more tasks than the queue holds.
    tokens: bool,
}

/// Pushes every task, waits where a queue is full, and at the end for every token that was asked for.
///
/// Within a step the lanes are served in the order given; outputs and broadcast-free inputs first keeps the order free
/// of deadlocks: a wait in step s needs nothing that is pushed after it.
///
/// # Errors
/// A descriptor field overflows.
pub(super) fn emit(writer: &mut Writer, lanes: &[Lane]) -> Result<(), SpecError> {
    let mut states: Vec<State> = lanes
        .iter()
        .map(|lane| State {
            loaded: [None; QUEUE_DEPTH],
            outstanding: Vec::new(),
            next_slot: 0,
            tokens: lane.tasks.len() > QUEUE_DEPTH,
        })
        .collect();
    let mut order: Vec<(usize, usize)> = Vec::new();
    for (l, (lane, state)) in lanes.iter().zip(&states).enumerate() {
        order.extend((0..lane.tasks.len()).map(|t| (l, t)));
        let output = lane.channel.direction == Direction::S2mm;
        if !lane.tasks.is_empty() && (output || state.tokens) {
            writer.token_controller(lane.channel);
        }
    }
    order.sort_by_key(|&(l, t)| (lanes[l].tasks[t].step, l, t));
    for (l, t) in order {
        let (lane, state, task) = (&lanes[l], &mut states[l], &lanes[l].tasks[t]);
        if state.outstanding.len() == QUEUE_DEPTH {
            writer.wait(lane.channel);
            state.outstanding.remove(0);
        }
        let wanted = Some((task.descriptor, task.argument, task.offset));
        let slot = match state.loaded.iter().position(|held| *held == wanted) {
            Some(slot) => slot,
            None => {
                let slot = state.next_slot;
                state.next_slot = (slot + 1) % QUEUE_DEPTH;
                // A descriptor must not change under a task that still uses it.
                while state.outstanding.contains(&slot) {
                    writer.wait(lane.channel);
                    state.outstanding.remove(0);
                }
                let id = lane.first_id + slot as u32;
                writer.descriptor(lane.channel.column, id, &task.descriptor, task.argument, task.offset)?;
                state.loaded[slot] = wanted;
                slot
            }
        };
        let last_output = lane.channel.direction == Direction::S2mm && t + 1 == lane.tasks.len();
        writer.push(lane.channel, lane.first_id + slot as u32, task.runs, state.tokens || last_output);
        state.outstanding.push(slot);
    }
    for (lane, state) in lanes.iter().zip(&states) {
        let output = lane.channel.direction == Direction::S2mm && !lane.tasks.is_empty();
        let owed = if state.tokens { state.outstanding.len() } else { usize::from(output) };
        (0..owed).for_each(|_| writer.wait(lane.channel));
    }
    Ok(())
}
