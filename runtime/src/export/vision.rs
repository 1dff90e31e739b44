//! The tensors of the vision tower.
//!
//! Every linear of the tower has a bias, which rides in the bias chunks of the weight stream. With eight-bit weights the
//! host multiplies column n by a factor f after the device has added the bias, so what is stored is bias / f. Of a
//! weight in K slices only slice 0 carries the bias, the others carry zeros.
//!
//! Widths that are no multiple of the kernels' tiles are padded with zero weights: inputs to a multiple of 512, outputs
//! to a multiple of 64 (with factor one and bias zero).

use std::rc::Rc;
use std::sync::{Mutex, PoisonError};

use host_ops::pack::BStream;
use host_ops::pool::Pool;
use host_ops::w8;

use super::ExportError;
use super::quantisation::Meter;
use super::safetensors::{Source, Tensors};
use super::writer::{Job, RowFn, pack_metered, read_row};
use crate::bundle::{Manifest, VisionParams, WeightFormat};

/// The jobs of the tower.
pub(super) fn jobs<'a>(
    manifest: &'a Manifest,
    vision: &'a VisionParams,
    temporal: usize,
    tensors: &'a Tensors,
) -> Result<Vec<Job<'a>>, ExportError> {
    let prefix = ["model.visual.", "visual."];
    let prefix = prefix.into_iter().find(|prefix| tensors.has(&format!("{prefix}patch_embed.proj.weight")));
    let prefix = prefix.ok_or_else(|| {
        ExportError(
            "the checkpoint has no tensor `visual.patch_embed.proj.weight`; export with `--vision none`".to_owned(),
        )
    })?;
    let builder = Builder { manifest, vision, tensors, prefix };
    let (d, i) = (vision.hidden, vision.intermediate);
    let mut jobs = Vec::new();
    builder.patch(temporal, &mut jobs)?;
    let positions = vision.pos_side * vision.pos_side;
    builder.plain("vis.pos", "pos_embed.weight", &[positions, d], &mut jobs)?;
    for block in 0..vision.depth {
        let ours = |part: &str| format!("vis.b{block}.{part}");
        let theirs = |part: &str| format!("blocks.{block}.{part}");
        for (norm, number) in [("norm1", 1), ("norm2", 2)] {
            builder.plain(&ours(&format!("ln{number}_w")), &theirs(&format!("{norm}.weight")), &[d], &mut jobs)?;
            builder.plain(&ours(&format!("ln{number}_b")), &theirs(&format!("{norm}.bias")), &[d], &mut jobs)?;
        }
        builder.linear(&ours("qkv"), "v_qkv", &theirs("attn.qkv"), [3 * d, d], None, &mut jobs)?;
        builder.linear(&ours("proj"), "v_proj", &theirs("attn.proj"), [d, d], None, &mut jobs)?;
        builder.linear(&ours("fc1"), "v_fc1", &theirs("mlp.linear_fc1"), [i, d], None, &mut jobs)?;
        let slices = Some(vision.fc2_slices);
        builder.linear(&ours("fc2"), "v_fc2", &theirs("mlp.linear_fc2"), [d, i], slices, &mut jobs)?;
    }
    builder.plain("vis.m_ln_w", "merger.norm.weight", &[d], &mut jobs)?;
    builder.plain("vis.m_ln_b", "merger.norm.bias", &[d], &mut jobs)?;
    let (merged, slices) = (vision.merged() * d, Some(vision.merger_slices));
    builder.linear("vis.m1", "v_m1", "merger.linear_fc1", [merged, merged], slices, &mut jobs)?;
    builder.linear("vis.m2", "v_m2", "merger.linear_fc2", [vision.out, merged], slices, &mut jobs)?;
    Ok(jobs)
}

struct Builder<'a> {
    manifest: &'a Manifest,
    vision: &'a VisionParams,
    tensors: &'a Tensors,
    prefix: &'static str,
}

/// A linear of the tower, by rows.
struct Linear<'a> {
    rows: RowFn<'a>,
    bias: &'a Source,
    /// Outputs and inputs that mean something.
    outputs: usize,
    inputs: usize,
    /// Outputs of the kernel.
    columns: usize,
    /// Whether rows become eight-bit values times a factor.
    w8: bool,
}

impl Linear<'_> {
    /// Row n as the stream holds it, and its factor. `row` is as long as all slices together; `wanted`, as long or empty,
    /// gets the row as the checkpoint has it.
    fn row(&self, n: usize, row: &mut [f32], wanted: &mut [f32]) -> std::io::Result<f32> {
        if n >= self.outputs {
            row.fill(0.0);
            return Ok(1.0);
        }
        let (values, padding) = row.split_at_mut(self.inputs.min(row.len()));
        padding.fill(0.0);
        (self.rows)(n, values)?;
        wanted.iter_mut().zip(&*values).for_each(|(wanted, value)| *wanted = *value);
        Ok(if self.w8 { w8::quantise(values) } else { 1.0 })
    }

    /// The factors of all columns.
    fn factors(&self, pool: &Pool) -> Result<Vec<f32>, ExportError> {
        let mut factors = vec![1.0; self.columns];
        if !self.w8 {
            return Ok(factors);
        }
        let first = Mutex::new(None);
        pool.run_chunks(&mut factors[..self.outputs], 16, &|chunk, factors| {
            let mut row = vec![0.0; self.inputs];
            for (index, factor) in factors.iter_mut().enumerate() {
                match self.row(chunk * 16 + index, &mut row, &mut []) {
                    Ok(found) => *factor = found,
                    Err(error) => {
                        first.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                    }
                }
            }
        });
        match first.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(ExportError(format!("cannot read the weights: {error}"))),
            None => Ok(factors),
        }
    }

    /// The biases as the stream carries them.
    fn stored_bias(&self, pool: &Pool) -> Result<Vec<f32>, ExportError> {
        let mut bias = self.bias.f32s()?;
        bias.resize(self.columns, 0.0);
        for (bias, factor) in bias.iter_mut().zip(self.factors(pool)?) {
            *bias /= factor;
        }
        Ok(bias)
    }
}

impl<'a> Builder<'a> {
    fn source(&self, name: &str, shape: &[usize]) -> Result<&'a Source, ExportError> {
        self.tensors.shaped(&format!("{}{name}", self.prefix), shape)
    }

    fn plain(&self, ours: &str, theirs: &str, shape: &[usize], jobs: &mut Vec<Job<'a>>) -> Result<(), ExportError> {
        let source = self.source(theirs, shape)?;
        jobs.push(Job::f32s(ours.to_owned(), shape, move |_| source.f32s()));
        Ok(())
    }

    /// The patch projection: its temporal kernels are summed, an image being equal frames.
    fn patch(&self, temporal: usize, jobs: &mut Vec<Job<'a>>) -> Result<(), ExportError> {
        let (d, side, values) = (self.vision.hidden, self.vision.patch, self.vision.patch_values());
        let source = self.source("patch_embed.proj.weight", &[d, 3, temporal, side, side])?;
        let area = side * side;
        let rows: RowFn<'a> = Box::new(move |n, out| {
            let mut row = vec![0.0; values * temporal];
            source.read(n * row.len(), &mut row)?;
            for (channel, out) in out.chunks_mut(area).enumerate() {
                let frames = &row[channel * temporal * area..][..temporal * area];
                for (at, value) in out.iter_mut().enumerate() {
                    *value = frames[at..].iter().step_by(area).sum();
                }
            }
            Ok(())
        });
        let bias = self.source("patch_embed.proj.bias", &[d])?;
        self.weight("vis.patch", "v_patch", rows, bias, [d, values], None, jobs)
    }

    /// A linear whose weight is `[outputs, inputs]`.
    fn linear(
        &self,
        name: &str,
        key: &str,
        theirs: &str,
        [outputs, inputs]: [usize; 2],
        slices: Option<usize>,
        jobs: &mut Vec<Job<'a>>,
    ) -> Result<(), ExportError> {
        let weight = self.source(&format!("{theirs}.weight"), &[outputs, inputs])?;
        let bias = self.source(&format!("{theirs}.bias"), &[outputs])?;
        let rows: RowFn<'a> = Box::new(move |n, out| read_row(weight, inputs, n, 0, out));
        self.weight(name, key, rows, bias, [outputs, inputs], slices, jobs)
    }

    #[expect(clippy::too_many_arguments, reason = "one call states one weight")]
    fn weight(
        &self,
        name: &str,
        key: &str,
        rows: RowFn<'a>,
        bias: &'a Source,
        [outputs, inputs]: [usize; 2],
        slices: Option<usize>,
        jobs: &mut Vec<Job<'a>>,
    ) -> Result<(), ExportError> {
        let gemm = self.manifest.gemms.get(key).ok_or_else(|| ExportError(format!("there is no `gemm {key}`")))?;
        let layout = BStream::new(gemm.format.packing(), gemm.k, gemm.n, gemm.bias);
        let layout = layout.map_err(|error| ExportError(format!("`gemm {key}`: {error}")))?;
        let w8 = gemm.format == WeightFormat::Bfp16;
        let linear = Rc::new(Linear { rows, bias, outputs, inputs, columns: gemm.n, w8 });
        for slice in 0..slices.unwrap_or(1) {
            let ours = if slices.is_some() { format!("{name}.{slice}") } else { name.to_owned() };
            let linear = Rc::clone(&linear);
            let fill = Box::new(move |pool: &Pool, out: &mut [u8]| {
                let bias = if slice == 0 { linear.stored_bias(pool)? } else { vec![0.0; linear.columns] };
                let (from, k, weight) = (slice * layout.k(), layout.k(), &*linear);
                let rows = &WeightRows { weight, from, k };
                let bias = layout.has_bias().then_some(&bias[..]);
                pack_metered(pool, &layout, &|n, out, meter| rows.read(n, out, meter), bias, out)
            });
            jobs.push(Job::packed(ours, gemm.b_bytes, fill));
        }
        jobs.push(Job::f32s(format!("{name}.f"), &[gemm.n], move |pool| linear.factors(pool)));
        Ok(())
    }
}

/// One K slice of a linear.
struct WeightRows<'w, 'a> {
    weight: &'w Linear<'a>,
    from: usize,
    k: usize,
}

impl WeightRows<'_, '_> {
    fn read(&self, n: usize, out: &mut [f32], meter: &Meter) -> std::io::Result<()> {
        // The factor belongs to the whole row, whichever slice of it is wanted.
        let mut row = vec![0.0; self.weight.inputs.max(self.from + self.k)];
        let mut wanted = row.clone();
        let factor = self.weight.row(n, &mut row, &mut wanted)?;
        let slice = self.from..self.from + self.k;
        out.copy_from_slice(&row[slice.clone()]);
        // Blocks hold eight-bit values exactly.
        meter.note(n, &wanted[slice], out.iter().map(|value| value * factor));
        Ok(())
    }
}
