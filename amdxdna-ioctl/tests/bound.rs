//! Bound commands and queues: what is in flight stays alive, what the host holds does not go out, and what it costs.
#![allow(clippy::unwrap_used, reason = "a test")]

mod fake;

use amdxdna_ioctl::abi::request;
use amdxdna_ioctl::packet::CommandOutcome;
use amdxdna_ioctl::{
    Access, Argument, Bo, BoKind, Bound, Deadline, Device, Errno, Error, HwCtx, HwCtxOptions, Queue, SharedBo, Stream,
};
use fake::Fake;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const READS: Argument = Argument { reach: 64, writes: false };
const WRITES: Argument = Argument { reach: 128, writes: true };

fn open(fake: &Fake) -> (Arc<Device>, Queue) {
    let device = Device::open(fake, Path::new("/dev/accel/accel0")).unwrap();
    let context = HwCtx::create(&device, &HwCtxOptions::default()).unwrap();
    let mut queue = Queue::new(context, 4);
    queue.set_spin(Duration::ZERO);
    (device, queue)
}

fn stream(device: &Arc<Device>, arguments: &[Argument]) -> Arc<Stream> {
    // SAFETY: the fake driver runs nothing.
    unsafe { Stream::new(device, &[9; 64], arguments) }.unwrap()
}

fn share(device: &Arc<Device>, size: usize) -> Arc<SharedBo> {
    SharedBo::new(Bo::new(device, BoKind::Share, size).unwrap())
}

/// A command that reads one buffer and writes another.
fn bound(device: &Arc<Device>) -> (Arc<Bound>, Arc<SharedBo>, Arc<SharedBo>) {
    let (x, y) = (share(device, 4096), share(device, 4096));
    let views = [x.view(.., Access::Read).unwrap(), y.view(64.., Access::Write).unwrap()];
    (Bound::new(&stream(device, &[READS, WRITES]), &views).unwrap(), x, y)
}

fn closed(fake: &Fake) -> Vec<u32> {
    fake.log().iter().filter_map(|line| line.strip_prefix("GEM_CLOSE ")?.parse().ok()).collect()
}

#[test]
fn a_packet_names_the_views_it_is_bound_to() {
    let fake = Fake::new();
    let (device, mut queue) = open(&fake);
    let (bound, x, y) = bound(&device);
    let ticket = queue.submit(&bound).unwrap();
    let (packet, args) = fake.with(|state| (state.packet, state.args.clone()));
    let address = |bo: &Arc<SharedBo>| bo.read().map(|bytes| bytes.as_ptr().addr() as u64);
    assert!(queue.wait(ticket, Deadline::NEVER).unwrap().is_none());
    let long = |at: usize| u64::from(packet[at]) | u64::from(packet[at + 1]) << 32;
    assert_eq!(packet[..4], [0x3001_0001, 1, 3, 0]);
    assert_eq!((packet[6], long(7), long(9)), (64, address(&x).unwrap(), address(&y).unwrap() + 64));
    assert_eq!(packet[11..], [0; 6]);
    assert_eq!(args[1..], [x.handle(), y.handle()]);
}

/// The fault: a command kept the addresses of buffers that it did not own.
#[test]
fn a_bound_command_keeps_its_buffers_after_their_owner_dropped_them() {
    let fake = Fake::new();
    let (device, mut queue) = open(&fake);
    // It ends by its state word: the fake's fence stays silent.
    queue.set_spin(Duration::from_micros(50));
    let (bound, x, y) = bound(&device);
    let handles = [x.handle(), y.handle()];
    fake.log();
    drop((x, y));
    assert_eq!(closed(&fake), [0; 0]);
    fake.with(|state| state.wait = Err(Errno::TIME));
    let ticket = queue.submit(&bound).unwrap();
    // Nor does the last owner of the command itself take them while it runs.
    let command = fake.with(|state| state.command);
    drop(bound);
    assert_eq!(closed(&fake), [0; 0]);
    fake.end(command, 4);
    assert!(queue.wait(ticket, Deadline::NEVER).unwrap().is_none());
    let gone = closed(&fake);
    assert!(handles.iter().all(|handle| gone.contains(handle)) && gone.contains(&command), "{gone:?}");
}

#[test]
fn what_a_dropped_queue_left_in_flight_lives_as_long_as_the_context() {
    let fake = Fake::new();
    let (device, mut queue) = open(&fake);
    let (bound, x, y) = bound(&device);
    let context = Arc::clone(queue.context());
    fake.with(|state| state.wait = Err(Errno::TIME));
    let _ = queue.submit(&bound).unwrap();
    fake.log();
    drop((queue, bound));
    assert_eq!((closed(&fake), context.held()), (vec![], 1));
    assert!(x.is_in_flight() && matches!(y.read(), Err(Error::InUse { .. })));
    let handles = [x.handle(), y.handle()];
    drop((x, y));
    assert_eq!(closed(&fake), [0; 0]);
    drop(context);
    let log = fake.log();
    let at = |what: &str| log.iter().position(|line| line == what).unwrap();
    for handle in handles {
        assert!(at(&format!("GEM_CLOSE {handle}")) > at("DESTROY_HWCTX 1"), "{log:?}");
    }
}

#[test]
fn submitting_again_is_one_ioctl_and_a_completed_wait_is_none() {
    let fake = Fake::new();
    let (device, mut queue) = open(&fake);
    let (bound, ..) = bound(&device);
    queue.set_spin(Duration::from_micros(50));
    for seq in 0..3 {
        fake.log();
        let ticket = queue.submit(&bound).unwrap();
        assert!(queue.poll(ticket));
        assert!(queue.wait(ticket, Deadline::NEVER).unwrap().is_none());
        let exec = format!("exec ctx 1 cmd {} seq {seq}", fake.with(|state| state.command));
        assert_eq!(fake.log(), ["flush 4", "EXEC_CMD", exec.as_str()]);
    }
    let counters = queue.counters();
    assert_eq!((counters.submits, counters.waits, counters.spun), (3, 0, 3));
}

/// The fault: with nothing to spin for it still looked once, and whether a wait was asked hung on who was faster.
#[test]
fn a_queue_that_does_not_spin_asks_the_driver_every_time() {
    let fake = Fake::new();
    let (device, mut queue) = open(&fake);
    let (bound, ..) = bound(&device);
    queue.set_spin(Duration::ZERO);
    for _ in 0..3 {
        let ticket = queue.submit(&bound).unwrap();
        assert!(queue.poll(ticket), "it has completed");
        assert!(queue.wait(ticket, Deadline::NEVER).unwrap().is_none());
    }
    let counters = queue.counters();
    assert_eq!((counters.waits, counters.spun, counters.spins), (3, 0, 0));
}

#[test]
fn a_state_that_does_not_change_is_looked_at_for_a_while_and_then_the_fence_is_asked() {
    let fake = Fake::new();
    let (device, mut queue) = open(&fake);
    let (bound, ..) = bound(&device);
    queue.set_spin(Duration::from_micros(20));
    fake.with(|state| state.wait = Err(Errno::TIME));
    let ticket = queue.submit(&bound).unwrap();
    assert!(!queue.poll(ticket));
    let error = queue.wait(ticket, Deadline::after(Duration::from_secs(9))).unwrap_err();
    assert!(matches!(error, Error::Timeout { seq: 0, .. }), "{error}");
    assert_eq!((queue.len(), bound.is_in_flight()), (1, true), "it still runs");
    let counters = queue.counters();
    assert_eq!((counters.waits, counters.spun), (1, 0));
    assert!(counters.spins >= 1);
}

#[test]
fn the_host_and_a_command_do_not_share_a_buffer() {
    let fake = Fake::new();
    let (device, mut queue) = open(&fake);
    // It ends by its state word: the fake's fence stays silent.
    queue.set_spin(Duration::from_micros(50));
    let (bound, x, y) = bound(&device);
    for holds in [&x, &y] {
        let held = holds.write().unwrap();
        assert!(matches!(queue.submit(&bound), Err(Error::InUse { .. })));
        drop(held);
    }
    let held = y.read().unwrap();
    assert!(matches!(queue.submit(&bound), Err(Error::InUse { .. })), "the command writes it");
    drop(held);
    assert_eq!(queue.counters().submits, 0, "the driver was not asked");

    // What a command reads the host may read too.
    let read = x.read().unwrap();
    fake.with(|state| state.wait = Err(Errno::TIME));
    let ticket = queue.submit(&bound).unwrap();
    assert!(x.read().is_ok() && matches!(x.write(), Err(Error::InUse { .. })));
    assert!(matches!(y.read(), Err(Error::InUse { .. })) && matches!(y.write(), Err(Error::InUse { .. })));
    drop(read);
    fake.end(fake.with(|state| state.command), 4);
    assert!(queue.wait(ticket, Deadline::NEVER).unwrap().is_none());
    y.write().unwrap().slice::<u16>()[1] = 7;
    assert_eq!(y.read().unwrap()[2..4], [7, 0]);
    assert!(x.write().is_ok());
    let (one, two) = (x.read().unwrap(), x.read().unwrap());
    assert!(x.write().is_err());
    drop((one, two));
    assert!(x.write().is_ok());
}

#[test]
fn a_refused_submission_leaves_everything_free() {
    let fake = Fake::new();
    let (device, mut queue) = open(&fake);
    let (bound, x, y) = bound(&device);
    fake.fail(request::EXEC_CMD, Errno::NODEV, 1);
    assert_eq!(queue.submit(&bound).unwrap_err().errno(), Some(Errno::NODEV));
    assert!(queue.is_empty() && !bound.is_in_flight() && x.write().is_ok() && y.write().is_ok());
    assert!(queue.submit(&bound).is_ok());
}

#[test]
fn bindings_that_do_not_fit_are_refused() {
    let fake = Fake::new();
    let (device, _queue) = open(&fake);
    let (x, y) = (share(&device, 4096), share(&device, 4096));
    let stream = stream(&device, &[READS, WRITES]);
    let bind = |x: std::ops::Range<usize>, y_start: usize, access: Access| {
        Bound::new(&stream, &[x_view(&x_of(&device, 4096), x), y.view(y_start.., access).unwrap()]).map(|_| ())
    };
    assert!(bind(0..64, 4096 - 128, Access::Write).is_ok());
    let error = bind(0..63, 0, Access::Write).unwrap_err();
    assert!(matches!(error, Error::Reach { argument: 0, reach: 64, bytes: 63 }), "{error}");
    let error = bind(0..64, 4096 - 127, Access::Write).unwrap_err();
    assert!(matches!(error, Error::Reach { argument: 1, reach: 128, bytes: 127 }), "{error}");
    assert!(matches!(bind(0..64, 0, Access::Read), Err(Error::ReadOnly { argument: 1 })));
    let view = || x.view(.., Access::Write).unwrap();
    let error = Bound::new(&stream, &[view()]).unwrap_err();
    assert!(matches!(error, Error::Arguments { given: 1, least: 2, most: 5 }), "{error}");
    assert!(Bound::new(&stream, &[view(), view(), view(), view(), view()]).is_ok());
    let six: Vec<_> = (0..6).map(|_| view()).collect();
    assert!(matches!(Bound::new(&stream, &six), Err(Error::Arguments { given: 6, .. })));
    assert!(matches!(x.view(..4097, Access::Read), Err(Error::Range { .. })));
    let other = Fake::new();
    let (foreign, mut queue) = open(&other);
    let view = |device| share(device, 4096).view(.., Access::Write).unwrap();
    let mixed = Bound::new(&stream, &[view(&device), view(&foreign)]);
    assert!(matches!(mixed, Err(Error::Foreign { .. })));
    let ours = Bound::new(&stream, &[view(&device), view(&device)]).unwrap();
    assert!(matches!(queue.submit(&ours), Err(Error::Foreign { .. })));
}

fn x_of(device: &Arc<Device>, size: usize) -> Arc<SharedBo> {
    share(device, size)
}

fn x_view(bo: &Arc<SharedBo>, range: std::ops::Range<usize>) -> amdxdna_ioctl::View {
    bo.view(range, Access::Read).unwrap()
}

#[test]
fn a_queue_takes_no_more_than_its_depth_and_no_command_twice() {
    let fake = Fake::new();
    let (device, mut queue) = open(&fake);
    let commands: Vec<_> = (0..5).map(|_| bound(&device).0).collect();
    fake.with(|state| state.wait = Err(Errno::TIME));
    let first = queue.submit(&commands[0]).unwrap();
    assert!(matches!(queue.submit(&commands[0]), Err(Error::Busy { seq: 0 })));
    assert_eq!(queue.ticket_of(&commands[0]), Some(first));
    let last = commands[1..4].iter().map(|command| queue.submit(command).unwrap()).last().unwrap();
    assert!(matches!(queue.submit(&commands[4]), Err(Error::QueueFull { depth: 4 })));
    assert_eq!((queue.oldest_ticket(), queue.newest_ticket()), (Some(first), Some(last)));
    assert!(queue.oldest().is_some_and(|oldest| Arc::ptr_eq(oldest, &commands[0])));

    // One wait answers for all before it.
    fake.with(|state| state.wait = Ok(()));
    for command in &commands[..4] {
        fake.end(command_of(&fake, command), 4);
    }
    fake.log();
    assert!(queue.wait(last, Deadline::NEVER).unwrap().is_none());
    assert_eq!((queue.len(), queue.counters().submits), (0, 4));
    assert!(queue.poll(first) && queue.poll(last));
    assert!(commands.iter().all(|command| !command.is_in_flight()));

    let (_, other) = open(&Fake::new());
    assert!(!other.issued(last) && !other.poll(last));
    let mut other = other;
    assert!(matches!(other.wait(last, Deadline::NEVER), Err(Error::Foreign { .. })));
}

/// The handle of a command's packet: the fake tells it by the order of submission.
fn command_of(fake: &Fake, command: &Arc<Bound>) -> u32 {
    let y = command.views()[1].bo().handle();
    fake.with(|state| state.commands.iter().find(|(_, args)| args.contains(&y)).unwrap().0)
}

/// The driver fills a failed packet with 0xFF: those words must never go out as addresses.
#[test]
fn a_failed_command_is_told_once_and_goes_out_whole_the_next_time() {
    let fake = Fake::new();
    let (device, mut queue) = open(&fake);
    let (bound, x, y) = bound(&device);
    let _ = queue.submit(&bound).unwrap();
    let whole = fake.with(|state| state.packet);
    let newest = queue.newest_ticket().unwrap();
    assert!(queue.wait(newest, Deadline::NEVER).unwrap().is_none());
    for (state, outcome) in [
        (5, CommandOutcome::Failed { error_index: None }),
        (6, CommandOutcome::Aborted),
        (8, CommandOutcome::TimedOut { error_index: None, health: None }),
    ] {
        fake.with(|fake| fake.ends = state);
        let ticket = queue.submit(&bound).unwrap();
        assert_eq!(fake.with(|state| state.packet), whole, "after {state}");
        let failure = queue.wait(ticket, Deadline::NEVER).unwrap().unwrap();
        assert!(Arc::ptr_eq(&failure.bound, &bound));
        assert_eq!(failure.outcome, outcome);
        assert!(queue.wait(ticket, Deadline::NEVER).unwrap().is_none(), "told once");
        assert!(x.write().is_ok() && y.write().is_ok());
    }

    // The same where nobody asked how it ended.
    let _ = queue.submit(&bound).unwrap();
    let context = Arc::clone(queue.context());
    drop(queue);
    assert_eq!((context.held(), bound.is_in_flight()), (1, true), "a failure's state is not the end of its writes");
    drop(context);
    assert!(!bound.is_in_flight());
    fake.with(|fake| fake.ends = 4);
    let mut queue = Queue::new(HwCtx::create(&device, &HwCtxOptions::default()).unwrap(), 1);
    let _ = queue.submit(&bound).unwrap();
    assert_eq!(fake.with(|state| state.packet), whole);
}

#[test]
fn a_failure_shows_when_its_fence_has_signalled_and_a_refusal_only_to_a_wait() {
    let fake = Fake::new();
    let (device, mut queue) = open(&fake);
    let (bound, ..) = bound(&device);
    fake.with(|fake| fake.ends = 5);
    let ticket = queue.submit(&bound).unwrap();
    fake.with(|state| state.wait = Err(Errno::TIME));
    assert!(!queue.poll(ticket), "its data may still come");
    fake.with(|state| state.wait = Ok(()));
    assert!(queue.poll(ticket));
    assert!(queue.wait(ticket, Deadline::NEVER).unwrap().is_some());

    fake.with(|fake| fake.ends = 1);
    let ticket = queue.submit(&bound).unwrap();
    assert!(!queue.poll(ticket));
    let failure = queue.wait(ticket, Deadline::NEVER).unwrap().unwrap();
    assert_eq!(failure.outcome, CommandOutcome::Rejected);
}

/// A system call for each would be as many as the ioctls themselves.
#[test]
fn a_forked_child_is_told_without_asking_the_kernel_each_time() {
    let fake = Fake::new();
    let (device, mut queue) = open(&fake);
    let (bound, x, _) = bound(&device);
    // SAFETY: the child calls what only reads memory and fails early, and leaves without running anything else.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let forked = matches!(x.flush(..), Err(Error::Forked { .. }))
            && matches!(queue.submit(&bound), Err(Error::Forked { .. }));
        // SAFETY: as above.
        unsafe { libc::_exit(i32::from(!forked)) };
    }
    let mut status = -1;
    // SAFETY: waits for the child just made.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:#x}");
    assert!(queue.submit(&bound).is_ok(), "the opener goes on");
}
