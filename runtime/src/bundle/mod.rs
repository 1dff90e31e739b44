//! A bundle: the directory that holds a model ready for the NPU.
//!
//! ```text
//! manifest.txt    parameters, kernels, test cases; one record a line
//! tensors.txt     names, types and places of the tensors
//! tensors.bin     the tensors, little-endian
//! tokenizer.json  the checkpoint's
//! kernels/        xclbin containers and instruction streams
//! ```
//!
//! [`Bundle::open`] checks everything it can without the NPU, so that what it returns can be trusted: every record of
//! the manifest typed and consistent, every tensor of the model there with its type, shape and size, every kernel file
//! there and sane.

mod error;
mod manifest;
mod params;
mod records;
mod tensors;

use std::path::{Path, PathBuf};

pub use error::BundleError;
pub use manifest::Manifest;
pub use params::{LayerKind, TextParams, VisionParams, WeightFormat};
pub use records::{GemmRecord, GemvRecord, RefRecord, StreamRecord, TokCase, XclbinRecord};
pub use tensors::{DType, Tensor};

use crate::xclbin::Xclbin;

/// An open bundle.
#[derive(Debug)]
pub struct Bundle {
    /// What the bundle says about itself.
    pub manifest: Manifest,
    dir: PathBuf,
    tensors: tensors::TensorFile,
}

impl Bundle {
    /// Opens and checks the bundle in directory `dir`.
    ///
    /// # Errors
    /// Whatever is missing, malformed or inconsistent; the message names file, line or tensor.
    pub fn open(_dir: &Path) -> Result<Self, BundleError> {
        todo!()
    }

    /// The directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Whether there is a tensor of this name.
    #[must_use]
    pub fn has_tensor(&self, _name: &str) -> bool {
        todo!()
    }

    /// A tensor, as a view into the mapped file.
    ///
    /// # Errors
    /// No such tensor, or the file has become shorter.
    pub fn tensor(&self, name: &str) -> Result<Tensor<'_>, BundleError> {
        self.tensors.get(name)
    }

    /// The elements of an f32 tensor.
    ///
    /// # Errors
    /// No such tensor, another type, or the file has become shorter.
    pub fn f32s(&self, _name: &str) -> Result<&[f32], BundleError> {
        todo!()
    }

    /// The elements of an i32 tensor.
    ///
    /// # Errors
    /// No such tensor, another type, or the file has become shorter.
    pub fn i32s(&self, _name: &str) -> Result<&[i32], BundleError> {
        todo!()
    }

    /// Copies a tensor's bytes into `out` by reading the file, not through the mapping: the way to upload weights.
    ///
    /// # Errors
    /// No such tensor, `out` of another length than the tensor, or a failed read.
    pub fn read_into(&self, _name: &str, _out: &mut [u8]) -> Result<(), BundleError> {
        todo!()
    }

    /// The words of an instruction stream, `insts` being the path in a record.
    ///
    /// # Errors
    /// A failed read.
    pub fn stream(&self, _insts: &str) -> Result<Vec<u8>, BundleError> {
        todo!()
    }

    /// The container with this key, parsed.
    ///
    /// # Errors
    /// No such key, a failed read, or a malformed container.
    pub fn xclbin(&self, _key: &str) -> Result<Xclbin, BundleError> {
        todo!()
    }

    /// The text of `tokenizer.json`.
    ///
    /// # Errors
    /// A failed read.
    pub fn tokenizer_json(&self) -> Result<Vec<u8>, BundleError> {
        todo!()
    }
}
