//! Whether every tensor that the manifest calls for is there, with its type, shape and size.

use super::error::BundleError;
use super::manifest::Manifest;
use super::params::{LayerKind, VisionParams};
use super::records::RefRecord;
use super::tensors::{DType, Entry, TensorFile};

/// Checks all of them.
pub(super) fn check(manifest: &Manifest, tensors: &TensorFile) -> Result<(), BundleError> {
    let check = Check { manifest, tensors };
    check.text()?;
    check.speculation()?;
    if let Some(vision) = &manifest.vision {
        check.vision(vision)?;
    }
    manifest.refs.iter().try_for_each(|reference| check.reference(reference))
}

struct Check<'a> {
    manifest: &'a Manifest,
    tensors: &'a TensorFile,
}

fn wrong(name: &str, what: String) -> BundleError {
    BundleError::Tensor { name: name.to_owned(), what }
}

fn dims(shape: &[usize]) -> String {
    let dims: Vec<String> = shape.iter().map(ToString::to_string).collect();
    format!("[{}]", dims.join(", "))
}

impl Check<'_> {
    fn entry(&self, name: &str) -> Result<&Entry, BundleError> {
        self.tensors
            .entry(name)
            .ok_or_else(|| wrong(name, "missing from tensors.txt, but the manifest needs it".into()))
    }

    /// A tensor of this type and shape; axes of length one do not count.
    fn plain(&self, name: &str, dtype: DType, shape: &[usize]) -> Result<(), BundleError> {
        let entry = self.entry(name)?;
        let long = |shape: &[usize]| shape.iter().copied().filter(|dim| *dim != 1).collect::<Vec<_>>();
        if entry.dtype != dtype || long(&entry.shape) != long(shape) {
            let (found, wanted) = (dims(&entry.shape), dims(shape));
            return Err(wrong(name, format!("{} {found}; expected {} {wanted}", entry.dtype.name(), dtype.name())));
        }
        Ok(())
    }

    fn f32(&self, name: &str, shape: &[usize]) -> Result<(), BundleError> {
        self.plain(name, DType::F32, shape)
    }

    /// Packed weights, whatever type they are listed with. Their sizes have been compared with their records.
    fn packed(&self, name: &str) -> Result<(), BundleError> {
        self.entry(name).map(|_| ())
    }

    fn text(&self) -> Result<(), BundleError> {
        let text = &self.manifest.text;
        let d = text.hidden;
        for (index, kind) in text.layers.iter().enumerate() {
            let packed = |part: &str| self.packed(&format!("l{index}.g.{part}"));
            let host = |part: &str, shape: &[usize]| self.f32(&format!("l{index}.h.{part}"), shape);
            packed("in")?;
            packed("o")?;
            packed("gu")?;
            for slice in 0..text.down_slices {
                packed(&format!("down{slice}"))?;
            }
            host("ln1", &[d])?;
            host("ln2", &[d])?;
            match kind {
                LayerKind::Linear => {
                    let heads = text.lin_value_heads;
                    host("ba", &[2 * heads, d])?;
                    host("conv", &[text.conv_channels(), text.conv_kernel])?;
                    host("A", &[heads])?;
                    host("dt_bias", &[heads])?;
                    host("norm", &[text.lin_value_dim])?;
                }
                LayerKind::Attention => {
                    host("q_norm", &[text.head_dim])?;
                    host("k_norm", &[text.head_dim])?;
                }
            }
        }
        self.f32("ln_f", &[d])?;
        for part in 0..text.head_parts {
            self.packed(&format!("head{part}"))?;
            if text.untied {
                self.packed(&format!("embed{part}"))?;
            }
        }
        Ok(())
    }

    /// The head for speculation: all of it, or none.
    fn speculation(&self) -> Result<(), BundleError> {
        let text = &self.manifest.text;
        if !self.tensors.names().any(|name| name.starts_with("mtp.")) {
            return Ok(());
        }
        let packed = ["in", "o", "gu", "fc0", "fc1"].map(str::to_owned).into_iter();
        for part in packed.chain((0..text.down_slices).map(|slice| format!("down{slice}"))) {
            self.packed(&format!("mtp.g.{part}"))?;
        }
        let host = |part: &str, width: usize| self.f32(&format!("mtp.h.{part}"), &[width]);
        ["ln1", "ln2", "ln_e", "ln_h", "ln_f"].into_iter().try_for_each(|part| host(part, text.hidden))?;
        ["q_norm", "k_norm"].into_iter().try_for_each(|part| host(part, text.head_dim))
    }

    fn vision(&self, vision: &VisionParams) -> Result<(), BundleError> {
        let d = vision.hidden;
        let slices =
            |name: &str, count: usize| (0..count).try_for_each(|slice| self.packed(&format!("{name}.{slice}")));
        self.packed("vis.patch")?;
        self.factors("vis.patch", "v_patch")?;
        self.f32("vis.pos", &[vision.pos_side * vision.pos_side, d])?;
        for block in 0..vision.depth {
            let name = |part: &str| format!("vis.b{block}.{part}");
            for part in ["ln1_w", "ln1_b", "ln2_w", "ln2_b"] {
                self.f32(&name(part), &[d])?;
            }
            self.packed(&name("qkv"))?;
            self.packed(&name("proj"))?;
            self.packed(&name("fc1"))?;
            slices(&name("fc2"), vision.fc2_slices)?;
            for (part, key) in [("qkv", "v_qkv"), ("proj", "v_proj"), ("fc1", "v_fc1"), ("fc2", "v_fc2")] {
                self.factors(&name(part), key)?;
            }
        }
        self.one_epilogue(vision)?;
        self.f32("vis.m_ln_w", &[d])?;
        self.f32("vis.m_ln_b", &[d])?;
        for (name, key) in [("vis.m1", "v_m1"), ("vis.m2", "v_m2")] {
            slices(name, vision.merger_slices)?;
            self.factors(name, key)?;
        }
        Ok(())
    }

    /// The GELU behind `fc1` is the host's where there are factors and the kernel's where there are none, and the kernel
    /// is the same for all blocks: of two sorts, one would get GELU twice or never.
    fn one_epilogue(&self, vision: &VisionParams) -> Result<(), BundleError> {
        let name = |block: usize| format!("vis.b{block}.fc1.f");
        let has = |block: &usize| self.tensors.entry(&name(*block)).is_some();
        match (0..vision.depth).find(|block| has(block) != has(&0)) {
            None => Ok(()),
            Some(block) => {
                let (with, without) = if has(&0) { (0, block) } else { (block, 0) };
                let what = format!(
                    "`{}` is there; expected both or none, since one kernel, `gemm v_fc1`, applies GELU to all blocks or to \
                     none",
                    name(with)
                );
                Err(wrong(&name(without), what))
            }
        }
    }

    /// The factors of a weight, if it has any: one a column.
    fn factors(&self, weight: &str, key: &str) -> Result<(), BundleError> {
        let name = format!("{weight}.f");
        let columns = self.manifest.gemms.get(key).map_or(0, |gemm| gemm.n);
        if self.tensors.entry(&name).is_some() { self.f32(&name, &[columns]) } else { Ok(()) }
    }

    fn reference(&self, reference: &RefRecord) -> Result<(), BundleError> {
        let vocab = self.manifest.text.vocab;
        let flat = |what: &str| -> Result<usize, BundleError> {
            let name = reference.tensor(what);
            let entry = self.entry(&name)?;
            let count: usize = entry.shape.iter().product();
            if entry.dtype != DType::I32 || count == 0 {
                return Err(wrong(
                    &name,
                    format!("{} {}; expected i32, not empty", entry.dtype.name(), dims(&entry.shape)),
                ));
            }
            self.ids(&name, vocab)?;
            Ok(count)
        };
        flat("ids")?;
        let (steps, top) = (flat("tokens")?, flat("top_ids")?);
        if !top.is_multiple_of(steps) || top / steps < 2 {
            let what = format!("{top} ids for {steps} steps; expected the same number, two or more, for each step");
            return Err(wrong(&reference.tensor("top_ids"), what));
        }
        let logits = reference.tensor("top_logits");
        let entry = self.entry(&logits)?;
        if entry.dtype != DType::F32 || entry.bytes != top * 4 {
            return Err(wrong(&logits, format!("expected f32, {top} values as in top_ids")));
        }
        let Some(vision) = &self.manifest.vision else { return Ok(()) };
        (0..reference.images).try_for_each(|image| self.image(reference, image, vision))
    }

    fn ids(&self, name: &str, vocab: usize) -> Result<(), BundleError> {
        let ids = self.tensors.get(name)?.i32s().unwrap_or(&[]);
        match ids.iter().find(|id| usize::try_from(**id).map_or(true, |id| id >= vocab)) {
            Some(id) => Err(wrong(name, format!("token {id} is not in a vocabulary of {vocab}"))),
            None => Ok(()),
        }
    }

    fn image(&self, reference: &RefRecord, image: usize, vision: &VisionParams) -> Result<(), BundleError> {
        let name = |what: &str| reference.image_tensor(what, image);
        let rgb = self.entry(&name("rgb"))?;
        if rgb.dtype != DType::U8 || rgb.shape.len() != 3 || rgb.shape[2] != 3 || rgb.bytes == 0 {
            return Err(wrong(
                &name("rgb"),
                format!("{} {}; expected u8 [H, W, 3]", rgb.dtype.name(), dims(&rgb.shape)),
            ));
        }
        self.plain(&name("grid"), DType::I32, &[2])?;
        let grid = self.tensors.get(&name("grid"))?.i32s().unwrap_or(&[]);
        let side = |index: usize| {
            let side = grid.get(index).and_then(|side| usize::try_from(*side).ok());
            side.filter(|side| *side > 0 && side.is_multiple_of(vision.merge))
        };
        let patches = side(0).zip(side(1)).and_then(|(rows, columns)| rows.checked_mul(columns));
        let patches = patches.ok_or_else(|| {
            wrong(
                &name("grid"),
                format!("{grid:?}; expected rows and columns of patches that merge by {}", vision.merge),
            )
        })?;
        self.f32(&name("patches"), &[patches, vision.patch_values()])?;
        self.f32(&name("vision"), &[patches / vision.merged(), vision.out])
    }
}
