//! The runtime parameters of the reference kernels, as they stand in a core's data memory.

use super::txn::{Writer, tile};
use super::{Epilogue, Format, Kind, Order};

/// Where the parameters start in a core tile.
const ADDRESS: u32 = 0x1000;
/// The value register of the lock that releases a core: lock 10.
const BARRIER: u32 = 0x1F000 + 16 * 10;
/// "RK", and the version of this layout.
const MAGIC: u32 = 0x4B52_0000 | (super::VERSION << 8);
/// The first row of cores.
const FIRST_CORE_ROW: usize = 2;

/// What the cores of one dispatch are told.
#[derive(Debug, Clone, Copy)]
pub(super) struct Parameters {
    pub(super) kind: Kind,
    pub(super) format: Format,
    /// Rows of A, or results of a GEMV.
    pub(super) m: usize,
    /// Columns of B; unused by a GEMV.
    pub(super) n: usize,
    pub(super) order: Order,
    pub(super) k: usize,
    pub(super) epilogue: Epilogue,
    pub(super) bias: bool,
    /// Whether a column block of B is sent once for each 256 rows instead of once.
    pub(super) streamed: bool,
}

impl Parameters {
    /// Writes the parameters into `rows` cores of a column and releases them; `share` is what this column works on:
    /// column blocks of a GEMM, results of a GEMV.
    pub(super) fn release(&self, writer: &mut Writer, column: usize, rows: usize, share: usize) {
        let words = [
            MAGIC
                | match self.kind {
                    Kind::Gemm => 1,
                    Kind::Gemv => 2,
                },
            match self.format {
                Format::Bfp16 => 0,
                Format::F32 => 1,
                Format::Bfp6s => 2,
            },
            self.m as u32,
            match (self.kind, self.order) {
                (Kind::Gemm, _) => self.n as u32,
                (Kind::Gemv, Order::Stream) => 0,
                (Kind::Gemv, Order::Rows) => 1,
            },
            self.k as u32,
            match self.epilogue {
                Epilogue::None => 0,
                Epilogue::GeluTanh => 1,
                Epilogue::Silu => 2,
                Epilogue::PairedSwiglu => 3,
            },
            u32::from(self.bias) | u32::from(self.streamed) << 1,
            share as u32,
        ];
        for row in FIRST_CORE_ROW..FIRST_CORE_ROW + rows {
            writer.block_write(tile(column, row) + ADDRESS, &words);
            writer.write(tile(column, row) + BARRIER, 1);
        }
    }
}
