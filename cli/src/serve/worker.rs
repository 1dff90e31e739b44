//! The thread that owns the model: one answer after the other, and a new model where the device has failed.

use super::answer::{Answered, Answers};
use super::error::ApiError;
use super::job::{Job, Piece};
use super::log::Log;
use super::metrics::Metrics;
use super::notify::Notify;
use super::options::ServeOptions;
use super::queue::{Next, Queue};
use super::state::{Facts, State};
use super::telemetry::{Sample, gone};
use crate::device::Loaded;
use crate::error::{CliError, one_line};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// How a model is had. The first failure ends the server; later ones are tried again.
pub(super) type Loader = Box<dyn FnMut() -> Result<Loaded, CliError> + Send>;

/// How long nothing may happen before the worker looks around.
const TICK: Duration = Duration::from_secs(1);
/// The longest wait between two attempts to load.
const LONGEST: Duration = Duration::from_secs(60);

/// What the worker has to do with.
pub(super) struct Worker {
    pub(super) options: Arc<ServeOptions>,
    pub(super) queue: Arc<Queue<Job>>,
    pub(super) state: Arc<State>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) log: Arc<Log>,
    pub(super) notify: Arc<Notify>,
    pub(super) load: Loader,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("state", &self.state).finish_non_exhaustive()
    }
}

impl Worker {
    /// Answers until the queue is closed. `ready` is told once, when the first model is in place.
    pub(super) fn run(mut self, ready: &mut dyn FnMut()) -> Result<(), CliError> {
        let mut loaded = (self.load)()?;
        self.begin(&loaded);
        ready();
        loop {
            let Some(reason) = self.serve(&mut loaded) else { return Ok(()) };
            // Nothing of it is used again: what it holds may still be written by the device.
            drop(loaded);
            match self.reload(&reason) {
                Some(again) => loaded = again,
                None => return Ok(()),
            }
        }
    }

    fn begin(&self, loaded: &Loaded) {
        let facts = Facts { device: loaded.device.clone(), vision: loaded.chat.sees(), max_ctx: loaded.chat.max_ctx() };
        let seconds = (loaded.seconds * 1e3).round() / 1e3;
        self.log.info("loaded", &[("device", facts.device.as_str().into()), ("seconds", seconds.into())]);
        self.state.ready(facts);
        self.state.beat();
        self.notify.status("ready");
    }

    /// Answers until the queue is closed (nothing is given back then) or the device fails.
    fn serve(&self, loaded: &mut Loaded) -> Option<String> {
        let mut answers = Answers::new(&loaded.chat, self.options.sessions, self.options.session_bytes);
        self.look(loaded);
        loop {
            self.state.beat();
            let job = match self.queue.next(TICK) {
                Next::Job(job) => job,
                Next::Nothing => {
                    if self.state.was_curious() {
                        self.look(loaded);
                    }
                    // One that nobody has asked anything may have been taken away, too.
                    if self.state.was_doubtful()
                        && let Some(reason) = gone(loaded.chat.model().npu().device())
                    {
                        self.metrics.sessions(0, 0);
                        return Some(reason);
                    }
                    continue;
                }
                Next::Closed => return None,
            };
            if job.cancel.is_cancelled() {
                continue;
            }
            let to = job.to.clone();
            self.state.begin();
            // A mistake of this program's costs an answer and a loading, not the server.
            let answered =
                catch_unwind(AssertUnwindSafe(|| answers.answer(&mut loaded.chat, job, &self.state, &self.options)));
            self.state.end();
            let broken = match answered {
                Ok(Answered::Ended(ended)) => {
                    self.metrics.answered(&ended);
                    None
                }
                Ok(Answered::Refused) => None,
                Ok(Answered::Broken(reason)) => Some(reason),
                Err(panic) => {
                    let said = panic.downcast_ref::<String>().map(String::as_str);
                    let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
                    let _ = to.send(Piece::Failed(ApiError::Internal("the answer failed inside of the server".into())));
                    Some(format!("a panic: {said}"))
                }
            };
            self.metrics.sessions(answers.store().count(), answers.store().total());
            if broken.is_some() {
                self.metrics.sessions(0, 0);
                return broken;
            }
            // Asking costs the device a little: only where somebody looks at it.
            if self.state.was_curious() {
                self.look(loaded);
            }
        }
    }

    /// Loads anew, again and again until it works; nothing if the queue was closed meanwhile.
    fn reload(&mut self, reason: &str) -> Option<Loaded> {
        let mut reason = one_line(&reason);
        let mut wait = Duration::ZERO;
        self.metrics.device_error();
        loop {
            self.log.error(
                "unhealthy",
                &[("reason", reason.as_str().into()), ("retry_ms", (wait.as_millis() as u64).into())],
            );
            self.state.unhealthy(&reason, wait);
            self.notify.status(&format!("unhealthy: {reason}"));
            if self.pause(wait) {
                return None;
            }
            self.state.beat();
            match (self.load)() {
                Ok(loaded) => {
                    self.metrics.reloaded();
                    self.begin(&loaded);
                    return Some(loaded);
                }
                Err(error) => reason = one_line(&error),
            }
            wait = (wait * 2).clamp(TICK, LONGEST);
            // Who waits is told now, rather than when it is too late.
            for job in self.queue.drain() {
                let retry = wait.as_secs() + 1;
                let _ = job.to.send(Piece::Failed(ApiError::Unhealthy { reason: reason.clone(), retry }));
            }
        }
    }

    /// Waits, giving signs of life; whether the queue was closed.
    fn pause(&self, mut time: Duration) -> bool {
        loop {
            let step = time.min(TICK);
            if self.queue.pause(step) {
                return true;
            }
            self.state.beat();
            time -= step;
            if time.is_zero() {
                return false;
            }
        }
    }

    fn look(&self, loaded: &Loaded) {
        self.metrics.device(Sample::of(loaded.chat.model().npu().device()));
    }
}
