//! A Debian package: an `ar` archive of two tar archives (deb(5)).

use std::collections::BTreeSet;
use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;

use super::Piece;

const CONTROL: &str = "\
Package: qwen35-direct
Version: {version}
Architecture: amd64
Maintainer: the qwen35-direct maintainers <maintainers@users.noreply.invalid>
Installed-Size: {size}
Section: science
Priority: optional
Description: Qwen3.5 chat on AMD Ryzen AI NPUs
 Answers text and pictures on the NPU of Strix, Strix Halo and Krackan, through
 the Linux amdxdna driver alone, without XRT. It needs a bundle: compiled
 kernels, packed weights and a tokenizer.
";

/// The package's bytes, the same for the same pieces.
pub(super) fn package(version: &str, epoch: u64, pieces: &[Piece]) -> io::Result<Vec<u8>> {
    let installed = pieces.iter().filter(|piece| !piece.place.is_empty());
    let size: usize = installed.clone().map(|piece| piece.bytes.len().div_ceil(1024)).sum();
    let control = CONTROL.replace("{version}", version).replace("{size}", &size.to_string());
    let control = archive(epoch, &[("control", 0o644, control.as_bytes())])?;
    let data: Vec<(&str, u32, &[u8])> = installed.map(|piece| (piece.place, piece.mode, &piece.bytes[..])).collect();
    let data = archive(epoch, &data)?;
    let mut out = b"!<arch>\n".to_vec();
    for (name, bytes) in [("debian-binary", &b"2.0\n"[..]), ("control.tar.gz", &control), ("data.tar.gz", &data)] {
        writeln!(out, "{name:<16}{epoch:<12}{:<6}{:<6}{:<8}{:<10}`", 0, 0, "100644", bytes.len())?;
        out.extend(bytes);
        if bytes.len() % 2 == 1 {
            out.push(b'\n');
        }
    }
    Ok(out)
}

/// A compressed tar archive of files, with the folders that they are in.
fn archive(epoch: u64, files: &[(&str, u32, &[u8])]) -> io::Result<Vec<u8>> {
    let mut tar = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::best()));
    let header = |kind: tar::EntryType, mode: u32, size: usize| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_size(size as u64);
        header.set_mtime(epoch);
        header.set_uid(0);
        header.set_gid(0);
        header
    };
    let mut folders = BTreeSet::from([String::new()]);
    for (path, ..) in files {
        for (at, _) in path.match_indices('/') {
            folders.insert(path[..=at].to_owned());
        }
    }
    for folder in folders {
        let mut header = header(tar::EntryType::Directory, 0o755, 0);
        tar.append_data(&mut header, format!("./{folder}"), io::empty())?;
    }
    for (path, mode, bytes) in files {
        let mut header = header(tar::EntryType::Regular, *mode, bytes.len());
        tar.append_data(&mut header, format!("./{path}"), *bytes)?;
    }
    tar.into_inner()?.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_pieces_give_the_same_bytes() {
        let piece = |place| Piece { name: "x", place, mode: 0o644, bytes: b"hello".to_vec() };
        let pieces = [piece("usr/share/doc/x"), piece("")];
        let first = package("1.0", 7, &pieces).unwrap();
        assert_eq!(first, package("1.0", 7, &pieces).unwrap());
        assert_ne!(first, package("1.1", 7, &pieces).unwrap());
        assert!(first.starts_with(b"!<arch>\ndebian-binary   7           0     0     100644  4         `\n2.0\n"));
    }
}
