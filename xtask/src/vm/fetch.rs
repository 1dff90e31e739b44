//! Gets QEMU and a Debian kernel into a private folder: nothing on the host is installed or changed.
//!
//! Packages come through the host's own `apt-get` (see `apt`), against the mirror that the host's sources name (or the one
//! given), and are unpacked with `dpkg-deb`.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::VmError;
use super::apt::{Apt, Packages, host_mirror};

/// What runs the virtual machine. `vfio-user-pci` needs QEMU 10.1.
const QEMU_PACKAGE: &str = "qemu-system-x86";
/// AMD's runtime for NPUs and its tools.
const XRT_PACKAGES: [&str; 2] = ["libxrt-npu2", "libxrt-utils-npu"];
/// A browser for the server's page, and letters for it.
const CHROMIUM_PACKAGES: [&str; 2] = ["chromium", "fonts-dejavu-core"];
/// The headers that a kernel exports to programs, amdxdna's among them.
const HEADER_PACKAGE: &str = "linux-libc-dev";
/// Where a Debian root keeps its libraries.
pub(super) const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
/// The kernel whose driver is tested.
pub(super) const KERNEL: &str = "7.3.4+deb13-amd64";
/// Modules that amdxdna needs, in loading order; amdxdna itself comes last. The driver module is loaded by `init` with
/// parameters of its own.
pub(super) const MODULES: [&str; 10] = [
    "drivers/hid/hid.ko",
    "drivers/gpu/drm/drm.ko",
    "drivers/gpu/drm/drm_kms_helper.ko",
    "drivers/gpu/drm/scheduler/gpu-sched.ko",
    "drivers/acpi/button.ko",
    "drivers/gpu/drm/drm_shmem_helper.ko",
    "drivers/tee/tee.ko",
    "drivers/hid/amd-sfh-hid/amd_sfh.ko",
    "drivers/platform/x86/amd/pmf/amd-pmf.ko",
    "drivers/accel/amdxdna/amdxdna.ko",
];

/// Where the parts of the virtual machine are.
#[derive(Debug, Clone)]
pub(super) struct Parts {
    /// The command (program and leading arguments) that runs QEMU.
    pub qemu: Vec<String>,
    /// Kernel image (an ELF `vmlinux` where it could be unpacked, else the bzImage).
    pub kernel: PathBuf,
    /// Uncompressed modules, in loading order.
    pub modules: Vec<PathBuf>,
}

/// What the user brought along.
#[derive(Debug, Clone, Default)]
pub(super) struct Given {
    pub qemu: Option<PathBuf>,
    pub kernel: Option<PathBuf>,
    pub modules: Option<PathBuf>,
    pub mirror: Option<String>,
}

/// Finds or fetches all parts below `home`.
pub(super) fn parts(home: &Path, given: &Given) -> Result<Parts, VmError> {
    fs::create_dir_all(home).map_err(|e| VmError::io("create", home, e))?;
    let qemu = qemu(home, given)?;
    let (image, modules_root) = match (&given.kernel, &given.modules) {
        (Some(kernel), Some(modules)) => (kernel.clone(), modules.clone()),
        (None, None) => fetched_kernel(home, given)?,
        _ => {
            return Err(VmError::Usage(
                "--kernel and --modules go together: one is the image, the other its module tree",
            ));
        }
    };
    let cache = home.join("unpacked");
    fs::create_dir_all(&cache).map_err(|e| VmError::io("create", &cache, e))?;
    let modules =
        MODULES.iter().map(|name| unpacked_module(&modules_root, name, &cache)).collect::<Result<Vec<_>, _>>()?;
    let kernel = unpacked_kernel(&image, &cache).unwrap_or(image);
    Ok(Parts { qemu, kernel, modules })
}

/// The command that runs QEMU: the one given, the system's, or a fetched one.
pub(super) fn qemu(home: &Path, given: &Given) -> Result<Vec<String>, VmError> {
    match &given.qemu {
        Some(path) => Ok(vec![path.display().to_string()]),
        None => system_qemu().map_or_else(|| fetched_qemu(home, given), |path| Ok(vec![path])),
    }
}

/// The system's QEMU where it is at least 10.1.
fn system_qemu() -> Option<String> {
    let out = Command::new("qemu-system-x86_64").arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let version = text.split("version ").nth(1)?;
    let mut numbers = version.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse::<u32>().unwrap_or(0));
    let (major, minor) = (numbers.next()?, numbers.next()?);
    (major > 10 || (major == 10 && minor >= 1)).then(|| "qemu-system-x86_64".to_owned())
}

/// The folder `name` below `home`, filled from packages where it is not there yet. It appears whole or not at all,
/// whatever ends this program, and one program at a time fills it.
fn fetched(
    home: &Path,
    name: &str,
    (given, packages): (&Given, Packages),
    get: impl FnOnce(&Apt) -> Result<Vec<PathBuf>, VmError>,
) -> Result<PathBuf, VmError> {
    fs::create_dir_all(home).map_err(|e| VmError::io("create", home, e))?;
    let root = home.join(name);
    let done = root.join(".complete");
    let lock = home.join(".lock");
    let lock_file = fs::File::create(&lock).map_err(|e| VmError::io("create", &lock, e))?;
    lock_file.lock().map_err(|e| VmError::io("lock", &lock, e))?;
    if done.exists() {
        return Ok(root);
    }
    let partial = home.join(format!("{name}.partial"));
    for old in [&root, &partial] {
        match fs::remove_dir_all(old) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(VmError::io("remove", old, e)),
            _ => {}
        }
    }
    let apt = Apt::new(home, given.mirror.as_deref(), packages)?;
    for deb in get(&apt)? {
        unpack(&deb, &partial)?;
        // The module package alone is 100 MB; what was unpacked is enough.
        let _ = fs::remove_file(&deb);
    }
    let mark = partial.join(".complete");
    fs::write(&mark, "").map_err(|e| VmError::io("write", &mark, e))?;
    fs::rename(&partial, &root).map_err(|e| VmError::io("rename", &partial, e))?;
    Ok(root)
}

fn fetched_qemu(home: &Path, given: &Given) -> Result<Vec<String>, VmError> {
    let root = fetched(home, "qemu", (given, Packages::Machine), |apt| apt.install_download(&[QEMU_PACKAGE]))?;
    let lib = root.join(LIBRARIES);
    let text = |p: PathBuf| p.display().to_string();
    // The unpacked tree brings its own C library; its loader runs the program without touching the host's.
    Ok(vec![
        text(root.join("usr/lib64/ld-linux-x86-64.so.2")),
        "--library-path".to_owned(),
        text(lib),
        text(root.join("usr/bin/qemu-system-x86_64")),
        "-L".to_owned(),
        text(root.join("usr/share/qemu")),
        "-L".to_owned(),
        text(root.join("usr/share/seabios")),
    ])
}

pub(super) fn fetched_kernel(home: &Path, given: &Given) -> Result<(PathBuf, PathBuf), VmError> {
    let root = fetched(home, "linux", (given, Packages::Machine), |apt| {
        ["linux-binary", "linux-modules"].iter().map(|p| apt.download(&format!("{p}-{KERNEL}"))).collect()
    })?;
    let image = ["boot", "usr/lib/modules"]
        .iter()
        .flat_map(|d| [root.join(d).join(format!("vmlinuz-{KERNEL}")), root.join(d).join(KERNEL).join("vmlinuz")])
        .find(|p| p.exists())
        .ok_or_else(|| VmError::Missing(format!("no vmlinuz in the kernel package below {}", root.display())))?;
    Ok((image, root.join("usr/lib/modules").join(KERNEL).join("kernel")))
}

/// Debian's XRT for NPUs with everything that it needs, as a root directory.
pub(super) fn xrt(home: &Path, given: &Given) -> Result<PathBuf, VmError> {
    fetched(home, "xrt", (given, Packages::Machine), |apt| apt.install_download(&XRT_PACKAGES))
}

/// Debian's Chromium with all that this host lacks for it, as a root directory beside the host's own.
pub(super) fn chromium(home: &Path, given: &Given) -> Result<PathBuf, VmError> {
    fetched(home, "chromium", (given, Packages::Host), |apt| apt.install_download(&CHROMIUM_PACKAGES))
}

/// The kernel's exported headers: the directory that goes behind a compiler's `-I`.
pub(super) fn headers(home: &Path, given: &Given) -> Result<PathBuf, VmError> {
    let root = fetched(home, "headers", (given, Packages::Machine), |apt| Ok(vec![apt.download(HEADER_PACKAGE)?]))?;
    Ok(root.join("usr/include"))
}

/// Whether packages can be fetched here at all; else why not.
pub(super) fn possible() -> Result<(), String> {
    for tool in ["apt-get", "dpkg-deb", "xz"] {
        let there = std::env::var_os("PATH")
            .is_some_and(|path| std::env::split_paths(&path).any(|directory| directory.join(tool).is_file()));
        if !there {
            return Err(format!("no {tool} to get Debian packages with"));
        }
    }
    host_mirror().map(|_| ()).ok_or_else(|| VmError::NoMirror.to_string())
}

fn unpack(deb: &Path, root: &Path) -> Result<(), VmError> {
    fs::create_dir_all(root).map_err(|e| VmError::io("create", root, e))?;
    let status = Command::new("dpkg-deb")
        .arg("-x")
        .arg(deb)
        .arg(root)
        .status()
        .map_err(|e| VmError::Tool { tool: "dpkg-deb", what: e.to_string() })?;
    if status.success() {
        Ok(())
    } else {
        Err(VmError::Tool { tool: "dpkg-deb", what: format!("-x {}: {status}", deb.display()) })
    }
}

/// The module as a plain `.ko` in the cache: decompressing on the host is seconds faster than under emulation.
fn unpacked_module(root: &Path, name: &str, cache: &Path) -> Result<PathBuf, VmError> {
    let plain = root.join(name);
    if plain.exists() {
        return Ok(plain);
    }
    let packed = root.join(format!("{name}.xz"));
    if !packed.exists() {
        return Err(VmError::Missing(format!("module {name}(.xz) is not below {}", root.display())));
    }
    let file = plain.file_name().map(|f| cache.join(f)).unwrap_or_else(|| cache.join("module.ko"));
    if !file.exists() {
        let out = Command::new("xz")
            .arg("-dc")
            .arg(&packed)
            .output()
            .map_err(|e| VmError::Tool { tool: "xz", what: e.to_string() })?;
        if !out.status.success() {
            return Err(VmError::Tool { tool: "xz", what: format!("-dc {}: {}", packed.display(), out.status) });
        }
        super::write_whole(&file, &out.stdout)?;
    }
    Ok(file)
}

/// The ELF kernel inside a bzImage, which starts about five seconds sooner under emulation; `None` where it cannot be
/// had (another compression, no `zstd` program).
fn unpacked_kernel(image: &Path, cache: &Path) -> Option<PathBuf> {
    let file = cache.join("vmlinux");
    if file.exists() {
        return Some(file);
    }
    let bytes = fs::read(image).ok()?;
    // Linux boot protocol: setup_sects at 0x1f1, payload offset and length at 0x248 and 0x24c.
    let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?) as usize);
    let setup = (usize::from(*bytes.get(0x1f1)?) + 1) * 512;
    let start = setup.checked_add(word(0x248)?)?;
    // The last four bytes are the unpacked size, not part of the compressed stream.
    let payload = bytes.get(start..start.checked_add(word(0x24c)?)?.checked_sub(4)?)?;
    let packed = cache.join("vmlinux.zst");
    fs::write(&packed, payload).ok()?;
    let out = Command::new("zstd").args(["-dc", "--long=31"]).arg(&packed).stderr(Stdio::null()).output().ok()?;
    let _ = fs::remove_file(&packed);
    (out.status.success() && out.stdout.starts_with(b"\x7fELF")).then_some(())?;
    super::write_whole(&file, &out.stdout).ok()?;
    Some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// apt warns only, where the host's configuration says so; a program that is run as it came must be signed.
    #[test]
    fn a_mirror_without_a_signature_is_refused_and_leaves_nothing() {
        if possible().is_err() {
            return;
        }
        let home = std::env::temp_dir().join(format!("qwen35-fetch-{}", std::process::id()));
        let mirror = home.join("debian");
        for suite in ["trixie", "trixie-backports"] {
            let at = mirror.join("dists").join(suite).join("main/binary-amd64");
            fs::create_dir_all(&at).unwrap();
            fs::write(at.join("Packages"), "").unwrap();
            fs::write(mirror.join("dists").join(suite).join("Release"), format!("Suite: {suite}\n")).unwrap();
        }
        let given = Given { mirror: Some(format!("file:{}", mirror.display())), ..Given::default() };
        let refused = headers(&home, &given);
        let left = home.join("headers").exists();
        fs::remove_dir_all(&home).unwrap();
        let Err(why @ VmError::Fetch { .. }) = refused else { panic!("{refused:?}") };
        let why = why.to_string();
        assert!(why.contains("not signed") && why.contains("trixie") && why.contains("--mirror"), "{why}");
        assert!(!left);
    }

    #[test]
    fn a_folder_is_filled_whole_or_not_at_all() {
        let home = std::env::temp_dir().join(format!("qwen35-whole-{}", std::process::id()));
        // What an interrupted run left: files, no mark. The fetch that follows fails too.
        fs::create_dir_all(home.join("headers.partial/usr")).unwrap();
        fs::create_dir_all(home.join("headers/usr")).unwrap();
        let given = Given { mirror: Some(format!("file:{}/none", home.display())), ..Given::default() };
        assert!(headers(&home, &given).is_err());
        assert!(!home.join("headers").exists() && !home.join("headers.partial").exists());
        // A whole one is taken as it is, without apt.
        fs::create_dir_all(home.join("headers")).unwrap();
        fs::write(home.join("headers/.complete"), "").unwrap();
        assert!(headers(&home, &given).is_ok());
        fs::remove_dir_all(&home).unwrap();
    }
}
