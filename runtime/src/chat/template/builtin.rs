//! Qwen3.5's prompt format without a template file: what the published `chat_template.jinja` renders.

use serde_json::Value;

use super::python::{Layout, dumps, is_space, text};
use super::{IMAGE_PAD, Request, TemplateError, VISION_END, VISION_START};
use crate::chat::message::{Message, Part, Role, ToolCall};

/// How the model is told to write calls.
const HOW_TO_CALL: &str = "\n\nIf you choose to call a function ONLY reply in the following format with NO suffix:\n\n\
    <tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n</parameter>\n\
    <parameter=example_parameter_2>\nThis is the value for the second parameter\nthat can span\nmultiple lines\n\
    </parameter>\n</function>\n</tool_call>\n\n<IMPORTANT>\nReminder:\n\
    - Function calls MUST follow the specified format: an inner <function=...></function> block must be nested within \
    <tool_call></tool_call> XML tags\n\
    - Required parameters MUST be specified\n\
    - You may provide optional reasoning for your function call in natural language BEFORE the function call, but NOT \
    after\n\
    - If there is no function call available, answer the question like normal with your current knowledge and do not \
    tell the user about function calls\n</IMPORTANT>";

/// Renders a conversation.
pub(super) fn render(request: &Request<'_>) -> Result<String, TemplateError> {
    let messages = request.messages;
    let first = messages.first().ok_or(TemplateError::Empty)?;
    let mut out = String::new();
    let system = match first.role {
        Role::System if first.images() > 0 => return Err(refused("System message cannot contain images.")),
        Role::System => Some(trimmed(first)),
        _ => None,
    };
    if request.tools.is_empty() {
        if let Some(system) = &system {
            out.extend(["<|im_start|>system\n", system, "<|im_end|>\n"]);
        }
    } else {
        out.push_str("<|im_start|>system\n# Tools\n\nYou have access to the following functions:\n\n<tools>");
        for tool in request.tools {
            out.extend(["\n", &dumps(tool, &Layout::default())]);
        }
        out.extend(["\n</tools>", HOW_TO_CALL]);
        if let Some(system) = system.filter(|text| !text.is_empty()) {
            out.extend(["\n\n", &system]);
        }
        out.push_str("<|im_end|>\n");
    }
    // Reasoning is kept behind the last question only. A user's message that is a tool's response is no question.
    let asked = |message: &Message| {
        let content = trimmed(message);
        message.role == Role::User && !(content.starts_with("<tool_response>") && content.ends_with("</tool_response>"))
    };
    let last = messages.iter().rposition(asked).ok_or_else(|| refused("No user query found in messages."))?;
    for (at, message) in messages.iter().enumerate() {
        match message.role {
            Role::System if at > 0 => return Err(refused("System message must be at the beginning.")),
            Role::System => {}
            Role::User => out.extend(["<|im_start|>user\n", &trimmed(message), "<|im_end|>\n"]),
            Role::Assistant => assistant(&mut out, message, at > last),
            Role::Tool => {
                if at > 0 && messages[at - 1].role != Role::Tool {
                    out.push_str("<|im_start|>user");
                }
                out.extend(["\n<tool_response>\n", &trimmed(message), "\n</tool_response>"]);
                if messages.get(at + 1).is_none_or(|next| next.role != Role::Tool) {
                    out.push_str("<|im_end|>\n");
                }
            }
        }
    }
    if request.add_generation_prompt {
        out.push_str("<|im_start|>assistant\n<think>\n");
        if !request.thinking {
            out.push_str("\n</think>\n\n");
        }
    }
    Ok(out)
}

fn assistant(out: &mut String, message: &Message, keep_reasoning: bool) {
    let whole = trimmed(message);
    let (reasoning, content) = match &message.reasoning {
        Some(reasoning) => (reasoning.as_str(), whole.as_str()),
        None => split(&whole),
    };
    out.push_str("<|im_start|>assistant\n");
    if keep_reasoning {
        out.extend(["<think>\n", reasoning.trim_matches(is_space), "\n</think>\n\n"]);
    }
    out.push_str(content);
    for (i, call) in message.tool_calls.iter().enumerate() {
        out.push_str(match i {
            0 if content.trim_matches(is_space).is_empty() => "",
            0 => "\n\n",
            _ => "\n",
        });
        write_call(out, call);
    }
    out.push_str("<|im_end|>\n");
}

fn write_call(out: &mut String, call: &ToolCall) {
    out.extend(["<tool_call>\n<function=", &call.name, ">\n"]);
    for (name, value) in &call.arguments {
        let value = match value {
            Value::Array(_) | Value::Object(_) => dumps(value, &Layout::default()),
            other => text(other),
        };
        out.extend(["<parameter=", name, ">\n", &value, "\n</parameter>\n"]);
    }
    out.push_str("</function>\n</tool_call>");
}

/// Reasoning and answer of a text that has both: what stands between the last `<think>` before the first `</think>`
/// and it, and what comes after the last `</think>`.
pub(super) fn split(whole: &str) -> (&str, &str) {
    let (Some((head, _)), Some((_, tail))) = (whole.split_once("</think>"), whole.rsplit_once("</think>")) else {
        return ("", whole);
    };
    let head = head.trim_end_matches('\n');
    let reasoning = head.rsplit_once("<think>").map_or(head, |(_, reasoning)| reasoning);
    (reasoning.trim_start_matches('\n'), tail.trim_start_matches('\n'))
}

fn trimmed(message: &Message) -> String {
    let mut out = String::new();
    for part in &message.content {
        match part {
            Part::Text(text) => out.push_str(text),
            Part::Image { .. } => out.extend([VISION_START, IMAGE_PAD, VISION_END]),
        }
    }
    out.trim_matches(is_space).to_owned()
}

fn refused(what: &str) -> TemplateError {
    TemplateError::Refused { what: what.to_owned() }
}
