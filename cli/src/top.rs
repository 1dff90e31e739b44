//! `top`: what the NPU is doing, from the driver's own queries.

use crate::arguments::{DeviceChoice, RunOptions};
use crate::device;
use crate::doctor::process;
use crate::error::CliError;
use crate::interrupt::Interrupt;
use crate::npu;
use crate::output::answer;
use amdxdna_ioctl::Device;
use amdxdna_ioctl::abi::query::{AsyncError, BoUsage, HwctxEntry};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{self, LocalModes, OptionalActions, Termios};
use serde_json::{Value, json};
use std::fmt::Write;
use std::io::{IsTerminal, Read};
use std::time::{Duration, Instant};

/// Of the JSON; counts up when a field changes its meaning or goes.
const VERSION: u32 = 1;
const INTERVAL: Duration = Duration::from_secs(1);

/// What the driver says at one time. What an older one does not know is missing.
struct Look {
    at: Instant,
    contexts: Vec<HwctxEntry>,
    room: Option<u64>,
    mode: Option<String>,
    clocks: Vec<(String, u32)>,
    sensors: Vec<(String, f64, String)>,
    /// This process' own: the driver tells no other's.
    usage: Option<BoUsage>,
    error: Option<AsyncError>,
}

impl Look {
    fn at(device: &Device) -> Result<Look, CliError> {
        // Whoever cannot even be asked for its contexts is gone.
        let contexts = device.contexts().map_err(|error| CliError::Device(error.to_string()))?;
        let clocks = device
            .clocks()
            .map(|clocks| [clocks.mp_npu_clock, clocks.h_clock].map(|clock| (clock.label(), clock.freq_mhz)).to_vec());
        let sensors = device
            .sensors()
            .unwrap_or_default()
            .into_iter()
            .map(|sensor| (sensor.label(), sensor.value(), sensor.unit()));
        Ok(Look {
            at: Instant::now(),
            contexts,
            room: device.resource_info().ok().map(|info| info.npu_task_max),
            mode: device.power_mode().ok().map(|mode| mode.map_or_else(|n| n.to_string(), |mode| format!("{mode:?}"))),
            clocks: clocks.unwrap_or_default(),
            sensors: sensors.collect(),
            usage: device.bo_usage().ok(),
            error: device.last_async_error().ok().flatten(),
        })
    }

    /// Commands a second of a context, where it was there before.
    fn rate(&self, context: &HwctxEntry, before: Option<&Look>) -> Option<f64> {
        let before = before?;
        let same = |other: &&HwctxEntry| other.pid == context.pid && other.context_id == context.context_id;
        let earlier = before.contexts.iter().find(same)?;
        let commands = context.command_completions.checked_sub(earlier.command_completions)?;
        Some(commands as f64 / (self.at - before.at).as_secs_f64().max(1e-3))
    }

    fn text(&self, node: &str, before: Option<&Look>) -> String {
        let mut out = String::new();
        let room = self.room.map_or_else(String::new, |room| format!(" of {room}"));
        // Writing to a string does not fail.
        let _ = writeln!(
            out,
            "{node}: {}{room} contexts, mode {}",
            self.contexts.len(),
            self.mode.as_deref().unwrap_or("unknown")
        );
        let clocks = self.clocks.iter().map(|(name, mhz)| format!("{name} {mhz} MHz"));
        let sensors = self.sensors.iter().map(|(name, value, unit)| format!("{name} {value:.3} {unit}"));
        let values: Vec<String> = clocks.chain(sensors).collect();
        if !values.is_empty() {
            let _ = writeln!(out, "{}", values.join(", "));
        }
        if let Some(error) = &self.error {
            let _ = writeln!(out, "last error: {error}");
        }
        let _ = writeln!(
            out,
            "\n{:>8} {:>3} {:<16} {:>7} {:>6} {:>12} {:>12} {:>9} {:>7} {:>9} {:>9}",
            "PID",
            "CTX",
            "PROGRAM",
            "COLUMNS",
            "STATE",
            "SUBMITTED",
            "COMPLETED",
            "A SECOND",
            "ERRORS",
            "PREEMPTED",
            "HEAP MB"
        );
        for c in &self.contexts {
            let rate = self.rate(c, before).map_or_else(|| "-".to_owned(), |rate| format!("{rate:.0}"));
            let columns = format!("{}+{}", c.start_col, c.num_col);
            let state = if c.command_submissions > c.command_completions { "busy" } else { "idle" };
            let _ = writeln!(
                out,
                "{:>8} {:>3} {:<16.16} {columns:>7} {state:>6} {:>12} {:>12} {rate:>9} {:>7} {:>9} {:>9.1}",
                c.pid,
                c.context_id,
                process(c.pid),
                c.command_submissions,
                c.command_completions,
                c.errors,
                c.preemptions,
                c.heap_usage as f64 / 1e6
            );
        }
        if self.contexts.is_empty() {
            let _ = writeln!(out, "nobody uses it");
        }
        out
    }

    fn json(&self, node: &str) -> Value {
        let contexts: Vec<Value> = self
            .contexts
            .iter()
            .map(|c| {
                json!({
                    "pid": c.pid, "program": process(c.pid), "context": c.context_id, "start_column": c.start_col,
                    "columns": c.num_col, "submissions": c.command_submissions, "completions": c.command_completions,
                    "errors": c.errors, "preemptions": c.preemptions, "migrations": c.migrations,
                    "suspensions": c.suspensions, "priority": c.priority, "heap_bytes": c.heap_usage,
                })
            })
            .collect();
        let clocks: Vec<Value> = self.clocks.iter().map(|(name, mhz)| json!({"name": name, "mhz": mhz})).collect();
        let sensor = |(name, value, unit): &(String, f64, String)| json!({"name": name, "value": value, "unit": unit});
        let own = self.usage.map(|usage| usage.total_usage);
        json!({
            "version": VERSION, "node": node, "contexts": contexts, "contexts_max": self.room, "power_mode": self.mode,
            "clocks": clocks, "sensors": self.sensors.iter().map(sensor).collect::<Vec<_>>(), "own_bytes": own,
            "last_error": self.error.as_ref().map(ToString::to_string),
        })
    }
}

/// Shows it once, or until `q` or Ctrl-C.
pub(crate) fn run(once: bool, json: bool, run: &RunOptions) -> Result<(), CliError> {
    let interrupt = Interrupt::install();
    let device = match &run.device {
        DeviceChoice::Node(node) => npu::open(node)?,
        DeviceChoice::Model | DeviceChoice::Timing => device::software_device()?,
        _ => npu::first()?,
    };
    let node = device.node().display().to_string();
    if json {
        return answer(&format!("{:#}\n", Look::at(&device)?.json(&node)));
    }
    if once || !std::io::stdout().is_terminal() {
        return answer(&Look::at(&device)?.text(&node, None));
    }
    interrupt.guarded(|| {
        let _screen = Screen::enter()?;
        let mut before: Option<Look> = None;
        loop {
            let now = Look::at(&device)?;
            answer(&format!("\x1b[H{}\x1b[J\nq leaves", now.text(&node, before.as_ref()).replace('\n', "\x1b[K\n")))?;
            before = Some(now);
            if interrupt.asked() || left() {
                return Ok(());
            }
        }
    })
}

/// Waits for the next look; whether a key said to leave.
fn left() -> bool {
    let stdin = std::io::stdin();
    let timeout = Timespec { tv_sec: INTERVAL.as_secs() as i64, tv_nsec: 0 };
    let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
    match poll(&mut fds, Some(&timeout)) {
        Ok(1..) => {
            let mut key = [0];
            !matches!(stdin.lock().read(&mut key), Ok(1)) || key[0] == b'q' || key[0] == 4
        }
        _ => false,
    }
}

/// The terminal's other screen, without the typed keys; as it was before when this goes.
struct Screen(Option<Termios>);

impl Screen {
    fn enter() -> Result<Screen, CliError> {
        let before = termios::tcgetattr(std::io::stdin()).ok();
        if let Some(mut keys) = before.clone() {
            keys.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
            let _ = termios::tcsetattr(std::io::stdin(), OptionalActions::Now, &keys);
        }
        answer("\x1b[?1049h\x1b[?25l\x1b[H\x1b[J")?;
        Ok(Screen(before))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = answer("\x1b[?25h\x1b[?1049l");
        if let Some(before) = &self.0 {
            let _ = termios::tcsetattr(std::io::stdin(), OptionalActions::Now, before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use npu_model::{Config, Model};
    use runtime::npu::Npu;
    use runtime::{Chat, LoadOptions, Turn};
    use std::ops::ControlFlow;
    use std::path::Path;

    #[test]
    fn contexts_and_their_commands_are_counted() {
        let model = Model::new(Config::default());
        let folder = std::env::temp_dir().join(format!("qwen35-top-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        let bundle = device::open(&driver_tests::tiny::bundle(&folder).unwrap()).unwrap();
        let npu = Npu::open(&*model, Path::new("/dev/accel/accel0")).unwrap();
        let device = npu.device().clone();
        assert!(Look::at(&device).unwrap().text("n", None).contains("nobody uses it"));
        let options = LoadOptions { max_ctx: 256, ..LoadOptions::default() };
        let mut chat = Chat::load(bundle, npu, options, &mut |_| {}).unwrap();
        let before = Look::at(&device).unwrap();
        let turn = Turn { system: None, images: &[], text: "Hi", thinking: false, max_new: 2 };
        chat.turn(&turn, &mut |_| ControlFlow::Continue(())).unwrap();
        let now = Look::at(&device).unwrap();
        let done = |look: &Look| look.contexts.iter().map(|c| c.command_completions).sum::<u64>();
        assert!(!now.contexts.is_empty() && done(&now) > done(&before));
        assert!(now.contexts.iter().any(|c| now.rate(c, Some(&before)).is_some_and(|rate| rate > 0.0)));
        let json = now.json("n");
        assert_eq!(json["contexts"].as_array().unwrap().len(), now.contexts.len());
        assert_eq!(json["contexts"][0]["pid"], std::process::id());
        let text = now.text("n", Some(&before));
        assert!(text.contains(&std::process::id().to_string()) && text.contains("idle"), "{text}");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
