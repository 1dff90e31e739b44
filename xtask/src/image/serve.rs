//! `cargo xtask vm --image`: an image in a virtual machine with the real driver on the virtual NPU, asked from outside.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::load::client::{Asked, request};
use crate::timed::timed;
use crate::vm::{Line, Live};

pub(crate) const HELP: &str = "\
cargo xtask vm --image [DIR] [OPTION]...
  boots the image in DIR (default: one with the demo's bundle, made now), forwards a port of this host to its server,
  asks a question with a stream and without, compares the answers with the software NPU's in this host's process, prints
  when what happened, and presses the power button
    --stay         serves until Enter is pressed
    --append WORDS for the kernel's command line, `qwen35.ip=10.0.2.15/24,10.0.2.2` for one
    --disk FILE    is the machine's /dev/vda, and only read";

/// For a machine to get from one sign of life to the next, on a host that has other work.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);
/// For an answer of the software NPU in a process of this host.
const HOST: Duration = Duration::from_secs(15 * 60);
pub(crate) const QUESTION: &str = "What is qwen35-direct?";

/// When what happened, from power-on.
#[derive(Debug)]
pub(crate) struct Timeline {
    kernel: Duration,
    init: Duration,
    node: Line,
    started: Duration,
    listens: Duration,
    address: Line,
    loaded: Line,
    token: Duration,
    /// What the NPU's thread of commands had worked when the first token came.
    worked: Duration,
}

impl Timeline {
    /// From the node to the first token, and what of it the software NPU worked.
    fn host(&self) -> (Duration, Duration) {
        (self.token.saturating_sub(self.node.at), self.worked.saturating_sub(self.node.worked))
    }
}

impl fmt::Display for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut row = |at: Duration, what: &str| {
            let since = at.as_secs_f64() - self.kernel.as_secs_f64();
            writeln!(f, "{:10.2} {since:10.2}  {what}", at.as_secs_f64())
        };
        row(Duration::ZERO, "power-on (QEMU is started)")?;
        row(self.kernel, "the kernel's clock begins")?;
        row(self.init, "init")?;
        row(self.node.at, "the NPU's node exists")?;
        row(self.started, "the server is started")?;
        row(self.listens, "the server listens")?;
        row(self.address.at, "the machine has its address")?;
        row(self.loaded.at, "the model is loaded")?;
        row(self.token, "the first token is seen outside")?;
        let (all, worked) = self.host();
        write!(
            f,
            "seconds since power-on and by the guest's clock; from the node to the first token {:.2} s, of which the \
             software NPU, outside, worked {:.2} s: {:.2} s are the machine's, emulated",
            all.as_secs_f64(),
            worked.as_secs_f64(),
            all.saturating_sub(worked).as_secs_f64()
        )
    }
}

/// A request for an answer.
pub(crate) fn question(text: &str, stream: bool) -> String {
    let body = json!({"messages": [{"role": "user", "content": text}], "stream": stream});
    request("/v1/chat/completions", "application/json", &body.to_string())
}

/// What an event of a stream adds to the answer.
pub(crate) fn delta(event: &str) -> String {
    let value: Value = serde_json::from_str(event).unwrap_or_default();
    value["choices"][0]["delta"]["content"].as_str().unwrap_or_default().to_owned()
}

/// Follows a machine from its power-on to its first token, of an answer that is asked for as soon as anybody can; the
/// answer.
pub(crate) fn first(live: &mut Live) -> Result<(Timeline, String), String> {
    let init = live.line(0, "qwen35-init: init at ", PATIENCE)?;
    let uptime: f64 = init.text.rsplit(' ').next().and_then(|text| text.parse().ok()).unwrap_or_default();
    let node = live.line(0, "qwen35-init: node /dev/accel/", PATIENCE)?;
    let started = live.line(0, "qwen35-init: start at ", PATIENCE)?;
    let address = live.line(0, "qwen35-init: the server is at http://", PATIENCE)?;
    let listens = live.line(0, "listening", PATIENCE)?;
    let mut asked = Asked::send(&live.at, &question(QUESTION, true))?;
    let status = asked.begin()?;
    if status != 200 {
        return Err(format!("a stream was answered with {status}"));
    }
    let (mut answer, mut token) = (String::new(), None);
    while let Some(event) = asked.event()? {
        let more = delta(&event);
        if !more.is_empty() && token.is_none() {
            token = Some((live.elapsed(), live.worked()));
        }
        answer += &more;
    }
    let (token, worked) = token.ok_or("a stream without a token")?;
    let loaded = live.line(0, "loaded", PATIENCE)?;
    let timeline = Timeline {
        kernel: init.at.saturating_sub(Duration::from_secs_f64(uptime)),
        init: init.at,
        node,
        started: started.at,
        listens: listens.at,
        address,
        loaded,
        token,
        worked,
    };
    Ok((timeline, answer))
}

/// An answer that is not streamed.
pub(crate) fn whole(at: &str, text: &str) -> Result<String, String> {
    let (status, body) = Asked::send(at, &question(text, false))?.whole()?;
    match body["choices"][0]["message"]["content"].as_str() {
        Some(answer) if status == 200 => Ok(answer.to_owned()),
        _ => Err(format!("{status}: {body}")),
    }
}

/// What the software NPU in a process of this host answers.
pub(crate) fn in_process(binary: &Path, bundle: &Path, text: &str) -> Result<String, String> {
    let mut command = Command::new(binary);
    command.arg(bundle).args(["--device", "model", "--prompt", text]);
    timed(&mut command, HOST).map(|answer| answer.trim_end_matches('\n').to_owned())
}

/// What is asked for.
#[derive(Debug, Default)]
struct Options {
    image: Option<PathBuf>,
    stay: bool,
    append: String,
    disk: Option<PathBuf>,
}

/// Does what [`HELP`] says.
pub(crate) fn run(arguments: &[OsString]) -> Result<bool, String> {
    use lexopt::prelude::*;
    let mut parser = lexopt::Parser::from_args(arguments);
    let mut options = Options::default();
    let bad = |e: lexopt::Error| format!("{e}\n{HELP}");
    while let Some(argument) = parser.next().map_err(bad)? {
        match argument {
            Long("stay") => options.stay = true,
            Long("append") => options.append = parser.value().map_err(bad)?.string().map_err(bad)?,
            Long("disk") => options.disk = Some(parser.value().map_err(bad)?.into()),
            Value(image) if options.image.is_none() => options.image = Some(image.into()),
            other => return Err(bad(other.unexpected())),
        }
    }
    match serve(options) {
        Ok(said) => {
            crate::print(&format!("{said}\n"));
            Ok(true)
        }
        Err(why) => {
            eprintln!("vm: {why}");
            Ok(false)
        }
    }
}

fn serve(options: Options) -> Result<String, String> {
    let root = crate::check::root();
    let (image, ours) = match options.image {
        Some(image) => (image, false),
        None => {
            let out = super::default_out(&root);
            crate::print(&format!("{}\n", super::make(&root, &out, &super::Options::default())?));
            (out, true)
        }
    };
    let mut live = Live::boot(&root, &image, &options.append, options.disk.as_deref(), true)?;
    let (timeline, streamed) = first(&mut live)?;
    let plain = whole(&live.at, QUESTION)?;
    crate::print(&format!("{timeline}\n{QUESTION:?}: {plain:?}\n"));
    if plain != streamed {
        return Err(format!("with a stream: {streamed:?}"));
    }
    if ours {
        let binary = crate::vm::static_binary_of(&root)?;
        let expected = in_process(&binary, &root.join("cli/demo/bundle"), QUESTION)?;
        if plain != expected {
            return Err(format!("in a process of this host: {expected:?}"));
        }
    }
    if options.stay {
        crate::print(&format!("it serves at http://{}; Enter ends it\n", live.at));
        let _ = std::io::stdin().read_line(&mut String::new());
    }
    live.press_power()?;
    let code = live.end(PATIENCE)?;
    match code {
        0 => Ok("ended by its power button, in good order".into()),
        code => Err(format!("the server ended with {code}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeline_takes_the_npus_work_off() {
        let seconds = Duration::from_secs;
        let line = |at, worked| Line { at: seconds(at), worked: seconds(worked), text: String::new() };
        let timeline = Timeline {
            kernel: seconds(1),
            init: seconds(2),
            node: line(3, 1),
            started: seconds(3),
            listens: seconds(4),
            address: line(4, 1),
            loaded: line(6, 2),
            token: seconds(9),
            worked: seconds(5),
        };
        assert_eq!(timeline.host(), (seconds(6), seconds(4)));
        let text = timeline.to_string();
        assert!(
            text.contains("      9.00       8.00  the first token")
                && text.ends_with("2.00 s are the machine's, emulated")
        );
    }

    #[test]
    fn an_event_adds_its_content() {
        assert_eq!(delta(r#"{"choices": [{"delta": {"content": "a"}}]}"#), "a");
        assert_eq!((delta("[DONE]"), delta(r#"{"choices": []}"#)), (String::new(), String::new()));
    }
}
