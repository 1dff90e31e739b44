//! One token through the model: a GEMV a projection, commands that are bound once, memory that is there.

use std::time::{Duration, Instant};

use host_ops::{act, norm, rope};

use super::error::ModelError;
use super::hybrid::{self, Share};
use super::layer::{Layer, MixerScratch};
use super::probe::Tap;
use super::profile::{Projection, Stage};
use super::run::{Run, Sent};
use super::shared::Shared;
use super::text::Text;
use crate::bundle::{Bundle, TextParams};

/// The shortest wait for an input projection in which a layer's state is brought into the cache.
const WORTH_WARMING: Duration = Duration::from_micros(30);

/// Rows of f32 that keep their memory from token to token.
#[derive(Debug, Default)]
pub(super) struct Token {
    hidden: Vec<f32>,
    pub(super) normed: Vec<f32>,
    projected: Vec<f32>,
    mixed: Vec<f32>,
    /// What goes to `down`.
    pub(super) activated: Vec<f32>,
    rope: rope::Table,
    scratch: MixerScratch,
    /// Parts of the head that have been handed over.
    parts: Vec<Sent>,
}

impl Text {
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
        let token = &mut self.token;
        token.hidden.resize(d, 0.0);
        self.embedding.row(&self.params, bundle, &self.head, id, &mut token.hidden)?;
        run.probe.tap(Tap::Embedding, d, &token.hidden);
        self.rope.fill(&[[position; 3]], &mut token.rope);
        run.lap(Stage::Embedding, 0, started);
        for i in 0..self.layers.len() {
            token.layer(run, &self.params, &self.shared, &mut self.share, &mut self.layers, i)?;
        }
        self.last.copy_from_slice(&token.hidden);
        Ok(())
    }

    /// Logits of the token that follows the last one: `[vocab]`.
    pub(super) fn logits(&mut self, run: &mut Run<'_>) -> Result<&[f32], ModelError> {
        let (params, shared, layer) = (&self.params, &self.shared, self.layers.len());
        let Token { normed, .. } = &mut self.token;
        let d = params.hidden;
        let mut t = Instant::now();
        normed.resize(d, 0.0);
        norm::rms(&self.last, &self.ln_f, params.eps, &mut normed[..d]);
        run.probe.tap(Tap::FinalNorm, d, &normed[..d]);
        t = run.lap(Stage::Norm, layer, t);
        shared.x.write_rows(run.pool, d, d, &normed[..d])?;
        run.lap(Stage::Write, layer, t);
        self.head_parts(run)?;
        Ok(&self.logits[..self.params.vocab])
    }

    /// The parts of the head. As many as a queue takes go out; then the logits of one are read while the others run. The
    /// host multiplies its own share meanwhile, if it has one.
    pub(super) fn head_parts(&mut self, run: &mut Run<'_>) -> Result<(), ModelError> {
        let Text { shared, layers, head, params, logits, share, .. } = self;
        let Token { normed, parts, .. } = &mut self.token;
        let (depth, width, layer) = (run.kernels.in_flight(), params.head_rows, layers.len());
        let product = &mut share.head;
        let own = head.len() - product.parts;
        if product.parts > 0 {
            let t = Instant::now();
            product.set_x(&normed[..params.hidden]);
            hybrid::took(run, Projection::Head, layer, product.parts, t);
        }
        let (step, end) = (product.step(), head.len() * width);
        let (mut read, mut taken) = (0, own * width);
        parts.clear();
        while read < own || taken < end {
            while parts.len() < own.min(read + depth) {
                let (part, x) = (parts.len(), (&shared.x, 0));
                let command = head[part].gemv(run.kernels, &shared.head, x, &shared.head_y[part])?;
                parts.push(run.submit(command, Projection::Head, part)?);
            }
            let next = parts.get(read).copied();
            if taken < end && next.is_none_or(|next| !run.is_done(&next)) {
                let t = Instant::now();
                let (part, first) = (taken / width, taken % width);
                let stop = (taken + step).min((part + 1) * width);
                product.multiply(run.pool, head[part].weights(), first, &mut logits[taken..stop])?;
                run.lap(Stage::Product, layer, t);
                taken = stop;
                continue;
            }
            let Some(next) = next else { break };
            run.wait_as_ever(&next)?;
            let t = Instant::now();
            shared.head_y[read].read_rows(run.pool, width, width, &mut logits[read * width..][..width])?;
            run.lap(Stage::Read, layer, t);
            read += 1;
        }
        Ok(())
    }
}

impl Token {
    fn layer(
        &mut self,
        run: &mut Run<'_>,
        params: &TextParams,
        shared: &Shared,
        share: &mut Share,
        layers: &mut [Layer],
        index: usize,
    ) -> Result<(), ModelError> {
        let (d, pool) = (params.hidden, run.pool);
        let layer = &mut layers[index];
        let x = (&shared.x, 0);
        let mut t = Instant::now();

        self.normed.resize(d, 0.0);
        norm::rms(&self.hidden, &layer.ln1, params.eps, &mut self.normed[..d]);
        run.probe.tap(Tap::Norm1(index), d, &self.normed[..d]);
        t = run.lap(Stage::Norm, index, t);
        shared.x.write_rows(pool, d, d, &self.normed[..d])?;
        run.lap(Stage::Write, index, t);
        let input = shared.input(layer.kind)?;
        let command = layer.input.gemv(run.kernels, &input.gemv, x, &input.y)?;
        let sent = run.submit(command, layer.mixer.projection(), index)?;
        // Where the answer is there at once nothing can be hidden behind the wait.
        if run.expects(sent.projection) >= WORTH_WARMING {
            t = Instant::now();
            layer.mixer.touch();
            run.lap(Stage::Warm, index, t);
        }
        run.wait_as_ever(&sent)?;
        t = Instant::now();
        let width = layer.mixer.input_width();
        self.projected.resize(width, 0.0);
        input.y.read_rows(pool, width, width, &mut self.projected)?;
        t = run.lap(Stage::Read, index, t);

        let width = layer.mixer.output_width();
        self.mixed.resize(shared.o.1.record.k.max(width), 0.0);
        let (mixed, padding) = self.mixed.split_at_mut(width);
        padding.fill(0.0);
        layer.mixer.forward(pool, &self.rope, &self.normed[..d], &self.projected, mixed, &mut self.scratch);
        run.probe.tap(Tap::OutputIn(index), width, mixed);
        t = run.lap(layer.mixer.stage(), index, t);
        shared.x.write_rows(pool, self.mixed.len(), self.mixed.len(), &self.mixed)?;
        run.lap(Stage::Write, index, t);
        let command = layer.o.gemv(run.kernels, &shared.o.1, x, &shared.o_y)?;
        let sent = run.submit(command, Projection::Output, index)?;
        run.wait_as_ever(&sent)?;
        t = Instant::now();
        run.probe.before(&self.hidden);
        shared.o_y.add_rows(pool, d, d, &mut self.hidden)?;
        run.probe.difference(Tap::Mixer(index), d, &self.hidden);
        t = run.lap(Stage::Read, index, t);

        norm::rms(&self.hidden, &layer.ln2, params.eps, &mut self.normed[..d]);
        run.probe.tap(Tap::Norm2(index), d, &self.normed[..d]);
        t = run.lap(Stage::Norm, index, t);
        shared.x.write_rows(pool, d, d, &self.normed[..d])?;
        run.lap(Stage::Write, index, t);
        let command = layer.gu.gemv(run.kernels, &shared.gu.1, x, &shared.gu_y)?;
        let sent = run.submit(command, Projection::GateUp, index)?;
        run.wait_as_ever(&sent)?;
        t = Instant::now();
        let inner = params.intermediate;
        self.projected.resize(2 * inner, 0.0);
        shared.gu_y.read_rows(pool, 2 * inner, 2 * inner, &mut self.projected)?;
        t = run.lap(Stage::Read, index, t);
        let down = &shared.down.1;
        self.activated.resize(layer.down.len() * down.record.k, 0.0);
        act::swiglu_paired(&self.projected, &mut self.activated[..inner]);
        t = run.lap(Stage::Activation, index, t);
        let width = self.activated.len();
        shared.x.write_rows(pool, width, width, &self.activated)?;
        run.lap(Stage::Write, index, t);
        self.down(run, shared, share, layer, index)?;
        t = Instant::now();
        run.probe.before(&self.hidden);
        let own = shared.down_y.len() - share.down.parts;
        for y in &shared.down_y[..own] {
            y.add_rows(pool, d, d, &mut self.hidden)?;
        }
        for place in 0..share.down.parts {
            self.hidden.iter_mut().zip(share.down.slice(place)).for_each(|(h, y)| *h += y);
        }
        run.probe.difference(Tap::Mlp(index), d, &self.hidden);
        run.probe.tap(Tap::Output(index), d, &self.hidden);
        run.lap(Stage::Read, index, t);
        Ok(())
    }
    /// The slices of `down`: the NPU's go out together, and the host multiplies its own share meanwhile.
    pub(super) fn down(
        &mut self,
        run: &mut Run<'_>,
        shared: &Shared,
        share: &mut Share,
        layer: &mut Layer,
        index: usize,
    ) -> Result<(), ModelError> {
        let (down, product) = (&shared.down.1, &mut share.down);
        let (k, own) = (down.record.k, layer.down.len() - product.parts);
        let mut last = None;
        for (s, (slice, y)) in layer.down[..own].iter_mut().zip(&shared.down_y).enumerate() {
            let command = slice.gemv(run.kernels, down, (&shared.x, s * k), y)?;
            last = Some(run.submit(command, Projection::Down, index)?);
        }
        for (place, slice) in layer.down[own..].iter().enumerate() {
            let t = Instant::now();
            product.set_x(&self.activated[(own + place) * k..][..k]);
            product.multiply_slice(run.pool, slice.weights(), place)?;
            hybrid::took(run, Projection::Down, index, 1, t);
        }
        if let Some(last) = last {
            run.wait_as_ever(&last)?;
        }
        Ok(())
    }
}
