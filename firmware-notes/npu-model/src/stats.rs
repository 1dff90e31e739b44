//! Counters.

use std::sync::{Mutex, PoisonError};

use crate::config::Counts;

/// Shared counters of a model.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    counts: Mutex<Counts>,
}

impl Stats {
    /// Changes counters, all at once, and reads them.
    pub(crate) fn update<T>(&self, change: impl FnOnce(&mut Counts) -> T) -> T {
        change(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
