//! Attention of the text model (gated, grouped, cached) and of the vision tower (full).
//!
//! Both run the same loop (`tile`): a few queries against one block of [`BLOCK`] keys at a time, with an online softmax.
//! Blocks start at multiples of [`BLOCK`] positions, so the order of every sum depends on positions alone.

mod cache;
mod stored;
mod text;
mod tile;
mod vision;

pub use cache::{KvCache, KvFormat};
pub use text::{Scratch, Shape, Weights, forward, forward_rows, remember_rows};
pub use tile::BLOCK;
pub use vision::{Scratch as VisionScratch, VisionShape, vision_forward, vision_keys, vision_rows};
