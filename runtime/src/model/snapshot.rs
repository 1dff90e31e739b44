//! Going back: copies of what the layers of a sequence remember at one place of it.
//!
//! What DeltaNet layers remember is copied, since every token overwrites it. Keys and values of attention layers only
//! grow, so their number is enough, as long as the rows are still those of the snapshot. A [`Lineage`] knows: it has the
//! number of every cut and the length that was left, and a snapshot is whole if nothing since has cut into it.

use std::sync::atomic::{AtomicU64, Ordering};

use host_ops::delta;

use super::Model;
use super::layer::Mixer;

/// Why a snapshot cannot be restored. The sequence is as it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// It was taken of another model, or of this one before it was loaded again.
    #[error(
        "the snapshot of {len} tokens was taken of another model; only the model that it was taken of can restore it"
    )]
    OtherModel {
        /// Tokens of the snapshot.
        len: usize,
    },
    /// The sequence has been cut into since.
    #[error(
        "the snapshot of {len} tokens is stale: the sequence went back to {left} tokens since, and its keys and values \
         from there on are gone; prefill the tokens again"
    )]
    Stale {
        /// Tokens of the snapshot.
        len: usize,
        /// The fewest tokens that the sequence had since.
        left: usize,
    },
}

/// A place in a sequence to come back to.
///
/// It is as large as the recurrent and convolution states of the model, whatever the length of the sequence: see
/// [`Snapshot::bytes`]. [`Model::snapshot_into`] uses the memory of one that is not needed any more.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    stamp: Stamp,
    len: usize,
    next_position: u32,
    states: Vec<delta::State>,
    /// Output of the last layer for the last token: the logits at this place are made of it.
    last: Vec<f32>,
}

impl Snapshot {
    /// Tokens of the sequence at this place.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it is the place before the first token.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Position of the next token.
    #[must_use]
    pub fn next_position(&self) -> u32 {
        self.next_position
    }

    /// Bytes of memory that it takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.states.iter().map(delta::State::bytes).sum::<usize>() + size_of_val(&self.last[..])
    }
}

/// When a snapshot was taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Stamp {
    /// Of which model; no model has 0.
    model: u64,
    /// Cuts there had been.
    cuts: u64,
}

/// What has been cut off a sequence.
#[derive(Debug)]
pub(super) struct Lineage {
    now: Stamp,
    /// Number of a cut and the tokens that it left. A later cut that left no more makes an earlier one meaningless, so
    /// both numbers grow.
    cuts: Vec<(u64, usize)>,
}

impl Lineage {
    pub(super) fn new() -> Lineage {
        static MODELS: AtomicU64 = AtomicU64::new(1);
        Lineage { now: Stamp { model: MODELS.fetch_add(1, Ordering::Relaxed), cuts: 0 }, cuts: Vec::new() }
    }

    /// All but the first `left` tokens are gone from now on.
    pub(super) fn cut(&mut self, left: usize) {
        while self.cuts.last().is_some_and(|(_, earlier)| *earlier >= left) {
            self.cuts.pop();
        }
        self.now.cuts += 1;
        self.cuts.push((self.now.cuts, left));
    }

    /// Whether the first `len` tokens are those that were there at a stamp.
    fn check(&self, stamp: Stamp, len: usize) -> Result<(), SnapshotError> {
        if stamp.model != self.now.model {
            return Err(SnapshotError::OtherModel { len });
        }
        // The first cut that is later has left the least.
        let later = self.cuts.partition_point(|(number, _)| *number <= stamp.cuts);
        match self.cuts.get(later) {
            Some(&(_, left)) if left < len => Err(SnapshotError::Stale { len, left }),
            _ => Ok(()),
        }
    }
}

impl Model {
    /// The present place of the sequence, to come back to.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot::default();
        self.snapshot_into(&mut snapshot);
        snapshot
    }

    /// As [`Model::snapshot`], into the memory of one that is there.
    pub fn snapshot_into(&self, snapshot: &mut Snapshot) {
        let states = self.text.layers.iter().filter_map(|layer| match &layer.mixer {
            Mixer::Linear { state, .. } => Some(state),
            Mixer::Attention { .. } => None,
        });
        let mut count = 0;
        for state in states {
            match snapshot.states.get_mut(count) {
                Some(own) => own.clone_from(state),
                None => snapshot.states.push(state.clone()),
            }
            count += 1;
        }
        snapshot.states.truncate(count);
        snapshot.last.clone_from(&self.text.last);
        (snapshot.len, snapshot.next_position) = (self.len, self.next_position);
        snapshot.stamp = self.lineage.now;
    }

    /// Whether [`Model::restore`] would succeed.
    ///
    /// # Errors
    /// Why not.
    pub fn can_restore(&self, snapshot: &Snapshot) -> Result<(), SnapshotError> {
        self.lineage.check(snapshot.stamp, snapshot.len)
    }

    /// Back to a place of the sequence, from a later one, or after a prompt was broken off or has failed. What is
    /// appended from there on has the bits that it would have had. Snapshots of later places are stale then.
    ///
    /// # Errors
    /// A snapshot of another model, or one whose tokens are not in the sequence any more.
    pub fn restore(&mut self, snapshot: &Snapshot) -> Result<(), SnapshotError> {
        self.can_restore(snapshot)?;
        if self.rows() > snapshot.len {
            self.lineage.cut(snapshot.len);
        }
        let mut states = snapshot.states.iter();
        for layer in &mut self.text.layers {
            match &mut layer.mixer {
                Mixer::Linear { state, .. } => states.next().into_iter().for_each(|from| state.clone_from(from)),
                Mixer::Attention { cache, .. } => cache.truncate(snapshot.len),
            }
        }
        self.text.last.clone_from(&snapshot.last);
        (self.len, self.next_position, self.kept) = (snapshot.len, snapshot.next_position, 0);
        Ok(())
    }

    /// Bytes of memory that the sequence takes: states, and the pages of keys and values.
    #[must_use]
    pub fn sequence_bytes(&self) -> usize {
        let bytes = |mixer: &Mixer| match mixer {
            Mixer::Linear { state, .. } => state.bytes(),
            Mixer::Attention { cache, .. } => cache.bytes(),
        };
        self.text.layers.iter().map(|layer| bytes(&layer.mixer)).sum()
    }

    /// Tokens whose keys and values are there: those of the sequence, or, after a break-off, of the one before it.
    fn rows(&self) -> usize {
        self.len.max(self.kept)
    }

    /// Layers have come to different tokens: the sequence is empty, but keys and values of the tokens before stay until
    /// something is appended, for a snapshot to come back to.
    pub(super) fn lose(&mut self) {
        let kept = self.rows();
        for layer in &mut self.text.layers {
            match &mut layer.mixer {
                Mixer::Linear { state, .. } => state.reset(),
                Mixer::Attention { cache, .. } => cache.truncate(kept),
            }
        }
        (self.len, self.next_position, self.kept) = (0, 0, kept);
    }

    /// Something is about to be appended: to an empty sequence, nothing is kept any more.
    pub(super) fn begin(&mut self) {
        if self.kept > 0 {
            self.reset();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against a list of what every row is.
    #[test]
    fn a_lineage_knows_what_has_been_cut() {
        let (mut lineage, mut rows, mut stamps) = (Lineage::new(), Vec::new(), Vec::new());
        let (mut random, mut next) = (1_u64, 0);
        for _ in 0..3000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let value = (random >> 33) as usize;
            match value % 4 {
                0 | 1 => rows.extend((0..value / 4 % 7).map(|_| {
                    next += 1;
                    next
                })),
                2 => stamps.push((lineage.now, rows.clone())),
                _ => {
                    let left = rows.len() - (value / 4 % 12).min(rows.len());
                    if left < rows.len() {
                        rows.truncate(left);
                        lineage.cut(left);
                    }
                }
            }
            for (stamp, known) in &stamps {
                let whole = rows.starts_with(known);
                assert_eq!(lineage.check(*stamp, known.len()).is_ok(), whole, "{known:?} {rows:?}");
            }
            stamps.truncate(40);
            if stamps.len() == 40 {
                stamps.drain(..20);
            }
        }
        assert!(lineage.cuts.len() <= rows.len() + 1);
        let other = Lineage::new();
        assert_eq!(other.check(lineage.now, 3), Err(SnapshotError::OtherModel { len: 3 }));
        assert_eq!(other.check(Stamp::default(), 0), Err(SnapshotError::OtherModel { len: 0 }));
    }
}
