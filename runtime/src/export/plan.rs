//! Which shapes the kernels of a checkpoint have, and the manifest that says so.

use std::collections::BTreeMap;

use super::config::{Config, Text, Vision};
use super::{ExportError, ExportOptions};
use crate::bundle::{
    Bundle, GemmRecord, GemvRecord, LayerKind, Manifest, StreamRecord, TextParams, VisionParams, WeightFormat,
    XclbinRecord,
};

/// Rows of a chunk.
const CHUNK: usize = 256;
/// Inner lengths are multiples of this, columns of that.
const K_TILE: usize = 512;
const N_TILE: usize = 64;
/// The longest K slice where nothing else decides.
const LONGEST_SLICE: usize = 4096;
/// The longest K slice of the tower where nothing else decides.
const LONGEST_TOWER_SLICE: usize = 2048;
/// Rows of the longest head part: 248320 rows in five parts.
const HEAD_ROWS: usize = 49_664;
/// Rows one dispatch can take: the reference kernels count chunks up to this.
const MOST_CHUNKS: usize = 16;

/// The manifest for a checkpoint, complete but for test cases.
pub(super) fn manifest(config: &Config, options: &ExportOptions) -> Result<Manifest, ExportError> {
    let text = text_params(&config.text, options)?;
    let vision = config.vision.as_ref().map(|vision| vision_params(vision, options)).transpose()?;
    let mut manifest = Manifest::empty(text, vision);
    let contexts = if manifest.vision.is_some() { &["gemm", "gemv", "vis"][..] } else { &["gemm", "gemv"][..] };
    for key in contexts {
        let path = format!("kernels/{key}.xclbin");
        let record = XclbinRecord { key: (*key).to_owned(), path, kernel: "MLIR_AIE".to_owned() };
        manifest.xclbins.insert((*key).to_owned(), record);
    }
    text_kernels(&mut manifest)?;
    vision_kernels(&mut manifest)?;
    Ok(manifest)
}

/// The manifest for a checkpoint on the kernels of `other`, which must fit.
pub(super) fn manifest_on(config: &Config, options: &ExportOptions, other: &Bundle) -> Result<Manifest, ExportError> {
    let theirs = &other.manifest;
    let refuse = |what: String| ExportError(format!("the kernels of {} do not fit: {what}", other.dir().display()));
    if theirs.text.format != options.format {
        let (have, want) = (theirs.text.format.name(), options.format.name());
        return Err(refuse(format!("they take {have} weights, this export writes {want}")));
    }
    let mut text = text_params(&config.text, options)?;
    // How the work is cut is the kernels' affair; the widths must agree.
    text.chunk = theirs.text.chunk;
    text.max_prompt = theirs.text.max_prompt;
    (text.down_slices, text.down_k) = (theirs.text.down_slices, theirs.text.down_k);
    (text.head_rows, text.head_parts) = (theirs.text.head_rows, theirs.text.head_parts);
    for (name, ours, wanted) in [
        ("D", text.hidden, theirs.text.hidden),
        ("I", text.intermediate, theirs.text.intermediate),
        ("the inputs of `o`", text.o_k, theirs.text.o_k),
    ] {
        if ours != wanted {
            return Err(refuse(format!("{name} is {ours} in the checkpoint and {wanted} there")));
        }
    }
    let vision = match (&config.vision, &theirs.vision) {
        (Some(vision), Some(kernels)) => {
            let mut vision = vision_params(vision, options)?;
            vision.max_patches = kernels.max_patches;
            vision.max_pixels = vision.max_pixels.min(kernels.max_pixels);
            vision.min_pixels = vision.min_pixels.min(vision.max_pixels);
            (vision.fc2_slices, vision.merger_slices) = (kernels.fc2_slices, kernels.merger_slices);
            if (vision.hidden, vision.intermediate) != (kernels.hidden, kernels.intermediate) {
                let (ours, wanted) = ((vision.hidden, vision.intermediate), (kernels.hidden, kernels.intermediate));
                return Err(refuse(format!("v.D and v.I are {ours:?} in the checkpoint and {wanted:?} there")));
            }
            Some(vision)
        }
        (Some(_), None) => return Err(refuse("they have no vision tower; export with `--vision none`".to_owned())),
        (None, _) => None,
    };
    let mut manifest = Manifest::empty(text, vision);
    manifest.gemms = theirs.gemms.clone();
    manifest.gemvs = theirs.gemvs.clone();
    if manifest.vision.is_none() {
        manifest.gemms.retain(|key, _| !key.starts_with("v_"));
    }
    for gemm in manifest.gemms.values() {
        if gemm.format.stream_bytes(gemm.k, gemm.n, gemm.bias) != Some(gemm.b_bytes) {
            return Err(refuse(format!(
                "`gemm {}` keeps two parts of every weight, which this export does not write",
                gemm.key
            )));
        }
        if gemm.key.starts_with("v_") && !gemm.bias {
            return Err(refuse(format!("`gemm {}` takes no biases, and the tower has some", gemm.key)));
        }
    }
    let used = |key: &str| {
        let streams = manifest.gemms.values().flat_map(|gemm| &gemm.chunks).any(|stream| stream.ctx == key);
        streams || manifest.gemvs.values().any(|gemv| gemv.ctx == key)
    };
    let xclbins = theirs.xclbins.iter().filter(|(key, _)| used(key)).map(|(key, record)| (key.clone(), record.clone()));
    let xclbins: BTreeMap<String, XclbinRecord> = xclbins.collect();
    manifest.xclbins = xclbins;
    manifest.recheck().map_err(|error| refuse(error.to_string()))?;
    Ok(manifest)
}

/// The first of 1, 2, 3... slices of a multiple of 512 that covers `total` exactly (up to a multiple of 512) and is no
/// longer than `longest`.
fn slices(total: usize, longest: usize) -> (usize, usize) {
    let tiles = total.div_ceil(K_TILE);
    let count = (1..=tiles).find(|count| tiles.is_multiple_of(*count) && tiles / count * K_TILE <= longest);
    let count = count.unwrap_or(tiles);
    (count, tiles / count * K_TILE)
}

fn text_params(text: &Text, options: &ExportOptions) -> Result<TextParams, ExportError> {
    let refuse = |what: String| Err(ExportError(format!("config.json: {what}")));
    let d = text.hidden;
    if !d.is_multiple_of(K_TILE) {
        return refuse(format!("hidden_size {d}; the kernels need a multiple of {K_TILE}"));
    }
    if !text.intermediate.is_multiple_of(32) {
        return refuse(format!("intermediate_size {}; the kernels need a multiple of 32", text.intermediate));
    }
    let (attention, linear) = (text.heads * text.head_dim, text.value_heads * text.value_dim);
    let has = |kind: LayerKind| text.layers.contains(&kind);
    let o_k = if has(LayerKind::Attention) { attention } else { linear };
    if has(LayerKind::Linear) && has(LayerKind::Attention) && attention != linear {
        return refuse(format!(
            "heads x head_dim is {attention}, the linear value width {linear}; one `o` kernel serves both"
        ));
    }
    if !o_k.is_multiple_of(K_TILE) {
        return refuse(format!("the output projection takes {o_k} inputs; the kernels need a multiple of {K_TILE}"));
    }
    let chunks = options.max_prompt.unwrap_or(if d >= 1024 { 2048 } else { 1024 }).div_ceil(CHUNK);
    if !(1..=MOST_CHUNKS).contains(&chunks) {
        return Err(ExportError(format!("max_prompt: {chunks} chunks of {CHUNK} rows; expected 1 to {MOST_CHUNKS}")));
    }
    // Slices of D where they cover I without padding, as the format has them by default.
    let (down_slices, down_k) = if text.intermediate.is_multiple_of(d) {
        (text.intermediate / d, d)
    } else {
        slices(text.intermediate, LONGEST_SLICE)
    };
    let least = if text.vocab > 1024 { 2 } else { 1 };
    let head_parts = options.head_parts.unwrap_or(text.vocab.div_ceil(HEAD_ROWS).max(least));
    let head_rows = text.vocab.div_ceil(head_parts.max(1)).next_multiple_of(N_TILE);
    if head_parts == 0 || head_rows * (head_parts - 1) >= text.vocab {
        return Err(ExportError(format!("{head_parts} head parts for a vocabulary of {}; expected fewer", text.vocab)));
    }
    Ok(TextParams {
        layers: text.layers.clone(),
        hidden: d,
        intermediate: text.intermediate,
        vocab: text.vocab,
        eps: text.eps,
        heads: text.heads,
        kv_heads: text.kv_heads,
        head_dim: text.head_dim,
        rope_dim: text.rope_dim,
        rope_theta: text.rope_theta,
        mrope_section: text.mrope_section,
        lin_key_heads: text.key_heads,
        lin_value_heads: text.value_heads,
        lin_key_dim: text.key_dim,
        lin_value_dim: text.value_dim,
        conv_kernel: text.conv_kernel,
        chunk: CHUNK,
        max_prompt: chunks * CHUNK,
        down_slices,
        down_k,
        o_k,
        head_rows,
        head_parts,
        untied: !text.tied,
        stop: text.stop.clone(),
        format: options.format,
    })
}

fn vision_params(vision: &Vision, options: &ExportOptions) -> Result<VisionParams, ExportError> {
    let d = vision.hidden;
    // Four slices of the tower's width where that works out, as the format has them by default. A tower narrower than
    // a patch is none that a runtime of the format's defaults could run, and each slice brings its own bias chunks.
    let patch_values = 3 * vision.patch * vision.patch;
    let cut = |total: usize| match options.tower_slice {
        Some(longest) => slices(total, longest),
        None if d.is_multiple_of(K_TILE) && d >= patch_values && total == 4 * d => (4, d),
        None => slices(total, LONGEST_TOWER_SLICE),
    };
    let merged = vision.merge * vision.merge;
    let area = (vision.patch * vision.patch) as f64;
    // A small picture is enlarged to whole tokens on both sides, which can exceed the upper limit if that is near the
    // lower one; the longest sides come with the largest aspect ratio, 200.
    let token = (vision.patch * vision.merge) as f64;
    let least = vision.min_pixels as f64;
    let enlarged = least + token * ((200.0 * least).sqrt() + (least / 200.0).sqrt()) + token * token;
    let patches = ((enlarged.max(vision.max_pixels as f64) / area) as usize).next_multiple_of(merged);
    let most = MOST_CHUNKS * CHUNK;
    if vision.max_pixels as f64 / area > most as f64 {
        return Err(ExportError(format!(
            "images of up to {} pixels; expected at most {most} patches",
            vision.max_pixels
        )));
    }
    Ok(VisionParams {
        hidden: d,
        intermediate: vision.intermediate,
        depth: vision.depth,
        heads: vision.heads,
        patch: vision.patch,
        merge: vision.merge,
        out: vision.out,
        pos_side: vision.pos_side,
        rope_theta: vision.rope_theta,
        image_token: vision.image_token,
        vision_start: vision.vision_start,
        vision_end: vision.vision_end,
        min_pixels: vision.min_pixels,
        max_pixels: vision.max_pixels,
        max_patches: patches.min(most),
        fc2_slices: cut(vision.intermediate).0,
        merger_slices: cut(merged * d).0,
        // Six bits are for what is read once a token.
        format: if options.format == WeightFormat::F32 { WeightFormat::F32 } else { WeightFormat::Bfp16 },
    })
}

/// A kernel before its streams are numbered.
struct Shape {
    key: &'static str,
    ctx: &'static str,
    k: usize,
    n: usize,
    lda: usize,
    c_stride: usize,
    bias: bool,
    rows: usize,
}

fn gemm(manifest: &mut Manifest, format: WeightFormat, shape: &Shape) -> Result<(), ExportError> {
    let Shape { key, ctx, k, n, lda, c_stride, bias, rows } = *shape;
    if !n.is_multiple_of(N_TILE) {
        return Err(ExportError(format!("`{key}` has {n} columns; the kernels need a multiple of {N_TILE}")));
    }
    let b_bytes = format.stream_bytes(k, n, bias);
    let b_bytes = b_bytes.ok_or_else(|| ExportError(format!("`{key}`: {k} x {n} weights are absurd")))?;
    let stream = |chunks: usize| StreamRecord {
        a_elems: chunks * CHUNK * lda,
        c_elems: chunks * CHUNK * c_stride,
        ctx: ctx.to_owned(),
        insts: format!("kernels/{key}.x{chunks}.insts.bin"),
    };
    let record = GemmRecord {
        key: key.to_owned(),
        m: CHUNK,
        k,
        n,
        lda,
        c_stride,
        b_bytes,
        bias,
        format,
        ctx: ctx.to_owned(),
        chunks: (1..=rows.div_ceil(CHUNK)).map(stream).collect(),
    };
    manifest.gemms.insert(key.to_owned(), record);
    Ok(())
}

fn text_kernels(manifest: &mut Manifest) -> Result<(), ExportError> {
    let text = manifest.text.clone();
    let (d, i, rows, format) = (text.hidden, text.intermediate, text.max_prompt, text.format);
    let wide = i.max(text.down_slices * text.down_k);
    let shape = |key, k, n, lda, c_stride| Shape { key, ctx: "gemm", k, n, lda, c_stride, bias: false, rows };
    let mut shapes = vec![
        shape("o", text.o_k, d, text.o_k, d),
        shape("gu", d, 2 * i, d, wide),
        shape("down", text.down_k, d, wide, d),
    ];
    for kind in [LayerKind::Linear, LayerKind::Attention] {
        if text.layers.contains(&kind) {
            let width = text.in_width(kind);
            shapes.push(shape(kind.key(), d, width, d, width));
        }
    }
    for shape in &shapes {
        gemm(manifest, format, shape)?;
        gemv(manifest, format, shape.key, shape.n, shape.k)?;
    }
    gemv(manifest, format, "head", text.head_rows, d)
}

fn gemv(manifest: &mut Manifest, format: WeightFormat, key: &str, m: usize, k: usize) -> Result<(), ExportError> {
    let bytes = format.stream_bytes(k, m, false);
    let bytes = bytes.ok_or_else(|| ExportError(format!("`{key}`: {k} x {m} weights are absurd")))?;
    let record = GemvRecord {
        key: key.to_owned(),
        m,
        k,
        w_words: bytes / 4,
        bias: false,
        format,
        ctx: "gemv".to_owned(),
        insts: format!("kernels/gemv_{key}.insts.bin"),
    };
    manifest.gemvs.insert(key.to_owned(), record);
    Ok(())
}

fn vision_kernels(manifest: &mut Manifest) -> Result<(), ExportError> {
    let Some(vision) = manifest.vision.clone() else { return Ok(()) };
    let (d, rows) = (vision.hidden, vision.max_patches);
    let (wide_d, merged) = (d.next_multiple_of(K_TILE), vision.merged() * d);
    let columns = |n: usize| n.next_multiple_of(N_TILE);
    let fc2_k = vision.intermediate.div_ceil(vision.fc2_slices).next_multiple_of(K_TILE);
    let merger_k = merged.div_ceil(vision.merger_slices).next_multiple_of(K_TILE);
    let (fc2_lda, merger_lda) = (fc2_k * vision.fc2_slices, merger_k * vision.merger_slices);
    let patch_k = vision.patch_values().next_multiple_of(K_TILE);
    let shape = |key, k, n, lda, c_stride, rows| Shape { key, ctx: "vis", k, n, lda, c_stride, bias: true, rows };
    let token_rows = rows / vision.merged();
    for shape in [
        shape("v_patch", patch_k, columns(d), patch_k, columns(d), rows),
        shape("v_qkv", wide_d, columns(3 * d), wide_d, columns(3 * d), rows),
        shape("v_proj", wide_d, columns(d), wide_d, columns(d), rows),
        shape("v_fc1", wide_d, columns(vision.intermediate), wide_d, fc2_lda, rows),
        shape("v_fc2", fc2_k, columns(d), fc2_lda, columns(d), rows),
        shape("v_m1", merger_k, columns(merged), merger_lda, columns(merged), token_rows),
        shape("v_m2", merger_k, columns(vision.out), merger_lda, columns(vision.out), token_rows),
    ] {
        gemm(manifest, vision.format, &shape)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_cover_without_waste() {
        assert_eq!(slices(3584, LONGEST_SLICE), (1, 3584));
        assert_eq!(slices(9216, LONGEST_SLICE), (3, 3072));
        assert_eq!(slices(256, LONGEST_SLICE), (1, 512));
        assert_eq!(slices(4304, LONGEST_TOWER_SLICE), (3, 1536));
        assert_eq!(slices(13 * 512, LONGEST_TOWER_SLICE), (13, 512));
    }
}
