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

use crate::simd::{LANES, Lanes, kernel, load_padded};

/// Tokens between two writes of the state.
pub(super) const CHUNK: usize = 16;

/// Value columns of a panel, two vectors.
pub(super) const PANEL: usize = 2 * LANES;

/// Rows that share what is loaded.
const ROWS: usize = 6;

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
    pub(super) fn dots<V>(rows: &[f32], keys: &[f32], out: &mut [[f32; CHUNK]]) {
        recall_all::<V>(rows, keys.as_chunks().0, out);
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
    pub(super) fn run<V>(
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
        recall_all::<V>(segment.rows, state, &mut recalled[..2 * n]);
        for (i, token) in segment.tokens.iter().enumerate() {
            let at = segment.start + i;
            let v = match values.row(i).as_chunks() {
                ([a, b], []) => [V::load(a), V::load(b)],
                ([a], rest) => [V::load(a), load_padded(rest)],
                (_, rest) => [load_padded(rest), V::splat(0.0)],
            };
            let (k, q) = (recalled[2 * i].as_chunks::<LANES>().0, recalled[2 * i + 1].as_chunks::<LANES>().0);
            let fade = V::splat(token.fade);
            let mut r = [V::load(&k[0]).mul(fade), V::load(&k[1]).mul(fade)];
            let mut o = [V::load(&q[0]).mul(fade), V::load(&q[1]).mul(fade)];
            for (j, u) in deltas.iter().enumerate().take(at) {
                let u = u.as_chunks::<LANES>().0;
                let (key, query) = (V::splat(token.key[j]), V::splat(token.query[j]));
                for w in 0..2 {
                    let u = V::load(&u[w]);
                    r[w] = u.fma(key, r[w]);
                    o[w] = u.fma(query, o[w]);
                }
            }
            let (new, out) = (deltas[at].as_chunks_mut::<LANES>().0, out[i * PANEL..].as_chunks_mut::<LANES>().0);
            for w in 0..2 {
                let u = v[w].sub(r[w]).mul(V::splat(token.beta));
                u.store(&mut new[w]);
                u.fma(V::splat(token.query[at]), o[w]).store(&mut out[w]);
            }
        }
        if segment.start + n == CHUNK {
            fold::<V>(segment, state, deltas);
        }
    }
}

const _: () = assert!(CHUNK == PANEL, "keys of a chunk are a panel too");

/// `out = rows state`.
#[inline(always)]
fn recall_all<V: Lanes>(rows: &[f32], state: &[[f32; PANEL]], out: &mut [[f32; PANEL]]) {
    let n = state.len();
    let (six, rest) = out.as_chunks_mut::<6>();
    let (first, last) = rows.split_at(six.len() * 6 * n);
    for (rows, out) in first.chunks_exact(6 * n).zip(six) {
        recall_six::<V>(rows, state, out);
    }
    for (rows, out) in last.chunks_exact(2 * n).zip(rest.as_chunks_mut::<2>().0) {
        recall_two::<V>(rows, state, out);
    }
}

/// [`recall_all`] for six rows: as many as fit into registers. The iterators know that all are of one length.
#[inline(always)]
fn recall_six<V: Lanes>(rows: &[f32], state: &[[f32; PANEL]], out: &mut [[f32; PANEL]; 6]) {
    let row = |r: usize| &rows[r * state.len()..][..state.len()];
    let mut sums = [[V::splat(0.0); 2]; 6];
    let x = row(0).iter().zip(row(1)).zip(row(2)).zip(row(3)).zip(row(4)).zip(row(5));
    for (state, (((((a, b), c), d), e), f)) in state.iter().zip(x) {
        recall_one([*a, *b, *c, *d, *e, *f], state, &mut sums);
    }
    store_rows(sums, out);
}

/// [`recall_all`] for two.
#[inline(always)]
fn recall_two<V: Lanes>(rows: &[f32], state: &[[f32; PANEL]], out: &mut [[f32; PANEL]; 2]) {
    let (a, b) = rows.split_at(state.len());
    let mut sums = [[V::splat(0.0); 2]; 2];
    for (state, (a, b)) in state.iter().zip(a.iter().zip(b)) {
        recall_one([*a, *b], state, &mut sums);
    }
    store_rows(sums, out);
}

/// One value of each row times a row of the state.
#[inline(always)]
fn recall_one<V: Lanes, const R: usize>(x: [f32; R], state: &[f32; PANEL], sums: &mut [[V; 2]; R]) {
    let s = state.as_chunks::<LANES>().0;
    let (a, b): (V, V) = (V::load(&s[0]), V::load(&s[1]));
    for r in 0..R {
        let x = V::splat(x[r]);
        sums[r][0] = a.fma(x, sums[r][0]);
        sums[r][1] = b.fma(x, sums[r][1]);
    }
}

#[inline(always)]
fn store_rows<V: Lanes, const R: usize>(sums: [[V; 2]; R], out: &mut [[f32; PANEL]; R]) {
    for (out, sums) in out.iter_mut().zip(sums) {
        let out = out.as_chunks_mut::<LANES>().0;
        sums[0].store(&mut out[0]);
        sums[1].store(&mut out[1]);
    }
}

/// Writes a whole chunk into the state.
#[inline(always)]
fn fold<V: Lanes>(segment: &Segment<'_>, state: &mut [[f32; PANEL]], deltas: &[[f32; PANEL]]) {
    let mut faded = [[0.0; PANEL]; CHUNK];
    for ((faded, u), &fade) in faded.iter_mut().zip(deltas).zip(&segment.fades.deltas) {
        for (faded, u) in faded.as_chunks_mut::<LANES>().0.iter_mut().zip(u.as_chunks().0) {
            V::load(u).mul(V::splat(fade)).store(faded);
        }
    }
    let (key_dim, fade, keys) = (state.len(), segment.fades.state, segment.keys.as_chunks().0);
    let mut first = 0;
    while first < key_dim {
        let rows = &mut state[first..];
        first += match rows.len() {
            ROWS.. => add::<V, ROWS>(rows, fade, &faded, &keys[first..]),
            2.. => add::<V, 2>(rows, fade, &faded, &keys[first..]),
            _ => add::<V, 1>(rows, fade, &faded, &keys[first..]),
        };
    }
}

/// `rows = fade rows + keys deltas` for `R` rows; `keys` from the first row's on. Returns `R`.
#[inline(always)]
fn add<V: Lanes, const R: usize>(
    rows: &mut [[f32; PANEL]],
    fade: f32,
    deltas: &[[f32; PANEL]; CHUNK],
    keys: &[[f32; CHUNK]],
) -> usize {
    let mut sums = [[V::splat(0.0); 2]; R];
    for (sums, row) in sums.iter_mut().zip(rows.iter()) {
        let row = row.as_chunks::<LANES>().0;
        *sums = [V::load(&row[0]).mul(V::splat(fade)), V::load(&row[1]).mul(V::splat(fade))];
    }
    let keys = &keys[..R];
    for (j, u) in deltas.iter().enumerate() {
        let u = u.as_chunks::<LANES>().0;
        let (a, b): (V, V) = (V::load(&u[0]), V::load(&u[1]));
        for r in 0..R {
            let k = V::splat(keys[r][j]);
            sums[r][0] = a.fma(k, sums[r][0]);
            sums[r][1] = b.fma(k, sums[r][1]);
        }
    }
    for (sums, row) in sums.into_iter().zip(rows) {
        let row = row.as_chunks_mut::<LANES>().0;
        sums[0].store(&mut row[0]);
        sums[1].store(&mut row[1]);
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
