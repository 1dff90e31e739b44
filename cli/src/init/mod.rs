//! The binary as process 1 of a minimal system: mounts what the driver and we need, follows `/etc/qwen35-init` line by
//! line, reports each step on the console and powers the machine off. There are two sorts of scripts: those of a test run
//! commands and end; that of an image ends in `serve`, which lasts for as long as the machine runs.
//!
//! ```text
//! module /modules/amdxdna.ko force_iova=1     finit_module(2) with these parameters
//! write /sys/... text                          writes the text and a newline to the file; {device} in its path is the
//!                                              address of the device that the driver has
//! argument 6368656b                            one word of the next command, in hexadecimal
//! program 2f746f6f6c                           another program for the next command than this binary
//! run                                          runs the command and waits for its end
//! start / finish 30                            runs it beside what follows / waits so many seconds for its end
//! user 1000                                    the next command runs as this user and group, without others
//! limit memlock 0                              of all commands from here on: memlock or nofile
//! mode 666 /dev/accel/accel0                   chmod(2)
//! move /a /b                                   rename(2)
//! flip 12 /a / cut 12 /a                       turns byte 12 around / cuts the file off there
//! unload amdxdna / load                        delete_module(2) / the last `module` line again
//! unbind / bind / reset                        the device that the driver had first, through its files in sysfs
//! sleep 500                                    milliseconds
//! say text                                     a line on the console
//! hostname qwen35                              unless the kernel's command line has another
//! drivers /modules/index amdxdna.ko            the modules for this machine's devices, see `kmod`, and then these
//! network 8080                                 see `network`; the server's port, for people
//! bundle /bundle                               the server's bundle, unless the kernel's command line has another
//! serve                                        supervises the server, with the arguments that stand before it
//! ```

mod cmdline;
mod dhcp;
mod disk;
mod kmod;
mod netlink;
mod network;
mod power;
mod step;
mod supervise;

use std::ffi::CStr;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, mount};
use rustix::system::{RebootCommand, reboot};
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};

use step::Machine;
use supervise::End;

const SCRIPT: &str = "/etc/qwen35-init";

/// Whether this process is the first of a system that was made for us.
pub(crate) fn is_init() -> bool {
    std::process::id() == 1 && Path::new(SCRIPT).exists()
}

/// Runs the script and ends the machine.
pub(crate) fn run() -> ! {
    let mut console = Console::open();
    let none = MountFlags::empty();
    for (kind, at) in [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev")] {
        if let Err(e) = mount(kind, at, kind, none, None) {
            console.say(&format!("mount {kind} on {at}: {e}"));
        }
    }
    // The nodes of devtmpfs replace the one that the kernel opened for us.
    console = Console::open();
    let _ = mount("debugfs", "/sys/kernel/debug", "debugfs", none, None);
    // Where an image has them. What is written there must not eat the memory.
    const SMALL: &CStr = c"size=64m";
    for at in ["/tmp", "/run"].into_iter().filter(|at| Path::new(at).is_dir()) {
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        if let Err(e) = mount("tmpfs", at, "tmpfs", flags, SMALL) {
            console.say(&format!("mount tmpfs on {at}: {e}"));
        }
    }
    console.say(&format!("init at {}", uptime()));
    let (code, end) = match script(&mut console) {
        Ok(ended) => ended,
        Err(message) => {
            console.say(&message);
            (127, End::PowerOff)
        }
    };
    console.say(&format!("exit code {code}"));
    rustix::fs::sync();
    let _ = reboot(match end {
        End::PowerOff => RebootCommand::PowerOff,
        End::Restart => RebootCommand::Restart,
    });
    // Reached only where the kernel cannot power off; process 1 must not return.
    loop {
        std::thread::sleep(Duration::from_secs(60));
    }
}

/// Verbs that prepare what the others need.
const FIRST: [&str; 10] =
    ["module", "write", "argument", "program", "user", "say", "hostname", "drivers", "network", "bundle"];
/// Verbs that are parts of the next command.
const OF_NEXT: [&str; 3] = ["argument", "program", "user"];

/// The exit code of the first command that did not end with 0, or of the first other step that failed: 1; and how the
/// machine is to end.
fn script(console: &mut Console) -> Result<(i32, End), String> {
    let text = fs::read_to_string(SCRIPT).map_err(|e| format!("read {SCRIPT}: {e}"))?;
    let (mut machine, complaints) = Machine::new(&fs::read_to_string("/proc/cmdline").unwrap_or_default());
    complaints.iter().for_each(|line| console.say(line));
    let mut code = 0;
    let mut started = false;
    for line in text.lines().filter(|line| !line.is_empty()) {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        let first = FIRST.contains(&verb);
        if !started && !first {
            started = true;
            await_node(Duration::from_secs(5));
            console.say(&format!("start at {}", uptime()));
        }
        if verb == "serve" {
            let (end, exit) = machine.serve(console)?;
            console.say(&format!("step serve ended with {exit}"));
            return Ok((if code == 0 { exit } else { code }, end));
        }
        let quiet = if started { OF_NEXT.contains(&verb) } else { first };
        if quiet {
            // Setting up, or a part of what follows: only trouble is worth a line.
            if let Err(message) = machine.step(verb, rest.trim(), console) {
                console.say(&message);
            }
            continue;
        }
        let failed = console.step(&mut machine, line);
        if code == 0 {
            code = failed;
        }
    }
    Ok((code, End::PowerOff))
}

/// Seconds since the kernel began.
fn uptime() -> String {
    let text = fs::read_to_string("/proc/uptime").unwrap_or_default();
    text.split(' ').next().unwrap_or("?").to_owned()
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

/// Where the kernel's messages go, too.
#[derive(Debug)]
struct Console(Option<File>);

impl Console {
    fn open() -> Self {
        Self(OpenOptions::new().write(true).open("/dev/console").ok())
    }

    fn say(&mut self, line: &str) {
        if let Some(file) = &mut self.0 {
            // One call: other threads write there, too.
            let _ = file.write_all(format!("qwen35-init: {line}\n").as_bytes());
        }
    }

    /// Does a line of the script and tells how it went; the exit code, or 1 where it failed.
    fn step(&mut self, machine: &mut Machine, line: &str) -> i32 {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        let begun = Instant::now();
        let (said, failed) = match machine.step(verb, rest.trim(), self) {
            Ok(None) => ("done".to_owned(), 0),
            Ok(Some(exit)) => (format!("ended with {exit}"), exit),
            Err(message) => (format!("failed: {message}"), 1),
        };
        self.say(&format!("step {verb} after {:.1} s {said}", begun.elapsed().as_secs_f64()));
        failed
    }
}
