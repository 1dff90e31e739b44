//! A manifest as text. What this writes, [`Manifest::parse`] reads back as it was.

use std::fmt::Write;

use super::lines::{VERSION, text_hex};
use super::manifest::Manifest;
use super::params::{LayerKind, TextParams, VisionParams, WeightFormat};
use super::records::{GemmRecord, RefRecord};
use super::{BundleError, shapes};

impl Manifest {
    /// A manifest without kernels and test cases.
    pub(crate) fn empty(text: TextParams, vision: Option<VisionParams>) -> Self {
        Self {
            text,
            vision,
            xclbins: Default::default(),
            gemms: Default::default(),
            gemvs: Default::default(),
            tokcases: Vec::new(),
            refs: Vec::new(),
            streams: Vec::new(),
            xclbin_lines: Default::default(),
            silent: Default::default(),
            silent_gemvs: Default::default(),
        }
    }

    /// Whether parameters and kernels belong together.
    pub(crate) fn recheck(&self) -> Result<(), BundleError> {
        shapes::check(self)
    }

    /// The text of `manifest.txt`.
    #[must_use]
    pub fn render(&self) -> String {
        let mut out = format!("version {VERSION}\n");
        text_params(&mut out, &self.text);
        if let Some(vision) = &self.vision {
            vision_params(&mut out, vision);
        }
        for xclbin in self.xclbins.values() {
            line(&mut out, format_args!("xclbin {} {} {}", xclbin.key, xclbin.path, xclbin.kernel));
        }
        // Text before vision, each in the order in which the model uses them; others after.
        const ORDER: [&str; 13] =
            ["lin", "att", "o", "gu", "down", "head", "v_patch", "v_qkv", "v_proj", "v_fc1", "v_fc2", "v_m1", "v_m2"];
        let rank = |key: &str| ORDER.iter().position(|known| *known == key).unwrap_or(ORDER.len());
        let mut gemms: Vec<&GemmRecord> = self.gemms.values().collect();
        gemms.sort_by_key(|gemm| rank(&gemm.key));
        gemms.into_iter().for_each(|gemm| gemm_lines(&mut out, gemm));
        let mut gemvs: Vec<_> = self.gemvs.values().collect();
        gemvs.sort_by_key(|gemv| rank(&gemv.key));
        for gemv in gemvs {
            let fields = format!("M={} K={} w_words={} bias={}", gemv.m, gemv.k, gemv.w_words, u8::from(gemv.bias));
            let rest = format!("{}insts={}", format_field(gemv.format), gemv.insts);
            line(&mut out, format_args!("gemv {} ctx={} {fields} {rest}", gemv.key, gemv.ctx));
        }
        for case in &self.tokcases {
            let ids = if case.ids.is_empty() { ",".to_owned() } else { list(&case.ids) };
            line(&mut out, format_args!("tokcase {} {ids}", text_hex(&case.text)));
        }
        self.refs.iter().for_each(|reference| ref_line(&mut out, reference));
        out
    }
}

fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _ = writeln!(out, "{text}");
}

fn param(out: &mut String, name: &str, value: impl std::fmt::Display) {
    line(out, format_args!("param {name} {value}"));
}

fn list<T: ToString>(items: &[T]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// `format=`, which only the test format needs: it marks lines that a reader of bfp16 must not run.
fn format_field(format: WeightFormat) -> &'static str {
    match format {
        WeightFormat::F32 => "format=f32 ",
        WeightFormat::Bfp16 | WeightFormat::Bfp6s => "",
    }
}

fn text_params(out: &mut String, text: &TextParams) {
    let layers: Vec<&str> = text.layers.iter().map(|kind: &LayerKind| kind.key()).collect();
    param(out, "layer_types", layers.join(","));
    param(out, "D", text.hidden);
    param(out, "I", text.intermediate);
    param(out, "vocab", text.vocab);
    param(out, "eps", text.eps);
    param(out, "heads", text.heads);
    param(out, "kv_heads", text.kv_heads);
    param(out, "hd", text.head_dim);
    param(out, "rope_dim", text.rope_dim);
    param(out, "rope_theta", text.rope_theta);
    param(out, "mrope_section", list(&text.mrope_section));
    param(out, "lin_heads", text.lin_key_heads);
    param(out, "lin_hk", text.lin_key_dim);
    param(out, "lin_hv", text.lin_value_dim);
    param(out, "conv_k", text.conv_kernel);
    param(out, "chunk", text.chunk);
    param(out, "max_prompt", text.max_prompt);
    param(out, "n_down", text.down_slices);
    param(out, "head_rows", text.head_rows);
    param(out, "n_head", text.head_parts);
    param(out, "stop", if text.stop.is_empty() { ",".to_owned() } else { list(&text.stop) });
    param(out, "gemv_format", text.format.name());
    // Our own parameters, only where the format's rule does not give the value.
    if text.lin_value_heads != text.lin_key_heads {
        param(out, "lin_vheads", text.lin_value_heads);
    }
    if text.o_k != text.hidden {
        param(out, "o_k", text.o_k);
    }
    if text.down_k != text.hidden {
        param(out, "down_k", text.down_k);
    }
    if text.untied {
        param(out, "embed", 1);
    }
}

fn vision_params(out: &mut String, vision: &VisionParams) {
    let weights = if vision.format == WeightFormat::F32 { "f32" } else { "w8" };
    param(out, "v.weights", weights);
    param(out, "v.D", vision.hidden);
    param(out, "v.I", vision.intermediate);
    param(out, "v.depth", vision.depth);
    param(out, "v.heads", vision.heads);
    param(out, "v.patch", vision.patch);
    param(out, "v.merge", vision.merge);
    param(out, "v.out", vision.out);
    param(out, "v.pos_side", vision.pos_side);
    param(out, "v.rope_theta", vision.rope_theta);
    param(out, "v.image_token", vision.image_token);
    param(out, "v.vision_start", vision.vision_start);
    param(out, "v.vision_end", vision.vision_end);
    param(out, "v.min_pixels", vision.min_pixels);
    param(out, "v.max_pixels", vision.max_pixels);
    param(out, "v.max_patches", vision.max_patches);
    if vision.fc2_slices != 4 {
        param(out, "v.fc2_slices", vision.fc2_slices);
    }
    if vision.merger_slices != 4 {
        param(out, "v.m_slices", vision.merger_slices);
    }
}

fn gemm_lines(out: &mut String, gemm: &GemmRecord) {
    let GemmRecord { key, m, k, n, lda, c_stride, b_bytes, bias, format, ctx, chunks } = gemm;
    let shape = format!("M={m} K={k} N={n} lda={lda} c_stride={c_stride} b_bytes={b_bytes} bias={}", u8::from(*bias));
    for (index, stream) in chunks.iter().enumerate() {
        let views = format!("a_elems={} c_elems={} insts={}", stream.a_elems, stream.c_elems, stream.insts);
        if index == 0 {
            let format = format_field(*format);
            line(out, format_args!("gemm {key} ctx={ctx} {shape} {format}{views}"));
        } else {
            let ctx = if stream.ctx == *ctx { String::new() } else { format!("ctx={} ", stream.ctx) };
            line(out, format_args!("gemm_chunks {key} {} {ctx}{views}", index + 1));
        }
    }
}

fn ref_line(out: &mut String, reference: &RefRecord) {
    let (name, prompt) = (&reference.name, text_hex(&reference.prompt));
    let thinking = u8::from(reference.thinking);
    if reference.is_plain() {
        let image = if reference.images == 1 { " image=1" } else { "" };
        line(out, format_args!("ref {name} prompt={prompt} thinking={thinking}{image}"));
    } else {
        let system = reference.system.as_ref().map_or(String::new(), |text| format!(" system={}", text_hex(text)));
        let images = reference.images;
        line(out, format_args!("ref2 {name} prompt={prompt} thinking={thinking} images={images}{system}"));
    }
}
