//! Gated DeltaNet: causal convolution, gates, the recurrence of the delta rule, gated norm.
//!
//! A head's state `[key_dim, value_dim]` falls into panels of 16 value columns that never meet: a panel is the unit of
//! work, it stays in the first level cache for all tokens of a call, and it is how the state is stored.

mod recurrence;
mod stored;

use crate::{
    act, norm,
    pool::{Chunks, Pool},
    rows::{Rows, RowsMut},
    simd::{self, kernel},
};
use std::ops::Range;

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

    /// Columns of the convolution that belong to a key head: its query, its key and its values.
    fn window(&self) -> usize {
        2 * self.key_dim + self.group() * self.value_dim
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

/// What a layer remembers. `Clone` is a snapshot; `clone_from` takes one into memory that is there.
#[derive(Debug)]
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
    /// `[key_heads, key_dim, CHUNK]`: their keys.
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

    /// Reads the recurrent state, up to so many bytes of it, so that it is in the cache when a token comes.
    pub fn touch(&self, bytes: usize) {
        simd::touch(&self.recurrent, bytes);
    }

    /// Bytes of memory it takes, the same for any number of tokens.
    pub fn bytes(&self) -> usize {
        let floats = [&self.conv, &self.recurrent, &self.deltas, &self.keys];
        floats.iter().map(|x| size_of_val(&x[..])).sum::<usize>() + size_of_val(&self.fades[..])
    }

    /// What tap `j` of the convolution meets at a token whose row is `projected`, the first of a call.
    fn input<'a>(&'a self, projected: &'a [f32], j: usize) -> &'a [f32] {
        let (before, channels) = (self.shape.conv_kernel - 1, self.shape.channels());
        match j < before {
            true => &self.conv[(self.oldest + j) % before * channels..][..channels],
            false => &projected[..channels],
        }
    }

    /// Columns of what the first tap of the convolution meets at token `t` of `projected`.
    fn first_input(&self, projected: Rows<'_>, t: usize, columns: Range<usize>, out: &mut [f32]) {
        let (before, channels) = (self.shape.conv_kernel - 1, self.shape.channels());
        match t.checked_sub(before) {
            None => out.copy_from_slice(&self.conv[(self.oldest + t) % before * channels..][columns]),
            Some(t) => projected.read(t, columns, out),
        }
    }
}

/// Memory for the steps in between, kept from call to call.
#[derive(Debug, Default)]
pub struct Scratch {
    /// `[n, 2 * value_heads]`: beta, then decay.
    gates: Vec<f32>,
    /// `[segments, key_heads, 2 * CHUNK, key_dim]`: keys and queries in turn.
    rows: Vec<f32>,
    /// `[segments, key_heads, key_dim, CHUNK]`.
    keys: Vec<f32>,
    /// `[segments, value_heads, panels, CHUNK, PANEL]`.
    values: Vec<f32>,
    /// `[segments, value_heads, CHUNK]`.
    tokens: Vec<Token>,
    /// `[segments, value_heads]`: at the end of each.
    fades: Vec<Fades>,
    /// `[value_heads, panels, n, PANEL]`; of a single token `[value_width]`.
    mixed: Vec<f32>,
    /// `[input_width]`: a single token's projections, where they come in bf16.
    token: Vec<f32>,
    /// One for each thread.
    heads: Vec<Head>,
}

/// What a thread needs for a key head, or for a token.
#[derive(Debug, Default)]
struct Head {
    /// `[CHUNK + conv_kernel - 1, columns of a key head]`: inputs of the convolution.
    window: Vec<f32>,
    /// `[2, key_dim]`: key and query of one token.
    rows: Vec<f32>,
    /// `[value_dim]`.
    values: Vec<f32>,
    /// `[value_width]`, twice: a token's output and its gates.
    line: [Vec<f32>; 2],
}

impl Head {
    fn fit(heads: &mut Vec<Head>, threads: usize, shape: &Shape) {
        heads.resize_with(threads.max(heads.len()), Head::default);
        for head in heads {
            head.window.resize((CHUNK + shape.conv_kernel - 1) * shape.window(), 0.0);
            head.rows.resize(2 * shape.key_dim, 0.0);
            head.values.resize(shape.value_dim.next_multiple_of(PANEL), 0.0);
            head.line.iter_mut().for_each(|line| line.resize(shape.value_width(), 0.0));
        }
    }
}

/// The first `len` of a vector that only grows; what stands there is whatever was left.
fn fit<T: Clone>(x: &mut Vec<T>, len: usize, new: T) -> &mut [T] {
    if x.len() < len {
        x.resize(len, new);
    }
    &mut x[..len]
}

/// Tokens run together: as many as leave what is kept in between in the cache. The result does not depend on it.
const PIECE: usize = 96;

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
    let (input, value) = (shape.input_width(), shape.value_width());
    let n = projected.len() / input;
    assert_eq!([projected.len(), out.len()], [n * input, n * value], "{n} tokens");
    let (projected, out) = (Rows::Full(projected, input), RowsMut::Full(out, value));
    forward_rows(pool, shape, weights, state, hidden, projected, out, scratch);
}

/// As [`forward`], for as many tokens as `hidden` has, between buffers that have strides and may hold bf16.
///
/// # Panics
/// As [`forward`].
#[expect(clippy::too_many_arguments)]
pub fn forward_rows(
    pool: &Pool,
    shape: &Shape,
    weights: &Weights<'_>,
    state: &mut State,
    hidden: &[f32],
    projected: Rows<'_>,
    mut out: RowsMut<'_>,
    scratch: &mut Scratch,
) {
    assert!(shape.is_valid(), "{shape:?}");
    let width = weights.ba.len() / (2 * shape.value_heads);
    let (channels, value) = (shape.channels(), shape.value_width());
    let n = hidden.len() / width;
    assert_eq!(state.shape, *shape, "the state is another layer's");
    assert_eq!(weights.ba.len(), 2 * shape.value_heads * width, "ba");
    assert_eq!(weights.taps.len(), channels * shape.conv_kernel, "taps");
    assert_eq!([weights.a.len(), weights.dt_bias.len()], [shape.value_heads; 2], "a, dt_bias");
    assert_eq!(weights.norm.len(), shape.value_dim, "norm");
    assert_eq!(hidden.len(), n * width, "{n} tokens");
    assert!(projected.holds(n, shape.input_width()) && out.holds(n, value), "{n} tokens");

    Head::fit(&mut scratch.heads, pool.threads(), shape);
    if n == 1 {
        one(pool, shape, weights, state, hidden, projected, &mut out, scratch);
        return remember(shape, state, projected, 1);
    }
    for first in (0..n).step_by(PIECE) {
        let rows = PIECE.min(n - first);
        let hidden = &hidden[first * width..][..rows * width];
        let projected = projected.from(first);
        gates(pool, shape, weights, hidden, rows, &mut scratch.gates);
        mix(pool, shape, weights, state, projected, rows, scratch);
        remember(shape, state, projected, rows);
        let Scratch { mixed, heads, .. } = scratch;
        out.from(first).each_group(pool, heads, (rows, 1), &|head, t, mut out| {
            let [line, gate] = &mut head.line;
            let (line, gate) = (&mut line[..value], &mut gate[..value]);
            gather(shape, &mixed[..], rows, t, line);
            projected.read(t, channels..channels + value, gate);
            norm::gated_rms_in_place(line, gate, weights.norm, shape.eps);
            out.put(0, line);
        });
    }
}

/// Convolution and recurrence over `n` tokens.
fn mix(
    pool: &Pool,
    shape: &Shape,
    weights: &Weights<'_>,
    state: &mut State,
    projected: Rows<'_>,
    n: usize,
    scratch: &mut Scratch,
) {
    let Shape { key_heads, value_heads, key_dim, value_dim, .. } = *shape;
    let (key, group, channels) = (shape.key_width(), shape.group(), shape.channels());
    let Scratch { gates, rows, keys, values, tokens, fades, mixed, heads, .. } = scratch;
    // Segment s holds tokens up to where the next chunk begins.
    let pending = state.pending;
    let segments = (pending + n).div_ceil(CHUNK);
    let range = |s: usize| (s * CHUNK).saturating_sub(pending)..((s + 1) * CHUNK - pending).min(n);
    let start = |s: usize| if s == 0 { pending } else { 0 };
    let panels = shape.panels();
    let per_panel = CHUNK * PANEL;
    let rows = fit(rows, segments * 2 * CHUNK * key, 0.0);
    let keys = fit(keys, segments * CHUNK * key, 0.0);
    let values = fit(values, segments * value_heads * panels * per_panel, 0.0);
    let tokens = fit(tokens, segments * value_heads * CHUNK, Token::default());
    let fades = fit(fades, segments * value_heads, Fades::START);
    let parts = (
        Chunks::new(rows, 2 * CHUNK * key_dim),
        Chunks::new(keys, CHUNK * key_dim),
        Chunks::new(values, group * panels * per_panel),
        Chunks::new(tokens, group * CHUNK),
        Chunks::new(fades, group),
    );
    let before = &*state;
    let window = shape.window();
    pool.run_parts_with(heads, parts, |head, i, (rows, keys, values, tokens, fades)| {
        let (s, h) = (i / key_heads, i % key_heads);
        let (range, start) = (range(s), start(s));
        for (g, fades) in fades.iter_mut().enumerate() {
            *fades = if start > 0 { before.fades[h * group + g] } else { Fades::START };
        }
        if start > 0 {
            keys.copy_from_slice(&before.keys[h * CHUNK * key_dim..][..CHUNK * key_dim]);
        }
        let columns = [
            h * key_dim..(h + 1) * key_dim,
            key + h * key_dim..key + (h + 1) * key_dim,
            2 * key + h * group * value_dim..2 * key + (h + 1) * group * value_dim,
        ];
        let x = &mut head.window[..(range.len() + shape.conv_kernel - 1) * window];
        for (i, row) in x.chunks_exact_mut(window).enumerate() {
            let mut rest = row;
            for columns in columns.clone() {
                let part;
                (part, rest) = rest.split_at_mut(columns.len());
                before.first_input(projected, range.start + i, columns, part);
            }
        }
        let convolve = |at: usize, columns: Range<usize>, out: &mut [f32], stride: usize| {
            let taps = (weights.taps, channels, columns);
            convolve_rows(taps, (&x[at..], window), (out, stride), range.len());
        };
        let [q, k, v] = columns;
        let rows = &mut rows[..2 * range.len() * key_dim];
        convolve(0, q, &mut rows[key_dim..], 2 * key_dim);
        convolve(key_dim, k, rows, 2 * key_dim);
        for (i, pair) in rows.chunks_exact_mut(2 * key_dim).enumerate() {
            let (k, q) = pair.split_at_mut(key_dim);
            norm::l2_in_place(q, 1.0 / (key_dim as f32).sqrt());
            norm::l2_in_place(k, 1.0);
            for (keys, &k) in keys.as_chunks_mut::<CHUNK>().0.iter_mut().zip(&*k) {
                keys[start + i] = k;
            }
        }
        for (g, values) in values.chunks_exact_mut(panels * per_panel).enumerate() {
            for (p, panel) in values.chunks_exact_mut(per_panel).enumerate() {
                let first = g * value_dim + p * PANEL;
                let columns = v.start + first..v.start + (g * value_dim + value_dim).min(first + PANEL);
                convolve(2 * key_dim + first, columns, panel, PANEL);
            }
        }
        let mut dots = [[0.0; CHUNK]; 2 * CHUNK];
        recurrence::dots(rows, keys, &mut dots[..2 * range.len()]);
        for ((i, t), dots) in range.enumerate().zip(dots.as_chunks::<2>().0) {
            let (beta, decay) = gates[t * 2 * value_heads..][..2 * value_heads].split_at(value_heads);
            for (g, fades) in fades.iter_mut().enumerate() {
                let head = h * group + g;
                tokens[g * CHUNK + i] = fades.token(start + i, beta[head], decay[head], dots);
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
                rows: &rows[at * 2 * CHUNK * key_dim..][..2 * range.len() * key_dim],
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
    projected: Rows<'_>,
    out: &mut RowsMut<'_>,
    scratch: &mut Scratch,
) {
    let Shape { value_heads, key_dim, value_dim, .. } = *shape;
    let Scratch { heads, mixed, token, .. } = scratch;
    let out_row = fit(mixed, shape.value_width(), 0.0);
    let projected = match projected {
        Rows::Full(projected, _) => projected,
        Rows::Half(..) => {
            let token = fit(token, shape.input_width(), 0.0);
            projected.read(0, 0..token.len(), token);
            token
        }
    };
    let (channels, key, group, panels) = (shape.channels(), shape.key_width(), shape.group(), shape.panels());
    let start = state.pending;
    // Taken out for the loop, so that the rest of the state can be looked at.
    let [mut recurrent, mut deltas, mut keys] =
        [&mut state.recurrent, &mut state.deltas, &mut state.keys].map(std::mem::take);
    let mut fades = std::mem::take(&mut state.fades);
    let parts = (
        Chunks::new(&mut recurrent[..], group * panels * key_dim * PANEL),
        Chunks::new(&mut deltas[..], group * panels * CHUNK * PANEL),
        Chunks::new(&mut keys[..], CHUNK * key_dim),
        Chunks::new(&mut fades[..], group),
        Chunks::new(out_row, group * value_dim),
    );
    let before = &*state;
    pool.run_parts_with(heads, parts, |head, h, (recurrent, deltas, keys, fades, out)| {
        let Head { rows, values, .. } = head;
        let input = |j: usize| before.input(projected, j);
        let rows = &mut rows[..2 * key_dim];
        let (k, q) = rows.split_at_mut(key_dim);
        key_and_query(shape, weights.taps, h, input, k, q);
        for (keys, &k) in keys.as_chunks_mut::<CHUNK>().0.iter_mut().zip(&*k) {
            keys[start] = k;
        }
        let mut dots = [[0.0; CHUNK]; 2];
        recurrence::dots(rows, keys, &mut dots);
        for (g, fades) in fades.iter_mut().enumerate() {
            let head = h * group + g;
            let (beta, decay) = gate(weights, head, value_heads, hidden);
            let tokens = [fades.token(start, beta, decay, &dots)];
            let segment = Segment { start, rows, keys, tokens: &tokens, fades };
            convolve(weights.taps, channels, 2 * key + head * value_dim, input, &mut values[..value_dim]);
            let out = &mut out[g * value_dim..][..value_dim];
            for (p, out) in out.chunks_mut(PANEL).enumerate() {
                let recurrent = &mut recurrent[(g * panels + p) * key_dim * PANEL..][..key_dim * PANEL];
                let deltas = &mut deltas[(g * panels + p) * CHUNK * PANEL..][..CHUNK * PANEL];
                let values = Values { from: &values[p * PANEL..], columns: out.len() };
                let mut mixed = [0.0; PANEL];
                recurrence::run(&segment, recurrent, deltas, values, &mut mixed);
                out.copy_from_slice(&mixed[..out.len()]);
            }
            let z = &projected[channels + head * value_dim..][..value_dim];
            norm::gated_rms_in_place(out, z, weights.norm, shape.eps);
        }
    });
    (state.recurrent, state.deltas, state.keys, state.fades) = (recurrent, deltas, keys, fades);
    out.put(0, &mixed[..shape.value_width()]);
    state.pending = (start + 1) % CHUNK;
    if state.pending == 0 {
        state.fades.fill(Fades::START);
    }
}

/// beta = sigmoid(b) and decay = exp(A softplus(a + dt_bias)) of a head.
fn gate(weights: &Weights<'_>, head: usize, heads: usize, hidden: &[f32]) -> (f32, f32) {
    let row = |i: usize| simd::dot(&weights.ba[i * hidden.len()..][..hidden.len()], hidden);
    open(weights, head, row(head), row(heads + head))
}

fn open(weights: &Weights<'_>, head: usize, b: f32, a: f32) -> (f32, f32) {
    let softplus = act::softplus(a + weights.dt_bias[head]);
    (act::sigmoid(b), f64::from(weights.a[head] * softplus).exp() as f32)
}

/// Of all heads: `[n, 2 * value_heads]`, beta, then decay.
fn gates(pool: &Pool, shape: &Shape, weights: &Weights<'_>, hidden: &[f32], n: usize, out: &mut Vec<f32>) {
    let (heads, width) = (shape.value_heads, hidden.len() / n);
    let out = fit(out, n * 2 * heads, 0.0);
    // Two tokens share the reading of the weights.
    pool.run_chunks(out, 4 * heads, &|pair, out| {
        let hidden = &hidden[2 * pair * width..][..out.len() / (2 * heads) * width];
        match out.split_at_mut(2 * heads) {
            (first, []) => {
                first.iter_mut().zip(weights.ba.chunks_exact(width)).for_each(|(o, w)| *o = simd::dot(w, hidden));
            }
            (first, second) => {
                let (x, y) = hidden.split_at(width);
                for (i, w) in weights.ba.chunks_exact(width).enumerate() {
                    [first[i], second[i]] = simd::dot_pair(w, x, y);
                }
            }
        }
        for out in out.chunks_exact_mut(2 * heads) {
            let (beta, decay) = out.split_at_mut(heads);
            for (head, (beta, decay)) in beta.iter_mut().zip(decay).enumerate() {
                (*beta, *decay) = open(weights, head, *beta, *decay);
            }
        }
    });
}

/// A head's key and query after the convolution, of unit length (the query with the scale of the scores).
fn key_and_query<'a>(
    shape: &Shape,
    taps: &[f32],
    head: usize,
    input: impl Fn(usize) -> &'a [f32],
    k: &mut [f32],
    q: &mut [f32],
) {
    let (channels, at) = (shape.channels(), head * shape.key_dim);
    convolve(taps, channels, at, &input, q);
    convolve(taps, channels, shape.key_width() + at, &input, k);
    norm::l2_in_place(q, 1.0 / (shape.key_dim as f32).sqrt());
    norm::l2_in_place(k, 1.0);
}

/// The causal depthwise convolution and silu: channels from `at` on of one token. `input(j)`: what tap j meets.
fn convolve<'a>(taps: &[f32], channels: usize, at: usize, input: impl Fn(usize) -> &'a [f32], out: &mut [f32]) {
    let n = out.len();
    let tap = |j: usize| &taps[j * channels + at..][..n];
    if taps.len() == 4 * channels {
        let inputs: [&[f32]; 4] = std::array::from_fn(|j| &input(j)[at..][..n]);
        return convolve_four(std::array::from_fn(tap), inputs, out);
    }
    out.fill(0.0);
    for j in 0..taps.len() / channels {
        multiply_add(tap(j), &input(j)[at..][..n], out);
    }
    act::silu_in_place(out);
}

/// As [`convolve`] for `n` tokens, each `stride` values after the one before: `x` begins with what the first tap meets at
/// the first of them. `taps`: all, how many channels there are, and which of them these are.
fn convolve_rows(
    (taps, channels, columns): (&[f32], usize, Range<usize>),
    (x, stride): (&[f32], usize),
    (out, out_stride): (&mut [f32], usize),
    n: usize,
) {
    let width = columns.len();
    let tap = |j: usize| &taps[j * channels..][columns.clone()];
    if taps.len() == 4 * channels {
        return convolve_four_rows(std::array::from_fn(tap), x, stride, out, out_stride, n);
    }
    for (t, out) in out.chunks_mut(out_stride).enumerate().take(n) {
        let out = &mut out[..width];
        out.fill(0.0);
        for j in 0..taps.len() / channels {
            multiply_add(tap(j), &x[(t + j) * stride..][..width], out);
        }
        act::silu_in_place(out);
    }
}

/// The last inputs of the convolution into the ring.
fn remember(shape: &Shape, state: &mut State, projected: Rows<'_>, n: usize) {
    let (channels, before) = (shape.channels(), shape.conv_kernel - 1);
    for t in n.saturating_sub(before)..n {
        let row = &mut state.conv[state.oldest * channels..][..channels];
        projected.read(t, 0..channels, row);
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
    /// [`convolve_four`] for `n` rows: an input is loaded once for the four of them that it has a part in.
    fn convolve_four_rows<V>(
        taps: [&[f32]; 4],
        x: &[f32],
        stride: usize,
        out: &mut [f32],
        out_stride: usize,
        n: usize,
    ) {
        let width = taps[0].len();
        for first in (0..width).step_by(simd::LANES) {
            let columns = first..width.min(first + simd::LANES);
            let load = |x: &[f32]| match x.as_chunks() {
                ([x], []) => V::load(x),
                _ => simd::load_padded(x),
            };
            let taps = taps.map(|tap| load(&tap[columns.clone()]));
            let row = |t: usize| load(&x[t * stride + first..][..columns.len()]);
            let mut inputs = [row(0), row(1), row(2)];
            for t in 0..n {
                let newest = row(t + 3);
                let mut sum = V::splat(0.0);
                for j in 0..3 {
                    sum = taps[j].fma(inputs[j], sum);
                }
                let result = simd::silu(taps[3].fma(newest, sum));
                inputs = [inputs[1], inputs[2], newest];
                let out = &mut out[t * out_stride + first..][..columns.len()];
                match out.as_chunks_mut() {
                    ([out], []) => result.store(out),
                    _ => simd::store_cut(result, out),
                }
            }
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
