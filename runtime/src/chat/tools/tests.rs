use super::*;
use crate::chat::{Request, Template};
use serde_json::json;

fn tools() -> Tools {
    Tools::from_json(
        r#"[{"type": "function", "function": {"name": "weather", "description": "d", "parameters": {"type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1},
                "unit": {"type": "string", "enum": ["c", "f"]}, "hourly": {"type": "boolean"}},
            "required": ["city"]}}},
        {"name": "run", "parameters": {"type": "object", "properties": {"code": {"type": "string"},
            "env": {"type": "object"}, "args": {"type": "array", "items": {"type": "number"}}},
            "additionalProperties": {"type": "string"}}},
        {"name": "now"}]"#,
    )
    .unwrap()
}

/// All pieces, texts that follow each other in one.
fn parse(pieces: &[&str]) -> Vec<ToolEvent> {
    let tools = tools();
    let mut parser = ToolParser::new(&tools);
    let mut out: Vec<ToolEvent> = Vec::new();
    let mut emit = |event| match (out.last_mut(), event) {
        (Some(ToolEvent::Text(before)), ToolEvent::Text(text)) => before.push_str(&text),
        (_, event) => out.push(event),
    };
    pieces.iter().for_each(|piece| parser.push(piece, &mut emit));
    parser.finish(&mut emit);
    out
}

fn call(name: &str, arguments: Value) -> ToolEvent {
    let Value::Object(arguments) = arguments else { panic!("{arguments}") };
    ToolEvent::Call(ToolCall { id: None, name: name.into(), arguments })
}

fn text(text: &str) -> ToolEvent {
    ToolEvent::Text(text.into())
}

const ONE: &str = "I look.\n\n<tool_call>\n<function=weather>\n<parameter=city>\nZürich\n</parameter>\n<parameter=days>\n\
                   3\n</parameter>\n</function>\n</tool_call>";

#[test]
fn a_call_is_found_in_every_cut() {
    let wanted = [text("I look."), call("weather", json!({"city": "Zürich", "days": 3}))];
    let places: Vec<usize> = ONE.char_indices().map(|(at, _)| at).chain([ONE.len()]).collect();
    for &i in &places {
        for &j in places.iter().filter(|&&j| j >= i) {
            assert_eq!(parse(&[&ONE[..i], &ONE[i..j], &ONE[j..]]), wanted, "{i} {j}");
        }
    }
    let single: Vec<&str> = places.windows(2).map(|w| &ONE[w[0]..w[1]]).collect();
    assert_eq!(parse(&single), wanted);
}

#[test]
fn several_calls_parameters_in_any_order_and_text_around() {
    let two = "<tool_call>\n<function=weather>\n<parameter=hourly>\ntrue\n</parameter>\n<parameter=unit>\nf\n</parameter>\n\
               <parameter=city>\n42\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n\
               </tool_call>\n\ndone < 3";
    let first = call("weather", json!({"hourly": true, "unit": "f", "city": "42"}));
    assert_eq!(parse(&[two]), [first, call("now", json!({})), text("done < 3")]);
    // Two functions in one block, and closing tags that were left away.
    let block = "<tool_call><function=now></function><function=weather><parameter=city>x</parameter></tool_call>";
    assert_eq!(parse(&[block]), [call("now", json!({})), call("weather", json!({"city": "x"}))]);
    let json = r#"<tool_call>{"name": "weather", "arguments": {"city": "y", "days": 2}}</tool_call>"#;
    assert_eq!(parse(&[json]), [call("weather", json!({"city": "y", "days": 2}))]);
}

#[test]
fn values_keep_what_is_theirs() {
    let run = |code: &str| {
        let written =
            format!("<tool_call>\n<function=run>\n<parameter=code>\n{code}\n</parameter>\n</function>\n</tool_call>");
        assert_eq!(parse(&[&written]), [call("run", json!({"code": code}))], "{code:?}");
    };
    for code in [
        "",
        " ",
        "\n",
        "a\nb\n",
        "  indented\n\n",
        "x</parameter>y",
        "</parameter>",
        "</tool_call>",
        "<tool_call>",
        "a </parameter> b </tool_call> c",
        "</function>",
        "<parameter=x>",
        "{\"a\": 1}",
        "true",
        "漢字🙂",
        "</parameter>\n</tool_call>",
    ] {
        run(code);
    }
    let typed = "<tool_call>\n<function=run>\n<parameter=env>\n{\"A\": [1, null]}\n</parameter>\n<parameter=args>\n[1, 2.5]\n\
                 </parameter>\n<parameter=other>\n7\n</parameter>\n</function>\n</tool_call>";
    assert_eq!(parse(&[typed]), [call("run", json!({"env": {"A": [1, null]}, "args": [1, 2.5], "other": "7"}))]);
}

fn refusal(written: &str) -> String {
    match &parse(&[written])[..] {
        [ToolEvent::Refused { error, .. }] => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn calls_that_do_not_fit_are_refused_by_name() {
    let weather = |parameters: &[(&str, &str)]| {
        let parameters: String =
            parameters.iter().map(|(n, v)| format!("<parameter={n}>\n{v}\n</parameter>\n")).collect();
        refusal(&format!("<tool_call>\n<function=weather>\n{parameters}</function>\n</tool_call>"))
    };
    assert_eq!(weather(&[]), "weather: the parameter `city` is missing");
    assert_eq!(weather(&[("city", "a"), ("city", "b")]), "weather: the parameter `city` is there twice");
    assert_eq!(weather(&[("town", "a")]), "weather: there is no parameter `town`; there are: city, days, unit, hourly");
    assert_eq!(
        weather(&[("city", "a"), ("days", "two")]),
        "weather: the parameter `days` is `two`, wanted integer, minimum 1"
    );
    assert_eq!(
        weather(&[("city", "a"), ("days", "0")]),
        "weather: the parameter `days` is `0`, wanted integer, minimum 1"
    );
    assert!(weather(&[("city", "a"), ("unit", "k")]).ends_with(r#"wanted one of ["c","f"]"#));
    assert!(weather(&[("city", "a"), ("hourly", "1")]).contains("`hourly` is `1`, wanted boolean"));
    let args = "<tool_call><function=run><parameter=args>[1, \"x\"]</parameter></function></tool_call>";
    assert_eq!(refusal(args), "run: the parameter `args[1]` is `\"x\"`, wanted number");
    assert_eq!(
        refusal("<tool_call><function=fly></function></tool_call>"),
        "there is no function `fly`; there are: weather, run, now"
    );
    assert_eq!(refusal("<tool_call></tool_call>"), "not a tool call: it is empty");
    assert!(
        refusal("<tool_call>\nweather(x)\n</tool_call>")
            .contains("`<function=...>` is wanted where there is `weather(x)`")
    );
    assert!(refusal("<tool_call>{\"name\": 3}</tool_call>").contains("`name` is missing"));
    assert!(refusal("<tool_call>{\"name\" 3}</tool_call>").contains("not JSON"));
}

/// An answer that ends anywhere inside of a call says so, shows no piece of it, and makes no call of it.
#[test]
fn a_truncated_call_is_no_call() {
    let begin = ONE.find("<tool_call>").unwrap();
    for (end, _) in ONE.char_indices().filter(|(at, _)| *at >= begin + OPEN.len()) {
        match &parse(&[&ONE[..end]])[..] {
            [ToolEvent::Text(before), ToolEvent::Refused { error: ToolError::Truncated, .. }] => {
                assert_eq!(before, "I look.");
            }
            other => panic!("{end}: {other:?}"),
        }
    }
    // Before the tag is whole it is text like any other.
    assert_eq!(parse(&[&ONE[..begin + 5]]), [text("I look.\n\n<tool")]);
}

#[test]
fn text_without_calls_comes_at_once_and_whole() {
    let tools = tools();
    let mut parser = ToolParser::new(&tools);
    let mut shown = |piece: &str| {
        let mut out = String::new();
        parser.push(piece, &mut |event| match event {
            ToolEvent::Text(text) => out.push_str(&text),
            other => panic!("{other:?}"),
        });
        out
    };
    assert_eq!(shown("a < b"), "a < b");
    assert_eq!(shown(" <tool"), "");
    assert_eq!(shown("s>"), " <tools>");
    assert_eq!(shown("\n\n"), "", "could come before a call");
    assert_eq!(shown("c"), "\n\nc");
    assert_eq!(parse(&["x\n"]), [text("x\n")]);
    assert_eq!(parse(&[]), []);
}

/// What a template writes of calls is what the parser reads.
#[test]
fn calls_survive_the_template() {
    let arguments = json!({"code": "a</parameter>\n b", "env": {"k": [1, "é"]}, "args": [1.5, 2], "x": ""});
    let ToolEvent::Call(made) = call("run", arguments) else { panic!() };
    let mut message = Message::assistant(Some("thought".into()), "Text.");
    message.tool_calls = vec![made.clone(), made.clone()];
    let messages = [Message::user("q"), message, tool_result(&made, Ok(&json!({"a": 1.0})))];
    let tools = tools();
    let request = Request { tools: tools.values(), ..Request::answer(&messages, false) };
    let text = Template::builtin().render_raw(&request).unwrap().text().to_owned();
    assert!(text.contains("<tool_response>\n{\"a\": 1.0}\n</tool_response>"), "{text}");
    let answer = text.split_once("</think>\n\n").unwrap().1.split_once("<|im_end|>").unwrap().0;
    assert_eq!(parse(&[answer]), [self::text("Text."), ToolEvent::Call(made.clone()), ToolEvent::Call(made.clone())]);
    assert_eq!(tool_result(&made, Err("no such file")).all_text(), "Error: no such file");
    assert_eq!(tool_result(&made, Ok(&json!("as it is"))).all_text(), "as it is");
}

#[test]
fn definitions_that_cannot_be_used_are_refused() {
    for (json, said) in [
        ("{", "the tool definitions are not a JSON array: "),
        ("{}", "the tool definitions are not a JSON array: it is an object"),
        ("[{}]", "tool definition 0: `name` is missing"),
        (r#"[{"name": "a b"}]"#, "tool definition 0: the name is `a b`"),
        (r#"[{"name": "a"}, {"function": {"name": "a"}}]"#, "tool definition 1: `a` is defined twice"),
        (r#"[{"name": "a", "parameters": []}]"#, "tool definition 0: `parameters` is an array"),
        (r#"[{"name": "a", "parameters": {"type": "string"}}]"#, "tool definition 0: `parameters` has the type string"),
        (
            r#"[{"name": "a", "parameters": {"properties": {"x": {"type": "int"}}}}]"#,
            "tool definition 0: property `x`: `type` is `int`",
        ),
        (
            r#"[{"name": "a", "parameters": {"properties": {"x>": {}}}}]"#,
            "tool definition 0: a parameter is called `x>`",
        ),
    ] {
        let error = Tools::from_json(json).unwrap_err().to_string();
        assert!(error.starts_with(said), "{error}");
    }
    assert_eq!(tools().tools()[0].description, "d");
    assert_eq!(tools().values().len(), 3);
    assert!(!tools().is_empty() && Tools::default().is_empty());
}
