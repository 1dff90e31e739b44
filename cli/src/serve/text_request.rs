//! `/v1/completions`: a text that is gone on with as it is.

use super::chat_request::{Asked, streams};
use super::error::ApiError;
use super::fields::Fields;
use super::job::{Held, Subject, Wanted};
use super::sampling::{max_new, sampling, stops};
use crate::wishes::Wishes;
use runtime::chat::Thinking;
use serde_json::{Value, json};

/// What OpenAI's interface generates where nothing is said.
const DEFAULT_TOKENS: usize = 16;

/// Reads a body. Gives what stands before the answer in it, too.
pub(super) fn read(body: &Value, default: &Wishes) -> Result<(Asked, String), ApiError> {
    let fields = Fields::of(body)?;
    for (field, unless) in [("n", &[json!(1)][..]), ("best_of", &[json!(1)]), ("suffix", &[json!("")])] {
        fields.refuse(field, unless, "this server gives one answer, and puts nothing behind it")?;
    }
    let prompt = match fields.get("prompt") {
        Some(Value::String(text)) => text,
        Some(Value::Array(list)) => match &list[..] {
            [Value::String(text)] => text,
            [] => return Err(fields.wrong("prompt", "it is empty")),
            [Value::String(_), ..] => return Err(fields.wrong("prompt", "one at a time: ask several times")),
            _ => return Err(fields.wrong("prompt", "wanted a text; tokens are not taken")),
        },
        Some(_) => return Err(fields.wrong("prompt", "wanted a text")),
        None => return Err(fields.wrong("prompt", "it is missing")),
    };
    if prompt.is_empty() {
        return Err(fields.wrong("prompt", "it is empty: there is nothing to go on with"));
    }
    let mut sampling = sampling(&fields, &default.sampling)?;
    sampling.logprobs = fields.whole("logprobs", 0, 20)?.map(|top| top as usize);
    let echo = if fields.boolean("echo")?.unwrap_or(false) { prompt.clone() } else { String::new() };
    let (stream, usage) = streams(&fields)?;
    let asked = Asked {
        stream,
        usage,
        logprobs: sampling.logprobs.is_some(),
        user: fields.string("user")?.map(str::to_owned),
        wanted: Wanted {
            subject: Subject::Raw(prompt.clone()),
            sampling,
            thinking: Thinking::Off,
            max_new: Some(max_new(&fields, &["max_tokens"])?.unwrap_or(DEFAULT_TOKENS)),
            stop: stops(&fields)?,
            tools: None,
            hold: Held::Free,
            one_call: false,
        },
    };
    Ok((asked, echo))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_is_one_text() {
        let (asked, echo) =
            read(&json!({"prompt": ["once"], "echo": true, "logprobs": 3}), &Wishes::default()).unwrap();
        assert!(matches!(asked.wanted.subject, Subject::Raw(text) if text == "once"));
        assert_eq!((echo.as_str(), asked.wanted.sampling.logprobs, asked.wanted.max_new), ("once", Some(3), Some(16)));
        for bad in [
            json!({}),
            json!({"prompt": ""}),
            json!({"prompt": []}),
            json!({"prompt": ["a", "b"]}),
            json!({"prompt": [1, 2]}),
            json!({"prompt": "a", "n": 2}),
            json!({"prompt": "a", "suffix": "b"}),
            json!({"prompt": "a", "logprobs": 21}),
        ] {
            assert_eq!(read(&bad, &Wishes::default()).unwrap_err().status(), 400, "{bad}");
        }
    }
}
