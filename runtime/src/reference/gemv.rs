//! The GEMV stream: each column takes a contiguous part of the results, as IRON's `gemv` does, on one core.

use super::gemm::column_block_bytes;
use super::parameters::Parameters;
use super::schedule::{Lane, Task, emit};
use super::txn::{COLUMNS, Channel, Descriptor, Direction, Writer};
use super::{Epilogue, Format, Kind, Order, SpecError, element_bytes, multiple};

/// Results that are not split between columns.
const BLOCK: usize = 64;

/// `y[M] = W[M, K] x[K] + bias`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GemvSpec {
    /// Results: a multiple of 64 (of 8 in row order).
    pub m: usize,
    /// Length of x, a multiple of 512.
    pub k: usize,
    /// How the weights lie.
    pub order: Order,
    /// Whether a bias chunk stands before each 64-column block (stream order only).
    pub bias: bool,
    /// The number format.
    pub format: Format,
}

/// The instruction stream of a GEMV dispatch; arguments: x, W, y.
///
/// # Errors
/// A size that the kernel's tiles or the descriptors' fields cannot hold.
pub fn gemv_stream(spec: &GemvSpec) -> Result<Vec<u8>, SpecError> {
    multiple("K", spec.k, 512, "a positive multiple of 512 up to 2^20")?;
    match spec.order {
        Order::Stream => multiple("M", spec.m, BLOCK, "a positive multiple of 64 up to 2^20")?,
        Order::Rows => multiple("M", spec.m, 8, "a positive multiple of 8 up to 2^20")?,
    }
    if spec.bias && spec.order == Order::Rows {
        return Err(SpecError::Size { what: "bias", value: 1, rule: "absent in row order" });
    }
    let parameters = Parameters {
        kind: Kind::Gemv,
        format: spec.format,
        m: spec.m,
        n: 0,
        order: spec.order,
        k: spec.k,
        epilogue: Epilogue::None,
        bias: spec.bias,
        streamed: false,
    };
    let weight_bytes = |results: usize| match spec.order {
        Order::Stream => results / BLOCK * column_block_bytes(spec.format, spec.k, spec.bias),
        Order::Rows => spec.format.bytes(results * spec.k),
    };
    let element = element_bytes(spec.format);
    let mut writer = Writer::new();
    let mut lanes = Vec::new();
    for column in 0..COLUMNS {
        let part = part(spec.m, column);
        if part.is_empty() {
            continue;
        }
        parameters.release(&mut writer, column, 1, part.len());
        let mut lane = |direction, index, first_id, argument, offset: usize, bytes: usize| {
            let task =
                Task { descriptor: Descriptor::linear(bytes / 4), argument, offset: offset as u64, runs: 1, step: 0 };
            lanes.push(Lane { channel: Channel { column, direction, index }, first_id, tasks: vec![task] });
        };
        lane(Direction::S2mm, 0, 0, 2, part.start * element, part.len() * element);
        lane(Direction::Mm2s, 1, 8, 1, weight_bytes(part.start), weight_bytes(part.len()));
        lane(Direction::Mm2s, 0, 4, 0, 0, spec.k * element);
    }
    emit(&mut writer, &lanes)?;
    Ok(writer.finish())
}

/// The results of one column: blocks of 64 spread evenly, in order.
fn part(m: usize, column: usize) -> std::ops::Range<usize> {
    let blocks = m.div_ceil(BLOCK);
    let start = |column: usize| (column * (blocks / COLUMNS) + column.min(blocks % COLUMNS)) * BLOCK;
    start(column).min(m)..start(column + 1).min(m)
}
