//! The model as conversations see it.

use std::ops::ControlFlow;

use super::machine::{Machine, Piece};
use crate::model::{Input, Model, ModelError, Sequence, Snapshot, Speculator};

impl Machine for Model {
    type Sequence = Sequence;
    type Snapshot = Snapshot;

    fn fresh(&self) -> Sequence {
        Sequence::new(self)
    }

    fn swap(&mut self, other: &mut Sequence) -> bool {
        self.swap_sequence(other).is_ok()
    }

    fn fork(sequence: &Sequence) -> Sequence {
        sequence.fork()
    }

    fn held(&self) -> usize {
        self.len()
    }

    fn reset(&mut self) {
        Model::reset(self);
    }

    fn snapshot(&self) -> Snapshot {
        Model::snapshot(self)
    }

    fn restore(&mut self, to: &Snapshot) -> bool {
        Model::restore(self, to).is_ok()
    }

    fn measure(snapshot: &Snapshot) -> (usize, usize) {
        (snapshot.len(), snapshot.bytes())
    }

    fn append(
        &mut self,
        piece: &Piece<'_>,
        marks: &[usize],
        progress: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> Result<Option<Vec<Snapshot>>, ModelError> {
        let positions = self.positions(piece.ids, piece.grids)?;
        let input = Input { ids: piece.ids, positions: &positions, vision: piece.rows };
        self.prefill_marked(&input, marks, progress)
    }

    fn decode(&mut self, id: u32) -> Result<&[f32], ModelError> {
        Model::decode(self, id)
    }

    fn speak(
        &mut self,
        id: u32,
        room: usize,
        guess: &mut Speculator,
        choose: &mut dyn FnMut(&[f32]) -> Result<u32, ModelError>,
    ) -> Result<u32, ModelError> {
        guess.next(self, id, room, choose)
    }

    fn settle(&mut self, guess: &mut Speculator) {
        // What could not be taken back would be seen: the model holds too much then, and goes back to a mark.
        let _ = guess.finish(self);
    }
}
