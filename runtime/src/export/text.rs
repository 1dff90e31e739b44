//! The tensors of the text model.

use host_ops::pack::{BStream, Paired, Rows};

use super::ExportError;
use super::safetensors::{Source, Tensors};
use super::writer::{Job, RowFn, pack_rows, pack_stream, read_row};
use crate::bundle::{GemmRecord, LayerKind, Manifest};

/// First letters of the names that a checkpoint, and a bundle, has the head for speculation under.
const SPECULATION: &str = "mtp";

/// The jobs of the text model, with those of its head for speculation if that is wanted. Everything that the checkpoint must have is looked up here, before anything is written.
pub(super) fn jobs<'a>(
    manifest: &'a Manifest,
    tensors: &'a Tensors,
    speculation: bool,
) -> Result<Vec<Job<'a>>, ExportError> {
    // The language model of a multimodal checkpoint is nested, that of a text checkpoint is not.
    let prefix = ["model.language_model.", "language_model.model.", "model.", ""];
    let prefix = prefix.into_iter().find(|prefix| tensors.has(&format!("{prefix}embed_tokens.weight")));
    let prefix = prefix.ok_or_else(|| ExportError("the checkpoint has no tensor `embed_tokens.weight`".to_owned()))?;
    let builder = Builder { manifest, tensors, prefix };
    let mut jobs = Vec::new();
    for (index, kind) in manifest.text.layers.iter().enumerate() {
        builder.layer(&format!("{prefix}layers.{index}"), &format!("l{index}"), *kind, &mut jobs)?;
    }
    let norm = builder.source("norm.weight", &[manifest.text.hidden])?;
    jobs.push(plain("ln_f".to_owned(), norm));
    builder.head(&mut jobs)?;
    if speculation {
        builder.speculation(&mut jobs)?;
    }
    Ok(jobs)
}

struct Builder<'a> {
    manifest: &'a Manifest,
    tensors: &'a Tensors,
    prefix: &'static str,
}

/// A tensor as it is, in f32.
fn plain(name: String, source: &Source) -> Job<'_> {
    Job::f32s(name, &source.shape, move |_| source.f32s())
}

/// Several matrices of `columns` inputs, one below the other, from input `from`.
fn stacked<'a>(parts: Vec<&'a Source>, columns: usize, from: usize) -> RowFn<'a> {
    Box::new(move |row, out| {
        let mut first = 0;
        for part in &parts {
            let rows = part.count() / columns;
            if row < first + rows {
                return read_row(part, columns, row - first, from, out);
            }
            first += rows;
        }
        out.fill(0.0);
        Ok(())
    })
}

impl<'a> Builder<'a> {
    fn source(&self, name: &str, shape: &[usize]) -> Result<&'a Source, ExportError> {
        self.tensors.shaped(&format!("{}{name}", self.prefix), shape)
    }

    fn gemm(&self, key: &str) -> Result<&'a GemmRecord, ExportError> {
        self.manifest.gemms.get(key).ok_or_else(|| ExportError(format!("there is no `gemm {key}`")))
    }

    fn packed(&self, name: String, key: &str, rows: RowFn<'a>) -> Result<Job<'a>, ExportError> {
        let gemm = self.gemm(key)?;
        let layout = BStream::new(gemm.format.packing(), gemm.k, gemm.n, gemm.bias);
        let layout = layout.map_err(|error| ExportError(format!("`gemm {key}`: {error}")))?;
        // Text weights have no biases; kernels that take some get zeros.
        let bias = gemm.bias.then(|| vec![0.0; gemm.n]);
        let fill = Box::new(move |pool: &_, out: &mut [u8]| pack_stream(pool, &layout, &rows, bias.as_deref(), out));
        Ok(Job::packed(name, gemm.b_bytes, fill))
    }

    /// The layer that the checkpoint has under `from`, as `to`.
    fn layer(&self, from: &str, to: &str, kind: LayerKind, jobs: &mut Vec<Job<'a>>) -> Result<(), ExportError> {
        let text = &self.manifest.text;
        let (d, i) = (text.hidden, text.intermediate);
        let source = |name: &str, shape: &[usize]| self.tensors.shaped(&format!("{from}.{name}"), shape);
        let packed = |part: &str, key: &str, rows: RowFn<'a>| self.packed(format!("{to}.g.{part}"), key, rows);
        let host = |part: &str| format!("{to}.h.{part}");
        match kind {
            LayerKind::Linear => {
                let qkv = source("linear_attn.in_proj_qkv.weight", &[text.conv_channels(), d])?;
                let z = source("linear_attn.in_proj_z.weight", &[text.value_width(), d])?;
                let out = source("linear_attn.out_proj.weight", &[d, text.value_width()])?;
                jobs.push(packed("in", "lin", stacked(vec![qkv, z], d, 0))?);
                jobs.push(packed("o", "o", stacked(vec![out], text.value_width(), 0))?);
            }
            LayerKind::Attention => {
                let kv = text.kv_heads * text.head_dim;
                let q = source("self_attn.q_proj.weight", &[2 * text.heads * text.head_dim, d])?;
                let k = source("self_attn.k_proj.weight", &[kv, d])?;
                let v = source("self_attn.v_proj.weight", &[kv, d])?;
                let out = source("self_attn.o_proj.weight", &[d, text.heads * text.head_dim])?;
                jobs.push(packed("in", "att", stacked(vec![q, k, v], d, 0))?);
                jobs.push(packed("o", "o", stacked(vec![out], text.heads * text.head_dim, 0))?);
            }
        }
        let gate = source("mlp.gate_proj.weight", &[i, d])?;
        let up = source("mlp.up_proj.weight", &[i, d])?;
        let paired: RowFn<'a> = Box::new(move |row, out| match Paired::of(row) {
            Paired::Gate(row) => read_row(gate, d, row, 0, out),
            Paired::Up(row) => read_row(up, d, row, 0, out),
        });
        jobs.push(packed("gu", "gu", paired)?);
        let down = source("mlp.down_proj.weight", &[d, i])?;
        for slice in 0..text.down_slices {
            jobs.push(packed(&format!("down{slice}"), "down", stacked(vec![down], i, slice * text.down_k))?);
        }
        jobs.push(plain(host("ln1"), source("input_layernorm.weight", &[d])?));
        jobs.push(plain(host("ln2"), source("post_attention_layernorm.weight", &[d])?));
        match kind {
            LayerKind::Linear => self.linear_host(from, to, jobs),
            LayerKind::Attention => {
                jobs.push(plain(host("q_norm"), source("self_attn.q_norm.weight", &[text.head_dim])?));
                jobs.push(plain(host("k_norm"), source("self_attn.k_norm.weight", &[text.head_dim])?));
                Ok(())
            }
        }
    }

    /// What the host keeps of a DeltaNet layer.
    fn linear_host(&self, from: &str, to: &str, jobs: &mut Vec<Job<'a>>) -> Result<(), ExportError> {
        let text = &self.manifest.text;
        let (d, heads, channels, taps) = (text.hidden, text.lin_value_heads, text.conv_channels(), text.conv_kernel);
        let source = |name: &str, shape: &[usize]| self.tensors.shaped(&format!("{from}.linear_attn.{name}"), shape);
        let host = |part: &str| format!("{to}.h.{part}");
        let (b, a) = (source("in_proj_b.weight", &[heads, d])?, source("in_proj_a.weight", &[heads, d])?);
        jobs.push(Job::f32s(host("ba"), &[2 * heads, d], move |_| {
            let mut rows = b.f32s()?;
            rows.extend(a.f32s()?);
            Ok(rows)
        }));
        let conv = source("conv1d.weight", &[channels, 1, taps])?;
        jobs.push(Job::f32s(host("conv"), &[channels, taps], move |_| conv.f32s()));
        let decay = source("A_log", &[heads])?;
        jobs.push(Job::f32s(host("A"), &[heads], move |_| {
            Ok(decay.f32s()?.into_iter().map(|log| -log.exp()).collect())
        }));
        jobs.push(plain(host("dt_bias"), source("dt_bias", &[heads])?));
        jobs.push(plain(host("norm"), source("norm.weight", &[text.lin_value_dim])?));
        Ok(())
    }

    /// The head for speculation: one attention layer, and before it a product of the embedding and the last layer's
    /// output, each normed, in two slices that an existing kernel takes.
    fn speculation(&self, jobs: &mut Vec<Job<'a>>) -> Result<(), ExportError> {
        let d = self.manifest.text.hidden;
        let source = |name: &str, shape: &[usize]| self.tensors.shaped(&format!("{SPECULATION}.{name}"), shape);
        let key = self.manifest.speculation_kernel().ok_or_else(|| {
            ExportError(format!("no kernel takes the {d} x {d} slices of `{SPECULATION}.fc`; export without it"))
        })?;
        let fc = source("fc.weight", &[d, 2 * d])?;
        for slice in 0..2 {
            let rows: RowFn<'a> = Box::new(move |row, out| {
                let (values, rest) = out.split_at_mut(d);
                rest.fill(0.0);
                read_row(fc, 2 * d, row, slice * d, values)
            });
            jobs.push(self.packed(format!("{SPECULATION}.g.fc{slice}"), key, rows)?);
        }
        self.layer(&format!("{SPECULATION}.layers.0"), SPECULATION, LayerKind::Attention, jobs)?;
        for (name, part) in [("ln_e", "pre_fc_norm_embedding"), ("ln_h", "pre_fc_norm_hidden"), ("ln_f", "norm")] {
            jobs.push(plain(format!("{SPECULATION}.h.{name}"), source(&format!("{part}.weight"), &[d])?));
        }
        Ok(())
    }

    /// The parts of the head, and of the embedding if that is another matrix.
    fn head(&self, jobs: &mut Vec<Job<'a>>) -> Result<(), ExportError> {
        let text = &self.manifest.text;
        let shape = [text.vocab, text.hidden];
        let embedding = self.source("embed_tokens.weight", &shape)?;
        let mut matrices = vec![("head", embedding)];
        if text.untied {
            matrices = vec![("head", self.tensors.shaped("lm_head.weight", &shape)?), ("embed", embedding)];
        }
        let layout = Rows::new(text.format.packing(), text.head_rows, text.hidden);
        let layout = layout.map_err(|error| ExportError(format!("the head: {error}")))?;
        for (name, matrix) in matrices {
            for part in 0..text.head_parts {
                let first = part * text.head_rows;
                let rows: RowFn<'a> = Box::new(move |row, out| {
                    if first + row < text.vocab {
                        read_row(matrix, text.hidden, first + row, 0, out)
                    } else {
                        out.fill(0.0);
                        Ok(())
                    }
                });
                let fill = Box::new(move |pool: &_, out: &mut [u8]| pack_rows(pool, &layout, &rows, out));
                jobs.push(Job::packed(format!("{name}{part}"), layout.bytes(), fill));
            }
        }
        Ok(())
    }
}
