//! Commands of several lanes on their way through one queue, so that the NPU has one to run while the host works.
//!
//! A lane's commands are handed over in the order in which they were queued, as the device has room; a lane is ready
//! when all of its own have ended. Nothing here blocks but [`Pipeline::wait`], which is for when no lane is ready.

use std::collections::VecDeque;

use super::error::ModelError;
use super::profile::Projection;
use super::run::{Run, Sent};
use crate::npu::CommandId;

/// A command that waits for a place in the queue.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    lane: usize,
    command: CommandId,
    projection: Projection,
    layer: usize,
}

/// What a lane has under way.
#[derive(Clone, Copy, Debug, Default)]
struct Under {
    /// Commands that have not been handed over yet.
    queued: usize,
    /// The last one that has.
    last: Option<Sent>,
}

/// The commands of all lanes.
#[derive(Debug)]
pub(super) struct Pipeline {
    waiting: VecDeque<Waiting>,
    flying: VecDeque<Sent>,
    lanes: Vec<Under>,
    depth: usize,
}

impl Pipeline {
    /// With at most `depth` commands in flight.
    pub(super) fn new(depth: usize) -> Pipeline {
        Pipeline { waiting: VecDeque::new(), flying: VecDeque::new(), lanes: Vec::new(), depth }
    }

    /// Commands in flight at most.
    pub(super) fn depth(&self) -> usize {
        self.depth
    }

    /// Forgets what an error has left behind.
    pub(super) fn clear(&mut self) {
        self.waiting.clear();
        self.flying.clear();
        self.lanes.clear();
    }

    /// Has a command run as soon as there is room.
    pub(super) fn queue(&mut self, lane: usize, command: CommandId, projection: Projection, layer: usize) {
        if self.lanes.len() <= lane {
            self.lanes.resize(lane + 1, Under::default());
        }
        self.lanes[lane].queued += 1;
        self.waiting.push_back(Waiting { lane, command, projection, layer });
    }

    /// Hands over what waits, as far as there is room.
    pub(super) fn pump(&mut self, run: &mut Run<'_>) -> Result<(), ModelError> {
        while let Some(&next) = self.waiting.front() {
            if let Some(&first) = self.flying.front()
                && self.flying.len() >= self.depth
            {
                if !run.is_done(&first) {
                    break;
                }
                self.flying.pop_front();
                run.wait(&first)?;
            }
            self.waiting.pop_front();
            let sent = run.submit(next.command, next.projection, next.layer)?;
            self.flying.push_back(sent);
            let lane = &mut self.lanes[next.lane];
            (lane.queued, lane.last) = (lane.queued - 1, Some(sent));
        }
        Ok(())
    }

    /// Whether all commands of a lane have ended.
    pub(super) fn is_ready(&self, run: &Run<'_>, lane: usize) -> bool {
        let Some(lane) = self.lanes.get(lane) else { return true };
        lane.queued == 0 && lane.last.is_none_or(|last| run.is_done(&last))
    }

    /// Asks how the commands of a lane that is ready have ended, and hands others over.
    pub(super) fn settle(&mut self, run: &mut Run<'_>, lane: usize) -> Result<(), ModelError> {
        let last = self.lanes.get_mut(lane).and_then(|lane| lane.last.take());
        if let Some(last) = last
            && let Some(at) = self.flying.iter().position(|sent| sent.ticket == last.ticket)
        {
            // Those before it have ended too.
            self.flying.drain(..=at);
            run.wait(&last)?;
        }
        self.pump(run)
    }

    /// Waits until something has changed: no lane is ready.
    pub(super) fn wait(&mut self, run: &mut Run<'_>) -> Result<(), ModelError> {
        // Where commands wait for a place, the next one that ends makes one. Else the next that matters is the first
        // that is the last of its lane.
        let is_awaited = |sent: &Sent| self.lanes.iter().filter_map(|l| l.last).any(|last| last.ticket == sent.ticket);
        let awaited = match self.waiting.is_empty() {
            true => self.flying.iter().position(is_awaited).unwrap_or(0),
            false => 0,
        };
        if let Some(sent) = self.flying.get(awaited).copied() {
            self.flying.drain(..=awaited);
            run.wait(&sent)?;
        }
        self.pump(run)
    }
}
