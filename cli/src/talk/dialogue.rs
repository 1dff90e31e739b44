//! Lines, one after another: prompts and orders, from a terminal or a script. What is wrong with one costs that one.

use super::conversation::{Conversation, Piece};
use super::line::{Line, Order, help};
use super::voice::Voice;
use crate::error::CliError;
use crate::output::note;
use crate::picture;
use std::path::PathBuf;

/// What comes after a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Another one.
    Go,
    /// Nothing: it was the last.
    Leave,
}

/// A conversation by lines.
#[derive(Debug)]
pub(crate) struct Dialogue<'a> {
    pub(crate) conversation: Conversation<'a>,
    pub(crate) voice: &'a mut Voice,
    /// Pictures that the first question of a conversation shows.
    images: &'a [PathBuf],
    /// What the next prompt begins with.
    pieces: Vec<Piece>,
    /// A picture that could not be read costs the prompt it was meant for, unless another is shown instead.
    missing: Option<PathBuf>,
}

impl<'a> Dialogue<'a> {
    pub(crate) fn new(conversation: Conversation<'a>, voice: &'a mut Voice, images: &'a [PathBuf]) -> Self {
        Self { conversation, voice, images, pieces: Vec::new(), missing: None }
    }

    /// Takes a line.
    ///
    /// # Errors
    /// What ends all lines: nobody reads the answers any more, or the device is lost.
    pub(crate) fn take(&mut self, line: &str) -> Result<Next, CliError> {
        let taken = super::line::parse(line).map_err(CliError::Order).and_then(|line| self.follow(line));
        match taken {
            Ok(next) => Ok(next),
            Err(error) => self.fail(error).map(|()| Next::Go),
        }
    }

    /// Tells what went wrong with a line, and gives it back if it is the end of all.
    pub(crate) fn fail(&mut self, error: CliError) -> Result<(), CliError> {
        if matches!(error, CliError::Closed | CliError::Output(_)) {
            return Err(error);
        }
        self.voice.failed(&error)?;
        // Commands that may still run own the model's buffers: no later turn could be trusted.
        if error.ends_session() {
            return Err(error);
        }
        match error {
            CliError::Interrupted => self.voice.say("(stopped)"),
            error => note(&error),
        }
        Ok(())
    }

    fn follow(&mut self, line: Line) -> Result<Next, CliError> {
        match line {
            Line::Blank => {}
            Line::Say(text) => self.say(text)?,
            Line::Order(order) => return self.obey(order),
        }
        Ok(Next::Go)
    }

    fn say(&mut self, text: String) -> Result<(), CliError> {
        let mut pieces = std::mem::take(&mut self.pieces);
        if let Some(path) = self.missing.take() {
            return Err(CliError::Picture {
                path,
                what: "it was meant for this prompt, which is not answered without".into(),
            });
        }
        if self.conversation.is_new() {
            // Read now: the file may be a camera's latest picture.
            let pictures = picture::read_all(self.images)?;
            pieces.splice(0..0, pictures.into_iter().map(Piece::Picture));
        }
        pieces.push(Piece::Text(text));
        self.conversation.ask(pieces, self.voice)
    }

    fn obey(&mut self, order: Order) -> Result<Next, CliError> {
        let Self { conversation, voice, .. } = self;
        match order {
            // Read now, so that what is wrong is said now.
            Order::Image(path) => match picture::read_all(std::slice::from_ref(&path)) {
                Ok(pictures) => {
                    self.pieces.extend(pictures.into_iter().map(Piece::Picture));
                    self.missing = None;
                }
                Err(error) => {
                    self.missing = Some(path);
                    return Err(error);
                }
            },
            Order::Text(text) => self.pieces.push(Piece::Text(text)),
            Order::Result(text) => conversation.result(&text, voice)?,
            Order::Reset => {
                self.pieces.clear();
                self.missing = None;
                conversation.reset()?;
                voice.say("(a new conversation)");
            }
            Order::Undo => {
                conversation.undo()?;
                voice.say("(the last question is taken back)");
            }
            Order::Retry => conversation.retry(voice)?,
            Order::System(text) => conversation.set_system(Some(text).filter(|text| !text.is_empty()))?,
            Order::Think(thinking) => conversation.set_thinking(thinking),
            Order::Save(path) => {
                conversation.save(&path)?;
                voice.say(&format!("(saved to {})", path.display()));
            }
            Order::Load(path) => conversation.load(&path)?,
            Order::Stats => voice.say(&conversation.stats()),
            Order::Help => voice.say(&help()),
            Order::Quit => return Ok(Next::Leave),
        }
        Ok(Next::Go)
    }
}
