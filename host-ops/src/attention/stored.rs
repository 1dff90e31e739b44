//! Keys and values as bytes that outlive the process: by token, whatever pages look like.

use super::{
    cache::{KvCache, Page},
    tile::{BLOCK, PANEL, key_at, values_at},
};
use crate::bf16::bf16 as Bf16;
use half::f16;
use std::{ops::Range, sync::Arc};

/// A number that a cache holds, as little-endian bytes.
trait Number: Copy {
    const BYTES: usize;
    fn put(self, out: &mut Vec<u8>);
    /// From the first [`Number::BYTES`] bytes.
    fn get(from: &[u8]) -> Self;
}

macro_rules! number {
    ($type:ty, $bytes:literal) => {
        impl Number for $type {
            const BYTES: usize = $bytes;
            fn put(self, out: &mut Vec<u8>) {
                out.extend(self.to_le_bytes());
            }
            fn get(from: &[u8]) -> Self {
                let mut bytes = [0; $bytes];
                bytes.copy_from_slice(&from[..$bytes]);
                Self::from_le_bytes(bytes)
            }
        }
    };
}
number!(f32, 4);
number!(f16, 2);
number!(Bf16, 2);

impl KvCache {
    /// Bytes of a token in [`KvCache::store`].
    pub fn token_bytes(&self) -> usize {
        2 * self.shape().kv_width() * self.format().bytes()
    }

    /// Adds tokens to `out`, bit by bit as they are held: of each its keys, then its values, `[kv_heads, head_dim]`
    /// little-endian numbers of the cache's format.
    ///
    /// # Panics
    /// If there are no such tokens.
    pub fn store(&self, tokens: Range<usize>, out: &mut Vec<u8>) {
        assert!(tokens.end <= self.len(), "tokens {tokens:?} of {}", self.len());
        let hd = self.shape().head_dim;
        out.reserve(tokens.len() * self.token_bytes());
        for token in tokens {
            let slot = token % BLOCK;
            match self.page(token / BLOCK) {
                Page::Full(k, v) => {
                    store_keys(hd, slot, k, out);
                    store_values(hd, slot, v, out);
                }
                Page::Half(k, v) => {
                    store_keys(hd, slot, k, out);
                    store_values(hd, slot, v, out);
                }
            }
        }
    }

    /// Appends the tokens that [`KvCache::store`] has written of a cache of this shape and format.
    ///
    /// # Panics
    /// If `bytes` are not whole tokens.
    pub fn load(&mut self, bytes: &[u8]) {
        let (hd, size) = (self.shape().head_dim, self.token_bytes());
        assert!(bytes.len().is_multiple_of(size), "{} bytes of tokens of {size}", bytes.len());
        let (pages, first) = self.grow(bytes.len() / size);
        for (i, token) in bytes.chunks_exact(size).enumerate() {
            let (keys, values) = token.split_at(size / 2);
            // `grow` left these pages with one owner.
            let Some(page) = Arc::get_mut(&mut pages[(first + i) / BLOCK]) else { return };
            let slot = (first + i) % BLOCK;
            match page {
                Page::Full(k, v) => {
                    load_keys(hd, slot, keys, k);
                    load_values(hd, slot, values, v);
                }
                Page::Half(k, v) => {
                    load_keys(hd, slot, keys, k);
                    load_values(hd, slot, values, v);
                }
            }
        }
    }
}

fn store_keys<T: Number>(hd: usize, slot: usize, from: &[T], out: &mut Vec<u8>) {
    for head in from.chunks_exact(hd * BLOCK) {
        head[key_at(hd, slot, 0)..].iter().step_by(PANEL).take(hd).for_each(|x| x.put(out));
    }
}

fn store_values<T: Number>(hd: usize, slot: usize, from: &[T], out: &mut Vec<u8>) {
    for head in from.chunks_exact(hd * BLOCK) {
        (0..hd).step_by(PANEL).flat_map(|d| &head[values_at(hd, slot, d)]).for_each(|x| x.put(out));
    }
}

fn load_keys<T: Number>(hd: usize, slot: usize, from: &[u8], out: &mut [T]) {
    for (from, head) in from.chunks_exact(hd * T::BYTES).zip(out.chunks_exact_mut(hd * BLOCK)) {
        let head = head[key_at(hd, slot, 0)..].iter_mut().step_by(PANEL);
        from.chunks_exact(T::BYTES).zip(head).for_each(|(from, x)| *x = T::get(from));
    }
}

fn load_values<T: Number>(hd: usize, slot: usize, from: &[u8], out: &mut [T]) {
    for (from, head) in from.chunks_exact(hd * T::BYTES).zip(out.chunks_exact_mut(hd * BLOCK)) {
        for (i, from) in from.chunks(PANEL * T::BYTES).enumerate() {
            let panel = head[values_at(hd, slot, i * PANEL)].iter_mut();
            from.chunks_exact(T::BYTES).zip(panel).for_each(|(from, x)| *x = T::get(from));
        }
    }
}
