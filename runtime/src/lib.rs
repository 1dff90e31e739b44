//! Qwen3.5 on the NPU: bundles, kernels, submission queues, the model, chat.

pub mod bundle;
pub mod export;
pub mod image;
pub mod reference;
pub mod txn;
pub mod xclbin;
