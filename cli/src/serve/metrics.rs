//! What has been counted, in Prometheus' text format.

use super::job::Ended;
use super::telemetry::Sample;
use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Upper ends of the buckets that times are sorted into, in seconds.
const BOUNDS: [f64; 14] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 600.0];

/// Times, sorted by size.
#[derive(Debug, Default)]
struct Histogram {
    counts: [AtomicU64; BOUNDS.len()],
    all: AtomicU64,
    micros: AtomicU64,
}

impl Histogram {
    fn observe(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        if let Some(at) = BOUNDS.iter().position(|bound| seconds <= *bound) {
            self.counts[at].fetch_add(1, Ordering::Relaxed);
        }
        self.all.fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(time.as_micros() as u64, Ordering::Relaxed);
    }
}

/// Everything that is counted.
#[derive(Debug, Default)]
pub(super) struct Metrics {
    requests: Mutex<BTreeMap<(&'static str, u16), u64>>,
    connections: AtomicU64,
    cancelled: AtomicU64,
    prompt_tokens: AtomicU64,
    reused_tokens: AtomicU64,
    tokens: AtomicU64,
    image_tokens: AtomicU64,
    commands: AtomicU64,
    npu_wait_micros: AtomicU64,
    device_errors: AtomicU64,
    reloads: AtomicU64,
    waited: Histogram,
    first_token: Histogram,
    a_token: Histogram,
    whole: Histogram,
    sessions: AtomicU64,
    session_bytes: AtomicU64,
    device: Mutex<Sample>,
}

/// What others than the counters know.
#[derive(Debug, Clone, Copy)]
pub(super) struct Now {
    pub(super) up: bool,
    pub(super) waiting: usize,
    pub(super) queue_limit: usize,
    pub(super) running: usize,
    pub(super) uptime: Duration,
}

fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

impl Metrics {
    /// A request was answered with this status.
    pub(super) fn request(&self, route: &'static str, status: u16) {
        *self.requests.lock().unwrap_or_else(PoisonError::into_inner).entry((route, status)).or_default() += 1;
    }

    pub(super) fn connected(&self) {
        add(&self.connections, 1);
    }

    pub(super) fn disconnected(&self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// A client went away before its answer was whole.
    pub(super) fn cancelled(&self) {
        add(&self.cancelled, 1);
    }

    pub(super) fn device_error(&self) {
        add(&self.device_errors, 1);
    }

    pub(super) fn reloaded(&self) {
        add(&self.reloads, 1);
    }

    /// An answer ended.
    pub(super) fn answered(&self, ended: &Ended) {
        add(&self.prompt_tokens, ended.prompt_tokens as u64);
        add(&self.reused_tokens, ended.reused_tokens as u64);
        add(&self.image_tokens, ended.image_tokens as u64);
        add(&self.tokens, ended.tokens as u64);
        add(&self.commands, ended.commands);
        add(&self.npu_wait_micros, ended.npu_wait.as_micros() as u64);
        self.waited.observe(ended.queue);
        if ended.tokens > 0 {
            self.first_token.observe(ended.first);
        }
        if let Some(step) = ended.decode.checked_div(ended.steps as u32) {
            self.a_token.observe(step);
        }
        self.whole.observe(ended.queue + ended.vision + ended.prefill + ended.decode);
    }

    pub(super) fn sessions(&self, count: usize, bytes: usize) {
        self.sessions.store(count as u64, Ordering::Relaxed);
        self.session_bytes.store(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn device(&self, sample: Sample) {
        *self.device.lock().unwrap_or_else(PoisonError::into_inner) = sample;
    }

    /// All of it.
    pub(super) fn text(&self, now: &Now) -> String {
        let mut page = Page(String::new());
        page.head("requests_total", "counter", "Requests by route and status.");
        for ((route, status), count) in self.requests.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            page.value("requests_total", &format!("{{route=\"{route}\",status=\"{status}\"}}"), count);
        }
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        page.one("up", "gauge", "1 if the model is loaded and the device has not failed.", u8::from(now.up));
        page.one("uptime_seconds", "gauge", "Time since the start.", now.uptime.as_secs_f64());
        page.one("connections", "gauge", "Open connections.", load(&self.connections));
        page.one("queue_waiting", "gauge", "Requests that wait.", now.waiting);
        page.one("queue_limit", "gauge", "Requests that may wait.", now.queue_limit);
        page.one("running", "gauge", "Requests that are being answered.", now.running);
        for (name, help, counter) in [
            ("cancelled_total", "Requests whose client went away.", &self.cancelled),
            ("prompt_tokens_total", "Tokens of prompts.", &self.prompt_tokens),
            ("prompt_tokens_reused_total", "Those that did not have to be read again.", &self.reused_tokens),
            ("image_tokens_total", "Tokens of prompts that stand for pictures.", &self.image_tokens),
            ("tokens_total", "Tokens of answers.", &self.tokens),
            ("npu_commands_total", "Commands submitted to the NPU for answers.", &self.commands),
            ("device_errors_total", "Answers that a failure of the device has ended.", &self.device_errors),
            ("reloads_total", "Times that the model was loaded again.", &self.reloads),
        ] {
            page.one(name, "counter", help, load(counter));
        }
        let waited = load(&self.npu_wait_micros) as f64 / 1e6;
        page.one("npu_wait_seconds_total", "counter", "Time in which answers waited for the NPU.", waited);
        page.histogram("queue_seconds", "Time from a request to the beginning of its answer.", &self.waited);
        page.histogram("first_token_seconds", "Time from a request to its first token.", &self.first_token);
        page.histogram("token_seconds", "Time of a token, the average of each answer.", &self.a_token);
        page.histogram("answer_seconds", "Time from a request to the end of its answer.", &self.whole);
        page.one("sessions", "gauge", "Conversations that are kept.", load(&self.sessions));
        page.one("session_bytes", "gauge", "Memory that they take.", load(&self.session_bytes));
        if let Some(bytes) = resident() {
            page.one("resident_bytes", "gauge", "Memory of this process.", bytes);
        }
        self.device.lock().unwrap_or_else(PoisonError::into_inner).write(&mut page);
        page.0
    }
}

/// A page that is being written.
#[derive(Debug)]
pub(super) struct Page(String);

impl Page {
    pub(super) fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = write!(self.0, "# HELP qwen35_{name} {help}\n# TYPE qwen35_{name} {kind}\n");
    }

    pub(super) fn value(&mut self, name: &str, labels: &str, value: impl Display) {
        let _ = writeln!(self.0, "qwen35_{name}{labels} {value}");
    }

    pub(super) fn one(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.head(name, kind, help);
        self.value(name, "", value);
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.head(name, "histogram", help);
        let mut below = 0;
        for (bound, count) in BOUNDS.iter().zip(&histogram.counts) {
            below += count.load(Ordering::Relaxed);
            self.value(&format!("{name}_bucket"), &format!("{{le=\"{bound}\"}}"), below);
        }
        let all = histogram.all.load(Ordering::Relaxed);
        self.value(&format!("{name}_bucket"), "{le=\"+Inf\"}", all);
        self.value(&format!("{name}_sum"), "", histogram.micros.load(Ordering::Relaxed) as f64 / 1e6);
        self.value(&format!("{name}_count"), "", all);
    }
}

/// Bytes of memory that this process has.
fn resident() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

#[cfg(test)]
pub(super) fn page_of(write: impl FnOnce(&mut Page)) -> String {
    let mut page = Page(String::new());
    write(&mut page);
    page.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_in_the_text_format() {
        let metrics = Metrics::default();
        metrics.request("/v1/models", 200);
        metrics.request("/v1/models", 200);
        metrics.waited.observe(Duration::from_millis(3));
        metrics.waited.observe(Duration::from_secs(1000));
        let now = Now { up: true, waiting: 1, queue_limit: 2, running: 1, uptime: Duration::from_secs(1) };
        let text = metrics.text(&now);
        for line in [
            "qwen35_requests_total{route=\"/v1/models\",status=\"200\"} 2",
            "qwen35_queue_seconds_bucket{le=\"0.0025\"} 0",
            "qwen35_queue_seconds_bucket{le=\"0.005\"} 1",
            "qwen35_queue_seconds_bucket{le=\"600\"} 1",
            "qwen35_queue_seconds_bucket{le=\"+Inf\"} 2",
            "qwen35_queue_seconds_sum 1000.003",
            "qwen35_queue_seconds_count 2",
            "qwen35_up 1",
            "# TYPE qwen35_tokens_total counter",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        let named: Vec<&str> = text.lines().filter(|line| line.starts_with("# TYPE")).collect();
        let once: std::collections::BTreeSet<&str> = named.iter().copied().collect();
        assert_eq!(named.len(), once.len(), "each metric once");
        assert!(text.contains("qwen35_resident_bytes"));
    }
}
