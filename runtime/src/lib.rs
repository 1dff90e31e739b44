//! Qwen3.5 on the NPU: bundles, kernels, submission queues, the model, chat.
//!
//! From the bottom: [`bundle`] reads what an exporter wrote, [`npu`] turns it into hardware contexts, buffer objects
//! and commands of the amdxdna driver, [`model`] is the arithmetic of Qwen3.5 around these commands, [`chat`] is text
//! in and text out. [`check`] compares the whole with the references of a bundle, [`export`] writes a bundle, [`verify`] looks whether one
//! is whole.

pub mod bundle;
pub mod chat;
pub mod check;
pub mod checksums;
pub mod date;
pub mod eval;
pub mod export;
pub mod files;
pub mod image;
pub mod model;
pub mod npu;
pub mod pdi;
pub mod reference;
pub mod txn;
pub mod verify;
pub mod xclbin;

pub use chat::{Chat, ChatError, Event, LoadOptions, Outcome, Progress, Stop, Timing, Turn};
