//! dma-buf export and import.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use amdxdna_ioctl::Errno;
use amdxdna_ioctl::abi::drm::PrimeHandle;
use amdxdna_ioctl::abi::{INVALID_ADDR, request};

use super::Expect::{ByMode, Same};
use super::client::{Client, Map, PAGE, own_fd, plain_file};
use super::ctx::Ctx;
use super::ready::{COMPLETED, Packet};
use super::verdict::{Stop, Verdict};

cases! { Share;
    same_handle: Same("one's own buffer comes back as the handle that it has; one GEM_CLOSE closes it for all");
    other_client: Same("a second client sees the same bytes, after the first one's handle is gone too");
    after_client: Same("an exported buffer outlives the client that made it");
    after_close: Same("an exported buffer outlives its handle: imported again it has its bytes");
    refusals: Same("DEV EOPNOTSUPP, unknown handles ENOENT, unknown flags EINVAL, no descriptor EBADF, no dma-buf EINVAL");
    heap: Same("a heap chunk can be exported");
    size: Same("the size of a dma-buf is the buffer's, by seeking to its end");
    mapped: Same("a dma-buf maps by itself, onto the buffer's pages");
    address: ByMode {
        sva: "an import has an address once it is mapped, that of its mapping",
        iova: "an import has an address of its own at once",
    };
    command: Same("an imported buffer holds a packet");
    argument: Same("a shared buffer is an argument of commands of both clients");
    many: Same("a hundred exports of one buffer are a hundred descriptors of one dma-buf");
    close_fd: Same("closing the descriptor leaves the import alone");
}

fn fd_of(client: &Client, handle: u32) -> Result<OwnedFd, Stop> {
    let fd = export(client, handle, RDWR_CLOEXEC)?;
    own_fd(fd).ok_or_else(|| Stop::fail("no descriptor"))
}

fn same_handle(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let bo = client.share(4096)?;
    let fd = fd_of(&client, bo)?;
    same!(import(&client, fd.as_raw_fd()), Ok(bo));
    drop(fd);
    client.close(bo)?;
    same!(client.close(bo), Err(Errno::INVAL), "one close closes it for all");
    Ok(())
}

fn other_client(ctx: &Ctx) -> Verdict {
    let (client, other) = (ctx.open()?, ctx.open()?);
    let bo = client.share(8192)?;
    let map = client.map(bo, 8192)?;
    map.set_word(1, 0xabcd);
    let fd = fd_of(&client, bo)?;
    client.unmap(map);
    client.close(bo)?;
    let imported = import(&other, fd.as_raw_fd())?;
    drop(fd);
    let map = other.map(imported, 8192)?;
    same!(map.word(1), 0xabcd);
    Ok(())
}

fn after_client(ctx: &Ctx) -> Verdict {
    let (client, other) = (ctx.open()?, ctx.open()?);
    let bo = client.share(8192)?;
    client.map(bo, 8192)?.set_word(2047, 0x1234);
    let fd = fd_of(&client, bo)?;
    drop(client);
    let map = other.map(import(&other, fd.as_raw_fd())?, 8192)?;
    same!(map.word(2047), 0x1234);
    Ok(())
}

fn after_close(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let bo = client.share(4096)?;
    let map = client.map(bo, 4096)?;
    map.set_word(7, 0x77);
    client.unmap(map);
    let fd = fd_of(&client, bo)?;
    client.close(bo)?;
    let again = import(&client, fd.as_raw_fd())?;
    same!(client.map(again, 4096)?.word(7), 0x77);
    Ok(())
}

fn refusals(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let _heap = client.heap()?;
    let dev = client.dev(4096)?;
    same!(export(&client, dev, RDWR_CLOEXEC), Err(Errno::OPNOTSUPP));
    same!(export(&client, 77, RDWR_CLOEXEC), Err(Errno::NOENT));
    same!(export(&client, dev, 1), Err(Errno::INVAL));
    same!(import(&client, -1), Err(Errno::BADF));
    let file = plain_file()?;
    same!(import(&client, file.as_raw_fd()), Err(Errno::INVAL));
    Ok(())
}

fn heap(ctx: &Ctx) -> Verdict {
    let (client, other) = (ctx.open()?, ctx.open()?);
    let heap = client.heap()?;
    heap.set_word(5, 6);
    let fd = fd_of(&client, 1)?;
    let imported = import(&other, fd.as_raw_fd())?;
    same!(other.map(imported, PAGE)?.word(5), 6);
    Ok(())
}

fn size(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    for (asked, is) in [(1, 4096), (4096, 4096), (5000, 8192), (1 << 20, 1 << 20)] {
        let fd = fd_of(&client, client.share(asked)?)?;
        same!(rustix::fs::seek(&fd, rustix::fs::SeekFrom::End(0)), Ok(is), "of a buffer of {asked}");
    }
    Ok(())
}

fn mapped(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let bo = client.share(8192)?;
    let map = client.map(bo, 8192)?;
    let fd = fd_of(&client, bo)?;
    let direct = super::client::Pages::of_file(fd.as_fd(), 8192)?;
    direct.map().set_word(2000, 3);
    same!(map.word(2000), 3);
    map.set_word(0, 4);
    same!(direct.map().word(0), 4);
    Ok(())
}

fn address(ctx: &Ctx) -> Verdict {
    let (client, other) = (ctx.open()?, ctx.open()?);
    let fd = fd_of(&client, client.share(4096)?)?;
    let imported = import(&other, fd.as_raw_fd())?;
    let before = other.address(imported)?;
    same!(before == INVALID_ADDR, ctx.sva(), "no address before the mapping");
    let map = other.map(imported, 4096)?;
    same!(other.address(imported)?, if ctx.sva() { map.addr() } else { before });
    Ok(())
}

fn command(ctx: &Ctx) -> Verdict {
    let other = ctx.open()?;
    let ready = ctx.open()?.ready()?;
    let fd = fd_of(&other, other.share(PAGE as u64)?)?;
    let handle = import(&ready.client, fd.as_raw_fd())?;
    let packet = Packet { handle, map: ready.client.map(handle, PAGE)? };
    ready.rebuild(packet);
    same!(ready.run(packet)?, COMPLETED);
    Ok(())
}

fn argument(ctx: &Ctx) -> Verdict {
    let (a, b) = (ctx.open()?.ready()?, ctx.open()?.ready()?);
    let bo = a.client.share(PAGE as u64)?;
    let _map: Map = a.client.map(bo, PAGE)?;
    let fd = fd_of(&a.client, bo)?;
    let imported = import(&b.client, fd.as_raw_fd())?;
    b.client.map(imported, PAGE)?;
    let (one, two) = (a.good()?, b.good()?);
    for _ in 0..5 {
        let first = a.client.exec(a.context, one.handle, &[a.stream, bo])?;
        let second = b.client.exec(b.context, two.handle, &[b.stream, imported])?;
        a.wait(first)?;
        b.wait(second)?;
        same!((one.state(), two.state()), (COMPLETED, COMPLETED));
    }
    Ok(())
}

fn many(ctx: &Ctx) -> Verdict {
    let (client, other) = (ctx.open()?, ctx.open()?);
    let bo = client.share(4096)?;
    let fds = (0..100).map(|_| fd_of(&client, bo)).collect::<Result<Vec<_>, _>>()?;
    let first = import(&other, fds[0].as_raw_fd())?;
    for fd in &fds {
        same!(import(&other, fd.as_raw_fd()), Ok(first), "one buffer, one handle");
    }
    Ok(())
}

fn close_fd(ctx: &Ctx) -> Verdict {
    let (client, other) = (ctx.open()?, ctx.open()?);
    let fd = fd_of(&client, client.share(4096)?)?;
    let imported = import(&other, fd.as_raw_fd())?;
    drop((fd, client));
    let map = other.map(imported, 4096)?;
    map.set_word(0, 1);
    same!(map.word(0), 1);
    Ok(())
}

/// DRM_RDWR and DRM_CLOEXEC.
const RDWR_CLOEXEC: u32 = 0o2_000_002;

fn export(client: &Client, handle: u32, flags: u32) -> Result<i32, Errno> {
    let mut a = PrimeHandle { handle, flags, fd: -1 };
    client.call(request::PRIME_HANDLE_TO_FD, &mut a).map(|()| a.fd)
}

fn import(client: &Client, fd: i32) -> Result<u32, Errno> {
    let mut a = PrimeHandle { handle: 0, flags: 0, fd };
    client.call(request::PRIME_FD_TO_HANDLE, &mut a).map(|()| a.handle)
}
