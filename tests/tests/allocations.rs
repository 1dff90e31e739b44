//! A token allocates nothing and looks nothing up once the first ones have been through.
#![allow(
    clippy::unwrap_used,
    clippy::undocumented_unsafe_blocks,
    reason = "a test whose door and allocator pass all on"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ops::ControlFlow;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

use amdxdna_ioctl::{Door, Errno, Opener};
use driver_tests::tiny;
use npu_model::{Config, Model};
use runtime::LoadOptions;
use runtime::bundle::Bundle;
use runtime::model::{Input, Model as Qwen, ModelError, Speculate, Speculator};
use runtime::npu::Npu;

thread_local! {
    /// Allocations of this thread, outside the device.
    static COUNT: Cell<u64> = const { Cell::new(0) };
    /// Whether they are counted now.
    static COUNTED: Cell<bool> = const { Cell::new(false) };
}

struct Counting;

impl Counting {
    fn count() {
        if COUNTED.get() {
            COUNT.set(COUNT.get() + 1);
        }
    }
}

unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Counting::count();
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Counting::count();
        unsafe { System.realloc(ptr, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A device whose own memory does not count.
#[derive(Debug)]
struct Silent(Arc<Model>);

#[derive(Debug)]
struct SilentDoor(Arc<dyn Door>);

fn uncounted<T>(work: impl FnOnce() -> T) -> T {
    let before = COUNTED.replace(false);
    let result = work();
    COUNTED.set(before);
    result
}

impl Opener for Silent {
    fn open(&self, node: &Path) -> Result<Arc<dyn Door>, Errno> {
        Ok(Arc::new(SilentDoor(self.0.open(node)?)))
    }
}

impl Door for SilentDoor {
    unsafe fn ioctl(&self, request: u32, argument: &mut [u8]) -> Result<(), Errno> {
        uncounted(|| unsafe { self.0.ioctl(request, argument) })
    }

    unsafe fn map(&self, at: Option<NonNull<u8>>, len: usize, offset: u64) -> Result<NonNull<u8>, Errno> {
        uncounted(|| unsafe { self.0.map(at, len, offset) })
    }

    unsafe fn unmap(&self, ptr: NonNull<u8>, len: usize) {
        uncounted(|| unsafe { self.0.unmap(ptr, len) });
    }

    unsafe fn flush(&self, ptr: NonNull<u8>, len: usize) {
        uncounted(|| unsafe { self.0.flush(ptr, len) });
    }
}

/// One thread, so that all of the host's work is on it. The context stays within a page of the cache: pages come as it
/// grows, and are no work of a single token.
#[test]
fn a_token_allocates_nothing() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("allocations");
    let bundle = tiny::text_bundle(&folder).unwrap();
    let npu = Npu::open(&Silent(Model::new(Config::default())), Path::new("/dev/accel/accel0")).unwrap();
    let options = LoadOptions { threads: 1, ..LoadOptions::default() };
    let mut model = Qwen::load(Bundle::open(&bundle).unwrap(), npu, &options, &mut |_| {}).unwrap();
    let ids = [7, 8, 9];
    let positions = model.positions(&ids, &[]).unwrap();
    let input = Input { ids: &ids, positions: &positions, vision: &[] };
    model.prefill(&input, &mut |_| ControlFlow::Continue(())).unwrap();
    for id in [5, 17] {
        model.decode(id).unwrap();
    }
    for id in [200, 3, 4, 5, 6, 7, 8, 9] {
        COUNT.set(0);
        COUNTED.set(true);
        let best = host_ops::sample::argmax(model.decode(id).unwrap());
        COUNTED.set(false);
        assert!(best.is_some());
        assert_eq!(COUNT.get(), 0, "token {id}");
    }
    // An answer asks through a speculator, whether there are guesses or not.
    let mut speculator = Speculator::new(Speculate::Off, &[]);
    speculator.begin(&ids);
    let mut choose = |logits: &[f32]| host_ops::sample::argmax(logits).map(|id| id as u32).ok_or(ModelError::NoNumbers);
    let mut id = speculator.next(&mut model, 5, 6, &mut choose).unwrap();
    for room in (0..6).rev() {
        COUNT.set(0);
        COUNTED.set(true);
        id = speculator.next(&mut model, id, room, &mut choose).unwrap();
        COUNTED.set(false);
        assert_eq!(COUNT.get(), 0, "an answer's token, {room} before the last");
    }
    // The counter counts.
    COUNTED.set(true);
    drop(std::hint::black_box(vec![1]));
    COUNTED.set(false);
    assert_eq!(COUNT.get(), 1);
}
