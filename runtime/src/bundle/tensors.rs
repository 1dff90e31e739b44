//! `tensors.txt` and `tensors.bin`: named arrays in one file, mapped read-only.

use super::error::BundleError;

/// Element type of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DType {
    /// 32-bit float.
    F32,
    /// The upper half of a 32-bit float.
    Bf16,
    /// Bytes; packed weights too.
    U8,
    /// 32-bit signed integer.
    I32,
}

/// A tensor: a view into the mapped file.
#[derive(Debug, Clone, Copy)]
pub struct Tensor<'a> {
    /// Element type.
    pub dtype: DType,
    /// Dimensions, outermost first; their product is the number of elements.
    pub shape: &'a [usize],
    /// The elements, little-endian.
    pub bytes: &'a [u8],
}

impl<'a> Tensor<'a> {
    /// The elements as f32, or `None` if they are something else.
    #[must_use]
    pub fn f32s(&self) -> Option<&'a [f32]> {
        (self.dtype == DType::F32).then(|| bytemuck::try_cast_slice(self.bytes).ok()).flatten()
    }

    /// The elements as i32, or `None` if they are something else.
    #[must_use]
    pub fn i32s(&self) -> Option<&'a [i32]> {
        (self.dtype == DType::I32).then(|| bytemuck::try_cast_slice(self.bytes).ok()).flatten()
    }
}

#[derive(Debug)]
pub(super) struct TensorFile {}

impl TensorFile {
    pub(super) fn get(&self, _name: &str) -> Result<Tensor<'_>, BundleError> {
        todo!()
    }
}
