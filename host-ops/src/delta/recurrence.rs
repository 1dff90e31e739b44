//! The delta rule: `S = decay S; r = S^T k; S += k (beta (v - r))^T; o = S^T q`.
//!
//! The state is written once every [`CHUNK`] tokens. In between, what a token has added is remembered as its key and its
//! delta `u`: with `A_i` the product of a chunk's decays up to token i, and `G_ij` that of the decays after j up to i,
//!
//! ```text
//! u_i = beta_i (v_i - A_i S0^T k_i - sum_{j<i} G_ij (k_j k_i) u_j)
//! o_i =               A_i S0^T q_i + sum_{j<=i} G_ij (k_j q_i) u_j
//! S   = A_last S0 + sum_j k_j (G_last,j u_j)^T
//! ```
//!
//! (the WY form of the delta rule, Yang et al., "Parallelizing linear transformers with the delta rule over sequence
//! length"). A prompt becomes matrix products, and a single token only reads the state. Chunks begin at multiples of
//! [`CHUNK`] tokens of the sequence and every sum runs in the order of the formulas, so a token's bits do not depend on
//! how many came with it.

use crate::simd::kernel;
use crate::wide::{Vector, WIDE};

/// Tokens between two writes of the state.
pub(super) const CHUNK: usize = 16;

/// Value columns of a panel.
pub(super) const PANEL: usize = WIDE;

/// A decay below this is none: products with it vanish beside what a token adds, and would soon be subnormal numbers, with
/// which some processors are several times slower (docs/bench).
const FADED: f32 = 1e-24;

/// What a token needs beside its key, query and value; the products of decays are in the factors.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Token {
    /// Factor of what the state recalls.
    fade: f32,
    beta: f32,
    /// Of the deltas in what is recalled for the key; of those before this token.
    key: [f32; CHUNK],
    /// The same for the query; of this token's too.
    query: [f32; CHUNK],
}

/// The decays of a chunk up to now.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fades {
    /// Of the state.
    state: f32,
    /// Of each delta.
    deltas: [f32; CHUNK],
}

impl Fades {
    pub(super) const START: Fades = Fades { state: 1.0, deltas: [1.0; CHUNK] };

    /// The state's decay, then the deltas'.
    pub(super) fn values(&self) -> [f32; 1 + CHUNK] {
        std::array::from_fn(|i| i.checked_sub(1).map_or(self.state, |i| self.deltas[i]))
    }

    /// From [`Fades::values`].
    pub(super) fn of(values: [f32; 1 + CHUNK]) -> Fades {
        Fades { state: values[0], deltas: std::array::from_fn(|i| values[i + 1]) }
    }

    /// Takes in token `i` of the chunk. `dots`: its key's and its query's products with the chunk's keys up to its own.
    pub(super) fn token(&mut self, i: usize, beta: f32, decay: f32, dots: &[[f32; CHUNK]]) -> Token {
        let fade = |fade: &mut f32| {
            let faded = *fade * decay;
            *fade = if faded < FADED { 0.0 } else { faded };
        };
        fade(&mut self.state);
        self.deltas[..i].iter_mut().for_each(fade);
        let times = |dots: &[f32; CHUNK]| std::array::from_fn(|j| if j <= i { self.deltas[j] * dots[j] } else { 0.0 });
        Token { fade: self.state, beta, key: times(&dots[0]), query: times(&dots[1]) }
    }
}

kernel! {
    /// Products of rows, each of `key_dim`, with the keys of a chunk, `[key_dim, CHUNK]`. `out`: a row for each.
    pub(super) fn dots<V, W>(rows: &[f32], keys: &[f32], out: &mut [[f32; CHUNK]]) {
        recall_all::<W>(rows, keys.as_chunks().0, out);
    }
}

/// Some tokens of one chunk.
#[derive(Debug, Clone, Copy)]
pub(super) struct Segment<'a> {
    /// Which token of its chunk the first one is.
    pub(super) start: usize,
    /// Each token's key and query, `[2 * tokens, key_dim]`.
    pub(super) rows: &'a [f32],
    /// `[key_dim, CHUNK]`: the chunk's keys, those of this segment included.
    pub(super) keys: &'a [f32],
    pub(super) tokens: &'a [Token],
    pub(super) fades: &'a Fades,
}

/// Values of some tokens, rows of [`PANEL`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Values<'a> {
    /// The last row may end after `columns`.
    pub(super) from: &'a [f32],
    /// Columns that count, 1 to [`PANEL`].
    pub(super) columns: usize,
}

impl<'a> Values<'a> {
    #[inline(always)]
    fn row(&self, i: usize) -> &'a [f32] {
        &self.from[i * PANEL..][..self.columns]
    }
}

kernel! {
    /// Runs a segment through a panel.
    ///
    /// * `state`: `[key_dim, PANEL]`
    /// * `deltas`: `[CHUNK, PANEL]`, of the chunk's tokens before the segment, and after it the segment's too
    /// * `values`: of the panel's columns
    /// * `out`: `[tokens, PANEL]`
    pub(super) fn run<V, W>(
        segment: &Segment<'_>,
        state: &mut [f32],
        deltas: &mut [f32],
        values: Values<'_>,
        out: &mut [f32],
    ) {
        let n = segment.tokens.len();
        let state = state.as_chunks_mut::<PANEL>().0;
        let deltas = deltas.as_chunks_mut::<PANEL>().0;
        let mut recalled = [[0.0; PANEL]; 2 * CHUNK];
        recall_all::<W>(segment.rows, state, &mut recalled[..2 * n]);
        for (i, token) in segment.tokens.iter().enumerate() {
            let at = segment.start + i;
            let mut value = [0.0; PANEL];
            value[..values.columns].copy_from_slice(values.row(i));
            let fade = W::all(token.fade);
            let mut r = W::read(&recalled[2 * i]).times(fade);
            let mut o = W::read(&recalled[2 * i + 1]).times(fade);
            for (j, u) in deltas.iter().enumerate().take(at) {
                let u = W::read(u);
                r = r.plus(u, W::all(token.key[j]));
                o = o.plus(u, W::all(token.query[j]));
            }
            let u = W::read(&value).less(r).times(W::all(token.beta));
            u.write(&mut deltas[at]);
            o.plus(u, W::all(token.query[at])).write(&mut out[i * PANEL..][..PANEL]);
        }
        if segment.start + n == CHUNK {
            fold::<W>(segment, state, deltas);
        }
    }
}

const _: () = assert!(CHUNK == PANEL, "keys of a chunk are a panel too");

/// `out = rows state`.
#[inline(always)]
fn recall_all<W: Vector>(rows: &[f32], state: &[[f32; PANEL]], out: &mut [[f32; PANEL]]) {
    let n = state.len();
    let (twelve, rest) = if W::ROWS < 12 { (&mut [][..], out) } else { out.as_chunks_mut::<12>() };
    let (first, rows) = rows.split_at(twelve.len() * 12 * n);
    for (rows, out) in first.chunks_exact(12 * n).zip(twelve) {
        recall_twelve::<W>(rows, state, out);
    }
    let (six, rest) = rest.as_chunks_mut::<6>();
    let (first, last) = rows.split_at(six.len() * 6 * n);
    for (rows, out) in first.chunks_exact(6 * n).zip(six) {
        recall_six::<W>(rows, state, out);
    }
    for (rows, out) in last.chunks_exact(2 * n).zip(rest.as_chunks_mut::<2>().0) {
        recall_two::<W>(rows, state, out);
    }
}

/// [`recall_all`] for as many rows as have their sums in sixteen registers of eight lanes. The iterators know that all are
/// of one length.
#[inline(always)]
fn recall_six<W: Vector>(rows: &[f32], state: &[[f32; PANEL]], out: &mut [[f32; PANEL]; 6]) {
    let row = |r: usize| &rows[r * state.len()..][..state.len()];
    let mut sums = [W::all(0.0); 6];
    let x = row(0).iter().zip(row(1)).zip(row(2)).zip(row(3)).zip(row(4)).zip(row(5));
    for (state, (((((a, b), c), d), e), f)) in state.iter().zip(x) {
        recall_one([*a, *b, *c, *d, *e, *f], state, &mut sums);
    }
    store_rows(sums, out);
}

/// [`recall_all`] for as many as thirty-two registers of sixteen hold.
#[inline(always)]
fn recall_twelve<W: Vector>(rows: &[f32], state: &[[f32; PANEL]], out: &mut [[f32; PANEL]; 12]) {
    let row = |r: usize| &rows[r * state.len()..][..state.len()];
    let six = |r: usize| row(r).iter().zip(row(r + 1)).zip(row(r + 2)).zip(row(r + 3)).zip(row(r + 4)).zip(row(r + 5));
    let mut sums = [W::all(0.0); 12];
    for (state, ((((((a, b), c), d), e), f), (((((g, h), i), j), k), l))) in state.iter().zip(six(0).zip(six(6))) {
        recall_one([*a, *b, *c, *d, *e, *f, *g, *h, *i, *j, *k, *l], state, &mut sums);
    }
    store_rows(sums, out);
}

/// [`recall_all`] for two.
#[inline(always)]
fn recall_two<W: Vector>(rows: &[f32], state: &[[f32; PANEL]], out: &mut [[f32; PANEL]; 2]) {
    let (a, b) = rows.split_at(state.len());
    let mut sums = [W::all(0.0); 2];
    for (state, (a, b)) in state.iter().zip(a.iter().zip(b)) {
        recall_one([*a, *b], state, &mut sums);
    }
    store_rows(sums, out);
}

/// One value of each row times a row of the state.
#[inline(always)]
fn recall_one<W: Vector, const R: usize>(x: [f32; R], state: &[f32; PANEL], sums: &mut [W; R]) {
    let state = W::read(state);
    for r in 0..R {
        sums[r] = sums[r].plus(state, W::all(x[r]));
    }
}

#[inline(always)]
fn store_rows<W: Vector, const R: usize>(sums: [W; R], out: &mut [[f32; PANEL]; R]) {
    for (out, sum) in out.iter_mut().zip(sums) {
        sum.write(out);
    }
}

/// Writes a whole chunk into the state.
#[inline(always)]
fn fold<W: Vector>(segment: &Segment<'_>, state: &mut [[f32; PANEL]], deltas: &[[f32; PANEL]]) {
    let mut faded = [[0.0; PANEL]; CHUNK];
    for ((faded, u), &fade) in faded.iter_mut().zip(deltas).zip(&segment.fades.deltas) {
        W::read(u).times(W::all(fade)).write(faded);
    }
    let (key_dim, fade, keys) = (state.len(), segment.fades.state, segment.keys.as_chunks().0);
    let mut first = 0;
    while first < key_dim {
        let rows = &mut state[first..];
        first += match rows.len() {
            12.. if W::ROWS >= 12 => add::<W, 12>(rows, fade, &faded, &keys[first..]),
            6.. => add::<W, 6>(rows, fade, &faded, &keys[first..]),
            2.. => add::<W, 2>(rows, fade, &faded, &keys[first..]),
            _ => add::<W, 1>(rows, fade, &faded, &keys[first..]),
        };
    }
}

/// `rows = fade rows + keys deltas` for `R` rows; `keys` from the first row's on. Returns `R`.
#[inline(always)]
fn add<W: Vector, const R: usize>(
    rows: &mut [[f32; PANEL]],
    fade: f32,
    deltas: &[[f32; PANEL]; CHUNK],
    keys: &[[f32; CHUNK]],
) -> usize {
    let mut sums = [W::all(0.0); R];
    for (sum, row) in sums.iter_mut().zip(rows.iter()) {
        *sum = W::read(row).times(W::all(fade));
    }
    let keys = &keys[..R];
    for (j, u) in deltas.iter().enumerate() {
        let u = W::read(u);
        for r in 0..R {
            sums[r] = sums[r].plus(u, W::all(keys[r][j]));
        }
    }
    for (sum, row) in sums.into_iter().zip(rows) {
        sum.write(row);
    }
    R
}

/// The state after `fades` and `deltas` of a chunk that is under way, one value of it: row `d` of a panel.
pub(super) fn value(
    state: &[f32],
    fades: &Fades,
    deltas: &[f32],
    keys: &[f32],
    count: usize,
    d: usize,
    column: usize,
) -> f32 {
    let start = state[d * PANEL + column] * fades.state;
    (0..count).fold(start, |sum, j| keys[d * CHUNK + j].mul_add(fades.deltas[j] * deltas[j * PANEL + column], sum))
}
