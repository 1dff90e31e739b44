//! What happened when: the host's stages and the NPU's commands, as Chrome's trace events, which Perfetto opens.
//!
//! A command is shown from its submission to when the host saw that it had ended: the time in between is not the NPU's
//! alone, it may have waited for those before it.

use std::io::{self, Write};
use std::time::Instant;

use super::profile::{Projection, Stage};

/// What an event is.
#[derive(Clone, Copy, Debug)]
enum What {
    Stage(Stage),
    /// A command; those in flight overlap, so each has a number.
    Command(Projection, u32),
}

/// Nanoseconds since the trace began.
#[derive(Clone, Copy, Debug)]
struct Event {
    what: What,
    layer: u16,
    start: u64,
    end: u64,
}

/// A record of a bounded number of events. What comes after the last is counted, not kept.
#[derive(Debug)]
pub struct Trace {
    began: Instant,
    events: Vec<Event>,
    capacity: usize,
    lost: u64,
    commands: u32,
}

impl Trace {
    /// No events yet, room for so many (32 bytes each).
    #[must_use]
    pub fn new(capacity: usize) -> Trace {
        Trace { began: Instant::now(), events: Vec::with_capacity(capacity), capacity, lost: 0, commands: 0 }
    }

    /// Events that are kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether nothing has happened.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Events there was no room for.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }

    pub(super) fn stage(&mut self, stage: Stage, layer: usize, start: Instant, end: Instant) {
        self.push(What::Stage(stage), layer, start, end);
    }

    pub(super) fn command(&mut self, projection: Projection, layer: usize, start: Instant, end: Instant) {
        self.commands = self.commands.wrapping_add(1);
        self.push(What::Command(projection, self.commands), layer, start, end);
    }

    fn push(&mut self, what: What, layer: usize, start: Instant, end: Instant) {
        if self.events.len() == self.capacity {
            self.lost += 1;
            return;
        }
        let ns = |at: Instant| u64::try_from(at.saturating_duration_since(self.began).as_nanos()).unwrap_or(u64::MAX);
        let layer = u16::try_from(layer).unwrap_or(u16::MAX);
        self.events.push(Event { what, layer, start: ns(start), end: ns(end) });
    }

    /// Writes the JSON: one process, the host's stages on one track, commands as asynchronous events of another.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        const HOST: u32 = 1;
        const NPU: u32 = 2;
        writeln!(out, "{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[")?;
        for (tid, name) in [(HOST, "host"), (NPU, "NPU commands")] {
            writeln!(
                out,
                "{{\"ph\":\"M\",\"pid\":1,\"tid\":{tid},\"name\":\"thread_name\",\"args\":{{\"name\":\"{name}\"}}}},"
            )?;
        }
        for Event { what, layer, start, end } in &self.events {
            // Microseconds, to the nanosecond.
            let us = |ns: u64| format!("{}.{:03}", ns / 1000, ns % 1000);
            let (from, to) = (us(*start), us(*end));
            match what {
                What::Stage(stage) => writeln!(
                    out,
                    "{{\"ph\":\"X\",\"pid\":1,\"tid\":{HOST},\"cat\":\"host\",\"name\":\"{}\",\"ts\":{from},\"dur\":{},\
                     \"args\":{{\"layer\":{layer}}}}},",
                    stage.name(),
                    us(end - start),
                )?,
                What::Command(projection, id) => {
                    let name = projection.name();
                    let head = format!(
                        "\"pid\":1,\"tid\":{NPU},\"cat\":\"npu\",\"id\":{id},\"name\":\"{name}\",\
                         \"args\":{{\"layer\":{layer}}}"
                    );
                    writeln!(out, "{{\"ph\":\"b\",\"ts\":{from},{head}}},\n{{\"ph\":\"e\",\"ts\":{to},{head}}},")?;
                }
            }
        }
        // The list ends with an event of its own, so that every other line ends with a comma.
        writeln!(
            out,
            "{{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\",\"args\":{{\"name\":\"qwen35-direct\",\"lost\":{}}}}}\n]}}",
            self.lost
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn it_is_json_and_its_memory_is_bounded() {
        let mut trace = Trace::new(2);
        let at = |us| trace_start(&trace) + Duration::from_micros(us);
        let (a, b, c) = (at(1), at(5), at(7));
        trace.stage(Stage::DeltaNet, 3, a, b);
        trace.command(Projection::Down, 3, a, c);
        trace.stage(Stage::Norm, 4, b, c);
        assert_eq!((trace.len(), trace.lost()), (2, 1));
        let mut json = Vec::new();
        trace.write(&mut json).unwrap();
        let value: serde_json::Value = serde_json::from_slice(&json).unwrap();
        let events = value["traceEvents"].as_array().unwrap();
        let stage = events.iter().find(|e| e["name"] == "DeltaNet").unwrap();
        assert_eq!((&stage["ph"], &stage["ts"], &stage["dur"]), (&"X".into(), &1.0.into(), &4.0.into()));
        let of = |ph: &str| events.iter().find(|e| e["ph"] == ph).unwrap();
        assert_eq!((of("b")["id"].clone(), of("e")["ts"].clone()), (of("e")["id"].clone(), 7.0.into()));
        assert!(!events.iter().any(|e| e["name"] == "norm"));
    }

    fn trace_start(trace: &Trace) -> Instant {
        trace.began
    }
}
