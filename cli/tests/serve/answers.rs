//! What is answered.

use crate::client::{SUM, Server, TWELVE, all, long, text, token, user};
use serde_json::{Value, json};
use std::path::Path;

fn data_url(name: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("demo/samples").join(name);
    let kind = if name.ends_with(".png") { "png" } else { "jpeg" };
    format!("data:image/{kind};base64,{}", base64(&std::fs::read(file).unwrap()))
}

fn base64(bytes: &[u8]) -> String {
    let signs = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for three in bytes.chunks(3) {
        let number = three.iter().fold(0u32, |number, byte| number << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        for at in 0..4 {
            let sign = signs[(number >> (18 - 6 * at)) as usize & 63] as char;
            out.push(if at <= three.len() { sign } else { '=' });
        }
    }
    out
}

fn content(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().unwrap()
}

#[test]
fn a_stream_is_the_whole_answer() {
    let server = Server::start(&["--max-ctx", "1024"]);
    let ask = json!({"model": "bundle", "messages": [user(SUM)]});
    let whole = server.chat(&ask);
    assert_eq!(content(&whole), TWELVE);
    assert_eq!((&whole["choices"][0]["finish_reason"], &whole["model"]), (&json!("stop"), &json!("bundle")));
    let (events, done) = all(server.stream(&ask));
    assert!(done);
    assert_eq!(text(&events), TWELVE);
    assert!(events.len() > 5, "it comes in pieces");
    assert!(events.iter().all(|event| event.get("usage").is_none()));
    let mut ask = ask;
    ask["stream_options"] = json!({"include_usage": true});
    let (events, _) = all(server.stream(&ask));
    let [.., end, cost] = &events[..] else { panic!() };
    assert_eq!((&end["choices"][0]["finish_reason"], &end["usage"]), (&json!("stop"), &Value::Null));
    assert_eq!(
        (&cost["choices"], &cost["usage"]["completion_tokens"]),
        (&json!([]), &whole["usage"]["completion_tokens"])
    );
    assert_eq!(cost["timings"]["prompt_tokens"], whole["usage"]["prompt_tokens"]);
    // Another connection of the same client, kept open between requests.
    let mut stream = server.connect();
    let body = json!({"messages": [user(SUM)]});
    for _ in 0..3 {
        Server::send_chat(&mut stream, &body);
        let mut reader = std::io::BufReader::new(stream.try_clone().unwrap());
        assert_eq!(content(&crate::client::Response::read(&mut reader).json()), TWELVE);
    }
}

/// What the demo's own readme says of this picture.
#[test]
fn a_picture_is_seen_and_a_conversation_about_it_goes_on() {
    let server = Server::start(&["--max-ctx", "1024"]);
    let url = json!({"url": data_url("three-shapes.png")});
    let parts = json!([{"type": "image_url", "image_url": url}, {"type": "text", "text": "What do you see?"}]);
    let mut messages = vec![json!({"role": "user", "content": parts})];
    let seen = "There is a red circle on the left, a blue star in the middle and a green square on the right. The \
                background is white.";
    let first = server.chat(&json!({"messages": messages}));
    assert_eq!(content(&first), seen);
    assert!(first["timings"]["image_tokens"].as_u64().unwrap() > 0);
    messages.extend([json!({"role": "assistant", "content": seen}), user("What colour is the star?")]);
    let second = server.chat(&json!({"messages": messages}));
    assert!(content(&second).contains("The star is blue."), "{second}");
    let reused = second["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert!(
        reused > first["timings"]["image_tokens"].as_u64().unwrap(),
        "the picture is not looked at again: {second}"
    );
}

/// Tokens that were read stay read, whoever comes in between; and what is said is what a server says that knows nothing.
#[test]
fn conversations_that_take_turns_are_both_gone_on_with() {
    let server = Server::start(&["--max-ctx", "1024", "--sessions", "2"]);
    let turn = |server: &Server, say: &str, and: &str| {
        let system = json!({"role": "system", "content": format!("You are {say}.")});
        server
            .chat(&json!({"messages": [system, user(SUM), json!({"role": "assistant", "content": TWELVE}), user(and)]}))
    };
    let reused = |answer: &Value| answer["timings"]["reused_tokens"].as_u64().unwrap();
    let commands = |answer: &Value| answer["timings"]["commands"].as_u64().unwrap();
    let first = turn(&server, "a", SUM);
    let other = turn(&server, "another one", SUM);
    assert_eq!((reused(&first), reused(&other)), (0, 0));
    for say in ["a", "another one"] {
        let again = turn(&server, say, "What is 2 plus 2?");
        assert!(reused(&again) * 2 > again["usage"]["prompt_tokens"].as_u64().unwrap(), "{again}");
        let fresh = Server::start(&["--max-ctx", "1024"]);
        let fresh = turn(&fresh, say, "What is 2 plus 2?");
        assert_eq!(content(&again), content(&fresh));
        assert!(commands(&again) <= commands(&fresh), "{again} {fresh}");
    }
    // A third one has pushed out the one that was not used for the longest time.
    turn(&server, "a third one", SUM);
    assert_eq!(reused(&turn(&server, "a", "What is 3 plus 3?")), 0);
}

#[test]
fn a_call_that_has_to_be_made_fits_its_definition() {
    let server = Server::start(&["--max-ctx", "2048"]);
    let parameters = json!({"type": "object", "required": ["colour"], "additionalProperties": false,
        "properties": {"colour": {"type": "string", "enum": ["red", "green"]}, "on": {"type": "boolean"}}});
    let tools =
        json!([{"type": "function", "function": {"name": "lamp", "description": "A lamp.", "parameters": parameters}}]);
    let named = json!({"type": "function", "function": {"name": "lamp"}});
    for choice in [json!("required"), named] {
        let ask = json!({"messages": [user("Light!")], "tools": tools, "tool_choice": choice,
            "parallel_tool_calls": false});
        let answer = server.chat(&ask);
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
        let call = &choice["message"]["tool_calls"][0];
        assert_eq!((&call["type"], &call["function"]["name"]), (&json!("function"), &json!("lamp")));
        let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
        assert!(["red", "green"].contains(&arguments["colour"].as_str().unwrap()), "{answer}");
        let (events, done) = all(server.stream(&ask));
        let calls: Vec<&Value> = events.iter().map(|event| &event["choices"][0]["delta"]["tool_calls"][0]).collect();
        let streamed = calls.iter().find(|call| !call.is_null()).unwrap();
        assert!(done && streamed["index"] == 0 && streamed["function"] == call["function"]);
        // What the function gave is told, in the words of the common interface.
        let result = json!({"role": "tool", "tool_call_id": call["id"], "content": "It is on."});
        let told = json!({"messages": [user("Light!"), choice["message"], result], "tools": tools, "max_tokens": 5});
        let told = server.chat(&told);
        assert!(told["timings"]["reused_tokens"].as_u64().unwrap() > 0, "{told}");
    }
}

/// With a format and functions the model calls, or its words are of the format; it was one or the other for all of them.
#[test]
fn an_answer_of_a_format_may_be_a_call_instead() {
    let server = Server::start(&["--max-ctx", "2048"]);
    let tools = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("demo/samples/tools.json")).unwrap();
    let tools: Value = serde_json::from_slice(&tools).unwrap();
    let schema = json!({"type": "object", "required": ["sum"], "additionalProperties": false,
        "properties": {"sum": {"type": "integer", "minimum": 0, "maximum": 99}}});
    let format = json!({"type": "json_schema", "json_schema": {"name": "sum", "schema": schema}});
    let open = json!({"messages": [user(SUM)], "tools": tools, "response_format": format});
    let mut seen = [false; 2];
    // The token that begins a call is made likely, and impossible.
    let call = token("<tool_call>").to_string();
    for bias in [100, -100] {
        let mut ask = open.clone();
        ask["logit_bias"] = json!({call.clone(): bias});
        ask["parallel_tool_calls"] = false.into();
        let answer = server.chat(&ask);
        let choice = &answer["choices"][0];
        match choice["message"]["tool_calls"].as_array() {
            Some(calls) => {
                assert_eq!((calls.len(), &choice["finish_reason"]), (1, &json!("tool_calls")), "{answer}");
                assert!(choice["message"]["content"].as_str().unwrap_or_default().is_empty(), "{answer}");
                seen[0] = true;
            }
            None => {
                let said: Value = serde_json::from_str(content(&answer)).unwrap();
                assert!(said.as_object().unwrap().len() == 1 && (0..100).contains(&said["sum"].as_i64().unwrap()));
                seen[1] = true;
            }
        }
    }
    assert_eq!(seen, [true; 2]);
    let mut held = open.clone();
    held["tool_choice"] = "required".into();
    held["parallel_tool_calls"] = false.into();
    assert_eq!(server.chat(&held)["choices"][0]["finish_reason"], "tool_calls");
    let mut bad = open;
    bad["response_format"]["json_schema"]["schema"] = json!({"not": {}});
    assert_eq!(server.post("/v1/chat/completions", &bad).status, 400);
}

/// The demo model knows when to call this one, and is held to nothing but the form.
#[test]
fn a_call_is_made_where_the_model_likes() {
    let server = Server::start(&["--max-ctx", "1024"]);
    let tools = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("demo/samples/tools.json")).unwrap();
    let tools: Value = serde_json::from_slice(&tools).unwrap();
    let answer = server.chat(&json!({"messages": [user(SUM)], "tools": tools}));
    let choice = &answer["choices"][0];
    assert_eq!((&choice["finish_reason"], &choice["message"]["content"]), (&json!("tool_calls"), &Value::Null));
    let call = &choice["message"]["tool_calls"][0]["function"];
    assert_eq!((&call["name"], &call["arguments"]), (&json!("add"), &json!(r#"{"a":7,"b":5}"#)));
    let none = server.chat(&json!({"messages": [user(SUM)], "tools": tools, "tool_choice": "none"}));
    assert_eq!(content(&none), TWELVE);
}

#[test]
fn an_answer_fits_its_schema() {
    let server = Server::start(&["--max-ctx", "1024"]);
    let schema = json!({"enum": ["yes", "no"]});
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "strict": true, "schema": schema}});
    let answer = server.chat(&json!({"messages": [user("Well?")], "response_format": format}));
    let said: Value = serde_json::from_str(content(&answer)).unwrap();
    assert!(said == "yes" || said == "no", "{answer}");
    let format = json!({"type": "json_object"});
    // A small model does not come to an end by itself.
    let end = json!({token("}"): 100});
    let answer = server.chat(&json!({"messages": [user("Well?")], "response_format": format, "logit_bias": end}));
    assert!(serde_json::from_str::<Value>(content(&answer)).unwrap().is_object(), "{answer}");
}

#[test]
fn ends_tokens_and_chances_are_as_asked() {
    let server = Server::start(&["--max-ctx", "1024", "--max-new", "50"]);
    let stopped = server.chat(&json!({"messages": [user(SUM)], "stop": ["="]}));
    assert_eq!((content(&stopped), &stopped["choices"][0]["finish_reason"]), ("7 + 5 ", &json!("stop")));
    let cut = server.chat(&json!({"messages": [user(SUM)], "max_completion_tokens": 2}));
    assert_eq!(cut["usage"]["completion_tokens"], 2);
    assert_eq!(cut["choices"][0]["finish_reason"], "length");
    // The server's own limit.
    assert_eq!(server.chat(&long(1000))["usage"]["completion_tokens"], 50);
    let answer = server.chat(&json!({"messages": [user(SUM)], "logprobs": true, "top_logprobs": 2}));
    let tokens = answer["choices"][0]["logprobs"]["content"].as_array().unwrap().clone();
    assert_eq!(tokens.len() as u64, answer["usage"]["completion_tokens"].as_u64().unwrap());
    let joined: String = tokens.iter().map(|token| token["token"].as_str().unwrap()).collect();
    assert_eq!(joined, TWELVE);
    for token in &tokens {
        let top = token["top_logprobs"].as_array().unwrap();
        assert_eq!((top.len(), &top[0]["token"]), (2, &token["token"]), "greedy: the first one");
        assert!(top[0]["logprob"].as_f64() >= top[1]["logprob"].as_f64());
    }
    let drawn = |seed: u64| {
        let mut ask = long(20);
        ask["seed"] = seed.into();
        content(&server.chat(&ask)).to_owned()
    };
    assert_eq!(drawn(1), drawn(1));
    assert_ne!(drawn(1), drawn(2));
}

#[test]
fn reasoning_comes_by_itself() {
    let server = Server::start(&["--max-ctx", "1024"]);
    let ask = json!({"messages": [user(SUM)], "chat_template_kwargs": {"enable_thinking": true}});
    let answer = server.chat(&ask);
    let message = &answer["choices"][0]["message"];
    assert!(!message["reasoning_content"].as_str().unwrap().is_empty(), "{answer}");
    assert!(content(&answer).contains("12"), "{answer}");
    let tokens = &answer["usage"];
    assert!(tokens["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap() > 0);
    let (events, _) = all(server.stream(&ask));
    let thought: String =
        events.iter().filter_map(|event| event["choices"][0]["delta"]["reasoning_content"].as_str()).collect();
    assert_eq!(message["reasoning_content"], thought);
    let none = json!({"messages": [user(SUM)], "reasoning_effort": "none"});
    assert!(server.chat(&none)["choices"][0]["message"].get("reasoning_content").is_none());
}

#[test]
fn a_text_is_gone_on_with_as_it_is() {
    let server = Server::start(&["--max-ctx", "1024"]);
    let prompt = format!("<|im_start|>user\n{SUM}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n");
    let ask = json!({"prompt": prompt, "max_tokens": 30});
    let whole = server.post("/v1/completions", &ask).json();
    assert_eq!((&whole["choices"][0]["text"], &whole["object"]), (&json!(TWELVE), &json!("text_completion")));
    let (events, done) = all(server.stream_at("/v1/completions", &ask));
    let text: String = events.iter().map(|event| event["choices"][0]["text"].as_str().unwrap()).collect();
    assert!(done && text == TWELVE);
    let mut ask = ask;
    ask["stop"] = json!("=");
    let stopped = server.post("/v1/completions", &ask).json();
    assert_eq!(
        (&stopped["choices"][0]["text"], &stopped["choices"][0]["finish_reason"]),
        (&json!("7 + 5 "), &json!("stop"))
    );
    // A conversation is not taken for a text afterwards.
    assert_eq!(content(&server.chat(&json!({"messages": [user(SUM)]}))), TWELVE);
}

/// The newer interface: the same answers in other words.
#[test]
fn responses_are_the_same_answers() {
    let server = Server::start(&["--max-ctx", "1024"]);
    let ask = json!({"instructions": "You are a.", "input": SUM});
    let response = server.post("/v1/responses", &ask);
    assert_eq!(response.status, 200, "{}", response.body);
    let whole = response.json();
    let chat = server.chat(&json!({"messages": [{"role": "system", "content": "You are a."}, user(SUM)]}));
    assert_eq!(whole["output"][0]["content"][0]["text"], content(&chat));
    assert_eq!(whole["usage"]["input_tokens"], chat["usage"]["prompt_tokens"]);
    assert!(chat["timings"]["reused_tokens"].as_u64().unwrap() > 0, "one conversation, whoever asks");
    let cut = server.post("/v1/responses", &json!({"input": SUM, "max_output_tokens": 2})).json();
    assert_eq!(cut["status"], "incomplete");
    let bad = server.post("/v1/responses", &json!({"input": SUM, "previous_response_id": "x"}));
    assert_eq!((bad.status, bad.error().0.contains("whole conversation")), (400, true));
}

/// Clients send the whole of a conversation each time; once it had outgrown the context, nothing of it was found again.
#[test]
fn a_conversation_beyond_the_context_is_not_read_anew_in_each_request() {
    let server = Server::start(&["--max-ctx", "512", "--drop-oldest"]);
    let (mut messages, mut costs, mut over) = (Vec::new(), Vec::new(), false);
    let mut longest = 0;
    while costs.len() < 15 {
        messages.push(user(SUM));
        let answer = server.chat(&json!({"messages": messages, "max_tokens": 16}));
        messages.push(json!({"role": "assistant", "content": content(&answer)}));
        let usage = &answer["usage"];
        let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        let prompt = usage["prompt_tokens"].as_u64().unwrap();
        over |= prompt < longest;
        longest = prompt.max(longest);
        if over {
            costs.push(prompt - cached);
        }
    }
    let new = costs.iter().filter(|&&tokens| tokens < 80).count();
    assert!(new >= 10, "{costs:?}");
}
