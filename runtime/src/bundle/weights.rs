//! What packed weights are, by their tensors: their size, and whether they have bias chunks.

use super::error::BundleError;
use super::manifest::Manifest;
use super::params::WeightFormat;
use super::tensors::TensorFile;

/// Puts the size of the smallest tensor of each kernel into its record, and whether it has biases where its line does not
/// say so. A tensor that is too short for its record's shape is an error; one that is longer is the kernel's business.
pub(super) fn settle(manifest: &mut Manifest, tensors: &TensorFile) -> Result<(), BundleError> {
    let names = names(manifest);
    for (key, names) in &names {
        let Some(gemm) = manifest.gemms.get_mut(*key) else { continue };
        let Some((name, bytes)) = smallest(tensors, names) else { continue };
        let sizes = [false, true].map(|bias| gemm.format.stream_bytes(gemm.k, gemm.n, bias));
        if manifest.silent.contains(*key) {
            // A tower may keep a high and a low part of every weight (`bfp16x2`), and its biases in one or in both.
            let weights = sizes[0].filter(|_| key.starts_with("v_")).unwrap_or(0);
            let [without, with] = sizes.map(|size| {
                let parts = |size: usize| [size, size.saturating_add(weights), size.saturating_mul(2)];
                size.is_some_and(|size| size == bytes || weights > 0 && parts(size).contains(&bytes))
            });
            if !without && !with {
                let what = format!(
                    "{bytes} bytes are neither {} x {} without biases nor with; the line `gemm {key}` has to say which \
                     (bias=0 or bias=1)",
                    gemm.k, gemm.n
                );
                return Err(BundleError::Tensor { name: name.to_owned(), what });
            }
            gemm.bias = with;
        }
        let what = format!("`gemm {key}`, {} x {}{}", gemm.k, gemm.n, if gemm.bias { " with biases" } else { "" });
        at_least(name, bytes, sizes[usize::from(gemm.bias)], &what, gemm.format)?;
        gemm.b_bytes = bytes;
        // The GEMV reads the same buffers.
        if let Some(gemv) = manifest.gemvs.get_mut(*key) {
            if !manifest.silent_gemvs.contains(*key) && gemv.bias != gemm.bias {
                let what = format!("`gemv {key}` and `gemm {key}` disagree on biases; they read the same weights");
                return Err(BundleError::Manifest { what });
            }
            (gemv.bias, gemv.w_words) = (gemm.bias, bytes / 4);
        }
    }
    let parts = manifest.text.head_parts;
    let mut heads: Vec<String> = (0..parts).map(|part| format!("head{part}")).collect();
    if manifest.text.untied {
        heads.extend((0..parts).map(|part| format!("embed{part}")));
    }
    if let (Some(head), Some((name, bytes))) = (manifest.gemvs.get_mut("head"), smallest(tensors, &heads)) {
        let needed = head.format.stream_bytes(head.k, head.m, false);
        at_least(name, bytes, needed, &format!("`gemv head`, {} x {}", head.m, head.k), head.format)?;
        head.w_words = bytes / 4;
    }
    Ok(())
}

/// The smallest of these tensors, of those that are there: whether all are is checked elsewhere.
fn smallest<'n>(tensors: &TensorFile, names: &'n [String]) -> Option<(&'n str, usize)> {
    let sizes = names.iter().filter_map(|name| Some((name.as_str(), tensors.entry(name)?.bytes)));
    sizes.min_by_key(|(_, bytes)| *bytes)
}

fn at_least(
    name: &str,
    bytes: usize,
    needed: Option<usize>,
    what: &str,
    format: WeightFormat,
) -> Result<(), BundleError> {
    // Long enough is not enough where another format would be just as long.
    let nine_bits = needed.filter(|_| format == WeightFormat::Bfp6s).map(|needed| needed / 13 * 18);
    if nine_bits == Some(bytes) {
        let what = format!("{bytes} bytes; {what}, takes as many in bfp16, but `param gemv_format` says bfp6s");
        return Err(BundleError::Tensor { name: name.to_owned(), what });
    }
    match needed {
        Some(needed) if bytes >= needed => Ok(()),
        needed => {
            let needed = needed.map_or("no whole number of".to_owned(), |needed| format!("at least {needed}"));
            let what = format!("{bytes} bytes; {what}, takes {needed} bytes in {}", format.name());
            Err(BundleError::Tensor { name: name.to_owned(), what })
        }
    }
}

/// The packed tensors of each `gemm` record.
fn names(manifest: &Manifest) -> Vec<(&'static str, Vec<String>)> {
    let text = &manifest.text;
    let layers = || 0..text.layers.len();
    let mut all: Vec<(&'static str, Vec<String>)> = Vec::new();
    for key in ["lin", "att"] {
        let of_kind = layers().filter(|&index| text.layers[index].key() == key);
        all.push((key, of_kind.map(|index| format!("l{index}.g.in")).collect()));
    }
    for key in ["o", "gu"] {
        all.push((key, layers().map(|index| format!("l{index}.g.{key}")).collect()));
    }
    let down = layers().flat_map(|index| (0..text.down_slices).map(move |slice| format!("l{index}.g.down{slice}")));
    all.push(("down", down.collect()));
    // The head for speculation, where there is one.
    for (key, names) in &mut all {
        match *key {
            "att" => names.push("mtp.g.in".to_owned()),
            "o" | "gu" => names.push(format!("mtp.g.{key}")),
            "down" => names.extend((0..text.down_slices).map(|slice| format!("mtp.g.down{slice}"))),
            _ => {}
        }
        if manifest.speculation_kernel() == Some(*key) {
            names.extend(["mtp.g.fc0".to_owned(), "mtp.g.fc1".to_owned()]);
        }
    }
    let Some(vision) = &manifest.vision else { return all };
    let blocks = || 0..vision.depth;
    let merger = |name: &str| (0..vision.merger_slices).map(|slice| format!("vis.{name}.{slice}")).collect();
    all.push(("v_patch", vec!["vis.patch".to_owned()]));
    for (key, part) in [("v_qkv", "qkv"), ("v_proj", "proj"), ("v_fc1", "fc1")] {
        all.push((key, blocks().map(|block| format!("vis.b{block}.{part}")).collect()));
    }
    let fc2 = blocks().flat_map(|block| (0..vision.fc2_slices).map(move |slice| format!("vis.b{block}.fc2.{slice}")));
    all.push(("v_fc2", fc2.collect()));
    all.push(("v_m1", merger("m1")));
    all.push(("v_m2", merger("m2")));
    all
}
