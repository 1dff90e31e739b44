//! Prompts from files and from standard input.

use crate::error::CliError;
use std::fs::File;
use std::io::{BufRead, Read};
use std::path::Path;

/// Far more than any context holds.
const MAX_BYTES: u64 = 64 << 20;

/// A whole file as one prompt; `-` is standard input.
pub(crate) fn read(path: &Path) -> Result<String, CliError> {
    if path == Path::new("-") {
        let from = || "standard input".to_owned();
        return whole(std::io::stdin().lock()).map_err(|what| CliError::Prompt { from: from(), what });
    }
    text_of(path).map_err(|what| CliError::Prompt { from: path.display().to_string(), what })
}

/// A text file.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn text_of(path: &Path) -> Result<String, String> {
    let file = File::open(path).map_err(|error| format!("cannot open it: {error}"))?;
    if file.metadata().is_ok_and(|about| about.is_dir()) {
        return Err("it is a directory".into());
    }
    whole(file)
}

fn whole(source: impl Read) -> Result<String, String> {
    let mut bytes = Vec::new();
    source.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|error| format!("cannot read it: {error}"))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(format!("it is longer than {MAX_BYTES} bytes"));
    }
    text(bytes)
}

/// UTF-8, without the byte order mark that some editors put in front.
fn text(bytes: Vec<u8>) -> Result<String, String> {
    let text = String::from_utf8(bytes)
        .map_err(|error| format!("it is not UTF-8 (byte {}): convert it first", error.utf8_error().valid_up_to()))?;
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}

/// A line of an interactive session ends here: a megabyte is more than any context holds.
const MAX_LINE: u64 = 1 << 20;

/// The next line of standard input; `None` at its end. A line that is not UTF-8 costs itself only.
pub(crate) fn next_line() -> Result<Option<String>, CliError> {
    let mut bytes = Vec::new();
    let failed = |what: String| CliError::Prompt { from: "standard input".into(), what };
    let mut stdin = std::io::stdin().lock();
    let mut read = |bytes: &mut Vec<u8>| {
        let some = stdin.by_ref().take(MAX_LINE).read_until(b'\n', bytes);
        some.map_err(|error| failed(format!("cannot read it: {error}")))
    };
    if read(&mut bytes)? == 0 {
        return Ok(None);
    }
    if bytes.len() as u64 == MAX_LINE && !bytes.ends_with(b"\n") {
        // The rest of the line goes with it, piece by piece, up to what a whole file may have.
        for _ in 0..MAX_BYTES / MAX_LINE {
            bytes.clear();
            if read(&mut bytes)? == 0 || bytes.ends_with(b"\n") {
                break;
            }
        }
        return Err(failed(format!("a line is longer than {MAX_LINE} bytes")));
    }
    text(bytes).map(Some).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_utf8_without_its_mark() {
        assert_eq!(text(b"\xef\xbb\xbfhi".to_vec()), Ok("hi".into()));
        assert_eq!(text(b"ab\xffc".to_vec()), Err("it is not UTF-8 (byte 2): convert it first".into()));
        assert!(whole(&b"a\xc3"[..]).is_err());
    }
}
