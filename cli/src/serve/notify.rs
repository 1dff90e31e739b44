//! Telling systemd: ready, stopping, still alive. A datagram each, to the socket that the environment names.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Who is told, if anybody.
#[derive(Debug, Default)]
pub(super) struct Notify {
    to: Option<(UnixDatagram, SocketAddr)>,
    /// How often a sign of life is wanted.
    watchdog: Option<Duration>,
}

impl Notify {
    /// As the environment says; nobody where it says nothing.
    pub(super) fn from_environment() -> Notify {
        let variable = |name: &str| std::env::var(name).ok();
        let usec = variable("WATCHDOG_USEC").and_then(|text| text.parse().ok());
        let meant = variable("WATCHDOG_PID").is_none_or(|pid| pid == std::process::id().to_string());
        Notify::new(variable("NOTIFY_SOCKET").as_deref(), usec.filter(|_| meant))
    }

    fn new(socket: Option<&str>, watchdog_usec: Option<u64>) -> Notify {
        let address = socket.and_then(|socket| match socket.strip_prefix('@') {
            Some(name) => SocketAddr::from_abstract_name(name).ok(),
            None => SocketAddr::from_pathname(socket).ok(),
        });
        let to = address.and_then(|address| Some((UnixDatagram::unbound().ok()?, address)));
        if let Some((socket, _)) = &to {
            // A manager that does not listen must not hold up an answer.
            let _ = socket.set_nonblocking(true);
        }
        let watchdog = watchdog_usec.filter(|usec| to.is_some() && *usec > 0).map(Duration::from_micros);
        Notify { to, watchdog }
    }

    fn tell(&self, text: &str) {
        if let Some((socket, address)) = &self.to {
            // It is a service to the manager; one that has gone misses nothing.
            let _ = socket.send_to_addr(text.as_bytes(), address);
        }
    }

    /// Answers can be had.
    pub(super) fn ready(&self) {
        self.tell("READY=1\nSTATUS=ready");
    }

    /// No more answers can be had.
    pub(super) fn stopping(&self) {
        self.tell("STOPPING=1\nSTATUS=stopping");
    }

    /// What is the matter, in a line.
    pub(super) fn status(&self, text: &str) {
        self.tell(&format!("STATUS={}", text.replace('\n', " ")));
    }

    /// A sign of life.
    pub(super) fn alive(&self) {
        self.tell("WATCHDOG=1");
    }

    /// How often to give one: twice as often as is wanted.
    pub(super) fn period(&self) -> Option<Duration> {
        self.watchdog.map(|period| period / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manager_hears_everything_by_path_and_by_name() {
        let path = std::env::temp_dir().join(format!("qwen35-notify-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let by_path = UnixDatagram::bind(&path).unwrap();
        let name = format!("qwen35-notify-{}", std::process::id());
        let by_name = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        for (manager, socket) in [(by_path, path.to_str().unwrap().to_owned()), (by_name, format!("@{name}"))] {
            let notify = Notify::new(Some(&socket), Some(2_000_000));
            assert_eq!(notify.period(), Some(Duration::from_secs(1)));
            notify.ready();
            notify.status("two\nlines");
            notify.alive();
            notify.stopping();
            let mut heard = Vec::new();
            for _ in 0..4 {
                let mut bytes = [0; 64];
                let len = manager.recv(&mut bytes).unwrap();
                heard.push(String::from_utf8(bytes[..len].to_vec()).unwrap());
            }
            let wanted = ["READY=1\nSTATUS=ready", "STATUS=two lines", "WATCHDOG=1", "STOPPING=1\nSTATUS=stopping"];
            assert_eq!(heard, wanted);
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn nobody_is_told_where_nobody_asked() {
        let notify = Notify::new(None, Some(1));
        assert_eq!(notify.period(), None);
        notify.ready();
        Notify::new(Some("/nowhere/at/all"), None).ready();
    }
}
