//! An answer in a conversation.

use std::ops::ControlFlow;
use std::time::Instant;

use super::Chat;
use super::ask::{Ask, Hold, Thinking};
use super::encoding::Shown;
use super::error::ChatError;
use super::generate::{Limits, Speaker, generate};
use super::grammar::{Constraint, Grammars};
use super::machine::Machine;
use super::message::{Message, ToolCall};
use super::options::{Event, Outcome, Stop, Timing};
use super::picture::Picture;
use super::plan::{Memory, Plan, Planner};
use super::sampler::{Sampler, Sampling};
use super::session::{Look, Looks, Said, Session};
use super::state::{Seat, Span};
use super::template::TemplateError;
use super::writer::{Listener, Writer};
use crate::model::{Model, ModelError, Speculate, Speculator};
use crate::npu::NpuError;

impl Chat {
    /// Adds messages to a conversation and answers it. If no token of an answer comes, since something failed or was
    /// broken off before, the messages are taken back.
    ///
    /// # Errors
    /// As [`Chat::answer`].
    pub fn send(
        &mut self,
        session: &mut Session,
        said: impl IntoIterator<Item = Said>,
        ask: &Ask<'_>,
        event: &mut Listener<'_>,
    ) -> Result<Outcome, ChatError> {
        let before = session.said.len();
        session.said.extend(said);
        let after = session.said.len();
        let outcome = self.answer(session, ask, event);
        let answered = outcome.as_ref().is_ok_and(|outcome| outcome.answered);
        if !answered && session.said.len() == after {
            session.said.truncate(before);
        }
        outcome
    }

    /// Answers a conversation as it stands, and adds the answer to it.
    ///
    /// Only tokens that the model does not hold yet are computed: those of a fresh rendering of the conversation are
    /// compared with those that it holds. Breaking from `event`, and [`Ask::cancel`], end the answer after the work at
    /// hand, with [`Stop::Cancelled`]: what was said until then is the answer; if nothing was, none is added.
    ///
    /// # Errors
    /// Values of `ask` that make no sense, conversations that the template refuses or the context does not hold, pictures
    /// that the bundle cannot take, failures of the device. The conversation is as it was before, and can be answered
    /// again.
    pub fn answer(
        &mut self,
        session: &mut Session,
        ask: &Ask<'_>,
        event: &mut Listener<'_>,
    ) -> Result<Outcome, ChatError> {
        ask.check(self.model.bundle().manifest.text.vocab)?;
        session.meet(self.model.id());
        let constraint = self.constraint(ask)?;
        let before = (self.model.profile(), self.model.counters());
        let mut outcome = Outcome::default();
        // No command fails of an error that the array raises, so it has to be asked for; what was there before is none of
        // this turn's.
        let known = self.model.npu().array_error();
        let mut event = |e: Event<'_>| {
            let flow = event(e);
            if ask.is_cancelled() { ControlFlow::Break(()) } else { flow }
        };
        let gone = self.respond(session, ask, constraint, &mut event, &mut outcome)?;
        if let Some(error) = self.model.npu().array_error().filter(|error| Some(error.ts_us) != known.map(|k| k.ts_us))
        {
            // Whatever was computed meanwhile may be wrong.
            session.state.forget();
            return Err(NpuError::Array(error).into());
        }
        if outcome.dropped > 0 {
            let first = session.first();
            session.said.drain(first..first + outcome.dropped);
            session.gone = gone;
        }
        if outcome.answered {
            session.said.push(message(&outcome).into());
        }
        outcome.timing.profile = self.model.profile().since(&before.0);
        outcome.timing.counters = self.model.counters().since(&before.1);
        Ok(outcome)
    }

    /// Lends the model with the state of a conversation in its hands, for what is not in the interface here: to look at
    /// logits, say. What is appended meanwhile is not part of the conversation, and is forgotten.
    pub fn with_state<T>(&mut self, session: &mut Session, work: impl FnOnce(&mut Model) -> T) -> T {
        session.meet(self.model.id());
        let mut seat = session.state.seat(&mut self.model);
        // What is left behind may be other tokens of the same number, which the seat does not see.
        let before = seat.snapshot();
        let result = work(&mut seat);
        if seat.restore(&before).is_err() {
            seat.reset();
        }
        result
    }

    /// Gives how many tokens have been left out of the conversation since it began, if that is done for good.
    fn respond(
        &mut self,
        session: &mut Session,
        ask: &Ask<'_>,
        constraint: Option<Constraint>,
        event: &mut Listener<'_>,
        outcome: &mut Outcome,
    ) -> Result<usize, ChatError> {
        let started = Instant::now();
        let plan = self.plan(session, ask)?;
        outcome.prompt_tokens = plan.tokens.ids.len();
        outcome.image_tokens = plan.tokens.spans.iter().map(|span| span.tokens).sum();
        outcome.dropped = plan.dropped.len();
        let dropped = Event::Dropped { messages: outcome.dropped };
        let cut = outcome.dropped > 0 && event(dropped).is_break();

        let total = plan.tokens.ids.len();
        let room = self.model.max_ctx().saturating_sub(total);
        let vocab = self.model.bundle().manifest.text.vocab;
        let Chat { model, tokenizer, stop, sampler, speculator, .. } = self;
        let sampler = match sampler {
            Some(same) if *same.sampling() == ask.sampling => same,
            other => other.insert(Sampler::new(ask.sampling.clone(), vocab)?),
        };
        let calls = calls(session);
        let Session { state, looks, .. } = session;
        let mut seat = state.seat(model);
        let held = seat.rewind(&plan.tokens);
        outcome.reused_tokens = held;
        let seen = !cut && look(&mut seat, looks, &plan.tokens.spans, held, event)?;
        outcome.timing.vision = started.elapsed();
        if !seen {
            outcome.dropped = 0;
            return Ok(plan.gone);
        }
        let started = Instant::now();
        let rows = rows(looks, &plan, held);
        let read = seat
            .append(&plan.tokens, &rows, &plan.marks, &mut |done| event(Event::Prompt { done: held + done, total }));
        drop(rows);
        if !read? {
            outcome.timing.prefill = started.elapsed();
            outcome.dropped = 0;
            return Ok(plan.gone);
        }
        outcome.answered = true;
        sampler.begin(&plan.tokens.ids);
        let mut writer = Writer::new(tokenizer, sampler, ask, calls, constraint, outcome, event)?;
        let first = writer.choose(seat.logits()?)?;
        let prefill = started.elapsed();
        let started = Instant::now();
        // Guesses are chosen before they are taken: only where choosing does not look at what was.
        let free = matches!(ask.hold, Hold::Free) && !matches!(ask.thinking, Thinking::Budget(_));
        let plain = ask.sampling == Sampling::default() && free;
        let mut none = Speculator::new(Speculate::Off, &[]);
        let speculator = if plain { speculator } else { &mut none };
        let before = speculator.guesses();
        speculator.begin(&plan.tokens.ids);
        let left = ask.max_new.min(room);
        let mut reply = Reply { seat: &mut seat, writer: &mut writer, speculator: &mut *speculator, taken: 0, left };
        let limits = Limits { stop, max_new: ask.max_new, room };
        let stop = generate(&mut reply, first, &limits)?;
        let steps = reply.taken;
        seat.settle(speculator);
        outcome.stop = writer.finish().unwrap_or(stop);
        outcome.timing = Timing {
            prefill,
            decode: started.elapsed(),
            steps,
            guesses: speculator.guesses().since(&before),
            ..outcome.timing
        };
        Ok(plan.gone)
    }

    /// What an answer is held to, if to anything.
    fn constraint(&mut self, ask: &Ask<'_>) -> Result<Option<Constraint>, ChatError> {
        if matches!(ask.hold, Hold::Free) {
            return Ok(None);
        }
        let grammars = match &self.grammars {
            Some(grammars) => grammars,
            None => {
                let stop = self.stop.first().copied().unwrap_or(u32::MAX);
                let vocab = self.model.bundle().manifest.text.vocab;
                self.grammars.insert(Grammars::new(&self.tokenizer, vocab, stop)?)
            }
        };
        Ok(ask.constraint(grammars)?)
    }

    /// The prompt of a conversation. Pictures that are new to it are prepared, and not encoded yet.
    fn plan(&mut self, session: &mut Session, ask: &Ask<'_>) -> Result<Plan, ChatError> {
        let pictures: Vec<&Picture> = session.said.iter().flat_map(|said| &said.pictures).collect();
        if !pictures.is_empty() && !self.model.sees() {
            return Err(ChatError::NoVision { images: pictures.len() });
        }
        for Said { message, pictures } in &session.said {
            let (found, wanted) = (message.images(), pictures.len());
            if found != wanted {
                return Err(TemplateError::Pictures { found, wanted }.into());
            }
        }
        session.looks.retain(|hash, _| pictures.iter().any(|picture| picture.hash() == hash));
        for picture in &pictures {
            if !session.looks.contains_key(picture.hash()) {
                let patches = self.model.prepare(picture.rgb())?;
                let tokens = self.model.image_tokens(&patches)?;
                let look = Look { grid: patches.grid, tokens, patches: Some(patches), rows: Vec::new() };
                session.looks.insert(*picture.hash(), look);
            }
        }
        let shown = |picture: &&Picture| {
            let look = session.looks.get(picture.hash())?;
            Some(Shown { hash: *picture.hash(), grid: look.grid, tokens: look.tokens })
        };
        let shown: Vec<Shown> = pictures.iter().filter_map(shown).collect();
        let messages: Vec<Message> = session.said.iter().map(|said| said.message.clone()).collect();
        let planner = Planner { template: &self.template, tokenizer: &self.tokenizer, max_ctx: self.model.max_ctx() };
        let memory = Memory { encoding: &mut session.encoding, sizes: &mut session.sizes };
        planner.plan(&messages, &shown, session.gone, ask, memory)
    }
}

/// The assistant's message. What was meant to be a call stays in it as it was written, so that the model can be told what
/// was wrong with it.
fn message(outcome: &Outcome) -> Message {
    let mut text = outcome.text.clone();
    for (refused, _) in &outcome.refused {
        text.extend(["\n<tool_call>\n", refused, "\n</tool_call>"]);
    }
    let message = Message::assistant(Some(outcome.reasoning.clone()), text);
    Message { tool_calls: outcome.calls.clone(), ..message }
}

/// Calls that the conversation has had: where the oldest were left out, their numbers are in the names of the others.
fn calls(session: &Session) -> usize {
    let all = || session.messages().flat_map(|message| &message.tool_calls);
    let number = |call: &ToolCall| call.id.as_ref()?.strip_prefix("call_")?.parse::<u32>().ok();
    all().filter_map(number).map(|number| number as usize).max().unwrap_or(0).max(all().count())
}

/// Encodes the pictures behind the first `held` tokens that have not been. Gives whether it came to its end.
fn look(
    model: &mut Model,
    looks: &mut Looks,
    spans: &[Span],
    held: usize,
    event: &mut Listener<'_>,
) -> Result<bool, ChatError> {
    let mut index = 0;
    for span in spans.iter().filter(|span| span.at >= held) {
        let Some(look) = looks.get_mut(&span.hash) else { continue };
        let Some(patches) = &look.patches else { continue };
        if index == 0 && super::tower(model, event)?.is_break() {
            return Ok(false);
        }
        let rows = model.encode_with(patches, &mut |done, total| event(Event::Patches { index, done, total }))?;
        let Some(rows) = rows else { return Ok(false) };
        (look.rows, look.patches) = (rows, None);
        if event(Event::Image { index, tokens: look.tokens }).is_break() {
            return Ok(false);
        }
        index += 1;
    }
    Ok(true)
}

/// The tower's rows of the pictures behind the first `held` tokens.
fn rows(looks: &Looks, plan: &Plan, held: usize) -> Vec<f32> {
    let spans = plan.tokens.spans.iter().filter(|span| span.at >= held);
    spans.filter_map(|span| looks.get(&span.hash)).flat_map(|look| &look.rows).copied().collect()
}

/// A model that speaks.
struct Reply<'a, 's, 'w, M: Machine> {
    seat: &'a mut Seat<'s, M>,
    writer: &'a mut Writer<'w>,
    speculator: &'a mut Speculator,
    taken: usize,
    /// Tokens that the answer may have.
    left: usize,
}

impl<M: Machine> Speaker for Reply<'_, '_, '_, M> {
    type Error = ChatError;

    fn take(&mut self, token: u32) -> Option<Stop> {
        self.writer.take(token)
    }

    fn next(&mut self, token: u32) -> Result<u32, ChatError> {
        self.taken += 1;
        let (room, writer) = (self.left.saturating_sub(self.taken), &mut *self.writer);
        let mut failed = None;
        let next = self.seat.speak(token, room, self.speculator, &mut |logits| {
            writer.choose(logits).map_err(|error| {
                failed = Some(error);
                ModelError::NoNumbers
            })
        });
        failed.map_or(Ok(()), Err)?;
        Ok(next?)
    }
}
