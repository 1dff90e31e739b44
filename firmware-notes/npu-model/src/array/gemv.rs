//! The GEMV: each column of the array takes x on MM2S 0, its part of the weights on MM2S 1, and gives its results on
//! S2MM 0.

use std::sync::{Mutex, PoisonError};

use host_ops::gemm;
use host_ops::pool::Pool;

use super::kernel::{GemvJob, element_bytes};
use super::memory::{DeviceMemory, MemoryFault, Piece, read, whole, write};
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

/// Memory that a GEMV needs and keeps for the next one.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    parts: [Part; COLUMNS],
    xs: Vec<Vector>,
    raw: Vec<u8>,
    /// As they leave, [`BLOCK`] places for each block of each part.
    results: Vec<u8>,
}

/// One column's transfers.
#[derive(Debug, Default)]
struct Part {
    /// Which vector.
    x: usize,
    w: Vec<Piece>,
    y: Vec<Piece>,
    /// Results.
    share: usize,
    /// Its first block among those of all parts.
    first: usize,
}

/// An input vector, and where it comes from.
#[derive(Debug, Default)]
struct Vector {
    pieces: Vec<Piece>,
    values: Vec<f32>,
}

impl Gemv {
    pub(super) fn new(job: GemvJob) -> Self {
        Self { job, done: job.shares.map(|share| share == 0) }
    }

    /// Bytes of the weights of `results` results.
    fn weight_bytes(&self, results: usize) -> usize {
        let GemvJob { k, order, bias, format, .. } = self.job;
        match order {
            Order::Stream => format.bytes(results * (k + if bias { 128 } else { 0 })),
            Order::Rows => format.bytes(results * k),
        }
    }

    /// Works on every column whose data and room for the results are there.
    pub(super) fn step(
        &mut self,
        lanes: &mut Lanes,
        memory: &dyn DeviceMemory,
        pool: &Pool,
        buffers: &mut Buffers,
        traffic: &mut Traffic,
    ) -> Result<Progress, MemoryFault> {
        let GemvJob { shares, k, format, .. } = self.job;
        let element = element_bytes(format);
        let Buffers { parts, xs, raw, results } = buffers;
        let mut starved = None;
        let (mut columns, mut vectors, mut blocks) = (0, 0, 0);
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
            let part = &mut parts[columns];
            columns += 1;
            if vectors == xs.len() {
                xs.push(Vector::default());
            }
            lanes.get(column, Direction::Mm2s, 0).take(sizes[0], &mut xs[vectors].pieces);
            lanes.get(column, Direction::Mm2s, 1).take(sizes[1], &mut part.w);
            lanes.get(column, Direction::S2mm, 0).take(sizes[2], &mut part.y);
            traffic.read += 4 * (sizes[0] + sizes[1]);
            traffic.written += 4 * sizes[2];
            // Columns normally get the same x: it is read once.
            part.x = xs[..vectors].iter().position(|seen| seen.pieces == xs[vectors].pieces).unwrap_or(vectors);
            vectors = vectors.max(part.x + 1);
            (part.share, part.first) = (share, blocks);
            blocks += share.div_ceil(BLOCK);
        }
        if let (Some(starved), 0) = (starved, columns) {
            return Ok(starved);
        }

        for x in &mut xs[..vectors] {
            raw.resize(k * element, 0);
            x.values.resize(k, 0.0);
            read(memory, &x.pieces, 0, raw)?;
            load(format, raw, &mut x.values);
            if format != Format::F32 {
                gemm::split(&mut x.values);
            }
        }
        let parts = &parts[..columns];
        let block_bytes = BLOCK * element;
        results.resize(blocks * block_bytes, 0);
        self.multiply(memory, pool, xs, parts, results)?;
        for part in parts {
            write(memory, &part.y, 0, &results[part.first * block_bytes..][..part.share * element])?;
        }
        Ok(if self.done == [true; COLUMNS] { Progress::Finished } else { Progress::Stepped })
    }

    /// All blocks of all parts, in parallel.
    fn multiply(
        &self,
        memory: &dyn DeviceMemory,
        pool: &Pool,
        xs: &[Vector],
        parts: &[Part],
        results: &mut [u8],
    ) -> Result<(), MemoryFault> {
        let element = element_bytes(self.job.format);
        let fault = Mutex::new(None);
        pool.run_chunks(results, BLOCK * element, &|block, out| {
            // The first part begins with block 0, so there is one.
            let Some(part) = parts.iter().rev().find(|part| part.first <= block) else { return };
            let i = block - part.first;
            let out = &mut out[..BLOCK.min(part.share - i * BLOCK) * element];
            if let Err(error) = self.block(memory, i, &xs[part.x].values, &part.w, out) {
                fault.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
        });
        fault.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    /// Block `i` of a part: 64 results, fewer at the end of a part in row order.
    fn block(
        &self,
        memory: &dyn DeviceMemory,
        i: usize,
        x: &[f32],
        w: &[Piece],
        out: &mut [u8],
    ) -> Result<(), MemoryFault> {
        let GemvJob { k, order, bias, format, .. } = self.job;
        let count = out.len() / element_bytes(format);
        let start = (i * self.weight_bytes(BLOCK)) as u64;
        let mut y = [0.0; BLOCK];
        match order {
            Order::Rows => whole(memory, w, start, self.weight_bytes(count), |packed| {
                gemm::gemv_rows(format, packed, x, &mut y[..count]);
            })?,
            Order::Stream => {
                let bias_bytes = if bias { format.bytes(128 * BLOCK) } else { 0 };
                let weights = format.bytes(k * BLOCK);
                whole(memory, w, start + bias_bytes as u64, weights, |packed| {
                    gemm::gemv_block(format, packed, x, &mut y);
                })?;
                if bias {
                    let (mut raw, mut values) = ([0; 4 * BLOCK], [0.0; BLOCK]);
                    let raw = &mut raw[..out.len()];
                    read(memory, w, start, raw)?;
                    load(format, raw, &mut values);
                    y.iter_mut().zip(&values).for_each(|(y, bias)| *y += bias);
                }
            }
        }
        store(format, &y[..count], out);
        Ok(())
    }
}
