//! The conversation itself: questions, answers, the functions that are called in between, and its file.

use super::timing;
use super::tools;
use super::voice::{Voice, why};
use crate::arguments::TalkOptions;
use crate::device::Loaded;
use crate::error::CliError;
use crate::interrupt::Interrupt;
use crate::output::{note, table};
use crate::wishes::Prepared;
use runtime::chat::{Message, Part, Picture, Role, Said, Session, Thinking, ToolCall};
use runtime::image::Rgb;
use runtime::model::Trace;
use runtime::{Outcome, Stop};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

/// Events of a trace: 32 MB of them, some minutes of an answer. What comes later is counted.
const TRACED: usize = 1 << 20;
/// Answers to one question that may call functions.
const ROUNDS: usize = 16;

/// A piece of a question.
#[derive(Debug, Clone)]
pub(crate) enum Piece {
    Text(String),
    Picture(Rgb),
}

/// A conversation with a loaded model.
#[derive(Debug)]
pub(crate) struct Conversation<'a> {
    loaded: Loaded,
    talk: &'a TalkOptions,
    prepared: Prepared,
    interrupt: &'a Interrupt,
    session: Session,
    /// Functions that the last answer called and whose results are awaited.
    pending: Vec<ToolCall>,
    last: Option<Outcome>,
}

impl<'a> Conversation<'a> {
    pub(crate) fn new(loaded: Loaded, talk: &'a TalkOptions, prepared: Prepared, interrupt: &'a Interrupt) -> Self {
        let mut this =
            Self { loaded, talk, prepared, interrupt, session: Session::new(), pending: Vec::new(), last: None };
        this.session.set_system(talk.system.clone());
        if talk.trace.is_some() {
            this.loaded.chat.model_mut().set_trace(Some(Trace::new(TRACED)));
        }
        this
    }

    /// Goes on with the conversation of `--session`, if there is one.
    pub(crate) fn resume(&mut self) -> Result<(), CliError> {
        let Some(path) = &self.talk.session else { return Ok(()) };
        if !path.exists() {
            return Ok(());
        }
        self.load(path)?;
        if let Some(system) = &self.talk.system {
            self.session.set_system(Some(system.clone()));
        }
        Ok(())
    }

    /// Functions whose results are awaited.
    pub(crate) fn pending(&self) -> &[ToolCall] {
        &self.pending
    }

    /// Whether nobody has asked anything yet.
    pub(crate) fn is_new(&self) -> bool {
        self.session.messages().all(|message| message.role == Role::System)
    }

    /// A question and its answer.
    pub(crate) fn ask(&mut self, pieces: Vec<Piece>, voice: &mut Voice) -> Result<(), CliError> {
        let (mut parts, mut pictures, mut texts) = (Vec::new(), Vec::new(), Vec::new());
        for piece in pieces {
            match piece {
                Piece::Text(text) => {
                    texts.push(text.clone());
                    parts.push(Part::Text(text));
                }
                Piece::Picture(rgb) => {
                    parts.push(Part::Image { source: None });
                    pictures.push(Picture::new(rgb));
                }
            }
        }
        voice.turn(&texts.concat(), pictures.len())?;
        // Results that never came: the model is told, since every call has to be answered by something.
        let unanswered = std::mem::take(&mut self.pending);
        let mut said: Vec<Said> =
            unanswered.iter().map(|call| runtime::chat::tool_result(call, Err("nobody ran it")).into()).collect();
        let count = pictures.len();
        said.push(Said { message: Message::parts(Role::User, parts), pictures });
        let result = self.answer(said, count, voice);
        if result.is_err() && self.session.messages().next_back().is_some_and(|m| m.role == Role::Assistant) {
            self.pending = unanswered;
        }
        result
    }

    /// The result of the function that was called first among those that wait, and an answer once all are there.
    pub(crate) fn result(&mut self, text: &str, voice: &mut Voice) -> Result<(), CliError> {
        if self.pending.is_empty() {
            return Err(CliError::Order("/result: no function was called".into()));
        }
        let call = self.pending.remove(0);
        voice.result(&call.name, text)?;
        let value = serde_json::Value::String(text.to_owned());
        self.session.push(runtime::chat::tool_result(&call, Ok(&value)));
        if self.pending.is_empty() { self.answer(Vec::new(), 0, voice) } else { Ok(()) }
    }

    /// Takes the last answer back and gives another one.
    pub(crate) fn retry(&mut self, voice: &mut Voice) -> Result<(), CliError> {
        let taken = self.session.retract();
        let Some(question) = self.session.messages().next_back().filter(|m| m.role == Role::User) else {
            return Err(CliError::Order("/retry: nothing has been asked".into()));
        };
        let (text, pictures) = (question.all_text(), question.images());
        self.pending.clear();
        // Greedy answers come out as before; drawn ones are drawn anew.
        let sampling = &mut self.prepared.wishes.sampling;
        sampling.seed = sampling.seed.wrapping_add(1);
        voice.turn(&text, pictures)?;
        let result = self.answer(Vec::new(), pictures, voice);
        if self.session.messages().next_back().is_some_and(|m| m.role == Role::User) {
            for said in taken {
                self.session.push_with(said.message, said.pictures);
            }
        }
        result
    }

    /// Takes the last question and its answer back.
    pub(crate) fn undo(&mut self) -> Result<(), CliError> {
        self.pending.clear();
        if self.session.undo().is_empty() {
            return Err(CliError::Order("/undo: nothing has been asked".into()));
        }
        self.store()
    }

    /// Forgets everything but the system text.
    pub(crate) fn reset(&mut self) -> Result<(), CliError> {
        self.pending.clear();
        self.session.clear();
        self.store()
    }

    pub(crate) fn set_system(&mut self, text: Option<String>) -> Result<(), CliError> {
        self.session.set_system(text);
        self.store()
    }

    pub(crate) fn set_thinking(&mut self, thinking: Thinking) {
        self.prepared.wishes.thinking = thinking;
    }

    pub(crate) fn save(&self, path: &Path) -> Result<(), CliError> {
        Ok(self.loaded.chat.save(&self.session, path)?)
    }

    /// Goes on with the conversation in a file.
    pub(crate) fn load(&mut self, path: &Path) -> Result<(), CliError> {
        let restored = self.loaded.chat.restore(path)?;
        if let Some(why) = restored.unread {
            note(&format_args!("session {}: it is read anew: {why}", path.display()));
        }
        self.session = restored.session;
        // Calls at its end still wait.
        self.pending = self.session.messages().next_back().map(|m| m.tool_calls.clone()).unwrap_or_default();
        Ok(())
    }

    /// What it takes, and how fast the last answer was.
    pub(crate) fn stats(&self) -> String {
        let chat = &self.loaded.chat;
        let mut out = format!(
            "{} messages, {} of {} tokens in the context, {:.1} MB; {}\n",
            self.session.said().len(),
            self.session.tokens(),
            chat.max_ctx(),
            self.session.bytes() as f64 / 1e6,
            self.loaded.device,
        );
        if let Some(last) = &self.last {
            let timing = &last.timing;
            let seconds = timing.decode.as_secs_f64();
            let rate = if seconds > 0.0 { timing.steps as f64 / seconds } else { 0.0 };
            let first = (timing.vision + timing.prefill).as_secs_f64();
            out += &format!(
                "last answer: {} tokens, {rate:.1} a second; prompt of {} tokens, {} of them read before; first token \
                 after {first:.2} s\n",
                last.tokens.len(),
                last.prompt_tokens,
                last.reused_tokens
            );
        }
        out
    }

    /// Answers, and goes on as long as functions are called and can be run.
    fn answer(&mut self, said: Vec<Said>, pictures: usize, voice: &mut Voice) -> Result<(), CliError> {
        let (mut said, mut pictures) = (said, pictures);
        let mut follows = self.session.messages().next_back().is_some_and(|m| m.role == Role::Tool);
        for round in 0.. {
            let outcome = self.once(std::mem::take(&mut said), pictures, follows, voice)?;
            let calls = outcome.calls.clone();
            let cancelled = outcome.stop == Stop::Cancelled;
            self.last = Some(outcome);
            self.store()?;
            if cancelled {
                return Err(CliError::Interrupted);
            }
            let Some(program) = self.prepared.wishes.tool_command.clone().filter(|_| !calls.is_empty()) else {
                self.pending = calls;
                return Ok(());
            };
            if round + 1 == ROUNDS {
                return Err(CliError::Tool(format!(
                    "functions were called in {ROUNDS} answers in a row: no more are run"
                )));
            }
            for call in &calls {
                let result = tools::run(&program, call);
                let text = result.as_ref().map_or_else(|error| format!("Error: {error}"), Clone::clone);
                if let Err(error) = &result {
                    note(&format_args!("--tool-command {}: {error}", program.display()));
                }
                voice.result(&call.name, &text)?;
                let value = result.map(serde_json::Value::String);
                let message = runtime::chat::tool_result(call, value.as_ref().map_err(String::as_str));
                self.session.push(message);
            }
            (pictures, follows) = (0, true);
        }
        Ok(())
    }

    /// One answer, its text to standard output as it comes.
    fn once(
        &mut self,
        said: Vec<Said>,
        pictures: usize,
        follows: bool,
        voice: &mut Voice,
    ) -> Result<Outcome, CliError> {
        let start = Instant::now();
        let Self { loaded, prepared, session, interrupt, .. } = self;
        let ask = prepared.ask(follows);
        let mut failed = None;
        let outcome = interrupt.guarded(|| {
            loaded.chat.send(session, said, &ask, &mut |event| {
                if failed.is_none() {
                    failed = voice.event(&event).err();
                }
                if interrupt.asked() || failed.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
        });
        if let Some(error) = failed {
            return Err(error);
        }
        self.write_trace()?;
        let outcome = outcome?;
        let seconds = start.elapsed().as_secs_f64();
        let tokenizer = self.loaded.chat.tokenizer();
        let spell = |token: u32| String::from_utf8_lossy(tokenizer.bytes(token)).into_owned();
        voice.end(&outcome, &self.prepared.wishes.stop, seconds, &spell)?;
        if let Some(why) = why(&outcome).filter(|_| outcome.stop != Stop::Cancelled) {
            note(&why);
        }
        if self.talk.run.timing {
            table(&timing::text(&outcome, pictures, &self.loaded, seconds));
        }
        Ok(outcome)
    }

    /// Writes the file of `--session`.
    fn store(&self) -> Result<(), CliError> {
        self.talk.session.as_ref().map_or(Ok(()), |path| self.save(path))
    }

    /// Writes what has been recorded so far, over what was written before: when it is interrupted, the turns before are
    /// there.
    fn write_trace(&mut self) -> Result<(), CliError> {
        let Some(path) = &self.talk.trace else { return Ok(()) };
        let model = self.loaded.chat.model_mut();
        let Some(trace) = model.set_trace(None) else { return Ok(()) };
        let written = File::create(path).and_then(|file| {
            let mut out = BufWriter::new(file);
            trace.write(&mut out)?;
            out.flush()
        });
        if trace.lost() > 0 {
            note(&format_args!("--trace: there was no room for the last {} events", trace.lost()));
        }
        model.set_trace(Some(trace));
        written.map_err(|source| CliError::Trace { path: path.clone(), source })
    }
}
