//! Beginning and end.

use crate::client::{Server, all, demo, long, text, user};
use crate::common::{DEADLINE, broken, run};
use serde_json::{Value, json};
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

#[test]
fn an_answer_that_runs_is_ended_before_the_server_is() {
    let server = Server::start(&["--max-ctx", "4096"]);
    let mut running = server.stream(&long(1500));
    let first = running.next().unwrap();
    server.signal("-TERM");
    let start = Instant::now();
    while TcpStream::connect(&server.at).is_ok() {
        assert!(start.elapsed() < DEADLINE, "new clients come in still");
        std::thread::sleep(Duration::from_millis(5));
    }
    let (events, done) = all(running);
    assert!(done && !first.is_empty());
    assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "length");
    assert!(server.log().contains("stopping"));
    assert_eq!(server.end(), Some(0));
}

#[test]
fn what_takes_too_long_is_ended_with_a_word() {
    let server = Server::start(&["--max-ctx", "65536", "--stop-limit", "1"]);
    let mut running = server.stream(&long(1_000_000));
    running.next().unwrap();
    let address = server.at.clone();
    let waiting = std::thread::spawn({
        let mut stream = server.connect();
        move || {
            Server::send_chat(&mut stream, &json!({"messages": [user("hi")]}));
            crate::client::Response::read(&mut std::io::BufReader::new(stream))
        }
    });
    server.until("qwen35_queue_waiting", 1.0);
    server.signal("-INT");
    let waited = waiting.join().unwrap();
    assert_eq!((waited.status, waited.error().1), (503, json!("stopping")));
    let (events, done) = all(running);
    assert!(!done && !text(&events).is_empty());
    assert_eq!(events.last().unwrap()["error"]["code"], "stopping");
    assert_eq!(server.end(), Some(0));
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn a_bundle_that_is_none_ends_it_at_once() {
    let missing = broken("no-manifest", |folder| std::fs::remove_file(folder.join("manifest.txt")).unwrap());
    let ended = run(&["serve", missing.to_str().unwrap(), "--device", "model", "--listen", "127.0.0.1:0"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.lines().last().unwrap().contains("manifest.txt"), "{ended:?}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap().to_string();
    let ended = run(&["serve", demo().to_str().unwrap(), "--device", "model", "--listen", &at]);
    assert!(ended.code == Some(1) && ended.stderr.contains("choose another port"), "{ended:?}");
    let ended = run(&["serve", demo().to_str().unwrap(), "--listen", "nowhere"]);
    assert!(ended.code == Some(2) && ended.stderr.contains("127.0.0.1:8080"), "{ended:?}");
}

#[test]
fn health_and_the_log_are_for_programs() {
    let server = Server::start(&["--max-ctx", "256", "--log-format", "json", "--model-name", "demo/one"]);
    let health = server.get("/health");
    assert_eq!((health.status, health.header("cache-control")), (200, Some("no-store")));
    let health = health.json();
    assert_eq!(
        (&health["status"], &health["model"], &health["vision"]),
        (&json!("ok"), &json!("demo/one"), &json!(true))
    );
    assert_eq!(health["max_context"], 256);
    assert_eq!(server.get("/v1/models/demo%2Fone").status, 200);
    server.post("/v1/chat/completions", &json!({"messages": [user("a secret")], "max_tokens": 3}));
    server.signal("-TERM");
    let start = Instant::now();
    while !server.log().contains("\"stopped\"") {
        assert!(start.elapsed() < DEADLINE);
        std::thread::sleep(Duration::from_millis(5));
    }
    let log = server.log();
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let events: Vec<&str> = lines.iter().map(|line| line["event"].as_str().unwrap()).collect();
    assert_eq!(events, ["listening", "loaded", "ready", "request", "request", "stopping", "stopped"]);
    assert!(!log.contains("secret"), "what people say is nobody's business");
    assert_eq!(server.end(), Some(0));
}

/// The service manager is told when there is something to ask, and when there is no more.
#[test]
fn the_manager_is_told() {
    let path = crate::common::folder().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(DEADLINE)).unwrap();
    let bundle = demo();
    let mut command =
        crate::common::command(&["serve", bundle.to_str().unwrap(), "--device", "model", "--listen", "127.0.0.1:0"]);
    command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "200000").env_remove("WATCHDOG_PID");
    let child = command.spawn().unwrap();
    let id = child.id().to_string();
    let mut heard = Vec::new();
    let mut hear = |wanted: &str| loop {
        let mut bytes = [0; 256];
        let len = manager.recv(&mut bytes).unwrap();
        let said = String::from_utf8(bytes[..len].to_vec()).unwrap();
        let found = said.contains(wanted);
        heard.push(said);
        if found {
            break;
        }
    };
    hear("READY=1");
    hear("WATCHDOG=1");
    hear("WATCHDOG=1");
    std::process::Command::new("kill").args(["-TERM", &id]).status().unwrap();
    hear("STOPPING=1");
    assert_eq!(crate::common::finish(child).code, Some(0));
}
