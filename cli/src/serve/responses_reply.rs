//! `/v1/responses`: what is answered, whole or as a stream of events.

use super::error::ApiError;
use super::job::{Ended, Piece};
use super::reply::timings;
use serde_json::{Value, json};

/// An answer of items: what was thought, a message, calls.
#[derive(Debug, Clone)]
pub(super) struct Response {
    id: String,
    model: String,
    created: u64,
    /// What was asked for and is told again.
    asked: Value,
    items: Vec<Value>,
    /// Whether the last item may go on.
    open: bool,
    sequence: u64,
}

impl Response {
    pub(super) fn new(model: &str, number: u64, body: &Value) -> Response {
        let created = std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
        let or = |field: &str, default: Value| Some(&body[field]).filter(|v| !v.is_null()).cloned().unwrap_or(default);
        let asked = json!({
            "instructions": body["instructions"],
            "max_output_tokens": body["max_output_tokens"],
            "metadata": or("metadata", json!({})),
            "parallel_tool_calls": or("parallel_tool_calls", json!(true)),
            "temperature": or("temperature", json!(0)),
            "text": or("text", json!({"format": {"type": "text"}})),
            "tool_choice": or("tool_choice", json!("auto")),
            "tools": or("tools", json!([])),
            "top_p": or("top_p", json!(1)),
        });
        let id = format!("resp_{created:x}_{number:x}");
        Response { id, model: model.to_owned(), created, asked, items: Vec::new(), open: false, sequence: 0 }
    }

    /// What a piece adds to a stream. Gives whether the stream ends with it.
    pub(super) fn stream(&mut self, piece: Piece, out: &mut String) -> bool {
        if self.sequence == 0 {
            let response = self.body("in_progress", None);
            self.event("response.created", json!({"response": response}), out);
            self.event("response.in_progress", json!({"response": response}), out);
        }
        match piece {
            Piece::Started | Piece::Token(_) => {}
            Piece::Reasoning(text) => self.more("reasoning", &text, out),
            Piece::Text(text) => self.more("message", &text, out),
            Piece::Call(call) => {
                self.close(out);
                let arguments = Value::Object(call.arguments).to_string();
                let at = self.items.len();
                let mut item = json!({"type": "function_call", "id": self.item_id("fc"), "call_id": call.id,
                    "name": call.name, "arguments": "", "status": "in_progress"});
                let place = json!({"item_id": item["id"], "output_index": at});
                self.event("response.output_item.added", json!({"output_index": at, "item": item}), out);
                let with = |name: &str| merged(&place, json!({name: arguments}));
                self.event("response.function_call_arguments.delta", with("delta"), out);
                self.event("response.function_call_arguments.done", with("arguments"), out);
                (item["arguments"], item["status"]) = (arguments.into(), "completed".into());
                self.event("response.output_item.done", json!({"output_index": at, "item": item}), out);
                self.items.push(item);
            }
            Piece::Done(ended) => {
                self.close(out);
                let status = status(&ended);
                let response = self.body(status, Some(&ended));
                self.event(&format!("response.{status}"), json!({"response": response}), out);
                return true;
            }
            Piece::Failed(error) => {
                let about = error.to_json()["error"].clone();
                let fields = json!({"message": about["message"], "param": about["param"], "code": about["code"]});
                self.event("error", fields, out);
                return true;
            }
        }
        false
    }

    /// The whole answer, of all its pieces.
    pub(super) fn whole(mut self, pieces: Vec<Piece>) -> Result<Value, ApiError> {
        // Its items come to be as in a stream.
        let mut unsaid = String::new();
        for piece in pieces {
            let ended = match piece {
                Piece::Failed(error) => return Err(error),
                Piece::Done(ended) => ended,
                other => {
                    self.stream(other, &mut unsaid);
                    unsaid.clear();
                    continue;
                }
            };
            self.close(&mut unsaid);
            return Ok(self.body(status(&ended), Some(&ended)));
        }
        Err(ApiError::Internal("the answer has no end".into()))
    }

    fn item_id(&self, kind: &str) -> String {
        format!("{kind}_{}_{}", self.id.trim_start_matches("resp_"), self.items.len())
    }

    /// More of an item of this kind, which may be a new one.
    fn more(&mut self, kind: &str, text: &str, out: &mut String) {
        if !(self.open && self.items.last().is_some_and(|item| item["type"] == kind)) {
            self.close(out);
            let at = self.items.len();
            let mut item = if kind == "message" {
                json!({"type": kind, "id": self.item_id("msg"), "role": "assistant", "status": "in_progress", "content": []})
            } else {
                json!({"type": kind, "id": self.item_id("rs"), "summary": [], "status": "in_progress", "content": []})
            };
            self.event("response.output_item.added", json!({"output_index": at, "item": item}), out);
            let part = part(kind, "");
            let about = json!({"item_id": item["id"], "output_index": at, "content_index": 0, "part": part});
            self.event("response.content_part.added", about, out);
            item["content"] = json!([part]);
            self.items.push(item);
            self.open = true;
        }
        let at = self.items.len() - 1;
        let item = &mut self.items[at];
        let said = item["content"][0]["text"].as_str().unwrap_or_default();
        item["content"][0]["text"] = format!("{said}{text}").into();
        let mut about = json!({"item_id": item["id"], "output_index": at, "content_index": 0, "delta": text});
        if kind == "message" {
            about["logprobs"] = json!([]);
        }
        self.event(&format!("response.{}.delta", word(kind)), about, out);
    }

    /// The last item is whole.
    fn close(&mut self, out: &mut String) {
        if !std::mem::take(&mut self.open) {
            return;
        }
        let Some(at) = self.items.len().checked_sub(1) else { return };
        self.items[at]["status"] = "completed".into();
        let item = self.items[at].clone();
        let kind = item["type"].as_str().unwrap_or_default();
        let place = json!({"item_id": item["id"], "output_index": at, "content_index": 0});
        let mut text = json!({"text": item["content"][0]["text"]});
        if kind == "message" {
            text["logprobs"] = json!([]);
        }
        self.event(&format!("response.{}.done", word(kind)), merged(&place, text), out);
        self.event("response.content_part.done", merged(&place, json!({"part": item["content"][0]})), out);
        self.event("response.output_item.done", json!({"output_index": at, "item": item}), out);
    }

    fn event(&mut self, kind: &str, fields: Value, out: &mut String) {
        let about = json!({"type": kind, "sequence_number": self.sequence});
        self.sequence += 1;
        out.push_str(&format!("event: {kind}\ndata: {}\n\n", merged(&about, fields)));
    }

    fn body(&self, status: &str, ended: Option<&Ended>) -> Value {
        let why = (status == "incomplete").then(|| json!({"reason": "max_output_tokens"}));
        let about = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "model": self.model,
            "output": self.items,
            "error": null,
            "incomplete_details": why,
            "usage": ended.map(usage),
            "store": false,
        });
        let timed = ended.map_or(json!({}), |ended| json!({"timings": timings(ended)}));
        merged(&merged(&about, self.asked.clone()), timed)
    }
}

fn status(ended: &Ended) -> &'static str {
    if ended.reason == "length" { "incomplete" } else { "completed" }
}

fn word(kind: &str) -> &'static str {
    if kind == "message" { "output_text" } else { "reasoning_text" }
}

fn part(kind: &str, text: &str) -> Value {
    if kind == "message" {
        json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
    } else {
        json!({"type": "reasoning_text", "text": text})
    }
}

fn usage(ended: &Ended) -> Value {
    json!({
        "input_tokens": ended.prompt_tokens,
        "input_tokens_details": {"cached_tokens": ended.reused_tokens},
        "output_tokens": ended.tokens,
        "output_tokens_details": {"reasoning_tokens": ended.reasoning_tokens},
        "total_tokens": ended.prompt_tokens + ended.tokens,
    })
}

/// The fields of both.
fn merged(a: &Value, b: Value) -> Value {
    let mut all = a.clone();
    if let (Value::Object(all), Value::Object(more)) = (&mut all, b) {
        all.extend(more);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::reply::sample;
    use runtime::chat::ToolCall;

    fn pieces(reason: &'static str) -> Vec<Piece> {
        let arguments = json!({"a": 1}).as_object().unwrap().clone();
        vec![
            Piece::Started,
            Piece::Reasoning("h".into()),
            Piece::Reasoning("m".into()),
            Piece::Text("a ".into()),
            Piece::Text("b".into()),
            Piece::Call(ToolCall { id: Some("call_1".into()), name: "f".into(), arguments }),
            Piece::Done(sample(reason)),
        ]
    }

    #[test]
    fn a_stream_ends_with_the_whole() {
        let response = Response::new("m", 1, &json!({"instructions": "x"}));
        let whole = response.clone().whole(pieces("tool_calls")).unwrap();
        let kinds: Vec<&str> =
            whole["output"].as_array().unwrap().iter().map(|i| i["type"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["reasoning", "message", "function_call"]);
        assert_eq!(whole["output"][1]["content"][0]["text"], "a b");
        assert_eq!((&whole["status"], &whole["usage"]["output_tokens"]), (&json!("completed"), &json!(2)));
        let (mut out, mut stream) = (String::new(), response);
        let ends: Vec<bool> = pieces("tool_calls").into_iter().map(|piece| stream.stream(piece, &mut out)).collect();
        assert_eq!(ends.iter().filter(|end| **end).count(), 1);
        let events: Vec<Value> = out
            .lines()
            .filter_map(|line| line.strip_prefix("data: "))
            .map(|data| serde_json::from_str(data).unwrap())
            .collect();
        assert!(events.iter().enumerate().all(|(at, event)| event["sequence_number"] == at));
        let text: String = events
            .iter()
            .filter(|event| event["type"] == "response.output_text.delta")
            .map(|event| event["delta"].as_str().unwrap())
            .collect();
        assert_eq!(text, "a b");
        let last = events.last().unwrap();
        assert_eq!((&last["type"], &last["response"]), (&json!("response.completed"), &whole));
        let count = |kind: &str| events.iter().filter(|event| event["type"] == kind).count();
        assert_eq!((count("response.output_item.added"), count("response.output_item.done")), (3, 3));
        assert_eq!(count("response.content_part.done"), 2);
    }

    #[test]
    fn one_that_is_cut_says_so_and_one_that_fails_is_an_error() {
        let cut = Response::new("m", 1, &json!({})).whole(pieces("length")).unwrap();
        assert_eq!(
            (&cut["status"], &cut["incomplete_details"]["reason"]),
            (&json!("incomplete"), &json!("max_output_tokens"))
        );
        let failed = || vec![Piece::Text("a".into()), Piece::Failed(ApiError::Stopping)];
        assert_eq!(Response::new("m", 1, &json!({})).whole(failed()).unwrap_err(), ApiError::Stopping);
        let (mut out, mut stream) = (String::new(), Response::new("m", 1, &json!({})));
        let ends: Vec<bool> = failed().into_iter().map(|piece| stream.stream(piece, &mut out)).collect();
        assert_eq!(ends, [false, true]);
        assert!(out.contains("event: error\n") && out.contains("\"code\":\"stopping\""));
    }
}
