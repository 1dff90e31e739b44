//! Programs of others in the machine: a dynamic program needs a loader and libraries, which our own does not.
//!
//! They come from Debian's XRT packages and what those need: a C library that is newer than most hosts', so that it runs
//! what the host runs.

use std::fs;
use std::path::{Path, PathBuf};

use super::VmError;
use super::fetch::{self, Given, LIBRARIES};

/// What init runs.
#[derive(Debug, Clone)]
pub(super) enum Program {
    /// Our static binary.
    Ours,
    /// XRT's `xrt-smi`.
    Xrt,
    /// A program of the host.
    Host(PathBuf),
}

/// Where it is in the machine.
pub(crate) const XRT_PROGRAM: &str = "/usr/bin/xrt-smi";
/// What names the distribution.
const SYSTEM: &str = "etc/os-release";
const HOST_PROGRAM: &str = "/program";
/// Where every dynamic program of this machine's kind looks for its loader.
const LOADER: &str = "lib64/ld-linux-x86-64.so.2";
/// Libraries that Python brings, which no program here is linked with.
const UNUSED: [&str; 5] = ["libcrypto", "libssl", "libsqlite3", "libdb-", "libncurses"];

impl Program {
    /// Its path in the machine; `None` for our own.
    pub(super) fn path(&self) -> Option<&'static str> {
        match self {
            Self::Ours => None,
            Self::Xrt => Some(XRT_PROGRAM),
            Self::Host(_) => Some(HOST_PROGRAM),
        }
    }
}

/// What has to be in the machine for a program to run: (path there, file here).
pub(super) fn trees(program: &Program, home: &Path, given: &Given) -> Result<Vec<(String, PathBuf)>, VmError> {
    let mut found = match program {
        Program::Ours => return Ok(Vec::new()),
        Program::Xrt => Vec::new(),
        Program::Host(file) => vec![(HOST_PROGRAM.trim_start_matches('/').to_owned(), file.clone())],
    };
    let root = fetch::xrt(home, given)?;
    if matches!(program, Program::Xrt) {
        let tool = XRT_PROGRAM.trim_start_matches('/');
        found.push((tool.to_owned(), root.join(tool)));
        // XRT refuses to describe a system without it, and no package that XRT needs has it.
        let system = root.join(SYSTEM);
        if !system.exists() {
            let etc = root.join("etc");
            fs::create_dir_all(&etc).map_err(|e| VmError::io("create", &etc, e))?;
            super::write_whole(
                &system,
                b"NAME=\"Debian GNU/Linux\"\nPRETTY_NAME=\"Debian GNU/Linux 13 (trixie)\"\nID=debian\n",
            )?;
        }
        found.push((SYSTEM.to_owned(), system));
    }
    let libraries = root.join(LIBRARIES);
    found.push((LOADER.to_owned(), libraries.join("ld-linux-x86-64.so.2")));
    let entries = fs::read_dir(&libraries).map_err(|e| VmError::io("list", &libraries, e))?;
    let mut names: Vec<String> = entries.filter_map(|e| e.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    for name in names {
        let file = libraries.join(&name);
        let wanted = matches!(program, Program::Xrt) || !(name.starts_with("libx") || name.starts_with("libboost"));
        // A library is known by the name that programs link with; its other names, which are links, are left out.
        if wanted && is_soname(&name) && file.is_file() && !UNUSED.iter().any(|u| name.starts_with(u)) {
            found.push((format!("{LIBRARIES}/{name}"), file));
        }
    }
    Ok(found)
}

/// Whether programs link with this name: `libc.so.6`, `libboost_filesystem.so.1.83.0`, not `libxrt_core.so.2.25.00`,
/// which has a shorter name beside it.
fn is_soname(name: &str) -> bool {
    let Some((_, version)) = name.split_once(".so.") else { return false };
    !version.contains('.') || name.starts_with("libboost") || name.starts_with("libpython")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_goes_in_once() {
        assert!(is_soname("libc.so.6") && is_soname("libboost_filesystem.so.1.83.0") && is_soname("libxrt_core.so.2"));
        assert!(!is_soname("libxrt_core.so.2.25.00") && !is_soname("libstdc++.so") && !is_soname("gconv"));
    }
}
