//! `tensors.txt` and `tensors.bin`: named arrays in one file, mapped read-only.
//!
//! A mapping of a file that somebody cuts short kills the process at the next touch. The size is therefore checked
//! against the index at opening and again whenever a tensor is handed out, and what a model is loaded from
//! ([`TensorFile::read_at`], [`Bulk`]) is read with calls, which fail instead.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::Mmap;

use super::bulk::Bulk;
use super::error::BundleError;
use super::files;

const INDEX: &str = "tensors.txt";
/// Where the format asks every tensor to begin; writers align to 64.
const ALIGN: u64 = 8;

/// Element type of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DType {
    /// 32-bit float.
    F32,
    /// The upper half of a 32-bit float.
    Bf16,
    /// Bytes; packed weights too.
    U8,
    /// 32-bit signed integer.
    I32,
}

impl DType {
    /// Bytes of an element.
    #[must_use]
    pub fn size(self) -> usize {
        match self {
            Self::F32 | Self::I32 => 4,
            Self::Bf16 => 2,
            Self::U8 => 1,
        }
    }

    /// The index's spelling.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::U8 => "u8",
            Self::I32 => "i32",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        [Self::F32, Self::Bf16, Self::U8, Self::I32].into_iter().find(|dtype| dtype.name() == name)
    }
}

/// A tensor: a view into the mapped file.
#[derive(Debug, Clone, Copy)]
pub struct Tensor<'a> {
    /// Element type.
    pub dtype: DType,
    /// Dimensions, outermost first; their product is the number of elements.
    pub shape: &'a [usize],
    /// The elements, little-endian.
    pub bytes: &'a [u8],
}

impl<'a> Tensor<'a> {
    /// The elements as f32, or `None` if they are something else.
    #[must_use]
    pub fn f32s(&self) -> Option<&'a [f32]> {
        if self.dtype == DType::F32 { bytemuck::try_cast_slice(self.bytes).ok() } else { None }
    }

    /// The elements as i32, or `None` if they are something else.
    #[must_use]
    pub fn i32s(&self) -> Option<&'a [i32]> {
        if self.dtype == DType::I32 { bytemuck::try_cast_slice(self.bytes).ok() } else { None }
    }
}

/// One line of the index.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) line: usize,
    pub(super) dtype: DType,
    pub(super) shape: Vec<usize>,
    pub(super) offset: u64,
    pub(super) bytes: usize,
}

/// The open pair of files.
#[derive(Debug)]
pub(super) struct TensorFile {
    path: PathBuf,
    file: File,
    size: u64,
    entries: BTreeMap<String, Entry>,
    map: Option<Mmap>,
    /// Bytes read with calls.
    read: AtomicU64,
}

impl TensorFile {
    /// Reads the index, checks it against the file and maps the file.
    pub(super) fn open(index: &Path, data: &Path) -> Result<Self, BundleError> {
        let entries = parse_index(&files::read_text(index)?)?;
        let (file, size) = files::open(data)?;
        for (name, entry) in &entries {
            let end = entry.offset.checked_add(entry.bytes as u64);
            if end.is_none_or(|end| end > size) {
                let what = format!(
                    "tensor `{name}` takes {} bytes at {}, but tensors.bin has {size}; the file is cut short or belongs to another index",
                    entry.bytes, entry.offset
                );
                return Err(BundleError::Line { file: INDEX, line: entry.line, what });
            }
        }
        // An empty file cannot be mapped, and needs no mapping.
        let map = if size == 0 {
            None
        } else {
            // SAFETY: the mapping is read-only and private. Another process that writes the file would change bytes
            // under a shared borrow; a bundle is not written after it was made, and `still_whole` refuses to hand out
            // a tensor of a file that has shrunk.
            let map = unsafe { Mmap::map(&file) };
            Some(map.map_err(|source| BundleError::Io { action: "map", path: data.to_owned(), source })?)
        };
        Ok(Self { path: data.to_owned(), file, size, entries, map, read: AtomicU64::new(0) })
    }

    pub(super) fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.get(name)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    fn required(&self, name: &str) -> Result<&Entry, BundleError> {
        self.entry(name)
            .ok_or_else(|| BundleError::Tensor { name: name.to_owned(), what: "missing from tensors.txt".to_owned() })
    }

    /// Whether the file still has the bytes it had.
    fn still_whole(&self) -> Result<(), BundleError> {
        let meta = self.file.metadata();
        let meta = meta.map_err(|source| BundleError::Io { action: "look at", path: self.path.clone(), source })?;
        if meta.len() < self.size {
            return Err(BundleError::Changed { path: self.path.clone(), expected: self.size, found: meta.len() });
        }
        Ok(())
    }

    /// A tensor as a view into the mapping.
    pub(super) fn get(&self, name: &str) -> Result<Tensor<'_>, BundleError> {
        let entry = self.required(name)?;
        self.still_whole()?;
        let map: &[u8] = self.map.as_deref().unwrap_or(&[]);
        // In bounds: checked when the file was opened.
        let start = entry.offset as usize;
        Ok(Tensor { dtype: entry.dtype, shape: &entry.shape, bytes: &map[start..start + entry.bytes] })
    }

    /// Reads bytes `from..from + out.len()` of a tensor.
    pub(super) fn read_at(&self, name: &str, from: usize, out: &mut [u8]) -> Result<(), BundleError> {
        let entry = self.required(name)?;
        if from.checked_add(out.len()).is_none_or(|end| end > entry.bytes) {
            let what = format!("{} bytes at {from} were asked of {}", out.len(), entry.bytes);
            return Err(BundleError::Tensor { name: name.to_owned(), what });
        }
        self.read.fetch_add(out.len() as u64, Ordering::Relaxed);
        self.file.read_exact_at(out, entry.offset + from as u64).map_err(|source| self.failed(source))
    }

    /// Bytes read with calls so far.
    pub(super) fn bytes_read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    /// A reader for much of the file.
    pub(super) fn bulk(&self) -> Bulk<'_> {
        Bulk::new(&self.file, &self.path)
    }

    /// Reads a whole tensor in bulk; `out` has its length.
    pub(super) fn read_bulk(&self, bulk: &Bulk<'_>, name: &str, out: &mut [u8]) -> Result<(), BundleError> {
        let entry = self.whole(name, out)?;
        self.read.fetch_add(out.len() as u64, Ordering::Relaxed);
        bulk.read(entry.offset, out).map_err(|source| self.failed(source))
    }

    /// Reads whole tensors in bulk, all at once; each `out` has its tensor's length.
    pub(super) fn read_many(
        &self,
        bulk: &Bulk<'_>,
        tensors: Vec<(&str, &mut [u8])>,
        written: &(dyn Fn(usize, Range<usize>) + Sync),
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), BundleError> {
        let mut ranges = Vec::with_capacity(tensors.len());
        for (name, out) in tensors {
            ranges.push((self.whole(name, out)?.offset, out));
        }
        let bytes: usize = ranges.iter().map(|(_, out)| out.len()).sum();
        self.read.fetch_add(bytes as u64, Ordering::Relaxed);
        bulk.read_many(ranges, written, progress).map_err(|(_, source)| self.failed(source))
    }

    /// The entry of a tensor that is as long as `out`.
    fn whole(&self, name: &str, out: &[u8]) -> Result<&Entry, BundleError> {
        let entry = self.required(name)?;
        if entry.bytes != out.len() {
            let what = format!("{} bytes, but the buffer has {}", entry.bytes, out.len());
            return Err(BundleError::Tensor { name: name.to_owned(), what });
        }
        Ok(entry)
    }

    /// A read that failed: the file's fault, or that of who cut it short.
    fn failed(&self, source: std::io::Error) -> BundleError {
        if source.kind() == ErrorKind::UnexpectedEof
            && let Err(shorter) = self.still_whole()
        {
            return shorter;
        }
        BundleError::Io { action: "read", path: self.path.clone(), source }
    }
}

/// Parses the index: names unique, sizes right, nothing overlapping.
fn parse_index(text: &str) -> Result<BTreeMap<String, Entry>, BundleError> {
    let mut entries: BTreeMap<String, Entry> = BTreeMap::new();
    for (index, line) in text.lines().enumerate() {
        let (name, entry) =
            parse_entry(index + 1, line).map_err(|what| BundleError::Line { file: INDEX, line: index + 1, what })?;
        if let Some(first) = entries.get(name) {
            let what = format!("a second tensor `{name}`; the first is on line {}", first.line);
            return Err(BundleError::Line { file: INDEX, line: index + 1, what });
        }
        entries.insert(name.to_owned(), entry);
    }
    let mut by_place: Vec<(&String, &Entry)> = entries.iter().filter(|(_, entry)| entry.bytes > 0).collect();
    by_place.sort_by_key(|(_, entry)| entry.offset);
    for pair in by_place.windows(2) {
        let ((before, first), (after, second)) = (pair[0], pair[1]);
        // No overflow: parse_entry bounds both.
        if first.offset + first.bytes as u64 > second.offset {
            let what = format!(
                "tensor `{after}` at {} overlaps `{before}`, {} bytes at {}",
                second.offset, first.bytes, first.offset
            );
            return Err(BundleError::Line { file: INDEX, line: second.line, what });
        }
    }
    Ok(entries)
}

fn parse_entry(line: usize, text: &str) -> Result<(&str, Entry), String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let [name, dtype, shape, offset, bytes] = words[..] else {
        return Err(format!("{} words; expected `name dtype d0,d1,... offset bytes`", words.len()));
    };
    let dtype = DType::from_name(dtype).ok_or_else(|| format!("type `{dtype}`; expected f32, bf16, u8 or i32"))?;
    let number = |text: &str, what: &str| {
        let value = text.parse::<u64>().ok().filter(|value| *value < 1 << 48);
        value.ok_or_else(|| format!("{what} `{text}`; expected a whole number below 2^48"))
    };
    let shape = shape.split(',').map(|dim| number(dim, "dimension").map(|dim| dim as usize));
    let shape = shape.collect::<Result<Vec<usize>, String>>()?;
    let (offset, bytes) = (number(offset, "offset")?, number(bytes, "size")? as usize);
    if !offset.is_multiple_of(ALIGN) {
        return Err(format!("offset {offset} of `{name}`; expected a multiple of {ALIGN}"));
    }
    let product = shape.iter().try_fold(dtype.size(), |product, dim| product.checked_mul(*dim));
    if product != Some(bytes) {
        return Err(format!(
            "`{name}` is {bytes} bytes, but {} elements of {} bytes make {}",
            shape.iter().map(ToString::to_string).collect::<Vec<_>>().join(" x "),
            dtype.size(),
            product.map_or("more than fits".to_owned(), |product| product.to_string())
        ));
    }
    Ok((name, Entry { line, dtype, shape, offset, bytes }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> String {
        parse_index(text).map(|_| ()).unwrap_err().to_string()
    }

    #[test]
    fn a_good_index() {
        let entries = parse_index("a f32 2,3 0 24\nb u8 5 64 5\nempty i32 0 72 0\n").unwrap();
        assert_eq!(entries["a"].shape, [2, 3]);
        assert_eq!((entries["b"].offset, entries["b"].bytes), (64, 5));
    }

    #[test]
    fn bad_lines_name_line_and_rule() {
        for (text, expected) in [
            ("a f32 1 0 4\n\n", "tensors.txt:2: 0 words; expected `name dtype d0,d1,... offset bytes`"),
            ("a f32 1 0\n", "tensors.txt:1: 4 words;"),
            ("a f64 1 0 8\n", "type `f64`; expected f32, bf16, u8 or i32"),
            ("a f32 1 4 4\n", "offset 4 of `a`; expected a multiple of 8"),
            ("a f32 2 0 4\n", "`a` is 4 bytes, but 2 elements of 4 bytes make 8"),
            ("a f32 4294967296,4294967296,4294967296 0 4\n", "make more than fits"),
            ("a f32 x 0 4\n", "dimension `x`"),
            ("a f32 1 -8 4\n", "offset `-8`"),
            ("a f32 1 18446744073709551608 4\n", "offset `18446744073709551608`"),
            ("a f32 1 0 4\na f32 1 8 4\n", "tensors.txt:2: a second tensor `a`; the first is on line 1"),
            ("b f32 4 0 16\na f32 1 8 4\n", "tensors.txt:2: tensor `a` at 8 overlaps `b`, 16 bytes at 0"),
        ] {
            let message = message(text);
            assert!(message.contains(expected), "{text:?}: {message}");
        }
    }
}
