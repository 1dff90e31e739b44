//! Devices that go away and contexts that are reset under a turn: it fails by name and in time, and what can go on does.
#![allow(clippy::unwrap_used, clippy::undocumented_unsafe_blocks, reason = "a test whose door passes all on")]

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

use amdxdna_ioctl::abi::request;
use amdxdna_ioctl::{Door, Errno, Opener};
use driver_tests::tiny;
use npu_model::{Config, Counts, Faults, Model};
use runtime::bundle::Bundle;
use runtime::export::{ExportOptions, export};
use runtime::npu::Npu;
use runtime::{Chat, ChatError, LoadOptions, Outcome, Turn};

fn bundle() -> &'static Path {
    static BUNDLE: OnceLock<PathBuf> = OnceLock::new();
    BUNDLE.get_or_init(|| {
        let folder = std::env::temp_dir().join(format!("qwen35-lost-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        tiny::checkpoint(&folder.join("checkpoint")).unwrap();
        let mut options = ExportOptions::new(folder.join("checkpoint"), folder.join("bundle"));
        options.head_parts = Some(5);
        export(&options, &mut |_| ControlFlow::Continue(())).unwrap().out
    })
}

/// Something that happens to a device just before it is asked something for the n-th time.
#[derive(Debug)]
struct Trap {
    model: Arc<Model>,
    request: u32,
    left: AtomicU64,
    strike: fn(&Model),
}

impl Trap {
    fn new(config: Config, request: u32, strike: fn(&Model)) -> Arc<Trap> {
        Arc::new(Trap { model: Model::new(config), request, left: AtomicU64::new(0), strike })
    }

    fn set(&self, count: u64) {
        self.left.store(count, Ordering::SeqCst);
    }
}

#[derive(Debug)]
struct TrapOpener(Arc<Trap>);

#[derive(Debug)]
struct TrapDoor {
    trap: Arc<Trap>,
    inner: Arc<dyn Door>,
}

impl Opener for TrapOpener {
    fn open(&self, node: &Path) -> Result<Arc<dyn Door>, Errno> {
        Ok(Arc::new(TrapDoor { trap: Arc::clone(&self.0), inner: self.0.model.open(node)? }))
    }
}

impl Door for TrapDoor {
    unsafe fn ioctl(&self, request: u32, argument: &mut [u8]) -> Result<(), Errno> {
        if request == self.trap.request {
            let before = self.trap.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
            if before == Ok(1) {
                (self.trap.strike)(&self.trap.model);
            }
        }
        unsafe { self.inner.ioctl(request, argument) }
    }

    unsafe fn map(&self, at: Option<NonNull<u8>>, len: usize, offset: u64) -> Result<NonNull<u8>, Errno> {
        unsafe { self.inner.map(at, len, offset) }
    }

    unsafe fn unmap(&self, ptr: NonNull<u8>, len: usize) {
        unsafe { self.inner.unmap(ptr, len) }
    }

    unsafe fn flush(&self, ptr: NonNull<u8>, len: usize) {
        unsafe { self.inner.flush(ptr, len) }
    }
}

fn load(trap: &Arc<Trap>) -> Result<Chat, ChatError> {
    let npu = Npu::open(&TrapOpener(Arc::clone(trap)), Path::new("/dev/accel/accel0"))?;
    let options = LoadOptions { max_ctx: 1024, ..LoadOptions::default() };
    Chat::load(Bundle::open(bundle())?, npu, options, &mut |_| {})
}

fn turn(chat: &mut Chat) -> Result<Outcome, ChatError> {
    let turn = Turn { system: None, images: &[], text: "Hello", thinking: false, max_new: 4 };
    chat.turn(&turn, &mut |_| ControlFlow::Continue(()))
}

/// What `work` gives, or a failure if that takes for ever.
fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = mpsc::channel();
    std::thread::spawn(move || {
        let _ = done.send(work());
    });
    result.recv_timeout(Duration::from_secs(120)).unwrap()
}

/// Whatever the device is being asked when it goes away: to run the first command, one of a layer, the second part of
/// the head while the first is in flight, or to wait.
#[test]
fn a_device_that_goes_away_anywhere_ends_the_turn() {
    let gone = |request: u32, count: u64| {
        let (first, second) = in_time(move || {
            let trap = Trap::new(Config::default(), request, Model::unplug);
            let mut chat = load(&trap).unwrap();
            trap.set(count);
            let first = turn(&mut chat).unwrap_err().to_string();
            (first, turn(&mut chat).unwrap_err().to_string())
        });
        assert!(first.contains("ENODEV"), "{first}");
        assert!(second.contains("the device went away"), "{second}");
    };
    let manifest = Bundle::open(bundle()).unwrap().manifest.clone();
    let layers = manifest.text.layers.len() as u64 * (3 + manifest.text.down_slices as u64);
    for count in [1, 4, layers, layers + 2] {
        gone(request::EXEC_CMD, count);
    }
    for count in [1, 3] {
        gone(request::SYNCOBJ_TIMELINE_WAIT, count);
    }
}

/// The context that lost a command is made anew, and nothing else.
#[test]
fn a_hang_before_a_suspend_costs_one_turn_and_its_context() {
    in_time(|| {
        let trap = Trap::new(Config { tdr_ms: 50, ..Config::default() }, 0, |_| {});
        let mut chat = load(&trap).unwrap();
        let good = turn(&mut chat).unwrap();
        let before = trap.model.counts();
        trap.model.set_faults(Faults { hang_command: Some(before.commands + 1), ..Faults::default() });
        let error = turn(&mut chat).unwrap_err().to_string();
        assert!(error.contains("kernel `o x1` in context `"), "{error}");
        trap.model.set_faults(Faults::default());
        trap.model.suspend();
        // A suspension makes the firmware's contexts anew, too: the driver's are counted.
        let of = |counts: &Counts, name: &str| counts.ioctls.get(name).copied().unwrap_or(0);
        let asked = |name: &str| of(&trap.model.counts(), name) - of(&before, name);
        assert_eq!(asked("DESTROY_HWCTX"), 1, "{error}: {:?}", trap.model.counts());
        let again = turn(&mut chat).unwrap();
        assert_eq!((good.tokens, good.text), (again.tokens, again.text));
        assert_eq!((asked("CREATE_HWCTX"), asked("DESTROY_HWCTX")), (1, 1));
    });
}

/// No command fails of it, so only asking shows it.
#[test]
fn an_error_of_the_array_costs_the_turn_it_came_in() {
    let faults = Faults { async_error: Some(40), ..Faults::default() };
    let trap = Trap::new(Config { faults, ..Config::default() }, u32::MAX, |_| ());
    let mut chat = load(&trap).unwrap();
    let error = turn(&mut chat).unwrap_err().to_string();
    assert!(error.contains("an illegal access in the core of column 0, row 2"), "{error}");
    let again = turn(&mut chat).unwrap();
    let fresh = turn(&mut load(&Trap::new(Config::default(), u32::MAX, |_| ())).unwrap()).unwrap();
    assert_eq!(again.tokens, fresh.tokens);
}

/// The command's error came first and was told, the array's was left for the next turn to trip over.
#[test]
fn an_error_of_the_array_beside_a_failed_command_costs_one_turn() {
    let faults = Faults { async_error: Some(40), fail_command: Some(40), ..Faults::default() };
    let trap = Trap::new(Config { faults, ..Config::default() }, u32::MAX, |_| ());
    let mut chat = load(&trap).unwrap();
    let error = turn(&mut chat).unwrap_err().to_string();
    assert!(error.contains("kernel `"), "{error}");
    turn(&mut chat).unwrap();
}

/// A context that cannot be made on a device that has room takes no other's place.
#[test]
fn a_refused_context_evicts_nothing_while_the_device_has_room() {
    in_time(|| {
        let trap = Trap::new(Config { tdr_ms: 50, ..Config::default() }, 0, |_| {});
        let mut chat = load(&trap).unwrap();
        let good = turn(&mut chat).unwrap();
        trap.model.set_faults(Faults { hang_command: Some(trap.model.counts().commands), ..Faults::default() });
        turn(&mut chat).unwrap_err();
        let before = trap.model.counts();
        trap.model.set_faults(Faults { no_context: true, ..Faults::default() });
        let error = turn(&mut chat).unwrap_err().to_string();
        assert!(error.contains("EINVAL") && error.contains("so the firmware has refused"), "{error}");
        assert_eq!(trap.model.counts().contexts_destroyed, before.contexts_destroyed);
        trap.model.set_faults(Faults::default());
        assert_eq!(turn(&mut chat).unwrap().tokens, good.tokens);
    });
}

/// Only a full device lets a context wait for its first command.
#[test]
fn a_context_that_is_refused_for_another_reason_fails_the_load() {
    in_time(|| {
        let silent = |model: &Model| model.set_faults(Faults { management_silent: true, ..Faults::default() });
        let trap = Trap::new(Config::default(), request::CREATE_HWCTX, silent);
        trap.set(2);
        let error = load(&trap).unwrap_err().to_string();
        assert!(error.contains("CREATE_HWCTX") && error.contains("ETIME"), "{error}");
    });
}
