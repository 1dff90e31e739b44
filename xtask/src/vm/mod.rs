//! `cargo xtask vm -- <arguments of qwen35-direct>`: the distribution's own amdxdna driver, in a virtual machine, on a
//! virtual PCI NPU.
//!
//! The machine's file system holds our static binary as init, the modules and what was asked for, so that this is a
//! test of a minimal Linux image at the same time.

mod apt;
mod boot;
mod fetch;
mod guest;
mod initramfs;
mod live;
mod request;
mod step;

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

pub(crate) use guest::XRT_PROGRAM;
pub(crate) use initramfs::Cpio;
pub(crate) use live::{Line, Live};
pub(crate) use request::HELP;
use request::Request;
pub(crate) use step::{Done, Step};

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
    /// Init did not get as far as its first step.
    #[error("the machine had not started its first step after {seconds} s and was stopped; its console is in {}", console.display())]
    NoStart {
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

/// For a release build from nothing on two cores.
const BUILD: Duration = Duration::from_secs(20 * 60);
/// What the binary of the machine is built for.
const TRIPLE: &str = "x86_64-unknown-linux-musl";

/// Runs the steps; `Ok(true)` where all went well, `Err` for wrong usage.
pub(crate) fn run(arguments: &[OsString]) -> Result<bool, String> {
    if let Some((first, rest)) = arguments.split_first()
        && first == "--image"
    {
        return crate::image::serve::run(rest);
    }
    let request = Request::parse(arguments)?;
    let ended = match machine(&request, true) {
        Ok(ended) => ended,
        Err(e) => {
            eprintln!("vm: {e}");
            return Ok(false);
        }
    };
    let mut err = io::stderr().lock();
    for done in &ended.done {
        let _ = err.write_all(done.stderr.as_bytes());
        let _ = writeln!(err, "vm: {done}");
    }
    let _ = writeln!(
        err,
        "vm: first step {} s after the kernel, {:.1} s in all; initramfs {:.1} MB, of which the static binary {:.1} MB",
        ended.start_seconds.map_or_else(|| "?".to_owned(), |s| format!("{s:.1}")),
        ended.seconds,
        ended.initramfs_bytes as f64 / 1e6,
        ended.binary_bytes as f64 / 1e6
    );
    Ok(ended.done.len() == request.steps.len() && ended.done.iter().all(Done::is_fine))
}

/// A boot's parts, for [`scenario`]: what is not named is as `cargo xtask vm` has it without flags.
#[derive(Debug, Default)]
pub(crate) struct Scenario {
    pub(crate) binary: PathBuf,
    pub(crate) npu: npu_model::Npu,
    /// Firmware protocol; 6.18 where none is named.
    pub(crate) protocol: Option<(u32, u32)>,
    pub(crate) carveout: bool,
    pub(crate) faults: npu_model::Faults,
    pub(crate) trees: Vec<(String, PathBuf)>,
    /// With Debian's XRT in it.
    pub(crate) xrt: bool,
    pub(crate) steps: Vec<Step>,
}

/// What a boot came to.
#[derive(Debug)]
pub(crate) struct Ended {
    /// The steps that were done: fewer than asked where the machine ended before.
    pub(crate) done: Vec<Done>,
    /// From power-on to power-off.
    pub(crate) seconds: f64,
    /// From power-on to the first step, by the machine's own clock.
    pub(crate) start_seconds: Option<f64>,
    /// Of the file system that the kernel was given.
    pub(crate) initramfs_bytes: u64,
    /// Of the static binary in it.
    pub(crate) binary_bytes: u64,
    /// What happened on the NPU.
    pub(crate) counts: npu_model::Counts,
}

/// Boots the machine once for some steps.
pub(crate) fn scenario(scenario: Scenario) -> Result<Ended, String> {
    let default = Request::default();
    let request = Request {
        binary: Some(scenario.binary),
        npu: scenario.npu,
        protocol: scenario.protocol.unwrap_or(default.protocol),
        addressing: if scenario.carveout { boot::Addressing::Carveout } else { boot::Addressing::Iova },
        faults: scenario.faults,
        trees: scenario.trees,
        program: if scenario.xrt { guest::Program::Xrt } else { guest::Program::Ours },
        steps: scenario.steps,
        ..default
    };
    machine(&request, false).map_err(|e| e.to_string())
}

/// Whether a machine can be had here; else why not.
pub(crate) fn available() -> Result<(), String> {
    fetch::possible().map_err(|why| {
        format!("{why}; `cargo xtask vm` takes your own machine by --qemu FILE, --kernel FILE and --modules DIR")
    })?;
    static_target()
}

/// Whether static binaries can be built here; else why not.
pub(crate) fn static_target() -> Result<(), String> {
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

/// Debian's kernel: its image, the directory `kernel` of its modules, and its release.
pub(crate) fn kernel(root: &Path) -> Result<(PathBuf, PathBuf, &'static str), String> {
    let home = target_directory(root).join("vm");
    let (image, modules) = fetch::fetched_kernel(&home, &fetch::Given::default()).map_err(|e| e.to_string())?;
    Ok((image, modules, fetch::KERNEL))
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

/// The kernel's exported headers, fetched where they are not here yet: what goes behind a compiler's `-I`.
pub(crate) fn kernel_headers(root: &Path) -> Result<PathBuf, String> {
    fetch::possible()?;
    fetch::headers(&target_directory(root).join("vm"), &fetch::Given::default()).map_err(|e| e.to_string())
}

/// Debian's Chromium, fetched where it is not here yet: the directory that holds it and what this host lacks for it.
pub(crate) fn chromium(root: &Path) -> Result<PathBuf, String> {
    fetch::possible()?;
    fetch::chromium(&target_directory(root).join("vm"), &fetch::Given::default()).map_err(|e| e.to_string())
}

pub(crate) fn target_directory(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}

/// Boots the machine; once more where the first boot does not get to its first step, which has been seen of one boot
/// in ten on a host that had eight times its work to do, and is said.
fn machine(request: &Request, live: bool) -> Result<Ended, VmError> {
    match boot_once(request, live) {
        Err(why @ VmError::NoStart { .. }) => {
            eprintln!("vm: {why}; once more");
            boot_once(request, live)
        }
        ended => ended,
    }
}

fn boot_once(request: &Request, live: bool) -> Result<Ended, VmError> {
    let root = crate::check::root();
    let target = target_directory(&root);
    let home = target.join("vm");
    let parts = fetch::parts(&home, &request.given)?;
    let binary = match &request.binary {
        Some(b) => b.clone(),
        None => static_binary(&root, &target)?,
    };
    static BOOTS: AtomicU32 = AtomicU32::new(0);
    let name = format!("run-{}-{}", std::process::id(), BOOTS.fetch_add(1, Ordering::Relaxed));
    let scratch = home.join(&name);
    fs::create_dir_all(&scratch).map_err(|e| VmError::io("create", &scratch, e))?;
    let initramfs = scratch.join("initramfs.cpio");
    let carveout = request.addressing == boot::Addressing::Carveout;
    let writes = if carveout && request.device {
        vec![("/sys/kernel/debug/accel/{device}/carveout".to_owned(), "0x30000000@0x40000000".to_owned())]
    } else {
        Vec::new()
    };
    let mut trees = guest::trees(&request.program, &home, &request.given)?;
    trees.extend(request.trees.iter().cloned());
    let initramfs_bytes = initramfs::write(
        &initramfs,
        &initramfs::Contents {
            binary: &binary,
            modules: &parts.modules,
            parameters: request.addressing.module_parameters(),
            firmware: if request.npu == npu_model::Npu::Npu5 { "17f0_11" } else { "17f0_10" },
            trees: &trees,
            writes: &writes,
            steps: &request.steps,
        },
    )?;
    // A socket's path ends at 107 bytes; a build directory may lie deeper than that.
    let socket = std::env::temp_dir().join(format!("qwen35-npu-{name}.sock"));
    let server = if request.device {
        let config = npu_model::Config {
            npu: request.npu,
            protocol: request.protocol,
            faults: request.faults.clone(),
            ..npu_model::Config::default()
        };
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
    if let Some(fault) = server.as_ref().and_then(npu_model::pci::PciNpu::last_fault) {
        eprintln!("vm: the NPU's last failed command: {fault}");
    }
    let Some(exit) = booted.exit else { return Err(VmError::NoExit(booted.console_file)) };
    if exit == 0 {
        // Logs are for failures.
        let _ = fs::remove_dir_all(&scratch);
    }
    Ok(Ended {
        done: step::outcomes(&request.steps, &booted.console, &booted.stdout, &booted.stderr),
        seconds: booted.seconds,
        start_seconds: booted.start_seconds,
        initramfs_bytes,
        binary_bytes: fs::metadata(&binary).map_or(0, |m| m.len()),
        counts: server.map(|npu| npu.counts()).unwrap_or_default(),
    })
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
