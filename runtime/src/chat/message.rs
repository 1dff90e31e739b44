//! What a conversation is made of: messages with their parts, reasoning and tool calls, and their JSON.
//!
//! The JSON is the one that OpenAI's chat interface made common and that `apply_chat_template` takes:
//! `{"role": "user", "content": "..."}`, where the content may be a list of `{"type": "text", "text": "..."}` and
//! `{"type": "image", ...}` parts.

use serde_json::{Map, Value, json};

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Instructions, at the beginning.
    System,
    /// The person, or the program, that asks.
    User,
    /// The model.
    Assistant,
    /// What a tool gave back.
    Tool,
}

impl Role {
    /// As templates and JSON write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }

    /// The role of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Role> {
        [Self::System, Self::User, Self::Assistant, Self::Tool].into_iter().find(|role| role.name() == name)
    }
}

/// A piece of a message's content; pieces keep their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Text.
    Text(String),
    /// A picture.
    Image {
        /// Where it came from (a path, a `data:` URL), if that is known. Nothing here reads it.
        source: Option<String>,
    },
}

/// A function that the model wants called.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolCall {
    /// A name for the call, by which its result refers to it.
    pub id: Option<String>,
    /// The function.
    pub name: String,
    /// Its arguments, in the order in which they were given.
    pub arguments: Map<String, Value>,
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said.
    pub content: Vec<Part>,
    /// What the model thought before it spoke. `None` leaves it to the template to look for a `<think>` block in the
    /// content; `Some("")` says that there was none.
    pub reasoning: Option<String>,
    /// Functions that the model called after what it said.
    pub tool_calls: Vec<ToolCall>,
    /// For [`Role::Tool`]: which call this answers.
    pub tool_call_id: Option<String>,
    /// For [`Role::Tool`]: the function's name.
    pub name: Option<String>,
}

/// Why a message's JSON was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// A value of another kind than wanted.
    #[error("message {index}: `{field}` is {found}, wanted {wanted}")]
    Kind {
        /// Which message of the conversation, from 0.
        index: usize,
        /// The field's path.
        field: String,
        /// The kind of JSON value that was found.
        found: &'static str,
        /// What would have been right.
        wanted: &'static str,
    },
    /// A role that no template knows.
    #[error("message {index}: the role is `{role}`, wanted system, user, assistant or tool")]
    Role {
        /// Which message of the conversation, from 0.
        index: usize,
        /// What was written.
        role: String,
    },
    /// A part of a sort that the model has no input for.
    #[error("message {index}: content part {part} is of type `{kind}`, wanted text or image")]
    Part {
        /// Which message of the conversation, from 0.
        index: usize,
        /// Which part of it, from 0.
        part: usize,
        /// The part's type.
        kind: String,
    },
    /// Arguments of a call that are a string, but not one of a JSON object.
    #[error("message {index}: the arguments of tool call {call} are a string, but not of a JSON object: {what}")]
    Arguments {
        /// Which message of the conversation, from 0.
        index: usize,
        /// Which call of it, from 0.
        call: usize,
        /// What the parser said.
        what: String,
    },
    /// The conversation is no JSON at all.
    #[error("the conversation is not JSON: {0}")]
    Json(String),
}

impl Message {
    /// A message of one text.
    #[must_use]
    pub fn text(role: Role, text: impl Into<String>) -> Message {
        let content = vec![Part::Text(text.into())];
        Message { role, content, reasoning: None, tool_calls: Vec::new(), tool_call_id: None, name: None }
    }

    /// Instructions.
    #[must_use]
    pub fn system(text: impl Into<String>) -> Message {
        Message::text(Role::System, text)
    }

    /// A question.
    #[must_use]
    pub fn user(text: impl Into<String>) -> Message {
        Message::text(Role::User, text)
    }

    /// An answer, with what was thought before it.
    #[must_use]
    pub fn assistant(reasoning: Option<String>, text: impl Into<String>) -> Message {
        Message { reasoning, ..Message::text(Role::Assistant, text) }
    }

    /// What a tool gave back.
    #[must_use]
    pub fn tool(name: Option<String>, text: impl Into<String>) -> Message {
        Message { name, ..Message::text(Role::Tool, text) }
    }

    /// A question of several parts.
    #[must_use]
    pub fn parts(role: Role, content: Vec<Part>) -> Message {
        Message { content, ..Message::text(role, "") }
    }

    /// Pictures in it.
    #[must_use]
    pub fn images(&self) -> usize {
        self.content.iter().filter(|part| matches!(part, Part::Image { .. })).count()
    }

    /// All its texts in one.
    #[must_use]
    pub fn all_text(&self) -> String {
        let texts = self.content.iter().filter_map(|part| match part {
            Part::Text(text) => Some(text.as_str()),
            Part::Image { .. } => None,
        });
        texts.collect()
    }

    /// Reads a conversation: an array of messages, or an object that has one under `messages`.
    ///
    /// # Errors
    /// JSON that is not such a conversation; the message names the place.
    pub fn conversation(json: &str) -> Result<Vec<Message>, MessageError> {
        let value: Value = serde_json::from_str(json).map_err(|e| MessageError::Json(e.to_string()))?;
        let list = if value.is_object() { &value["messages"] } else { &value };
        let list = list.as_array().ok_or_else(|| kind(0, "messages", list, "an array of messages"))?;
        list.iter().enumerate().map(|(index, value)| Message::from_json(index, value)).collect()
    }

    /// Reads one message; `index` is for what is said about errors.
    ///
    /// # Errors
    /// JSON that is no message; the error names the field.
    pub fn from_json(index: usize, value: &Value) -> Result<Message, MessageError> {
        let object = value.as_object().ok_or_else(|| kind(index, "message", value, "an object"))?;
        let get = |name: &str| object.get(name).unwrap_or(&Value::Null);
        let role = get("role").as_str().ok_or_else(|| kind(index, "role", get("role"), "a string"))?;
        let role = Role::from_name(role).ok_or_else(|| MessageError::Role { index, role: role.into() })?;
        let mut message = Message { content: content(index, get("content"))?, ..Message::text(role, "") };
        // The names under which others keep it; the first is the one that templates read.
        for field in ["reasoning_content", "thinking", "reasoning"] {
            if message.reasoning.is_none() {
                message.reasoning = string(index, field, get(field))?;
            }
        }
        message.tool_call_id = string(index, "tool_call_id", get("tool_call_id"))?;
        message.name = string(index, "name", get("name"))?;
        match get("tool_calls") {
            Value::Null => {}
            Value::Array(calls) => {
                for (call, value) in calls.iter().enumerate() {
                    message.tool_calls.push(tool_call(index, call, value)?);
                }
            }
            other => return Err(kind(index, "tool_calls", other, "an array")),
        }
        Ok(message)
    }

    /// The message as JSON: what [`Message::from_json`] reads, and what a template is given.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut out = Map::new();
        out.insert("role".into(), self.role.name().into());
        let content = match &self.content[..] {
            [] => Value::from(""),
            [Part::Text(text)] => text.as_str().into(),
            parts => parts.iter().map(part_json).collect(),
        };
        out.insert("content".into(), content);
        if let Some(reasoning) = &self.reasoning {
            out.insert("reasoning_content".into(), reasoning.as_str().into());
        }
        if !self.tool_calls.is_empty() {
            out.insert("tool_calls".into(), self.tool_calls.iter().map(ToolCall::to_json).collect());
        }
        for (field, value) in [("tool_call_id", &self.tool_call_id), ("name", &self.name)] {
            if let Some(value) = value {
                out.insert(field.into(), value.as_str().into());
            }
        }
        Value::Object(out)
    }
}

impl ToolCall {
    /// The call as JSON, its arguments an object.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut out = Map::new();
        if let Some(id) = &self.id {
            out.insert("id".into(), id.as_str().into());
        }
        out.insert("type".into(), "function".into());
        out.insert("function".into(), json!({"name": self.name, "arguments": self.arguments}));
        Value::Object(out)
    }
}

fn part_json(part: &Part) -> Value {
    match part {
        Part::Text(text) => json!({"type": "text", "text": text}),
        Part::Image { source: None } => json!({"type": "image"}),
        Part::Image { source: Some(source) } => json!({"type": "image", "image": source}),
    }
}

fn content(index: usize, value: &Value) -> Result<Vec<Part>, MessageError> {
    let parts = match value {
        Value::Null => return Ok(Vec::new()),
        Value::String(text) => return Ok(vec![Part::Text(text.clone())]),
        Value::Array(parts) => parts,
        other => return Err(kind(index, "content", other, "a string or an array of parts")),
    };
    let mut out = Vec::with_capacity(parts.len());
    for (at, part) in parts.iter().enumerate() {
        let sort = part["type"].as_str().unwrap_or_default();
        let images = ["image", "image_url"].iter().map(|name| &part[*name]).find(|value| !value.is_null());
        out.push(match (sort, images, part["text"].as_str()) {
            ("image" | "image_url", ..) | ("", Some(_), _) => {
                let source = images.and_then(|image| image.as_str().or_else(|| image["url"].as_str()));
                Part::Image { source: source.map(str::to_owned) }
            }
            ("text" | "", None, Some(text)) => Part::Text(text.to_owned()),
            ("text", ..) => {
                return Err(kind(index, &format!("content[{at}].text"), &part["text"], "a string"));
            }
            (sort, ..) => return Err(MessageError::Part { index, part: at, kind: sort.to_owned() }),
        });
    }
    Ok(out)
}

fn tool_call(index: usize, call: usize, value: &Value) -> Result<ToolCall, MessageError> {
    let function = if value["function"].is_null() { value } else { &value["function"] };
    let field = |name: &str| format!("tool_calls[{call}].{name}");
    let name = function["name"].as_str().ok_or_else(|| kind(index, &field("name"), &function["name"], "a string"))?;
    let arguments = match &function["arguments"] {
        Value::Null => Map::new(),
        Value::Object(object) => object.clone(),
        // Clients of OpenAI's interface send the object's text.
        Value::String(text) => {
            serde_json::from_str(text).map_err(|e| MessageError::Arguments { index, call, what: e.to_string() })?
        }
        other => return Err(kind(index, &field("arguments"), other, "an object")),
    };
    Ok(ToolCall { id: string(index, &field("id"), &value["id"])?, name: name.to_owned(), arguments })
}

fn string(index: usize, field: &str, value: &Value) -> Result<Option<String>, MessageError> {
    match value {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text.clone())),
        other => Err(kind(index, field, other, "a string")),
    }
}

fn kind(index: usize, field: &str, value: &Value, wanted: &'static str) -> MessageError {
    MessageError::Kind { index, field: field.to_owned(), found: kind_name(value), wanted }
}

/// What sort of JSON value this is, in words.
pub fn kind_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "missing or null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_goes_in_and_comes_out() {
        let text = r#"[
            {"role":"system","content":"Be brief."},
            {"role":"user","content":[{"type":"text","text":"a"},{"type":"image","image":"x.png"},{"type":"image"}]},
            {"role":"assistant","content":"","reasoning_content":"r","tool_calls":[{"id":"1","type":"function",
              "function":{"name":"f","arguments":{"z":1,"a":[true,null]}}}]},
            {"role":"tool","content":"42","tool_call_id":"1","name":"f"}]"#;
        let messages = Message::conversation(text).unwrap();
        assert_eq!(messages[1].images(), 2);
        assert_eq!(messages[2].tool_calls[0].arguments.keys().collect::<Vec<_>>(), ["z", "a"], "in their order");
        let back: Value = messages.iter().map(Message::to_json).collect();
        assert_eq!(back, serde_json::from_str::<Value>(text).unwrap());
        assert_eq!(Message::conversation(&json!({"messages": back}).to_string()).unwrap(), messages);
    }

    /// OpenAI's clients send arguments as a string and pictures as URLs, and call the reasoning by several names.
    #[test]
    fn other_clients_spellings_are_read() {
        let text = r#"[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:,x"}},{"text":"t"}]},
            {"role":"assistant","content":null,"thinking":"r","tool_calls":[{"function":{"name":"f","arguments":"{\"b\":1}"}}]}]"#;
        let messages = Message::conversation(text).unwrap();
        assert_eq!(messages[0].content[0], Part::Image { source: Some("data:,x".into()) });
        assert_eq!(messages[0].all_text(), "t");
        assert_eq!(messages[1].reasoning.as_deref(), Some("r"));
        assert!(messages[1].content.is_empty());
        assert_eq!(messages[1].tool_calls[0].arguments["b"], 1);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (json, said) in [
            ("{", "not JSON"),
            ("3", "`messages` is a number, wanted an array"),
            (r#"[{"content":""}]"#, "message 0: `role` is missing"),
            (r#"[{"role":"user"},{"role":"bot"}]"#, "message 1: the role is `bot`, wanted system, user"),
            (r#"[{"role":"user","content":7}]"#, "`content` is a number"),
            (r#"[{"role":"user","content":[{"type":"video","video":"v"}]}]"#, "part 0 is of type `video`"),
            (r#"[{"role":"user","content":[{"type":"text"}]}]"#, "`content[0].text` is missing"),
            (r#"[{"role":"assistant","reasoning_content":1}]"#, "`reasoning_content` is a number"),
            (r#"[{"role":"assistant","tool_calls":{}}]"#, "`tool_calls` is an object"),
            (r#"[{"role":"assistant","tool_calls":[{}]}]"#, "`tool_calls[0].name` is missing"),
            (r#"[{"role":"assistant","tool_calls":[{"name":"f","arguments":"[1]"}]}]"#, "tool call 0 are a string"),
            (r#"[{"role":"assistant","tool_calls":[{"name":"f","arguments":[1]}]}]"#, "arguments` is an array"),
        ] {
            let error = Message::conversation(json).unwrap_err().to_string();
            assert!(error.contains(said), "{json}: {error}");
        }
    }
}
