//! The model that takes an NPU's time: its account is that of the model that computes.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use driver_tests::tiny;
use npu_model::{Clock, Config, Counts, Model, Timing};
use runtime::LoadOptions;
use runtime::bundle::Bundle;
use runtime::model::{Input, Model as Qwen};
use runtime::npu::Npu;

fn bundle() -> &'static Path {
    static BUNDLE: OnceLock<PathBuf> = OnceLock::new();
    BUNDLE.get_or_init(|| tiny::text_bundle(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("timing")).unwrap())
}

/// A prompt of two chunks and three tokens.
struct Run {
    /// What happened on the device, from the time it was opened.
    all: Counts,
    /// How long the device took for prompt and tokens alone.
    device: Duration,
    /// How long they took altogether.
    took: Duration,
}

fn run(timing: Option<Timing>, commands_in_flight: usize) -> Run {
    let device = Model::new(Config { timing, ..Config::default() });
    let npu = Npu::open(&*device, Path::new("/dev/accel/accel0")).unwrap();
    // The virtual clock learns from the wait's ioctl that the host has waited: a look at the state word is none to it.
    let options = LoadOptions { commands_in_flight, spin: Duration::ZERO, ..LoadOptions::default() };
    let mut model = Qwen::load(Bundle::open(bundle()).unwrap(), npu, &options, &mut |_| {}).unwrap();
    let ids = [7; 300];
    let positions = model.positions(&ids, &[]).unwrap();
    // Loading tries commands of its own.
    let before = device.counts().device_ns;
    let start = Instant::now();
    model
        .prefill(&Input { ids: &ids, positions: &positions, vision: &[] }, &mut |_| ControlFlow::Continue(()))
        .unwrap();
    model.logits().unwrap();
    for id in [5, 17, 200] {
        model.decode(id).unwrap();
    }
    let took = start.elapsed();
    let all = device.counts();
    Run { device: Duration::from_nanos(all.device_ns - before), all, took }
}

const VIRTUAL: Timing = Timing {
    latency: Duration::from_micros(65),
    bandwidth: 50_000_000_000,
    rate: 12_000_000_000_000,
    switch: Duration::ZERO,
    clock: Clock::Virtual,
};

#[test]
fn the_same_commands_write_the_same_bytes_and_take_the_sum_of_their_times() {
    let computed = run(None, 4).all;
    let timed = run(Some(VIRTUAL), 4).all;
    assert_eq!(timed.commands, computed.commands);
    assert_eq!(timed.bytes_written, computed.bytes_written);
    // Activations go to several columns, or several times: the account has what the arguments hold, once.
    assert!(timed.bytes_read > 0 && timed.bytes_read <= computed.bytes_read, "{timed:?}");
    assert_eq!((computed.array_ns, computed.device_ns), (0, 0));
    let traffic = (timed.bytes_read + timed.bytes_written) / 50;
    assert!(timed.array_ns + timed.commands >= traffic, "{} ns for {traffic} ns of traffic", timed.array_ns);

    // One at a time: every latency shows.
    let serial = run(Some(VIRTUAL), 1).all;
    assert_eq!(serial.device_ns, serial.array_ns + serial.commands * 65_000);
    // A long prompt in lanes reads its weights once a chunk.
    assert!(serial.commands < timed.commands && serial.array_ns < timed.array_ns);
    // Parts of the head go together, so that their latency does not show.
    assert!(timed.device_ns < timed.array_ns + timed.commands * 65_000);
}

#[test]
fn on_the_real_clock_commands_take_their_time() {
    let timing = Timing { latency: Duration::from_millis(1), clock: Clock::Real, ..VIRTUAL };
    let run = run(Some(timing), 4);
    // Nobody has a result before the device had its time, however fast or slow the machine is.
    assert!(run.took >= run.device, "{:?} for {:?}", run.took, run.device);
    assert!(run.device > Duration::ZERO && run.all.device_ns > run.all.array_ns);
}
