//! `cargo xtask dist`: what a user downloads. A static binary within its budget, its manual page and completions, a systemd
//! unit, a udev rule, a bill of materials, a Debian package, and their checksums.

mod deb;
mod elf;
mod sbom;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

pub(crate) const HELP: &str = "\
cargo xtask dist [--out DIR]
  a static binary, manual page, completions, systemd unit, udev rule, bill of materials, Debian package and checksums,
  the same bytes for the same sources and compiler
  --out DIR   where to  [the build directory's dist]";

/// What the binary may take: it is one file to carry around.
pub(crate) const BUDGET: u64 = 15_000_000;
const LIMIT: Duration = Duration::from_secs(60);
const UNIT: &str = include_str!("../../dist/qwen35-direct.service");
const RULE: &str = include_str!("../../dist/70-qwen35-direct.rules");

/// A file, and where it goes on a system.
struct Piece {
    /// Its name in the folder.
    name: &'static str,
    /// Below the root; empty for what is not installed.
    place: &'static str,
    mode: u32,
    bytes: Vec<u8>,
}

/// Makes everything, and prints what it weighs.
pub(crate) fn run(arguments: &[OsString]) -> Result<bool, String> {
    let mut parser = lexopt::Parser::from_args(arguments);
    let mut out = None;
    while let Some(argument) = parser.next().map_err(|error| error.to_string())? {
        match argument {
            lexopt::Arg::Long("out") => out = Some(PathBuf::from(parser.value().map_err(|error| error.to_string())?)),
            other => return Err(other.unexpected().to_string()),
        }
    }
    let root = crate::check::root();
    let out = out.unwrap_or_else(|| crate::vm::target_directory(&root).join("dist"));
    let made = make(&root, &out)?;
    crate::print(&format!("{}: {made}\n", out.display()));
    Ok(true)
}

/// Makes everything in `out`; gives a line about it.
///
/// # Errors
/// What could not be built or written, and a binary above its budget.
pub(crate) fn make(root: &Path, out: &Path) -> Result<String, String> {
    let binary = crate::vm::static_binary_of(root)?;
    let bytes = fs::read(&binary).map_err(|error| format!("{}: {error}", binary.display()))?;
    let size = bytes.len() as u64;
    if size > BUDGET {
        return Err(format!("the static binary has {size} bytes, the budget is {BUDGET}"));
    }
    if let Some(loader) = elf::interpreter(&bytes)? {
        return Err(format!("the binary is not static: it wants {loader}"));
    }
    let say = |words: &[&str]| -> Result<Vec<u8>, String> {
        crate::timed::timed(Command::new(&binary).args(words), LIMIT).map(String::into_bytes)
    };
    let epoch = epoch(root);
    let version = env!("CARGO_PKG_VERSION");
    let sbom = sbom::of(root, &sbom::sha256(&bytes), epoch)?;
    let piece = |name, place, mode, bytes| Piece { name, place, mode, bytes };
    let pieces = vec![
        piece("qwen35-direct", "usr/bin/qwen35-direct", 0o755, bytes),
        piece("qwen35-direct.1", "usr/share/man/man1/qwen35-direct.1", 0o644, say(&["manual"])?),
        piece(
            "qwen35-direct.bash",
            "usr/share/bash-completion/completions/qwen35-direct",
            0o644,
            say(&["completions", "bash"])?,
        ),
        piece(
            "_qwen35-direct",
            "usr/share/zsh/vendor-completions/_qwen35-direct",
            0o644,
            say(&["completions", "zsh"])?,
        ),
        piece(
            "qwen35-direct.fish",
            "usr/share/fish/vendor_completions.d/qwen35-direct.fish",
            0o644,
            say(&["completions", "fish"])?,
        ),
        piece("qwen35-direct.service", "usr/lib/systemd/system/qwen35-direct.service", 0o644, UNIT.into()),
        piece("70-qwen35-direct.rules", "usr/lib/udev/rules.d/70-qwen35-direct.rules", 0o644, RULE.into()),
        piece("copyright", "usr/share/doc/qwen35-direct/copyright", 0o644, copyright(root)?),
        piece("qwen35-direct.cdx.json", "usr/share/doc/qwen35-direct/qwen35-direct.cdx.json", 0o644, sbom.into_bytes()),
    ];
    let package = deb::package(version, epoch, &pieces).map_err(|error| format!("the Debian package: {error}"))?;
    let package_name = format!("qwen35-direct_{version}_amd64.deb");
    // What an older run has left is not part of this one.
    let _ = fs::remove_dir_all(out);
    fs::create_dir_all(out).map_err(|error| format!("{}: {error}", out.display()))?;
    let mut sums = Vec::new();
    let named = pieces.iter().map(|piece| (piece.name, piece.mode, &piece.bytes));
    for (name, mode, bytes) in named.chain(Some((package_name.as_str(), 0o644, &package))) {
        use std::os::unix::fs::PermissionsExt;
        let path = out.join(name);
        fs::write(&path, bytes)
            .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(mode)))
            .map_err(|error| format!("{}: {error}", path.display()))?;
        sums.push(format!("{}  {name}\n", sbom::sha256(bytes)));
    }
    let path = out.join("SHA256SUMS");
    fs::write(&path, sums.concat()).map_err(|error| format!("{}: {error}", path.display()))?;
    let mb = |bytes: usize| bytes as f64 / 1e6;
    Ok(format!(
        "the static binary has {:.1} MB of {:.0}, {package_name} {:.1} MB",
        mb(usize::try_from(size).unwrap_or(usize::MAX)),
        BUDGET as f64 / 1e6,
        mb(package.len())
    ))
}

/// When the sources were made, so that the same sources give the same bytes: as the environment says, else the last
/// commit's time, else the epoch.
fn epoch(root: &Path) -> u64 {
    let given = std::env::var("SOURCE_DATE_EPOCH").ok().and_then(|text| text.parse().ok());
    given.unwrap_or_else(|| {
        let mut git = Command::new("git");
        git.current_dir(root).args(["log", "-1", "--format=%ct"]);
        crate::timed::timed(&mut git, LIMIT).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    })
}

fn copyright(root: &Path) -> Result<Vec<u8>, String> {
    let mut out = b"qwen35-direct is under the MIT license or the Apache License 2.0, as you like.\n\n".to_vec();
    for name in ["LICENSE-MIT", "LICENSE-APACHE"] {
        let path = root.join(name);
        out.extend(fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?);
        out.push(b'\n');
    }
    Ok(out)
}
