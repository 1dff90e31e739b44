//! Ways in which an answer can be wanted.

use super::*;
use runtime::Stop;
use runtime::chat::{Hold, LoopLimits, Sampling, Template, Thinking, ToolChoice, Tools, tool_result};
use serde_json::{Value, json};

/// Digits, which no tokenizer joins: what is said is cut into the same tokens when it is read again.
fn digits(chat: &Chat) -> Sampling {
    let bias = ('0'..='9').map(|digit| (chat.tokenizer().encode(&digit.to_string()).unwrap()[0], 80.0)).collect();
    Sampling { logit_bias: bias, ..Sampling::default() }
}

/// All text of a kind that was told.
fn told(chat: &mut Chat, session: &mut Session, said: Said, ask: &Ask<'_>) -> (Outcome, String, String) {
    let (mut reasoning, mut text) = (String::new(), String::new());
    let outcome = chat
        .send(session, [said], ask, &mut |event| {
            match event {
                Event::Reasoning(more) => reasoning.push_str(more),
                Event::Text(more) => text.push_str(more),
                _ => {}
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!((&outcome.reasoning, &outcome.text), (&reasoning, &text));
    (outcome, reasoning, text)
}

/// Where a template changes nothing of what was said before, a turn reads its own tokens and no other.
#[test]
fn a_template_that_keeps_all_makes_a_turn_cost_its_own_tokens() {
    let (mut chat, _device) = load(1024);
    let source = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
                  {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    chat.set_template(Template::from_jinja(source).unwrap());
    let ask = Ask { sampling: digits(&chat), ..ask(5) };
    let mut session = Session::new();
    let mut held = 0;
    for turn in 0..6 {
        let (outcome, _, text) = told(&mut chat, &mut session, asks(&format!("{turn}?")), &ask);
        assert!(text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit()), "{text}");
        // The last token of an answer has been said, and not read.
        assert_eq!(outcome.reused_tokens, held);
        held = session.tokens();
        assert_eq!(held, outcome.prompt_tokens + 4);
        let said = session.said();
        let (fresh, _) = afresh(&mut chat, &said[..said.len() - 1], &ask);
        assert_eq!(fresh.tokens, outcome.tokens);
    }
}

#[test]
fn a_stop_string_is_never_shown_wherever_tokens_are_cut() {
    let (mut chat, _device) = load(1024);
    let whole = {
        let ask = Ask { sampling: digits(&chat), ..ask(10) };
        told(&mut chat, &mut Session::new(), asks("Count"), &ask).2
    };
    assert_eq!(whole.len(), 10);
    for (from, to) in [(0, 1), (2, 4), (3, 8), (9, 10)] {
        let stop = [whole[from..to].to_owned(), "never".to_owned()];
        let ask = Ask { sampling: digits(&chat), stop: &stop, ..ask(10) };
        let mut session = Session::new();
        let (outcome, _, text) = told(&mut chat, &mut session, asks("Count"), &ask);
        let first = whole.find(&stop[0]).unwrap();
        assert_eq!((outcome.stop, text.as_str()), (Stop::String(0), &whole[..first]));
        assert_eq!(outcome.finish_reason(), "stop");
        chat.send(&mut session, [asks("And on")], &ask, &mut go).unwrap();
    }
    let stop = [String::new()];
    let ask = Ask { stop: &stop, ..ask(10) };
    let error = chat.send(&mut Session::new(), [asks("Count")], &ask, &mut go).unwrap_err().to_string();
    assert!(error.contains("stop string 0 is empty"), "{error}");
}

#[test]
fn a_budget_ends_the_reasoning_and_the_answer_comes_behind_it() {
    let (mut chat, _device) = load(1024);
    let mut session = Session::new();
    let sampling = digits(&chat);
    let closing = chat.tokenizer().encode("\n</think>\n\n").unwrap();
    let thinking = Ask { sampling: sampling.clone(), thinking: Thinking::Budget(4), ..ask(9 + closing.len()) };
    let (outcome, reasoning, text) = told(&mut chat, &mut session, asks("Think"), &thinking);
    assert_eq!((reasoning.len(), text.len(), outcome.stop), (4, 5, Stop::Budget), "{reasoning:?} {text:?}");
    assert_eq!(outcome.tokens[4..4 + closing.len()], closing);
    assert_eq!(session.said()[1].message.reasoning.as_deref(), Some(reasoning.as_str()));
    // Cut inside of it: all is reasoning, and there is no answer.
    let cut = Ask { thinking: Thinking::On, ..Ask { sampling, ..ask(6) } };
    let (outcome, reasoning, text) = told(&mut chat, &mut session, asks("Think more"), &cut);
    assert_eq!((reasoning.len(), text.as_str(), outcome.answered), (6, "", true));
    let next = chat.send(&mut session, [asks("Well?")], &thinking, &mut go).unwrap();
    let said = session.said();
    let (fresh, _) = afresh(&mut chat, &said[..said.len() - 1], &thinking);
    assert_eq!(fresh.tokens, next.tokens);
}

#[test]
fn a_seed_gives_its_text_whatever_the_threads() {
    let mut texts = Vec::new();
    for (threads, seed) in [(1, 7), (2, 7), (2, 8)] {
        let (mut chat, _device) = load_with(LoadOptions { threads, max_ctx: 1024, ..LoadOptions::default() });
        let sampling = Sampling { temperature: 1.0, top_k: 50, seed, logprobs: Some(2), ..Sampling::default() };
        let ask = Ask { sampling, ..ask(8) };
        let mut session = Session::new();
        let first = chat.send(&mut session, [asks("Hello")], &ask, &mut go).unwrap();
        assert_eq!(first.logprobs.len(), first.tokens.len());
        assert!(first.logprobs.iter().all(|l| l.logprob.unwrap() <= 0.0 && l.top.len() == 2));
        let second = chat.send(&mut session, [asks("And?")], &ask, &mut go).unwrap();
        // The turn once more: the same again.
        session.undo();
        let again = chat.send(&mut session, [asks("And?")], &ask, &mut go).unwrap();
        assert_eq!((&again.text, &again.tokens), (&second.text, &second.tokens));
        texts.push((first.tokens, second.tokens));
    }
    assert_eq!(texts[0], texts[1]);
    assert_ne!(texts[1], texts[2]);
}

#[test]
fn an_answer_that_goes_round_in_circles_ends_with_that_reason() {
    let (mut chat, _device) = load(1024);
    let token = chat.tokenizer().encode("7").unwrap()[0];
    let sampling = Sampling { logit_bias: vec![(token, 90.0)], ..Sampling::default() };
    let loop_limits = LoopLimits { period: 8, rounds: 4, tokens: 12 };
    let ask = Ask { sampling, loop_limits, ..ask(100) };
    let (outcome, _, text) = told(&mut chat, &mut Session::new(), asks("Go"), &ask);
    let Stop::Circle(circle) = outcome.stop else { panic!("{:?}", outcome.stop) };
    assert_eq!((circle.period, text.as_str(), outcome.finish_reason()), (1, "777777777777", "length"));
}

#[test]
fn a_bad_value_costs_the_turn_only() {
    let (mut chat, _device) = load(1024);
    let mut session = Session::new();
    chat.send(&mut session, [asks("Hello")], &ask(3), &mut go).unwrap();
    let before = session.said().to_vec();
    let sampling = Sampling { top_p: 1.5, ..Sampling::default() };
    let error = chat.send(&mut session, [asks("x")], &Ask { sampling, ..ask(3) }, &mut go).unwrap_err().to_string();
    assert!(error.contains("top_p is 1.5"), "{error}");
    assert_eq!(session.said(), before);
    let next = chat.send(&mut session, [asks("x")], &ask(3), &mut go).unwrap();
    assert!(next.reused_tokens > 0);
}

/// A random model would never call anything by itself; held to the form, it calls with random arguments.
#[test]
fn a_call_comes_out_typed_and_its_result_goes_back() {
    let (mut chat, _device) = load(2048);
    let add = json!({"name": "add", "parameters": {"type": "object", "required": ["a"],
        "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}}}});
    let tools = Tools::new(vec![add]).unwrap();
    let hold = Hold::Calls(ToolChoice::Function("add".into()));
    let ask = Ask { tools: Some(&tools), hold, ..ask(90) };
    let mut session = Session::new();
    let (outcome, _, text) = told(&mut chat, &mut session, asks("Add"), &ask);
    assert_eq!((outcome.finish_reason(), text.as_str(), outcome.calls.len()), ("tool_calls", "", 1), "{outcome:?}");
    let call = &outcome.calls[0];
    assert!(call.name == "add" && call.arguments["a"].as_u64().is_some_and(|a| a < 100), "{call:?}");
    assert_eq!(call.id.as_deref(), Some("call_1"));
    session.push(tool_result(call, Ok(&json!(7))));
    let free = Ask { hold: Hold::Free, max_new: 4, ..ask };
    let next = chat.answer(&mut session, &free, &mut go).unwrap();
    assert!(next.reused_tokens > 0);
    let said = session.said();
    let (fresh, _) = afresh(&mut chat, &said[..said.len() - 1], &free);
    assert_eq!(fresh.tokens, next.tokens);
}

#[test]
fn an_answer_held_to_a_schema_parses_also_behind_reasoning() {
    let (mut chat, _device) = load(1024);
    let schema = json!({"type": "object", "additionalProperties": false, "required": ["ok", "n"],
        "properties": {"ok": {"type": "boolean"}, "n": {"type": "integer", "minimum": 0, "maximum": 9}}});
    for thinking in [Thinking::Off, Thinking::Budget(3)] {
        // White space is JSON, too, and a random model may like it.
        let logit_bias = ["\t", "\n", "\r", " "].map(|space| (chat.tokenizer().encode(space).unwrap()[0], -100.0));
        let sampling = Sampling { logit_bias: logit_bias.to_vec(), ..Sampling::default() };
        let ask = Ask { hold: Hold::Schema(&schema), thinking, sampling, ..ask(60) };
        let (outcome, _, text) = told(&mut chat, &mut Session::new(), asks("Say it"), &ask);
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {outcome:?}"));
        assert!(value["ok"].is_boolean() && value["n"].is_u64(), "{value}");
    }
    let bad = json!({"type": "object", "not": {}});
    let error = chat.send(&mut Session::new(), [asks("x")], &Ask { hold: Hold::Schema(&bad), ..ask(5) }, &mut go);
    assert!(error.unwrap_err().to_string().contains("cannot be held to this schema"));
}
