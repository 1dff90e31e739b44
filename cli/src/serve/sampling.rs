//! What requests of all sorts say about how an answer is to be: how tokens are chosen, where it ends, how long it thinks.

use super::error::ApiError;
use super::fields::Fields;
use crate::wishes::any_seed;
use runtime::chat::{Sampling, Thinking};
use serde_json::Value;

/// Tokens of reasoning that `reasoning_effort` stands for.
const LOW: usize = 1024;
const MEDIUM: usize = 4096;

/// How tokens are chosen: as by `default` where nothing is said.
pub(super) fn sampling(fields: &Fields<'_>, default: &Sampling) -> Result<Sampling, ApiError> {
    let mut out = default.clone();
    for (field, value) in [
        ("temperature", &mut out.temperature),
        ("top_p", &mut out.top_p),
        ("min_p", &mut out.min_p),
        ("presence_penalty", &mut out.presence_penalty),
        ("frequency_penalty", &mut out.frequency_penalty),
        ("repetition_penalty", &mut out.repetition_penalty),
    ] {
        if let Some(number) = fields.number(field)? {
            *value = number;
        }
    }
    // 0 is allowed in the common interface, and means the most probable token alone.
    if out.top_p == 0.0 {
        out.top_p = f32::MIN_POSITIVE;
    }
    // Others write -1 for all.
    if fields.get("top_k").is_some_and(|value| value.as_i64() != Some(-1)) {
        out.top_k = fields.whole("top_k", 0, u32::MAX.into())?.unwrap_or(0) as usize;
    }
    out.seed = match fields.get("seed") {
        None => any_seed(),
        Some(value) => {
            let seed = value.as_u64().or_else(|| value.as_i64().map(|seed| seed as u64));
            seed.ok_or_else(|| fields.wrong("seed", format_args!("it is {value}, wanted a whole number")))?
        }
    };
    if let Some(value) = fields.get("logit_bias") {
        let map = value.as_object().ok_or_else(|| fields.wrong("logit_bias", "it is no object of tokens"))?;
        for (token, bias) in map {
            let wrong = || fields.wrong("logit_bias", format_args!("`{token}`: {bias} is no token with its bias"));
            let bias = bias.as_f64().filter(|bias| (-100.0..=100.0).contains(bias)).ok_or_else(wrong)?;
            // That is how the common interface forbids a token.
            let bias = if bias <= -100.0 { f32::NEG_INFINITY } else { bias as f32 };
            out.logit_bias.push((token.parse().map_err(|_| wrong())?, bias));
        }
    }
    Ok(out)
}

/// Strings that end the answer.
pub(super) fn stops(fields: &Fields<'_>) -> Result<Vec<String>, ApiError> {
    match fields.get("stop") {
        None => Ok(Vec::new()),
        Some(Value::String(stop)) => Ok(vec![stop.clone()]),
        Some(Value::Array(stops)) => {
            let stops: Option<Vec<String>> = stops.iter().map(|stop| Some(stop.as_str()?.to_owned())).collect();
            stops.ok_or_else(|| fields.wrong("stop", "it is an array of other things than strings"))
        }
        Some(_) => Err(fields.wrong("stop", "wanted a string or an array of strings")),
    }
}

/// The most tokens of the answer.
pub(super) fn max_new(fields: &Fields<'_>, names: &[&str]) -> Result<Option<usize>, ApiError> {
    let mut found = None;
    for name in names {
        found = found.or(fields.whole(name, 1, u32::MAX.into())?);
    }
    Ok(found.map(|number| number as usize))
}

/// Whether the answer begins with reasoning, and for how long.
pub(super) fn thinking(fields: &Fields<'_>, default: Thinking) -> Result<Thinking, ApiError> {
    let arguments = fields.object("chat_template_kwargs", "chat_template_kwargs.")?;
    let (enabled, budget) = match arguments {
        Some(arguments) => {
            (arguments.boolean("enable_thinking")?, arguments.whole("thinking_budget", 0, u32::MAX.into())?)
        }
        None => (None, None),
    };
    let nested = fields.object("reasoning", "reasoning.")?;
    let effort = match nested {
        Some(nested) => nested.string("effort")?,
        None => fields.string("reasoning_effort")?,
    };
    let effort = match effort {
        None => None,
        Some("none" | "minimal") => Some(Thinking::Off),
        Some("low") => Some(Thinking::Budget(LOW)),
        Some("medium") => Some(Thinking::Budget(MEDIUM)),
        Some("high" | "xhigh" | "max") => Some(Thinking::On),
        Some(other) => {
            let what = format!("it is `{other}`, wanted none, minimal, low, medium, high, xhigh or max");
            return Err(ApiError::field("reasoning_effort", what));
        }
    };
    let on = match budget {
        Some(budget) => Thinking::Budget(budget as usize),
        None => effort.or(Some(default)).filter(|wanted| wanted.is_on()).unwrap_or(Thinking::On),
    };
    Ok(match (enabled, effort) {
        (Some(false), _) | (None, Some(Thinking::Off)) => Thinking::Off,
        (Some(true), _) | (None, Some(_)) => on,
        (None, None) if budget.is_some() => on,
        (None, None) => default,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of<T>(body: Value, read: impl Fn(&Fields<'_>) -> Result<T, ApiError>) -> Result<T, String> {
        read(&Fields::of(&body).unwrap()).map_err(|error| error.to_string())
    }

    fn plain(fields: &Fields<'_>) -> Result<Sampling, ApiError> {
        sampling(fields, &Sampling::default())
    }

    #[test]
    fn sampling_is_greedy_unless_something_is_said() {
        assert!(of(json!({}), plain).unwrap().is_greedy());
        let all = json!({"temperature": 0.5, "top_p": 0.25, "top_k": 3, "min_p": 0.125, "presence_penalty": 1,
            "frequency_penalty": -1, "repetition_penalty": 1.5, "seed": -1, "logit_bias": {"7": -100, "8": 2}});
        let wanted = Sampling {
            temperature: 0.5,
            top_p: 0.25,
            top_k: 3,
            min_p: 0.125,
            presence_penalty: 1.0,
            frequency_penalty: -1.0,
            repetition_penalty: 1.5,
            seed: u64::MAX,
            logit_bias: vec![(7, f32::NEG_INFINITY), (8, 2.0)],
            logprobs: None,
        };
        assert_eq!(of(all, plain), Ok(wanted));
        assert!(of(json!({"top_p": 0}), plain).unwrap().check(9).is_ok());
        assert_eq!(of(json!({"top_k": -1}), plain).unwrap().top_k, 0);
        for bad in [
            json!({"temperature": "warm"}),
            json!({"seed": 1.5}),
            json!({"logit_bias": [1]}),
            json!({"logit_bias": {"x": 1}}),
            json!({"logit_bias": {"1": 101}}),
            json!({"top_k": -2}),
        ] {
            assert!(of(bad.clone(), plain).is_err(), "{bad}");
        }
    }

    #[test]
    fn reasoning_is_had_by_all_its_names() {
        for (body, default, wanted) in [
            (json!({}), Thinking::Off, Thinking::Off),
            (json!({}), Thinking::On, Thinking::On),
            (json!({"reasoning_effort": "none"}), Thinking::On, Thinking::Off),
            (json!({"reasoning_effort": "low"}), Thinking::Off, Thinking::Budget(LOW)),
            (json!({"reasoning": {"effort": "high"}}), Thinking::Off, Thinking::On),
            (json!({"chat_template_kwargs": {"enable_thinking": true}}), Thinking::Off, Thinking::On),
            (
                json!({"chat_template_kwargs": {"enable_thinking": false}, "reasoning_effort": "high"}),
                Thinking::On,
                Thinking::Off,
            ),
            (
                json!({"chat_template_kwargs": {"enable_thinking": true}, "reasoning_effort": "none"}),
                Thinking::On,
                Thinking::On,
            ),
            (json!({"chat_template_kwargs": {"thinking_budget": 9}}), Thinking::Off, Thinking::Budget(9)),
        ] {
            assert_eq!(of(body.clone(), |fields| thinking(fields, default)), Ok(wanted), "{body}");
        }
        assert!(of(json!({"reasoning_effort": "very"}), |f| thinking(f, Thinking::Off)).is_err());
        assert!(of(json!({"chat_template_kwargs": 1}), |f| thinking(f, Thinking::Off)).is_err());
    }

    #[test]
    fn ends_are_read() {
        assert_eq!(of(json!({"stop": "x"}), stops), Ok(vec!["x".to_owned()]));
        assert_eq!(of(json!({"stop": ["x", "y"]}), stops).unwrap().len(), 2);
        assert!(of(json!({"stop": [1]}), stops).is_err());
        assert!(of(json!({"stop": 1}), stops).is_err());
        let names = ["max_completion_tokens", "max_tokens"];
        assert_eq!(of(json!({"max_tokens": 5}), |f| max_new(f, &names)), Ok(Some(5)));
        assert_eq!(of(json!({"max_tokens": 5, "max_completion_tokens": 3}), |f| max_new(f, &names)), Ok(Some(3)));
        assert!(of(json!({"max_tokens": 0}), |f| max_new(f, &names)).is_err());
    }
}
