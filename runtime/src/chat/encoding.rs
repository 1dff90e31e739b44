//! The tokens of a conversation that grows.
//!
//! What lies between control tokens is cut into tokens by itself. So of a prompt that begins as the last one did, only the
//! text behind the last control token that both have is cut anew.

use super::error::ChatError;
use super::guard::Rendered;
use super::state::{Span, Tokens};
use super::template::TemplateError;
use super::tokenizer::Tokenizer;

/// An edge of a control token: bytes of the text and tokens before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) byte: usize,
    pub(super) token: usize,
}

/// A picture that stands in a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shown {
    pub(super) hash: [u8; 32],
    pub(super) grid: [usize; 2],
    /// Tokens it takes.
    pub(super) tokens: usize,
}

/// A rendered text and its tokens, each picture being one of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Encoding {
    rendered: Rendered,
    ids: Vec<u32>,
    /// Edges of control tokens, in order.
    places: Vec<Place>,
}

impl Encoding {
    /// Takes another text. Gives how many tokens of the one before it are still good.
    pub(super) fn update(&mut self, rendered: Rendered, tokenizer: &Tokenizer) -> Result<usize, ChatError> {
        let common = self.rendered.common(&rendered);
        // What looked like a control token may be the beginning of a longer one now.
        let longest = tokenizer.control_tokens().longest();
        self.places.retain(|place| place.byte + longest <= common);
        let from = self.places.last().copied().unwrap_or_default();
        self.ids.truncate(from.token);
        self.rendered = rendered;
        let Encoding { rendered, ids, places } = self;
        if let Err(error) = tokenizer.encode_pieces(rendered, from.byte, ids, &mut |byte, token| {
            if places.last().is_none_or(|last| last.byte < byte) {
                places.push(Place { byte, token });
            }
        }) {
            *self = Encoding::default();
            return Err(error);
        }
        Ok(from.token)
    }

    /// How many tokens it is with all of every picture's.
    pub(super) fn len(&self, pictures: &[Shown]) -> usize {
        self.ids.len() + more(pictures)
    }

    /// The tokens with all of every picture's, and where the last edge of a control token lies that each of `others` has in
    /// common with this text.
    pub(super) fn expand(
        &self,
        pad: Option<u32>,
        pictures: &[Shown],
        others: &[Rendered],
    ) -> Result<(Tokens, Vec<usize>), TemplateError> {
        let found = self.ids.iter().filter(|&&id| Some(id) == pad).count();
        if found != pictures.len() {
            return Err(TemplateError::Pictures { found, wanted: pictures.len() });
        }
        let edges: Vec<usize> = others.iter().filter_map(|other| self.edge(other)).collect();
        let mut tokens = Tokens { ids: Vec::with_capacity(self.len(pictures)), spans: Vec::new() };
        let mut marks = Vec::new();
        let mut rest = pictures.iter();
        for (index, &id) in self.ids.iter().enumerate() {
            if edges.contains(&index) {
                marks.push(tokens.ids.len());
            }
            match rest.as_slice() {
                [picture, ..] if Some(id) == pad => {
                    let Shown { hash, grid, tokens: count } = *picture;
                    tokens.spans.push(Span { at: tokens.ids.len(), tokens: count, hash, grid });
                    tokens.ids.extend(std::iter::repeat_n(id, count));
                    rest.next();
                }
                _ => tokens.ids.push(id),
            }
        }
        Ok((tokens, marks))
    }

    /// Tokens before the last edge of a control token that lies in what both texts begin with.
    fn edge(&self, other: &Rendered) -> Option<usize> {
        let common = self.rendered.common(other);
        self.places.iter().rfind(|place| place.byte <= common).map(|place| place.token)
    }
}

/// Tokens of pictures beyond the one that stands for each.
fn more(pictures: &[Shown]) -> usize {
    pictures.iter().map(|picture| picture.tokens.saturating_sub(1)).sum()
}
