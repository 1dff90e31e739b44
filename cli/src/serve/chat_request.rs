//! `/v1/chat/completions`: what is asked.

use super::error::ApiError;
use super::fields::{Fields, kind};
use super::job::{Held, Subject, Wanted};
use super::pictures;
use super::sampling::{max_new, sampling, stops, thinking};
use crate::wishes::Wishes;
use runtime::chat::{MAX_LOGPROBS, Message, ToolChoice, Tools};
use serde_json::{Value, json};

/// A request, and how its answer is to be told.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) wanted: Wanted,
    pub(super) stream: bool,
    /// Whether a stream ends with what it has cost.
    pub(super) usage: bool,
    pub(super) logprobs: bool,
    /// The client's name for who asks.
    pub(super) user: Option<String>,
}

/// Reads a body.
pub(super) fn read(body: &Value, default: &Wishes) -> Result<Asked, ApiError> {
    let fields = Fields::of(body)?;
    for (field, unless, why) in [
        ("n", &[json!(1)][..], "this server gives one answer a request: ask several times"),
        ("functions", &[], "give the functions in `tools`"),
        ("function_call", &[], "give `tool_choice`"),
        ("audio", &[], "this model does not speak"),
        ("modalities", &[json!(["text"])], "this model writes text only"),
        ("web_search_options", &[], "this server searches nothing"),
    ] {
        fields.refuse(field, unless, why)?;
    }
    let list = fields.list("messages")?.ok_or_else(|| ApiError::field("messages", "it is missing"))?;
    if list.is_empty() {
        return Err(ApiError::field("messages", "it is empty: an answer needs a message at least"));
    }
    let messages: Vec<Message> =
        list.iter().enumerate().map(|(index, value)| message(index, value)).collect::<Result<_, _>>()?;
    let mut sampling = sampling(&fields, &default.sampling)?;
    let logprobs = fields.boolean("logprobs")?.unwrap_or(false);
    let top = fields.whole("top_logprobs", 0, MAX_LOGPROBS as u64)?;
    if top.is_some_and(|top| top > 0) && !logprobs {
        return Err(fields.wrong("top_logprobs", "it wants `logprobs` to be true"));
    }
    sampling.logprobs = logprobs.then(|| top.unwrap_or(0) as usize);
    let (tools, hold) = held(&fields)?;
    let stream = streams(&fields)?;
    Ok(Asked {
        stream: stream.0,
        usage: stream.1,
        logprobs,
        user: fields.string("user")?.map(str::to_owned),
        wanted: Wanted {
            sampling,
            thinking: thinking(&fields, default.thinking)?,
            max_new: max_new(&fields, &["max_completion_tokens", "max_tokens"])?,
            stop: stops(&fields)?,
            tools,
            hold,
            one_call: fields.boolean("parallel_tool_calls")? == Some(false),
            // Last: decoding pictures is the only work.
            subject: Subject::Chat(pictures::take(messages)?),
        },
    })
}

/// Whether the answer is streamed, and with its usage.
pub(super) fn streams(fields: &Fields<'_>) -> Result<(bool, bool), ApiError> {
    let stream = fields.boolean("stream")?.unwrap_or(false);
    let options = fields.object("stream_options", "stream_options.")?;
    let usage = options.map(|options| options.boolean("include_usage")).transpose()?.flatten();
    Ok((stream, usage.unwrap_or(false)))
}

/// A message, with OpenAI's name for instructions.
fn message(index: usize, value: &Value) -> Result<Message, ApiError> {
    let developer = value["role"] == "developer";
    let renamed = developer.then(|| {
        let mut value = value.clone();
        value["role"] = "system".into();
        value
    });
    let read = Message::from_json(index, renamed.as_ref().unwrap_or(value));
    read.map_err(|error| ApiError::Invalid { param: Some(format!("messages[{index}]")), what: error.to_string() })
}

/// The functions, and what the answer is held to.
fn held(fields: &Fields<'_>) -> Result<(Option<Tools>, Held), ApiError> {
    let given = fields.list("tools")?.cloned().unwrap_or_default();
    for (index, tool) in given.iter().enumerate() {
        if !tool["type"].is_null() && tool["type"] != "function" {
            let what = format!("`tools[{index}]` is of type {}, wanted \"function\"", tool["type"]);
            return Err(ApiError::Invalid { param: Some("tools".into()), what });
        }
    }
    let tools = Tools::new(given).map_err(|error| ApiError::field("tools", error))?;
    let choice = choice(fields)?;
    let format = format(fields)?;
    if let Some(choice) = &choice
        && tools.is_empty()
        && *choice != ToolChoice::Auto
    {
        return Err(fields.wrong("tool_choice", "it wants a call, but there are no `tools`"));
    }
    Ok(match (choice, format) {
        (Some(choice), None) if !tools.is_empty() => (Some(tools), Held::Calls(choice)),
        (Some(ToolChoice::Auto), Some(Held::Schema(schema))) if !tools.is_empty() => {
            (Some(tools), Held::CallsOr(schema))
        }
        (Some(ToolChoice::Auto), Some(_)) if !tools.is_empty() => {
            (Some(tools), Held::CallsOr(json!({"type": "object"})))
        }
        // Where a call has to come, there is nothing else that could have a format.
        (Some(choice), Some(_)) if !tools.is_empty() => (Some(tools), Held::Calls(choice)),
        (_, format) => (None, format.unwrap_or(Held::Free)),
    })
}

/// Which call is wanted; nothing if none may come.
fn choice(fields: &Fields<'_>) -> Result<Option<ToolChoice>, ApiError> {
    let wrong = |what: &str| fields.wrong("tool_choice", what);
    match fields.get("tool_choice") {
        None => Ok(Some(ToolChoice::Auto)),
        Some(Value::String(word)) => match word.as_str() {
            "none" => Ok(None),
            "auto" => Ok(Some(ToolChoice::Auto)),
            "required" => Ok(Some(ToolChoice::Required)),
            _ => Err(wrong("wanted \"none\", \"auto\", \"required\" or a function")),
        },
        Some(value @ Value::Object(_)) => {
            // The name stands in `function`, or beside the type as `/v1/responses` has it.
            let name = value["function"]["name"].as_str().or_else(|| value["name"].as_str());
            match name {
                Some(name) if value["type"] == "function" => Ok(Some(ToolChoice::Function(name.to_owned()))),
                _ => Err(wrong("wanted {\"type\": \"function\", \"function\": {\"name\": ...}}")),
            }
        }
        Some(_) => Err(wrong("wanted \"none\", \"auto\", \"required\" or a function")),
    }
}

/// The format that the answer is to have, if any.
fn format(fields: &Fields<'_>) -> Result<Option<Held>, ApiError> {
    let Some(format) = fields.object("response_format", "response_format.")? else { return Ok(None) };
    match format.string("type")? {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(Held::Object)),
        Some("json_schema") => {
            let inner = format.object("json_schema", "response_format.json_schema.")?;
            let schema = inner.as_ref().and_then(|inner| inner.get("schema"));
            match schema {
                Some(schema @ Value::Object(_)) => Ok(Some(Held::Schema(schema.clone()))),
                Some(other) => Err(format.wrong("json_schema.schema", format_args!("it is {}", kind(other)))),
                None => Err(format.wrong("json_schema.schema", "it is missing")),
            }
        }
        _ => Err(format.wrong("type", "wanted text, json_object or json_schema")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::chat::Role;

    fn asked(more: Value) -> Result<Asked, String> {
        let mut body = json!({"messages": [{"role": "developer", "content": "be"}, {"role": "user", "content": "hi"}]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        read(&body, &Wishes::default()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_request_is_read() {
        let asked = asked(json!({"stream": true, "stream_options": {"include_usage": true}, "logprobs": true,
            "top_logprobs": 2, "max_tokens": 7, "user": "me", "n": 1}))
        .unwrap();
        assert!(asked.stream && asked.usage && asked.logprobs);
        assert_eq!((asked.wanted.max_new, asked.wanted.sampling.logprobs), (Some(7), Some(2)));
        let Subject::Chat(said) = asked.wanted.subject else { panic!() };
        assert_eq!((said.len(), said[0].message.role), (2, Role::System));
    }

    #[test]
    fn calls_and_formats_are_read() {
        let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]);
        let hold = |more: Value| asked(more).map(|asked| (asked.wanted.tools.is_some(), asked.wanted.hold));
        assert!(matches!(hold(json!({"tools": tools})), Ok((true, Held::Calls(ToolChoice::Auto)))));
        let required = hold(json!({"tools": tools, "tool_choice": "required"}));
        assert!(matches!(required, Ok((true, Held::Calls(ToolChoice::Required)))));
        let named = json!({"type": "function", "function": {"name": "f"}});
        let named = hold(json!({"tools": tools, "tool_choice": named}));
        assert!(matches!(named, Ok((true, Held::Calls(ToolChoice::Function(name)))) if name == "f"));
        assert!(matches!(hold(json!({"tools": tools, "tool_choice": "none"})), Ok((false, Held::Free))));
        assert!(matches!(hold(json!({"tools": []})), Ok((false, Held::Free))));
        let object = json!({"type": "json_object"});
        assert!(matches!(hold(json!({"response_format": object})), Ok((false, Held::Object))));
        let both = hold(json!({"tools": tools, "response_format": object}));
        assert!(matches!(both, Ok((true, Held::CallsOr(schema))) if schema == json!({"type": "object"})));
        let both = hold(json!({"tools": tools, "tool_choice": "required", "response_format": object}));
        assert!(matches!(both, Ok((true, Held::Calls(ToolChoice::Required)))));
        let schema = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "integer"}}});
        assert!(matches!(hold(json!({"response_format": schema})), Ok((false, Held::Schema(_)))));
        let none = hold(json!({"tools": tools, "tool_choice": "none", "response_format": schema}));
        assert!(matches!(none, Ok((false, Held::Schema(_)))));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (more, said) in [
            (json!({"messages": []}), "`messages`: it is empty"),
            (json!({"messages": "hi"}), "`messages`: it is a string"),
            (json!({"messages": [3]}), "message 0"),
            (json!({"messages": [{"role": "bot"}]}), "the role is `bot`"),
            (json!({"n": 2}), "`n`: this server gives one answer"),
            (json!({"functions": []}), "`tools`"),
            (json!({"top_logprobs": 2}), "`logprobs` to be true"),
            (json!({"logprobs": true, "top_logprobs": 21}), "from 0 to 20"),
            (json!({"tools": [{"type": "web_search"}]}), "\"web_search\""),
            (json!({"tools": [{"type": "function", "function": {}}]}), "`name` is missing"),
            (json!({"tool_choice": "required"}), "there are no `tools`"),
            (json!({"tool_choice": "always"}), "wanted \"none\""),
            (json!({"response_format": {"type": "xml"}}), "wanted text"),
            (json!({"response_format": {"type": "json_schema"}}), "schema`: it is missing"),
            (json!({"stream_options": {"include_usage": 1}}), "`stream_options.include_usage`"),
        ] {
            let error = asked(more).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }
}
