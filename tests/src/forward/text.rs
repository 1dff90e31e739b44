//! The text model.

use super::{Forward, ForwardError, attend, dot, rotate, sigmoid, silu};
use runtime::bundle::{LayerKind, TextParams};

/// Under the root of a norm of queries and keys.
const L2_EPS: f32 = 1e-6;

/// RMS norm with a weight that is stored less one.
fn rms(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let width = weight.len();
    let row = |x: &[f32]| {
        let scale = 1.0 / (dot(x, x) / width as f32 + eps).sqrt();
        x.iter().zip(weight).map(|(x, w)| x * scale * (1.0 + w)).collect::<Vec<_>>()
    };
    x.chunks(width).flat_map(row).collect()
}

impl Forward<'_> {
    /// Logits after each token from row `first` on. `vision` are the rows that stand for the image tokens.
    ///
    /// # Errors
    /// A bundle whose weights cannot be decoded.
    pub fn logits(
        &self,
        ids: &[u32],
        positions: &[[u32; 3]],
        vision: &[f32],
        first: usize,
    ) -> Result<Vec<Vec<f32>>, ForwardError> {
        let manifest = &self.bundle.manifest;
        let text = &manifest.text;
        let d = text.hidden;
        let image = manifest.vision.as_ref().map(|vision| vision.image_token);
        let head = self.table("head")?;
        let embedding = if text.untied { Some(self.table("embed")?) } else { None };
        let embedding = embedding.as_ref().unwrap_or(&head);
        let mut images = vision.chunks(d);
        let mut x: Vec<f32> = Vec::new();
        for id in ids {
            let row = if Some(*id) == image { images.next() } else { embedding.chunks(d).nth(*id as usize) };
            x.extend(row.ok_or_else(|| ForwardError::Unfit(format!("no row for token {id}")))?);
        }
        for (index, kind) in text.layers.iter().enumerate() {
            let host = |part: &str| self.f32s(&format!("l{index}.h.{part}"));
            let packed = |part: &str, key: &str| self.linear(&format!("l{index}.g.{part}"), key);
            let normed = rms(&x, host("ln1")?, text.eps);
            let width = text.in_width(*kind);
            let projected = packed("in", kind.key())?.of(&normed, d, width);
            let mixed = match kind {
                LayerKind::Linear => self.delta(index, &normed, &projected)?,
                LayerKind::Attention => attention(text, host("q_norm")?, host("k_norm")?, &projected, positions),
            };
            packed("o", "o")?.add_to(&mixed, mixed.len() / ids.len(), 0, &mut x, d);

            let normed = rms(&x, host("ln2")?, text.eps);
            let i = text.intermediate;
            let paired = packed("gu", "gu")?.of(&normed, d, 2 * i);
            let mut activated = Vec::new();
            for row in paired.chunks(2 * i) {
                for block in row.chunks(64) {
                    activated.extend((0..32).map(|at| silu(block[at]) * block[32 + at]));
                }
            }
            for slice in 0..text.down_slices {
                let down = packed(&format!("down{slice}"), "down")?;
                down.add_to(&activated, i, slice * text.down_k, &mut x, d);
            }
        }
        let normed = rms(&x[first * d..], self.f32s("ln_f")?, text.eps);
        Ok(normed.chunks(d).map(|row| head.chunks(d).map(|token| dot(row, token)).collect()).collect())
    }

    /// Gated DeltaNet, token by token.
    fn delta(&self, index: usize, normed: &[f32], projected: &[f32]) -> Result<Vec<f32>, ForwardError> {
        let text = &self.bundle.manifest.text;
        let host = |part: &str| self.f32s(&format!("l{index}.h.{part}"));
        let (ba, conv, a, dt_bias, norm) = (host("ba")?, host("conv")?, host("A")?, host("dt_bias")?, host("norm")?);
        let (dk, dv, heads) = (text.lin_key_dim, text.lin_value_dim, text.lin_value_heads);
        let (channels, taps, width) = (text.conv_channels(), text.conv_kernel, text.in_width(LayerKind::Linear));
        let shared = heads / text.lin_key_heads;
        let mut states = vec![vec![0.0_f32; dk * dv]; heads];
        let mut all = Vec::new();
        for (t, xn) in normed.chunks(text.hidden).enumerate() {
            let input = |back: usize, channel: usize| {
                if back <= t { projected[(t - back) * width + channel] } else { 0.0 }
            };
            let mixed: Vec<f32> = (0..channels)
                .map(|c| silu((0..taps).map(|j| conv[c * taps + j] * input(taps - 1 - j, c)).sum()))
                .collect();
            let unit = |x: &[f32]| {
                let scale = 1.0 / (dot(x, x) + L2_EPS).sqrt();
                x.iter().map(|x| x * scale).collect::<Vec<f32>>()
            };
            for (head, state) in states.iter_mut().enumerate() {
                let from = head / shared * dk;
                let query: Vec<f32> = unit(&mixed[from..from + dk]).iter().map(|x| x / (dk as f32).sqrt()).collect();
                let key = unit(&mixed[text.key_width() + from..][..dk]);
                let value = &mixed[2 * text.key_width() + head * dv..][..dv];
                let gate = |row: usize| dot(xn, &ba[row * text.hidden..][..text.hidden]);
                let beta = sigmoid(gate(head));
                let step = gate(heads + head) + dt_bias[head];
                let softplus = if step > 20.0 { step } else { step.exp().ln_1p() };
                let decay = (a[head] * softplus).exp();
                state.iter_mut().for_each(|s| *s *= decay);
                let read = |state: &[f32], by: &[f32]| {
                    let mut out = vec![0.0_f32; dv];
                    for (row, by) in state.chunks(dv).zip(by) {
                        out.iter_mut().zip(row).for_each(|(out, s)| *out += s * by);
                    }
                    out
                };
                let known = read(state, &key);
                let news: Vec<f32> = value.iter().zip(known).map(|(value, known)| beta * (value - known)).collect();
                for (row, key) in state.chunks_mut(dv).zip(&key) {
                    row.iter_mut().zip(&news).for_each(|(s, news)| *s += key * news);
                }
                let out = read(state, &query);
                let scale = 1.0 / (dot(&out, &out) / dv as f32 + text.eps).sqrt();
                let z = &projected[t * width + channels + head * dv..][..dv];
                all.extend(out.iter().zip(norm).zip(z).map(|((out, w), z)| out * scale * w * silu(*z)));
            }
        }
        Ok(all)
    }
}

/// Gated attention over the whole sequence.
fn attention(text: &TextParams, q_norm: &[f32], k_norm: &[f32], projected: &[f32], positions: &[[u32; 3]]) -> Vec<f32> {
    let (hd, heads, kv) = (text.head_dim, text.heads, text.kv_heads);
    let width = text.in_width(LayerKind::Attention);
    let pairs = text.rope_dim / 2;
    let angles = |position: &[u32; 3]| -> Vec<f32> {
        let axis = |j: usize| match j % 3 {
            1 if j < 3 * text.mrope_section[1] => 1,
            2 if j < 3 * text.mrope_section[2] => 2,
            _ => 0,
        };
        let frequency = |j: usize| 1.0 / text.rope_theta.powf(2.0 * j as f32 / text.rope_dim as f32);
        (0..pairs).map(|j| position[axis(j)] as f32 * frequency(j)).collect()
    };
    let turned = |from: usize, weight: &[f32]| -> Vec<Vec<f32>> {
        let row = |(row, position): (&[f32], &[u32; 3])| {
            let mut x = rms(&row[from..from + hd], weight, text.eps);
            rotate(&mut x[..2 * pairs], &angles(position));
            x
        };
        projected.chunks(width).zip(positions).map(row).collect()
    };
    let mut out = vec![0.0; projected.len() / width * heads * hd];
    for head in 0..heads {
        let group = head / (heads / kv);
        let queries = turned(2 * head * hd, q_norm);
        let keys = turned((2 * heads + group) * hd, k_norm);
        let value = |row: usize| &projected[row * width + (2 * heads + kv + group) * hd..][..hd];
        for (t, query) in queries.iter().enumerate() {
            let place = &mut out[(t * heads + head) * hd..][..hd];
            attend(query, t + 1, |row| &keys[row], value, place);
            let gate = &projected[t * width + (2 * head + 1) * hd..][..hd];
            place.iter_mut().zip(gate).for_each(|(out, gate)| *out *= sigmoid(*gate));
        }
    }
    out
}
