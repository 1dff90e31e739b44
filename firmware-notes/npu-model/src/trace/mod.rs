//! A record of what a client asks of the driver: every call in order, its fields by name, what came back, when.
//!
//! [`Trace::opener`] wraps any [`Opener`], the kernel's as well as the model's; `supervise` records another process with
//! the same decoder. A record is one line of JSON:
//!
//! ```json
//! {"n":17,"file":1,"call":"EXEC_CMD","at_us":5120,"took_us":31,"errno":null,"in":{..},"out":{..}}
//! ```
//!
//! `n` counts calls in the order in which they were made, lines are written in the order in which calls returned.
//! `file` tells open files apart. `errno` is a name like `"EINVAL"`. `in` and `out` hold the argument's fields as the
//! kernel's header names them, reserved ones included; what a pointer leads to stands in the pointer's place. Addresses
//! are hexadecimal strings, all other numbers are numbers. An EXEC_CMD carries its packet, and where the packet is a
//! kernel of mlir-aie, the buffers that its addresses lie in and the SHA-256 of its instruction stream.
//! Waits have their absolute deadline, and how far off it was when they began (`timeout_in_us`).
//! `open`, `mmap`, `munmap` and `close` are calls like the ioctls. A field `request` in `in` is the request word, where it is
//! another than the kernel's header makes: the driver looks at its number alone.

mod decode;
#[allow(unsafe_code)]
mod door;
mod known;
mod packet;

use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use amdxdna_ioctl::{Door, Errno, Opener, errno_name};
use serde_json::{Map, Value, json};

pub use door::TracedDoor;

/// Fields by name.
pub type Fields = Map<String, Value>;

/// One call.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Position among all calls of the trace.
    pub number: u64,
    /// Which open file.
    pub file: u32,
    /// An ioctl's name in the kernel, `open`, `mmap`, `munmap`, `close`, or `ioctl 0x..` for a request that is none of
    /// this driver's.
    pub call: String,
    /// When, since the trace began.
    pub at: Duration,
    /// For how long.
    pub took: Duration,
    /// The errno that it ended with.
    pub errno: Option<String>,
    /// What was asked.
    pub input: Fields,
    /// What came back.
    pub output: Fields,
}

/// A line that is no record.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Not JSON.
    #[error("the trace's line {line} is not JSON: {source}")]
    Json {
        /// From 1.
        line: usize,
        /// What was wrong.
        source: serde_json::Error,
    },
    /// A field is missing or of another type.
    #[error("the trace's line {line} has no proper {field:?}")]
    Field {
        /// From 1.
        line: usize,
        /// Which field.
        field: &'static str,
    },
}

impl Record {
    /// The record as its line, without the line's end.
    #[must_use]
    pub fn to_line(&self) -> String {
        let mut line = String::new();
        // Writing to a string does not fail.
        let _ = write!(
            line,
            r#"{{"n":{},"file":{},"call":{},"at_us":{},"took_us":{},"errno":{},"in":{},"out":{}}}"#,
            self.number,
            self.file,
            json!(self.call),
            self.at.as_micros(),
            self.took.as_micros(),
            json!(self.errno),
            json!(self.input),
            json!(self.output),
        );
        line
    }

    /// Reads a line; `number` is what an error calls it.
    fn parse(line: &str, number: usize) -> Result<Self, RecordError> {
        let value: Value = serde_json::from_str(line).map_err(|source| RecordError::Json { line: number, source })?;
        let wrong = |field| RecordError::Field { line: number, field };
        let int = |field: &'static str| value[field].as_u64().ok_or_else(|| wrong(field));
        let fields = |field: &'static str| value[field].as_object().cloned().ok_or_else(|| wrong(field));
        Ok(Self {
            number: int("n")?,
            file: u32::try_from(int("file")?).map_err(|_| wrong("file"))?,
            call: value["call"].as_str().ok_or_else(|| wrong("call"))?.to_owned(),
            at: Duration::from_micros(int("at_us")?),
            took: Duration::from_micros(int("took_us")?),
            errno: match &value["errno"] {
                Value::Null => None,
                Value::String(name) => Some(name.clone()),
                _ => return Err(wrong("errno")),
            },
            input: fields("in")?,
            output: fields("out")?,
        })
    }

    /// Reads a trace, in the order of calls.
    ///
    /// # Errors
    /// The first line that is no record.
    pub fn parse_all(text: &str) -> Result<Vec<Self>, RecordError> {
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let mut records = lines.map(|(i, line)| Self::parse(line, i + 1)).collect::<Result<Vec<_>, _>>()?;
        records.sort_by_key(|record| record.number);
        Ok(records)
    }
}

enum Sink {
    Memory(Vec<Record>),
    Lines(Box<dyn Write + Send>),
}

impl std::fmt::Debug for Sink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Memory(_) => "Memory",
            Self::Lines(_) => "Lines",
        })
    }
}

/// A trace being recorded.
#[derive(Debug)]
pub struct Trace {
    start: Instant,
    calls: AtomicU64,
    files: AtomicU32,
    sink: Mutex<Sink>,
    /// The first error of writing.
    broken: Mutex<Option<io::Error>>,
}

/// A call that has been made and not come back yet.
#[derive(Debug)]
pub(crate) struct Started {
    number: u64,
    at: Duration,
}

impl Trace {
    fn new(sink: Sink) -> Arc<Self> {
        Arc::new(Self {
            start: Instant::now(),
            calls: AtomicU64::new(0),
            files: AtomicU32::new(0),
            sink: Mutex::new(sink),
            broken: Mutex::default(),
        })
    }

    /// A trace that is kept in memory.
    #[must_use]
    pub fn in_memory() -> Arc<Self> {
        Self::new(Sink::Memory(Vec::new()))
    }

    /// A trace that is written line by line.
    #[must_use]
    pub fn to_lines(lines: impl Write + Send + 'static) -> Arc<Self> {
        Self::new(Sink::Lines(Box::new(lines)))
    }

    /// What was recorded so far by a trace in memory, in the order of calls; nothing of any other.
    #[must_use]
    pub fn records(&self) -> Vec<Record> {
        let mut records = match &*self.sink.lock().unwrap_or_else(PoisonError::into_inner) {
            Sink::Memory(records) => records.clone(),
            Sink::Lines(_) => Vec::new(),
        };
        records.sort_by_key(|record| record.number);
        records
    }

    /// Writes out what may still be buffered.
    ///
    /// # Errors
    /// The first error of any write.
    pub fn finish(&self) -> io::Result<()> {
        let flushed = match &mut *self.sink.lock().unwrap_or_else(PoisonError::into_inner) {
            Sink::Memory(_) => Ok(()),
            Sink::Lines(lines) => lines.flush(),
        };
        match self.broken.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(error) => Err(error),
            None => flushed,
        }
    }

    /// Wraps a door that is open already.
    #[must_use]
    pub fn door(self: &Arc<Self>, inner: Arc<dyn Door>) -> Arc<TracedDoor> {
        let file = self.files.fetch_add(1, Ordering::Relaxed) + 1;
        Arc::new(TracedDoor::new(Arc::clone(self), file, inner))
    }

    /// Wraps an opener: everything that is opened with it is recorded.
    #[must_use]
    pub fn opener<'a>(self: &Arc<Self>, inner: &'a dyn Opener) -> TracedOpener<'a> {
        TracedOpener { trace: Arc::clone(self), inner }
    }

    /// A call begins.
    pub(crate) fn begin(&self) -> Started {
        Started { number: self.calls.fetch_add(1, Ordering::Relaxed), at: self.start.elapsed() }
    }

    /// A call has ended.
    pub(crate) fn end(
        &self,
        started: Started,
        file: u32,
        call: impl Into<String>,
        result: Result<(), Errno>,
        input: Fields,
        output: Fields,
    ) {
        let took = self.start.elapsed().saturating_sub(started.at);
        let errno = result.err().map(|errno| match errno_name(errno) {
            Some(name) => name.to_owned(),
            None => format!("errno {}", errno.raw_os_error()),
        });
        let Started { number, at } = started;
        let record = Record { number, file, call: call.into(), at, took, errno, input, output };
        let written = match &mut *self.sink.lock().unwrap_or_else(PoisonError::into_inner) {
            Sink::Memory(records) => {
                records.push(record);
                Ok(())
            }
            Sink::Lines(lines) => writeln!(lines, "{}", record.to_line()),
        };
        if let Err(error) = written {
            self.broken.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
    }
}

/// An opener whose doors record.
#[derive(Debug)]
pub struct TracedOpener<'a> {
    trace: Arc<Trace>,
    inner: &'a dyn Opener,
}

impl Opener for TracedOpener<'_> {
    fn open(&self, node: &Path) -> Result<Arc<dyn Door>, Errno> {
        let started = self.trace.begin();
        let opened = self.inner.open(node).map(|door| self.trace.door(door));
        let (file, result) = match &opened {
            Ok(door) => (door.file(), Ok(())),
            Err(errno) => (0, Err(*errno)),
        };
        let mut input = Fields::new();
        input.insert("path".into(), json!(node.display().to_string()));
        input.insert("flags".into(), json!("O_RDWR|O_CLOEXEC"));
        self.trace.end(started, file, "open", result, input, Fields::new());
        Ok(opened?)
    }
}

/// An address, as traces write it.
fn hex(value: u64) -> Value {
    json!(format!("{value:#x}"))
}

#[cfg(test)]
mod tests {
    use super::{Fields, Record, RecordError, Trace, json};
    use amdxdna_ioctl::Errno;
    use std::io::{self, Write};
    use std::sync::{Arc, Mutex};

    /// Lines that can be looked at, and a disk that is full after some bytes.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>, Option<usize>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut written = self.0.lock().unwrap();
            if self.1.is_some_and(|room| written.len() + bytes.len() > room) {
                return Err(io::ErrorKind::StorageFull.into());
            }
            written.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn two_calls(trace: &Trace) {
        let mut input = Fields::new();
        input.insert("point".into(), json!(u64::MAX));
        let (first, second) = (trace.begin(), trace.begin());
        trace.end(second, 2, "GEM_CLOSE", Err(Errno::INVAL), Fields::new(), Fields::new());
        trace.end(first, 1, "SYNCOBJ_TIMELINE_WAIT", Ok(()), input, Fields::new());
    }

    #[test]
    fn lines_are_read_as_they_were_written_in_the_order_of_calls() {
        let lines = Lines::default();
        let trace = Trace::to_lines(lines.clone());
        two_calls(&trace);
        trace.finish().unwrap();
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        assert!(text.starts_with(r#"{"n":1,"file":2,"call":"GEM_CLOSE","#), "in the order of return: {text}");
        let read = Record::parse_all(&text).unwrap();
        assert_eq!((read[0].call.as_str(), &read[0].input["point"]), ("SYNCOBJ_TIMELINE_WAIT", &json!(u64::MAX)));
        assert_eq!((read[1].number, read[1].errno.as_deref()), (1, Some("EINVAL")));
        let again: String = read.iter().map(|record| record.to_line() + "\n").collect();
        assert_eq!(Record::parse_all(&again).unwrap(), read);
    }

    #[test]
    fn a_line_that_is_no_record_is_named() {
        let good = r#"{"n":0,"file":1,"call":"open","at_us":1,"took_us":2,"errno":null,"in":{},"out":{}}"#;
        assert_eq!(Record::parse_all(&format!("{good}\n\n{good}\n")).unwrap().len(), 2);
        let bad = format!("{good}\n{}", good.replace("\"took_us\":2", "\"took_us\":-2"));
        let Err(RecordError::Field { line: 2, field: "took_us" }) = Record::parse_all(&bad) else { panic!("{bad}") };
        for end in 1..good.len() {
            assert!(Record::parse_all(&good[..end]).is_err(), "cut at {end}");
        }
        for missing in ["n", "file", "call", "at_us", "took_us", "in", "out"] {
            assert!(Record::parse_all(&good.replace(&format!("\"{missing}\":"), "\"x\":")).is_err(), "{missing}");
        }
    }

    #[test]
    fn a_full_disk_is_told_at_the_end() {
        let trace = Trace::to_lines(Lines(Arc::default(), Some(150)));
        two_calls(&trace);
        assert_eq!(trace.finish().unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}
