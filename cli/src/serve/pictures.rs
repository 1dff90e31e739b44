//! Pictures in requests: `data:` URLs, and nothing that would have to be fetched.

use super::error::ApiError;
use runtime::chat::{Message, Part, Picture, Said};
use runtime::image::{Rgb, decode};

/// Pictures of one request.
const MAX_PICTURES: usize = 64;
/// Pixels of all of them: 150 MB.
pub(super) const MAX_PIXELS: usize = 50_000_000;

/// Messages with their pictures decoded.
pub(super) fn take(messages: Vec<Message>) -> Result<Vec<Said>, ApiError> {
    let (mut count, mut pixels) = (0, 0);
    let mut out = Vec::with_capacity(messages.len());
    for (index, mut message) in messages.into_iter().enumerate() {
        let mut pictures = Vec::new();
        for (at, part) in message.content.iter_mut().enumerate() {
            let Part::Image { source } = part else { continue };
            let wrong = |what: String| ApiError::field(format!("messages[{index}].content[{at}]"), what);
            let source = source.take().ok_or_else(|| wrong("the picture has no `image_url.url`".into()))?;
            count += 1;
            if count > MAX_PICTURES {
                return Err(wrong(format!("there are more than {MAX_PICTURES} pictures")));
            }
            let rgb = read(&source).map_err(wrong)?;
            pixels += rgb.width * rgb.height;
            if pixels > MAX_PIXELS {
                let what = format!("the pictures have more than {MAX_PIXELS} pixels together: scale them down first");
                return Err(wrong(what));
            }
            pictures.push(Picture::new(rgb));
        }
        out.push(Said { message, pictures });
    }
    Ok(out)
}

/// The picture in a `data:` URL.
fn read(url: &str) -> Result<Rgb, String> {
    let Some(rest) = strip_scheme(url, "data:") else {
        let shown: String = url.chars().take(40).collect();
        let remote = ["http:", "https:", "ftp:", "file:"].iter().any(|scheme| strip_scheme(url, scheme).is_some());
        return Err(if remote {
            format!(
                "`{shown}` would have to be fetched, which this server never does: send the picture itself, as a \
                 `data:image/jpeg;base64,...` URL"
            )
        } else {
            format!("`{shown}` is no `data:` URL: send the picture as `data:image/jpeg;base64,...`")
        });
    };
    let Some((about, data)) = rest.split_once(',') else {
        return Err("the `data:` URL has no comma before its data".into());
    };
    if !about.to_ascii_lowercase().ends_with(";base64") {
        return Err("the `data:` URL is not in base64: write `data:image/jpeg;base64,...`".into());
    }
    let bytes = base64(data)?;
    decode(&bytes).map_err(|error| error.to_string())
}

fn strip_scheme<'a>(url: &'a str, scheme: &str) -> Option<&'a str> {
    let (head, rest) = url.split_at_checked(scheme.len())?;
    head.eq_ignore_ascii_case(scheme).then_some(rest)
}

/// Bytes out of base64, of either alphabet, with or without padding; white space does not count.
pub(super) fn base64(text: &str) -> Result<Vec<u8>, String> {
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    let (mut held, mut bits, mut ended) = (0u32, 0u32, false);
    for (at, byte) in text.bytes().enumerate() {
        let six = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            b'=' => {
                ended = true;
                continue;
            }
            b' ' | b'\t' | b'\r' | b'\n' => continue,
            _ => return Err(format!("byte {at} of the base64 data is none of base64's characters")),
        };
        if ended {
            return Err("the base64 data goes on behind its end".into());
        }
        held = held << 6 | u32::from(six);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            out.push((held >> bits) as u8);
        }
    }
    if bits == 6 { Err("the base64 data ends in the middle of a byte".into()) } else { Ok(out) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// RFC 4648, section 10.
    #[test]
    fn base64_is_rfc_4648s() {
        for (text, bytes) in
            [("", ""), ("Zg==", "f"), ("Zm8=", "fo"), ("Zm9v", "foo"), ("Zm9vYg", "foob"), ("Zm9v\r\nYmE=", "fooba")]
        {
            assert_eq!(base64(text).unwrap(), bytes.as_bytes(), "{text}");
        }
        assert_eq!(base64("+/-_").unwrap(), [0xfb, 0xff, 0xbf]);
        for bad in ["Z", "Zm9vY", "Zg==Zg==", "Zm*v", "Zm9v\u{e4}"] {
            assert!(base64(bad).is_err(), "{bad}");
        }
    }

    fn taken(url: &str) -> Result<Vec<Said>, ApiError> {
        let part = json!({"type": "image_url", "image_url": {"url": url}});
        let message = Message::from_json(0, &json!({"role": "user", "content": [part]})).unwrap();
        take(vec![message])
    }

    #[test]
    fn a_picture_comes_in_its_message() {
        // One grey pixel.
        let png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg==";
        let said = taken(&format!("DATA:image/png;Base64,{png}")).unwrap();
        assert_eq!(said[0].pictures[0].rgb().width, 1);
        assert_eq!(said[0].message.content, [Part::Image { source: None }]);
    }

    #[test]
    fn what_is_no_picture_is_refused_by_name() {
        for (url, said) in [
            ("https://example.org/x.png", "never does"),
            ("HTTP://127.0.0.1/x.png", "never does"),
            ("file:///etc/passwd", "never does"),
            ("/etc/passwd", "no `data:` URL"),
            ("data:image/png;base64", "no comma"),
            ("data:image/png,xyz", "not in base64"),
            ("data:image/png;base64,", "empty"),
            ("data:image/png;base64,!", "base64's characters"),
            ("data:image/gif;base64,R0lGODlh", "GIF"),
            ("data:image/png;base64,aGVsbG8gdGhlcmU", "not a picture"),
        ] {
            let error = taken(url).unwrap_err();
            assert!(error.to_string().contains(said), "{url}: {error}");
            assert_eq!(error.status(), 400);
        }
        let none = Message::from_json(0, &json!({"role": "user", "content": [{"type": "image"}]})).unwrap();
        assert!(take(vec![none]).unwrap_err().to_string().contains("messages[0].content[0]"));
    }
}
