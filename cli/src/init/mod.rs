//! The binary as process 1 of a minimal system: mounts what the driver and we need, follows `/etc/qwen35-init` line by
//! line, reports each step on the console and powers the machine off.
//!
//! ```text
//! module /modules/amdxdna.ko force_iova=1     finit_module(2) with these parameters
//! write /sys/... text                          writes the text and a newline to the file; {device} in its path is the
//!                                              address of the device that the driver has
//! argument 6368656b                            one word of the next command, in hexadecimal
//! program 2f746f6f6c                           another program for the next command than this binary
//! run                                          runs the command and waits for its end
//! start / finish 30                            runs it beside what follows / waits so many seconds for its end
//! unload amdxdna / load                        delete_module(2) / the last `module` line again
//! unbind / bind / reset                        the device that the driver had first, through its files in sysfs
//! sleep 500                                    milliseconds
//! ```

mod step;

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, mount};
use rustix::system::{RebootCommand, reboot};
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};

use step::Machine;

const SCRIPT: &str = "/etc/qwen35-init";

/// Whether this process is the first of a system that was made for us.
pub(crate) fn is_init() -> bool {
    std::process::id() == 1 && Path::new(SCRIPT).exists()
}

/// Runs the script and ends the machine.
pub(crate) fn run() -> ! {
    let mut console = Console::open();
    for (kind, at) in [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev")] {
        if let Err(e) = mount(kind, at, kind, MountFlags::empty(), None) {
            console.say(&format!("mount {kind} on {at}: {e}"));
        }
    }
    // The nodes of devtmpfs replace the one that the kernel opened for us.
    console = Console::open();
    let _ = mount("debugfs", "/sys/kernel/debug", "debugfs", MountFlags::empty(), None);
    let code = match script(&mut console) {
        Ok(code) => code,
        Err(message) => {
            console.say(&message);
            127
        }
    };
    console.say(&format!("exit code {code}"));
    rustix::fs::sync();
    let _ = reboot(RebootCommand::PowerOff);
    // Reached only where the kernel cannot power off; process 1 must not return.
    loop {
        std::thread::sleep(Duration::from_secs(60));
    }
}

/// The exit code of the first command that did not end with 0, or of the first other step that failed: 1.
fn script(console: &mut Console) -> Result<i32, String> {
    let text = fs::read_to_string(SCRIPT).map_err(|e| format!("read {SCRIPT}: {e}"))?;
    let mut machine = Machine::default();
    let mut code = 0;
    let mut started = false;
    for line in text.lines().filter(|line| !line.is_empty()) {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        if !started && !matches!(verb, "module" | "write" | "argument" | "program") {
            started = true;
            await_node(Duration::from_secs(5));
            let uptime = fs::read_to_string("/proc/uptime").unwrap_or_default();
            console.say(&format!("start at {}", uptime.split(' ').next().unwrap_or("?")));
        }
        let outcome = machine.step(verb, rest.trim());
        if !started {
            // Setting up: only trouble is worth a line.
            if let Err(message) = outcome {
                console.say(&message);
            }
            continue;
        }
        let (said, failed) = match outcome {
            Ok(None) if matches!(verb, "argument" | "program") => continue,
            Ok(None) => ("done".to_owned(), 0),
            Ok(Some(exit)) => (format!("ended with {exit}"), exit),
            Err(message) => (format!("failed: {message}"), 1),
        };
        console.say(&format!("step {verb} {said}"));
        if code == 0 {
            code = failed;
        }
    }
    Ok(code)
}

/// The driver probes while its module loads, so the node is there at once or never; devtmpfs may lag a little.
fn await_node(limit: Duration) {
    let started = Instant::now();
    while step::bound_device().is_some() && !Path::new("/dev/accel/accel0").exists() && started.elapsed() < limit {
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A serial port that passes bytes through unchanged.
fn raw_serial(path: &str) -> Option<File> {
    let port = OpenOptions::new().read(true).write(true).open(path).ok()?;
    if let Ok(mut settings) = tcgetattr(&port) {
        settings.make_raw();
        let _ = settings.set_speed(rustix::termios::speed::B115200);
        let _ = tcsetattr(&port, OptionalActions::Now, &settings);
    }
    Some(port)
}

struct Console(Option<File>);

impl Console {
    fn open() -> Self {
        Self(OpenOptions::new().write(true).open("/dev/console").ok())
    }

    fn say(&mut self, line: &str) {
        if let Some(file) = &mut self.0 {
            let _ = writeln!(file, "qwen35-init: {line}");
        }
    }
}
