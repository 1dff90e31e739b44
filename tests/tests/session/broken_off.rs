//! Breaking off at every event of a turn.

use super::*;
use runtime::Stop;
use runtime::chat::Cancel;

/// A conversation of one turn, and the question that follows.
fn begun(chat: &mut Chat) -> (Session, Said) {
    let mut session = Session::with_system("Say something.");
    chat.send(&mut session, [asks("Hello there")], &ask(4), &mut go).unwrap();
    (session, shows("Look", 1, "at this: what is it?"))
}

#[test]
fn a_turn_broken_off_at_any_event_leaves_a_conversation_that_goes_on() {
    let (mut chat, _device) = load(1024);
    // The first picture loads the tower, which the others find there.
    chat.send(&mut Session::new(), [shows("", 2, "")], &ask(1), &mut go).unwrap();
    let (mut session, question) = begun(&mut chat);
    let mut kinds = Vec::new();
    let whole = chat
        .send(&mut session, [question.clone()], &ask(8), &mut |event| {
            kinds.push(match event {
                Event::Patches { .. } => "patches",
                Event::Image { .. } => "image",
                Event::Prompt { .. } => "prompt",
                Event::Token { .. } => "token",
                Event::Text(_) => "text",
                other => panic!("{other:?}"),
            });
            ControlFlow::Continue(())
        })
        .unwrap();
    for kind in ["patches", "image", "prompt", "token", "text"] {
        assert!(kinds.contains(&kind), "{kinds:?}");
    }
    for (at, kind) in kinds.iter().copied().enumerate() {
        let (mut session, question) = begun(&mut chat);
        let before = session.said().to_vec();
        let (mut left, mut text) = (at, String::new());
        // By hand, or by a handle that somebody else has.
        let cancel = Cancel::new();
        let ask_cut = Ask { cancel: Some(cancel.clone()), ..ask(8) };
        let cut = chat
            .send(&mut session, [question.clone()], &ask_cut, &mut |event| {
                if let Event::Text(more) = event {
                    text.push_str(more);
                }
                let now = left == 0;
                left = left.saturating_sub(1);
                match now && at % 2 == 0 {
                    true => ControlFlow::Break(()),
                    false => {
                        if now {
                            cancel.cancel();
                        }
                        ControlFlow::Continue(())
                    }
                }
            })
            .unwrap();
        assert_eq!((cut.stop, &cut.text), (Stop::Cancelled, &text), "event {at}, {}", kind);
        assert_eq!(cut.answered, !cut.tokens.is_empty());
        assert!(whole.tokens.starts_with(&cut.tokens));
        if cut.answered {
            assert_eq!(session.said().last().unwrap().message.all_text(), text);
        } else {
            assert_eq!(session.said(), before, "nothing was said");
            assert!(["patches", "image", "prompt"].contains(&kind));
        }
        // The same question again, and another one behind what there is.
        if cut.answered {
            session.undo();
        }
        let again = chat.send(&mut session, [question], &ask(8), &mut go).unwrap();
        assert_eq!((&again.tokens, &again.text), (&whole.tokens, &whole.text), "event {at}, {}", kind);
        let next = chat.send(&mut session, [asks("And then?")], &ask(3), &mut go).unwrap();
        let said = session.said();
        let (fresh, _) = afresh(&mut chat, &said[..said.len() - 1], &ask(3));
        assert_eq!(next.tokens, fresh.tokens);
    }
}

/// The model's own gibberish is full of lone bytes and cut characters.
#[test]
fn an_answer_cut_inside_a_character_is_text_and_the_conversation_goes_on() {
    let (mut chat, _device) = load(1024);
    let mut cut_inside = 0;
    for max_new in 1..12 {
        let mut session = Session::new();
        let mut text = String::new();
        let outcome = chat
            .send(&mut session, [asks("Tell me more")], &ask(max_new), &mut |event| {
                if let Event::Text(more) = event {
                    text.push_str(more);
                }
                ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!(text, outcome.text);
        assert_eq!(text, chat.tokenizer().decode(&outcome.tokens));
        cut_inside += usize::from(text.ends_with('\u{fffd}'));
        let next = chat.send(&mut session, [asks("Go on")], &ask(3), &mut go).unwrap();
        let said = session.said();
        let (fresh, _) = afresh(&mut chat, &said[..said.len() - 1], &ask(3));
        assert_eq!(next.tokens, fresh.tokens);
    }
    assert!(cut_inside > 0, "no answer ended inside a character");
}
