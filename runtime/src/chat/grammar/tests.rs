use super::*;
use crate::chat::{ToolEvent, ToolParser};

pub(super) const STOP: u32 = 2002;
/// Rows of the head that no token has.
pub(super) const VOCAB: usize = 2048;

pub(super) fn tokenizer() -> Tokenizer {
    Tokenizer::from_json(include_bytes!("../../../tests/fixtures/tokenizer.json")).unwrap()
}

pub(super) fn grammars(tokenizer: &Tokenizer) -> Grammars {
    Grammars::new(tokenizer, VOCAB, STOP).unwrap()
}

fn tools() -> Tools {
    Tools::from_json(
        r#"[{"name": "weather", "parameters": {"type": "object", "required": ["city", "days"], "properties": {
            "city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 14},
            "unit": {"type": "string", "enum": ["c", "f\"\\ é"]}, "hourly": {"type": "boolean"},
            "note": {"type": ["string", "null"]}, "code": {"type": "string", "minLength": 2, "maxLength": 5},
            "at": {"type": "object", "required": ["x"], "additionalProperties": false,
                "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 99}}}}}},
        {"name": "now"}]"#,
    )
    .unwrap()
}

/// Feeds a text, each token of which has to be allowed. False where one is not.
pub(super) fn follows(constraint: &mut Constraint, tokenizer: &Tokenizer, text: &str) -> bool {
    let mut allowed = TokenSet::new(VOCAB);
    for token in tokenizer.encode(text).unwrap() {
        if constraint.mask(&mut allowed).unwrap() && !allowed.contains(token) {
            return false;
        }
        constraint.accept(token).unwrap();
    }
    true
}

pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

/// An answer of random tokens, as long as the constraint lets them; free text is closed after a while.
fn babble(constraint: &mut Constraint, tokenizer: &Tokenizer, close: &str, seed: u64) -> String {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let (mut allowed, mut out) = (TokenSet::new(VOCAB), Vec::new());
    for step in 0..2000 {
        assert!(constraint.mask(&mut allowed).unwrap(), "always awake");
        if allowed.contains(STOP) && (constraint.is_complete() || random.below(3) == 0 || step > 200) {
            return tokenizer_text(tokenizer, &out);
        }
        let all: Vec<u32> = (0..VOCAB as u32).filter(|&token| token != STOP && allowed.contains(token)).collect();
        assert!(!all.is_empty(), "a dead end behind {:?}", tokenizer_text(tokenizer, &out));
        let close = tokenizer.encode_plain(close).unwrap();
        let tokens = if all.len() > 1000 && !close.is_empty() && random.below(4) == 0 {
            close
        } else {
            vec![all[random.below(all.len())]]
        };
        for token in tokens {
            constraint.accept(token).unwrap();
            out.push(token);
        }
    }
    panic!("it never ends: {:?}", tokenizer_text(tokenizer, &out));
}

/// Control tokens written out too.
pub(super) fn tokenizer_text(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    let bytes: Vec<u8> = ids.iter().flat_map(|&id| tokenizer.bytes(id)).copied().collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn whatever_is_drawn_is_json_of_the_schema() {
    let tokenizer = tokenizer();
    let grammars = grammars(&tokenizer);
    for schema in [
        json!({"type": "object", "required": ["a", "b"], "additionalProperties": false, "properties": {
            "a": {"type": "string", "maxLength": 6}, "b": {"type": "array", "minItems": 1, "maxItems": 3,
                "items": {"type": "integer", "minimum": -5, "maximum": 500}}, "c": {"enum": ["x", null, 3]}}}),
        json!({"type": "boolean"}),
        json!({"anyOf": [{"const": 7}, {"type": "string", "maxLength": 3, "minLength": 1}]}),
    ] {
        let mut constraint = grammars.json_schema(&schema).unwrap();
        for seed in 1..9 {
            constraint.reset();
            let text = babble(&mut constraint, &tokenizer, "", seed);
            let value: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{text:?}: {e}"));
            assert_eq!(schema::validate(&value, &schema), Ok(()), "{text}");
        }
    }
}

#[test]
fn whatever_is_drawn_is_a_call_that_fits() {
    let tokenizer = tokenizer();
    let (grammars, tools) = (grammars(&tokenizer), tools());
    for choice in [ToolChoice::Required, ToolChoice::Function("weather".into()), ToolChoice::Function("now".into())] {
        let mut constraint = grammars.tool_calls(&tools, &choice).unwrap();
        for seed in 1..13 {
            constraint.reset();
            let text = babble(&mut constraint, &tokenizer, "\n</parameter>", seed);
            let mut parser = ToolParser::new(&tools);
            let mut calls = 0;
            let mut emit = |event| match event {
                ToolEvent::Call(call) => {
                    calls += 1;
                    assert!(!matches!(&choice, ToolChoice::Function(name) if *name != call.name));
                }
                other => panic!("{text:?}: {other:?}"),
            };
            parser.push(&text, &mut emit);
            parser.finish(&mut emit);
            assert!(calls >= 1 && (calls == 1 || choice == ToolChoice::Required), "{text}");
        }
    }
}

const CALL: &str = "<tool_call>\n<function=weather>\n<parameter=city>\nZürich <b> </param\n\n</parameter>\n<parameter=days>\n3\n\
                    </parameter>\n<parameter=unit>\nf\"\\ é\n</parameter>\n</function>\n</tool_call>";

#[test]
fn what_the_template_writes_is_allowed_and_what_does_not_fit_is_not() {
    let tokenizer = tokenizer();
    let grammars = grammars(&tokenizer);
    let mut constraint = grammars.tool_calls(&tools(), &ToolChoice::Required).unwrap();
    let mut fits = |text: &str| {
        constraint.reset();
        let follows = follows(&mut constraint, &tokenizer, text);
        (follows, follows && constraint.may_end())
    };
    assert_eq!(fits(CALL), (true, true));
    assert_eq!(fits(&format!("\n\n{CALL}\n{CALL}")), (true, true));
    assert_eq!(fits("<tool_call>\n<function=now>\n</function>\n</tool_call>"), (true, true));
    assert_eq!(fits("<tool_call>\n<function=now>"), (true, false));
    for wrong in [
        "I look.",
        "<tool_call>\n<function=fly>",
        "<tool_call>\n<function=weather>\n</function>",
        "<tool_call>\n<function=weather>\n<parameter=days>",
        "<tool_call>\n<function=weather>\n<parameter=city>\na\n</parameter>\n<parameter=days>\n15\n</parameter>",
        "<tool_call>\n<function=weather>\n<parameter=city>\na\n</parameter>\n<parameter=days>\ntwo",
        "<tool_call>\n<function=now>\n</function>\n</tool_call> and more",
        "<tool_call>\n<function=now>\n</function>\n</tool_call><|im_start|>",
        "<tool_call>\n<function=weather>\n<parameter=city>\n<|im_end|>",
    ] {
        assert!(!fits(wrong).0, "{wrong}");
    }
}

#[test]
fn a_free_answer_is_held_only_inside_of_calls() {
    let tokenizer = tokenizer();
    let mut constraint = grammars(&tokenizer).tool_calls(&tools(), &ToolChoice::Auto).unwrap();
    let mut allowed = TokenSet::new(VOCAB);
    assert!(follows(&mut constraint, &tokenizer, "Any text, </tool_call> too.\n\n"));
    assert!(!constraint.mask(&mut allowed).unwrap() && constraint.may_end());
    for _ in 0..2 {
        assert!(follows(&mut constraint, &tokenizer, CALL));
        assert!(!constraint.mask(&mut allowed).unwrap() && constraint.may_end() && !constraint.is_complete());
        assert!(follows(&mut constraint, &tokenizer, "\nand between"));
    }
    assert!(follows(&mut constraint, &tokenizer, "<tool_call>"));
    assert!(constraint.mask(&mut allowed).unwrap());
    assert!(!allowed.contains(STOP) && allowed.count() < 10 && !constraint.may_end());
    assert!(!follows(&mut constraint, &tokenizer, "{\"name\""));
}

/// The mask has the stop token exactly where the answer may end, and nothing that no token is.
#[test]
fn the_end_is_allowed_where_the_grammar_ends() {
    let tokenizer = tokenizer();
    let mut constraint = grammars(&tokenizer).json_schema(&json!({"type": "boolean"})).unwrap();
    let mut allowed = TokenSet::new(VOCAB);
    constraint.mask(&mut allowed).unwrap();
    assert!(!allowed.contains(STOP));
    assert!((tokenizer.vocab() as u32..VOCAB as u32).all(|id| !allowed.contains(id)));
    assert!(follows(&mut constraint, &tokenizer, "true"));
    constraint.mask(&mut allowed).unwrap();
    assert_eq!((allowed.contains(STOP), allowed.count(), constraint.may_end()), (true, 1, true));
    constraint.reset();
    assert!(!constraint.may_end());
    let wrong = tokenizer.encode("x").unwrap()[0];
    assert!(matches!(constraint.accept(wrong), Err(GrammarError::Token { token, .. }) if token == wrong));
    let mut object = grammars(&tokenizer).json_object().unwrap();
    assert!(follows(&mut object, &tokenizer, "{\"é\": [1, {\"b\": null}], \"\\n\": \"<|\"}") && object.may_end());
}

#[test]
fn what_cannot_be_held_to_is_refused() {
    let tokenizer = tokenizer();
    let grammars = grammars(&tokenizer);
    for schema in [json!({"not": {}}), json!({"type": "text"}), json!(3), json!({"if": {}})] {
        let error = grammars.json_schema(&schema).unwrap_err();
        assert!(matches!(error, GrammarError::Schema { .. }), "{schema}: {error}");
    }
    let none = grammars.tool_calls(&Tools::default(), &ToolChoice::Auto).unwrap_err();
    assert_eq!(none, GrammarError::Function { name: String::new() });
    let other = grammars.tool_calls(&tools(), &ToolChoice::Function("fly".into())).unwrap_err();
    assert_eq!(other, GrammarError::Function { name: "fly".into() });
    assert!(matches!(Grammars::new(&tokenizer, 100, 100), Err(GrammarError::Vocabulary { .. })));
}

#[test]
fn json_does_not_go_on_with_white_space_for_ever() {
    let tokenizer = tokenizer();
    let schema = json!({"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]});
    let follows = |text: &str| follows(&mut grammars(&tokenizer).json_schema(&schema).unwrap(), &tokenizer, text);
    for fine in [r#"{"sum": 3}"#, "{\n  \"sum\": 3\n}", "\n\n{ \"sum\" : 3 }"] {
        assert!(follows(fine), "{fine}");
    }
    for endless in ["{    ", "{\n\n\n", "{\"sum\":      3", "{\n                              "] {
        assert!(!follows(endless), "{endless:?}");
    }
    let digits = |count: usize| format!("{{\"sum\": {}", "9".repeat(count));
    assert!(follows(&digits(15)) && !follows(&digits(17)), "an integer that readers would round");
    // Settings of the crate that a schema brings along are none of ours.
    let own = json!({"type": "object", "x-guidance": {"whitespace_flexible": 7}});
    assert!(grammars(&tokenizer).json_schema(&own).is_ok());
}

/// `["integer", "null"]` had no bounds, and a schema of `true` the crate's own white space.
#[test]
fn digits_and_white_space_end_in_every_way_to_write_a_schema() {
    let tokenizer = tokenizer();
    let follows =
        |schema: &Value, text: &str| follows(&mut grammars(&tokenizer).json_schema(schema).unwrap(), &tokenizer, text);
    let nullable = json!({"type": ["integer", "null"]});
    assert!(follows(&nullable, "null") && follows(&nullable, &"9".repeat(15)));
    assert!(!follows(&nullable, &"9".repeat(17)));
    for half in [json!({"type": "integer", "minimum": 0}), json!({"type": "integer", "exclusiveMaximum": 1e15})] {
        assert!(follows(&half, &"9".repeat(15)) || follows(&half, "-9999999"), "{half}");
        assert!(!follows(&half, &"9".repeat(17)) && !follows(&half, &format!("-{}", "9".repeat(17))), "{half}");
    }
    let far = json!({"type": "integer", "minimum": 1e17});
    assert!(follows(&far, &format!("2{}", "0".repeat(17))), "what a schema asks for itself");
    let any = json!(true);
    assert!(follows(&any, "{ \"a\": [1, 2.5] }") && !follows(&any, "{     "));
}

/// Bounds of texts that no answer reaches are refused or kept to, and take neither for ever nor all memory.
#[test]
fn absurd_lengths_of_a_text_are_no_trouble() {
    let tokenizer = tokenizer();
    let grammars = grammars(&tokenizer);
    for (least, most) in [(0, u64::MAX), (5, 2), (u64::MAX, u64::MAX), (0, 1_000_000), (1_000_000, 2_000_000)] {
        let schema = json!({"type": "string", "minLength": least, "maxLength": most});
        let definition = json!({"name": "f", "parameters": {"properties": {"a": schema}, "required": ["a"]}});
        let tools = Tools::new(vec![definition]).unwrap();
        let mut allowed = TokenSet::new(VOCAB);
        for made in [grammars.tool_calls(&tools, &ToolChoice::Required), grammars.json_schema(&schema)] {
            match made {
                Ok(mut constraint) => assert!(constraint.mask(&mut allowed).unwrap()),
                Err(GrammarError::Schema { .. } | GrammarError::Definition { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
}
