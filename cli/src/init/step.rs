//! The verbs of init's script.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::cmdline::{self, Parameters};
use super::kmod::{self, Modules};
use super::network::Network;
use super::supervise::{self, Control, End};
use super::{Console, await_node, disk, raw_serial, uptime};

/// What a file in sysfs may take to take a word: removing a device waits for its clients.
const SYSFS: Duration = Duration::from_secs(60);
const DRIVER: &str = "/sys/bus/pci/drivers/amdxdna";
/// Stands for the device's address in a path.
const DEVICE: &str = "{device}";
/// Told before each command after the first, on both of its ports, so that a reader can tell their outputs apart: the
/// record separator of ASCII.
const SEPARATOR: &[u8] = b"\x1e";

/// What the script has come to.
#[derive(Debug, Default)]
pub(super) struct Machine {
    words: Vec<OsString>,
    program: Option<OsString>,
    /// Who runs the next command; root without.
    user: Option<u32>,
    beside: Option<Child>,
    commands: usize,
    /// The last `module` line.
    module: String,
    /// The device's address on its bus, kept while no driver has it.
    device: Option<String>,
    /// What the kernel's command line says.
    parameters: Parameters,
    /// The image's modules.
    modules: Arc<Mutex<Modules>>,
    /// Where the server's bundle is.
    bundle: Option<String>,
}

impl Machine {
    /// A machine with this command line of the kernel's; also what cannot be read of it.
    pub(super) fn new(line: &str) -> (Machine, Vec<String>) {
        let (parameters, complaints) = Parameters::parse(line);
        (Machine { parameters, ..Machine::default() }, complaints)
    }

    /// Does one line; an exit code where it was a command's.
    pub(super) fn step(&mut self, verb: &str, rest: &str, console: &mut Console) -> Result<Option<i32>, String> {
        let done = |()| None;
        match verb {
            "module" => {
                rest.clone_into(&mut self.module);
                kmod::load_line(rest).map(done)
            }
            "load" => {
                kmod::load_line(&self.module)?;
                await_node(Duration::from_secs(5));
                Ok(None)
            }
            "unload" => kmod::unload(rest).map(done),
            "write" => {
                let (path, value) = rest.split_once(' ').unwrap_or((rest, ""));
                match path.split_once(DEVICE) {
                    Some((before, after)) => write(&format!("{before}{}{after}", self.device()?), value).map(done),
                    None => write(path, value).map(done),
                }
            }
            "argument" => {
                self.words.push(from_hex(rest).ok_or_else(|| format!("bad argument {rest:?}"))?);
                Ok(None)
            }
            "program" => {
                self.program = Some(from_hex(rest).ok_or_else(|| format!("bad program {rest:?}"))?);
                Ok(None)
            }
            "user" => {
                self.user = Some(rest.parse().map_err(|_| format!("no user number: {rest:?}"))?);
                Ok(None)
            }
            "limit" => limit(rest).map(done),
            "mode" => {
                let (mode, path) = rest.split_once(' ').unwrap_or((rest, ""));
                let mode = u32::from_str_radix(mode, 8).map_err(|_| format!("no mode: {mode:?}"))?;
                fs::set_permissions(path, fs::Permissions::from_mode(mode))
                    .map_err(|e| format!("chmod {path}: {e}"))?;
                Ok(None)
            }
            "move" | "flip" | "cut" => change(verb, rest).map(done).map_err(|e| format!("{verb} {rest}: {e}")),
            "run" => self.spawn()?.wait().map(|status| Some(code(status))).map_err(|e| format!("wait: {e}")),
            "start" => {
                self.beside = Some(self.spawn()?);
                Ok(None)
            }
            "finish" => self.finish(Duration::from_secs(rest.parse().unwrap_or(60))).map(Some),
            "unbind" => write(&format!("{DRIVER}/unbind"), &self.device()?).map(done),
            "bind" => {
                write(&format!("{DRIVER}/bind"), &self.device()?)?;
                await_node(Duration::from_secs(5));
                Ok(None)
            }
            "reset" => write(&format!("/sys/bus/pci/devices/{}/reset", self.device()?), "1").map(done),
            "sleep" => {
                std::thread::sleep(Duration::from_millis(rest.parse().unwrap_or(0)));
                Ok(None)
            }
            "say" => {
                console.say(rest);
                Ok(None)
            }
            "hostname" => {
                let name = self.parameters.hostname.as_deref().unwrap_or(rest);
                rustix::system::sethostname(name.as_bytes()).map(done).map_err(|e| format!("hostname {name}: {e}"))
            }
            "drivers" => {
                let (index, files) = rest.split_once(' ').unwrap_or((rest, ""));
                let mut modules = Modules::open(index, self.parameters.clone())?;
                let last: Vec<&str> = files.split_whitespace().collect();
                // While the server is loading, other modules that come up would cost it more than they do before.
                let mut trouble = modules.scan(&last);
                last.iter().for_each(|file| modules.load(file, &mut trouble));
                trouble.iter().for_each(|line| console.say(line));
                self.modules = Arc::new(Mutex::new(modules));
                await_node(Duration::from_secs(5));
                console.say(&match fs::read_dir("/dev/accel").ok().and_then(|mut nodes| nodes.next()?.ok()) {
                    Some(node) => format!("node {} at {}", node.path().display(), uptime()),
                    None => "no NPU that the amdxdna driver takes".to_owned(),
                });
                Ok(None)
            }
            "network" => {
                let port = cmdline::port(&self.parameters.arguments).or(rest.parse().ok()).unwrap_or(80);
                let modules = Arc::clone(&self.modules);
                Network { address: self.parameters.address, port, modules }.start().map(done)
            }
            "bundle" => {
                self.bundle = Some(rest.to_owned());
                if let Some(place) = &self.parameters.bundle {
                    // Served without, the server says what is missing.
                    self.bundle = Some(format!("/disk{}", place.path));
                    disk::bundle(place, &self.modules)?;
                }
                Ok(None)
            }
            other => Err(format!("unknown verb {other:?}")),
        }
    }

    /// The server, until the machine is to end: how, and its exit code.
    pub(super) fn serve(&mut self, console: &mut Console) -> Result<(End, i32), String> {
        let words = std::mem::take(&mut self.words);
        let script: Vec<String> = words.into_iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let bundle = self.bundle.clone().unwrap_or_else(|| "/bundle".to_owned());
        let arguments: Vec<OsString> = [bundle]
            .into_iter()
            .chain(cmdline::merge(&script, &self.parameters.arguments))
            .map(OsString::from)
            .collect();
        let control = match self.parameters.control.as_deref().map(Control::open).transpose() {
            Ok(control) => control,
            Err(why) => {
                console.say(&why);
                None
            }
        };
        supervise::serve(&arguments, self, control, console)
    }

    /// The device's address: the one that is bound, or was.
    fn device(&mut self) -> Result<String, String> {
        if let Some(bound) = bound_device() {
            self.device = Some(bound);
        }
        self.device.clone().ok_or_else(|| format!("no device is bound below {DRIVER}"))
    }

    fn spawn(&mut self) -> Result<Child, String> {
        let program = self.program.take().unwrap_or_else(|| "/init".into());
        let mut command = Command::new(&program);
        command.args(std::mem::take(&mut self.words)).stdin(Stdio::null());
        if let Some(user) = self.user.take() {
            // Groups of root's go with that.
            command.uid(user).gid(user);
        }
        for (path, err) in [("/dev/ttyS1", false), ("/dev/ttyS2", true)] {
            let Some(mut port) = raw_serial(path) else { continue };
            if self.commands > 0 {
                let _ = port.write_all(SEPARATOR);
            }
            if err {
                command.stderr(port)
            } else {
                command.stdout(port)
            };
        }
        self.commands += 1;
        command.spawn().map_err(|e| format!("run {}: {e}", program.display()))
    }

    fn finish(&mut self, limit: Duration) -> Result<i32, String> {
        let mut child = self.beside.take().ok_or("nothing was started")?;
        let begun = Instant::now();
        loop {
            match child.try_wait() {
                Ok(Some(status)) => return Ok(code(status)),
                Ok(None) if begun.elapsed() < limit => std::thread::sleep(Duration::from_millis(20)),
                Ok(None) => {
                    let _ = child.kill();
                    return Err(format!("the command was still running after {} s", limit.as_secs()));
                }
                Err(e) => return Err(format!("wait: {e}")),
            }
        }
    }
}

/// Moves a file, turns a byte of it around, or cuts it off.
fn change(verb: &str, line: &str) -> io::Result<()> {
    let (first, path) = line.split_once(' ').unwrap_or((line, ""));
    if verb == "move" {
        return fs::rename(first, path);
    }
    let place: u64 = first.parse().map_err(io::Error::other)?;
    let file = File::options().read(true).write(true).open(path)?;
    if verb == "cut" {
        return file.set_len(place);
    }
    let mut byte = [0];
    file.read_exact_at(&mut byte, place)?;
    file.write_all_at(&[!byte[0]], place)
}

/// `memlock 0`: a limit of this process and of all that it starts.
fn limit(line: &str) -> Result<(), String> {
    let (name, value) = line.split_once(' ').unwrap_or((line, ""));
    let resource = match name {
        "memlock" => Resource::Memlock,
        "nofile" => Resource::Nofile,
        _ => return Err(format!("unknown limit {name:?}")),
    };
    let value = value.parse().map_err(|_| format!("no number: {value:?}"))?;
    setrlimit(resource, Rlimit { current: Some(value), maximum: getrlimit(resource).maximum })
        .map_err(|e| format!("setrlimit {line}: {e}"))
}

/// The exit code as a shell has it: 128 and the signal's number for a command that a signal ended.
fn code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// The address of the device that the driver has.
pub(super) fn bound_device() -> Option<String> {
    let names = fs::read_dir(DRIVER).ok()?.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.into_iter().find(|name| name.contains(':'))
}

/// Writes a line to a file of sysfs or debugfs, with a deadline: the kernel may wait in it for others.
fn write(path: &str, value: &str) -> Result<(), String> {
    let (send, receive) = channel();
    let (file, line) = (path.to_owned(), format!("{value}\n"));
    std::thread::spawn(move || {
        let _ = send.send(fs::write(file, line));
    });
    match receive.recv_timeout(SYSFS) {
        Ok(result) => result.map_err(|e| format!("write {value:?} to {path}: {e}")),
        Err(_) => Err(format!("write {value:?} to {path}: not taken within {} s", SYSFS.as_secs())),
    }
}

fn from_hex(text: &str) -> Option<OsString> {
    let digits = text.as_bytes();
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits.chunks(2).map(byte).collect::<Option<Vec<u8>>>().map(OsString::from_vec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_hexadecimal() {
        assert_eq!(from_hex("636865636b"), Some("check".into()));
        assert_eq!((from_hex("6"), from_hex("zz")), (None, None));
    }

    #[test]
    fn steps_that_mean_nothing_are_errors() {
        let (mut machine, mut console) = (Machine::default(), Console(None));
        let mut step = |verb, rest| machine.step(verb, rest, &mut console);
        assert!(step("dance", "").is_err_and(|why| why.contains("dance")));
        assert!(step("finish", "1").is_err_and(|why| why.contains("nothing was started")));
        for wrong in [("user", "me"), ("limit", "luck 7"), ("limit", "nofile many"), ("mode", "rw /etc")] {
            assert!(step(wrong.0, wrong.1).is_err(), "{wrong:?}");
        }
        assert!(step("write", "/nowhere/at/all x").is_err_and(|why| why.contains("/nowhere/at/all")));
        assert!(step("drivers", "/nowhere/index").is_err_and(|why| why.contains("/nowhere/index")));
        assert_eq!(step("sleep", "1"), Ok(None));
    }

    #[test]
    fn a_file_is_moved_turned_and_cut() {
        let one = std::env::temp_dir().join(format!("qwen35-init-{}", std::process::id()));
        let two = one.with_extension("two");
        fs::write(&one, [1, 2, 3]).unwrap();
        let (mut machine, mut console) = (Machine::default(), Console(None));
        let mut step = |verb: &str, rest: &str| machine.step(verb, rest, &mut console);
        let (from, to) = (one.display(), two.display());
        assert_eq!(step("move", &format!("{from} {to}")), Ok(None));
        assert_eq!(step("flip", &format!("1 {to}")), Ok(None));
        assert_eq!(fs::read(&two).unwrap(), [1, 253, 3]);
        assert_eq!(step("cut", &format!("2 {to}")), Ok(None));
        assert_eq!(fs::read(&two).unwrap(), [1, 253]);
        assert!(step("flip", &format!("2 {to}")).is_err());
        assert!(step("move", &format!("{from} {to}")).is_err());
        fs::remove_file(two).unwrap();
    }

    #[test]
    fn a_signal_is_an_exit_code_over_128() {
        assert_eq!(code(ExitStatus::from_raw(9)), 137);
        assert_eq!(code(ExitStatus::from_raw(3 << 8)), 3);
    }
}
