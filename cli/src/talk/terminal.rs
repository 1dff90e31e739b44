//! Lines from a person at a terminal: edited, with a history, several in one where the person wants them.

use super::dialogue::{Dialogue, Next};
use super::line::ORDERS;
use crate::error::CliError;
use rustyline::completion::{Completer, FilenameCompleter, Pair};
use rustyline::error::ReadlineError;
use rustyline::history::DefaultHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Cmd, Context, Editor, Event, Helper, KeyCode, KeyEvent, Modifiers};

/// What the editor knows of our lines.
struct Lines {
    files: FilenameCompleter,
}

impl Helper for Lines {}
impl rustyline::hint::Hinter for Lines {
    type Hint = String;
}
impl rustyline::highlight::Highlighter for Lines {}

impl Validator for Lines {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(if context.input().ends_with('\\') { ValidationResult::Incomplete } else { ValidationResult::Valid(None) })
    }
}

impl Completer for Lines {
    type Candidate = Pair;

    fn complete(&self, line: &str, at: usize, context: &Context<'_>) -> rustyline::Result<(usize, Vec<Pair>)> {
        let before = &line[..at];
        match before.strip_prefix('/') {
            Some(name) if !name.contains(' ') => Ok((0, orders(name))),
            Some(_) if ORDERS.iter().any(|(name, takes, _)| *takes == "FILE" && before[1..].starts_with(name)) => {
                self.files.complete(line, at, context)
            }
            _ => Ok((at, Vec::new())),
        }
    }
}

/// Orders that begin so.
fn orders(begin: &str) -> Vec<Pair> {
    let fitting = ORDERS.iter().filter(|(name, ..)| name.starts_with(begin));
    let pair = |(name, takes, _): &(&str, &str, &str)| Pair {
        display: format!("/{name}"),
        replacement: if takes.is_empty() { format!("/{name}") } else { format!("/{name} ") },
    };
    fitting.map(pair).collect()
}

/// Talks until the person leaves.
pub(super) fn run(dialogue: &mut Dialogue<'_>) -> Result<(), CliError> {
    let failed = |error: ReadlineError| CliError::Prompt {
        from: "the terminal".into(),
        what: format!("it cannot be read: {error}; pipe prompts in instead"),
    };
    let mut editor: Editor<Lines, DefaultHistory> = Editor::new().map_err(failed)?;
    editor.set_helper(Some(Lines { files: FilenameCompleter::new() }));
    editor.bind_sequence(Event::from(KeyEvent(KeyCode::Enter, Modifiers::ALT)), Cmd::Newline);
    dialogue.voice.say("Ask something; /help shows what else can be typed, Ctrl-D leaves.");
    loop {
        let prompt = match dialogue.conversation.pending().first() {
            Some(call) => format!("result of {}: ", call.name),
            None => "> ".to_owned(),
        };
        let line = match editor.readline(&prompt) {
            Ok(line) => line.replace("\\\n", "\n"),
            Err(ReadlineError::Interrupted) => {
                dialogue.voice.say("(Ctrl-D or /quit leaves)");
                continue;
            }
            Err(ReadlineError::Eof) => return Ok(()),
            // A byte that is no UTF-8, a window that changed its size: the line is lost, no more.
            Err(ReadlineError::Io(error)) if error.kind() == std::io::ErrorKind::InvalidData => {
                dialogue.fail(failed(error.into()))?;
                continue;
            }
            Err(error) => return Err(failed(error)),
        };
        if !line.trim().is_empty() {
            // A history that is full or does not want the line is no reason not to answer.
            let _ = editor.add_history_entry(&line);
        }
        // Where a result is awaited, what is typed is one, unless it is an order.
        let is_result = !dialogue.conversation.pending().is_empty() && !line.trim_start().starts_with('/');
        let line = if is_result && !line.trim().is_empty() { format!("/result {line}") } else { line };
        if dialogue.take(&line)? == Next::Leave {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_completed() {
        let found: Vec<String> = orders("re").into_iter().map(|pair| pair.replacement).collect();
        assert_eq!(found, ["/retry", "/reset", "/result "]);
        assert!(orders("x").is_empty());
    }
}
