//! The driver's rules as cases: each talks to a door and to nothing else, so that it could talk to a kernel as well.
//!
//! Cases that need a fault shown, or a limit set, are in `faults.rs` and name the model.

#![allow(unreachable_pub, missing_debug_implementations, clippy::unwrap_used, reason = "the modules of one test")]

mod buffers;
mod commands;
mod contexts;
mod faults;
mod generic;
mod harness;
mod incoherent;
mod nonsense;
mod queries;
mod syncobjs;

use npu_model::{AddressMode, Config, DriverVersion, Model};

/// A case that any node of the given kind must pass.
type Case = (&'static str, fn(&harness::Node));

fn run_all(config: &Config, cases: &[&[Case]]) {
    let mut failed = Vec::new();
    for (name, case) in cases.iter().flat_map(|cases| cases.iter()) {
        let model = Model::new(config.clone());
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            case(&harness::Node { opener: &*model, sva: config.mode == AddressMode::Sva });
        }));
        let live = model.counts().buffers_live;
        if result.is_err() || live != 0 {
            failed.push(format!("{name} (buffers left alive: {live})"));
        }
    }
    assert!(failed.is_empty(), "failed: {failed:#?}");
}

const SHARED: &[&[Case]] =
    &[generic::CASES, buffers::CASES, contexts::CASES, commands::CASES, queries::CASES, syncobjs::CASES];

#[test]
fn with_shared_virtual_addresses() {
    run_all(&Config { threads: 1, ..Config::default() }, SHARED);
    run_all(&Config { threads: 1, ..Config::default() }, &[buffers::SVA_CASES]);
}

#[test]
fn with_addresses_of_the_drivers_own() {
    run_all(&Config { mode: AddressMode::Iova, threads: 1, ..Config::default() }, SHARED);
}

#[test]
fn with_a_carveout() {
    // Enough for the largest case: eight heap chunks and some buffers. Its SYNC_BO refuses, which one case asserts of
    // the other modes.
    let config = Config { mode: AddressMode::Carveout(1 << 30), threads: 1, ..Config::default() };
    run_all(&config, &[generic::CASES, contexts::CASES, commands::CASES, syncobjs::CASES]);
}

#[test]
fn with_older_command_slots() {
    let config = Config { protocol: (6, 12), threads: 1, ..Config::default() };
    run_all(&config, &[generic::CASES, commands::CASES]);
}

#[test]
fn with_the_newer_driver() {
    run_all(&Config { driver: DriverVersion::Aug2026, threads: 1, ..Config::default() }, SHARED);
}
