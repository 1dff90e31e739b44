//! The device heap: chunks, the buffers cut from it, growth.

use amdxdna_ioctl::Errno;
use amdxdna_ioctl::abi::{HEAP_BASE, HEAP_CHUNK, INVALID_ADDR};

use super::Expect::{ByMode, Same};
use super::client::{Client, HEAP, Place};
use super::ctx::{Ctx, Mode};
use super::ready::in_heap;
use super::verdict::{Stop, Verdict};

cases! { Heap;
    sizes: Same("chunks are multiples of 64 MiB, 512 MiB in all; each lies behind the last from 0x04000000 on");
    one_large: Same("one heap of 512 MiB leaves no room for another");
    dev_without_heap: Same("DEV without a heap: EAGAIN; size 0 or more than 512 MiB: EINVAL");
    dev_addresses: Same("DEV buffers lie 32 KiB apart, in the best fitting hole; they have no mmap offset");
    dev_bytes: Same("a DEV buffer is reached through the heap's mapping, and its bytes stay");
    dev_fills: Same("a heap of one chunk takes 2048 small buffers, and the next one gives EAGAIN");
    dev_user_address: Same("GET_BO_INFO gives the user address of a DEV buffer in the heap's mapping");
    dev_needs_mapping: Same("without a mapped heap EAGAIN for DEV buffers and contexts, in every mode");
    growth: Same("DEV past the heap: EAGAIN, then success across the seam once a chunk is added");
    scattered_chunks: Same("chunks that are not mapped as neighbours cannot hold one buffer: EINVAL, in every mode");
    spanning: Same("one DEV buffer of 128 MiB over two chunks");
    too_large: Same("DEV of 576 MiB: EINVAL, whatever the heap");
    churn: Same("a hundred rounds of buffers of all sizes leave the heap as it was");
    outlives_handle: Same("a heap stays when its handle goes");
    two_clients: Same("each client has a heap of its own, at the same device address");
    misaligned: ByMode {
        sva: "a heap off its 64 MiB boundary is refused when a context is made: EINVAL",
        iova: "where the client mapped the heap does not matter",
    };
}

fn two_chunks(client: &Client, gap: usize) -> Result<(Place, Place), Stop> {
    let room = client.reserve(4 * HEAP_CHUNK as usize)?;
    let second = room.after((1 + gap) * HEAP_CHUNK as usize);
    Ok((room, second))
}

fn one_large(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    match client.create_bo(HEAP, 8 * HEAP_CHUNK) {
        Err(Errno::NOMEM) => return Err(Stop::skip("no 512 MiB of memory")),
        result => same!(result.map(drop), Ok(())),
    }
    same!(client.create_bo(HEAP, HEAP_CHUNK), Err(Errno::NOSPC));
    Ok(())
}

fn dev_bytes(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let heap = client.heap()?;
    let bos = [client.dev(4096)?, client.dev(8192)?];
    let maps = [in_heap(heap, client.address(bos[0])?, 4096), in_heap(heap, client.address(bos[1])?, 8192)];
    maps[0].set_words(&[1; 1024]);
    maps[1].set_words(&[2; 2048]);
    same!((maps[0].words(0, 1024), maps[1].word(2047)), (vec![1; 1024], 2));
    client.close(bos[0])?;
    same!(maps[1].words(0, 2048), vec![2; 2048]);
    Ok(())
}

fn dev_fills(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let _heap = client.heap()?;
    let mut last = 0;
    for i in 0..2048 {
        last = client.dev(4096)?;
        same!(client.address(last)?, HEAP_BASE + i * 0x8000);
    }
    same!(client.dev(4096), Err(Errno::AGAIN));
    client.close(last)?;
    hold!(client.dev(4096).is_ok(), "there is room again");
    Ok(())
}

fn dev_user_address(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let heap = client.heap()?;
    client.dev(4096)?;
    let info = client.info(client.dev(4096)?)?;
    same!(info.xdna_addr, HEAP_BASE + 0x8000);
    same!(info.vaddr, heap.addr() + 0x8000);
    Ok(())
}

fn dev_needs_mapping(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let heap = client.create_bo(HEAP, HEAP_CHUNK)?;
    same!(client.dev(4096), Err(Errno::AGAIN));
    same!(client.create_hwctx(), Err(Errno::AGAIN), "for its hidden buffers");
    let map = client.map(heap, HEAP_CHUNK as usize)?;
    let dev = client.dev(4096)?;
    same!(client.info(dev)?.vaddr, map.addr());
    Ok(())
}

fn growth(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let (at, behind) = two_chunks(&client, 0)?;
    client.heap_chunk(at)?;
    let first = client.dev(HEAP_CHUNK - 0x8000)?;
    same!(client.dev(0x9000), Err(Errno::AGAIN));
    client.heap_chunk(behind)?;
    let across = client.dev(0x9000)?;
    same!(client.address(first)?, HEAP_BASE);
    same!(client.address(across)?, HEAP_BASE + HEAP_CHUNK - 0x8000, "across the two chunks");
    Ok(())
}

fn scattered_chunks(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let (at, far) = two_chunks(&client, 1)?;
    client.heap_chunk(at)?;
    client.heap_chunk(far)?;
    client.dev(HEAP_CHUNK - 0x8000)?;
    same!(client.dev(0x9000), Err(Errno::INVAL));
    Ok(())
}

fn spanning(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let (at, behind) = two_chunks(&client, 0)?;
    client.heap_chunk(at)?;
    same!(client.dev(2 * HEAP_CHUNK), Err(Errno::AGAIN));
    let second = client.heap_chunk(behind)?;
    let bo = client.dev(2 * HEAP_CHUNK)?;
    same!(client.address(bo)?, HEAP_BASE);
    second.set_word(second.len / 4 - 1, 5);
    same!(second.word(second.len / 4 - 1), 5);
    same!(client.dev(4096), Err(Errno::AGAIN), "it fills both");
    Ok(())
}

fn too_large(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let _heap = client.heap()?;
    same!(client.dev(9 * HEAP_CHUNK), Err(Errno::INVAL));
    same!(client.dev(u64::MAX), Err(Errno::INVAL));
    Ok(())
}

fn churn(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let _heap = client.heap()?;
    let mut live = Vec::new();
    let mut size = 1u64;
    for round in 0..100 {
        for _ in 0..8 {
            size = size * 37 % 1_000_003 + 1;
            live.push(client.dev(size)?);
        }
        for i in (0..live.len()).rev().filter(|i| (i + round) % 3 != 0) {
            client.close(live.swap_remove(i))?;
        }
    }
    for bo in live {
        client.close(bo)?;
    }
    let all = client.dev(HEAP_CHUNK)?;
    same!(client.address(all)?, HEAP_BASE, "one buffer as large as the heap fits again");
    Ok(())
}

fn two_clients(ctx: &Ctx) -> Verdict {
    let (one, two) = (ctx.open()?, ctx.open()?);
    let (a, b) = (one.heap()?, two.heap()?);
    let (x, y) = (one.address(one.dev(4096)?)?, two.address(two.dev(4096)?)?);
    same!((x, y), (HEAP_BASE, HEAP_BASE));
    a.set_word(0, 1);
    same!(b.word(0), 0, "other memory");
    Ok(())
}

fn misaligned(ctx: &Ctx) -> Verdict {
    if ctx.mode() == Mode::Carveout {
        return Err(Stop::skip("a carve-out's heap has no user address"));
    }
    let client = ctx.open()?;
    let (at, _) = two_chunks(&client, 0)?;
    client.heap_chunk(at.after(4096))?;
    let made = client.create_hwctx().map(drop);
    same!(made, if ctx.sva() { Err(Errno::INVAL) } else { Ok(()) });
    Ok(())
}

fn sizes(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    for size in [0, 4096, HEAP_CHUNK - 4096, HEAP_CHUNK + 4096] {
        same!(client.create_bo(HEAP, size), Err(Errno::INVAL), "{size}");
    }
    for chunk in 0..8 {
        let handle = client.create_bo(HEAP, HEAP_CHUNK)?;
        same!(client.address(handle)?, HEAP_BASE + chunk * HEAP_CHUNK);
    }
    same!(client.create_bo(HEAP, HEAP_CHUNK), Err(Errno::NOSPC), "512 MiB is all");
    Ok(())
}

fn dev_without_heap(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    same!(client.dev(4096), Err(Errno::AGAIN));
    same!(client.dev(0), Err(Errno::INVAL));
    same!(client.dev((512 << 20) + 1), Err(Errno::INVAL));
    Ok(())
}

fn dev_addresses(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let _heap = client.heap()?;
    let bos = [client.dev(4096)?, client.dev(1)?, client.dev(40000)?, client.dev(4096)?];
    let mut addrs = [0; 4];
    for (addr, bo) in addrs.iter_mut().zip(bos) {
        *addr = client.address(bo)? - HEAP_BASE;
    }
    same!(addrs, [0, 0x8000, 0x10000, 0x20000]);
    same!(client.info(bos[0])?.map_offset, INVALID_ADDR);
    client.close(bos[1])?;
    client.close(bos[2])?;
    let big = client.dev(0x10000)?;
    same!(client.address(big)? - HEAP_BASE, 0x8000, "one hole now, of 92 KiB from the end of the first");
    Ok(())
}

fn outlives_handle(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let _heap = client.heap()?;
    client.close(1)?;
    hold!(client.dev(4096).is_ok());
    Ok(())
}
