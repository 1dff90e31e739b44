//! What the typed layer asks of the driver, in which order, and what it makes of refusals.
// What tests share is test code too.
#![allow(clippy::unwrap_used)]

mod fake;

use amdxdna_ioctl::abi::{HEAP_CHUNK, request};
use amdxdna_ioctl::packet::{CommandOutcome, IronKernel};
use amdxdna_ioctl::{Bo, BoKind, Command, Cu, Deadline, Device, Errno, Error, HwCtx, HwCtxOptions};
use fake::Fake;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const MIB: usize = 1 << 20;

fn open(fake: &Fake) -> Result<Arc<Device>, Error> {
    Device::open(fake, Path::new("/dev/accel/accel0"))
}

/// Submits a packet as it is.
fn raw(context: &Arc<HwCtx>, command: &mut Command, args: &[u32]) -> Result<u64, Error> {
    // SAFETY: the fake driver runs nothing: no address of a packet is ever used.
    unsafe { context.submit(command, args) }
}

/// The sequence of a client that is known to run on the hardware, for one context, one kernel and one command; ours
/// asks for version and capability first, reads a buffer's address after mapping it, and returns the syncobj.
#[test]
fn one_command_from_open_to_close() {
    let fake = Fake::new();
    let device = open(&fake).unwrap();
    assert_eq!(
        fake.log(),
        [
            "open /dev/accel/accel0",
            "VERSION",
            "GET_CAP",
            "CREATE_BO type 2 size 67108864",
            "GET_BO_INFO",
            "map BO 1 67108864 at a multiple of 64 MiB",
            "GET_INFO",
        ]
    );
    assert_eq!((device.columns(), device.core_rows()), (8, 4));
    assert_eq!(device.heap().base() as u64 % HEAP_CHUNK, 0);

    let context = HwCtx::create(&device, &HwCtxOptions::default()).unwrap();
    let pdi = Bo::with_contents(&device, BoKind::Dev, &[7; 1000]).unwrap();
    assert_eq!(pdi.address(), 0x0402_0000);
    context.config_cu(vec![Cu { pdi, func: 0 }]).unwrap();
    assert_eq!(
        fake.log(),
        [
            "CREATE_HWCTX num_tiles 32 max_opc 2048",
            "CREATE_BO type 3 size 1000",
            "GET_BO_INFO",
            "flush 1000",
            "CONFIG_HWCTX",
            "config size 16 num_cus 1 cu_bo 2 func 0",
        ]
    );

    let stream = Bo::with_contents(&device, BoKind::Dev, &[9; 64]).unwrap();
    assert_eq!(stream.address(), 0x0402_8000);
    fake.log();
    let mut x = Bo::new(&device, BoKind::Share, 100_000).unwrap();
    assert_eq!(
        fake.log(),
        ["CREATE_BO type 1 size 100000", "GET_BO_INFO", "map BO 4 100000 anywhere", "GET_BO_INFO", "flush 100000"]
    );
    assert_eq!(x.address(), x.as_ptr().addr().get() as u64, "the address space is shared");
    x.slice_mut::<u16>()[3] = 0x3f80;
    x.flush(..16).unwrap();
    assert_eq!(x.bytes()[6..8], [0x80, 0x3f]);

    let kernel =
        IronKernel { cu: 0, instructions: stream.address(), instruction_bytes: 64, buffers: [x.address(), 0, 0, 0, 0] };
    let mut command = Command::with_packet(&device, &kernel).unwrap();
    fake.log();
    for seq in [0, 1] {
        assert_eq!(raw(&context, &mut command, &[stream.handle(), x.handle()]).unwrap(), seq);
        assert_eq!(command.wait(Deadline::NEVER).unwrap(), CommandOutcome::Completed);
        let exec = format!("exec ctx 1 cmd 5 seq {seq}");
        assert_eq!(fake.log(), ["flush 68", "EXEC_CMD", exec.as_str(), "SYNCOBJ_TIMELINE_WAIT"]);
        fake.with(|state| {
            assert_eq!(state.args, [3, 4]);
            assert_eq!(state.waited, (seq, i64::MAX, 0));
        });
    }

    // Whatever order they are dropped in: context before CU BO before heap before file.
    drop((device, command, x, stream));
    assert_eq!(fake.log(), ["unmap 4096", "GEM_CLOSE 5", "unmap 100000", "GEM_CLOSE 4", "GEM_CLOSE 3"]);
    drop(context);
    assert_eq!(
        fake.log(),
        ["DESTROY_HWCTX 1", "SYNCOBJ_DESTROY 7", "GEM_CLOSE 2", "unmap 67108864", "GEM_CLOSE 1", "close"]
    );
    assert_eq!(fake.open_handles(), 0);
}

#[test]
fn an_address_of_the_devices_own_goes_into_packets() {
    let fake = Fake::new();
    fake.with(|state| state.iova = true);
    let device = open(&fake).unwrap();
    fake.log();
    let bo = Bo::new(&device, BoKind::Share, 4096).unwrap();
    assert_eq!(bo.address(), 0x20_0000);
    assert_eq!(fake.log(), ["CREATE_BO type 1 size 4096", "GET_BO_INFO", "map BO 2 4096 anywhere", "flush 4096"]);
}

#[test]
fn the_heap_grows_by_chunks_right_behind_each_other() {
    let fake = Fake::new();
    let device = open(&fake).unwrap();
    fake.log();
    let mut bos = Vec::new();
    for n in 0..8 {
        let mut bo = Bo::new(&device, BoKind::Dev, 60 * MIB).unwrap();
        let bytes = bo.bytes_mut();
        // Where a BO spans two chunks, its bytes do too.
        bytes[0] = n;
        bytes[60 * MIB - 1] = n;
        assert_eq!(bo.as_ptr().addr().get() - device.heap().base(), (bo.address() - 0x0400_0000) as usize);
        bos.push(bo);
    }
    assert_eq!(device.heap().chunks(), 8);
    let log = fake.log();
    let grown: Vec<&str> =
        log.iter().map(String::as_str).filter(|l| l.contains("type 2") || l.starts_with("map")).collect();
    assert_eq!(grown.len(), 2 * 7);
    assert!(bos.iter().zip(0..).all(|(bo, n)| bo.bytes()[0] == n && bo.bytes()[60 * MIB - 1] == n));

    let error = Bo::new(&device, BoKind::Dev, 60 * MIB).unwrap_err();
    assert!(matches!(error, Error::HeapFull { chunks: 8, .. }), "{error}");
    drop((bos, device));
    assert_eq!(fake.log().iter().filter(|l| *l == "unmap 67108864").count(), 8);
    assert_eq!(fake.open_handles(), 0);
}

/// The driver numbers the next chunk's addresses from a chunk that could not be mapped: another one in its place would
/// lie 64 MiB further than we see it.
#[test]
fn a_heap_chunk_that_could_not_be_mapped_is_tried_again() {
    let fake = Fake::new();
    let device = open(&fake).unwrap();
    let first = Bo::new(&device, BoKind::Dev, 60 * MIB).unwrap();
    fake.log();
    fake.fail(request::GET_BO_INFO, Errno::NOMEM, 1);
    Bo::new(&device, BoKind::Dev, 60 * MIB).unwrap_err();
    let bo = Bo::new(&device, BoKind::Dev, 60 * MIB).unwrap();
    assert_eq!(bo.as_ptr().addr().get() - device.heap().base(), (bo.address() - 0x0400_0000) as usize);
    assert_eq!(
        fake.log().iter().filter(|l| l.contains("type 2")).count(),
        1,
        "one new chunk, mapped at the second try"
    );
    drop((bo, first, device));
    assert_eq!(fake.open_handles(), 0);
}

#[test]
fn contexts_need_heap_too() {
    let fake = Fake::new();
    let device = open(&fake).unwrap();
    fake.fail(request::CREATE_HWCTX, Errno::AGAIN, 1);
    let _context = HwCtx::create(&device, &HwCtxOptions::default()).unwrap();
    assert_eq!(device.heap().chunks(), 2);
    // NPU1 has one chunk and refuses the second.
    fake.fail(request::CREATE_HWCTX, Errno::AGAIN, 1);
    fake.fail(request::CREATE_BO, Errno::NOSPC, 1);
    let error = HwCtx::create(&device, &HwCtxOptions::default()).unwrap_err();
    assert!(matches!(error, Error::HeapFull { chunks: 2, .. }), "{error}");
}

#[test]
fn signals_are_not_seen() {
    let fake = Fake::new();
    let device = open(&fake).unwrap();
    let context = HwCtx::create(&device, &HwCtxOptions::default()).unwrap();
    let mut command = Command::with_packet(&device, &IronKernel::default()).unwrap();
    fake.fail(request::EXEC_CMD, Errno::INTR, 3);
    fake.fail(request::SYNCOBJ_TIMELINE_WAIT, Errno::INTR, 2);
    fake.log();
    assert_eq!(raw(&context, &mut command, &[]).unwrap(), 0, "one submission, not four");
    let deadline = Deadline::after(Duration::from_secs(10));
    let outcome = command.wait(deadline).unwrap();
    assert!(outcome.is_completed());
    let log = fake.log();
    assert_eq!(log.iter().filter(|l| *l == "EXEC_CMD").count(), 4);
    assert_eq!(log.iter().filter(|l| *l == "SYNCOBJ_TIMELINE_WAIT").count(), 3);
    assert_eq!(fake.with(|state| state.waited.1), deadline.nanoseconds(), "the deadline does not move");
}

#[test]
fn buffers_are_passed_once() {
    let fake = Fake::new();
    let device = open(&fake).unwrap();
    let context = HwCtx::create(&device, &HwCtxOptions::default()).unwrap();
    let mut command = Command::with_packet(&device, &IronKernel::default()).unwrap();
    raw(&context, &mut command, &[9, 4, 9, 4, 4, 5]).unwrap();
    assert_eq!(fake.with(|state| state.args.clone()), [9, 4, 5]);
}

#[test]
fn a_command_in_flight_owns_its_packet() {
    let fake = Fake::new();
    let device = open(&fake).unwrap();
    let context = HwCtx::create(&device, &HwCtxOptions::default()).unwrap();
    let mut command = Command::new(&device).unwrap();
    assert!(matches!(raw(&context, &mut command, &[]), Err(Error::NotSubmitted)), "nothing in it yet");
    assert!(matches!(command.wait(Deadline::POLL), Err(Error::NotSubmitted)));
    command.write(&IronKernel::default()).unwrap();
    fake.with(|state| state.wait = Err(Errno::TIME));
    raw(&context, &mut command, &[]).unwrap();
    let error = command.wait(Deadline::POLL).unwrap_err();
    assert!(matches!(error, Error::Timeout { context: 1, seq: 0 }), "{error}");
    assert!(matches!(command.write(&IronKernel::default()), Err(Error::Busy { seq: 0 })));
    assert!(matches!(raw(&context, &mut command, &[]), Err(Error::Busy { seq: 0 })));
    assert!(matches!(command.words(), Err(Error::Busy { .. })));
    assert_eq!(command.poll(), None);
    fake.log();

    // Dropped in flight, its memory stays, until a later command of the context is known to be done.
    drop(command);
    assert_eq!((fake.log(), context.held()), (vec![], 1));
    let mut second = Command::with_packet(&device, &IronKernel::default()).unwrap();
    raw(&context, &mut second, &[]).unwrap();
    drop(second);
    assert_eq!(context.held(), 2);
    fake.with(|state| state.wait = Ok(()));
    context.wait(1, Deadline::NEVER).unwrap();
    fake.with(|state| state.wait = Err(Errno::TIME));
    let mut third = Command::with_packet(&device, &IronKernel::default()).unwrap();
    raw(&context, &mut third, &[]).unwrap();
    fake.log();
    drop(third);
    assert_eq!(context.held(), 1, "the first two are done");
    assert_eq!(fake.log(), ["unmap 4096", "GEM_CLOSE 2", "unmap 4096", "GEM_CLOSE 3"]);

    // And in any case until the context is destroyed.
    drop(context);
    assert_eq!(fake.log(), ["DESTROY_HWCTX 1", "SYNCOBJ_DESTROY 7", "unmap 4096", "GEM_CLOSE 4"]);
}

#[test]
fn a_failed_command_has_to_be_written_again() {
    let fake = Fake::new();
    let device = open(&fake).unwrap();
    let context = HwCtx::create(&device, &HwCtxOptions::default()).unwrap();
    let mut command = Command::with_packet(&device, &IronKernel::default()).unwrap();
    for (state, outcome) in [
        (5, CommandOutcome::Failed { error_index: None }),
        (6, CommandOutcome::Aborted),
        (8, CommandOutcome::TimedOut { error_index: None, health: None }),
    ] {
        fake.with(|fake| fake.ends = state);
        raw(&context, &mut command, &[]).unwrap();
        assert_eq!(command.wait(Deadline::NEVER).unwrap(), outcome);
        assert!(matches!(raw(&context, &mut command, &[]), Err(Error::NotSubmitted)));
        assert_eq!(command.words().unwrap()[1..], [u32::MAX; 1023]);
        command.write(&IronKernel::default()).unwrap();
    }
    fake.with(|fake| fake.ends = 4);
    raw(&context, &mut command, &[]).unwrap();
    fake.log();
    assert_eq!(command.poll(), Some(CommandOutcome::Completed));
    assert_eq!(fake.log(), [""; 0], "polling asks nobody");

    // A failure's state is there before its data is: the fence is asked.
    fake.with(|fake| fake.ends = 5);
    raw(&context, &mut command, &[]).unwrap();
    fake.with(|state| state.wait = Err(Errno::TIME));
    assert_eq!(command.poll(), None);
    fake.with(|state| state.wait = Ok(()));
    assert_eq!(command.poll(), Some(CommandOutcome::Failed { error_index: None }));
}

#[test]
fn a_refused_context_says_how_full_the_device_is() {
    let fake = Fake::new();
    let device = open(&fake).unwrap();
    fake.with(|state| state.slots = (16, 16));
    fake.fail(request::CREATE_HWCTX, Errno::INVAL, 1);
    let text = HwCtx::create(&device, &HwCtxOptions::default()).unwrap_err().to_string();
    assert!(text.contains("EINVAL") && text.contains("16 of 16 contexts"), "{text}");
    fake.with(|state| state.slots = (2, 16));
    fake.fail(request::CREATE_HWCTX, Errno::INVAL, 1);
    let text = HwCtx::create(&device, &HwCtxOptions::default()).unwrap_err().to_string();
    assert!(
        text.contains("2 of 16 contexts") && text.contains("firmware has refused") && text.contains("modprobe -r"),
        "{text}"
    );
    for asked in [0, 9] {
        let options = HwCtxOptions { columns: Some(asked), ..HwCtxOptions::default() };
        assert!(matches!(HwCtx::create(&device, &options), Err(Error::Columns { columns: 8, .. })));
    }
}

#[test]
fn open_refuses_what_it_cannot_drive() {
    let fake = Fake::new();
    fake.with(|state| state.version = ("intel_vpu".into(), 1, 0));
    let error = open(&fake).unwrap_err();
    assert!(matches!(&error, Error::NotAmdxdna { driver, .. } if driver == "intel_vpu"), "{error}");
    fake.with(|state| state.version = ("amdxdna_accel_driver".into(), 2, 3));
    assert!(matches!(open(&fake), Err(Error::DriverMajor { major: 2, minor: 3, .. })));
    fake.with(|state| (state.version.1, state.timelines) = (0, 0));
    assert!(matches!(open(&fake), Err(Error::NoTimelines)));
    assert_eq!(fake.log().iter().filter(|l| *l == "close").count(), 3, "nothing stays open");

    fake.with(|state| (state.version.2, state.timelines) = (3, 1));
    let device = open(&fake).unwrap();
    let error = device.resource_info().unwrap_err();
    assert!(matches!(error, Error::DriverMinor { needs: 4, minor: 3, .. }), "{error}");
}

#[test]
fn nothing_leaks_where_a_step_fails() {
    for (request, errno) in
        [(request::GET_BO_INFO, Errno::NODEV), (request::GET_INFO, Errno::TIME), (request::CREATE_BO, Errno::NOMEM)]
    {
        let fake = Fake::new();
        fake.fail(request, errno, 1);
        let error = open(&fake).unwrap_err();
        assert_eq!(error.errno(), Some(errno));
        assert_eq!((fake.open_handles(), fake.log().last().map(String::as_str)), (0, Some("close")));
    }
    let fake = Fake::new();
    let device = open(&fake).unwrap();
    for kind in [BoKind::Share, BoKind::Cmd, BoKind::Dev] {
        fake.fail(request::GET_BO_INFO, Errno::NODEV, 1);
        assert_eq!(Bo::new(&device, kind, 4096).unwrap_err().errno(), Some(Errno::NODEV));
        assert_eq!(fake.open_handles(), 1, "the heap");
        assert!(matches!(Bo::new(&device, kind, 0), Err(Error::Size { .. })));
    }
    assert!(matches!(Bo::new(&device, BoKind::Dev, 513 * MIB), Err(Error::Size { .. })));
}

#[test]
fn ranges_are_checked() {
    let fake = Fake::new();
    let device = open(&fake).unwrap();
    let bo = Bo::new(&device, BoKind::Share, 10).unwrap();
    fake.log();
    bo.flush(..).unwrap();
    bo.flush(3..=4).unwrap();
    bo.flush(10..).unwrap();
    assert_eq!(fake.log(), ["flush 10", "flush 2", "flush 0"]);
    assert!(matches!(bo.flush(..11), Err(Error::Range { start: 0, end: 11, size: 10 })));
    #[expect(clippy::reversed_empty_ranges)]
    let reversed = 5..4;
    assert!(matches!(bo.flush(reversed), Err(Error::Range { .. })));
    assert!(bo.flush(..=usize::MAX).is_err());
    assert_eq!(bo.slice::<u32>().len(), 2, "whole elements only");
}

#[test]
fn handles_of_two_opens_do_not_mix() {
    let (one, two) = (Fake::new(), Fake::new());
    let (a, b) = (open(&one).unwrap(), open(&two).unwrap());
    let context = HwCtx::create(&a, &HwCtxOptions::default()).unwrap();
    let mut command = Command::with_packet(&b, &IronKernel::default()).unwrap();
    assert!(matches!(raw(&context, &mut command, &[]), Err(Error::Foreign { .. })));
    let pdi = Bo::new(&b, BoKind::Dev, 64).unwrap();
    assert!(matches!(context.config_cu(vec![Cu { pdi, func: 0 }]), Err(Error::Foreign { .. })));
}

#[test]
fn one_thread_submits_while_another_waits() {
    fn shared<T: Send + Sync>() {}
    shared::<Device>();
    shared::<Bo>();
    shared::<HwCtx>();
    shared::<Command>();

    let fake = Fake::new();
    let device = open(&fake).unwrap();
    let context = HwCtx::create(&device, &HwCtxOptions::default()).unwrap();
    std::thread::scope(|scope| {
        let (sender, receiver) = std::sync::mpsc::channel::<(u64, Command)>();
        let (device, submitter) = (&device, &context);
        scope.spawn(move || {
            for _ in 0..50 {
                let mut command = Command::with_packet(device, &IronKernel::default()).unwrap();
                let seq = raw(submitter, &mut command, &[]).unwrap();
                sender.send((seq, command)).unwrap();
            }
        });
        for (n, (seq, mut command)) in receiver.into_iter().enumerate() {
            assert_eq!(seq, n as u64);
            assert!(command.wait(Deadline::NEVER).unwrap().is_completed());
        }
    });
    assert!(context.is_done(49) && !context.is_done(50));
}
