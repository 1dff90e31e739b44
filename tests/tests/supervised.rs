//! The runtime in a process of its own, through the kernel's door, with the software NPU behind it: the same answer as
//! with the software NPU in process; and the table of driver cases. This test binary is the program, started again.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(clippy::unwrap_used, reason = "a test")]

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use amdxdna_ioctl::{KernelOpener, Opener};
use driver_tests::cases::{Outcome, Selection, run};
use driver_tests::tiny;
use npu_model::supervise::Supervisor;
use npu_model::{Config, Counts, Faults, Model};
use runtime::bundle::Bundle;
use runtime::image::Rgb;
use runtime::npu::Npu;
use runtime::{Chat, LoadOptions, Turn};

/// Not a node of this machine, even if it has an NPU.
const NODE: &str = "/dev/accel/accel-of-the-model";
/// Names the bundle to the program.
const BUNDLE: &str = "QWEN35_SUPERVISED";

/// Tokens of an answer about a picture.
fn answer(bundle: &Path, opener: &dyn Opener) -> Vec<u32> {
    let npu = Npu::open(opener, Path::new(NODE)).unwrap();
    let mut chat = Chat::load(Bundle::open(bundle).unwrap(), npu, LoadOptions::default(), &mut |_| {}).unwrap();
    let data = (0..96 * 64 * 3).map(|i| (i * 7 % 251) as u8).collect();
    let picture = Rgb { width: 96, height: 64, data };
    let turn = Turn { system: None, images: &[picture], text: "What is it?", thinking: false, max_new: 12 };
    chat.turn(&turn, &mut |_| ControlFlow::Continue(())).unwrap().tokens
}

fn told(tokens: &[u32]) -> String {
    tokens.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")
}

#[test]
#[ignore = "the program"]
fn program() {
    let Some(bundle) = std::env::var_os(BUNDLE).map(PathBuf::from) else { return };
    let tokens = answer(&bundle, &KernelOpener);
    std::fs::write(bundle.with_extension("answer"), told(&tokens)).unwrap();
}

#[test]
fn the_same_answer_from_another_process() {
    let folder = std::env::temp_dir().join(format!("qwen35-supervised-{}", std::process::id()));
    let bundle = tiny::bundle(&folder).unwrap();
    let model = Model::new(Config::default());
    let expected = answer(&bundle, &*model);
    assert!(!expected.is_empty());

    let supervisor = Supervisor::new(Config::default(), NODE).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "program", "--ignored"]).env(BUNDLE, &bundle);
    assert!(supervisor.run(&mut command).unwrap().success());
    let got = std::fs::read_to_string(bundle.with_extension("answer")).unwrap();
    std::fs::remove_dir_all(folder).unwrap();
    assert_eq!(got, told(&expected));

    // Down to the same work, and nothing is left.
    let (ours, theirs) = (supervisor.model().counts(), model.counts());
    let steady = |counts: &Counts| {
        let mut ioctls = counts.ioctls.clone();
        // A wait is spared where a look at the command's state word ends it first: how often depends on the machine.
        ioctls.remove("SYNCOBJ_TIMELINE_WAIT");
        ioctls
    };
    assert_eq!(steady(&ours), steady(&theirs));
    assert_eq!(
        (ours.commands, ours.operations, ours.bytes_read),
        (theirs.commands, theirs.operations, theirs.bytes_read)
    );
    assert_eq!((ours.failed_commands, ours.buffers_live), (0, 0));
}

/// Names the file for the table's outcomes to the program.
const OUTCOMES: &str = "QWEN35_SUPERVISED_TABLE";

/// What a model beside another process cannot show: pages of the program's own, a munmap that waits, and bytes behind
/// the descriptor that stands for a dma-buf.
const NOT_BESIDE: [&str; 9] = [
    "bo::user_address",
    "bo::user_again",
    "bo::user_packet",
    "bo::user_read_only",
    "bo::user_scattered",
    "bo::user_unmapped",
    "exec::unmapped_in_flight",
    "fault::hang_unmap",
    "share::mapped",
];

#[test]
#[ignore = "the program"]
fn program_table() {
    let Some(file) = std::env::var_os(OUTCOMES).map(PathBuf::from) else { return };
    let (mut passed, mut bad) = (0, String::new());
    let opener: Arc<dyn Opener> = Arc::new(KernelOpener);
    run(&Selection::default(), &opener, Path::new(NODE), &mut |record| {
        passed += usize::from(*record.outcome == Outcome::Pass);
        if record.outcome.is_bad() && !NOT_BESIDE.contains(&record.case.to_string().as_str()) {
            bad.push_str(&format!("{}: {}\n", record.case, record.outcome));
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    std::fs::write(file, format!("{passed}\n{bad}")).unwrap();
}

#[test]
fn the_table_of_driver_cases_from_another_process() {
    let file = std::env::temp_dir().join(format!("qwen35-supervised-table-{}", std::process::id()));
    let faults = Faults { privileged: rustix::process::geteuid().is_root(), ..Faults::default() };
    let config = Config { threads: 1, tdr_ms: 300, faults, ..Config::default() };
    let supervisor = Supervisor::new(config, NODE).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "program_table", "--ignored"]).env(OUTCOMES, &file);
    assert!(supervisor.run(&mut command).unwrap().success());
    let said = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(file).unwrap();
    let (passed, bad) = said.split_once('\n').unwrap();
    assert!(bad.is_empty(), "{bad}");
    assert!(passed.parse::<usize>().unwrap() >= 150, "{passed} cases passed");
    let counts = supervisor.model().counts();
    assert_eq!(counts.contexts_created, counts.contexts_destroyed);
}
