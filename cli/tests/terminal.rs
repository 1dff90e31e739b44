//! The chat at a terminal: typed into a pseudo-terminal, read from its screen.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod common;

use common::{DEADLINE, bundle, folder};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

struct Terminal {
    child: Child,
    keys: File,
    screen: Receiver<Vec<u8>>,
    /// All that was shown, and how much of it has been looked at.
    shown: String,
    seen: usize,
    dumb: bool,
}

impl Terminal {
    fn start(term: &str, arguments: &[&str]) -> Terminal {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let name = std::ffi::OsStr::from_bytes(name.to_bytes()).to_owned();
        let own = || OpenOptions::new().read(true).write(true).open(&name).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_qwen35-direct"));
        command.args(arguments).env("TERM", term).env_remove("QWEN35_DEMO_BUNDLE");
        command.stdin(Stdio::from(own())).stdout(Stdio::from(own())).stderr(Stdio::from(own()));
        // The terminal becomes the program's own, so that Ctrl-C is a signal to it.
        // SAFETY: both calls are fit to be made between fork and exec.
        #[allow(unsafe_code, reason = "there is no other way to give a child its terminal")]
        unsafe {
            command.pre_exec(|| {
                rustix::process::setsid()?;
                rustix::process::ioctl_tiocsctty(std::io::stdin())?;
                Ok(())
            });
        }
        let child = command.spawn().unwrap();
        drop(command);
        let keys = File::from(master);
        let mut from = keys.try_clone().unwrap();
        let (sender, screen) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // The end of the program is an error here.
            while let Ok(count) = from.read(&mut bytes) {
                if count == 0 || sender.send(bytes[..count].to_vec()).is_err() {
                    break;
                }
            }
        });
        Terminal { child, keys, screen, shown: String::new(), seen: 0, dumb: term == "dumb" }
    }

    /// Waits until the next line may be typed.
    fn prompts(&mut self) {
        let prompt = if self.dumb { "> " } else { "> \r\x1b[2C\x1b[?2026l" };
        self.shows(prompt);
    }

    fn keys(&mut self, text: &str) {
        self.keys.write_all(text.as_bytes()).unwrap();
    }

    /// Waits until the screen shows this, behind what it was asked for last.
    fn shows(&mut self, text: &str) {
        let start = Instant::now();
        loop {
            if let Some(at) = self.shown[self.seen..].find(text) {
                self.seen += at + text.len();
                return;
            }
            let left = DEADLINE.checked_sub(start.elapsed());
            let more = left.and_then(|left| self.screen.recv_timeout(left).ok());
            let more = more.unwrap_or_else(|| panic!("{text:?} is not in {:?}", &self.shown[self.seen..]));
            self.shown += &String::from_utf8_lossy(&more);
        }
    }

    /// The exit code.
    fn ends(mut self) -> Option<i32> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(start.elapsed() < DEADLINE, "still running: {:?}", self.shown);
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn demo(term: &str) -> Terminal {
    let mut terminal = Terminal::start(term, &["demo", "--device", "model", "--interactive"]);
    terminal.shows("/help shows what else");
    terminal.prompts();
    terminal
}

#[test]
fn a_person_talks() {
    let mut terminal = demo("xterm");
    // Typed ahead of the answer before it, which loses nothing.
    terminal.keys(&format!("/image {}/demo/samples/three-shapes.png\r", env!("CARGO_MANIFEST_DIR")));
    terminal.keys("What do you see?\r");
    terminal.shows("a blue star in the middle");
    terminal.keys("What colour is the star?\r");
    terminal.shows("The star is blue.");
    terminal.keys("/undo\r");
    terminal.shows("(the last question is taken back)");
    terminal.keys("/stats\r");
    terminal.shows("2 messages, ");
    terminal.shows("last answer: ");
    terminal.keys("/nothing\r");
    terminal.shows("there is no `/nothing`");
    // Ctrl-D on an empty line.
    terminal.prompts();
    terminal.keys("\x04");
    assert_eq!(terminal.ends(), Some(0));
}

#[test]
fn lines_are_edited_completed_and_remembered() {
    let mut terminal = demo("xterm");
    // A typing mistake is taken back, and a line goes on in the next one.
    terminal.keys("What is 3 +4\x7f\x7f+\\\r");
    terminal.keys("4?\r");
    terminal.shows("= 7.");
    // The line before, from the history.
    terminal.keys("/reset\r");
    terminal.shows("(a new conversation)");
    terminal.keys("\x1b[A\x1b[A\r");
    terminal.shows("= 7.");
    // Tab completes orders and files.
    let path = folder().join("picture-of-nothing.png");
    std::fs::write(&path, "no picture").unwrap();
    terminal.keys(&format!("/im\t{}/picture-of\t\r", folder().display()));
    terminal.shows("picture-of-nothing.png:");
    // Several lines at once, as terminals paste them.
    terminal.keys("/reset\r\x1b[200~What is\n3 + 4?\x1b[201~\r");
    terminal.shows("= 7.");
    terminal.keys("/quit\r");
    assert_eq!(terminal.ends(), Some(0));
}

/// A model that has no end.
fn endless(term: &str) -> Terminal {
    let tiny = bundle().to_str().unwrap();
    let more = ["--device", "model", "--max-ctx", "8192", "--max-new", "8000", "--interactive"];
    let mut words: Vec<String> = [&[tiny], &more[..]].concat().into_iter().map(str::to_owned).collect();
    for token in runtime::bundle::Bundle::open(bundle()).unwrap().manifest.text.stop {
        words.extend(["--logit-bias".to_owned(), format!("{token}=-inf")]);
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut terminal = Terminal::start(term, &words);
    terminal.shows("/help shows what else");
    terminal.prompts();
    terminal
}

#[test]
fn ctrl_c_stops_the_answer_and_not_the_program() {
    for term in ["xterm", "dumb"] {
        let mut terminal = endless(term);
        terminal.keys("the cat\r");
        terminal.shows("the cat");
        // Some of the answer has come.
        let before = terminal.shown.len();
        while terminal.shown.len() < before + 300 {
            let more = terminal.screen.recv_timeout(DEADLINE).unwrap();
            terminal.shown += &String::from_utf8_lossy(&more);
        }
        terminal.keys("\x03");
        terminal.shows("(stopped)");
        // The session goes on.
        terminal.keys("/stats\r");
        terminal.shows("2 messages, ");
        terminal.prompts();
        terminal.keys("/quit\r");
        assert_eq!(terminal.ends(), Some(0), "{term}");
    }
}

#[test]
fn ctrl_c_at_an_empty_line_says_how_to_leave() {
    let mut terminal = demo("xterm");
    terminal.keys("\x03");
    terminal.shows("(Ctrl-D or /quit leaves)");
    terminal.prompts();
    terminal.keys("/quit\r");
    assert_eq!(terminal.ends(), Some(0));
}

#[test]
fn a_dumb_terminal_is_enough() {
    let mut terminal = demo("dumb");
    terminal.keys("What is 3 + 4?\r");
    terminal.shows("3 + 4 = 7.");
    terminal.prompts();
    terminal.keys("\x04");
    assert_eq!(terminal.ends(), Some(0));
}

#[test]
fn top_leaves_the_screen_as_it_was() {
    let mut terminal = Terminal::start("xterm", &["top", "--device", "model"]);
    terminal.shows("\x1b[?1049h");
    terminal.shows("nobody uses it");
    // It is drawn anew.
    terminal.shows("nobody uses it");
    terminal.keys("q");
    terminal.shows("\x1b[?1049l");
    assert_eq!(terminal.ends(), Some(0));
    let mut terminal = Terminal::start("xterm", &["top", "--device", "model"]);
    terminal.shows("nobody uses it");
    terminal.keys("\x03");
    terminal.shows("\x1b[?1049l");
    assert_eq!(terminal.ends(), Some(0));
}
