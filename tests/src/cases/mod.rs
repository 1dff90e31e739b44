//! The table of driver cases: what a client may expect of a device node, one case a rule.
//!
//! Cases open the node through an [`Opener`](amdxdna_ioctl::Opener) and use nothing but its doors, so that they run on the software NPU, on
//! the real driver in a virtual machine, and on hardware. Each opens clients of its own, runs under a deadline, and
//! leaves nothing behind. They need no test harness, no shell and no file system but `/proc`.
//!
//! What must differ between devices is in the table, not in the runner: how the device addresses memory
//! ([`Expect::ByMode`]), which driver began to do it ([`Case::since`]), and whether faults can be shown on demand
//! ([`Selection::model`]).

#[macro_use]
mod verdict;

mod bo;
mod chain;
#[allow(unsafe_code)]
mod client;
mod context;
mod ctx;
mod exec;
mod fault;
mod fence;
mod fork;
mod hang;
mod heap;
mod multi;
mod open;
mod perf;
mod power;
mod query;
mod ready;
mod reset;
mod run;
mod share;
mod user_pages;

use std::fmt;

pub use ctx::{Ctx, Mode};
pub use run::{Record, Selection, run};
pub use verdict::Outcome;
use verdict::{Stop, Verdict};

/// What a case is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Group {
    /// Opening the node, and the generic rules of its ioctls.
    Open,
    /// GET_INFO and GET_ARRAY.
    Query,
    /// Buffer objects, mappings, cache lines.
    Bo,
    /// The device heap and the buffers in it.
    Heap,
    /// Hardware contexts and their compute units.
    Context,
    /// EXEC_CMD and single packets.
    Exec,
    /// Command chains.
    Chain,
    /// Syncobj timelines.
    Fence,
    /// Hangs, resets, and faults shown on demand.
    Fault,
    /// Power modes, suspend and resume.
    Power,
    /// dma-buf export and import.
    Share,
    /// Several threads, clients and processes.
    Multi,
    /// Measurements; reported, never judged.
    Perf,
}

impl Group {
    /// All of them, in the order of the table.
    pub const ALL: [Self; 13] = [
        Self::Open,
        Self::Query,
        Self::Bo,
        Self::Heap,
        Self::Context,
        Self::Exec,
        Self::Chain,
        Self::Fence,
        Self::Fault,
        Self::Power,
        Self::Share,
        Self::Multi,
        Self::Perf,
    ];

    /// The group's name on a command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Query => "query",
            Self::Bo => "bo",
            Self::Heap => "heap",
            Self::Context => "context",
            Self::Exec => "exec",
            Self::Chain => "chain",
            Self::Fence => "fence",
            Self::Fault => "fault",
            Self::Power => "power",
            Self::Share => "share",
            Self::Multi => "multi",
            Self::Perf => "perf",
        }
    }

    /// The group of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|group| group.name() == name)
    }
}

/// What a case expects, in one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// The same on every device.
    Same(&'static str),
    /// By how the device addresses memory: a difference that must stay.
    ByMode {
        /// Shared virtual addressing.
        sva: &'static str,
        /// Addresses of the driver's own: an IOVA domain, or a carve-out.
        iova: &'static str,
    },
}

impl fmt::Display for Expect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Same(what) => f.write_str(what),
            Self::ByMode { sva, iova } => write!(f, "SVA: {sva}; IOVA: {iova}"),
        }
    }
}

/// One rule, and how to see whether a device keeps it.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Unique in its group.
    pub name: &'static str,
    /// What it is about.
    pub group: Group,
    /// The first minor version of the driver that can run it.
    pub since: u32,
    /// What should happen.
    pub expects: Expect,
    /// Changes the state of the machine for others while it runs (power modes, suspend), or is known to have stopped a
    /// driver. Only when asked for.
    pub danger: bool,
    /// Does it.
    pub run: fn(&Ctx) -> Outcome,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}::{}", self.group.name(), self.name)
    }
}

const TABLE: &[&[Case]] = &[
    open::CASES,
    query::CASES,
    bo::CASES,
    user_pages::CASES,
    heap::CASES,
    context::CASES,
    exec::CASES,
    chain::CASES,
    fence::CASES,
    hang::CASES,
    reset::CASES,
    fault::CASES,
    power::CASES,
    share::CASES,
    multi::CASES,
    fork::CASES,
    perf::CASES,
];

/// All cases.
pub fn all() -> impl Iterator<Item = &'static Case> {
    TABLE.iter().flat_map(|cases| cases.iter())
}

/// The outcome of a case's body.
fn outcome(verdict: Verdict) -> Outcome {
    match verdict {
        Ok(()) => Outcome::Pass,
        Err(Stop::Fail(why)) => Outcome::Fail(why),
        Err(Stop::Skip(why)) => Outcome::Skip(why),
    }
}
