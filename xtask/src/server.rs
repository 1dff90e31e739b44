//! A server of this repository's program, to be asked by others.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// For loading the demo model.
const LOADING: Duration = Duration::from_secs(120);

/// A running server. Dropped, it is killed.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    /// `127.0.0.1:PORT`.
    pub(crate) at: String,
}

impl Server {
    /// Starts `program serve bundle` at any port of this machine, with further arguments.
    pub(crate) fn start(program: &Path, bundle: &Path, more: &[&str]) -> Result<Server, String> {
        let mut command = Command::new(program);
        command.arg("serve").arg(bundle).args(["--listen", "127.0.0.1:0"]).args(more);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).env_remove("QWEN35_API_KEY");
        let mut child = command.spawn().map_err(|error| format!("{} did not start: {error}", program.display()))?;
        let (tell, told) = mpsc::channel();
        let stderr = child.stderr.take();
        // To the end: a program whose log nobody reads would wait.
        std::thread::spawn(move || {
            let lines = stderr.into_iter().flat_map(|stderr| BufReader::new(stderr).lines()).map_while(Result::ok);
            for line in lines {
                let at =
                    line.split_once(" ready at=http://").map(|(_, at)| at.split(' ').next().unwrap_or(at).to_owned());
                let _ = tell.send(at.ok_or(line));
            }
        });
        let mut said = Vec::new();
        loop {
            match told.recv_timeout(LOADING) {
                Ok(Ok(at)) => return Ok(Server { child, at }),
                Ok(Err(line)) => said.push(line),
                Err(_) => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(format!("the server did not start:\n{}", said.join("\n")));
                }
            }
        }
    }

    /// Ends it as a service manager does.
    pub(crate) fn stop(mut self) -> Result<(), String> {
        let id = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(id, rustix::process::Signal::TERM).map_err(|error| error.to_string())?;
        let limit = std::time::Instant::now() + LOADING;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => return Err(format!("the server ended with {status}")),
                Ok(None) if std::time::Instant::now() < limit => std::thread::sleep(Duration::from_millis(20)),
                Ok(None) => return Err("the server did not end".into()),
                Err(error) => return Err(error.to_string()),
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The program, built, or as `QWEN35_PROGRAM` names it.
pub(crate) fn program(root: &Path) -> Result<std::path::PathBuf, String> {
    if let Some(program) = std::env::var_os("QWEN35_PROGRAM") {
        return Ok(program.into());
    }
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root).args([
        "build",
        "--release",
        "--locked",
        "--message-format",
        "json",
        "-p",
        "qwen35-direct",
    ]);
    // A release build from nothing on two cores.
    let said = crate::timed::timed(&mut command, Duration::from_secs(20 * 60))?;
    let artifacts = said.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let mut paths = artifacts.filter_map(|line| line["executable"].as_str().map(std::path::PathBuf::from));
    paths.find(|path| path.ends_with("qwen35-direct")).ok_or_else(|| "cargo named no program".into())
}
