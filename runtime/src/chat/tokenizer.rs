//! Text to tokens and back.

use tokenizers::{
    Model as _, NormalizedString, Normalizer as _, OffsetReferential, OffsetType, PreTokenizedString,
    PreTokenizer as _, Tokenizer as HfTokenizer,
};

use super::accept::{Tokens, accept};
use super::error::ChatError;
use super::guard::{ControlTokens, Piece, Rendered};
use super::template::{IMAGE_PAD, TemplateError};

/// The tokenizer of a checkpoint.
#[derive(Debug)]
pub struct Tokenizer {
    encoder: HfTokenizer,
    tokens: Tokens,
    control: ControlTokens,
}

impl Tokenizer {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// A file that is not byte-level BPE as Qwen3.5 has it; the message names what differs.
    pub fn from_json(json: &[u8]) -> Result<Tokenizer, ChatError> {
        let tokens = accept(json).map_err(ChatError::Tokenizer)?;
        let encoder = HfTokenizer::from_bytes(json).map_err(|e| ChatError::Tokenizer(e.to_string()))?;
        let added = encoder.get_added_tokens_decoder().into_iter();
        let control = ControlTokens::new(added.map(|(id, token)| (token.content, id)));
        Ok(Tokenizer { encoder, tokens, control })
    }

    /// The tokens of a text. Special tokens that are written out in it become themselves.
    ///
    /// # Errors
    /// Text that the vocabulary cannot spell.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, ChatError> {
        let encoding = self.encoder.encode_fast(text, false).map_err(|e| ChatError::Tokenizer(e.to_string()))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The tokens of a text in which nothing is a control token, whatever it looks like.
    ///
    /// # Errors
    /// Text that the vocabulary cannot spell.
    pub fn encode_plain(&self, text: &str) -> Result<Vec<u32>, ChatError> {
        let mut out = Vec::new();
        self.append_plain(text, &mut out).map_err(|e| ChatError::Tokenizer(e.to_string()))?;
        Ok(out)
    }

    fn append_plain(&self, text: &str, out: &mut Vec<u32>) -> tokenizers::Result<()> {
        let mut text = NormalizedString::from(text);
        if let Some(normalizer) = self.encoder.get_normalizer() {
            normalizer.normalize(&mut text)?;
        }
        let mut words = PreTokenizedString::from(text);
        if let Some(pre_tokenizer) = self.encoder.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut words)?;
        }
        let model = self.encoder.get_model();
        words.tokenize(|word| model.tokenize(word.get()))?;
        for (_, _, tokens) in words.get_splits(OffsetReferential::Original, OffsetType::None) {
            out.extend(tokens.iter().flatten().map(|token| token.id));
        }
        Ok(())
    }

    /// The tokens of a rendered conversation; `images` holds the tokens that each of its pictures takes.
    ///
    /// # Errors
    /// Another number of pictures than the text has places for, and text that the vocabulary cannot spell.
    pub fn encode_rendered(&self, rendered: &Rendered, images: &[usize]) -> Result<Vec<u32>, ChatError> {
        let ids = if rendered.is_guarded() {
            let mut ids = Vec::new();
            for piece in rendered.pieces(&self.control) {
                match piece {
                    Piece::Control(id) => ids.push(id),
                    Piece::Text(text) => {
                        self.append_plain(text, &mut ids).map_err(|e| ChatError::Tokenizer(e.to_string()))?;
                    }
                }
            }
            ids
        } else {
            self.encode(rendered.text())?
        };
        let Some(pad) = self.id(IMAGE_PAD) else { return Ok(ids) };
        let found = ids.iter().filter(|&&id| id == pad).count();
        if found != images.len() {
            return Err(TemplateError::Pictures { found, wanted: images.len() }.into());
        }
        let (mut images, mut out) = (images.iter(), Vec::with_capacity(ids.len() + images.iter().sum::<usize>()));
        for id in ids {
            let count = if id == pad { images.next().copied().unwrap_or(0) } else { 1 };
            out.extend(std::iter::repeat_n(id, count));
        }
        Ok(out)
    }

    /// Appends the tokens of a rendered text from a byte on that is an edge of a control token; `edge` gets the bytes and
    /// tokens before every such edge behind it.
    ///
    /// # Errors
    /// Text that the vocabulary cannot spell.
    pub(super) fn encode_pieces(
        &self,
        rendered: &Rendered,
        from: usize,
        ids: &mut Vec<u32>,
        edge: &mut dyn FnMut(usize, usize),
    ) -> Result<(), ChatError> {
        for (end, piece) in rendered.pieces_from(from, &self.control) {
            match piece {
                Piece::Control(id) => ids.push(id),
                Piece::Text(text) => {
                    self.append_plain(text, ids).map_err(|e| ChatError::Tokenizer(e.to_string()))?;
                }
            }
            // Behind a text stands a control token, or nothing.
            if end < rendered.text().len() || matches!(piece, Piece::Control(_)) {
                edge(end, ids.len());
            }
        }
        Ok(())
    }

    /// The control tokens, special or not, as they are written.
    #[must_use]
    pub fn control_tokens(&self) -> &ControlTokens {
        &self.control
    }

    /// The token that is written like this, if there is one.
    #[must_use]
    pub fn id(&self, token: &str) -> Option<u32> {
        self.encoder.token_to_id(token)
    }

    /// The bytes that a token adds to a text: none for special tokens and for ids that no token has. A character may
    /// be spread over several tokens.
    #[must_use]
    pub fn bytes(&self, id: u32) -> &[u8] {
        self.tokens.bytes(id)
    }

    /// Tokens there are. The model's vocabulary may be larger: its last rows are then unused.
    #[must_use]
    pub fn vocab(&self) -> usize {
        self.tokens.len()
    }

    /// The text of tokens, special ones left out; what is no UTF-8 becomes U+FFFD.
    #[must_use]
    pub fn decode(&self, ids: &[u32]) -> String {
        let bytes: Vec<u8> = ids.iter().flat_map(|&id| self.bytes(id)).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}
