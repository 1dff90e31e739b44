//! CREATE_BO, GET_BO_INFO, mmap, SYNC_BO, PRIME.

use amdxdna_ioctl::Errno;
use amdxdna_ioctl::abi::drm::{self, PrimeHandle};
use amdxdna_ioctl::abi::{self, HEAP_BASE, HEAP_CHUNK, INVALID_ADDR, request};
use bytemuck::Zeroable;

use super::Case;
use super::harness::{Client, Map, Node, PAGE, addr_of, aligned, reserve};

pub const CASES: &[Case] = &[
    ("CREATE_BO refuses flags and types", create_arguments),
    ("handles are the lowest free ones from 1", handles),
    ("sizes are rounded to pages", rounding),
    ("heap sizes", heap_sizes),
    ("DEV without a heap gives EAGAIN", dev_without_heap),
    ("DEV buffers: 32 KiB apart, best fit", dev_addresses),
    ("DEV past the heap gives EAGAIN, and succeeds with another chunk", heap_growth),
    ("a heap stays when its handle goes", heap_outlives_handle),
    ("GET_BO_INFO refuses extensions and unknown handles", info_arguments),
    ("mmap offsets are exact and the client's own", map_rules),
    ("SYNC_BO", sync_rules),
    ("PRIME: out and in again is the same handle", prime_self),
    ("PRIME: a second client sees the same bytes", prime_other),
    ("PRIME refuses DEV and what is no buffer", prime_refusals),
    ("GEM_CLOSE of nothing gives EINVAL", close_nothing),
    ("a mapping keeps its bytes after GEM_CLOSE", map_after_close),
    ("user-pointer buffers: alignment, bad tables", user_pointers),
];

pub const SVA_CASES: &[Case] = &[
    ("the device address is that of the first mapping", address_of_mapping),
    ("two mappings: the first address stays until both are gone", stale_address),
    ("DEV needs a mapped heap", dev_needs_mapping),
    ("chunks that are not neighbours cannot hold one buffer", scattered_chunks),
    ("a user-pointer buffer is where it is", user_pointer_address),
];

fn create_arguments(node: &Node) {
    let client = node.open();
    for r#type in [0, 5, u32::MAX] {
        assert_eq!(client.create_bo(r#type, 4096), Err(Errno::INVAL), "type {}", r#type);
    }
    let mut a = abi::CreateBo { flags: 1, size: 4096, r#type: 1, ..Zeroable::zeroed() };
    assert_eq!(client.call(request::CREATE_BO, &mut a), Err(Errno::INVAL));
}

fn handles(node: &Node) {
    let client = node.open();
    let handles: Vec<u32> = (0..4).map(|_| client.share(4096)).collect();
    assert_eq!(handles, [1, 2, 3, 4]);
    client.close(2).unwrap();
    assert_eq!(client.share(4096), 2);
    assert_eq!(client.share(4096), 5);
    assert_eq!(node.open().share(4096), 1, "another client counts for itself");
}

fn rounding(node: &Node) {
    let client = node.open();
    let bo = client.share(5000);
    client.unmap(client.map(bo, 8192));
    assert_eq!(client.map_at(bo, 8193, None).unwrap_err(), Errno::INVAL);
}

fn heap_sizes(node: &Node) {
    let client = node.open();
    for size in [0, 4096, HEAP_CHUNK - 4096, HEAP_CHUNK + 4096] {
        assert_eq!(client.create_bo(2, size), Err(Errno::INVAL), "{size}");
    }
    for chunk in 0..8 {
        let handle = client.create_bo(2, HEAP_CHUNK).unwrap();
        assert_eq!(client.address(handle), HEAP_BASE + chunk * HEAP_CHUNK);
    }
    assert_eq!(client.create_bo(2, HEAP_CHUNK), Err(Errno::NOSPC), "512 MiB is all");
}

fn dev_without_heap(node: &Node) {
    let client = node.open();
    assert_eq!(client.dev(4096), Err(Errno::AGAIN));
    assert_eq!(client.dev(0), Err(Errno::INVAL));
    assert_eq!(client.dev((512 << 20) + 1), Err(Errno::INVAL));
}

fn dev_addresses(node: &Node) {
    let client = node.open();
    let _heap = client.heap();
    let bos: Vec<u32> = [4096, 1, 40000, 4096].map(|size| client.dev(size).unwrap()).to_vec();
    let addrs: Vec<u64> = bos.iter().map(|&bo| client.address(bo) - HEAP_BASE).collect();
    assert_eq!(addrs, [0, 0x8000, 0x10000, 0x20000]);
    assert_eq!(client.info(bos[0]).unwrap().map_offset, INVALID_ADDR);
    client.close(bos[1]).unwrap();
    client.close(bos[2]).unwrap();
    let big = client.dev(0x10000).unwrap();
    assert_eq!(client.address(big) - HEAP_BASE, 0x8000, "one hole now, of 92 KiB from the end of the first");
}

fn heap_growth(node: &Node) {
    let client = node.open();
    let base = aligned(reserve(3 * HEAP_CHUNK as usize));
    client.heap_chunk(base);
    let first = client.dev(HEAP_CHUNK - 0x8000).unwrap();
    assert_eq!(client.dev(0x9000), Err(Errno::AGAIN));
    // SAFETY: inside the reservation of three chunks.
    client.heap_chunk(unsafe { base.add(HEAP_CHUNK as usize) });
    let across = client.dev(0x9000).unwrap();
    assert_eq!(client.address(first), HEAP_BASE);
    assert_eq!(client.address(across), HEAP_BASE + HEAP_CHUNK - 0x8000, "across the two chunks");
}

fn heap_outlives_handle(node: &Node) {
    let client = node.open();
    let _heap = client.heap();
    client.close(1).unwrap();
    assert!(client.dev(4096).is_ok());
}

fn info_arguments(node: &Node) {
    let client = node.open();
    let handle = client.share(4096);
    assert_eq!(client.info(handle + 1).unwrap_err(), Errno::NOENT);
    for bad in [
        abi::GetBoInfo { ext: 1, handle, ..Zeroable::zeroed() },
        abi::GetBoInfo { ext_flags: 1, handle, ..Zeroable::zeroed() },
        abi::GetBoInfo { pad: 1, handle, ..Zeroable::zeroed() },
    ] {
        assert_eq!(client.call(request::GET_BO_INFO, &mut { bad }), Err(Errno::INVAL));
    }
    let info = client.info(handle).unwrap();
    assert_eq!(info.vaddr, INVALID_ADDR);
    assert_eq!(info.xdna_addr == INVALID_ADDR, node.sva, "no address before the mapping, if it is the mapping's");
}

fn map_rules(node: &Node) {
    let (client, other) = (node.open(), node.open());
    let bo = client.share(8192);
    let offset = client.info(bo).unwrap().map_offset;
    // SAFETY: nothing is mapped at fixed addresses.
    let map = |client: &Client, len, offset| unsafe { client.door.map(None, len, offset) };
    assert_eq!(map(&client, 4096, offset + 4096), Err(Errno::INVAL), "not its first page");
    assert_eq!(map(&client, 4096, 0), Err(Errno::INVAL));
    assert_eq!(map(&client, 12288, offset), Err(Errno::INVAL), "longer than the buffer");
    assert_eq!(map(&other, 4096, offset), Err(Errno::ACCESS), "another client's");
    let part = Map { ptr: map(&client, 4096, offset).unwrap(), len: 4096 };
    part.set_word(3, 7);
    assert_eq!((part.word(3), part.word(4)), (7, 0), "new pages are zero");
    client.unmap(part);
}

fn sync_rules(node: &Node) {
    let client = node.open();
    let _heap = client.heap();
    let sync = |handle, direction, offset, size| {
        client.call(request::SYNC_BO, &mut abi::SyncBo { handle, direction, offset, size })
    };
    for bo in [client.share(4096), client.dev(4096).unwrap()] {
        assert_eq!(sync(bo, 0, 0, 4096), Ok(()));
        assert_eq!(sync(bo, 0, 0, 0), Ok(()));
        assert_eq!(sync(bo, 0, 64, 1 << 40), Ok(()), "cut to the buffer");
        assert_eq!(sync(bo, 7, 0, 64), Ok(()), "any direction but one");
        assert_eq!(sync(bo, 0, 4096, 1), Err(Errno::INVAL));
        assert_eq!(sync(bo, 0, 64, u64::MAX), Err(Errno::INVAL));
        assert_eq!(sync(bo, 1, 0, 4096), Err(Errno::INVAL), "from the device: debug buffers alone");
    }
    assert_eq!(sync(99, 0, 0, 64), Err(Errno::NOENT));
}

fn export(client: &Client, handle: u32, flags: u32) -> Result<i32, Errno> {
    let mut a = PrimeHandle { handle, flags, fd: -1 };
    client.call(request::PRIME_HANDLE_TO_FD, &mut a).map(|()| a.fd)
}

fn import(client: &Client, fd: i32) -> Result<u32, Errno> {
    let mut a = PrimeHandle { handle: 0, flags: 0, fd };
    client.call(request::PRIME_FD_TO_HANDLE, &mut a).map(|()| a.handle)
}

fn close_fd(fd: i32) {
    use std::os::fd::{FromRawFd, OwnedFd};
    // SAFETY: the ioctl gave the descriptor to this test alone.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
}

const RDWR_CLOEXEC: u32 = 0o2_000_002;

fn prime_self(node: &Node) {
    let client = node.open();
    let bo = client.share(4096);
    let fd = export(&client, bo, RDWR_CLOEXEC).unwrap();
    assert_eq!(import(&client, fd), Ok(bo));
    close_fd(fd);
    client.close(bo).unwrap();
    assert_eq!(client.close(bo), Err(Errno::INVAL), "one close closes it for all");
}

fn prime_other(node: &Node) {
    let (client, other) = (node.open(), node.open());
    let bo = client.share(8192);
    let map = client.map(bo, 8192);
    map.set_word(1, 0xabcd);
    let fd = export(&client, bo, RDWR_CLOEXEC).unwrap();
    client.unmap(map);
    client.close(bo).unwrap();
    let imported = import(&other, fd).unwrap();
    close_fd(fd);
    let map = other.map(imported, 8192);
    assert_eq!(map.word(1), 0xabcd);
    other.unmap(map);
}

fn prime_refusals(node: &Node) {
    let client = node.open();
    let _heap = client.heap();
    let dev = client.dev(4096).unwrap();
    assert_eq!(export(&client, dev, RDWR_CLOEXEC), Err(Errno::OPNOTSUPP));
    assert_eq!(export(&client, 77, RDWR_CLOEXEC), Err(Errno::NOENT));
    assert_eq!(export(&client, dev, 1), Err(Errno::INVAL));
    assert_eq!(import(&client, -1), Err(Errno::BADF));
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    assert_eq!(import(&client, std::os::fd::AsRawFd::as_raw_fd(&file)), Err(Errno::INVAL));
}

fn close_nothing(node: &Node) {
    let client = node.open();
    assert_eq!(client.close(0), Err(Errno::INVAL));
    assert_eq!(client.call(request::GEM_CLOSE, &mut drm::GemClose { handle: 1, pad: 0 }), Err(Errno::INVAL));
}

fn map_after_close(node: &Node) {
    let client = node.open();
    let bo = client.share(4096);
    let map = client.map(bo, 4096);
    map.set_word(0, 5);
    client.close(bo).unwrap();
    assert_eq!(client.share(4096), bo, "the handle is free");
    assert_eq!(map.word(0), 5);
    client.unmap(map);
}

fn table(dmabuf_fd: i32, entries: &[(u64, u64)]) -> Vec<u64> {
    let mut table = vec![u64::from(dmabuf_fd.cast_unsigned()) | (entries.len() as u64) << 32];
    table.extend(entries.iter().flat_map(|(vaddr, len)| [*vaddr, *len]));
    table
}

fn create_from(client: &Client, table: u64) -> Result<u32, Errno> {
    let mut a = abi::CreateBo { vaddr: table, r#type: 1, ..Zeroable::zeroed() };
    client.call(request::CREATE_BO, &mut a).map(|()| a.handle)
}

fn user_pointers(node: &Node) {
    let client = node.open();
    assert_eq!(create_from(&client, 8), Err(Errno::INVAL), "a table that cannot be read");
    for entry in [(0x10_0001, 4096), (0x10_0000, 100)] {
        let table = table(-1, &[entry]);
        assert_eq!(create_from(&client, addr_of(&table[0])), Err(Errno::INVAL), "{entry:x?}");
    }
    let table = table(-1, &[]);
    assert_eq!(create_from(&client, addr_of(&table[0])), Err(Errno::BADF), "no entries: a dma-buf");
}

fn address_of_mapping(node: &Node) {
    let client = node.open();
    let bo = client.share(4096);
    let map = client.map(bo, 4096);
    let info = client.info(bo).unwrap();
    assert_eq!((info.vaddr, info.xdna_addr), (map.addr(), map.addr()));
    client.unmap(map);
    assert_eq!(client.address(bo), INVALID_ADDR);
}

fn stale_address(node: &Node) {
    let client = node.open();
    let bo = client.share(4096);
    let (first, second) = (client.map(bo, 4096), client.map(bo, 4096));
    client.unmap(first);
    assert_eq!(client.address(bo), first.addr(), "stale: a second mapping lives");
    client.unmap(second);
    assert_eq!(client.address(bo), INVALID_ADDR);
}

fn dev_needs_mapping(node: &Node) {
    let client = node.open();
    let heap = client.create_bo(2, HEAP_CHUNK).unwrap();
    assert_eq!(client.dev(4096), Err(Errno::AGAIN));
    assert_eq!(client.create_hwctx(), Err(Errno::AGAIN), "for its hidden buffers");
    let map = client.map(heap, HEAP_CHUNK as usize);
    let dev = client.dev(4096).unwrap();
    assert_eq!(client.info(dev).unwrap().vaddr, map.addr());
    client.unmap(map);
}

fn scattered_chunks(node: &Node) {
    let client = node.open();
    let base = aligned(reserve(4 * HEAP_CHUNK as usize));
    client.heap_chunk(base);
    // SAFETY: inside the reservation of four chunks.
    client.heap_chunk(unsafe { base.add(2 * HEAP_CHUNK as usize) });
    client.dev(HEAP_CHUNK - 0x8000).unwrap();
    assert_eq!(client.dev(0x9000), Err(Errno::INVAL));
}

fn user_pointer_address(node: &Node) {
    let client = node.open();
    let source = client.share(PAGE as u64);
    let map = client.map(source, PAGE);
    let table = table(-1, &[(map.addr(), PAGE as u64)]);
    let bo = create_from(&client, addr_of(&table[0])).unwrap();
    let info = client.info(bo).unwrap();
    assert_eq!((info.xdna_addr, info.vaddr), (map.addr(), map.addr()));
    client.close(bo).unwrap();
    client.unmap(map);
}
