//! `cargo xtask vm -- <arguments of qwen35-direct>`: the distribution's own amdxdna driver, in a virtual machine, on a
//! virtual PCI NPU.
//!
//! The machine's file system holds our static binary as init, the modules and what was asked for, so that this is a
//! test of a minimal Linux image at the same time.

mod boot;
mod fetch;
mod guest;
mod initramfs;

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Why a virtual machine could not be run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VmError {
    /// {0}
    #[error("{0}")]
    Usage(&'static str),
    /// A part is missing.
    #[error("{0}")]
    Missing(String),
    /// apt has no Debian mirror.
    #[error(
        "no Debian mirror in the host's apt sources; name one with --mirror URL, or bring your own with --qemu FILE --kernel FILE --modules DIR"
    )]
    NoMirror,
    /// The mirror did not give what was asked for, for lack of a network or of the package.
    #[error("apt-get {what}: {said} (another mirror: `cargo xtask vm --mirror URL`)")]
    Fetch {
        /// What was asked of apt-get.
        what: String,
        /// Its last words.
        said: String,
    },
    /// A tool failed.
    #[error("{tool}: {what}")]
    Tool {
        /// Its name.
        tool: &'static str,
        /// Its last words.
        what: String,
    },
    /// A file operation failed.
    #[error("{what} {}: {source}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which file.
        path: PathBuf,
        /// What came back.
        source: io::Error,
    },
    /// The machine did not end in time.
    #[error("the machine was still running after {seconds} s and was stopped; its console is in {}", console.display())]
    Deadline {
        /// The limit.
        seconds: u64,
        /// The console's log.
        console: PathBuf,
    },
    /// Init said nothing of an exit code.
    #[error("the machine ended without an exit code of the command; its console is in {}", .0.display())]
    NoExit(PathBuf),
}

impl VmError {
    fn io(what: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { what, path: path.to_owned(), source }
    }
}

/// Writes a file so that a broken run leaves no half of it.
fn write_whole(to: &Path, bytes: &[u8]) -> Result<(), VmError> {
    let partial = to.with_extension("partial");
    fs::write(&partial, bytes).map_err(|e| VmError::io("write", &partial, e))?;
    fs::rename(&partial, to).map_err(|e| VmError::io("rename", &partial, e))
}

/// What `cargo xtask vm` was asked for.
#[derive(Debug)]
struct Request {
    given: fetch::Given,
    npu: npu_model::Npu,
    protocol: (u32, u32),
    addressing: boot::Addressing,
    memory_mib: u32,
    seconds: u64,
    binary: Option<PathBuf>,
    program: guest::Program,
    trees: Vec<(String, PathBuf)>,
    device: bool,
    command: Vec<String>,
}

/// For a release build from nothing on two cores.
const BUILD: Duration = Duration::from_secs(20 * 60);
/// What the binary of the machine is built for.
const TRIPLE: &str = "x86_64-unknown-linux-musl";

const HELP: &str = "\
cargo xtask vm [options] -- <arguments of qwen35-direct>
  --npu 4|5|6           the virtual part (default 4: Strix Point)
  --protocol M.N        firmware protocol (default 6.18)
  --carveout            contiguous buffers in a reserved range instead of force_iova=1
  --no-device           boot without an NPU
  --put HOST=GUEST      copies a file or directory of the host into the machine (repeatable)
  --xrt                 runs xrt-smi of Debian's XRT instead: `cargo xtask vm --xrt -- examine`
  --program FILE        runs this program of the host instead, dynamic or not, with Debian's C and C++ libraries
  --memory MIB          the machine's memory (default 2048)
  --seconds N           limit for the whole boot (default 300)
  --binary FILE         a static qwen35-direct (default: built for x86_64-unknown-linux-musl, release)
  --qemu FILE           a QEMU of at least 10.1 (default: the system's, else fetched)
  --kernel FILE --modules DIR   an image and its `kernel/` module tree (default: fetched)
  --mirror URL          Debian mirror to fetch from (default: that of the host's apt)";

impl Default for Request {
    fn default() -> Self {
        Self {
            given: fetch::Given::default(),
            npu: npu_model::Npu::Npu4,
            protocol: (6, 18),
            addressing: boot::Addressing::Iova,
            memory_mib: 2048,
            seconds: 300,
            binary: None,
            program: guest::Program::Ours,
            trees: Vec::new(),
            device: true,
            command: Vec::new(),
        }
    }
}

impl Request {
    fn parse(arguments: &[OsString]) -> Result<Self, String> {
        use lexopt::prelude::*;
        let mut parser = lexopt::Parser::from_args(arguments.iter().cloned());
        let mut r = Self::default();
        let bad = |e: lexopt::Error| format!("{e}\n{HELP}");
        while let Some(arg) = parser.next().map_err(bad)? {
            match arg {
                Long("npu") => {
                    r.npu = match parser.value().map_err(bad)?.to_str() {
                        Some("4") => npu_model::Npu::Npu4,
                        Some("5") => npu_model::Npu::Npu5,
                        Some("6") => npu_model::Npu::Npu6,
                        _ => return Err(format!("--npu wants 4, 5 or 6\n{HELP}")),
                    };
                }
                Long("protocol") => {
                    let text = parser.value().map_err(bad)?.string().map_err(bad)?;
                    let parsed = text.split_once('.').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
                    r.protocol = parsed.ok_or_else(|| format!("--protocol wants MAJOR.MINOR, not {text:?}\n{HELP}"))?;
                }
                Long("carveout") => r.addressing = boot::Addressing::Carveout,
                Long("no-device") => r.device = false,
                Long("put") => {
                    let text = parser.value().map_err(bad)?.string().map_err(bad)?;
                    let (host, guest) =
                        text.split_once('=').ok_or_else(|| format!("--put wants HOST=GUEST, not {text:?}\n{HELP}"))?;
                    r.trees.push((guest.trim_matches('/').to_owned(), PathBuf::from(host)));
                }
                Long("xrt") => r.program = guest::Program::Xrt,
                Long("program") => r.program = guest::Program::Host(parser.value().map_err(bad)?.into()),
                Long("memory") => r.memory_mib = parser.value().map_err(bad)?.parse().map_err(bad)?,
                Long("seconds") => r.seconds = parser.value().map_err(bad)?.parse().map_err(bad)?,
                Long("binary") => r.binary = Some(parser.value().map_err(bad)?.into()),
                Long("qemu") => r.given.qemu = Some(parser.value().map_err(bad)?.into()),
                Long("kernel") => r.given.kernel = Some(parser.value().map_err(bad)?.into()),
                Long("modules") => r.given.modules = Some(parser.value().map_err(bad)?.into()),
                Long("mirror") => r.given.mirror = Some(parser.value().map_err(bad)?.string().map_err(bad)?),
                Long("help") => return Err(HELP.to_owned()),
                Value(first) => {
                    r.command.push(first.string().map_err(bad)?);
                    for word in parser.raw_args().map_err(bad)? {
                        r.command.push(word.string().map_err(bad)?);
                    }
                }
                other => return Err(format!("{}\n{HELP}", other.unexpected())),
            }
        }
        Ok(r)
    }
}

/// Runs the command; `Ok(true)` where it ended with exit code 0, `Err` for wrong usage.
pub(crate) fn run(arguments: &[OsString]) -> Result<bool, String> {
    let request = Request::parse(arguments)?;
    Ok(match machine(&request, true) {
        Ok(booted) => {
            let mut err = io::stderr().lock();
            let _ = err.write_all(&booted.stderr);
            let _ = writeln!(
                err,
                "vm: exit code {}, command started {} s after the kernel, {:.1} s in all",
                booted.exit.map_or_else(|| "unknown".to_owned(), |c| c.to_string()),
                booted.start_seconds.map_or_else(|| "?".to_owned(), |s| format!("{s:.1}")),
                booted.seconds
            );
            booted.exit == Some(0)
        }
        Err(e) => {
            eprintln!("vm: {e}");
            false
        }
    })
}

/// What one command in the machine came to.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) exit: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) seconds: f64,
}

/// Whether a machine can be had here; else why not.
pub(crate) fn available() -> Result<(), String> {
    fetch::possible().map_err(|why| {
        format!("{why}; `cargo xtask vm` takes your own machine by --qemu FILE, --kernel FILE and --modules DIR")
    })?;
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let found = Command::new(rustc).args(["--print", "target-libdir", "--target", TRIPLE]).output();
    let library = found.map(|out| PathBuf::from(String::from_utf8_lossy(&out.stdout).trim())).unwrap_or_default();
    if !library.is_dir() {
        return Err(format!("the target {TRIPLE} is not installed: `rustup target add {TRIPLE}`"));
    }
    Ok(())
}

/// Gets the parts of the machine. `Ok(Err(..))` is the reason why the mirror does not give them.
pub(crate) fn fetched(root: &Path) -> Result<Result<(), String>, String> {
    had(fetch::parts(&target_directory(root).join("vm"), &fetch::Given::default()))
}

/// Gets XRT's packages, answering as [`fetched`].
pub(crate) fn fetched_xrt(root: &Path) -> Result<Result<(), String>, String> {
    had(fetch::xrt(&target_directory(root).join("vm"), &fetch::Given::default()))
}

fn had<T>(fetched: Result<T, VmError>) -> Result<Result<(), String>, String> {
    match fetched {
        Ok(_) => Ok(Ok(())),
        Err(why @ VmError::Fetch { .. }) => Ok(Err(why.to_string())),
        Err(why) => Err(why.to_string()),
    }
}

/// The static binary of this tree, built where it is out of date.
pub(crate) fn static_binary_of(root: &Path) -> Result<PathBuf, String> {
    static_binary(root, &target_directory(root)).map_err(|e| e.to_string())
}

/// Runs one command of `binary` in the machine, with a default NPU.
pub(crate) fn ask(binary: &Path, trees: &[(&str, PathBuf)], command: &[String]) -> Result<Answered, String> {
    answered(&Request {
        binary: Some(binary.to_owned()),
        trees: trees.iter().map(|(to, from)| ((*to).to_owned(), from.clone())).collect(),
        command: command.to_vec(),
        ..Request::default()
    })
}

/// As [`ask`], of XRT's `xrt-smi`; `binary` is init.
pub(crate) fn ask_xrt(binary: &Path, command: &[String]) -> Result<Answered, String> {
    answered(&Request {
        binary: Some(binary.to_owned()),
        program: guest::Program::Xrt,
        command: command.to_vec(),
        ..Request::default()
    })
}

fn answered(request: &Request) -> Result<Answered, String> {
    let booted = machine(request, false).map_err(|e| e.to_string())?;
    Ok(Answered {
        exit: booted.exit.unwrap_or(-1),
        stdout: String::from_utf8_lossy(&booted.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&booted.stderr).into_owned(),
        seconds: booted.seconds,
    })
}

/// The kernel's exported headers, fetched where they are not here yet: what goes behind a compiler's `-I`.
pub(crate) fn kernel_headers(root: &Path) -> Result<PathBuf, String> {
    fetch::possible()?;
    fetch::headers(&target_directory(root).join("vm"), &fetch::Given::default()).map_err(|e| e.to_string())
}

pub(crate) fn target_directory(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}

/// Boots the machine once.
fn machine(request: &Request, live: bool) -> Result<boot::Booted, VmError> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."));
    let target = target_directory(root);
    let home = target.join("vm");
    let parts = fetch::parts(&home, &request.given)?;
    let binary = match &request.binary {
        Some(b) => b.clone(),
        None => static_binary(root, &target)?,
    };
    static BOOTS: AtomicU32 = AtomicU32::new(0);
    let name = format!("run-{}-{}", std::process::id(), BOOTS.fetch_add(1, Ordering::Relaxed));
    let scratch = home.join(&name);
    fs::create_dir_all(&scratch).map_err(|e| VmError::io("create", &scratch, e))?;
    let initramfs = scratch.join("initramfs.cpio");
    let carveout = request.addressing == boot::Addressing::Carveout;
    let writes = if carveout && request.device {
        vec![("/sys/kernel/debug/accel/0000:00:02.0/carveout".to_owned(), "0x10000000@0x60000000".to_owned())]
    } else {
        Vec::new()
    };
    let mut trees = guest::trees(&request.program, &home, &request.given)?;
    trees.extend(request.trees.iter().cloned());
    let size = initramfs::write(
        &initramfs,
        &initramfs::Contents {
            binary: &binary,
            modules: &parts.modules,
            parameters: request.addressing.module_parameters(),
            firmware: if request.npu == npu_model::Npu::Npu5 { "17f0_11" } else { "17f0_10" },
            trees: &trees,
            writes: &writes,
            program: request.program.path(),
            command: &request.command,
        },
    )?;
    if live {
        let program = fs::metadata(&binary).map_or(0, |m| m.len());
        eprintln!(
            "vm: initramfs {:.1} MB, of which the static binary {:.1} MB",
            size as f64 / 1e6,
            program as f64 / 1e6
        );
    }
    // A socket's path ends at 107 bytes; a build directory may lie deeper than that.
    let socket = std::env::temp_dir().join(format!("qwen35-npu-{name}.sock"));
    let server = if request.device {
        let config = npu_model::Config { npu: request.npu, protocol: request.protocol, ..npu_model::Config::default() };
        let log = scratch.join("npu.log");
        Some(npu_model::pci::serve(&socket, config, &log).map_err(|e| VmError::io("serve the NPU at", &socket, e))?)
    } else {
        None
    };
    let booted = boot::run(&boot::Boot {
        parts: &parts,
        initramfs: &initramfs,
        socket: server.is_some().then_some(socket.as_path()),
        addressing: request.addressing,
        memory_mib: request.memory_mib,
        deadline: Duration::from_secs(request.seconds),
        scratch: &scratch,
        live,
    });
    let _ = fs::remove_file(&initramfs);
    let _ = fs::remove_file(&socket);
    let booted = booted?;
    if let Some(fault) = server.and_then(|npu| npu.last_fault()) {
        eprintln!("vm: the NPU's last failed command: {fault}");
    }
    if booted.exit.is_none() {
        return Err(VmError::NoExit(booted.console));
    }
    if booted.exit == Some(0) {
        // Logs are for failures.
        let _ = fs::remove_dir_all(&scratch);
    }
    Ok(booted)
}

/// Builds the static binary.
fn static_binary(root: &Path, target: &Path) -> Result<PathBuf, VmError> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["build", "--quiet", "--release", "--package", "qwen35-direct", "--target", TRIPLE]).current_dir(root);
    let status = crate::timed::status(&mut command, BUILD).map_err(|what| VmError::Tool { tool: "cargo", what })?;
    if !status.success() {
        return Err(VmError::Tool { tool: "cargo", what: format!("build --target {TRIPLE}: {status}") });
    }
    Ok(target.join(TRIPLE).join("release/qwen35-direct"))
}
