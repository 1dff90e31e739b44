//! Devices that fail under a server: what is held goes, what is asked is told, and what is answered later is right.

use super::http::App;
use super::options::{Given, ServeOptions};
use super::run::serve;
use crate::arguments::{DeviceChoice, RunOptions};
use crate::device::Loaded;
use crate::error::CliError;
use crate::flags::flag_named;
use crate::wishes::Wishes;
use npu_model::{Config, Faults, Model};
use runtime::bundle::Bundle;
use runtime::model::Speculate;
use runtime::npu::Npu;
use runtime::{Chat, ChatError, LoadOptions};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(120);

/// A server in this process, on a device that can be broken.
struct Rig {
    /// The device that is loaded onto from now on.
    device: Arc<Mutex<Arc<Model>>>,
    app: Arc<App>,
    at: String,
    thread: Option<std::thread::JoinHandle<Result<(), CliError>>>,
}

fn config() -> Config {
    Config { tdr_ms: 50, destroy_wait_ms: 50, ..Config::default() }
}

fn options() -> ServeOptions {
    let run = RunOptions {
        device: DeviceChoice::Model,
        max_ctx: 4096,
        threads: 1,
        kv: None,
        speculate: Speculate::Off,
        hybrid: false,
        timing: false,
    };
    let mut given = Given::default();
    for (flag, value) in [("listen", "127.0.0.1:0"), ("stop-limit", "5"), ("log-format", "json")] {
        given.take(flag_named(flag).unwrap(), value.into()).unwrap();
    }
    given.options(run, None, Wishes::default())
}

impl Rig {
    fn new(config: Config, deadline: Duration) -> Rig {
        let device = Arc::new(Mutex::new(Model::new(config)));
        let slot = Arc::clone(&device);
        let load = move || {
            let bundle = Path::new(env!("CARGO_MANIFEST_DIR")).join("demo/bundle");
            let bundle = Bundle::open(&bundle).map_err(ChatError::from)?;
            let model = Arc::clone(&slot.lock().unwrap());
            let npu = Npu::open(&*model, Path::new("/dev/accel/accel0")).map_err(ChatError::from)?;
            let options = LoadOptions { max_ctx: 4096, threads: 1, deadline, ..LoadOptions::default() };
            let chat = Chat::load(bundle, npu, options, &mut |_| {})?;
            Ok(Loaded { chat, device: "a device".into(), seconds: 0.0, model: Some(model) })
        };
        let (tell, told) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            serve("m".into(), &options(), Box::new(load), &mut |started| {
                let _ = tell.send((Arc::clone(started.app), started.at.trim_start_matches("http://").to_owned()));
            })
        });
        let (app, at) = told.recv_timeout(LIMIT).unwrap();
        Rig { device, app, at, thread: Some(thread) }
    }

    fn device(&self) -> Arc<Model> {
        Arc::clone(&self.device.lock().unwrap())
    }

    fn request(&self, line: &str, body: &str) -> BufReader<TcpStream> {
        let mut stream = TcpStream::connect(&self.at).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let head = "host: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n";
        let request = format!("{line} HTTP/1.1\r\n{head}content-length: {}\r\n\r\n{body}", body.len());
        stream.write_all(request.as_bytes()).unwrap();
        BufReader::new(stream)
    }

    fn whole(&self, line: &str, body: &str) -> (u16, Value) {
        let mut text = String::new();
        self.request(line, body).read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (head[9..12].parse().unwrap(), serde_json::from_str(body).unwrap())
    }

    fn chat(&self) -> (u16, Value) {
        let body = json!({"messages": [{"role": "user", "content": "What is 7 plus 5?"}]});
        self.whole("POST /v1/chat/completions", &body.to_string())
    }

    /// Waits until `/health` has this status, and gives its body.
    fn until(&self, status: u16) -> Value {
        let start = Instant::now();
        loop {
            let (found, body) = self.whole("GET /health", "");
            if found == status {
                return body;
            }
            assert!(start.elapsed() < LIMIT, "{body}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// That answers are right, and begin from nothing.
    fn is_right(&self, reused: u64) {
        let (status, answer) = self.chat();
        assert_eq!((status, &answer["choices"][0]["message"]["content"]), (200, &json!("7 + 5 = 12.")), "{answer}");
        assert_eq!(answer["timings"]["reused_tokens"], reused, "{answer}");
    }

    fn end(mut self) {
        self.app.stop.send_replace(true);
        self.thread.take().unwrap().join().unwrap().unwrap();
    }
}

/// Whatever goes wrong with a command: the answer fails by name, nothing of before is gone on with, and the next is right.
#[test]
fn a_failure_costs_an_answer_and_what_was_held() {
    let deadline = Duration::from_secs(10);
    for (name, deadline, tdr_ms, faults) in [
        ("hang", deadline, 50, (|at| Faults { hang_command: Some(at), ..Faults::default() }) as fn(u64) -> Faults),
        ("fail", deadline, 50, |at| Faults { fail_command: Some(at), ..Faults::default() }),
        ("async", deadline, 50, |at| Faults { async_error: Some(at), ..Faults::default() }),
        // Nobody resets it: the runtime gives up.
        ("timeout", Duration::from_secs(3), 0, |at| Faults { hang_command: Some(at), ..Faults::default() }),
    ] {
        let rig = Rig::new(Config { tdr_ms, ..config() }, deadline);
        rig.is_right(0);
        let (_, again) = rig.chat();
        assert!(again["timings"]["reused_tokens"].as_u64().unwrap() > 0, "{name}: there is something to lose");
        let device = rig.device();
        device.set_faults(faults(device.counts().commands + 20));
        let (status, error) = rig.chat();
        assert_eq!((status, &error["error"]["code"]), (503, &json!("device_error")), "{name}: {error}");
        device.set_faults(Faults::default());
        rig.until(200);
        rig.is_right(0);
        let (_, text) = (rig.whole("GET /health", ""), rig.app.metrics.text(&now()));
        assert!(
            text.contains("\nqwen35_device_errors_total 1\n") && text.contains("\nqwen35_reloads_total 1\n"),
            "{name}"
        );
        rig.end();
    }
}

fn now() -> super::metrics::Now {
    super::metrics::Now { up: true, waiting: 0, queue_limit: 0, running: 0, uptime: Duration::ZERO }
}

/// The demo model's control token of this text.
fn token(text: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("demo/bundle/tokenizer.json");
    let tokenizer: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let mut added = tokenizer["added_tokens"].as_array().unwrap().iter();
    added.find(|token| token["content"] == text).unwrap()["id"].to_string()
}

/// A stream that is under way ends with an error; while the device is away everybody is told so; when it is back, the
/// server is, too.
#[test]
fn a_device_that_goes_away_and_comes_back() {
    let rig = Rig::new(config(), Duration::from_secs(10));
    rig.is_right(0);
    let body = json!({"messages": [{"role": "user", "content": "Tell me."}], "stream": true, "temperature": 3, "seed": 1,
        "logit_bias": {token("<|im_end|>"): -100, token("<|endoftext|>"): -100}});
    let mut stream = rig.request("POST /v1/chat/completions", &body.to_string());
    let mut line = String::new();
    while !line.starts_with("data: ") {
        line.clear();
        assert_ne!(stream.read_line(&mut line).unwrap(), 0);
    }
    // One that waits.
    let waiting =
        rig.request("POST /v1/chat/completions", &json!({"messages": [{"role": "user", "content": "x"}]}).to_string());
    let start = Instant::now();
    while rig.app.queue.waiting() == 0 && rig.app.state.running() > 0 {
        assert!(start.elapsed() < LIMIT);
        std::thread::sleep(Duration::from_millis(1));
    }
    rig.device().unplug();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    let mut second = String::new();
    let mut waiting = waiting;
    waiting.read_to_string(&mut second).unwrap();
    assert!(rest.contains("device_error") || second.contains("device_error"), "{rest}\n{second}");
    assert!(!(rest.contains("device_error") && rest.contains("[DONE]")), "{rest}");
    assert!(second.starts_with("HTTP/1.1 503"), "{second}");
    let health = rig.until(503);
    assert_eq!(health["status"], "unhealthy");
    assert!(health["reason"].as_str().unwrap().contains("ENODEV"), "{health}");
    let (status, refused) = rig.chat();
    assert_eq!((status, &refused["error"]["code"]), (503, &json!("unhealthy")), "{refused}");
    *rig.device.lock().unwrap() = Model::new(config());
    rig.until(200);
    rig.is_right(0);
    rig.end();
}

/// A device that was taken away while nobody asked anything: `/health` said "ok" until somebody did.
#[test]
fn health_tells_of_a_device_that_went_while_idle() {
    let rig = Rig::new(config(), Duration::from_secs(10));
    rig.is_right(0);
    rig.device().unplug();
    let health = rig.until(503);
    assert!(health["reason"].as_str().unwrap().contains("ENODEV"), "{health}");
    *rig.device.lock().unwrap() = Model::new(config());
    rig.until(200);
    rig.is_right(0);
    rig.end();
}

/// A server whose device is away ends when it is told to, without waiting for it.
#[test]
fn an_unhealthy_server_can_be_stopped() {
    let rig = Rig::new(config(), Duration::from_secs(10));
    rig.device().unplug();
    assert_eq!(rig.chat().0, 503);
    rig.until(503);
    rig.end();
}
