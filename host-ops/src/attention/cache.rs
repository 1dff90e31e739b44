//! Keys and values that a layer remembers.

use super::{
    text::Shape,
    tile::{BLOCK, Block, Data, PANEL, key_at, values_at},
};
use crate::{
    bf16::{self, bf16 as Bf16},
    simd,
};
use half::{f16, slice::HalfFloatSliceExt};
use std::sync::Arc;

/// What a cache holds numbers as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KvFormat {
    /// f32: 4 bytes a number.
    #[default]
    F32,
    /// Keys as f16, values as bf16: 2 bytes a number. Keys are normed, so f16's range is no limit and its rounding,
    /// 2^-11, is the finer one; values that come from a bf16 projection lose nothing.
    Half,
}

impl KvFormat {
    /// Bytes of a number.
    pub fn bytes(self) -> usize {
        match self {
            KvFormat::F32 => 4,
            KvFormat::Half => 2,
        }
    }
}

/// Keys and values of one layer, in pages of [`BLOCK`] tokens that come as the context grows. `Clone` is a cheap
/// snapshot: pages are shared until one side writes to them.
#[derive(Debug, Clone)]
pub struct KvCache {
    shape: Shape,
    format: KvFormat,
    len: usize,
    pages: Vec<Arc<Page>>,
}

/// Up to [`BLOCK`] tokens: keys `[kv_heads, keys of a block]`, values `[kv_heads, values of a block]`, see [`Data`].
#[derive(Debug, Clone)]
pub(super) enum Page {
    Full(Vec<f32>, Vec<f32>),
    Half(Vec<f16>, Vec<Bf16>),
}

impl Page {
    fn new(format: KvFormat, len: usize) -> Self {
        // Zeros straight from the system: memory that no token has reached is not touched.
        match format {
            KvFormat::F32 => Page::Full(vec![0.0; len], vec![0.0; len]),
            KvFormat::Half => Page::Half(vec![f16::ZERO; len], vec![Bf16::ZERO; len]),
        }
    }

    /// Writes token `slot`. `keys`, `values`: `[kv_heads, head_dim]`.
    pub(super) fn put(&mut self, head_dim: usize, slot: usize, keys: &[f32], values: &[f32]) {
        match self {
            Page::Full(k, v) => {
                put_keys(head_dim, slot, keys, k, |x, out| out.copy_from_slice(x));
                put_values(head_dim, slot, values, v, |x, out| out.copy_from_slice(x));
            }
            Page::Half(k, v) => {
                put_keys(head_dim, slot, keys, k, |x, out| out.convert_from_f32_slice(x));
                put_values(head_dim, slot, values, v, bf16::from_f32);
            }
        }
    }
}

fn put_keys<T: Copy + Default>(
    head_dim: usize,
    slot: usize,
    keys: &[f32],
    out: &mut [T],
    convert: impl Fn(&[f32], &mut [T]),
) {
    const PART: usize = 64;
    let mut part = [T::default(); PART];
    for (key, out) in keys.chunks_exact(head_dim).zip(out.chunks_exact_mut(head_dim * BLOCK)) {
        let out = out[key_at(head_dim, slot, 0)..].iter_mut().step_by(PANEL);
        let mut out = out.take(head_dim);
        for key in key.chunks(PART) {
            let part = &mut part[..key.len()];
            convert(key, part);
            part.iter().zip(&mut out).for_each(|(x, out)| *out = *x);
        }
    }
}

fn put_values<T>(head_dim: usize, slot: usize, values: &[f32], out: &mut [T], convert: impl Fn(&[f32], &mut [T])) {
    for (value, out) in values.chunks_exact(head_dim).zip(out.chunks_exact_mut(head_dim * BLOCK)) {
        for (i, value) in value.chunks(PANEL).enumerate() {
            convert(value, &mut out[values_at(head_dim, slot, i * PANEL)]);
        }
    }
}

impl KvCache {
    /// An empty cache of f32.
    pub fn new(shape: Shape) -> Self {
        Self::with_format(shape, KvFormat::F32)
    }

    /// An empty cache.
    pub fn with_format(shape: Shape, format: KvFormat) -> Self {
        KvCache { shape, format, len: 0, pages: Vec::new() }
    }

    /// What it holds numbers as.
    pub fn format(&self) -> KvFormat {
        self.format
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

    /// Forgets all tokens from `len` on, and lets their pages go.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        self.pages.truncate(self.len.div_ceil(BLOCK));
    }

    /// Forgets all tokens; keeps pages for the first 4096 of the next ones, as far as nobody shares them.
    pub fn clear(&mut self) {
        const KEPT: usize = 4096 / BLOCK;
        self.len = 0;
        self.pages.truncate(KEPT);
        self.pages.retain(|page| Arc::strong_count(page) == 1);
    }

    /// Reads keys and values, the newest first and up to so many bytes of them, so that they are in the cache when a
    /// token comes.
    pub fn touch(&self, mut bytes: usize) {
        for page in self.pages[..self.len.div_ceil(BLOCK)].iter().rev() {
            let size = self.page_len() * 2 * self.format.bytes();
            if size > bytes {
                return;
            }
            bytes -= size;
            match &**page {
                Page::Full(k, v) => [k, v].iter().for_each(|x| simd::touch(x, size)),
                Page::Half(k, v) => {
                    simd::touch(k, size);
                    simd::touch(v, size);
                }
            }
        }
    }

    /// Memory of its pages, in bytes (pages shared with a snapshot included).
    pub fn bytes(&self) -> usize {
        self.pages.len() * self.page_len() * 2 * self.format.bytes()
    }

    /// A copy of the key (normed, turned) of a token and head: `[head_dim]`.
    ///
    /// # Panics
    /// If there is no such token or head.
    pub fn key(&self, token: usize, kv_head: usize) -> Vec<f32> {
        let at = |d: usize| key_at(self.shape.head_dim, token % BLOCK, d);
        let dims = 0..self.shape.head_dim;
        match self.at(token, kv_head) {
            Block::Full(data) => dims.map(|d| data.keys[at(d)]).collect(),
            Block::Half(data) => dims.map(|d| data.keys[at(d)].to_f32()).collect(),
        }
    }

    /// A copy of the value of a token and head: `[head_dim]`.
    ///
    /// # Panics
    /// If there is no such token or head.
    pub fn value(&self, token: usize, kv_head: usize) -> Vec<f32> {
        let at = |d: usize| values_at(self.shape.head_dim, token % BLOCK, d / PANEL * PANEL).start + d % PANEL;
        let dims = 0..self.shape.head_dim;
        match self.at(token, kv_head) {
            Block::Full(data) => dims.map(|d| data.values[at(d)]).collect(),
            Block::Half(data) => dims.map(|d| data.values[at(d)].to_f32()).collect(),
        }
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

    pub(super) fn page(&self, i: usize) -> &Page {
        &self.pages[i]
    }

    /// Block `i` of a head.
    pub(super) fn block(&self, i: usize, kv_head: usize) -> Block<'_> {
        let len = self.shape.head_dim * BLOCK;
        let at = kv_head * len..(kv_head + 1) * len;
        match &*self.pages[i] {
            Page::Full(k, v) => Block::Full(Data { keys: &k[at.clone()], values: &v[at] }),
            Page::Half(k, v) => Block::Half(Data { keys: &k[at.clone()], values: &v[at] }),
        }
    }

    /// Makes room for `n` more tokens and counts them as held; returns the pages they fall into, none of them shared
    /// any more, and the slot of the first.
    pub(super) fn grow(&mut self, n: usize) -> (&mut [Arc<Page>], usize) {
        let (first, slot) = (self.len / BLOCK, self.len % BLOCK);
        self.len += n;
        let (pages, page_len) = (self.len.div_ceil(BLOCK), self.page_len());
        while self.pages.len() < pages {
            self.pages.push(Arc::new(Page::new(self.format, page_len)));
        }
        let pages = &mut self.pages[first.min(pages)..pages];
        for page in pages.iter_mut() {
            Arc::make_mut(page);
        }
        (pages, slot)
    }
}
