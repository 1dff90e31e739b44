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
    #[error("{tokens} tokens do not fit into a context of {max_ctx}; raise --max-ctx")]
    ContextFull {
        /// Tokens there would be.
        tokens: usize,
        /// Tokens that the context holds.
        max_ctx: usize,
    },
    /// Places of snapshots that are not in order, or not in the prompt.
    #[error("snapshots at {marks:?} of a prompt of {tokens} tokens: places ascend, and none is past its end")]
    Marks {
        /// The places.
        marks: Vec<usize>,
        /// Tokens of the prompt.
        tokens: usize,
    },
    /// A run of tokens that is empty or too long.
    #[error("a run of {tokens} tokens; it may have 1 to {most} here")]
    Run {
        /// Its tokens.
        tokens: usize,
        /// What it may have.
        most: usize,
    },
    /// Tokens that follow, of which there are not as many as of those they follow.
    #[error("{next} tokens to foretell after {tokens} tokens; one is wanted for each")]
    Next {
        /// Tokens to foretell.
        next: usize,
        /// Tokens to append.
        tokens: usize,
    },
    /// A sequence of another model.
    #[error(transparent)]
    OtherModel(#[from] super::sequence::OtherModel),
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
