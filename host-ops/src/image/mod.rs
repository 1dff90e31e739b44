//! From RGB pixels to the vision tower's patches, bit-exact with torchvision's antialiased bicubic.

use crate::pool::Pool;

/// What an image has to look like for a vision tower.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Side of a patch in pixels (16).
    pub patch: usize,
    /// Side of a merge block in patches (2).
    pub merge: usize,
    /// Fewest pixels after resizing.
    pub min_pixels: usize,
    /// Most pixels after resizing.
    pub max_pixels: usize,
}

/// Why an image was refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// A side is zero.
    #[error("an image of {width} x {height} pixels has nothing to see")]
    Empty {
        /// Width in pixels.
        width: usize,
        /// Height in pixels.
        height: usize,
    },
    /// One side is more than 200 times the other.
    #[error("an image of {width} x {height} pixels is longer than 200 to 1; crop it")]
    Aspect {
        /// Width in pixels.
        width: usize,
        /// Height in pixels.
        height: usize,
    },
    /// The pixel data does not fit the size.
    #[error("{width} x {height} RGB pixels are {} bytes, got {bytes}", 3 * width * height)]
    Length {
        /// Width in pixels.
        width: usize,
        /// Height in pixels.
        height: usize,
        /// Bytes that came.
        bytes: usize,
    },
}

/// Patches of one image.
#[derive(Debug, Clone, PartialEq)]
pub struct Patches {
    /// Patch rows and columns.
    pub grid: [usize; 2],
    /// `[rows * columns, 3 * patch * patch]` in merge-block order; a patch is (channel, row, column).
    pub data: Vec<f32>,
}

/// The size `[height, width]` an image is resized to: multiples of `patch * merge` nearest to its own, scaled into the
/// pixel limits.
///
/// # Errors
/// [`ImageError::Empty`], [`ImageError::Aspect`].
pub fn smart_resize(height: usize, width: usize, config: &Config) -> Result<[usize; 2], ImageError> {
    let _ = (height, width, config);
    todo!()
}

/// Antialiased bicubic resize of RGB bytes `[from[0], from[1], 3]` to `[to[0], to[1], 3]`.
///
/// # Errors
/// [`ImageError::Empty`], [`ImageError::Length`].
pub fn resize(pool: &Pool, rgb: &[u8], from: [usize; 2], to: [usize; 2]) -> Result<Vec<u8>, ImageError> {
    let _ = (pool, rgb, from, to);
    todo!()
}

/// Resizes RGB bytes `[height, width, 3]`, normalises to -1..1 and cuts into patches.
///
/// # Errors
/// [`ImageError`].
pub fn preprocess(
    pool: &Pool,
    rgb: &[u8],
    height: usize,
    width: usize,
    config: &Config,
) -> Result<Patches, ImageError> {
    let _ = (pool, rgb, height, width, config);
    todo!()
}

/// (row, column) of each patch of a grid in merge-block order: for block row, block column, row in block, column in
/// block.
pub fn block_order(grid: [usize; 2], merge: usize) -> impl Iterator<Item = (usize, usize)> {
    let merge = merge.max(1);
    let across = grid[1] / merge;
    (0..grid[0] / merge * across).flat_map(move |b| {
        let (r, c) = (b / across.max(1) * merge, b % across.max(1) * merge);
        (0..merge * merge).map(move |i| (r + i / merge, c + i % merge))
    })
}

/// Adds the learned position table, resampled bilinearly to the grid with aligned corners, to the patches of an image
/// in merge-block order. `table`: `[side * side, width]`; `x`: `[rows * columns, width]`.
///
/// # Panics
/// If the lengths do not fit.
pub fn add_positions(table: &[f32], side: usize, grid: [usize; 2], merge: usize, x: &mut [f32]) {
    let _ = (table, side, grid, merge, x);
    todo!()
}
