//! The library: load a bundle, talk about a picture, stream the answer, stop it from another thread, take a turn back.
//!
//! ```text
//! cargo run --example conversation [BUNDLE [PICTURE]]
//! ```
//!
//! Without arguments it is the demo model on the software NPU. On a real one it is
//! `Npu::open(&amdxdna_ioctl::KernelOpener, "/dev/accel/accel0".as_ref())?`, and the rest is the same.
#![allow(clippy::print_stdout, reason = "an example")]

use std::error::Error;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use npu_model::{Config, Model};
use runtime::bundle::Bundle;
use runtime::chat::{Ask, Cancel, Message, Part, Picture, Role, Said, Session};
use runtime::npu::Npu;
use runtime::{Chat, Event, LoadOptions, Outcome};

fn main() -> Result<(), Box<dyn Error>> {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("demo");
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let bundle = arguments.next().unwrap_or_else(|| demo.join("bundle"));
    let picture = arguments.next().unwrap_or_else(|| demo.join("samples/one-shape.png"));

    // Load.
    let device = Model::new(Config::default());
    let npu = Npu::open(&*device, Path::new("/dev/accel/accel0"))?;
    let mut chat = Chat::load(Bundle::open(&bundle)?, npu, LoadOptions::default(), &mut |_| {})?;

    // A session, and a turn with a picture.
    let mut session = Session::new();
    let content = vec![Part::Image { source: None }, Part::Text("What is in the picture?".into())];
    let pictures = vec![Picture::new(runtime::image::decode(&std::fs::read(&picture)?)?)];
    let question = Said { message: Message::parts(Role::User, content), pictures };
    let first = say(&mut chat, &mut session, question, &Ask { max_new: 40, ..Ask::default() })?;

    // The next turn reads what is new.
    let second = say(&mut chat, &mut session, Message::user("What colour is it?").into(), &Ask::default())?;
    println!("[{} of {} tokens of the second prompt were there]", second.reused_tokens, second.prompt_tokens);

    // A turn that another thread ends. What was said until then stays, unless it is taken back.
    let cancel = Cancel::new();
    let handle = cancel.clone();
    let timer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(500));
        handle.cancel();
    });
    let ask = Ask { cancel: Some(cancel), ..Ask::default() };
    let third = say(&mut chat, &mut session, Message::user("Tell me all about it.").into(), &ask)?;
    println!("[it ended with {:?}]", third.stop);
    if third.answered {
        session.undo();
    }
    let _ = timer.join();
    println!(
        "[{} messages, {} tokens; the first answer took {:?}]",
        session.said().len(),
        session.tokens(),
        first.timing.decode
    );
    Ok(())
}

/// One turn, its answer printed as it comes.
fn say(chat: &mut Chat, session: &mut Session, question: Said, ask: &Ask<'_>) -> Result<Outcome, Box<dyn Error>> {
    println!("> {}", question.message.all_text());
    let outcome = chat.send(session, [question], ask, &mut |event| {
        if let Event::Text(text) = event {
            print!("{text}");
            // Nobody may be there to read it any more.
            if std::io::stdout().flush().is_err() {
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    })?;
    println!();
    Ok(outcome)
}
