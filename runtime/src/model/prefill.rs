//! A prompt through the model: units of rows in lanes, so that the NPU and the host both have something to do.
//!
//! A unit passes each layer in three steps of the host, with commands in between:
//!
//! ```text
//! (embed) norm -> in | mixer -> o | add, norm -> gu, down slices | add, norm -> in of the next layer
//! ```
//!
//! Each step goes over the rows once: what the NPU has written is read where it lies, and what it is to read is written
//! there by the step that makes it.
//!
//! While the commands of one unit run, the host takes a step of another. Units are cut at the rows of a chunk, and only
//! one thing ties them together: a layer's mixer takes them in their order, since it remembers. Every step's input is
//! the same in whatever order steps are taken, so the order changes no bit.
//!
//! Of the last layer, only the last unit's output is wanted: the others leave what later tokens need, and end there.
//!
//! With one command in flight there is one lane, and a unit is as long as the longest streams. So it is for a prompt of
//! one chunk, and where a watch wants to see the layers in their order.

use std::ops::{ControlFlow, Range};
use std::time::Instant;

use host_ops::pool::Pool;
use host_ops::{norm, rope};

use super::error::ModelError;
use super::keep::{Keep, Kept};
use super::layer::{Layer, MixerScratch};
use super::pipeline::Pipeline;
use super::probe::Tap;
use super::profile::{Projection, Stage};
use super::run::Run;
use super::sequence::Marks;
use super::shared::{Lane, Shared};
use super::text::Text;
use crate::bundle::{Bundle, TextParams};
use crate::npu::Npu;

/// Lanes at most: one unit is with the host, and three keep the NPU's queue from running dry.
const LANES: usize = 4;

/// Rows that a mixer takes at a time: it is what takes longest, and the queue holds no more than a few commands, which
/// have to be handed over meanwhile.
const PART: usize = 96;

/// What stands for a token in the first layer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Row<'a> {
    /// Its embedding.
    Token(u32),
    /// A row of the vision tower, `[D]`.
    Image(&'a [f32]),
}

/// What a unit does when its commands have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    /// Mixer; `in` has run.
    Mix,
    /// Residual add and norm; `o` has run.
    Add,
    /// Residual add; `down` has run.
    Leave,
}

/// Rows of a prompt on their way.
#[derive(Debug)]
struct Unit {
    /// Its place among the units.
    index: usize,
    rows: Range<usize>,
    /// Whether it is the last one.
    last: bool,
    layer: usize,
    step: Step,
}

/// A lane with the unit in it, and the memory of its rows.
#[derive(Debug)]
struct Track {
    lane: Lane,
    unit: Option<Unit>,
    hidden: Vec<f32>,
    normed: Vec<f32>,
    rope: rope::Table,
}

/// What prompts run in.
#[derive(Debug)]
pub(super) struct Prefill {
    tracks: Vec<Track>,
    /// Rows of a chunk, and chunks that the first lane holds. The others hold one.
    chunk: usize,
    chunks: usize,
    pipeline: Pipeline,
    /// Of each layer: the unit whose turn at the mixer it is.
    turns: Vec<usize>,
    /// What a mixer took and gave, where somebody wants to see it.
    projected: Vec<f32>,
    mixed: Vec<f32>,
    scratch: MixerScratch,
    /// Rotary positions of the rows that a mixer takes.
    part_rope: rope::Table,
    /// What rows are to leave behind, and have left.
    pub(super) keep: Keep,
    pub(super) kept: Kept,
    /// Places to take a snapshot at.
    pub(super) marks: Marks,
}

impl Track {
    fn new(lane: Lane) -> Track {
        Track { lane, unit: None, hidden: Vec::new(), normed: Vec::new(), rope: rope::Table::default() }
    }
}

impl Prefill {
    pub(super) fn new(shared: &Shared, lane: Lane, in_flight: usize) -> Prefill {
        let (chunk, chunks) = shared.chunk();
        Prefill {
            tracks: vec![Track::new(lane)],
            chunk,
            chunks,
            pipeline: Pipeline::new(in_flight),
            turns: Vec::new(),
            projected: Vec::new(),
            mixed: Vec::new(),
            scratch: MixerScratch::default(),
            part_rope: rope::Table::default(),
            keep: Keep::Nothing,
            kept: Kept::default(),
            marks: Marks::default(),
        }
    }

    /// Rows of a chunk.
    pub(super) fn chunk(&self) -> usize {
        self.chunk
    }

    /// A lane, if there are so many; a single one comes with the model.
    pub(super) fn lane(&self, index: usize) -> Option<&Lane> {
        self.tracks.get(index).map(|track| &track.lane)
    }

    /// Makes a lane more, up to `lanes` of them. Fewer are slower, no more.
    pub(super) fn widen(&mut self, lanes: usize, shared: &Shared, params: &TextParams, npu: &Npu) {
        while self.tracks.len() < lanes {
            match shared.lane(params, npu, 1) {
                Ok(lane) => self.tracks.push(Track::new(lane)),
                Err(_) => break,
            }
        }
    }

    /// Forgets what an error has left behind.
    fn clear(&mut self) {
        self.pipeline.clear();
        self.tracks.iter_mut().for_each(|track| track.unit = None);
    }
}

/// One prompt under way.
struct Flow<'a, 'r> {
    run: &'a mut Run<'r>,
    params: &'a TextParams,
    layers: &'a mut [Layer],
    shared: &'a Shared,
    prefill: &'a mut Prefill,
}

impl Text {
    /// Appends tokens, `unit` of them together at most. `progress` gets how many tokens' share of the work has been
    /// done, after every layer of every unit, and may break off there. Gives whether all is in; if not, the state of the
    /// layers is of no use.
    ///
    /// # Errors
    /// An unknown token, failures of the device; the state is of no use then, either.
    pub(super) fn prompt(
        &mut self,
        run: &mut Run<'_>,
        bundle: &Bundle,
        rows: &[Row<'_>],
        positions: &[[u32; 3]],
        unit: usize,
        progress: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> Result<bool, ModelError> {
        let result = self.units(run, bundle, rows, positions, unit, progress);
        if !matches!(result, Ok(true)) {
            // The state is lost anyway: the first error is the one to tell.
            let _ = run.kernels.drain();
            run.recorder.clear();
            self.prefill.clear();
        }
        result
    }

    fn units(
        &mut self,
        run: &mut Run<'_>,
        bundle: &Bundle,
        rows: &[Row<'_>],
        positions: &[[u32; 3]],
        unit: usize,
        progress: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> Result<bool, ModelError> {
        let Prefill { chunk, chunks, .. } = self.prefill;
        let serial = self.prefill.pipeline.depth() == 1 || rows.len() <= chunk || run.probe.is_set();
        let unit = unit.clamp(1, (chunk * if serial { chunks } else { 1 }).max(1));
        let (total, d) = (rows.len().div_ceil(unit), self.params.hidden);
        let lanes = if serial { 1 } else { LANES.min(total) };
        self.prefill.widen(lanes, &self.shared, &self.params, run.kernels.npu());
        self.prefill.kept.clear(self.prefill.keep, rows.len(), d, self.layers.len());
        let lanes = lanes.min(self.prefill.tracks.len());
        self.prefill.turns.clear();
        self.prefill.turns.resize(self.layers.len(), 0);

        let Text { params, layers, head, embedding, rope, shared, prefill, last, .. } = self;
        let mut flow = Flow { run, params, layers, shared, prefill };
        let (mut begun, mut ended, mut done) = (0, 0, 0);
        while ended < total {
            flow.prefill.pipeline.pump(flow.run)?;
            if begun < total
                && let Some(free) = flow.prefill.tracks[..lanes].iter().position(|track| track.unit.is_none())
            {
                let t = Instant::now();
                let range = begun * unit..((begun + 1) * unit).min(rows.len());
                let track = &mut flow.prefill.tracks[free];
                track.hidden.resize(range.len() * d, 0.0);
                for (row, out) in rows[range.clone()].iter().zip(track.hidden.chunks_exact_mut(d)) {
                    match row {
                        Row::Token(id) => embedding.row(params, bundle, head, *id, out)?,
                        Row::Image(row) => out.copy_from_slice(row),
                    }
                }
                flow.run.probe.tap(Tap::Embedding, d, &track.hidden);
                rope.fill(&positions[range.clone()], &mut track.rope);
                let last = range.end == rows.len();
                track.unit = Some(Unit { index: begun, rows: range, last, layer: 0, step: Step::Mix });
                flow.run.lap(Stage::Embedding, 0, t);
                begun += 1;
                flow.enter(free)?;
                continue;
            }
            let Some(at) = flow.next() else {
                flow.prefill.pipeline.wait(flow.run)?;
                continue;
            };
            if !flow.take(at)? {
                continue;
            }
            let track = &mut flow.prefill.tracks[at];
            let Some(unit) = &track.unit else { continue };
            done += unit.rows.len();
            if unit.layer == flow.layers.len() {
                if unit.last {
                    last.copy_from_slice(&track.hidden[track.hidden.len() - d..]);
                }
                flow.prefill.marks.leave(&unit.rows, d, &track.hidden);
                flow.prefill.kept.output(flow.prefill.keep, unit.rows.start * d, &track.hidden);
                track.unit = None;
                ended += 1;
            }
            if progress(done / flow.layers.len()).is_break() && ended < total {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Flow<'_, '_> {
    /// The track whose step is to be taken next: what gives the NPU something to do comes before mixers, which take
    /// longest; then what is furthest behind.
    fn next(&self) -> Option<usize> {
        let ready = |at: usize, unit: &Unit| {
            (unit.step != Step::Mix || self.prefill.turns[unit.layer] == unit.index)
                && self.prefill.pipeline.is_ready(self.run, at)
        };
        let units = self.prefill.tracks.iter().enumerate().filter_map(|(at, track)| Some((at, track.unit.as_ref()?)));
        let ready = units.filter(|(at, unit)| ready(*at, unit));
        ready.min_by_key(|(_, unit)| (unit.step == Step::Mix, unit.layer, unit.step, unit.index)).map(|(at, _)| at)
    }

    /// Takes a unit's step; its commands have ended. Gives whether it has come through a layer.
    fn take(&mut self, at: usize) -> Result<bool, ModelError> {
        let Some(unit) = &self.prefill.tracks[at].unit else { return Ok(false) };
        let (step, layer) = (unit.step, unit.layer);
        self.prefill.pipeline.settle(self.run, at)?;
        let through = match step {
            Step::Mix => self.mix(at, layer)?,
            Step::Add => {
                self.add(at, layer)?;
                false
            }
            Step::Leave => {
                self.leave(at, layer)?;
                true
            }
        };
        if through && let Some(unit) = &mut self.prefill.tracks[at].unit {
            unit.layer += 1;
        }
        self.prefill.pipeline.pump(self.run)?;
        Ok(through)
    }

    /// What a unit does when its commands have ended.
    fn then(&mut self, at: usize, step: Step) {
        if let Some(unit) = &mut self.prefill.tracks[at].unit {
            unit.step = step;
        }
    }

    /// Norm, then `in` of the first layer.
    fn enter(&mut self, at: usize) -> Result<(), ModelError> {
        let (d, pool, eps) = (self.params.hidden, self.run.pool, self.params.eps);
        let Track { lane, hidden, normed, .. } = &mut self.prefill.tracks[at];
        let Some(layer) = self.layers.first() else { return Ok(()) };
        let t = Instant::now();
        normed.resize(hidden.len(), 0.0);
        let lda = self.shared.input(layer.kind)?.gemm.record.lda;
        lane.a.make_rows(pool, lda, d, (hidden, normed), &|_, x, out| norm::rms(x, &layer.ln1, eps, out))?;
        self.run.lap(Stage::Norm, 0, t);
        self.project(at, 0)
    }

    /// The `in` projection of a layer, whose rows are there.
    fn project(&mut self, at: usize, index: usize) -> Result<(), ModelError> {
        let d = self.params.hidden;
        let Track { lane, normed, .. } = &mut self.prefill.tracks[at];
        self.run.probe.tap(Tap::Norm1(index), d, normed);
        let layer = &mut self.layers[index];
        let gemm = &self.shared.input(layer.kind)?.gemm;
        let (n, c) = (normed.len() / d, lane.input_c(layer.kind)?);
        let command = layer.input.gemm(self.run.kernels, gemm, (at, n), (&lane.a, 0), c)?;
        let projection = layer.mixer.projection();
        self.then(at, Step::Mix);
        self.prefill.pipeline.queue(at, command, projection, index);
        self.prefill.pipeline.pump(self.run)
    }

    /// Mixer, then `o`. Gives whether nothing follows.
    fn mix(&mut self, at: usize, index: usize) -> Result<bool, ModelError> {
        let Prefill { tracks, projected, mixed, scratch, turns, keep, kept, marks, pipeline, part_rope, .. } =
            &mut *self.prefill;
        let Track { lane, unit, normed, rope, .. } = &mut tracks[at];
        let Some(unit) = unit else { return Ok(false) };
        let (d, pool) = (self.params.hidden, self.run.pool);
        let (n, is_last) = (normed.len() / d, index + 1 == self.layers.len());
        let is_watched = self.run.probe.is_set() || marks.within(&unit.rows).next().is_some();
        let is_wanted = !is_last || unit.last || is_watched || *keep != Keep::Nothing;
        let layer = &mut self.layers[index];
        let t = Instant::now();
        let stride = self.shared.input(layer.kind)?.gemm.record.c_stride;
        let (input, width) = (layer.mixer.input_width(), layer.mixer.output_width());
        let (o, c) = (&self.shared.o.0, lane.input_c(layer.kind)?.source(stride, input, n)?);
        if !is_wanted && layer.mixer.remember(pool, rope, c.rows(), scratch) {
            // The cache has all that is needed of it.
        } else if is_watched || *keep == Keep::Inputs {
            projected.resize(n * input, 0.0);
            pool.run_chunks(projected, input, &|r, out| c.rows().read(r, 0..input, out));
            mixed.resize(n * width, 0.0);
            layer.mixer.forward_to(marks, (index, &unit.rows), pool, rope, normed, projected, mixed, scratch);
            kept.input(*keep, index, normed, projected);
            self.run.probe.tap(Tap::OutputIn(index), width, mixed);
            lane.o_a.write_rows(pool, o.record.lda, width, mixed)?;
        } else {
            let mut pumped = Ok(());
            lane.o_a.fill_rows(o.record.lda, width, n, |mut out| {
                for first in (0..n).step_by(PART) {
                    let rows = first..n.min(first + PART);
                    part_rope.copy_rows(rope, rows.clone());
                    let (hidden, from) = (&normed[rows.start * d..rows.end * d], c.rows().from(first));
                    layer.mixer.forward_rows(pool, part_rope, hidden, from, out.from(first), scratch);
                    if pumped.is_ok() {
                        pumped = pipeline.pump(self.run);
                    }
                }
            })?;
            pumped?;
        }
        drop(c);
        turns[index] += 1;
        self.run.lap(layer.mixer.stage(), index, t);
        if !is_wanted {
            // Their commands are made all the same: what a lane holds should not depend on which unit comes last in it.
            let (gu, down) = (&self.shared.gu.0, &self.shared.down.0);
            layer.o.gemm(self.run.kernels, o, (at, n), (&lane.o_a, 0), &lane.o_c)?;
            layer.gu.gemm(self.run.kernels, gu, (at, n), (&lane.a, 0), &lane.gu_c)?;
            for (s, (slice, c)) in layer.down.iter_mut().zip(&lane.down_c).enumerate() {
                slice.gemm(self.run.kernels, down, (at, n), (&lane.gu_c, s * down.record.k), c)?;
            }
            return Ok(true);
        }
        let command = layer.o.gemm(self.run.kernels, o, (at, n), (&lane.o_a, 0), &lane.o_c)?;
        self.then(at, Step::Add);
        self.prefill.pipeline.queue(at, command, Projection::Output, index);
        Ok(false)
    }

    /// Residual add and norm, then `gu` and the slices of `down`.
    fn add(&mut self, at: usize, index: usize) -> Result<(), ModelError> {
        let (d, pool, eps) = (self.params.hidden, self.run.pool, self.params.eps);
        let Track { lane, hidden, normed, .. } = &mut self.prefill.tracks[at];
        let (n, layer) = (hidden.len() / d, &mut self.layers[index]);
        let (o, gu, down) = (&self.shared.o.0, &self.shared.gu.0, &self.shared.down.0);
        let t = Instant::now();
        self.run.probe.before(hidden);
        let c = lane.o_c.source(o.record.c_stride, d, n)?;
        lane.a.make_rows(pool, gu.record.lda, d, (hidden, normed), &|r, sum, out| {
            c.add(r, sum);
            norm::rms(sum, &layer.ln2, eps, out);
        })?;
        drop(c);
        self.run.probe.difference(Tap::Mixer(index), d, hidden);
        self.run.probe.tap(Tap::Norm2(index), d, normed);
        self.run.lap(Stage::Norm, index, t);
        let command = layer.gu.gemm(self.run.kernels, gu, (at, n), (&lane.a, 0), &lane.gu_c)?;
        self.then(at, Step::Leave);
        self.prefill.pipeline.queue(at, command, Projection::GateUp, index);
        for s in 0..self.layers[index].down.len() {
            let lane = &self.prefill.tracks[at].lane;
            let from = (&lane.gu_c, s * down.record.k);
            let command = self.layers[index].down[s].gemm(self.run.kernels, down, (at, n), from, &lane.down_c[s])?;
            self.prefill.pipeline.queue(at, command, Projection::Down, index);
        }
        Ok(())
    }

    /// Residual add; norm and `in` of the layer that follows, if one does.
    fn leave(&mut self, at: usize, index: usize) -> Result<(), ModelError> {
        let (d, pool, eps) = (self.params.hidden, self.run.pool, self.params.eps);
        let Track { lane, hidden, normed, .. } = &mut self.prefill.tracks[at];
        let (n, next) = (hidden.len() / d, self.layers.get(index + 1));
        let t = Instant::now();
        self.run.probe.before(hidden);
        let stride = self.shared.down.0.record.c_stride;
        let c = lane.down_c.iter().map(|c| c.source(stride, d, n)).collect::<Result<Vec<_>, _>>()?;
        let add = |r: usize, sum: &mut [f32]| c.iter().for_each(|c| c.add(r, sum));
        match next {
            Some(next) => {
                let lda = self.shared.input(next.kind)?.gemm.record.lda;
                lane.a.make_rows(pool, lda, d, (hidden, normed), &|r, sum, out| {
                    add(r, sum);
                    norm::rms(sum, &next.ln1, eps, out);
                })?;
            }
            None => pool.run_chunks(hidden, d, &add),
        }
        drop(c);
        self.run.probe.difference(Tap::Mlp(index), d, hidden);
        self.run.probe.tap(Tap::Output(index), d, hidden);
        self.run.lap(Stage::Norm, index, t);
        match next {
            Some(_) => self.project(at, index + 1),
            None => Ok(()),
        }
    }
}

/// RMS norm of all rows, in parallel over rows.
pub(super) fn norm_rows(pool: &Pool, x: &[f32], weight: &[f32], eps: f32, out: &mut Vec<f32>) {
    let d = weight.len();
    out.resize(x.len(), 0.0);
    pool.run_chunks(out, d, &|r, out| norm::rms(&x[r * d..][..d], weight, eps, out));
}
