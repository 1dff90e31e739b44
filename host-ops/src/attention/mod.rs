//! Attention of the text model (gated, grouped, cached) and of the vision tower (full).

mod text;
mod vision;

pub use text::{KvCache, Scratch, Shape, Weights, forward};
pub use vision::{Scratch as VisionScratch, VisionShape, vision_forward};
