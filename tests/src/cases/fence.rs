//! Syncobjs: timelines, deadlines, sharing.

use std::os::fd::AsRawFd;

use amdxdna_ioctl::Errno;
use amdxdna_ioctl::abi::{drm, request};
use bytemuck::Zeroable;

use super::Expect::Same;
use super::client::{AVAILABLE, Client, FOR_SUBMIT, WAIT_ALL, addr_of, now, own_fd};
use super::ctx::Ctx;
use super::ready::COMPLETED;
use super::verdict::{Stop, Verdict};

cases! { Fence;
    create_destroy: Same("SYNCOBJ_CREATE, SYNCOBJ_DESTROY: flags, padding, unknown handles EINVAL; lowest free handles");
    no_handles: Same("a wait for nothing succeeds at once");
    wait_arguments: Same("waits: unknown flags EINVAL, unknown handles ENOENT, bad pointers EFAULT");
    wait_padding: Same("a wait with padding, or with a flag of later kernels: EINVAL or ignored");
    unsubmitted: Same("a point that nobody submitted: EINVAL, or ETIME with WAIT_FOR_SUBMIT");
    absolute_deadlines: Same("deadlines are absolute, monotonic nanoseconds; the past is one look");
    points: Same("points signal in order, and time does not go back");
    all_and_any: Same("wait for all, wait for any: the index of one that is done");
    available: Same("WAIT_AVAILABLE waits for a fence, not for its signal");
    binary: Same("a binary syncobj has no points");
    query: Same("QUERY gives the last signalled point, 0 for none; EINVAL, ENOENT for what is wrong");
    signal_arguments: Same("TIMELINE_SIGNAL: flags and no handles EINVAL, unknown handles ENOENT");
    transfer: Same("TRANSFER: from point to point; padding and missing points EINVAL, unknown handles ENOENT");
    file_descriptors: Same("a syncobj by file descriptor is the same one; what is none EINVAL");
    eventfd: Same("an eventfd hears of a point once");
    eventfd_command: Same("an eventfd hears of a command's end");
    wakes: Same("a waiter wakes when its point is signalled");
    command_points: Same("command s signals point s of its context's syncobj; the wait for s means all before it");
    point_zero: Same("QUERY gives 0 both for nothing and for the first command");
    transferred_command: Same("a command's fence moved to another syncobj signals there");
    error_fence: Same("the fence of a command that failed signals, and no wait says so");
    contexts_apart: Same("one wait takes points of two contexts");
    outlives_context: Same("a context's syncobj outlives it, with every point signalled");
    outlives_client: Same("a context's syncobj, exported, outlives its client");
}

fn wait_padding(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let handle = create(&client, 1)?;
    let point = 0u64;
    let good = drm::SyncobjTimelineWait {
        handles: addr_of(&handle),
        points: addr_of(&point),
        count_handles: 1,
        ..Zeroable::zeroed()
    };
    // WAIT_DEADLINE is a hint.
    same!(client.call(request::SYNCOBJ_TIMELINE_WAIT, &mut drm::SyncobjTimelineWait { flags: 8, ..good }), Ok(()));
    same!(
        client.call(request::SYNCOBJ_TIMELINE_WAIT, &mut drm::SyncobjTimelineWait { flags: 1 << 31, ..good }),
        Err(Errno::INVAL)
    );
    Ok(())
}

fn eventfd_command(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty())?;
    let packet = ready.good()?;
    for seq in 0..3 {
        same!(ready.submit(packet)?, seq);
        let mut a = drm::SyncobjEventfd { handle: ready.syncobj, flags: 0, point: seq, fd: event.as_raw_fd(), pad: 0 };
        ready.client.call(request::SYNCOBJ_EVENTFD, &mut a)?;
        let mut count = [0; 8];
        same!(rustix::io::read(&event, &mut count), Ok(8));
        same!(packet.state(), COMPLETED, "command {seq}");
    }
    Ok(())
}

fn command_points(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let packets = (0..4).map(|_| ready.good()).collect::<Result<Vec<_>, _>>()?;
    for round in 0..5 {
        for packet in &packets {
            ready.submit(*packet)?;
        }
        let last = round * 4 + 3;
        ready.wait(last)?;
        same!(query_point(&ready.client, ready.syncobj, 0), Ok(last));
        for packet in &packets {
            same!(packet.state(), COMPLETED);
        }
        for point in 0..=last {
            same!(ready.client.wait_points(&[(ready.syncobj, point)], 0, 0), Ok(0), "point {point} of {last}");
        }
    }
    same!(ready.client.wait_points(&[(ready.syncobj, 20)], 0, 0), Err(Errno::INVAL), "not submitted");
    Ok(())
}

fn point_zero(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let packet = ready.good()?;
    same!(query_point(&ready.client, ready.syncobj, 0), Ok(0));
    same!(ready.client.wait_points(&[(ready.syncobj, 0)], 0, 0), Err(Errno::INVAL), "no command yet");
    same!(ready.run(packet)?, COMPLETED);
    same!(query_point(&ready.client, ready.syncobj, 0), Ok(0));
    same!(ready.client.wait_points(&[(ready.syncobj, 0)], 0, 0), Ok(0));
    Ok(())
}

fn transferred_command(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let mine = create(&ready.client, 0)?;
    let packet = ready.good()?;
    for point in 1..5 {
        let seq = ready.submit(packet)?;
        let mut a = drm::SyncobjTransfer {
            src_handle: ready.syncobj,
            dst_handle: mine,
            src_point: seq,
            dst_point: point,
            flags: 0,
            pad: 0,
        };
        ready.client.call(request::SYNCOBJ_TRANSFER, &mut a)?;
        same!(ready.client.wait_points(&[(mine, point)], AVAILABLE, 0), Ok(0), "it has a fence");
        ready.client.wait(mine, point)?;
        same!(packet.state(), COMPLETED);
    }
    Ok(())
}

fn error_fence(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let bad = ready.client.packet(&ready.words(0x0700_0000, 16))?;
    let seq = ready.submit(bad)?;
    same!(ready.client.wait_points(&[(ready.syncobj, seq)], 0, i64::MAX), Ok(0));
    same!(bad.state(), super::ready::ERROR);
    Ok(())
}

fn contexts_apart(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let a = client.ready()?;
    let b = client.ready_in(a.heap, runtime::reference::Kind::Gemm)?;
    let (one, two) = (a.good()?, b.good()?);
    for _ in 0..5 {
        let both = [(a.syncobj, a.submit(one)?), (b.syncobj, b.submit(two)?)];
        same!(client.wait_points(&both, WAIT_ALL, i64::MAX).map(drop), Ok(()));
        same!((one.state(), two.state()), (COMPLETED, COMPLETED));
        let any = client.wait_points(&both, 0, 0)?;
        hold!(any < 2, "first_signaled is {any}");
    }
    Ok(())
}

fn outlives_context(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let packet = ready.good()?;
    let mut last = 0;
    for _ in 0..3 {
        last = ready.submit(packet)?;
    }
    ready.client.destroy_hwctx(ready.context)?;
    same!(ready.client.wait_points(&[(ready.syncobj, last)], 0, 0), Ok(0));
    let mut a = drm::SyncobjDestroy { handle: ready.syncobj, pad: 0 };
    same!(ready.client.call(request::SYNCOBJ_DESTROY, &mut a), Ok(()));
    Ok(())
}

fn outlives_client(ctx: &Ctx) -> Verdict {
    let other = ctx.open()?;
    let ready = ctx.open()?.ready()?;
    let packet = ready.good()?;
    let last = {
        ready.submit(packet)?;
        ready.submit(packet)?
    };
    let mut a = drm::SyncobjHandle { handle: ready.syncobj, fd: -1, ..Zeroable::zeroed() };
    ready.client.call(request::SYNCOBJ_HANDLE_TO_FD, &mut a)?;
    let file = own_fd(a.fd).ok_or_else(|| Stop::fail("no descriptor"))?;
    drop(ready);
    let mut b = drm::SyncobjHandle { fd: file.as_raw_fd(), ..Zeroable::zeroed() };
    other.call(request::SYNCOBJ_FD_TO_HANDLE, &mut b)?;
    same!(other.wait_points(&[(b.handle, last)], 0, 0), Ok(0), "closing the file ended every command");
    Ok(())
}

fn create(client: &Client, flags: u32) -> Result<u32, Errno> {
    let mut a = drm::SyncobjCreate { handle: 0, flags };
    client.call(request::SYNCOBJ_CREATE, &mut a).map(|()| a.handle)
}

fn signal(client: &Client, handle: u32, point: u64) -> Result<(), Errno> {
    let mut a =
        drm::SyncobjTimelineArray { handles: addr_of(&handle), points: addr_of(&point), count_handles: 1, flags: 0 };
    client.call(request::SYNCOBJ_TIMELINE_SIGNAL, &mut a)
}

fn query_point(client: &Client, handle: u32, flags: u32) -> Result<u64, Errno> {
    let mut point = u64::MAX;
    let mut a = drm::SyncobjTimelineArray {
        handles: addr_of(&handle),
        points: std::ptr::from_mut(&mut point).addr() as u64,
        count_handles: 1,
        flags,
    };
    client.call(request::SYNCOBJ_QUERY, &mut a).map(|()| point)
}

fn create_destroy(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    same!(create(&client, 0), Ok(1));
    same!(create(&client, 1), Ok(2));
    same!(create(&client, 2), Err(Errno::INVAL));
    let destroy = |handle, pad| client.call(request::SYNCOBJ_DESTROY, &mut drm::SyncobjDestroy { handle, pad });
    same!(destroy(1, 1), Err(Errno::INVAL));
    same!(destroy(1, 0), Ok(()));
    same!(destroy(1, 0), Err(Errno::INVAL));
    same!(create(&client, 0), Ok(1));
    Ok(())
}

fn no_handles(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    same!(client.wait_points(&[], 0, 0), Ok(0));
    same!(client.call(request::SYNCOBJ_WAIT, &mut drm::SyncobjWait::zeroed()), Ok(()));
    Ok(())
}

fn wait_arguments(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let handle = create(&client, 1)?;
    same!(client.wait_points(&[(handle, 0)], 16, 0), Err(Errno::INVAL), "unknown flag");
    same!(client.wait_points(&[(handle, 0), (7, 0)], 0, 0), Err(Errno::NOENT));
    let mut nowhere = drm::SyncobjTimelineWait { count_handles: 1, ..Zeroable::zeroed() };
    same!(client.call(request::SYNCOBJ_TIMELINE_WAIT, &mut nowhere), Err(Errno::FAULT));
    let mut plain =
        drm::SyncobjWait { handles: addr_of(&handle), count_handles: 1, flags: AVAILABLE, ..Zeroable::zeroed() };
    same!(client.call(request::SYNCOBJ_WAIT, &mut plain), Err(Errno::INVAL), "AVAILABLE is for timelines");
    plain.flags = 0;
    same!(client.call(request::SYNCOBJ_WAIT, &mut plain), Ok(()));
    Ok(())
}

fn unsubmitted(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let handle = create(&client, 0)?;
    same!(client.wait_points(&[(handle, 0)], 0, i64::MAX), Err(Errno::INVAL));
    same!(client.wait_points(&[(handle, 0)], FOR_SUBMIT, 0), Err(Errno::TIME));
    signal(&client, handle, 4)?;
    same!(client.wait_points(&[(handle, 5)], 0, i64::MAX), Err(Errno::INVAL));
    same!(client.wait_points(&[(handle, 5)], FOR_SUBMIT, now() + 1_000_000), Err(Errno::TIME));
    Ok(())
}

fn absolute_deadlines(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let (never, done) = (create(&client, 0)?, create(&client, 1)?);
    for past in [1, -1, 1_000_000_000, now()] {
        same!(client.wait_points(&[(never, 0)], FOR_SUBMIT, past), Err(Errno::TIME), "{past}");
        same!(client.wait_points(&[(done, 0)], FOR_SUBMIT, past), Ok(0), "one look is always taken");
    }
    let deadline = now() + 50_000_000;
    same!(client.wait_points(&[(never, 0)], FOR_SUBMIT, deadline), Err(Errno::TIME));
    // The kernel counts in jiffies, of up to 10 ms.
    hold!(now() >= deadline - 10_000_000, "not before its time");
    Ok(())
}

fn points(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let handle = create(&client, 0)?;
    for point in [1, 2, 10] {
        signal(&client, handle, point)?;
        same!(query_point(&client, handle, 0), Ok(point));
        same!(client.wait_points(&[(handle, point)], 0, 0), Ok(0));
    }
    same!(client.wait_points(&[(handle, 7)], 0, 0), Ok(0), "a point in between is that of the next");
    same!(client.wait_points(&[(handle, 11)], 0, 0), Err(Errno::INVAL));
    signal(&client, handle, 4)?;
    same!(query_point(&client, handle, 0), Ok(10), "time does not go back");
    Ok(())
}

fn all_and_any(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let (a, b) = (create(&client, 0)?, create(&client, 0)?);
    signal(&client, b, 1)?;
    let both = [(a, 1), (b, 1)];
    same!(client.wait_points(&both, FOR_SUBMIT, 0), Ok(1), "the index of the one that is done");
    same!(client.wait_points(&both, FOR_SUBMIT | WAIT_ALL, 0), Err(Errno::TIME));
    signal(&client, a, 1)?;
    same!(client.wait_points(&both, FOR_SUBMIT | WAIT_ALL, 0), Ok(0));
    Ok(())
}

fn available(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let handle = create(&client, 0)?;
    same!(client.wait_points(&[(handle, 1)], AVAILABLE, 0), Err(Errno::TIME));
    signal(&client, handle, 1)?;
    same!(client.wait_points(&[(handle, 1)], AVAILABLE, 0), Ok(0));
    Ok(())
}

fn binary(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let handle = create(&client, 1)?;
    same!(client.wait_points(&[(handle, 0)], 0, 0), Ok(0));
    same!(client.wait_points(&[(handle, 1)], 0, 0), Err(Errno::INVAL));
    same!(query_point(&client, handle, 0), Ok(0));
    Ok(())
}

fn query(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let handle = create(&client, 0)?;
    same!(query_point(&client, handle, 0), Ok(0));
    same!(query_point(&client, handle, 2), Err(Errno::INVAL));
    same!(query_point(&client, 9, 0), Err(Errno::NOENT));
    let mut none = drm::SyncobjTimelineArray::zeroed();
    same!(client.call(request::SYNCOBJ_QUERY, &mut none), Err(Errno::INVAL));
    signal(&client, handle, 6)?;
    same!((query_point(&client, handle, 0), query_point(&client, handle, 1)), (Ok(6), Ok(6)));
    Ok(())
}

fn signal_arguments(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let handle = create(&client, 0)?;
    let mut flags = drm::SyncobjTimelineArray { handles: addr_of(&handle), count_handles: 1, flags: 1, points: 0 };
    same!(client.call(request::SYNCOBJ_TIMELINE_SIGNAL, &mut flags), Err(Errno::INVAL));
    let mut none = drm::SyncobjTimelineArray::zeroed();
    same!(client.call(request::SYNCOBJ_TIMELINE_SIGNAL, &mut none), Err(Errno::INVAL));
    same!(signal(&client, 8, 1), Err(Errno::NOENT));
    Ok(())
}

fn transfer(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let (from, to) = (create(&client, 0)?, create(&client, 0)?);
    let transfer = |src_handle, src_point, dst_handle, dst_point, pad| {
        let mut a = drm::SyncobjTransfer { src_handle, dst_handle, src_point, dst_point, flags: 0, pad };
        client.call(request::SYNCOBJ_TRANSFER, &mut a)
    };
    same!(transfer(from, 1, to, 1, 0), Err(Errno::INVAL), "nothing there");
    signal(&client, from, 1)?;
    same!(transfer(from, 1, to, 1, 1), Err(Errno::INVAL));
    same!(transfer(99, 1, to, 1, 0), Err(Errno::NOENT));
    same!(transfer(from, 2, to, 1, 0), Err(Errno::INVAL));
    same!(transfer(from, 1, to, 9, 0), Ok(()));
    same!(query_point(&client, to, 0), Ok(9));
    same!(transfer(from, 1, to, 0, 0), Ok(()));
    // The fence that is moved is a link of the source's chain, and may keep its number.
    let moved = query_point(&client, to, 0)?;
    hold!(moved <= 1, "the point of a moved fence is {moved}");
    same!(client.wait_points(&[(to, 0)], 0, 0), Ok(0));
    Ok(())
}

fn file_descriptors(ctx: &Ctx) -> Verdict {
    let (client, other) = (ctx.open()?, ctx.open()?);
    let handle = create(&client, 0)?;
    let mut a = drm::SyncobjHandle { handle, fd: -1, ..Zeroable::zeroed() };
    client.call(request::SYNCOBJ_HANDLE_TO_FD, &mut a)?;
    let file = own_fd(a.fd).ok_or_else(|| Stop::fail("no descriptor"))?;
    let mut b = drm::SyncobjHandle { fd: file.as_raw_fd(), ..Zeroable::zeroed() };
    other.call(request::SYNCOBJ_FD_TO_HANDLE, &mut b)?;
    signal(&client, handle, 3)?;
    same!(query_point(&other, b.handle, 0), Ok(3), "the same one");
    let call = |request, a: drm::SyncobjHandle| client.call(request, &mut { a });
    same!(call(request::SYNCOBJ_HANDLE_TO_FD, drm::SyncobjHandle { handle: 9, ..a }), Err(Errno::INVAL));
    same!(call(request::SYNCOBJ_HANDLE_TO_FD, drm::SyncobjHandle { handle, pad: 1, ..a }), Err(Errno::INVAL));
    same!(call(request::SYNCOBJ_HANDLE_TO_FD, drm::SyncobjHandle { handle, flags: 4, ..a }), Err(Errno::INVAL));
    same!(call(request::SYNCOBJ_FD_TO_HANDLE, drm::SyncobjHandle { fd: -1, ..b }), Err(Errno::INVAL));
    let plain = super::client::plain_file()?;
    let not_one = drm::SyncobjHandle { fd: plain.as_raw_fd(), ..b };
    same!(call(request::SYNCOBJ_FD_TO_HANDLE, not_one), Err(Errno::INVAL));
    Ok(())
}

fn eventfd(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let handle = create(&client, 0)?;
    let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK)?;
    let listen = |handle, flags, fd| {
        let mut a = drm::SyncobjEventfd { handle, flags, point: 2, fd, pad: 0 };
        client.call(request::SYNCOBJ_EVENTFD, &mut a)
    };
    same!(listen(handle, 1, event.as_raw_fd()), Err(Errno::INVAL));
    same!(listen(9, 0, event.as_raw_fd()), Err(Errno::NOENT));
    same!(listen(handle, 0, -1), Err(Errno::BADF));
    same!(listen(handle, 0, event.as_raw_fd()), Ok(()));
    let mut count = [0; 8];
    signal(&client, handle, 1)?;
    same!(rustix::io::read(&event, &mut count), Err(Errno::AGAIN));
    signal(&client, handle, 2)?;
    same!(rustix::io::read(&event, &mut count), Ok(8));
    same!(u64::from_ne_bytes(count), 1);
    Ok(())
}

fn wakes(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let handle = create(&client, 0)?;
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| client.wait(handle, 5));
        signal(&client, handle, 4)?;
        signal(&client, handle, 5)?;
        same!(waiter.join().unwrap_or(Err(Errno::IO)), Ok(()));
        Ok(())
    })?;
    Ok(())
}
