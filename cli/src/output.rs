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
}

/// Often enough to look alive.
const INTERVAL: Duration = Duration::from_millis(100);
const CLEAR: &str = "\r\x1b[K";

impl ProgressLine {
    pub(crate) fn new() -> Self {
        let terminal = std::io::stderr().is_terminal();
        Self { shown: false, terminal, last: None }
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

    pub(crate) fn clear(&mut self) {
        if self.shown {
            let _ = write!(std::io::stderr().lock(), "{CLEAR}");
            self.shown = false;
        }
        self.last = None;
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.clear();
    }
}
