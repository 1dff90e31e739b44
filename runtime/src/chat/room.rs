//! Where the prompt of a conversation that has outgrown the context begins.
//!
//! If one exchange more were left out each time, nothing behind the instructions would be where it was, and all of it would
//! have to be read again at every turn. So the beginning moves in blocks of a quarter of the context, counted in tokens of
//! all that was ever said: it stands still until as much has been said anew, and wherever the same conversation comes from
//! (a session that has left its oldest messages out before, a client that sends the whole of it), it is the same.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::encoding::Shown;
use super::error::ChatError;
use super::message::{Message, Part, Role};
use super::template::json;
use super::tokenizer::Tokenizer;

/// Parts of the context that are left out at once. The finer ones are for instructions or questions that fill most of it.
const BLOCKS: [usize; 2] = [4, 16];

/// What messages take, each counted once.
#[derive(Clone, Debug, Default)]
pub(super) struct Sizes {
    known: HashMap<u64, usize>,
}

impl Sizes {
    /// Tokens of each message: of what templates show of it for sure, so rather too few. `pictures` are those of all
    /// messages in order.
    pub(super) fn of(
        &mut self,
        messages: &[Message],
        pictures: &[Shown],
        tokenizer: &Tokenizer,
    ) -> Result<Vec<usize>, ChatError> {
        let mut pictures = pictures.iter();
        let (mut known, mut sizes) = (HashMap::with_capacity(messages.len()), Vec::with_capacity(messages.len()));
        for message in messages {
            let text = shown(message);
            let mut hash = DefaultHasher::new();
            text.hash(&mut hash);
            let hash = hash.finish();
            let size = match self.known.get(&hash) {
                Some(&size) => size,
                None => tokenizer.encode_plain(&text)?.len(),
            };
            known.insert(hash, size);
            let looks: usize = pictures.by_ref().take(message.images()).map(|picture| picture.tokens).sum();
            sizes.push(size + looks);
        }
        self.known = known;
        Ok(sizes)
    }
}

/// The text of a message. Reasoning is no part of it: templates leave it away in all answers but the last.
fn shown(message: &Message) -> String {
    let mut out = String::new();
    for part in &message.content {
        if let Part::Text(text) = part {
            out.push_str(text);
        }
    }
    if message.role == Role::Assistant
        && let Some((_, answer)) = out.rsplit_once("</think>")
    {
        out = answer.to_owned();
    }
    for call in &message.tool_calls {
        out.push_str(&call.name);
        call.arguments.values().for_each(|value| out.push_str(&json(value)));
    }
    out
}

/// A place where a prompt may begin behind the instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Start {
    /// The first message that stays.
    pub(super) message: usize,
    /// Tokens that were left out before it.
    pub(super) gone: usize,
    /// Tokens that are left for sure, the instructions included.
    pub(super) rest: usize,
}

/// The places in the order in which they are to be tried; the first leaves everything in, the last the last question only.
/// `gone` tokens were left out before `messages`, whose instructions are the first `first` ones.
pub(super) fn starts(messages: &[Message], sizes: &[usize], first: usize, gone: usize, max_ctx: usize) -> Vec<Start> {
    let head: usize = sizes[..first].iter().sum();
    let mut left: usize = sizes[first..].iter().sum();
    let mut all = vec![Start { message: first, gone, rest: head + left }];
    let mut before = gone;
    for (index, size) in sizes.iter().enumerate().skip(first) {
        // What lies between two questions is an exchange.
        if index > first && messages[index].role == Role::User {
            all.push(Start { message: index, gone: before, rest: head + left });
        }
        before = before.saturating_add(*size);
        left -= size;
    }
    let mut tried = vec![all[0]];
    for parts in BLOCKS {
        let block = (max_ctx / parts).max(1);
        let later = all.windows(2).filter(|pair| pair[0].gone / block < pair[1].gone / block).map(|pair| pair[1]);
        tried.extend(
            later.filter(|start| tried.last().is_some_and(|last| last.message < start.message)).collect::<Vec<_>>(),
        );
    }
    if let Some(last) = all.last().filter(|last| tried.last() != Some(last)) {
        tried.push(*last);
    }
    tried
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A conversation of exchanges of so many tokens.
    fn talk(exchanges: &[usize]) -> (Vec<Message>, Vec<usize>) {
        let (mut messages, mut sizes) = (vec![Message::system("s")], vec![10]);
        for &tokens in exchanges {
            messages.extend([Message::user("q"), Message::assistant(None, "a")]);
            sizes.extend([tokens / 2, tokens - tokens / 2]);
        }
        (messages, sizes)
    }

    fn begins(messages: &[Message], sizes: &[usize], gone: usize, max_ctx: usize) -> Start {
        let all = starts(messages, sizes, 1, gone, max_ctx);
        *all.iter().find(|start| start.rest <= max_ctx).unwrap_or(all.last().unwrap())
    }

    #[test]
    fn the_beginning_holds_still_and_a_session_that_has_left_out_comes_to_the_same_place() {
        let max_ctx = 400;
        let exchanges: Vec<usize> = (0..80).map(|i| 15 + i * 7 % 20).collect();
        let (messages, sizes) = talk(&exchanges);
        let (mut moved, mut last, mut cut) = (0, 1, Start { message: 1, gone: 0, rest: 0 });
        for turn in 1..80 {
            let end = 1 + 2 * turn;
            let fresh = begins(&messages[..end], &sizes[..end], 0, max_ctx);
            assert!(fresh.rest <= max_ctx, "{turn}: {fresh:?}");
            assert!(fresh.message == 1 || fresh.rest >= max_ctx / 2, "{turn}: {fresh:?} leaves out too much");
            moved += usize::from(fresh.message != last);
            last = fresh.message;
            let kept = [&messages[..1], &messages[cut.message..end]].concat();
            let own = [&sizes[..1], &sizes[cut.message..end]].concat();
            let session = begins(&kept, &own, cut.gone, max_ctx);
            let message = cut.message + session.message - 1;
            assert_eq!((message, session.gone, session.rest), (fresh.message, fresh.gone, fresh.rest), "{turn}");
            cut = fresh;
        }
        let total: usize = exchanges.iter().sum();
        assert!(moved <= total / (max_ctx / 4), "it moved {moved} times");
    }

    #[test]
    fn large_exchanges_are_left_out_in_finer_steps_and_the_last_question_stays() {
        let (messages, sizes) = talk(&[30, 30, 500, 30, 30]);
        let all = starts(&messages, &sizes, 1, 0, 400);
        let at: Vec<usize> = all.iter().map(|start| start.message).collect();
        assert_eq!(at, [1, 7, 9]);
        assert_eq!(all.last().map(|last| last.rest), Some(40));
        let (messages, sizes) = talk(&[500]);
        assert_eq!(starts(&messages, &sizes, 1, 0, 400).len(), 1, "it cannot go");
        assert_eq!(starts(&messages[..1], &sizes[..1], 1, 0, 0).len(), 1);
    }
}
