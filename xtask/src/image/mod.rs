//! `cargo xtask image`: what a machine boots from the network, a stick or a disk to answer questions and nothing else.
//! Debian's kernel, and an initial file system of our static binary, that kernel's modules and a bundle.

mod firmware;
mod modules;
pub(crate) mod serve;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use runtime::bundle::Bundle;
use runtime::reference::is_reference;
use sha2::{Digest, Sha256};

use crate::vm::Cpio;
use firmware::Firmware;
use modules::Modules;

pub(crate) const HELP: &str = "\
cargo xtask image [OPTION]...
  a kernel and an initial file system that boot into the server, with a kernel command line, checksums and a README; the
  same bytes for the same sources and compiler
    --bundle DIR     the bundle in it  [the demo's]
    --no-bundle      none: the kernel's command line has to name one on a disk
    --firmware DIR   linux-firmware's directory, for the NPU and the network cards; without it the image runs with the
                     virtual NPU only
    --api-key-file F the key that clients must have; without it everybody who reaches the machine is answered
    --out DIR        where to  [the build directory's image]";

/// For packing a bundle of some gigabytes.
const PACKING: Duration = Duration::from_secs(30 * 60);
const README: &str = include_str!("README.in");
/// What the kernel is told: both consoles, the serial one for our log; and a panic is no reason to stay down.
const CMDLINE: &str = "console=tty0 console=ttyS0,115200 quiet panic=30";
/// The name of the image, and of a machine that has no other.
const NAME: &str = "qwen35-direct";
/// Where the key is in the machine.
const KEY: &str = "etc/qwen35-key";
/// An initial file system lies in memory, twice while it is unpacked.
const LARGE: u64 = 1_000_000_000;

/// What is asked for.
#[derive(Debug, Default)]
pub(crate) struct Options {
    bundle: Option<PathBuf>,
    no_bundle: bool,
    firmware: Option<PathBuf>,
    key: Option<PathBuf>,
    out: Option<PathBuf>,
}

/// What was made, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    binary: u64,
    kernel: u64,
    modules: u64,
    bundle: u64,
    firmware: u64,
    unpacked: u64,
    image: u64,
}

impl std::fmt::Display for Sizes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mb = |bytes: u64| bytes as f64 / 1e6;
        let (binary, modules, bundle, firmware) =
            (mb(self.binary), mb(self.modules), mb(self.bundle), mb(self.firmware));
        let (kernel, unpacked, image) = (mb(self.kernel), mb(self.unpacked), mb(self.image));
        write!(
            f,
            "kernel {kernel:.1} MB; initial file system {image:.1} MB, unpacked {unpacked:.1} MB: binary {binary:.1}, \
             modules {modules:.1}, bundle {bundle:.1}, firmware {firmware:.1}"
        )
    }
}

impl Options {
    fn parse(arguments: &[OsString]) -> Result<Options, String> {
        use lexopt::prelude::*;
        let mut parser = lexopt::Parser::from_args(arguments);
        let mut options = Options::default();
        let bad = |e: lexopt::Error| format!("{e}\n{HELP}");
        while let Some(argument) = parser.next().map_err(bad)? {
            let slot = match argument {
                Long("bundle") => &mut options.bundle,
                Long("firmware") => &mut options.firmware,
                Long("api-key-file") => &mut options.key,
                Long("out") => &mut options.out,
                Long("no-bundle") => {
                    options.no_bundle = true;
                    continue;
                }
                other => return Err(bad(other.unexpected())),
            };
            *slot = Some(parser.value().map_err(bad)?.into());
        }
        if options.no_bundle && options.bundle.is_some() {
            return Err(format!("--bundle and --no-bundle: which?\n{HELP}"));
        }
        Ok(options)
    }
}

/// Makes an image and prints what it weighs.
pub(crate) fn run(arguments: &[OsString]) -> Result<bool, String> {
    let options = Options::parse(arguments)?;
    let root = crate::check::root();
    let out = options.out.clone().unwrap_or_else(|| default_out(&root));
    match make(&root, &out, &options) {
        Ok(sizes) => crate::print(&format!("{}: {sizes}\n", out.display())),
        Err(why) => {
            eprintln!("image: {why}");
            return Ok(false);
        }
    }
    Ok(true)
}

/// Where an image goes if nobody says so.
pub(crate) fn default_out(root: &Path) -> PathBuf {
    crate::vm::target_directory(root).join("image")
}

/// Makes an image in `out`.
///
/// # Errors
/// What could not be had, read or written.
pub(crate) fn make(root: &Path, out: &Path, options: &Options) -> Result<Sizes, String> {
    crate::vm::static_target()?;
    let (kernel, modules, release) = crate::vm::kernel(root)?;
    let kernel = read(&kernel)?;
    let binary = read(&crate::vm::static_binary_of(root)?)?;
    let modules = Modules::collect(&modules)?;
    let firmware = Firmware::collect(&modules.firmware(), options.firmware.as_deref())?;
    let bundle = match (&options.bundle, options.no_bundle) {
        (_, true) => None,
        (Some(given), _) => Some(given.clone()),
        (None, _) => Some(root.join("cli/demo/bundle")),
    };
    // A bundle whose kernels only the software NPU runs is for the virtual one; everything else is for a real one, and
    // does not fall back to anything slow.
    let device = match bundle.as_deref().map(is_for_software).transpose()? {
        Some(true) => "virtual",
        _ => "npu",
    };
    let key = options.key.as_deref().map(read).transpose()?;
    fs::create_dir_all(out).map_err(|e| format!("create {}: {e}", out.display()))?;
    let plain = out.join("initramfs.cpio");
    let contents = Contents {
        binary: &binary,
        modules: &modules,
        firmware: &firmware,
        bundle: bundle.as_deref(),
        key: key.as_deref(),
        device,
    };
    let (unpacked, bundle_bytes) = contents.write(&plain)?;
    let packed = out.join("initramfs.img");
    pack(&plain, &packed)?;
    let readme = readme(release, device, bundle.as_deref(), key.is_some(), firmware.is_real);
    let image = size(&packed)?;
    let small: [(&str, &[u8]); 3] =
        [("vmlinuz", &kernel), ("cmdline", &[CMDLINE.as_bytes(), b"\n"].concat()), ("README", readme.as_bytes())];
    let mut sums = String::new();
    for (name, bytes) in small {
        let path = out.join(name);
        fs::write(&path, bytes).map_err(|e| format!("write {}: {e}", path.display()))?;
        let _ = writeln!(sums, "{}  {name}", hex(&Sha256::digest(bytes)));
    }
    let _ = writeln!(sums, "{}  initramfs.img", hex(&Sha256::digest(read(&packed)?)));
    let path = out.join("SHA256SUMS");
    fs::write(&path, sums).map_err(|e| format!("write {}: {e}", path.display()))?;
    if unpacked > LARGE {
        eprintln!(
            "image: {:.1} GB lie in the machine's memory, twice while they are unpacked: rather --no-bundle, and the \
             bundle on a disk that the kernel's command line names",
            unpacked as f64 / 1e9
        );
    }
    if !firmware.is_real {
        eprintln!("image: no --firmware: it runs with the virtual NPU only");
    }
    Ok(Sizes {
        binary: binary.len() as u64,
        kernel: kernel.len() as u64,
        modules: modules.all.values().map(|module| module.bytes.len() as u64).sum(),
        bundle: bundle_bytes,
        firmware: firmware.bytes(),
        unpacked,
        image,
    })
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|e| format!("read {}: {e}", path.display()))
}

fn size(path: &Path) -> Result<u64, String> {
    fs::metadata(path).map(|meta| meta.len()).map_err(|e| format!("measure {}: {e}", path.display()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Whether a bundle's kernels are those that only the software NPU runs.
fn is_for_software(bundle: &Path) -> Result<bool, String> {
    let why = |e: &dyn std::fmt::Display| format!("bundle {}: {e}", bundle.display());
    let bundle = Bundle::open(bundle).map_err(|e| why(&e))?;
    for key in bundle.manifest.xclbins.keys() {
        if is_reference(&bundle.xclbin(key).map_err(|e| why(&e))?.pdi) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What goes into the initial file system.
struct Contents<'a> {
    binary: &'a [u8],
    modules: &'a Modules,
    firmware: &'a Firmware,
    bundle: Option<&'a Path>,
    key: Option<&'a [u8]>,
    device: &'a str,
}

impl Contents<'_> {
    /// Writes the archive; its bytes, and those of the bundle in it.
    fn write(&self, to: &Path) -> Result<(u64, u64), String> {
        let why = |e: std::io::Error| format!("{}: {e}", to.display());
        let mut cpio = Cpio::new(std::io::BufWriter::new(fs::File::create(to).map_err(why)?));
        let bundle = self.fill(&mut cpio).map_err(why)?;
        cpio.finish().and_then(|mut out| out.flush()).map_err(why)?;
        Ok((size(to)?, bundle))
    }

    fn fill<W: std::io::Write>(&self, cpio: &mut Cpio<W>) -> std::io::Result<u64> {
        let mut made = BTreeSet::new();
        for directory in ["dev", "proc", "sys", "tmp", "run", "disk", "etc", "modules", "lib", "lib/firmware"] {
            cpio.directory(directory)?;
            made.insert(directory.to_owned());
        }
        // The kernel opens the console before init can mount anything.
        cpio.character("dev/console", 5, 1)?;
        cpio.file("init", 0o755, self.binary)?;
        for (name, module) in &self.modules.all {
            cpio.file(&format!("modules/{name}"), 0o644, &module.bytes)?;
        }
        cpio.file("modules/index", 0o644, self.modules.index().map_err(std::io::Error::other)?.as_bytes())?;
        for (name, bytes) in &self.firmware.files {
            let name = format!("lib/firmware/{name}");
            cpio.parents(&name, &mut made)?;
            cpio.file(&name, 0o644, bytes)?;
        }
        if let Some(key) = self.key {
            cpio.file(KEY, 0o600, key)?;
        }
        cpio.file("etc/qwen35-init", 0o644, self.script().as_bytes())?;
        let Some(bundle) = self.bundle else { return Ok(0) };
        let before = cpio.written();
        cpio.tree("bundle", bundle)?;
        Ok(cpio.written() - before)
    }

    /// What init does.
    fn script(&self) -> String {
        let key = format!("/{KEY}");
        let mut words = vec!["--listen", "0.0.0.0:8080", "--device", self.device];
        words.extend(if self.key.is_some() { ["--api-key-file", &key].to_vec() } else { ["--anyone"].to_vec() });
        let mut script = format!("say {NAME} {}\n", env!("CARGO_PKG_VERSION"));
        if !self.firmware.is_real {
            script += "say this image has no firmware of a real NPU: it runs with the virtual one only\n";
        }
        script +=
            &format!("hostname {NAME}\ndrivers /modules/index evdev.ko amdxdna.ko\nnetwork 8080\nbundle /bundle\n");
        for word in words {
            let _ = writeln!(script, "argument {}", hex(word.as_bytes()));
        }
        script + "serve\n"
    }
}

/// Packs an archive as small as the kernel can still unpack: zstd, or gzip where the host has none. The archive goes.
fn pack(from: &Path, to: &Path) -> Result<(), String> {
    let mut command = Command::new("zstd");
    command.args(["-q", "-f", "-15", "--single-thread", "-o"]).arg(to).arg(from);
    match crate::timed::status(&mut command, PACKING) {
        Ok(status) if status.success() => {}
        _ => {
            let why = |e: std::io::Error| format!("pack {}: {e}", to.display());
            let mut archive = fs::File::open(from).map_err(why)?;
            let file = std::io::BufWriter::new(fs::File::create(to).map_err(why)?);
            let mut packer = flate2::GzBuilder::new().write(file, flate2::Compression::best());
            std::io::copy(&mut archive, &mut packer).map_err(why)?;
            packer.finish().and_then(|mut file| file.flush()).map_err(why)?;
        }
    }
    fs::remove_file(from).map_err(|e| format!("remove {}: {e}", from.display()))
}

fn readme(release: &str, device: &str, bundle: Option<&Path>, key: bool, firmware: bool) -> String {
    let access = if key {
        "Clients must have the key that was put in."
    } else {
        "Everybody who reaches it is answered: there is no key in it (`--api-key-file` puts one in)."
    };
    let firmware = if firmware {
        "The NPU's firmware is in it."
    } else {
        "There is no firmware of a real NPU in it (`--firmware` puts it in): it runs with the virtual one only."
    };
    let device = match device {
        "virtual" => "The bundle in it is for the virtual NPU; one for a real NPU on a disk wants `-- --device npu`.",
        _ => "It uses the NPU and never falls back to anything slower.",
    };
    let bundle = if bundle.is_some() { "and a bundle" } else { "and no bundle: the command line has to name one" };
    let pairs = [
        ("@NAME@", NAME),
        ("@KERNEL@", release),
        ("@BUNDLE@", bundle),
        ("@ACCESS@", access),
        ("@FIRMWARE@", firmware),
        ("@DEVICE@", device),
        ("@CMDLINE@", CMDLINE),
    ];
    pairs.iter().fold(README.to_owned(), |text, (mark, word)| text.replace(mark, word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_mark_is_left_in_a_readme() {
        for (bundle, yes) in [(None, true), (Some(Path::new("/b")), false)] {
            let text = readme("7.3.4", if yes { "npu" } else { "virtual" }, bundle, yes, yes);
            assert!(!text.contains('@') && text.contains(CMDLINE) && text.contains("7.3.4"), "{text}");
        }
    }

    #[test]
    fn options_that_mean_nothing_are_refused() {
        let parse = |words: &[&str]| Options::parse(&words.iter().map(OsString::from).collect::<Vec<_>>());
        assert!(parse(&["--bundle", "b", "--out", "o"]).is_ok_and(|o| o.bundle == Some("b".into())));
        for wrong in [&["--bundle"][..], &["x"], &["--bundle", "b", "--no-bundle"], &["--frob"]] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
