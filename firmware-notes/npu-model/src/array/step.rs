//! The kernel at work: takes what the channels bring, a step at a time.

use host_ops::pool::Pool;

use super::gemm::{self, Gemm};
use super::gemv::{self, Gemv};
use super::kernel::Job;
use super::memory::{DeviceMemory, MemoryFault};
use super::shim::{Direction, Lanes};

/// What became of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Some work is done, more is to come.
    Stepped,
    /// The last of the work is done.
    Finished,
    /// A channel has too little queued.
    Starved { column: usize, direction: Direction, index: usize },
}

/// Bytes moved between memory and array.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Traffic {
    pub(super) read: u64,
    pub(super) written: u64,
}

/// Memory that dispatches need and leave to the next one: after the first of a shape, none allocates.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    pub(super) lanes: Lanes,
    pub(super) buffers: Buffers,
}

/// The kernels' part of it.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    gemm: gemm::Buffers,
    gemv: gemv::Buffers,
}

/// A kernel that has been released.
#[derive(Debug)]
pub(super) enum Engine {
    Gemm(Gemm),
    Gemv(Gemv),
}

impl Engine {
    pub(super) fn new(job: Job) -> Self {
        match job {
            Job::Gemm(job) => Self::Gemm(Gemm::new(job)),
            Job::Gemv(job) => Self::Gemv(Gemv::new(job)),
        }
    }

    /// Works on the next thing for which everything is there.
    pub(super) fn step(
        &mut self,
        lanes: &mut Lanes,
        memory: &dyn DeviceMemory,
        pool: &Pool,
        buffers: &mut Buffers,
        traffic: &mut Traffic,
    ) -> Result<Progress, MemoryFault> {
        match self {
            Self::Gemm(gemm) => gemm.step(lanes, memory, pool, &mut buffers.gemm, traffic),
            Self::Gemv(gemv) => gemv.step(lanes, memory, pool, &mut buffers.gemv, traffic),
        }
    }
}
