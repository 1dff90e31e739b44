//! The arithmetic of Qwen3.5 around the commands of the NPU.

mod error;

pub use error::ModelError;
