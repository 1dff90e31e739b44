use std::ops::ControlFlow;

use super::*;
use crate::chat::sampler::Sampling;
use crate::chat::{Grammars, Hold};
use serde_json::json;

const VOCAB: usize = 2048;

fn tokenizer() -> Tokenizer {
    Tokenizer::from_json(include_bytes!("../../tests/fixtures/tokenizer.json")).unwrap()
}

/// What comes of tokens that spell these pieces, each alone; and why it ends.
fn written(ask: &Ask<'_>, pieces: &[&str]) -> (Outcome, Option<Stop>) {
    let tokenizer = tokenizer();
    let mut sampler = Sampler::new(Sampling::default(), VOCAB).unwrap();
    let (mut outcome, mut event) = (Outcome::default(), |_: Event<'_>| ControlFlow::Continue(()));
    let mut writer = Writer::new(&tokenizer, &mut sampler, ask, 0, None, &mut outcome, &mut event).unwrap();
    for token in pieces.iter().flat_map(|piece| tokenizer.encode_plain(piece).unwrap()) {
        assert_eq!(writer.take(token), None);
    }
    let end = writer.finish();
    (outcome, end)
}

/// What might have become a tag was let go at the end, made a stop string whole, and the reason was another one.
#[test]
fn a_stop_string_that_the_end_makes_whole_is_the_reason() {
    let stop = ["<th".to_owned()];
    let ask = Ask { stop: &stop, ..Ask::default() };
    let (outcome, end) = written(&ask, &["<thi"]);
    assert_eq!((outcome.text.as_str(), end), ("", Some(Stop::String(0))));
    let (outcome, end) = written(&Ask::default(), &["<thi"]);
    assert_eq!((outcome.text.as_str(), end), ("<thi", None));
}

/// `>{` ended the reasoning, and the grammar did not see its `{`: the answer could come out as `{{`.
#[test]
fn no_token_ends_the_reasoning_and_begins_a_held_answer() {
    // A token of two characters that a closing tag may end with.
    let mut json: serde_json::Value =
        serde_json::from_slice(include_bytes!("../../tests/fixtures/tokenizer.json")).unwrap();
    let vocab = json["model"]["vocab"].as_object_mut().unwrap();
    let old = vocab.iter().find(|(word, _)| word.chars().count() > 3).map(|(word, id)| (word.clone(), id.clone()));
    let (old, id) = old.unwrap();
    vocab.remove(&old);
    vocab.insert(">{".into(), id.clone());
    json["model"]["merges"] = json!([]);
    let tokenizer = Tokenizer::from_json(json.to_string().as_bytes()).unwrap();
    let both = id.as_u64().unwrap() as usize;
    let close = tokenizer.encode_plain(">").unwrap()[0] as usize;
    let grammars = Grammars::new(&tokenizer, VOCAB, 2002).unwrap();
    for (hold, wanted) in [(Hold::Object, close), (Hold::Free, both)] {
        let constraint = matches!(hold, Hold::Object).then(|| grammars.json_object().unwrap());
        let ask = Ask { thinking: Thinking::On, hold, ..Ask::default() };
        let mut sampler = Sampler::new(Sampling::default(), VOCAB).unwrap();
        let (mut outcome, mut event) = (Outcome::default(), |_: Event<'_>| ControlFlow::Continue(()));
        let mut writer = Writer::new(&tokenizer, &mut sampler, &ask, 0, constraint, &mut outcome, &mut event).unwrap();
        for token in tokenizer.encode_plain("so </think").unwrap() {
            writer.take(token);
        }
        let mut logits = vec![0.0; VOCAB];
        (logits[both], logits[close]) = (9.0, 8.0);
        assert_eq!(writer.choose(&logits).unwrap() as usize, wanted);
    }
}
