//! Keys and values that a layer remembers.

use super::{
    text::Shape,
    tile::{BLOCK, Block},
};
use std::sync::Arc;

/// Keys and values of one layer, f32, in pages of [`BLOCK`] tokens that come as the context grows. `Clone` is a cheap
/// snapshot: pages are shared until one side writes to them.
#[derive(Debug, Clone)]
pub struct KvCache {
    shape: Shape,
    len: usize,
    pages: Vec<Arc<Page>>,
}

/// Up to [`BLOCK`] tokens.
#[derive(Debug, Clone)]
pub(super) struct Page {
    /// `[kv_heads, head_dim, BLOCK]`: keys stand side by side, so that one query value meets eight keys in a vector.
    keys: Vec<f32>,
    /// `[kv_heads, BLOCK, head_dim]`.
    values: Vec<f32>,
}

impl Page {
    /// Writes token `slot`. `keys`, `values`: `[kv_heads, head_dim]`.
    pub(super) fn put(&mut self, head_dim: usize, slot: usize, keys: &[f32], values: &[f32]) {
        for (i, &key) in keys.iter().enumerate() {
            self.keys[i * BLOCK + slot] = key;
        }
        for (g, value) in values.chunks_exact(head_dim).enumerate() {
            self.values[(g * BLOCK + slot) * head_dim..][..head_dim].copy_from_slice(value);
        }
    }
}

impl KvCache {
    /// An empty cache.
    pub fn new(shape: Shape) -> Self {
        KvCache { shape, len: 0, pages: Vec::new() }
    }

    /// The shape it was made for.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Tokens it holds.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Forgets all tokens from `len` on; keeps the memory.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Memory of its pages, in bytes (pages shared with a snapshot included).
    pub fn bytes(&self) -> usize {
        self.pages.len() * self.page_len() * 2 * size_of::<f32>()
    }

    /// A copy of the key (normed, turned) of a token and head: `[head_dim]`.
    ///
    /// # Panics
    /// If there is no such token or head.
    pub fn key(&self, token: usize, kv_head: usize) -> Vec<f32> {
        let block = self.at(token, kv_head);
        block.keys.iter().skip(token % BLOCK).step_by(BLOCK).copied().collect()
    }

    /// The value of a token and head: `[head_dim]`.
    ///
    /// # Panics
    /// If there is no such token or head.
    pub fn value(&self, token: usize, kv_head: usize) -> &[f32] {
        &self.at(token, kv_head).values[token % BLOCK * self.shape.head_dim..][..self.shape.head_dim]
    }

    fn at(&self, token: usize, kv_head: usize) -> Block<'_> {
        assert!(
            token < self.len && kv_head < self.shape.kv_heads,
            "token {token} of {}, head {kv_head} of {}",
            self.len,
            self.shape.kv_heads
        );
        self.block(token / BLOCK, kv_head)
    }

    fn page_len(&self) -> usize {
        self.shape.kv_heads * self.shape.head_dim * BLOCK
    }

    /// Block `i` of a head.
    pub(super) fn block(&self, i: usize, kv_head: usize) -> Block<'_> {
        let len = self.shape.head_dim * BLOCK;
        let at = kv_head * len..(kv_head + 1) * len;
        Block { keys: &self.pages[i].keys[at.clone()], values: &self.pages[i].values[at] }
    }

    /// Makes room for `n` more tokens and counts them as held; returns the pages they fall into, none of them shared
    /// any more, and the slot of the first.
    pub(super) fn grow(&mut self, n: usize) -> (&mut [Arc<Page>], usize) {
        let (first, slot) = (self.len / BLOCK, self.len % BLOCK);
        self.len += n;
        let (pages, page_len) = (self.len.div_ceil(BLOCK), self.page_len());
        while self.pages.len() < pages {
            // Zeros straight from the system: memory that no token has reached is not touched.
            self.pages.push(Arc::new(Page { keys: vec![0.0; page_len], values: vec![0.0; page_len] }));
        }
        let pages = &mut self.pages[first.min(pages)..pages];
        for page in pages.iter_mut() {
            Arc::make_mut(page);
        }
        (pages, slot)
    }
}
