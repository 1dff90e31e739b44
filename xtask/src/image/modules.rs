//! Which modules go into an image, what each needs, and for which devices it is: out of the modules themselves, since no
//! package of Debian's holds what `depmod` makes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// What machines like ours need: the NPU, wired networks, disks, their file systems, buttons and keys.
const WANTED: [&str; 20] = [
    "amdxdna",
    "virtio_net",
    "e1000e",
    "igc",
    "r8169",
    // The transceivers that r8169 drives through another module.
    "realtek",
    "virtio_blk",
    "nvme",
    "ahci",
    "sd_mod",
    "usb-storage",
    "xhci-pci",
    "usbhid",
    "hid-generic",
    "evdev",
    "button",
    "ext4",
    "vfat",
    "nls_cp437",
    "nls_ascii",
];
/// For unpacking one module.
const LIMIT: Duration = Duration::from_secs(60);

/// A module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Module {
    pub(super) bytes: Vec<u8>,
    pub(super) facts: Facts,
}

/// What a module says of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Facts {
    depends: Vec<String>,
    aliases: Vec<String>,
    pub(super) firmware: Vec<String>,
}

/// All modules of an image, by the names of their files.
#[derive(Debug, Default)]
pub(super) struct Modules {
    pub(super) all: BTreeMap<String, Module>,
}

impl Modules {
    /// The wanted ones below `root`, with all that they need.
    pub(super) fn collect(root: &Path) -> Result<Modules, String> {
        let mut files = BTreeMap::new();
        walk(root, &mut files).map_err(|e| format!("{}: {e}", root.display()))?;
        let mut modules = Modules::default();
        let mut open: Vec<String> = WANTED.iter().map(|name| (*name).to_owned()).collect();
        while let Some(name) = open.pop() {
            let (leaf, path) =
                files.get(&plain(&name)).ok_or_else(|| format!("no module {name} below {}", root.display()))?;
            if !modules.all.contains_key(leaf) {
                let bytes = unpacked(path)?;
                let facts = facts(&bytes).ok_or_else(|| format!("{}: no .modinfo", path.display()))?;
                open.extend(facts.depends.iter().cloned());
                modules.all.insert(leaf.clone(), Module { bytes, facts });
            }
        }
        Ok(modules)
    }

    /// The index that init reads.
    pub(super) fn index(&self) -> Result<String, String> {
        let mut text = String::new();
        for (name, module) in &self.all {
            let mut needs = Vec::new();
            self.needs(name, &mut Vec::new(), &mut needs)?;
            needs.pop();
            let _ = writeln!(text, "module {name}{}", needs.iter().fold(String::new(), |all, one| all + " " + one));
            if WANTED.iter().any(|wanted| plain(wanted) == plain(stem(name))) {
                for alias in &module.facts.aliases {
                    let _ = writeln!(text, "alias {alias} {name}");
                }
            }
        }
        Ok(text)
    }

    /// A file and what it needs, in the order of loading.
    fn needs(&self, name: &str, above: &mut Vec<String>, found: &mut Vec<String>) -> Result<(), String> {
        if above.iter().any(|other| other == name) {
            return Err(format!("modules need each other: {} {name}", above.join(" ")));
        }
        above.push(name.to_owned());
        let module = self.all.get(name).ok_or_else(|| format!("no module {name}"))?;
        for need in &module.facts.depends {
            let file = self.all.keys().find(|file| plain(stem(file)) == plain(need));
            let file = file.ok_or_else(|| format!("{name} needs {need}, which is not there"))?.clone();
            self.needs(&file, above, found)?;
        }
        above.pop();
        if !found.iter().any(|other| other == name) {
            found.push(name.to_owned());
        }
        Ok(())
    }

    /// The firmware that these modules may ask for.
    pub(super) fn firmware(&self) -> BTreeSet<&str> {
        self.all.values().flat_map(|module| module.facts.firmware.iter().map(String::as_str)).collect()
    }
}

/// A dash in a module's name is an underscore to the kernel.
fn plain(name: &str) -> String {
    name.replace('-', "_")
}

fn stem(file: &str) -> &str {
    file.split(".ko").next().unwrap_or(file)
}

/// All modules below a directory: name in the kernel, name of the file unpacked, path.
fn walk(directory: &Path, files: &mut BTreeMap<String, (String, PathBuf)>) -> std::io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            walk(&path, files)?;
        } else if let Some(leaf) = path.file_name().and_then(|leaf| leaf.to_str())
            && leaf.contains(".ko")
        {
            files.insert(plain(stem(leaf)), (format!("{}.ko", stem(leaf)), path));
        }
    }
    Ok(())
}

/// A module's bytes: packed ones cost an emulated machine seconds, and an image is packed as a whole.
fn unpacked(path: &Path) -> Result<Vec<u8>, String> {
    let program = match path.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        _ => return fs::read(path).map_err(|e| format!("{}: {e}", path.display())),
    };
    let out = crate::timed::output(Command::new(program).arg("-dc").arg(path), LIMIT)?;
    if out.status.success() { Ok(out.stdout) } else { Err(format!("{program} -dc {}: {}", path.display(), out.status)) }
}

/// What stands in a module's `.modinfo`: `key=value`, parted by zeros.
fn facts(elf: &[u8]) -> Option<Facts> {
    let info = section(elf, b".modinfo")?;
    let mut facts = Facts::default();
    for line in info.split(|byte| *byte == 0) {
        let line = String::from_utf8_lossy(line);
        let Some((key, value)) = line.split_once('=') else { continue };
        match key {
            "depends" => facts.depends.extend(value.split(',').filter(|name| !name.is_empty()).map(str::to_owned)),
            // What is wanted before it, where we want it, too.
            "softdep" => {
                let before = value.strip_prefix("pre:").into_iter().flat_map(|rest| rest.split("post:").take(1));
                let names = before.flat_map(str::split_whitespace);
                facts.depends.extend(names.filter(|name| WANTED.contains(name)).map(str::to_owned));
            }
            // An index is words.
            "alias" if !value.contains(char::is_whitespace) => facts.aliases.push(value.to_owned()),
            "firmware" => facts.firmware.push(value.to_owned()),
            _ => {}
        }
    }
    Some(facts)
}

/// A section of a 64-bit ELF file, by its name.
fn section<'a>(elf: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let word = |at: usize, bytes: usize| -> Option<usize> {
        let slice = elf.get(at..at.checked_add(bytes)?)?;
        usize::try_from(slice.iter().rev().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte))).ok()
    };
    // Magic, 64 bits, little-endian.
    if elf.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let (table, size, count, names) = (word(0x28, 8)?, word(0x3a, 2)?, word(0x3c, 2)?, word(0x3e, 2)?);
    let header = |index: usize| table.checked_add(index.checked_mul(size)?);
    let bytes = |header: usize| {
        let start = word(header.checked_add(0x18)?, 8)?;
        elf.get(start..start.checked_add(word(header.checked_add(0x20)?, 8)?)?)
    };
    let names = bytes(header(names)?)?;
    (0..count).find_map(|index| {
        let header = header(index)?;
        let own = names.get(word(header, 4)?..)?;
        (own.strip_prefix(name)?.first() == Some(&0)).then(|| bytes(header))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ELF file with a `.modinfo`, as small as can be.
    fn elf(info: &str) -> Vec<u8> {
        let names = b"\0.shstrtab\0.modinfo\0";
        let info = info.replace('\n', "\0");
        let mut bytes = vec![0; 64];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        let (at_names, at_info) = (bytes.len(), bytes.len() + names.len());
        bytes.extend_from_slice(names);
        bytes.extend_from_slice(info.as_bytes());
        let table = bytes.len() as u64;
        for (name, start, length) in [(0_u32, 0, 0), (1, at_names, names.len()), (11, at_info, info.len())] {
            let mut header = [0; 64];
            header[..4].copy_from_slice(&name.to_le_bytes());
            header[0x18..0x20].copy_from_slice(&(start as u64).to_le_bytes());
            header[0x20..0x28].copy_from_slice(&(length as u64).to_le_bytes());
            bytes.extend_from_slice(&header);
        }
        bytes[0x28..0x30].copy_from_slice(&table.to_le_bytes());
        bytes[0x3a..0x40].copy_from_slice(&[64, 0, 3, 0, 1, 0]);
        bytes
    }

    fn module(depends: &[&str]) -> Module {
        let depends = depends.iter().map(|name| (*name).to_owned()).collect();
        Module { facts: Facts { depends, ..Facts::default() }, ..Module::default() }
    }

    #[test]
    fn a_module_says_what_it_needs() {
        let read = facts(&elf("license=GPL\ndepends=drm,gpu-sched\nalias=pci:v1*\nalias=\"a b\"\nfirmware=x/y.bin\n\
                               softdep=pre: realtek amdtee post: nvme\n"));
        let expected = Facts {
            depends: ["drm", "gpu-sched", "realtek"].map(str::to_owned).into(),
            aliases: vec!["pci:v1*".into()],
            firmware: vec!["x/y.bin".into()],
        };
        assert_eq!(read, Some(expected));
    }

    #[test]
    fn a_file_that_is_cut_or_turned_is_no_module_and_breaks_nothing() {
        let whole = elf("depends=a\n");
        for length in 0..whole.len() - 1 {
            let _ = facts(&whole[..length]);
        }
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 0xff;
            let _ = facts(&bytes);
        }
        assert_eq!((facts(b""), facts(&whole[..64])), (None, None));
    }

    #[test]
    fn what_is_needed_is_loaded_first_and_once() {
        let mut modules = Modules::default();
        for (file, needs) in [
            ("amdxdna.ko", &["drm_shmem_helper", "gpu-sched", "drm"][..]),
            ("drm.ko", &[]),
            ("gpu-sched.ko", &["drm"]),
            ("drm_shmem_helper.ko", &["drm", "drm_kms_helper"]),
            ("drm_kms_helper.ko", &["drm"]),
        ] {
            modules.all.insert(file.into(), module(needs));
        }
        let index = modules.index().unwrap();
        let line = "module amdxdna.ko drm.ko drm_kms_helper.ko drm_shmem_helper.ko gpu-sched.ko\n";
        assert!(index.contains(line), "{index}");
        modules.all.insert("drm.ko".into(), module(&["gpu_sched"]));
        assert!(modules.index().is_err_and(|why| why.contains("need each other")));
        modules.all.insert("drm.ko".into(), module(&["nothing"]));
        assert!(modules.index().is_err_and(|why| why.contains("drm.ko needs nothing")));
    }
}
