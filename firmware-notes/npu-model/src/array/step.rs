//! The kernel at work: takes what the channels bring, a step at a time.

use host_ops::pool::Pool;

use super::gemm::{Gemm, Scratch};
use super::gemv::Gemv;
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
        scratch: &mut Scratch,
        traffic: &mut Traffic,
    ) -> Result<Progress, MemoryFault> {
        match self {
            Self::Gemm(gemm) => gemm.step(lanes, memory, pool, scratch, traffic),
            Self::Gemv(gemv) => gemv.step(lanes, memory, pool, traffic),
        }
    }
}
