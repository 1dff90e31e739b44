//! A sequence as bytes that outlive the process: what every layer remembers, bit by bit.
//!
//! ```text
//! "qwen35-s" | version u32 | layers u32, D u32, format of keys and values u32 | tokens u64, next position u32
//!            | identity of the model [32] | layer after layer | the last row of D | SHA-256 of all before it [32]
//! ```
//!
//! All little-endian. A DeltaNet layer is its state, an attention layer its keys and values token by token. What was
//! written says where it ends, so other things can stand before and after it in a file.

use std::io::{self, Read, Write};

use host_ops::attention::KvFormat;
use sha2::{Digest as _, Sha256};

use super::Model;
use super::kernels::Linear;
use super::layer::{Layer, Mixer};
use super::sequence::{Memory, Sequence, Snapshot};

/// First bytes of a sequence, and the version of what follows.
const MAGIC: [u8; 8] = *b"qwen35-s";
const VERSION: u32 = 1;
const HEAD: usize = 68;

/// Bytes of keys and values that are on their way at a time, about.
const PIECE: usize = 1 << 20;

/// Bytes of every packed weight that tell one model from another.
const SAMPLE: usize = 4096;

/// The last position at which a sequence goes on: there is room for any prompt behind it.
const LAST: u32 = u32::MAX / 2;

/// Why a sequence could not be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// The file or pipe.
    #[error("the saved sequence: {0}")]
    Io(#[from] io::Error),
    /// It ends too early.
    #[error("the saved sequence ends too early: it was not written to its end, or has been cut off")]
    Truncated,
    /// Something else.
    #[error("this is not a saved sequence: it begins with {found:02x?}, expected \"qwen35-s\"")]
    NotAState {
        /// Its first bytes.
        found: [u8; 8],
    },
    /// Another version.
    #[error("the saved sequence is of version {found}, this program reads {VERSION}: use the program that wrote it")]
    Version {
        /// Its version.
        found: u32,
    },
    /// Of a model of another shape or with other weights.
    #[error("the saved sequence is of another model: {what}; load the bundle that it was saved with")]
    OtherModel {
        /// What differs.
        what: String,
    },
    /// Keys and values are kept as something else here.
    #[error("the saved sequence has keys and values in {found}, they are kept in {wanted} here; load with that format")]
    Format {
        /// What they were saved as.
        found: &'static str,
        /// What they are kept as.
        wanted: &'static str,
    },
    /// Longer than the context.
    #[error("the saved sequence has {tokens} tokens, the context holds {max_ctx}; load with a larger --max-ctx")]
    TooLong {
        /// Tokens of the sequence.
        tokens: u64,
        /// Tokens that the context holds.
        max_ctx: usize,
    },
    /// Its next token would stand where none can.
    #[error(
        "the saved sequence goes on at position {found}, which no text reaches ({LAST} is the last): read its text anew"
    )]
    Position {
        /// Position of its next token.
        found: u32,
    },
    /// It is not what was written.
    #[error("the saved sequence is damaged: its checksum is not that of its bytes")]
    Damaged,
}

fn format_name(format: u32) -> &'static str {
    match format {
        4 => "f32",
        2 => "16 bits",
        _ => "an unknown format",
    }
}

impl Model {
    /// Writes the sequence. It is about as large as it is in memory, and goes out in pieces of about a mebibyte.
    ///
    /// # Errors
    /// What `to` says.
    pub fn save_state(&self, to: &mut dyn Write) -> Result<(), StateError> {
        self.write(&self.fork(), to)
    }

    /// As [`Model::save_state`], of the sequence as it was at a snapshot.
    ///
    /// # Errors
    /// What `to` says; a snapshot of another model.
    pub fn save_snapshot(&self, snapshot: &Snapshot, to: &mut dyn Write) -> Result<(), StateError> {
        // Shapes may agree where weights do not: what was written then would be taken for this model's own.
        if !snapshot.is_of(self) {
            let what = format!("its snapshot of {} tokens was made by another one", snapshot.len());
            return Err(StateError::OtherModel { what });
        }
        self.write(snapshot.frozen(), to)
    }

    fn write(&self, sequence: &Sequence, to: &mut dyn Write) -> Result<(), StateError> {
        let mut to = Hashed { inner: to, hash: Sha256::new() };
        let mut bytes = Vec::with_capacity(HEAD);
        bytes.extend(MAGIC);
        let [layers, hidden, format] = self.dims();
        [VERSION, layers, hidden, format].iter().for_each(|x| bytes.extend(x.to_le_bytes()));
        bytes.extend((sequence.len as u64).to_le_bytes());
        bytes.extend(sequence.next_position.to_le_bytes());
        bytes.extend(self.identity());
        to.write(&bytes)?;
        for memory in &sequence.memories {
            match memory {
                Memory::Linear(state) => {
                    bytes.clear();
                    state.store(&mut bytes);
                    to.write(&bytes)?;
                }
                Memory::Attention(cache) => {
                    let step = (PIECE / cache.token_bytes()).max(1);
                    for first in (0..sequence.len).step_by(step) {
                        bytes.clear();
                        cache.store(first..(first + step).min(sequence.len), &mut bytes);
                        to.write(&bytes)?;
                    }
                }
            }
        }
        bytes.clear();
        sequence.last.iter().for_each(|x| bytes.extend(x.to_le_bytes()));
        to.write(&bytes)?;
        let Hashed { inner, hash } = to;
        inner.write_all(&hash.finalize())?;
        Ok(inner.flush()?)
    }

    /// Takes over a sequence that [`Model::save_state`] has written, in place of the present one; nothing past its end
    /// is read. What is appended then has the bits that it would have had there.
    ///
    /// # Errors
    /// What does not fit, is missing or damaged, by name: the present sequence is as it was then.
    pub fn load_state(&mut self, from: &mut dyn Read) -> Result<(), StateError> {
        let mut sequence = self.read_sequence(from)?;
        // It was made for this model.
        self.swap_sequence(&mut sequence).map_err(|error| StateError::OtherModel { what: error.to_string() })
    }

    /// As [`Model::load_state`], beside the present sequence.
    ///
    /// # Errors
    /// As [`Model::load_state`].
    pub fn read_sequence(&self, from: &mut dyn Read) -> Result<Sequence, StateError> {
        let mut from = Hashed { inner: from, hash: Sha256::new() };
        let mut head = [0; HEAD];
        from.read(&mut head)?;
        let (tokens, next_position) = self.fitting(&head)?;
        let mut sequence = Sequence::new(self);
        (sequence.len, sequence.next_position) = (tokens, next_position);
        let mut bytes = Vec::new();
        for memory in &mut sequence.memories {
            match memory {
                Memory::Linear(state) => {
                    bytes.resize(state.stored_bytes(), 0);
                    from.read(&mut bytes)?;
                    if !state.load(&bytes) {
                        return Err(StateError::Damaged);
                    }
                }
                Memory::Attention(cache) => {
                    let step = (PIECE / cache.token_bytes()).max(1);
                    for first in (0..tokens).step_by(step) {
                        bytes.resize(step.min(tokens - first) * cache.token_bytes(), 0);
                        from.read(&mut bytes)?;
                        cache.load(&bytes);
                    }
                }
            }
        }
        bytes.resize(4 * sequence.last.len(), 0);
        from.read(&mut bytes)?;
        let last = bytes.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x));
        sequence.last.iter_mut().zip(last).for_each(|(own, x)| *own = x);
        let (wanted, mut found) = (from.hash.finalize_reset(), [0; 32]);
        from.read(&mut found)?;
        if wanted[..] == found { Ok(sequence) } else { Err(StateError::Damaged) }
    }

    /// Tokens and next position of a head, if it is one of this model's.
    fn fitting(&self, head: &[u8; HEAD]) -> Result<(usize, u32), StateError> {
        let (magic, rest) = head.split_first_chunk::<8>().unwrap_or((&MAGIC, &[]));
        if *magic != MAGIC {
            return Err(StateError::NotAState { found: *magic });
        }
        let mut words = rest.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
        let mut word = || words.next().unwrap_or(0);
        let (version, dims) = (word(), [word(), word(), word()]);
        let tokens = u64::from(word()) | u64::from(word()) << 32;
        let next_position = word();
        if version != VERSION {
            return Err(StateError::Version { found: version });
        }
        let own = self.dims();
        if dims[..2] != own[..2] {
            let what = format!("it has {} layers of {} values, this one {} of {}", dims[0], dims[1], own[0], own[1]);
            return Err(StateError::OtherModel { what });
        }
        if head[HEAD - 32..] != self.identity() {
            return Err(StateError::OtherModel { what: "its weights are others".into() });
        }
        if dims[2] != own[2] {
            return Err(StateError::Format { found: format_name(dims[2]), wanted: format_name(own[2]) });
        }
        if next_position > LAST {
            return Err(StateError::Position { found: next_position });
        }
        match usize::try_from(tokens) {
            Ok(len) if len <= self.max_ctx() => Ok((len, next_position)),
            _ => Err(StateError::TooLong { tokens, max_ctx: self.max_ctx() }),
        }
    }

    /// Layers, D, and bytes of a number of keys and values.
    fn dims(&self) -> [u32; 3] {
        let mut caches = self.text.layers.iter().filter_map(|layer| match &layer.mixer {
            Mixer::Attention { cache, .. } => Some(cache.format()),
            Mixer::Linear { .. } => None,
        });
        let format = caches.next().unwrap_or(KvFormat::F32);
        [self.text.layers.len() as u32, self.text.params.hidden as u32, format.bytes() as u32]
    }

    /// Tells models apart: a digest of all that the host knows of the layers, and of the beginning of every packed
    /// weight, the head and embeddings included. A model that was trained further has other ones.
    fn identity(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        let sample = |hash: &mut Sha256, linear: &Linear| {
            // Nothing writes to weights: they can always be read.
            let Ok(bytes) = linear.weights().read() else { return };
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(&bytes[..bytes.len().min(SAMPLE)]);
        };
        for Layer { ln1, ln2, input, o, gu, down, mixer, .. } in &self.text.layers {
            let own: [&[f32]; 5] = match mixer {
                Mixer::Linear { ba, taps, a, dt_bias, norm, shape, .. } => {
                    hash.update(format!("{shape:?}"));
                    [ba, taps, a, dt_bias, norm]
                }
                Mixer::Attention { q_norm, k_norm, shape, .. } => {
                    hash.update(format!("{shape:?}"));
                    [q_norm, k_norm, &[], &[], &[]]
                }
            };
            for floats in [&ln1[..], ln2].iter().chain(&own) {
                hash.update((floats.len() as u64).to_le_bytes());
                hash.update(bytemuck::cast_slice::<f32, u8>(floats));
            }
            [input, o, gu].into_iter().chain(down).for_each(|linear| sample(&mut hash, linear));
        }
        hash.update(bytemuck::cast_slice::<f32, u8>(&self.text.ln_f));
        self.text.head.iter().for_each(|part| sample(&mut hash, part));
        let params = &self.text.params;
        if params.untied {
            for name in (0..params.head_parts).map(|part| format!("embed{part}")) {
                let mut bytes = vec![0; self.bundle.tensor_bytes(&name).unwrap_or(0).min(SAMPLE)];
                // What cannot be read any more is as good as zeros: tokens will be an error.
                let _ = self.bundle.read_at(&name, 0, &mut bytes);
                hash.update(&bytes);
            }
        }
        hash.update(format!("{} {} {:?}", params.rope_dim, params.rope_theta, params.mrope_section));
        hash.finalize().into()
    }
}

/// Bytes on their way, and their digest.
struct Hashed<T> {
    inner: T,
    hash: Sha256,
}

impl Hashed<&mut dyn Write> {
    fn write(&mut self, bytes: &[u8]) -> Result<(), StateError> {
        self.hash.update(bytes);
        Ok(self.inner.write_all(bytes)?)
    }
}

impl Hashed<&mut dyn Read> {
    fn read(&mut self, bytes: &mut [u8]) -> Result<(), StateError> {
        self.inner.read_exact(bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => StateError::Truncated,
            _ => StateError::Io(error),
        })?;
        self.hash.update(bytes);
        Ok(())
    }
}
