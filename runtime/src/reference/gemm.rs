//! The GEMM stream: the traffic of an 8-column, 4-row GEMM at the shim (after IRON's `flm.GEMM`).

use super::parameters::Parameters;
use super::schedule::{Lane, Task, emit};
use super::txn::{COLUMNS, Channel, Descriptor, Direction, MAX_ITERATIONS, MAX_RUNS, MAX_STEP, Writer};
use super::{Epilogue, Format, Kind, Order, SpecError, element_bytes, multiple};

/// Rows of a chunk: four rows of cores with 64 each.
const CHUNK: usize = 256;
/// Rows of A that one row of cores takes.
const CORE_ROWS: usize = 64;
/// k of one transfer tile.
const K_TILE: usize = 512;
/// Columns of B in one block.
const BLOCK: usize = 64;
/// Packed bytes of a column block that the memory tiles keep for all chunks: 8 k tiles of bfp16.
const RESIDENT_BYTES: usize = 8 * 36_864;

/// C = epilogue(A B + bias), with A `[256*chunks, K]` at row stride `lda` and C `[256*chunks, N]` (`N/2` columns for
/// [`Epilogue::PairedSwiglu`]) at row stride `c_stride`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GemmSpec {
    /// Chunks of 256 rows in one dispatch, 1..=16.
    pub chunks: usize,
    /// Rows of the weight stream, a multiple of 512.
    pub k: usize,
    /// Columns of the weight stream, a multiple of 64.
    pub n: usize,
    /// Row stride of A in elements.
    pub lda: usize,
    /// Row stride of C in elements.
    pub c_stride: usize,
    /// Whether a bias chunk stands before each 64-column block of the stream.
    pub bias: bool,
    /// What happens to the accumulator.
    pub epilogue: Epilogue,
    /// The number format.
    pub format: Format,
}

impl GemmSpec {
    /// Columns of C.
    fn c_columns(&self) -> usize {
        match self.epilogue {
            Epilogue::PairedSwiglu => self.n / 2,
            _ => self.n,
        }
    }

    /// Elements to 32-bit words.
    fn words(&self, elements: usize) -> usize {
        elements * element_bytes(self.format) / 4
    }

    fn bytes(&self, elements: usize) -> u64 {
        (elements * element_bytes(self.format)) as u64
    }

    fn validate(&self) -> Result<(), SpecError> {
        if !(1..=16).contains(&self.chunks) {
            return Err(SpecError::Size { what: "chunks", value: self.chunks, rule: "1 to 16" });
        }
        multiple("K", self.k, K_TILE, "a positive multiple of 512 up to 2^20")?;
        multiple("N", self.n, BLOCK, "a positive multiple of 64 up to 2^20")?;
        for (what, value, least) in [("lda", self.lda, self.k), ("c_stride", self.c_stride, self.c_columns())] {
            if value < least || value > MAX_STEP || !(value * element_bytes(self.format)).is_multiple_of(4) {
                return Err(SpecError::Size { what, value, rule: "even, at least the row's length, up to 2^20" });
            }
        }
        Ok(())
    }
}

/// The instruction stream of a GEMM dispatch; arguments: A, B (the weight stream), C.
///
/// # Errors
/// A size that the kernel's tiles or the descriptors' fields cannot hold.
pub fn gemm_stream(spec: &GemmSpec) -> Result<Vec<u8>, SpecError> {
    spec.validate()?;
    let blocks = spec.n / BLOCK;
    let column_block = column_block_bytes(spec.format, spec.k, spec.bias);
    let parameters = Parameters {
        kind: Kind::Gemm,
        format: spec.format,
        m: CHUNK * spec.chunks,
        n: spec.n,
        order: Order::Stream,
        k: spec.k,
        epilogue: spec.epilogue,
        bias: spec.bias,
        streamed: spec.chunks > 1 && column_block > RESIDENT_BYTES,
    };
    let mut writer = Writer::new();
    for column in 0..COLUMNS {
        parameters.release(&mut writer, column, 4, share(blocks, column));
    }
    let mut lanes: Vec<Lane> = (0..COLUMNS).map(|c| results(spec, c, share(blocks, c))).collect();
    lanes.extend((0..COLUMNS).map(|c| weights(spec, c, share(blocks, c), column_block, parameters.streamed)));
    lanes.extend((0..4).map(|row| activations(spec, row, blocks.div_ceil(COLUMNS))));
    emit(&mut writer, &lanes)?;
    Ok(writer.finish())
}

/// Bytes of one 64-column block of a weight stream, bias chunk included.
pub(super) fn column_block_bytes(format: Format, k: usize, bias: bool) -> usize {
    format.bytes((k + if bias { 128 } else { 0 }) * BLOCK)
}

/// Blocks that a column works on: every eighth.
fn share(blocks: usize, column: usize) -> usize {
    blocks / COLUMNS + usize::from(column < blocks % COLUMNS)
}

/// A for one row of cores, on MM2S 0 of every second column: for each sweep over eight blocks, for each chunk, k tiles
/// of 64 rows.
fn activations(spec: &GemmSpec, row: usize, sweeps: usize) -> Lane {
    let chunk_step = spec.words(CHUNK * spec.lda);
    let descriptor = Descriptor {
        length: spec.words(CORE_ROWS * spec.k),
        d0: (spec.words(K_TILE), 1),
        d1: (CORE_ROWS, spec.words(spec.lda)),
        d2: spec.words(K_TILE),
        iteration: (1, 1),
    };
    let task = |descriptor, chunk: usize, runs, step| Task {
        descriptor,
        argument: 0,
        offset: spec.bytes((chunk * CHUNK + row * CORE_ROWS) * spec.lda),
        runs,
        step,
    };
    let tasks = if spec.chunks == 1 || chunk_step <= MAX_STEP {
        let descriptor = match spec.chunks {
            1 => descriptor,
            chunks => Descriptor { iteration: (chunks, chunk_step), ..descriptor },
        };
        // Whole rounds of the iteration, so that each task finds it at its start.
        let most = MAX_RUNS / spec.chunks;
        (0..sweeps)
            .step_by(most)
            .map(|sweep| task(descriptor, 0, spec.chunks * most.min(sweeps - sweep), sweep * spec.chunks))
            .collect()
    } else {
        (0..sweeps * spec.chunks).map(|step| task(descriptor, step % spec.chunks, 1, step)).collect()
    };
    Lane { channel: Channel { column: 2 * row, direction: Direction::Mm2s, index: 0 }, first_id: 4, tasks }
}

/// B for one column, on MM2S 1: its blocks, each once or (streamed) once a chunk.
fn weights(spec: &GemmSpec, column: usize, blocks: usize, column_block: usize, streamed: bool) -> Lane {
    let sweep_step = COLUMNS * column_block / 4;
    let at_once = if streamed || sweep_step > MAX_STEP { 1 } else { MAX_ITERATIONS };
    let tasks = (0..blocks)
        .step_by(at_once)
        .map(|sweep| {
            let sweeps = at_once.min(blocks - sweep);
            let mut descriptor = Descriptor::linear(column_block / 4);
            if sweeps > 1 {
                descriptor.iteration = (sweeps, sweep_step);
            }
            Task {
                descriptor,
                argument: 1,
                offset: ((sweep * COLUMNS + column) * column_block) as u64,
                runs: if streamed { spec.chunks } else { sweeps },
                step: sweep * spec.chunks,
            }
        })
        .collect();
    Lane { channel: Channel { column, direction: Direction::Mm2s, index: 1 }, first_id: 8, tasks }
}

/// C of one column, on S2MM 0: for each of its blocks all rows, top to bottom.
fn results(spec: &GemmSpec, column: usize, blocks: usize) -> Lane {
    let width = match spec.epilogue {
        Epilogue::PairedSwiglu => BLOCK / 2,
        _ => BLOCK,
    };
    let tasks = (0..blocks)
        .step_by(MAX_ITERATIONS)
        .map(|sweep| {
            let sweeps = MAX_ITERATIONS.min(blocks - sweep);
            let descriptor = Descriptor {
                length: spec.words(CHUNK * spec.chunks * width),
                d0: (spec.words(width), 1),
                d1: (0, spec.words(spec.c_stride)),
                d2: 1,
                iteration: if sweeps > 1 { (sweeps, spec.words(COLUMNS * width)) } else { (1, 1) },
            };
            let offset = spec.bytes((sweep * COLUMNS + column) * width);
            Task { descriptor, argument: 2, offset, runs: sweeps, step: sweep * spec.chunks }
        })
        .collect();
    Lane { channel: Channel { column, direction: Direction::S2mm, index: 0 }, first_id: 0, tasks }
}
