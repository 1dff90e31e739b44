//! Functions that a model may call: their definitions, the calls in its answer, and their results.
//!
//! Qwen3.5 writes a call as
//! `<tool_call>\n<function=NAME>\n<parameter=NAME>\nVALUE\n</parameter>\n</function>\n</tool_call>`, a value as it is
//! where it is a text and as JSON otherwise; which of the two only the function's definition can say. The parser reads
//! the text of an answer: what a model wrote while it was thinking is no call and does not come here.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::message::{Message, ToolCall, kind_name};
use super::schema::{self, Mismatch};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
/// Schemas in schemas that are looked up.
const INLINED: usize = 200;

/// Why a definition or a call was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ToolError {
    /// Definitions that are none.
    #[error("tool definition {index}: {what}")]
    Definition {
        /// Which one, from 0.
        index: usize,
        /// What is wrong with it.
        what: String,
    },
    /// The definitions are no JSON array.
    #[error("the tool definitions are not a JSON array: {0}")]
    Json(String),
    /// A call of a function that nobody defined.
    #[error("there is no function `{name}`; there are: {known}")]
    Function {
        /// The name that was called.
        name: String,
        /// The names that there are.
        known: String,
    },
    /// A parameter that is required is not there.
    #[error("{function}: the parameter `{parameter}` is missing")]
    Missing {
        /// The function.
        function: String,
        /// The parameter.
        parameter: String,
    },
    /// A parameter that the function does not have.
    #[error("{function}: there is no parameter `{parameter}`; there are: {known}")]
    Parameter {
        /// The function.
        function: String,
        /// The parameter.
        parameter: String,
        /// The names that there are.
        known: String,
    },
    /// A parameter that is there twice.
    #[error("{function}: the parameter `{parameter}` is there twice")]
    Twice {
        /// The function.
        function: String,
        /// The parameter.
        parameter: String,
    },
    /// A value that is not what the definition wants.
    #[error("{function}: the parameter `{place}` is {found}, wanted {wanted}")]
    Value {
        /// The function.
        function: String,
        /// The parameter, and the place in it.
        place: String,
        /// What was written.
        found: String,
        /// What the schema wants.
        wanted: String,
    },
    /// A call that does not have the form of one.
    #[error("not a tool call: {what}")]
    Form {
        /// What is wrong with it.
        what: String,
    },
    /// The answer ended inside of a call.
    #[error("the answer ended inside of a tool call")]
    Truncated,
}

/// One function.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub description: String,
    /// The JSON Schema of its parameters, an object's.
    pub parameters: Map<String, Value>,
}

/// The functions of a conversation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tools {
    tools: Vec<Tool>,
    values: Vec<Value>,
}

impl Tools {
    /// Reads definitions: an array of `{"type": "function", "function": {"name", "description", "parameters"}}` or of
    /// the inner objects alone.
    ///
    /// # Errors
    /// Definitions that cannot be used; the message names the place.
    pub fn from_json(json: &str) -> Result<Tools, ToolError> {
        let value: Value = serde_json::from_str(json).map_err(|e| ToolError::Json(e.to_string()))?;
        let Value::Array(values) = value else { return Err(ToolError::Json(format!("it is {}", kind_name(&value)))) };
        Tools::new(values)
    }

    /// From definitions as JSON values; see [`Tools::from_json`].
    ///
    /// # Errors
    /// Definitions that cannot be used; the message names the place.
    pub fn new(values: Vec<Value>) -> Result<Tools, ToolError> {
        let mut tools: Vec<Tool> = Vec::with_capacity(values.len());
        for (index, value) in values.iter().enumerate() {
            let tool = Tool::from_json(value).map_err(|what| ToolError::Definition { index, what })?;
            if tools.iter().any(|other| other.name == tool.name) {
                return Err(ToolError::Definition { index, what: format!("`{}` is defined twice", tool.name) });
            }
            tools.push(tool);
        }
        Ok(Tools { tools, values })
    }

    /// The functions.
    #[must_use]
    pub fn tools(&self) -> &[Tool] {
        &self.tools
    }

    /// The definitions as they were given, for the template.
    #[must_use]
    pub fn values(&self) -> &[Value] {
        &self.values
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tools.is_empty()
    }

    /// A call's arguments, read as the function's definition wants them.
    fn typed(&self, raw: RawCall<'_>) -> Result<ToolCall, ToolError> {
        let function = raw.name.into_owned();
        let Some(tool) = self.tools.iter().find(|tool| tool.name == function) else {
            let known = self.tools.iter().map(|tool| tool.name.as_str()).collect::<Vec<_>>().join(", ");
            let known = if known.is_empty() { "none".to_owned() } else { known };
            return Err(ToolError::Function { name: function, known });
        };
        let mut arguments = Map::new();
        for (name, written) in raw.parameters {
            let parameter = name.into_owned();
            let schema = tool.parameter(&parameter).ok_or_else(|| {
                let known = tool.properties().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
                ToolError::Parameter { function: function.clone(), parameter: parameter.clone(), known }
            })?;
            let value = match written {
                Written::Text(text) => schema::read(text, &schema),
                Written::Json(value) => schema::validate(&value, &schema).map(|()| value),
            };
            let value = value.map_err(|Mismatch { path, wanted, found }| ToolError::Value {
                function: function.clone(),
                place: format!("{parameter}{path}"),
                found,
                wanted,
            })?;
            if arguments.insert(parameter.clone(), value).is_some() {
                return Err(ToolError::Twice { function, parameter });
            }
        }
        match schema::required(&tool.parameters).find(|name| !arguments.contains_key(*name)) {
            Some(name) => Err(ToolError::Missing { function, parameter: name.to_owned() }),
            None => Ok(ToolCall { id: None, name: function, arguments }),
        }
    }
}

impl Tool {
    fn from_json(value: &Value) -> Result<Tool, String> {
        let value = if value["function"].is_null() { value } else { &value["function"] };
        let name = value["name"].as_str().ok_or("`name` is missing")?;
        if name.is_empty() || name.contains(|c: char| c == '>' || c == '<' || c.is_whitespace()) {
            return Err(format!("the name is `{name}`, wanted a word without <, > and spaces"));
        }
        let parameters = match &value["parameters"] {
            Value::Null => Map::new(),
            Value::Object(schema) => schema.clone(),
            other => return Err(format!("`parameters` is {}, wanted an object", kind_name(other))),
        };
        let kinds = schema::kinds(&parameters);
        if !(kinds.is_empty() || kinds == ["object"]) {
            return Err(format!("`parameters` has the type {}, wanted object", kinds.join(" or ")));
        }
        schema::check(&value["parameters"]).or_else(|what| if parameters.is_empty() { Ok(()) } else { Err(what) })?;
        let tool = Tool {
            name: name.to_owned(),
            description: value["description"].as_str().unwrap_or_default().to_owned(),
            parameters,
        };
        if let Some((name, _)) = tool.properties().find(|(name, _)| name.is_empty() || name.contains(['>', '\n'])) {
            return Err(format!("a parameter is called `{name}`, which cannot be written in a call"));
        }
        Ok(tool)
    }

    /// Its parameters, with their schemas.
    pub(super) fn properties(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.parameters.get("properties").and_then(Value::as_object).into_iter().flatten()
    }

    /// Those that are named as required and nowhere else, too. Schemas that they refer to are in place.
    pub(super) fn all_parameters(&self) -> Vec<(String, Value)> {
        let listed: Vec<&String> = self.properties().map(|(name, _)| name).collect();
        let mut names: Vec<String> = listed.iter().map(|name| (*name).clone()).collect();
        for name in schema::required(&self.parameters) {
            if !names.iter().any(|other| other == name) {
                names.push(name.to_owned());
            }
        }
        let schema = |name: &str| self.parameter(name).unwrap_or(Value::Bool(false));
        names.into_iter().map(|name| (name.clone(), schema(&name))).collect()
    }

    /// The schema of a parameter, if there may be one of this name.
    fn parameter(&self, name: &str) -> Option<Value> {
        let found = self.properties().find(|(property, _)| *property == name).map(|(_, schema)| schema);
        let more = || self.parameters.get("additionalProperties").filter(|more| **more != Value::Bool(false));
        // What is required may be, whatever it is.
        let required = || schema::required(&self.parameters).any(|required| required == name);
        let open = !self.parameters.contains_key("additionalProperties");
        let found = found.or_else(more).or_else(|| (open && required()).then_some(&Value::Bool(true)))?;
        Some(schema::inline(found, &Value::Object(self.parameters.clone()), &mut { INLINED }))
    }
}

/// What an answer has.
#[derive(Clone, Debug, PartialEq)]
pub enum ToolEvent {
    /// Text that is no call.
    Text(String),
    /// A call that fits its definition.
    Call(ToolCall),
    /// Something that was meant to be a call.
    Refused {
        /// What was written, without the tags around it.
        text: String,
        /// Why it is none.
        error: ToolError,
    },
}

/// Takes the calls out of an answer as it comes.
///
/// The white space between text and calls is the format's and is dropped. How the answer is cut into pieces changes
/// nothing but how the text is.
#[derive(Clone, Debug)]
pub struct ToolParser<'a> {
    tools: &'a Tools,
    held: String,
    inside: bool,
    called: bool,
    /// The answer is over: what was left away will not come any more.
    over: bool,
}

impl<'a> ToolParser<'a> {
    /// A parser for one answer.
    #[must_use]
    pub fn new(tools: &'a Tools) -> ToolParser<'a> {
        ToolParser { tools, held: String::new(), inside: false, called: false, over: false }
    }

    /// Whether the answer is inside of a call.
    #[must_use]
    pub fn is_inside(&self) -> bool {
        self.inside
    }

    /// Takes a piece of the answer.
    pub fn push(&mut self, text: &str, emit: &mut dyn FnMut(ToolEvent)) {
        // A call can only end where a tag does.
        let look = !self.inside || text.contains('>');
        self.held.push_str(text);
        while look && self.step(emit) {}
    }

    /// The answer is over.
    pub fn finish(&mut self, emit: &mut dyn FnMut(ToolEvent)) {
        self.over = true;
        while self.step(emit) {}
        let held = std::mem::take(&mut self.held);
        if self.inside {
            self.inside = false;
            emit(ToolEvent::Refused { text: held.trim().to_owned(), error: ToolError::Truncated });
        } else {
            self.text(&held, emit);
        }
    }

    fn text(&mut self, text: &str, emit: &mut dyn FnMut(ToolEvent)) {
        // Between and behind calls there are line ends.
        let text = if self.called { text.trim_start() } else { text };
        if !text.is_empty() {
            self.called = false;
            emit(ToolEvent::Text(text.to_owned()));
        }
    }

    fn step(&mut self, emit: &mut dyn FnMut(ToolEvent)) -> bool {
        if self.inside {
            let Some((end, calls)) = self.complete() else { return false };
            self.inside = false;
            self.called = true;
            match calls {
                Ok(calls) => calls.into_iter().for_each(|call| emit(ToolEvent::Call(call))),
                Err(error) => emit(ToolEvent::Refused { text: self.held[..end].trim().to_owned(), error }),
            }
            self.held.drain(..end + CLOSE.len());
            return true;
        }
        if let Some(at) = self.held.find(OPEN) {
            let before = self.held[..at].trim_end().to_owned();
            self.text(&before, emit);
            self.held.drain(..at + OPEN.len());
            self.inside = true;
            return true;
        }
        let tag = (1..OPEN.len()).rev().find(|&n| self.held.ends_with(&OPEN[..n])).unwrap_or(0);
        let certain = self.held[..self.held.len() - tag].trim_end().len();
        let text: String = self.held.drain(..certain).collect();
        self.text(&text, emit);
        false
    }

    /// Where the block ends, and its calls. None while it may still go on.
    fn complete(&self) -> Option<(usize, Result<Vec<ToolCall>, ToolError>)> {
        for (end, _) in self.held.match_indices(CLOSE) {
            match read_block(&self.held[..end], self.over) {
                Ok(calls) => return Some((end, calls.into_iter().map(|call| self.tools.typed(call)).collect())),
                // The tag stands inside of a value.
                Err(Unread::Open) => {}
                Err(Unread::Form(what)) => return Some((end, Err(ToolError::Form { what }))),
            }
        }
        None
    }
}

/// A call as it is written.
#[derive(Debug)]
struct RawCall<'a> {
    name: Cow<'a, str>,
    parameters: Vec<(Cow<'a, str>, Written<'a>)>,
}

#[derive(Debug)]
enum Written<'a> {
    Text(&'a str),
    Json(Value),
}

enum Unread {
    /// The text ends inside of a parameter.
    Open,
    Form(String),
}

/// Reads what stands between the tags: functions in Qwen3.5's form, or one in JSON, as its predecessors wrote it. Only
/// in an answer that is `over` may the tags that end a function be missing.
fn read_block(text: &str, over: bool) -> Result<Vec<RawCall<'_>>, Unread> {
    let mut rest = text.trim();
    if rest.starts_with('{') {
        return read_json(rest).map(|call| vec![call]);
    }
    let mut calls = Vec::new();
    while !rest.is_empty() {
        let (name, after) = header(rest, "<function=")?;
        let mut call = RawCall { name: name.into(), parameters: Vec::new() };
        rest = after.trim_start();
        loop {
            if let Some(after) = rest.strip_prefix("</function>") {
                rest = after.trim_start();
                break;
            }
            if rest.is_empty() || rest.starts_with("<function=") {
                if over {
                    break;
                }
                return Err(Unread::Open);
            }
            let (parameter, after) = header(rest, "<parameter=")?;
            let (value, after) = value(after, over).ok_or(Unread::Open)?;
            call.parameters.push((parameter.into(), Written::Text(value)));
            rest = after.trim_start();
        }
        calls.push(call);
    }
    if calls.is_empty() { Err(Unread::Form("it is empty".into())) } else { Ok(calls) }
}

/// `<function=NAME>`, or of a parameter.
fn header<'a>(text: &'a str, tag: &str) -> Result<(&'a str, &'a str), Unread> {
    let found = text.strip_prefix(tag).and_then(|rest| rest.split_once('>'));
    let (name, rest) = found.ok_or_else(|| {
        let begins: String = text.chars().take(30).collect();
        Unread::Form(format!("`{tag}...>` is wanted where there is `{begins}`"))
    })?;
    Ok((name.trim().trim_matches('"'), rest))
}

/// A value up to its closing tag: the first one that another parameter or the function's end follows, since a value
/// may have one in it. One line end on either side is the format's.
fn value(text: &str, over: bool) -> Option<(&str, &str)> {
    const END: &str = "</parameter>";
    let end = text.match_indices(END).map(|(at, _)| at).find(|at| {
        let after = text[at + END.len()..].trim_start();
        (over && after.is_empty()) || after.starts_with("<parameter=") || after.starts_with("</function>")
    })?;
    let value = &text[..end];
    let value = value.strip_prefix('\n').unwrap_or(value);
    let value = value.strip_suffix('\n').unwrap_or(value);
    Some((value, &text[end + END.len()..]))
}

fn read_json(text: &str) -> Result<RawCall<'_>, Unread> {
    let mut value: Value = serde_json::from_str(text)
        .map_err(|e| if e.is_eof() { Unread::Open } else { Unread::Form(format!("not JSON: {e}")) })?;
    let arguments = match value["arguments"].take() {
        Value::Null => Map::new(),
        Value::Object(arguments) => arguments,
        other => return Err(Unread::Form(format!("`arguments` is {}, wanted an object", kind_name(&other)))),
    };
    let Value::String(name) = value["name"].take() else { return Err(Unread::Form("`name` is missing".into())) };
    let parameters = arguments.into_iter().map(|(name, value)| (name.into(), Written::Json(value))).collect();
    Ok(RawCall { name: name.into(), parameters })
}

/// The message that tells the model what a call gave, or why it was not made.
#[must_use]
pub fn tool_result(call: &ToolCall, result: Result<&Value, &str>) -> Message {
    let text = match result {
        Ok(Value::String(text)) => text.clone(),
        Ok(value) => super::template::json(value),
        Err(error) => format!("Error: {error}"),
    };
    let mut message = Message::tool(Some(call.name.clone()), text);
    message.tool_call_id.clone_from(&call.id);
    message
}

#[cfg(test)]
mod tests;
