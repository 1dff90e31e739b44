//! Opaque kernels: what their contract says, with the stream only walked, not obeyed.

use host_ops::pool::Pool;

use super::kernel::{GemmJob, GemvJob, Job, element_bytes};
use super::memory::DeviceMemory;
use super::run::Place;
use super::shim::{COLUMNS, Direction, Lanes, Task, Walk};
use super::step::{Engine, Progress, Scratch, Traffic};
use super::txn::Op;
use super::{Contract, GemmContract, GemvContract, Order};

/// Checks what can be checked of an operation without knowing the kernel.
pub(super) fn check(op: Op<'_>, args: usize) -> Result<(), String> {
    match op {
        Op::Write { addr, .. } | Op::BlockWrite { addr, .. } | Op::MaskWrite { addr, .. } | Op::MaskPoll { addr } => {
            Place::of(addr).map(|_| ())
        }
        Op::Wait { column, columns, .. } if column + columns > COLUMNS => {
            Err(format!("wait for a token of columns {column} to {}", column + columns - 1))
        }
        Op::Patch { register, argument, .. } => {
            Place::of(register)?;
            if argument >= args {
                return Err(format!("address patch with argument {argument}, the command has {args}"));
            }
            Ok(())
        }
        Op::Wait { .. } | Op::Nothing | Op::Foreign(_) => Ok(()),
    }
}

/// Computes a contract over whole views.
pub(super) fn run(
    contract: &Contract,
    args: &[u64],
    memory: &dyn DeviceMemory,
    pool: &Pool,
    scratch: &mut Scratch,
) -> Result<Traffic, String> {
    let &[input, weights, output, ..] = args else {
        return Err(format!("{} buffer arguments, the kernel has three", args.len()));
    };
    if args[..3].iter().any(|arg| !arg.is_multiple_of(4) || arg >> 48 != 0) {
        return Err(format!("buffer addresses {:#x?} are no 48-bit multiples of 4", &args[..3]));
    }
    let Scratch { lanes, buffers } = scratch;
    lanes.clear();
    let job = match contract {
        Contract::Gemm(contract) => Job::Gemm(gemm(contract, [input, weights, output], lanes)?),
        Contract::Gemv(contract) => Job::Gemv(gemv(contract, [input, weights, output], lanes)?),
    };
    let (mut engine, mut traffic) = (Engine::new(job), Traffic::default());
    loop {
        match engine.step(lanes, memory, pool, buffers, &mut traffic) {
            Ok(Progress::Stepped) => {}
            Ok(Progress::Finished) => return Ok(traffic),
            Ok(Progress::Starved { .. }) => return Err("the contract's traffic does not add up".to_owned()),
            Err(fault) => return Err(fault.to_string()),
        }
    }
}

fn task(walk: Walk, runs: u64) -> Task {
    Task { walk, runs, token: false, descriptor: 0 }
}

/// The traffic of a GEMM, without the limits of real descriptors.
fn gemm(contract: &GemmContract, args: [u64; 3], lanes: &mut Lanes) -> Result<GemmJob, String> {
    let &GemmContract { m, chunks, k, n, lda, c_stride, bias, epilogue, format } = contract;
    let (element, most) = (element_bytes(format) as u64, 1 << 20);
    let width = if epilogue == super::Epilogue::PairedSwiglu { 32 } else { 64 };
    let rows = m.saturating_mul(chunks);
    let multiples = [("rows", rows, 256), ("K", k, 512), ("N", n, 64)];
    for (what, value, of) in multiples {
        if value == 0 || value > most || !value.is_multiple_of(of) {
            return Err(format!("contract with {what} = {value}, no multiple of {of} up to {most}"));
        }
    }
    let odd = |stride: usize| stride > most || !(stride as u64 * element).is_multiple_of(4);
    if lda < k || c_stride < n / 64 * width || odd(lda) || odd(c_stride) {
        return Err(format!("contract with row strides {lda} and {c_stride} for K = {k}, N = {n}"));
    }
    let words = |elements: usize| elements as u64 * element / 4;
    let column_block = format.bytes((k + if bias { 128 } else { 0 }) * 64) as u64;
    let (blocks, units) = (n / 64, rows as u64 / 256);
    for row in 0..4 {
        let walk = Walk {
            base: args[0] + 4 * words(64 * row * lda),
            length: words(64 * k),
            d0: (words(512), 1),
            d1: (64, words(lda)),
            d2: words(512),
            iteration: (units, words(256 * lda)),
            current: 0,
        };
        lanes.get(2 * row, Direction::Mm2s, 0).push(task(walk, units * blocks.div_ceil(COLUMNS) as u64));
    }
    for column in 0..COLUMNS.min(blocks) {
        let sweeps = (blocks / COLUMNS + usize::from(column < blocks % COLUMNS)) as u64;
        let mut walk = Walk::linear(args[1] + column as u64 * column_block, column_block / 4);
        walk.iteration = (sweeps, COLUMNS as u64 * column_block / 4);
        lanes.get(column, Direction::Mm2s, 1).push(task(walk, sweeps));
        let walk = Walk {
            base: args[2] + 4 * words(column * width),
            length: words(rows * width),
            d0: (words(width), 1),
            d1: (0, words(c_stride)),
            d2: 1,
            iteration: (sweeps, words(COLUMNS * width)),
            current: 0,
        };
        lanes.get(column, Direction::S2mm, 0).push(task(walk, sweeps));
    }
    Ok(GemmJob { rows, k, n, epilogue, bias, streamed: false, format })
}

/// The traffic of a GEMV.
fn gemv(contract: &GemvContract, args: [u64; 3], lanes: &mut Lanes) -> Result<GemvJob, String> {
    let &GemvContract { m, k, order, bias, format } = contract;
    let (of, most) = (if order == Order::Stream { 64 } else { 8 }, 1 << 20);
    if m == 0 || m > most || !m.is_multiple_of(of) || k == 0 || k > most || !k.is_multiple_of(512) {
        return Err(format!("contract with M = {m}, no multiple of {of}, or K = {k}, no multiple of 512"));
    }
    if bias && order == Order::Rows {
        return Err("contract with bias chunks in row order".to_owned());
    }
    let blocks = m.div_ceil(64);
    let weight_bytes = |results: usize| format.bytes(results * (k + if bias { 128 } else { 0 }));
    let mut shares = [0; COLUMNS];
    let mut start = 0;
    for (column, share) in shares.iter_mut().enumerate() {
        *share = (64 * (blocks / COLUMNS + usize::from(column < blocks % COLUMNS))).min(m - start);
        if *share == 0 {
            continue;
        }
        let mut lane = |direction, index, base: u64, bytes: usize| {
            lanes.get(column, direction, index).push(task(Walk::linear(base, bytes as u64 / 4), 1));
        };
        let element = element_bytes(format);
        lane(Direction::Mm2s, 0, args[0], k * element);
        lane(Direction::Mm2s, 1, args[1] + weight_bytes(start) as u64, weight_bytes(*share));
        lane(Direction::S2mm, 0, args[2] + (start * element) as u64, *share * element);
        start += *share;
    }
    Ok(GemvJob { shares, k, order, bias, format })
}
