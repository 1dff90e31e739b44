//! One layer of the text model: its weights, its state, and what the host does in it.

use std::ops::Range;

use host_ops::pool::Pool;
use host_ops::rows::{Rows, RowsMut};
use host_ops::{attention, delta, rope};

use super::error::ModelError;
use super::kernels::{Linear, Uploader};
use super::profile::{Projection, Stage};
use super::sequence::Marks;
use crate::bundle::{LayerKind, TextParams};

/// What mixes the tokens of a layer, with what it remembers.
#[derive(Debug)]
pub(super) enum Mixer {
    /// Gated DeltaNet.
    Linear {
        shape: delta::Shape,
        ba: Vec<f32>,
        taps: Vec<f32>,
        a: Vec<f32>,
        dt_bias: Vec<f32>,
        norm: Vec<f32>,
        state: delta::State,
    },
    /// Gated attention.
    Attention { shape: attention::Shape, q_norm: Vec<f32>, k_norm: Vec<f32>, cache: attention::KvCache },
}

/// A layer.
#[derive(Debug)]
pub(super) struct Layer {
    pub(super) kind: LayerKind,
    pub(super) ln1: Vec<f32>,
    pub(super) ln2: Vec<f32>,
    pub(super) input: Linear,
    pub(super) o: Linear,
    pub(super) gu: Linear,
    pub(super) down: Vec<Linear>,
    pub(super) mixer: Mixer,
}

/// Memory that mixers use in passing.
#[derive(Debug, Default)]
pub(super) struct MixerScratch {
    delta: delta::Scratch,
    attention: attention::Scratch,
}

impl Layer {
    pub(super) fn load(params: &TextParams, index: usize, up: &mut Uploader<'_>) -> Result<Layer, ModelError> {
        let kind = params.layers[index];
        let invalid = |shape: &dyn std::fmt::Debug| ModelError::Shape(format!("the host's math cannot do {shape:?}"));
        let name = |what: &str| format!("l{index}.{what}");
        let input = up.linear(&name("g.in"))?;
        let o = up.linear(&name("g.o"))?;
        let gu = up.linear(&name("g.gu"))?;
        let down =
            (0..params.down_slices).map(|j| up.linear(&name(&format!("g.down{j}")))).collect::<Result<_, _>>()?;
        let mixer = match kind {
            LayerKind::Linear => {
                let shape = delta::Shape {
                    key_heads: params.lin_key_heads,
                    value_heads: params.lin_value_heads,
                    key_dim: params.lin_key_dim,
                    value_dim: params.lin_value_dim,
                    conv_kernel: params.conv_kernel,
                    eps: params.eps,
                };
                if !shape.is_valid() {
                    return Err(invalid(&shape));
                }
                Mixer::Linear {
                    shape,
                    ba: up.f32s(&name("h.ba"))?,
                    taps: delta::taps(&up.f32s(&name("h.conv"))?, shape.conv_kernel),
                    a: up.f32s(&name("h.A"))?,
                    dt_bias: up.f32s(&name("h.dt_bias"))?,
                    norm: up.f32s(&name("h.norm"))?,
                    state: delta::State::new(shape),
                }
            }
            LayerKind::Attention => {
                let shape = attention::Shape {
                    heads: params.heads,
                    kv_heads: params.kv_heads,
                    head_dim: params.head_dim,
                    eps: params.eps,
                };
                if !shape.is_valid() || params.rope_dim > params.head_dim {
                    return Err(invalid(&shape));
                }
                Mixer::Attention {
                    shape,
                    q_norm: up.f32s(&name("h.q_norm"))?,
                    k_norm: up.f32s(&name("h.k_norm"))?,
                    cache: attention::KvCache::with_format(shape, up.kv),
                }
            }
        };
        let (ln1, ln2) = (up.f32s(&name("h.ln1"))?, up.f32s(&name("h.ln2"))?);
        Ok(Layer { kind, ln1, ln2, input, o, gu, down, mixer })
    }
}

impl Mixer {
    /// Width of what it gives to the `o` projection.
    pub(super) fn output_width(&self) -> usize {
        match self {
            Mixer::Linear { shape, .. } => shape.value_width(),
            Mixer::Attention { shape, .. } => shape.output_width(),
        }
    }

    /// Width of what it takes from the input projection.
    pub(super) fn input_width(&self) -> usize {
        match self {
            Mixer::Linear { shape, .. } => shape.input_width(),
            Mixer::Attention { shape, .. } => shape.input_width(),
        }
    }

    /// Its input projection.
    pub(super) fn projection(&self) -> Projection {
        match self {
            Mixer::Linear { .. } => Projection::Linear,
            Mixer::Attention { .. } => Projection::Attention,
        }
    }

    /// What its time is booked as.
    pub(super) fn stage(&self) -> Stage {
        match self {
            Mixer::Linear { .. } => Stage::DeltaNet,
            Mixer::Attention { .. } => Stage::Attention,
        }
    }

    /// Brings what it remembers into the cache, as far as a second level holds it.
    pub(super) fn touch(&self) {
        const CACHE: usize = 1 << 20;
        match self {
            Mixer::Linear { state, .. } => state.touch(CACHE),
            Mixer::Attention { cache, .. } => cache.touch(CACHE),
        }
    }

    /// Forgets everything, keeps the memory.
    pub(super) fn reset(&mut self) {
        match self {
            Mixer::Linear { state, .. } => state.reset(),
            Mixer::Attention { cache, .. } => cache.clear(),
        }
    }

    /// Takes in the tokens of `hidden` (normed) and `projected`, one row each.
    pub(super) fn forward(
        &mut self,
        pool: &Pool,
        rope: &rope::Table,
        hidden: &[f32],
        projected: &[f32],
        out: &mut [f32],
        scratch: &mut MixerScratch,
    ) {
        let (projected, out) = (Rows::Full(projected, self.input_width()), RowsMut::Full(out, self.output_width()));
        self.forward_rows(pool, rope, hidden, projected, out, scratch);
    }

    /// As [`Mixer::forward`], where rows have strides and may be bf16.
    pub(super) fn forward_rows(
        &mut self,
        pool: &Pool,
        rope: &rope::Table,
        hidden: &[f32],
        projected: Rows<'_>,
        out: RowsMut<'_>,
        scratch: &mut MixerScratch,
    ) {
        match self {
            Mixer::Linear { shape, ba, taps, a, dt_bias, norm, state } => {
                let weights = delta::Weights { ba, taps, a, dt_bias, norm };
                delta::forward_rows(pool, shape, &weights, state, hidden, projected, out, &mut scratch.delta);
            }
            Mixer::Attention { shape, q_norm, k_norm, cache } => {
                let weights = attention::Weights { q_norm, k_norm };
                attention::forward_rows(pool, shape, &weights, rope, cache, projected, out, &mut scratch.attention);
            }
        }
    }

    /// As [`Mixer::forward`] where nobody wants to know what comes out, if that saves anything: gives whether it has
    /// been done.
    pub(super) fn remember(
        &mut self,
        pool: &Pool,
        rope: &rope::Table,
        projected: Rows<'_>,
        scratch: &mut MixerScratch,
    ) -> bool {
        match self {
            Mixer::Linear { .. } => false,
            Mixer::Attention { shape, q_norm, k_norm, cache } => {
                let weights = attention::Weights { q_norm, k_norm };
                attention::remember_rows(pool, shape, &weights, rope, cache, projected, &mut scratch.attention);
                true
            }
        }
    }
}

impl Mixer {
    /// As [`Mixer::forward`], with a stop at every place of `rows` that a snapshot is wanted of. Where the rows of a
    /// recurrence are cut changes no bit; attention need not be cut, since its rows stay.
    #[expect(clippy::too_many_arguments)]
    pub(super) fn forward_to(
        &mut self,
        marks: &mut Marks,
        (layer, rows): (usize, &Range<usize>),
        pool: &Pool,
        rope: &rope::Table,
        hidden: &[f32],
        projected: &[f32],
        out: &mut [f32],
        scratch: &mut MixerScratch,
    ) {
        let n = rows.len().max(1);
        let [d, input, width] = [hidden.len(), projected.len(), out.len()].map(|len| len / n);
        let mut from = 0;
        if matches!(self, Mixer::Linear { .. }) {
            let places: Vec<usize> = marks.within(rows).collect();
            for place in places {
                let (hidden, projected) = (&hidden[from * d..place * d], &projected[from * input..place * input]);
                self.forward(pool, rope, hidden, projected, &mut out[from * width..place * width], scratch);
                marks.pass(rows.start + place, layer, self);
                from = place;
            }
            if from == rows.len() {
                return;
            }
        }
        let rest = &mut out[from * width..];
        self.forward(pool, rope, &hidden[from * d..], &projected[from * input..], rest, scratch);
        if matches!(self, Mixer::Attention { .. }) {
            let places: Vec<usize> = marks.within(rows).collect();
            places.into_iter().for_each(|place| marks.pass(rows.start + place, layer, self));
        }
    }
}

/// What a layer remembers, for tests and for looking at.
#[derive(Debug)]
pub enum LayerState<'a> {
    /// Of a DeltaNet layer.
    Linear(&'a delta::State),
    /// Of an attention layer.
    Attention(&'a attention::KvCache),
}

impl Mixer {
    pub(super) fn state(&self) -> LayerState<'_> {
        match self {
            Mixer::Linear { state, .. } => LayerState::Linear(state),
            Mixer::Attention { cache, .. } => LayerState::Attention(cache),
        }
    }
}
