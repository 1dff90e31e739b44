//! The GEMM: what comes in over the shim's channels, multiplied, goes out over them.
//!
//! A comes on MM2S 0 of columns 0, 2, 4, 6, one channel for each row of cores: for each sweep over eight column blocks,
//! for each 256 rows, k tiles of 64 x 512. B comes on MM2S 1 of every column that has a block in the sweep. C leaves on
//! S2MM 0 of that column, 256 rows of the block at a time.

use std::sync::Mutex;

use host_ops::pool::Pool;
use host_ops::{act, gemm};

use super::Epilogue;
use super::kernel::{GemmJob, element_bytes};
use super::memory::{DeviceMemory, MemoryFault, Piece, read, whole, write};
use super::numbers::{load, store};
use super::shim::{COLUMNS, Direction, Lanes};
use super::step::{Progress, Traffic};

/// Columns of a block.
const BLOCK: usize = gemm::BLOCK_COLUMNS;
/// Rows that one row of cores takes at a time.
const CORE_ROWS: usize = 64;
/// Rows of cores.
const GRID_ROWS: usize = 4;
/// k of one transfer tile.
const K_TILE: usize = 512;

/// Memory that a GEMM needs and keeps for the next one.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    activations: [Rows; GRID_ROWS],
    weights: [Column; COLUMNS],
    c: [Vec<Piece>; COLUMNS],
    results: Vec<Vec<u8>>,
}

/// 64 rows of A.
#[derive(Debug, Default)]
struct Rows {
    pieces: Vec<Piece>,
    raw: Vec<u8>,
    /// A few rows in plain order.
    rows: Vec<f32>,
    /// All, as the multiplication wants them.
    packed: Vec<f32>,
}

/// A column block of B, decoded.
#[derive(Debug, Default)]
struct Column {
    pieces: Vec<Piece>,
    panels: Vec<f32>,
    /// Zeros without bias chunks.
    bias: Vec<f32>,
}

/// How far a GEMM has come.
#[derive(Debug)]
pub(super) struct Gemm {
    job: GemmJob,
    sweep: usize,
    chunk: usize,
}

impl Gemm {
    pub(super) fn new(job: GemmJob) -> Self {
        Self { job, sweep: 0, chunk: 0 }
    }

    /// Columns of C that one block gives.
    fn width(&self) -> usize {
        match self.job.epilogue {
            Epilogue::PairedSwiglu => BLOCK / 2,
            _ => BLOCK,
        }
    }

    /// Works on 256 rows of one sweep, if all their data and room for the results are there.
    pub(super) fn step(
        &mut self,
        lanes: &mut Lanes,
        memory: &dyn DeviceMemory,
        pool: &Pool,
        buffers: &mut Buffers,
        traffic: &mut Traffic,
    ) -> Result<Progress, MemoryFault> {
        let GemmJob { k, n, bias, format, streamed, .. } = self.job;
        let blocks = n / BLOCK;
        let active = (blocks - self.sweep * COLUMNS).min(COLUMNS);
        let words = |elements: usize| (elements * element_bytes(format) / 4) as u64;
        let bias_bytes = if bias { format.bytes(128 * BLOCK) } else { 0 };
        let block_bytes = format.bytes(k * BLOCK);
        let fresh = streamed || self.chunk == 0;

        let a_words = words(CORE_ROWS * k);
        let b_words = if fresh { ((bias_bytes + block_bytes) / 4) as u64 } else { 0 };
        let c_words = words(GRID_ROWS * CORE_ROWS * self.width());
        let wanted = (0..GRID_ROWS)
            .map(|row| (2 * row, Direction::Mm2s, 0, a_words))
            .chain((0..active).map(|column| (column, Direction::Mm2s, 1, b_words)))
            .chain((0..active).map(|column| (column, Direction::S2mm, 0, c_words)));
        for (column, direction, index, words) in wanted {
            if lanes.get(column, direction, index).available() < words {
                return Ok(Progress::Starved { column, direction, index });
            }
        }

        let Buffers { activations, weights, c, results } = buffers;
        for (row, a) in activations.iter_mut().enumerate() {
            lanes.get(2 * row, Direction::Mm2s, 0).take(a_words, &mut a.pieces);
        }
        for column in 0..active {
            lanes.get(column, Direction::Mm2s, 1).take(b_words, &mut weights[column].pieces);
            lanes.get(column, Direction::S2mm, 0).take(c_words, &mut c[column]);
        }
        traffic.read += 4 * (a_words * GRID_ROWS as u64 + b_words * active as u64);
        traffic.written += 4 * c_words * active as u64;

        let fault = Mutex::new(None);
        let note = |result: Result<(), MemoryFault>| {
            if let Err(error) = result {
                fault.lock().unwrap_or_else(std::sync::PoisonError::into_inner).get_or_insert(error);
            }
        };
        let job = self.job;
        pool.run_chunks(activations, 1, &|_, rows| note(rows[0].load(&job, memory)));
        if fresh {
            pool.run_chunks(&mut weights[..active], 1, &|_, column| {
                note(column[0].load(&job, memory, bias_bytes, block_bytes));
            });
        }
        results.resize_with(COLUMNS * GRID_ROWS, Vec::new);
        if lock_free(&fault) {
            pool.run_chunks(&mut results[..active * GRID_ROWS], 1, &|i, out| {
                products(&job, &activations[i % GRID_ROWS].packed, &weights[i / GRID_ROWS], &mut out[0]);
            });
            // In order on one thread: overlapping results have one outcome, and nobody reads what another writes.
            for (i, result) in results[..active * GRID_ROWS].iter().enumerate() {
                let start = (i % GRID_ROWS * result.len()) as u64;
                note(write(memory, &c[i / GRID_ROWS], start, result));
            }
        }
        if let Some(error) = fault.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
            return Err(error);
        }

        self.chunk += 1;
        if self.chunk * GRID_ROWS * CORE_ROWS == self.job.rows {
            (self.chunk, self.sweep) = (0, self.sweep + 1);
        }
        Ok(if self.sweep * COLUMNS >= blocks { Progress::Finished } else { Progress::Stepped })
    }
}

/// Whether no job has failed yet.
fn lock_free(fault: &Mutex<Option<MemoryFault>>) -> bool {
    fault.lock().unwrap_or_else(std::sync::PoisonError::into_inner).is_none()
}

impl Rows {
    /// Reads them, k tile by k tile, and prepares them for the multiplication.
    fn load(&mut self, job: &GemmJob, memory: &dyn DeviceMemory) -> Result<(), MemoryFault> {
        let Rows { pieces, raw, rows, packed } = self;
        let (k, element) = (job.k, element_bytes(job.format));
        raw.resize(CORE_ROWS * k * element, 0);
        rows.resize(gemm::TILE_ROWS * k, 0.0);
        packed.resize(CORE_ROWS * k, 0.0);
        read(memory, pieces, 0, raw)?;
        for (tile, out) in packed.chunks_exact_mut(gemm::TILE_ROWS * k).enumerate() {
            for (r, row) in rows.chunks_exact_mut(k).enumerate() {
                for (t, values) in row.chunks_exact_mut(K_TILE).enumerate() {
                    let start = (t * CORE_ROWS + tile * gemm::TILE_ROWS + r) * K_TILE * element;
                    load(job.format, &raw[start..start + K_TILE * element], values);
                }
            }
            gemm::pack_rows(job.format, rows, k, out);
        }
        Ok(())
    }
}

impl Column {
    /// Reads a column block of B, with its bias chunk if it has one.
    fn load(
        &mut self,
        job: &GemmJob,
        memory: &dyn DeviceMemory,
        bias_bytes: usize,
        block_bytes: usize,
    ) -> Result<(), MemoryFault> {
        let Column { pieces, panels, bias } = self;
        bias.clear();
        bias.resize(BLOCK, 0.0);
        if bias_bytes > 0 {
            let mut raw = [0; 4 * BLOCK];
            let raw = &mut raw[..BLOCK * element_bytes(job.format)];
            read(memory, pieces, 0, raw)?;
            load(job.format, raw, bias);
        }
        panels.resize(job.k * BLOCK, 0.0);
        whole(memory, pieces, bias_bytes as u64, block_bytes, |packed| {
            gemm::unpack_block(job.format, packed, job.k, panels);
        })
    }
}

/// 64 rows of one column block of C, as they leave.
fn products(job: &GemmJob, a: &[f32], b: &Column, out: &mut Vec<u8>) {
    let mut c = [0.0; CORE_ROWS * BLOCK];
    gemm::gemm(a, &b.panels, job.k, &mut c);
    if job.bias {
        for row in c.chunks_exact_mut(BLOCK) {
            row.iter_mut().zip(&b.bias).for_each(|(c, bias)| *c += bias);
        }
    }
    let mut len = c.len();
    match job.epilogue {
        Epilogue::None => {}
        Epilogue::GeluTanh => act::gelu_tanh_in_place(&mut c),
        Epilogue::Silu => act::silu_in_place(&mut c),
        Epilogue::PairedSwiglu => {
            len /= 2;
            for row in 0..CORE_ROWS {
                let mut gate: [f32; BLOCK / 2] = std::array::from_fn(|i| c[row * BLOCK + i]);
                act::silu_in_place(&mut gate);
                for (i, gate) in gate.iter().enumerate() {
                    c[row * (BLOCK / 2) + i] = gate * c[row * BLOCK + BLOCK / 2 + i];
                }
            }
        }
    }
    out.resize(len * element_bytes(job.format), 0);
    store(job.format, &c[..len], out);
}
