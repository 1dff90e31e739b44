use super::*;
use crate::bf16::{self, bf16 as Bf16};
use crate::testing::{Random, bits, fixture_f32, max_difference};

const SHAPE: Shape = Shape { heads: 6, kv_heads: 2, head_dim: 24, eps: 1e-6 };

struct Case {
    q_norm: Vec<f32>,
    k_norm: Vec<f32>,
    projected: Vec<f32>,
    n: usize,
}

impl Case {
    fn new(n: usize) -> Self {
        let mut random = Random::new(15);
        Case {
            q_norm: random.normal(SHAPE.head_dim),
            k_norm: random.normal(SHAPE.head_dim),
            projected: random.normal(n * SHAPE.input_width()),
            n,
        }
    }

    fn rope(&self, first: usize, n: usize) -> rope::Table {
        let positions: Vec<[u32; 3]> = (first..first + n).map(|p| [p as u32, p as u32 / 2, p as u32 % 7]).collect();
        let mut table = rope::Table::new();
        rope::Text::new(16, 1e4, [3, 3, 2]).fill(&positions, &mut table);
        table
    }

    /// Runs the tokens in pieces of the given lengths, then the rest.
    fn run(&self, threads: usize, pieces: &[usize]) -> (Vec<f32>, KvCache) {
        self.run_in(KvFormat::F32, threads, pieces)
    }

    fn run_in(&self, format: KvFormat, threads: usize, pieces: &[usize]) -> (Vec<f32>, KvCache) {
        let (pool, mut scratch) = (Pool::new(threads), Scratch::default());
        let mut cache = KvCache::with_format(SHAPE, format);
        let mut out = vec![f32::NAN; self.n * SHAPE.output_width()];
        for n in pieces.iter().copied().chain([usize::MAX]) {
            let first = cache.len();
            let n = n.min(self.n - first);
            forward(
                &pool,
                &SHAPE,
                &Weights { q_norm: &self.q_norm, k_norm: &self.k_norm },
                &self.rope(first, n),
                &mut cache,
                &self.projected[first * SHAPE.input_width()..][..n * SHAPE.input_width()],
                &mut out[first * SHAPE.output_width()..][..n * SHAPE.output_width()],
                &mut scratch,
            );
        }
        (out, cache)
    }

    /// The definition, in f64, one query after the other.
    fn defined(&self) -> Vec<f32> {
        let (hd, input) = (SHAPE.head_dim, SHAPE.input_width());
        let table = self.rope(0, self.n);
        let head = |t: usize, at: usize, w: Option<&[f32]>| -> Vec<f64> {
            let mut x = self.projected[t * input + at..][..hd].to_vec();
            if let Some(w) = w {
                norm::rms_in_place(&mut x, w, 1e-6);
                table.rotate(t, &mut x);
            }
            x.into_iter().map(f64::from).collect()
        };
        let mut out = Vec::new();
        for t in 0..self.n {
            for h in 0..SHAPE.heads {
                let q = head(t, 2 * h * hd, Some(&self.q_norm));
                let gate = head(t, (2 * h + 1) * hd, None);
                let g = h / 3;
                let scores: Vec<f64> = (0..=t)
                    .map(|s| head(s, (2 * SHAPE.heads + g) * hd, Some(&self.k_norm)))
                    .map(|k| q.iter().zip(&k).map(|(q, k)| q * k).sum::<f64>() / (hd as f64).sqrt())
                    .collect();
                let max = scores.iter().fold(f64::MIN, |m, &s| m.max(s));
                let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
                let sum: f64 = weights.iter().sum();
                let mut o = vec![0.0; hd];
                for (s, w) in weights.iter().enumerate() {
                    let v = head(s, (2 * SHAPE.heads + SHAPE.kv_heads + g) * hd, None);
                    o.iter_mut().zip(v).for_each(|(o, v)| *o += w / sum * v);
                }
                out.extend(o.iter().zip(gate).map(|(o, g)| (o / (1.0 + (-g).exp())) as f32));
            }
        }
        out
    }
}

#[test]
fn follows_the_definition() {
    let case = Case::new(150);
    let expected = case.defined();
    for pieces in [&[][..], &[1, 1, 1], &[149]] {
        let (out, _) = case.run(1, pieces);
        assert!(max_difference(&out, &expected) < 1e-5, "{}", max_difference(&out, &expected));
    }
}

#[test]
fn any_cut_any_threads_and_both_implementations_give_the_same_bits() {
    let case = Case::new(1100);
    let (whole, cache) = case.run(1, &[]);
    let same = |(out, other): (Vec<f32>, KvCache), what: &str| {
        assert!(bits(&out) == bits(&whole), "{what}");
        assert_eq!(bits(&other.key(700, 1)), bits(&cache.key(700, 1)), "{what}");
        assert_eq!(bits(&other.value(1099, 0)), bits(&cache.value(1099, 0)), "{what}");
    };
    for cut in [1, 63, 64, 65, BLOCK - 1, BLOCK, BLOCK + 1, 255, 256, 257, 511, 512, 513, 1099] {
        same(case.run(1, &[cut]), &format!("cut at {cut}"));
    }
    same(case.run(2, &[1, 1, 1, 1, 300, 3]), "2 threads");
    same(case.run(3, &vec![1; 1100]), "3 threads, token by token");
    same(case.run(8, &[500, 2, 1]), "8 threads");
    same(simd::plain(|| case.run(1, &[700])), "plain");
    same(simd::at_level(simd::Level::Avx2, || case.run(1, &[700])), "AVX2");
}

#[test]
fn equal_values_come_out_as_they_are() {
    // Softmax weights sum to one: with the same value everywhere and open gates, that value comes out.
    let mut case = Case::new(200);
    for row in case.projected.chunks_exact_mut(SHAPE.input_width()) {
        for h in 0..SHAPE.heads {
            row[(2 * h + 1) * SHAPE.head_dim..][..SHAPE.head_dim].fill(100.0);
        }
        row[SHAPE.input_width() - SHAPE.kv_width()..].fill(0.75);
    }
    let (out, _) = case.run(2, &[]);
    assert!(out.iter().all(|x| (x - 0.75).abs() < 1e-6));
}

#[test]
fn snapshots_share_pages_and_do_not_see_later_tokens() {
    let case = Case::new(130);
    let (_, mut cache) = case.run(1, &[]);
    assert_eq!(cache.bytes(), 130usize.div_ceil(BLOCK) * 2 * 4 * SHAPE.kv_width() * BLOCK);
    let snapshot = cache.clone();
    let key = snapshot.key(100, 1);
    cache.truncate(70);
    let (pool, mut scratch) = (Pool::serial(), Scratch::default());
    let weights = Weights { q_norm: &case.q_norm, k_norm: &case.k_norm };
    let mut out = vec![0.0; 60 * SHAPE.output_width()];
    let projected = &case.projected[..60 * SHAPE.input_width()];
    forward(&pool, &SHAPE, &weights, &case.rope(70, 60), &mut cache, projected, &mut out, &mut scratch);
    assert_eq!((cache.len(), snapshot.len()), (130, 130));
    assert_eq!(snapshot.key(100, 1), key);
    assert_ne!(cache.key(100, 1), key);
    assert_eq!(cache.key(3, 0), snapshot.key(3, 0));
}

#[test]
fn going_back_and_on_gives_the_same_bits() {
    let case = Case::new(90);
    let (out, mut cache) = case.run(1, &[]);
    cache.truncate(40);
    let (pool, mut scratch) = (Pool::serial(), Scratch::default());
    let weights = Weights { q_norm: &case.q_norm, k_norm: &case.k_norm };
    let mut again = vec![0.0; 50 * SHAPE.output_width()];
    let projected = &case.projected[40 * SHAPE.input_width()..];
    forward(&pool, &SHAPE, &weights, &case.rope(40, 50), &mut cache, projected, &mut again, &mut scratch);
    assert_eq!(bits(&again), bits(&out[40 * SHAPE.output_width()..]));
}

#[test]
fn stored_tokens_come_back_bit_by_bit() {
    let case = Case::new(150);
    for format in [KvFormat::F32, KvFormat::Half] {
        let (_, cache) = case.run_in(format, 1, &[]);
        let mut bytes = Vec::new();
        cache.store(0..150, &mut bytes);
        assert_eq!(bytes.len(), 150 * cache.token_bytes());
        assert_eq!(cache.token_bytes(), 2 * SHAPE.kv_width() * format.bytes());
        // Into pages that hold other tokens, in pieces across their edges.
        let (_, mut loaded) = Case { n: 140, ..Case::new(150) }.run_in(format, 1, &[]);
        loaded.truncate(0);
        bytes.chunks(70 * cache.token_bytes()).for_each(|piece| loaded.load(piece));
        assert_eq!(loaded.len(), 150);
        for (token, head) in (0..150).flat_map(|t| [(t, 0), (t, 1)]) {
            assert_eq!(bits(&loaded.key(token, head)), bits(&cache.key(token, head)), "{format:?} {token}");
            assert_eq!(bits(&loaded.value(token, head)), bits(&cache.value(token, head)), "{format:?} {token}");
        }
        let mut part = Vec::new();
        cache.store(63..66, &mut part);
        assert_eq!(part, bytes[63 * cache.token_bytes()..66 * cache.token_bytes()]);
    }
    // Numbers, not only the way back: key 5 of f32.
    let (_, cache) = case.run_in(KvFormat::F32, 1, &[]);
    let mut bytes = Vec::new();
    cache.store(5..6, &mut bytes);
    let numbers: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x)).collect();
    let wanted = [cache.key(5, 0), cache.key(5, 1), cache.value(5, 0), cache.value(5, 1)].concat();
    assert_eq!(bits(&numbers), bits(&wanted));
}

#[test]
fn shapes_that_cannot_run_are_told() {
    assert!(SHAPE.is_valid());
    assert!(!Shape { kv_heads: 0, ..SHAPE }.is_valid());
    assert!(!Shape { kv_heads: 4, ..SHAPE }.is_valid());
    assert!(!Shape { head_dim: 20, ..SHAPE }.is_valid());
    assert!(!Shape { heads: 66, ..SHAPE }.is_valid());
}

#[test]
fn as_transformers_computes_it() {
    // One key/value head and its four query heads of a small random model, in f32 over 32 tokens.
    let shape = Shape { heads: 4, kv_heads: 1, head_dim: 64, eps: 1e-6 };
    let (projected, norms) = (fixture_f32("attention.projected.f32"), fixture_f32("attention.norms.f32"));
    let weights = Weights { q_norm: &norms[..64], k_norm: &norms[64..] };
    let mut table = rope::Table::new();
    rope::Text::new(16, 1e7, [3, 3, 2]).fill(&(0..32).map(|p| [p; 3]).collect::<Vec<_>>(), &mut table);
    let mut cache = KvCache::new(shape);
    let mut out = vec![0.0; 32 * 256];
    forward(&Pool::new(2), &shape, &weights, &table, &mut cache, &projected, &mut out, &mut Scratch::default());
    let keys: Vec<f32> = (0..32).flat_map(|t| cache.key(t, 0)).collect();
    let values: Vec<f32> = (0..32).flat_map(|t| cache.value(t, 0)).collect();
    assert!(max_difference(&keys, &fixture_f32("attention.keys.f32")) < 1e-5);
    assert!(max_difference(&values, &fixture_f32("attention.values.f32")) < 1e-5);
    assert!(max_difference(&out, &fixture_f32("attention.out.f32")) < 1e-5);
}

#[test]
fn sixteen_bits_are_close_and_the_same_bits_everywhere() {
    let mut case = Case::new(700);
    // Values as a bf16 projection gives them.
    for row in case.projected.chunks_exact_mut(SHAPE.input_width()) {
        for x in &mut row[SHAPE.input_width() - SHAPE.kv_width()..] {
            *x = half::bf16::from_f32(*x).to_f32();
        }
    }
    let run = |threads: usize, pieces: &[usize]| case.run_in(KvFormat::Half, threads, pieces);
    let ((full, wide), (half, cache)) = (case.run(1, &[]), run(1, &[]));
    assert!(max_difference(&full, &half) < 2e-3, "{}", max_difference(&full, &half));
    assert!(bits(&full) != bits(&half));
    assert_eq!(2 * cache.bytes(), wide.bytes());
    for t in [0, 63, 64, 699] {
        assert_eq!(bits(&cache.value(t, 1)), bits(&wide.value(t, 1)));
        let rounded: Vec<f32> = wide.key(t, 1).iter().map(|&x| half::f16::from_f32(x).to_f32()).collect();
        assert_eq!(bits(&cache.key(t, 1)), bits(&rounded));
    }
    // Few queries read the pages as they are, many widen them first.
    for (threads, pieces) in [(1, &[1, 2, 3, 64, 1, 511][..]), (3, &[600, 1, 1, 1]), (2, &[13; 40])] {
        assert!(bits(&run(threads, pieces).0) == bits(&half));
    }
    assert!(bits(&simd::plain(|| run(1, &[650])).0) == bits(&half));
    assert!(bits(&simd::at_level(simd::Level::Avx2, || run(1, &[650])).0) == bits(&half));
}

#[test]
fn an_infinite_value_does_not_reach_the_queries_before_it() {
    let mut case = Case::new(100);
    let (clean, _) = case.run(1, &[]);
    let at = 70 * SHAPE.input_width() + SHAPE.input_width() - 5;
    case.projected[at] = f32::INFINITY;
    let (out, _) = case.run(1, &[]);
    let width = SHAPE.output_width();
    assert_eq!(bits(&out[..70 * width]), bits(&clean[..70 * width]));
    assert!(out[70 * width..].iter().any(|x| !x.is_finite()));
}

#[test]
fn rows_of_bf16_with_strides_give_the_same_and_what_is_only_remembered_is_the_same_cache() {
    let mut case = Case::new(150);
    let (input, width, n) = (SHAPE.input_width(), SHAPE.output_width(), 150);
    let half: Vec<Bf16> = case.projected.iter().map(|&x| Bf16::from_f32(x)).collect();
    bf16::to_f32(&half, &mut case.projected);
    let (out, cache) = case.run(1, &[]);
    let strided: Vec<Bf16> =
        half.chunks_exact(input).flat_map(|row| [row, &[Bf16::NAN; 3]].concat()).take(n * (input + 3) - 3).collect();
    let weights = Weights { q_norm: &case.q_norm, k_norm: &case.k_norm };
    let (pool, mut scratch) = (Pool::new(2), Scratch::default());
    let (mut all, mut kept) = (KvCache::new(SHAPE), KvCache::new(SHAPE));
    let mut got = vec![Bf16::ZERO; n * (width + 5) - 5];
    // Few tokens go another way than many.
    for (first, rows) in [(0, 1), (1, 140), (141, 2), (143, 7)] {
        let rope = case.rope(first, rows);
        let projected = Rows::Half(&strided, input + 3).from(first);
        let to = RowsMut::Half(&mut got[first * (width + 5)..], width + 5);
        forward_rows(&pool, &SHAPE, &weights, &rope, &mut all, projected, to, &mut scratch);
        remember_rows(&pool, &SHAPE, &weights, &rope, &mut kept, projected, &mut scratch);
    }
    for t in 0..n {
        let expected: Vec<Bf16> = out[t * width..][..width].iter().map(|&x| Bf16::from_f32(x)).collect();
        assert_eq!(got[t * (width + 5)..][..width], expected, "token {t}");
        for h in 0..SHAPE.kv_heads {
            assert_eq!(bits(&kept.key(t, h)), bits(&cache.key(t, h)), "key {t}");
            assert_eq!(bits(&kept.value(t, h)), bits(&cache.value(t, h)), "value {t}");
        }
    }
    assert!(got.chunks(width + 5).take(n - 1).all(|row| row[width..].iter().all(|x| *x == Bf16::ZERO)));
}
