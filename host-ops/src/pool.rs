//! A small thread pool: scoped parallel loops with dynamic blocks, no allocation a call.

use std::{
    any::Any,
    cell::Cell,
    fmt,
    marker::PhantomData,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Gets the place of the thread among those of the loop, and the item.
type Body<'a> = dyn Fn(usize, usize) + Sync + 'a;

/// Turns of the wait loop before a worker goes to sleep: some ten microseconds, about what waking it up costs.
const SPINS: u32 = 400;

/// How long the first worker looks for work that is [about to come](Pool::stay_awake).
const STAY: Duration = Duration::from_millis(5);

/// Items for each thread that is awake, up to which nobody is woken for a loop while a thread stays awake for it.
const FEW: usize = 8;

thread_local! {
    /// Whether this thread is inside a loop of a pool.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// One parallel loop; lives on the stack of the thread that runs it.
struct Loop {
    /// The body, its lifetime erased; see `Pool::run`.
    body: *const Body<'static>,
    items: usize,
    threads: usize,
    next: AtomicUsize,
    /// Threads that have come.
    places: AtomicUsize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

impl Loop {
    /// The next block: a part of what is left, so that the last ones are small and threads of unequal speed end
    /// together.
    fn take(&self) -> Option<Range<usize>> {
        let size = |next: usize| (self.items.saturating_sub(next) / (4 * self.threads)).max(1);
        let after = |next: usize| (next < self.items).then(|| next + size(next));
        let first = self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, after).ok()?;
        Some(first..first + size(first))
    }

    /// Takes blocks until none is left.
    fn work(&self) {
        // SAFETY: the thread that made the loop keeps the body alive until no worker is in here, see `Pool::run`.
        let body = unsafe { &*self.body };
        let place = self.places.fetch_add(1, Ordering::Relaxed);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            while let Some(block) = self.take() {
                block.for_each(|i| body(place, i));
            }
        }));
        if let Err(panic) = outcome {
            self.next.store(self.items, Ordering::Relaxed);
            lock(&self.panic).get_or_insert(panic);
        }
    }
}

/// A pointer to the loop that is open for workers.
#[derive(Clone, Copy)]
struct Open(*const Loop);

// SAFETY: a `Loop` is only used through shared references, its body is `Sync`, and `Pool::run` keeps it alive.
unsafe impl Send for Open {}

struct Board {
    open: Option<Open>,
    /// Workers that have to be woken.
    asleep: usize,
    /// Whether the thread whose loop it is sleeps until the workers have left.
    waiting: bool,
    stop: bool,
}

struct Shared {
    board: Mutex<Board>,
    /// Counts loops; also what workers look at before they sleep.
    epoch: AtomicU64,
    /// Workers inside the open loop; changes under the board's lock.
    inside: AtomicUsize,
    /// [`Awake`]s there are.
    awake: AtomicUsize,
    wake: Condvar,
    left: Condvar,
}

/// Worker threads that run one loop at a time.
///
/// The calling thread works too, so `Pool::new(n)` starts `n - 1` threads. Calls from several threads take turns; a
/// call from inside a running loop runs inline. A panic in a loop body is passed on to the caller after the loop ends.
pub struct Pool {
    shared: Arc<Shared>,
    /// Held by the thread whose loop it is.
    turn: Mutex<()>,
    workers: Vec<JoinHandle<()>>,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads()).finish()
    }
}

impl Pool {
    /// A pool of `threads` threads, the caller included; 0 means one for each core (two threads of one core share the
    /// arithmetic units that this crate keeps busy). If the system refuses a thread the pool is smaller.
    pub fn new(threads: usize) -> Self {
        let threads = match threads {
            0 => cores(),
            n => n,
        };
        let shared = Arc::new(Shared {
            board: Mutex::new(Board { open: None, asleep: 0, waiting: false, stop: false }),
            epoch: AtomicU64::new(0),
            inside: AtomicUsize::new(0),
            awake: AtomicUsize::new(0),
            wake: Condvar::new(),
            left: Condvar::new(),
        });
        let workers = (1..threads)
            .map_while(|i| {
                let shared = Arc::clone(&shared);
                std::thread::Builder::new().name(format!("pool-{i}")).spawn(move || worker(&shared, i == 1)).ok()
            })
            .collect();
        Pool { shared, turn: Mutex::new(()), workers }
    }

    /// A pool without threads of its own: everything runs inline.
    pub fn serial() -> Self {
        Self::new(1)
    }

    /// Threads that work on a loop, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Says that small loops will come with short breaks in between, as those of one token do. For as long as the guard
    /// lives one worker does not sleep in such breaks, and loops that two threads are enough for do not wake others: no
    /// call to the system is needed then. It sleeps all the same when nothing has come for some milliseconds, and where
    /// there are only two threads: the second core is wanted by what the first waits for.
    pub fn stay_awake(&self) -> Awake<'_> {
        let shared = (self.threads() > 2).then_some(&*self.shared);
        if let Some(shared) = shared {
            shared.awake.fetch_add(1, Ordering::Relaxed);
        }
        Awake(shared)
    }

    /// Calls `body(i)` for each `i` in `0..items`, in any order, on any thread, and returns when all are done.
    ///
    /// # Panics
    /// With the first panic of `body`; then some items may not have run.
    pub fn run(&self, items: usize, body: &(dyn Fn(usize) + Sync)) {
        self.run_placed(items, &|_, i| body(i));
    }

    /// As [`Pool::run`], with memory that a thread has to itself: `body(slot, i)`.
    ///
    /// # Panics
    /// If there are fewer slots than threads; as [`Pool::run`].
    pub fn run_with<S: Send>(&self, slots: &mut [S], items: usize, body: &(dyn Fn(&mut S, usize) + Sync)) {
        assert!(slots.len() >= self.threads(), "{} slots for {} threads", slots.len(), self.threads());
        let slots = Chunks::new(slots, 1);
        // SAFETY: places are below the number of threads, and no two threads of a loop have the same; so a slot is one
        // thread's, which runs one item after the other.
        self.run_placed(items, &|place, i| body(&mut unsafe { slots.get(place) }[0], i));
    }

    fn run_placed(&self, items: usize, body: &Body<'_>) {
        if items <= 1 || self.workers.is_empty() || INSIDE.get() {
            return (0..items).for_each(|i| body(0, i));
        }
        let turn = lock(&self.turn);
        // SAFETY: only the lifetime changes. The pointer is used by `Loop::work` alone. Workers enter it while the loop
        // stands on the board; below, the loop is taken off the board and all workers have left before this function
        // returns, and nothing in between unwinds (`work` catches panics).
        let body = unsafe { std::mem::transmute::<*const Body<'_>, *const Body<'static>>(body) };
        let this = Loop {
            body,
            items,
            threads: self.threads(),
            next: AtomicUsize::new(0),
            places: AtomicUsize::new(0),
            panic: Mutex::new(None),
        };
        let asleep = {
            let mut board = lock(&self.shared.board);
            board.open = Some(Open(&raw const this));
            self.shared.epoch.fetch_add(1, Ordering::Release);
            board.asleep
        };
        let awake = self.threads() - asleep;
        let is_small = self.shared.awake.load(Ordering::Relaxed) > 0 && awake > 1 && items <= FEW * awake;
        if asleep > 0 && !is_small {
            self.shared.wake.notify_all();
        }

        INSIDE.set(true);
        this.work();
        INSIDE.set(false);

        lock(&self.shared.board).open = None;
        // Nobody comes in any more; those inside are at their last block.
        for _ in 0..SPINS {
            if self.shared.inside.load(Ordering::Acquire) == 0 {
                break;
            }
            std::hint::spin_loop();
        }
        if self.shared.inside.load(Ordering::Acquire) > 0 {
            let mut board = lock(&self.shared.board);
            board.waiting = true;
            while self.shared.inside.load(Ordering::Acquire) > 0 {
                board = self.shared.left.wait(board).unwrap_or_else(PoisonError::into_inner);
            }
            board.waiting = false;
        }
        drop(turn);
        let panic = lock(&this.panic).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    /// Cuts `0..len` into ranges of `grain` (the last one shorter) and calls `body` for each.
    ///
    /// # Panics
    /// As [`Pool::run`].
    pub fn run_ranges(&self, len: usize, grain: usize, body: &(dyn Fn(Range<usize>) + Sync)) {
        let grain = grain.max(1);
        self.run(len.div_ceil(grain), &|i| body(i * grain..((i + 1) * grain).min(len)));
    }

    /// Calls `body(i, chunk)` for each chunk of `chunk` elements of `out` (the last one shorter).
    ///
    /// # Panics
    /// As [`Pool::run`].
    pub fn run_chunks<T: Send>(&self, out: &mut [T], chunk: usize, body: &(dyn Fn(usize, &mut [T]) + Sync)) {
        let out = Chunks::new(out, chunk);
        // SAFETY: `run` calls each i once, so no chunk is handed out twice.
        self.run(out.count(), &|i| body(i, unsafe { out.get(i) }));
    }

    /// [`Pool::run_chunks`] with memory that a thread has to itself: `body(slot, i, chunk)`.
    ///
    /// # Panics
    /// As [`Pool::run_with`].
    pub fn run_chunks_with<S: Send, T: Send>(
        &self,
        slots: &mut [S],
        (out, chunk): (&mut [T], usize),
        body: &(dyn Fn(&mut S, usize, &mut [T]) + Sync),
    ) {
        let out = Chunks::new(out, chunk);
        // SAFETY: `run_with` calls each i once, so no chunk is handed out twice.
        self.run_with(slots, out.count(), &|slot, i| body(slot, i, unsafe { out.get(i) }));
    }

    /// As [`Pool::run_chunks`] over two slices at once, each with its chunk length: `body(i, chunk i of a, chunk i of
    /// b)`, for as many chunks as both have.
    ///
    /// # Panics
    /// As [`Pool::run`].
    #[expect(clippy::type_complexity)]
    pub fn run_chunks2<A: Send, B: Send>(
        &self,
        a: (&mut [A], usize),
        b: (&mut [B], usize),
        body: &(dyn Fn(usize, &mut [A], &mut [B]) + Sync),
    ) {
        self.run_parts((Chunks::new(a.0, a.1), Chunks::new(b.0, b.1)), |i, (a, b)| body(i, a, b));
    }

    /// As [`Pool::run_chunks2`] over three slices.
    ///
    /// # Panics
    /// As [`Pool::run`].
    #[expect(clippy::type_complexity)]
    pub fn run_chunks3<A: Send, B: Send, C: Send>(
        &self,
        a: (&mut [A], usize),
        b: (&mut [B], usize),
        c: (&mut [C], usize),
        body: &(dyn Fn(usize, &mut [A], &mut [B], &mut [C]) + Sync),
    ) {
        let parts = (Chunks::new(a.0, a.1), Chunks::new(b.0, b.1), Chunks::new(c.0, c.1));
        self.run_parts(parts, |i, (a, b, c)| body(i, a, b, c));
    }

    /// [`Pool::run_chunks`] over as many slices as there are in a tuple of [`Chunks`].
    pub(crate) fn run_parts<P: Parts>(&self, parts: P, body: impl Fn(usize, P::Part) + Sync) {
        // SAFETY: `run` calls each i once, so no part is handed out twice.
        self.run(parts.count(), &|i| body(i, unsafe { parts.part(i) }));
    }

    /// [`Pool::run_parts`] with memory that a thread has to itself.
    pub(crate) fn run_parts_with<S: Send, P: Parts>(
        &self,
        slots: &mut [S],
        parts: P,
        body: impl Fn(&mut S, usize, P::Part) + Sync,
    ) {
        // SAFETY: `run_with` calls each i once, so no part is handed out twice.
        self.run_with(slots, parts.count(), &|slot, i| body(slot, i, unsafe { parts.part(i) }));
    }
}

/// A time in which a worker [stays awake](Pool::stay_awake).
#[derive(Debug)]
#[must_use = "the time ends with it"]
pub struct Awake<'a>(Option<&'a Shared>);

impl Drop for Awake<'_> {
    fn drop(&mut self) {
        if let Some(shared) = self.0 {
            shared.awake.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        lock(&self.shared.board).stop = true;
        self.shared.epoch.fetch_add(1, Ordering::Release);
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches the panics of bodies and has none of its own to report.
            let _ = worker.join();
        }
    }
}

/// Cores that this process may use.
fn cores() -> usize {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    (threads / threads_per_core()).max(1)
}

#[cfg(target_arch = "x86_64")]
fn threads_per_core() -> usize {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    // Leaf 11, level 0: logical processors of a core.
    if __cpuid(0).eax < 11 {
        return 1;
    }
    (__cpuid_count(11, 0).ebx as usize & 0xffff).max(1)
}

#[cfg(not(target_arch = "x86_64"))]
fn threads_per_core() -> usize {
    1
}

/// Whether a worker that finds nothing to do goes on looking, after so many looks since `began`.
fn goes_on(shared: &Shared, is_first: bool, looks: u32, began: &mut Option<Instant>) -> bool {
    if looks < SPINS {
        return true;
    }
    let stays = is_first && shared.awake.load(Ordering::Relaxed) > 0;
    // The time is asked for now and then only.
    stays && (!looks.is_multiple_of(64) || began.get_or_insert_with(Instant::now).elapsed() < STAY)
}

fn worker(shared: &Shared, is_first: bool) {
    INSIDE.set(true);
    let mut seen = 0;
    loop {
        let (mut looks, mut began) = (0u32, None);
        while shared.epoch.load(Ordering::Acquire) == seen && goes_on(shared, is_first, looks, &mut began) {
            looks = looks.wrapping_add(1).max(1);
            std::hint::spin_loop();
        }
        let mut board = lock(&shared.board);
        let open = loop {
            if board.stop {
                return;
            }
            let epoch = shared.epoch.load(Ordering::Acquire);
            match board.open {
                Some(open) if epoch != seen => {
                    seen = epoch;
                    break open;
                }
                _ => {
                    board.asleep += 1;
                    board = shared.wake.wait(board).unwrap_or_else(PoisonError::into_inner);
                    board.asleep -= 1;
                }
            }
        };
        shared.inside.fetch_add(1, Ordering::Relaxed);
        drop(board);
        // SAFETY: `inside` was counted up under the lock while the loop was on the board, so `Pool::run` waits for the
        // count to come back before it lets go of the loop.
        unsafe { &*open.0 }.work();
        // Under the lock: the caller looks at the count before it sleeps, and must not miss this.
        let board = lock(&shared.board);
        if shared.inside.fetch_sub(1, Ordering::Release) == 1 && board.waiting {
            shared.left.notify_all();
        }
    }
}

/// The state behind these locks is whole at every moment, so a poisoned one is as good.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Things cut into as many parts, which different threads may take.
pub(crate) trait Parts: Sync {
    /// One of them.
    type Part;

    fn count(&self) -> usize;

    /// Part `i`.
    ///
    /// # Safety
    /// `i < count()`, and no part is taken twice.
    unsafe fn part(&self, i: usize) -> Self::Part;
}

impl<'a, T: Send> Parts for Chunks<'a, T> {
    type Part = &'a mut [T];

    fn count(&self) -> usize {
        Chunks::count(self)
    }

    unsafe fn part(&self, i: usize) -> &'a mut [T] {
        // SAFETY: as the caller promises.
        unsafe { self.get(i) }
    }
}

macro_rules! tuple_parts {
    ($($name:ident $index:tt),*) => {
        impl<$($name: Parts),*> Parts for ($($name,)*) {
            type Part = ($($name::Part,)*);

            fn count(&self) -> usize {
                [$(self.$index.count()),*].into_iter().min().unwrap_or(0)
            }

            unsafe fn part(&self, i: usize) -> Self::Part {
                // SAFETY: `count` is the least of all counts; the rest is as the caller promises.
                unsafe { ($(self.$index.part(i),)*) }
            }
        }
    };
}

tuple_parts!(A 0, B 1);
tuple_parts!(A 0, B 1, C 2);
tuple_parts!(A 0, B 1, C 2, D 3, E 4);
tuple_parts!(A 0, B 1, C 2, D 3, E 4, F 5);

/// A slice cut into chunks that different threads may take.
pub(crate) struct Chunks<'a, T> {
    start: *mut T,
    len: usize,
    chunk: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: sharing a `Chunks` lets threads take disjoint `&mut [T]`, which `T: Send` allows.
unsafe impl<T: Send> Sync for Chunks<'_, T> {}

impl<'a, T> Chunks<'a, T> {
    pub(crate) fn new(slice: &'a mut [T], chunk: usize) -> Self {
        Chunks { start: slice.as_mut_ptr(), len: slice.len(), chunk: chunk.max(1), slice: PhantomData }
    }

    fn count(&self) -> usize {
        self.len.div_ceil(self.chunk)
    }

    /// Chunk `i`.
    ///
    /// # Safety
    /// `i < count()`, and no chunk is taken twice.
    unsafe fn get(&self, i: usize) -> &'a mut [T] {
        let first = i * self.chunk;
        // SAFETY: i < count() makes first < len, so the range lies in the slice, which is borrowed for 'a; the caller
        // takes each chunk once, so the ranges handed out are disjoint.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(first), self.chunk.min(self.len - first)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_runs_once() {
        for threads in [1, 2, 3, 8] {
            let pool = Pool::new(threads);
            for items in [0, 1, 2, 5, 100, 1001] {
                let hits: Vec<AtomicUsize> = (0..items).map(|_| AtomicUsize::new(0)).collect();
                pool.run(items, &|i| {
                    hits[i].fetch_add(1, Ordering::Relaxed);
                });
                assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 1), "{threads} threads, {items} items");
            }
        }
    }

    #[test]
    fn chunks_cover_the_slice_in_place() {
        let pool = Pool::new(3);
        let mut out = vec![0; 1003];
        pool.run_chunks(&mut out, 10, &|i, chunk| chunk.iter_mut().enumerate().for_each(|(j, x)| *x += i * 10 + j));
        assert!(out.iter().enumerate().all(|(i, &x)| i == x));

        let (mut a, mut b) = (vec![0; 10], vec![0; 21]);
        pool.run_chunks2((&mut a, 3), (&mut b, 7), &|i, a, b| {
            a.fill(i + 1);
            b.fill(a.len());
        });
        assert_eq!(a, [1, 1, 1, 2, 2, 2, 3, 3, 3, 0]);
        assert!(b.iter().all(|&x| x == 3));
        let total = AtomicUsize::new(0);
        pool.run_ranges(100, 7, &|r| {
            total.fetch_add(r.sum::<usize>(), Ordering::Relaxed);
        });
        assert_eq!(total.into_inner(), 4950);
    }

    #[test]
    fn a_thread_has_its_slot_to_itself() {
        for threads in [1, 2, 5] {
            let pool = Pool::new(threads);
            let mut slots = vec![(0, Vec::new()); threads];
            for _ in 0..20 {
                let mut out = vec![0; 333];
                pool.run_chunks_with(&mut slots, (&mut out, 1), &|(inside, seen), i, out| {
                    assert_eq!(*inside, 0);
                    *inside = 1;
                    seen.push(i);
                    out[0] = i;
                    *inside = 0;
                });
                assert!(out.iter().enumerate().all(|(i, &x)| i == x));
            }
            assert_eq!(slots.iter().map(|s| s.1.len()).sum::<usize>(), 20 * 333);
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let pool = Pool::new(3);
        for bad in [0, 7, 99] {
            let outcome = catch_unwind(AssertUnwindSafe(|| pool.run(100, &|i| assert!(i != bad, "item {i}"))));
            let message = outcome.unwrap_err();
            assert_eq!(message.downcast_ref::<String>(), Some(&format!("item {bad}")));
            let count = AtomicUsize::new(0);
            pool.run(50, &|_| {
                count.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(count.into_inner(), 50);
        }
    }

    #[test]
    fn loops_inside_loops_and_from_many_threads() {
        let pool = Pool::new(3);
        let count = AtomicUsize::new(0);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..50 {
                        pool.run(8, &|_| {
                            pool.run(4, &|_| {
                                count.fetch_add(1, Ordering::Relaxed);
                            });
                        });
                    }
                });
            }
        });
        assert_eq!(count.into_inner(), 4 * 50 * 8 * 4);
    }

    #[test]
    fn a_pool_that_stays_awake_runs_small_and_large_loops_before_and_after_it_falls_asleep() {
        let pool = Pool::new(3);
        let run = |items: usize| {
            let count = AtomicUsize::new(0);
            pool.run(items, &|_| {
                count.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(count.into_inner(), items);
        };
        let awake = pool.stay_awake();
        let second = pool.stay_awake();
        for items in [2, 500, 3, 16, 2] {
            run(items);
            std::thread::sleep(STAY * 2);
        }
        // Nobody looks for ever for work that does not come.
        let asleep = || lock(&pool.shared.board).asleep;
        (0..10_000).take_while(|_| asleep() < 2).for_each(|_| std::thread::sleep(Duration::from_millis(1)));
        assert_eq!(asleep(), 2);
        drop(awake);
        assert_eq!(pool.shared.awake.load(Ordering::Relaxed), 1);
        drop(second);
        (0..50).for_each(|_| run(5));
        assert_eq!(pool.shared.awake.load(Ordering::Relaxed), 0);
        let pair = Pool::new(2);
        let _awake = pair.stay_awake();
        assert_eq!(pair.shared.awake.load(Ordering::Relaxed), 0);
    }
}
