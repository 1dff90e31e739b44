//! Text to tokens and back.

use tokenizers::Tokenizer as HfTokenizer;

use super::accept::{Tokens, accept};
use super::error::ChatError;

/// The tokenizer of a checkpoint.
#[derive(Debug)]
pub struct Tokenizer {
    encoder: HfTokenizer,
    tokens: Tokens,
}

impl Tokenizer {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// A file that is not byte-level BPE as Qwen3.5 has it; the message names what differs.
    pub fn from_json(json: &[u8]) -> Result<Tokenizer, ChatError> {
        let tokens = accept(json).map_err(ChatError::Tokenizer)?;
        let encoder = HfTokenizer::from_bytes(json).map_err(|e| ChatError::Tokenizer(e.to_string()))?;
        Ok(Tokenizer { encoder, tokens })
    }

    /// The tokens of a text. Special tokens that are written out in it become themselves.
    ///
    /// # Errors
    /// Text that the vocabulary cannot spell.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, ChatError> {
        let encoding = self.encoder.encode_fast(text, false).map_err(|e| ChatError::Tokenizer(e.to_string()))?;
        Ok(encoding.get_ids().to_vec())
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
