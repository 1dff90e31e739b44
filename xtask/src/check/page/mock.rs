//! A server that does as a case tells it: it streams in pieces of any size, refuses, breaks off and goes away.

use serde_json::{Value, json};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The policy under which the server gives the page out: what it forbids shows as a complaint of the browser.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src 'self' data: \
                      blob:; media-src 'self' blob: mediastream:; connect-src 'self'; base-uri 'none'; form-action \
                      'none'; frame-ancestors 'none'";
/// How long a stream waits for a case to cut it.
const CUT: Duration = Duration::from_secs(30);
/// A bound for what a broken request could want.
const MOST: usize = 64 << 20;

/// How one question is answered.
#[derive(Debug, Clone)]
pub(super) enum Answer {
    /// Status, seconds of `retry-after` and words.
    Refuse(u16, u32, &'static str),
    /// The connection ends without a word.
    Vanish,
    /// A stream.
    Stream(Stream),
}

/// A stream: its bytes, how they are cut, and its end.
#[derive(Debug, Clone)]
pub(super) struct Stream {
    bytes: Vec<u8>,
    /// Sizes of pieces, again and again.
    sizes: Vec<usize>,
    pause: Duration,
    end: End,
}

/// How a stream ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// As it should.
    Whole,
    /// In the middle of the transfer, as soon as the case lets it go on: what had come is lost with the connection otherwise.
    Cut,
    /// Not before the client goes away.
    Hold,
}

impl Stream {
    /// The events of an answer, without its end.
    pub(super) fn new(deltas: &[Value]) -> Self {
        let mut stream = Self { bytes: Vec::new(), sizes: vec![usize::MAX], pause: Duration::ZERO, end: End::Whole };
        stream.event(&json!({"choices": [{"index": 0, "delta": {"role": "assistant"}, "finish_reason": null}]}));
        for delta in deltas {
            stream.event(&json!({"choices": [{"index": 0, "delta": delta, "finish_reason": null}]}));
        }
        stream
    }

    /// Deltas of words.
    pub(super) fn words(text: &str) -> Self {
        let deltas: Vec<Value> = text.split_inclusive(' ').map(|word| json!({"content": word})).collect();
        Self::new(&deltas)
    }

    fn event(&mut self, value: &Value) {
        self.raw(&format!("data: {value}\n\n"));
    }

    /// Bytes of any kind.
    pub(super) fn raw(&mut self, text: &str) {
        self.bytes.extend_from_slice(text.as_bytes());
    }

    /// The last events of an answer, as the server gives them.
    pub(super) fn done(mut self, reason: &str) -> Self {
        let timings = json!({"prompt_tokens": 210, "reused_tokens": 180, "image_tokens": 0, "queue_ms": 0.1, "vision_ms": 0.0,
            "prompt_ms": 300.5, "first_token_ms": 340.0, "predicted_tokens": 42, "predicted_ms": 5000.0,
            "tokens_per_second": 8.4, "npu_wait_ms": 1.0, "commands": 9});
        self.event(&json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}], "timings": timings}));
        let usage = json!({"prompt_tokens": 210, "completion_tokens": 42, "total_tokens": 252,
            "prompt_tokens_details": {"cached_tokens": 180}});
        self.event(&json!({"choices": [], "usage": usage, "timings": timings}));
        self.raw("data: [DONE]\n\n");
        self
    }

    /// In pieces of these sizes, with a pause between them.
    pub(super) fn cut(mut self, sizes: &[usize], pause: Duration) -> Self {
        self.sizes = sizes.to_vec();
        self.pause = pause;
        self
    }

    /// Ends otherwise.
    pub(super) fn ends(mut self, end: End) -> Self {
        self.end = end;
        self
    }

    /// With other ends of lines.
    pub(super) fn lines_end(mut self, end: &str) -> Self {
        self.bytes = String::from_utf8_lossy(&self.bytes).replace('\n', end).into_bytes();
        self
    }
}

/// What `/health` says.
#[derive(Debug, Clone)]
pub(super) enum Health {
    /// A status and its body.
    Says(u16, Value),
    /// Nothing: the server is not there, for questions neither.
    Gone,
}

impl Health {
    pub(super) fn ok() -> Self {
        Self::Says(
            200,
            json!({"status": "ok", "reason": null, "model": "qwen3.5-2b", "device": "NPU", "vision": true,
            "max_context": 8192, "queue": {"waiting": 0, "running": 0, "limit": 32}, "uptime_seconds": 1.5,
            "version": "0.1.0"}),
        )
    }

    pub(super) fn not(word: &str, reason: &str) -> Self {
        Self::Says(503, json!({"status": word, "reason": reason, "model": "qwen3.5-2b"}))
    }
}

/// What was asked.
#[derive(Debug, Clone)]
pub(super) struct Request {
    /// The header `authorization`.
    pub(super) key: Option<String>,
    pub(super) body: Value,
}

#[derive(Debug)]
struct Shared {
    page: String,
    health: Mutex<Health>,
    /// What a key has to be, where one is asked for.
    key: Mutex<Option<String>>,
    answers: Mutex<VecDeque<Answer>>,
    requests: Mutex<Vec<Request>>,
    /// Streams whose client has gone before their end.
    left: AtomicUsize,
    /// Streams that may be cut.
    cuts: AtomicUsize,
}

/// The server. Its threads end with the program.
#[derive(Debug)]
pub(super) struct Mock {
    shared: Arc<Shared>,
    port: u16,
}

impl Mock {
    pub(super) fn start(page: String) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared {
            page,
            health: Mutex::new(Health::ok()),
            key: Mutex::new(None),
            answers: Mutex::default(),
            requests: Mutex::default(),
            left: AtomicUsize::new(0),
            cuts: AtomicUsize::new(0),
        });
        let all = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let shared = Arc::clone(&all);
                // A client that goes away ends its thread and nothing else.
                std::thread::spawn(move || shared.serve(&stream));
            }
        });
        Ok(Self { shared, port })
    }

    pub(super) fn address(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The page that it gives out.
    pub(super) fn page(&self) -> &str {
        &self.shared.page
    }

    /// As it was at the start.
    pub(super) fn reset(&self) {
        *lock(&self.shared.health) = Health::ok();
        *lock(&self.shared.key) = None;
        lock(&self.shared.answers).clear();
        lock(&self.shared.requests).clear();
        self.shared.left.store(0, Ordering::SeqCst);
        self.shared.cuts.store(0, Ordering::SeqCst);
    }

    /// A stream that is to be cut is cut now.
    pub(super) fn cut(&self) {
        self.shared.cuts.fetch_add(1, Ordering::SeqCst);
    }

    /// The next questions are answered so, in this order; all others with a short sentence.
    pub(super) fn will(&self, answers: impl IntoIterator<Item = Answer>) {
        lock(&self.shared.answers).extend(answers);
    }

    /// The next question is answered by a stream.
    pub(super) fn streams(&self, stream: Stream) {
        self.will([Answer::Stream(stream)]);
    }

    pub(super) fn health(&self, health: Health) {
        *lock(&self.shared.health) = health;
    }

    pub(super) fn wants_key(&self, key: &str) {
        *lock(&self.shared.key) = Some(key.to_owned());
    }

    /// All that was asked so far.
    pub(super) fn requests(&self) -> Vec<Request> {
        lock(&self.shared.requests).clone()
    }

    /// How many clients went away from a stream.
    pub(super) fn left(&self) -> usize {
        self.shared.left.load(Ordering::SeqCst)
    }
}

/// A case that panicked has failed already.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn serve(&self, stream: &TcpStream) -> Option<()> {
        let mut reader = BufReader::new(stream);
        let mut first = String::new();
        reader.read_line(&mut first).ok()?;
        let (mut length, mut key, mut json_body) = (0, None, false);
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok()?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            match (name.to_ascii_lowercase().as_str(), value.trim()) {
                ("content-length", value) => length = value.parse::<usize>().ok()?.min(MOST),
                ("authorization", value) => key = Some(value.to_owned()),
                ("content-type", value) => json_body = value.starts_with("application/json"),
                _ => {}
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let health = lock(&self.health).clone();
        match (first.split(' ').nth(1)?.split('?').next()?, health) {
            ("/", _) => {
                let head = format!("content-type: text/html; charset=utf-8\r\ncontent-security-policy: {POLICY}\r\n");
                whole(stream, 200, &head, self.page.as_bytes())
            }
            ("/health", Health::Says(status, body)) => reply(stream, status, "", &body),
            ("/v1/chat/completions", Health::Says(..)) if !json_body => refuse(stream, 415, 0, "no JSON"),
            ("/v1/chat/completions", Health::Says(..)) => self.answer(stream, key, &body),
            (_, Health::Gone) => None,
            _ => refuse(stream, 404, 0, "nothing is here"),
        }
    }

    fn answer(&self, stream: &TcpStream, key: Option<String>, body: &[u8]) -> Option<()> {
        let wanted = lock(&self.key).clone();
        if wanted.is_some_and(|wanted| key != Some(format!("Bearer {wanted}"))) {
            return refuse(stream, 401, 0, "this server wants a key");
        }
        let body = serde_json::from_slice(body).unwrap_or_default();
        lock(&self.requests).push(Request { key, body });
        let answer = lock(&self.answers).pop_front();
        match answer.unwrap_or_else(|| Answer::Stream(Stream::words("That is a short answer.").done("stop"))) {
            Answer::Refuse(status, retry, why) => refuse(stream, status, retry, why),
            Answer::Vanish => None,
            Answer::Stream(events) => {
                let sent = events.send(stream, &self.cuts);
                if sent.is_none() {
                    self.left.fetch_add(1, Ordering::SeqCst);
                }
                sent
            }
        }
    }
}

impl Stream {
    /// `None` where the client has gone.
    fn send(&self, mut to: &TcpStream, cuts: &AtomicUsize) -> Option<()> {
        to.set_nodelay(true).ok()?;
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\nconnection: \
                    close\r\ncache-control: no-store\r\n\r\n";
        to.write_all(head.as_bytes()).ok()?;
        let mut rest = &self.bytes[..];
        for size in self.sizes.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (piece, behind) = rest.split_at((*size).min(rest.len()));
            let chunk = [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat();
            to.write_all(&chunk).ok()?;
            rest = behind;
            std::thread::sleep(self.pause);
        }
        match self.end {
            End::Whole => to.write_all(b"0\r\n\r\n").ok(),
            End::Cut => {
                let end = Instant::now() + CUT;
                while cuts.load(Ordering::SeqCst) == 0 && Instant::now() < end {
                    std::thread::sleep(Duration::from_millis(10));
                }
                // A length without its bytes.
                to.write_all(b"40\r\ndata: ").ok()
            }
            End::Hold => {
                // The client says nothing any more: what can be read is its going away.
                let _ = to.read(&mut [0]);
                None
            }
        }
    }
}

fn refuse(to: &TcpStream, status: u16, retry: u32, why: &str) -> Option<()> {
    let head = if retry > 0 { format!("retry-after: {retry}\r\n") } else { String::new() };
    reply(to, status, &head, &json!({"error": {"message": why, "type": "t", "param": null, "code": null}}))
}

fn reply(to: &TcpStream, status: u16, head: &str, body: &Value) -> Option<()> {
    whole(to, status, &format!("content-type: application/json\r\n{head}"), body.to_string().as_bytes())
}

fn whole(mut to: &TcpStream, status: u16, head: &str, body: &[u8]) -> Option<()> {
    let length = body.len();
    let head = format!("HTTP/1.1 {status} X\r\n{head}content-length: {length}\r\nconnection: close\r\n\r\n");
    to.write_all(&[head.as_bytes(), body].concat()).ok()
}
