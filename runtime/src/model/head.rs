//! Logits of many rows at once: the head as a matrix product.
//!
//! The head's own kernel multiplies one vector. The input projections are products of the same inner length, and weights
//! of theirs differ from the head's in the order of their units alone (8 outputs x 128 inputs): a copy of the head in
//! that order, in pieces as wide as such a projection, goes through the kernels of a prompt. It takes as much memory as
//! the head does, so it is made when it is first wanted.

use std::ops::Range;
use std::time::Instant;

use super::error::ModelError;
use super::kernels::Linear;
use super::prefill::{Prefill, norm_rows};
use super::profile::{Projection, Stage};
use super::run::{Run, Sent};
use super::shared::Shared;
use super::text::Text;
use crate::bundle::{LayerKind, TextParams};
use crate::npu::{Npu, Weights};

/// Rows of a unit, its inputs, and its groups to a column block.
const UNIT: (usize, usize, usize) = (8, 128, 8);

/// The head in pieces that a prompt's kernel takes.
#[derive(Debug)]
pub(super) struct WideHead {
    /// Whose input projection multiplies.
    kind: LayerKind,
    /// Outputs of a piece.
    width: usize,
    pieces: Vec<Linear>,
    normed: Vec<f32>,
    logits: Vec<f32>,
}

/// A part of the logits of some rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece<'a> {
    /// The token of its first column.
    pub(super) first: usize,
    /// Columns.
    pub(super) width: usize,
    /// `[rows, width]`.
    pub(super) logits: &'a [f32],
}

impl WideHead {
    /// Copies the head.
    fn new(params: &TextParams, shared: &Shared, head: &[Linear], npu: &Npu) -> Result<WideHead, ModelError> {
        let (rows, inputs, groups) = UNIT;
        let d = params.hidden;
        // The least padding; of equals the fewest commands.
        let usable = [LayerKind::Linear, LayerKind::Attention].into_iter().filter_map(|kind| {
            let record = &shared.input(kind).ok()?.gemm.record;
            let fits = record.k == d && !record.bias && record.columns() == record.n;
            let fits = fits && record.n.is_multiple_of(rows * groups) && d.is_multiple_of(inputs);
            fits.then_some((kind, record.n))
        });
        let (kind, width) = usable
            .min_by_key(|(_, width)| (params.vocab.next_multiple_of(*width), params.vocab.div_ceil(*width)))
            .ok_or_else(|| ModelError::Shape("no input projection can multiply by the head".into()))?;
        let parts = head.iter().map(|part| part.weights().read()).collect::<Result<Vec<_>, _>>()?;
        let (slices, part_groups) = (d / inputs, params.head_rows / rows);
        let unit = params.head_rows.checked_mul(d).map_or(0, |n| n / (rows * inputs));
        let unit = parts.first().map_or(0, |part| part.len()).checked_div(unit).unwrap_or(0);
        if unit == 0 || parts.iter().any(|part| part.len() < part_groups * slices * unit) {
            return Err(ModelError::Shape("the parts of the head are too short".into()));
        }
        let piece = |first: usize| {
            Weights::new(npu.device(), width * d / (rows * inputs) * unit, |out| -> Result<(), ModelError> {
                let places = (0..width / (rows * groups)).flat_map(|block| {
                    (0..slices).flat_map(move |slice| (0..groups).map(move |group| (block * groups + group, slice)))
                });
                for ((group, slice), out) in places.zip(out.chunks_exact_mut(unit)) {
                    let group = first / rows + group;
                    match parts.get(group / part_groups) {
                        Some(part) => {
                            let at = (group % part_groups * slices + slice) * unit;
                            out.copy_from_slice(&part[at..at + unit]);
                        }
                        // Past the vocabulary.
                        None => out.fill(0),
                    }
                }
                Ok(())
            })
        };
        let pieces = (0..params.vocab).step_by(width).map(|first| Ok(Linear::new(piece(first)?)));
        let pieces = pieces.collect::<Result<Vec<_>, ModelError>>()?;
        Ok(WideHead { kind, width, pieces, normed: Vec::new(), logits: Vec::new() })
    }

    /// Bytes on the device.
    pub(super) fn bytes(&self) -> usize {
        let size = |piece: &Linear| piece.weights().read().map_or(0, |bytes| bytes.len());
        self.pieces.iter().map(size).sum()
    }

    /// Logits of `rows` (`[n, D]`, up to a chunk, not normed), piece by piece.
    fn multiply(
        &mut self,
        run: &mut Run<'_>,
        text: &mut Around<'_>,
        rows: &[f32],
        each: &mut dyn FnMut(&Run<'_>, Piece<'_>),
    ) -> Result<(), ModelError> {
        let Around { params, ln_f, shared, prefill } = text;
        let (d, pool, layer) = (params.hidden, run.pool, params.layers.len());
        let n = rows.len() / d;
        let mut t = Instant::now();
        norm_rows(pool, rows, ln_f, params.eps, &mut self.normed);
        t = run.lap(Stage::Norm, layer, t);
        let gemm = &shared.input(self.kind)?.gemm;
        let lanes: Vec<_> = (0..run.kernels.in_flight().min(2)).map_while(|i| prefill.lane(i)).collect();
        let no_lane = || ModelError::Shape("there is no lane for a prompt".into());
        let a = &lanes.first().ok_or_else(no_lane)?.a;
        a.write_rows(pool, gemm.record.lda, d, &self.normed)?;
        run.lap(Stage::Write, layer, t);
        self.logits.resize(n * self.width, 0.0);
        // While the logits of a piece are read, the next one is multiplied into the other lane's buffer.
        let mut sent: Vec<Sent> = Vec::with_capacity(self.pieces.len());
        for piece in 0..self.pieces.len() {
            while sent.len() < self.pieces.len().min(piece + lanes.len()) {
                let (next, lane) = (sent.len(), sent.len() % lanes.len());
                let c = lanes[lane].input_c(self.kind)?;
                let command = self.pieces[next].gemm(run.kernels, gemm, (lane, n), (a, 0), c)?;
                sent.push(run.submit(command, Projection::Head, next)?);
            }
            run.wait(&sent[piece])?;
            let first = piece * self.width;
            let width = self.width.min(params.vocab - first);
            t = Instant::now();
            let logits = &mut self.logits[..n * width];
            lanes[piece % lanes.len()].input_c(self.kind)?.read_rows(pool, gemm.record.c_stride, width, logits)?;
            each(run, Piece { first, width, logits });
            run.lap(Stage::Read, layer, t);
        }
        Ok(())
    }
}

/// What the head needs of the rest.
struct Around<'a> {
    params: &'a TextParams,
    ln_f: &'a [f32],
    shared: &'a Shared,
    prefill: &'a Prefill,
}

impl Text {
    /// Makes the copy of the head, if it is not there.
    pub(super) fn widen_head(&mut self, npu: &Npu) -> Result<&WideHead, ModelError> {
        let wide = match self.wide.take() {
            Some(wide) => wide,
            None => WideHead::new(&self.params, &self.shared, &self.head, npu)?,
        };
        Ok(self.wide.insert(wide))
    }

    /// Logits of kept rows, a chunk at a time and piece by piece: `each` gets which rows a piece is of.
    pub(super) fn logits_of_rows(
        &mut self,
        run: &mut Run<'_>,
        rows: Range<usize>,
        each: &mut dyn FnMut(&Run<'_>, Range<usize>, Piece<'_>),
    ) -> Result<(), ModelError> {
        self.widen_head(run.kernels.npu())?;
        self.prefill.widen(run.kernels.in_flight().min(2), &self.shared, &self.params, run.kernels.npu());
        let Text { params, ln_f, shared, prefill, wide, .. } = self;
        let Some(wide) = wide else { return Ok(()) };
        let (d, chunk) = (params.hidden, prefill.chunk().max(1));
        for first in rows.clone().step_by(chunk) {
            let range = first..(first + chunk).min(rows.end);
            let hidden = &prefill.kept.outputs[range.start * d..range.end * d];
            let mut around = Around { params, ln_f, shared, prefill };
            let result = wide.multiply(run, &mut around, hidden, &mut |run, piece| each(run, range.clone(), piece));
            if result.is_err() {
                // The first error is the one to tell.
                let _ = run.kernels.drain();
                run.recorder.clear();
            }
            result?;
        }
        Ok(())
    }
}
