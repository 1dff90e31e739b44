//! Grammars against samplers that do their worst: whatever comes is read and looked at by code that knows no schema.

use super::tests::{Random, STOP, VOCAB, follows, grammars, tokenizer, tokenizer_text};
use super::*;
use crate::chat::{ToolEvent, ToolParser};
use serde_json::Map;

/// How a token is chosen out of those that are allowed.
#[derive(Clone, Copy, Debug)]
enum Sampler {
    Random(u64),
    /// The longest token; the end never, if there is another.
    Longest,
    /// What is part of a number, as long as that goes.
    Digits,
    /// What might end a string, a value or a call.
    Tags(u64),
}

/// What a sampler makes of a constraint, or what it has made of it after `most` tokens.
fn drawn(constraint: &mut Constraint, tokenizer: &Tokenizer, sampler: Sampler, most: usize) -> Result<String, String> {
    let mut random = Random(match sampler {
        Sampler::Random(seed) | Sampler::Tags(seed) => seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
        Sampler::Longest | Sampler::Digits => 1,
    });
    let (mut allowed, mut out) = (TokenSet::new(VOCAB), Vec::new());
    while out.len() < most {
        assert!(constraint.mask(&mut allowed).unwrap(), "always awake");
        let mut all: Vec<u32> = allowed.iter().filter(|&token| token != STOP).collect();
        let ends = allowed.contains(STOP);
        assert!(ends || !all.is_empty(), "a dead end behind {:?}", tokenizer_text(tokenizer, &out));
        let part = |token: &u32, of: &[u8]| {
            let bytes = tokenizer.bytes(*token);
            !bytes.is_empty() && bytes.iter().all(|byte| of.contains(byte))
        };
        match sampler {
            Sampler::Random(_) if ends && (all.is_empty() || random.below(3) == 0) => all.clear(),
            Sampler::Longest => all.sort_by_key(|&token| std::cmp::Reverse(tokenizer.bytes(token).len())),
            Sampler::Digits if all.iter().any(|token| part(token, b"0123456789.eE+-")) => {
                all.retain(|token| part(token, b"0123456789.eE+-"));
            }
            Sampler::Tags(_)
                if random.below(8) > 0 && all.iter().any(|token| part(token, b"</parmet>\n\"}]funcio=x")) =>
            {
                all.retain(|token| part(token, b"</parmet>\n\"}]funcio=x"));
            }
            _ => {}
        }
        let first = if matches!(sampler, Sampler::Longest) { 0 } else { random.below(all.len().max(1)) };
        let Some(&token) = all.get(first) else { return Ok(tokenizer_text(tokenizer, &out)) };
        constraint.accept(token).unwrap();
        out.push(token);
    }
    Err(tokenizer_text(tokenizer, &out))
}

fn samplers() -> impl Iterator<Item = Sampler> {
    let seeds = 1..7;
    seeds.flat_map(|seed| [Sampler::Random(seed), Sampler::Tags(seed)]).chain([Sampler::Longest, Sampler::Digits])
}

/// Holds what is wrong with a value, if anything is.
type Check = fn(&Value) -> bool;

fn chars(value: &Value) -> Option<usize> {
    value.as_str().map(|text| text.chars().count())
}

fn whole(value: &Value, least: i64, most: i64) -> bool {
    // `-0` is one, too.
    value.as_f64().is_some_and(|x| x.fract() == 0.0 && (least as f64..=most as f64).contains(&x))
}

/// Schemas whose every answer has an end, and what fits them.
fn schemas() -> Vec<(Value, Check)> {
    vec![
        (json!({"type": "number"}), |v| v.as_f64().is_some_and(f64::is_finite)),
        (json!({"type": "number", "minimum": -2.5, "exclusiveMaximum": 1e3}), |v| {
            v.as_f64().is_some_and(|x| (-2.5..1e3).contains(&x))
        }),
        (json!({"type": ["number", "null"]}), |v| v.is_null() || v.as_f64().is_some_and(f64::is_finite)),
        (json!({"type": "integer"}), |v| whole(v, -SAFE, SAFE)),
        (json!({"type": "integer", "multipleOf": 5, "minimum": 0}), |v| {
            whole(v, 0, SAFE) && v.as_f64().unwrap() % 5.0 == 0.0
        }),
        (json!({"type": "string", "minLength": 2, "maxLength": 5}), |v| chars(v).is_some_and(|n| (2..=5).contains(&n))),
        (json!({"type": "string", "pattern": "^[a-c]{1,4}-[0-9]$"}), |v| {
            let bytes = v.as_str().unwrap().as_bytes();
            let (word, digit) = bytes.split_at(bytes.len() - 2);
            (1..=4).contains(&word.len())
                && word.iter().all(|b| (b'a'..=b'c').contains(b))
                && digit[0] == b'-'
                && digit[1].is_ascii_digit()
        }),
        (json!({"enum": [1, "1", null, "</parameter", [2.5]]}), |v| {
            [json!(1), json!("1"), json!(null), json!("</parameter"), json!([2.5])].contains(v)
        }),
        (json!({"type": ["string", "null"], "enum": ["a", "null", null, 7]}), |v| {
            [json!("a"), json!("null"), json!(null)].contains(v)
        }),
        (
            json!({"anyOf": [{"type": "string", "maxLength": 3}, {"type": "integer", "minimum": 7, "maximum": 99}]}),
            |v| chars(v).is_some_and(|n| n <= 3) || whole(v, 7, 99),
        ),
        (json!({"anyOf": [{"type": "string", "enum": ["on", "off"]}, {"type": "null"}, {"type": "boolean"}]}), |v| {
            v.is_null() || v.is_boolean() || v == "on" || v == "off"
        }),
        (json!({"oneOf": [{"type": "string", "minLength": 6, "maxLength": 8}, {"type": "null"}]}), |v| {
            v.is_null() || chars(v).is_some_and(|n| (6..=8).contains(&n))
        }),
        (json!({"type": ["string", "null"], "minLength": 6, "maxLength": 7}), |v| {
            v.is_null() || chars(v).is_some_and(|n| (6..=7).contains(&n))
        }),
        (
            json!({"anyOf": [{"type": "string", "maxLength": 9}, {"type": "array", "maxItems": 2, "items": {"type": "number"}}]}),
            |v| {
                let list = v.as_array().is_some_and(|all| all.len() < 3 && all.iter().all(Value::is_number));
                list || chars(v).is_some_and(|n| n <= 9)
            },
        ),
        (
            json!({"type": "object", "required": ["a"], "additionalProperties": false, "properties": {
                "a": {"type": "array", "minItems": 1, "maxItems": 2, "items": {"type": "number"}},
                "b": {"anyOf": [{"type": "string", "maxLength": 16}, {"type": "null"}]}}}),
            |v| {
                let a = v["a"].as_array().is_some_and(|a| (1..=2).contains(&a.len()) && a.iter().all(Value::is_number));
                let b = v["b"].is_null() || chars(&v["b"]).is_some_and(|n| n <= 16);
                a && b && v.as_object().unwrap().keys().all(|key| key == "a" || key == "b")
            },
        ),
        (json!({"const": {"x": [1.5, "y"]}}), |v| *v == json!({"x": [1.5, "y"]})),
    ]
}

#[test]
fn the_worst_of_samplers_gives_json_that_fits() {
    let tokenizer = tokenizer();
    let grammars = grammars(&tokenizer);
    for (schema, fits) in schemas() {
        if schema.to_string().contains("oneOf") && grammars.json_schema(&schema).is_err() {
            continue;
        }
        let mut constraint = grammars.json_schema(&schema).unwrap();
        for sampler in samplers() {
            constraint.reset();
            let text =
                drawn(&mut constraint, &tokenizer, sampler, 400).unwrap_or_else(|text| panic!("{schema}: {text}"));
            let value: Value =
                serde_json::from_str(&text).unwrap_or_else(|e| panic!("{schema} {sampler:?} {text:?}: {e}"));
            assert!(fits(&value), "{schema} {sampler:?}: {text}");
        }
    }
}

/// One parameter of each schema, another of any text behind it, and one that is required without a schema.
#[test]
fn the_worst_of_samplers_gives_calls_that_fit() {
    let tokenizer = tokenizer();
    let grammars = grammars(&tokenizer);
    for (schema, fits) in schemas() {
        for required in [json!(["a", "z"]), json!(["z"])] {
            let tools = Tools::new(vec![
                json!({"name": "f", "parameters": {"type": "object", "required": required, "properties": {
                "a": schema, "b": {"type": "string", "maxLength": 30}, "z": {"$ref": "#/$defs/z"}},
                "$defs": {"z": {"allOf": [{"enum": ["z"]}]}}}}),
            ])
            .unwrap();
            let mut constraint = grammars.tool_calls(&tools, &ToolChoice::Function("f".into())).unwrap();
            for sampler in samplers() {
                constraint.reset();
                let text =
                    drawn(&mut constraint, &tokenizer, sampler, 600).unwrap_or_else(|text| panic!("{schema}: {text}"));
                let [call] = &calls(&tools, &text)[..] else { panic!("{schema} {sampler:?}: {text}") };
                assert!(call.get("a").map_or(required == json!(["z"]), fits), "{schema} {sampler:?}: {text}");
                assert!(call["z"] == "z" && call.get("b").is_none_or(|b| chars(b).is_some_and(|n| n <= 30)), "{text}");
            }
        }
    }
}

/// An answer is all calls, or all JSON of the schema; no string of it can be taken for a call.
#[test]
fn the_worst_of_samplers_calls_or_says_what_fits() {
    let tokenizer = tokenizer();
    let grammars = grammars(&tokenizer);
    let tools = Tools::new(vec![json!({"name": "f", "parameters": {"required": ["a"], "properties": {
        "a": {"type": "string", "maxLength": 20}}}})])
    .unwrap();
    let schema = json!({"type": "object", "required": ["b"], "additionalProperties": false,
        "properties": {"b": {"type": "string", "maxLength": 60}}});
    let mut constraint = grammars.calls_or_schema(&tools, &schema).unwrap();
    let mut seen = [0; 2];
    let mut check = |text: &str| {
        let (mut parser, mut calls, mut rest) = (ToolParser::new(&tools), 0, String::new());
        let mut emit = |event| match event {
            ToolEvent::Call(call) => calls += usize::from(chars(&call.arguments["a"]).is_some_and(|n| n <= 20)),
            ToolEvent::Text(text) => rest.push_str(&text),
            ToolEvent::Refused { .. } => panic!("{text:?}"),
        };
        parser.push(text, &mut emit);
        parser.finish(&mut emit);
        if calls == 0 {
            let value: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{text:?}: {e}"));
            assert!(chars(&value["b"]).is_some_and(|n| n <= 60), "{text}");
        } else {
            assert_eq!(rest.trim(), "", "{text}");
        }
        seen[usize::from(calls == 0)] += 1;
    };
    for sampler in (1..40).flat_map(|seed| [Sampler::Random(seed), Sampler::Tags(seed)]) {
        constraint.reset();
        // An answer of many calls may be left at any of their ends.
        if let Ok(text) = drawn(&mut constraint, &tokenizer, sampler, 800) {
            check(&text);
        }
    }
    assert!(seen[0] > 3 && seen[1] > 3, "{seen:?}");
    constraint.reset();
    assert!(follows(&mut constraint, &tokenizer, "{\"b\": \"<tool_calls> "));
    let spelled: Vec<u32> = "<tool_call>".chars().flat_map(|c| tokenizer.encode(&c.to_string()).unwrap()).collect();
    let mut allowed = TokenSet::new(VOCAB);
    let (last, all) = spelled.split_last().unwrap();
    for &token in all {
        constraint.accept(token).unwrap();
    }
    constraint.mask(&mut allowed).unwrap();
    assert!(!allowed.contains(*last), "its letters make a call");
}

/// The arguments of all calls; there must be nothing else.
fn calls(tools: &Tools, text: &str) -> Vec<Map<String, Value>> {
    let (mut parser, mut found) = (ToolParser::new(tools), Vec::new());
    let mut emit = |event| match event {
        ToolEvent::Call(call) => found.push(call.arguments),
        other => panic!("{text:?}: {other:?}"),
    };
    parser.push(text, &mut emit);
    parser.finish(&mut emit);
    found
}

/// Fractions, exponents, and all numbers where a schema says nothing had digits without end.
#[test]
fn digits_end_wherever_a_number_may_stand() {
    let tokenizer = tokenizer();
    let grammars = grammars(&tokenizer);
    let number = json!({"type": "number"});
    let tools = Tools::new(vec![
        json!({"name": "f", "parameters": {"required": ["a"], "properties": {"a": {"type": "object"}}}}),
    ])
    .unwrap();
    let call = grammars.tool_calls(&tools, &ToolChoice::Required).unwrap();
    for (mut constraint, begin) in [
        (grammars.json_object().unwrap(), "{\"a\": "),
        (grammars.json_schema(&json!(true)).unwrap(), "[1, "),
        (grammars.json_schema(&number).unwrap(), ""),
        (grammars.json_schema(&json!({"type": "number", "minimum": 0, "maximum": 1})).unwrap(), ""),
        (grammars.json_schema(&json!({"type": "array", "items": number})).unwrap(), "[1, 2,"),
        (call, "<tool_call>\n<function=f>\n<parameter=a>\n{\"x1111\": [1, "),
    ] {
        for number in ["0.", "0.5e", "1e-", "-0.0", "12"] {
            constraint.reset();
            assert!(follows(&mut constraint, &tokenizer, begin), "{begin}");
            if !follows(&mut constraint, &tokenizer, number) {
                continue;
            }
            let (mut allowed, mut digits) = (TokenSet::new(VOCAB), 0);
            let token = tokenizer.encode("3").unwrap()[0];
            while constraint.mask(&mut allowed).unwrap() && allowed.contains(token) {
                constraint.accept(token).unwrap();
                digits += 1;
                assert!(digits <= 40, "{begin}{number}");
            }
            assert!(allowed.count() > 0, "{begin}{number}");
            assert!(!number.contains('e') || digits <= 2, "{begin}{number}: readers take it for infinite");
        }
    }
    // What a schema asks for itself.
    let mut far = grammars.json_schema(&json!({"enum": [1e60, 2]})).unwrap();
    assert!(follows(&mut far, &tokenizer, &format!("1{}", "0".repeat(60))) && far.may_end());
}

#[test]
fn what_a_call_cannot_be_held_to_is_refused_by_name() {
    let tokenizer = tokenizer();
    let grammars = grammars(&tokenizer);
    let refused = |parameters: Value| {
        let tools = Tools::new(vec![json!({"name": "f", "parameters": parameters})]).unwrap();
        grammars.tool_calls(&tools, &ToolChoice::Required).unwrap_err().to_string()
    };
    for (schema, said) in [
        (json!({"type": "string", "not": {"const": "x"}}), "`not`"),
        (json!({"anyOf": [{"type": "string"}, {"type": "null"}], "minLength": 3}), "`minLength`"),
        (json!({"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]}), "`oneOf`"),
        (json!({"$ref": "#/$defs/none"}), "`$ref`"),
        (json!({"type": "string", "pattern": "a^b"}), "the pattern `a^b`"),
        (json!({"type": "string", "pattern": "(?=a)"}), "(?=a)"),
        (json!({"type": "string", "minLength": 3, "maxLength": 2}), "no value fits"),
        (json!({"enum": ["</parameter>"]}), "</parameter>"),
        (json!(false), "no value fits"),
        (json!({"type": "array", "uniqueItems": true}), "uniqueItems"),
    ] {
        let error = refused(json!({"properties": {"a": schema}, "required": ["a"]}));
        assert!(error.contains(said), "{schema}: {error}");
    }
    for (parameters, said) in [
        (json!({"required": ["a"], "additionalProperties": false}), "parameter `a`: it is required"),
        (json!({"required": ["a>b"]}), "parameter `a>b`"),
        (json!({"properties": {}, "minProperties": 1}), "`minProperties`"),
    ] {
        let error = refused(parameters);
        assert!(error.contains("function `f`") && error.contains(said), "{error}");
    }
    // What is only required has any value, and one that fits nothing and need not be is left away.
    let tools =
        Tools::new(vec![json!({"name": "f", "parameters": {"required": ["a"], "properties": {"b": false}}})]).unwrap();
    let mut constraint = grammars.tool_calls(&tools, &ToolChoice::Required).unwrap();
    let text = "<tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>\n</function>\n</tool_call>";
    assert!(follows(&mut constraint, &tokenizer, text) && constraint.may_end());
    assert_eq!(calls(&tools, text)[0]["a"], "x");
}
