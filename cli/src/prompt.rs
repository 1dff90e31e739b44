//! Prompts from files and from standard input.

use crate::error::CliError;
use std::fs::File;
use std::io::{BufRead, Read};
use std::path::{Path, PathBuf};

/// Far more than any context holds.
const MAX_BYTES: u64 = 64 << 20;

/// A whole file as one prompt; `-` is standard input.
pub(crate) fn read(path: &Path) -> Result<String, CliError> {
    if path == Path::new("-") {
        return whole("standard input", std::io::stdin().lock());
    }
    let from = path.display().to_string();
    let failed = |what: String| CliError::Prompt { from: from.clone(), what };
    let file = File::open(path).map_err(|error| failed(format!("cannot open it: {error}")))?;
    if file.metadata().is_ok_and(|about| about.is_dir()) {
        return Err(failed("it is a directory".into()));
    }
    whole(&from, file)
}

fn whole(from: &str, source: impl Read) -> Result<String, CliError> {
    let failed = |what: String| CliError::Prompt { from: from.to_owned(), what };
    let mut bytes = Vec::new();
    source.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|error| failed(format!("cannot read it: {error}")))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(failed(format!("it is longer than {MAX_BYTES} bytes")));
    }
    text(bytes).map_err(failed)
}

/// UTF-8, without the byte order mark that some editors put in front.
fn text(bytes: Vec<u8>) -> Result<String, String> {
    let text = String::from_utf8(bytes)
        .map_err(|error| format!("it is not UTF-8 (byte {}): convert it first", error.utf8_error().valid_up_to()))?;
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}

/// A line of an interactive session ends here: a megabyte is more than any context holds.
const MAX_LINE: u64 = 1 << 20;

/// What a line of an interactive session asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// Nothing.
    Blank,
    /// A prompt.
    Prompt(String),
    /// `/image FILE`: a picture for the next prompt.
    Image(PathBuf),
}

/// The next line of standard input; `None` at its end. A line that is not UTF-8 costs itself only.
pub(crate) fn next_line() -> Result<Option<Line>, CliError> {
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
    text(bytes).map(|text| Some(parse(&text))).map_err(failed)
}

fn parse(line: &str) -> Line {
    let line = line.trim();
    match line.strip_prefix("/image").map(|rest| (rest, rest.trim())) {
        _ if line.is_empty() => Line::Blank,
        Some((rest, path)) if rest.starts_with(char::is_whitespace) && !path.is_empty() => Line::Image(path.into()),
        _ => Line::Prompt(line.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_prompts_unless_they_name_a_picture() {
        assert_eq!(parse(" \r\n"), Line::Blank);
        assert_eq!(parse("what is this?\r\n"), Line::Prompt("what is this?".into()));
        assert_eq!(parse("/image a b.png\n"), Line::Image("a b.png".into()));
        assert_eq!(parse("/images are nice\n"), Line::Prompt("/images are nice".into()));
        assert_eq!(parse("/image\n"), Line::Prompt("/image".into()));
    }

    #[test]
    fn text_is_utf8_without_its_mark() {
        assert_eq!(text(b"\xef\xbb\xbfhi".to_vec()), Ok("hi".into()));
        assert_eq!(text(b"ab\xffc".to_vec()), Err("it is not UTF-8 (byte 2): convert it first".into()));
        assert!(whole("x", &b"a\xc3"[..]).is_err());
    }
}
