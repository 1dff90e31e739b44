//! Faults that conversations once had.

use super::*;
use runtime::Stop;
use runtime::chat::ToolCall;
use runtime::model::StateError;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

/// A path of this test's own.
fn file(name: &str) -> PathBuf {
    let folder = bundle().with_file_name(name);
    std::fs::create_dir_all(&folder).unwrap();
    folder.join("session")
}

/// A file whose checksum is right, whatever its head says.
fn crafted(path: &Path, head: &Value) {
    let head = head.to_string();
    let mut bytes = b"qwen35-c".to_vec();
    bytes.extend(1u32.to_le_bytes());
    bytes.extend((head.len() as u64).to_le_bytes());
    bytes.extend(head.as_bytes());
    let hash = Sha256::digest(&bytes);
    bytes.extend(hash);
    std::fs::write(path, bytes).unwrap();
}

/// It went on with the rows of pictures and the tokens that the first chat had made.
#[test]
fn a_conversation_that_another_chat_answers_starts_over() {
    let ((mut one, _first), (mut other, _second)) = (load(1024), load(1024));
    let mut session = Session::new();
    one.send(&mut session, [shows("Look", 3, "what is it?")], &ask(4), &mut go).unwrap();
    let said = [session.said(), &[asks("And?")]].concat();
    let mut pictures = 0;
    let got = other
        .send(&mut session, [asks("And?")], &ask(4), &mut |event| {
            pictures += usize::from(matches!(event, Event::Image { .. }));
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!((got.reused_tokens, pictures), (0, 1));
    let (fresh, _) = afresh(&mut other, &said, &ask(4));
    assert_eq!(fresh.tokens, got.tokens);
}

/// It was written as this model's own, and taken for it when it was read.
#[test]
fn what_another_model_remembers_is_not_saved_as_ones_own() {
    let ((mut one, _first), (other, _second)) = (load(1024), load(1024));
    let path = file("another");
    let mut session = Session::new();
    one.send(&mut session, [asks("Hello")], &ask(4), &mut go).unwrap();
    other.save(&session, &path).unwrap();
    let mut restored = one.restore(&path).unwrap();
    assert_eq!((restored.session.said(), restored.unread), (session.said(), None));
    let next = one.send(&mut restored.session, [asks("And?")], &ask(4), &mut go).unwrap();
    assert_eq!(next.reused_tokens, 0);
    let snapshot = one.with_state(&mut session, |model| model.snapshot());
    let error = other.model().save_snapshot(&snapshot, &mut Vec::new()).unwrap_err();
    assert!(matches!(error, StateError::OtherModel { .. }), "{error}");
}

/// The program ended with a slice out of range.
#[test]
fn a_file_with_a_place_for_a_picture_that_is_not_there_costs_a_turn() {
    let (mut chat, _device) = load(1024);
    let path = file("places");
    let image = json!([{"type": "image"}]);
    let messages = json!([{"role": "system", "content": image}, {"role": "user", "content": "x"}]);
    crafted(&path, &json!({"messages": messages, "pictures": [], "tokens": [], "spans": []}));
    let mut session = chat.restore(&path).unwrap().session;
    let error = chat.answer(&mut session, &ask(4), &mut go).unwrap_err().to_string();
    assert!(error.contains("1 places for pictures, but the conversation has 0"), "{error}");
    session.set(vec![asks("x")]);
    chat.answer(&mut session, &ask(4), &mut go).unwrap();
}

/// Sums of them overflowed.
#[test]
fn a_file_with_pictures_outside_of_its_tokens_is_refused() {
    let (chat, _device) = load(1024);
    let path = file("spans");
    let span = |at: u64, tokens: u64| json!({"at": at, "tokens": tokens, "grid": [2, 2], "sha256": "0".repeat(64)});
    for spans in [
        vec![span(u64::MAX, 2)],
        vec![span(1, u64::MAX)],
        vec![span(3, 1)],
        vec![span(0, 0)],
        vec![span(1, 2), span(0, 1)],
    ] {
        crafted(&path, &json!({"messages": [], "pictures": [], "tokens": [1, 2, 3], "spans": spans}));
        let error = chat.restore(&path).unwrap_err().to_string();
        assert!(error.contains("where none can be"), "{error}");
    }
}

/// A file that an earlier save had left behind kept its permissions.
#[test]
fn what_others_could_read_is_not_written_into() {
    use std::os::unix::fs::PermissionsExt;
    let (chat, _device) = load(1024);
    let path = file("left");
    let aside = path.with_file_name(format!("session.{}.new", std::process::id()));
    std::fs::write(&aside, "x").unwrap();
    std::fs::set_permissions(&aside, std::fs::Permissions::from_mode(0o644)).unwrap();
    chat.save(&Session::with_system("secret"), &path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

/// As many tokens were taken for the same ones.
#[test]
fn what_is_done_with_a_lent_state_leaves_no_trace() {
    let (mut chat, _device) = load(1024);
    let (mut one, mut other) = (Session::new(), Session::new());
    chat.send(&mut one, [asks("7")], &ask(1), &mut go).unwrap();
    chat.send(&mut other, [asks("8")], &ask(1), &mut go).unwrap();
    let foreign = chat.with_state(&mut other, |model| model.snapshot());
    let own = bits(&mut chat, &mut one);
    chat.with_state(&mut one, |model| {
        assert_eq!(model.len(), foreign.len());
        model.restore(&foreign).unwrap();
    });
    assert!(bits(&mut chat, &mut one) == own, "it is another conversation's");
}

/// "The prompt has 40 tokens but the context holds 40" told nobody what was wrong.
#[test]
fn a_prompt_that_just_fits_is_told_what_an_answer_needs() {
    let (mut chat, _device) = load(1024);
    let prompt = chat.send(&mut Session::new(), [asks("Hello")], &ask(4), &mut go).unwrap().prompt_tokens;
    let (mut chat, _device) = load(prompt);
    let error = chat.send(&mut Session::new(), [asks("Hello")], &ask(4), &mut go).unwrap_err().to_string();
    for part in [format!("has {prompt} tokens"), format!("holds {prompt}, and an answer needs one"), "--max-ctx".into()]
    {
        assert!(error.contains(&part), "{error}");
    }
    let (mut chat, _device) = load(prompt + 1);
    let got = chat.send(&mut Session::new(), [asks("Hello")], &ask(4), &mut go).unwrap();
    assert_eq!((got.tokens.len(), got.stop), (1, Stop::Context));
}

/// Where the oldest calls had been left out, a new one got the name of one that was still there.
#[test]
fn a_call_gets_a_name_that_no_other_has() {
    let (mut chat, _device) = load(2048);
    let call = |id: &str| ToolCall { id: Some(id.to_owned()), name: "now".into(), arguments: Map::new() };
    let earlier = Message { tool_calls: vec![call("call_7"), call("x")], ..Message::assistant(None, "") };
    let mut session = Session::new();
    session.set(vec![asks("When?"), earlier.into(), Message::tool(None, "5").into(), asks("And now?")]);
    let tools = runtime::chat::Tools::from_json(r#"[{"name": "now"}]"#).unwrap();
    let hold = runtime::chat::Hold::Calls(runtime::chat::ToolChoice::Function("now".into()));
    let outcome = chat.answer(&mut session, &Ask { tools: Some(&tools), hold, ..ask(60) }, &mut go).unwrap();
    assert_eq!(outcome.calls[0].id.as_deref(), Some("call_8"));
}
