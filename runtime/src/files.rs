//! Opening what was named from outside.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens a regular file to read it. A pipe or a device is refused, and not waited for: opening a pipe otherwise hangs
/// until somebody writes to it.
///
/// # Errors
/// What the system says, or `not a regular file`.
pub fn open(path: &Path) -> io::Result<File> {
    let without_waiting = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(without_waiting).open(path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"))
}

/// All bytes of a regular file.
///
/// # Errors
/// As [`open`], and those of reading.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut open(path)?, &mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    #[test]
    fn a_pipe_is_refused_without_waiting() {
        let path = std::env::temp_dir().join(format!("qwen35-pipe-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let refused = read(&path).map_err(|error| error.to_string());
        std::fs::remove_file(&path).unwrap();
        assert_eq!(refused, Err("not a regular file".to_owned()));
        assert!(open(&std::env::temp_dir()).is_err() && open(Path::new("/dev/null")).is_err());
    }
}
