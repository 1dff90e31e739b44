//! A server to ask, and a client that asks it.

use crate::common::{DEADLINE, command, finish};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The demo model, which answers the same to the same.
pub(crate) fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("demo/bundle")
}

/// What the demo model knows, and says in so many words.
pub(crate) const SUM: &str = "What is 7 plus 5?";
pub(crate) const TWELVE: &str = "7 + 5 = 12.";

/// A running server.
pub(crate) struct Server {
    child: Option<Child>,
    /// Where it listens.
    pub(crate) at: String,
    log: Arc<Mutex<String>>,
}

impl Server {
    /// Starts one on any port, with further arguments.
    pub(crate) fn start(more: &[&str]) -> Server {
        Server::listening("127.0.0.1:0", more)
    }

    pub(crate) fn listening(at: &str, more: &[&str]) -> Server {
        let bundle = demo();
        let base = ["serve", bundle.to_str().unwrap(), "--device", "model", "--listen", at];
        let mut program = command(&[&base[..], more].concat());
        program.env_remove("QWEN35_API_KEY").stdout(Stdio::null());
        let mut child = program.spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let log = Arc::new(Mutex::new(String::new()));
        let at = loop {
            let mut line = String::new();
            assert_ne!(stderr.read_line(&mut line).unwrap(), 0, "it ended: {}", log.lock().unwrap());
            log.lock().unwrap().push_str(&line);
            if let Some((_, at)) = line.split_once(" ready at=") {
                break at.split(' ').next().unwrap().trim_start_matches("http://").to_owned();
            }
            if line.starts_with('{') {
                let line: Value = serde_json::from_str(&line).unwrap();
                if line["event"] == "ready" {
                    break line["at"].as_str().unwrap().trim_start_matches("http://").to_owned();
                }
            }
        };
        let rest = Arc::clone(&log);
        std::thread::spawn(move || {
            let mut line = String::new();
            while stderr.read_line(&mut line).is_ok_and(|read| read > 0) {
                rest.lock().unwrap().push_str(&std::mem::take(&mut line));
            }
        });
        Server { child: Some(child), at, log }
    }

    /// What it has written so far.
    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.at).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream
    }

    /// Asks on a connection of one's own, without waiting for the answer.
    pub(crate) fn send_chat(stream: &mut TcpStream, body: &Value) {
        let json = [("content-type", "application/json")];
        send(stream, "POST", "/v1/chat/completions", &json, &body.to_string());
    }

    pub(crate) fn get(&self, path: &str) -> Response {
        self.ask("GET", path, &[], "")
    }

    /// A request on a connection of its own.
    pub(crate) fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Response {
        let mut stream = self.connect();
        send(&mut stream, method, path, headers, body);
        let mut reader = BufReader::new(stream);
        if method == "HEAD" {
            let (status, headers) = head(&mut reader);
            return Response { status, headers, body: String::new() };
        }
        Response::read(&mut reader)
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Response {
        self.ask("POST", path, &[("content-type", "application/json")], &body.to_string())
    }

    /// The answer to a conversation.
    pub(crate) fn chat(&self, body: &Value) -> Value {
        let response = self.post("/v1/chat/completions", body);
        assert_eq!(response.status, 200, "{}", response.body);
        response.json()
    }

    /// A stream that has begun.
    pub(crate) fn stream(&self, body: &Value) -> Events {
        self.stream_at("/v1/chat/completions", body)
    }

    pub(crate) fn stream_at(&self, path: &str, body: &Value) -> Events {
        let mut body = body.clone();
        body["stream"] = true.into();
        let mut stream = self.connect();
        send(&mut stream, "POST", path, &[("content-type", "application/json")], &body.to_string());
        let mut reader = BufReader::new(stream);
        let (status, headers) = head(&mut reader);
        assert_eq!(status, 200);
        assert!(headers.iter().any(|(name, value)| name == "content-type" && value.starts_with("text/event-stream")));
        Events { chunks: Chunks { reader, left: 0, over: false }, buffer: String::new() }
    }

    /// A metric's value.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let page = self.get("/metrics").body;
        let line = page.lines().find(|line| line.split(' ').next() == Some(name));
        line.unwrap_or_else(|| panic!("{name}: {page}")).rsplit(' ').next().unwrap().parse().unwrap()
    }

    /// Waits until a metric has this value.
    pub(crate) fn until(&self, name: &str, wanted: f64) {
        let start = Instant::now();
        while self.metric(name) != wanted {
            assert!(start.elapsed() < DEADLINE, "{name} is {}: {}", self.metric(name), self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn signal(&self, name: &str) {
        let id = self.child.as_ref().unwrap().id().to_string();
        assert!(std::process::Command::new("kill").args([name, &id]).status().unwrap().success());
    }

    /// Waits for its end, and gives the exit code.
    pub(crate) fn end(mut self) -> Option<i32> {
        finish(self.child.take().unwrap()).code
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A request's bytes.
pub(crate) fn send(stream: &mut impl Write, method: &str, path: &str, headers: &[(&str, &str)], body: &str) {
    let mut head = format!("{method} {path} HTTP/1.1\r\ncontent-length: {}\r\n", body.len());
    if !headers.iter().any(|(name, _)| *name == "host") {
        head.push_str("host: localhost\r\n");
    }
    headers.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
    // A server that refuses a body early may not read all of it.
    let _ = stream.write_all(format!("{head}\r\n{body}").as_bytes());
}

fn head(reader: &mut impl BufRead) -> (u16, Vec<(String, String)>) {
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let status = line.split(' ').nth(1).unwrap_or_else(|| panic!("{line:?}")).parse().unwrap();
    let mut headers = Vec::new();
    loop {
        line.clear();
        reader.read_line(&mut line).unwrap();
        match line.trim_end().split_once(": ") {
            Some((name, value)) => headers.push((name.to_ascii_lowercase(), value.to_owned())),
            None => return (status, headers),
        }
    }
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Response {
    pub(crate) fn read(reader: &mut impl BufRead) -> Response {
        let (status, headers) = head(reader);
        let mut response = Response { status, headers, body: String::new() };
        if response.header("transfer-encoding") == Some("chunked") {
            let mut chunks = Chunks { reader, left: 0, over: false };
            while let Some(chunk) = chunks.next() {
                response.body.push_str(&chunk);
            }
        } else {
            let length = response.header("content-length").map_or(0, |length| length.parse().unwrap());
            let mut bytes = vec![0; length];
            reader.read_exact(&mut bytes).unwrap();
            response.body = String::from_utf8(bytes).unwrap();
        }
        response
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(header, _)| header == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// An error's message, with the word for programs.
    pub(crate) fn error(&self) -> (String, Value) {
        let error = self.json()["error"].clone();
        for field in ["message", "type", "param", "code"] {
            assert!(error.get(field).is_some(), "{}", self.body);
        }
        (error["message"].as_str().unwrap().to_owned(), error["code"].clone())
    }
}

/// Chunks of a body.
struct Chunks<R> {
    reader: R,
    left: usize,
    over: bool,
}

impl<R: BufRead> Chunks<R> {
    fn next(&mut self) -> Option<String> {
        if self.over {
            return None;
        }
        let mut line = String::new();
        self.reader.read_line(&mut line).unwrap();
        self.left = usize::from_str_radix(line.trim_end(), 16).unwrap_or_else(|_| panic!("a chunk of {line:?}"));
        let mut bytes = vec![0; self.left + 2];
        self.reader.read_exact(&mut bytes).unwrap();
        self.over = self.left == 0;
        bytes.truncate(self.left);
        (!self.over).then(|| String::from_utf8(bytes).unwrap())
    }
}

/// A stream of events. Dropped, its connection is closed.
pub(crate) struct Events {
    chunks: Chunks<BufReader<TcpStream>>,
    buffer: String,
}

impl Iterator for Events {
    type Item = String;

    /// An event's data.
    fn next(&mut self) -> Option<String> {
        loop {
            if let Some((event, rest)) = self.buffer.split_once("\n\n") {
                let (event, rest) = (event.to_owned(), rest.to_owned());
                self.buffer = rest;
                match event.strip_prefix("data: ") {
                    Some(data) => return Some(data.to_owned()),
                    // A comment.
                    None => {
                        assert!(event.starts_with(':'), "{event:?}");
                        continue;
                    }
                }
            }
            self.buffer.push_str(&self.chunks.next()?);
        }
    }
}

/// The events of a whole stream, without the last word; and whether that was there.
pub(crate) fn all(events: Events) -> (Vec<Value>, bool) {
    let mut texts: Vec<String> = events.collect();
    let done = texts.last().is_some_and(|last| last == "[DONE]");
    texts.truncate(texts.len() - usize::from(done));
    (texts.iter().map(|text| serde_json::from_str(text).unwrap()).collect(), done)
}

/// All text of a stream's events.
pub(crate) fn text(events: &[Value]) -> String {
    events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect()
}

pub(crate) fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

/// The demo model's token of this text.
pub(crate) fn token(text: &str) -> String {
    let tokenizer = std::fs::read(demo().join("tokenizer.json")).unwrap();
    let tokenizer: Value = serde_json::from_slice(&tokenizer).unwrap();
    let added = tokenizer["added_tokens"].as_array().unwrap().iter().find(|token| token["content"] == text);
    let id = added.map_or(&tokenizer["model"]["vocab"][text], |token| &token["id"]);
    id.as_u64().unwrap_or_else(|| panic!("no token is {text}")).to_string()
}

/// A question whose answer has so many tokens, and goes round in no circle.
pub(crate) fn long(tokens: u32) -> Value {
    json!({"messages": [user("Tell me everything.")], "temperature": 3, "seed": 1, "max_tokens": tokens,
        "logit_bias": {token("<|im_end|>"): -100, token("<|endoftext|>"): -100}})
}
