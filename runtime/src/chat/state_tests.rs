//! A state after any history is what a fresh one would be.

use std::ops::ControlFlow;

use super::*;
use crate::chat::toy::{Memory, PAD, Toy, VOCAB};

fn go(_: usize) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// `PAD`s in a row are a picture whose hash and row are `look`.
fn tokens(parts: &[(&[u32], u8)]) -> Tokens {
    let mut tokens = Tokens::default();
    for (ids, look) in parts {
        if *look > 0 {
            let (at, hash) = (tokens.ids.len(), [*look; 32]);
            tokens.spans.push(Span { at, tokens: ids.len(), hash, grid: [2, 2 * ids.len()] });
        }
        tokens.ids.extend_from_slice(ids);
    }
    tokens
}

fn rows(tokens: &Tokens, from: usize) -> Vec<f32> {
    let spans = tokens.spans.iter().filter(|span| span.at >= from);
    spans.flat_map(|span| vec![f32::from(span.hash[0]); span.tokens]).collect()
}

/// What a model remembers that never read anything else.
fn fresh(tokens: &Tokens) -> Memory {
    let mut toy = Toy::default();
    if !tokens.ids.is_empty() {
        let piece = Piece { ids: &tokens.ids, grids: &[], rows: &rows(tokens, 0) };
        toy.append(&piece, &[], &mut go).unwrap();
    }
    let mut memory = Memory::default();
    toy.swap(&mut memory);
    memory
}

/// Rewinds and appends; gives how many tokens were held already.
fn read(state: &mut State<Toy>, toy: &mut Toy, wanted: &Tokens, marks: &[usize]) -> usize {
    let mut seat = state.seat(toy);
    let held = seat.rewind(wanted);
    assert!(seat.append(wanted, &rows(wanted, held), marks, &mut go).unwrap());
    held
}

fn check(state: &State<Toy>) {
    assert_eq!(state.sequence(), Some(&fresh(state.tokens())));
}

#[test]
fn a_picture_is_common_only_with_the_same_picture() {
    let pads = [PAD; 4];
    let with = |look| tokens(&[(&[1, 2], 0), (&pads, look), (&[3], 0)]);
    assert_eq!(with(7).common(&with(7)), 7);
    assert_eq!(with(7).common(&with(8)), 2);
    // Written out, as nobody should; and a longer one whose first tokens are the same.
    assert_eq!(with(7).common(&with(0)), 2);
    assert_eq!(with(0).common(&with(7)), 2);
    let longer = tokens(&[(&[1, 2], 0), (&[PAD; 6], 7)]);
    assert_eq!(with(7).common(&longer), 2);
    // What differs behind it takes nothing from it.
    let other = tokens(&[(&[1, 2], 0), (&pads, 7), (&[4], 0)]);
    assert_eq!(with(7).common(&other), 6);
    assert_eq!(other.common(&tokens(&[])), 0);
}

#[test]
fn what_continues_is_read_from_where_it_is_and_what_differs_from_the_last_mark() {
    let (mut state, mut toy) = (State::default(), Toy::default());
    assert_eq!(read(&mut state, &mut toy, &tokens(&[(&[1, 2, 3, 4], 0)]), &[2]), 0);
    assert_eq!(read(&mut state, &mut toy, &tokens(&[(&[1, 2, 3, 4, 5], 0)]), &[]), 4);
    // Token 3 differs: back to the mark behind token 2; the mark at 4 is gone with it.
    assert_eq!(read(&mut state, &mut toy, &tokens(&[(&[1, 2, 9, 4, 5], 0)]), &[]), 2);
    assert_eq!(read(&mut state, &mut toy, &tokens(&[(&[1, 2, 9, 4, 6], 0)]), &[]), 2);
    // The very same again needs its last token, for what follows it.
    assert_eq!(read(&mut state, &mut toy, &tokens(&[(&[1, 2, 9, 4, 6], 0)]), &[]), 2);
    assert_eq!(read(&mut state, &mut toy, &tokens(&[(&[7], 0)]), &[]), 0);
    check(&state);
    assert_eq!(toy.computed, 4 + 1 + 3 + 3 + 3 + 1);
}

/// Conversations that grow, are cut, changed, broken off and fail: what is held is always what a fresh model would hold.
#[test]
fn any_history_leaves_what_a_fresh_model_would_have() {
    let mut seed = 0x1234_5678_9abc_def1u64;
    let mut next = move |n: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed % n as u64) as usize
    };
    let (mut broken, mut failed, mut reused) = (0, 0, 0);
    for _ in 0..300 {
        let (mut a, mut b, mut toy) = (State::default(), State::default(), Toy::default());
        let mut wanted = tokens(&[(&[1], 0)]);
        for _ in 0..30 {
            // Two conversations take turns on one model.
            let state: &mut State<Toy> = if next(3) == 0 { &mut a } else { &mut b };
            match next(4) {
                0 => wanted.truncate(wanted.outside(1 + next(wanted.ids.len()))),
                1 if next(2) == 0 => {
                    let (look, count) = (1 + next(2) as u8, 2 + next(3));
                    let at = wanted.ids.len();
                    wanted.ids.extend(vec![PAD; count]);
                    wanted.spans.push(Span { at, tokens: count, hash: [look; 32], grid: [2, 2 * count] });
                }
                _ => wanted.ids.extend((0..1 + next(6)).map(|_| next(3) as u32)),
            }
            let marks = [next(wanted.ids.len() + 1), next(wanted.ids.len() + 1)];
            state.limits = MarkLimits { count: 1 + next(4), bytes: usize::MAX };
            toy.fails_after = (next(6) == 0).then(|| next(3));
            let mut left = if next(6) == 0 { next(wanted.ids.len()) } else { usize::MAX };
            let mut seat = state.seat(&mut toy);
            let held = seat.rewind(&wanted);
            reused += held;
            assert!(held < wanted.ids.len() && wanted.ids[..held] == seat.held_tokens().ids[..]);
            let read = seat.append(&wanted, &rows(&wanted, held), &marks, &mut |_| {
                let flow = if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
                left = left.saturating_sub(1);
                flow
            });
            match read {
                Ok(true) => {
                    for _ in 0..next(5) {
                        if seat.push(next(VOCAB) as u32 % 3).is_err() {
                            failed += 1;
                            break;
                        }
                    }
                }
                Ok(false) => broken += 1,
                Err(_) => failed += 1,
            }
            drop(seat);
            toy.fails_after = None;
            // What was answered stays in the conversation, mostly.
            if next(3) > 0 && !state.tokens().ids.is_empty() {
                wanted = state.tokens().clone();
            }
            assert!(state.mark_bytes() <= 500);
            check(state);
        }
    }
    assert!(broken > 100 && failed > 100 && reused > 10_000, "{broken} {failed} {reused}");
}
