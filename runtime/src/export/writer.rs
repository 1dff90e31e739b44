//! The tensors of a bundle as a list of jobs, and the writer that runs it.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;

use host_ops::pack::{BStream, Format, PackError, Rows};
use host_ops::pool::Pool;
use sha2::{Digest as _, Sha256};

use super::quantisation::{Meter, Quantisation};
use super::safetensors::Source;
use super::staging::{Staging, failed};
use super::{ExportError, Progress};
use crate::bundle::DType;
use crate::checksums::Digest;

/// Writers align every tensor to this.
const ALIGN: u64 = 64;

/// Fills a tensor's bytes, which are zero before. What is packed says what that took from it.
pub(super) type Fill<'a> = Box<dyn Fn(&Pool, &mut [u8]) -> Result<Option<Meter>, ExportError> + 'a>;

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
            Ok(None)
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

/// What was written.
pub(super) struct Written {
    /// Bytes of `tensors.bin`.
    pub(super) bytes: u64,
    pub(super) quantisation: Vec<Quantisation>,
}

/// Runs the jobs in order: `tensors.bin` and `tensors.txt`. While a tensor is packed, the one before goes to the disk:
/// memory holds these two.
pub(super) fn write(
    staging: &Staging,
    jobs: &[Job<'_>],
    pool: &Pool,
    progress: &mut dyn FnMut(Progress<'_>) -> ControlFlow<()>,
) -> Result<Written, ExportError> {
    let path = staging.dir.join("tensors.bin");
    let disk = |error: io::Error| failed("write", &path, &error);
    let file = File::create_new(&path).map_err(disk)?;
    let mut index = String::new();
    let mut written = Written { bytes: 0, quantisation: Vec::new() };
    let digest = thread::scope(|scope| {
        // No room in the channel: a packed tensor waits here until the one before is on its way.
        let (packed, to_write) = mpsc::sync_channel::<Vec<u8>>(0);
        let (used, empty) = mpsc::channel::<Vec<u8>>();
        let writer = scope.spawn(move || to_disk(file, &to_write, &used));
        let result = pack(jobs, pool, progress, &mut index, &mut written, &mut |bytes| {
            // A writer that has gone says why below.
            packed.send(bytes).is_ok().then(|| empty.try_recv().unwrap_or_default())
        });
        drop(packed);
        let digest = writer.join().map_err(|_| ExportError("the thread that writes has panicked".to_owned()))?;
        result.and(digest.map_err(disk))
    })?;
    staging.written("tensors.bin", digest);
    staging.write("tensors.txt", index.as_bytes())?;
    Ok(written)
}

/// Writes what comes and hands the memory back; the digest of all of it.
fn to_disk(mut file: File, from: &mpsc::Receiver<Vec<u8>>, used: &mpsc::Sender<Vec<u8>>) -> io::Result<Digest> {
    let mut hasher = Sha256::new();
    for bytes in from {
        file.write_all(&bytes)?;
        hasher.update(&bytes);
        // At the end nobody wants it back.
        let _ = used.send(bytes);
    }
    file.sync_all()?;
    Ok(hasher.finalize().into())
}

/// Packs one job after another and gives each to `out` with the padding before it; `out` gives memory for the next, or
/// nothing when it takes no more.
fn pack(
    jobs: &[Job<'_>],
    pool: &Pool,
    progress: &mut dyn FnMut(Progress<'_>) -> ControlFlow<()>,
    index: &mut String,
    written: &mut Written,
    out: &mut dyn FnMut(Vec<u8>) -> Option<Vec<u8>>,
) -> Result<(), ExportError> {
    let (mut bytes, mut done, total) = (Vec::new(), 0, total(jobs));
    for job in jobs {
        if progress(Progress { done, total, tensor: &job.name }).is_break() {
            return Err(ExportError("interrupted".to_owned()));
        }
        let start = written.bytes.next_multiple_of(ALIGN);
        let padding = (start - written.bytes) as usize;
        bytes.clear();
        bytes.resize(padding + job.bytes() as usize, 0);
        let meter = (job.fill)(pool, &mut bytes[padding..])
            .map_err(|error| ExportError(format!("tensor `{}`: {error}", job.name)))?;
        written.quantisation.extend(meter.map(|meter| meter.total(&job.name)));
        let shape: Vec<String> = job.shape.iter().map(ToString::to_string).collect();
        // Writing to a string does not fail.
        let _ = writeln!(index, "{} {} {} {start} {}", job.name, job.dtype.name(), shape.join(","), job.bytes());
        written.bytes = start + job.bytes();
        done += job.bytes();
        // The writer's own error is the one to tell.
        let Some(next) = out(bytes) else { return Ok(()) };
        bytes = next;
    }
    let _ = progress(Progress { done, total, tensor: "" });
    Ok(())
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

/// Rows of a weight, as the packer asks for them; with them goes what they lose.
pub(super) type MeteredRows<'a> = dyn Fn(usize, &mut [f32], &Meter) -> io::Result<()> + Sync + 'a;

/// Packs `[n, k]` rows as the stream of a GEMM.
pub(super) fn pack_stream(
    pool: &Pool,
    layout: &BStream,
    rows: &(dyn Fn(usize, &mut [f32]) -> io::Result<()> + Sync),
    bias: Option<&[f32]>,
    out: &mut [u8],
) -> Result<Option<Meter>, ExportError> {
    let format = layout.format();
    pack_metered(pool, layout, &|row, out, meter| metered(rows, row, out, meter, format), bias, out)
}

/// As [`pack_stream`], for rows that measure themselves.
pub(super) fn pack_metered(
    pool: &Pool,
    layout: &BStream,
    rows: &MeteredRows<'_>,
    bias: Option<&[f32]>,
    out: &mut [u8],
) -> Result<Option<Meter>, ExportError> {
    let meter = Meter::new(layout.n());
    caught(&|row, out| rows(row, out, &meter), |source| layout.pack(pool, source, bias, out))?;
    Ok(Some(meter))
}

/// Packs rows in row layout.
pub(super) fn pack_rows(
    pool: &Pool,
    layout: &Rows,
    rows: &(dyn Fn(usize, &mut [f32]) -> io::Result<()> + Sync),
    out: &mut [u8],
) -> Result<Option<Meter>, ExportError> {
    let (meter, format) = (Meter::new(layout.rows()), layout.format());
    caught(&|row, out| metered(rows, row, out, &meter, format), |source| layout.pack(pool, source, out))?;
    Ok(Some(meter))
}

/// Reads a row and notes what packing it loses.
fn metered(
    rows: &(dyn Fn(usize, &mut [f32]) -> io::Result<()> + Sync),
    row: usize,
    out: &mut [f32],
    meter: &Meter,
    format: Format,
) -> io::Result<()> {
    rows(row, out)?;
    meter.packed(row, out, format);
    Ok(())
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
