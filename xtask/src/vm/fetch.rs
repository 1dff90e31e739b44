//! Gets QEMU and a Debian kernel into a private folder: nothing on the host is installed or changed.
//!
//! Packages come through the host's own `apt-get`, run on a private state directory against the mirror that the host's
//! sources name (or the one given), suite trixie and trixie-backports, and are unpacked with `dpkg-deb`. What is checked
//! is left to apt, which does it well: the suite's signature against Debian's keyring, the index against the signed
//! list, each package's size and SHA-256 against the index. The options that could weaken this are set here, over
//! whatever the host's configuration says.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::VmError;

/// Debian's suite that carries QEMU >= 10.1 and Linux 7.3.
const SUITE: &str = "trixie";
/// For one run of apt-get: 100 MB over a slow line.
const LIMIT: Duration = Duration::from_secs(15 * 60);
/// What runs the virtual machine. `vfio-user-pci` needs QEMU 10.1.
const QEMU_PACKAGE: &str = "qemu-system-x86";
/// AMD's runtime for NPUs and its tools.
const XRT_PACKAGES: [&str; 2] = ["libxrt-npu2", "libxrt-utils-npu"];
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
    let qemu = match &given.qemu {
        Some(path) => vec![path.display().to_string()],
        None => match system_qemu() {
            Some(path) => vec![path],
            None => fetched_qemu(home, given)?,
        },
    };
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
    given: &Given,
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
    let apt = Apt::new(home, given)?;
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
    let root = fetched(home, "qemu", given, |apt| apt.install_download(&[QEMU_PACKAGE]))?;
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

fn fetched_kernel(home: &Path, given: &Given) -> Result<(PathBuf, PathBuf), VmError> {
    let root = fetched(home, "linux", given, |apt| {
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
    fetched(home, "xrt", given, |apt| apt.install_download(&XRT_PACKAGES))
}

/// The kernel's exported headers: the directory that goes behind a compiler's `-I`.
pub(super) fn headers(home: &Path, given: &Given) -> Result<PathBuf, VmError> {
    let root = fetched(home, "headers", given, |apt| Ok(vec![apt.download(HEADER_PACKAGE)?]))?;
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

/// `apt-get` on a private state directory.
struct Apt {
    dir: PathBuf,
}

impl Apt {
    fn new(home: &Path, given: &Given) -> Result<Self, VmError> {
        let dir = fs::canonicalize(home).map_err(|e| VmError::io("resolve", home, e))?.join("apt");
        for sub in ["etc/apt/apt.conf.d", "etc/apt/preferences.d", "var/lib/apt/lists/partial", "var/lib/dpkg"] {
            let d = dir.join(sub);
            fs::create_dir_all(&d).map_err(|e| VmError::io("create", &d, e))?;
        }
        // Archives of one set only: what an earlier, broken run left belongs to another.
        let archives = dir.join("var/cache/apt/archives");
        let _ = fs::remove_dir_all(&archives);
        let archives = archives.join("partial");
        fs::create_dir_all(&archives).map_err(|e| VmError::io("create", &archives, e))?;
        let status = dir.join("var/lib/dpkg/status");
        fs::write(&status, "").map_err(|e| VmError::io("write", &status, e))?;
        let mirror = match &given.mirror {
            Some(m) => m.clone(),
            None => host_mirror().ok_or(VmError::NoMirror)?,
        };
        let keyring = "/usr/share/keyrings/debian-archive-keyring.gpg";
        let sources = dir.join("etc/apt/sources.list");
        fs::write(
            &sources,
            format!(
                "deb [signed-by={keyring}] {mirror} {SUITE} main\ndeb [signed-by={keyring}] {mirror} {SUITE}-backports main\n"
            ),
        )
        .map_err(|e| VmError::io("write", &sources, e))?;
        let apt = Self { dir };
        apt.run(&["update"], None)?;
        Ok(apt)
    }

    fn run(&self, words: &[&str], cwd: Option<&Path>) -> Result<(), VmError> {
        let mut c = Command::new("apt-get");
        c.arg("-o").arg(format!("Dir={}", self.dir.display()));
        c.arg("-o").arg(format!("Dir::State::status={}", self.dir.join("var/lib/dpkg/status").display()));
        for option in [
            "APT::Architecture=amd64",
            "APT::Install-Recommends=0",
            "Debug::NoLocking=1",
            "APT::Sandbox::User=",
            "Acquire::http::Timeout=30",
            "Acquire::https::Timeout=30",
            "APT::Update::Error-Mode=any",
            "APT::Get::AllowUnauthenticated=0",
            "Acquire::AllowInsecureRepositories=0",
            "Acquire::AllowWeakRepositories=0",
            "Acquire::AllowDowngradeToInsecureRepositories=0",
        ] {
            c.arg("-o").arg(option);
        }
        c.arg("-q").arg("-t").arg(format!("{SUITE}-backports")).args(words);
        if let Some(d) = cwd {
            c.current_dir(d);
        }
        let failed = |what: String| VmError::Fetch { what: words.join(" "), said: what };
        let out = crate::timed::output(c.env("DEBIAN_FRONTEND", "noninteractive"), LIMIT).map_err(failed)?;
        if out.status.success() {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&out.stderr);
        Err(failed(complaint(&text)))
    }

    fn archives(&self) -> PathBuf {
        self.dir.join("var/cache/apt/archives")
    }

    /// Downloads packages with everything that they need.
    fn install_download(&self, packages: &[&str]) -> Result<Vec<PathBuf>, VmError> {
        self.run(&[&["-y", "--download-only", "install"], packages].concat(), None)?;
        debs(&self.archives())
    }

    /// Downloads one package alone.
    fn download(&self, package: &str) -> Result<PathBuf, VmError> {
        let to = self.dir.join("single").join(package);
        let _ = fs::remove_dir_all(&to);
        fs::create_dir_all(&to).map_err(|e| VmError::io("create", &to, e))?;
        self.run(&["download", package], Some(&to))?;
        debs(&to)?.pop().ok_or_else(|| VmError::Missing(format!("apt-get downloaded no file for {package}")))
    }
}

/// The line of apt's messages that names a file and its trouble, else its last one.
fn complaint(text: &str) -> String {
    let lines = || text.lines().map(str::trim).filter(|l| !l.is_empty());
    let file = lines().find(|l| l.starts_with("E: Failed to fetch"));
    file.or_else(|| lines().find(|l| l.starts_with("E: ")))
        .or_else(|| lines().next_back())
        .unwrap_or("no message")
        .to_owned()
}

fn debs(dir: &Path) -> Result<Vec<PathBuf>, VmError> {
    let mut found: Vec<PathBuf> = fs::read_dir(dir)
        .map_err(|e| VmError::io("list", dir, e))?
        .filter_map(|e| e.ok().map(|e| e.path()))
        .filter(|p| p.extension().is_some_and(|x| x == "deb"))
        .collect();
    found.sort();
    Ok(found)
}

/// The Debian mirror that the host's own apt is set up with.
pub(super) fn host_mirror() -> Option<String> {
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    if let Ok(dir) = fs::read_dir("/etc/apt/sources.list.d") {
        files.extend(dir.filter_map(|e| e.ok().map(|e| e.path())));
    }
    for file in files {
        let Some("list" | "sources") = file.extension().and_then(|x| x.to_str()) else { continue };
        let Ok(text) = fs::read_to_string(&file) else { continue };
        for line in text.lines().map(str::trim).filter(|l| !l.starts_with('#')) {
            let Some(url) = line.split_whitespace().find(|w| w.starts_with("http://") || w.starts_with("https://"))
            else {
                continue;
            };
            let debian = url.trim_end_matches('/').ends_with("/debian");
            if (line.starts_with("deb ") || line.starts_with("URIs:")) && debian {
                return Some(url.to_owned());
            }
        }
    }
    None
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

    #[test]
    fn a_failed_download_is_named_by_its_file() {
        let text = "W: something\nE: Failed to fetch http://m/debian/pool/x_1_amd64.deb  404  Not Found\nE: Unable to \
                    fetch some archives, maybe run apt-get update\n";
        assert_eq!(complaint(text), "E: Failed to fetch http://m/debian/pool/x_1_amd64.deb  404  Not Found");
        assert_eq!(complaint("E: Unable to locate package x\nN: hint\n"), "E: Unable to locate package x");
        assert_eq!(complaint(""), "no message");
    }

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
