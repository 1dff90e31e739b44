//! A picture through the vision tower: units of patches in lanes, so that the NPU and the host both have something to do.
//!
//! ```text
//! write -> patch | positions | norm -> qkv | attention -> proj | add, norm -> fc1 | (GELU) -> fc2 slices | add, norm -> qkv ...
//! ```
//!
//! All is done row by row but attention, which needs the keys and values of all patches: there units wait for each other.
//! While the host attends from the patches of one unit, the NPU takes those before through the rest of the block. The
//! order in which steps are taken changes no bit.

use std::ops::{ControlFlow, Range};
use std::time::Instant;

use host_ops::attention::{VisionScratch, VisionShape, vision_keys, vision_rows};
use host_ops::image::{Patches, add_positions};
use host_ops::{act, rope, w8};

use super::error::ModelError;
use super::kernels::Gemm;
use super::pipeline::Pipeline;
use super::profile::{Projection, Stage};
use super::run::Run;
use super::vision::{Block, Projections, Vision, Weight};
use crate::bundle::VisionParams;
use crate::npu::{Buffer, Element, Npu, NpuError};

/// Lanes at most, as for a prompt.
const LANES: usize = 4;

/// The buffers that the patches of a unit go through.
#[derive(Debug)]
pub(super) struct Lane {
    /// A of `patch`.
    patch_a: Buffer,
    /// A of `qkv`, `proj` and `fc1`. Columns past the tower's width are never written: they stay zero, as the padded
    /// rows of B want it.
    a: Buffer,
    /// C of `patch` and `proj`.
    c: Buffer,
    qkv_c: Buffer,
    /// C of `fc1` and A of `fc2`.
    fc1_c: Buffer,
    fc2_c: Vec<Buffer>,
}

impl Lane {
    /// A lane for so many chunks.
    fn new(
        params: &VisionParams,
        gemms: &Projections,
        npu: &Npu,
        element: Element,
        chunks: usize,
    ) -> Result<Lane, NpuError> {
        let buffer = |len: usize| Buffer::new(npu.device(), element, len);
        // A view that starts at a column runs past the last row.
        let fc2_a = params.fc2_slices.saturating_sub(1) * gemms.fc2.record.k + gemms.fc2.a_elems(chunks);
        let a = [&gemms.qkv, &gemms.proj, &gemms.fc1].map(|gemm| gemm.a_elems(chunks));
        Ok(Lane {
            patch_a: buffer(gemms.patch.a_elems(chunks))?,
            a: buffer(a.into_iter().max().unwrap_or(0))?,
            c: buffer(gemms.patch.c_elems(chunks).max(gemms.proj.c_elems(chunks)))?,
            qkv_c: buffer(gemms.qkv.c_elems(chunks))?,
            fc1_c: buffer(gemms.fc1.c_elems(chunks).max(fc2_a))?,
            fc2_c: (0..params.fc2_slices).map(|_| buffer(gemms.fc2.c_elems(chunks))).collect::<Result<_, _>>()?,
        })
    }
}

/// What a unit waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    /// A lane, to begin.
    Begin,
    /// `patch`.
    Patch,
    /// The positions of all patches, and a lane.
    Embedded,
    /// `qkv`.
    Qkv,
    /// The keys of all patches, and a lane.
    Attend,
    /// `proj`.
    Proj,
    /// `fc1`.
    Fc1,
    /// The slices of `fc2`.
    Fc2,
    /// Nothing.
    Done,
}

/// Some patches on their way.
#[derive(Debug)]
struct Unit {
    rows: Range<usize>,
    block: usize,
    step: Step,
    lane: Option<usize>,
}

/// What pictures run in.
#[derive(Debug)]
pub(super) struct Tower {
    lanes: Vec<Lane>,
    element: Element,
    /// Rows of a chunk, and chunks of a unit.
    chunk: usize,
    chunks: usize,
    pipeline: Pipeline,
    units: Vec<Unit>,
    /// Of all patches, `[n, D]` and for `qkv` `[n, 3 D]`.
    pub(super) hidden: Vec<f32>,
    qkv: Vec<f32>,
    /// Of a unit.
    normed: Vec<f32>,
    rope: rope::Table,
    scratch: VisionScratch,
}

impl Tower {
    /// With several commands in flight units are a chunk long, else as long as the longest streams.
    pub(super) fn new(
        params: &VisionParams,
        gemms: &Projections,
        npu: &Npu,
        element: Element,
        in_flight: usize,
    ) -> Result<Tower, NpuError> {
        let chunks = if in_flight > 1 { 1 } else { usize::MAX };
        let all = [&gemms.patch, &gemms.qkv, &gemms.proj, &gemms.fc1, &gemms.fc2];
        Ok(Tower {
            lanes: vec![Lane::new(params, gemms, npu, element, chunks)?],
            element,
            chunk: all.iter().map(|gemm| gemm.record.m).min().unwrap_or(0),
            chunks,
            pipeline: Pipeline::new(in_flight),
            units: Vec::new(),
            hidden: Vec::new(),
            qkv: Vec::new(),
            normed: Vec::new(),
            rope: rope::Table::default(),
            scratch: VisionScratch::default(),
        })
    }

    /// Forgets what an error has left behind.
    fn clear(&mut self) {
        self.pipeline.clear();
        self.units.clear();
    }
}

/// One picture under way.
struct Flow<'a, 'r> {
    run: &'a mut Run<'r>,
    params: &'a VisionParams,
    gemms: &'a Projections,
    patch: &'a mut Weight,
    blocks: &'a mut [Block],
    tower: &'a mut Tower,
    patches: &'a [f32],
    shape: VisionShape,
}

impl Vision {
    /// Takes a picture through all blocks, into the tower's `hidden`. `progress` gets the steps that have been taken and
    /// those there are, and may break off; gives whether it did not.
    pub(super) fn blocks(
        &mut self,
        run: &mut Run<'_>,
        patches: &Patches,
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<bool, ModelError> {
        let result = self.units(run, patches, progress);
        if !matches!(result, Ok(true)) {
            // The first error is the one to tell.
            let _ = run.kernels.drain();
            run.recorder.clear();
            self.tower.clear();
        }
        result
    }

    fn units(
        &mut self,
        run: &mut Run<'_>,
        patches: &Patches,
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<bool, ModelError> {
        let Vision { params, gemms, patch, blocks, positions, tower, .. } = self;
        let (d, values) = (params.hidden, params.patch_values());
        let n = patches.data.len() / values;
        let t = Instant::now();
        rope::Vision::new(d / params.heads, params.rope_theta).fill(patches.grid, params.merge, &mut tower.rope);
        run.lap(Stage::Embedding, 0, t);
        let unit = tower.chunk.saturating_mul(tower.chunks).max(1);
        let total = n.div_ceil(unit);
        let begin =
            |i: usize| Unit { rows: i * unit..((i + 1) * unit).min(n), block: 0, step: Step::Begin, lane: None };
        tower.units.clear();
        tower.units.extend((0..total).map(begin));
        while tower.lanes.len() < LANES.min(total) {
            match Lane::new(params, gemms, run.kernels.npu(), tower.element, tower.chunks) {
                Ok(lane) => tower.lanes.push(lane),
                // Fewer lanes are slower, no more.
                Err(_) => break,
            }
        }
        tower.hidden.resize(n * d, 0.0);
        tower.qkv.resize(3 * n * d, 0.0);
        let steps = total * (1 + 4 * blocks.len());
        let shape = VisionShape { heads: params.heads, head_dim: d / params.heads };
        let mut flow = Flow { run, params, gemms, patch, blocks, tower, patches: &patches.data, shape };
        let mut done = 0;
        // Whether positions are added, and the block whose keys are taken in.
        let (mut placed, mut keys) = (false, None);
        while flow.tower.units.iter().any(|unit| unit.step != Step::Done) {
            flow.tower.pipeline.pump(flow.run)?;
            if !placed && flow.all_at(Step::Embedded, 0) {
                placed = true;
                let t = Instant::now();
                let hidden = &mut flow.tower.hidden;
                add_positions(positions, flow.params.pos_side, patches.grid, flow.params.merge, hidden);
                flow.run.lap(Stage::Embedding, 0, t);
            }
            let next = keys.map_or(0, |block| block + 1);
            if flow.all_at(Step::Attend, next) {
                keys = Some(next);
                let t = Instant::now();
                let Tower { rope, qkv, scratch, .. } = &mut *flow.tower;
                vision_keys(flow.run.pool, &flow.shape, rope, qkv, scratch);
                flow.run.lap(Stage::VisionAttention, next, t);
            }
            let Some(at) = flow.next(placed, keys) else {
                flow.tower.pipeline.wait(flow.run)?;
                continue;
            };
            flow.take(at)?;
            done += 1;
            if progress(done.min(steps), steps).is_break() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Flow<'_, '_> {
    fn all_at(&self, step: Step, block: usize) -> bool {
        self.tower.units.iter().all(|unit| unit.step == step && unit.block == block)
    }

    /// The unit whose step is to be taken next: what gives the NPU something to do comes before attention.
    fn next(&self, placed: bool, keys: Option<usize>) -> Option<usize> {
        let tower = &self.tower;
        let has_free_lane = self.free_lane().is_some();
        let ready = |unit: &Unit| match unit.step {
            Step::Begin => has_free_lane,
            Step::Embedded => placed && has_free_lane,
            Step::Attend => keys == Some(unit.block) && has_free_lane,
            Step::Done => false,
            _ => unit.lane.is_some_and(|lane| tower.pipeline.is_ready(self.run, lane)),
        };
        let units = tower.units.iter().enumerate().filter(|(_, unit)| ready(unit));
        units.min_by_key(|(at, unit)| (unit.step == Step::Attend, unit.block, unit.step, *at)).map(|(at, _)| at)
    }

    fn free_lane(&self) -> Option<usize> {
        (0..self.tower.lanes.len()).find(|&lane| self.tower.units.iter().all(|unit| unit.lane != Some(lane)))
    }

    /// Takes a unit's step, which ends with commands or with its lane given up.
    fn take(&mut self, at: usize) -> Result<(), ModelError> {
        let Unit { step, block, lane, ref rows } = self.tower.units[at];
        let (rows, d, pool) = (rows.clone(), self.params.hidden, self.run.pool);
        let Some(lane) = lane.or_else(|| self.free_lane()) else { return Ok(()) };
        if self.tower.units[at].lane.is_some() {
            self.tower.pipeline.settle(self.run, lane)?;
        }
        self.tower.units[at].lane = Some(lane);
        let part = rows.start * d..rows.end * d;
        let next = match step {
            Step::Begin => {
                let values = self.params.patch_values();
                let t = Instant::now();
                let patches = &self.patches[rows.start * values..rows.end * values];
                self.tower.lanes[lane].patch_a.write_rows(pool, self.gemms.patch.record.lda, values, patches)?;
                self.run.lap(Stage::Write, block, t);
                self.commands(lane, Step::Patch, block, rows.len())?;
                Step::Patch
            }
            Step::Patch => {
                let Tower { lanes, hidden, .. } = &mut *self.tower;
                let t = Instant::now();
                let c = std::slice::from_ref(&lanes[lane].c);
                let results = self.patch.results(&self.gemms.patch, c, d, rows.len())?;
                pool.run_chunks(&mut hidden[part], d, &|r, out| results.row(r, out));
                self.run.lap(Stage::Read, block, t);
                Step::Embedded
            }
            Step::Embedded => self.project(lane, block, rows, false)?,
            Step::Qkv => {
                let Tower { lanes, qkv, .. } = &mut *self.tower;
                let t = Instant::now();
                let c = std::slice::from_ref(&lanes[lane].qkv_c);
                let results = self.blocks[block].qkv.results(&self.gemms.qkv, c, 3 * d, rows.len())?;
                pool.run_chunks(&mut qkv[3 * part.start..3 * part.end], 3 * d, &|r, out| results.row(r, out));
                self.run.lap(Stage::Read, block, t);
                Step::Attend
            }
            Step::Attend => {
                let Tower { lanes, qkv, rope, scratch, .. } = &mut *self.tower;
                let t = Instant::now();
                let own = &qkv[3 * part.start..3 * part.end];
                lanes[lane].a.fill_rows(self.gemms.proj.record.lda, d, rows.len(), |out| {
                    vision_rows(pool, &self.shape, rope, (own, rows.start), out, scratch);
                })?;
                self.run.lap(Stage::VisionAttention, block, t);
                self.commands(lane, Step::Proj, block, rows.len())?;
                Step::Proj
            }
            Step::Proj => {
                let Tower { lanes, hidden, normed, .. } = &mut *self.tower;
                let (layer, Lane { a, c, .. }) = (&self.blocks[block], &lanes[lane]);
                let t = Instant::now();
                let results = layer.proj.results(&self.gemms.proj, std::slice::from_ref(c), d, rows.len())?;
                normed.resize(part.len(), 0.0);
                a.make_rows(pool, self.gemms.fc1.record.lda, d, (&mut hidden[part], normed), &|r, sum, out| {
                    results.row(r, out);
                    add(sum, out);
                    layer.ln2.row(sum, out);
                })?;
                drop(results);
                self.run.lap(Stage::Norm, block, t);
                self.commands(lane, Step::Fc1, block, rows.len())?;
                Step::Fc1
            }
            Step::Fc1 => {
                // Without factors the NPU has done the GELU.
                if let Some(factors) = self.blocks[block].fc1.factors() {
                    let (t, width) = (Instant::now(), self.params.intermediate);
                    let (c, stride) = (&self.tower.lanes[lane].fc1_c, self.gemms.fc1.record.c_stride);
                    c.change_rows(pool, stride, width, rows.len(), &|row| {
                        w8::scale_columns(row, &factors[..width]);
                        act::gelu_tanh_in_place(row);
                    })?;
                    self.run.lap(Stage::Activation, block, t);
                }
                self.commands(lane, Step::Fc2, block, rows.len())?;
                Step::Fc2
            }
            Step::Fc2 => {
                if block + 1 < self.blocks.len() {
                    self.tower.units[at].block += 1;
                }
                self.project(lane, block + 1, rows, true)?
            }
            Step::Done => Step::Done,
        };
        let unit = &mut self.tower.units[at];
        unit.step = next;
        if matches!(next, Step::Embedded | Step::Attend | Step::Done) {
            unit.lane = None;
        }
        Ok(())
    }

    /// What comes in front of a block, in one pass: the residual of the one before, if there `is_one`, then norm and
    /// `qkv`, unless there is no such block.
    fn project(&mut self, lane: usize, block: usize, rows: Range<usize>, is_one: bool) -> Result<Step, ModelError> {
        let (d, pool) = (self.params.hidden, self.run.pool);
        let Tower { lanes, hidden, normed, .. } = &mut *self.tower;
        let Lane { a, fc2_c, .. } = &lanes[lane];
        let hidden = &mut hidden[rows.start * d..rows.end * d];
        let t = Instant::now();
        normed.resize(hidden.len(), 0.0);
        let before = block.checked_sub(1).filter(|_| is_one).and_then(|before| self.blocks.get(before));
        let results = before.map(|before| before.fc2.results(&self.gemms.fc2, fc2_c, d, rows.len())).transpose()?;
        let residual = |r: usize, sum: &mut [f32], out: &mut [f32]| {
            if let Some(results) = &results {
                results.row(r, out);
                add(sum, out);
            }
        };
        let layer = self.blocks.get(block);
        match layer {
            Some(layer) => a.make_rows(pool, self.gemms.qkv.record.lda, d, (hidden, normed), &|r, sum, out| {
                residual(r, sum, out);
                layer.ln1.row(sum, out);
            })?,
            None => pool.run_chunks2((hidden, d), (normed, d), &residual),
        }
        let next = layer.map_or(Step::Done, |_| Step::Qkv);
        drop(results);
        self.run.lap(Stage::Norm, block, t);
        if next == Step::Qkv {
            self.commands(lane, next, block, rows.len())?;
        }
        Ok(next)
    }

    /// Queues the commands of a step for the first `n` rows of a lane: all K slices at once, slice s from column s * K of
    /// A on into its own C.
    fn commands(&mut self, lane: usize, step: Step, block: usize, n: usize) -> Result<(), ModelError> {
        let Flow { run, gemms, patch, blocks, tower, .. } = self;
        let Tower { lanes, pipeline, .. } = &mut **tower;
        let Lane { patch_a, a, c, qkv_c, fc1_c, fc2_c } = &lanes[lane];
        let one = std::slice::from_ref;
        let (weight, gemm, a, c, projection): (&mut Weight, &Gemm, _, _, _) = match (step, blocks.get_mut(block)) {
            (Step::Patch, _) => (patch, &gemms.patch, patch_a, one(c), Projection::Patch),
            (Step::Qkv, Some(layer)) => (&mut layer.qkv, &gemms.qkv, a, one(qkv_c), Projection::Qkv),
            (Step::Proj, Some(layer)) => (&mut layer.proj, &gemms.proj, a, one(c), Projection::Proj),
            (Step::Fc1, Some(layer)) => (&mut layer.fc1, &gemms.fc1, a, one(fc1_c), Projection::Fc1),
            (Step::Fc2, Some(layer)) => (&mut layer.fc2, &gemms.fc2, fc1_c, &fc2_c[..], Projection::Fc2),
            _ => return Ok(()),
        };
        for (s, (slice, c)) in weight.slices.iter_mut().zip(c).enumerate() {
            let command = slice.gemm(run.kernels, gemm, (lane, n), (a, s * gemm.record.k), c)?;
            pipeline.queue(lane, command, projection, block);
        }
        pipeline.pump(run)
    }
}

fn add(x: &mut [f32], y: &[f32]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}
