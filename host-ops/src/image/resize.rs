//! Antialiased bicubic resampling in fixed point, as torchvision's (Pillow's method): across, then down, bytes in
//! between.

use super::ImageError;
use crate::pool::Pool;

/// Antialiased bicubic resize of RGB bytes `[from[0], from[1], 3]` to `[to[0], to[1], 3]`; sizes are (height, width).
///
/// # Errors
/// [`ImageError::Empty`] if a side is 0, [`ImageError::Length`] if `rgb` is not as long as `from` says.
pub fn resize(pool: &Pool, rgb: &[u8], from: [usize; 2], to: [usize; 2]) -> Result<Vec<u8>, ImageError> {
    let [height, width] = from;
    for [height, width] in [from, to] {
        if height == 0 || width == 0 {
            return Err(ImageError::Empty { width, height });
        }
    }
    if height.checked_mul(width).and_then(|n| n.checked_mul(3)) != Some(rgb.len()) {
        return Err(ImageError::Length { width, height, bytes: rgb.len() });
    }
    let mut across = Vec::new();
    let mut pixels = rgb;
    if to[1] != width {
        let taps = Taps::new(width, to[1]);
        across = vec![0; 3 * height * to[1]];
        pool.run_chunks(&mut across, 3 * to[1], &|y, out| {
            let row = &rgb[3 * y * width..][..3 * width];
            for (i, out) in out.as_chunks_mut::<3>().0.iter_mut().enumerate() {
                let (first, weights) = taps.of(i);
                let mut sum = [taps.half; 3];
                for (pixel, &w) in row.as_chunks::<3>().0[first..].iter().zip(weights) {
                    for c in 0..3 {
                        sum[c] += i32::from(pixel[c]) * w;
                    }
                }
                *out = sum.map(|s| taps.byte(s));
            }
        });
        pixels = &across;
    }
    if to[0] == height {
        return Ok(if to[1] == width { rgb.to_vec() } else { across });
    }
    let taps = Taps::new(height, to[0]);
    let row_len = 3 * to[1];
    let mut down = vec![0; row_len * to[0]];
    pool.run_chunks(&mut down, row_len, &|i, out| {
        let (first, weights) = taps.of(i);
        let mut sums = vec![taps.half; row_len];
        for (row, &w) in pixels[first * row_len..].chunks_exact(row_len).zip(weights) {
            for (s, &v) in sums.iter_mut().zip(row) {
                *s += i32::from(v) * w;
            }
        }
        for (o, s) in out.iter_mut().zip(sums) {
            *o = taps.byte(s);
        }
    });
    Ok(down)
}

/// Weights of one axis: output i is a weighted sum of a few inputs.
struct Taps {
    /// First input of each output, and where its weights lie.
    spans: Vec<(usize, std::ops::Range<usize>)>,
    /// Fixed point with `precision` bits behind the point.
    weights: Vec<i32>,
    precision: u32,
    /// One half in that fixed point.
    half: i32,
}

impl Taps {
    fn new(from: usize, to: usize) -> Self {
        let scale = from as f64 / to as f64;
        let stretch = scale.max(1.0);
        let support = 2.0 * stretch;
        let mut spans = Vec::with_capacity(to);
        let mut exact = Vec::new();
        for i in 0..to {
            let centre = (i as f64 + 0.5) * scale;
            let first = (centre - support + 0.5).trunc().max(0.0) as usize;
            let end = ((centre + support + 0.5).trunc() as usize).min(from);
            let start = exact.len();
            exact.extend((first..end).map(|x| cubic((x as f64 - centre + 0.5) / stretch)));
            let sum: f64 = exact[start..].iter().sum();
            exact[start..].iter_mut().for_each(|w| *w /= sum);
            spans.push((first, start..exact.len()));
        }
        // As many bits as keep the largest weight within 16.
        let largest = exact.iter().fold(0f64, |m, &w| m.max(w));
        let fits = |p: &u32| (0.5 + largest * f64::from(1u32 << (p + 1))).trunc() < 32768.0;
        let precision = (0..22).find(|p| !fits(p)).unwrap_or(22);
        let fixed = |w: &f64| {
            let scaled = w * f64::from(1u32 << precision);
            (if *w < 0.0 { scaled - 0.5 } else { scaled + 0.5 }).trunc() as i32
        };
        let half = if precision == 0 { 0 } else { 1 << (precision - 1) };
        Taps { spans, weights: exact.iter().map(fixed).collect(), precision, half }
    }

    /// First input and weights of output `i`.
    fn of(&self, i: usize) -> (usize, &[i32]) {
        let (first, weights) = &self.spans[i];
        (*first, &self.weights[weights.clone()])
    }

    fn byte(&self, sum: i32) -> u8 {
        (sum >> self.precision).clamp(0, 255) as u8
    }
}

/// Keys' cubic with a = -0.5.
fn cubic(x: f64) -> f64 {
    const A: f64 = -0.5;
    let x = x.abs();
    if x < 1.0 {
        ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        (((x - 5.0) * x + 8.0) * x - 4.0) * A
    } else {
        0.0
    }
}
