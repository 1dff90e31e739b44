//! Answers as clients read them: whole, or as a stream of events.

use super::error::ApiError;
use super::job::{Ended, Piece, Shown};
use serde_json::{Map, Value, json};
use std::time::Duration;

/// The form of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Text,
}

/// An answer that is being told.
#[derive(Debug)]
pub(super) struct Reply {
    form: Form,
    id: String,
    model: String,
    created: u64,
    /// Whether a stream ends with what it has cost.
    usage: bool,
    logprobs: bool,
    begun: bool,
    calls: usize,
    /// Tokens whose text has not come yet.
    shown: Vec<Shown>,
    /// Characters of a text so far, for where its tokens begin.
    offset: usize,
    /// What comes before the answer's text.
    echo: String,
}

/// What an answer amounts to, gathered until its end.
#[derive(Debug, Default)]
struct Whole {
    text: String,
    reasoning: String,
    calls: Vec<Value>,
    shown: Vec<Shown>,
}

impl Reply {
    pub(super) fn new(form: Form, model: &str, number: u64, usage: bool, logprobs: bool, echo: String) -> Reply {
        let created = std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
        let kind = match form {
            Form::Chat => "chatcmpl",
            Form::Text => "cmpl",
        };
        Reply {
            form,
            id: format!("{kind}-{created:x}-{number:x}"),
            model: model.to_owned(),
            created,
            usage,
            logprobs,
            begun: false,
            calls: 0,
            shown: Vec::new(),
            offset: echo.chars().count(),
            echo,
        }
    }

    /// What a piece adds to a stream. Gives whether the stream ends with it.
    pub(super) fn stream(&mut self, piece: Piece, out: &mut String) -> bool {
        if !self.begun {
            self.begun = true;
            match self.form {
                Form::Chat => self.delta(json!({"role": "assistant", "content": ""}), None, out),
                Form::Text if self.echo.is_empty() => {}
                Form::Text => self.delta(Value::from(self.echo.as_str()), None, out),
            }
        }
        match piece {
            Piece::Started => {}
            Piece::Token(shown) => self.shown.push(*shown),
            Piece::Reasoning(text) => self.delta(json!({"reasoning_content": text}), None, out),
            Piece::Text(text) => {
                let delta = match self.form {
                    Form::Chat => json!({"content": text}),
                    Form::Text => text.into(),
                };
                self.delta(delta, None, out);
            }
            Piece::Call(call) => {
                let mut call = self.call(&call);
                call["index"] = self.calls.into();
                self.calls += 1;
                self.delta(json!({"tool_calls": [call]}), None, out);
            }
            Piece::Done(ended) => {
                let delta = match self.form {
                    Form::Chat => json!({}),
                    Form::Text => "".into(),
                };
                self.delta(delta, Some(&ended), out);
                if self.usage {
                    let mut last = self.head(true);
                    last.insert("choices".into(), json!([]));
                    last.insert("usage".into(), usage(&ended));
                    last.insert("timings".into(), timings(&ended));
                    event(&Value::Object(last), out);
                }
                out.push_str("data: [DONE]\n\n");
                return true;
            }
            Piece::Failed(error) => {
                event(&error.to_json(), out);
                return true;
            }
        }
        false
    }

    fn delta(&mut self, delta: Value, ended: Option<&Ended>, out: &mut String) {
        let mut chunk = self.head(true);
        let field = match self.form {
            Form::Chat => "delta",
            Form::Text => "text",
        };
        let shown = std::mem::take(&mut self.shown);
        let logprobs = if shown.is_empty() { Value::Null } else { self.logprobs(&shown) };
        let reason = ended.map(|ended| ended.reason);
        let mut choice = Map::new();
        choice.insert("index".into(), 0.into());
        choice.insert(field.into(), delta);
        choice.insert("logprobs".into(), logprobs);
        choice.insert("finish_reason".into(), reason.into());
        chunk.insert("choices".into(), Value::Array(vec![Value::Object(choice)]));
        if self.usage {
            chunk.insert("usage".into(), Value::Null);
        }
        if let Some(ended) = ended {
            chunk.insert("timings".into(), timings(ended));
        }
        event(&Value::Object(chunk), out);
    }

    /// The whole answer, of all its pieces.
    pub(super) fn whole(mut self, pieces: Vec<Piece>) -> Result<Value, ApiError> {
        let mut whole = Whole::default();
        for piece in pieces {
            match piece {
                Piece::Started => {}
                Piece::Token(shown) => whole.shown.push(*shown),
                Piece::Reasoning(text) => whole.reasoning.push_str(&text),
                Piece::Text(text) => whole.text.push_str(&text),
                Piece::Call(call) => whole.calls.push(self.call(&call)),
                Piece::Done(ended) => return Ok(self.end(whole, &ended)),
                Piece::Failed(error) => return Err(error),
            }
        }
        Err(ApiError::Internal("the answer has no end".into()))
    }

    fn end(&mut self, whole: Whole, ended: &Ended) -> Value {
        let logprobs = if self.logprobs { self.logprobs(&whole.shown) } else { Value::Null };
        let mut choice = json!({"index": 0, "logprobs": logprobs, "finish_reason": ended.reason});
        match self.form {
            Form::Chat => {
                // An answer that is nothing but calls has no content.
                let none = whole.text.is_empty() && !whole.calls.is_empty();
                let content = if none { Value::Null } else { whole.text.into() };
                let mut message = json!({"role": "assistant", "content": content, "refusal": null});
                if !whole.reasoning.is_empty() {
                    message["reasoning_content"] = whole.reasoning.into();
                }
                if !whole.calls.is_empty() {
                    message["tool_calls"] = whole.calls.into();
                }
                choice["message"] = message;
            }
            Form::Text => choice["text"] = format!("{}{}", self.echo, whole.text).into(),
        }
        let mut body = self.head(false);
        body.insert("choices".into(), json!([choice]));
        body.insert("usage".into(), usage(ended));
        body.insert("timings".into(), timings(ended));
        Value::Object(body)
    }

    fn head(&self, chunk: bool) -> Map<String, Value> {
        let object = match (self.form, chunk) {
            (Form::Chat, true) => "chat.completion.chunk",
            (Form::Chat, false) => "chat.completion",
            (Form::Text, _) => "text_completion",
        };
        let mut head = Map::new();
        head.insert("id".into(), self.id.as_str().into());
        head.insert("object".into(), object.into());
        head.insert("created".into(), self.created.into());
        head.insert("model".into(), self.model.as_str().into());
        head
    }

    fn call(&self, call: &runtime::chat::ToolCall) -> Value {
        // Arguments are the text of an object in the common interface.
        let arguments = Value::Object(call.arguments.clone()).to_string();
        json!({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}})
    }

    fn logprobs(&mut self, shown: &[Shown]) -> Value {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match self.form {
            Form::Chat => {
                let entry = |bytes: &[u8], logprob: Option<f32>| {
                    // One that was forced has the probability 1.
                    json!({"token": text(bytes), "logprob": logprob.unwrap_or(0.0), "bytes": bytes})
                };
                let content: Vec<Value> = shown
                    .iter()
                    .map(|token| {
                        let mut one = entry(&token.bytes, token.logprob);
                        one["top_logprobs"] = token.top.iter().map(|(b, p)| entry(b, Some(*p))).collect();
                        one
                    })
                    .collect();
                json!({"content": content, "refusal": null})
            }
            Form::Text => {
                let (mut tokens, mut own, mut top, mut offsets) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
                for token in shown {
                    let word = text(&token.bytes);
                    offsets.push(self.offset);
                    self.offset += word.chars().count();
                    tokens.push(word);
                    own.push(token.logprob);
                    let others = token.top.iter().map(|(bytes, logprob)| (text(bytes), Value::from(*logprob)));
                    top.push(Value::Object(others.collect()));
                }
                json!({"tokens": tokens, "token_logprobs": own, "top_logprobs": top, "text_offset": offsets})
            }
        }
    }
}

/// An event of a stream.
fn event(value: &Value, out: &mut String) {
    out.push_str("data: ");
    out.push_str(&value.to_string());
    out.push_str("\n\n");
}

/// What an answer has cost.
pub(super) fn usage(ended: &Ended) -> Value {
    json!({
        "prompt_tokens": ended.prompt_tokens,
        "completion_tokens": ended.tokens,
        "total_tokens": ended.prompt_tokens + ended.tokens,
        "prompt_tokens_details": {"cached_tokens": ended.reused_tokens},
        "completion_tokens_details": {"reasoning_tokens": ended.reasoning_tokens},
    })
}

/// Where the time went.
pub(super) fn timings(ended: &Ended) -> Value {
    let ms = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
    let seconds = ended.decode.as_secs_f64();
    let rate = if seconds > 0.0 { ended.steps as f64 / seconds } else { 0.0 };
    json!({
        "prompt_tokens": ended.prompt_tokens,
        "reused_tokens": ended.reused_tokens,
        "image_tokens": ended.image_tokens,
        "queue_ms": ms(ended.queue),
        "vision_ms": ms(ended.vision),
        "prompt_ms": ms(ended.prefill),
        "first_token_ms": ms(ended.first),
        "predicted_tokens": ended.tokens,
        "predicted_ms": ms(ended.decode),
        "tokens_per_second": (rate * 100.0).round() / 100.0,
        "npu_wait_ms": ms(ended.npu_wait),
        "commands": ended.commands,
    })
}

/// What an answer may have come to.
#[cfg(test)]
pub(super) fn sample(reason: &'static str) -> Box<Ended> {
    Box::new(Ended {
        reason,
        prompt_tokens: 5,
        reused_tokens: 3,
        image_tokens: 0,
        tokens: 2,
        reasoning_tokens: 1,
        queue: Duration::from_micros(1500),
        vision: Duration::ZERO,
        prefill: Duration::from_millis(4),
        first: Duration::from_millis(6),
        decode: Duration::from_millis(100),
        steps: 1,
        npu_wait: Duration::from_millis(80),
        commands: 40,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::chat::ToolCall;

    fn pieces() -> Vec<Piece> {
        let arguments = json!({"b": 1, "a": [2]}).as_object().unwrap().clone();
        let shown = Shown { bytes: b"\xc3".to_vec(), logprob: None, top: vec![(b"x".to_vec(), -0.5)] };
        vec![
            Piece::Started,
            Piece::Reasoning("hm".into()),
            Piece::Token(Box::new(shown)),
            Piece::Text("a ".into()),
            Piece::Text("b".into()),
            Piece::Call(ToolCall { id: Some("call_1".into()), name: "f".into(), arguments }),
            Piece::Done(sample("tool_calls")),
        ]
    }

    fn events(text: &str) -> Vec<Value> {
        let lines = text.split_terminator("\n\n").map(|line| line.strip_prefix("data: ").unwrap());
        lines.filter(|line| *line != "[DONE]").map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn a_stream_is_the_whole_in_pieces() {
        let whole = Reply::new(Form::Chat, "m", 1, false, true, String::new()).whole(pieces()).unwrap();
        let message = &whole["choices"][0]["message"];
        assert_eq!((&message["content"], &message["reasoning_content"]), (&json!("a b"), &json!("hm")));
        assert_eq!(message["tool_calls"][0]["function"]["arguments"], r#"{"b":1,"a":[2]}"#);
        assert_eq!(whole["usage"]["total_tokens"], 7);
        assert_eq!(whole["timings"]["queue_ms"], 1.5);
        assert_eq!(whole["timings"]["tokens_per_second"], 10.0);
        let mut reply = Reply::new(Form::Chat, "m", 1, true, true, String::new());
        let mut out = String::new();
        let ends: Vec<bool> = pieces().into_iter().map(|piece| reply.stream(piece, &mut out)).collect();
        assert_eq!(ends.iter().filter(|end| **end).count(), 1);
        assert!(ends.last().unwrap() & out.ends_with("data: [DONE]\n\n"));
        let events = events(&out);
        let (mut text, mut logprobs) = (String::new(), Vec::new());
        for event in &events {
            assert_eq!(event["object"], "chat.completion.chunk");
            text.push_str(event["choices"][0]["delta"]["content"].as_str().unwrap_or(""));
            logprobs.extend(event["choices"][0]["logprobs"]["content"].as_array().cloned().unwrap_or_default());
        }
        assert_eq!(text, "a b");
        assert_eq!(&Value::Array(logprobs), &whole["choices"][0]["logprobs"]["content"]);
        assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
        let [.., end, cost] = &events[..] else { panic!() };
        assert_eq!((&end["choices"][0]["finish_reason"], &end["usage"]), (&json!("tool_calls"), &Value::Null));
        assert!(end["timings"].is_object());
        assert_eq!((&cost["choices"], &cost["usage"]), (&json!([]), &whole["usage"]));
    }

    #[test]
    fn a_text_has_its_own_shapes() {
        let shown = |text: &str| {
            Piece::Token(Box::new(Shown { bytes: text.into(), logprob: Some(-1.0), top: vec![("y".into(), -2.0)] }))
        };
        let pieces = || {
            vec![shown("é"), Piece::Text("é".into()), shown("b"), Piece::Text("b".into()), Piece::Done(sample("stop"))]
        };
        let whole = Reply::new(Form::Text, "m", 1, false, true, "> ".into()).whole(pieces()).unwrap();
        let choice = &whole["choices"][0];
        assert_eq!((&whole["object"], &choice["text"]), (&json!("text_completion"), &json!("> éb")));
        assert_eq!(choice["logprobs"]["text_offset"], json!([2, 3]));
        assert_eq!(choice["logprobs"]["top_logprobs"], json!([{"y": -2.0}, {"y": -2.0}]));
        let mut reply = Reply::new(Form::Text, "m", 1, false, false, "> ".into());
        let mut out = String::new();
        let ends = pieces().into_iter().map(|piece| reply.stream(piece, &mut out)).filter(|end| *end);
        assert_eq!(ends.count(), 1);
        let text: String = events(&out).iter().map(|event| event["choices"][0]["text"].as_str().unwrap()).collect();
        assert_eq!(text, "> éb");
    }

    #[test]
    fn an_answer_that_fails_is_an_error_in_both_forms() {
        let pieces = || vec![Piece::Started, Piece::Text("a".into()), Piece::Failed(ApiError::Device("gone".into()))];
        let reply = || Reply::new(Form::Chat, "m", 1, true, false, String::new());
        assert_eq!(reply().whole(pieces()).unwrap_err().status(), 503);
        let mut out = String::new();
        let mut stream = reply();
        let ends = pieces().into_iter().map(|piece| stream.stream(piece, &mut out)).filter(|end| *end);
        assert_eq!(ends.count(), 1);
        assert_eq!(events(&out).last().unwrap()["error"]["code"], "device_error");
        assert!(!out.contains("[DONE]"));
        assert!(reply().whole(vec![Piece::Started]).is_err());
    }
}
