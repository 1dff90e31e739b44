//! Conversations that may go on: the last few, with what the model has read of them.
//!
//! A request brings its whole conversation. The one that is kept and has most messages in common with it is gone on with,
//! so that only what is new is read. Messages are compared loosely, for clients do not send back what they got to the
//! letter; what the model holds is compared token by token afterwards, and that decides.

use runtime::chat::{MarkLimits, Message, Role, Said, Session};

/// Conversations, the least recently used going first.
#[derive(Debug)]
pub(super) struct Store {
    kept: Vec<Kept>,
    most: usize,
    bytes: usize,
    clock: u64,
}

#[derive(Debug)]
struct Kept {
    session: Session,
    /// What else is in the prompt: no conversation is gone on with under other definitions of functions.
    terms: u64,
    used: u64,
    bytes: usize,
}

impl Store {
    /// Room for so many conversations, of so many bytes together.
    pub(super) fn new(most: usize, bytes: usize) -> Store {
        Store { kept: Vec::new(), most, bytes, clock: 0 }
    }

    /// A conversation that says `said`, with as much of it read as there is.
    pub(super) fn take(&mut self, terms: u64, mut said: Vec<Said>) -> Session {
        let candidates = self.kept.iter().enumerate().filter(|(_, kept)| kept.terms == terms);
        let best = candidates.map(|(at, kept)| (common(kept.session.said(), &said), kept.used, at)).max();
        let mut session = match best {
            Some((common, _, at)) if common > 0 => {
                // As it was said and answered: to the letter what the model has read.
                said[..common].clone_from_slice(&self.kept[at].session.said()[..common]);
                let goes_on = common + 1 >= self.kept[at].session.said().len();
                if goes_on { self.kept.swap_remove(at).session } else { self.kept[at].session.branch() }
            }
            _ => {
                let mut fresh = Session::new();
                fresh.set_mark_limits(MarkLimits { count: 8, bytes: self.bytes / 4 });
                fresh
            }
        };
        session.set(said);
        session
    }

    /// Keeps a conversation, as long as there is room.
    pub(super) fn put(&mut self, terms: u64, session: Session) {
        let pixels = session.said().iter().flat_map(|said| &said.pictures).map(|picture| picture.rgb().data.len());
        let bytes = session.bytes() + pixels.sum::<usize>();
        self.clock += 1;
        self.kept.push(Kept { session, terms, used: self.clock, bytes });
        while self.kept.len() > self.most || self.total() > self.bytes {
            let oldest = self.kept.iter().enumerate().min_by_key(|(_, kept)| kept.used).map(|(at, _)| at);
            let Some(at) = oldest else { break };
            self.kept.swap_remove(at);
        }
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.kept.len()
    }

    /// Memory that they take.
    pub(super) fn total(&self) -> usize {
        self.kept.iter().map(|kept| kept.bytes).sum()
    }
}

/// Messages that both begin with.
fn common(kept: &[Said], said: &[Said]) -> usize {
    kept.iter().zip(said).take_while(|(kept, said)| same(kept, said)).count()
}

fn same(kept: &Said, said: &Said) -> bool {
    let (a, b) = (&kept.message, &said.message);
    if a.role != b.role || kept.pictures != said.pictures {
        return false;
    }
    if a.role != Role::Assistant {
        return a.content == b.content && a.tool_call_id == b.tool_call_id;
    }
    // Reasoning is often left out, and the answer's text trimmed.
    let reasoning = b.reasoning.as_deref().unwrap_or_default().trim();
    let thought = a.reasoning.as_deref().unwrap_or_default().trim();
    (reasoning.is_empty() || reasoning == thought)
        && a.all_text().trim() == b.all_text().trim()
        && calls(a).eq(calls(b))
}

fn calls(message: &Message) -> impl Iterator<Item = (&str, &serde_json::Map<String, serde_json::Value>)> {
    message.tool_calls.iter().map(|call| (call.name.as_str(), &call.arguments))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(texts: &[&str]) -> Vec<Said> {
        let message = |(at, text): (usize, &&str)| match at % 2 {
            0 => Message::user(*text).into(),
            _ => Message::assistant(Some("because".into()), *text).into(),
        };
        texts.iter().enumerate().map(message).collect()
    }

    fn texts(store: &Store) -> Vec<String> {
        let mut all: Vec<(u64, String)> =
            store.kept.iter().map(|k| (k.used, k.session.messages().map(Message::all_text).collect())).collect();
        all.sort();
        all.into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn a_conversation_that_goes_on_is_taken_and_one_that_parts_is_copied() {
        let mut store = Store::new(8, usize::MAX);
        let first = store.take(0, said(&["a", "b"]));
        store.put(0, first);
        assert_eq!(store.count(), 1);
        // What a client sends back has lost its reasoning and some white space.
        let mut back = said(&["a", " b\n", "c"]);
        back[1].message.reasoning = None;
        let second = store.take(0, back);
        assert_eq!(store.count(), 0, "it goes on");
        assert_eq!(second.said()[1], said(&["a", "b"])[1], "as it was said");
        assert_eq!(second.said().len(), 3);
        store.put(0, second);
        // Asked again, the last answer goes.
        let again = store.take(0, said(&["a", "b"]));
        assert_eq!(store.count(), 0);
        let mut longer = again;
        longer.set(said(&["a", "b", "c", "d"]));
        store.put(0, longer);
        let other = store.take(0, said(&["a", "x"]));
        assert_eq!((store.count(), other.said().len()), (1, 2), "the one it parts from stays");
        store.put(0, other);
        assert_eq!(texts(&store), ["abcd", "ax"]);
        let fresh = store.take(1, said(&["a", "b", "c", "d"]));
        assert_eq!((store.count(), fresh.said().len()), (2, 4), "other functions, another prompt");
    }

    #[test]
    fn the_least_recently_used_goes() {
        let mut store = Store::new(2, usize::MAX);
        for text in ["a", "b"] {
            let session = store.take(0, said(&[text]));
            store.put(0, session);
        }
        let a = store.take(0, said(&["a", "1", "2"]));
        store.put(0, a);
        let c = store.take(0, said(&["c"]));
        store.put(0, c);
        assert_eq!(texts(&store), ["a12", "c"]);
    }

    #[test]
    fn pictures_count_and_tell_apart() {
        use runtime::chat::{Part, Picture};
        use runtime::image::Rgb;
        let shown = |byte: u8| {
            let picture = Picture::new(Rgb { width: 10, height: 10, data: vec![byte; 300] });
            let message = Message::parts(Role::User, vec![Part::Image { source: None }]);
            vec![Said { message, pictures: vec![picture] }]
        };
        assert_eq!(common(&shown(1), &shown(1)), 1);
        assert_eq!(common(&shown(1), &shown(2)), 0);
        let mut store = Store::new(8, 700);
        for byte in 0..3 {
            let session = store.take(0, shown(byte));
            store.put(0, session);
        }
        assert_eq!((store.count(), store.total()), (2, 600));
    }
}
