//! The typed layer of `amdxdna-ioctl` on the model: its own sequence of calls, its drop order, its errors.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::Path;
use std::sync::Arc;

use amdxdna_ioctl::packet::{CommandOutcome, IronKernel};
use amdxdna_ioctl::{Bo, BoKind, Command, Cu, Deadline, Device, HwCtx, HwCtxOptions};
use npu_model::{AddressMode, Config, DriverVersion, Faults, Model};

/// The header of an instruction stream of no operations.
const EMPTY_STREAM: [u32; 4] = [0x0604_0100, 0x0000_0108, 0, 16];

struct Bench {
    device: Arc<Device>,
    context: Arc<HwCtx>,
    stream: Bo,
}

fn bench(model: &Model) -> Bench {
    let device = Device::open(model, Path::new("/dev/accel/accel0")).unwrap();
    let context = HwCtx::create(&device, &HwCtxOptions::default()).unwrap();
    let pdi = Bo::with_contents(&device, BoKind::Dev, &[0; 4096]).unwrap();
    context.config_cu(vec![Cu { pdi, func: 0 }]).unwrap();
    let bytes: Vec<u8> = EMPTY_STREAM.iter().flat_map(|word| word.to_le_bytes()).collect();
    let stream = Bo::with_contents(&device, BoKind::Dev, &bytes).unwrap();
    Bench { device, context, stream }
}

impl Bench {
    fn submit(&self, command: &mut Command, args: &[u32]) -> Result<u64, amdxdna_ioctl::Error> {
        // SAFETY: the stream has no operations, so the device touches nothing but the stream, which `self` keeps.
        unsafe { self.context.submit(command, args) }
    }

    fn kernel(&self) -> IronKernel {
        IronKernel { cu: 0, instructions: self.stream.address(), instruction_bytes: 16, buffers: [0; 5] }
    }
}

fn run(config: Config) {
    let model = Model::new(config);
    let bench = bench(&model);
    let mut commands: Vec<Command> =
        (0..6).map(|_| Command::with_packet(&bench.device, &bench.kernel()).unwrap()).collect();
    for round in 0..3 {
        for (i, command) in commands.iter_mut().enumerate() {
            let seq = bench.submit(command, &[bench.stream.handle()]).unwrap();
            assert_eq!(seq, round * 6 + i as u64);
        }
        for command in &mut commands {
            let outcome = command.wait(Deadline::NEVER).unwrap();
            assert_eq!(outcome, CommandOutcome::Completed, "{:?}", model.last_fault());
        }
    }
    assert_eq!(model.counts().commands, 18);
    drop(commands);
    drop(bench);
    let counts = model.counts();
    assert_eq!((counts.buffers_live, counts.contexts_created, counts.contexts_destroyed), (0, 1, 1));
}

#[test]
fn commands_run_in_every_mode() {
    let base = Config { threads: 1, ..Config::default() };
    run(base.clone());
    run(Config { coherent: false, ..base.clone() });
    run(Config { mode: AddressMode::Iova, ..base.clone() });
    run(Config { mode: AddressMode::Carveout(256 << 20), ..base.clone() });
    run(Config { driver: DriverVersion::Aug2026, protocol: (7, 0), ..base.clone() });
    run(Config { protocol: (6, 12), ..base });
}

#[test]
fn the_heap_grows_by_itself() {
    let model = Model::new(Config { threads: 1, ..Config::default() });
    let bench = bench(&model);
    let big: Vec<Bo> = (0..3).map(|_| Bo::new(&bench.device, BoKind::Dev, 40 << 20).unwrap()).collect();
    assert_eq!(bench.device.heap().chunks(), 2, "three of 40 MiB and some small ones in two of 64 MiB");
    let mut command = Command::with_packet(&bench.device, &bench.kernel()).unwrap();
    bench.submit(&mut command, &[]).unwrap();
    assert_eq!(command.wait(Deadline::NEVER).unwrap(), CommandOutcome::Completed);
    drop(big);
}

#[test]
fn outcomes_of_a_hang_and_of_an_error() {
    let faults = Faults { hang_command: Some(0), fail_command: Some(1), ..Faults::default() };
    let model = Model::new(Config { threads: 1, tdr_ms: 30, faults, ..Config::default() });
    let bench = bench(&model);
    let outcome = || {
        let mut command = Command::with_packet(&bench.device, &bench.kernel()).unwrap();
        bench.submit(&mut command, &[]).unwrap();
        command.wait(Deadline::NEVER).unwrap()
    };
    assert!(matches!(outcome(), CommandOutcome::TimedOut { error_index: None, health: Some(_) }));
    assert_eq!(outcome(), CommandOutcome::Failed { error_index: None });
    assert_eq!(outcome(), CommandOutcome::Completed);
}

#[test]
fn interrupted_calls_are_taken_up_again() {
    let faults = Faults { interrupt_every: Some(2), ..Faults::default() };
    let model = Model::new(Config { threads: 1, faults, ..Config::default() });
    let bench = bench(&model);
    let mut commands: Vec<Command> =
        (0..8).map(|_| Command::with_packet(&bench.device, &bench.kernel()).unwrap()).collect();
    for command in &mut commands {
        bench.submit(command, &[]).unwrap();
    }
    for command in &mut commands {
        assert_eq!(command.wait(Deadline::NEVER).unwrap(), CommandOutcome::Completed);
    }
}
