//! Lines about what happened, on standard error: for people or for programs, and never too many.

use super::options::LogFormat;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Lines of one event in a second; what is beyond is counted.
const A_SECOND: u32 = 20;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    Info,
    Warn,
    Error,
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }
}

/// Where lines go. What people say to the model is never among them.
#[derive(Debug)]
pub(super) struct Log {
    format: LogFormat,
    events: Mutex<BTreeMap<&'static str, Bucket>>,
}

#[derive(Debug)]
struct Bucket {
    since: Instant,
    lines: u32,
    suppressed: u64,
}

impl Log {
    pub(super) fn new(format: LogFormat) -> Log {
        Log { format, events: Mutex::default() }
    }

    pub(super) fn info(&self, event: &'static str, fields: &[(&str, Value)]) {
        self.line(Level::Info, event, fields);
    }

    pub(super) fn warn(&self, event: &'static str, fields: &[(&str, Value)]) {
        self.line(Level::Warn, event, fields);
    }

    pub(super) fn error(&self, event: &'static str, fields: &[(&str, Value)]) {
        self.line(Level::Error, event, fields);
    }

    fn line(&self, level: Level, event: &'static str, fields: &[(&str, Value)]) {
        let Some(suppressed) = self.admit(event, Instant::now()) else { return };
        let line = render(self.format, &now(), level, event, fields, suppressed);
        // Nobody listening there is no reason to stop.
        let _ = std::io::stderr().lock().write_all(line.as_bytes());
    }

    /// How many lines of this event were left out before this one; nothing if this one is, too.
    fn admit(&self, event: &'static str, now: Instant) -> Option<u64> {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let bucket = events.entry(event).or_insert(Bucket { since: now, lines: 0, suppressed: 0 });
        if now.saturating_duration_since(bucket.since).as_secs() >= 1 {
            (bucket.since, bucket.lines) = (now, 0);
        }
        if bucket.lines >= A_SECOND {
            bucket.suppressed += 1;
            return None;
        }
        bucket.lines += 1;
        Some(std::mem::take(&mut bucket.suppressed))
    }
}

fn render(
    format: LogFormat,
    time: &str,
    level: Level,
    event: &str,
    fields: &[(&str, Value)],
    suppressed: u64,
) -> String {
    let more = (suppressed > 0).then(|| ("suppressed", Value::from(suppressed)));
    let fields = fields.iter().cloned().chain(more);
    match format {
        LogFormat::Json => {
            let mut line = Map::new();
            line.insert("time".into(), time.into());
            line.insert("level".into(), level.name().into());
            line.insert("event".into(), event.into());
            line.extend(fields.map(|(name, value)| (name.to_owned(), value)));
            format!("{}\n", Value::Object(line))
        }
        LogFormat::Text => {
            let mut line = format!("{time} {:5} {event}", level.name());
            for (name, value) in fields {
                let plain = value.as_str().filter(|text| {
                    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"=".contains(&byte))
                });
                let _ = match plain {
                    Some(text) => write!(line, " {name}={text}"),
                    // JSON's quotes keep a line one line, whatever is in it.
                    None => write!(line, " {name}={value}"),
                };
            }
            line.push('\n');
            line
        }
    }
}

/// Now, as RFC 3339 has it, in UTC.
fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    stamp(since.as_secs(), since.subsec_millis())
}

fn stamp(seconds: u64, millis: u32) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years that begin in March have their leap day at the end; 400 of them are 146 097 days.
    let shifted = days + 719_468;
    let (era, day) = (shifted / 146_097, shifted % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hours, minutes, seconds) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{date:02}T{hours:02}:{minutes:02}:{seconds:02}.{millis:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::time::Duration;

    /// From `date -u -d @N`.
    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399, "2000-02-28T23:59:59.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (1_709_251_199, "2024-02-29T23:59:59.000Z"),
            (1_735_689_599, "2024-12-31T23:59:59.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(stamp(seconds, 0), text);
        }
    }

    #[test]
    fn a_line_is_a_line_in_both_formats() {
        let fields = [("status", json!(200)), ("path", json!("/v1/models")), ("why", json!("two\nlines = one"))];
        let text = render(LogFormat::Text, "T", Level::Warn, "answered", &fields, 3);
        assert_eq!(text, "T warn  answered status=200 path=/v1/models why=\"two\\nlines = one\" suppressed=3\n");
        let json = render(LogFormat::Json, "T", Level::Info, "answered", &fields, 0);
        let wanted = json!({"time": "T", "level": "info", "event": "answered", "status": 200, "path": "/v1/models",
            "why": "two\nlines = one"});
        assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), wanted);
    }

    #[test]
    fn too_many_lines_are_counted_instead() {
        let (log, start) = (Log::new(LogFormat::Text), Instant::now());
        for _ in 0..A_SECOND {
            assert_eq!(log.admit("x", start), Some(0));
        }
        assert_eq!(log.admit("x", start), None);
        assert_eq!(log.admit("x", start), None);
        assert_eq!(log.admit("y", start), Some(0), "each event has its own");
        assert_eq!(log.admit("x", start + Duration::from_secs(1)), Some(2));
        assert_eq!(log.admit("x", start + Duration::from_secs(1)), Some(0));
    }
}
