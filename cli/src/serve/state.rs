//! How the server is: what everybody may ask and the worker tells.

use super::error::ApiError;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What a loaded model is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) device: String,
    pub(super) vision: bool,
    pub(super) max_ctx: usize,
}

/// Where the server stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Phase {
    Loading,
    Ready,
    /// The device failed; it is tried again at this time.
    Unhealthy {
        reason: String,
        retry: Instant,
    },
    Stopping,
}

/// The server's state.
#[derive(Debug)]
pub(super) struct State {
    inner: Mutex<Inner>,
    start: Instant,
    created: u64,
    /// Milliseconds from the start to the worker's last sign of life.
    beat: AtomicU64,
    running: AtomicUsize,
    /// Running answers have to end.
    hurry: AtomicBool,
    /// Somebody has asked how the device is since it was last looked at.
    curious: AtomicBool,
    /// Somebody has asked whether it is there.
    doubtful: AtomicBool,
    name: String,
}

#[derive(Debug)]
struct Inner {
    phase: Phase,
    facts: Option<Facts>,
}

impl State {
    pub(super) fn new(name: String) -> State {
        let created = std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
        State {
            inner: Mutex::new(Inner { phase: Phase::Loading, facts: None }),
            start: Instant::now(),
            created,
            beat: AtomicU64::new(0),
            running: AtomicUsize::new(0),
            hurry: AtomicBool::new(false),
            curious: AtomicBool::new(false),
            doubtful: AtomicBool::new(false),
            name,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The model's name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Seconds since 1970 at which the server began.
    pub(super) fn created(&self) -> u64 {
        self.created
    }

    pub(super) fn uptime(&self) -> Duration {
        self.start.elapsed()
    }

    pub(super) fn facts(&self) -> Option<Facts> {
        self.lock().facts.clone()
    }

    pub(super) fn phase(&self) -> Phase {
        self.lock().phase.clone()
    }

    /// A model is in place.
    pub(super) fn ready(&self, facts: Facts) {
        let mut inner = self.lock();
        inner.facts = Some(facts);
        if inner.phase != Phase::Stopping {
            inner.phase = Phase::Ready;
        }
    }

    /// The device failed.
    pub(super) fn unhealthy(&self, reason: &str, retry_in: Duration) {
        let mut inner = self.lock();
        if inner.phase != Phase::Stopping {
            inner.phase = Phase::Unhealthy { reason: reason.to_owned(), retry: Instant::now() + retry_in };
        }
    }

    /// Nothing new begins from here on.
    pub(super) fn stopping(&self) {
        self.lock().phase = Phase::Stopping;
    }

    /// Refuses what cannot be answered as things are.
    pub(super) fn admit(&self) -> Result<(), ApiError> {
        match self.phase() {
            Phase::Loading | Phase::Ready => Ok(()),
            Phase::Stopping => Err(ApiError::Stopping),
            Phase::Unhealthy { reason, retry } => {
                let wait = retry.saturating_duration_since(Instant::now());
                Err(ApiError::Unhealthy { reason, retry: wait.as_secs() + 1 })
            }
        }
    }

    /// The worker lives.
    pub(super) fn beat(&self) {
        self.beat.store(self.start.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    /// How long the worker has given no sign of life.
    pub(super) fn silence(&self) -> Duration {
        self.start.elapsed().saturating_sub(Duration::from_millis(self.beat.load(Ordering::Relaxed)))
    }

    pub(super) fn begin(&self) {
        self.running.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn end(&self) {
        self.running.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn running(&self) -> usize {
        self.running.load(Ordering::Relaxed)
    }

    /// Running answers have to end.
    pub(super) fn hurry(&self) {
        self.hurry.store(true, Ordering::Relaxed);
    }

    pub(super) fn in_hurry(&self) -> bool {
        self.hurry.load(Ordering::Relaxed)
    }

    /// Somebody wants to know how the device is.
    pub(super) fn be_curious(&self) {
        self.curious.store(true, Ordering::Relaxed);
    }

    /// Whether somebody did, once.
    pub(super) fn was_curious(&self) -> bool {
        self.curious.swap(false, Ordering::Relaxed)
    }

    /// Somebody wants to know whether the device is there.
    pub(super) fn be_doubtful(&self) {
        self.doubtful.store(true, Ordering::Relaxed);
    }

    /// Whether somebody did, once.
    pub(super) fn was_doubtful(&self) -> bool {
        self.doubtful.swap(false, Ordering::Relaxed)
    }

    /// The status and body of `/health`.
    pub(super) fn health(&self, waiting: usize, limit: usize) -> (u16, Value) {
        let (phase, facts) = {
            let inner = self.lock();
            (inner.phase.clone(), inner.facts.clone())
        };
        let (status, word, reason) = match phase {
            Phase::Ready => (200, "ok", None),
            Phase::Loading => (503, "loading", None),
            Phase::Unhealthy { reason, .. } => (503, "unhealthy", Some(reason)),
            Phase::Stopping => (503, "stopping", None),
        };
        let body = json!({
            "status": word,
            "reason": reason,
            "model": self.name,
            "device": facts.as_ref().map(|facts| facts.device.clone()),
            "vision": facts.as_ref().map(|facts| facts.vision),
            "max_context": facts.as_ref().map(|facts| facts.max_ctx),
            "queue": {"waiting": waiting, "running": self.running(), "limit": limit},
            "uptime_seconds": self.uptime().as_secs_f64(),
            "version": env!("CARGO_PKG_VERSION"),
        });
        (status, body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_tells_the_truth_and_a_stop_is_final() {
        let state = State::new("m".into());
        assert_eq!(state.health(0, 1).1["status"], "loading");
        assert_eq!(state.admit(), Ok(()));
        let facts = Facts { device: "d".into(), vision: true, max_ctx: 8 };
        state.ready(facts.clone());
        assert_eq!(state.health(0, 1).0, 200);
        state.unhealthy("it burns", Duration::from_secs(3));
        let (status, body) = state.health(2, 4);
        assert_eq!((status, &body["status"], &body["reason"]), (503, &json!("unhealthy"), &json!("it burns")));
        assert_eq!(body["queue"], json!({"waiting": 2, "running": 0, "limit": 4}));
        assert!(matches!(state.admit(), Err(ApiError::Unhealthy { retry: 1..=4, .. })));
        state.stopping();
        state.ready(facts);
        state.unhealthy("x", Duration::ZERO);
        assert_eq!(state.phase(), Phase::Stopping);
        assert_eq!(state.admit(), Err(ApiError::Stopping));
    }
}
