//! Bytes of tokens to text, as they come.

/// Turns the bytes of tokens into text without ever taking a character back.
///
/// What is certain comes out at once: an invalid sequence becomes one U+FFFD for exactly its own bytes, so that a good
/// character right behind it survives, and at most the three bytes of one incomplete character wait. All pieces
/// together, with [`TextStream::finish`], are what [`String::from_utf8_lossy`] makes of all bytes.
#[derive(Debug, Default)]
pub struct TextStream {
    pending: Vec<u8>,
}

impl TextStream {
    /// Nothing pending.
    #[must_use]
    pub fn new() -> TextStream {
        TextStream::default()
    }

    /// Appends to `out` what `bytes` make certain.
    pub fn push(&mut self, bytes: &[u8], out: &mut String) {
        self.pending.extend_from_slice(bytes);
        let mut done = 0;
        for chunk in self.pending.utf8_chunks() {
            out.push_str(chunk.valid());
            done += chunk.valid().len();
            let invalid = chunk.invalid();
            if !invalid.is_empty() {
                // An incomplete character at the very end may yet be completed.
                let at_end = done + invalid.len() == self.pending.len();
                if at_end && std::str::from_utf8(invalid).is_err_and(|e| e.error_len().is_none()) {
                    break;
                }
                out.push(char::REPLACEMENT_CHARACTER);
                done += invalid.len();
            }
        }
        self.pending.drain(..done);
    }

    /// Ends the text: an incomplete character that still waits becomes U+FFFD.
    pub fn finish(&mut self, out: &mut String) {
        if !self.pending.is_empty() {
            self.pending.clear();
            out.push(char::REPLACEMENT_CHARACTER);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(cuts: &[&[u8]]) -> (String, usize) {
        let (mut stream, mut out, mut most) = (TextStream::new(), String::new(), 0);
        for bytes in cuts {
            stream.push(bytes, &mut out);
            most = most.max(stream.pending.len());
        }
        stream.finish(&mut out);
        (out, most)
    }

    #[test]
    fn every_cut_of_a_text_gives_the_text() {
        let text = "a é 漢 🙂 e\u{301}";
        let bytes = text.as_bytes();
        for i in 0..=bytes.len() {
            for j in i..=bytes.len() {
                assert_eq!(pieces(&[&bytes[..i], &bytes[i..j], &bytes[j..]]).0, text, "{i} {j}");
            }
        }
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(pieces(&single), (text.to_owned(), 3));
    }

    #[test]
    fn a_character_behind_a_bad_byte_survives() {
        // A stray continuation byte, then the first two bytes of a character, then its last.
        assert_eq!(pieces(&[b"\x80\xe6\xbc", b"\xa2!"]).0, "\u{fffd}漢!");
        // An incomplete character that another one interrupts.
        assert_eq!(pieces(&[b"\xe6\xbc", "é".as_bytes()]).0, "\u{fffd}é");
    }

    #[test]
    fn an_incomplete_tail_is_flushed_at_the_end() {
        assert_eq!(pieces(&[b"ok\xf0\x9f\x99"]).0, "ok\u{fffd}");
        assert_eq!(pieces(&[]).0, "");
    }

    /// Random bytes with many continuation and lead bytes, in random cuts: the whole is the lossy conversion, and
    /// never more than three bytes wait.
    #[test]
    fn random_bytes_lose_nothing_and_never_stall() {
        let mut seed = 0x9e37_79b9_7f4a_7c15u64;
        let mut next = move || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed
        };
        for _ in 0..2000 {
            let bytes: Vec<u8> = (0..next() % 24)
                .map(|_| match next() % 4 {
                    0 => 0x80 | (next() % 64) as u8,
                    1 => 0xc0 | (next() % 64) as u8,
                    2 => (next() % 128) as u8,
                    _ => *b"\xe6\xbc\xa2\xf0\x9f\x99\x82\xed\xa0".get(next() as usize % 9).unwrap(),
                })
                .collect();
            let mut cuts = Vec::new();
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let (head, tail) = rest.split_at(1 + next() as usize % rest.len().min(5));
                cuts.push(head);
                rest = tail;
            }
            let (text, waiting) = pieces(&cuts);
            assert_eq!(text, String::from_utf8_lossy(&bytes), "{cuts:?}");
            assert!(waiting <= 3, "{waiting} bytes wait: {cuts:?}");
        }
    }
}
