//! `manifest.txt` typed: parameters, containers, kernels, test cases.

use std::collections::{BTreeMap, BTreeSet};

use super::error::BundleError;
use super::lines::{Lines, Record, hex_text};
use super::params::{LayerKind, TextParams, VisionParams, WeightFormat};
use super::records::{GemmRecord, GemvRecord, RefRecord, StreamRecord, TokCase, XclbinRecord};

/// A manifest, checked and typed.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    /// The text model.
    pub text: TextParams,
    /// The vision tower, if the bundle has one.
    pub vision: Option<VisionParams>,
    /// Containers by key.
    pub xclbins: BTreeMap<String, XclbinRecord>,
    /// Matrix products by key.
    pub gemms: BTreeMap<String, GemmRecord>,
    /// Matrix by vector products by key.
    pub gemvs: BTreeMap<String, GemvRecord>,
    /// Tokenizer cases.
    pub tokcases: Vec<TokCase>,
    /// Reference runs.
    pub refs: Vec<RefRecord>,
    /// The stream files and the lines that name them.
    pub(super) streams: Vec<(usize, String)>,
    /// The lines of the `xclbin` records.
    pub(super) xclbin_lines: BTreeMap<String, usize>,
    /// Keys of the `gemm` records without `bias=`: the tensors tell.
    pub(super) silent: BTreeSet<String>,
    /// Keys of the `gemv` records without `bias=`: as the `gemm` of the same weights.
    pub(super) silent_gemvs: BTreeSet<String>,
}

/// Most values of a width or a count: keeps every product of three inside 64 bits.
const WIDE: usize = 1 << 20;

impl Manifest {
    /// The kernel that takes the two slices of `mtp.fc`, `D` inputs and outputs each: of `o` and `down` the one with the
    /// fewest inputs; those past `D` are zero.
    #[must_use]
    pub fn speculation_kernel(&self) -> Option<&'static str> {
        let d = self.text.hidden;
        let usable = ["o", "down"].into_iter().filter_map(|key| {
            let gemm = self.gemms.get(key).filter(|gemm| gemm.k >= d && gemm.n == d)?;
            Some((gemm.k, key))
        });
        usable.min_by_key(|(k, _)| *k).map(|(_, key)| key)
    }

    /// Parses the text of a manifest and checks what can be checked without any other file.
    ///
    /// # Errors
    /// The first line that breaks the grammar or a rule, or what is missing.
    pub fn parse(text: &str) -> Result<Self, BundleError> {
        let lines = Lines::read(text)?;
        let (text, vision) = (text_params(&lines)?, vision_params(&lines)?);
        let mut manifest = Self {
            text,
            vision,
            xclbins: BTreeMap::new(),
            gemms: BTreeMap::new(),
            gemvs: BTreeMap::new(),
            tokcases: Vec::new(),
            refs: Vec::new(),
            streams: Vec::new(),
            xclbin_lines: BTreeMap::new(),
            silent: BTreeSet::new(),
            silent_gemvs: BTreeSet::new(),
        };
        for record in &lines.records {
            manifest.take(record)?;
        }
        for record in &lines.records {
            manifest.check_context(record)?;
        }
        // Of two lines about the same weights, the one that speaks.
        for (key, gemv) in &mut manifest.gemvs {
            let Some(gemm) = manifest.gemms.get_mut(key) else { continue };
            match (manifest.silent.contains(key), manifest.silent_gemvs.contains(key)) {
                (true, false) => gemm.bias = gemv.bias,
                (_, true) => gemv.bias = gemm.bias,
                (false, false) => {}
            }
        }
        super::shapes::check(&manifest)?;
        Ok(manifest)
    }

    fn take(&mut self, record: &Record<'_>) -> Result<(), BundleError> {
        match record.tag {
            "xclbin" => self.take_xclbin(record),
            "gemm" => self.take_gemm(record),
            "gemm_chunks" => self.take_chunks(record),
            "gemv" => self.take_gemv(record),
            "tokcase" => self.take_tokcase(record),
            "ref" | "ref2" => self.take_ref(record),
            _ => Ok(()),
        }
    }

    fn take_xclbin(&mut self, record: &Record<'_>) -> Result<(), BundleError> {
        let key = record.field(0, "a key")?.to_owned();
        let path = record.field(1, "a path")?.to_owned();
        let kernel = record.field(2, "a kernel name")?.to_owned();
        if self.xclbin_lines.insert(key.clone(), record.line).is_some() {
            return Err(record.error(format!("a second `xclbin {key}`; expected one")));
        }
        self.xclbins.insert(key.clone(), XclbinRecord { key, path, kernel });
        Ok(())
    }

    fn take_gemm(&mut self, record: &Record<'_>) -> Result<(), BundleError> {
        let key = record.field(0, "a key")?.to_owned();
        if self.gemms.contains_key(&key) {
            return Err(record.error(format!("a second `gemm {key}`; expected one")));
        }
        let ctx = record.key("ctx").unwrap_or("gemm").to_owned();
        let (k, n, b_bytes) = (record.number("K")?, record.number("N")?, record.number("b_bytes")?);
        let format = self.format(record, key.starts_with("v_"))?;
        let bias = record.flag("bias")?;
        if bias.is_none() {
            self.silent.insert(key.clone());
        }
        let gemm = GemmRecord {
            m: record.number("M")?,
            k,
            n,
            lda: record.number("lda")?,
            c_stride: record.number("c_stride")?,
            b_bytes,
            // Until the tensors are known, the size on the line is the best there is.
            bias: bias.unwrap_or(format.stream_bytes(k, n, true) == Some(b_bytes)),
            format,
            chunks: vec![self.stream(record, &ctx)?],
            ctx,
            key: key.clone(),
        };
        gemm_rules(&gemm).map_err(|what| record.error(what))?;
        stream_rules(&gemm, 1).map_err(|what| record.error(what))?;
        self.gemms.insert(key, gemm);
        Ok(())
    }

    fn take_chunks(&mut self, record: &Record<'_>) -> Result<(), BundleError> {
        let key = record.field(0, "the key of a `gemm`")?;
        let count = record.field(1, "a number of chunks")?;
        let Some(gemm) = self.gemms.get(key) else {
            return Err(record.error(format!("no `gemm {key}` above this line")));
        };
        let next = gemm.chunks.len() + 1;
        if count.parse() != Ok(next) {
            return Err(record.error(format!("chunks `{count}`; expected {next}, one more than the record before")));
        }
        let stream = self.stream(record, record.key("ctx").unwrap_or(&gemm.ctx).to_owned().as_str())?;
        // Present: looked up above.
        if let Some(gemm) = self.gemms.get_mut(key) {
            gemm.chunks.push(stream);
            stream_rules(gemm, next).map_err(|what| record.error(what))?;
        }
        Ok(())
    }

    fn stream(&mut self, record: &Record<'_>, ctx: &str) -> Result<StreamRecord, BundleError> {
        let insts = record.required("insts")?.to_owned();
        self.streams.push((record.line, insts.clone()));
        let (a_elems, c_elems) = (record.number("a_elems")?, record.number("c_elems")?);
        Ok(StreamRecord { a_elems, c_elems, ctx: ctx.to_owned(), insts })
    }

    fn take_gemv(&mut self, record: &Record<'_>) -> Result<(), BundleError> {
        let key = record.field(0, "a key")?.to_owned();
        let (m, k, w_words) = (record.number("M")?, record.number("K")?, record.number("w_words")?);
        if m == 0 || k == 0 || m > WIDE || k > WIDE {
            return Err(record.error(format!("M {m} and K {k}; expected from 1 to {WIDE}")));
        }
        let format = self.format(record, false)?;
        let bias = record.flag("bias")?;
        if bias.is_none() {
            self.silent_gemvs.insert(key.clone());
        }
        let bias = bias.unwrap_or(false);
        let insts = record.required("insts")?.to_owned();
        self.streams.push((record.line, insts.clone()));
        let ctx = record.key("ctx").unwrap_or("gemv").to_owned();
        let gemv = GemvRecord { key: key.clone(), m, k, w_words, bias, format, ctx, insts };
        if self.gemvs.insert(key.clone(), gemv).is_some() {
            return Err(record.error(format!("a second `gemv {key}`; expected one")));
        }
        Ok(())
    }

    /// The format of a record's weights: the bundle's. `format=` may only repeat it.
    fn format(&self, record: &Record<'_>, vision: bool) -> Result<WeightFormat, BundleError> {
        let format = match (&self.vision, vision) {
            (Some(vision), true) => vision.format,
            _ => self.text.format,
        };
        match record.key("format") {
            Some(name) if name != format.name() => {
                Err(record.error(format!("`format={name}`; the parameters say `{}`", format.name())))
            }
            _ => Ok(format),
        }
    }

    fn take_tokcase(&mut self, record: &Record<'_>) -> Result<(), BundleError> {
        let hex = record.field(0, "a text in hex")?;
        let text = hex_text(hex).ok_or_else(|| record.error(format!("`{hex}`: expected UTF-8 text in hex, or `-`")))?;
        let list = record.field(1, "a list of ids")?;
        let ids = list.split(',').filter(|id| !id.is_empty()).map(str::parse).collect::<Result<_, _>>();
        let ids = ids.map_err(|_| record.error(format!("`{list}`: expected comma-separated token ids")))?;
        self.tokcases.push(TokCase { text, ids });
        Ok(())
    }

    fn take_ref(&mut self, record: &Record<'_>) -> Result<(), BundleError> {
        let name = record.field(0, "a name")?.to_owned();
        if self.refs.iter().any(|other| other.name == name) {
            return Err(record.error(format!("a second reference run `{name}`; expected one")));
        }
        let hex = |key: &str, value: &str| {
            hex_text(value).ok_or_else(|| record.error(format!("`{key}={value}`: expected UTF-8 text in hex, or `-`")))
        };
        let prompt = hex("prompt", record.required("prompt")?)?;
        let thinking = record.flag("thinking")?.ok_or_else(|| record.error("`ref` needs `thinking=`"))?;
        // `ref` is the format's own record; `ref2` is ours, for what the first cannot say.
        let (images, system) = if record.tag == "ref" {
            (usize::from(record.flag("image")?.unwrap_or(false)), None)
        } else {
            let images = if record.key("images").is_some() { record.number("images")? } else { 0 };
            if images > 64 {
                return Err(record.error(format!("`images={images}`: expected at most 64")));
            }
            (images, record.key("system").map(|value| hex("system", value)).transpose()?)
        };
        if images > 0 && self.vision.is_none() {
            return Err(record.error("a reference run with an image, but the bundle has no vision tower"));
        }
        self.refs.push(RefRecord { name, prompt, system, thinking, images });
        Ok(())
    }

    /// Whether the container that a kernel record names is there. Records may come in any order.
    fn check_context(&self, record: &Record<'_>) -> Result<(), BundleError> {
        let ctx = match record.tag {
            "gemm" => record.key("ctx").unwrap_or("gemm"),
            "gemv" => record.key("ctx").unwrap_or("gemv"),
            "gemm_chunks" => match record.key("ctx") {
                Some(ctx) => ctx,
                None => return Ok(()),
            },
            _ => return Ok(()),
        };
        if self.xclbins.contains_key(ctx) { Ok(()) } else { Err(record.error(format!("there is no `xclbin {ctx}`"))) }
    }
}

/// What one `gemm` record must satisfy by itself.
fn gemm_rules(gemm: &GemmRecord) -> Result<(), String> {
    let GemmRecord { m, k, n, lda, c_stride, .. } = *gemm;
    if [m, k, n, lda, c_stride].iter().any(|value| *value == 0 || *value > WIDE) {
        return Err(format!("M {m}, K {k}, N {n}, lda {lda}, c_stride {c_stride}; expected each from 1 to {WIDE}"));
    }
    if !k.is_multiple_of(512) || !n.is_multiple_of(64) {
        return Err(format!("K {k} and N {n}; expected multiples of 512 and 64"));
    }
    if lda < k {
        return Err(format!("lda {lda} is less than K {k}"));
    }
    if c_stride < gemm.columns() {
        return Err(format!("c_stride {c_stride} is less than the {} columns of C", gemm.columns()));
    }
    Ok(())
}

/// The views of the stream for `count` chunks hold at least the elements of its rows. How much more they hold is theirs:
/// rows may be spare, or padded. What the stream itself reaches is compared when it is read.
fn stream_rules(gemm: &GemmRecord, count: usize) -> Result<(), String> {
    let (stream, rows) = (&gemm.chunks[count - 1], count * gemm.m);
    for (name, elems, stride, used) in
        [("a_elems", stream.a_elems, gemm.lda, gemm.k), ("c_elems", stream.c_elems, gemm.c_stride, gemm.columns())]
    {
        let least = (rows - 1) * stride + used;
        if elems < least {
            return Err(format!("{name} {elems} for {rows} rows of stride {stride}; expected at least {least}"));
        }
    }
    Ok(())
}

fn text_params(lines: &Lines<'_>) -> Result<TextParams, BundleError> {
    let layers: Vec<String> = lines.list("layer_types", "`lin` and `att`")?;
    let kind = |name: &String| match name.as_str() {
        "lin" => Some(LayerKind::Linear),
        "att" => Some(LayerKind::Attention),
        _ => None,
    };
    let layers: Option<Vec<LayerKind>> = layers.iter().map(kind).collect();
    let layers = layers
        .filter(|layers| !layers.is_empty() && layers.len() <= 1024)
        .ok_or_else(|| lines.param_error("layer_types", "1 to 1024 of `lin` and `att`, comma-separated"))?;
    let mrope_section = if lines.has("mrope_section") {
        let sections: Vec<usize> = lines.list("mrope_section", "three counts")?;
        sections.try_into().map_err(|_| lines.param_error("mrope_section", "three counts"))?
    } else {
        [0; 3]
    };
    let format = match lines.optional("gemv_format") {
        None => WeightFormat::Bfp16,
        Some(name) => {
            WeightFormat::from_name(name).ok_or_else(|| lines.param_error("gemv_format", "bfp16, bfp6s or f32"))?
        }
    };
    let untied = match lines.optional("embed") {
        None | Some("0") => false,
        Some("1") => true,
        Some(_) => return Err(lines.param_error("embed", "0 or 1")),
    };
    let hidden = lines.count("D", WIDE)?;
    let lin_key_heads = lines.count("lin_heads", 4096)?;
    Ok(TextParams {
        layers,
        hidden,
        intermediate: lines.count("I", WIDE)?,
        vocab: lines.count("vocab", 1 << 24)?,
        eps: lines.positive("eps")?,
        heads: lines.count("heads", 4096)?,
        kv_heads: lines.count("kv_heads", 4096)?,
        head_dim: lines.count("hd", 4096)?,
        rope_dim: lines.count("rope_dim", 4096)?,
        rope_theta: lines.positive("rope_theta")?,
        mrope_section,
        lin_key_heads,
        lin_value_heads: lines.count_or("lin_vheads", 4096, lin_key_heads)?,
        lin_key_dim: lines.count("lin_hk", 4096)?,
        lin_value_dim: lines.count("lin_hv", 4096)?,
        conv_kernel: lines.count("conv_k", 64)?,
        chunk: lines.count("chunk", 1 << 16)?,
        max_prompt: lines.count("max_prompt", WIDE)?,
        down_slices: lines.count("n_down", 256)?,
        down_k: lines.count_or("down_k", WIDE, hidden)?,
        o_k: lines.count_or("o_k", WIDE, hidden)?,
        head_rows: lines.count("head_rows", WIDE)?,
        head_parts: lines.count("n_head", 4096)?,
        untied,
        stop: lines.list("stop", "token ids")?,
        format,
    })
}

fn vision_params(lines: &Lines<'_>) -> Result<Option<VisionParams>, BundleError> {
    if !lines.has("v.D") {
        return Ok(None);
    }
    let format = match lines.optional("v.weights") {
        None | Some("w8" | "bfp16x2") => WeightFormat::Bfp16,
        Some("f32") => WeightFormat::F32,
        Some(_) => return Err(lines.param_error("v.weights", "w8, bfp16x2 or f32")),
    };
    Ok(Some(VisionParams {
        hidden: lines.count("v.D", WIDE)?,
        intermediate: lines.count("v.I", WIDE)?,
        depth: lines.count("v.depth", 1024)?,
        heads: lines.count("v.heads", 4096)?,
        patch: lines.count("v.patch", 256)?,
        merge: lines.count("v.merge", 16)?,
        out: lines.count("v.out", WIDE)?,
        pos_side: lines.count("v.pos_side", 4096)?,
        rope_theta: lines.positive("v.rope_theta")?,
        image_token: lines.id("v.image_token")?,
        vision_start: lines.id("v.vision_start")?,
        vision_end: lines.id("v.vision_end")?,
        min_pixels: lines.count("v.min_pixels", 1 << 30)?,
        max_pixels: lines.count("v.max_pixels", 1 << 30)?,
        max_patches: lines.count("v.max_patches", WIDE)?,
        fc2_slices: lines.count_or("v.fc2_slices", 256, 4)?,
        merger_slices: lines.count_or("v.m_slices", 256, 4)?,
        format,
    }))
}
