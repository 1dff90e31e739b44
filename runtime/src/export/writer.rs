//! The tensors of a bundle as a list of jobs, and the writer that runs it.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;
use std::sync::{Mutex, PoisonError};

use host_ops::pack::{BStream, Format, PackError, Rows};
use host_ops::pool::Pool;

use super::safetensors::Source;
use super::staging::{Staging, failed};
use super::{ExportError, Progress};
use crate::bundle::{DType, WeightFormat};

/// Writers align every tensor to this.
const ALIGN: u64 = 64;

/// Fills a tensor's bytes, which are zero before.
pub(super) type Fill<'a> = Box<dyn Fn(&Pool, &mut [u8]) -> Result<(), ExportError> + 'a>;

/// A tensor to be written.
pub(super) struct Job<'a> {
    pub(super) name: String,
    dtype: DType,
    shape: Vec<usize>,
    fill: Fill<'a>,
}

impl<'a> Job<'a> {
    /// Any tensor.
    pub(super) fn new(name: String, dtype: DType, shape: &[usize], fill: Fill<'a>) -> Self {
        Self { name, dtype, shape: shape.to_vec(), fill }
    }

    /// Packed weights.
    pub(super) fn packed(name: String, bytes: usize, fill: Fill<'a>) -> Self {
        Self::new(name, DType::U8, &[bytes], fill)
    }

    /// A small f32 tensor made by `values`.
    pub(super) fn f32s(
        name: String,
        shape: &[usize],
        values: impl Fn(&Pool) -> Result<Vec<f32>, ExportError> + 'a,
    ) -> Self {
        let fill: Fill<'a> = Box::new(move |pool, out| {
            let values = values(pool)?;
            if values.len() * 4 != out.len() {
                return Err(ExportError(format!("{} values where {} were expected", values.len(), out.len() / 4)));
            }
            for (place, value) in out.chunks_exact_mut(4).zip(&values) {
                place.copy_from_slice(&value.to_le_bytes());
            }
            Ok(())
        });
        Self::new(name, DType::F32, shape, fill)
    }

    fn bytes(&self) -> u64 {
        self.shape.iter().product::<usize>() as u64 * self.dtype.size() as u64
    }
}

/// Bytes that `jobs` take.
pub(super) fn total(jobs: &[Job<'_>]) -> u64 {
    jobs.iter().map(Job::bytes).sum()
}

/// Runs the jobs in order: `tensors.bin` and `tensors.txt`. Memory: the largest tensor.
pub(super) fn write(
    staging: &Staging,
    jobs: &[Job<'_>],
    pool: &Pool,
    progress: &mut dyn FnMut(Progress<'_>) -> ControlFlow<()>,
) -> Result<u64, ExportError> {
    let path = staging.dir.join("tensors.bin");
    let disk = |error: io::Error| failed("write", &path, &error);
    let mut file = BufWriter::new(File::create_new(&path).map_err(disk)?);
    let (mut index, mut offset, mut done) = (String::new(), 0_u64, 0_u64);
    let total = total(jobs);
    let mut bytes = Vec::new();
    for job in jobs {
        if progress(Progress { done, total, tensor: &job.name }).is_break() {
            return Err(ExportError("interrupted".to_owned()));
        }
        let start = offset.next_multiple_of(ALIGN);
        // In bounds: fewer than 64 bytes of padding.
        file.write_all(&[0; ALIGN as usize][..(start - offset) as usize]).map_err(disk)?;
        bytes.clear();
        bytes.resize(job.bytes() as usize, 0);
        (job.fill)(pool, &mut bytes).map_err(|error| ExportError(format!("tensor `{}`: {error}", job.name)))?;
        file.write_all(&bytes).map_err(disk)?;
        let shape: Vec<String> = job.shape.iter().map(ToString::to_string).collect();
        // Writing to a string does not fail.
        let _ = writeln!(index, "{} {} {} {start} {}", job.name, job.dtype.name(), shape.join(","), bytes.len());
        offset = start + bytes.len() as u64;
        done += bytes.len() as u64;
    }
    let _ = progress(Progress { done, total, tensor: "" });
    let file = file.into_inner().map_err(|error| disk(error.into_error()))?;
    file.sync_all().map_err(disk)?;
    staging.write("tensors.txt", index.as_bytes())?;
    Ok(offset)
}

/// A weight by rows: `(n, out)` writes the inputs of output n from the first, zeros past the last.
pub(super) type RowFn<'a> = Box<dyn Fn(usize, &mut [f32]) -> io::Result<()> + Sync + 'a>;

/// Reads inputs `from..from + out.len()` of row `row` of a matrix with `columns` columns; zeros past the end. No
/// negative zero is left, which a block of ordinary values would round to -1.
pub(super) fn read_row(source: &Source, columns: usize, row: usize, from: usize, out: &mut [f32]) -> io::Result<()> {
    let there = columns.saturating_sub(from).min(out.len());
    let (values, rest) = out.split_at_mut(there);
    rest.fill(0.0);
    if !values.is_empty() {
        source.read(row * columns + from, values)?;
        values.iter_mut().for_each(|value| *value += 0.0);
    }
    Ok(())
}

/// The format as the packer calls it.
pub(super) fn packing(format: WeightFormat) -> Result<Format, ExportError> {
    match format {
        WeightFormat::Bfp16 => Ok(Format::Bfp16),
        WeightFormat::F32 => Ok(Format::F32),
        WeightFormat::Bfp6s => Err(ExportError("bfp6s weights cannot be written, only read".to_owned())),
    }
}

/// Packs `[n, k]` rows as the stream of a GEMM.
pub(super) fn pack_stream(
    pool: &Pool,
    layout: &BStream,
    rows: &(dyn Fn(usize, &mut [f32]) -> io::Result<()> + Sync),
    bias: Option<&[f32]>,
    out: &mut [u8],
) -> Result<(), ExportError> {
    caught(rows, |source| layout.pack(pool, source, bias, out))
}

/// Packs rows in row layout.
pub(super) fn pack_rows(
    pool: &Pool,
    layout: &Rows,
    rows: &(dyn Fn(usize, &mut [f32]) -> io::Result<()> + Sync),
    out: &mut [u8],
) -> Result<(), ExportError> {
    caught(rows, |source| layout.pack(pool, source, out))
}

/// The packer asks for rows from many threads and takes no error for an answer: keeps the first and reports it after.
fn caught(
    rows: &(dyn Fn(usize, &mut [f32]) -> io::Result<()> + Sync),
    pack: impl FnOnce(&(dyn Fn(usize, &mut [f32]) + Sync)) -> Result<(), PackError>,
) -> Result<(), ExportError> {
    let first: Mutex<Option<io::Error>> = Mutex::new(None);
    let packed = pack(&|row, out| {
        if let Err(error) = rows(row, out) {
            out.fill(0.0);
            first.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
    });
    if let Some(error) = first.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(ExportError(format!("cannot read the weights: {error}")));
    }
    packed.map_err(|error| ExportError(error.to_string()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::super::safetensors::Tensors;
    use super::*;

    /// A matrix of `rows` x `columns` values as the only tensor of a safetensors file.
    fn source(name: &str, rows: usize, columns: usize, values: &[u8]) -> Source {
        let header =
            format!(r#"{{"w":{{"dtype":"F32","shape":[{rows},{columns}],"data_offsets":[0,{}]}}}}"#, values.len());
        let path = std::env::temp_dir().join(format!("{name}-{}.safetensors", std::process::id()));
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        file.extend(values);
        fs::write(&path, file).unwrap();
        let tensors = Tensors::file(&path).unwrap();
        // The open file outlives its name.
        fs::remove_file(&path).unwrap();
        tensors.get("w").unwrap().clone()
    }

    fn fixture(name: &str) -> Vec<u8> {
        fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../host-ops/tests/fixtures").join(name)).unwrap()
    }

    fn floats(bytes: &[u8]) -> Vec<f32> {
        bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])).collect()
    }

    /// A `[k, n]` matrix as the checkpoint's `[n, k]`.
    fn transposed(bytes: &[u8], k: usize, n: usize) -> Vec<u8> {
        (0..n * k).flat_map(|at| bytes[(at % k * n + at / k) * 4..][..4].to_vec()).collect()
    }

    #[test]
    fn golden_streams_come_out_of_a_checkpoint() {
        let (matrix, bias, golden) =
            (fixture("gemm.b.f32"), floats(&fixture("gemm.bias.f32")), fixture("gemm.stream.u8"));
        let n = bias.len();
        let k = matrix.len() / 4 / n;
        let source = source("golden-stream", n, k, &transposed(&matrix, k, n));
        let layout = BStream::new(Format::Bfp16, k, n, true).unwrap();
        let mut out = vec![0; layout.bytes()];
        let rows = |row: usize, out: &mut [f32]| read_row(&source, k, row, 0, out);
        pack_stream(&Pool::new(2), &layout, &rows, Some(&bias), &mut out).unwrap();
        assert!(out == golden);
    }

    #[test]
    fn golden_head_rows_come_out_of_a_checkpoint() {
        let (matrix, golden) = (fixture("head.w.f32"), fixture("head.bytes.u8"));
        let columns = 512;
        let rows = matrix.len() / 4 / columns;
        let source = source("golden-head", rows, columns, &matrix);
        let layout = Rows::new(Format::Bfp16, rows, columns).unwrap();
        let mut out = vec![0; layout.bytes()];
        let read = |row: usize, out: &mut [f32]| read_row(&source, columns, row, 0, out);
        pack_rows(&Pool::new(2), &layout, &read, &mut out).unwrap();
        assert!(out == golden);
    }

    #[test]
    fn a_row_that_cannot_be_read_is_an_error() {
        let source = source("short-row", 8, 512, &vec![0; 8 * 512 * 4]);
        let layout = Rows::new(Format::Bfp16, 16, 512).unwrap();
        let mut out = vec![0; layout.bytes()];
        let read = |row: usize, out: &mut [f32]| read_row(&source, 512, row, 0, out);
        let error = pack_rows(&Pool::new(2), &layout, &read, &mut out).unwrap_err();
        assert!(error.0.starts_with("cannot read the weights: "), "{error}");
    }
}
