//! The table of driver cases against the software NPU, in each shape that it can have.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use amdxdna_ioctl::Opener;
use driver_tests::cases::{Group, Outcome, Selection, all, run};
use npu_model::{AddressMode, Config, DriverVersion, Faults, Model};

/// Runs the whole table and gives the names of the cases that were skipped.
fn table(config: Config) -> BTreeSet<String> {
    // A hang of the device itself must not make the table wait for two seconds each time.
    let config = Config { threads: 1, tdr_ms: 300, ..config };
    let model = Model::new(config.clone());
    let opener: Arc<dyn Opener> = model.clone();
    let selection = Selection { danger: true, model: Some(config), ..Selection::default() };
    let (mut ran, mut bad, mut skipped) = (0, Vec::new(), BTreeSet::new());
    run(&selection, &opener, Path::new("/dev/accel/accel0"), &mut |record| {
        ran += 1;
        match record.outcome {
            Outcome::Pass => {}
            Outcome::Skip(_) => {
                skipped.insert(record.case.to_string());
            }
            outcome => bad.push(format!("{}: {outcome}", record.case)),
        }
        let counts = model.counts();
        if (counts.buffers_live, counts.bytes_live) != (0, 0) || counts.contexts_created != counts.contexts_destroyed {
            bad.push(format!("{} leaves something behind: {counts:?}", record.case));
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    assert!(bad.is_empty(), "{bad:#?}");
    assert!(ran >= 120, "{ran} cases");
    skipped
}

#[test]
fn names_are_unique_and_every_group_has_cases() {
    let names: BTreeSet<String> = all().map(ToString::to_string).collect();
    assert_eq!(names.len(), all().count());
    for group in Group::ALL {
        assert!(all().any(|case| case.group == group), "{group:?}");
        assert_eq!(Group::named(group.name()), Some(group));
    }
}

/// What the software NPU cannot show: it lives in one process, takes one range of user pages, has no root user but by
/// its settings, and does not fall asleep.
const SKIPPED: [&str; 13] = [
    "bo::user_scattered",
    "multi::fork_both",
    "multi::fork_bytes",
    "multi::fork_exit",
    "multi::fork_killed",
    "multi::fork_leaves",
    "multi::fork_many",
    "multi::fork_own",
    "multi::fork_queries",
    "power::autosuspend",
    "power::autosuspend_query",
    "power::modes",
    "power::preempt",
];

#[test]
fn with_shared_virtual_addresses() {
    assert_eq!(Vec::from_iter(table(Config::default())), SKIPPED);
}

#[test]
fn with_addresses_of_the_drivers_own() {
    let skipped = table(Config { mode: AddressMode::Iova, ..Config::default() });
    assert_eq!(Vec::from_iter(skipped), SKIPPED);
}

#[test]
fn for_root_with_few_slots() {
    let faults = Faults { privileged: true, ..Faults::default() };
    let skipped = table(Config { slots: 6, faults, ..Config::default() });
    assert!(!skipped.contains("power::modes") && !skipped.contains("power::preempt"), "{skipped:?}");
}

#[test]
fn with_a_carveout() {
    table(Config { mode: AddressMode::Carveout(1 << 30), ..Config::default() });
}

#[test]
fn with_the_newer_driver() {
    table(Config { driver: DriverVersion::Aug2026, ..Config::default() });
}

#[test]
fn with_older_and_newer_firmware() {
    for protocol in [(6, 12), (6, 24), (7, 0)] {
        table(Config { protocol, ..Config::default() });
    }
}

#[test]
fn with_memory_that_is_not_coherent() {
    table(Config { coherent: false, ..Config::default() });
}
