//! An image in a machine that goes on: its console line by line as it comes, a port of this host to its server, a serial
//! port for tests, and its power button.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use npu_model::pci::PciNpu;

use super::{VmError, boot, fetch, target_directory};

/// What the image's kernel is told besides, for the virtual NPU's sake and for a faster emulation.
const MORE: &str = "mitigations=off nokaslr intel_iommu=on amdxdna.force_iova=1 transparent_hugepage_shmem=always";
/// Where the machine's server listens.
const PORT: u16 = 8080;
const MEMORY_MIB: u32 = 2048;
/// For QEMU to make its sockets.
const SOCKET: Duration = Duration::from_secs(10);

/// A line of the console.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    /// Since power-on, by this host's clock.
    pub(crate) at: Duration,
    /// What the NPU's thread of commands had worked until then.
    pub(crate) worked: Duration,
    pub(crate) text: String,
}

/// A running machine. Dropped, it is switched off.
#[derive(Debug)]
pub(crate) struct Live {
    child: Child,
    npu: PciNpu,
    started: Instant,
    lines: Receiver<Line>,
    /// What has been read of it.
    said: Vec<Line>,
    /// `127.0.0.1:PORT`.
    pub(crate) at: String,
    scratch: PathBuf,
    echo: bool,
}

impl Live {
    /// Switches a machine on with the image in `image`. `more` is for its kernel, `disk` becomes `/dev/vda`, `echo` shows
    /// its console.
    pub(crate) fn boot(root: &Path, image: &Path, more: &str, disk: Option<&Path>, echo: bool) -> Result<Live, String> {
        let home = target_directory(root).join("vm");
        let qemu = fetch::qemu(&home, &fetch::Given::default()).map_err(|e| e.to_string())?;
        // A socket's path ends at 107 bytes; a build directory may lie deeper than that.
        let scratch = std::env::temp_dir().join(format!("qwen35-live-{}", std::process::id()));
        fs::create_dir_all(&scratch).map_err(|e| format!("create {}: {e}", scratch.display()))?;
        let begun = start(&qemu, (image, disk), more, &scratch);
        let (mut child, npu, started, at) = match begun {
            Ok(begun) => begun,
            Err(why) => {
                let _ = fs::remove_dir_all(&scratch);
                return Err(why.to_string());
            }
        };
        let (tell, lines) = channel();
        if let Some(console) = child.stdout.take() {
            let npu = npu.clone();
            std::thread::spawn(move || {
                let mut reader = BufReader::new(console);
                let mut bytes = Vec::new();
                while matches!(reader.read_until(b'\n', &mut bytes), Ok(1..)) {
                    let text = String::from_utf8_lossy(&bytes).trim_end().to_owned();
                    let worked = Duration::from_nanos(npu.counts().worked_ns);
                    let _ = tell.send(Line { at: started.elapsed(), worked, text });
                    bytes.clear();
                }
            });
        }
        if let Some(mut messages) = child.stderr.take() {
            std::thread::spawn(move || {
                let mut text = String::new();
                let _ = messages.read_to_string(&mut text);
                for line in text.lines().filter(|line| !line.contains(": warning: ")) {
                    eprintln!("vm: QEMU: {line}");
                }
            });
        }
        Ok(Live { child, npu, started, lines, said: Vec::new(), at, scratch, echo })
    }

    /// Since power-on.
    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// What the NPU's thread of commands has worked.
    pub(crate) fn worked(&self) -> Duration {
        Duration::from_nanos(self.npu.counts().worked_ns)
    }

    /// How many lines have been read, to look for later ones.
    pub(crate) fn mark(&self) -> usize {
        self.said.len()
    }

    /// The first line from the `from`th on with these words in it, waited for.
    pub(crate) fn line(&mut self, from: usize, words: &str, limit: Duration) -> Result<Line, String> {
        let until = Instant::now() + limit;
        let mut next = from;
        loop {
            if let Some(found) = self.said.iter().skip(next).find(|line| line.text.contains(words)) {
                return Ok(found.clone());
            }
            next = self.said.len().max(from);
            match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    if self.echo {
                        crate::print(&format!("[{:8.3}] {}\n", line.at.as_secs_f64(), line.text));
                    }
                    self.said.push(line);
                }
                Err(RecvTimeoutError::Timeout) => {
                    return Err(format!("no line with {words:?} within {} s; {}", limit.as_secs(), self.tail()));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(format!("the machine ended without a line with {words:?}; {}", self.tail()));
                }
            }
        }
    }

    /// The console's last lines.
    fn tail(&self) -> String {
        let from = self.said.len().saturating_sub(12);
        let lines: Vec<&str> = self.said[from..].iter().map(|line| &*line.text).collect();
        format!("its console ends in\n{}", lines.join("\n"))
    }

    /// Gives init a line of a script.
    pub(crate) fn tell(&self, line: &str) -> Result<(), String> {
        let mut port = socket(&self.scratch.join("control"))?;
        port.write_all(format!("{line}\n").as_bytes()).map_err(|e| format!("{line}: {e}"))
    }

    /// Gives init a line of a script and waits for its end.
    pub(crate) fn order(&mut self, line: &str, limit: Duration) -> Result<(), String> {
        let mark = self.mark();
        self.tell(line)?;
        let verb = line.split(' ').next().unwrap_or(line);
        let said = self.line(mark, &format!("qwen35-init: step {verb} "), limit)?;
        if said.text.contains(" failed: ") { Err(said.text) } else { Ok(()) }
    }

    /// Presses the power button.
    pub(crate) fn press_power(&self) -> Result<(), String> {
        let why = |e: std::io::Error| format!("QEMU's monitor: {e}");
        let mut monitor = socket(&self.scratch.join("monitor"))?;
        monitor.set_read_timeout(Some(SOCKET)).map_err(why)?;
        let mut answers = BufReader::new(monitor.try_clone().map_err(why)?);
        let mut line = String::new();
        answers.read_line(&mut line).map_err(why)?;
        for command in ["qmp_capabilities", "system_powerdown"] {
            monitor.write_all(format!("{{\"execute\": \"{command}\"}}\n").as_bytes()).map_err(why)?;
            line.clear();
            answers.read_line(&mut line).map_err(why)?;
        }
        Ok(())
    }

    /// Waits for the machine's end; init's exit code.
    pub(crate) fn end(mut self, limit: Duration) -> Result<i32, String> {
        let said = self.line(0, "qwen35-init: exit code ", limit)?;
        let until = Instant::now() + limit;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > until {
                return Err(format!("the machine did not switch itself off; {}", self.tail()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let code = said.text.rsplit(' ').next().and_then(|code| code.parse().ok());
        code.ok_or_else(|| format!("no exit code: {}", said.text))
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.scratch);
    }
}

fn start(
    qemu: &[String],
    (image, disk): (&Path, Option<&Path>),
    more: &str,
    scratch: &Path,
) -> Result<(Child, PciNpu, Instant, String), VmError> {
    let path = image.join("cmdline");
    let cmdline = fs::read_to_string(&path).map_err(|e| VmError::io("read", &path, e))?;
    let socket = scratch.join("npu");
    let config = npu_model::Config { protocol: (6, 18), ..npu_model::Config::default() };
    let npu = npu_model::pci::serve(&socket, config, &scratch.join("npu.log"))
        .map_err(|e| VmError::io("serve the NPU at", &socket, e))?;
    // A port that is free now, and will be a moment later but for bad luck.
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let at = free.map_err(|e| VmError::io("find a port for", image, e))?;
    let mut c = boot::machine(qemu, MEMORY_MIB, Some(&socket))?;
    c.args(["-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console", "-chardev"])
        .arg(format!("socket,id=control,path={},server=on,wait=off", scratch.join("control").display()))
        .args(["-serial", "chardev:control", "-qmp"])
        .arg(format!("unix:{},server=on,wait=off", scratch.join("monitor").display()))
        .arg("-netdev")
        .arg(format!("user,id=net,hostfwd=tcp:{at}-:{PORT}"))
        .args(["-device", "virtio-net-pci,netdev=net,romfile="])
        .args(disk.iter().flat_map(|disk| {
            let drive = format!("file={},format=raw,if=virtio,readonly=on", disk.display());
            ["-drive".to_owned(), drive]
        }))
        .arg("-kernel")
        .arg(image.join("vmlinuz"))
        .arg("-initrd")
        .arg(image.join("initramfs.img"))
        .arg("-append")
        // What stands behind two dashes stays there.
        .arg(format!("{} {MORE} {more}", cmdline.trim()));
    let child = c
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| VmError::Tool { tool: "qemu-system-x86_64", what: e.to_string() })?;
    Ok((child, npu, Instant::now(), at.to_string()))
}

/// Connects to a socket of QEMU's.
fn socket(path: &Path) -> Result<UnixStream, String> {
    let until = Instant::now() + SOCKET;
    loop {
        match UnixStream::connect(path) {
            Ok(stream) => return Ok(stream),
            Err(e) if Instant::now() > until => return Err(format!("{}: {e}", path.display())),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}
