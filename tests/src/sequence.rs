//! What a client asks of the driver, boiled down from its trace to facts that two clients can be compared by.
//!
//! The witness is the runtime `taconite`, whose sequence of requests is known to work on hardware. Handles and
//! addresses differ from run to run and are told as what they stand for.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use npu_model::trace::{Fields, Record, Trace};
use npu_model::{Config, Model};
use runtime::bundle::Bundle;
use runtime::npu::Npu;
use runtime::{Chat, LoadOptions, Turn};
use serde_json::Value;

/// What both clients are asked.
pub const PROMPT: &str = "Hi";
/// How many tokens they answer: the one that the prompt gives, and one more.
pub const NEW_TOKENS: usize = 2;

/// What this runtime does with a bundle of our own kernels, [`PROMPT`] and [`NEW_TOKENS`], with default settings
/// but for the wait.
///
/// # Errors
/// What the runtime said.
pub fn own_trace(bundle: &Path) -> Result<Vec<Record>, String> {
    let trace = Trace::in_memory();
    let model = Model::new(Config::default());
    let said = |error: &dyn std::fmt::Display| error.to_string();
    let npu = Npu::open(&trace.opener(&*model), Path::new("/dev/accel/accel0")).map_err(|error| said(&error))?;
    let bundle = Bundle::open(bundle).map_err(|error| said(&error))?;
    // Every wait asks the driver, so that the trace does not depend on the machine. The trial has commands of its own.
    let options = LoadOptions { vision: false, spin: Duration::ZERO, trial: false, ..LoadOptions::default() };
    let mut chat = Chat::load(bundle, npu, options, &mut |_| {}).map_err(|error| said(&error))?;
    let turn = Turn { system: None, images: &[], text: PROMPT, thinking: false, max_new: NEW_TOKENS };
    chat.turn(&turn, &mut |_| ControlFlow::Continue(())).map_err(|error| said(&error))?;
    drop(chat);
    Ok(trace.records())
}

/// Subjects in which this runtime differs from the witness on purpose, and why.
pub const INTENDED: &[(&str, &str)] = &[
    (
        "start",
        "VERSION tells that the node is amdxdna's and which minor version it is, GET_CAP that it has timelines: both are \
         answered by the DRM core of every kernel that has the driver, and give a clear error on every other",
    ),
    (
        "GEM_CLOSE.request",
        "the kernel's header says _IOW, the witness asks with _IOWR; the DRM core looks at the number alone",
    ),
    (
        "SHARE.steps",
        "a buffer's address is asked for again once it is mapped, since only then it has one where user addresses are \
         the device's; the witness takes its mapping's address for granted, which is wrong in IOVA mode",
    ),
    ("CMD.steps", "as for SHARE"),
    (
        "CMD.count",
        "each command has its own packet, written once: the witness rewrites one packet a kernel, which a command in \
         flight would not survive",
    ),
    (
        "SHARE.sizes",
        "of a token, the witness has one result buffer for each length, ours one for each result, since commands that \
         write them may be in flight together; the witness's buffer of what `down` reads is a row longer",
    ),
    ("head and token.flow", "as for SHARE.sizes"),
    ("A.sizes", "the row more of what `down` reads: no stream gets to it, which is checked when a bundle is opened"),
    (
        "waits",
        "parts of a projection that do not depend on each other go out together, up to four a context, which is what the \
         driver takes without blocking; one wait covers them",
    ),
    (
        "GET_ARRAY",
        "the array's last error is asked for before and after a turn: no command fails of it, so the \
         witness does not hear of it",
    ),
    ("end", "contexts go first, and their syncobjs are closed rather than left to the end of the file"),
];

/// The subject and the two values that differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// What it is about.
    pub subject: String,
    /// What we do.
    pub ours: String,
    /// What the witness does.
    pub witness: String,
}

impl Difference {
    /// Why it is meant to be so; `None` if it is not.
    #[must_use]
    pub fn reason(&self) -> Option<&'static str> {
        INTENDED.iter().find(|(subject, _)| *subject == self.subject).map(|(_, reason)| *reason)
    }
}

/// Facts by subject.
pub type Facts = BTreeMap<String, String>;

/// All subjects in which two clients differ.
#[must_use]
pub fn compare(ours: &Facts, witness: &Facts) -> Vec<Difference> {
    let subjects: BTreeSet<&String> = ours.keys().chain(witness.keys()).collect();
    let value = |facts: &Facts, subject| facts.get(subject).cloned().unwrap_or_else(|| "(nothing)".into());
    subjects
        .into_iter()
        .filter(|subject| ours.get(*subject) != witness.get(*subject))
        .map(|subject| Difference {
            subject: subject.clone(),
            ours: value(ours, subject),
            witness: value(witness, subject),
        })
        .collect()
}

/// A buffer.
struct Buffer {
    kind: &'static str,
    size: u64,
    steps: String,
    offset: Option<String>,
}

/// A command.
struct Dispatch {
    context: usize,
    stream: String,
    /// What it reads: buffers numbered by argument.
    places: String,
    /// From which buffer to which, numbered together.
    flow: String,
}

/// Stands for all arguments.
const ALL: usize = usize::MAX;
/// Which argument a kernel writes: A, B, C.
const RESULT: usize = 2;

/// Reads facts out of a trace, one call after another.
#[derive(Default)]
struct Reader {
    buffers: BTreeMap<u64, Buffer>,
    /// What has been said of a subject, each once.
    said: BTreeMap<String, BTreeSet<String>>,
    contexts: Vec<u64>,
    dispatches: Vec<Dispatch>,
    in_flight: usize,
    most_in_flight: usize,
    ends: Vec<String>,
    /// Handle and size of the buffers of commands, in the order of first use: by argument, and of [`ALL`].
    used: BTreeMap<usize, Vec<(u64, u64)>>,
    devs: Vec<u64>,
    shares: Vec<u64>,
    commands: Vec<u64>,
    heap_handle: Option<u64>,
    start: Vec<String>,
    last_context: Option<usize>,
}

/// The facts of a trace of one bundle's load, one prompt and one more token, through one file from open to close. With
/// `streams` it is part of them which instruction streams run, which says the same only for one and the same bundle.
#[must_use]
pub fn facts(records: &[Record], streams: bool) -> Facts {
    let mut reader = Reader::default();
    for record in records {
        reader.read(record);
    }
    reader.finish(streams)
}

fn int(fields: &Fields, name: &str) -> u64 {
    fields.get(name).and_then(Value::as_u64).unwrap_or(u64::MAX)
}

/// Fields in the order of their names, without some: a trace that was read has another order than one just made.
fn fields(fields: &Fields, without: &[&str]) -> String {
    let mut fields = Value::Object(fields.clone());
    fields.sort_all_objects();
    let shown = fields.as_object().into_iter().flatten().filter(|(name, _)| !without.contains(&name.as_str()));
    shown.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}

impl Reader {
    fn say(&mut self, subject: &str, what: impl Into<String>) {
        self.said.entry(subject.into()).or_default().insert(what.into());
    }

    fn step(&mut self, handle: u64, step: &str) {
        if let Some(buffer) = self.buffers.get_mut(&handle) {
            buffer.steps = format!("{} {step}", buffer.steps);
        }
    }

    fn read(&mut self, record: &Record) {
        let (input, output) = (&record.input, &record.output);
        if let Some(errno) = &record.errno {
            self.say("errors", format!("{} {errno}", record.call));
            return;
        }
        if let Some(request) = input.get("request") {
            self.say(&format!("{}.request", record.call), request.to_string());
        }
        match record.call.as_str() {
            "open" => self.say("open", fields(input, &["path"])),
            "CREATE_BO" => self.create_bo(input, output),
            "GET_BO_INFO" => {
                let handle = int(input, "handle");
                self.say("GET_BO_INFO", fields(input, &["handle"]));
                if let Some(buffer) = self.buffers.get_mut(&handle) {
                    buffer.offset = output.get("map_offset").and_then(Value::as_str).map(str::to_owned);
                }
                self.step(handle, "GET_BO_INFO");
            }
            "mmap" => self.mmap(input),
            "CREATE_HWCTX" => {
                self.last_context = Some(self.contexts.len());
                self.contexts.push(int(output, "handle"));
                self.say("CREATE_HWCTX", fields(input, &["qos"]));
                let qos = input.get("qos").and_then(Value::as_object).cloned().unwrap_or_default();
                // Of the first kernel that the runtime thinks of, which is another from run to run of the witness.
                self.say("CREATE_HWCTX.qos", fields(&qos, &["gops"]));
            }
            "CONFIG_HWCTX" => self.config_hwctx(input),
            "EXEC_CMD" => self.exec(input, output),
            "SYNCOBJ_TIMELINE_WAIT" => {
                let timeout = input.get("timeout_in_us").and_then(Value::as_i64).unwrap_or(0);
                let varying = ["timeout_nsec", "timeout_in_us", "handles", "points", "request"];
                self.say("SYNCOBJ_TIMELINE_WAIT", fields(input, &varying));
                // The call is made some microseconds after its deadline was reckoned.
                self.say("SYNCOBJ_TIMELINE_WAIT.timeout", format!("{} s", (timeout + 500_000) / 1_000_000));
                self.in_flight = 0;
            }
            "munmap" => {}
            "GEM_CLOSE" | "DESTROY_HWCTX" | "SYNCOBJ_DESTROY" | "close" if !self.dispatches.is_empty() => {
                let kind = match record.call.as_str() {
                    "GEM_CLOSE" => self.buffers.get(&int(input, "handle")).map_or("unknown", |buffer| buffer.kind),
                    _ => "",
                };
                let end = format!("{} {kind}", record.call).trim_end().to_owned();
                if self.ends.last() != Some(&end) {
                    self.ends.push(end);
                }
            }
            call if self.heap_handle.is_none() => self.start.push(call.to_owned()),
            call => self.say(call, fields(input, &["handle", "request"])),
        }
    }

    fn create_bo(&mut self, input: &Fields, output: &Fields) {
        let (handle, size) = (int(output, "handle"), int(input, "size"));
        let kind = match int(input, "type") {
            1 => "SHARE",
            2 => "DEV_HEAP",
            3 => "DEV",
            4 => "CMD",
            _ => "unknown",
        };
        self.say("CREATE_BO", fields(input, &["size", "type"]));
        match kind {
            "SHARE" => self.shares.push(size),
            "DEV" => self.devs.push(size),
            "CMD" => self.commands.push(size),
            _ => {
                self.heap_handle = Some(handle);
                self.say("DEV_HEAP.size", size.to_string());
            }
        }
        self.buffers.insert(handle, Buffer { kind, size, steps: "CREATE_BO".into(), offset: None });
    }

    fn mmap(&mut self, input: &Fields) {
        let offset = input.get("offset").and_then(Value::as_str).unwrap_or("");
        let found = self.buffers.iter().find(|(_, buffer)| buffer.offset.as_deref() == Some(offset));
        let Some((&handle, buffer)) = found else { return self.say("mmap", "of no buffer") };
        // The kernel counts in pages.
        let whole = buffer.size.next_multiple_of(4096) == int(input, "len").next_multiple_of(4096);
        let kind = buffer.kind;
        self.say(&format!("{kind}.mmap"), format!("{} whole={whole}", fields(input, &["offset", "len"])));
        self.step(handle, "mmap");
    }

    fn config_hwctx(&mut self, input: &Fields) {
        self.say("CONFIG_HWCTX", fields(input, &["handle", "cus"]));
        let cus = input.get("cus").and_then(Value::as_array).cloned().unwrap_or_default();
        for cu in cus {
            let bo = cu["cu_bo"].as_u64().and_then(|handle| self.buffers.get(&handle));
            let (kind, size) = bo.map_or(("unknown", 0), |bo| (bo.kind, bo.size));
            let index = self.last_context.unwrap_or(usize::MAX);
            self.say(&format!("context {index}.cu"), format!("{kind} of {size} bytes, cu_func={}", cu["cu_func"]));
        }
    }

    /// A place of a packet, as the kind of its buffer, its number in the order of first use (as that argument), and how
    /// far in.
    fn place(&mut self, argument: usize, place: &Value) -> String {
        let found = place["bo"].as_u64().and_then(|handle| Some((handle, self.buffers.get(&handle)?)));
        let Some((handle, buffer)) = found else { return place["addr"].as_str().unwrap_or("?").to_owned() };
        let used = self.used.entry(argument).or_default();
        let number = used.iter().position(|(used, _)| *used == handle).unwrap_or_else(|| {
            used.push((handle, buffer.size));
            used.len() - 1
        });
        format!("{}#{number}+{}", buffer.kind, place["offset"])
    }

    fn exec(&mut self, input: &Fields, output: &Fields) {
        let varying = ["args", "packet", "cmd_handles", "hwctx"];
        self.say("EXEC_CMD", fields(input, &varying));
        let packet = &input["packet"];
        let kernel = &packet["kernel"];
        let context = self.contexts.iter().position(|&handle| handle == int(input, "hwctx")).unwrap_or(usize::MAX);
        let before = self.dispatches.iter().filter(|dispatch| dispatch.context == context).count();
        self.say("EXEC_CMD.seq", if int(output, "seq") == before as u64 { "from 0" } else { "not in order" });
        let shown = ["header", "words", "opcode", "cu"].map(|name| format!("{name}={}", packet[name]));
        self.say("packet", shown.join(" "));
        let buffers = kernel["buffers"].as_array().cloned().unwrap_or_default();
        let used: Vec<&Value> = buffers.iter().filter(|place| place["addr"] != "0x0").collect();
        let first = &kernel["instructions"];
        let named: Vec<&Value> = std::iter::once(first).chain(used.iter().copied()).map(|place| &place["bo"]).collect();
        let args: Vec<&Value> = input["args"].as_array().into_iter().flatten().collect();
        self.say("EXEC_CMD.args", if args == named { "the packet's buffers, in order" } else { "others" });
        let stream = first["bo"].as_u64().and_then(|handle| self.buffers.get(&handle));
        let whole = stream.is_some_and(|bo| Some(bo.size) == kernel["instruction_bytes"].as_u64());
        let start = first["offset"] == 0;
        self.say("packet.instructions", format!("whole buffer, in bytes: {}", whole && start));
        let command = self.buffers.get(&int(input, "cmd_handles")).map_or("unknown", |bo| bo.kind);
        self.say("EXEC_CMD.cmd_handles", command);
        let read = used.iter().take(RESULT).enumerate();
        let places: Vec<String> = read.map(|(argument, place)| self.place(argument, place)).collect();
        let ends = [used.first(), used.get(RESULT)].into_iter().flatten();
        let flow: Vec<String> = ends.map(|place| self.place(ALL, place)).collect();
        let stream = kernel["stream"].as_str().unwrap_or("?").to_owned();
        let (places, flow) = (places.join(" "), flow.join(" -> "));
        self.dispatches.push(Dispatch { context, stream, places, flow });
        self.in_flight += 1;
        self.most_in_flight = self.most_in_flight.max(self.in_flight);
    }

    fn finish(mut self, streams: bool) -> Facts {
        for kind in ["DEV_HEAP", "DEV", "SHARE", "CMD"] {
            let steps: Vec<String> =
                self.buffers.values().filter(|buffer| buffer.kind == kind).map(|buffer| buffer.steps.clone()).collect();
            for steps in steps {
                self.say(&format!("{kind}.steps"), steps);
            }
        }
        // Kernels are told by the order in which they are first used.
        let mut kernels: Vec<&str> = Vec::new();
        let mut lines: Vec<(usize, String)> = Vec::new();
        for dispatch in &self.dispatches {
            let known = kernels.iter().position(|stream| *stream == dispatch.stream);
            let kernel = known.unwrap_or_else(|| {
                kernels.push(&dispatch.stream);
                kernels.len() - 1
            });
            lines.push((dispatch.context, format!("context {} kernel {kernel} {}", dispatch.context, dispatch.places)));
        }
        // A prompt ends with the head, which is the first that another context than the prompt's runs.
        let first = lines.first().map_or(0, |(context, _)| *context);
        let layers = lines.iter().rposition(|(context, _)| *context == first).map_or(0, |last| last + 1);
        let text =
            |lines: &[(usize, String)]| lines.iter().map(|(_, line)| line.as_str()).collect::<Vec<_>>().join("\n");
        let mut out: Facts = self
            .said
            .iter()
            .map(|(subject, said)| (subject.clone(), said.iter().map(String::as_str).collect::<Vec<_>>().join("; ")))
            .collect();
        out.insert("prompt".into(), text(&lines[..layers]));
        out.insert("head and token".into(), text(&lines[layers..]));
        let flow =
            |part: &[Dispatch]| part.iter().map(|dispatch| dispatch.flow.as_str()).collect::<Vec<_>>().join("\n");
        out.insert("prompt.flow".into(), flow(&self.dispatches[..layers]));
        out.insert("head and token.flow".into(), flow(&self.dispatches[layers..]));
        if streams {
            out.insert("kernels".into(), kernels.join(" "));
        }
        out.insert("start".into(), self.start.join(" "));
        out.insert("contexts".into(), self.contexts.len().to_string());
        let waits = if self.most_in_flight == 1 { "after each command" } else { "after several commands" };
        out.insert("waits".into(), waits.into());
        out.insert("end".into(), self.ends.join(", "));
        let sorted = |mut sizes: Vec<u64>| {
            sizes.sort_unstable();
            sizes.iter().map(u64::to_string).collect::<Vec<_>>().join(" ")
        };
        out.insert("DEV.sizes".into(), sorted(std::mem::take(&mut self.devs)));
        out.insert("SHARE.sizes".into(), sorted(std::mem::take(&mut self.shares)));
        out.insert("CMD.count".into(), self.commands.len().to_string());
        for size in &self.commands {
            out.insert("CMD.size".into(), size.to_string());
        }
        for (argument, name) in ["A", "B"].iter().enumerate() {
            let used = self.used.get(&argument).into_iter().flatten();
            let sizes: Vec<String> = used.map(|(_, size)| size.to_string()).collect();
            out.insert(format!("{name}.sizes"), sizes.join(" "));
        }
        out
    }
}
