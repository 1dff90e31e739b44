//! A conversation as a file.
//!
//! ```text
//! "qwen35-c" | version u32 | bytes of the head u64 | head, JSON | SHA-256 of all before it [32]
//!            | pictures as PNG, one behind the other | what the model had of it, as `model::state` writes it
//! ```
//!
//! Numbers are little-endian. The head has the messages, how many tokens were left out before them, how long each picture is
//! and which message it belongs to, and the tokens that the model had read. What the model had is of use to the same model only; the rest is to any.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::Chat;
use super::message::Message;
use super::picture::Picture;
use super::session::{Said, Session};
use super::state::{Span, Tokens};
use crate::image::{self, Rgb};
use crate::model::{Model, StateError};

/// First bytes of the file, and the version of what follows.
const MAGIC: [u8; 8] = *b"qwen35-c";
const VERSION: u32 = 1;
/// More than any conversation has: a context of text is a few MB.
const MAX_HEAD: u64 = 64 << 20;

/// Why a conversation could not be written or read.
#[derive(Debug, thiserror::Error)]
#[error("the session {}: {what}", path.display())]
#[non_exhaustive]
pub struct StoreError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong.
    pub what: String,
}

/// A conversation out of a file.
#[derive(Debug)]
#[non_exhaustive]
pub struct Restored {
    /// The conversation.
    pub session: Session,
    /// Why what the model had of it is of no use here: the next answer reads all of it anew.
    pub unread: Option<String>,
}

impl Chat {
    /// Writes a conversation to a file, which only its owner may read, in place of what was there: whole or not at all.
    /// What the model has of it goes along as it was at the last place to go back to, just before the last answer. This is
    /// the only place: a restored conversation goes on from there, and what is taken back before it is read anew. If
    /// another `Chat` has answered in it, the words alone are written.
    ///
    /// # Errors
    /// What the file system says.
    pub fn save(&self, session: &Session, path: &Path) -> Result<(), StoreError> {
        let mut aside = path.as_os_str().to_owned();
        aside.push(format!(".{}.new", std::process::id()));
        let aside = PathBuf::from(aside);
        let written = write(&self.model, session, &aside).and_then(|()| Ok(std::fs::rename(&aside, path)?));
        written.map_err(|what| {
            let _ = std::fs::remove_file(&aside);
            StoreError { path: path.to_owned(), what: what.0 }
        })
    }

    /// Reads a conversation from a file that [`Chat::save`] has written, with this bundle or another one.
    ///
    /// # Errors
    /// What the file system says; a file that is no conversation, or is damaged.
    pub fn restore(&self, path: &Path) -> Result<Restored, StoreError> {
        read(&self.model, path).map_err(|what| StoreError { path: path.to_owned(), what: what.0 })
    }
}

/// What went wrong, in words.
struct Bad(String);

impl From<io::Error> for Bad {
    fn from(error: io::Error) -> Bad {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Bad("it ends too early: it has been cut off".into()),
            _ => Bad(error.to_string()),
        }
    }
}

impl From<StateError> for Bad {
    fn from(error: StateError) -> Bad {
        Bad(error.to_string())
    }
}

fn write(model: &Model, session: &Session, path: &Path) -> Result<(), Bad> {
    let place = session.state.last_mark().filter(|(_, snapshot)| snapshot.is_of(model));
    let held = place.map_or(0, |(len, _)| len);
    let mut tokens = session.state.tokens().clone();
    tokens.truncate(held);
    let spans: Vec<Value> = tokens
        .spans
        .iter()
        .map(|s| json!({"at": s.at, "tokens": s.tokens, "grid": s.grid, "sha256": hex(&s.hash)}))
        .collect();
    let (mut listed, mut pngs) = (Vec::new(), Vec::new());
    for (message, said) in session.said.iter().enumerate() {
        for picture in &said.pictures {
            let png = png(picture.rgb()).map_err(|error| Bad(format!("a picture: {error}")))?;
            listed.push(json!({"message": message, "bytes": png.len()}));
            pngs.push(png);
        }
    }
    let messages: Vec<Value> = session.messages().map(Message::to_json).collect();
    let head =
        json!({"messages": messages, "gone": session.gone, "pictures": listed, "tokens": tokens.ids, "spans": spans});
    let head = head.to_string();
    if head.len() as u64 > MAX_HEAD {
        return Err(Bad(format!("its words take {} bytes, a file holds {MAX_HEAD}", head.len())));
    }
    let mut out = Vec::with_capacity(head.len() + 64);
    out.extend(MAGIC);
    out.extend(VERSION.to_le_bytes());
    out.extend((head.len() as u64).to_le_bytes());
    out.extend(head.as_bytes());
    let hash = Sha256::digest(&out);
    out.extend(hash);
    // One that was left behind may be readable by others, or lead elsewhere.
    let _ = std::fs::remove_file(path);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(&out)?;
    pngs.iter().try_for_each(|png| file.write_all(png))?;
    if let Some((_, snapshot)) = place {
        model.save_snapshot(snapshot, &mut file)?;
    }
    Ok(file.sync_all()?)
}

fn read(model: &Model, path: &Path) -> Result<Restored, Bad> {
    let mut file = BufReader::new(crate::files::open(path)?);
    let mut start = [0; 20];
    file.read_exact(&mut start)?;
    let [a, b, c, d, e, f, g, h] = MAGIC;
    let head = match start {
        [m @ .., v0, v1, v2, v3, l0, l1, l2, l3, l4, l5, l6, l7] if m == [a, b, c, d, e, f, g, h] => {
            let version = u32::from_le_bytes([v0, v1, v2, v3]);
            if version != VERSION {
                return Err(Bad(format!("it is of version {version}, this program reads {VERSION}")));
            }
            u64::from_le_bytes([l0, l1, l2, l3, l4, l5, l6, l7])
        }
        _ => return Err(Bad("this is no saved conversation".into())),
    };
    if head > MAX_HEAD {
        return Err(Bad(format!("its head has {head} bytes: it is damaged")));
    }
    let mut bytes = start.to_vec();
    if (&mut file).take(head).read_to_end(&mut bytes)? as u64 != head {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    let mut hash = [0; 32];
    file.read_exact(&mut hash)?;
    if hash != *Sha256::digest(&bytes) {
        return Err(Bad("its checksum is wrong: it is damaged".into()));
    }
    let head: Value = serde_json::from_slice(&bytes[20..]).map_err(|e| Bad(format!("its head: {e}")))?;
    let mut said = Vec::new();
    for (index, value) in list(&head, "messages")?.iter().enumerate() {
        said.push(Said::from(Message::from_json(index, value).map_err(|e| Bad(e.to_string()))?));
    }
    for picture in list(&head, "pictures")? {
        let (message, bytes) = (number(picture, "message")?, number(picture, "bytes")?);
        let of = said.get_mut(message).ok_or_else(|| Bad(format!("a picture of message {message}")))?;
        of.pictures.push(Picture::new(picture_of(&mut file, bytes)?));
    }
    let tokens = tokens(&head)?;
    // Files of before have none.
    let gone = if head["gone"].is_null() { 0 } else { number(&head, "gone")? };
    let mut session = Session { said, gone, ..Session::default() };
    let unread = if tokens.ids.is_empty() {
        None
    } else {
        match model.read_sequence(&mut file) {
            Ok(sequence) if sequence.len() == tokens.ids.len() => {
                session.state.adopt(sequence, tokens);
                None
            }
            Ok(sequence) => Some(format!("{} tokens were read, and {} are listed", sequence.len(), tokens.ids.len())),
            Err(error) => Some(error.to_string()),
        }
    };
    Ok(Restored { session, unread })
}

fn tokens(head: &Value) -> Result<Tokens, Bad> {
    let mut tokens = Tokens::default();
    for id in list(head, "tokens")? {
        let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
        tokens.ids.push(id.ok_or_else(|| Bad("a token that is no number".into()))?);
    }
    for span in list(head, "spans")? {
        let hash = span["sha256"].as_str().and_then(unhex).ok_or_else(|| Bad("a picture without a hash".into()))?;
        let grid = [number(&span["grid"], 0)?, number(&span["grid"], 1)?];
        let (at, count) = (number(span, "at")?, number(span, "tokens")?);
        let after = tokens.spans.last().map_or(0, |last| last.at + last.tokens);
        if at < after || count == 0 || at.checked_add(count).is_none_or(|end| end > tokens.ids.len()) {
            return Err(Bad(format!("a picture of {count} tokens at {at}, where none can be")));
        }
        tokens.spans.push(Span { at, tokens: count, hash, grid });
    }
    Ok(tokens)
}

fn picture_of(file: &mut BufReader<File>, bytes: usize) -> Result<Rgb, Bad> {
    let mut png = Vec::new();
    if file.take(bytes as u64).read_to_end(&mut png)? != bytes {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    image::decode(&png).map_err(|error| Bad(format!("a picture: {error}")))
}

fn list<'a>(value: &'a Value, name: &str) -> Result<&'a Vec<Value>, Bad> {
    value[name].as_array().ok_or_else(|| Bad(format!("`{name}` is missing in its head")))
}

fn number(value: &Value, name: impl serde_json::value::Index + std::fmt::Display + Copy) -> Result<usize, Bad> {
    let number = value[name].as_u64().and_then(|number| usize::try_from(number).ok());
    number.ok_or_else(|| Bad(format!("`{name}` is no number in its head")))
}

fn png(rgb: &Rgb) -> Result<Vec<u8>, png::EncodingError> {
    let (mut out, side) = (Vec::new(), |side: usize| u32::try_from(side).unwrap_or(u32::MAX));
    let mut encoder = png::Encoder::new(&mut out, side(rgb.width), side(rgb.height));
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(&rgb.data)?;
    writer.finish()?;
    Ok(out)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    let mut out = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (byte, at) in out.iter_mut().zip((0..64).step_by(2)) {
        *byte = u8::from_str_radix(&text[at..at + 2], 16).ok()?;
    }
    Some(out)
}
