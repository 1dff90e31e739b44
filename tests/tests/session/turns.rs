//! Turns, pictures, undoing and branches.

use super::*;

/// Commands that one pass through the layers and the head takes.
fn commands_of_a_pass(chat: &Chat) -> u64 {
    let text = &chat.model().bundle().manifest.text;
    (text.layers.len() * (3 + text.down_slices) + text.head_parts) as u64
}

/// Answers, and sees that a session that reads all of it anew says the same, bit for bit.
fn checked(chat: &mut Chat, session: &mut Session, said: Said, max_new: usize) -> Outcome {
    let ask = ask(max_new);
    let outcome = chat.send(session, [said], &ask, &mut go).unwrap();
    let own = bits(chat, session);
    let (last, before) = session.said().split_last().unwrap();
    assert_eq!(last.message.all_text(), outcome.text);
    let (fresh, wanted) = afresh(chat, before, &ask);
    assert_eq!((&fresh.text, &fresh.tokens), (&outcome.text, &outcome.tokens));
    assert_eq!((fresh.prompt_tokens, fresh.image_tokens), (outcome.prompt_tokens, outcome.image_tokens));
    assert!(own == wanted, "the same text, but other bits");
    outcome
}

#[test]
fn twenty_turns_with_pictures_undo_and_branches_are_what_reading_all_anew_gives() {
    let (mut chat, _device) = load(4096);
    let pass = commands_of_a_pass(&chat);
    let mut session = Session::with_system("Say something.");
    let mut branches = Vec::new();
    for turn in 0..20 {
        let said = match turn {
            2 | 9 | 13 | 16 => shows("Look:", turn, &format!("what is it? {turn}")),
            // A picture once more: it is not encoded again.
            18 => shows("", 16, "and this?"),
            _ => asks(&format!("Question {turn}, and then some more words.")),
        };
        match turn {
            5 => {
                let taken = session.undo();
                assert_eq!(taken.len(), 2);
                assert!(taken[0].message.all_text().starts_with("Question 4"));
            }
            11 => {
                session.undo();
                session.undo();
            }
            7 | 14 => branches.push(session.branch()),
            15 => {
                let rest = session.edit(1, asks("Quite another beginning."));
                assert!(rest.len() > 10 && session.said().len() == 2);
                session.undo();
            }
            _ => {}
        }
        let pictures = usize::from(said.pictures.len() == 1 && turn != 18);
        let outcome = checked(&mut chat, &mut session, said, 3 + turn % 4);
        let (new, steps) = (outcome.prompt_tokens - outcome.reused_tokens, outcome.timing.steps);
        println!(
            "turn {turn}: {} tokens, {new} new, {steps} steps, {} commands",
            outcome.prompt_tokens, outcome.timing.counters.commands
        );
        if turn > 0 && turn != 15 {
            assert!(outcome.reused_tokens > 0);
        }
        if pictures == 0 {
            assert!(new < 120, "{new} tokens were read");
            assert_eq!(outcome.timing.counters.commands, pass * (1 + steps as u64), "one pass for the prompt");
        }
    }
    for mut branch in branches {
        checked(&mut chat, &mut branch, asks("And on another branch?"), 4);
        checked(&mut chat, &mut session, asks("And on the first one?"), 4);
    }
}

#[test]
fn an_answer_again_reads_nothing_but_the_end_of_the_prompt() {
    let (mut chat, _device) = load(2048);
    let mut session = Session::new();
    let long = "a long question 7 ".repeat(12);
    let first = checked(&mut chat, &mut session, asks(&long), 5);
    let rest = session.retract();
    assert_eq!(rest.len(), 1);
    let again = chat.answer(&mut session, &ask(5), &mut go).unwrap();
    assert_eq!((&again.text, &again.tokens), (&first.text, &first.tokens));
    assert!(again.prompt_tokens - again.reused_tokens < 8, "{again:?}");
    // Another question in its place: all before it is there.
    session.undo();
    let other = checked(&mut chat, &mut session, asks("short"), 5);
    assert!(other.reused_tokens > 0);
}

#[test]
fn two_conversations_take_turns_on_one_model() {
    let (mut chat, _device) = load(2048);
    let (mut a, mut b) = (Session::with_system("You are a."), Session::with_system("You are b."));
    for turn in 0..4 {
        for session in [&mut a, &mut b] {
            let outcome = checked(&mut chat, session, asks(&format!("turn {turn}")), 4);
            assert!(turn == 0 || outcome.prompt_tokens - outcome.reused_tokens < 60, "{outcome:?}");
        }
    }
}

/// What a turn cannot do costs that turn.
#[test]
fn an_error_leaves_the_conversation_as_it_was() {
    let (mut chat, _device) = load(512);
    let mut session = Session::new();
    checked(&mut chat, &mut session, asks("Hello"), 4);
    let before = session.said().to_vec();
    let thin = Picture::new(Rgb { width: 2000, height: 2, data: vec![0; 12_000] });
    let parts = || Message::parts(Role::User, vec![Part::Image { source: None }]);
    let bad = [
        (Said { message: parts(), pictures: vec![thin] }, "longer than 200 to 1"),
        (Said { message: parts(), pictures: Vec::new() }, "places for pictures"),
        (asks(&"a7".repeat(300)), "the context holds 512"),
    ];
    for (said, wanted) in bad {
        let error = chat.send(&mut session, [said], &ask(4), &mut go).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
        assert_eq!(session.said(), before);
    }
    let error = chat.send(&mut session, [asks("x")], &ask(0), &mut go).unwrap_err().to_string();
    assert!(error.contains("max_new"), "{error}");
    let next = checked(&mut chat, &mut session, asks("And now?"), 4);
    assert!(next.reused_tokens > 0);
}
