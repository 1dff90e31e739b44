//! Choosing the next token.
//!
//! The steps, in the order of transformers' `generate` (OpenAI's two penalties stand where vLLM has them): logit bias,
//! repetition penalty, frequency and presence penalty, what a grammar forbids, temperature, top-k, top-p, min-p, the
//! draw. Where logits are equal the lower token comes first. All arithmetic is done by one thread in one order, and
//! the random number of a draw depends on the seed and the place in the context alone: the same seed gives the same
//! text, and it still does after a turn was undone.

mod settings;

pub use settings::{MAX_LOGPROBS, Preset, Sampling, SamplingError};

/// A set of tokens, as a grammar gives it: one bit a token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenSet {
    words: Vec<u64>,
}

impl TokenSet {
    /// An empty set with room for a vocabulary.
    #[must_use]
    pub fn new(vocab: usize) -> TokenSet {
        TokenSet { words: vec![0; vocab.div_ceil(64)] }
    }

    /// Takes every token out.
    pub fn clear(&mut self) {
        self.words.fill(0);
    }

    /// Puts every token in.
    pub fn fill(&mut self) {
        self.words.fill(u64::MAX);
    }

    /// Becomes what these bits say, 32 tokens a word.
    pub(super) fn fill_from(&mut self, bits: &[u32]) {
        let pairs = bits.chunks(2).map(|pair| u64::from(pair[0]) | u64::from(pair.get(1).copied().unwrap_or(0)) << 32);
        for (word, bits) in self.words.iter_mut().zip(pairs.chain(std::iter::repeat(0))) {
            *word = bits;
        }
    }

    /// Puts a token in; one beyond the vocabulary is ignored.
    pub fn insert(&mut self, token: u32) {
        if let Some(word) = self.words.get_mut(token as usize / 64) {
            *word |= 1 << (token % 64);
        }
    }

    /// Takes a token out.
    pub fn remove(&mut self, token: u32) {
        if let Some(word) = self.words.get_mut(token as usize / 64) {
            *word &= !(1 << (token % 64));
        }
    }

    /// The tokens in it, in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.words.iter().zip(0u32..).flat_map(|(&word, at)| {
            let mut rest = word;
            std::iter::from_fn(move || {
                let bit = (rest != 0).then(|| rest.trailing_zeros())?;
                rest &= rest - 1;
                Some(at * 64 + bit)
            })
        })
    }

    /// Whether a token is in.
    #[must_use]
    pub fn contains(&self, token: u32) -> bool {
        self.words.get(token as usize / 64).is_some_and(|word| word >> (token % 64) & 1 == 1)
    }

    /// Tokens in it.
    #[must_use]
    pub fn count(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }
}

/// A token that was chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chosen<'a> {
    /// The token.
    pub token: u32,
    /// Its log probability, if [`Sampling::logprobs`] asks for it: of the model's own distribution, before any setting.
    pub logprob: Option<f32>,
    /// The most probable tokens of the model's own distribution, with their log probabilities.
    pub top: &'a [(u32, f32)],
}

/// Chooses the tokens of answers.
#[derive(Debug)]
pub struct Sampler {
    sampling: Sampling,
    /// The logits of this step, as the settings change them.
    logits: Vec<f32>,
    /// Tokens that remain, with their weights.
    candidates: Vec<(u32, f64)>,
    /// How often each token is in the answer, and whether it is in the prompt.
    counts: Vec<u32>,
    in_prompt: TokenSet,
    /// The tokens for which one of the two is so.
    touched: Vec<u32>,
    /// Place in the context of the token to come.
    position: u64,
    top: Vec<(u32, f32)>,
}

impl Sampler {
    /// A sampler for a vocabulary of this size. It allocates here and not again.
    ///
    /// # Errors
    /// Settings that make no sense; see [`Sampling::check`].
    pub fn new(sampling: Sampling, vocab: usize) -> Result<Sampler, SamplingError> {
        sampling.check(vocab)?;
        // Greedy choice without conditions reads the logits where they are.
        let room = if sampling == Sampling::default() { 0 } else { vocab };
        Ok(Sampler {
            logits: Vec::with_capacity(room),
            candidates: Vec::with_capacity(if sampling.is_greedy() { 0 } else { vocab }),
            counts: vec![0; vocab],
            in_prompt: TokenSet::new(vocab),
            touched: Vec::with_capacity(vocab),
            position: 0,
            top: Vec::with_capacity(vocab.min(MAX_LOGPROBS + 1)),
            sampling,
        })
    }

    /// The settings.
    #[must_use]
    pub fn sampling(&self) -> &Sampling {
        &self.sampling
    }

    /// Tokens there are.
    #[must_use]
    pub fn vocab(&self) -> usize {
        self.counts.len()
    }

    /// Begins an answer to a prompt: what is penalised so far, and where the random numbers go on.
    pub fn begin(&mut self, prompt: &[u32]) {
        for token in self.touched.drain(..) {
            self.counts[token as usize] = 0;
        }
        self.in_prompt.clear();
        for &token in prompt {
            if (token as usize) < self.counts.len() && !self.in_prompt.contains(token) {
                self.in_prompt.insert(token);
                self.touched.push(token);
            }
        }
        self.position = prompt.len() as u64;
    }

    /// Takes a token into the answer, chosen or forced.
    pub fn accept(&mut self, token: u32) {
        if let Some(count) = self.counts.get_mut(token as usize) {
            if *count == 0 && !self.in_prompt.contains(token) {
                self.touched.push(token);
            }
            *count += 1;
        }
        self.position += 1;
    }

    /// Chooses the next token out of `allowed`, or out of all. [`Sampler::accept`] has to follow.
    ///
    /// # Errors
    /// Logits that are no numbers, and nothing to choose from.
    pub fn choose(&mut self, logits: &[f32], allowed: Option<&TokenSet>) -> Result<Chosen<'_>, SamplingError> {
        let token = if self.sampling.is_greedy() {
            self.greedy(logits, allowed)?
        } else {
            self.narrow(logits, allowed)?;
            self.draw()?
        };
        let logprob = self.sampling.logprobs.map(|count| self.logprobs(logits, token, count));
        Ok(Chosen { token, logprob, top: &self.top })
    }

    /// The probabilities that a token would be drawn with, of all that have one, most probable first.
    ///
    /// # Errors
    /// As [`Sampler::choose`].
    pub fn distribution(&mut self, logits: &[f32], allowed: Option<&TokenSet>) -> Result<&[(u32, f64)], SamplingError> {
        if self.sampling.is_greedy() {
            let token = self.greedy(logits, allowed)?;
            self.candidates.clear();
            self.candidates.push((token, 1.0));
        } else {
            self.narrow(logits, allowed)?;
            let total: f64 = self.candidates.iter().map(|(_, weight)| weight).sum();
            self.candidates.iter_mut().for_each(|(_, weight)| *weight /= total);
            self.candidates.sort_unstable_by(|(a, x), (b, y)| y.total_cmp(x).then(a.cmp(b)));
        }
        Ok(&self.candidates)
    }

    fn greedy(&mut self, logits: &[f32], allowed: Option<&TokenSet>) -> Result<u32, SamplingError> {
        let sampling = &self.sampling;
        let plain = allowed.is_none()
            && sampling.logit_bias.is_empty()
            && sampling.repetition_penalty == 1.0
            && sampling.presence_penalty == 0.0
            && sampling.frequency_penalty == 0.0;
        let best = if plain {
            host_ops::sample::argmax(logits)
        } else {
            self.conditions(logits, allowed)?;
            host_ops::sample::argmax(&self.logits)
        };
        best.map(|token| token as u32).ok_or(SamplingError::Nothing)
    }

    /// Bias, penalties and the grammar's word: `self.logits`.
    fn conditions(&mut self, logits: &[f32], allowed: Option<&TokenSet>) -> Result<(), SamplingError> {
        if logits.len() != self.counts.len() {
            return Err(SamplingError::Count { found: logits.len(), wanted: self.counts.len() });
        }
        if let Some(token) = logits.iter().position(|x| x.is_nan() || *x == f32::INFINITY) {
            return Err(SamplingError::Logit { token, value: logits[token] });
        }
        let sampling = &self.sampling;
        self.logits.clear();
        self.logits.extend_from_slice(logits);
        for &(token, bias) in &sampling.logit_bias {
            // Several of one token may come to more than there is.
            let logit = &mut self.logits[token as usize];
            *logit = (*logit + bias).min(f32::MAX);
        }
        let repetition = sampling.repetition_penalty;
        if repetition != 1.0 || sampling.presence_penalty != 0.0 || sampling.frequency_penalty != 0.0 {
            for &token in &self.touched {
                let logit = &mut self.logits[token as usize];
                *logit = if *logit < 0.0 { *logit * repetition } else { (*logit / repetition).min(f32::MAX) };
                let count = self.counts[token as usize];
                if count > 0 {
                    *logit -= sampling.frequency_penalty * count as f32 + sampling.presence_penalty;
                }
            }
        }
        if let Some(allowed) = allowed {
            for (token, logit) in self.logits.iter_mut().enumerate() {
                if !allowed.contains(token as u32) {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        Ok(())
    }

    /// Temperature, top-k, top-p and min-p: `self.candidates`, with weights that sum up to anything. In the order of
    /// their weights if any of the three is on, in the tokens' order if not.
    fn narrow(&mut self, logits: &[f32], allowed: Option<&TokenSet>) -> Result<(), SamplingError> {
        self.conditions(logits, allowed)?;
        let sampling = &self.sampling;
        let best = self.logits.iter().fold(f32::NEG_INFINITY, |best, &x| best.max(x));
        if best == f32::NEG_INFINITY {
            return Err(SamplingError::Nothing);
        }
        let candidates = &mut self.candidates;
        candidates.clear();
        let logits = self.logits.iter().enumerate();
        candidates.extend(
            logits.filter(|(_, x)| **x > f32::NEG_INFINITY).map(|(token, &x)| (token as u32, f64::from(x - best))),
        );
        let order = |(a, x): &(u32, f64), (b, y): &(u32, f64)| y.total_cmp(x).then(a.cmp(b));
        if sampling.top_k > 0 && sampling.top_k < candidates.len() {
            candidates.select_nth_unstable_by(sampling.top_k, order);
            candidates.truncate(sampling.top_k);
            candidates.sort_unstable_by(order);
        }
        let temperature = f64::from(sampling.temperature);
        for (_, weight) in candidates.iter_mut() {
            *weight = libm::exp(*weight / temperature);
        }
        let top_p = f64::from(sampling.top_p);
        if top_p < 1.0 {
            let total: f64 = candidates.iter().map(|(_, weight)| weight).sum();
            // Tokens so improbable that all of them together cannot be among the first `top_p` need no sorting.
            let least = total * (1.0 - top_p) / candidates.len() as f64;
            candidates.retain(|(_, weight)| *weight >= least);
            candidates.sort_unstable_by(order);
            let mut before = 0.0;
            let kept = candidates.iter().take_while(|(_, weight)| {
                let keep = before < top_p * total;
                before += weight;
                keep
            });
            let kept = kept.count().max(1);
            candidates.truncate(kept);
        }
        if sampling.min_p > 0.0 {
            // The best one's weight is exp(0).
            let least = f64::from(sampling.min_p);
            candidates.retain(|(_, weight)| *weight >= least);
        }
        Ok(())
    }

    fn draw(&self) -> Result<u32, SamplingError> {
        let total: f64 = self.candidates.iter().map(|(_, weight)| weight).sum();
        let mut left = uniform(self.sampling.seed, self.position) * total;
        for &(token, weight) in &self.candidates {
            if left < weight {
                return Ok(token);
            }
            left -= weight;
        }
        // Rounding may leave a little: it belongs to the last one that can be drawn.
        let last = self.candidates.iter().rev().find(|(_, weight)| *weight > 0.0);
        last.map(|(token, _)| *token).ok_or(SamplingError::Nothing)
    }

    /// The chosen token's log probability, and `self.top`.
    fn logprobs(&mut self, logits: &[f32], token: u32, count: usize) -> f32 {
        let best = logits.iter().fold(f32::NEG_INFINITY, |best, &x| best.max(x));
        let sum: f64 = logits.iter().map(|&x| libm::exp(f64::from(x - best))).sum();
        let log = f64::from(best) + libm::log(sum);
        let of = |x: f32| (f64::from(x) - log) as f32;
        self.top.clear();
        for (token, &logit) in logits.iter().enumerate() {
            if self.top.len() == count && self.top.last().is_none_or(|&(_, least)| logit <= least) {
                continue;
            }
            // Equal ones stay behind those that came first.
            let at = self.top.partition_point(|&(_, x)| x >= logit);
            self.top.insert(at, (token as u32, logit));
            self.top.truncate(count);
        }
        self.top.iter_mut().for_each(|(_, x)| *x = of(*x));
        logits.get(token as usize).map_or(f32::NEG_INFINITY, |&x| of(x))
    }
}

/// A number in [0, 1) for a seed and a place: two rounds of SplitMix64's mixing (Steele, Lea, Flood 2014), which has no
/// state and is the same on every machine.
fn uniform(seed: u64, place: u64) -> f64 {
    let mix = |mut x: u64| {
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    };
    let golden = 0x9e37_79b9_7f4a_7c15u64;
    let bits = mix(mix(seed.wrapping_add(golden)).wrapping_add(place.wrapping_add(1).wrapping_mul(golden)));
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests;
