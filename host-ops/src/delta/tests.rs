use super::*;
use crate::bf16::{self, bf16 as Bf16};
use crate::testing::{Random, bits, fixture_f32, max_difference};

const SHAPE: Shape = Shape { key_heads: 2, value_heads: 4, key_dim: 24, value_dim: 40, conv_kernel: 4, eps: 1e-6 };
const WIDTH: usize = 50;

struct Case {
    ba: Vec<f32>,
    conv: Vec<f32>,
    taps: Vec<f32>,
    a: Vec<f32>,
    dt_bias: Vec<f32>,
    norm: Vec<f32>,
    hidden: Vec<f32>,
    projected: Vec<f32>,
    n: usize,
}

impl Case {
    fn new(n: usize) -> Self {
        let mut random = Random::new(14);
        let heads = SHAPE.value_heads;
        let conv = random.normal(SHAPE.channels() * SHAPE.conv_kernel);
        Case {
            ba: random.normal(2 * heads * WIDTH).iter().map(|x| x * 0.1).collect(),
            taps: taps(&conv, SHAPE.conv_kernel),
            conv,
            a: random.normal(heads).iter().map(|x| -x.exp()).collect(),
            dt_bias: random.normal(heads),
            norm: random.normal(SHAPE.value_dim),
            hidden: random.normal(n * WIDTH),
            projected: random.normal(n * SHAPE.input_width()),
            n,
        }
    }

    fn weights(&self) -> Weights<'_> {
        Weights { ba: &self.ba, taps: &self.taps, a: &self.a, dt_bias: &self.dt_bias, norm: &self.norm }
    }

    /// Runs the tokens in pieces of the given lengths, then the rest.
    fn run(&self, threads: usize, pieces: &[usize]) -> (Vec<f32>, State) {
        let (pool, mut scratch) = (Pool::new(threads), Scratch::default());
        let mut state = State::new(SHAPE);
        let mut out = vec![0.0; self.n * SHAPE.value_width()];
        let mut first = 0;
        for n in pieces.iter().copied().chain([usize::MAX]) {
            let n = n.min(self.n - first);
            let (hidden, projected) = (&self.hidden[first * WIDTH..], &self.projected[first * SHAPE.input_width()..]);
            forward(
                &pool,
                &SHAPE,
                &self.weights(),
                &mut state,
                &hidden[..n * WIDTH],
                &projected[..n * SHAPE.input_width()],
                &mut out[first * SHAPE.value_width()..][..n * SHAPE.value_width()],
                &mut scratch,
            );
            first += n;
        }
        (out, state)
    }

    /// The definition, in f64, token by token.
    fn defined(&self) -> (Vec<f32>, Vec<f32>) {
        let (heads, dk, dv) = (SHAPE.value_heads, SHAPE.key_dim, SHAPE.value_dim);
        let (channels, key, input) = (SHAPE.channels(), SHAPE.key_width(), SHAPE.input_width());
        let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
        let (x, hidden, ba, conv) = (wide(&self.projected), wide(&self.hidden), wide(&self.ba), wide(&self.conv));
        let sigma = |x: f64| 1.0 / (1.0 + (-x).exp());
        let mut state = vec![0.0; heads * dk * dv];
        let mut out = Vec::new();
        for t in 0..self.n {
            let u: Vec<f64> = (0..channels)
                .map(|c| {
                    let taps = (0..4).filter(|j| t + j >= 3);
                    let sum: f64 = taps.map(|j| conv[c * 4 + j] * x[(t + j - 3) * input + c]).sum();
                    sum * sigma(sum)
                })
                .collect();
            let gate = |i: usize| (0..WIDTH).map(|d| ba[i * WIDTH + d] * hidden[t * WIDTH + d]).sum::<f64>();
            for h in 0..heads {
                let unit = |x: &[f64]| {
                    let length = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
                    x.iter().map(|x| x / length).collect::<Vec<_>>()
                };
                let at = h / (heads / SHAPE.key_heads) * dk;
                let (q, k) = (unit(&u[at..at + dk]), unit(&u[key + at..][..dk]));
                let v = &u[2 * key + h * dv..][..dv];
                let beta = sigma(gate(h));
                let a = (gate(heads + h) + f64::from(self.dt_bias[h])).exp().ln_1p();
                let decay = (f64::from(self.a[h]) * a).exp();
                let s = &mut state[h * dk * dv..][..dk * dv];
                s.iter_mut().for_each(|s| *s *= decay);
                let mut o = vec![0.0; dv];
                for j in 0..dv {
                    let r: f64 = (0..dk).map(|i| s[i * dv + j] * k[i]).sum();
                    for i in 0..dk {
                        s[i * dv + j] += k[i] * beta * (v[j] - r);
                    }
                    o[j] = (0..dk).map(|i| s[i * dv + j] * q[i]).sum::<f64>() / (dk as f64).sqrt();
                }
                let rms = (o.iter().map(|o| o * o).sum::<f64>() / dv as f64 + 1e-6).sqrt();
                for j in 0..dv {
                    let z = x[t * input + channels + h * dv + j];
                    out.push((o[j] / rms * f64::from(self.norm[j]) * z * sigma(z)) as f32);
                }
            }
        }
        (out, state.iter().map(|&s| s as f32).collect())
    }
}

#[test]
fn follows_the_definition() {
    let case = Case::new(40);
    let (out, state) = case.run(1, &[]);
    let (expected, expected_state) = case.defined();
    assert!(max_difference(&out, &expected) < 1e-4, "{}", max_difference(&out, &expected));
    assert!(max_difference(&state.recurrent(), &expected_state) < 1e-5);
    let last: Vec<f32> =
        (37..40).flat_map(|t| case.projected[t * SHAPE.input_width()..][..SHAPE.channels()].to_vec()).collect();
    assert_eq!(state.conv(), last);
}

#[test]
fn any_cut_any_threads_and_both_implementations_give_the_same_bits() {
    let case = Case::new(530);
    let (whole, state) = case.run(1, &[]);
    let same = |(out, other): (Vec<f32>, State), what: &str| {
        assert!(bits(&out) == bits(&whole), "{what}");
        assert!(bits(&other.recurrent()) == bits(&state.recurrent()), "{what}");
        assert!(bits(&other.conv()) == bits(&state.conv()), "{what}");
    };
    for cut in [1, 2, 3, 255, 256, 257, 511, 529] {
        same(case.run(1, &[cut]), &format!("cut at {cut}"));
    }
    same(case.run(2, &[1, 1, 1, 1, 300]), "2 threads");
    same(case.run(3, &[]), "3 threads");
    same(simd::plain(|| case.run(1, &[])), "plain");
    same(simd::at_level(simd::Level::Avx2, || case.run(1, &[])), "AVX2");
}

#[test]
fn a_state_that_fades_fast_holds_no_subnormal_numbers() {
    // The decay of a token is around e^-20: after five of them a product with it is subnormal.
    let case = Case { a: vec![-20.0; 4], dt_bias: vec![0.5; 4], ..Case::new(300) };
    let (out, state) = case.run(1, &[]);
    let (expected, _) = case.defined();
    assert!(max_difference(&out, &expected) < 1e-4, "{}", max_difference(&out, &expected));
    let fades: Vec<f32> = state.fades.iter().flat_map(Fades::values).collect();
    assert!(state.recurrent().iter().chain(&fades).all(|x| !x.is_subnormal()));
}

#[test]
fn a_snapshot_and_a_reset_start_over() {
    let case = Case::new(6);
    let (_, mut state) = case.run(1, &[]);
    let snapshot = state.clone();
    state.reset();
    assert!(state.recurrent().iter().chain(&state.conv()).all(|&x| x == 0.0));
    assert_eq!(snapshot.recurrent().len(), 4 * 24 * 40);
    assert!(snapshot.recurrent().iter().any(|&x| x != 0.0));
    assert_eq!(state.bytes(), 4 * (3 * SHAPE.channels() + 4 * 3 * (24 + 16) * 16 + 16 * 2 * 24 + 4 * 17));
}

#[test]
fn shapes_that_cannot_run_are_told() {
    assert!(SHAPE.is_valid());
    assert!(!Shape { key_heads: 3, ..SHAPE }.is_valid());
    assert!(!Shape { key_heads: 0, ..SHAPE }.is_valid());
    assert!(!Shape { conv_kernel: 0, ..SHAPE }.is_valid());
}

#[test]
fn a_single_tap_needs_no_state() {
    let shape = Shape { conv_kernel: 1, ..SHAPE };
    let (ones, zeros) = (vec![1.0; shape.channels()], vec![0.0; 2 * 4 * WIDTH]);
    let weights = Weights { ba: &zeros, taps: &ones, a: &[-1.0; 4], dt_bias: &[0.0; 4], norm: &[1.0; 40] };
    let case = Case::new(5);
    let mut state = State::new(shape);
    let mut out = vec![f32::NAN; 5 * shape.value_width()];
    let (pool, mut scratch) = (Pool::serial(), Scratch::default());
    forward(&pool, &shape, &weights, &mut state, &case.hidden, &case.projected, &mut out, &mut scratch);
    assert!(state.conv().is_empty());
    assert!(out.iter().all(|x| x.is_finite()));
}

/// Some heads of a small random model's first layer, run by transformers in f32 over `n` tokens.
fn golden(tag: &str, shape: Shape, n: usize) -> (Vec<f32>, State) {
    let read = |part: &str| fixture_f32(&format!("{tag}.{part}.f32"));
    let (ba, conv, gates, norm) = (read("ba"), read("conv"), read("gates"), read("norm"));
    let (a, dt_bias) = gates.split_at(shape.value_heads);
    let taps = taps(&conv, shape.conv_kernel);
    let weights = Weights { ba: &ba, taps: &taps, a, dt_bias, norm: &norm };
    let mut state = State::new(shape);
    let mut out = vec![0.0; n * shape.value_width()];
    let (pool, mut scratch) = (Pool::new(2), Scratch::default());
    forward(&pool, &shape, &weights, &mut state, &read("hidden"), &read("projected"), &mut out, &mut scratch);
    (out, state)
}

#[test]
fn as_transformers_computes_it() {
    let shape = Shape { key_heads: 2, value_heads: 2, key_dim: 64, value_dim: 64, conv_kernel: 4, eps: 1e-6 };
    let (out, state) = golden("delta", shape, 32);
    assert!(max_difference(&out, &fixture_f32("delta.out.f32")) < 1e-5);
    assert!(max_difference(&state.recurrent(), &fixture_f32("delta.state.f32")) < 1e-5);
    // Two value heads on one key head.
    let shape = Shape { key_heads: 1, value_heads: 2, key_dim: 128, value_dim: 128, conv_kernel: 4, eps: 1e-6 };
    let (out, _) = golden("delta_grouped", shape, 16);
    assert!(max_difference(&out, &fixture_f32("delta_grouped.out.f32")) < 1e-5);
}

#[test]
fn a_stored_state_goes_on_with_the_same_bits() {
    let case = Case::new(53);
    let (out, _) = case.run(1, &[]);
    // With a chunk under way, and at its end.
    for first in [1, 21, 32] {
        let (weights, pool, mut scratch) = (case.weights(), Pool::serial(), Scratch::default());
        let (input, value) = (SHAPE.input_width(), SHAPE.value_width());
        let mut forward = |state: &mut State, tokens: Range<usize>| {
            let hidden = &case.hidden[tokens.start * WIDTH..tokens.end * WIDTH];
            let projected = &case.projected[tokens.start * input..tokens.end * input];
            let mut out = vec![0.0; tokens.len() * value];
            forward(&pool, &SHAPE, &weights, state, hidden, projected, &mut out, &mut scratch);
            out
        };
        let mut state = State::new(SHAPE);
        forward(&mut state, 0..first);
        let mut bytes = Vec::new();
        state.store(&mut bytes);
        assert_eq!(bytes.len(), state.stored_bytes());
        // Into states that know other tokens.
        let mut loaded = State::new(SHAPE);
        forward(&mut loaded, 7..19);
        let mut copied = loaded.clone();
        copied.clone_from(&state);
        assert!(loaded.load(&bytes));
        for mut state in [loaded, copied, state] {
            assert_eq!(bits(&forward(&mut state, first..53)), bits(&out[first * value..]), "{first}");
        }
    }
}

#[test]
fn bytes_that_are_no_state_are_refused() {
    let mut state = State::new(SHAPE);
    let mut bytes = Vec::new();
    state.store(&mut bytes);
    assert!(state.load(&bytes));
    assert!(!state.load(&bytes[1..]) && !state.load(&[]) && !state.load(&[&bytes[..], &[0; 4]].concat()));
    for (at, least) in [(0, 3), (4, CHUNK as u8)] {
        for value in [least, 255] {
            let mut wrong = bytes.clone();
            wrong[at] = value;
            assert!(!state.load(&wrong), "{at} {value}");
        }
    }
}

#[test]
fn rows_of_bf16_with_strides_give_the_same() {
    let mut case = Case::new(41);
    let (input, width, n) = (SHAPE.input_width(), SHAPE.value_width(), 41);
    let half: Vec<Bf16> = case.projected.iter().map(|&x| Bf16::from_f32(x)).collect();
    bf16::to_f32(&half, &mut case.projected);
    let (out, state) = case.run(1, &[]);
    let strided: Vec<Bf16> =
        half.chunks_exact(input).flat_map(|row| [row, &[Bf16::NAN; 3]].concat()).take(n * (input + 3) - 3).collect();
    let (pool, mut scratch, mut other) = (Pool::new(2), Scratch::default(), State::new(SHAPE));
    let mut got = vec![Bf16::ZERO; n * (width + 5) - 5];
    for (first, rows) in [(0, 2), (2, 1), (3, 38)] {
        let projected = Rows::Half(&strided, input + 3).from(first);
        let to = RowsMut::Half(&mut got[first * (width + 5)..], width + 5);
        let hidden = &case.hidden[first * WIDTH..][..rows * WIDTH];
        forward_rows(&pool, &SHAPE, &case.weights(), &mut other, hidden, projected, to, &mut scratch);
    }
    for t in 0..n {
        let expected: Vec<Bf16> = out[t * width..][..width].iter().map(|&x| Bf16::from_f32(x)).collect();
        assert_eq!(got[t * (width + 5)..][..width], expected, "token {t}");
    }
    assert_eq!(bits(&other.recurrent()), bits(&state.recurrent()));
    assert_eq!(bits(&other.conv()), bits(&state.conv()));
    assert!(got.chunks(width + 5).take(n - 1).all(|row| row[width..].iter().all(|x| *x == Bf16::ZERO)));
}
