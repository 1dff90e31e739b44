//! The image serves: booted once on the virtual NPU, asked from outside, hurt in every way that months bring, and ended by
//! its power button.

use super::Bench;
use crate::image::serve::{PATIENCE, QUESTION, delta, first, in_process, question, whole};
use crate::image::{Options, make};
use crate::load::client::{Asked, request};
use crate::vm::{Live, target_directory};
use serde_json::Value;
use std::path::Path;
use std::time::{Duration, Instant};

/// What makes a long answer.
const STORY: &str = "Tell me about yourself.";
const OTHER: &str = "What is 7 plus 5?";
/// What the image is told so that it can be hurt.
const CONTROL: &str = "qwen35.control=/dev/ttyS1";

pub(super) fn run(bench: &mut Bench, root: &Path) {
    let outcome = served(bench, root);
    bench.record("the image serves", outcome);
}

/// The machine, and what it has to answer.
struct Case {
    live: Live,
    expected: [(&'static str, String); 2],
}

impl Case {
    /// Both questions, as in a process of this host.
    fn is_right(&self, when: &str) -> Result<(), String> {
        for (question, expected) in &self.expected {
            let found = whole(&self.live.at, question).map_err(|why| format!("{when}: {why}"))?;
            if found != *expected {
                return Err(format!("{when}: {found:?}, where {expected:?} was expected"));
            }
        }
        Ok(())
    }

    fn health(&self) -> Result<(u16, Value), String> {
        Asked::send(&self.live.at, &request("/health", "text/plain", ""))?.whole()
    }

    /// Waits until `/health` has this status; gives what it says.
    fn until(&self, wanted: u16, when: &str) -> Result<Value, String> {
        let begun = Instant::now();
        loop {
            // A server that has just ended refuses to talk.
            let found = self.health();
            match found {
                Ok((status, body)) if status == wanted => return Ok(body),
                _ if begun.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(300)),
                found => return Err(format!("{when}: /health is not {wanted}: {found:?}")),
            }
        }
    }
}

fn served(bench: &Bench, root: &Path) -> Result<String, String> {
    let out = target_directory(root).join("vm").join("image");
    let sizes = make(root, &out, &Options::default())?;
    let bundle = bench.demo.join("bundle");
    let expect = |text| in_process(&bench.binary, &bundle, text).map(|answer| (text, answer));
    let expected = [expect(QUESTION)?, expect(OTHER)?];
    let mut live = Live::boot(root, &out, CONTROL, None, false)?;
    let (timeline, streamed) = first(&mut live)?;
    if streamed != expected[0].1 || streamed.is_empty() {
        return Err(format!("as a stream: {streamed:?}, where {:?} was expected", expected[0].1));
    }
    crate::print(&format!("{timeline}\n"));
    let mut case = Case { live, expected };
    case.is_right("after its start")?;
    clients(&case)?;
    case.is_right("after clients that misbehaved")?;

    // Taken away while nobody asks anything, and given back.
    case.live.order("unbind", PATIENCE)?;
    let said = case.until(503, "without its device")?;
    if said["status"] != "unhealthy" || said["reason"].as_str().is_none_or(str::is_empty) {
        return Err(format!("without its device, /health says {said}"));
    }
    case.live.order("bind", PATIENCE)?;
    case.until(200, "with its device back")?;
    case.is_right("with its device back")?;

    // Ended by force, and begun again.
    let mark = case.live.mark();
    case.live.tell("kill")?;
    case.live.line(mark, "qwen35-init: the server ended with 137", PATIENCE)?;
    case.live.line(mark, " ready at=", PATIENCE)?;
    case.is_right("begun again")?;

    let seconds = case.live.elapsed().as_secs_f64();
    case.live.press_power()?;
    match case.live.end(PATIENCE)? {
        0 => Ok(format!(
            "{streamed:?}, with a stream and without, after a client that went away, a bad body, an unbind \
             ({}) and a bind, and a server ended by force; ended by its power button ({seconds:.1} s); {sizes}",
            said["reason"]
        )),
        code => Err(format!("at its end the server ended with {code}")),
    }
}

/// A client that goes away in mid stream, one that goes away before, and bodies that are none.
fn clients(case: &Case) -> Result<(), String> {
    let mut leaver = Asked::send(&case.live.at, &question(STORY, true))?;
    leaver.begin()?;
    loop {
        let event = leaver.event()?.ok_or("a stream ended before anybody went away")?;
        if !delta(&event).is_empty() {
            break;
        }
    }
    drop(leaver);
    drop(Asked::send(&case.live.at, &question(STORY, false))?);
    for (body, what) in [("{\"messages\": 7", "half of one"), ("{\"messages\": 7}", "a number"), ("\u{0}", "nothing")] {
        let asked = Asked::send(&case.live.at, &request("/v1/chat/completions", "application/json", body))?;
        let (status, said) = asked.whole()?;
        if status != 400 {
            return Err(format!("a body that is {what} was answered with {status}: {said}"));
        }
    }
    Ok(())
}
