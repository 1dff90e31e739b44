//! Conversations: what the model has of one is always what it would have of the whole read anew, and costs the new tokens
//! only. On a tiny random model: what it says is gibberish, but it has to be the same gibberish.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

mod answers;
mod broken_off;
mod faults;
mod guesses;
mod room;
mod stored;
mod turns;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use driver_tests::tiny;
use npu_model::{Config, Model};
use runtime::bundle::Bundle;
use runtime::chat::{Ask, Message, Part, Picture, Role, Said, Session};
use runtime::image::Rgb;
use runtime::npu::Npu;
use runtime::{Chat, Event, LoadOptions, Outcome};

/// The tiny bundle, in a folder of this process; folders of ended processes are removed.
fn bundle() -> &'static Path {
    static BUNDLE: OnceLock<PathBuf> = OnceLock::new();
    BUNDLE.get_or_init(|| {
        let all = Path::new(env!("CARGO_TARGET_TMPDIR")).join("session");
        std::fs::create_dir_all(&all).unwrap();
        for left in std::fs::read_dir(&all).unwrap().flatten() {
            if !Path::new("/proc").join(left.file_name()).exists() {
                let _ = std::fs::remove_dir_all(left.path());
            }
        }
        tiny::bundle(&all.join(std::process::id().to_string())).unwrap()
    })
}

fn load(max_ctx: usize) -> (Chat, Arc<Model>) {
    load_with(LoadOptions { max_ctx, ..LoadOptions::default() })
}

fn load_with(options: LoadOptions) -> (Chat, Arc<Model>) {
    load_bundle(bundle(), options)
}

fn load_bundle(bundle: &Path, options: LoadOptions) -> (Chat, Arc<Model>) {
    // A machine that is busy with other things is no hang.
    let device = Model::new(Config { coherent: false, tdr_ms: 0, ..Config::default() });
    let options = LoadOptions { deadline: Duration::from_secs(600), ..options };
    let npu = Npu::open(&*device, Path::new("/dev/accel/accel0")).unwrap();
    (Chat::load(Bundle::open(bundle).unwrap(), npu, options, &mut |_| {}).unwrap(), device)
}

/// One picture for each `look`.
fn picture(look: usize) -> Picture {
    let (width, height) = (64 + 32 * (look % 2), 64);
    let data = (0..width * height * 3).map(|i| (i * i / 7 % (251 - look)) as u8).collect();
    Picture::new(Rgb { width, height, data })
}

fn asks(text: &str) -> Said {
    Message::user(text).into()
}

/// A question about a picture, which stands between two texts.
fn shows(before: &str, look: usize, after: &str) -> Said {
    let text = |text: &str| Part::Text(text.to_owned());
    let content = vec![text(before), Part::Image { source: None }, text(after)];
    Said { message: Message::parts(Role::User, content), pictures: vec![picture(look)] }
}

fn go(_: Event<'_>) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn ask(max_new: usize) -> Ask<'static> {
    Ask { max_new, ..Ask::default() }
}

/// What a session that has read nothing yet answers to the same conversation, and the bits of what the model would say next.
fn afresh(chat: &mut Chat, said: &[Said], ask: &Ask<'_>) -> (Outcome, Vec<u32>) {
    let mut fresh = Session::new();
    fresh.set(said.to_vec());
    let outcome = chat.answer(&mut fresh, ask, &mut go).unwrap();
    assert_eq!(outcome.reused_tokens, 0);
    let bits = bits(chat, &mut fresh);
    (outcome, bits)
}

/// The bits of what the model would say next in a conversation.
fn bits(chat: &mut Chat, session: &mut Session) -> Vec<u32> {
    chat.with_state(session, |model| model.logits().unwrap().iter().map(|x| x.to_bits()).collect())
}
