//! The vision tower.

use super::{Forward, ForwardError, Linear, attend, rotate};
use runtime::bundle::VisionParams;

/// Of every layer norm, whatever the configuration says.
const EPS: f32 = 1e-6;

fn layer_norm(x: &[f32], weight: &[f32], bias: &[f32]) -> Vec<f32> {
    let width = weight.len();
    let row = |x: &[f32]| {
        let mean = x.iter().sum::<f32>() / width as f32;
        let variance = x.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / width as f32;
        let scale = 1.0 / (variance + EPS).sqrt();
        x.iter().zip(weight.iter().zip(bias)).map(|(x, (w, b))| (x - mean) * scale * w + b).collect::<Vec<_>>()
    };
    x.chunks(width).flat_map(row).collect()
}

fn gelu_tanh(x: f32) -> f32 {
    0.5 * x * (1.0 + ((2.0 / std::f32::consts::PI).sqrt() * (x + 0.044_715 * x * x * x)).tanh())
}

/// GELU by the error function: its Taylor series in f64, which converges everywhere.
fn gelu_erf(x: f32) -> f32 {
    let z = f64::from(x) / std::f64::consts::SQRT_2;
    if z.abs() > 5.0 {
        return if x > 0.0 { x } else { 0.0 };
    }
    let (mut term, mut sum) = (z, z);
    for n in 1..200 {
        let n = f64::from(n);
        term *= -z * z / n;
        sum += term / (2.0 * n + 1.0);
    }
    (0.5 * f64::from(x) * (1.0 + 2.0 / std::f64::consts::PI.sqrt() * sum)) as f32
}

/// Where entry i of n falls in a table of `side` entries: the two neighbours and the weight of the second.
fn neighbours(i: usize, n: usize, side: usize) -> (usize, usize, f32) {
    let at = if n > 1 { i as f32 * (side - 1) as f32 / (n - 1) as f32 } else { 0.0 };
    let low = at as usize;
    (low, (low + 1).min(side - 1), at - low as f32)
}

/// Row and column of each patch: blocks that merge into a token one after another.
fn places([rows, columns]: [usize; 2], merge: usize) -> Vec<[usize; 2]> {
    let mut all = Vec::new();
    for block_row in 0..rows / merge {
        for block_column in 0..columns / merge {
            for row in 0..merge {
                all.extend((0..merge).map(|column| [block_row * merge + row, block_column * merge + column]));
            }
        }
    }
    all
}

impl Forward<'_> {
    /// The rows that stand for a picture of these patches.
    ///
    /// # Errors
    /// A bundle without a tower, or whose weights cannot be decoded.
    pub fn tower(&self, patches: &[f32], grid: [usize; 2]) -> Result<Vec<f32>, ForwardError> {
        let vision = self.bundle.manifest.vision.as_ref();
        let vision = vision.ok_or_else(|| ForwardError::Unfit("there is no vision tower".to_owned()))?;
        let d = vision.hidden;
        let places = places(grid, vision.merge);
        let mut x = self.projected("vis.patch", "v_patch", None, patches, vision.patch_values(), d)?;
        let table = self.f32s("vis.pos")?;
        for (row, [r, c]) in x.chunks_mut(d).zip(&places) {
            let (r0, r1, down) = neighbours(*r, grid[0], vision.pos_side);
            let (c0, c1, right) = neighbours(*c, grid[1], vision.pos_side);
            for (at, x) in row.iter_mut().enumerate() {
                let entry = |r: usize, c: usize| table[(r * vision.pos_side + c) * d + at];
                *x += (1.0 - down) * ((1.0 - right) * entry(r0, c0) + right * entry(r0, c1))
                    + down * ((1.0 - right) * entry(r1, c0) + right * entry(r1, c1));
            }
        }
        for block in 0..vision.depth {
            let name = |part: &str| format!("vis.b{block}.{part}");
            let norm = |x: &[f32], part: &str| -> Result<Vec<f32>, ForwardError> {
                let (weight, bias) = (self.f32s(&name(&format!("{part}_w")))?, self.f32s(&name(&format!("{part}_b")))?);
                Ok(layer_norm(x, weight, bias))
            };
            let qkv = self.projected(&name("qkv"), "v_qkv", None, &norm(&x, "ln1")?, d, 3 * d)?;
            let attended = attention(vision, &qkv, &places);
            let out = self.projected(&name("proj"), "v_proj", None, &attended, d, d)?;
            x.iter_mut().zip(out).for_each(|(x, out)| *x += out);
            let i = vision.intermediate;
            let mut inner = self.projected(&name("fc1"), "v_fc1", None, &norm(&x, "ln2")?, d, i)?;
            inner.iter_mut().for_each(|x| *x = gelu_tanh(*x));
            let out = self.projected(&name("fc2"), "v_fc2", Some(vision.fc2_slices), &inner, i, d)?;
            x.iter_mut().zip(out).for_each(|(x, out)| *x += out);
        }
        let (normed, merged) =
            (layer_norm(&x, self.f32s("vis.m_ln_w")?, self.f32s("vis.m_ln_b")?), vision.merged() * d);
        let slices = Some(vision.merger_slices);
        let mut inner = self.projected("vis.m1", "v_m1", slices, &normed, merged, merged)?;
        inner.iter_mut().for_each(|x| *x = gelu_erf(*x));
        self.projected("vis.m2", "v_m2", slices, &inner, merged, vision.out)
    }

    /// A linear of the tower with its bias and factors.
    fn projected(
        &self,
        name: &str,
        key: &str,
        slices: Option<usize>,
        x: &[f32],
        width: usize,
        out_width: usize,
    ) -> Result<Vec<f32>, ForwardError> {
        let mut out = vec![0.0; x.len() / width * out_width];
        for slice in 0..slices.unwrap_or(1) {
            let part = slices.map_or(name.to_owned(), |_| format!("{name}.{slice}"));
            let linear: Linear = self.linear(&part, key)?;
            linear.add_to(x, width, slice * linear.k, &mut out, out_width);
        }
        let factors = format!("{name}.f");
        if self.bundle.has_tensor(&factors) {
            let factors = self.f32s(&factors)?;
            out.chunks_mut(out_width).for_each(|row| row.iter_mut().zip(factors).for_each(|(x, f)| *x *= f));
        }
        Ok(out)
    }
}

/// Full attention inside a picture, rotated by row and column.
fn attention(vision: &VisionParams, qkv: &[f32], places: &[[usize; 2]]) -> Vec<f32> {
    let (d, heads) = (vision.hidden, vision.heads);
    let hd = d / heads;
    let quarter = hd / 4;
    let angles = |[row, column]: &[usize; 2]| -> Vec<f32> {
        let frequency = |j: usize| 1.0 / vision.rope_theta.powf(4.0 * j as f32 / hd as f32);
        let axis = |place: usize| (0..quarter).map(move |j| place as f32 * frequency(j));
        axis(*row).chain(axis(*column)).collect()
    };
    let mut out = vec![0.0; qkv.len() / 3];
    for head in 0..heads {
        let turned = |from: usize| -> Vec<Vec<f32>> {
            let row = |(row, place): (&[f32], &[usize; 2])| {
                let mut x = row[from..from + hd].to_vec();
                rotate(&mut x, &angles(place));
                x
            };
            qkv.chunks(3 * d).zip(places).map(row).collect()
        };
        let (queries, keys) = (turned(head * hd), turned(d + head * hd));
        let value = |row: usize| &qkv[row * 3 * d + 2 * d + head * hd..][..hd];
        for (t, query) in queries.iter().enumerate() {
            attend(query, places.len(), |row| &keys[row], value, &mut out[t * d + head * hd..][..hd]);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gelu_at_known_points() {
        // From scipy: x * norm.cdf(x).
        for (x, expected) in [(0.0, 0.0), (1.0, 0.841_344_7), (-1.0, -0.158_655_25), (3.0, 2.995_950_3), (9.0, 9.0)] {
            assert!((gelu_erf(x) - expected).abs() < 1e-6, "{x}");
            assert!((gelu_tanh(x) - expected).abs() < 1e-3, "{x}");
        }
    }
}
