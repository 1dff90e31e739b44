//! The vision tower: patches of one picture to rows that stand for its tokens.
//!
//! Every projection is a GEMM. Where a weight has a factor a column (`.f`, 8-bit weights), the host multiplies by it
//! after reading, so the GELU behind `fc1` is the host's too; without factors the NPU has done it already.

use std::ops::ControlFlow;
use std::time::Instant;

use host_ops::attention::VisionShape;
use host_ops::image::{Config, Patches};
use host_ops::{act, norm, w8};

use super::error::ModelError;
use super::kernels::{Gemm, Linear, Table, Uploader, in_one_context};
use super::profile::{Projection, Stage};
use super::run::Run;
use super::tower::Tower;
use crate::bundle::{VisionParams, WeightFormat};
use crate::npu::{Buffer, Element, NpuError, Source};

/// Layer norms of the tower use this, whatever the configuration says.
const EPS: f32 = 1e-6;

/// K slices of one weight, and its factors.
#[derive(Debug)]
pub(super) struct Weight {
    pub(super) slices: Vec<Linear>,
    factors: Option<Vec<f32>>,
}

impl Weight {
    fn load(up: &mut Uploader<'_>, name: &str, slices: Option<usize>) -> Result<Weight, ModelError> {
        let linears = match slices {
            None => vec![up.linear(name)?],
            Some(n) => (0..n).map(|s| up.linear(&format!("{name}.{s}"))).collect::<Result<_, _>>()?,
        };
        let factors = format!("{name}.f");
        let factors = if up.bundle.has_tensor(&factors) { Some(up.f32s(&factors)?) } else { None };
        Ok(Weight { slices: linears, factors })
    }

    /// The factors that the host multiplies its results by, if it does.
    pub(super) fn factors(&self) -> Option<&[f32]> {
        self.factors.as_deref()
    }

    /// What the slices have written, to be gathered row by row: `n` rows of `width` columns.
    pub(super) fn results<'a>(
        &'a self,
        gemm: &Gemm,
        c: &'a [Buffer],
        width: usize,
        n: usize,
    ) -> Result<Results<'a>, NpuError> {
        let slices = c.iter().map(|c| c.source(gemm.record.c_stride, width, n)).collect::<Result<_, _>>()?;
        Ok(Results { slices, factors: self.factors() })
    }

    /// Runs all K slices for n rows at once, slice s from column s * K of A into its own C, and waits for them.
    fn run(
        &mut self,
        run: &mut Run<'_>,
        projection: Projection,
        gemm: &Gemm,
        n: usize,
        a: &Buffer,
        c: &[Buffer],
    ) -> Result<(), ModelError> {
        let mut last = None;
        for (s, (slice, c)) in self.slices.iter_mut().zip(c).enumerate() {
            let command = slice.gemm(run.kernels, gemm, (0, n), (a, s * gemm.record.k), c)?;
            last = Some(run.submit(command, projection, 0)?);
        }
        last.map_or(Ok(()), |last| run.wait(&last))?;
        Ok(())
    }
}

/// Results of a weight's slices.
#[derive(Debug)]
pub(super) struct Results<'a> {
    slices: Vec<Source<'a>>,
    factors: Option<&'a [f32]>,
}

impl Results<'_> {
    /// The sum of the slices' rows, times the factors.
    pub(super) fn row(&self, row: usize, out: &mut [f32]) {
        if let Some((first, others)) = self.slices.split_first() {
            first.rows().read(row, 0..out.len(), out);
            others.iter().for_each(|slice| slice.add(row, out));
        }
        if let Some(factors) = self.factors {
            w8::scale_columns(out, &factors[..out.len()]);
        }
    }
}

/// A layer norm.
#[derive(Debug)]
pub(super) struct Norm {
    weight: Vec<f32>,
    bias: Vec<f32>,
}

impl Norm {
    fn load(up: &Uploader<'_>, name: &str) -> Result<Norm, ModelError> {
        Ok(Norm { weight: up.f32s(&format!("{name}_w"))?, bias: up.f32s(&format!("{name}_b"))? })
    }

    /// Of one row; `out`: as long as `x`.
    pub(super) fn row(&self, x: &[f32], out: &mut [f32]) {
        norm::layer(x, &self.weight, &self.bias, EPS, out);
    }
}

/// A block of the tower.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) ln1: Norm,
    pub(super) ln2: Norm,
    pub(super) qkv: Weight,
    pub(super) proj: Weight,
    pub(super) fc1: Weight,
    pub(super) fc2: Weight,
}

/// The kernels.
#[derive(Clone, Debug)]
pub(super) struct Projections {
    pub(super) patch: Gemm,
    pub(super) qkv: Gemm,
    pub(super) proj: Gemm,
    pub(super) fc1: Gemm,
    pub(super) fc2: Gemm,
    pub(super) m1: Gemm,
    pub(super) m2: Gemm,
}

impl Projections {
    pub(super) fn of(table: &Table) -> Result<Projections, ModelError> {
        Ok(Projections {
            patch: table.gemm("v_patch")?,
            qkv: table.gemm("v_qkv")?,
            proj: table.gemm("v_proj")?,
            fc1: table.gemm("v_fc1")?,
            fc2: table.gemm("v_fc2")?,
            m1: table.gemm("v_m1")?,
            m2: table.gemm("v_m2")?,
        })
    }
}

/// Buffers of the merger.
#[derive(Debug)]
struct Merger {
    /// A of both linears.
    a: Buffer,
    m1_c: Vec<Buffer>,
    m2_c: Vec<Buffer>,
    /// A of either linear, in f32.
    rows: Vec<f32>,
}

/// The tower on the device.
#[derive(Debug)]
pub(super) struct Vision {
    pub(super) params: VisionParams,
    pub(super) patch: Weight,
    pub(super) positions: Vec<f32>,
    pub(super) blocks: Vec<Block>,
    merger_norm: Norm,
    m1: Weight,
    m2: Weight,
    pub(super) gemms: Projections,
    pub(super) tower: Tower,
    merger: Merger,
}

impl Vision {
    /// Uploads the weights, then makes the buffers.
    pub(super) fn load(params: &VisionParams, gemms: Projections, up: &mut Uploader<'_>) -> Result<Vision, ModelError> {
        verify(params, &gemms, up.bundle.manifest.text.hidden)?;
        let patch = Weight::load(up, "vis.patch", None)?;
        let blocks = (0..params.depth)
            .map(|i| {
                let name = |what: &str| format!("vis.b{i}.{what}");
                Ok(Block {
                    ln1: Norm::load(up, &name("ln1"))?,
                    ln2: Norm::load(up, &name("ln2"))?,
                    qkv: Weight::load(up, &name("qkv"), None)?,
                    proj: Weight::load(up, &name("proj"), None)?,
                    fc1: Weight::load(up, &name("fc1"), None)?,
                    fc2: Weight::load(up, &name("fc2"), Some(params.fc2_slices))?,
                })
            })
            .collect::<Result<Vec<_>, ModelError>>()?;
        let m1 = Weight::load(up, "vis.m1", Some(params.merger_slices))?;
        let m2 = Weight::load(up, "vis.m2", Some(params.merger_slices))?;
        up.finish()?;
        let element = match params.format {
            WeightFormat::F32 => Element::F32,
            _ => Element::Bf16,
        };
        let tower = Tower::new(params, &gemms, up.kernels.npu(), element, up.kernels.in_flight())?;
        let merger = Merger::new(params, &gemms, element, up)?;
        Ok(Vision {
            patch,
            positions: up.f32s("vis.pos")?,
            blocks,
            merger_norm: Norm::load(up, "vis.m_ln")?,
            m1,
            m2,
            gemms,
            tower,
            merger,
            params: params.clone(),
        })
    }

    /// The rows of one picture: `[grid rows * grid columns / merge^2, out]`. `progress` gets the steps that have been
    /// taken and those there are; `None` if it broke off.
    pub(super) fn encode(
        &mut self,
        run: &mut Run<'_>,
        patches: &Patches,
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<Option<Vec<f32>>, ModelError> {
        let (n, merged) = (patches.data.len() / self.params.patch_values(), self.params.merged());
        let max = self.gemms.patch.max_rows().min(self.gemms.m1.max_rows() * merged).min(self.params.max_patches);
        if n > max {
            return Err(ModelError::TooManyPatches { patches: n, max });
        }
        if !self.blocks(run, patches, progress)? {
            return Ok(None);
        }
        let Vision { params, merger_norm, m1, m2, gemms, tower, merger, .. } = self;
        let Merger { a, m1_c, m2_c, rows } = merger;
        let (pool, depth) = (run.pool, self.blocks.len());
        // A group of merge^2 patches is one row, since patches come block by block.
        let (tokens, width) = (n / merged, params.hidden * merged);
        let mut t = Instant::now();
        rows.resize(tokens * width, 0.0);
        a.make_rows(pool, gemms.m1.record.lda, width, (&mut tower.hidden[..tokens * width], rows), &|_, x, out| {
            let patches = x.chunks_exact(params.hidden).zip(out.chunks_exact_mut(params.hidden));
            patches.for_each(|(x, out)| merger_norm.row(x, out));
        })?;
        run.lap(Stage::Norm, depth, t);
        m1.run(run, Projection::Merger, &gemms.m1, tokens, a, m1_c)?;
        t = Instant::now();
        let results = m1.results(&gemms.m1, m1_c, width, tokens)?;
        pool.run_chunks(rows, width, &|r, out| {
            results.row(r, out);
            act::gelu_erf_in_place(out);
        });
        a.write_rows(pool, gemms.m2.record.lda, width, rows)?;
        drop(results);
        run.lap(Stage::Activation, depth, t);
        m2.run(run, Projection::Merger, &gemms.m2, tokens, a, m2_c)?;
        t = Instant::now();
        let mut out = vec![0.0; tokens * params.out];
        let results = m2.results(&gemms.m2, m2_c, params.out, tokens)?;
        pool.run_chunks(&mut out, params.out, &|r, out| results.row(r, out));
        run.lap(Stage::Read, depth, t);
        Ok(Some(out))
    }
}

/// What the host does to a picture before the tower.
pub(super) fn config(params: &VisionParams) -> Config {
    Config { patch: params.patch, merge: params.merge, min_pixels: params.min_pixels, max_pixels: params.max_pixels }
}

impl Merger {
    fn new(
        params: &VisionParams,
        gemms: &Projections,
        element: Element,
        up: &Uploader<'_>,
    ) -> Result<Merger, ModelError> {
        let buffer = |len: usize| Buffer::new(up.kernels.npu().device(), element, len);
        let n = params.merger_slices;
        let slices = |gemm: &Gemm| (0..n).map(|_| buffer(gemm.c_elems(usize::MAX))).collect::<Result<Vec<_>, _>>();
        // A view that starts at a column runs past the last row.
        let sliced = |gemm: &Gemm| n.saturating_sub(1) * gemm.record.k + gemm.a_elems(usize::MAX);
        Ok(Merger {
            a: buffer(sliced(&gemms.m1).max(sliced(&gemms.m2)))?,
            m1_c: slices(&gemms.m1)?,
            m2_c: slices(&gemms.m2)?,
            rows: Vec::new(),
        })
    }
}

/// What the bundle's own checks cannot know: that the records fit the way they are used here.
fn verify(params: &VisionParams, gemms: &Projections, text: usize) -> Result<(), ModelError> {
    let wrong = |what: String| Err(ModelError::Shape(what));
    let heads = VisionShape { heads: params.heads, head_dim: params.hidden.checked_div(params.heads).unwrap_or(0) };
    if !heads.is_valid() || heads.heads * heads.head_dim != params.hidden || !config(params).is_valid() {
        return wrong(format!("the host's math cannot do {heads:?} with {:?}", config(params)));
    }
    if params.out != text {
        return wrong(format!("v.out is {}, the text model's D is {text}", params.out));
    }
    let all = [&gemms.patch, &gemms.qkv, &gemms.proj, &gemms.fc1, &gemms.fc2, &gemms.m1, &gemms.m2];
    in_one_context("picture", all)?;
    let (d, wide) = (params.hidden, params.hidden * params.merged());
    let rows = [
        ("v_patch", &gemms.patch, params.patch_values(), d),
        ("v_qkv", &gemms.qkv, d, 3 * d),
        ("v_proj", &gemms.proj, d, d),
        ("v_fc1", &gemms.fc1, d, params.intermediate),
        ("v_fc2", &gemms.fc2, params.intermediate, d),
        ("v_m1", &gemms.m1, wide, wide),
        ("v_m2", &gemms.m2, wide, params.out),
    ];
    for (key, gemm, input, output) in rows {
        let record = &gemm.record;
        if record.lda < input || record.c_stride < output || record.n < output {
            let what = format!(
                "gemm `{key}` takes rows of {} and gives {}, wanted {input} and {output}",
                record.lda, record.n
            );
            return wrong(what);
        }
    }
    let shared = [&gemms.proj, &gemms.fc1].iter().all(|g| g.record.lda == gemms.qkv.record.lda);
    if !shared || gemms.m1.record.lda != gemms.m2.record.lda {
        return wrong("v_qkv, v_proj and v_fc1, or v_m1 and v_m2, have different lda".into());
    }
    if gemms.fc1.record.c_stride != gemms.fc2.record.lda {
        return wrong("v_fc1 writes other rows than v_fc2 reads".into());
    }
    for (gemm, slices, values) in [
        (&gemms.fc2, params.fc2_slices, params.intermediate),
        (&gemms.m1, params.merger_slices, wide),
        (&gemms.m2, params.merger_slices, wide),
    ] {
        let (k, lda) = (gemm.record.k, gemm.record.lda);
        if slices * k < values || slices * k > lda {
            return wrong(format!("{slices} slices of {k} columns for {values} values in rows of {lda}"));
        }
    }
    Ok(())
}
