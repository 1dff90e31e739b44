//! What can go wrong in a chat.

use crate::bundle::BundleError;
use crate::model::ModelError;
use crate::npu::NpuError;

/// Why a bundle could not be loaded or a turn not be answered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChatError {
    /// The bundle is not usable.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// The device refused or failed.
    #[error(transparent)]
    Npu(#[from] NpuError),
    /// The model refused its input or failed.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The tokenizer is not one of Qwen3.5's sort.
    #[error("tokenizer.json: {0}")]
    Tokenizer(String),
    /// The prompt does not fit.
    #[error("the prompt has {prompt} tokens but the context holds {max_ctx}; shorten it or raise --max-ctx")]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens that the context holds.
        max_ctx: usize,
    },
    /// Nothing may be generated.
    #[error("no token may be generated (max_new is 0): an answer needs at least one")]
    NothingToSay,
    /// Pictures for a model that has no vision tower.
    #[error("{images} picture(s) given, but this bundle has no vision tower")]
    NoVision {
        /// Pictures of the turn.
        images: usize,
    },
}
