//! The binary as process 1 of a minimal system: mounts what the driver and we need, loads the modules that
//! `/etc/qwen35-init` lists, runs one command (of this same binary, unless another program is named) and powers the
//! machine off.
//!
//! ```text
//! module /modules/amdxdna.ko force_iova=1     finit_module(2) with these parameters
//! write /sys/... text                          writes the text and a newline to the file
//! program /usr/bin/xrt-smi                     the program to run instead of this one
//! argument 6368656b                            one word of the command, in hexadecimal
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, mount};
use rustix::system::{RebootCommand, reboot};
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};

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
            console.say(&format!("qwen35-init: mount {kind} on {at}: {e}"));
        }
    }
    // The nodes of devtmpfs replace the one that the kernel opened for us.
    console = Console::open();
    let _ = mount("debugfs", "/sys/kernel/debug", "debugfs", MountFlags::empty(), None);
    let code = match script(&mut console) {
        Ok(status) => status.code().unwrap_or(128),
        Err(message) => {
            console.say(&format!("qwen35-init: {message}"));
            127
        }
    };
    console.say(&format!("qwen35-init: exit code {code}"));
    rustix::fs::sync();
    let _ = reboot(RebootCommand::PowerOff);
    // Reached only where the kernel cannot power off; process 1 must not return.
    loop {
        std::thread::sleep(Duration::from_secs(60));
    }
}

fn script(console: &mut Console) -> Result<ExitStatus, String> {
    let text = fs::read_to_string(SCRIPT).map_err(|e| format!("read {SCRIPT}: {e}"))?;
    let mut program = "/init".to_owned();
    let mut words = Vec::new();
    for line in text.lines() {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        match verb {
            "module" => {
                let (path, parameters) = rest.split_once(' ').unwrap_or((rest, ""));
                if let Err(message) = load_module(path, parameters.trim()) {
                    console.say(&format!("qwen35-init: {message}"));
                }
            }
            "write" => {
                let (path, value) = rest.split_once(' ').unwrap_or((rest, ""));
                if let Err(e) = fs::write(path, format!("{value}\n")) {
                    console.say(&format!("qwen35-init: write {path}: {e}"));
                }
            }
            "program" => program = rest.to_owned(),
            "argument" => words.push(from_hex(rest).ok_or_else(|| format!("{SCRIPT}: bad argument {rest:?}"))?),
            "" => {}
            other => console.say(&format!("qwen35-init: {SCRIPT}: unknown line {other:?}")),
        }
    }
    await_node(Duration::from_secs(5));
    let uptime = fs::read_to_string("/proc/uptime").unwrap_or_default();
    console.say(&format!("qwen35-init: start at {}", uptime.split(' ').next().unwrap_or("?")));
    let mut command = Command::new(&program);
    command.args(words.iter().map(|w| String::from_utf8_lossy(w).into_owned())).stdin(Stdio::null());
    if let Some(out) = raw_serial("/dev/ttyS1") {
        command.stdout(out);
    }
    if let Some(err) = raw_serial("/dev/ttyS2") {
        command.stderr(err);
    }
    command.status().map_err(|e| format!("run {program}: {e}"))
}

fn load_module(path: &str, parameters: &str) -> Result<(), String> {
    let file = File::open(path).map_err(|e| format!("open {path}: {e}"))?;
    let parameters = std::ffi::CString::new(parameters).map_err(|_| format!("{path}: a NUL in its parameters"))?;
    rustix::system::finit_module(file.as_fd(), &parameters, 0)
        .map_err(|e| format!("finit_module {path} {parameters:?}: {e}"))
}

/// The driver probes while its module loads, so the node is there at once or never; devtmpfs may lag a little.
fn await_node(limit: Duration) {
    let started = Instant::now();
    let driver = Path::new("/sys/bus/pci/drivers/amdxdna");
    let bound =
        || fs::read_dir(driver).is_ok_and(|d| d.flatten().any(|e| e.file_name().to_string_lossy().contains(':')));
    while bound() && !Path::new("/dev/accel/accel0").exists() && started.elapsed() < limit {
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

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    digits.chunks(2).map(|p| u8::from_str_radix(std::str::from_utf8(p).ok()?, 16).ok()).collect()
}

struct Console(Option<File>);

impl Console {
    fn open() -> Self {
        Self(OpenOptions::new().write(true).open("/dev/console").ok())
    }

    fn say(&mut self, line: &str) {
        if let Some(file) = &mut self.0 {
            let _ = writeln!(file, "{line}");
        }
    }
}
