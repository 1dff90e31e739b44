//! What can go wrong in the model.

use crate::bundle::BundleError;
use crate::npu::NpuError;

/// A failure of the model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The bundle lacks something.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// The device refused or failed.
    #[error(transparent)]
    Npu(#[from] NpuError),
    /// The records of the manifest do not fit together.
    #[error("manifest.txt: {0}")]
    Shape(String),
    /// The tokens of the prompt and the pictures do not fit together.
    #[error(
        "the prompt has {found} image tokens, its {images} picture(s) take {expected}; \
         `<|image_pad|>` cannot be part of a message"
    )]
    ImageTokens {
        /// Image tokens of the prompt.
        found: usize,
        /// Image tokens that the pictures take.
        expected: usize,
        /// Pictures.
        images: usize,
    },
    /// A token that the model does not know.
    #[error("token {id} is not among the {vocab} of the model")]
    NoSuchToken {
        /// The token.
        id: u32,
        /// Tokens that the model knows.
        vocab: usize,
    },
    /// More tokens than the context holds.
    #[error("{tokens} tokens do not fit into a context of {max_ctx}")]
    ContextFull {
        /// Tokens there would be.
        tokens: usize,
        /// Tokens that the context holds.
        max_ctx: usize,
    },
    /// A picture that gives more patches than the tower takes.
    #[error("the picture gives {patches} patches, the vision tower of this bundle takes {max}")]
    TooManyPatches {
        /// Patches of the picture.
        patches: usize,
        /// Patches that the tower takes.
        max: usize,
    },
    /// A picture that cannot be prepared.
    #[error(transparent)]
    Image(#[from] host_ops::image::ImageError),
    /// Logits without one number among them.
    #[error("the logits are not numbers: the bundle's weights or the NPU's results are damaged; run `check`")]
    NoNumbers,
    /// No vision tower.
    #[error("this bundle has no vision tower, or it was not loaded")]
    NoVision,
}
