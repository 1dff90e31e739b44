//! What the model has of a conversation: which tokens, with which pictures, and where it can go back to.

use std::ops::{ControlFlow, Deref, DerefMut};

use super::machine::{Machine, Piece};
use super::marks::{Mark, MarkLimits, Marks};
use crate::model::{ModelError, Speculator};

/// A picture's place among tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    /// Its first token.
    pub(super) at: usize,
    /// How many tokens it takes.
    pub(super) tokens: usize,
    /// Hash of the picture.
    pub(super) hash: [u8; 32],
    /// Its patch rows and columns.
    pub(super) grid: [usize; 2],
}

/// Tokens, and which pictures stand in them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tokens {
    /// The tokens; those of pictures are all the same one.
    pub(super) ids: Vec<u32>,
    /// Places of pictures, in order.
    pub(super) spans: Vec<Span>,
}

impl Tokens {
    /// How many tokens two have in common from their beginning. A place of a picture is the same only if the picture is.
    pub(super) fn common(&self, other: &Tokens) -> usize {
        let same = self.ids.iter().zip(&other.ids).take_while(|(a, b)| a == b).count();
        let differ = self.spans.iter().zip(&other.spans).find(|(a, b)| a != b);
        // One may have a picture where the other has none, or has it written out.
        let beyond = |spans: &[Span], from: usize| spans.get(from).map(|span| span.at);
        let shorter = self.spans.len().min(other.spans.len());
        let places = [differ.map(|(a, b)| a.at.min(b.at)), beyond(&self.spans, shorter), beyond(&other.spans, shorter)];
        self.outside(places.into_iter().flatten().fold(same, usize::min))
    }

    /// The place itself, or the beginning of the picture that it lies in.
    fn outside(&self, at: usize) -> usize {
        let inside = self.spans.iter().find(|span| span.at < at && at < span.at + span.tokens);
        inside.map_or(at, |span| span.at)
    }

    pub(super) fn truncate(&mut self, len: usize) {
        self.ids.truncate(len);
        self.spans.retain(|span| span.at + span.tokens <= len);
    }
}

/// A sequence of the model, and what is known of it.
#[derive(Debug)]
pub(super) struct State<M: Machine> {
    sequence: Option<M::Sequence>,
    /// What the sequence holds.
    tokens: Tokens,
    marks: Marks<M::Snapshot>,
    pub(super) limits: MarkLimits,
}

impl<M: Machine> Default for State<M> {
    fn default() -> Self {
        State { sequence: None, tokens: Tokens::default(), marks: Marks::default(), limits: MarkLimits::default() }
    }
}

impl<M: Machine> State<M> {
    /// What the model holds.
    pub(super) fn tokens(&self) -> &Tokens {
        &self.tokens
    }

    /// What going back costs in memory.
    pub(super) fn mark_bytes(&self) -> usize {
        self.marks.bytes()
    }

    /// The same once more: what is held is shared until either goes on.
    pub(super) fn fork(&self) -> State<M> {
        State {
            sequence: self.sequence.as_ref().map(M::fork),
            tokens: self.tokens.clone(),
            marks: self.marks.clone(),
            limits: self.limits,
        }
    }

    /// The last place to go back to: tokens before it, and what the model remembered there.
    pub(super) fn last_mark(&self) -> Option<(usize, &M::Snapshot)> {
        self.marks.latest(usize::MAX).map(|mark| (mark.len, &mark.snapshot))
    }

    /// Holds a sequence of these tokens from now on.
    pub(super) fn adopt(&mut self, sequence: M::Sequence, tokens: Tokens) {
        self.forget();
        (self.sequence, self.tokens) = (Some(sequence), tokens);
    }

    /// Holds nothing any more.
    pub(super) fn forget(&mut self) {
        *self = State { limits: self.limits, ..State::default() };
    }

    /// The sequence, if there is one yet.
    pub(super) fn sequence(&self) -> Option<&M::Sequence> {
        self.sequence.as_ref()
    }

    /// Puts the sequence into the model's hands, until the seat is dropped.
    pub(super) fn seat<'a>(&'a mut self, machine: &'a mut M) -> Seat<'a, M> {
        if self.sequence.as_mut().is_some_and(|sequence| !machine.swap(sequence)) {
            // It was read by another model.
            self.forget();
        }
        if self.sequence.is_none() {
            let mut fresh = machine.fresh();
            machine.swap(&mut fresh);
            self.sequence = Some(fresh);
        }
        let State { sequence, tokens, marks, limits } = self;
        Seat { machine, sequence, tokens, marks, limits: *limits }
    }
}

/// A state whose sequence is in the model's hands.
#[derive(Debug)]
pub(super) struct Seat<'a, M: Machine> {
    machine: &'a mut M,
    /// What the model held before.
    sequence: &'a mut Option<M::Sequence>,
    tokens: &'a mut Tokens,
    marks: &'a mut Marks<M::Snapshot>,
    limits: MarkLimits,
}

impl<M: Machine> Drop for Seat<'_, M> {
    fn drop(&mut self) {
        // Whatever an error, or a panic in somebody's callback, has left behind.
        if self.machine.held() != self.tokens.ids.len() {
            self.go_back(usize::MAX);
        }
        if let Some(sequence) = self.sequence {
            self.machine.swap(sequence);
        }
    }
}

impl<M: Machine> Deref for Seat<'_, M> {
    type Target = M;
    fn deref(&self) -> &M {
        self.machine
    }
}

impl<M: Machine> DerefMut for Seat<'_, M> {
    fn deref_mut(&mut self) -> &mut M {
        self.machine
    }
}

impl<M: Machine> Seat<'_, M> {
    #[cfg(test)]
    pub(super) fn held_tokens(&self) -> &Tokens {
        self.tokens
    }

    /// Goes back as far as it has to for `wanted` to be a continuation with at least one token more. Gives how many tokens
    /// are held then.
    pub(super) fn rewind(&mut self, wanted: &Tokens) -> usize {
        let common = self.tokens.common(wanted);
        let whole = common == self.tokens.ids.len() && self.machine.held() == common;
        if !(whole && common < wanted.ids.len()) {
            self.go_back(common.min(wanted.ids.len().saturating_sub(1)));
        }
        self.tokens.ids.len()
    }

    /// To the last mark that has at most `len` tokens before it, or to the beginning.
    fn go_back(&mut self, len: usize) {
        let mut at = len;
        while let Some(mark) = self.marks.latest(at) {
            let to = mark.len;
            if self.machine.restore(&mark.snapshot) && self.machine.held() == to {
                self.tokens.truncate(to);
                self.marks.cut(to);
                return;
            }
            // One that cannot be returned to is no use; an older one may be.
            self.marks.cut(to.saturating_sub(1));
            let Some(before) = to.checked_sub(1) else { break };
            at = before;
        }
        self.machine.reset();
        self.tokens.truncate(0);
        self.marks.cut(0);
    }

    /// Appends what `wanted` has beyond the tokens that are held, of which [`Seat::rewind`] has seen that they agree, and
    /// keeps the places `marks` of it to go back to. Gives whether it came to its end; if not, the state is back at a
    /// place of before.
    pub(super) fn append(
        &mut self,
        wanted: &Tokens,
        rows: &[f32],
        marks: &[usize],
        progress: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> Result<bool, ModelError> {
        let held = self.tokens.ids.len();
        // The end of what was said so far: where the next words are taken back to, and where a failure ends.
        if held > 0 && !self.marks.has(held) {
            self.keep(self.machine.snapshot());
        }
        let mut places: Vec<usize> = marks.iter().map(|&at| wanted.outside(at)).collect();
        places.retain(|&at| held < at && at < wanted.ids.len() && !self.marks.has(at));
        places.sort_unstable();
        places.dedup();
        places.iter_mut().for_each(|at| *at -= held);
        let grids: Vec<[usize; 2]> = wanted.spans.iter().filter(|span| span.at >= held).map(|s| s.grid).collect();
        let piece = Piece { ids: &wanted.ids[held..], grids: &grids, rows };
        match self.machine.append(&piece, &places, progress) {
            Ok(Some(snapshots)) => {
                *self.tokens = wanted.clone();
                snapshots.into_iter().for_each(|snapshot| self.keep(snapshot));
                self.marks.thin(self.limits);
                Ok(true)
            }
            other => {
                self.go_back(held);
                other.map(|_| false)
            }
        }
    }

    fn keep(&mut self, snapshot: M::Snapshot) {
        let (len, bytes) = M::measure(&snapshot);
        self.marks.add(Mark { len, snapshot, bytes });
    }

    /// Appends one token and gives the one that follows, see [`Machine::speak`]. After a failure the state is back at a
    /// place of before.
    pub(super) fn speak(
        &mut self,
        id: u32,
        room: usize,
        guess: &mut Speculator,
        choose: &mut dyn FnMut(&[f32]) -> Result<u32, ModelError>,
    ) -> Result<u32, ModelError> {
        self.tokens.ids.push(id);
        self.machine.speak(id, room, guess, choose)
    }

    /// Appends one token and gives what may follow. After a failure the state is back at a place of before.
    #[cfg(test)]
    pub(super) fn push(&mut self, id: u32) -> Result<&[f32], ModelError> {
        self.tokens.ids.push(id);
        // The seat goes back when it is dropped, since what is held is not what it should be then.
        self.machine.decode(id)
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
