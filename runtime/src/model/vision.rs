//! The vision tower: patches of one picture to rows that stand for its tokens.
//!
//! Every projection is a GEMM. Where a weight has a factor a column (`.f`, 8-bit weights), the host multiplies by it
//! after reading, so the GELU behind `fc1` is the host's too; without factors the NPU has done it already.

use std::time::Instant;

use host_ops::attention::{VisionScratch, VisionShape, vision_forward};
use host_ops::image::{Config, Patches, add_positions};
use host_ops::pool::Pool;
use host_ops::{act, norm, rope, w8};

use super::error::ModelError;
use super::kernels::{Gemm, Linear, Table, Uploader};
use super::profile::{Projection, Stage};
use super::run::Run;
use crate::bundle::{VisionParams, WeightFormat};
use crate::npu::{Buffer, Element};

/// Layer norms of the tower use this, whatever the configuration says.
const EPS: f32 = 1e-6;

/// K slices of one weight, and its factors.
#[derive(Debug)]
struct Weight {
    slices: Vec<Linear>,
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
}

/// A layer norm.
#[derive(Debug)]
struct Norm {
    weight: Vec<f32>,
    bias: Vec<f32>,
}

impl Norm {
    fn load(up: &Uploader<'_>, name: &str) -> Result<Norm, ModelError> {
        Ok(Norm { weight: up.f32s(&format!("{name}_w"))?, bias: up.f32s(&format!("{name}_b"))? })
    }

    fn rows(&self, pool: &Pool, x: &[f32], out: &mut Vec<f32>) {
        let width = self.weight.len();
        out.resize(x.len(), 0.0);
        pool.run_chunks(out, width, &|r, out| {
            norm::layer(&x[r * width..][..width], &self.weight, &self.bias, EPS, out);
        });
    }
}

#[derive(Debug)]
struct Block {
    ln1: Norm,
    ln2: Norm,
    qkv: Weight,
    proj: Weight,
    fc1: Weight,
    fc2: Weight,
}

#[derive(Debug)]
struct Projections {
    patch: Gemm,
    qkv: Gemm,
    proj: Gemm,
    fc1: Gemm,
    fc2: Gemm,
    m1: Gemm,
    m2: Gemm,
}

#[derive(Debug)]
struct Buffers {
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
    /// A of both merger linears.
    merger: Buffer,
    m1_c: Vec<Buffer>,
    m2_c: Vec<Buffer>,
}

/// Rows of f32 that keep their memory from picture to picture.
#[derive(Debug, Default)]
struct Rows {
    hidden: Vec<f32>,
    normed: Vec<f32>,
    wide: Vec<f32>,
    attended: Vec<f32>,
    rope: rope::Table,
    scratch: VisionScratch,
}

/// The tower on the device.
#[derive(Debug)]
pub(super) struct Vision {
    pub(super) params: VisionParams,
    patch: Weight,
    positions: Vec<f32>,
    blocks: Vec<Block>,
    merger_norm: Norm,
    m1: Weight,
    m2: Weight,
    gemms: Projections,
    buffers: Buffers,
    rows: Rows,
}

impl Vision {
    /// Uploads the weights, then makes the buffers.
    pub(super) fn load(params: &VisionParams, table: &Table, up: &mut Uploader<'_>) -> Result<Vision, ModelError> {
        let gemms = Projections {
            patch: table.gemm("v_patch")?,
            qkv: table.gemm("v_qkv")?,
            proj: table.gemm("v_proj")?,
            fc1: table.gemm("v_fc1")?,
            fc2: table.gemm("v_fc2")?,
            m1: table.gemm("v_m1")?,
            m2: table.gemm("v_m2")?,
        };
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
        let buffers = Buffers::new(params, &gemms, up)?;
        Ok(Vision {
            patch,
            positions: up.f32s("vis.pos")?,
            blocks,
            merger_norm: Norm::load(up, "vis.m_ln")?,
            m1,
            m2,
            gemms,
            buffers,
            rows: Rows::default(),
            params: params.clone(),
        })
    }

    /// The rows of one picture: `[grid rows * grid columns / merge^2, out]`.
    pub(super) fn encode(&mut self, run: &mut Run<'_>, patches: &Patches) -> Result<Vec<f32>, ModelError> {
        let (params, gemms, buffers, rows) = (&self.params, &self.gemms, &mut self.buffers, &mut self.rows);
        let (d, values, pool) = (params.hidden, params.patch_values(), run.pool);
        let n = patches.data.len() / values;
        let max = gemms.patch.max_rows().min(gemms.m1.max_rows() * params.merged()).min(params.max_patches);
        if n > max {
            return Err(ModelError::TooManyPatches { patches: n, max });
        }
        rope::Vision::new(d / params.heads, params.rope_theta).fill(patches.grid, params.merge, &mut rows.rope);

        buffers.patch_a.write_rows(pool, gemms.patch.record.lda, values, &patches.data)?;
        let c = std::slice::from_ref(&buffers.c);
        dispatch(run, Projection::Patch, &mut self.patch, &gemms.patch, n, &buffers.patch_a, c)?;
        gather(run, &self.patch, &gemms.patch, c, n, d, &mut rows.hidden)?;
        add_positions(&self.positions, params.pos_side, patches.grid, params.merge, &mut rows.hidden);
        for block in &mut self.blocks {
            block.forward(run, params, gemms, buffers, rows)?;
        }

        // A group of merge^2 patches is one row, since patches come block by block.
        let t = Instant::now();
        self.merger_norm.rows(pool, &rows.hidden, &mut rows.normed);
        let t = run.lap(Stage::Norm, 0, t);
        let (tokens, wide) = (n / params.merged(), d * params.merged());
        buffers.merger.write_rows(pool, gemms.m1.record.lda, wide, &rows.normed[..tokens * wide])?;
        run.lap(Stage::Write, 0, t);
        dispatch(run, Projection::Merger, &mut self.m1, &gemms.m1, tokens, &buffers.merger, &buffers.m1_c)?;
        gather(run, &self.m1, &gemms.m1, &buffers.m1_c, tokens, wide, &mut rows.wide)?;
        let t = Instant::now();
        pool.run_chunks(&mut rows.wide, wide, &|_, row| act::gelu_erf_in_place(row));
        let t = run.lap(Stage::Activation, 0, t);
        buffers.merger.write_rows(pool, gemms.m2.record.lda, wide, &rows.wide)?;
        run.lap(Stage::Write, 0, t);
        dispatch(run, Projection::Merger, &mut self.m2, &gemms.m2, tokens, &buffers.merger, &buffers.m2_c)?;
        let mut out = Vec::new();
        gather(run, &self.m2, &gemms.m2, &buffers.m2_c, tokens, params.out, &mut out)?;
        Ok(out)
    }
}

impl Block {
    fn forward(
        &mut self,
        run: &mut Run<'_>,
        params: &VisionParams,
        gemms: &Projections,
        buffers: &mut Buffers,
        rows: &mut Rows,
    ) -> Result<(), ModelError> {
        let (d, pool) = (params.hidden, run.pool);
        let n = rows.hidden.len() / d;
        let c = std::slice::from_ref(&buffers.c);

        let mut t = Instant::now();
        self.ln1.rows(pool, &rows.hidden, &mut rows.normed);
        t = run.lap(Stage::Norm, 0, t);
        buffers.a.write_rows(pool, gemms.qkv.record.lda, d, &rows.normed)?;
        run.lap(Stage::Write, 0, t);
        let qkv = std::slice::from_ref(&buffers.qkv_c);
        dispatch(run, Projection::Qkv, &mut self.qkv, &gemms.qkv, n, &buffers.a, qkv)?;
        gather(run, &self.qkv, &gemms.qkv, qkv, n, 3 * d, &mut rows.wide)?;
        t = Instant::now();
        rows.attended.resize(n * d, 0.0);
        let shape = VisionShape { heads: params.heads, head_dim: d / params.heads };
        vision_forward(pool, &shape, &rows.rope, &rows.wide, &mut rows.attended, &mut rows.scratch);
        t = run.lap(Stage::VisionAttention, 0, t);
        buffers.a.write_rows(pool, gemms.proj.record.lda, d, &rows.attended)?;
        run.lap(Stage::Write, 0, t);
        dispatch(run, Projection::Proj, &mut self.proj, &gemms.proj, n, &buffers.a, c)?;
        gather(run, &self.proj, &gemms.proj, c, n, d, &mut rows.normed)?;
        add(&mut rows.hidden, &rows.normed);

        t = Instant::now();
        self.ln2.rows(pool, &rows.hidden, &mut rows.normed);
        t = run.lap(Stage::Norm, 0, t);
        buffers.a.write_rows(pool, gemms.fc1.record.lda, d, &rows.normed)?;
        run.lap(Stage::Write, 0, t);
        let fc1_c = std::slice::from_ref(&buffers.fc1_c);
        dispatch(run, Projection::Fc1, &mut self.fc1, &gemms.fc1, n, &buffers.a, fc1_c)?;
        if self.fc1.factors.is_some() {
            let wide = params.intermediate;
            gather(run, &self.fc1, &gemms.fc1, fc1_c, n, wide, &mut rows.wide)?;
            t = Instant::now();
            pool.run_chunks(&mut rows.wide, wide, &|_, row| act::gelu_tanh_in_place(row));
            t = run.lap(Stage::Activation, 0, t);
            buffers.fc1_c.write_rows(pool, gemms.fc1.record.c_stride, wide, &rows.wide)?;
            run.lap(Stage::Write, 0, t);
        }
        dispatch(run, Projection::Fc2, &mut self.fc2, &gemms.fc2, n, &buffers.fc1_c, &buffers.fc2_c)?;
        gather(run, &self.fc2, &gemms.fc2, &buffers.fc2_c, n, d, &mut rows.normed)?;
        add(&mut rows.hidden, &rows.normed);
        Ok(())
    }
}

/// What the host does to a picture before the tower.
pub(super) fn config(params: &VisionParams) -> Config {
    Config { patch: params.patch, merge: params.merge, min_pixels: params.min_pixels, max_pixels: params.max_pixels }
}

/// Runs all K slices of a weight at once, slice s from column s * K of A into its own C.
fn dispatch(
    run: &mut Run<'_>,
    projection: Projection,
    weight: &mut Weight,
    gemm: &Gemm,
    n: usize,
    a: &Buffer,
    c: &[Buffer],
) -> Result<(), ModelError> {
    let mut last = None;
    for (s, (slice, c)) in weight.slices.iter_mut().zip(c).enumerate() {
        let command = slice.gemm(run.kernels, gemm, (0, n), (a, s * gemm.record.k), c)?;
        last = Some(run.submit(command, projection, 0)?);
    }
    last.map_or(Ok(()), |last| run.wait(&last))?;
    Ok(())
}

/// Sums the slices' results, `width` columns of n rows, and applies the factors.
fn gather(
    run: &mut Run<'_>,
    weight: &Weight,
    gemm: &Gemm,
    c: &[Buffer],
    n: usize,
    width: usize,
    out: &mut Vec<f32>,
) -> Result<(), ModelError> {
    let (t, pool, stride) = (Instant::now(), run.pool, gemm.record.c_stride);
    out.resize(n * width, 0.0);
    for (s, c) in c.iter().enumerate() {
        if s == 0 {
            c.read_rows(pool, stride, width, out)?;
        } else {
            c.add_rows(pool, stride, width, out)?;
        }
    }
    if let Some(factors) = weight.factors.as_deref() {
        pool.run_chunks(out, width, &|_, row| w8::scale_columns(row, &factors[..width]));
    }
    run.lap(Stage::Read, 0, t);
    Ok(())
}

fn add(x: &mut [f32], y: &[f32]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}

impl Buffers {
    fn new(params: &VisionParams, gemms: &Projections, up: &Uploader<'_>) -> Result<Buffers, ModelError> {
        let device = up.kernels.npu().device();
        let element = match params.format {
            WeightFormat::F32 => Element::F32,
            _ => Element::Bf16,
        };
        let buffer = |len: usize| Buffer::new(device, element, len);
        let slices =
            |n: usize, gemm: &Gemm| (0..n).map(|_| buffer(gemm.c_elems(usize::MAX))).collect::<Result<Vec<_>, _>>();
        // A view that starts at a column runs past the last row.
        let sliced = |n: usize, gemm: &Gemm| n.saturating_sub(1) * gemm.record.k + gemm.a_elems(usize::MAX);
        let a = [&gemms.qkv, &gemms.proj, &gemms.fc1].map(|gemm| gemm.a_elems(usize::MAX));
        let merger = params.merger_slices;
        Ok(Buffers {
            patch_a: buffer(gemms.patch.a_elems(usize::MAX))?,
            a: buffer(a.into_iter().max().unwrap_or(0))?,
            c: buffer(gemms.patch.c_elems(usize::MAX).max(gemms.proj.c_elems(usize::MAX)))?,
            qkv_c: buffer(gemms.qkv.c_elems(usize::MAX))?,
            fc1_c: buffer(gemms.fc1.c_elems(usize::MAX).max(sliced(params.fc2_slices, &gemms.fc2)))?,
            fc2_c: slices(params.fc2_slices, &gemms.fc2)?,
            merger: buffer(sliced(merger, &gemms.m1).max(sliced(merger, &gemms.m2)))?,
            m1_c: slices(merger, &gemms.m1)?,
            m2_c: slices(merger, &gemms.m2)?,
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
