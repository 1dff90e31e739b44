//! From RGB pixels to the vision tower's patches, bit-exact with torchvision's antialiased bicubic.

mod resize;

use crate::pool::Pool;
pub use resize::resize;

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

impl Config {
    /// What both sides of a resized image are multiples of, in pixels.
    pub fn factor(&self) -> usize {
        self.patch * self.merge
    }

    /// Whether an image can be prepared for it: no side is 0, and the limits leave room.
    pub fn is_valid(&self) -> bool {
        self.patch > 0 && self.merge > 0 && self.min_pixels <= self.max_pixels
    }

    /// Values of a patch.
    pub fn patch_len(&self) -> usize {
        3 * self.patch * self.patch
    }
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
    if height == 0 || width == 0 {
        return Err(ImageError::Empty { width, height });
    }
    if height.max(width) as f64 / height.min(width) as f64 > 200.0 {
        return Err(ImageError::Aspect { width, height });
    }
    let factor = config.factor() as f64;
    let (h, w) = (height as f64, width as f64);
    let nearest = |x: f64| (x / factor).round_ties_even() * factor;
    let (mut to_h, mut to_w) = (nearest(h), nearest(w));
    if to_h * to_w > config.max_pixels as f64 {
        let shrink = (h * w / config.max_pixels as f64).sqrt();
        let fit = |x: f64| ((x / shrink / factor).floor() * factor).max(factor);
        (to_h, to_w) = (fit(h), fit(w));
    } else if to_h * to_w < config.min_pixels as f64 {
        let grow = (config.min_pixels as f64 / (h * w)).sqrt();
        let fit = |x: f64| (x * grow / factor).ceil() * factor;
        (to_h, to_w) = (fit(h), fit(w));
    }
    // Only without a lower limit can a side have rounded to nothing.
    Ok([to_h.max(factor) as usize, to_w.max(factor) as usize])
}

/// Resizes RGB bytes `[height, width, 3]`, normalises to -1..1 and cuts into patches.
///
/// # Errors
/// [`ImageError`].
///
/// # Panics
/// If the configuration is not [valid](Config::is_valid).
pub fn preprocess(
    pool: &Pool,
    rgb: &[u8],
    height: usize,
    width: usize,
    config: &Config,
) -> Result<Patches, ImageError> {
    assert!(config.is_valid(), "{config:?}");
    let to = smart_resize(height, width, config)?;
    let pixels = resize(pool, rgb, [height, width], to)?;
    let grid = to.map(|side| side / config.patch);
    let order: Vec<_> = block_order(grid, config.merge).collect();
    // v / 127.5 - 1, in the operations and so to the bit of the reference.
    let level: [f32; 256] = std::array::from_fn(|v| (v as f32 - 127.5) / 127.5);
    let mut data = vec![0.0; order.len() * config.patch_len()];
    pool.run_chunks(&mut data, config.patch_len(), &|i, patch| {
        let (row, column) = order[i];
        for (j, out) in patch.iter_mut().enumerate() {
            let (channel, y, x) = (j / config.patch / config.patch, j / config.patch % config.patch, j % config.patch);
            let at = (row * config.patch + y) * to[1] + column * config.patch + x;
            *out = level[usize::from(pixels[3 * at + channel])];
        }
    });
    Ok(Patches { grid, data })
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
    let width = table.len() / (side * side).max(1);
    assert_eq!(table.len(), side * side * width, "position table");
    assert_eq!(x.len(), grid[0] * grid[1] * width, "patches");
    let (rows, columns) = (axis(side, grid[0]), axis(side, grid[1]));
    for ((r, c), x) in block_order(grid, merge).zip(x.chunks_exact_mut(width.max(1))) {
        let (r, c) = (&rows[r], &columns[c]);
        let corners = [
            (r.low, c.low, (1.0 - r.fraction) * (1.0 - c.fraction)),
            (r.low, c.high, (1.0 - r.fraction) * c.fraction),
            (r.high, c.low, r.fraction * (1.0 - c.fraction)),
            (r.high, c.high, r.fraction * c.fraction),
        ];
        let corner = |i: usize| (&table[(corners[i].0 * side + corners[i].1) * width..][..width], corners[i].2);
        let [(a, wa), (b, wb), (e, we), (f, wf)] = std::array::from_fn(corner);
        for (i, x) in x.iter_mut().enumerate() {
            *x += a[i] * wa + b[i] * wb + e[i] * we + f[i] * wf;
        }
    }
}

/// Where one of `n` patch rows (or columns) falls in a table of `side`.
struct Between {
    low: usize,
    high: usize,
    fraction: f32,
}

fn axis(side: usize, n: usize) -> Vec<Between> {
    let last = side.saturating_sub(1);
    let at = |i: usize| {
        let s = i as f32 * last as f32 / n.saturating_sub(1).max(1) as f32;
        let low = (s.floor() as usize).min(last);
        Between { low, high: (low + 1).min(last), fraction: s - low as f32 }
    };
    (0..n).map(at).collect()
}

#[cfg(test)]
mod tests;
