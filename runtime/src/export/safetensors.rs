//! Checkpoint files: `model.safetensors`, alone or in shards.
//!
//! A safetensors file is a length (u64), a JSON header that names the tensors, and their bytes. Files are read with
//! `pread`, a row at a time: memory stays small whatever the size of the checkpoint, and a file that shrinks gives an
//! error.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use super::ExportError;
use crate::files;

/// The format's own limit for a header.
const LONGEST_HEADER: u64 = 100_000_000;

/// Element type in a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Element {
    F32,
    Bf16,
    F16,
    I32,
    U8,
}

impl Element {
    fn from_name(name: &str) -> Option<Self> {
        match name {
            "F32" => Some(Self::F32),
            "BF16" => Some(Self::Bf16),
            "F16" => Some(Self::F16),
            "I32" => Some(Self::I32),
            "U8" => Some(Self::U8),
            _ => None,
        }
    }

    fn size(self) -> usize {
        match self {
            Self::F32 | Self::I32 => 4,
            Self::Bf16 | Self::F16 => 2,
            Self::U8 => 1,
        }
    }
}

/// A tensor of a checkpoint.
#[derive(Debug, Clone)]
pub(super) struct Source {
    pub(super) name: String,
    pub(super) element: Element,
    pub(super) shape: Vec<usize>,
    file: Arc<(PathBuf, File)>,
    offset: u64,
}

impl Source {
    pub(super) fn count(&self) -> usize {
        self.shape.iter().product()
    }

    /// Reads elements `from..from + out.len()` as f32.
    pub(super) fn read(&self, from: usize, out: &mut [f32]) -> io::Result<()> {
        let size = self.element.size();
        let mut bytes = vec![0_u8; out.len() * size];
        self.file.1.read_exact_at(&mut bytes, self.offset + (from * size) as u64)?;
        match self.element {
            Element::F32 => {
                for (value, bytes) in out.iter_mut().zip(bytes.chunks_exact(4)) {
                    *value = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                }
            }
            Element::Bf16 => {
                for (value, bytes) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                    *value = half::bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32();
                }
            }
            Element::F16 => {
                for (value, bytes) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                    *value = half::f16::from_le_bytes([bytes[0], bytes[1]]).to_f32();
                }
            }
            Element::I32 | Element::U8 => {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "integers where floats were expected"));
            }
        }
        Ok(())
    }

    /// All elements as f32.
    pub(super) fn f32s(&self) -> Result<Vec<f32>, ExportError> {
        let mut out = vec![0.0; self.count()];
        self.read(0, &mut out).map_err(|error| self.failed(&error))?;
        Ok(out)
    }

    /// The bytes as they lie in the file.
    pub(super) fn bytes(&self) -> Result<Vec<u8>, ExportError> {
        let mut out = vec![0; self.count() * self.element.size()];
        self.file.1.read_exact_at(&mut out, self.offset).map_err(|error| self.failed(&error))?;
        Ok(out)
    }

    pub(super) fn failed(&self, error: &io::Error) -> ExportError {
        ExportError(format!("cannot read tensor `{}` from {}: {error}", self.name, self.file.0.display()))
    }
}

/// The tensors of one or more files.
#[derive(Debug, Default)]
pub(super) struct Tensors {
    sources: BTreeMap<String, Source>,
    /// Tensors of a type that no weight of the model has, and that type.
    others: BTreeMap<String, String>,
    place: PathBuf,
}

impl Tensors {
    /// Opens the weights in directory `dir`.
    pub(super) fn checkpoint(dir: &Path) -> Result<Self, ExportError> {
        let index = dir.join("model.safetensors.index.json");
        if !index.exists() {
            let single = dir.join("model.safetensors");
            if !single.exists() {
                return Err(ExportError(format!(
                    "{} has neither model.safetensors nor model.safetensors.index.json",
                    dir.display()
                )));
            }
            return Self::file(&single);
        }
        let map = super::json(&index)?;
        let map = map.get("weight_map").and_then(Value::as_object);
        let map = map.ok_or_else(|| ExportError(format!("{}: no `weight_map`", index.display())))?;
        let mut shards: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (tensor, file) in map {
            let file = file.as_str().unwrap_or("");
            if file.is_empty() || file.contains(['/', '\\']) || file == ".." {
                return Err(ExportError(format!(
                    "{}: `{tensor}` is in `{file}`; expected a file name",
                    index.display()
                )));
            }
            shards.entry(file).or_default().push(tensor);
        }
        let mut all = Self { place: index.clone(), ..Self::default() };
        for (file, names) in shards {
            let mut shard = Self::file(&dir.join(file))?;
            for name in names {
                match (shard.sources.remove(name), shard.others.remove(name)) {
                    (Some(source), _) => drop(all.sources.insert(name.to_owned(), source)),
                    (None, Some(dtype)) => drop(all.others.insert(name.to_owned(), dtype)),
                    (None, None) => {
                        let index = index.display();
                        return Err(ExportError(format!(
                            "{index} puts `{name}` into {file}, which has no such tensor"
                        )));
                    }
                }
            }
        }
        Ok(all)
    }

    /// Opens one file.
    pub(super) fn file(path: &Path) -> Result<Self, ExportError> {
        let wrong = |what: String| ExportError(format!("{}: {what}", path.display()));
        let mut file = files::open(path).map_err(|error| wrong(format!("cannot open: {error}")))?;
        let meta = file.metadata().map_err(|error| wrong(format!("cannot look at: {error}")))?;
        let mut length = [0; 8];
        file.read_exact(&mut length).map_err(|_| wrong("shorter than a safetensors header".to_owned()))?;
        if length.starts_with(b"version ") {
            return Err(wrong("a Git LFS pointer, not the file itself; fetch the large files first".to_owned()));
        }
        let length = u64::from_le_bytes(length);
        let start = length.checked_add(8).filter(|start| *start <= meta.len() && length <= LONGEST_HEADER);
        let start =
            start.ok_or_else(|| wrong(format!("a header of {length} bytes; not a safetensors file, or cut short")))?;
        let mut header = vec![0; length as usize];
        file.read_exact(&mut header).map_err(|error| wrong(format!("cannot read the header: {error}")))?;
        let header: Value = serde_json::from_slice(&header).map_err(|error| wrong(format!("bad header: {error}")))?;
        let header = header.as_object().ok_or_else(|| wrong("the header is no JSON object".to_owned()))?;
        let file = Arc::new((path.to_owned(), file));
        let (mut sources, mut others) = (BTreeMap::new(), BTreeMap::new());
        for (name, entry) in header.iter().filter(|(name, _)| *name != "__metadata__") {
            let source = source(name, entry, &file, start, meta.len())
                .map_err(|what| wrong(format!("tensor `{name}`: {what}")))?;
            // A type that no weight of the model has is passed over until somebody asks for the tensor.
            match source {
                Ok(source) => drop(sources.insert(name.clone(), source)),
                Err(dtype) => drop(others.insert(name.clone(), dtype)),
            }
        }
        Ok(Self { sources, others, place: path.to_owned() })
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.sources.contains_key(name)
    }

    pub(super) fn get(&self, name: &str) -> Result<&Source, ExportError> {
        let place = self.place.display();
        self.sources.get(name).ok_or_else(|| match self.others.get(name) {
            Some(dtype) => ExportError(format!(
                "{place}: tensor `{name}` is {dtype}; expected F32, BF16 or F16: export from the checkpoint that is not \
                 quantised"
            )),
            None => ExportError(format!("{place} has no tensor `{name}`")),
        })
    }

    /// A tensor that must have this shape.
    pub(super) fn shaped(&self, name: &str, shape: &[usize]) -> Result<&Source, ExportError> {
        let source = self.get(name)?;
        if source.shape == shape {
            Ok(source)
        } else {
            Err(ExportError(format!("tensor `{name}` is {:?}; the configuration says {shape:?}", source.shape)))
        }
    }
}

/// One entry of a header, or the name of an element type we know nothing about.
fn source(
    name: &str,
    entry: &Value,
    file: &Arc<(PathBuf, File)>,
    start: u64,
    size: u64,
) -> Result<Result<Source, String>, String> {
    let dtype = entry.get("dtype").and_then(Value::as_str).ok_or("no `dtype`")?;
    let Some(element) = Element::from_name(dtype) else { return Ok(Err(dtype.to_owned())) };
    let numbers = |key: &str| -> Option<Vec<u64>> {
        entry.get(key)?.as_array()?.iter().map(|value| value.as_u64().filter(|value| *value < 1 << 48)).collect()
    };
    let shape = numbers("shape").ok_or("no `shape` of whole numbers")?;
    let offsets =
        numbers("data_offsets").filter(|offsets| offsets.len() == 2).ok_or("no `data_offsets` of two numbers")?;
    let shape: Vec<usize> = shape.into_iter().map(|dim| dim as usize).collect();
    let bytes = shape.iter().try_fold(element.size(), |product, dim| product.checked_mul(*dim));
    if bytes.map(|bytes| bytes as u64) != offsets[1].checked_sub(offsets[0]) {
        return Err(format!("{shape:?} {dtype} does not fill data_offsets {offsets:?}"));
    }
    if start + offsets[1] > size {
        return Err(format!("ends at byte {} of a file of {size}; the file is cut short", start + offsets[1]));
    }
    Ok(Ok(Source { name: name.to_owned(), element, shape, file: Arc::clone(file), offset: start + offsets[0] }))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// What the reader says of a file with this header and this many bytes of data.
    fn opened(name: &str, header: &str, data: usize) -> Result<Tensors, String> {
        let path = std::env::temp_dir().join(format!("{name}-{}.safetensors", std::process::id()));
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        file.resize(file.len() + data, 0x3F);
        fs::write(&path, file).unwrap();
        let outcome = Tensors::file(&path).map_err(|error| error.0);
        fs::remove_file(&path).unwrap();
        outcome
    }

    #[test]
    fn element_types() {
        let header = r#"{"__metadata__":{"format":"pt"},
            "a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
            "b":{"dtype":"BF16","shape":[2],"data_offsets":[4,8]},
            "c":{"dtype":"F16","shape":[2],"data_offsets":[8,12]},
            "d":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[12,16]}}"#;
        let tensors = opened("types", header, 16).unwrap();
        assert_eq!(tensors.get("a").unwrap().f32s().unwrap(), [f32::from_bits(0x3F3F_3F3F)]);
        assert_eq!(tensors.get("b").unwrap().f32s().unwrap(), [f32::from_bits(0x3F3F_0000); 2]);
        assert_eq!(tensors.get("c").unwrap().f32s().unwrap(), [1.811_523_4; 2]);
        assert!(tensors.get("d").unwrap_err().0.contains("tensor `d` is F8_E4M3; expected F32, BF16 or F16"));
        assert!(tensors.get("e").unwrap_err().0.ends_with("has no tensor `e`"));
        let message = tensors.shaped("b", &[1, 2]).unwrap_err().0;
        assert_eq!(message, "tensor `b` is [2]; the configuration says [1, 2]");
    }

    #[test]
    fn headers_that_make_no_sense() {
        let message = |header: &str, data: usize| opened("header", header, data).map(|_| ()).unwrap_err();
        let entry = |rest: &str| format!(r#"{{"a":{{"dtype":"F32",{rest}}}}}"#);
        for (header, expected) in [
            ("[]".to_owned(), "the header is no JSON object"),
            ("{".to_owned(), "bad header"),
            (r#"{"a":{}}"#.to_owned(), "tensor `a`: no `dtype`"),
            (entry(r#""shape":[-1],"data_offsets":[0,4]"#), "no `shape` of whole numbers"),
            (entry(r#""shape":[1],"data_offsets":[0]"#), "no `data_offsets` of two numbers"),
            (entry(r#""shape":[2],"data_offsets":[0,4]"#), "does not fill data_offsets [0, 4]"),
            (entry(r#""shape":[1],"data_offsets":[4,0]"#), "does not fill data_offsets [4, 0]"),
            (entry(r#""shape":[1],"data_offsets":[4,8]"#), "the file is cut short"),
            (entry(r#""shape":[99999999999,99999999999],"data_offsets":[0,4]"#), "does not fill"),
        ] {
            let message = message(&header, 4);
            assert!(message.contains(expected), "{header}: {message}");
        }
    }

    #[test]
    fn lengths_that_make_no_sense() {
        let path = std::env::temp_dir().join(format!("length-{}.safetensors", std::process::id()));
        for (bytes, expected) in [
            (&b"abc"[..], "shorter than a safetensors header"),
            (&[0xFF; 20], "not a safetensors file, or cut short"),
            (&[100, 0, 0, 0, 0, 0, 0, 0, b'{'], "not a safetensors file, or cut short"),
        ] {
            fs::write(&path, bytes).unwrap();
            let message = Tensors::file(&path).map(|_| ()).unwrap_err().0;
            assert!(message.contains(expected), "{message}");
        }
        fs::remove_file(&path).unwrap();
    }
}
