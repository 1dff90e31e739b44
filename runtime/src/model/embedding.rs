//! Embeddings: rows of the packed head, which the NPU's buffers hold, or of a table of their own, read from the file.

use host_ops::pack;

use super::error::ModelError;
use super::kernels::Linear;
use crate::bundle::{Bundle, TextParams};

/// How embeddings are read.
#[derive(Debug)]
pub(super) struct Embedding {
    /// A part of the head.
    part: pack::Rows,
    /// One group of rows, as long as a read: reading more would cost a copy, reading less several calls.
    group: pack::Rows,
    bytes: Vec<u8>,
}

impl Embedding {
    /// A table in this format, in the parts that the manifest gives.
    pub(super) fn new(format: pack::Format, params: &TextParams) -> Result<Embedding, ModelError> {
        let unfit = |e: pack::PackError| ModelError::Shape(format!("head_rows and D: {e}"));
        let part = pack::Rows::new(format, params.head_rows, params.hidden).map_err(unfit)?;
        let group = pack::Rows::new(format, pack::Rows::GROUP, params.hidden).map_err(unfit)?;
        Ok(Embedding { part, group, bytes: vec![0; group.bytes()] })
    }

    /// The embedding of a token into `out`, `[D]`. A table of its own is read with a call, not through the mapping: a
    /// file that has become shorter is an error then, not a signal.
    pub(super) fn row(
        &mut self,
        params: &TextParams,
        bundle: &Bundle,
        head: &[Linear],
        id: u32,
        out: &mut [f32],
    ) -> Result<(), ModelError> {
        let row = id as usize;
        if row >= params.vocab {
            return Err(ModelError::NoSuchToken { id, vocab: params.vocab });
        }
        let (part, row) = (row / params.head_rows, row % params.head_rows);
        if let Some(head) = head.get(part).filter(|_| !params.untied) {
            let bytes = head.weights().read()?;
            let bytes = bytes.get(..self.part.bytes()).unwrap_or(&bytes);
            return self
                .part
                .decode_row(bytes, row, out)
                .map_err(|e| ModelError::Shape(format!("tensor `head{part}`: {e}")));
        }
        let name = format!("embed{part}");
        // Groups lie one after another.
        bundle.read_at(&name, row / pack::Rows::GROUP * self.bytes.len(), &mut self.bytes)?;
        self.group
            .decode_row(&self.bytes, row % pack::Rows::GROUP, out)
            .map_err(|e| ModelError::Shape(format!("tensor `{name}`: {e}")))
    }
}
