//! The text model: a prompt in lanes of rows through the GEMMs (`prefill`), a token at a time through the GEMVs
//! (`decode`).
//!
//! ```text
//! hidden -> norm -> in (NPU) -> mixer (host) -> o (NPU) -> + -> norm -> gu (NPU) -> down slices (NPU) -> + -> ...
//! ```
//!
//! The host's math is f32. What goes to the NPU and what comes back is rounded to the buffers' element.

use host_ops::rope;

use super::decode::Token;
use super::embedding::Embedding;
use super::error::ModelError;
use super::head::WideHead;
use super::hybrid::Share;
use super::kernels::{Linear, Table, Uploader};
use super::layer::Layer;
use super::prefill::Prefill;
use super::shared::Shared;
use crate::bundle::TextParams;

/// The text model on the device.
#[derive(Debug)]
pub(super) struct Text {
    pub(super) params: TextParams,
    pub(super) layers: Vec<Layer>,
    pub(super) ln_f: Vec<f32>,
    pub(super) head: Vec<Linear>,
    /// The head for many rows, once it is wanted.
    pub(super) wide: Option<WideHead>,
    pub(super) embedding: Embedding,
    pub(super) rope: rope::Text,
    pub(super) shared: Shared,
    pub(super) prefill: Prefill,
    pub(super) token: Token,
    pub(super) share: Share,
    /// Output of the last layer for the last token.
    pub(super) last: Vec<f32>,
    pub(super) logits: Vec<f32>,
    /// Those of all rows of a run, `[rows, vocab]`.
    pub(super) run_logits: Vec<f32>,
}

impl Text {
    /// Uploads the weights, then makes the buffers. With several commands in flight a long prompt goes in lanes.
    pub(super) fn load(table: &Table, up: &mut Uploader<'_>, in_flight: usize) -> Result<Text, ModelError> {
        let params = up.bundle.manifest.text.clone();
        let embedding = Embedding::new(params.format.packing(), &params)?;
        let layers = (0..params.layers.len()).map(|i| Layer::load(&params, i, up)).collect::<Result<Vec<_>, _>>()?;
        let head = (0..params.head_parts).map(|j| up.linear(&format!("head{j}"))).collect::<Result<Vec<_>, _>>()?;
        up.finish()?;
        let (shared, lane) = Shared::new(&params, table, up)?;
        shared.verify(&params, &layers)?;
        let share = Share::new(params.format.packing(), &params, &shared)?;
        let prefill = Prefill::new(&shared, lane, in_flight);
        Ok(Text {
            layers,
            ln_f: up.f32s("ln_f")?,
            head,
            wide: None,
            embedding,
            rope: rope::Text::new(params.rope_dim, params.rope_theta, params.mrope_section),
            shared,
            prefill,
            token: Token::default(),
            share,
            last: vec![0.0; params.hidden],
            logits: vec![0.0; params.head_parts * params.head_rows],
            run_logits: Vec::new(),
            params,
        })
    }

    pub(super) fn layer(&self, index: usize) -> Option<&Layer> {
        self.layers.get(index)
    }

    pub(super) fn reset(&mut self) {
        for layer in &mut self.layers {
            layer.mixer.reset();
        }
    }
}
