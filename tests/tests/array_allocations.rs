//! The array keeps its memory: the second command of a shape allocates nothing.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

use npu_model::bench::Bench;
use runtime::reference::{Epilogue, Format, GemmSpec, GemvSpec, Kind, Order, gemm_stream, gemv_stream, xclbin};
use runtime::xclbin::Xclbin;

/// Counts what is asked of the system, by all threads.
struct Counting;

static COUNT: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is the system's allocator's answer.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on; `block` came from `System`.
        unsafe { System.dealloc(block, layout) };
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What [`Bench::run`] itself needs: the list of buffers and that of their addresses.
const OF_THE_BENCH: u64 = 2;

fn check(kind: Kind, stream: &[u8], bytes: [usize; 3]) {
    let pdi = Xclbin::parse(&xclbin(kind), "MLIR_AIE").unwrap().pdi;
    for threads in [1, 3] {
        let mut bench = Bench::new(&pdi, threads).unwrap();
        let [mut input, mut weights, mut output] = bytes.map(|n| vec![0; n]);
        let mut run = || {
            let before = COUNT.load(Ordering::Relaxed);
            bench.run(stream, &mut [&mut input, &mut weights, &mut output]).unwrap();
            COUNT.load(Ordering::Relaxed) - before
        };
        let counts: [u64; 16] = std::array::from_fn(|_| run());
        assert!(counts[0] > OF_THE_BENCH, "the first command needs memory, so this counts nothing: {counts:?}");
        // Blocks go to whoever is free: a thread that gets its first one later brings its memory then, once.
        let late: u64 = counts[1..].iter().map(|count| count - OF_THE_BENCH).sum();
        assert!(late < threads as u64, "{kind:?}, {threads} threads: {counts:?}");
    }
}

/// One test, so that nobody else's allocations are counted.
#[test]
fn the_second_command_of_a_shape_allocates_nothing() {
    let (k, n, format) = (1024, 1088, Format::Bfp16);
    let weights = (k + 128) * n / 8 * 9;
    let gemv = GemvSpec { m: n, k, order: Order::Stream, bias: true, format };
    check(Kind::Gemv, &gemv_stream(&gemv).unwrap(), [2 * k, weights, 2 * n]);
    let rows = GemvSpec { order: Order::Rows, bias: false, ..gemv };
    check(Kind::Gemv, &gemv_stream(&rows).unwrap(), [2 * k, k * n / 8 * 9, 2 * n]);
    let gemm = GemmSpec { chunks: 2, k, n, lda: k, c_stride: n, bias: true, epilogue: Epilogue::None, format };
    check(Kind::Gemm, &gemm_stream(&gemm).unwrap(), [512 * 2 * k, weights, 512 * 2 * n]);
}
