//! Chromium and its debugging protocol over a pipe: JSON between zero bytes, on the descriptors 3 and 4.

use super::Fault;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// For one answer of the browser. A loaded machine takes seconds to start a tab.
const LIMIT: Duration = Duration::from_secs(60);

/// The shell hands standard input and output on as 3 and 4: nothing needs to be done between fork and exec.
const PIPES: &str = "exec \"$@\" 3<&0 4>&1 0</dev/null 1>&2";

/// A running browser.
pub(super) struct Browser {
    child: Child,
    to: ChildStdin,
    from: Receiver<Value>,
    last: u64,
    /// What was said unasked.
    events: Vec<Value>,
    /// Name and version.
    pub(super) version: String,
    program: String,
}

impl Browser {
    /// Starts it with a profile of its own in `folder`. It can look up no name: only this machine is there.
    pub(super) fn start(program: &[String], folder: &Path) -> Result<Self, Fault> {
        let profile = folder.join("profile");
        let _ = std::fs::remove_dir_all(&profile);
        let log = folder.join("chromium.log");
        let log = std::fs::File::create(&log)
            .map_err(|error| Fault::Io { what: format!("write {}", log.display()), error })?;
        let shown = program.join(" ");
        let unusable = |what: String| Fault::Chromium { program: shown.clone(), what };
        let mut command = Command::new("sh");
        command.args(["-c", PIPES, "sh"]).args(program);
        command.arg(format!("--user-data-dir={}", profile.display()));
        command.args([
            "--headless",
            "--remote-debugging-pipe",
            // It shows our own page only, and a container rarely lets it make its sandbox.
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-extensions",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--no-first-run",
            "--no-default-browser-check",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            "--force-color-profile=srgb",
            "--lang=en-US",
            "--use-fake-device-for-media-stream",
            "--use-fake-ui-for-media-stream",
            "about:blank",
        ]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().map_err(|error| unusable(error.to_string()))?;
        let (Some(to), Some(from)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(unusable("it has no pipes".into()));
        };
        let mut browser =
            Self { child, to, from: listen(from), last: 0, events: Vec::new(), version: String::new(), program: shown };
        let version = browser.call(None, "Browser.getVersion", json!({}))?;
        browser.version = version["product"].as_str().unwrap_or_default().to_owned();
        Ok(browser)
    }

    /// Tells the browser, or one of its tabs, something, and waits for the answer.
    pub(super) fn call(&mut self, session: Option<&str>, method: &str, params: Value) -> Result<Value, Fault> {
        self.last += 1;
        let mut message = json!({"id": self.last, "method": method, "params": params});
        if let Some(session) = session {
            message["sessionId"] = session.into();
        }
        let gone = |program: &str| Fault::Chromium {
            program: program.to_owned(),
            what: format!("it does not answer {method}: chromium.log beside the screenshots may say why"),
        };
        let sent = self.to.write_all(message.to_string().as_bytes()).and_then(|()| self.to.write_all(&[0]));
        sent.and_then(|()| self.to.flush()).map_err(|_| gone(&self.program))?;
        let end = Instant::now() + LIMIT;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let mut heard = self.from.recv_timeout(left).map_err(|_| gone(&self.program))?;
            if heard["id"] == self.last {
                if heard["error"].is_object() {
                    return Err(Fault::Refused {
                        method: method.to_owned(),
                        said: heard["error"]["message"].to_string(),
                    });
                }
                return Ok(heard["result"].take());
            }
            if heard["method"].is_string() {
                self.events.push(heard);
            }
        }
    }

    /// What a tab has said unasked so far.
    pub(super) fn events(&mut self, session: &str) -> Vec<Value> {
        let (mine, others) = std::mem::take(&mut self.events).into_iter().partition(|e| e["sessionId"] == session);
        self.events = others;
        mine
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // An answer may not come any more.
        let _ = self.to.write_all(b"{\"id\":0,\"method\":\"Browser.close\"}\0").and_then(|()| self.to.flush());
        let end = Instant::now() + Duration::from_secs(5);
        while Instant::now() < end {
            if matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads messages until the pipe ends.
fn listen(from: impl Read + Send + 'static) -> Receiver<Value> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for message in BufReader::new(from).split(0).map_while(Result::ok) {
            // What is no JSON would show as an answer that does not come.
            let Ok(message) = serde_json::from_slice(&message) else { continue };
            if sender.send(message).is_err() {
                break;
            }
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_cut_at_zero_bytes() {
        let heard = listen(&b"{\"id\":1}\0no json\0{\"id\":2,\"text\":\"\xc3\xa4\"}\0"[..]);
        let ids: Vec<Value> = heard.iter().map(|message: Value| message["id"].clone()).collect();
        assert_eq!(ids, [1, 2]);
    }

    #[test]
    fn a_program_that_is_no_browser_is_an_error_and_no_wait() {
        let folder = std::env::temp_dir().join(format!("qwen35-cdp-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let started = Browser::start(&["true".to_owned()], &folder);
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(matches!(started, Err(Fault::Chromium { .. })));
    }
}
