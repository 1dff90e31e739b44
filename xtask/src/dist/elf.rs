//! Whether an executable is static.

/// The loader that an x86-64 executable asks for; `None` for a static one.
///
/// # Errors
/// A file that is no such executable.
pub(super) fn interpreter(bytes: &[u8]) -> Result<Option<String>, String> {
    const PT_INTERP: u32 = 3;
    let no = || "it is no 64-bit little-endian executable".to_owned();
    if !bytes.starts_with(b"\x7fELF\x02\x01") {
        return Err(no());
    }
    let number = |at: usize, len: usize| -> Result<usize, String> {
        let part = bytes.get(at..at.checked_add(len).ok_or_else(no)?).ok_or_else(no)?;
        let value = part.iter().rev().fold(0u64, |value, byte| value << 8 | u64::from(*byte));
        usize::try_from(value).map_err(|_| no())
    };
    let (table, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    for index in 0..count {
        let at = table.checked_add(index * size).ok_or_else(no)?;
        if number(at, 4)? == PT_INTERP as usize {
            let (from, len) = (number(at + 8, 8)?, number(at + 32, 8)?);
            let name = bytes.get(from..from.checked_add(len).ok_or_else(no)?).ok_or_else(no)?;
            return Ok(Some(String::from_utf8_lossy(name).trim_end_matches('\0').to_owned()));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_test_is_dynamic() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(interpreter(&own).unwrap().is_some_and(|loader| loader.contains("ld-linux")));
        assert!(interpreter(b"hello").is_err() && interpreter(&own[..60]).is_err());
    }
}
