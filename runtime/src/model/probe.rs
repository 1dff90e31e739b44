//! Looking at hidden states as they pass, for tests.

use std::fmt;

/// A place in the text model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tap {
    /// What goes into the first layer.
    Embedding,
    /// A layer's first norm.
    Norm1(usize),
    /// What goes into a layer's `o` projection.
    OutputIn(usize),
    /// What a layer's mixer adds.
    Mixer(usize),
    /// A layer's second norm.
    Norm2(usize),
    /// What a layer's MLP adds.
    Mlp(usize),
    /// What comes out of a layer.
    Output(usize),
    /// The final norm of the last row.
    FinalNorm,
}

/// Takes a tap, the width of its rows, and the rows.
pub type Watch = Box<dyn FnMut(Tap, usize, &[f32]) + Send>;

/// A watch, if one is set. Without one every call is a branch.
#[derive(Default)]
pub(super) struct Probe {
    watch: Option<Watch>,
    before: Vec<f32>,
}

impl fmt::Debug for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Probe").field("watched", &self.watch.is_some()).finish()
    }
}

impl Probe {
    pub(super) fn set(&mut self, watch: Option<Watch>) {
        self.watch = watch;
    }

    pub(super) fn is_set(&self) -> bool {
        self.watch.is_some()
    }

    pub(super) fn tap(&mut self, tap: Tap, width: usize, rows: &[f32]) {
        if let Some(watch) = &mut self.watch {
            watch(tap, width, rows);
        }
    }

    /// Keeps the rows, to show what is added to them.
    pub(super) fn before(&mut self, rows: &[f32]) {
        if self.watch.is_some() {
            self.before.clear();
            self.before.extend_from_slice(rows);
        }
    }

    /// Shows what has been added since [`Probe::before`].
    pub(super) fn difference(&mut self, tap: Tap, width: usize, rows: &[f32]) {
        if let Some(watch) = &mut self.watch {
            self.before.iter_mut().zip(rows).for_each(|(before, now)| *before = now - *before);
            watch(tap, width, &self.before);
        }
    }
}
