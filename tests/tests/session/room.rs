//! Conversations that have outgrown the context.

use super::*;
use runtime::chat::Overflow;

const CONTEXT: usize = 1024;
/// The most that a turn of these adds.
const TURN: usize = 120;

fn dropping() -> Ask<'static> {
    Ask { overflow: Overflow::DropOldest, ..ask(4) }
}

fn question(turn: usize) -> Said {
    asks(&format!("Question {turn}, and then some more words that make it {turn} words longer."))
}

/// Tokens that were read in each turn after the first overflow; `whole`: all of the conversation is given anew in each.
fn read_after_overflow(chat: &mut Chat, session: &mut Session, whole: bool) -> Vec<usize> {
    let (mut said, mut over, mut read) = (session.said().to_vec(), false, Vec::new());
    for turn in 0.. {
        said.push(question(turn));
        if whole {
            session.set(said.clone());
        } else {
            session.push(said.last().unwrap().message.clone());
        }
        let outcome = chat.answer(session, &dropping(), &mut go).unwrap();
        said.push(session.said().last().unwrap().clone());
        println!("{turn}: {} of {}, {} left out", outcome.reused_tokens, outcome.prompt_tokens, outcome.dropped);
        if over {
            read.push(outcome.prompt_tokens - outcome.reused_tokens);
        }
        over |= outcome.dropped > 0;
        if read.len() == 15 {
            // A client that was never here comes to the same prompt.
            let mut fresh = Session::new();
            fresh.set(said[..said.len() - 1].to_vec());
            let wanted = chat.answer(&mut fresh, &dropping(), &mut go).unwrap();
            assert_eq!((&wanted.tokens, wanted.prompt_tokens), (&outcome.tokens, outcome.prompt_tokens));
            assert!(outcome.prompt_tokens > CONTEXT / 2, "too little is left");
            return read;
        }
    }
    unreachable!()
}

/// One exchange more was left out in each turn, so that nothing behind the instructions was where it had been: of a
/// conversation that was given whole, one token was found again in each.
#[test]
fn most_turns_after_the_context_is_full_read_their_new_tokens_only() {
    let (mut chat, _device) = load(CONTEXT);
    for whole in [false, true] {
        let read = read_after_overflow(&mut chat, &mut Session::with_system("Say something."), whole);
        let new = read.iter().filter(|&&tokens| tokens <= TURN).count();
        assert!(new >= 10, "{read:?}");
    }
}

/// What was left out counts after a conversation has been in a file, too.
#[test]
fn a_saved_conversation_goes_on_from_where_it_began() {
    let (mut chat, _device) = load(CONTEXT);
    let file = bundle().parent().unwrap().join("room.session");
    let mut session = Session::new();
    let mut restored = None;
    for turn in 0..40 {
        let outcome = chat.send(&mut session, [question(turn)], &dropping(), &mut go).unwrap();
        if let Some(other) = &mut restored {
            let own = chat.send(other, [question(turn)], &dropping(), &mut go).unwrap();
            assert_eq!((own.tokens, own.dropped), (outcome.tokens, outcome.dropped), "{turn}");
        } else if outcome.dropped > 0 {
            chat.save(&session, &file).unwrap();
            restored = Some(chat.restore(&file).unwrap().session);
        }
    }
    assert!(restored.is_some());
}
