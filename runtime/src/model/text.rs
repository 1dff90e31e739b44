//! The text model: a prompt in pieces through the GEMMs, a token at a time through the GEMVs.
//!
//! ```text
//! hidden -> norm -> in (NPU) -> mixer (host) -> o (NPU) -> + -> norm -> gu (NPU) -> down slices (NPU) -> + -> ...
//! ```
//!
//! The host's math is f32. What goes to the NPU and what comes back is rounded to the buffers' element.

use std::time::Instant;

use host_ops::pool::Pool;
use host_ops::{act, norm, pack, rope};

use super::embedding::Embedding;
use super::error::ModelError;
use super::kernels::{Gemm, Gemv, Linear, Table, Uploader};
use super::layer::{Layer, MixerScratch};
use super::options::{Part, Profile};
use super::probe::{Probe, Tap};
use crate::bundle::{Bundle, LayerKind, TextParams, WeightFormat};
use crate::npu::{Buffer, Element, Kernels};

/// What every step needs besides the model.
pub(super) struct Run<'a> {
    pub(super) kernels: &'a mut Kernels,
    pub(super) pool: &'a Pool,
    pub(super) profile: &'a mut Profile,
    pub(super) probe: &'a mut Probe,
}

/// Writes the rows that go into the first layer.
pub(super) type Fill<'a> = dyn FnMut(&mut Text, &mut [f32]) -> Result<(), ModelError> + 'a;

/// Kernels and buffers of the input projection of one kind of layer.
#[derive(Debug)]
struct Input {
    gemm: Gemm,
    gemv: Gemv,
    c: Buffer,
    y: Buffer,
}

/// Kernels and buffers that all layers share.
#[derive(Debug)]
struct Shared {
    linear: Option<Input>,
    attention: Option<Input>,
    o: (Gemm, Gemv),
    gu: (Gemm, Gemv),
    down: (Gemm, Gemv),
    head: Gemv,
    /// Normed rows, for `in` and `gu`.
    a: Buffer,
    o_a: Buffer,
    o_c: Buffer,
    /// What `gu` writes and `down` reads, a slice at a time.
    gu_c: Buffer,
    /// One a slice.
    down_c: Vec<Buffer>,
    /// The vector of every GEMV.
    x: Buffer,
    o_y: Buffer,
    gu_y: Buffer,
    down_y: Vec<Buffer>,
    head_y: Vec<Buffer>,
}

/// Rows of f32 that keep their memory from piece to piece.
#[derive(Debug, Default)]
struct Rows {
    hidden: Vec<f32>,
    normed: Vec<f32>,
    projected: Vec<f32>,
    mixed: Vec<f32>,
    /// What goes to `down`, for one token.
    activated: Vec<f32>,
    rope: rope::Table,
    scratch: MixerScratch,
}

/// The text model on the device.
#[derive(Debug)]
pub(super) struct Text {
    pub(super) params: TextParams,
    layers: Vec<Layer>,
    ln_f: Vec<f32>,
    head: Vec<Linear>,
    embedding: Embedding,
    rope: rope::Text,
    shared: Shared,
    rows: Rows,
    /// Output of the last layer for the last token.
    last: Vec<f32>,
    logits: Vec<f32>,
}

impl Text {
    /// Uploads the weights, then makes the buffers.
    pub(super) fn load(table: &Table, up: &mut Uploader<'_>) -> Result<Text, ModelError> {
        let params = up.bundle.manifest.text.clone();
        let format = match params.format {
            WeightFormat::Bfp16 => pack::Format::Bfp16,
            WeightFormat::F32 => pack::Format::F32,
            WeightFormat::Bfp6s => return Err(ModelError::Shape("gemv_format bfp6s is not supported yet".into())),
        };
        let embedding = Embedding::new(format, &params)?;
        let layers = (0..params.layers.len()).map(|i| Layer::load(&params, i, up)).collect::<Result<Vec<_>, _>>()?;
        let head = (0..params.head_parts).map(|j| up.linear(&format!("head{j}"))).collect::<Result<Vec<_>, _>>()?;
        let shared = Shared::new(&params, table, up)?;
        shared.verify(&params, &layers)?;
        Ok(Text {
            layers,
            ln_f: up.f32s("ln_f")?,
            head,
            embedding,
            rope: rope::Text::new(params.rope_dim, params.rope_theta, params.mrope_section),
            shared,
            rows: Rows::default(),
            last: vec![0.0; params.hidden],
            logits: vec![0.0; params.head_parts * params.head_rows],
            params,
        })
    }

    /// Tokens that one piece of a prompt can have.
    pub(super) fn max_rows(&self) -> usize {
        let shared = &self.shared;
        let inputs = [&shared.linear, &shared.attention].into_iter().flatten().map(|i| &i.gemm);
        inputs.chain([&shared.o.0, &shared.gu.0, &shared.down.0]).map(Gemm::max_rows).min().unwrap_or(0)
    }

    pub(super) fn layer(&self, index: usize) -> Option<&Layer> {
        self.layers.get(index)
    }

    pub(super) fn reset(&mut self) {
        for layer in &mut self.layers {
            layer.mixer.reset();
        }
    }

    /// The embedding of a token into `out`, `[D]`.
    pub(super) fn embed(&mut self, bundle: &Bundle, id: u32, out: &mut [f32]) -> Result<(), ModelError> {
        self.embedding.row(&self.params, bundle, id, out)
    }

    /// Runs the rows that `fill` writes, at most [`Text::max_rows`]; their state stays.
    pub(super) fn piece(
        &mut self,
        run: &mut Run<'_>,
        positions: &[[u32; 3]],
        fill: &mut Fill<'_>,
    ) -> Result<(), ModelError> {
        let (n, d) = (positions.len(), self.params.hidden);
        let started = Instant::now();
        let mut rows = std::mem::take(&mut self.rows);
        rows.hidden.resize(n * d, 0.0);
        let mut result = fill(self, &mut rows.hidden);
        run.probe.tap(Tap::Embedding, d, &rows.hidden);
        self.rope.fill(positions, &mut rows.rope);
        run.profile.add(Part::Norm, started);
        for i in 0..self.layers.len() {
            if result.is_ok() {
                let layer = &mut self.layers[i];
                result = self.shared.prefill_layer(run, &self.params, layer, i, &mut rows);
            }
        }
        if result.is_ok() {
            self.last.copy_from_slice(&rows.hidden[(n - 1) * d..]);
        }
        self.rows = rows;
        result
    }

    /// Runs one token; its state stays.
    pub(super) fn token(
        &mut self,
        run: &mut Run<'_>,
        bundle: &Bundle,
        id: u32,
        position: u32,
    ) -> Result<(), ModelError> {
        let d = self.params.hidden;
        let started = Instant::now();
        let rows = &mut self.rows;
        rows.hidden.resize(d, 0.0);
        self.embedding.row(&self.params, bundle, id, &mut rows.hidden)?;
        run.probe.tap(Tap::Embedding, d, &rows.hidden);
        self.rope.fill(&[[position; 3]], &mut rows.rope);
        run.profile.add(Part::Norm, started);
        for (i, layer) in self.layers.iter_mut().enumerate() {
            self.shared.decode_layer(run, &self.params, layer, i, rows)?;
        }
        self.last.copy_from_slice(&rows.hidden);
        Ok(())
    }

    /// Logits of the token that follows the last one: `[vocab]`.
    pub(super) fn logits(&mut self, run: &mut Run<'_>) -> Result<&[f32], ModelError> {
        let (params, shared) = (&self.params, &mut self.shared);
        let mut t = Instant::now();
        let d = params.hidden;
        self.rows.normed.resize(d, 0.0);
        norm::rms(&self.last, &self.ln_f, params.eps, &mut self.rows.normed[..d]);
        run.probe.tap(Tap::FinalNorm, d, &self.rows.normed[..d]);
        t = run.profile.add(Part::Norm, t);
        shared.x.write_rows(run.pool, d, d, &self.rows.normed[..d])?;
        t = run.profile.add(Part::Transfer, t);
        let x = (&shared.x, 0);
        let mut commands = Vec::with_capacity(self.head.len());
        for (part, y) in self.head.iter_mut().zip(&shared.head_y) {
            commands.push(part.gemv(run.kernels, &shared.head, x, y)?);
        }
        run.kernels.run(&commands)?;
        t = run.profile.add(Part::Npu, t);
        let width = params.head_rows;
        for (y, out) in shared.head_y.iter().zip(self.logits.chunks_mut(width)) {
            y.read_rows(run.pool, width, width, out)?;
        }
        run.profile.add(Part::Transfer, t);
        Ok(&self.logits[..params.vocab])
    }
}

impl Shared {
    /// Buffers in the order that is known to work; each as large as the longest stream reaches.
    fn new(params: &TextParams, table: &Table, up: &Uploader<'_>) -> Result<Shared, ModelError> {
        let device = up.kernels.npu().device();
        let element = match params.format {
            WeightFormat::F32 => Element::F32,
            _ => Element::Bf16,
        };
        let buffer = |len: usize| Buffer::new(device, element, len);
        let pair = |key: &str| Ok::<_, ModelError>((table.gemm(key)?, table.gemv(key)?));
        let has = |kind: LayerKind| params.layers.contains(&kind);
        let kernels_of = |kind: LayerKind| has(kind).then(|| pair(kind.key())).transpose();
        let (linear, attention) = (kernels_of(LayerKind::Linear)?, kernels_of(LayerKind::Attention)?);
        let (o, gu, down, head) = (pair("o")?, pair("gu")?, pair("down")?, table.gemv("head")?);

        let inputs = [&linear, &attention].into_iter().flatten().map(|(gemm, _)| gemm.a_elems());
        let a = buffer(inputs.chain([gu.0.a_elems()]).max().unwrap_or(0))?;
        let linear = linear.map(|(gemm, gemv)| (buffer(gemm.c_elems()), gemm, gemv));
        let attention = attention.map(|(gemm, gemv)| (buffer(gemm.c_elems()), gemm, gemv));
        let (o_a, o_c) = (buffer(o.0.a_elems())?, buffer(o.0.c_elems())?);
        let slices = params.down_slices;
        // A view that starts at a column runs past the last row.
        let last_slice = slices.saturating_sub(1) * down.0.record.k + down.0.a_elems();
        let gu_c = buffer(gu.0.c_elems().max(last_slice))?;
        let down_c = (0..slices).map(|_| buffer(down.0.c_elems())).collect::<Result<_, _>>()?;

        let x = buffer(params.hidden.max(o.1.record.k).max(slices * down.1.record.k))?;
        let finish = |input: Option<(Result<Buffer, _>, Gemm, Gemv)>| match input {
            Some((c, gemm, gemv)) => {
                let y = buffer(gemv.record.m)?;
                Ok::<_, ModelError>(Some(Input { c: c?, y, gemm, gemv }))
            }
            None => Ok(None),
        };
        let (linear, attention) = (finish(linear)?, finish(attention)?);
        let (o_y, gu_y) = (buffer(o.1.record.m)?, buffer(gu.1.record.m)?);
        let down_y = (0..slices).map(|_| buffer(down.1.record.m)).collect::<Result<_, _>>()?;
        let head_y = (0..params.head_parts).map(|_| buffer(head.record.m)).collect::<Result<_, _>>()?;
        Ok(Shared { linear, attention, o, gu, down, head, a, o_a, o_c, gu_c, down_c, x, o_y, gu_y, down_y, head_y })
    }

    /// What the bundle's own checks cannot know: that the records fit the way they are used here.
    fn verify(&self, params: &TextParams, layers: &[Layer]) -> Result<(), ModelError> {
        let wrong = |what: String| Err(ModelError::Shape(what));
        for layer in layers {
            let (width, k) = (layer.mixer.output_width(), self.o.0.record.k);
            if width > k || width > self.o.1.record.k || width > self.o.0.record.lda {
                return wrong(format!("a mixer of {width} values does not fit the K of `o`, {k}"));
            }
        }
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

    fn input(&mut self, kind: LayerKind) -> Result<&mut Input, ModelError> {
        let input = match kind {
            LayerKind::Linear => &mut self.linear,
            LayerKind::Attention => &mut self.attention,
        };
        input.as_mut().ok_or_else(|| ModelError::Shape(format!("there is no kernel `{}`", kind.key())))
    }

    fn prefill_layer(
        &mut self,
        run: &mut Run<'_>,
        params: &TextParams,
        layer: &mut Layer,
        index: usize,
        rows: &mut Rows,
    ) -> Result<(), ModelError> {
        let (d, pool) = (params.hidden, run.pool);
        let n = rows.hidden.len() / d;
        let mut t = Instant::now();

        norm_rows(pool, &rows.hidden, &layer.ln1, params.eps, &mut rows.normed);
        run.probe.tap(Tap::Norm1(index), d, &rows.normed);
        t = run.profile.add(Part::Norm, t);
        let (lda, stride) = {
            let record = &self.input(layer.kind)?.gemm.record;
            (record.lda, record.c_stride)
        };
        self.a.write_rows(pool, lda, d, &rows.normed)?;
        t = run.profile.add(Part::Transfer, t);
        let input = match layer.kind {
            LayerKind::Linear => &self.linear,
            LayerKind::Attention => &self.attention,
        };
        let Some(input) = input else { return Ok(()) };
        let command = layer.input.gemm(run.kernels, &input.gemm, n, (&self.a, 0), &input.c)?;
        run.kernels.run(&[command])?;
        t = run.profile.add(Part::Npu, t);
        let width = layer.mixer.input_width();
        rows.projected.resize(n * width, 0.0);
        input.c.read_rows(pool, stride, width, &mut rows.projected)?;
        t = run.profile.add(Part::Transfer, t);

        let width = layer.mixer.output_width();
        rows.mixed.resize(n * width, 0.0);
        layer.mixer.forward(pool, &rows.rope, &rows.normed, &rows.projected, &mut rows.mixed, &mut rows.scratch);
        run.probe.tap(Tap::OutputIn(index), width, &rows.mixed);
        t = run.profile.add(Part::Mixer, t);
        let o = &self.o.0;
        self.o_a.write_rows(pool, o.record.lda, width, &rows.mixed)?;
        t = run.profile.add(Part::Transfer, t);
        let command = layer.o.gemm(run.kernels, o, n, (&self.o_a, 0), &self.o_c)?;
        run.kernels.run(&[command])?;
        t = run.profile.add(Part::Npu, t);
        run.probe.before(&rows.hidden);
        self.o_c.add_rows(pool, o.record.c_stride, d, &mut rows.hidden)?;
        run.probe.difference(Tap::Mixer(index), d, &rows.hidden);
        t = run.profile.add(Part::Transfer, t);

        norm_rows(pool, &rows.hidden, &layer.ln2, params.eps, &mut rows.normed);
        run.probe.tap(Tap::Norm2(index), d, &rows.normed);
        t = run.profile.add(Part::Norm, t);
        let gu = &self.gu.0;
        self.a.write_rows(pool, gu.record.lda, d, &rows.normed)?;
        t = run.profile.add(Part::Transfer, t);
        let command = layer.gu.gemm(run.kernels, gu, n, (&self.a, 0), &self.gu_c)?;
        run.kernels.run(&[command])?;
        let down = &self.down.0;
        let mut commands = Vec::with_capacity(layer.down.len());
        for (s, (slice, c)) in layer.down.iter_mut().zip(&self.down_c).enumerate() {
            commands.push(slice.gemm(run.kernels, down, n, (&self.gu_c, s * down.record.k), c)?);
        }
        run.kernels.run(&commands)?;
        t = run.profile.add(Part::Npu, t);
        run.probe.before(&rows.hidden);
        for c in &self.down_c {
            c.add_rows(pool, down.record.c_stride, d, &mut rows.hidden)?;
        }
        run.probe.difference(Tap::Mlp(index), d, &rows.hidden);
        run.probe.tap(Tap::Output(index), d, &rows.hidden);
        run.profile.add(Part::Transfer, t);
        Ok(())
    }

    fn decode_layer(
        &mut self,
        run: &mut Run<'_>,
        params: &TextParams,
        layer: &mut Layer,
        index: usize,
        rows: &mut Rows,
    ) -> Result<(), ModelError> {
        let (d, pool) = (params.hidden, run.pool);
        let mut t = Instant::now();

        rows.normed.resize(d, 0.0);
        norm::rms(&rows.hidden, &layer.ln1, params.eps, &mut rows.normed);
        run.probe.tap(Tap::Norm1(index), d, &rows.normed);
        t = run.profile.add(Part::Norm, t);
        self.x.write_rows(pool, d, d, &rows.normed)?;
        t = run.profile.add(Part::Transfer, t);
        let input = match layer.kind {
            LayerKind::Linear => &self.linear,
            LayerKind::Attention => &self.attention,
        };
        let Some(input) = input else { return Ok(()) };
        let command = layer.input.gemv(run.kernels, &input.gemv, (&self.x, 0), &input.y)?;
        run.kernels.run(&[command])?;
        t = run.profile.add(Part::Npu, t);
        let width = layer.mixer.input_width();
        rows.projected.resize(width, 0.0);
        input.y.read_rows(pool, width, width, &mut rows.projected)?;
        t = run.profile.add(Part::Transfer, t);

        let width = layer.mixer.output_width();
        rows.mixed.resize(self.o.1.record.k.max(width), 0.0);
        let (mixed, padding) = rows.mixed.split_at_mut(width);
        layer.mixer.forward(pool, &rows.rope, &rows.normed, &rows.projected, mixed, &mut rows.scratch);
        padding.fill(0.0);
        run.probe.tap(Tap::OutputIn(index), width, mixed);
        t = run.profile.add(Part::Mixer, t);
        self.x.write_rows(pool, rows.mixed.len(), rows.mixed.len(), &rows.mixed)?;
        t = run.profile.add(Part::Transfer, t);
        let command = layer.o.gemv(run.kernels, &self.o.1, (&self.x, 0), &self.o_y)?;
        run.kernels.run(&[command])?;
        t = run.profile.add(Part::Npu, t);
        run.probe.before(&rows.hidden);
        self.o_y.add_rows(pool, d, d, &mut rows.hidden)?;
        run.probe.difference(Tap::Mixer(index), d, &rows.hidden);
        t = run.profile.add(Part::Transfer, t);

        norm::rms(&rows.hidden, &layer.ln2, params.eps, &mut rows.normed);
        run.probe.tap(Tap::Norm2(index), d, &rows.normed);
        t = run.profile.add(Part::Norm, t);
        self.x.write_rows(pool, d, d, &rows.normed)?;
        t = run.profile.add(Part::Transfer, t);
        let command = layer.gu.gemv(run.kernels, &self.gu.1, (&self.x, 0), &self.gu_y)?;
        run.kernels.run(&[command])?;
        t = run.profile.add(Part::Npu, t);
        let inner = params.intermediate;
        rows.projected.resize(2 * inner, 0.0);
        self.gu_y.read_rows(pool, 2 * inner, 2 * inner, &mut rows.projected)?;
        t = run.profile.add(Part::Transfer, t);
        let down = &self.down.1;
        rows.activated.resize(layer.down.len() * down.record.k, 0.0);
        act::swiglu_paired(&rows.projected, &mut rows.activated[..inner]);
        t = run.profile.add(Part::Mixer, t);
        let width = rows.activated.len();
        self.x.write_rows(pool, width, width, &rows.activated)?;
        t = run.profile.add(Part::Transfer, t);
        let mut commands = Vec::with_capacity(layer.down.len());
        for (s, (slice, y)) in layer.down.iter_mut().zip(&self.down_y).enumerate() {
            commands.push(slice.gemv(run.kernels, down, (&self.x, s * down.record.k), y)?);
        }
        run.kernels.run(&commands)?;
        t = run.profile.add(Part::Npu, t);
        run.probe.before(&rows.hidden);
        for y in &self.down_y {
            y.add_rows(pool, d, d, &mut rows.hidden)?;
        }
        run.probe.difference(Tap::Mlp(index), d, &rows.hidden);
        run.probe.tap(Tap::Output(index), d, &rows.hidden);
        run.profile.add(Part::Transfer, t);
        Ok(())
    }
}

/// RMS norm of all rows, in parallel over rows.
fn norm_rows(pool: &Pool, x: &[f32], weight: &[f32], eps: f32, out: &mut Vec<f32>) {
    let d = weight.len();
    out.resize(x.len(), 0.0);
    pool.run_chunks(out, d, &|r, out| norm::rms(&x[r * d..][..d], weight, eps, out));
}
