//! The GEMV: each column of the array takes x on MM2S 0, its part of the weights on MM2S 1, and gives its results on
//! S2MM 0.

use std::sync::{Mutex, PoisonError};

use host_ops::gemm;
use host_ops::pool::Pool;

use super::kernel::{GemvJob, element_bytes};
use super::memory::{DeviceMemory, MemoryFault, Piece, bytes, read, write};
use super::numbers::{load, store};
use super::shim::{COLUMNS, Direction, Lanes};
use super::step::{Progress, Traffic};
use super::{Format, Order};

/// Results that are worked on at a time.
const BLOCK: usize = gemm::BLOCK_COLUMNS;

/// How far a GEMV has come.
#[derive(Debug)]
pub(super) struct Gemv {
    job: GemvJob,
    done: [bool; COLUMNS],
}

/// One column's transfers.
struct Part {
    x: usize,
    w: Vec<Piece>,
    y: Vec<Piece>,
    results: Vec<u8>,
}

/// Block `i` of a part: 64 results, fewer at the end of a part in row order.
struct Block<'a> {
    i: usize,
    x: &'a [f32],
    w: &'a [Piece],
    out: &'a mut [u8],
}

impl Gemv {
    pub(super) fn new(job: GemvJob) -> Self {
        Self { job, done: job.shares.map(|share| share == 0) }
    }

    /// Bytes of the weights of `results` results.
    fn weight_bytes(&self, results: usize) -> usize {
        let GemvJob { k, order, bias, format, .. } = self.job;
        match order {
            Order::Stream => results * (k + if bias { 128 } else { 0 }) / 8 * format.block_bytes(),
            Order::Rows => results * k / 8 * format.block_bytes(),
        }
    }

    /// Works on every column whose data and room for the results are there.
    pub(super) fn step(
        &mut self,
        lanes: &mut Lanes,
        memory: &dyn DeviceMemory,
        pool: &Pool,
        traffic: &mut Traffic,
    ) -> Result<Progress, MemoryFault> {
        let GemvJob { shares, k, format, .. } = self.job;
        let element = element_bytes(format);
        let mut starved = None;
        let mut x_pieces: Vec<Vec<Piece>> = Vec::new();
        let mut parts: Vec<Part> = Vec::new();
        for (column, &share) in shares.iter().enumerate() {
            let sizes = [k * element, self.weight_bytes(share), share * element].map(|bytes| (bytes / 4) as u64);
            let channels = [(Direction::Mm2s, 0), (Direction::Mm2s, 1), (Direction::S2mm, 0)];
            let short = channels.iter().zip(sizes).find(|&(&(direction, index), words)| {
                !self.done[column] && lanes.get(column, direction, index).available() < words
            });
            if let Some((&(direction, index), _)) = short {
                starved.get_or_insert(Progress::Starved { column, direction, index });
                continue;
            }
            if self.done[column] {
                continue;
            }
            self.done[column] = true;
            let x = lanes.get(column, Direction::Mm2s, 0).take(sizes[0]);
            let w = lanes.get(column, Direction::Mm2s, 1).take(sizes[1]);
            let y = lanes.get(column, Direction::S2mm, 0).take(sizes[2]);
            traffic.read += 4 * (sizes[0] + sizes[1]);
            traffic.written += 4 * sizes[2];
            // Columns normally get the same x: it is read once.
            let x = x_pieces.iter().position(|seen| *seen == x).unwrap_or_else(|| {
                x_pieces.push(x);
                x_pieces.len() - 1
            });
            parts.push(Part { x, w, y, results: vec![0; share * element] });
        }
        if let (Some(starved), []) = (starved, &parts[..]) {
            return Ok(starved);
        }

        let mut xs = Vec::new();
        for pieces in &x_pieces {
            let (mut raw, mut x) = (vec![0; k * element], vec![0.0; k]);
            read(memory, pieces, 0, &mut raw)?;
            load(format, &raw, &mut x);
            if format == Format::Bfp16 {
                gemm::split(&mut x);
            }
            xs.push(x);
        }
        self.multiply(memory, pool, &xs, &mut parts)?;
        for part in &parts {
            write(memory, &part.y, 0, &part.results)?;
        }
        Ok(if self.done == [true; COLUMNS] { Progress::Finished } else { Progress::Stepped })
    }

    /// All blocks of all parts, in parallel.
    fn multiply(
        &self,
        memory: &dyn DeviceMemory,
        pool: &Pool,
        xs: &[Vec<f32>],
        parts: &mut [Part],
    ) -> Result<(), MemoryFault> {
        let format = self.job.format;
        let block_bytes = BLOCK * element_bytes(format);
        let mut blocks: Vec<Block<'_>> = Vec::new();
        for part in parts {
            let Part { x, w, results, .. } = part;
            let outs = results.chunks_mut(block_bytes).enumerate();
            blocks.extend(outs.map(|(i, out)| Block { i, x: &xs[*x], w, out }));
        }
        let fault = Mutex::new(None);
        pool.run_chunks(&mut blocks, 1, &|_, block| {
            if let Err(error) = self.block(memory, &mut block[0]) {
                fault.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
        });
        fault.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    /// One block.
    fn block(&self, memory: &dyn DeviceMemory, block: &mut Block<'_>) -> Result<(), MemoryFault> {
        let Block { i, x, w, out } = block;
        let GemvJob { k, order, bias, format, .. } = self.job;
        let count = out.len() / element_bytes(format);
        let start = (*i * self.weight_bytes(BLOCK)) as u64;
        let mut y = [0.0; BLOCK];
        let mut gathered = Vec::new();
        match order {
            Order::Rows => {
                let packed = bytes(memory, w, start, self.weight_bytes(count), &mut gathered)?;
                gemm::gemv_rows(format, packed, x, &mut y[..count]);
            }
            Order::Stream => {
                let bias_bytes = if bias { 128 * BLOCK / 8 * format.block_bytes() } else { 0 };
                let weights = k * BLOCK / 8 * format.block_bytes();
                let packed = bytes(memory, w, start + bias_bytes as u64, weights, &mut gathered)?;
                gemm::gemv_block(format, packed, x, &mut y);
                if bias {
                    let (mut raw, mut values) = (vec![0; out.len()], [0.0; BLOCK]);
                    read(memory, w, start, &mut raw)?;
                    load(format, &raw, &mut values);
                    y.iter_mut().zip(&values).for_each(|(y, bias)| *y += bias);
                }
            }
        }
        store(format, &y[..count], out);
        Ok(())
    }
}
