use super::*;
use serde_json::Value;

fn logits(n: usize) -> Vec<f32> {
    (0..n).map(|i| (uniform(77, i as u64) * 12.0 - 6.0) as f32).collect()
}

fn sampler(sampling: Sampling, vocab: usize) -> Sampler {
    Sampler::new(sampling, vocab).unwrap()
}

fn warm() -> Sampling {
    Sampling { temperature: 1.0, ..Sampling::default() }
}

/// What transformers' logits processors make of the same logits; the fixture says which version.
#[test]
fn distributions_are_transformers_s() {
    let json: Value = serde_json::from_str(include_str!("../../../tests/fixtures/sampling.json")).unwrap();
    let cases = json["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 36);
    for case in cases {
        let set = &case["settings"];
        let number = |name: &str, default: f64| set[name].as_f64().unwrap_or(default) as f32;
        let bias = set["logit_bias"].as_object().into_iter().flatten();
        let sampling = Sampling {
            temperature: number("temperature", 1.0),
            top_k: set["top_k"].as_u64().unwrap_or(0) as usize,
            top_p: number("top_p", 1.0),
            min_p: number("min_p", 0.0),
            repetition_penalty: number("repetition_penalty", 1.0),
            logit_bias: bias.map(|(id, x)| (id.parse().unwrap(), x.as_f64().unwrap() as f32)).collect(),
            logprobs: Some(3),
            ..Sampling::default()
        };
        let logits: Vec<f32> = case["logits"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect();
        let ids: Vec<u32> = case["ids"].as_array().unwrap().iter().map(|x| x.as_u64().unwrap() as u32).collect();
        let wanted = case["probabilities"].as_object().unwrap();
        let mut sampler = sampler(sampling, logits.len());
        // transformers' penalty does not tell the prompt from the answer.
        sampler.begin(&ids[..4]);
        ids[4..].iter().for_each(|&id| sampler.accept(id));
        let got = sampler.distribution(&logits, None).unwrap();
        // A probability of less than 1e-9 may be there or not.
        let kept: Vec<_> = got.iter().filter(|(_, p)| *p > 1e-8).collect();
        assert_eq!(kept.len(), wanted.values().filter(|p| p.as_f64().unwrap() > 1e-8).count(), "{set}");
        for (token, p) in kept {
            let wanted = wanted[&token.to_string()].as_f64().unwrap();
            assert!((p - wanted).abs() < 2e-6, "{set}: token {token}: {p}, wanted {wanted}");
        }
        sampler.choose(&logits, None).unwrap();
        for (token, wanted) in case["logprobs"].as_array().unwrap().iter().enumerate() {
            let got = sampler.logprobs(&logits, token as u32, 0);
            assert!((f64::from(got) - wanted.as_f64().unwrap()).abs() < 1e-5, "{got} {wanted}");
        }
    }
}

/// Several entries of one token, or a small penalty, came to infinity, and no token could follow.
#[test]
fn biases_that_sum_up_beyond_all_numbers_are_the_largest_one() {
    let bias = vec![(1, 3e38), (1, 3e38), (2, 3e38), (2, 3e38), (2, f32::NEG_INFINITY)];
    for sampling in [
        Sampling { logit_bias: bias.clone(), ..Sampling::default() },
        Sampling {
            logit_bias: bias.clone(),
            temperature: 0.01,
            repetition_penalty: 0.01,
            top_p: 0.5,
            ..Sampling::default()
        },
    ] {
        let mut sampler = sampler(sampling, 4);
        sampler.begin(&[1, 2]);
        assert_eq!(sampler.choose(&[0.0; 4], None).unwrap().token, 1);
    }
}

#[test]
fn draws_follow_the_distribution() {
    let logits = logits(12);
    let mut sampler = sampler(Sampling { top_p: 0.97, seed: 5, ..warm() }, 12);
    let wanted = sampler.distribution(&logits, None).unwrap().to_vec();
    let (draws, mut seen) = (20_000, [0u32; 12]);
    for i in 0..draws {
        sampler.position = i;
        seen[sampler.choose(&logits, None).unwrap().token as usize] += 1;
    }
    let mut chi = 0.0;
    for &(token, p) in &wanted {
        let expected = p * draws as f64;
        chi += (f64::from(seen[token as usize]) - expected).powi(2) / expected;
        seen[token as usize] = 0;
    }
    assert_eq!(seen, [0; 12], "what was cut away is never drawn");
    // The 99.9 % point of chi squared with 11 degrees of freedom; there are fewer here.
    assert!(wanted.len() > 4 && chi < 31.26, "{chi}");
}

#[test]
fn uniform_numbers_are_spread_evenly_and_fixed_for_ever() {
    let (mut sum, mut bins) = (0.0, [0u32; 10]);
    for place in 0..10_000 {
        let x = uniform(1, place);
        assert!((0.0..1.0).contains(&x));
        sum += x;
        bins[(x * 10.0) as usize] += 1;
    }
    assert!((sum / 10_000.0 - 0.5).abs() < 0.01, "{sum}");
    assert!(bins.iter().all(|&n| (880..1120).contains(&n)), "{bins:?}");
    // A change here changes every seeded text. Computed from the definition with Python's integers.
    assert_eq!([uniform(0, 0), uniform(42, 1000)], [0.6524484863740322, 0.6952598398323256]);
}

#[test]
fn top_k_of_one_and_no_temperature_are_greedy() {
    let logits = logits(300);
    let best = host_ops::sample::argmax(&logits).unwrap() as u32;
    for sampling in [Sampling::default(), Sampling { top_k: 1, ..warm() }, Sampling { top_p: 1e-6, ..warm() }] {
        let mut sampler = sampler(sampling, 300);
        for seed in 0..20 {
            sampler.sampling.seed = seed;
            assert_eq!(sampler.choose(&logits, None).unwrap().token, best);
        }
    }
    // Of equals the first; the plain choice ignores NaN as it always has.
    let mut plain = sampler(Sampling::default(), 4);
    assert_eq!(plain.choose(&[1.0, 2.0, f32::NAN, 2.0], None).unwrap().token, 1);
    assert_eq!(plain.choose(&[f32::NAN; 4], None), Err(SamplingError::Nothing));
    let mut ties = sampler(Sampling { top_k: 2, ..warm() }, 4);
    let kept: Vec<u32> = ties.distribution(&[5.0; 4], None).unwrap().iter().map(|c| c.0).collect();
    assert_eq!(kept, [0, 1]);
}

#[test]
fn logits_that_are_no_numbers_are_told() {
    let mut sampler = sampler(warm(), 3);
    let told = sampler.choose(&[0.0, f32::NAN, 0.0], None).unwrap_err();
    assert!(matches!(told, SamplingError::Logit { token: 1, .. }), "{told}");
    assert!(matches!(sampler.choose(&[f32::INFINITY, 0.0, 0.0], None), Err(SamplingError::Logit { token: 0, .. })));
    assert_eq!(sampler.choose(&[f32::NEG_INFINITY; 3], None), Err(SamplingError::Nothing));
    assert_eq!(sampler.choose(&[0.0; 2], None), Err(SamplingError::Count { found: 2, wanted: 3 }));
    assert_eq!(sampler.choose(&[0.0, f32::NEG_INFINITY, f32::NEG_INFINITY], None).unwrap().token, 0);
}

#[test]
fn the_same_seed_gives_the_same_text_and_another_one_another() {
    let run = |seed: u64, prompt: &[u32]| {
        let mut sampler = sampler(Sampling { seed, top_k: 40, presence_penalty: 0.5, ..warm() }, 500);
        sampler.begin(prompt);
        let mut out = Vec::new();
        for step in 0..50 {
            let logits: Vec<f32> = (0..500).map(|i| (uniform(step, i) * 4.0) as f32).collect();
            let token = sampler.choose(&logits, None).unwrap().token;
            sampler.accept(token);
            out.push(token);
        }
        out
    };
    assert_eq!(run(7, &[1, 2]), run(7, &[1, 2]));
    assert_ne!(run(7, &[1, 2]), run(8, &[1, 2]));
}

/// An answer that is begun again after an undo is the same one; a longer prompt goes on elsewhere.
#[test]
fn an_undone_answer_comes_again() {
    let logits = logits(100);
    let mut sampler = sampler(Sampling { seed: 3, frequency_penalty: 1.0, ..warm() }, 100);
    let mut answer = |prompt: &[u32]| {
        sampler.begin(prompt);
        let mut tokens = Vec::new();
        for _ in 0..10 {
            tokens.push(sampler.choose(&logits, None).unwrap().token);
            sampler.accept(tokens[tokens.len() - 1]);
        }
        tokens
    };
    let first = answer(&[4, 5, 6]);
    assert_ne!(answer(&[4, 5, 6, 7]), first);
    assert_eq!(answer(&[4, 5, 6]), first);
}

#[test]
fn penalties_count_what_they_should() {
    let logits = [2.0, -2.0, 2.0, 2.0];
    let sampling =
        Sampling { repetition_penalty: 2.0, frequency_penalty: 0.25, presence_penalty: 0.5, ..Sampling::default() };
    let mut sampler = sampler(sampling, 4);
    sampler.begin(&[0, 1, 0]);
    sampler.accept(2);
    sampler.accept(2);
    sampler.conditions(&logits, None).unwrap();
    // In the prompt: the repetition penalty once. In the answer: also the other two, one for each time.
    assert_eq!(sampler.logits, [1.0, -4.0, 1.0 - 0.5 - 0.5, 2.0]);
    sampler.begin(&[]);
    sampler.conditions(&logits, None).unwrap();
    assert_eq!(sampler.logits, logits, "a new answer begins anew");
    // Tokens that the vocabulary does not have are nobody's.
    sampler.begin(&[9]);
    sampler.accept(9);
    sampler.conditions(&logits, None).unwrap();
    assert_eq!(sampler.logits, logits);
}

#[test]
fn forbidden_tokens_are_never_chosen() {
    let logits = logits(200);
    let mut allowed = TokenSet::new(200);
    [3, 64, 199, 1000].into_iter().for_each(|token| allowed.insert(token));
    assert_eq!(allowed.count(), 3);
    for sampling in [Sampling::default(), warm(), Sampling { top_k: 5, top_p: 0.5, min_p: 0.9, ..warm() }] {
        let mut sampler = sampler(sampling, 200);
        for _ in 0..30 {
            let token = sampler.choose(&logits, Some(&allowed)).unwrap().token;
            assert!(allowed.contains(token), "{token}");
            sampler.accept(token);
        }
        allowed.clear();
        assert_eq!(sampler.choose(&logits, Some(&allowed)), Err(SamplingError::Nothing));
        [3, 64, 199].into_iter().for_each(|token| allowed.insert(token));
    }
}

#[test]
fn logprobs_are_the_model_s_own_and_in_order() {
    let sampling = Sampling { logprobs: Some(3), logit_bias: vec![(0, 100.0)], ..Sampling::default() };
    let mut sampler = sampler(sampling, 4);
    let chosen = sampler.choose(&[0.0, 1.0, 2.0, 1.0], None).unwrap();
    assert_eq!(chosen.token, 0);
    let all = (1.0 + 2.0 * 1f64.exp() + 2f64.exp()).ln();
    let close = |a: f32, b: f64| (f64::from(a) - b).abs() < 1e-6;
    assert!(close(chosen.logprob.unwrap(), -all));
    assert_eq!(chosen.top.iter().map(|t| t.0).collect::<Vec<_>>(), [2, 1, 3]);
    assert!(close(chosen.top[0].1, 2.0 - all) && close(chosen.top[2].1, 1.0 - all));
    sampler.sampling.logprobs = Some(0);
    let chosen = sampler.choose(&[0.0, 1.0, 2.0, 1.0], None).unwrap();
    assert!(chosen.logprob.is_some() && chosen.top.is_empty());
}

#[test]
fn nothing_is_allocated_after_the_beginning() {
    let logits = logits(1000);
    let all = Sampling { top_k: 50, top_p: 0.9, min_p: 0.01, presence_penalty: 1.0, logprobs: Some(20), ..warm() };
    for sampling in [Sampling::default(), warm(), Sampling { top_p: 0.9, ..warm() }, all] {
        let mut sampler = sampler(sampling, 1000);
        let room = |s: &Sampler| [s.logits.capacity(), s.candidates.capacity(), s.touched.capacity(), s.top.capacity()];
        let before = room(&sampler);
        sampler.begin(&(0..1000).collect::<Vec<_>>());
        for _ in 0..50 {
            let token = sampler.choose(&logits, None).unwrap().token;
            sampler.accept(token);
        }
        assert_eq!(room(&sampler), before);
    }
}
