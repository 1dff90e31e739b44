//! `/v1/responses`: what is asked, in the words of `/v1/chat/completions`.

use super::error::ApiError;
use super::fields::{Fields, kind};
use serde_json::{Map, Value, json};

/// The body of a chat's request that asks the same.
pub(super) fn as_chat(body: &Value) -> Result<Value, ApiError> {
    let fields = Fields::of(body)?;
    for (field, unless, why) in [
        ("previous_response_id", &[][..], "nothing is kept by this name: send the whole conversation as `input`"),
        ("conversation", &[], "nothing is kept by this name: send the whole conversation as `input`"),
        ("background", &[json!(false)], "answers are given at once"),
        ("prompt", &[], "there are no prompts here: send `input`"),
    ] {
        fields.refuse(field, unless, why)?;
    }
    let mut messages = Vec::new();
    if let Some(text) = fields.string("instructions")? {
        messages.push(json!({"role": "system", "content": text}));
    }
    match fields.get("input") {
        Some(Value::String(text)) => messages.push(json!({"role": "user", "content": text})),
        Some(Value::Array(items)) => {
            for (index, value) in items.iter().enumerate() {
                item(index, value, &mut messages)?;
            }
        }
        Some(other) => return Err(fields.wrong("input", format_args!("it is {}, wanted a text or items", kind(other)))),
        None => return Err(fields.wrong("input", "it is missing")),
    }
    let mut chat = Map::new();
    chat.insert("messages".into(), messages.into());
    for (name, theirs) in [
        ("stream", "stream"),
        ("temperature", "temperature"),
        ("top_p", "top_p"),
        ("top_k", "top_k"),
        ("min_p", "min_p"),
        ("seed", "seed"),
        ("stop", "stop"),
        ("presence_penalty", "presence_penalty"),
        ("frequency_penalty", "frequency_penalty"),
        ("repetition_penalty", "repetition_penalty"),
        ("max_completion_tokens", "max_output_tokens"),
        ("parallel_tool_calls", "parallel_tool_calls"),
        ("tool_choice", "tool_choice"),
        ("reasoning", "reasoning"),
        ("chat_template_kwargs", "chat_template_kwargs"),
        ("user", "user"),
    ] {
        if let Some(value) = fields.get(theirs) {
            chat.insert(name.into(), value.clone());
        }
    }
    if let Some(tools) = fields.list("tools")? {
        chat.insert("tools".into(), tools.iter().map(tool).collect());
    }
    let text = fields.object("text", "text.")?;
    let format = text.map(|text| text.object("format", "text.format.")).transpose()?.flatten();
    if let Some(format) = format {
        let wanted = format.string("type")?.unwrap_or("text");
        let mut given = json!({"type": wanted});
        if wanted == "json_schema" {
            given["json_schema"] = json!({"schema": format.get("schema")});
        }
        chat.insert("response_format".into(), given);
    }
    Ok(Value::Object(chat))
}

/// A definition of a function, whose name stands beside its type here. Others are refused where all are read.
fn tool(value: &Value) -> Value {
    if value["type"] == "function" && value["function"].is_null() {
        json!({"type": "function", "function": value})
    } else {
        value.clone()
    }
}

/// An item of the conversation. Calls belong to the message before them.
fn item(index: usize, value: &Value, messages: &mut Vec<Value>) -> Result<(), ApiError> {
    let wrong = |what: String| Err(ApiError::field(format!("input[{index}]"), what));
    if !value.is_object() {
        return wrong(format!("it is {}, wanted an object", kind(value)));
    }
    match value["type"].as_str().unwrap_or("message") {
        "message" => {
            let content = content(index, &value["content"])?;
            messages.push(json!({"role": value["role"], "content": content}));
        }
        "function_call" => {
            let call = json!({"id": value["call_id"], "type": "function",
                "function": {"name": value["name"], "arguments": value["arguments"]}});
            match messages.last_mut().filter(|last| last["role"] == "assistant") {
                Some(last) if last["tool_calls"].is_array() => {
                    if let Some(calls) = last["tool_calls"].as_array_mut() {
                        calls.push(call);
                    }
                }
                Some(last) => last["tool_calls"] = json!([call]),
                None => messages.push(json!({"role": "assistant", "content": "", "tool_calls": [call]})),
            }
        }
        "function_call_output" => {
            let content = content(index, &value["output"])?;
            messages.push(json!({"role": "tool", "tool_call_id": value["call_id"], "content": content}));
        }
        // What was thought before an earlier answer is not read again.
        "reasoning" => {}
        other => return wrong(format!("its type is `{other}`, wanted message, function_call or function_call_output")),
    }
    Ok(())
}

fn content(index: usize, value: &Value) -> Result<Value, ApiError> {
    let Value::Array(parts) = value else { return Ok(value.clone()) };
    let part = |(at, part): (usize, &Value)| match part["type"].as_str() {
        Some("input_text" | "output_text" | "text") => Ok(json!({"type": "text", "text": part["text"]})),
        Some("input_image") => Ok(json!({"type": "image_url", "image_url": part["image_url"]})),
        other => {
            let what = format!("its type is `{}`, wanted input_text or input_image", other.unwrap_or("missing"));
            Err(ApiError::field(format!("input[{index}].content[{at}]"), what))
        }
    };
    parts.iter().enumerate().map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::chat_request;
    use crate::wishes::Wishes;

    #[test]
    fn a_conversation_is_the_same_in_other_words() {
        let body = json!({"instructions": "Be brief.", "max_output_tokens": 9, "reasoning": {"effort": "none"},
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
                {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{\"x\":1}"},
                {"type": "function_call", "call_id": "2", "name": "g", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "1", "output": "c"}],
            "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
            "text": {"format": {"type": "text"}}});
        let chat = as_chat(&body).unwrap();
        let wanted = json!([{"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "a"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "b"}], "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"x\":1}"}},
                {"id": "2", "type": "function", "function": {"name": "g", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "1", "content": "c"}]);
        assert_eq!(chat["messages"], wanted);
        assert_eq!(chat["max_completion_tokens"], 9);
        let asked = chat_request::read(&chat, &Wishes::default()).unwrap();
        assert_eq!(asked.wanted.tools.unwrap().tools()[0].name, "f");
        let simple = as_chat(&json!({"input": "hi"})).unwrap();
        assert_eq!(simple["messages"], json!([{"role": "user", "content": "hi"}]));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (body, said) in [
            (json!({}), "`input`: it is missing"),
            (json!({"input": 3}), "`input`: it is a number"),
            (json!({"input": [3]}), "`input[0]`: it is a number"),
            (json!({"input": [{"type": "file_search_call"}]}), "file_search_call"),
            (json!({"input": [{"role": "user", "content": [{"type": "input_audio"}]}]}), "`input[0].content[0]`"),
            (json!({"input": "x", "previous_response_id": "r"}), "send the whole conversation"),
            (json!({"input": "x", "background": true}), "at once"),
        ] {
            let error = as_chat(&body).unwrap_err().to_string();
            assert!(error.contains(said), "{body}: {error}");
        }
    }
}
