//! A prompt through the model: units of rows in lanes, so that the NPU and the host both have something to do.
//!
//! A unit passes each layer in three steps of the host, with commands in between:
//!
//! ```text
//! (embed) norm -> in | mixer -> o | add, norm -> gu, down slices | add -> the next layer
//! ```
//!
//! While the commands of one unit run, the host takes a step of another. Units are cut at the rows of a chunk, and only
//! one thing ties them together: a layer's mixer takes them in their order, since it remembers. Every step's input is
//! the same in whatever order steps are taken, so the order changes no bit.
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
    projected: Vec<f32>,
    mixed: Vec<f32>,
    scratch: MixerScratch,
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
                track.unit = Some(Unit { index: begun, rows: range, layer: 0, step: Step::Mix });
                flow.run.lap(Stage::Embedding, 0, t);
                begun += 1;
                flow.enter(free)?;
                continue;
            }
            let Some(at) = flow.next() else {
                flow.prefill.pipeline.wait(flow.run)?;
                continue;
            };
            let step = flow.take(at)?;
            if step != Step::Leave {
                continue;
            }
            let track = &mut flow.prefill.tracks[at];
            let Some(unit) = &mut track.unit else { continue };
            unit.layer += 1;
            done += unit.rows.len();
            let is_last = unit.rows.end == rows.len();
            if unit.layer < flow.layers.len() {
                flow.enter(at)?;
            } else {
                if is_last {
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

    /// Takes a unit's step; its commands have ended.
    fn take(&mut self, at: usize) -> Result<Step, ModelError> {
        let Some(unit) = &self.prefill.tracks[at].unit else { return Ok(Step::Mix) };
        let (step, layer) = (unit.step, unit.layer);
        self.prefill.pipeline.settle(self.run, at)?;
        match step {
            Step::Mix => self.mix(at, layer)?,
            Step::Add => self.add(at, layer)?,
            Step::Leave => self.leave(at, layer)?,
        }
        self.prefill.pipeline.pump(self.run)?;
        Ok(step)
    }

    /// What a unit does when its commands have ended.
    fn then(&mut self, at: usize, step: Step) {
        if let Some(unit) = &mut self.prefill.tracks[at].unit {
            unit.step = step;
        }
    }

    /// Norm, then `in`.
    fn enter(&mut self, at: usize) -> Result<(), ModelError> {
        let (d, pool) = (self.params.hidden, self.run.pool);
        let Track { lane, unit, hidden, normed, .. } = &mut self.prefill.tracks[at];
        let Some(unit) = unit else { return Ok(()) };
        let (n, index) = (unit.rows.len(), unit.layer);
        let layer = &mut self.layers[index];
        let mut t = Instant::now();
        norm_rows(pool, hidden, &layer.ln1, self.params.eps, normed);
        self.run.probe.tap(Tap::Norm1(index), d, normed);
        t = self.run.lap(Stage::Norm, index, t);
        let gemm = &self.shared.input(layer.kind)?.gemm;
        lane.a.write_rows(pool, gemm.record.lda, d, normed)?;
        self.run.lap(Stage::Write, index, t);
        let c = lane.input_c(layer.kind)?;
        let command = layer.input.gemm(self.run.kernels, gemm, (at, n), (&lane.a, 0), c)?;
        let projection = layer.mixer.projection();
        self.then(at, Step::Mix);
        self.prefill.pipeline.queue(at, command, projection, index);
        self.prefill.pipeline.pump(self.run)
    }

    /// Mixer, then `o`.
    fn mix(&mut self, at: usize, index: usize) -> Result<(), ModelError> {
        let Prefill { tracks, projected, mixed, scratch, turns, keep, kept, marks, .. } = &mut *self.prefill;
        let Track { lane, unit, hidden, normed, rope } = &mut tracks[at];
        let Some(unit) = unit else { return Ok(()) };
        let (d, pool) = (self.params.hidden, self.run.pool);
        let (n, layer) = (hidden.len() / d, &mut self.layers[index]);
        let mut t = Instant::now();
        let stride = self.shared.input(layer.kind)?.gemm.record.c_stride;
        let width = layer.mixer.input_width();
        projected.resize(n * width, 0.0);
        lane.input_c(layer.kind)?.read_rows(pool, stride, width, projected)?;
        t = self.run.lap(Stage::Read, index, t);

        let width = layer.mixer.output_width();
        mixed.resize(n * width, 0.0);
        layer.mixer.forward_to(marks, (index, &unit.rows), pool, rope, normed, projected, mixed, scratch);
        kept.input(*keep, index, normed, projected);
        turns[index] += 1;
        self.run.probe.tap(Tap::OutputIn(index), width, mixed);
        t = self.run.lap(layer.mixer.stage(), index, t);
        let o = &self.shared.o.0;
        lane.o_a.write_rows(pool, o.record.lda, width, mixed)?;
        self.run.lap(Stage::Write, index, t);
        let command = layer.o.gemm(self.run.kernels, o, (at, n), (&lane.o_a, 0), &lane.o_c)?;
        self.then(at, Step::Add);
        self.prefill.pipeline.queue(at, command, Projection::Output, index);
        Ok(())
    }

    /// Residual add and norm, then `gu` and the slices of `down`.
    fn add(&mut self, at: usize, index: usize) -> Result<(), ModelError> {
        let (d, pool) = (self.params.hidden, self.run.pool);
        let Track { lane, hidden, normed, .. } = &mut self.prefill.tracks[at];
        let (n, layer) = (hidden.len() / d, &mut self.layers[index]);
        let (o, gu, down) = (&self.shared.o.0, &self.shared.gu.0, &self.shared.down.0);
        let mut t = Instant::now();
        self.run.probe.before(hidden);
        lane.o_c.add_rows(pool, o.record.c_stride, d, hidden)?;
        self.run.probe.difference(Tap::Mixer(index), d, hidden);
        t = self.run.lap(Stage::Read, index, t);
        norm_rows(pool, hidden, &layer.ln2, self.params.eps, normed);
        self.run.probe.tap(Tap::Norm2(index), d, normed);
        t = self.run.lap(Stage::Norm, index, t);
        lane.a.write_rows(pool, gu.record.lda, d, normed)?;
        self.run.lap(Stage::Write, index, t);
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

    /// Residual add.
    fn leave(&mut self, at: usize, index: usize) -> Result<(), ModelError> {
        let (d, pool) = (self.params.hidden, self.run.pool);
        let Track { lane, hidden, .. } = &mut self.prefill.tracks[at];
        let t = Instant::now();
        self.run.probe.before(hidden);
        for c in &lane.down_c {
            c.add_rows(pool, self.shared.down.0.record.c_stride, d, hidden)?;
        }
        self.run.probe.difference(Tap::Mlp(index), d, hidden);
        self.run.probe.tap(Tap::Output(index), d, hidden);
        self.run.lap(Stage::Read, index, t);
        Ok(())
    }
}

/// RMS norm of all rows, in parallel over rows.
pub(super) fn norm_rows(pool: &Pool, x: &[f32], weight: &[f32], eps: f32, out: &mut Vec<f32>) {
    let d = weight.len();
    out.resize(x.len(), 0.0);
    pool.run_chunks(out, d, &|r, out| norm::rms(&x[r * d..][..d], weight, eps, out));
}
