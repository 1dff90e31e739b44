//! What layers remember of a sequence: as a value of its own, and frozen at a place to come back to.
//!
//! What DeltaNet layers remember is copied, since every token overwrites it. Keys and values are in pages that copies
//! share until one of them writes, so a copy of a long sequence is as cheap as that of a short one, and no copy can see
//! what another has written since.

use std::sync::Arc;

use host_ops::{attention, delta};

use super::Model;
use super::layer::Mixer;

/// A sequence, or a snapshot of one, that was made of another model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the sequence of {len} tokens was made of another model; only the model that made it can go on with it: prefill its \
     tokens, or save and load it"
)]
pub struct OtherModel {
    /// Tokens of the sequence.
    pub len: usize,
}

/// What one layer remembers.
#[derive(Debug)]
pub(super) enum Memory {
    Linear(delta::State),
    Attention(attention::KvCache),
}

impl Clone for Memory {
    fn clone(&self) -> Self {
        match self {
            Memory::Linear(state) => Memory::Linear(state.clone()),
            Memory::Attention(cache) => Memory::Attention(cache.clone()),
        }
    }

    fn clone_from(&mut self, from: &Self) {
        match (self, from) {
            (Memory::Linear(own), Memory::Linear(state)) => own.clone_from(state),
            (own, from) => *own = from.clone(),
        }
    }
}

impl Memory {
    /// What a layer remembers of no tokens.
    fn empty(mixer: &Mixer) -> Memory {
        match mixer {
            Mixer::Linear { shape, .. } => Memory::Linear(delta::State::new(*shape)),
            Mixer::Attention { shape, cache, .. } => {
                Memory::Attention(attention::KvCache::with_format(*shape, cache.format()))
            }
        }
    }

    /// What a layer remembers now.
    fn of(mixer: &Mixer) -> Memory {
        match mixer {
            Mixer::Linear { state, .. } => Memory::Linear(state.clone()),
            Mixer::Attention { cache, .. } => Memory::Attention(cache.clone()),
        }
    }

    /// The same, in the memory that is there.
    fn take(&mut self, mixer: &Mixer) {
        match (self, mixer) {
            (Memory::Linear(own), Mixer::Linear { state, .. }) => own.clone_from(state),
            (own, mixer) => *own = Memory::of(mixer),
        }
    }

    /// Gives a layer what it remembered then.
    fn give(&self, mixer: &mut Mixer) {
        match (self, mixer) {
            (Memory::Linear(own), Mixer::Linear { state, .. }) => state.clone_from(own),
            (Memory::Attention(own), Mixer::Attention { cache, .. }) => cache.clone_from(own),
            // A sequence of this model has its layers.
            _ => {}
        }
    }

    fn swap(&mut self, mixer: &mut Mixer) {
        match (self, mixer) {
            (Memory::Linear(own), Mixer::Linear { state, .. }) => std::mem::swap(own, state),
            (Memory::Attention(own), Mixer::Attention { cache, .. }) => std::mem::swap(own, cache),
            _ => {}
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Memory::Linear(state) => state.bytes(),
            Memory::Attention(cache) => cache.bytes(),
        }
    }
}

/// A sequence that is not in the model's hands: [`Model::swap_sequence`].
#[derive(Clone, Debug)]
pub struct Sequence {
    model: u64,
    pub(super) len: usize,
    pub(super) next_position: u32,
    /// Of each layer.
    pub(super) memories: Vec<Memory>,
    /// Output of the last layer for the last token: the logits are made of it.
    pub(super) last: Vec<f32>,
}

impl Sequence {
    /// A sequence without tokens.
    #[must_use]
    pub fn new(model: &Model) -> Sequence {
        Sequence {
            model: model.id,
            len: 0,
            next_position: 0,
            memories: model.text.layers.iter().map(|layer| Memory::empty(&layer.mixer)).collect(),
            last: vec![0.0; model.text.last.len()],
        }
    }

    /// A sequence of so many tokens whose keys and values nobody has computed, to measure long contexts with.
    #[must_use]
    pub fn synthetic(model: &Model, tokens: usize) -> Sequence {
        let mut sequence = Sequence::new(model);
        for memory in &mut sequence.memories {
            if let Memory::Attention(cache) = memory {
                let size = cache.token_bytes();
                let mut bytes = Vec::with_capacity(64 * size);
                for first in (0..tokens).step_by(64) {
                    bytes.clear();
                    // Small numbers, whatever the format.
                    let words =
                        (0..size / 2 * (tokens - first).min(64)).map(|i| 0x3000 | ((i * 37 + first) as u16 & 0x3ff));
                    bytes.extend(words.flat_map(u16::to_le_bytes));
                    cache.load(&bytes);
                }
            }
        }
        (sequence.len, sequence.next_position) = (tokens, tokens as u32);
        sequence
    }

    /// Tokens.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Position of the next token.
    #[must_use]
    pub fn next_position(&self) -> u32 {
        self.next_position
    }

    /// Bytes of memory, pages that are shared with copies included.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.memories.iter().map(Memory::bytes).sum::<usize>() + size_of_val(&self.last[..])
    }

    /// A copy of it that goes its own way; keys and values are shared as far as they are the same.
    #[must_use]
    pub fn fork(&self) -> Sequence {
        self.clone()
    }

    fn fits(&self, model: &Model) -> Result<(), OtherModel> {
        if self.model == model.id { Ok(()) } else { Err(OtherModel { len: self.len }) }
    }
}

/// A sequence as it was at some place. A clone is the same one.
///
/// What is its own is as large as the recurrent and convolution states, whatever the length ([`Snapshot::bytes`]); keys
/// and values are shared with the sequence, and stay here when they are gone there.
#[derive(Clone, Debug)]
pub struct Snapshot(Arc<Sequence>);

impl Snapshot {
    /// Tokens of the sequence at this place.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Whether it is the place before the first token.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// Position of the next token.
    #[must_use]
    pub fn next_position(&self) -> u32 {
        self.0.next_position
    }

    /// Bytes of memory that it does not share.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let own = self.0.memories.iter().filter(|memory| matches!(memory, Memory::Linear(_)));
        own.map(Memory::bytes).sum::<usize>() + size_of_val(&self.0.last[..])
    }

    /// Whether this model made it.
    #[must_use]
    pub fn is_of(&self, model: &Model) -> bool {
        self.0.fits(model).is_ok()
    }

    /// A sequence that goes on from here.
    #[must_use]
    pub fn sequence(&self) -> Sequence {
        Sequence::clone(&self.0)
    }

    pub(super) fn frozen(&self) -> &Sequence {
        &self.0
    }
}

/// Snapshots on their way, of places inside of a prompt: layers come past one after the other.
#[derive(Debug, Default)]
pub(super) struct Marks {
    /// Tokens of the prompt before each place, ascending and none of them 0; and what there is of the snapshot.
    places: Vec<(usize, Sequence)>,
}

impl Marks {
    /// Where a unit's rows (tokens of the prompt) have to be cut: places in it, as rows of it.
    pub(super) fn within(&self, rows: &std::ops::Range<usize>) -> impl Iterator<Item = usize> {
        let inside = self.places.iter().filter(|(place, _)| rows.start < *place && *place <= rows.end);
        inside.map(|(place, _)| place - rows.start)
    }

    /// A layer has come to a place.
    pub(super) fn pass(&mut self, place: usize, layer: usize, mixer: &Mixer) {
        for (_, sequence) in self.places.iter_mut().filter(|(own, _)| *own == place) {
            let mut memory = Memory::of(mixer);
            if let Memory::Attention(cache) = &mut memory {
                cache.truncate(sequence.len);
            }
            debug_assert_eq!(sequence.memories.len(), layer, "layers come in their order");
            sequence.memories.push(memory);
        }
    }

    /// Rows of the prompt have left the last layer.
    pub(super) fn leave(&mut self, rows: &std::ops::Range<usize>, d: usize, hidden: &[f32]) {
        for (place, sequence) in &mut self.places {
            if rows.start < *place && *place <= rows.end {
                sequence.last.copy_from_slice(&hidden[(*place - rows.start - 1) * d..][..d]);
            }
        }
    }
}

impl Model {
    /// Exchanges the sequence that the next calls are about. Nothing is copied.
    ///
    /// # Errors
    /// A sequence of another model; nothing has changed then.
    pub fn swap_sequence(&mut self, other: &mut Sequence) -> Result<(), OtherModel> {
        other.fits(self)?;
        self.run = None;
        for (layer, memory) in self.text.layers.iter_mut().zip(&mut other.memories) {
            memory.swap(&mut layer.mixer);
        }
        std::mem::swap(&mut self.text.last, &mut other.last);
        std::mem::swap(&mut self.len, &mut other.len);
        std::mem::swap(&mut self.next_position, &mut other.next_position);
        Ok(())
    }

    /// The present place of the sequence, to come back to.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(Arc::new(self.fork()))
    }

    /// As [`Model::snapshot`], in the memory of one that is not needed any more and has no clones.
    pub fn snapshot_into(&self, snapshot: &mut Snapshot) {
        let Some(own) = Arc::get_mut(&mut snapshot.0).filter(|own| own.model == self.id) else {
            *snapshot = self.snapshot();
            return;
        };
        own.memories.iter_mut().zip(&self.text.layers).for_each(|(own, layer)| own.take(&layer.mixer));
        own.last.clone_from(&self.text.last);
        (own.len, own.next_position) = (self.len, self.next_position);
    }

    /// Back, or forth, to a place of this or another sequence of this model. What is appended from there on has the bits
    /// that it would have had, and so have the logits of the place itself.
    ///
    /// # Errors
    /// A snapshot of another model; the sequence is as it was then.
    pub fn restore(&mut self, snapshot: &Snapshot) -> Result<(), OtherModel> {
        let from = snapshot.frozen();
        from.fits(self)?;
        self.run = None;
        for (layer, memory) in self.text.layers.iter_mut().zip(&from.memories) {
            memory.give(&mut layer.mixer);
        }
        self.text.last.clone_from(&from.last);
        (self.len, self.next_position) = (from.len, from.next_position);
        Ok(())
    }

    /// A copy of the sequence that goes its own way.
    #[must_use]
    pub fn fork(&self) -> Sequence {
        Sequence {
            model: self.id,
            len: self.len,
            next_position: self.next_position,
            memories: self.text.layers.iter().map(|layer| Memory::of(&layer.mixer)).collect(),
            last: self.text.last.clone(),
        }
    }

    /// Bytes of memory that the sequence takes: states, and the pages of keys and values.
    #[must_use]
    pub fn sequence_bytes(&self) -> usize {
        let bytes = |mixer: &Mixer| match mixer {
            Mixer::Linear { state, .. } => state.bytes(),
            Mixer::Attention { cache, .. } => cache.bytes(),
        };
        self.text.layers.iter().map(|layer| bytes(&layer.mixer)).sum::<usize>() + size_of_val(&self.text.last[..])
    }

    /// What snapshots at `places` (tokens of the prompt before each) are made of on the way.
    pub(super) fn marks(&self, places: &[usize], positions: &super::Positions) -> Marks {
        let sequence = |&place: &usize| {
            let next_position = positions.tokens.get(place).map_or(positions.next, |position| position[0]);
            let memories = Vec::with_capacity(self.text.layers.len());
            let last = vec![0.0; self.text.last.len()];
            (place, Sequence { model: self.id, len: self.len + place, next_position, memories, last })
        };
        Marks { places: places.iter().filter(|place| **place > 0).map(sequence).collect() }
    }

    /// The snapshots, when the prompt is in.
    pub(super) fn passed(marks: Marks) -> impl Iterator<Item = Snapshot> {
        marks.places.into_iter().map(|(_, sequence)| Snapshot(Arc::new(sequence)))
    }
}
