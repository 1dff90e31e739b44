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
//! Our exporter adds `checksums.txt`, the SHA-256 of every other file, and `quantisation.txt`, what the format took from
//! each weight; loading needs neither.
//!
//! [`Bundle::open`] checks everything it can without the NPU, so that what it returns can be trusted: every record of
//! the manifest typed and consistent, every tensor of the model there with its type, shape and size, every kernel file
//! there and sane. The parameters and records are those of [`TextParams`], [`VisionParams`], [`GemmRecord`],
//! [`GemvRecord`], [`TokCase`] and [`RefRecord`]; unknown ones are ignored.
//!
//! # Additions to the format
//!
//! The format (version 1, as `taconite-bundle` reads it) leaves a few things unsaid that other sizes than the 2B need.
//! They are said in parameters that a reader without use for them ignores, and only where the format's own rule does
//! not give the value:
//!
//! | parameter | meaning | when absent |
//! |---|---|---|
//! | `lin_vheads` | value heads of a DeltaNet layer; `lin_heads` are the key heads | `lin_heads` |
//! | `o_k` | inputs of the `o` projection | `D` |
//! | `down_k` | inputs of one `down` slice | `D` |
//! | `embed 1` | the embedding is not the head: tensors `embed{j}` in the head's layout | tied |
//! | `v.fc2_slices` | K slices of a block's second linear | 4 |
//! | `v.m_slices` | K slices of both merger linears | 4 |
//! | `gemv_format f32`, `v.weights f32` | the test format: weights and activations in f32, reference kernels only | bfp16, w8 |
//!
//! A `gemm` or `gemv` line may carry `bias=` (are there bias chunks? else the size of the weights' tensors tells) and
//! `format=` (only to repeat the bundle's). Its `b_bytes` and `w_words` say nothing that the tensors do not say better,
//! and nothing depends on them; `a_elems` and `c_elems` must hold what M, K, N, the strides and the stream itself reach,
//! and may be more. The record `ref2` is a `ref` that may have a system message and several images:
//! `ref2 <name> prompt=<hex> thinking=<0|1> images=<n> [system=<hex>]`; its image tensors are numbered, see
//! [`RefRecord`]. Every reference may have `ref.<name>.positions` i32 \[L, 3\] (time, row, column of each token) and
//! `next_pos` i32 \[1\].
//!
//! Widths that are no multiple of the kernels' tiles are padded with zero weights: K to 512, N to 64. What a buffer
//! holds past the real width must be zero. Rows of the head past `vocab` are zero, and their logits mean nothing.

mod bulk;
mod error;
mod files;
mod kernels;
mod lines;
mod manifest;
mod params;
mod records;
mod render;
mod shapes;
mod tensors;
mod verify;
mod weights;

use std::ops::Range;
use std::path::{Path, PathBuf};

pub use error::BundleError;
pub use files::OWN_FILES;
pub use manifest::Manifest;
pub use params::{LayerKind, TextParams, VisionParams, WeightFormat};
pub use records::{GemmRecord, GemvRecord, RefRecord, StreamRecord, TokCase, XclbinRecord};
pub use tensors::{DType, Tensor};

use crate::xclbin::Xclbin;

/// Reads whole tensors with several threads, and leaves no copy of them in the page cache that was not there before.
#[derive(Debug)]
pub struct Reader<'a> {
    tensors: &'a tensors::TensorFile,
    bulk: bulk::Bulk<'a>,
}

impl Reader<'_> {
    /// Copies a tensor's bytes into `out`.
    ///
    /// # Errors
    /// No such tensor, `out` of another length than the tensor, a file that has become shorter, or a failed read.
    pub fn read_into(&self, name: &str, out: &mut [u8]) -> Result<(), BundleError> {
        self.tensors.read_bulk(&self.bulk, name, out)
    }

    /// Copies the bytes of many tensors, all at once, which keeps the disk busier than one after the other. `written` gets
    /// each piece, by its tensor's place in the list and its bytes, as soon as it is there, on any thread; `progress` the
    /// bytes that are there so far.
    ///
    /// # Errors
    /// As [`Reader::read_into`].
    pub fn read_many(
        &self,
        tensors: Vec<(&str, &mut [u8])>,
        written: &(dyn Fn(usize, Range<usize>) + Sync),
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), BundleError> {
        self.tensors.read_many(&self.bulk, tensors, written, progress)
    }

    /// The elements of an f32 tensor.
    ///
    /// # Errors
    /// As [`Reader::read_into`], and a tensor of another type.
    pub fn f32s(&self, name: &str) -> Result<Vec<f32>, BundleError> {
        let (dtype, bytes) = self.tensors.entry(name).map_or((DType::F32, 0), |entry| (entry.dtype, entry.bytes));
        if dtype != DType::F32 {
            return Err(wrong_type(name, dtype, DType::F32));
        }
        let mut out = vec![0.0; bytes / DType::F32.size()];
        self.read_into(name, bytemuck::cast_slice_mut(&mut out))?;
        Ok(out)
    }
}

/// An open bundle.
#[derive(Debug)]
pub struct Bundle {
    /// What the bundle says about itself.
    pub manifest: Manifest,
    directory: files::Directory,
    tensors: tensors::TensorFile,
}

impl Bundle {
    /// Opens and checks the bundle in directory `dir`.
    ///
    /// # Errors
    /// Whatever is missing, malformed or inconsistent; the message names file, line or tensor.
    pub fn open(dir: &Path) -> Result<Self, BundleError> {
        let directory = files::Directory::open(dir)?;
        let mut manifest = Manifest::parse(&files::read_text(&directory.own("manifest.txt")?)?)?;
        let tensors = tensors::TensorFile::open(&directory.own("tensors.txt")?, &directory.own("tensors.bin")?)?;
        weights::settle(&mut manifest, &tensors)?;
        verify::check(&manifest, &tensors)?;
        kernels::check(&manifest, &directory)?;
        files::open(&directory.own("tokenizer.json")?)?;
        Ok(Self { manifest, directory, tensors })
    }

    /// The directory, as it was given to [`Bundle::open`].
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.directory.path
    }

    /// Whether there is a tensor of this name.
    #[must_use]
    pub fn has_tensor(&self, name: &str) -> bool {
        self.tensors.entry(name).is_some()
    }

    /// The names of all tensors, sorted.
    pub fn tensor_names(&self) -> impl Iterator<Item = &str> {
        self.tensors.names()
    }

    /// Bytes of a tensor, if there is one of this name.
    #[must_use]
    pub fn tensor_bytes(&self, name: &str) -> Option<usize> {
        self.tensors.entry(name).map(|entry| entry.bytes)
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
    pub fn f32s(&self, name: &str) -> Result<&[f32], BundleError> {
        let tensor = self.tensors.get(name)?;
        tensor.f32s().ok_or_else(|| wrong_type(name, tensor.dtype, DType::F32))
    }

    /// The elements of an i32 tensor.
    ///
    /// # Errors
    /// No such tensor, another type, or the file has become shorter.
    pub fn i32s(&self, name: &str) -> Result<&[i32], BundleError> {
        let tensor = self.tensors.get(name)?;
        tensor.i32s().ok_or_else(|| wrong_type(name, tensor.dtype, DType::I32))
    }

    /// A reader of whole tensors, not through the mapping: the way to upload weights. It holds threads and memory, so
    /// it should not live longer than the loading.
    #[must_use]
    pub fn reader(&self) -> Reader<'_> {
        Reader { tensors: &self.tensors, bulk: self.tensors.bulk() }
    }

    /// Bytes of tensors that were read so far, other than through the mapping.
    #[must_use]
    pub fn bytes_read(&self) -> u64 {
        self.tensors.bytes_read()
    }

    /// Copies bytes `from..from + out.len()` of a tensor by reading the file: the way to an embedding's rows.
    ///
    /// # Errors
    /// No such tensor, bytes past its end, or a failed read.
    pub fn read_at(&self, name: &str, from: usize, out: &mut [u8]) -> Result<(), BundleError> {
        self.tensors.read_at(name, from, out)
    }

    /// The binary words of an instruction stream, `insts` being the path in a record.
    ///
    /// # Errors
    /// A failed read, or a file that is no stream.
    pub fn stream(&self, insts: &str) -> Result<Vec<u8>, BundleError> {
        Ok(kernels::stream(&self.directory, insts)?.bytes().to_vec())
    }

    /// The container with this key, parsed.
    ///
    /// # Errors
    /// No such key, a failed read, or a malformed container.
    pub fn xclbin(&self, key: &str) -> Result<Xclbin, BundleError> {
        kernels::xclbin(&self.manifest, &self.directory, key)
    }

    /// The bytes of a file that the manifest names, unchanged.
    ///
    /// # Errors
    /// A path that leaves the bundle, or a failed read.
    pub fn file(&self, name: &str) -> Result<Vec<u8>, BundleError> {
        files::read(&self.directory.inside(name, 0)?)
    }

    /// The bytes of `tokenizer.json`.
    ///
    /// # Errors
    /// A failed read.
    pub fn tokenizer_json(&self) -> Result<Vec<u8>, BundleError> {
        files::read(&self.directory.own("tokenizer.json")?)
    }

    /// The path of `tokenizer.json`.
    #[must_use]
    pub fn tokenizer_path(&self) -> PathBuf {
        self.directory.path.join("tokenizer.json")
    }
}

fn wrong_type(name: &str, found: DType, wanted: DType) -> BundleError {
    let what = format!("{}; expected {}", found.name(), wanted.name());
    BundleError::Tensor { name: name.to_owned(), what }
}
