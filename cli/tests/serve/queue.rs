//! One after the other: who waits, who has gone, and whose turn it is.

use crate::client::{SUM, Server, TWELVE, all, long, send, text, user};
use crate::common::DEADLINE;
use serde_json::{Value, json};
use std::io::BufReader;
use std::time::Instant;

const ENDLESS: u32 = 1_000_000;

/// A request that has been sent, and whose answer nobody reads.
fn sent(server: &Server, body: &Value) -> std::net::TcpStream {
    let mut stream = server.connect();
    send(&mut stream, "POST", "/v1/chat/completions", &[("content-type", "application/json")], &body.to_string());
    stream
}

#[test]
fn a_full_queue_says_so_and_who_leaves_makes_room() {
    let server = Server::start(&["--queue", "1", "--max-ctx", "32768"]);
    let sum = json!({"messages": [user(SUM)]});
    let mut running = server.stream(&long(ENDLESS));
    running.next().unwrap();
    let waiting = sent(&server, &sum);
    server.until("qwen35_queue_waiting", 1.0);
    let refused = server.post("/v1/chat/completions", &sum);
    assert_eq!((refused.status, refused.error().1), (503, json!("queue_full")));
    assert!(refused.header("retry-after").unwrap().parse::<u64>().unwrap() > 0);
    // Who waits goes away.
    drop(waiting);
    server.until("qwen35_queue_waiting", 0.0);
    let waiting = sent(&server, &sum);
    server.until("qwen35_queue_waiting", 1.0);
    assert_eq!(server.metric("qwen35_running"), 1.0);
    // Who is being answered goes away: the other one's turn comes, long before the answer would have had its end.
    drop(running);
    let answer = crate::client::Response::read(&mut BufReader::new(waiting)).json();
    assert_eq!(answer["choices"][0]["message"]["content"], TWELVE);
    server.until("qwen35_cancelled_total", 2.0);
    server.until("qwen35_running", 0.0);
    assert!(server.metric("qwen35_tokens_total") < 32_000.0);
}

/// The same of an answer that is not streamed: nothing is written to its client before the end.
#[test]
fn a_client_that_goes_before_its_answer_frees_its_place() {
    let server = Server::start(&["--max-ctx", "32768"]);
    let silent = sent(&server, &long(ENDLESS));
    server.until("qwen35_running", 1.0);
    drop(silent);
    server.until("qwen35_running", 0.0);
    assert_eq!(server.metric("qwen35_cancelled_total"), 1.0);
    assert_eq!(server.chat(&json!({"messages": [user(SUM)]}))["choices"][0]["message"]["content"], TWELVE);
}

/// A client that does not read holds up nobody.
#[test]
fn a_slow_reader_does_not_keep_others_waiting() {
    let server = Server::start(&["--max-ctx", "4096"]);
    let mut slow = server.stream(&long(2000));
    slow.next().unwrap();
    // While nobody reads the first answer.
    assert_eq!(server.chat(&json!({"messages": [user(SUM)]}))["choices"][0]["message"]["content"], TWELVE);
    server.until("qwen35_running", 0.0);
    let (events, done) = all(slow);
    assert!(done && text(&events).len() > 1000, "it is all there");
}

/// A client that asks for much at once does not shut out one that asks for little.
#[test]
fn clients_take_turns() {
    let server = Server::start(&["--max-ctx", "8192"]);
    let mut running = server.stream(&long(ENDLESS));
    running.next().unwrap();
    let ask = |user_name: &str, tokens: u32| {
        let mut body = long(tokens);
        body["user"] = user_name.into();
        body
    };
    let mut many = Vec::new();
    for n in 1..=3 {
        many.push(sent(&server, &ask("many", 1000)));
        server.until("qwen35_queue_waiting", f64::from(n));
    }
    let one = sent(&server, &ask("one", 5));
    server.until("qwen35_queue_waiting", 4.0);
    drop(running);
    crate::client::Response::read(&mut BufReader::new(one));
    // Of the three that came before, one was before it.
    assert!(server.metric("qwen35_queue_waiting") + server.metric("qwen35_running") >= 1.0);
}

#[test]
fn a_deadline_ends_what_runs_and_refuses_what_waits() {
    let server = Server::start(&["--max-ctx", "65536", "--deadline", "5"]);
    let start = Instant::now();
    let running = server.stream(&long(ENDLESS));
    let waiting = server.post("/v1/chat/completions", &long(ENDLESS));
    assert!(waiting.status == 503 || waiting.json()["choices"][0]["finish_reason"] == "length", "{}", waiting.body);
    let (events, done) = all(running);
    assert!(done && !text(&events).is_empty());
    assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "length");
    assert!(start.elapsed() < DEADLINE);
    server.until("qwen35_running", 0.0);
    assert_eq!(server.chat(&json!({"messages": [user(SUM)]}))["choices"][0]["message"]["content"], TWELVE);
}
