//! Syncobjs: timelines, deadlines, sharing.

use std::os::fd::AsRawFd;

use amdxdna_ioctl::Errno;
use amdxdna_ioctl::abi::{drm, request};
use bytemuck::Zeroable;

use super::Case;
use super::harness::{Client, Node, addr_of, now};

pub const CASES: &[Case] = &[
    ("create and destroy", create_destroy),
    ("a wait for nothing succeeds at once", no_handles),
    ("waits: flags, handles, pointers", wait_arguments),
    ("a point that nobody submitted: EINVAL, or ETIME with WAIT_FOR_SUBMIT", unsubmitted),
    ("deadlines are absolute", absolute_deadlines),
    ("points signal in order", points),
    ("wait for all, wait for any", all_and_any),
    ("WAIT_AVAILABLE waits for a fence, not for its signal", available),
    ("a binary syncobj has no points", binary),
    ("QUERY", query),
    ("TIMELINE_SIGNAL: arguments", signal_arguments),
    ("TRANSFER", transfer),
    ("by file descriptor", file_descriptors),
    ("an eventfd hears of a point", eventfd),
    ("a waiter wakes when its point is signalled", wakes),
];

const ALL: u32 = 1;
const FOR_SUBMIT: u32 = 2;
const AVAILABLE: u32 = 4;

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

fn create_destroy(node: &Node) {
    let client = node.open();
    assert_eq!(create(&client, 0), Ok(1));
    assert_eq!(create(&client, 1), Ok(2));
    assert_eq!(create(&client, 2), Err(Errno::INVAL));
    let destroy = |handle, pad| client.call(request::SYNCOBJ_DESTROY, &mut drm::SyncobjDestroy { handle, pad });
    assert_eq!(destroy(1, 1), Err(Errno::INVAL));
    assert_eq!(destroy(1, 0), Ok(()));
    assert_eq!(destroy(1, 0), Err(Errno::INVAL));
    assert_eq!(create(&client, 0), Ok(1));
}

fn no_handles(node: &Node) {
    let client = node.open();
    assert_eq!(client.wait_points(&[], 0, 0), Ok(0));
    assert_eq!(client.call(request::SYNCOBJ_WAIT, &mut drm::SyncobjWait::zeroed()), Ok(()));
}

fn wait_arguments(node: &Node) {
    let client = node.open();
    let handle = create(&client, 1).unwrap();
    assert_eq!(client.wait_points(&[(handle, 0)], 16, 0), Err(Errno::INVAL), "unknown flag");
    assert_eq!(client.wait_points(&[(handle, 0), (7, 0)], 0, 0), Err(Errno::NOENT));
    let mut nowhere = drm::SyncobjTimelineWait { count_handles: 1, ..Zeroable::zeroed() };
    assert_eq!(client.call(request::SYNCOBJ_TIMELINE_WAIT, &mut nowhere), Err(Errno::FAULT));
    let mut plain =
        drm::SyncobjWait { handles: addr_of(&handle), count_handles: 1, flags: AVAILABLE, ..Zeroable::zeroed() };
    assert_eq!(client.call(request::SYNCOBJ_WAIT, &mut plain), Err(Errno::INVAL), "AVAILABLE is for timelines");
    plain.flags = 0;
    assert_eq!(client.call(request::SYNCOBJ_WAIT, &mut plain), Ok(()));
}

fn unsubmitted(node: &Node) {
    let client = node.open();
    let handle = create(&client, 0).unwrap();
    assert_eq!(client.wait_points(&[(handle, 0)], 0, i64::MAX), Err(Errno::INVAL));
    assert_eq!(client.wait_points(&[(handle, 0)], FOR_SUBMIT, 0), Err(Errno::TIME));
    signal(&client, handle, 4).unwrap();
    assert_eq!(client.wait_points(&[(handle, 5)], 0, i64::MAX), Err(Errno::INVAL));
    assert_eq!(client.wait_points(&[(handle, 5)], FOR_SUBMIT, now() + 1_000_000), Err(Errno::TIME));
}

fn absolute_deadlines(node: &Node) {
    let client = node.open();
    let (never, done) = (create(&client, 0).unwrap(), create(&client, 1).unwrap());
    for past in [1, -1, 1_000_000_000, now()] {
        assert_eq!(client.wait_points(&[(never, 0)], FOR_SUBMIT, past), Err(Errno::TIME), "{past}");
        assert_eq!(client.wait_points(&[(done, 0)], FOR_SUBMIT, past), Ok(0), "one look is always taken");
    }
    let deadline = now() + 20_000_000;
    assert_eq!(client.wait_points(&[(never, 0)], FOR_SUBMIT, deadline), Err(Errno::TIME));
    assert!(now() >= deadline, "not before its time");
}

fn points(node: &Node) {
    let client = node.open();
    let handle = create(&client, 0).unwrap();
    for point in [1, 2, 10] {
        signal(&client, handle, point).unwrap();
        assert_eq!(query_point(&client, handle, 0), Ok(point));
        assert_eq!(client.wait_points(&[(handle, point)], 0, 0), Ok(0));
    }
    assert_eq!(client.wait_points(&[(handle, 7)], 0, 0), Ok(0), "a point in between is that of the next");
    assert_eq!(client.wait_points(&[(handle, 11)], 0, 0), Err(Errno::INVAL));
    signal(&client, handle, 4).unwrap();
    assert_eq!(query_point(&client, handle, 0), Ok(10), "time does not go back");
}

fn all_and_any(node: &Node) {
    let client = node.open();
    let (a, b) = (create(&client, 0).unwrap(), create(&client, 0).unwrap());
    signal(&client, b, 1).unwrap();
    let both = [(a, 1), (b, 1)];
    assert_eq!(client.wait_points(&both, FOR_SUBMIT, 0), Ok(1), "the index of the one that is done");
    assert_eq!(client.wait_points(&both, FOR_SUBMIT | ALL, 0), Err(Errno::TIME));
    signal(&client, a, 1).unwrap();
    assert_eq!(client.wait_points(&both, FOR_SUBMIT | ALL, 0), Ok(0));
}

fn available(node: &Node) {
    let client = node.open();
    let handle = create(&client, 0).unwrap();
    assert_eq!(client.wait_points(&[(handle, 1)], AVAILABLE, 0), Err(Errno::TIME));
    signal(&client, handle, 1).unwrap();
    assert_eq!(client.wait_points(&[(handle, 1)], AVAILABLE, 0), Ok(0));
}

fn binary(node: &Node) {
    let client = node.open();
    let handle = create(&client, 1).unwrap();
    assert_eq!(client.wait_points(&[(handle, 0)], 0, 0), Ok(0));
    assert_eq!(client.wait_points(&[(handle, 1)], 0, 0), Err(Errno::INVAL));
    assert_eq!(query_point(&client, handle, 0), Ok(0));
}

fn query(node: &Node) {
    let client = node.open();
    let handle = create(&client, 0).unwrap();
    assert_eq!(query_point(&client, handle, 0), Ok(0));
    assert_eq!(query_point(&client, handle, 2), Err(Errno::INVAL));
    assert_eq!(query_point(&client, 9, 0), Err(Errno::NOENT));
    let mut none = drm::SyncobjTimelineArray::zeroed();
    assert_eq!(client.call(request::SYNCOBJ_QUERY, &mut none), Err(Errno::INVAL));
    signal(&client, handle, 6).unwrap();
    assert_eq!((query_point(&client, handle, 0), query_point(&client, handle, 1)), (Ok(6), Ok(6)));
}

fn signal_arguments(node: &Node) {
    let client = node.open();
    let handle = create(&client, 0).unwrap();
    let mut flags = drm::SyncobjTimelineArray { handles: addr_of(&handle), count_handles: 1, flags: 1, points: 0 };
    assert_eq!(client.call(request::SYNCOBJ_TIMELINE_SIGNAL, &mut flags), Err(Errno::INVAL));
    let mut none = drm::SyncobjTimelineArray::zeroed();
    assert_eq!(client.call(request::SYNCOBJ_TIMELINE_SIGNAL, &mut none), Err(Errno::INVAL));
    assert_eq!(signal(&client, 8, 1), Err(Errno::NOENT));
}

fn transfer(node: &Node) {
    let client = node.open();
    let (from, to) = (create(&client, 0).unwrap(), create(&client, 0).unwrap());
    let transfer = |src_handle, src_point, dst_handle, dst_point, pad| {
        let mut a = drm::SyncobjTransfer { src_handle, dst_handle, src_point, dst_point, flags: 0, pad };
        client.call(request::SYNCOBJ_TRANSFER, &mut a)
    };
    assert_eq!(transfer(from, 1, to, 1, 0), Err(Errno::INVAL), "nothing there");
    signal(&client, from, 1).unwrap();
    assert_eq!(transfer(from, 1, to, 1, 1), Err(Errno::INVAL));
    assert_eq!(transfer(99, 1, to, 1, 0), Err(Errno::NOENT));
    assert_eq!(transfer(from, 2, to, 1, 0), Err(Errno::INVAL));
    assert_eq!(transfer(from, 1, to, 9, 0), Ok(()));
    assert_eq!(query_point(&client, to, 0), Ok(9));
    assert_eq!(transfer(from, 1, to, 0, 0), Ok(()));
    assert_eq!(query_point(&client, to, 0), Ok(0), "binary now");
    assert_eq!(client.wait_points(&[(to, 0)], 0, 0), Ok(0));
}

fn file_descriptors(node: &Node) {
    use std::os::fd::{FromRawFd, OwnedFd};
    let (client, other) = (node.open(), node.open());
    let handle = create(&client, 0).unwrap();
    let mut a = drm::SyncobjHandle { handle, fd: -1, ..Zeroable::zeroed() };
    client.call(request::SYNCOBJ_HANDLE_TO_FD, &mut a).unwrap();
    // SAFETY: the ioctl gave the descriptor to this test alone.
    let file = unsafe { OwnedFd::from_raw_fd(a.fd) };
    let mut b = drm::SyncobjHandle { fd: file.as_raw_fd(), ..Zeroable::zeroed() };
    other.call(request::SYNCOBJ_FD_TO_HANDLE, &mut b).unwrap();
    signal(&client, handle, 3).unwrap();
    assert_eq!(query_point(&other, b.handle, 0), Ok(3), "the same one");
    let call = |request, a: drm::SyncobjHandle| client.call(request, &mut { a });
    assert_eq!(call(request::SYNCOBJ_HANDLE_TO_FD, drm::SyncobjHandle { handle: 9, ..a }), Err(Errno::INVAL));
    assert_eq!(call(request::SYNCOBJ_HANDLE_TO_FD, drm::SyncobjHandle { handle, pad: 1, ..a }), Err(Errno::INVAL));
    assert_eq!(call(request::SYNCOBJ_HANDLE_TO_FD, drm::SyncobjHandle { handle, flags: 4, ..a }), Err(Errno::INVAL));
    assert_eq!(call(request::SYNCOBJ_FD_TO_HANDLE, drm::SyncobjHandle { fd: -1, ..b }), Err(Errno::INVAL));
    let plain = std::fs::File::open("/proc/self/exe").unwrap();
    let not_one = drm::SyncobjHandle { fd: plain.as_raw_fd(), ..b };
    assert_eq!(call(request::SYNCOBJ_FD_TO_HANDLE, not_one), Err(Errno::INVAL));
}

fn eventfd(node: &Node) {
    let client = node.open();
    let handle = create(&client, 0).unwrap();
    let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
    let listen = |handle, flags, fd| {
        let mut a = drm::SyncobjEventfd { handle, flags, point: 2, fd, pad: 0 };
        client.call(request::SYNCOBJ_EVENTFD, &mut a)
    };
    assert_eq!(listen(handle, 1, event.as_raw_fd()), Err(Errno::INVAL));
    assert_eq!(listen(9, 0, event.as_raw_fd()), Err(Errno::NOENT));
    assert_eq!(listen(handle, 0, -1), Err(Errno::BADF));
    assert_eq!(listen(handle, 0, event.as_raw_fd()), Ok(()));
    let mut count = [0; 8];
    signal(&client, handle, 1).unwrap();
    assert_eq!(rustix::io::read(&event, &mut count), Err(Errno::AGAIN));
    signal(&client, handle, 2).unwrap();
    assert_eq!(rustix::io::read(&event, &mut count), Ok(8));
    assert_eq!(u64::from_ne_bytes(count), 1);
}

fn wakes(node: &Node) {
    let client = node.open();
    let handle = create(&client, 0).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| client.wait_points(&[(handle, 5)], FOR_SUBMIT, i64::MAX));
        signal(&client, handle, 4).unwrap();
        signal(&client, handle, 5).unwrap();
        assert_eq!(waiter.join().unwrap(), Ok(0));
    });
}
