//! Commands with a deadline: nothing that is waited for may wait for ever.

use std::io::Read;
use std::process::{Command, ExitStatus, Output, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often a command is looked at.
const TICK: Duration = Duration::from_millis(50);

/// Runs a command with a deadline; its stdout where it ended well, else what went wrong.
pub(crate) fn timed(command: &mut Command, limit: Duration) -> Result<String, String> {
    let shown = format!("{command:?}");
    let ended = run(command.stdout(Stdio::piped()), limit)?;
    let text = String::from_utf8_lossy(&ended.stdout).into_owned();
    if ended.status.success() { Ok(text) } else { Err(format!("{shown}: {}\n{text}", ended.status)) }
}

/// As [`Command::output`], with a deadline.
pub(crate) fn output(command: &mut Command, limit: Duration) -> Result<Output, String> {
    run(command.stdout(Stdio::piped()).stderr(Stdio::piped()), limit)
}

/// As [`Command::status`], with a deadline.
pub(crate) fn status(command: &mut Command, limit: Duration) -> Result<ExitStatus, String> {
    run(command, limit).map(|ended| ended.status)
}

fn run(command: &mut Command, limit: Duration) -> Result<Output, String> {
    let shown = format!("{command:?}");
    let mut child = command.stdin(Stdio::null()).spawn().map_err(|error| format!("{shown} did not start: {error}"))?;
    let (stdout, stderr) = (reader(child.stdout.take()), reader(child.stderr.take()));
    let start = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if start.elapsed() > limit => {
                // The readers are left to themselves: what the child has started may hold their pipes open.
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("{shown} was still running after {} s", limit.as_secs()));
            }
            Ok(None) => std::thread::sleep(TICK),
            Err(error) => return Err(format!("{shown} was lost: {error}")),
        }
    };
    let read = |reader: JoinHandle<Vec<u8>>| reader.join().unwrap_or_default();
    Ok(Output { status, stdout: read(stdout), stderr: read(stderr) })
}

/// Reads a pipe to its end while the command runs.
fn reader(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.read_to_end(&mut bytes);
        }
        bytes
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_ends_by_itself_or_at_its_deadline() {
        let sh = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            command
        };
        let minute = Duration::from_secs(60);
        assert_eq!(timed(&mut sh("echo yes"), minute), Ok("yes\n".to_owned()));
        assert!(timed(&mut sh("echo no; exit 3"), minute).is_err_and(|why| why.ends_with("exit status: 3\nno\n")));
        let both = output(&mut sh("echo a; echo b >&2"), minute).unwrap();
        assert_eq!((both.stdout, both.stderr), (b"a\n".to_vec(), b"b\n".to_vec()));
        let late = status(&mut sh("exec sleep 3600"), Duration::ZERO);
        assert!(late.is_err_and(|why| why.contains("still running")));
    }
}
