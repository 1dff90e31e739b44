//! A long conversation takes no more than a short one: buffer objects, descriptors, memory. One conversation a process, so
//! that all that it holds is this one's.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use driver_tests::tiny;
use npu_model::{Config, Model};
use runtime::bundle::Bundle;
use runtime::chat::{Ask, Message, Overflow, Part, Picture, Role, Said, Session};
use runtime::image::Rgb;
use runtime::npu::Npu;
use runtime::{Chat, LoadOptions};

/// What the process holds.
#[derive(Debug, Clone, Copy)]
struct Held {
    buffers: u64,
    buffer_bytes: u64,
    descriptors: usize,
    resident_kb: u64,
}

fn held(device: &Model) -> Held {
    let counts = device.counts();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let resident_kb = line.trim().trim_end_matches(" kB").trim().parse().unwrap();
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().count();
    Held { buffers: counts.buffers_live, buffer_bytes: counts.bytes_live, descriptors, resident_kb }
}

fn said(turn: usize) -> Said {
    let text = format!("Question {turn} of many");
    if turn % 10 != 3 {
        return Message::user(text).into();
    }
    let data = (0..64 * 64 * 3).map(|i| (i * i / 7 % (251 - turn)) as u8).collect();
    let picture = Picture::new(Rgb { width: 64, height: 64, data });
    let content = vec![Part::Image { source: None }, Part::Text(text)];
    Said { message: Message::parts(Role::User, content), pictures: vec![picture] }
}

/// A conversation that outgrows its context again and again; `slack` is how much its memory may grow, in kB.
fn talk(turns: usize, max_new: usize, slack: u64) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("session-flat");
    let bundle = Bundle::open(&tiny::bundle(&folder).unwrap()).unwrap();
    // A machine that is busy with other things is no hang.
    let device = Model::new(Config { tdr_ms: 0, ..Config::default() });
    let npu = Npu::open(&*device, Path::new("/dev/accel/accel0")).unwrap();
    let options = LoadOptions { max_ctx: 640, deadline: Duration::from_secs(600), ..LoadOptions::default() };
    let mut chat = Chat::load(bundle, npu, options, &mut |_| {}).unwrap();
    let mut answer = |session: &mut Session, said: Said| {
        let ask = Ask { max_new, overflow: Overflow::DropOldest, ..Ask::default() };
        chat.send(session, [said], &ask, &mut |_| ControlFlow::Continue(())).unwrap()
    };
    // Prompts of several units make the buffers that they need, once.
    answer(&mut Session::new(), Message::user("a7".repeat(300)).into());
    let mut session = Session::with_system("Say something.");
    let (mut warm, mut generated, mut dropped) = (None, 0, 0);
    for turn in 0..turns {
        let outcome = answer(&mut session, said(turn));
        generated += outcome.tokens.len();
        dropped += outcome.dropped;
        assert!(outcome.prompt_tokens <= 640 && session.tokens() <= 640);
        if turn == turns / 4 {
            warm = Some(held(&device));
        }
    }
    let (warm, end) = (warm.unwrap(), held(&device));
    println!("{turns} turns, {generated} tokens, {dropped} messages dropped\n{warm:?}\n{end:?}");
    assert!(dropped > 0 && session.said().len() < turns);
    assert_eq!((warm.buffers, warm.buffer_bytes), (end.buffers, end.buffer_bytes));
    assert_eq!(warm.descriptors, end.descriptors);
    assert!(end.resident_kb <= warm.resident_kb + slack);
    let _ = std::fs::remove_dir_all(folder);
}

#[test]
fn a_conversation_that_outgrows_its_context_takes_no_more() {
    talk(32, 6, 32 << 10);
}

#[test]
#[ignore = "two hundred turns take minutes"]
fn two_hundred_turns_and_two_thousand_tokens_take_no_more() {
    talk(200, 12, 16 << 10);
}
