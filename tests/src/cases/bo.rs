//! CREATE_BO, GET_BO_INFO, GEM_CLOSE, mmap, SYNC_BO.

use amdxdna_ioctl::Errno;
use amdxdna_ioctl::abi::{self, INVALID_ADDR, drm, request};
use bytemuck::Zeroable;

use super::Expect::{ByMode, Same};
use super::client::{CMD, Client, SHARE};
use super::ctx::{Ctx, Mode};
use super::verdict::{Stop, Verdict};

cases! { Bo;
    create_arguments: Same("CREATE_BO refuses flags, and types other than 1 to 4: EINVAL");
    empty: Same("a SHARE buffer of size 0 is refused");
    handles: Same("handles are the lowest free ones from 1, each client for itself");
    many: Same("a hundred buffers at once");
    rounding: Same("sizes are rounded to pages");
    large: Same("a buffer of 64 MiB is zeroed and holds what is written to both its ends");
    command_type: Same("a CMD buffer is mapped and addressed as a SHARE buffer is");
    info_arguments: Same("GET_BO_INFO: extensions and padding EINVAL, unknown handles ENOENT");
    info_unmapped: ByMode {
        sva: "no address before the mapping",
        iova: "an address of the driver's own at once, and never a user address",
    };
    close_nothing: Same("GEM_CLOSE of no buffer, or with padding: EINVAL");
    close_twice: Same("the second GEM_CLOSE gives EINVAL");
    map_rules: Same("mmap: the exact offset, no more than the size, the client's own buffer");
    map_part: Same("the first pages of a buffer can be mapped alone");
    map_after_close: Same("a mapping keeps its bytes after GEM_CLOSE");
    map_after_file: Same("a mapping keeps its bytes after the file is closed");
    address_of_mapping: ByMode {
        sva: "the device address is that of the first mapping, and none without one",
        iova: "the device address stays what it was; the first mapping is the user address",
    };
    stale_address: ByMode {
        sva: "with two mappings the first one's address stays until both are gone",
        iova: "no mapping changes the address",
    };
    distinct_addresses: Same("no two mapped buffers overlap where the device sees them");
    sync_rules: Same("SYNC_BO: ranges outside a SHARE buffer EINVAL, outside a DEV one nothing; direction 1 for debug buffers alone");
    sync_ranges: Same("SYNC_BO of parts of a buffer of 1 MiB leaves the bytes alone");
}

fn empty(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    hold!(client.create_bo(SHARE, 0).is_err(), "CREATE_BO of 0 bytes fails");
    hold!(client.create_bo(CMD, 0).is_err(), "the same for CMD");
    same!(client.share(4096)?, 1, "and takes no handle");
    Ok(())
}

fn many(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    for i in 1..=100 {
        same!(client.share(4096)?, i);
    }
    for i in 1..=100 {
        client.close(i)?;
    }
    Ok(())
}

fn large(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let len = 64 << 20;
    let bo = client.share(len as u64)?;
    let map = client.map(bo, len)?;
    let last = len / 4 - 1;
    same!([map.word(0), map.word(last / 2), map.word(last)], [0; 3]);
    map.set_word(0, 1);
    map.set_word(last, 2);
    same!([map.word(0), map.word(last)], [1, 2]);
    Ok(())
}

fn command_type(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let bo = client.create_bo(CMD, 4096)?;
    let map = client.map(bo, 4096)?;
    let info = client.info(bo)?;
    hold!(info.xdna_addr != INVALID_ADDR, "a mapped CMD buffer has a device address");
    same!(info.xdna_addr == map.addr(), ctx.sva());
    Ok(())
}

fn info_unmapped(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let info = client.info(client.share(4096)?)?;
    same!(info.vaddr, INVALID_ADDR);
    same!(info.xdna_addr == INVALID_ADDR, ctx.sva());
    hold!(info.map_offset != INVALID_ADDR && info.map_offset.is_multiple_of(4096), "{:#x}", info.map_offset);
    Ok(())
}

fn close_twice(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let bo = client.share(4096)?;
    client.close(bo)?;
    same!(client.close(bo), Err(Errno::INVAL));
    same!(client.info(bo).map(drop), Err(Errno::NOENT));
    Ok(())
}

fn map_part(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let bo = client.share(1 << 20)?;
    let (part, whole) = (client.map(bo, 8192)?, client.map(bo, 1 << 20)?);
    whole.set_word(2047, 9);
    same!(part.word(2047), 9, "the same pages");
    Ok(())
}

fn map_after_file(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let bo = client.share(8192)?;
    let map = client.map(bo, 8192)?;
    map.set_word(2047, 77);
    let left = client.close_file();
    same!((map.word(0), map.word(2047)), (0, 77));
    map.set_word(0, 1);
    same!(map.word(0), 1);
    drop(left);
    Ok(())
}

fn address_of_mapping(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let bo = client.share(4096)?;
    let before = client.address(bo)?;
    let map = client.map(bo, 4096)?;
    let info = client.info(bo)?;
    same!((info.vaddr, info.xdna_addr), (map.addr(), if ctx.sva() { map.addr() } else { before }));
    client.unmap(map);
    same!(client.address(bo)?, before, "as before the mapping");
    Ok(())
}

fn stale_address(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let bo = client.share(4096)?;
    let before = client.address(bo)?;
    let (first, second) = (client.map(bo, 4096)?, client.map(bo, 4096)?);
    client.unmap(first);
    let stale = if ctx.sva() { first.addr() } else { before };
    same!(client.address(bo)?, stale, "while a second mapping lives");
    client.unmap(second);
    same!(client.address(bo)?, before);
    Ok(())
}

fn distinct_addresses(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let mut ranges = Vec::new();
    for pages in 1..20u64 {
        let bo = client.share(pages * 4096)?;
        client.map(bo, pages as usize * 4096)?;
        ranges.push((client.address(bo)?, pages * 4096));
    }
    ranges.sort_unstable();
    for pair in ranges.windows(2) {
        hold!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:x?} overlap");
    }
    Ok(())
}

fn map_rules(ctx: &Ctx) -> Verdict {
    let (client, other) = (ctx.open()?, ctx.open()?);
    let bo = client.share(8192)?;
    let offset = client.info(bo)?.map_offset;
    let map = |client: &Client, len, offset| client.map_offset(None, len, offset).map(drop);
    same!(map(&client, 4096, offset + 4096), Err(Errno::INVAL), "not its first page");
    same!(map(&client, 4096, 0), Err(Errno::OPNOTSUPP), "where no buffer can be");
    same!(map(&client, 4096, 1 << 50), Err(Errno::INVAL), "where no buffer is");
    same!(map(&client, 12288, offset), Err(Errno::INVAL), "longer than the buffer");
    same!(map(&other, 4096, offset), Err(Errno::ACCESS), "another client's");
    let part = client.map_offset(None, 4096, offset)?;
    part.set_word(3, 7);
    same!((part.word(3), part.word(4)), (7, 0), "new pages are zero");
    Ok(())
}

fn syncs(ctx: &Ctx) -> Result<(), Stop> {
    match ctx.mode() {
        Mode::Carveout => Err(Stop::skip("SYNC_BO refuses buffers of a carve-out")),
        Mode::Sva | Mode::Iova => Ok(()),
    }
}

fn sync_ranges(ctx: &Ctx) -> Verdict {
    syncs(ctx)?;
    let client = ctx.open()?;
    let bo = client.share(1 << 20)?;
    let map = client.map(bo, 1 << 20)?;
    for i in 0..256 {
        map.set_word(i * 1024, i as u32);
    }
    for (offset, size) in [(0, 1 << 20), (4096, 4096), (100, 1), (63, 2), ((1 << 20) - 1, 1)] {
        let mut sync = abi::SyncBo { handle: bo, direction: 0, offset, size };
        same!(client.call(request::SYNC_BO, &mut sync), Ok(()), "{size} bytes at {offset}");
    }
    for i in 0..256 {
        same!(map.word(i * 1024), i as u32);
    }
    Ok(())
}

fn create_arguments(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    for r#type in [0, 5, u32::MAX] {
        same!(client.create_bo(r#type, 4096), Err(Errno::INVAL), "type {}", r#type);
    }
    let mut a = abi::CreateBo { flags: 1, size: 4096, r#type: 1, ..Zeroable::zeroed() };
    same!(client.call(request::CREATE_BO, &mut a), Err(Errno::INVAL));
    Ok(())
}

fn handles(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let handles: Vec<u32> = (0..4).map(|_| client.share(4096)).collect::<Result<_, _>>()?;
    same!(handles, [1, 2, 3, 4]);
    client.close(2)?;
    same!(client.share(4096)?, 2);
    same!(client.share(4096)?, 5);
    same!(ctx.open()?.share(4096)?, 1, "another client counts for itself");
    Ok(())
}

fn rounding(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let bo = client.share(5000)?;
    client.unmap(client.map(bo, 8192)?);
    same!(client.map(bo, 8193).map(drop), Err(Errno::INVAL));
    Ok(())
}

fn info_arguments(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let handle = client.share(4096)?;
    same!(client.info(handle + 1).map(drop), Err(Errno::NOENT));
    for bad in [
        abi::GetBoInfo { ext: 1, handle, ..Zeroable::zeroed() },
        abi::GetBoInfo { ext_flags: 1, handle, ..Zeroable::zeroed() },
        abi::GetBoInfo { pad: 1, handle, ..Zeroable::zeroed() },
    ] {
        same!(client.call(request::GET_BO_INFO, &mut { bad }), Err(Errno::INVAL));
    }
    Ok(())
}

fn sync_rules(ctx: &Ctx) -> Verdict {
    syncs(ctx)?;
    let client = ctx.open()?;
    let _heap = client.heap()?;
    let sync = |handle, direction, offset, size| {
        client.call(request::SYNC_BO, &mut abi::SyncBo { handle, direction, offset, size })
    };
    let (share, dev) = (client.share(4096)?, client.dev(4096)?);
    for bo in [share, dev] {
        same!(sync(bo, 0, 0, 4096), Ok(()));
        same!(sync(bo, 0, 0, 0), Ok(()));
        same!(sync(bo, 0, 64, 1 << 40), Ok(()), "cut to the buffer");
        same!(sync(bo, 7, 0, 64), Ok(()), "any direction but one");
        same!(sync(bo, 1, 0, 4096), Err(Errno::INVAL), "from the device: debug buffers alone");
    }
    for (offset, size) in [(4096, 1), (64, u64::MAX)] {
        same!(sync(share, 0, offset, size), Err(Errno::INVAL), "{size} bytes at {offset} of a SHARE buffer");
        same!(sync(dev, 0, offset, size), Ok(()), "{size} bytes at {offset} of a DEV buffer");
    }
    same!(sync(99, 0, 0, 64), Err(Errno::NOENT));
    Ok(())
}

fn close_nothing(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    same!(client.close(0), Err(Errno::INVAL));
    same!(client.call(request::GEM_CLOSE, &mut drm::GemClose { handle: 1, pad: 0 }), Err(Errno::INVAL));
    Ok(())
}

fn map_after_close(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let bo = client.share(4096)?;
    let map = client.map(bo, 4096)?;
    map.set_word(0, 5);
    client.close(bo)?;
    same!(client.share(4096)?, bo, "the handle is free");
    same!(map.word(0), 5);
    client.unmap(map);
    Ok(())
}
