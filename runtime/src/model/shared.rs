//! Kernels and buffers that all layers of the text model share.

use super::error::ModelError;
use super::kernels::{Gemm, Gemv, Table, Uploader, in_one_context};
use super::layer::Layer;
use crate::bundle::{LayerKind, TextParams, WeightFormat};
use crate::npu::{Buffer, Element, Npu, NpuError};

/// The input projection of one kind of layer.
#[derive(Debug)]
pub(super) struct Input {
    pub(super) gemm: Gemm,
    pub(super) gemv: Gemv,
    pub(super) y: Buffer,
}

/// Kernels, and the buffers of one token.
#[derive(Debug)]
pub(super) struct Shared {
    linear: Option<Input>,
    attention: Option<Input>,
    pub(super) o: (Gemm, Gemv),
    pub(super) gu: (Gemm, Gemv),
    pub(super) down: (Gemm, Gemv),
    pub(super) head: Gemv,
    /// The vector of every GEMV.
    pub(super) x: Buffer,
    pub(super) o_y: Buffer,
    pub(super) gu_y: Buffer,
    /// One a slice.
    pub(super) down_y: Vec<Buffer>,
    /// One a part.
    pub(super) head_y: Vec<Buffer>,
}

/// The buffers that rows of a prompt go through, as many as a lane has. Lanes are independent: while the NPU works on
/// one, the host works on another.
#[derive(Debug)]
pub(super) struct Lane {
    /// Normed rows, for `in` and `gu`.
    pub(super) a: Buffer,
    linear_c: Option<Buffer>,
    attention_c: Option<Buffer>,
    pub(super) o_a: Buffer,
    pub(super) o_c: Buffer,
    /// What `gu` writes and `down` reads, a slice at a time.
    pub(super) gu_c: Buffer,
    /// One a slice.
    pub(super) down_c: Vec<Buffer>,
}

impl Lane {
    /// What the input projection of a kind of layer writes.
    pub(super) fn input_c(&self, kind: LayerKind) -> Result<&Buffer, ModelError> {
        match kind {
            LayerKind::Linear => self.linear_c.as_ref(),
            LayerKind::Attention => self.attention_c.as_ref(),
        }
        .ok_or_else(|| missing(kind))
    }
}

fn missing(kind: LayerKind) -> ModelError {
    ModelError::Shape(format!("there is no kernel `{}`", kind.key()))
}

/// What activation buffers of the text model hold.
pub(super) fn element(params: &TextParams) -> Element {
    match params.format {
        WeightFormat::F32 => Element::F32,
        _ => Element::Bf16,
    }
}

impl Shared {
    /// The kernels, a first lane for the longest streams, and the buffers of one token, in the order that is known to
    /// work.
    pub(super) fn new(params: &TextParams, table: &Table, up: &Uploader<'_>) -> Result<(Shared, Lane), ModelError> {
        let npu = up.kernels.npu();
        let buffer = |len: usize| Buffer::new(npu.device(), element(params), len);
        let pair = |key: &str| Ok::<_, ModelError>((table.gemm(key)?, table.gemv(key)?));
        let has = |kind: LayerKind| params.layers.contains(&kind);
        let kernels_of = |kind: LayerKind| has(kind).then(|| pair(kind.key())).transpose();
        let (linear, attention) = (kernels_of(LayerKind::Linear)?, kernels_of(LayerKind::Attention)?);
        let (o, gu, down, head) = (pair("o")?, pair("gu")?, pair("down")?, table.gemv("head")?);
        let inputs = [&linear, &attention].map(|pair| pair.as_ref().map(|(gemm, _)| gemm));
        let lane = Gemms { inputs, o: &o.0, gu: &gu.0, down: &down.0 }.lane(params, npu, usize::MAX)?;

        let x = buffer(params.hidden.max(o.1.record.k).max(params.down_slices * down.1.record.k))?;
        let finish = |input: Option<(Gemm, Gemv)>| match input {
            Some((gemm, gemv)) => {
                let y = buffer(gemv.record.m)?;
                Ok::<_, ModelError>(Some(Input { y, gemm, gemv }))
            }
            None => Ok(None),
        };
        let (linear, attention) = (finish(linear)?, finish(attention)?);
        let (o_y, gu_y) = (buffer(o.1.record.m)?, buffer(gu.1.record.m)?);
        let down_y = (0..params.down_slices).map(|_| buffer(down.1.record.m)).collect::<Result<_, _>>()?;
        let head_y = (0..params.head_parts).map(|_| buffer(head.record.m)).collect::<Result<_, _>>()?;
        Ok((Shared { linear, attention, o, gu, down, head, x, o_y, gu_y, down_y, head_y }, lane))
    }

    /// Another lane, for so many chunks.
    pub(super) fn lane(&self, params: &TextParams, npu: &Npu, chunks: usize) -> Result<Lane, NpuError> {
        let inputs = [&self.linear, &self.attention].map(|input| input.as_ref().map(|input| &input.gemm));
        Gemms { inputs, o: &self.o.0, gu: &self.gu.0, down: &self.down.0 }.lane(params, npu, chunks)
    }

    /// Rows of a chunk that every projection of a prompt has, and chunks that the longest streams take.
    pub(super) fn chunk(&self) -> (usize, usize) {
        let inputs = [&self.linear, &self.attention].into_iter().flatten().map(|i| &i.gemm);
        let gemms = || inputs.clone().chain([&self.o.0, &self.gu.0, &self.down.0]);
        let rows = gemms().map(|gemm| gemm.record.m).min().unwrap_or(0);
        (rows, gemms().map(Gemm::max_rows).min().unwrap_or(0).checked_div(rows).unwrap_or(0))
    }

    /// The input projection of a kind of layer.
    pub(super) fn input(&self, kind: LayerKind) -> Result<&Input, ModelError> {
        match kind {
            LayerKind::Linear => self.linear.as_ref(),
            LayerKind::Attention => self.attention.as_ref(),
        }
        .ok_or_else(|| missing(kind))
    }

    /// What the bundle's own checks cannot know: that the records fit the way they are used here.
    pub(super) fn verify(&self, params: &TextParams, layers: &[Layer]) -> Result<(), ModelError> {
        let wrong = |what: String| Err(ModelError::Shape(what));
        for layer in layers {
            let (width, k) = (layer.mixer.output_width(), self.o.0.record.k);
            if width > k || width > self.o.1.record.k || width > self.o.0.record.lda {
                return wrong(format!("a mixer of {width} values does not fit the K of `o`, {k}"));
            }
        }
        let inputs = [&self.linear, &self.attention].into_iter().flatten().map(|input| &input.gemm);
        in_one_context("prompt", inputs.chain([&self.o.0, &self.gu.0, &self.down.0]))?;
        let (gu, down) = (&self.gu.0.record, &self.down.0.record);
        if gu.c_stride != down.lda {
            return wrong(format!("gu writes rows of {}, down reads rows of {}", gu.c_stride, down.lda));
        }
        let reach = params.down_slices * down.k;
        if reach < params.intermediate || reach > gu.c_stride || self.down.1.record.k != down.k {
            return wrong(format!("{} slices of {} for {} values", params.down_slices, down.k, params.intermediate));
        }
        if self.gu.1.record.m < 2 * params.intermediate || self.head.record.m != params.head_rows {
            return wrong("the gemv of gu or head is too short".into());
        }
        Ok(())
    }
}

/// The projections of a prompt.
struct Gemms<'a> {
    /// Of both kinds of layers.
    inputs: [Option<&'a Gemm>; 2],
    o: &'a Gemm,
    gu: &'a Gemm,
    down: &'a Gemm,
}

impl Gemms<'_> {
    /// Buffers that streams of so many chunks do not reach past.
    fn lane(&self, params: &TextParams, npu: &Npu, chunks: usize) -> Result<Lane, NpuError> {
        let buffer = |len: usize| Buffer::new(npu.device(), element(params), len);
        let inputs = self.inputs.into_iter().flatten().map(|gemm| gemm.a_elems(chunks));
        let a = buffer(inputs.chain([self.gu.a_elems(chunks)]).max().unwrap_or(0))?;
        let input_c = |gemm: Option<&Gemm>| gemm.map(|gemm| buffer(gemm.c_elems(chunks))).transpose();
        let (linear_c, attention_c) = (input_c(self.inputs[0])?, input_c(self.inputs[1])?);
        let (o_a, o_c) = (buffer(self.o.a_elems(chunks))?, buffer(self.o.c_elems(chunks))?);
        let slices = params.down_slices;
        // A view that starts at a column runs past the last row.
        let last_slice = slices.saturating_sub(1) * self.down.record.k + self.down.a_elems(chunks);
        let gu_c = buffer(self.gu.c_elems(chunks).max(last_slice))?;
        let down_c = (0..slices).map(|_| buffer(self.down.c_elems(chunks))).collect::<Result<_, _>>()?;
        Ok(Lane { a, linear_c, attention_c, o_a, o_c, gu_c, down_c })
    }
}
