//! The verbs of init's script.

use std::ffi::{CString, OsString};
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use super::{await_node, raw_serial};

/// What a file in sysfs may take to take a word: removing a device waits for its clients.
const SYSFS: Duration = Duration::from_secs(60);
const DRIVER: &str = "/sys/bus/pci/drivers/amdxdna";
/// Stands for the device's address in a path.
const DEVICE: &str = "{device}";
/// Told before each command after the first, on both of its ports, so that a reader can tell their outputs apart: the
/// record separator of ASCII.
const SEPARATOR: &[u8] = b"\x1e";

/// What the script has come to.
#[derive(Default)]
pub(super) struct Machine {
    words: Vec<OsString>,
    program: Option<OsString>,
    beside: Option<Child>,
    commands: usize,
    /// The last `module` line.
    module: String,
    /// The device's address on its bus, kept while no driver has it.
    device: Option<String>,
}

impl Machine {
    /// Does one line; an exit code where it was a command's.
    pub(super) fn step(&mut self, verb: &str, rest: &str) -> Result<Option<i32>, String> {
        let done = |()| None;
        match verb {
            "module" => {
                rest.clone_into(&mut self.module);
                load_module(rest).map(done)
            }
            "load" => {
                load_module(&self.module)?;
                await_node(Duration::from_secs(5));
                Ok(None)
            }
            "unload" => unload_module(rest).map(done),
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
            other => Err(format!("unknown verb {other:?}")),
        }
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

/// `path parameters`.
fn load_module(line: &str) -> Result<(), String> {
    let (path, parameters) = line.split_once(' ').unwrap_or((line, ""));
    let file = File::open(Path::new(path)).map_err(|e| format!("open {path}: {e}"))?;
    let parameters = CString::new(parameters.trim()).map_err(|_| format!("{path}: a NUL in its parameters"))?;
    rustix::system::finit_module(file.as_fd(), &parameters, 0)
        .map_err(|e| format!("finit_module {path} {parameters:?}: {e}"))
}

fn unload_module(name: &str) -> Result<(), String> {
    let word = CString::new(name).map_err(|_| "a NUL in a module's name".to_owned())?;
    // O_NONBLOCK: a module in use is an error, not a wait.
    let flags = rustix::fs::OFlags::NONBLOCK.bits();
    rustix::system::delete_module(&word, flags as i32).map_err(|e| format!("delete_module {name}: {e}"))
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
        let mut machine = Machine::default();
        assert!(machine.step("dance", "").is_err_and(|why| why.contains("dance")));
        assert!(machine.step("finish", "1").is_err_and(|why| why.contains("nothing was started")));
        assert!(machine.step("write", "/nowhere/at/all x").is_err_and(|why| why.contains("/nowhere/at/all")));
        assert_eq!(machine.step("sleep", "1"), Ok(None));
    }

    #[test]
    fn a_signal_is_an_exit_code_over_128() {
        assert_eq!(code(ExitStatus::from_raw(9)), 137);
        assert_eq!(code(ExitStatus::from_raw(3 << 8)), 3);
    }
}
