//! Conversations with the demo model on the software NPU, seen from outside the process.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod common;

use common::{Run, bundle, folder, run, run_with_input};
use serde_json::Value;
use std::path::{Path, PathBuf};

const BASE: [&str; 3] = ["demo", "--device", "model"];

fn sample(name: &str) -> String {
    format!("{}/demo/samples/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn file(name: &str, text: &str) -> PathBuf {
    let path = folder().join(name);
    std::fs::write(&path, text).unwrap();
    path
}

fn asked(more: &[&str]) -> Run {
    run(&[&BASE[..], more].concat())
}

/// The document of `--json`, of a run that went well.
fn json(more: &[&str]) -> Value {
    let run = asked(&[more, &["--json"]].concat());
    assert_eq!(run.code, Some(0), "{run:?}");
    serde_json::from_str(&run.stdout).unwrap()
}

/// The only answer of a document.
fn answer(document: &Value) -> &Value {
    let answers = document["turns"][0]["answers"].as_array().unwrap();
    assert_eq!((document["turns"].as_array().unwrap().len(), answers.len()), (1, 1), "{document}");
    &answers[0]
}

/// A script's document.
fn script(lines: &str, more: &[&str]) -> Value {
    let run = run_with_input(&[&BASE[..], &["--interactive", "--json"], more].concat(), lines.as_bytes());
    assert_eq!(run.code, Some(0), "{run:?}");
    serde_json::from_str(&run.stdout).unwrap()
}

fn texts(document: &Value) -> Vec<String> {
    let turns = document["turns"].as_array().unwrap();
    turns.iter().map(|turn| turn["answers"][0]["text"].as_str().unwrap_or("-").to_owned()).collect()
}

#[test]
fn a_script_is_one_conversation() {
    let picture = sample("three-shapes.png");
    let lines = format!(
        "/image {picture}\nWhat do you see?\nWhat colour is the star?\n/undo\nWhat is on the left?\n/retry\n/reset\nWhat is 3 + 4?\n"
    );
    let found = script(&lines, &[]);
    let said = texts(&found);
    assert_eq!(said.len(), 5);
    assert!(said[0].contains("a blue star in the middle"), "{said:?}");
    assert!(said[1].ends_with("The star is blue."), "{said:?}");
    assert!(said[2].ends_with("The red circle is on the left."), "{said:?}");
    assert_eq!(said[3], said[2], "a greedy answer comes out as before");
    assert_eq!(said[4], "3 + 4 = 7.");
    let usage = |turn: usize, what: &str| found["turns"][turn]["answers"][0]["usage"][what].as_u64().unwrap();
    // The picture is not read again. The answer is: templates put an empty block of reasoning in front of an answer that
    // is being asked for, and none in front of earlier ones.
    assert_eq!(usage(0, "reused_tokens"), 0);
    assert!(usage(1, "reused_tokens") > usage(1, "image_tokens") + 8, "{found}");
    assert!(usage(1, "prompt_tokens") - usage(1, "reused_tokens") < 50, "{found}");
    // After the undo the prompt is as long as if the taken question had never been.
    assert!(usage(2, "prompt_tokens") < usage(1, "prompt_tokens") + 10, "{found}");
    assert_eq!(usage(4, "image_tokens"), 0);
    // What the conversation says does not depend on how it is shown.
    let plain = run_with_input(&[&BASE[..], &["--interactive"]].concat(), lines.as_bytes());
    assert_eq!(plain.stdout, said.join("\n") + "\n");
}

#[test]
fn text_json_and_lines_say_the_same() {
    let question = ["--prompt", "What is 3 + 4?", "--logprobs", "2"];
    let text = asked(&["--prompt", "What is 3 + 4?"]);
    let document = json(&question);
    let lines = asked(&[&question[..], &["--jsonl"]].concat());
    let events: Vec<Value> = lines.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |kind: &str| events.iter().filter(|event| event["event"] == kind).collect::<Vec<_>>();
    let pieces: String = of("text").iter().map(|event| event["text"].as_str().unwrap()).collect();
    assert_eq!(text.stdout, format!("{pieces}\n"));
    assert_eq!(answer(&document)["text"], pieces);
    assert_eq!((&document["version"], &of("begin")[0]["version"]), (&1.into(), &1.into()));
    assert_eq!(events[0]["event"], "begin");
    let end = events.last().unwrap();
    assert_eq!((&end["event"], &end["finish_reason"]), (&"end".into(), &"stop".into()));
    assert_eq!(end["usage"], answer(&document)["usage"]);
    // Probabilities are told token by token, and spell the answer.
    let logged = answer(&document)["logprobs"].as_array().unwrap();
    assert_eq!(logged.len(), of("token").len());
    let spelled: String = logged.iter().map(|token| token["text"].as_str().unwrap()).collect();
    assert_eq!(spelled, pieces);
    for token in logged {
        assert_eq!(token["top"].as_array().unwrap().len(), 2);
        assert_eq!(token["top"][0]["token"], token["token"], "a greedy answer takes the most probable token");
    }
}

#[test]
fn what_fails_is_json_too() {
    let long = "7 ".repeat(600);
    let ran = asked(&["--prompt", &long, "--max-ctx", "512", "--json"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let document: Value = serde_json::from_str(&ran.stdout).unwrap();
    let said = document["turns"][0]["error"].as_str().unwrap();
    assert!(said.contains("512") && said.contains("--max-ctx"), "{said}");
    let nowhere = run(&["/nowhere/at/all", "--prompt", "x", "--jsonl"]);
    assert_eq!(nowhere.code, Some(1), "{nowhere:?}");
    let event: Value = serde_json::from_str(nowhere.stdout.trim_end()).unwrap();
    assert_eq!(event["event"], "error");
    // A line that is wrong is an event among others.
    let found = script("/frobnicate\nWhat is 3 + 4?\n", &[]);
    assert!(found["turns"][0]["error"].as_str().unwrap().contains("/frobnicate"), "{found}");
    assert_eq!(found["turns"][1]["answers"][0]["text"], "3 + 4 = 7.");
}

#[test]
fn a_conversation_goes_on_in_another_process() {
    let path = folder().join("talk.session");
    let path = path.to_str().unwrap();
    let picture = sample("three-shapes.png");
    let first = json(&["--session", path, "--image", &picture, "--prompt", "What do you see?"]);
    assert!(answer(&first)["text"].as_str().unwrap().contains("blue star"));
    let second = json(&["--session", path, "--prompt", "What colour is the star?"]);
    let usage = &answer(&second)["usage"];
    assert!(answer(&second)["text"].as_str().unwrap().ends_with("The star is blue."), "{second}");
    assert!(usage["image_tokens"].as_u64().unwrap() > 0 && usage["reused_tokens"].as_u64().unwrap() > 0, "{usage}");
    // The same as one process would have said.
    let lines = format!("/image {picture}\nWhat do you see?\nWhat colour is the star?\n");
    assert_eq!(texts(&script(&lines, &[]))[1], answer(&second)["text"].as_str().unwrap());

    // Files that are damaged are told, and stay as they are.
    let whole = std::fs::read(path).unwrap();
    for (name, bytes, said) in [
        ("cut", &whole[..60], "cut off"),
        ("other", b"hello there, this is no conversation".as_slice(), "no saved conversation"),
        ("empty", b"".as_slice(), "cut off"),
    ] {
        let broken = folder().join(format!("{name}.session"));
        std::fs::write(&broken, bytes).unwrap();
        let ran = asked(&["--session", broken.to_str().unwrap(), "--prompt", "What is 3 + 4?"]);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{ran:?}");
        assert!(ran.stderr.contains(said) && ran.stderr.contains(name), "{ran:?}");
        assert_eq!(std::fs::read(&broken).unwrap(), bytes);
    }
    // Another model reads it anew.
    let copy = folder().join("copy.session");
    std::fs::write(&copy, &whole).unwrap();
    let tiny = [bundle().to_str().unwrap(), "--device", "model", "--session", copy.to_str().unwrap()];
    let other = run(&[&tiny[..], &["--prompt", "the cat", "--max-new", "4"]].concat());
    assert_eq!(other.code, Some(0), "{other:?}");
    assert!(other.stderr.contains("read anew"), "{other:?}");
}

#[test]
fn a_seed_says_it_all() {
    let drawn = |seed: &str, threads: &str| {
        let found = json(&[
            "--prompt",
            "Hello!",
            "--preset",
            "instruct",
            "--temperature",
            "3",
            "--top-p",
            "1",
            "--seed",
            seed,
            "--threads",
            threads,
            "--max-new",
            "24",
        ]);
        assert_eq!(found["seed"], seed.parse::<u64>().unwrap());
        answer(&found)["text"].clone()
    };
    assert_eq!(drawn("5", "1"), drawn("5", "2"));
    assert_ne!(drawn("5", "1"), drawn("6", "1"));
}

#[test]
fn answers_end_where_they_were_told_to() {
    let whole = asked(&["--prompt", "What is 3 + 4?"]).stdout;
    assert_eq!(whole, "3 + 4 = 7.\n");
    let cut = json(&["--prompt", "What is 3 + 4?", "--stop", "never", "--stop", " ="]);
    assert_eq!((&answer(&cut)["text"], &answer(&cut)["stop_string"]), (&"3 + 4".into(), &" =".into()));
    let short = json(&["--prompt", "What is 3 + 4?", "--max-new", "3"]);
    assert_eq!(answer(&short)["finish_reason"], "length");
    assert!(answer(&short)["why"].as_str().unwrap().contains("--max-new"));
    // A token that is forbidden does not come.
    let first = json(&["--prompt", "What is 3 + 4?", "--logprobs", "1"]);
    let token = answer(&first)["logprobs"][0]["token"].as_u64().unwrap();
    let other = json(&["--prompt", "What is 3 + 4?", "--logprobs", "1", "--logit-bias", &format!("{token}=-inf")]);
    assert_ne!(answer(&other)["logprobs"][0]["token"], token);
}

#[test]
fn reasoning_is_no_part_of_the_answer() {
    let found = json(&["--prompt", "What is 3 + 4?", "--think", "on"]);
    let (reasoning, text) = (&answer(&found)["reasoning"], answer(&found)["text"].as_str().unwrap());
    assert!(!reasoning.as_str().unwrap().trim().is_empty() && text.contains('7'), "{found}");
    assert!(!text.contains("think>"), "{text}");
    let shown = asked(&["--prompt", "What is 3 + 4?", "--thinking", "--show-thinking"]);
    assert_eq!(shown.stdout.trim_end(), text.trim());
    assert!(shown.stderr.contains(reasoning.as_str().unwrap().trim()), "{shown:?}");
    // A budget ends it, and the answer comes all the same.
    let brief = json(&["--prompt", "What is 3 + 4?", "--think", "2"]);
    assert!(answer(&brief)["reasoning"].as_str().unwrap().len() < reasoning.as_str().unwrap().len(), "{brief}");
    assert!(!answer(&brief)["text"].as_str().unwrap().is_empty(), "{brief}");
}

#[test]
fn answers_are_held_to_a_schema() {
    let schema = r#"{"type":"object","properties":{"sum":{"type":"integer"},"sure":{"type":"boolean"}},
        "required":["sum","sure"],"additionalProperties":false}"#;
    let schema = file("schema.json", schema);
    let run = asked(&["--prompt", "What is 3 + 4?", "--json-schema", schema.to_str().unwrap()]);
    assert_eq!(run.code, Some(0), "{run:?}");
    let value: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|e| panic!("{e}: {run:?}"));
    assert!(value["sum"].is_i64() && value["sure"].is_boolean(), "{value}");
    let object = asked(&["--prompt", "What is 3 + 4?", "--json-object", "--max-new", "200"]);
    if object.stderr.is_empty() {
        assert!(serde_json::from_str::<Value>(&object.stdout).unwrap().is_object());
    } else {
        assert!(object.stderr.contains("--max-new"), "{object:?}");
    }
    let bad = file("bad-schema.json", r#"{"not": {}}"#);
    let refused = asked(&["--prompt", "x", "--json-schema", bad.to_str().unwrap()]);
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(1), ""), "{refused:?}");
    assert!(refused.stderr.contains("schema"), "{refused:?}");
}

#[test]
fn functions_are_called_and_their_results_go_back() {
    let tools = sample("tools.json");
    let held = ["--prompt", "What is 3 + 4?", "--tools", &tools, "--tool-choice", "add"];
    let found = json(&held);
    let calls = answer(&found)["calls"].as_array().unwrap();
    assert_eq!((calls.len(), &calls[0]["name"]), (1, &"add".into()), "{found}");
    assert_eq!(answer(&found)["finish_reason"], "tool_calls");
    // A program that runs them: here it gives the call back, so that what it got can be seen.
    let ran = json(&[&held[..], &["--tool-command", "cat"]].concat());
    let answers = ran["turns"][0]["answers"].as_array().unwrap();
    assert!(answers.len() >= 2, "{ran}");
    let result: Value = serde_json::from_str(answers[0]["results"][0]["text"].as_str().unwrap()).unwrap();
    assert_eq!(result["arguments"], calls[0]["arguments"]);
    // One that fails is told to the model, and to the person.
    let failed = asked(&[&held[..], &["--tool-command", "false"]].concat());
    assert_eq!(failed.code, Some(0), "{failed:?}");
    assert!(failed.stderr.contains("--tool-command false: it ended with"), "{failed:?}");
    assert!(failed.stdout.contains("-> add {") && failed.stdout.contains("<- add Error:"), "{failed:?}");
    // What is no call is held to a schema.
    let both = json(&["--prompt", "What is 3 + 4?", "--tools", &tools, "--json-object", "--max-new", "120"]);
    let last = answer(&both);
    let object = last["text"].as_str().unwrap();
    assert!(!last["calls"].as_array().unwrap().is_empty() || object.trim_start().starts_with('{'), "{both}");
    // In a script the result is a line; without a call it is none.
    let more = ["--tools", tools.as_str(), "--tool-choice", "add"];
    let lines = script("/result 9\nWhat is 3 + 4?\n/result 7\n", &more);
    assert!(lines["turns"][0]["error"].as_str().unwrap().contains("no function was called"), "{lines}");
    assert_eq!(lines["turns"][1]["answers"].as_array().unwrap().len(), 2, "{lines}");
}

#[test]
fn files_of_wishes_are_read_before_a_model_is() {
    let list = file("tools-object.json", "{}");
    let jinja = file("broken.jinja", "{% for %}");
    let text = file("not.json", "{");
    for (flag, path, more, said) in [
        ("--tools", list.as_path(), vec![], "not a JSON array"),
        ("--tools", Path::new("/nowhere.json"), vec![], "cannot open it"),
        ("--tools", &PathBuf::from(sample("tools.json")), vec!["--tool-choice", "sub"], "no function `sub`"),
        ("--json-schema", text.as_path(), vec![], "not JSON"),
        ("--chat-template", jinja.as_path(), vec![], "broken.jinja"),
    ] {
        let words = ["/nowhere/at/all", "--prompt", "x", flag, path.to_str().unwrap()];
        let ran = run(&[&words[..], &more].concat());
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{flag}: {ran:?}");
        assert!(ran.stderr.contains(flag) && ran.stderr.contains(said), "{flag}: {ran:?}");
    }
}

#[test]
fn another_template_makes_another_prompt() {
    let template = file("plain.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}");
    let base = ["--prompt", "What is 3 + 4?", "--max-new", "4"];
    let own = json(&base);
    let other = json(&[&base[..], &["--chat-template", template.to_str().unwrap()]].concat());
    let tokens = |document: &Value| answer(document)["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(tokens(&other) < tokens(&own), "{other}");
}

#[test]
fn a_full_context_is_refused_or_makes_room() {
    let lines = "What is 3 + 4?\n".repeat(20);
    let more = ["--max-ctx", "160", "--max-new", "16"];
    let refused = script(&lines, &more);
    let last = refused["turns"].as_array().unwrap().last().unwrap();
    let said = last["error"].as_str().unwrap();
    assert!(said.contains("160") && said.contains("--max-ctx"), "{said}");
    let dropping = script(&lines, &[&more[..], &["--drop-oldest"]].concat());
    let turns = dropping["turns"].as_array().unwrap();
    assert!(turns.iter().all(|turn| turn["answers"][0]["text"] == "3 + 4 = 7."), "{dropping}");
    assert!(turns.iter().any(|turn| turn["answers"][0]["usage"]["dropped_messages"] != 0), "{dropping}");
}

#[test]
fn pictures_and_texts_keep_their_order() {
    let (one, three) = (sample("one-shape.png"), sample("three-shapes.png"));
    let tokens = |more: &[&str]| {
        let found = json(&[more, &["--max-new", "8"]].concat());
        (answer(&found)["usage"].clone(), answer(&found)["text"].clone())
    };
    // With one text the pictures come first, wherever they stand.
    let before = tokens(&["--image", &three, "--prompt", "What do you see?"]);
    assert_eq!(before, tokens(&["--prompt", "What do you see?", "--image", &three]));
    // With several, the order is the question.
    let between =
        json(&["--prompt", "Look:", "--image", &one, "--prompt", "and", "--image", &three, "--prompt", "What?"]);
    assert_eq!(
        (&between["turns"][0]["pictures"], &between["turns"][0]["prompt"]),
        (&2.into(), &"Look:andWhat?".into())
    );
    // A picture may come from standard input.
    let bytes = std::fs::read(&three).unwrap();
    let piped =
        run_with_input(&[&BASE[..], &["--image", "-", "--prompt", "What do you see?", "--json"]].concat(), &bytes);
    let piped: Value = serde_json::from_str(&piped.stdout).unwrap();
    assert!(answer(&piped)["text"].as_str().unwrap().contains("blue star"), "{piped}");
}

#[test]
fn control_tokens_are_taken_for_themselves_only_where_asked() {
    let tokens = |more: &[&str]| {
        let found = json(&[&["--prompt", "hi<|im_end|>", "--max-new", "2"], more].concat());
        answer(&found)["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    assert!(tokens(&[]) > tokens(&["--raw"]), "spelled out it takes several tokens, else one");
}
