//! Gated DeltaNet: causal convolution, gates, the recurrence of the delta rule, gated norm.

//!
//! A head's state `[key_dim, value_dim]` falls into panels of 16 value columns that never meet: a panel is the unit of
//! work, it stays in the first level cache for all tokens of a call, and it is how the state is stored.

mod recurrence;

use crate::{
    act, norm,
    pool::{Chunks, Pool},
    simd::{self, kernel},
};
use recurrence::{CHUNK, Fades, PANEL, Segment, Token, Values};

/// The shape of one layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shape {
    /// Query/key heads.
    pub key_heads: usize,
    /// Value heads, a multiple of `key_heads`; value head `h` uses key head `h / (value_heads / key_heads)`.
    pub value_heads: usize,
    /// Width of a query or key head.
    pub key_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
    /// Taps of the convolution.
    pub conv_kernel: usize,
    /// Epsilon of the gated norm.
    pub eps: f32,
}

impl Shape {
    /// Width of all keys.
    pub fn key_width(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Width of all values, and of the output.
    pub fn value_width(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Channels of the convolution: q | k | v.
    pub fn channels(&self) -> usize {
        2 * self.key_width() + self.value_width()
    }

    /// Width of an input row: q | k | v | z.
    pub fn input_width(&self) -> usize {
        self.channels() + self.value_width()
    }

    /// Whether [`forward`] can run it.
    pub fn is_valid(&self) -> bool {
        let Shape { key_heads, value_heads, key_dim, value_dim, conv_kernel, .. } = *self;
        ![key_heads, value_heads, key_dim, value_dim, conv_kernel].contains(&0) && value_heads.is_multiple_of(key_heads)
    }

    /// Value heads of a key head.
    fn group(&self) -> usize {
        self.value_heads / self.key_heads
    }

    /// Panels of a head.
    fn panels(&self) -> usize {
        self.value_dim.div_ceil(PANEL)
    }
}

/// Host-side weights of one layer.
#[derive(Debug, Clone, Copy)]
pub struct Weights<'a> {
    /// `[2 * value_heads, D]`: rows of b, then rows of a.
    pub ba: &'a [f32],
    /// `[conv_kernel, channels]`, the newest input last: see [`taps`].
    pub taps: &'a [f32],
    /// `[value_heads]`: `-exp(A_log)`.
    pub a: &'a [f32],
    /// `[value_heads]`.
    pub dt_bias: &'a [f32],
    /// `[value_dim]`, a plain factor.
    pub norm: &'a [f32],
}

/// A convolution's weights `[channels, conv_kernel]`, as checkpoints have them, in the order of [`Weights::taps`].
pub fn taps(conv: &[f32], conv_kernel: usize) -> Vec<f32> {
    (0..conv_kernel).flat_map(|j| conv.iter().skip(j).step_by(conv_kernel)).copied().collect()
}

/// What a layer remembers. `Clone` is a snapshot.
#[derive(Debug, Clone)]
pub struct State {
    shape: Shape,
    /// `[conv_kernel - 1, channels]`, a ring.
    conv: Vec<f32>,
    /// The ring's oldest row.
    oldest: usize,
    /// `[value_heads, panels, key_dim, PANEL]`, before the chunk that is under way; columns past `value_dim` are zero.
    recurrent: Vec<f32>,
    /// Tokens of the chunk that is under way.
    pending: usize,
    /// `[value_heads, panels, CHUNK, PANEL]`: their deltas.
    deltas: Vec<f32>,
    /// `[key_heads, CHUNK, key_dim]`: their keys.
    keys: Vec<f32>,
    /// `[value_heads]`: what they left of what was before.
    fades: Vec<Fades>,
}

impl State {
    /// The state before the first token.
    pub fn new(shape: Shape) -> Self {
        let panels = shape.value_heads * shape.panels();
        State {
            shape,
            conv: vec![0.0; shape.conv_kernel.saturating_sub(1) * shape.channels()],
            oldest: 0,
            recurrent: vec![0.0; panels * shape.key_dim * PANEL],
            pending: 0,
            deltas: vec![0.0; panels * CHUNK * PANEL],
            keys: vec![0.0; CHUNK * shape.key_width()],
            fades: vec![Fades::START; shape.value_heads],
        }
    }

    /// Back to the state before the first token, keeping the memory.
    pub fn reset(&mut self) {
        self.conv.fill(0.0);
        self.recurrent.fill(0.0);
        self.fades.fill(Fades::START);
        (self.oldest, self.pending) = (0, 0);
    }

    /// A copy of the last `conv_kernel - 1` inputs of the convolution, oldest first: `[conv_kernel - 1, channels]`.
    pub fn conv(&self) -> Vec<f32> {
        let (newer, older) = self.conv.split_at(self.oldest * self.shape.channels());
        [older, newer].concat()
    }

    /// A copy of the recurrent state as `[value_heads, key_dim, value_dim]`.
    pub fn recurrent(&self) -> Vec<f32> {
        let Shape { value_heads, key_dim, value_dim, .. } = self.shape;
        let mut out = Vec::with_capacity(value_heads * key_dim * value_dim);
        for h in 0..value_heads {
            let keys = &self.keys[h / self.shape.group() * CHUNK * key_dim..][..CHUNK * key_dim];
            for i in 0..key_dim {
                out.extend((0..value_dim).map(|j| {
                    let panel = h * self.shape.panels() + j / PANEL;
                    let state = &self.recurrent[panel * key_dim * PANEL..][..key_dim * PANEL];
                    let deltas = &self.deltas[panel * CHUNK * PANEL..][..CHUNK * PANEL];
                    recurrence::value(state, &self.fades[h], deltas, keys, self.pending, i, j % PANEL)
                }));
            }
        }
        out
    }

    /// Bytes of memory it takes, the same for any number of tokens.
    pub fn bytes(&self) -> usize {
        let floats = [&self.conv, &self.recurrent, &self.deltas, &self.keys];
        floats.iter().map(|x| size_of_val(&x[..])).sum::<usize>() + size_of_val(&self.fades[..])
    }

    /// Row `i` of the last inputs, 0 the oldest.
    fn input(&self, i: usize) -> &[f32] {
        let (rows, channels) = (self.shape.conv_kernel - 1, self.shape.channels());
        &self.conv[(self.oldest + i) % rows * channels..][..channels]
    }
}

/// Memory for the steps in between, kept from call to call.
#[derive(Debug, Default)]
pub struct Scratch {
    /// `[n, channels]`: convolved q | k | v, then q and k normed.
    qkv: Vec<f32>,
    /// `[n, 2 * value_heads]`: beta, then decay.
    gates: Vec<f32>,
    /// `[segments, key_heads, 2 * CHUNK * key_dim]`: keys and queries, packed.
    packed: Vec<f32>,
    /// `[segments, key_heads, CHUNK, key_dim]`.
    keys: Vec<f32>,
    /// `[segments, value_heads, panels, CHUNK, PANEL]`.
    values: Vec<f32>,
    /// `[segments, value_heads, CHUNK]`.
    tokens: Vec<Token>,
    /// `[segments, value_heads]`: at the end of each.
    fades: Vec<Fades>,
    /// `[value_heads, panels, n, PANEL]`.
    mixed: Vec<f32>,
    /// `[key_heads, 4 * key_dim + group * value_dim + PANEL]`: one token's query, key, both packed, values, a panel's
    /// output.
    one: Vec<f32>,
}

/// The first `len` of a vector that only grows; what stands there is whatever was left.
fn fit<T: Clone>(x: &mut Vec<T>, len: usize, new: T) -> &mut [T] {
    if x.len() < len {
        x.resize(len, new);
    }
    &mut x[..len]
}

/// Tokens run together. More would only need more memory in between: the result does not depend on it.
const PIECE: usize = 256;

/// Runs `n` tokens through the mixer, between its `in` and `o` projections.
///
/// * `hidden`: `[n, D]`, the normed input of the layer (the gates a and b are made from it, D = `ba.len() / (2 *
///   value_heads)`)
/// * `projected`: `[n, input_width]`: q | k | v | z
/// * `out`: `[n, value_width]`
///
/// # Panics
/// If the lengths do not fit, the state is of another shape, or the shape is not [valid](Shape::is_valid).
#[expect(clippy::too_many_arguments)]
pub fn forward(
    pool: &Pool,
    shape: &Shape,
    weights: &Weights<'_>,
    state: &mut State,
    hidden: &[f32],
    projected: &[f32],
    out: &mut [f32],
    scratch: &mut Scratch,
) {
    assert!(shape.is_valid(), "{shape:?}");
    let width = weights.ba.len() / (2 * shape.value_heads);
    let (input, channels, value) = (shape.input_width(), shape.channels(), shape.value_width());
    let n = projected.len() / input;
    assert_eq!(state.shape, *shape, "the state is another layer's");
    assert_eq!(weights.ba.len(), 2 * shape.value_heads * width, "ba");
    assert_eq!(weights.taps.len(), channels * shape.conv_kernel, "taps");
    assert_eq!([weights.a.len(), weights.dt_bias.len()], [shape.value_heads; 2], "a, dt_bias");
    assert_eq!(weights.norm.len(), shape.value_dim, "norm");
    assert_eq!([hidden.len(), projected.len(), out.len()], [n * width, n * input, n * value], "{n} tokens");

    if n == 1 {
        one(pool, shape, weights, state, hidden, projected, out, scratch);
        return remember(shape, state, projected, 1);
    }
    for first in (0..n).step_by(PIECE) {
        let rows = PIECE.min(n - first);
        let hidden = &hidden[first * width..][..rows * width];
        let projected = &projected[first * input..][..rows * input];
        let out = &mut out[first * value..][..rows * value];
        gates(pool, shape, weights, hidden, rows, &mut scratch.gates);
        convolve(pool, shape, weights.taps, state, projected, rows, &mut scratch.qkv);
        remember(shape, state, projected, rows);
        mix(pool, shape, state, rows, scratch);
        let mixed = &scratch.mixed;
        pool.run_chunks(out, value, &|t, out| {
            let z = &projected[t * input + channels..][..value];
            gather(shape, &mixed[..], rows, t, out);
            norm::gated_rms_in_place(out, z, weights.norm, shape.eps);
        });
    }
}

/// The recurrence over `n` tokens.
fn mix(pool: &Pool, shape: &Shape, state: &mut State, n: usize, scratch: &mut Scratch) {
    let Shape { key_heads, value_heads, key_dim, .. } = *shape;
    let (channels, key, group) = (shape.channels(), shape.key_width(), shape.group());
    let Scratch { qkv, gates, packed, keys, values, tokens, fades, mixed, .. } = scratch;
    let qkv = &qkv[..n * channels];
    // Segment s holds tokens up to where the next chunk begins.
    let pending = state.pending;
    let segments = (pending + n).div_ceil(CHUNK);
    let range = |s: usize| (s * CHUNK).saturating_sub(pending)..((s + 1) * CHUNK - pending).min(n);
    let start = |s: usize| if s == 0 { pending } else { 0 };
    let panels = shape.panels();
    let per_panel = CHUNK * PANEL;
    let packed = fit(packed, segments * 2 * CHUNK * key, 0.0);
    let keys = fit(keys, segments * CHUNK * key, 0.0);
    let values = fit(values, segments * value_heads * panels * per_panel, 0.0);
    let tokens = fit(tokens, segments * value_heads * CHUNK, Token::default());
    let fades = fit(fades, segments * value_heads, Fades::START);
    let parts = (
        Chunks::new(packed, 2 * CHUNK * key_dim),
        Chunks::new(keys, CHUNK * key_dim),
        Chunks::new(values, group * panels * per_panel),
        Chunks::new(tokens, group * CHUNK),
        Chunks::new(fades, group),
    );
    let before = &*state;
    pool.run_parts(parts, |i, (packed, keys, values, tokens, fades)| {
        let (s, h) = (i / key_heads, i % key_heads);
        let (range, start) = (range(s), start(s));
        let row = |t: usize, at: usize| &qkv[t * channels + at + h * key_dim..][..key_dim];
        if start > 0 {
            keys[..start * key_dim].copy_from_slice(&before.keys[h * CHUNK * key_dim..][..start * key_dim]);
        }
        for (t, out) in range.clone().zip(keys[start * key_dim..].chunks_exact_mut(key_dim)) {
            out.copy_from_slice(row(t, key));
        }
        let rows = 2 * range.start..2 * range.end;
        recurrence::pack(rows.map(|i| row(i / 2, if i % 2 == 0 { key } else { 0 })), key_dim, packed);
        for (g, fades) in fades.iter_mut().enumerate() {
            *fades = if start > 0 { before.fades[h * group + g] } else { Fades::START };
        }
        for (i, t) in range.enumerate() {
            let row_values = &qkv[t * channels + 2 * key + h * group * shape.value_dim..];
            for (g, head) in values.chunks_exact_mut(panels * per_panel).enumerate() {
                let v = &row_values[g * shape.value_dim..][..shape.value_dim];
                for (v, panel) in v.chunks(PANEL).zip(head.chunks_exact_mut(per_panel)) {
                    panel[i * PANEL..][..v.len()].copy_from_slice(v);
                }
            }
            let at = start + i;
            let mut dots = [[0.0; CHUNK]; 2];
            recurrence::dots(keys, at + 1, row(t, key), row(t, 0), &mut dots);
            let (beta, decay) = gates[t * 2 * value_heads..][..2 * value_heads].split_at(value_heads);
            for (g, fades) in fades.iter_mut().enumerate() {
                let head = h * group + g;
                tokens[g * CHUNK + i] = fades.token(at, beta[head], decay[head], &dots);
            }
        }
    });

    let mixed = fit(mixed, value_heads * panels * n * PANEL, 0.0);
    let parts = (
        Chunks::new(&mut state.recurrent[..], key_dim * PANEL),
        Chunks::new(&mut state.deltas[..], per_panel),
        Chunks::new(mixed, n * PANEL),
    );
    pool.run_parts(parts, |i, (recurrent, deltas, mixed)| {
        let (head, panel) = (i / panels, i % panels);
        for s in 0..segments {
            let (range, at) = (range(s), s * key_heads + head / group);
            let segment = Segment {
                start: start(s),
                packed: &packed[at * 2 * CHUNK * key_dim..][..2 * CHUNK * key_dim],
                keys: &keys[at * CHUNK * key_dim..][..CHUNK * key_dim],
                tokens: &tokens[(s * value_heads + head) * CHUNK..][..range.len()],
                fades: &fades[s * value_heads + head],
            };
            let values = &values[((s * value_heads + head) * panels + panel) * per_panel..];
            let values = Values { from: values, columns: PANEL.min(shape.value_dim - panel * PANEL) };
            recurrence::run(&segment, recurrent, deltas, values, &mut mixed[range.start * PANEL..]);
        }
    });

    state.pending = (pending + n) % CHUNK;
    let last = segments - 1;
    state.keys.copy_from_slice(&keys[last * CHUNK * key..][..CHUNK * key]);
    if state.pending > 0 {
        state.fades.copy_from_slice(&fades[last * value_heads..][..value_heads]);
    } else {
        state.fades.fill(Fades::START);
    }
}

/// One token, in one loop over key heads: all that a head needs is read once.
#[expect(clippy::too_many_arguments)]
fn one(
    pool: &Pool,
    shape: &Shape,
    weights: &Weights<'_>,
    state: &mut State,
    hidden: &[f32],
    projected: &[f32],
    out: &mut [f32],
    scratch: &mut Scratch,
) {
    let Shape { key_heads, value_heads, key_dim, value_dim, .. } = *shape;
    let (channels, key, group, panels) = (shape.channels(), shape.key_width(), shape.group(), shape.panels());
    let (before, start) = (shape.conv_kernel - 1, state.pending);
    let per_head = 4 * key_dim + group * value_dim + PANEL;
    let State { conv, oldest, recurrent, deltas, keys, fades, .. } = state;
    let (conv, oldest) = (&conv[..], *oldest);
    let input = |j: usize| match j.checked_sub(before) {
        None => &conv[(oldest + j) % before * channels..][..channels],
        Some(_) => projected,
    };
    let parts = (
        Chunks::new(&mut recurrent[..], group * panels * key_dim * PANEL),
        Chunks::new(&mut deltas[..], group * panels * CHUNK * PANEL),
        Chunks::new(&mut keys[..], CHUNK * key_dim),
        Chunks::new(&mut fades[..], group),
        Chunks::new(out, group * value_dim),
        Chunks::new(fit(&mut scratch.one, key_heads * per_head, 0.0), per_head),
    );
    pool.run_parts(parts, |h, (recurrent, deltas, keys, fades, out, work)| {
        let (q, work) = work.split_at_mut(key_dim);
        let (k, work) = work.split_at_mut(key_dim);
        let (packed, work) = work.split_at_mut(2 * key_dim);
        let (v, mixed) = work.split_at_mut(group * value_dim);
        for (at, out) in [
            (h * key_dim, &mut *q),
            (key + h * key_dim, &mut *k),
            (2 * key + h * group * value_dim, &mut *v),
        ] {
            convolve_part(weights.taps, channels, at, input, out);
        }
        norm::l2_in_place(q, 1.0 / (key_dim as f32).sqrt());
        norm::l2_in_place(k, 1.0);
        keys[start * key_dim..][..key_dim].copy_from_slice(k);
        recurrence::pack([&*k, &*q].into_iter(), key_dim, packed);
        let mut dots = [[0.0; CHUNK]; 2];
        recurrence::dots(keys, start + 1, k, q, &mut dots);
        for (g, fades) in fades.iter_mut().enumerate() {
            let head = h * group + g;
            let (beta, decay) = gate(weights, head, value_heads, hidden);
            let tokens = [fades.token(start, beta, decay, &dots)];
            let segment = Segment { start, packed, keys, tokens: &tokens, fades };
            let out = &mut out[g * value_dim..][..value_dim];
            for (p, out) in out.chunks_mut(PANEL).enumerate() {
                let recurrent = &mut recurrent[(g * panels + p) * key_dim * PANEL..][..key_dim * PANEL];
                let deltas = &mut deltas[(g * panels + p) * CHUNK * PANEL..][..CHUNK * PANEL];
                let values = Values { from: &v[g * value_dim + p * PANEL..], columns: out.len() };
                recurrence::run(&segment, recurrent, deltas, values, mixed);
                out.copy_from_slice(&mixed[..out.len()]);
            }
            let z = &projected[channels + head * value_dim..][..value_dim];
            norm::gated_rms_in_place(out, z, weights.norm, shape.eps);
        }
    });
    state.pending = (start + 1) % CHUNK;
    if state.pending == 0 {
        state.fades.fill(Fades::START);
    }
}

/// beta = sigmoid(b) and decay = exp(A softplus(a + dt_bias)) of a head.
fn gate(weights: &Weights<'_>, head: usize, heads: usize, hidden: &[f32]) -> (f32, f32) {
    let row = |i: usize| simd::dot(&weights.ba[i * hidden.len()..][..hidden.len()], hidden);
    let softplus = act::softplus(row(heads + head) + weights.dt_bias[head]);
    (act::sigmoid(row(head)), f64::from(weights.a[head] * softplus).exp() as f32)
}

/// Of all heads: `[n, 2 * value_heads]`, beta, then decay.
fn gates(pool: &Pool, shape: &Shape, weights: &Weights<'_>, hidden: &[f32], n: usize, out: &mut Vec<f32>) {
    let (heads, width) = (shape.value_heads, hidden.len() / n);
    let out = fit(out, n * 2 * heads, 0.0);
    pool.run_chunks(out, 2 * heads, &|t, out| {
        let (beta, decay) = out.split_at_mut(heads);
        for (head, (beta, decay)) in beta.iter_mut().zip(decay).enumerate() {
            (*beta, *decay) = gate(weights, head, heads, &hidden[t * width..][..width]);
        }
    });
}

/// The causal depthwise convolution and silu into `[n, channels]`, then q and k to unit length (q with the scale of the
/// scores).
fn convolve(
    pool: &Pool,
    shape: &Shape,
    taps: &[f32],
    state: &State,
    projected: &[f32],
    n: usize,
    out: &mut Vec<f32>,
) {
    let (input, channels, key) = (shape.input_width(), shape.channels(), shape.key_width());
    let before = shape.conv_kernel - 1;
    let out = fit(out, n * channels, 0.0);
    pool.run_chunks(out, channels, &|t, out| {
        let row = |j: usize| match (t + j).checked_sub(before) {
            None => state.input(t + j),
            Some(t) => &projected[t * input..][..channels],
        };
        convolve_part(taps, channels, 0, row, out);
        let (q, k) = out[..2 * key].split_at_mut(key);
        let scale = 1.0 / (shape.key_dim as f32).sqrt();
        q.chunks_exact_mut(shape.key_dim).for_each(|q| norm::l2_in_place(q, scale));
        k.chunks_exact_mut(shape.key_dim).for_each(|k| norm::l2_in_place(k, 1.0));
    });
}

/// Channels from `at` on of one token. `input(j)`: what tap j meets.
fn convolve_part<'a>(
    taps: &[f32],
    channels: usize,
    at: usize,
    input: impl Fn(usize) -> &'a [f32],
    out: &mut [f32],
) {
    let tap = |j: usize| &taps[j * channels + at..][..out.len()];
    if taps.len() == 4 * channels {
        let inputs: [&[f32]; 4] = std::array::from_fn(|j| &input(j)[at..][..out.len()]);
        return convolve_four(std::array::from_fn(tap), inputs, out);
    }
    let n = out.len();
    out.fill(0.0);
    for j in 0..taps.len() / channels {
        multiply_add(&taps[j * channels + at..][..n], &input(j)[at..][..n], out);
    }
    act::silu_in_place(out);
}

/// The last inputs of the convolution into the ring.
fn remember(shape: &Shape, state: &mut State, projected: &[f32], n: usize) {
    let (input, channels, before) = (shape.input_width(), shape.channels(), shape.conv_kernel - 1);
    for t in n.saturating_sub(before)..n {
        let row = &mut state.conv[state.oldest * channels..][..channels];
        row.copy_from_slice(&projected[t * input..][..channels]);
        state.oldest = (state.oldest + 1) % before;
    }
}

kernel! {
    /// `out = silu(sum taps[j] x[j])`.
    fn convolve_four<V>(taps: [&[f32]; 4], x: [&[f32]; 4], out: &mut [f32]) {
        let (full, rest) = out.as_chunks_mut();
        let (taps, x) = (taps.map(|t| t.as_chunks()), x.map(|x| x.as_chunks()));
        for (i, out) in full.iter_mut().enumerate() {
            let mut sum = V::splat(0.0);
            for j in 0..4 {
                sum = V::load(&taps[j].0[i]).fma(V::load(&x[j].0[i]), sum);
            }
            simd::silu(sum).store(out);
        }
        if !rest.is_empty() {
            let mut sum = V::splat(0.0);
            for j in 0..4 {
                sum = simd::load_padded::<V>(taps[j].1).fma(simd::load_padded(x[j].1), sum);
            }
            simd::store_cut(simd::silu(sum), rest);
        }
    }
}

kernel! {
    /// `out[i] += a[i] * b[i]`.
    fn multiply_add<V>(a: &[f32], b: &[f32], out: &mut [f32]) {
        let ((a, ra), (b, rb), (out, rest)) = (a.as_chunks(), b.as_chunks(), out.as_chunks_mut());
        for ((a, b), o) in a.iter().zip(b).zip(out) {
            V::load(a).fma(V::load(b), V::load(o)).store(o);
        }
        for ((a, b), o) in ra.iter().zip(rb).zip(rest) {
            *o = a.mul_add(*b, *o);
        }
    }
}

/// Token `t` of `[value_heads, panels, n, PANEL]` as `[value_heads, value_dim]`.
fn gather(shape: &Shape, mixed: &[f32], n: usize, t: usize, out: &mut [f32]) {
    for (h, out) in out.chunks_exact_mut(shape.value_dim).enumerate() {
        for (p, out) in out.chunks_mut(PANEL).enumerate() {
            let at = ((h * shape.panels() + p) * n + t) * PANEL;
            out.copy_from_slice(&mixed[at..at + out.len()]);
        }
    }
}

#[cfg(test)]
mod tests;
