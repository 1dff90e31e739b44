//! `cargo xtask load`: a server under clients that ask, go away, talk nonsense and read slowly, for a bounded number of
//! requests, on this machine alone. What has to hold at the end: every answer was right, nothing is stuck, and memory has
//! not grown.

pub(crate) mod client;
mod mix;

use crate::server::{Server, program};
use client::{metric, metrics};
use mix::{Known, Tally};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub(crate) const HELP: &str = "\
cargo xtask load [OPTION]...
  asks a server of the demo model on the software NPU: whole answers, streams, conversations, clients that go away in the
  queue and in mid answer, bad bodies, half bodies, slow readers; the mix depends on the seed alone
    --requests N   how many [10000]
    --clients N    at a time [16]
    --seed N       [1]
    --limit S      no new requests after S seconds [1200]
    --timing       the device computes nothing and takes as long as a real one: answers mean nothing, but are to be the same
    --program P    this program instead of a release build";

/// What is asked for.
#[derive(Debug, Clone)]
pub(crate) struct Load {
    pub(crate) requests: u64,
    pub(crate) clients: usize,
    pub(crate) seed: u64,
    pub(crate) limit: Duration,
    pub(crate) timing: bool,
    pub(crate) program: Option<PathBuf>,
}

impl Default for Load {
    fn default() -> Self {
        Load { requests: 10_000, clients: 16, seed: 1, limit: Duration::from_secs(1200), timing: false, program: None }
    }
}

/// Memory may grow by so much between a fifth of the requests and the end.
const SLACK: f64 = 48e6;

pub(crate) fn run(words: &[OsString]) -> Result<bool, String> {
    let mut load = Load::default();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if word == "--timing" {
            load.timing = true;
            continue;
        }
        let value = words.next().and_then(|value| value.to_str()).ok_or_else(|| format!("{word:?} wants a value"))?;
        let number = || value.parse::<u64>().map_err(|_| format!("{word:?} {value}: expected a number"));
        match word.to_str() {
            Some("--requests") => load.requests = number()?,
            Some("--clients") => load.clients = number()?.clamp(1, 200) as usize,
            Some("--seed") => load.seed = number()?,
            Some("--limit") => load.limit = Duration::from_secs(number()?),
            Some("--program") => load.program = Some(value.into()),
            _ => return Err(format!("unknown option {word:?}: see `cargo xtask load --help`")),
        }
    }
    let said = under(&load);
    crate::print(&match &said {
        Ok(report) => format!("{report}\nPASS\n"),
        Err(why) => format!("{why}\nFAIL\n"),
    });
    Ok(said.is_ok())
}

/// Runs the load. Gives a report, or what did not hold.
pub(crate) fn under(load: &Load) -> Result<String, String> {
    let root = crate::check::root();
    let built = match &load.program {
        Some(program) => program.clone(),
        None => program(&root)?,
    };
    // A queue shorter than there are clients, so that it is full now and then.
    let queue = (load.clients / 2).max(1).to_string();
    let more = ["--max-ctx", "1024", "--sessions", "4", "--queue", &queue, "--max-body", "1"];
    let timing = if load.timing { &["--device", "timing", "--max-new", "24"][..] } else { &["--device", "model"] };
    let server = Server::start(&built, &root.join("cli/demo/bundle"), &[&more[..], timing].concat())?;
    let known = Known::learn(&server.at)?;
    let (next, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let start = Instant::now();
    let mut memory = Vec::new();
    let mut tally = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..load.clients)
            .map(|_| {
                scope.spawn(|| {
                    let mut tally = Tally::default();
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= load.requests || start.elapsed() > load.limit || tally.wrong.len() > 5 {
                            return tally;
                        }
                        known.ask(&server.at, load.seed.wrapping_mul(0x9e37_79b9).wrapping_add(number), &mut tally);
                    }
                })
            })
            .collect();
        // Looked at from time to time.
        let watch = scope.spawn(|| {
            let mut seen = Vec::new();
            while !over.load(Ordering::Relaxed) {
                if let Ok(page) = metrics(&server.at) {
                    seen.push((next.load(Ordering::Relaxed), metric(&page, "qwen35_resident_bytes")));
                }
                std::thread::sleep(Duration::from_millis(500));
            }
            seen
        });
        let mut tally = Tally::default();
        for client in clients {
            match client.join() {
                Ok(one) => tally.add(one),
                Err(_) => tally.wrong.push("a client has panicked".into()),
            }
        }
        over.store(true, Ordering::Relaxed);
        memory = watch.join().unwrap_or_default();
        tally
    });
    let seconds = start.elapsed().as_secs_f64();
    let page = quiet(&server.at)?;
    server.stop()?;
    let end = metric(&page, "qwen35_resident_bytes");
    let asked = next.into_inner().min(load.requests);
    let early = memory.iter().find(|(done, _)| *done >= asked / 5).map_or(end, |(_, bytes)| *bytes);
    let most = memory.iter().map(|(_, bytes)| *bytes).fold(end, f64::max);
    let mb = |bytes: f64| bytes / 1e6;
    let report = format!(
        "{} requests in {seconds:.1} s: {:.1} /s, {} clients, seed {}\n{}memory     {:.1} MB after a fifth, {:.1} MB at most, {:.1} \
         MB at the end\ntokens     {} in answers, {} of {} of prompts not read again",
        tally.all(),
        tally.all() as f64 / seconds,
        load.clients,
        load.seed,
        tally.table(),
        mb(early),
        mb(most),
        mb(end),
        metric(&page, "qwen35_tokens_total"),
        metric(&page, "qwen35_prompt_tokens_reused_total"),
        metric(&page, "qwen35_prompt_tokens_total"),
    );
    if !tally.wrong.is_empty() {
        return Err(format!("{report}\nwrong: {}", tally.wrong.join("\nwrong: ")));
    }
    if end > early + SLACK {
        return Err(format!("{report}\nmemory has grown"));
    }
    if metric(&page, "qwen35_device_errors_total") != 0.0 {
        return Err(format!("{report}\nthe device has failed"));
    }
    if asked < load.requests {
        return Err(format!("{report}\nthe time was over before all requests were made"));
    }
    Ok(report)
}

/// Waits until nobody is there any more, and gives what was counted.
fn quiet(at: &str) -> Result<String, String> {
    let limit = Instant::now() + Duration::from_secs(60);
    loop {
        let page = metrics(at)?;
        let left: Vec<String> = [("qwen35_queue_waiting", 0.0), ("qwen35_running", 0.0), ("qwen35_connections", 1.0)]
            .iter()
            .filter(|(name, wanted)| metric(&page, name) != *wanted)
            .map(|(name, _)| format!("{name} {}", metric(&page, name)))
            .collect();
        if left.is_empty() {
            return Ok(page);
        }
        if Instant::now() > limit {
            return Err(format!("a minute after the last request: {}", left.join(", ")));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
