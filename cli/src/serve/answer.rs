//! One answer: from a job to the pieces that its client gets.

use super::error::ApiError;
use super::job::{Ended, Held, Job, Piece, Shown, Subject, Wanted};
use super::options::ServeOptions;
use super::state::State;
use super::store::Store;
use runtime::chat::{
    Ask, Event, Hold, Message, Outcome, Overflow, Role, Session, Stop, StopStream, Template, TextStream, ToolChoice,
};
use runtime::{Chat, ChatError};
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// A text as it is, for the template engine.
const RAW: &str = "{{ messages[0].content }}";

/// What came of a job.
#[derive(Debug)]
pub(super) enum Answered {
    Ended(Box<Ended>),
    /// The client was told why not, or has gone.
    Refused,
    /// The device failed: nothing of the model may be used any more.
    Broken(String),
}

/// What lasts from one answer to the next.
#[derive(Debug)]
pub(super) struct Answers {
    store: Store,
    words: Words,
}

/// The bytes of all tokens, one behind the other.
#[derive(Debug)]
struct Words {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Words {
    fn of(chat: &Chat) -> Words {
        let mut words = Words { bytes: Vec::new(), ends: Vec::new() };
        for id in 0..chat.tokenizer().vocab() {
            words.bytes.extend_from_slice(chat.tokenizer().bytes(id as u32));
            words.ends.push(words.bytes.len());
        }
        words
    }

    fn get(&self, id: u32) -> &[u8] {
        let at = id as usize;
        let start = at.checked_sub(1).map_or(Some(0), |before| self.ends.get(before).copied());
        match (start, self.ends.get(at)) {
            (Some(start), Some(end)) => &self.bytes[start..*end],
            _ => &[],
        }
    }
}

impl Answers {
    pub(super) fn new(chat: &Chat, sessions: usize, bytes: usize) -> Answers {
        Answers { store: Store::new(sessions, bytes), words: Words::of(chat) }
    }

    pub(super) fn store(&self) -> &Store {
        &self.store
    }

    /// Answers, and tells the client all of it.
    pub(super) fn answer(&mut self, chat: &mut Chat, job: Job, state: &State, options: &ServeOptions) -> Answered {
        let Job { wanted, since, deadline, cancel, to } = job;
        let queue = since.elapsed();
        let tell = |piece: Piece| to.send(piece).is_ok();
        if Instant::now() >= deadline {
            tell(Piece::Failed(ApiError::Deadline((deadline - since).as_secs())));
            return Answered::Refused;
        }
        let Wanted { subject, sampling, thinking, max_new, stop, tools, hold, one_call } = wanted;
        let room = chat.max_ctx().min(options.max_new.unwrap_or(usize::MAX));
        let raw = matches!(subject, Subject::Raw(_));
        let mut ask = Ask {
            thinking,
            max_new: max_new.map_or(room, |wanted| wanted.min(room)),
            // What stops a raw text is looked for in its own bytes.
            stop: if raw { &[] } else { &stop },
            tools: tools.as_ref(),
            hold: match &hold {
                Held::Free => Hold::Free,
                Held::Calls(choice) => Hold::Calls(choice.clone()),
                Held::Schema(schema) => Hold::Schema(schema),
                Held::Object => Hold::Object,
                Held::CallsOr(schema) => Hold::CallsOr(schema),
            },
            overflow: if options.wishes.drop_oldest { Overflow::DropOldest } else { Overflow::Refuse },
            raw,
            cancel: Some(cancel.clone()),
            sampling,
            ..Ask::default()
        };
        let stops = match StopStream::new(if raw { stop.clone() } else { Vec::new() }) {
            Ok(stops) => stops,
            Err(error) => {
                tell(Piece::Failed(ApiError::from(&ChatError::from(error))));
                return Answered::Refused;
            }
        };
        let mut terms = DefaultHasher::new();
        let definitions = tools.iter().flat_map(|tools| tools.values()).map(ToString::to_string);
        definitions.for_each(|definition| definition.hash(&mut terms));
        let terms = terms.finish();
        let mut teller = Teller {
            tell: &tell,
            words: &self.words,
            state,
            since,
            deadline,
            logprobs: ask.sampling.logprobs.is_some(),
            raw: raw.then(|| (TextStream::new(), stops)),
            one_call,
            started: false,
            first: None,
            pending: 0,
            reasoning: 0,
            tokens: 0,
            end: None,
        };
        let (outcome, kept) = match subject {
            Subject::Raw(text) => {
                let Ok(template) = Template::from_jinja(RAW) else {
                    tell(Piece::Failed(ApiError::Internal("the template of plain texts does not compile".into())));
                    return Answered::Refused;
                };
                let bundles = chat.set_template(template);
                let mut session = Session::new();
                session.push(Message::user(text));
                let outcome = chat.answer(&mut session, &ask, &mut |event| teller.event(event));
                chat.set_template(bundles);
                (outcome, None)
            }
            Subject::Chat(said) => {
                let mut session = self.store.take(terms, said);
                let whole = session.said().to_vec();
                let mut outcome = chat.answer(&mut session, &ask, &mut |event| teller.event(event));
                // Where nothing has to be called, definitions that no grammar can keep to are no reason to refuse.
                if matches!((&outcome, &ask.hold), (Err(ChatError::Grammar(_)), Hold::Calls(ToolChoice::Auto)))
                    && !teller.started
                {
                    ask.hold = Hold::Free;
                    outcome = chat.answer(&mut session, &ask, &mut |event| teller.event(event));
                }
                if outcome.as_ref().is_ok_and(|outcome| outcome.dropped > 0) {
                    // The client will send all of it again, and shall find it.
                    let answer = session.said().last().filter(|said| said.message.role == Role::Assistant).cloned();
                    session.set(whole.into_iter().chain(answer).collect());
                }
                (outcome, Some(session))
            }
        };
        let broken = outcome.as_ref().err().filter(|error| error.is_device()).map(ToString::to_string);
        if let (None, Some(session)) = (&broken, kept) {
            self.store.put(terms, session);
        }
        let answered = match outcome {
            Ok(outcome) => teller.finish(&outcome, queue),
            Err(error) => Err(ApiError::from(&error)),
        };
        match (broken, answered) {
            (Some(reason), _) => {
                // Before anybody hears of it: who then asks is told the same.
                state.unhealthy(&reason, Duration::ZERO);
                tell(Piece::Failed(ApiError::Device(reason.clone())));
                Answered::Broken(reason)
            }
            (None, Ok(ended)) => {
                tell(Piece::Done(Box::new(ended.clone())));
                Answered::Ended(Box::new(ended))
            }
            (None, Err(error)) => {
                tell(Piece::Failed(error));
                Answered::Refused
            }
        }
    }
}

/// Why the teller has ended an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Gone,
    Deadline,
    Stopping,
    OneCall,
    Stop,
}

/// Tells a client what happens.
struct Teller<'a> {
    tell: &'a dyn Fn(Piece) -> bool,
    words: &'a Words,
    state: &'a State,
    since: Instant,
    deadline: Instant,
    logprobs: bool,
    raw: Option<(TextStream, StopStream)>,
    one_call: bool,
    started: bool,
    first: Option<Duration>,
    /// Tokens whose text has not come yet.
    pending: usize,
    reasoning: usize,
    tokens: usize,
    end: Option<End>,
}

impl Teller<'_> {
    fn say(&mut self, piece: Piece) {
        if !(self.tell)(piece) {
            self.end.get_or_insert(End::Gone);
        }
    }

    fn event(&mut self, event: Event<'_>) -> ControlFlow<()> {
        self.state.beat();
        if !self.started {
            self.started = true;
            self.say(Piece::Started);
        }
        match event {
            Event::Token { token, logprob, top } => self.token(token, logprob, top),
            // The text of a plain text is made of its tokens.
            _ if self.raw.is_some() => {}
            Event::Reasoning(text) => {
                self.reasoning += std::mem::take(&mut self.pending);
                self.say(Piece::Reasoning(text.to_owned()));
            }
            Event::Text(text) => {
                self.pending = 0;
                self.say(Piece::Text(text.to_owned()));
            }
            Event::Call(call) => {
                self.pending = 0;
                self.say(Piece::Call(call.clone()));
                if self.one_call {
                    self.end.get_or_insert(End::OneCall);
                }
            }
            // As it is in the conversation.
            Event::Refused { text, .. } => self.say(Piece::Text(format!("\n<tool_call>\n{text}\n</tool_call>"))),
            _ => {}
        }
        if self.state.in_hurry() {
            self.end.get_or_insert(End::Stopping);
        }
        if Instant::now() >= self.deadline {
            self.end.get_or_insert(End::Deadline);
        }
        if self.end.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn token(&mut self, token: u32, logprob: Option<f32>, top: &[(u32, f32)]) {
        self.first.get_or_insert_with(|| self.since.elapsed());
        self.pending += 1;
        self.tokens += 1;
        if self.logprobs {
            let word = |id: u32| self.words.get(id).to_vec();
            let top = top.iter().map(|&(id, logprob)| (word(id), logprob)).collect();
            self.say(Piece::Token(Box::new(Shown { bytes: word(token), logprob, top })));
        }
        if let Some((stream, stops)) = &mut self.raw {
            let (mut fresh, mut certain) = (String::new(), String::new());
            stream.push(self.words.get(token), &mut fresh);
            let stop = stops.push(&fresh, &mut certain);
            if !certain.is_empty() {
                self.say(Piece::Text(certain));
            }
            if stop.is_some() {
                self.end.get_or_insert(End::Stop);
            }
        }
    }

    fn finish(&mut self, outcome: &Outcome, queue: Duration) -> Result<Ended, ApiError> {
        if let Some((mut stream, mut stops)) = self.raw.take()
            && self.end != Some(End::Stop)
        {
            let (mut fresh, mut certain) = (String::new(), String::new());
            stream.finish(&mut fresh);
            // What was held back may make one whole.
            self.end = stops.push(&fresh, &mut certain).map(|_| End::Stop).or(self.end);
            stops.finish(&mut certain);
            if !certain.is_empty() {
                self.say(Piece::Text(certain));
            }
        }
        let reason = match (outcome.stop, self.end) {
            (Stop::Cancelled, Some(End::OneCall)) => "tool_calls",
            (_, Some(End::Stop)) => "stop",
            (Stop::Cancelled, Some(End::Deadline)) if outcome.answered => "length",
            (Stop::Cancelled, Some(End::Deadline)) => {
                return Err(ApiError::Deadline((self.deadline - self.since).as_secs()));
            }
            (Stop::Cancelled, Some(End::Stopping)) => return Err(ApiError::Stopping),
            // Nobody is there to read it.
            (Stop::Cancelled, _) => "stop",
            _ => outcome.finish_reason(),
        };
        let timing = &outcome.timing;
        Ok(Ended {
            reason,
            prompt_tokens: outcome.prompt_tokens,
            reused_tokens: outcome.reused_tokens,
            image_tokens: outcome.image_tokens,
            tokens: self.tokens,
            reasoning_tokens: self.reasoning,
            queue,
            vision: timing.vision,
            prefill: timing.prefill,
            first: self.first.unwrap_or_else(|| self.since.elapsed()),
            decode: timing.decode,
            steps: timing.steps,
            npu_wait: timing.counters.waiting,
            commands: timing.counters.commands,
        })
    }
}
