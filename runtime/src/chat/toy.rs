//! A model of a few lines for tests of conversations: it remembers its tokens.

use std::ops::ControlFlow;

use super::machine::{Machine, Piece};
use crate::model::ModelError;

/// Stands for a row of a picture.
pub(super) const PAD: u32 = 299;
/// Tokens it knows.
pub(super) const VOCAB: usize = 300;

/// What it remembers: tokens, and of pictures their rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Memory {
    pub(super) items: Vec<(u32, u32)>,
    /// Layers have come to different tokens.
    sick: bool,
}

#[derive(Debug, Default)]
pub(super) struct Toy {
    memory: Memory,
    logits: Vec<f32>,
    /// Calls of `append` and `decode` together after which the next one fails.
    pub(super) fails_after: Option<usize>,
    /// Tokens that were computed.
    pub(super) computed: usize,
}

impl Toy {
    /// What may follow.
    pub(super) fn logits(&mut self) -> Result<&[f32], ModelError> {
        self.logits.clear();
        let seed = hash(&self.memory.items);
        self.logits.extend((0..VOCAB as u64).map(|i| ((seed ^ (i * 0x9e37_79b9)) % 1009) as f32 / 1009.0));
        Ok(&self.logits)
    }

    fn call(&mut self) -> Result<(), ModelError> {
        assert!(!self.memory.sick, "used after it was broken off");
        match &mut self.fails_after {
            Some(0) => {
                self.memory.sick = true;
                Err(ModelError::NoNumbers)
            }
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

/// FNV-1a over the items.
pub(super) fn hash(items: &[(u32, u32)]) -> u64 {
    let bytes = items.iter().flat_map(|(a, b)| [*a, *b]).flat_map(u32::to_le_bytes);
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

impl Machine for Toy {
    type Sequence = Memory;
    type Snapshot = Memory;

    fn fresh(&self) -> Memory {
        Memory::default()
    }

    fn swap(&mut self, other: &mut Memory) -> bool {
        std::mem::swap(&mut self.memory, other);
        true
    }

    fn fork(sequence: &Memory) -> Memory {
        sequence.clone()
    }

    fn held(&self) -> usize {
        if self.memory.sick { 0 } else { self.memory.items.len() }
    }

    fn reset(&mut self) {
        self.memory = Memory::default();
    }

    fn snapshot(&self) -> Memory {
        assert!(!self.memory.sick);
        self.memory.clone()
    }

    fn restore(&mut self, to: &Memory) -> bool {
        self.memory = to.clone();
        true
    }

    fn measure(snapshot: &Memory) -> (usize, usize) {
        (snapshot.items.len(), 100)
    }

    fn append(
        &mut self,
        piece: &Piece<'_>,
        marks: &[usize],
        progress: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> Result<Option<Vec<Memory>>, ModelError> {
        self.call()?;
        assert!(!piece.ids.is_empty() && marks.is_sorted() && marks.iter().all(|&m| 0 < m && m < piece.ids.len()));
        let mut rows = piece.rows.iter();
        let mut taken = Vec::new();
        for (index, &id) in piece.ids.iter().enumerate() {
            if marks.contains(&index) {
                taken.push(self.memory.clone());
            }
            let row = if id == PAD { rows.next().map_or(1, |row| row.to_bits()) } else { 0 };
            self.memory.items.push((id, row));
            self.computed += 1;
            if progress(index + 1).is_break() {
                self.memory.sick = true;
                return Ok(None);
            }
        }
        Ok(Some(taken))
    }

    fn decode(&mut self, id: u32) -> Result<&[f32], ModelError> {
        self.call()?;
        self.memory.items.push((id, 0));
        self.computed += 1;
        self.logits()
    }
}
