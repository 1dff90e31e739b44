//! Buffers made of the process's own pages, and the dma-buf import of CREATE_BO.

use amdxdna_ioctl::abi::{self, INVALID_ADDR, request};
use amdxdna_ioctl::{Errno, errno_name};
use bytemuck::Zeroable;

use super::Expect::{ByMode, Same};
use super::client::{Client, PAGE, Pages, addr_of};
use super::ctx::{Ctx, Mode};
use super::ready::{COMPLETED, Packet};
use super::verdict::{Stop, Verdict};

cases! { Bo;
    user_tables: Same("user-pointer tables: unreadable or unaligned EINVAL; without entries a dma-buf, EBADF for none");
    user_overflow: Same("user-pointer lengths that overflow: EINVAL");
    user_unmapped: Same("user pages that are not mapped: EFAULT");
    user_read_only: Same("read-only user pages: EFAULT before driver 0.16");
    user_address: ByMode {
        sva: "a user-pointer buffer is where it is",
        iova: "a user-pointer buffer has an address of the driver's own, and no user address",
    };
    user_scattered: ByMode {
        sva: "scattered entries: EINVAL from driver 0.16 on",
        iova: "scattered entries make one buffer",
    };
    user_packet: Same("a user-pointer buffer is an argument of a command");
    user_again: Same("the same pages can be two buffers, and be given back a hundred times");
}

/// Buffers of user pages: a carve-out takes none, having none that are contiguous.
fn pinned(ctx: &Ctx, client: &Client, entries: &[(u64, u64)]) -> Result<u32, Stop> {
    if ctx.mode() == Mode::Carveout {
        return Err(Stop::skip("user pages are not in the carve-out"));
    }
    let table = table(-1, entries);
    match create_from(client, addr_of(&table[0])) {
        Err(Errno::PERM | Errno::NOMEM) => Err(Stop::skip("RLIMIT_MEMLOCK lets no page be pinned")),
        result => Ok(result?),
    }
}

fn user_overflow(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let pages = Pages::new(PAGE, true)?;
    let at = pages.map().addr();
    let table = table(-1, &[(at, u64::MAX - 4095), (at, 8192)]);
    hold!(create_from(&client, addr_of(&table[0])).is_err(), "lengths whose sum overflows are refused");
    Ok(())
}

fn user_unmapped(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let table = table(-1, &[(0x10_0000, 4096)]);
    let made = create_from(&client, addr_of(&table[0]));
    match made {
        Err(Errno::PERM | Errno::NOMEM) if ctx.in_process().is_none() => {
            Err(Stop::skip("RLIMIT_MEMLOCK lets no page be pinned"))
        }
        _ => {
            hold!(matches!(made, Err(Errno::FAULT | Errno::NOMEM)), "{made:?}");
            Ok(())
        }
    }
}

fn user_read_only(ctx: &Ctx) -> Verdict {
    if ctx.newer() {
        return Err(Stop::skip("driver 0.16 pins read-only pages"));
    }
    let client = ctx.open()?;
    let pages = Pages::new(PAGE, false)?;
    let table = table(-1, &[(pages.map().addr(), PAGE as u64)]);
    let made = create_from(&client, addr_of(&table[0]));
    hold!(matches!(made, Err(Errno::FAULT | Errno::NOMEM | Errno::PERM)), "a buffer of read-only pages: {made:?}");
    let said = made.err().and_then(errno_name).unwrap_or("nothing");
    ctx.note(format!("the driver said {said}"));
    Ok(())
}

fn user_address(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let pages = Pages::new(4 * PAGE, true)?;
    let at = pages.map().addr();
    let bo = pinned(ctx, &client, &[(at, 4 * PAGE as u64)])?;
    let info = client.info(bo)?;
    if ctx.sva() {
        same!((info.xdna_addr, info.vaddr), (at, at));
    } else {
        hold!(info.xdna_addr != INVALID_ADDR, "no device address");
    }
    client.close(bo)?;
    Ok(())
}

fn user_scattered(ctx: &Ctx) -> Verdict {
    if ctx.in_process().is_some() {
        return Err(Stop::skip("the software NPU takes one range"));
    }
    let client = ctx.open()?;
    let pages = Pages::new(8 * PAGE, true)?;
    let at = pages.map().addr();
    let (first, second) = ((at + 4 * PAGE as u64, PAGE as u64), (at, 2 * PAGE as u64));
    if ctx.sva() && ctx.newer() {
        let table = table(-1, &[first, second]);
        same!(create_from(&client, addr_of(&table[0])), Err(Errno::INVAL));
        return Ok(());
    }
    let bo = pinned(ctx, &client, &[first, second])?;
    client.close(bo)?;
    Ok(())
}

fn user_packet(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let pages = Pages::new(PAGE, true)?;
    let bo = pinned(ctx, &ready.client, &[(pages.map().addr(), PAGE as u64)])?;
    let packet: Packet = ready.good()?;
    let seq = ready.client.exec(ready.context, packet.handle, &[bo, ready.stream])?;
    ready.wait(seq)?;
    same!(packet.state(), COMPLETED);
    ready.client.close(bo)?;
    Ok(())
}

fn user_again(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let pages = Pages::new(2 * PAGE, true)?;
    let at = pages.map().addr();
    for _ in 0..100 {
        let whole = pinned(ctx, &client, &[(at, 2 * PAGE as u64)])?;
        let part = pinned(ctx, &client, &[(at, PAGE as u64)])?;
        client.close(whole)?;
        client.close(part)?;
    }
    Ok(())
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

fn user_tables(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    same!(create_from(&client, 8), Err(Errno::INVAL), "a table that cannot be read");
    for entry in [(0x10_0001, 4096), (0x10_0000, 100)] {
        let table = table(-1, &[entry]);
        same!(create_from(&client, addr_of(&table[0])), Err(Errno::INVAL), "{entry:x?}");
    }
    let table = table(-1, &[]);
    same!(create_from(&client, addr_of(&table[0])), Err(Errno::BADF), "no entries: a dma-buf");
    Ok(())
}
