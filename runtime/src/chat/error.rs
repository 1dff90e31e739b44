//! What can go wrong in a chat.

use crate::bundle::BundleError;
use crate::model::ModelError;
use crate::npu::NpuError;

use super::grammar::GrammarError;
use super::sampler::SamplingError;
use super::stops::StopError;
use super::template::TemplateError;

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
    /// The model refused its input or failed, for another reason than those above.
    #[error(transparent)]
    Model(ModelError),
    /// The tokenizer is not one of Qwen3.5's sort.
    #[error("tokenizer.json: {0}")]
    Tokenizer(String),
    /// The conversation does not become a prompt.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// How tokens are to be chosen makes no sense, or the model gives nothing to choose from.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// An answer cannot be held to what was asked for.
    #[error(transparent)]
    Grammar(#[from] GrammarError),
    /// Stop strings that make no sense.
    #[error(transparent)]
    Stops(#[from] StopError),
    /// The prompt does not fit.
    #[error(
        "the prompt has {prompt} tokens but the context holds {max_ctx}, and an answer needs one of them; shorten it or \
         raise --max-ctx"
    )]
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

impl ChatError {
    /// Whether the device is to blame: another one may do better.
    #[must_use]
    pub fn is_device(&self) -> bool {
        matches!(self, Self::Npu(_) | Self::Model(ModelError::Npu(_)))
    }
}

/// What the model passes on from the device and the bundle is theirs, wherever in loading it came up.
impl From<ModelError> for ChatError {
    fn from(error: ModelError) -> Self {
        match error {
            ModelError::Bundle(error) => Self::Bundle(error),
            ModelError::Npu(error) => Self::Npu(error),
            other => Self::Model(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_to_blame_wherever_it_failed() {
        assert!(ChatError::from(NpuError::Lost).is_device());
        assert!(ChatError::from(ModelError::from(NpuError::Lost)).is_device());
        assert!(ChatError::Model(NpuError::Lost.into()).is_device());
        assert!(!ChatError::from(ModelError::NoNumbers).is_device());
        let bundle = || BundleError::NotABundle { path: "x".into(), what: "it is none".into() };
        assert!(!ChatError::from(bundle()).is_device());
        let passed_on = ChatError::from(ModelError::from(bundle()));
        assert!(matches!(passed_on, ChatError::Bundle(_)) && !passed_on.is_device());
    }
}
