//! Handle tables: the lowest free number from 1, as the kernel's idr gives them.

use std::collections::BTreeMap;

/// Things by handle.
#[derive(Debug)]
pub(super) struct Handles<T> {
    by_handle: BTreeMap<u32, T>,
}

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Self { by_handle: BTreeMap::new() }
    }
}

impl<T: Clone> Handles<T> {
    /// The handle that the next thing gets.
    pub(super) fn next(&self) -> u32 {
        let mut next = 1;
        if let Some((&last, _)) = self.by_handle.last_key_value() {
            if last as usize == self.by_handle.len() {
                return last.saturating_add(1);
            }
            for &handle in self.by_handle.keys() {
                if handle != next {
                    break;
                }
                next += 1;
            }
        }
        next
    }

    /// Adds a thing.
    pub(super) fn insert(&mut self, thing: T) -> u32 {
        let handle = self.next();
        self.by_handle.insert(handle, thing);
        handle
    }

    /// Adds a thing under a number that the caller chose.
    pub(super) fn insert_at(&mut self, handle: u32, thing: T) {
        self.by_handle.insert(handle, thing);
    }

    /// Finds a thing.
    pub(super) fn get(&self, handle: u32) -> Option<T> {
        self.by_handle.get(&handle).cloned()
    }

    /// Takes a thing out.
    pub(super) fn remove(&mut self, handle: u32) -> Option<T> {
        self.by_handle.remove(&handle)
    }

    /// All things, by handle.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.by_handle.iter().map(|(&handle, thing)| (handle, thing))
    }

    /// Takes everything out.
    pub(super) fn take(&mut self) -> Vec<T> {
        std::mem::take(&mut self.by_handle).into_values().collect()
    }
}
