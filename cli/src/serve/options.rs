//! What the server is told: where it listens, whom it answers, and its limits.

use crate::arguments::{RunOptions, UsageError, bounded, text, wrong};
use crate::flags::{Flag, FlagSpec};
use crate::wishes::Wishes;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Where clients come in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Listen {
    /// An address of a network.
    Tcp(SocketAddr),
    /// A socket in the file system.
    Unix(PathBuf),
}

impl Listen {
    /// Reads `127.0.0.1:8080`, `[::1]:8080`, `localhost:8080` or `unix:PATH`.
    fn from_text(text: &str) -> Option<Listen> {
        if let Some(path) = text.strip_prefix("unix:") {
            return (!path.is_empty()).then(|| Listen::Unix(path.into()));
        }
        let numbers = text.strip_prefix("localhost:").map(|port| format!("127.0.0.1:{port}"));
        numbers.as_deref().unwrap_or(text).parse().ok().map(Listen::Tcp)
    }

    /// Whether only this machine can come in.
    pub(super) fn is_local(&self) -> bool {
        match self {
            Listen::Tcp(address) => address.ip().is_loopback(),
            Listen::Unix(_) => true,
        }
    }
}

impl std::fmt::Display for Listen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Listen::Tcp(address) => write!(f, "http://{address}"),
            Listen::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// How lines of the log look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// Words and `name=value`.
    #[default]
    Text,
    /// A JSON object a line.
    Json,
}

/// A server.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ServeOptions {
    pub(crate) listen: Listen,
    /// A file with the key that clients must have.
    pub(crate) key_file: Option<PathBuf>,
    /// Whether others than this machine may come in without a key.
    pub(crate) anyone: bool,
    /// Origins whose pages may ask.
    pub(crate) cors: Vec<String>,
    /// Requests that may wait.
    pub(crate) queue: usize,
    /// Conversations whose state is kept.
    pub(crate) sessions: usize,
    /// Bytes of it.
    pub(crate) session_bytes: usize,
    /// How long a request may take, waiting included.
    pub(crate) deadline: Duration,
    /// How long running answers may go on after a signal.
    pub(crate) stop_limit: Duration,
    /// Bytes of a request's body.
    pub(crate) max_body: usize,
    /// Tokens of an answer.
    pub(crate) max_new: Option<usize>,
    /// How answers are wanted where the request says nothing of it.
    pub(crate) wishes: Wishes,
    pub(crate) log: LogFormat,
    /// The model's name for clients; else the bundle's directory gives it.
    pub(crate) name: Option<String>,
    pub(crate) run: RunOptions,
}

/// Everything about a server as given.
#[derive(Debug, Default)]
pub(crate) struct Given {
    listen: Option<Listen>,
    key_file: Option<PathBuf>,
    anyone: bool,
    cors: Vec<String>,
    queue: Option<usize>,
    sessions: Option<usize>,
    session_mib: Option<usize>,
    deadline: Option<usize>,
    stop_limit: Option<usize>,
    max_body_mib: Option<usize>,
    log: LogFormat,
    name: Option<String>,
}

/// A day.
const MAX_SECONDS: usize = 86_400;
const SECONDS: &str = "whole seconds from 1 to 86400";

impl Given {
    /// Takes a flag that means something to a server alone.
    pub(crate) fn take(&mut self, spec: &'static FlagSpec, value: OsString) -> Result<(), UsageError> {
        match spec.flag {
            Flag::Listen => {
                let value = text(spec, value)?;
                let expected = "an address and a port such as 127.0.0.1:8080, or unix:PATH";
                self.listen = Some(Listen::from_text(&value).ok_or_else(|| wrong(spec, &value, expected))?);
            }
            Flag::ApiKeyFile => self.key_file = Some(value.into()),
            Flag::Anyone => self.anyone = true,
            Flag::Cors => {
                let origin = text(spec, value)?;
                let fine = origin == "*" || origin.contains("://") && origin.chars().all(|c| c.is_ascii_graphic());
                if !fine || origin.ends_with('/') {
                    return Err(wrong(spec, &origin, "an origin such as https://example.org, without a path, or *"));
                }
                self.cors.push(origin);
            }
            Flag::Queue => self.queue = Some(bounded(spec, value, 10_000, "a whole number from 1 to 10000")?),
            Flag::Sessions => self.sessions = Some(bounded(spec, value, 10_000, "a whole number from 1 to 10000")?),
            Flag::SessionMemory => {
                self.session_mib = Some(bounded(spec, value, 1 << 20, "MiB from 1 to 1048576")?);
            }
            Flag::Deadline => self.deadline = Some(bounded(spec, value, MAX_SECONDS, SECONDS)?),
            Flag::StopLimit => self.stop_limit = Some(bounded(spec, value, MAX_SECONDS, SECONDS)?),
            Flag::MaxBody => self.max_body_mib = Some(bounded(spec, value, 1024, "MiB from 1 to 1024")?),
            Flag::LogFormat => {
                let value = text(spec, value)?;
                self.log = match value.as_str() {
                    "text" => LogFormat::Text,
                    "json" => LogFormat::Json,
                    _ => return Err(wrong(spec, &value, "text or json")),
                };
            }
            Flag::ModelName => {
                let name = text(spec, value)?;
                if name.is_empty() || name.chars().any(char::is_control) {
                    return Err(wrong(spec, &name, "a name"));
                }
                self.name = Some(name);
            }
            _ => {}
        }
        Ok(())
    }

    /// What was given, with what else there is.
    pub(crate) fn options(self, run: RunOptions, max_new: Option<usize>, wishes: Wishes) -> ServeOptions {
        let seconds = |given: Option<usize>, default: u64| Duration::from_secs(given.map_or(default, |s| s as u64));
        ServeOptions {
            listen: self.listen.unwrap_or(Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 8080)))),
            key_file: self.key_file,
            anyone: self.anyone,
            cors: self.cors,
            queue: self.queue.unwrap_or(32),
            sessions: self.sessions.unwrap_or(8),
            session_bytes: self.session_mib.unwrap_or(1024) << 20,
            deadline: seconds(self.deadline, 600),
            stop_limit: seconds(self.stop_limit, 30),
            max_body: self.max_body_mib.unwrap_or(32) << 20,
            max_new,
            wishes,
            log: self.log,
            name: self.name,
            run,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        let tcp = |text: &str| Some(Listen::Tcp(text.parse().unwrap()));
        assert_eq!(Listen::from_text("127.0.0.1:0"), tcp("127.0.0.1:0"));
        assert_eq!(Listen::from_text("[::1]:80"), tcp("[::1]:80"));
        assert_eq!(Listen::from_text("localhost:81"), tcp("127.0.0.1:81"));
        assert_eq!(Listen::from_text("unix:/run/x"), Some(Listen::Unix("/run/x".into())));
        for bad in ["", "unix:", "8080", "127.0.0.1", "127.0.0.1:99999", "example.org:80", "::1:80:"] {
            assert_eq!(Listen::from_text(bad), None, "{bad}");
        }
        for (text, local) in [("127.9.9.9:1", true), ("[::1]:1", true), ("0.0.0.0:1", false), ("[::]:1", false)] {
            assert_eq!(Listen::from_text(text).unwrap().is_local(), local, "{text}");
        }
    }
}
