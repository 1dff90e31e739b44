//! Qwen3.5 in plain f32, written down from the model's definition and nothing else: what a bundle's weights mean.
//!
//! The weights are those of a bundle, decoded; the whole sequence is computed at once, without a cache, and as slowly as
//! that goes. It shares the layouts of packed weights with the runtime, and none of its arithmetic.

mod text;
mod tower;

use host_ops::pack::{BStream, PackError, Rows};
use runtime::bundle::{Bundle, BundleError, GemmRecord};

/// A bundle that cannot be computed with.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ForwardError {
    /// A tensor is missing or of another type.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// A weight cannot be decoded.
    #[error("tensor `{0}`: {1}")]
    Weight(String, PackError),
    /// A kernel or a format that a bundle must have and this one has not.
    #[error("{0}")]
    Unfit(String),
}

/// The model of a bundle.
#[derive(Debug, Clone, Copy)]
pub struct Forward<'a> {
    bundle: &'a Bundle,
}

/// A decoded linear: `[n, k]` rows, a bias where there is one.
struct Linear {
    k: usize,
    rows: Vec<f32>,
    bias: Vec<f32>,
}

impl<'a> Forward<'a> {
    /// Of a bundle in any format.
    #[must_use]
    pub fn new(bundle: &'a Bundle) -> Self {
        Self { bundle }
    }

    fn gemm(&self, key: &str) -> Result<&'a GemmRecord, ForwardError> {
        let found = self.bundle.manifest.gemms.get(key);
        found.ok_or_else(|| ForwardError::Unfit(format!("there is no `gemm {key}`")))
    }

    fn linear(&self, name: &str, key: &str) -> Result<Linear, ForwardError> {
        let gemm = self.gemm(key)?;
        let wrong = |error| ForwardError::Weight(name.to_owned(), error);
        let layout = BStream::new(gemm.format.packing(), gemm.k, gemm.n, gemm.bias).map_err(wrong)?;
        let bytes = self.bundle.tensor(name)?.bytes;
        let bias = layout.unpack_bias(bytes).map_err(wrong)?;
        Ok(Linear { k: gemm.k, rows: layout.unpack(bytes).map_err(wrong)?, bias })
    }

    /// All rows of the head or of the embedding.
    fn table(&self, name: &str) -> Result<Vec<f32>, ForwardError> {
        let text = &self.bundle.manifest.text;
        let mut all = Vec::new();
        for part in 0..text.head_parts {
            let name = format!("{name}{part}");
            let wrong = |error| ForwardError::Weight(name.clone(), error);
            let layout = Rows::new(text.format.packing(), text.head_rows, text.hidden).map_err(wrong)?;
            all.extend(layout.unpack(self.bundle.tensor(&name)?.bytes).map_err(wrong)?);
        }
        all.truncate(text.vocab * text.hidden);
        Ok(all)
    }

    fn f32s(&self, name: &str) -> Result<&'a [f32], ForwardError> {
        Ok(self.bundle.f32s(name)?)
    }
}

/// A sum of products. Eight sums side by side, or the compiler may not reorder them.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (a8, b8) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    let mut sums = [0.0_f32; 8];
    for (a, b) in a8.0.iter().zip(b8.0) {
        for lane in 0..8 {
            sums[lane] += a[lane] * b[lane];
        }
    }
    sums.iter().sum::<f32>() + a8.1.iter().zip(b8.1).map(|(a, b)| a * b).sum::<f32>()
}

impl Linear {
    /// Adds the products of rows of `width` values, columns `from..` of them, to rows of `out_width` values.
    fn add_to(&self, x: &[f32], width: usize, from: usize, out: &mut [f32], out_width: usize) {
        let there = (width - from).min(self.k);
        for (x, out) in x.chunks(width).zip(out.chunks_mut(out_width)) {
            let x = &x[from..from + there];
            for (n, (out, row)) in out.iter_mut().zip(self.rows.chunks(self.k)).enumerate() {
                *out += dot(x, &row[..there]) + self.bias.get(n).copied().unwrap_or(0.0);
            }
        }
    }

    /// The first `out_width` products of each row of `width` values.
    fn of(&self, x: &[f32], width: usize, out_width: usize) -> Vec<f32> {
        let mut out = vec![0.0; x.len() / width * out_width];
        self.add_to(x, width, 0, &mut out, out_width);
        out
    }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

/// Rotates pairs half a width apart by these angles.
fn rotate(x: &mut [f32], angles: &[f32]) {
    let half = angles.len();
    for (j, angle) in angles.iter().enumerate() {
        let (sin, cos) = angle.sin_cos();
        let (a, b) = (x[j], x[j + half]);
        (x[j], x[j + half]) = (a * cos - b * sin, b * cos + a * sin);
    }
}

/// Attention of one query over keys and values, each given by a closure from its row.
fn attend<'k>(
    query: &[f32],
    rows: usize,
    key: impl Fn(usize) -> &'k [f32],
    value: impl Fn(usize) -> &'k [f32],
    out: &mut [f32],
) {
    let scale = 1.0 / (query.len() as f32).sqrt();
    let scores: Vec<f32> = (0..rows).map(|row| dot(query, key(row)) * scale).collect();
    let most = scores.iter().fold(f32::NEG_INFINITY, |most, score| most.max(*score));
    let weights: Vec<f32> = scores.iter().map(|score| (score - most).exp()).collect();
    let sum: f32 = weights.iter().sum();
    out.fill(0.0);
    for (row, weight) in weights.iter().enumerate() {
        out.iter_mut().zip(value(row)).for_each(|(out, value)| *out += weight / sum * value);
    }
}
