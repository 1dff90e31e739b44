//! A layer's state as a snapshot, and as bytes that outlive the process.

use super::{
    State,
    recurrence::{CHUNK, Fades},
};

impl Clone for State {
    fn clone(&self) -> Self {
        State {
            shape: self.shape,
            conv: self.conv.clone(),
            oldest: self.oldest,
            recurrent: self.recurrent.clone(),
            pending: self.pending,
            deltas: self.deltas.clone(),
            keys: self.keys.clone(),
            fades: self.fades.clone(),
        }
    }

    fn clone_from(&mut self, from: &Self) {
        (self.shape, self.oldest, self.pending) = (from.shape, from.oldest, from.pending);
        self.conv.clone_from(&from.conv);
        self.recurrent.clone_from(&from.recurrent);
        self.deltas.clone_from(&from.deltas);
        self.keys.clone_from(&from.keys);
        self.fades.clone_from(&from.fades);
    }
}

impl State {
    /// Bytes of [`State::store`], the same for any number of tokens.
    pub fn stored_bytes(&self) -> usize {
        let floats = self.conv.len() + self.recurrent.len() + self.deltas.len() + self.keys.len();
        8 + 4 * (floats + self.fades.len() * (1 + CHUNK))
    }

    /// Adds the state to `out`, bit by bit: two u32, then f32, all little-endian.
    pub fn store(&self, out: &mut Vec<u8>) {
        out.reserve(self.stored_bytes());
        [self.oldest, self.pending].iter().for_each(|&x| out.extend((x as u32).to_le_bytes()));
        for floats in [&self.conv, &self.recurrent, &self.deltas, &self.keys] {
            floats.iter().for_each(|x| out.extend(x.to_le_bytes()));
        }
        self.fades.iter().flat_map(Fades::values).for_each(|x| out.extend(x.to_le_bytes()));
    }

    /// Takes over what [`State::store`] has written of a state of this shape. Gives whether it was one; if not, nothing
    /// has changed.
    #[must_use]
    pub fn load(&mut self, bytes: &[u8]) -> bool {
        let mut words = bytes.as_chunks::<4>().0.iter().copied();
        let mut index = || words.next().map_or(usize::MAX, |word| u32::from_le_bytes(word) as usize);
        let (oldest, pending) = (index(), index());
        // An index past the end would be a panic later on.
        if bytes.len() != self.stored_bytes()
            || pending >= CHUNK
            || oldest >= self.shape.conv_kernel.saturating_sub(1).max(1)
        {
            return false;
        }
        (self.oldest, self.pending) = (oldest, pending);
        let mut floats = words.map(f32::from_le_bytes);
        let own = [&mut self.conv, &mut self.recurrent, &mut self.deltas, &mut self.keys];
        own.into_iter().flatten().zip(&mut floats).for_each(|(own, x)| *own = x);
        for fades in &mut self.fades {
            let mut values = [1.0; 1 + CHUNK];
            values.iter_mut().zip(&mut floats).for_each(|(value, x)| *value = x);
            *fades = Fades::of(values);
        }
        true
    }
}
