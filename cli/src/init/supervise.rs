//! A server for as long as the machine runs: started, started again when it ends, and ended with care when the machine is
//! to end. Process 1 has every orphan for its child, and what ends is taken note of here.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, wait};
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

use super::Console;
use super::power::Buttons;
use super::step::Machine;

/// The program that is supervised: our own.
const PROGRAM: &str = "/init";
/// Pauses before a server is started again: the first, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// A server that ran for so long begins with the first pause again.
const LASTED: Duration = Duration::from_secs(300);
/// For a server to end by itself: its own limit for answers, and some.
const GRACE: Duration = Duration::from_secs(45);

/// How the machine is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    PowerOff,
    Restart,
}

/// The pauses between one start and the next.
#[derive(Debug)]
struct Pauses(Duration);

impl Pauses {
    /// The pause behind a run that lasted so long.
    fn after(&mut self, ran: Duration) -> Duration {
        if ran >= LASTED {
            self.0 = PAUSE.0;
        }
        let next = (self.0 * 2).min(PAUSE.1);
        std::mem::replace(&mut self.0, next)
    }
}

/// What a supervisor waits for.
#[derive(Debug)]
struct Watch {
    /// A byte for each signal: to end, to restart, a child's end.
    term: UnixStream,
    int: UnixStream,
    child: UnixStream,
    buttons: Buttons,
    control: Option<Control>,
}

/// What has happened.
#[derive(Debug, Default)]
struct Happened {
    end: Option<End>,
    lines: Vec<String>,
}

fn signal(number: i32) -> io::Result<UnixStream> {
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    pipe::register(number, theirs)?;
    Ok(ours)
}

/// Whether a byte was there; all are taken.
fn drained(mut stream: &UnixStream) -> bool {
    let (mut bytes, mut any) = ([0; 64], false);
    while matches!(stream.read(&mut bytes), Ok(1..)) {
        any = true;
    }
    any
}

impl Watch {
    fn open(control: Option<Control>) -> io::Result<Watch> {
        Ok(Watch {
            term: signal(SIGTERM)?,
            int: signal(SIGINT)?,
            child: signal(SIGCHLD)?,
            buttons: Buttons::open(),
            control,
        })
    }

    /// Waits until something happens, or for so long.
    fn wait(&mut self, limit: Option<Duration>) -> Happened {
        let mut fds: Vec<BorrowedFd<'_>> = vec![self.term.as_fd(), self.int.as_fd(), self.child.as_fd()];
        fds.extend(self.buttons.files().map(AsFd::as_fd));
        fds.extend(self.control.iter().map(|control| control.port.as_fd()));
        let mut polled: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
        let limit =
            limit.map(|limit| Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() });
        if poll(&mut polled, limit.as_ref()).is_err() {
            return Happened::default();
        }
        drop(polled);
        let _ = drained(&self.child);
        let end = if drained(&self.term) || self.buttons.pressed() {
            Some(End::PowerOff)
        } else {
            drained(&self.int).then_some(End::Restart)
        };
        Happened { end, lines: self.control.as_mut().map(Control::lines).unwrap_or_default() }
    }
}

/// A serial port that takes lines of the script while the server runs: for tests, where the kernel's command line has one.
#[derive(Debug)]
pub(super) struct Control {
    port: File,
    text: Vec<u8>,
}

impl Control {
    pub(super) fn open(path: &str) -> Result<Control, String> {
        let port = super::raw_serial(path).ok_or_else(|| format!("{path} is no serial port"))?;
        Ok(Control { port, text: Vec::new() })
    }

    /// Whole lines that have come.
    fn lines(&mut self) -> Vec<String> {
        let fd = self.port.as_fd();
        let ready = |fd| poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&Timespec::default()));
        let mut bytes = [0; 256];
        while matches!(ready(fd), Ok(1..)) {
            match (&self.port).read(&mut bytes) {
                Ok(count @ 1..) => self.text.extend_from_slice(&bytes[..count]),
                _ => break,
            }
        }
        let mut lines = Vec::new();
        while let Some(end) = self.text.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.text.drain(..=end).collect();
            lines.push(String::from_utf8_lossy(&line).trim().to_owned());
        }
        lines
    }
}

/// Runs `serve` with these arguments until the machine is to end; how, and the server's last exit code.
pub(super) fn serve(
    arguments: &[OsString],
    machine: &mut Machine,
    control: Option<Control>,
    console: &mut Console,
) -> Result<(End, i32), String> {
    // Without this, Ctrl-Alt-Del is a reset that nobody is told of.
    let _ = rustix::system::reboot(rustix::system::RebootCommand::CadOff);
    let mut watch = Watch::open(control).map_err(|e| format!("serve: signals: {e}"))?;
    let mut pauses = Pauses(PAUSE.0);
    loop {
        let begun = Instant::now();
        let server = match start(arguments) {
            Ok(server) => Some(server),
            Err(e) => {
                console.say(&format!("serve: {PROGRAM}: {e}"));
                None
            }
        };
        let mut ended = None;
        if let Some(server) = server {
            let mut asked = None;
            let mut limit = None;
            while ended.is_none() {
                let happened = watch.wait(limit.map(|at: Instant| at.saturating_duration_since(Instant::now())));
                for line in &happened.lines {
                    if line == "kill" {
                        let _ = kill_process(server, Signal::KILL);
                    } else {
                        console.step(machine, line);
                    }
                }
                if let (Some(end), None) = (happened.end, asked) {
                    console.say("ending: the server is told");
                    asked = Some(end);
                    limit = Some(Instant::now() + GRACE);
                    let _ = kill_process(server, Signal::TERM);
                }
                if limit.is_some_and(|at| Instant::now() >= at) {
                    console.say(&format!("the server has not ended within {} s", GRACE.as_secs()));
                    let _ = kill_process(server, Signal::KILL);
                    limit = None;
                }
                ended = reap(server);
            }
            let code = ended.unwrap_or(-1);
            if let Some(end) = asked {
                return Ok((end, code));
            }
            console.say(&format!("the server ended with {code}"));
        }
        let pause = pauses.after(begun.elapsed());
        console.say(&format!("it is started again in {} s", pause.as_secs()));
        let until = Instant::now() + pause;
        while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            let happened = watch.wait(Some(left));
            while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
            for line in &happened.lines {
                console.step(machine, line);
            }
            if let Some(end) = happened.end {
                return Ok((end, ended.unwrap_or(1)));
            }
        }
    }
}

/// The server's log goes where the kernel's does.
fn start(arguments: &[OsString]) -> io::Result<Pid> {
    let port = || File::options().write(true).open("/dev/console").map_or_else(|_| Stdio::null(), Stdio::from);
    let mut command = Command::new(PROGRAM);
    command.arg("serve").args(arguments).stdin(Stdio::null()).stdout(port()).stderr(port());
    // A log, not a terminal that somebody looks at.
    command.env("TERM", "dumb");
    // Whoever ends is waited for by `reap`.
    command.spawn().map(|child| Pid::from_child(&child))
}

/// Takes note of all children that have ended; the exit code where the server is one of them.
fn reap(server: Pid) -> Option<i32> {
    let mut found = None;
    while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
        if pid == server {
            found = Some(code(status));
        }
    }
    found
}

/// As a shell has it: 128 and the signal's number for what a signal ended.
fn code(status: WaitStatus) -> i32 {
    status.exit_status().unwrap_or_else(|| 128 + status.terminating_signal().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_are_forgiven() {
        let mut pauses = Pauses(PAUSE.0);
        let short = Duration::from_secs(2);
        let seconds: Vec<u64> = (0..9).map(|_| pauses.after(short).as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!([pauses.after(LASTED), pauses.after(short)], [PAUSE.0, PAUSE.0 * 2]);
    }

    #[test]
    fn signals_are_bytes_and_taken_whole() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        assert!(!drained(&ours));
        io::Write::write_all(&mut theirs, &[1; 200]).unwrap();
        assert!(drained(&ours) && !drained(&ours));
        drop(theirs);
        assert!(!drained(&ours), "an end is no signal");
    }
}
