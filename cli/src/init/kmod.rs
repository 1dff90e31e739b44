//! Modules of the kernel: which one drives which device, what it needs, and loading both.
//!
//! There is no `modprobe` here. An index that was made with the image says of each file what has to be loaded before it,
//! and for which devices it is:
//!
//! ```text
//! module ext4.ko crc16.ko mbcache.ko jbd2.ko
//! alias pci:v00001AF4d*sv*sd*bc*sc*i* virtio_net.ko
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::Path;

use rustix::io::Errno;

use super::cmdline::Parameters;

/// What the image has.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Index {
    /// What a file needs, in the order of loading.
    needs: BTreeMap<String, Vec<String>>,
    aliases: Vec<(String, String)>,
}

impl Index {
    /// Reads an index; lines that say nothing are passed over.
    pub(super) fn parse(text: &str) -> Index {
        let mut index = Index::default();
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace().map(str::to_owned);
            match (words.next().as_deref(), words.next()) {
                (Some("module"), Some(file)) => {
                    index.needs.insert(file, words.collect());
                }
                (Some("alias"), Some(pattern)) => index.aliases.extend(words.next().map(|file| (pattern, file))),
                _ => {}
            }
        }
        index
    }

    /// The files for a device, by what it says of itself.
    fn drivers<'a>(&'a self, modalias: &'a str) -> impl Iterator<Item = &'a str> {
        self.aliases
            .iter()
            .filter(move |(pattern, _)| matches(pattern.as_bytes(), modalias.as_bytes()))
            .map(|(_, f)| &**f)
    }
}

/// Whether a text is one of a pattern's: `*`, `?`, and `[0-9a]` as shells have them.
fn matches(mut pattern: &[u8], mut text: &[u8]) -> bool {
    // Where to go on after a mismatch: behind the last star, with one character more in it.
    let mut again: Option<(&[u8], &[u8])> = None;
    loop {
        if let [b'*', rest @ ..] = pattern {
            pattern = rest;
            again = Some((pattern, text));
            continue;
        }
        let step = match (pattern, text) {
            ([], []) => return true,
            ([b'[', set @ ..], [c, rest @ ..]) => {
                let end = set.iter().skip(1).position(|&b| b == b']').map(|at| at + 1);
                end.filter(|&end| in_set(&set[..end], *c)).map(|end| (&set[end + 1..], rest))
            }
            ([b'?', after @ ..], [_, rest @ ..]) => Some((after, rest)),
            ([p, after @ ..], [c, rest @ ..]) if p == c => Some((after, rest)),
            _ => None,
        };
        match (step, again) {
            (Some(next), _) => (pattern, text) = next,
            (None, Some((behind, [_, rest @ ..]))) => {
                again = Some((behind, rest));
                (pattern, text) = (behind, rest);
            }
            (None, _) => return false,
        }
    }
}

fn in_set(set: &[u8], c: u8) -> bool {
    match set {
        [from, b'-', to, rest @ ..] => (*from..=*to).contains(&c) || in_set(rest, c),
        [one, rest @ ..] => *one == c || in_set(rest, c),
        [] => false,
    }
}

/// The modules of this machine.
#[derive(Debug, Default)]
pub(super) struct Modules {
    index: Index,
    /// Where the files are.
    directory: String,
    parameters: Parameters,
    /// Files that were loaded, or failed to.
    tried: BTreeSet<String>,
    /// Devices that were looked at.
    seen: BTreeSet<String>,
}

impl Modules {
    pub(super) fn open(index: &str, parameters: Parameters) -> Result<Modules, String> {
        let text = fs::read_to_string(index).map_err(|e| format!("read {index}: {e}"))?;
        let directory = Path::new(index).parent().map(|parent| parent.display().to_string()).unwrap_or_default();
        Ok(Modules { index: Index::parse(&text), directory, parameters, ..Modules::default() })
    }

    /// Loads the drivers of all devices that have come up, but for these files; gives what went wrong.
    pub(super) fn scan(&mut self, without: &[&str]) -> Vec<String> {
        let mut trouble = Vec::new();
        // A driver may bring up a bus with devices on it.
        loop {
            let new: Vec<String> = modaliases().into_iter().filter(|alias| self.seen.insert(alias.clone())).collect();
            if new.is_empty() {
                return trouble;
            }
            for alias in new {
                let files: Vec<String> =
                    self.index.drivers(&alias).filter(|file| !without.contains(file)).map(str::to_owned).collect();
                files.iter().for_each(|file| self.load(file, &mut trouble));
            }
        }
    }

    /// Loads a file and what it needs, where that was not tried yet.
    pub(super) fn load(&mut self, file: &str, trouble: &mut Vec<String>) {
        let needs = self.index.needs.get(file).cloned().unwrap_or_default();
        for file in needs.iter().map(String::as_str).chain([file]) {
            if self.tried.insert(file.to_owned()) {
                let name = file.strip_suffix(".ko").unwrap_or(file);
                let parameters = self.parameters.of_module(name);
                trouble.extend(insert(&format!("{}/{file}", self.directory), &parameters).err());
            }
        }
    }
}

/// What the devices of all buses say of themselves.
fn modaliases() -> Vec<String> {
    let inside = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let devices = inside(Path::new("/sys/bus")).flat_map(|bus| inside(&bus.join("devices")).collect::<Vec<_>>());
    let mut found: Vec<String> = devices
        .filter_map(|device| fs::read_to_string(device.join("modalias")).ok())
        .map(|alias| alias.trim().to_owned())
        .filter(|alias| !alias.is_empty())
        .collect();
    found.sort();
    found.dedup();
    found
}

/// `path parameters`, as a line of the script has it.
pub(super) fn load_line(line: &str) -> Result<(), String> {
    let (path, parameters) = line.split_once(' ').unwrap_or((line, ""));
    insert(path, parameters.trim())
}

/// finit_module(2). A module that is there already is no error.
fn insert(path: &str, parameters: &str) -> Result<(), String> {
    let file = File::open(path).map_err(|e| format!("open {path}: {e}"))?;
    let words = CString::new(parameters).map_err(|_| format!("{path}: a NUL in its parameters"))?;
    match rustix::system::finit_module(file.as_fd(), &words, 0) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(e) => Err(format!("finit_module {path} {parameters:?}: {e}")),
    }
}

pub(super) fn unload(name: &str) -> Result<(), String> {
    let word = CString::new(name).map_err(|_| "a NUL in a module's name".to_owned())?;
    // O_NONBLOCK: a module in use is an error, not a wait.
    let flags = rustix::fs::OFlags::NONBLOCK.bits();
    rustix::system::delete_module(&word, flags as i32).map_err(|e| format!("delete_module {name}: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Aliases of Linux 7.3.4's modules, and devices of machines.
    #[test]
    fn a_device_finds_its_driver() {
        let index = Index::parse(
            "alias virtio:d00000001v* virtio_net.ko\nalias pci:v*d*sv*sd*bc01sc08i02* nvme.ko\n\
             alias pci:v00001022d000017F0sv*sd*bc*sc*i* amdxdna.ko\nalias usb:v*p*d*dc*dsc*dp*ic08isc06ip50in* u.ko\n\
             alias usb:v03EEp6906d000[0-3]dc*dsc*dp*ic*isc*ip*in* q.ko\nalias x\nalias\nmodule\n\nnonsense a b c\n",
        );
        let drivers = |alias| index.drivers(alias).collect::<Vec<_>>();
        assert_eq!(drivers("virtio:d00000001v00001AF4"), ["virtio_net.ko"]);
        assert_eq!(drivers("virtio:d00000002v00001AF4"), [""; 0]);
        assert_eq!(drivers("pci:v0000144Dd0000A80Asv0000144Dsd0000A801bc01sc08i02"), ["nvme.ko"]);
        assert_eq!(drivers("pci:v00001022d000017F0sv00001022sd000017F0bc11sc80i00"), ["amdxdna.ko"]);
        assert_eq!(drivers("usb:v03EEp6906d0003dc00dsc00dp00ic08isc06ip50in00"), ["u.ko", "q.ko"]);
        assert_eq!(drivers("usb:v03EEp6906d0004dc00dsc00dp00ic08isc05ip50in00"), [""; 0]);
    }

    #[test]
    fn patterns_that_are_odd_neither_match_wrongly_nor_hang() {
        assert!(matches(b"*", b"") && matches(b"a*b*c", b"aXbXbc") && matches(b"[-a]", b"-"));
        assert!(!matches(b"[", b"[") && !matches(b"[]", b"]") && !matches(b"", b"a") && !matches(b"a?", b"a"));
        let (many, text) = ("*a".repeat(40), "a".repeat(2000));
        assert!(!matches(format!("{many}b").as_bytes(), text.as_bytes()));
    }

    #[test]
    fn a_file_that_is_missing_is_told_once() {
        let index = Index::parse("module ext4.ko jbd2.ko");
        let mut modules = Modules { index, directory: "/nowhere".into(), ..Modules::default() };
        let mut trouble = Vec::new();
        modules.load("ext4.ko", &mut trouble);
        modules.load("ext4.ko", &mut trouble);
        assert_eq!(trouble.len(), 2, "{trouble:?}");
        assert!(trouble[0].contains("/nowhere/jbd2.ko") && trouble[1].contains("/nowhere/ext4.ko"));
    }
}
