//! A conversation: what was said, its pictures, and what the model has of it.

use std::collections::BTreeMap;

use host_ops::image::Patches;

use super::encoding::Encoding;
use super::marks::MarkLimits;
use super::message::{Message, Role};
use super::picture::Picture;
use super::room::Sizes;
use super::state::State;
use crate::model::{Model, Sequence};

/// A message and the pictures in it.
#[derive(Clone, Debug, PartialEq)]
pub struct Said {
    /// The message. Its `Part::Image`s stand for the pictures.
    pub message: Message,
    /// As many as the message has places for, in their order.
    pub pictures: Vec<Picture>,
}

impl From<Message> for Said {
    fn from(message: Message) -> Said {
        Said { message, pictures: Vec::new() }
    }
}

/// Pictures by their hash.
pub(super) type Looks = BTreeMap<[u8; 32], Look>;

/// What the tower made of a picture.
#[derive(Clone, Debug)]
pub(super) struct Look {
    /// Patch rows and columns.
    pub(super) grid: [usize; 2],
    /// Tokens it takes.
    pub(super) tokens: usize,
    /// What the tower still has to look at.
    pub(super) patches: Option<Patches>,
    /// Its rows then, `[tokens, D]`.
    pub(super) rows: Vec<f32>,
}

/// A conversation with a [`Chat`](super::Chat).
///
/// It holds the messages, what the vision tower made of their pictures, and the model's state after the tokens that the
/// model has read, so that the next answer costs the new tokens only. Messages may be changed at will: the next answer
/// renders all of them, and goes back to where the tokens first differ from those that were read. Several conversations
/// can live beside each other on one `Chat`; a session belongs to the `Chat` that answered in it first, and with another
/// one it starts over.
#[derive(Debug, Default)]
pub struct Session {
    pub(super) said: Vec<Said>,
    pub(super) looks: Looks,
    pub(super) state: State<Model>,
    pub(super) encoding: Encoding,
    pub(super) sizes: Sizes,
    /// Tokens of messages that were left out since the context was full. Where the rest begins depends on them.
    pub(super) gone: usize,
    /// The model that answered in it.
    pub(super) model: Option<u64>,
}

impl Session {
    /// An empty conversation.
    #[must_use]
    pub fn new() -> Session {
        Session::default()
    }

    /// A conversation that begins with instructions.
    #[must_use]
    pub fn with_system(text: impl Into<String>) -> Session {
        let mut session = Session::new();
        session.set_system(Some(text.into()));
        session
    }

    /// What was said.
    #[must_use]
    pub fn said(&self) -> &[Said] {
        &self.said
    }

    /// The messages of it.
    pub fn messages(&self) -> impl DoubleEndedIterator<Item = &Message> + ExactSizeIterator {
        self.said.iter().map(|said| &said.message)
    }

    /// Adds a message without pictures.
    pub fn push(&mut self, message: Message) {
        self.said.push(message.into());
    }

    /// Adds a message with the pictures that its `Part::Image`s stand for.
    pub fn push_with(&mut self, message: Message, pictures: Vec<Picture>) {
        self.said.push(Said { message, pictures });
    }

    /// Puts another conversation in place of this one. What both have in common is not read again.
    pub fn set(&mut self, said: Vec<Said>) {
        (self.said, self.gone) = (said, 0);
    }

    /// Sets, changes or removes the instructions at the beginning.
    pub fn set_system(&mut self, text: Option<String>) {
        self.said.drain(..self.first());
        if let Some(text) = text {
            self.said.insert(0, Message::system(text).into());
        }
    }

    /// Forgets all but the first so many messages, and gives the others.
    pub fn truncate(&mut self, messages: usize) -> Vec<Said> {
        let rest = self.said.split_off(messages.min(self.said.len()));
        if self.said.len() <= self.first() {
            self.gone = 0;
        }
        rest
    }

    /// Takes the last question back, and all that followed it.
    pub fn undo(&mut self) -> Vec<Said> {
        let last = self.last_question();
        last.map_or_else(Vec::new, |at| self.truncate(at))
    }

    /// Takes back what followed the last question, so that it can be answered again.
    pub fn retract(&mut self) -> Vec<Said> {
        let last = self.last_question();
        last.map_or_else(Vec::new, |at| self.truncate(at + 1))
    }

    /// Puts another message in the place of one, and takes back what followed it. Nothing happens where there is none.
    pub fn edit(&mut self, index: usize, said: Said) -> Vec<Said> {
        let mut rest = self.truncate(index);
        if !rest.is_empty() {
            self.said.push(said);
            rest.remove(0);
        }
        rest
    }

    /// The same conversation once more, to go on in another way. What the model has of it is shared until one of the two
    /// goes on, but for what DeltaNet layers remember: 19 MB at 2B.
    #[must_use]
    pub fn branch(&self) -> Session {
        let Session { said, looks, state, encoding, sizes, gone, model } = self;
        let (said, looks, encoding, sizes) = (said.clone(), looks.clone(), encoding.clone(), sizes.clone());
        Session { said, looks, state: state.fork(), encoding, sizes, gone: *gone, model: *model }
    }

    /// Forgets everything but the instructions at the beginning.
    pub fn clear(&mut self) {
        self.said.truncate(self.first());
    }

    /// From now on a conversation with this model. Tokens, rows of pictures and states that another one made mean nothing
    /// to it.
    pub(super) fn meet(&mut self, model: u64) {
        if self.model.replace(model).is_some_and(|before| before != model) {
            self.state.forget();
            self.looks.clear();
            self.encoding = Encoding::default();
            self.sizes = Sizes::default();
        }
    }

    /// Index of the first message that is no instruction.
    pub(super) fn first(&self) -> usize {
        self.said.iter().take_while(|said| said.message.role == Role::System).count()
    }

    /// Index of the last message of the user's.
    fn last_question(&self) -> Option<usize> {
        self.said.iter().rposition(|said| said.message.role == Role::User)
    }

    /// Tokens that the model holds of it.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.state.tokens().ids.len()
    }

    /// Memory that it takes: what the model remembers of it, places to go back to, rows of pictures.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let sequence = self.state.sequence().map_or(0, Sequence::bytes);
        let looks: usize = self.looks.values().map(|look| size_of_val(&look.rows[..])).sum();
        sequence + self.state.mark_bytes() + looks
    }

    /// How much may be kept for going back.
    pub fn set_mark_limits(&mut self, limits: MarkLimits) {
        self.state.limits = limits;
    }
}
