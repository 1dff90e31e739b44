//! Runs QEMU once: boots, lets init run the command, collects what it printed and its exit code.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::VmError;
use super::fetch::Parts;

/// How the driver reaches memory, which fixes the kernel's and the module's parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Addressing {
    /// `force_iova=1`: an IOMMU domain of the driver's own.
    Iova,
    /// Physically contiguous buffers in a reserved range.
    Carveout,
}

impl Addressing {
    /// Parameters of the module.
    pub(super) fn module_parameters(self) -> &'static str {
        match self {
            Self::Iova => "force_iova=1",
            Self::Carveout => "",
        }
    }

    fn kernel_parameters(self) -> &'static str {
        match self {
            Self::Iova => "intel_iommu=on",
            Self::Carveout => "iommu=pt intel_iommu=on memmap=768M$0x40000000",
        }
    }
}

/// One boot.
#[derive(Debug)]
pub(super) struct Boot<'a> {
    pub parts: &'a Parts,
    pub initramfs: &'a Path,
    /// The vfio-user server's socket; without it the machine has no NPU.
    pub socket: Option<&'a Path>,
    pub addressing: Addressing,
    pub memory_mib: u32,
    pub deadline: Duration,
    /// Where logs go.
    pub scratch: &'a Path,
    /// Copies the command's output to ours while it runs.
    pub live: bool,
}

/// What came out of it.
#[derive(Debug)]
pub(super) struct Booted {
    pub exit: Option<i32>,
    /// What the command printed; printed already where the boot was live.
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    /// What the kernel and init said, and the file that holds it.
    pub console: String,
    pub console_file: PathBuf,
    /// Seconds from power-on to the command's start, as the guest's own clock has it.
    pub start_seconds: Option<f64>,
    pub seconds: f64,
}

/// The line by which init reports the command's end on the console.
const EXIT_MARK: &str = "qwen35-init: exit code ";
/// The line by which init reports that it starts the command.
const START_MARK: &str = "qwen35-init: start at ";

/// Ten times what a busy host needs until init starts.
const BEGIN: Duration = Duration::from_secs(90);

/// QEMU with a machine as the driver wants it, without ports, kernel or network.
pub(super) fn machine(qemu: &[String], memory_mib: u32, socket: Option<&Path>) -> Result<Command, VmError> {
    let (program, first) = qemu.split_first().ok_or(VmError::Usage("no QEMU program"))?;
    let mut c = Command::new(program);
    c.args(first)
        .args(["-M", "q35", "-accel", "tcg,thread=multi", "-cpu", "Nehalem,-hypervisor", "-smp", "2"])
        .arg("-m")
        .arg(format!("{memory_mib}M"))
        .arg("-object")
        .arg(format!("memory-backend-memfd,id=mem,size={memory_mib}M,share=on"))
        .args(["-numa", "node,memdev=mem", "-device", "intel-iommu,caching-mode=on,intremap=off"])
        .args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
    if let Some(socket) = socket {
        c.arg("-device")
            .arg(format!(r#"{{"driver":"vfio-user-pci","socket":{{"path":"{}","type":"unix"}}}}"#, socket.display()));
    }
    Ok(c)
}

pub(super) fn run(boot: &Boot<'_>) -> Result<Booted, VmError> {
    let console = boot.scratch.join("console.log");
    let stderr = boot.scratch.join("stderr.log");
    let append = format!(
        "console=ttyS0 panic=-1 quiet mitigations=off nokaslr transparent_hugepage_shmem=always {}",
        boot.addressing.kernel_parameters()
    );
    let mut c = machine(&boot.parts.qemu, boot.memory_mib, boot.socket)?;
    c.arg("-serial")
        .arg(format!("file:{}", console.display()))
        .args(["-chardev", "stdio,id=out,signal=off", "-serial", "chardev:out"])
        .arg("-serial")
        .arg(format!("file:{}", stderr.display()))
        .arg("-kernel")
        .arg(&boot.parts.kernel)
        .arg("-initrd")
        .arg(boot.initramfs)
        .arg("-append")
        .arg(append);
    let started = Instant::now();
    let mut child = c
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| VmError::Tool { tool: "qemu-system-x86_64", what: e.to_string() })?;
    let mut out = child.stdout.take().ok_or(VmError::Usage("QEMU's output was not piped"))?;
    let mut messages = child.stderr.take().ok_or(VmError::Usage("QEMU's messages were not piped"))?;
    let live = boot.live;
    let reader = std::thread::spawn(move || {
        let mut all = Vec::new();
        let mut chunk = [0_u8; 4096];
        while let Ok(n) = out.read(&mut chunk) {
            if n == 0 {
                break;
            }
            if live {
                let mut to = std::io::stdout().lock();
                let shown: Vec<u8> = chunk[..n].iter().copied().filter(|&b| b != super::step::SEPARATOR).collect();
                let _ = to.write_all(&shown).and_then(|()| to.flush());
            }
            all.extend_from_slice(&chunk[..n]);
        }
        all
    });
    let complaints = std::thread::spawn(move || {
        let mut text = String::new();
        let _ = messages.read_to_string(&mut text);
        text
    });
    let mut begun = false;
    loop {
        match child.try_wait() {
            Ok(Some(_)) => break,
            Ok(None) if !begun && started.elapsed() > BEGIN => {
                begun = fs::read(&console).is_ok_and(|log| String::from_utf8_lossy(&log).contains(START_MARK));
                if !begun {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(VmError::NoStart { seconds: BEGIN.as_secs(), console });
                }
            }
            Ok(None) if started.elapsed() < boot.deadline => std::thread::sleep(Duration::from_millis(20)),
            Ok(None) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(VmError::Deadline { seconds: boot.deadline.as_secs(), console });
            }
            Err(e) => return Err(VmError::Tool { tool: "qemu-system-x86_64", what: e.to_string() }),
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    let stdout = reader.join().unwrap_or_default();
    let complaints = complaints.join().unwrap_or_default();
    let log = fs::read(&console).unwrap_or_default();
    let log = String::from_utf8_lossy(&log).into_owned();
    let after = |mark: &str| log.lines().rev().find_map(|l| l.split(mark).nth(1).map(|r| r.trim().to_owned()));
    let exit = after(EXIT_MARK).and_then(|t| t.parse().ok());
    if exit.is_none() && stdout.is_empty() && !complaints.trim().is_empty() {
        return Err(VmError::Tool {
            tool: "qemu-system-x86_64",
            what: complaints.lines().last().unwrap_or_default().to_owned(),
        });
    }
    let start_seconds = after(START_MARK).and_then(|t| t.parse().ok());
    Ok(Booted {
        exit,
        stdout,
        stderr: fs::read(&stderr).unwrap_or_default(),
        start_seconds,
        console: log,
        console_file: console,
        seconds,
    })
}
