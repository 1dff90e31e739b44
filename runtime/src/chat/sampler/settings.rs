//! How tokens are to be chosen: the settings, what they may be, and recommended ones.

use serde_json::Value;

/// How tokens are chosen. The default is greedy: the largest logit, nothing else.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 is greedy.
    pub temperature: f32,
    /// Only the so many largest logits; 0 is all.
    pub top_k: usize,
    /// Only the most probable tokens that make up this probability together; 1 is all.
    pub top_p: f32,
    /// Only tokens at least this times as probable as the most probable one; 0 is all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens of the prompt and the answer; 1 is off.
    pub repetition_penalty: f32,
    /// Taken off the logits of tokens that the answer has.
    pub presence_penalty: f32,
    /// Taken off the logits of tokens of the answer, for each time they are there.
    pub frequency_penalty: f32,
    /// Added to the logits of tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// Where the random numbers begin.
    pub seed: u64,
    /// How many of the most probable tokens are told with each token, with their log probabilities; `None`: not even
    /// the chosen one's.
    pub logprobs: Option<usize>,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
            logprobs: None,
        }
    }
}

/// The most `logprobs` that can be asked for, as in OpenAI's interface.
pub const MAX_LOGPROBS: usize = 20;

/// Settings that Qwen3.5's model cards recommend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    /// Thinking, general tasks.
    Thinking,
    /// Thinking, precise coding; the small models' cards name it for pictures too.
    ThinkingCoding,
    /// Without thinking, general tasks; the small models' cards name it for pictures.
    Instruct,
    /// Without thinking, tasks that want reasoning.
    InstructReasoning,
    /// Without thinking, text: what the cards of the small models (0.8B, 2B) name for it.
    InstructSmall,
}

impl Preset {
    /// All, in the order of the card.
    pub const ALL: [Preset; 5] =
        [Self::Thinking, Self::ThinkingCoding, Self::Instruct, Self::InstructReasoning, Self::InstructSmall];

    /// Its name on a command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Thinking => "thinking",
            Self::ThinkingCoding => "thinking-coding",
            Self::Instruct => "instruct",
            Self::InstructReasoning => "instruct-reasoning",
            Self::InstructSmall => "instruct-small",
        }
    }

    /// The preset of this name.
    ///
    /// # Errors
    /// A name that none has.
    pub fn from_name(name: &str) -> Result<Preset, SamplingError> {
        let found = Self::ALL.into_iter().find(|preset| preset.name() == name);
        found.ok_or_else(|| SamplingError::Preset { name: name.to_owned() })
    }

    /// Its settings: the model cards of Qwen3.5-9B and -27B, "Best Practices", which agree, and for
    /// [`Preset::InstructSmall`] those of -0.8B and -2B.
    #[must_use]
    pub fn sampling(self) -> Sampling {
        let (temperature, top_p, presence_penalty) = match self {
            Self::Thinking | Self::InstructReasoning => (1.0, 0.95, 1.5),
            Self::ThinkingCoding => (0.6, 0.95, 0.0),
            Self::Instruct => (0.7, 0.8, 1.5),
            Self::InstructSmall => (1.0, 1.0, 2.0),
        };
        Sampling { temperature, top_k: 20, top_p, presence_penalty, ..Sampling::default() }
    }
}

/// Why tokens cannot be chosen like this.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SamplingError {
    /// A setting outside of what it may be.
    #[error("{what} is {value}, allowed: {allowed}")]
    Setting {
        /// The setting, as the field is called.
        what: &'static str,
        /// What was asked for.
        value: String,
        /// What could have been.
        allowed: String,
    },
    /// A preset that does not exist.
    #[error(
        "there is no preset `{name}`; there are thinking, thinking-coding, instruct, instruct-reasoning and \
        instruct-small"
    )]
    Preset {
        /// What was asked for.
        name: String,
    },
    /// A `generation_config.json` that cannot be used.
    #[error("generation_config.json: {0}")]
    Config(String),
    /// A model that gives no number.
    #[error("the logit of token {token} is {value}: the model's arithmetic has failed")]
    Logit {
        /// The token.
        token: usize,
        /// Its logit.
        value: f32,
    },
    /// Another number of logits than there are tokens.
    #[error("{found} logits for a vocabulary of {wanted}")]
    Count {
        /// Logits.
        found: usize,
        /// Tokens.
        wanted: usize,
    },
    /// Every token is forbidden.
    #[error("no token can follow: every one is forbidden by its logit, the bias or the grammar")]
    Nothing,
}

impl Sampling {
    /// Whether the largest logit is taken, without chance.
    #[must_use]
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0 || self.top_k == 1
    }

    /// Refuses what makes no sense for a vocabulary of this size.
    ///
    /// # Errors
    /// The first setting that is not allowed, with its value and what it may be.
    pub fn check(&self, vocab: usize) -> Result<(), SamplingError> {
        within("temperature", self.temperature, 0.0, 100.0)?;
        if self.top_k > vocab {
            return Err(refused("top_k", self.top_k, format!("0 (all) to {vocab}, the tokens there are")));
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return Err(refused("top_p", self.top_p, "above 0, to 1 (all)".into()));
        }
        within("min_p", self.min_p, 0.0, 1.0)?;
        within("repetition_penalty", self.repetition_penalty, 0.01, 100.0)?;
        within("presence_penalty", self.presence_penalty, -100.0, 100.0)?;
        within("frequency_penalty", self.frequency_penalty, -100.0, 100.0)?;
        for &(token, bias) in &self.logit_bias {
            if token as usize >= vocab {
                let allowed = format!("0 to {}, the tokens there are", vocab.saturating_sub(1));
                return Err(refused("logit_bias token", token, allowed));
            }
            if bias.is_nan() || bias == f32::INFINITY {
                return Err(refused("logit_bias", bias, "a number, or -inf to forbid the token".into()));
            }
        }
        match self.logprobs {
            Some(count) if count > MAX_LOGPROBS => {
                Err(refused("logprobs", count, format!("0 to {MAX_LOGPROBS} tokens")))
            }
            _ => Ok(()),
        }
    }

    /// What a checkpoint's `generation_config.json` recommends; `do_sample: false`, or none, is greedy.
    ///
    /// # Errors
    /// A file that is no such configuration, or holds a value of another kind than wanted.
    pub fn from_generation_config(json: &[u8]) -> Result<Sampling, SamplingError> {
        let root: Value = serde_json::from_slice(json).map_err(|e| SamplingError::Config(format!("not JSON: {e}")))?;
        let root = root.as_object().ok_or_else(|| SamplingError::Config("not a JSON object".into()))?;
        let number = |name: &str, default: f32| match root.get(name) {
            None | Some(Value::Null) => Ok(default),
            Some(value) => value
                .as_f64()
                .map(|x| x as f32)
                .ok_or_else(|| SamplingError::Config(format!("`{name}` is {value}, wanted a number"))),
        };
        let plain = Sampling::default();
        let repetition_penalty = number("repetition_penalty", plain.repetition_penalty)?;
        if root.get("do_sample") != Some(&Value::Bool(true)) {
            return Ok(Sampling { repetition_penalty, ..plain });
        }
        // What transformers takes where the file is silent, but for its top_k of 50.
        let top_k = match root.get("top_k") {
            None | Some(Value::Null) => 0,
            Some(value) => value
                .as_u64()
                .and_then(|k| usize::try_from(k).ok())
                .ok_or_else(|| SamplingError::Config(format!("`top_k` is {value}, wanted a whole number from 0 on")))?,
        };
        Ok(Sampling {
            temperature: number("temperature", 1.0)?,
            top_k,
            top_p: number("top_p", 1.0)?,
            min_p: number("min_p", 0.0)?,
            presence_penalty: number("presence_penalty", 0.0)?,
            frequency_penalty: number("frequency_penalty", 0.0)?,
            repetition_penalty,
            ..plain
        })
    }
}

fn within(what: &'static str, value: f32, from: f32, to: f32) -> Result<(), SamplingError> {
    if (from..=to).contains(&value) { Ok(()) } else { Err(refused(what, value, format!("{from} to {to}"))) }
}

fn refused(what: &'static str, value: impl ToString, allowed: String) -> SamplingError {
    SamplingError::Setting { what, value: value.to_string(), allowed }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_values_are_refused_by_name() {
        let plain = Sampling::default;
        assert_eq!(plain().check(10), Ok(()));
        for preset in Preset::ALL {
            assert_eq!(preset.sampling().check(20), Ok(()));
            assert_eq!(Preset::from_name(preset.name()), Ok(preset));
        }
        let cases: [(Sampling, &str); 18] = [
            (Sampling { temperature: -0.1, ..plain() }, "temperature is -0.1, allowed: 0 to 100"),
            (Sampling { temperature: f32::NAN, ..plain() }, "temperature is NaN"),
            (Sampling { temperature: f32::INFINITY, ..plain() }, "temperature is inf"),
            (Sampling { top_k: 11, ..plain() }, "top_k is 11, allowed: 0 (all) to 10"),
            (Sampling { top_p: 0.0, ..plain() }, "top_p is 0, allowed: above 0"),
            (Sampling { top_p: 1.1, ..plain() }, "top_p is 1.1"),
            (Sampling { top_p: f32::NAN, ..plain() }, "top_p is NaN"),
            (Sampling { min_p: -1.0, ..plain() }, "min_p is -1"),
            (Sampling { min_p: 1.5, ..plain() }, "min_p is 1.5, allowed: 0 to 1"),
            (Sampling { repetition_penalty: 0.0, ..plain() }, "repetition_penalty is 0, allowed: 0.01 to 100"),
            (Sampling { repetition_penalty: -1.0, ..plain() }, "repetition_penalty is -1"),
            (Sampling { presence_penalty: f32::NAN, ..plain() }, "presence_penalty is NaN"),
            (Sampling { frequency_penalty: 101.0, ..plain() }, "frequency_penalty is 101"),
            (Sampling { logit_bias: vec![(10, 1.0)], ..plain() }, "logit_bias token is 10, allowed: 0 to 9"),
            (Sampling { logit_bias: vec![(1, f32::NAN)], ..plain() }, "logit_bias is NaN"),
            (Sampling { logit_bias: vec![(1, f32::INFINITY)], ..plain() }, "logit_bias is inf"),
            (Sampling { logprobs: Some(21), ..plain() }, "logprobs is 21, allowed: 0 to 20"),
            (Sampling { top_k: usize::MAX, ..plain() }, "top_k is 18446744073709551615"),
        ];
        for (sampling, said) in cases {
            let error = sampling.check(10).unwrap_err().to_string();
            assert!(error.starts_with(said), "{error}");
        }
        assert!(Preset::from_name("hot").unwrap_err().to_string().starts_with("there is no preset `hot`"));
    }

    #[test]
    fn a_generation_config_is_read() {
        let of = |json: &str| Sampling::from_generation_config(json.as_bytes());
        let wanted = Sampling { temperature: 0.5, top_k: 20, top_p: 0.25, ..Sampling::default() };
        let text = r#"{"do_sample":true,"temperature":0.5,"top_k":20,"top_p":0.25,"eos_token_id":[1,2],"min_p":null}"#;
        assert_eq!(of(text).unwrap(), wanted);
        assert!(of(r#"{"do_sample":false,"temperature":0.5}"#).unwrap().is_greedy());
        assert!(of("{}").unwrap().is_greedy());
        assert_eq!(of(r#"{"do_sample":true}"#).unwrap().temperature, 1.0);
        for (json, said) in [
            ("[", "not JSON"),
            ("[]", "not a JSON object"),
            (r#"{"do_sample":true,"top_p":"x"}"#, "`top_p` is \"x\", wanted a number"),
            (r#"{"do_sample":true,"top_k":-1}"#, "`top_k` is -1, wanted a whole number"),
        ] {
            let error = of(json).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
