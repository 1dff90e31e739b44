//! A conversation: one question, or one after another.

mod conversation;
mod dialogue;
mod line;
mod terminal;
mod timing;
mod tools;
mod voice;

pub(crate) use voice::Style;

use crate::arguments::{PromptSource, TalkOptions};
use crate::device;
use crate::error::CliError;
use crate::interrupt::Interrupt;
use crate::output::table;
use crate::picture;
use crate::prompt;
use conversation::{Conversation, Piece};
use dialogue::{Dialogue, Next};
use std::fs::File;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use voice::Voice;

/// A part of a question on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Asked {
    Text(String),
    Image(PathBuf),
}

/// Answers what `talk` asks with the model in `bundle`.
pub(crate) fn run(bundle: &Path, talk: &TalkOptions) -> Result<(), CliError> {
    let interrupt = Interrupt::install();
    let mut voice = Voice::new(talk.style, talk.wishes.show_thinking);
    let result = talked(bundle, talk, &interrupt, &mut voice);
    match &result {
        Ok(()) => voice.finish()?,
        Err(CliError::Closed | CliError::Output(_)) => {}
        Err(error) => {
            voice.failed(error)?;
            voice.finish()?;
        }
    }
    result
}

fn talked(bundle: &Path, talk: &TalkOptions, interrupt: &Interrupt, voice: &mut Voice) -> Result<(), CliError> {
    if let Some(path) = &talk.trace {
        // Now, not after the answer.
        File::create(path).map_err(|source| CliError::Trace { path: path.clone(), source })?;
    }
    // What can be wrong without a model is said before one is loaded.
    let prepared = talk.wishes.prepare()?;
    let template = talk.wishes.template()?;
    let question = match &talk.prompt {
        PromptSource::Asked(asked) => Some(pieces(asked)?),
        PromptSource::File(path) => Some(from_file(path, &talk.images)?),
        PromptSource::Interactive => None,
    };
    let is_seeing = question.as_ref().is_none_or(|q| q.iter().any(|piece| matches!(piece, Piece::Picture(_))));
    let mut loaded = device::load(bundle, &talk.run, is_seeing || talk.session.is_some())?;
    if let Some(template) = template {
        loaded.chat.set_template(template);
    }
    let sampling = &prepared.wishes.sampling;
    // What depends on the model's vocabulary.
    prepared.ask(false).check(loaded.chat.model().bundle().manifest.text.vocab)?;
    voice.begin(&loaded.device, loaded.seconds, sampling)?;
    let mut conversation = Conversation::new(loaded, talk, prepared, interrupt);
    conversation.resume()?;
    match question {
        Some(question) => conversation.ask(question, voice),
        None => lines(conversation, talk, interrupt, voice),
    }
}

/// Questions by lines, each one going on with the conversation.
fn lines<'a>(
    conversation: Conversation<'a>,
    talk: &'a TalkOptions,
    interrupt: &Interrupt,
    voice: &'a mut Voice,
) -> Result<(), CliError> {
    let mut dialogue = Dialogue::new(conversation, voice, &talk.images);
    let people = std::io::stdin().is_terminal();
    if people && std::io::stdout().is_terminal() && talk.style == Style::Text {
        terminal::run(&mut dialogue)
    } else {
        script(&mut dialogue, people, interrupt)
    }
}

/// Lines of standard input.
fn script(dialogue: &mut Dialogue<'_>, people: bool, interrupt: &Interrupt) -> Result<(), CliError> {
    loop {
        if people {
            table("> ");
        }
        let line = match prompt::next_line() {
            Ok(None) => return Ok(()),
            Ok(Some(line)) => line,
            Err(_) if interrupt.asked() => return Err(CliError::Interrupted),
            Err(error) => {
                dialogue.fail(error)?;
                continue;
            }
        };
        if dialogue.take(&line)? == Next::Leave {
            return Ok(());
        }
        // Ctrl-C ends an answer; where nobody types the next line, it is meant for all of them.
        if !people && interrupt.asked() {
            return Err(CliError::Interrupted);
        }
    }
}

/// The parts of a question. With a single text, pictures come before it.
fn pieces(asked: &[Asked]) -> Result<Vec<Piece>, CliError> {
    let texts = asked.iter().filter(|piece| matches!(piece, Asked::Text(_))).count();
    let mut pieces = Vec::new();
    for piece in asked {
        pieces.push(match piece {
            Asked::Text(text) => Piece::Text(text.clone()),
            Asked::Image(path) => Piece::Picture(picture::read(path)?),
        });
    }
    if texts == 1 {
        pieces.sort_by_key(|piece| matches!(piece, Piece::Text(_)));
    }
    not_empty(pieces, "the command line")
}

fn from_file(path: &Path, images: &[PathBuf]) -> Result<Vec<Piece>, CliError> {
    let text = prompt::read(path)?;
    let mut pieces: Vec<Piece> = picture::read_all(images)?.into_iter().map(Piece::Picture).collect();
    pieces.push(Piece::Text(text));
    let from = if path == Path::new("-") { "standard input".into() } else { path.display().to_string() };
    not_empty(pieces, &from)
}

fn not_empty(pieces: Vec<Piece>, from: &str) -> Result<Vec<Piece>, CliError> {
    let is_blank = |piece: &Piece| matches!(piece, Piece::Text(text) if text.trim().is_empty());
    if pieces.iter().all(is_blank) {
        return Err(CliError::Prompt { from: from.to_owned(), what: "it is empty".into() });
    }
    Ok(pieces)
}
