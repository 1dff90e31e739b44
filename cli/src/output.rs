//! What the program says, and where: answers on standard output, everything else on standard error.

use crate::error::{CliError, one_line};
use crate::help::NAME;
use std::io::{ErrorKind, IsTerminal, Write};
use std::time::{Duration, Instant};

/// Writes to standard output at once. The only place that meets a closed pipe.
pub(crate) fn answer(text: &str) -> Result<(), CliError> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => CliError::Closed,
        _ => CliError::Output(error),
    })
}

/// One line on standard error. Nobody listening there is no reason to stop.
pub(crate) fn note(text: &dyn std::fmt::Display) {
    let _ = writeln!(std::io::stderr().lock(), "{NAME}: {}", one_line(text));
}

/// Several lines on standard error, as they are.
pub(crate) fn table(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

/// A line on standard error that is rewritten as work goes on, where there is a terminal to see it.
#[derive(Debug)]
pub(crate) struct ProgressLine {
    shown: bool,
    terminal: bool,
    last: Option<Instant>,
    /// When bytes began to flow.
    began: Option<Instant>,
}

/// Often enough to look alive.
const INTERVAL: Duration = Duration::from_millis(100);
const CLEAR: &str = "\r\x1b[K";

impl ProgressLine {
    pub(crate) fn new() -> Self {
        // A terminal that cannot rewrite a line says so.
        let dumb = std::env::var_os("TERM").is_some_and(|kind| kind == "dumb");
        let terminal = std::io::stderr().is_terminal() && !dumb;
        Self { shown: false, terminal, last: None, began: None }
    }

    pub(crate) fn show(&mut self, text: impl FnOnce() -> String) {
        if !self.terminal || self.last.is_some_and(|last| last.elapsed() < INTERVAL) {
            return;
        }
        let _ = write!(std::io::stderr().lock(), "{CLEAR}{}", text());
        self.shown = true;
        self.last = Some(Instant::now());
    }

    /// `what  42 %`.
    pub(crate) fn share(&mut self, what: &str, done: u64, total: u64) {
        self.show(|| format!("{what} {:3} %", (100 * done).checked_div(total).unwrap_or(100)));
    }

    /// `what  42 %, 1.06 of 2.54 GB, 812 MB/s`.
    pub(crate) fn bytes(&mut self, what: &str, done: u64, total: u64) {
        let seconds = self.began.get_or_insert_with(Instant::now).elapsed().as_secs_f64();
        self.show(|| flow(what, done, total, seconds));
    }

    pub(crate) fn clear(&mut self) {
        if self.shown {
            let _ = write!(std::io::stderr().lock(), "{CLEAR}");
            self.shown = false;
        }
        (self.last, self.began) = (None, None);
    }
}

/// How much of how much, and how fast.
fn flow(what: &str, done: u64, total: u64, seconds: f64) -> String {
    let share = (100 * done).checked_div(total).unwrap_or(100);
    let [done, all] = [done, total].map(|bytes| bytes as f64 / 1e9);
    let rate = if seconds > 0.0 { format!(", {:.0} MB/s", done / seconds * 1e3) } else { String::new() };
    format!("{what} {share:3} %, {done:.2} of {all:.2} GB{rate}")
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::flow;

    #[test]
    fn bytes_flow() {
        let half = flow("loading weights", 1_250_000_000, 2_500_000_000, 2.0);
        assert_eq!(half, "loading weights  50 %, 1.25 of 2.50 GB, 625 MB/s");
        assert_eq!(flow("loading weights", 0, 0, 0.0), "loading weights 100 %, 0.00 of 0.00 GB");
    }
}
