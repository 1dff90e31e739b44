//! How turns are shown: as text, or as JSON for other programs. docs/cli-json.md has the fields.

use crate::error::CliError;
use crate::output::{ProgressLine, answer, note, table};
use runtime::chat::Sampling;
use runtime::{Event, Outcome, Stop};
use serde_json::{Map, Value, json};
use std::io::IsTerminal;

/// Of the JSON; counts up when a field changes its meaning or goes.
const VERSION: u32 = 1;

/// In which form.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Style {
    /// The answer's text on standard output, all else on standard error.
    #[default]
    Text,
    /// One document at the end.
    Json,
    /// An event a line, as it comes.
    Lines,
}

/// Says what comes.
#[derive(Debug)]
pub(crate) struct Voice {
    style: Style,
    progress: ProgressLine,
    /// Whether standard output is a terminal, which control characters would steer.
    terminal: bool,
    /// Whether reasoning is shown, and whether dimmed.
    thinking: Option<bool>,
    /// Whether the line on standard output, and that of the reasoning, is empty.
    fresh: bool,
    thought: bool,
    head: Map<String, Value>,
    turns: Vec<Value>,
    turn: usize,
    pictures: usize,
}

impl Voice {
    /// `thinking`: whether reasoning is to be shown even where nobody watches.
    pub(crate) fn new(style: Style, thinking: bool) -> Self {
        let watched = std::io::stderr().is_terminal();
        Self {
            style,
            progress: ProgressLine::new(),
            terminal: std::io::stdout().is_terminal(),
            thinking: (thinking || watched).then_some(watched),
            fresh: true,
            thought: false,
            head: Map::new(),
            turns: Vec::new(),
            turn: 0,
            pictures: 0,
        }
    }

    /// Where the model runs and how tokens are chosen.
    pub(crate) fn begin(&mut self, device: &str, seconds: f64, sampling: &Sampling) -> Result<(), CliError> {
        let head = json!({
            "version": VERSION, "program": format!("qwen35-direct {}", env!("CARGO_PKG_VERSION")), "device": device,
            "load_seconds": seconds, "seed": if sampling.is_greedy() { Value::Null } else { json!(sampling.seed) },
        });
        self.head = head.as_object().cloned().unwrap_or_default();
        self.line("begin", head)
    }

    /// A question goes out, or is answered again.
    pub(crate) fn turn(&mut self, text: &str, pictures: usize) -> Result<(), CliError> {
        self.turn += 1;
        self.pictures = pictures;
        if self.style == Style::Json {
            self.turns.push(json!({"turn": self.turn, "prompt": text, "pictures": pictures, "answers": []}));
        }
        self.line("turn", json!({"turn": self.turn, "prompt": text, "pictures": pictures}))
    }

    /// What happens meanwhile.
    pub(crate) fn event(&mut self, event: &Event<'_>) -> Result<(), CliError> {
        match event {
            Event::Dropped { messages } => {
                self.progress.clear();
                if self.style != Style::Lines {
                    note(&format_args!("the context is full: the {messages} oldest messages are left out from now on"));
                }
                self.line("dropped", json!({"messages": messages}))
            }
            Event::Tower { done, total } => {
                self.progress.bytes("loading the vision tower", *done, *total);
                Ok(())
            }
            Event::Patches { index, done, total } => {
                let what = format!("looking at picture {}", index + 1);
                self.progress.share(&what, *done as u64, *total as u64);
                Ok(())
            }
            Event::Prompt { done, total } => {
                self.progress.share("reading the prompt", *done as u64, *total as u64);
                Ok(())
            }
            Event::Token { token, logprob, top } => {
                if logprob.is_none() && top.is_empty() {
                    return Ok(());
                }
                self.line("token", logged(*token, *logprob, top))
            }
            Event::Reasoning(text) => {
                self.progress.clear();
                if self.style == Style::Text
                    && let Some(dim) = self.thinking
                {
                    let text = if self.terminal { tame(text) } else { (*text).to_owned() };
                    table(&if dim { format!("\x1b[2m{text}\x1b[0m") } else { text.clone() });
                    self.thought |= !text.is_empty();
                }
                self.line("reasoning", json!({"text": text}))
            }
            Event::Text(text) => {
                self.progress.clear();
                if self.style == Style::Text {
                    self.end_thought();
                    self.fresh = text.ends_with('\n');
                    answer(&if self.terminal { tame(text) } else { (*text).to_owned() })?;
                }
                self.line("text", json!({"text": text}))
            }
            Event::Call(call) => {
                self.progress.clear();
                let arguments = Value::Object(call.arguments.clone());
                if self.style == Style::Text {
                    self.end_line()?;
                    answer(&format!("-> {} {arguments}\n", call.name))?;
                }
                self.line("call", json!({"name": call.name, "arguments": arguments}))
            }
            Event::Refused { text, error } => {
                self.progress.clear();
                if self.style == Style::Text {
                    self.end_line()?;
                    note(&format_args!("the model wrote a call that is none: {error}"));
                }
                self.line("refused", json!({"text": text, "error": error.to_string()}))
            }
            _ => Ok(()),
        }
    }

    /// What a function gave.
    pub(crate) fn result(&mut self, name: &str, text: &str) -> Result<(), CliError> {
        if self.style == Style::Text {
            let text = if self.terminal { tame(text) } else { text.to_owned() };
            answer(&format!("<- {name} {}\n", text.trim_end()))?;
        }
        let result = json!({"name": name, "text": text});
        if let Some(Value::Array(answers)) = self.turns.last_mut().and_then(|turn| turn.get_mut("answers"))
            && let Some(Value::Array(results)) = answers.last_mut().and_then(|answer| answer.get_mut("results"))
        {
            results.push(result.clone());
        }
        self.line("result", result)
    }

    /// An answer has ended, in so many seconds. `spell` gives a token's text.
    pub(crate) fn end(
        &mut self,
        outcome: &Outcome,
        stops: &[String],
        seconds: f64,
        spell: &dyn Fn(u32) -> String,
    ) -> Result<(), CliError> {
        self.progress.clear();
        match self.style {
            Style::Text => self.end_line(),
            Style::Lines => self.line("end", summary(outcome, stops, seconds)),
            Style::Json => {
                let mut said = json!({
                    "reasoning": outcome.reasoning, "text": outcome.text,
                    "calls": outcome.calls.iter().map(|c| json!({"name": c.name, "arguments": c.arguments})).collect::<Vec<_>>(),
                    "results": [],
                    "refused": outcome.refused.iter().map(|(text, e)| json!({"text": text, "error": e.to_string()})).collect::<Vec<_>>(),
                });
                if let (Value::Object(said), Value::Object(end)) = (&mut said, summary(outcome, stops, seconds)) {
                    if !outcome.logprobs.is_empty() {
                        let tokens = outcome.logprobs.iter().map(|t| {
                            let mut token = logged(t.token, t.logprob, &t.top);
                            token["text"] = json!(spell(t.token));
                            token
                        });
                        said.insert("logprobs".into(), tokens.collect());
                    }
                    said.extend(end);
                }
                if let Some(Value::Array(answers)) = self.turns.last_mut().and_then(|turn| turn.get_mut("answers")) {
                    answers.push(said);
                }
                Ok(())
            }
        }
    }

    /// A turn has failed.
    pub(crate) fn failed(&mut self, error: &CliError) -> Result<(), CliError> {
        self.progress.clear();
        if self.style == Style::Text {
            self.end_line()?;
        }
        let message = crate::error::one_line(error);
        if self.style == Style::Json {
            let open =
                |turn: &&mut Value| turn["answers"].as_array().is_some_and(Vec::is_empty) && turn["error"].is_null();
            match self.turns.last_mut().filter(open) {
                Some(turn) => turn["error"] = json!(message),
                // What was wrong before anything was asked.
                None => self.turns.push(json!({"error": message})),
            }
        }
        self.line("error", json!({"message": message}))
    }

    /// Nothing more comes.
    pub(crate) fn finish(&mut self) -> Result<(), CliError> {
        self.progress.clear();
        if self.style != Style::Json {
            return Ok(());
        }
        let mut document = std::mem::take(&mut self.head);
        if document.is_empty() {
            document.insert("version".into(), json!(VERSION));
        }
        document.insert("turns".into(), Value::Array(std::mem::take(&mut self.turns)));
        answer(&format!("{:#}\n", Value::Object(document)))
    }

    /// A line for people, which other programs do not get.
    pub(crate) fn say(&mut self, text: &str) {
        self.progress.clear();
        if self.style == Style::Text {
            table(&format!("{}\n", text.trim_end()));
        }
    }

    fn end_thought(&mut self) {
        if std::mem::take(&mut self.thought) {
            table("\n");
        }
    }

    fn end_line(&mut self) -> Result<(), CliError> {
        self.end_thought();
        if std::mem::replace(&mut self.fresh, true) { Ok(()) } else { answer("\n") }
    }

    fn line(&self, event: &str, fields: Value) -> Result<(), CliError> {
        if self.style != Style::Lines {
            return Ok(());
        }
        let mut line = Map::new();
        line.insert("event".into(), json!(event));
        line.extend(fields.as_object().cloned().unwrap_or_default());
        answer(&format!("{}\n", Value::Object(line)))
    }
}

/// Why and how an answer ended, what it took.
fn summary(outcome: &Outcome, stops: &[String], seconds: f64) -> Value {
    let stop_string = match outcome.stop {
        Stop::String(index) => stops.get(index).map_or(Value::Null, |stop| json!(stop)),
        _ => Value::Null,
    };
    let timing = &outcome.timing;
    json!({
        "finish_reason": outcome.finish_reason(),
        "why": why(outcome),
        "stop_string": stop_string,
        "usage": {
            "prompt_tokens": outcome.prompt_tokens, "reused_tokens": outcome.reused_tokens,
            "image_tokens": outcome.image_tokens, "answer_tokens": outcome.tokens.len(),
            "dropped_messages": outcome.dropped,
        },
        "seconds": {
            "pictures": timing.vision.as_secs_f64(), "prompt": timing.prefill.as_secs_f64(),
            "answer": timing.decode.as_secs_f64(), "all": seconds,
        },
    })
}

/// Why an answer ended where the model did not end it.
pub(crate) fn why(outcome: &Outcome) -> Option<String> {
    Some(match outcome.stop {
        Stop::Budget => format!("the answer was cut at {} tokens (--max-new)", outcome.tokens.len()),
        Stop::Context => format!(
            "the answer was cut: the context is full with {} tokens of prompt and {} of answer (--max-ctx)",
            outcome.prompt_tokens,
            outcome.tokens.len()
        ),
        Stop::Circle(circle) => format!("the answer was ended: {circle}"),
        Stop::Cancelled => "the answer was stopped".into(),
        _ => return None,
    })
}

fn logged(token: u32, logprob: Option<f32>, top: &[(u32, f32)]) -> Value {
    let top: Vec<Value> = top.iter().map(|(token, logprob)| json!({"token": token, "logprob": logprob})).collect();
    json!({"token": token, "logprob": logprob, "top": top})
}

/// Without what would steer a terminal.
fn tame(text: &str) -> String {
    text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_does_not_steer_the_terminal() {
        assert_eq!(tame("a\x1b[2Jb\r\n\tc\u{9b}1m\u{7f}"), "a[2Jb\n\tc1m");
    }

    #[test]
    fn a_summary_says_how_it_ended() {
        let mut outcome = Outcome::default();
        (outcome.stop, outcome.answered) = (Stop::String(1), true);
        let found = summary(&outcome, &["x".into(), "y".into()], 2.0);
        assert_eq!(
            (&found["finish_reason"], &found["stop_string"], &found["why"]),
            (&json!("stop"), &json!("y"), &Value::Null)
        );
        outcome.stop = Stop::Context;
        assert!(summary(&outcome, &[], 0.0)["why"].as_str().is_some_and(|why| why.contains("--max-ctx")));
    }
}
