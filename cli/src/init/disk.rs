//! A bundle on a disk: the partition is waited for, looked at, and mounted to be read.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, mount};

use super::cmdline::Place;
use super::kmod::Modules;

/// A disk behind USB takes seconds to come up.
const PATIENCE: Duration = Duration::from_secs(30);
/// Where the partition goes.
const POINT: &str = "/disk";

/// A file system that we know, by its name in the kernel, with the modules for it.
type Kind = (&'static str, &'static [&'static str]);
const EXT4: Kind = ("ext4", &["ext4.ko"]);
/// FAT's names need two tables besides.
const VFAT: Kind = ("vfat", &["vfat.ko", "nls_cp437.ko", "nls_ascii.ko"]);

/// Mounts what `place` names; gives the bundle's directory.
pub(super) fn bundle(place: &Place, modules: &Mutex<Modules>) -> Result<String, String> {
    let Place { node, path } = place;
    let begun = Instant::now();
    while !Path::new(node).exists() {
        if begun.elapsed() > PATIENCE {
            return Err(format!(
                "{node} has not come up within {} s: is it named right, and is its driver in the image?",
                PATIENCE.as_secs()
            ));
        }
        modules.lock().unwrap_or_else(PoisonError::into_inner).scan(&[]);
        sleep(Duration::from_millis(50));
    }
    let mut head = vec![0; 2048];
    File::open(node).and_then(|file| file.read_exact_at(&mut head, 0)).map_err(|e| format!("read {node}: {e}"))?;
    let (name, files) = kind(&head).ok_or_else(|| format!("{node} holds neither ext4 nor FAT"))?;
    let mut trouble = Vec::new();
    for file in files {
        modules.lock().unwrap_or_else(PoisonError::into_inner).load(file, &mut trouble);
    }
    let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount(&**node, POINT, name, flags, None).map_err(|e| {
        format!("mount {node} as {name}: {e}{}{}", if trouble.is_empty() { "" } else { "; " }, trouble.join("; "))
    })?;
    let directory = format!("{POINT}{path}");
    if !Path::new(&directory).is_dir() {
        return Err(format!("{node} has no directory {path}"));
    }
    Ok(directory)
}

/// What a partition holds, by its first bytes.
fn kind(head: &[u8]) -> Option<Kind> {
    let at = |offset: usize, magic: &[u8]| head.get(offset..offset + magic.len()) == Some(magic);
    if at(1080, &[0x53, 0xef]) {
        return Some(EXT4);
    }
    (at(510, &[0x55, 0xaa]) && (at(82, b"FAT32   ") || at(54, b"FAT16   ") || at(54, b"FAT12   "))).then_some(VFAT)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Places from the kernel's headers of both file systems.
    #[test]
    fn file_systems_are_known_by_their_bytes() {
        let mut head = vec![0; 2048];
        assert_eq!(kind(&head), None);
        head[82..90].copy_from_slice(b"FAT32   ");
        assert_eq!(kind(&head), None, "no boot sector");
        head[510..512].copy_from_slice(&[0x55, 0xaa]);
        assert_eq!(kind(&head), Some(VFAT));
        head[1080..1082].copy_from_slice(&0xef53_u16.to_le_bytes());
        assert_eq!(kind(&head), Some(EXT4));
        assert_eq!(kind(&head[..100]), None);
    }

    /// As `mkfs.ext4` writes it, where there is one.
    #[test]
    fn a_file_system_that_was_made_is_known() {
        let file = std::env::temp_dir().join(format!("qwen35-ext4-{}", std::process::id()));
        File::create(&file).unwrap().set_len(4 << 20).unwrap();
        let made = std::process::Command::new("mkfs.ext4").arg("-q").arg("-F").arg(&file).output();
        let mut head = vec![0; 2048];
        File::open(&file).unwrap().read_exact_at(&mut head, 0).unwrap();
        std::fs::remove_file(&file).unwrap();
        if made.is_ok_and(|made| made.status.success()) {
            assert_eq!(kind(&head), Some(EXT4));
        }
    }
}
