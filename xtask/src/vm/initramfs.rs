//! The initial file system of the virtual machine: our static binary as `/init`, the driver's modules, a bundle, and
//! nothing else (no shell, no C library, no `/tmp`).

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::{Step, VmError};

/// A `newc` cpio archive under construction (Documentation/driver-api/early-userspace/buffer-format.rst of Linux).
#[derive(Debug)]
pub(crate) struct Cpio<W: Write> {
    out: W,
    inode: u32,
    written: u64,
}

const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const CHARACTER: u32 = 0o020_000;
const LINK: u32 = 0o120_000;

impl<W: Write> Cpio<W> {
    pub(crate) fn new(out: W) -> Self {
        Self { out, inode: 1, written: 0 }
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.written += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    fn pad(&mut self) -> io::Result<()> {
        let gap = (4 - self.written % 4) % 4;
        self.put(&[0; 4][..gap as usize])
    }

    fn entry(&mut self, name: &str, mode: u32, device: (u32, u32), size: u64) -> io::Result<()> {
        let size = u32::try_from(size).map_err(|_| io::Error::other(format!("{name}: a cpio entry ends at 4 GiB")))?;
        let header = format!(
            "070701{:08X}{:08X}{:08X}{:08X}{:08X}{:08X}{:08X}{:08X}{:08X}{:08X}{:08X}{:08X}{:08X}",
            self.inode,
            mode,
            0,
            0,
            1,
            0,
            size,
            0,
            0,
            device.0,
            device.1,
            name.len() + 1,
            0
        );
        self.inode += 1;
        self.put(header.as_bytes())?;
        self.put(name.as_bytes())?;
        self.put(&[0])?;
        self.pad()
    }

    pub(crate) fn directory(&mut self, name: &str) -> io::Result<()> {
        self.entry(name, DIRECTORY | 0o755, (0, 0), 0)
    }

    pub(crate) fn character(&mut self, name: &str, major: u32, minor: u32) -> io::Result<()> {
        self.entry(name, CHARACTER | 0o600, (major, minor), 0)
    }

    pub(crate) fn file(&mut self, name: &str, mode: u32, bytes: &[u8]) -> io::Result<()> {
        self.entry(name, REGULAR | mode, (0, 0), bytes.len() as u64)?;
        self.put(bytes)?;
        self.pad()
    }

    pub(crate) fn copy(&mut self, name: &str, mode: u32, from: &Path) -> io::Result<()> {
        let bytes = fs::read(from)?;
        self.file(name, mode, &bytes)
    }

    fn link(&mut self, name: &str, target: &str) -> io::Result<()> {
        self.entry(name, LINK | 0o777, (0, 0), target.len() as u64)?;
        self.put(target.as_bytes())?;
        self.pad()
    }

    /// The directories above `name`, those that are not in `made` yet.
    pub(crate) fn parents(&mut self, name: &str, made: &mut BTreeSet<String>) -> io::Result<()> {
        for (at, _) in name.match_indices('/') {
            if made.insert(name[..at].to_owned()) {
                self.directory(&name[..at])?;
            }
        }
        Ok(())
    }

    /// Copies a file; one that can be executed stays so.
    fn program(&mut self, name: &str, from: &Path) -> io::Result<()> {
        let executable = fs::metadata(from)?.permissions().mode() & 0o111 != 0;
        self.copy(name, if executable { 0o755 } else { 0o644 }, from)
    }

    /// Copies a directory tree; `name` itself is created too. Links to a neighbour stay links, so that a library's
    /// names do not multiply it; other links are followed.
    pub(crate) fn tree(&mut self, name: &str, from: &Path) -> io::Result<()> {
        self.directory(name)?;
        let mut entries: Vec<PathBuf> = fs::read_dir(from)?.map(|e| e.map(|e| e.path())).collect::<Result<_, _>>()?;
        entries.sort();
        for path in entries {
            let Some(leaf) = path.file_name().and_then(|f| f.to_str()) else { continue };
            let inner = format!("{name}/{leaf}");
            let target = fs::read_link(&path).ok();
            match target.as_deref().and_then(Path::to_str) {
                Some(neighbour) if !neighbour.contains('/') => self.link(&inner, neighbour)?,
                _ if path.is_dir() => self.tree(&inner, &path)?,
                _ => self.program(&inner, &path)?,
            }
        }
        Ok(())
    }

    /// Bytes so far.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    pub(crate) fn finish(mut self) -> io::Result<W> {
        self.inode = 0;
        self.entry("TRAILER!!!", 0, (0, 0), 0)?;
        Ok(self.out)
    }
}

/// What goes in.
#[derive(Debug)]
pub(super) struct Contents<'a> {
    pub binary: &'a Path,
    pub modules: &'a [PathBuf],
    /// Parameters of the amdxdna module.
    pub parameters: &'a str,
    /// Directory below `/lib/firmware/amdnpu/`.
    pub firmware: &'a str,
    /// Trees to put in: (absolute path in the machine without its leading slash, host directory or file).
    pub trees: &'a [(String, PathBuf)],
    /// Files that init writes before the command runs: (path, text).
    pub writes: &'a [(String, String)],
    /// What init does then.
    pub steps: &'a [Step],
}

/// Writes the archive to `to` and returns its size in bytes.
pub(super) fn write(to: &Path, contents: &Contents<'_>) -> Result<u64, VmError> {
    let file = fs::File::create(to).map_err(|e| VmError::io("create", to, e))?;
    let mut cpio = Cpio::new(io::BufWriter::new(file));
    fill(&mut cpio, contents).map_err(|e| VmError::io("fill", to, e))?;
    let mut out = cpio.finish().map_err(|e| VmError::io("finish", to, e))?;
    out.flush().map_err(|e| VmError::io("finish", to, e))?;
    fs::metadata(to).map(|m| m.size()).map_err(|e| VmError::io("measure", to, e))
}

fn fill<W: Write>(cpio: &mut Cpio<W>, c: &Contents<'_>) -> io::Result<()> {
    let mut made = BTreeSet::new();
    for d in ["dev", "proc", "sys", "etc", "modules", "lib", "lib/firmware", "lib/firmware/amdnpu"] {
        cpio.directory(d)?;
        made.insert(d.to_owned());
    }
    // The kernel opens the console before init can mount anything.
    cpio.character("dev/console", 5, 1)?;
    cpio.copy("init", 0o755, c.binary)?;
    let mut script = String::new();
    for module in c.modules {
        let Some(leaf) = module.file_name().and_then(|f| f.to_str()) else { continue };
        cpio.copy(&format!("modules/{leaf}"), 0o644, module)?;
        let parameters = if leaf.starts_with("amdxdna") { c.parameters } else { "" };
        script.push_str(&format!("module /modules/{leaf} {parameters}\n"));
    }
    let firmware = format!("lib/firmware/amdnpu/{}", c.firmware);
    cpio.directory(&firmware)?;
    // The virtual security processor takes any image; the driver only wants a file that is there.
    for name in ["npu.sbin", "npu_7.sbin"] {
        cpio.file(&format!("{firmware}/{name}"), 0o644, &[0; 65536])?;
    }
    for (name, from) in c.trees {
        cpio.parents(name, &mut made)?;
        if from.is_dir() { cpio.tree(name, from)? } else { cpio.program(name, from)? }
    }
    for (path, text) in c.writes {
        script.push_str(&format!("write {path} {text}\n"));
    }
    for step in c.steps {
        step.write(&mut script);
    }
    cpio.file("etc/qwen35-init", 0o644, script.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_the_kernels_newc() {
        let mut cpio = Cpio::new(Vec::new());
        cpio.file("a", 0o644, b"xyz").unwrap();
        let bytes = cpio.finish().unwrap();
        // Magic, then 13 fields of 8 hexadecimal digits; name and data padded to 4 bytes each.
        assert_eq!(&bytes[..6], b"070701");
        assert_eq!(&bytes[14..22], b"000081A4");
        assert_eq!(&bytes[54..62], b"00000003");
        assert_eq!(&bytes[94..102], b"00000002");
        assert_eq!(&bytes[110..112], b"a\0");
        assert_eq!(&bytes[112..115], b"xyz");
        assert_eq!(&bytes[116..122], b"070701");
        assert!(bytes.len() % 4 == 0);
    }

    /// A library has up to three names; as copies they tripled the archive.
    #[test]
    fn a_neighbours_link_is_no_copy_and_a_program_can_be_run() {
        let tree = std::env::temp_dir().join(format!("qwen35-initramfs-{}", std::process::id()));
        fs::create_dir_all(&tree).unwrap();
        fs::write(tree.join("lib.so.2.1"), [7; 4096]).unwrap();
        fs::set_permissions(tree.join("lib.so.2.1"), fs::Permissions::from_mode(0o755)).unwrap();
        std::os::unix::fs::symlink("lib.so.2.1", tree.join("lib.so.2")).unwrap();
        let mut cpio = Cpio::new(Vec::new());
        let mut made = BTreeSet::new();
        cpio.parents("usr/lib/x", &mut made).unwrap();
        cpio.parents("usr/lib/y", &mut made).unwrap();
        cpio.tree("usr/lib/x", &tree).unwrap();
        let bytes = cpio.finish().unwrap();
        fs::remove_dir_all(&tree).unwrap();
        assert!(bytes.len() < 2 * 4096, "{}", bytes.len());
        let text = String::from_utf8_lossy(&bytes);
        let modes: Vec<&str> = text.match_indices("070701").map(|(at, _)| &text[at + 14..at + 22]).collect();
        // usr, usr/lib, usr/lib/x, the link, the program, the trailer.
        assert_eq!(modes, ["000041ED", "000041ED", "000041ED", "0000A1FF", "000081ED", "00000000"]);
    }
}
