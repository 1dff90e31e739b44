//! What can go wrong in the model.

use crate::bundle::BundleError;
use crate::npu::NpuError;

/// A failure of the model.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The bundle does not describe a model that this runtime can run.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// The device refused or failed.
    #[error(transparent)]
    Npu(#[from] NpuError),
}
