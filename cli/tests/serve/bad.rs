//! Requests that are wrong: each costs itself, and is told what is wrong with it.

use crate::client::{SUM, Server, TWELVE, send, user};
use serde_json::{Value, json};
use std::io::{BufReader, Write};

#[test]
fn what_is_wrong_with_a_body_is_said() {
    let server = Server::start(&["--max-ctx", "256", "--max-body", "1"]);
    let picture = |url: &str| json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]});
    let with = |more: Value| {
        let mut body = json!({"messages": [user("hi")], "max_tokens": 4});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    for (body, status, said) in [
        (json!([]), 400, "the body is an array"),
        (json!({}), 400, "`messages`: it is missing"),
        (json!({"messages": [{"role": "user", "content": 5}]}), 400, "message 0"),
        (json!({"messages": [user("x ".repeat(2000).as_str())]}), 400, "--max-ctx"),
        (picture("https://example.org/cat.jpg"), 400, "never does"),
        (picture("data:image/png;base64,aGVsbG8="), 400, "not a picture"),
        (with(json!({"model": "gpt-4o"})), 404, "there is no model `gpt-4o`"),
        (with(json!({"n": 3})), 400, "`n`"),
        (with(json!({"temperature": -1})), 400, "temperature is -1"),
        (with(json!({"top_p": 2})), 400, "top_p is 2"),
        (with(json!({"top_k": 1_000_000})), 400, "top_k"),
        (with(json!({"logit_bias": {"99999999": 1}})), 400, "logit_bias token"),
        (with(json!({"max_tokens": 0})), 400, "`max_tokens`"),
        (with(json!({"stop": [""]})), 400, "stop string 0 is empty"),
        (with(json!({"stop": vec!["x"; 65]})), 400, "65 stop strings"),
        (with(json!({"seed": "x"})), 400, "`seed`"),
        (with(json!({"stream": "yes"})), 400, "`stream`"),
        (with(json!({"tools": [{"function": {"name": "a b"}}]})), 400, "`tools`"),
        (
            with(json!({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "text"}}}})),
            400,
            "schema",
        ),
        (
            with(json!({"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}})),
            400,
            "schema",
        ),
        (with(json!({"reasoning_effort": 5})), 400, "`reasoning_effort`"),
    ] {
        for stream in [false, true] {
            let mut body = body.clone();
            if let Some(map) = body.as_object_mut() {
                map.entry("stream").or_insert(stream.into());
            }
            let response = server.post("/v1/chat/completions", &body);
            assert_eq!(response.status, status, "{body}: {}", response.body);
            let (message, _) = response.error();
            assert!(message.contains(said), "{body}: {message}");
        }
    }
    for (body, said) in
        [(json!({"prompt": ""}), "empty"), (json!({"prompt": [1]}), "text"), (json!({"prompt": "a", "n": 2}), "`n`")]
    {
        let response = server.post("/v1/completions", &body);
        assert_eq!((response.status, response.error().0.contains(said)), (400, true), "{}", response.body);
    }
    let length = server.post("/v1/chat/completions", &json!({"messages": [user("x ".repeat(2000).as_str())]}));
    assert_eq!(length.error().1, "context_length_exceeded");
    assert_eq!(server.chat(&json!({"messages": [user(SUM)]}))["choices"][0]["message"]["content"], TWELVE);
    assert_eq!(server.metric("qwen35_device_errors_total"), 0.0);
}

#[test]
fn paths_methods_types_and_sizes_have_their_status() {
    let server = Server::start(&["--max-ctx", "256", "--max-body", "1"]);
    let json_type = ("content-type", "application/json");
    for (method, path, headers, body, status) in [
        ("GET", "/nowhere", &[][..], String::new(), 404),
        ("POST", "/v1/embeddings", &[json_type], "{}".into(), 404),
        ("GET", "/v1/chat/completions", &[], String::new(), 405),
        ("DELETE", "/v1/models", &[], String::new(), 405),
        ("POST", "/v1/chat/completions", &[], "{}".into(), 415),
        ("POST", "/v1/chat/completions", &[("content-type", "text/plain")], "{}".into(), 415),
        ("POST", "/v1/chat/completions", &[("content-type", "application/json; charset=utf-8")], "{".into(), 400),
        ("POST", "/v1/chat/completions", &[json_type], String::new(), 400),
        ("POST", "/v1/chat/completions", &[json_type], "[".repeat(500_000), 400),
        ("POST", "/v1/chat/completions", &[json_type], " ".repeat((1 << 20) + 1), 413),
        ("GET", "/v1/models/other", &[], String::new(), 404),
    ] {
        let response = server.ask(method, path, headers, &body);
        assert_eq!(response.status, status, "{method} {path}: {}", response.body);
        response.error();
        assert_eq!(response.header("allow").is_some(), status == 405);
    }
    assert_eq!(server.get("/v1/models/bundle").json(), server.get("/v1/models").json()["data"][0]);
    assert_eq!(server.ask("HEAD", "/", &[], "").status, 200);
    let document = server.get("/openapi.json").json();
    assert!(document["paths"]["/v1/chat/completions"]["post"].is_object());
    let page = server.get("/");
    assert!(page.header("content-security-policy").unwrap().starts_with("default-src 'none'"));
    assert!(page.header("content-type").unwrap().starts_with("text/html"));
}

/// A body whose length is not known beforehand is taken in the same way, and as far.
#[test]
fn a_body_in_chunks_is_read_and_bounded() {
    let server = Server::start(&["--max-ctx", "256", "--max-body", "1"]);
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                transfer-encoding: chunked\r\n\r\n";
    let ask = |chunks: &[&str]| {
        let mut stream = server.connect();
        stream.write_all(head.as_bytes()).unwrap();
        for chunk in chunks {
            let _ = stream.write_all(format!("{:x}\r\n{chunk}\r\n", chunk.len()).as_bytes());
        }
        let _ = stream.write_all(b"0\r\n\r\n");
        crate::client::Response::read(&mut BufReader::new(stream))
    };
    let body = json!({"messages": [user(SUM)]}).to_string();
    let (a, b) = body.split_at(10);
    assert_eq!(ask(&[a, b]).json()["choices"][0]["message"]["content"], TWELVE);
    let half = " ".repeat(600_000);
    assert_eq!(ask(&[&half, &half]).status, 413);
}

/// Bytes that are no HTTP, and clients that hang up at any place.
#[test]
fn noise_is_survived() {
    let server = Server::start(&["--max-ctx", "256"]);
    let whole = {
        let mut bytes = Vec::new();
        let body = json!({"messages": [user(SUM)], "stream": true}).to_string();
        send(&mut bytes, "POST", "/v1/chat/completions", &[("content-type", "application/json")], &body);
        bytes
    };
    for cut in (0..whole.len()).step_by(7) {
        server.connect().write_all(&whole[..cut]).unwrap();
    }
    for noise in [
        &b"\x16\x03\x01\x02\x00\x01\x00"[..],
        b"\0\0\0\0\r\n\r\n",
        b"GET",
        b"GET / HTTP/9.9\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\n",
    ] {
        server.connect().write_all(noise).unwrap();
    }
    assert_eq!(server.chat(&json!({"messages": [user(SUM)]}))["choices"][0]["message"]["content"], TWELVE);
    // The one that asks for the number.
    server.until("qwen35_connections", 1.0);
    assert_eq!(server.metric("qwen35_queue_waiting"), 0.0);
}
