//! What a conversation needs of a model.

use std::ops::ControlFlow;

use crate::model::{ModelError, Speculator};

/// Tokens to append, and what stands for the pictures among them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece<'a> {
    /// The tokens.
    pub(super) ids: &'a [u32],
    /// Patch rows and columns of each picture.
    pub(super) grids: &'a [[usize; 2]],
    /// The tower's rows for them, one after the other.
    pub(super) rows: &'a [f32],
}

/// A model with one sequence in its hands, which can be exchanged for another.
///
/// [`crate::model::Model`] is one. Conversations are tested on a smaller one.
pub(super) trait Machine {
    /// All that is remembered of the tokens of a sequence.
    type Sequence;
    /// The same at one point of it: enough to go back there.
    type Snapshot: Clone;

    /// An empty sequence.
    fn fresh(&self) -> Self::Sequence;
    /// Exchanges the sequence that the next calls are about. Not if it is another model's: then nothing changes.
    fn swap(&mut self, other: &mut Self::Sequence) -> bool;
    /// The same sequence once more, to go on in another way.
    fn fork(sequence: &Self::Sequence) -> Self::Sequence;
    /// Tokens of the sequence; less than were appended if it is of no use.
    fn held(&self) -> usize;
    /// Forgets all tokens.
    fn reset(&mut self);
    /// The point at which the sequence is.
    fn snapshot(&self) -> Self::Snapshot;
    /// Goes back to a point of this sequence, if it can; else nothing changes.
    fn restore(&mut self, to: &Self::Snapshot) -> bool;
    /// Tokens before a point, and the bytes that keeping it takes.
    fn measure(snapshot: &Self::Snapshot) -> (usize, usize);
    /// Appends tokens and gives the points behind so many of them, in ascending order. `progress` may break off: `None`,
    /// and the sequence holds nothing until it is restored.
    fn append(
        &mut self,
        piece: &Piece<'_>,
        marks: &[usize],
        progress: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> Result<Option<Vec<Self::Snapshot>>, ModelError>;
    /// Appends a token and gives what may follow.
    fn decode(&mut self, id: u32) -> Result<&[f32], ModelError>;

    /// Appends a token and gives the next one, by `choose`; of guesses, more may have been appended with it until
    /// [`Machine::settle`]. `room`: how many more tokens may follow.
    fn speak(
        &mut self,
        id: u32,
        _room: usize,
        _guess: &mut Speculator,
        choose: &mut dyn FnMut(&[f32]) -> Result<u32, ModelError>,
    ) -> Result<u32, ModelError> {
        choose(self.decode(id)?)
    }

    /// The answer has ended: nothing is held that was not said.
    fn settle(&mut self, _guess: &mut Speculator) {}
}
