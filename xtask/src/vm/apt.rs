//! Debian packages through the host's own `apt-get`, run on a private state directory: nothing of the host is changed.
//!
//! What is checked is left to apt, which does it well: the suite's signature against Debian's keyring, the index against
//! the signed list, each package's size and SHA-256 against the index. The options that could weaken this are set here,
//! over whatever the host's configuration says.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::VmError;

/// Debian's suite that carries QEMU >= 10.1 and Linux 7.3.
const SUITE: &str = "trixie";
/// What is installed on the host.
const HOST_STATUS: &str = "/var/lib/dpkg/status";
/// For one run of apt-get: 100 MB over a slow line.
const LIMIT: Duration = Duration::from_secs(15 * 60);

/// What packages are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Packages {
    /// A machine of its own: everything down to the C library, of the suite that carries it.
    Machine,
    /// A program that runs on this host: of the host's suite, and without what the host has.
    Host,
}

/// `apt-get` on a private state directory.
#[derive(Debug)]
pub(super) struct Apt {
    dir: PathBuf,
    /// The suite that is preferred.
    target: String,
    /// What counts as installed.
    status: PathBuf,
}

impl Apt {
    /// Sets the directory up and gets the indexes; of this mirror, or of the host's.
    pub(super) fn new(home: &Path, mirror: Option<&str>, packages: Packages) -> Result<Self, VmError> {
        // Indexes of one suite are no use to the other.
        let name = if packages == Packages::Machine { "apt" } else { "apt-host" };
        let dir = fs::canonicalize(home).map_err(|e| VmError::io("resolve", home, e))?.join(name);
        for sub in ["etc/apt/apt.conf.d", "etc/apt/preferences.d", "var/lib/apt/lists/partial", "var/lib/dpkg"] {
            let d = dir.join(sub);
            fs::create_dir_all(&d).map_err(|e| VmError::io("create", &d, e))?;
        }
        // Archives of one set only: what an earlier, broken run left belongs to another.
        let archives = dir.join("var/cache/apt/archives");
        let _ = fs::remove_dir_all(&archives);
        let archives = archives.join("partial");
        fs::create_dir_all(&archives).map_err(|e| VmError::io("create", &archives, e))?;
        let nothing = dir.join("var/lib/dpkg/status");
        fs::write(&nothing, "").map_err(|e| VmError::io("write", &nothing, e))?;
        let mirror = match mirror {
            Some(mirror) => mirror.to_owned(),
            None => host_mirror().ok_or(VmError::NoMirror)?,
        };
        let (suites, target, status) = match packages {
            Packages::Machine => {
                let backports = format!("{SUITE}-backports");
                ([SUITE, &backports].map(str::to_owned).to_vec(), backports, nothing)
            }
            Packages::Host => {
                let suite = host_suite().ok_or(VmError::NoMirror)?;
                (vec![suite.clone()], suite, PathBuf::from(HOST_STATUS))
            }
        };
        let keyring = "/usr/share/keyrings/debian-archive-keyring.gpg";
        let sources = dir.join("etc/apt/sources.list");
        let lines: String =
            suites.iter().map(|suite| format!("deb [signed-by={keyring}] {mirror} {suite} main\n")).collect();
        fs::write(&sources, lines).map_err(|e| VmError::io("write", &sources, e))?;
        let apt = Self { dir, target, status };
        apt.run(&["update"], None)?;
        Ok(apt)
    }

    fn run(&self, words: &[&str], cwd: Option<&Path>) -> Result<(), VmError> {
        let mut c = Command::new("apt-get");
        c.arg("-o").arg(format!("Dir={}", self.dir.display()));
        c.arg("-o").arg(format!("Dir::State::status={}", self.status.display()));
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
        c.arg("-q").arg("-t").arg(&self.target).args(words);
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
    pub(super) fn install_download(&self, packages: &[&str]) -> Result<Vec<PathBuf>, VmError> {
        self.run(&[&["-y", "--download-only", "install"], packages].concat(), None)?;
        debs(&self.archives())
    }

    /// Downloads one package alone.
    pub(super) fn download(&self, package: &str) -> Result<PathBuf, VmError> {
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

/// The Debian suite that this host is of.
fn host_suite() -> Option<String> {
    let text = fs::read_to_string("/etc/os-release").ok()?;
    let value =
        |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(|v| v.trim_matches('"').to_owned());
    value("ID=").filter(|id| id == "debian")?;
    value("VERSION_CODENAME=")
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
}
