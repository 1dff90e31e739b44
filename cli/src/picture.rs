//! Picture files.

use crate::error::CliError;
use runtime::files;
use runtime::image::{Rgb, decode};
use std::io::Read;
use std::path::{Path, PathBuf};

/// No camera writes larger files.
const MAX_BYTES: u64 = 256 << 20;

pub(crate) fn read_all(paths: &[PathBuf]) -> Result<Vec<Rgb>, CliError> {
    paths.iter().map(|path| read(path)).collect()
}

/// One picture; `-` is standard input.
pub(crate) fn read(path: &Path) -> Result<Rgb, CliError> {
    let failed = |what: String| CliError::Picture { path: path.to_owned(), what };
    if path == Path::new("-") {
        return of(std::io::stdin().lock()).map_err(failed);
    }
    if path.is_dir() {
        return Err(failed("it is a directory; name a JPEG or PNG file".into()));
    }
    let file = files::open(path).map_err(|error| failed(format!("cannot open it: {error}")))?;
    of(file).map_err(failed)
}

fn of(source: impl Read) -> Result<Rgb, String> {
    let mut bytes = Vec::new();
    source.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|error| format!("cannot read it: {error}"))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(format!("the file is larger than {MAX_BYTES} bytes"));
    }
    decode(&bytes).map_err(|error| error.to_string())
}
