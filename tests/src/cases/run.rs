//! The runner: one case after the other, each in a thread of its own under a deadline.

use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use amdxdna_ioctl::Opener;
use npu_model::Config;

use super::ctx::Facts;
use super::{Case, Ctx, Group, Outcome, all};

/// Which cases to run, and how.
#[derive(Clone, Debug)]
pub struct Selection {
    /// These groups; all when empty.
    pub groups: Vec<Group>,
    /// These cases, as `group::name`; all when empty.
    pub names: Vec<String>,
    /// Dangerous cases too.
    pub danger: bool,
    /// How long one case may take.
    pub deadline: Duration,
    /// The settings of the device, where it is the software NPU in this process. Cases that need a fault shown make
    /// a device with these settings and the fault; without, they are skipped.
    pub model: Option<Config>,
}

impl Default for Selection {
    fn default() -> Self {
        Self { groups: Vec::new(), names: Vec::new(), danger: false, deadline: Duration::from_secs(60), model: None }
    }
}

impl Selection {
    /// Whether a case is wanted.
    #[must_use]
    pub fn takes(&self, case: &Case) -> bool {
        (self.groups.is_empty() || self.groups.contains(&case.group))
            && (self.names.is_empty() || self.names.contains(&case.to_string()))
    }
}

/// What became of one case.
#[derive(Debug)]
pub struct Record<'a> {
    /// The case.
    pub case: &'static Case,
    /// What became of it.
    pub outcome: &'a Outcome,
    /// How long it took.
    pub took: Duration,
    /// What it had to say beside that: measurements.
    pub notes: &'a [String],
}

/// Runs the selected cases in the order of the table and reports each as it ends; `report` may end the run.
///
/// A case that misses its deadline is left to itself in its thread; the next ones run all the same.
///
/// # Errors
/// The device does not answer the questions that come before any case: open, version, one buffer.
pub fn run(
    selection: &Selection,
    opener: &Arc<dyn Opener>,
    node: &Path,
    report: &mut dyn FnMut(&Record<'_>) -> ControlFlow<()>,
) -> Result<(), String> {
    let facts = Facts::of(&**opener, node)?;
    for case in all().filter(|case| selection.takes(case)) {
        let started = Instant::now();
        let ctx = Arc::new(Ctx::new(Arc::clone(opener), node.to_owned(), selection.model.clone(), facts));
        let outcome = if case.since > facts.minor {
            Outcome::Skip(format!("needs driver 0.{}, this is 0.{}", case.since, facts.minor))
        } else if case.danger && !selection.danger {
            Outcome::Skip("dangerous, and not asked for".into())
        } else {
            attempt(case, &ctx, selection.deadline)
        };
        let record = Record { case, outcome: &outcome, took: started.elapsed(), notes: &ctx.take_notes() };
        if report(&record).is_break() {
            break;
        }
    }
    Ok(())
}

/// Runs one case in a thread.
fn attempt(case: &'static Case, ctx: &Arc<Ctx>, deadline: Duration) -> Outcome {
    let (send, receive) = channel();
    let theirs = Arc::clone(ctx);
    let body = move || {
        let outcome = catch_unwind(AssertUnwindSafe(|| (case.run)(&theirs)));
        // Before the report: the next case must find the device as this one found it.
        drop(theirs);
        let _ = send.send(outcome.unwrap_or_else(|_| Outcome::Fail("the case panicked".into())));
    };
    if let Err(error) = std::thread::Builder::new().name(case.name.to_owned()).spawn(body) {
        return Outcome::Skip(format!("no thread for it: {error}"));
    }
    match receive.recv_timeout(deadline) {
        Ok(outcome) => outcome,
        Err(RecvTimeoutError::Timeout) => Outcome::Timeout,
        Err(RecvTimeoutError::Disconnected) => Outcome::Fail("the case's thread is gone".into()),
    }
}
