//! Tokenizer, template and rotary positions against what transformers 5.24 gave for the same texts.
//!
//! `fixtures/tokenizer.json` is a byte-level BPE of 2000 tokens with Qwen3.5's normalizer, pre-tokenizer and special
//! tokens; `fixtures/prompts.json` holds the texts with transformers' answers.
#![allow(clippy::unwrap_used, reason = "a test")]

use runtime::chat::{TextStream, Tokenizer, prompt};
use runtime::model::positions;
use serde_json::Value;

const IMAGE_PAD: u32 = 2012;

fn fixture() -> (Tokenizer, Value) {
    let tokenizer = Tokenizer::from_json(include_bytes!("fixtures/tokenizer.json")).unwrap();
    (tokenizer, serde_json::from_slice(include_bytes!("fixtures/prompts.json")).unwrap())
}

fn numbers(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|n| u32::try_from(n.as_u64().unwrap()).unwrap()).collect()
}

fn grids(case: &Value) -> Vec<[usize; 2]> {
    let grids = case["grids"].as_array().unwrap().iter().map(numbers);
    grids.map(|g| [g[0] as usize, g[1] as usize]).collect()
}

#[test]
fn texts_become_the_reference_tokens_and_come_back() {
    let (tokenizer, cases) = fixture();
    let cases = cases["tokenizer"].as_array().unwrap();
    assert!(cases.len() >= 20);
    for case in cases {
        let (text, ids) = (case["text"].as_str().unwrap(), numbers(&case["ids"]));
        assert_eq!(tokenizer.encode(text).unwrap(), ids, "{text:?}");
        assert_eq!(tokenizer.decode(&ids), case["shown"].as_str().unwrap(), "{text:?}");
        let (mut stream, mut out) = (TextStream::new(), String::new());
        for &id in &ids {
            stream.push(tokenizer.bytes(id), &mut out);
        }
        stream.finish(&mut out);
        assert_eq!(out, case["shown"].as_str().unwrap(), "token by token: {text:?}");
    }
}

#[test]
fn prompts_are_the_template_s() {
    let (tokenizer, cases) = fixture();
    for case in cases["prompts"].as_array().unwrap() {
        let tokens: Vec<usize> = grids(case).iter().map(|g| g[0] * g[1] / 4).collect();
        let message = case["message"].as_str().unwrap();
        let text = prompt(case["system"].as_str(), &tokens, message, case["thinking"].as_bool().unwrap());
        assert_eq!(text, case["text"].as_str().unwrap());
        assert_eq!(tokenizer.encode(&text).unwrap(), numbers(&case["ids"]), "{message:?}");
    }
}

#[test]
fn positions_are_the_reference_s() {
    let (_, cases) = fixture();
    let mut compared = 0;
    for case in cases["prompts"].as_array().unwrap().iter().filter(|c| c["positions"].is_array()) {
        let ids = numbers(&case["ids"]);
        let got = positions(&ids, 0, Some(IMAGE_PAD), &grids(case), 2).unwrap();
        assert_eq!(got.tokens.as_flattened(), numbers(&case["positions"]));
        assert_eq!(u64::from(got.next), case["next"].as_u64().unwrap());
        compared += 1;
    }
    assert_eq!(compared, 3, "text, one image, two images");
}

#[test]
fn special_tokens_show_nothing_and_control_words_do() {
    let (tokenizer, _) = fixture();
    assert_eq!(tokenizer.vocab(), 2026);
    assert_eq!(tokenizer.id("<|image_pad|>"), Some(IMAGE_PAD));
    for (token, shown) in
        [("<|im_end|>", ""), ("<think>", "<think>"), ("</think>", "</think>"), ("<tool_call>", "<tool_call>")]
    {
        let id = tokenizer.id(token).unwrap();
        assert_eq!(tokenizer.bytes(id), shown.as_bytes(), "{token}");
        assert_eq!(tokenizer.encode(token).unwrap(), [id]);
    }
    assert_eq!(tokenizer.bytes(2040), b"", "an unused row of the head");
}

#[test]
fn another_tokenizer_is_refused() {
    let text = include_str!("fixtures/tokenizer.json");
    let older = text.replacen(r"[\\p{L}\\p{M}]+", r"\\p{L}+", 1);
    assert_ne!(text, older);
    let said = Tokenizer::from_json(older.as_bytes()).unwrap_err().to_string();
    assert!(said.starts_with("tokenizer.json: "), "{said}");
    assert!(Tokenizer::from_json(&text.as_bytes()[..text.len() / 2]).is_err());
}
