//! Whether the parameters and kernels of a manifest belong together.

use super::error::BundleError;
use super::manifest::Manifest;
use super::params::{LayerKind, TextParams, VisionParams};
use super::records::GemmRecord;

type Outcome = Result<(), String>;

/// `Ok` if `holds`, else the message.
fn must(holds: bool, message: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(message()) }
}

pub(super) fn check(manifest: &Manifest) -> Result<(), BundleError> {
    let outcome = text_params(&manifest.text)
        .and_then(|()| text_kernels(manifest))
        .and_then(|()| manifest.vision.as_ref().map_or(Ok(()), |vision| vision_kernels(manifest, vision)));
    outcome.map_err(|what| BundleError::Manifest { what })
}

fn text_params(text: &TextParams) -> Outcome {
    must(text.heads.is_multiple_of(text.kv_heads), || {
        format!("heads {} is no multiple of kv_heads {}", text.heads, text.kv_heads)
    })?;
    must(text.lin_value_heads.is_multiple_of(text.lin_key_heads), || {
        format!("lin_vheads {} is no multiple of lin_heads {}", text.lin_value_heads, text.lin_key_heads)
    })?;
    must(text.rope_dim.is_multiple_of(2) && text.rope_dim <= text.head_dim, || {
        format!("rope_dim {}; expected an even number up to hd {}", text.rope_dim, text.head_dim)
    })?;
    let pairs: usize = text.mrope_section.iter().fold(0, |sum, pairs| sum.saturating_add(*pairs));
    must(pairs == 0 || pairs == text.rope_dim / 2, || {
        format!("mrope_section adds up to {pairs}; expected rope_dim / 2, which is {}", text.rope_dim / 2)
    })?;
    must(text.max_prompt.is_multiple_of(text.chunk), || {
        format!("max_prompt {} is no multiple of chunk {}", text.max_prompt, text.chunk)
    })?;
    must(text.down_slices * text.down_k >= text.intermediate, || {
        format!("{} `down` slices of {} are less than I {}", text.down_slices, text.down_k, text.intermediate)
    })?;
    must(text.head_rows.is_multiple_of(8), || format!("head_rows {}; expected a multiple of 8", text.head_rows))?;
    let spare = (text.head_rows * text.head_parts).checked_sub(text.vocab);
    must(spare.is_some_and(|spare| spare < text.head_rows), || {
        format!(
            "{} head parts of {} rows do not just hold a vocabulary of {}",
            text.head_parts, text.head_rows, text.vocab
        )
    })?;
    for (kind, width, name) in [
        (LayerKind::Attention, text.heads * text.head_dim, "heads * hd"),
        (LayerKind::Linear, text.value_width(), "the value heads' width"),
    ] {
        must(!text.layers.contains(&kind) || width == text.o_k, || {
            format!("{name} is {width}, but `o` takes {} inputs (o_k, or D)", text.o_k)
        })?;
    }
    let stop = text.stop.iter().find(|id| **id as usize >= text.vocab);
    must(stop.is_none(), || format!("stop token {} is not below vocab {}", stop.copied().unwrap_or(0), text.vocab))
}

/// The `gemm` record `key`, which must be this wide and have streams for `rows` rows.
fn gemm<'m>(manifest: &'m Manifest, key: &str, k: Least, n: Least, rows: usize) -> Result<&'m GemmRecord, String> {
    let gemm = manifest.gemms.get(key).ok_or_else(|| format!("`gemm {key}` is missing"))?;
    k.check(gemm.k, &format!("K of `gemm {key}`"))?;
    n.check(gemm.n, &format!("N of `gemm {key}`"))?;
    must(gemm.m == manifest.text.chunk, || {
        format!("M of `gemm {key}` is {}; expected the chunk, {}", gemm.m, manifest.text.chunk)
    })?;
    must(gemm.chunks.len() * gemm.m >= rows, || {
        format!("`gemm {key}` has streams for {} chunks of {}; expected {rows} rows", gemm.chunks.len(), gemm.m)
    })?;
    Ok(gemm)
}

/// What a width is compared with.
#[derive(Clone, Copy)]
enum Least {
    Exactly(usize),
    AtLeast(usize),
}

impl Least {
    fn check(self, found: usize, what: &str) -> Outcome {
        match self {
            Self::Exactly(wanted) => must(found == wanted, || format!("{what} is {found}; expected {wanted}")),
            Self::AtLeast(wanted) => must(found >= wanted, || format!("{what} is {found}; expected at least {wanted}")),
        }
    }
}

fn text_kernels(manifest: &Manifest) -> Outcome {
    use Least::Exactly;
    let text = &manifest.text;
    let (d, rows) = (text.hidden, text.max_prompt);
    let mut keys = vec!["o", "gu", "down"];
    for kind in [LayerKind::Linear, LayerKind::Attention] {
        if text.layers.contains(&kind) {
            let input = gemm(manifest, kind.key(), Exactly(d), Exactly(text.in_width(kind)), rows)?;
            must(input.lda == d, || format!("lda of `gemm {}` is {}; expected D {d}", kind.key(), input.lda))?;
            keys.push(kind.key());
        }
    }
    gemm(manifest, "o", Exactly(text.o_k), Exactly(d), rows)?;
    let gu = gemm(manifest, "gu", Exactly(d), Exactly(2 * text.intermediate), rows)?;
    must(gu.lda == d, || format!("lda of `gemm gu` is {}; expected D {d}", gu.lda))?;
    let down = gemm(manifest, "down", Exactly(text.down_k), Exactly(d), rows)?;
    must(down.lda == gu.c_stride, || {
        format!("lda of `gemm down` is {}; expected c_stride of `gemm gu`, {}", down.lda, gu.c_stride)
    })?;
    must(gu.c_stride >= text.down_slices * text.down_k, || {
        format!(
            "c_stride of `gemm gu` is {}; expected room for {} slices of {}",
            gu.c_stride, text.down_slices, text.down_k
        )
    })?;
    for key in keys {
        let (gemm, gemv) = (&manifest.gemms[key], manifest.gemvs.get(key));
        let gemv = gemv.ok_or_else(|| format!("`gemv {key}` is missing"))?;
        must((gemv.m, gemv.k, gemv.bias) == (gemm.n, gemm.k, gemm.bias), || {
            format!(
                "`gemv {key}` is {} x {} and `gemm {key}` {} x {}; they read the same weights",
                gemv.m, gemv.k, gemm.n, gemm.k
            )
        })?;
    }
    let head = manifest.gemvs.get("head").ok_or("`gemv head` is missing")?;
    must((head.m, head.k) == (text.head_rows, d), || {
        format!("`gemv head` is {} x {}; expected head_rows x D, {} x {d}", head.m, head.k, text.head_rows)
    })?;
    must(!head.bias, || "`gemv head` has biases; its weights are in row layout, which has none".to_owned())
}

fn vision_kernels(manifest: &Manifest, vision: &VisionParams) -> Outcome {
    use Least::AtLeast;
    let (d, rows) = (vision.hidden, vision.max_patches);
    must(d.is_multiple_of(vision.heads) && (d / vision.heads).is_multiple_of(4), || {
        format!("v.D {d} in {} heads; expected heads of a multiple of four values", vision.heads)
    })?;
    must(vision.out == manifest.text.hidden, || {
        format!("v.out is {}; expected the text model's D, {}", vision.out, manifest.text.hidden)
    })?;
    must(vision.min_pixels <= vision.max_pixels, || {
        format!("v.min_pixels {} is more than v.max_pixels {}", vision.min_pixels, vision.max_pixels)
    })?;
    must(rows.is_multiple_of(vision.merged()), || {
        format!("v.max_patches {rows}; expected a multiple of {}", vision.merged())
    })?;
    must((vision.image_token as usize) < manifest.text.vocab, || {
        format!("v.image_token {} is not below vocab {}", vision.image_token, manifest.text.vocab)
    })?;
    gemm(manifest, "v_patch", AtLeast(vision.patch_values()), AtLeast(d), rows)?;
    let qkv = gemm(manifest, "v_qkv", AtLeast(d), AtLeast(3 * d), rows)?;
    gemm(manifest, "v_proj", AtLeast(d), AtLeast(d), rows)?;
    let fc1 = gemm(manifest, "v_fc1", AtLeast(d), AtLeast(vision.intermediate), rows)?;
    must(qkv.lda == fc1.lda, || {
        format!("lda of `gemm v_fc1` is {}; expected that of `gemm v_qkv`, {}", fc1.lda, qkv.lda)
    })?;
    let slice = vision.intermediate.div_ceil(vision.fc2_slices);
    let fc2 = gemm(manifest, "v_fc2", AtLeast(slice), AtLeast(d), rows)?;
    must(fc2.lda == fc1.c_stride, || {
        format!("lda of `gemm v_fc2` is {}; expected c_stride of `gemm v_fc1`, {}", fc2.lda, fc1.c_stride)
    })?;
    must(fc2.lda >= vision.fc2_slices * fc2.k, || {
        format!("lda of `gemm v_fc2` is {}; expected room for {} slices of {}", fc2.lda, vision.fc2_slices, fc2.k)
    })?;
    let (merged, rows) = (vision.merged() * d, rows / vision.merged());
    let slice = merged.div_ceil(vision.merger_slices);
    let m1 = gemm(manifest, "v_m1", AtLeast(slice), AtLeast(merged), rows)?;
    let m2 = gemm(manifest, "v_m2", AtLeast(slice), AtLeast(vision.out), rows)?;
    must(m1.lda == m2.lda && m1.k == m2.k, || {
        format!(
            "`gemm v_m1` has lda {} and K {}, `gemm v_m2` {} and {}; they read one buffer",
            m1.lda, m1.k, m2.lda, m2.k
        )
    })?;
    must(m1.lda >= vision.merger_slices * m1.k, || {
        format!("lda of `gemm v_m1` is {}; expected room for {} slices of {}", m1.lda, vision.merger_slices, m1.k)
    })
}
