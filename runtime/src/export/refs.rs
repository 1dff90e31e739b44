//! Reference runs: a folder made with transformers becomes `ref` records and tensors.
//!
//! The folder has an `index.json` with `cases` (name, file, message, system, thinking, images), `images` (file) and
//! `tokenizer` (text, ids), and the safetensors files they name. A case file holds `ids`, `tokens`, `top_ids` and
//! `top_logits`, perhaps `positions` and `next_pos`; an image file holds `rgb`, `grid`, `patches` and `vision`.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::safetensors::{Element, Source, Tensors};
use super::writer::Job;
use super::{ExportError, json};
use crate::bundle::{DType, RefRecord, TokCase};

/// Everything a folder of reference runs gives.
#[derive(Debug)]
pub(super) struct References {
    pub(super) tokcases: Vec<TokCase>,
    pub(super) refs: Vec<RefRecord>,
    files: BTreeMap<String, Tensors>,
    /// For each run, the file of the case and those of its images.
    sources: Vec<(String, Vec<String>)>,
}

impl References {
    /// Reads the index and opens the files. Runs with images are left out if there is no tower.
    pub(super) fn read(dir: &Path, vision: bool) -> Result<Self, ExportError> {
        let path = dir.join("index.json");
        let index = json(&path)?;
        let wrong = |what: String| ExportError(format!("{}: {what}", path.display()));
        let mut all = Self { tokcases: Vec::new(), refs: Vec::new(), files: BTreeMap::new(), sources: Vec::new() };
        for case in index.get("tokenizer").and_then(Value::as_array).unwrap_or(&Vec::new()) {
            let case =
                tokcase(case).ok_or_else(|| wrong(format!("tokenizer case {case}; expected `text` and `ids`")))?;
            all.tokcases.push(case);
        }
        let cases =
            index.get("cases").and_then(Value::as_array).ok_or_else(|| wrong("no list of `cases`".to_owned()))?;
        for case in cases {
            let (record, file, images) = reference(case).map_err(&wrong)?;
            if record.images > 0 && !vision {
                continue;
            }
            let images: Vec<String> = images
                .iter()
                .map(|image| {
                    let file = index.get("images").and_then(|images| images.get(image)?.get("file")?.as_str());
                    file.map(str::to_owned).ok_or_else(|| wrong(format!("no file for image `{image}`")))
                })
                .collect::<Result<_, _>>()?;
            for file in images.iter().chain([&file]) {
                if !all.files.contains_key(file) {
                    if file.contains(['/', '\\']) || file.starts_with('.') {
                        return Err(wrong(format!("`{file}`; expected the name of a file beside the index")));
                    }
                    all.files.insert(file.clone(), Tensors::file(&dir.join(file))?);
                }
            }
            all.refs.push(record);
            all.sources.push((file, images));
        }
        Ok(all)
    }

    /// The jobs of all runs.
    pub(super) fn jobs(&self) -> Result<Vec<Job<'_>>, ExportError> {
        let mut jobs = Vec::new();
        for (record, (file, images)) in self.refs.iter().zip(&self.sources) {
            let case = &self.files[file];
            for what in ["ids", "tokens", "top_ids", "top_logits"] {
                jobs.push(job(record.tensor(what), case.get(what)?)?);
            }
            for what in ["positions", "next_pos"] {
                if case.has(what) {
                    jobs.push(job(record.tensor(what), case.get(what)?)?);
                }
            }
            for (index, file) in images.iter().enumerate() {
                for what in ["rgb", "patches", "grid", "vision"] {
                    jobs.push(job(record.image_tensor(what, index), self.files[file].get(what)?)?);
                }
            }
        }
        Ok(jobs)
    }
}

/// A tensor as it is in its file.
fn job(name: String, source: &Source) -> Result<Job<'_>, ExportError> {
    let dtype = match source.element {
        Element::F32 => DType::F32,
        Element::I32 => DType::I32,
        Element::U8 => DType::U8,
        Element::Bf16 => DType::Bf16,
        Element::F16 => return Err(ExportError(format!("`{name}` is F16; expected F32, BF16, I32 or U8"))),
    };
    let fill = Box::new(move |_: &_, out: &mut [u8]| {
        out.copy_from_slice(&source.bytes()?);
        Ok(None)
    });
    Ok(Job::new(name, dtype, &source.shape, fill))
}

fn tokcase(case: &Value) -> Option<TokCase> {
    let ids = case.get("ids")?.as_array()?;
    let ids = ids.iter().map(|id| u32::try_from(id.as_u64()?).ok()).collect::<Option<Vec<u32>>>()?;
    Some(TokCase { text: case.get("text")?.as_str()?.to_owned(), ids })
}

/// The record of a case, its file and its images.
fn reference(case: &Value) -> Result<(RefRecord, String, Vec<String>), String> {
    let text = |key: &str| case.get(key).and_then(Value::as_str).map(str::to_owned);
    let name = text("name").ok_or("a case without a `name`")?;
    if name.is_empty() || name.contains(|c: char| c.is_whitespace() || c == '=') {
        return Err(format!("case name `{name}`; expected one word"));
    }
    let missing = |key: &str| format!("case `{name}` has no `{key}`");
    let images = case.get("images").and_then(Value::as_array);
    let images = images.map_or(Ok(Vec::new()), |images| {
        let names: Option<Vec<String>> = images.iter().map(|image| image.as_str().map(str::to_owned)).collect();
        names.ok_or_else(|| format!("case `{name}`: `images` is no list of names"))
    })?;
    let record = RefRecord {
        prompt: text("message").ok_or_else(|| missing("message"))?,
        system: text("system"),
        thinking: case.get("thinking").and_then(Value::as_bool).ok_or_else(|| missing("thinking"))?,
        images: images.len(),
        name: name.clone(),
    };
    Ok((record, text("file").ok_or_else(|| missing("file"))?, images))
}
