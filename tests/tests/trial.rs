//! What goes beyond the sequence known to work is tried out first, and left where the device does not bear it.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use driver_tests::tiny;
use npu_model::{Beside, Clock, Config, Faults, Model, Timing};
use runtime::bundle::Bundle;
use runtime::model::{Fallback, Hybrid};
use runtime::npu::Npu;
use runtime::{Chat, LoadOptions, Progress, Turn};

fn bundle() -> &'static Path {
    static BUNDLE: OnceLock<PathBuf> = OnceLock::new();
    BUNDLE.get_or_init(|| tiny::text_bundle(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("trial")).unwrap())
}

/// A loaded model, its device, and the fallbacks that were told meanwhile.
fn load(config: Config, options: LoadOptions) -> (Chat, Arc<Model>, Vec<Fallback>) {
    let device = Model::new(config);
    let npu = Npu::open(&*device, Path::new("/dev/accel/accel0")).unwrap();
    let mut told = Vec::new();
    let chat = Chat::load(Bundle::open(bundle()).unwrap(), npu, options, &mut |progress| {
        if let Progress::Fallback(why) = progress {
            told.push(why);
        }
    });
    (chat.unwrap(), device, told)
}

fn answer(chat: &mut Chat) -> Vec<u32> {
    let turn = Turn { system: None, images: &[], text: "Hello", thinking: false, max_new: 5 };
    chat.turn(&turn, &mut |_| ControlFlow::Continue(())).unwrap().tokens
}

#[test]
fn a_device_that_bears_commands_beside_each_other_runs_them_so() {
    let (mut chat, device, told) = load(Config::default(), LoadOptions::default());
    assert_eq!((told, chat.model().fallback()), (vec![], None));
    let good = answer(&mut chat);
    assert!(!good.is_empty());
    // What was tried has left nothing behind.
    let buffers = device.counts().buffers_live;
    let (mut untried, device, _) = load(Config::default(), LoadOptions { trial: false, ..LoadOptions::default() });
    assert_eq!(answer(&mut untried), good);
    assert_eq!(device.counts().buffers_live, buffers);
}

/// In whatever way it fails, the answer is the right one, and every command goes alone.
#[test]
fn a_device_that_does_not_gets_one_command_at_a_time_and_the_user_is_told() {
    let (mut chat, ..) = load(Config::default(), LoadOptions::default());
    let good = answer(&mut chat);
    let short = LoadOptions { deadline: Duration::from_millis(1500), ..LoadOptions::default() };
    // A driver that ends what hangs, and one that does not.
    let config = |beside, tdr_ms| Config {
        tdr_ms,
        destroy_wait_ms: 10,
        faults: Faults { beside: Some(beside), ..Faults::default() },
        ..Config::default()
    };
    for (config, options, why) in [
        (config(Beside::Dropped, 50), LoadOptions::default(), Fallback::Differs),
        (config(Beside::Failed, 50), LoadOptions::default(), Fallback::Failed),
        (config(Beside::Hung, 50), LoadOptions::default(), Fallback::Failed),
        (config(Beside::Hung, 0), short, Fallback::TimedOut),
    ] {
        let (mut chat, device, told) = load(config, options);
        assert_eq!((told, chat.model().fallback()), (vec![why], Some(why)));
        let (before, own) = (device.counts(), chat.counters());
        assert_eq!(answer(&mut chat), good, "{why}");
        let (after, own) = (device.counts(), chat.counters().since(&own));
        let of = |name: &str| after.ioctls[name] - before.ioctls.get(name).copied().unwrap_or(0);
        // The known sequence: a wait after each submission, none of them spun.
        assert_eq!((of("EXEC_CMD"), of("SYNCOBJ_TIMELINE_WAIT")), (own.commands, own.commands));
        assert_eq!(own.spun, 0);
        assert!(after.failed_commands == before.failed_commands);
    }
}

/// The fault is one: without the trial it would have shown.
#[test]
fn without_the_trial_the_fault_is_met_later() {
    let faults = Faults { beside: Some(Beside::Failed), ..Faults::default() };
    let (mut chat, _device, told) =
        load(Config { faults, ..Config::default() }, LoadOptions { trial: false, ..LoadOptions::default() });
    assert_eq!(told, []);
    let turn = Turn { system: None, images: &[], text: "Hello", thinking: false, max_new: 5 };
    assert!(chat.turn(&turn, &mut |_| ControlFlow::Continue(())).is_err());
}

#[test]
fn with_one_command_at_a_time_and_no_spinning_nothing_is_tried() {
    let options = LoadOptions { commands_in_flight: 1, spin: Duration::ZERO, ..LoadOptions::default() };
    let (_chat, device, told) = load(Config::default(), options);
    assert_eq!((told, device.counts().commands), (vec![], 0));
}

/// A device that computes nothing leaves what was there, both ways.
#[test]
fn a_timing_device_passes() {
    for clock in [Clock::Real, Clock::Virtual] {
        let timing = Some(Timing { clock, ..Timing::default() });
        let (_chat, _device, told) = load(Config { timing, ..Config::default() }, LoadOptions::default());
        assert_eq!(told, []);
    }
}

/// The same bits whoever multiplies, for any number of threads; each part that the host takes is a command less.
#[test]
fn the_hosts_share_changes_no_bit_and_saves_its_commands() {
    let bits = |threads: usize, hybrid: Hybrid| {
        let (mut chat, device, _) = load(
            Config { threads, coherent: false, ..Config::default() },
            LoadOptions { threads, hybrid, ..LoadOptions::default() },
        );
        let text = chat.model().bundle().manifest.text.clone();
        let model = chat.model_mut();
        let mut out = Vec::new();
        let mut commands = 0;
        for id in [5, 17, 200, 9] {
            let before = device.counts().commands;
            out.extend(model.decode(id).unwrap().iter().map(|x| x.to_bits()));
            commands = device.counts().commands - before;
        }
        let taken = model.shared();
        let all = (text.layers.len() * (3 + text.down_slices) + text.head_parts) as u64;
        assert_eq!(commands, all - (text.layers.len() * taken.1 + taken.0) as u64);
        (out, taken, (text.head_parts, text.down_slices))
    };
    let (good, none, (parts, slices)) = bits(2, Hybrid::Off);
    assert_eq!(none, (0, 0));
    for (threads, head, down) in [(1, 1, 0), (2, 1, 1), (3, 0, slices), (1, parts, 1), (2, usize::MAX, usize::MAX)] {
        let (got, taken, _) = bits(threads, Hybrid::Fixed { head, down });
        assert_eq!(taken, (head.min(parts), down.min(slices)));
        assert!(got == good, "{threads} threads, {head} parts, {down} slices");
    }
}

/// A device that is slower than any host leaves it all.
#[test]
fn a_share_is_taken_where_it_pays() {
    let timing = Timing { latency: Duration::from_millis(40), ..Timing::default() };
    let options = LoadOptions { hybrid: Hybrid::Measured, ..LoadOptions::default() };
    let (mut chat, device, _) = load(Config { timing: Some(timing), ..Config::default() }, options);
    let text = chat.model().bundle().manifest.text.clone();
    assert_eq!(chat.model().shared(), (text.head_parts, text.down_slices));
    let before = device.counts().commands;
    chat.model_mut().decode(5).unwrap();
    assert_eq!(device.counts().commands - before, 3 * text.layers.len() as u64);
}
