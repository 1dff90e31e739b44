//! Measurements: reported, never judged.

use std::time::{Duration, Instant};

use super::Expect::Same;
use super::client::PAGE;
use super::ctx::Ctx;
use super::ready::{CMD_CHAIN, COMPLETED, header};
use super::verdict::{Stop, Verdict};

cases! { Perf;
    latency: Same("one empty command, submit to fence");
    polling: Same("one empty command, submit to state");
    throughput: Same("empty commands, four under way");
    chain_throughput: Same("empty commands in chains of 24");
    buffer: Same("a 1 MiB buffer: made, mapped, gone");
    context: Same("a context: made and gone");
    sync: Same("SYNC_BO of 1 MiB");
    mapping_speed: Same("the CPU writes and reads a mapping");
}

/// Repeats for a while and tells the mean.
fn measure(ctx: &Ctx, what: &str, each: u32, mut once: impl FnMut() -> Verdict) -> Verdict {
    let started = Instant::now();
    let mut n = 0;
    while n < 1000 && started.elapsed() < Duration::from_millis(250) {
        once()?;
        n += 1;
    }
    let mean = started.elapsed().as_secs_f64() * 1e6 / f64::from(n) / f64::from(each);
    ctx.note(format!("{what}: {mean:.1} us, {n} times"));
    Ok(())
}

fn latency(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let packet = ready.good()?;
    measure(ctx, "command", 1, || {
        same!(ready.run(packet)?, COMPLETED);
        Ok(())
    })
}

fn polling(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let packet = ready.good()?;
    let mut last = 0;
    measure(ctx, "command, polled", 1, || {
        ready.rebuild(packet);
        last = ready.submit(packet)?;
        while packet.state() < COMPLETED {
            std::hint::spin_loop();
        }
        Ok(())
    })?;
    ready.wait(last)?;
    Ok(())
}

fn throughput(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let packets = [ready.good()?, ready.good()?, ready.good()?, ready.good()?];
    let mut points = Vec::new();
    measure(ctx, "command, four under way", 1, || {
        let packet = packets[points.len() % 4];
        if let Some(&seq) = points.len().checked_sub(4).and_then(|i| points.get(i)) {
            ready.wait(seq)?;
        }
        points.push(ready.submit(packet)?);
        Ok(())
    })?;
    ready.wait(points.last().copied().unwrap_or(0))?;
    Ok(())
}

fn chain_throughput(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let packet = ready.good()?;
    let mut words = vec![header(CMD_CHAIN, 6 + 48), 24, 0, 0, 0, 0, 0];
    words.extend((0..24).flat_map(|_| [packet.handle, 0]));
    let chain = ready.client.packet(&words)?;
    measure(ctx, "command of a chain", 24, || {
        same!(ready.run(chain)?, COMPLETED);
        Ok(())
    })
}

fn buffer(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    measure(ctx, "buffer of 1 MiB", 1, || {
        let bo = client.share(1 << 20)?;
        client.unmap(client.map(bo, 1 << 20)?);
        client.close(bo)?;
        Ok(())
    })
}

fn context(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let _heap = client.heap()?;
    measure(ctx, "context", 1, || {
        let (context, _) = client.create_hwctx()?;
        client.destroy_hwctx(context)?;
        Ok(())
    })
}

fn sync(ctx: &Ctx) -> Verdict {
    use amdxdna_ioctl::Errno;
    use amdxdna_ioctl::abi::{SyncBo, request};
    let client = ctx.open()?;
    let bo = client.share(1 << 20)?;
    client.map(bo, 1 << 20)?;
    measure(ctx, "SYNC_BO of 1 MiB", 1, || {
        let mut a = SyncBo { handle: bo, direction: 0, offset: 0, size: 1 << 20 };
        match client.call(request::SYNC_BO, &mut a) {
            Err(Errno::OPNOTSUPP) => Err(Stop::skip("SYNC_BO refuses buffers of a carve-out")),
            result => Ok(result?),
        }
    })
}

fn mapping_speed(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let len = 256 * PAGE;
    let map = client.map(client.share(len as u64)?, len)?;
    let mut sum = 0u32;
    measure(ctx, "1 MiB written and read by words", 1, || {
        for i in 0..len / 4 {
            map.set_word(i, i as u32);
        }
        for i in 0..len / 4 {
            sum = sum.wrapping_add(map.word(i));
        }
        Ok(())
    })?;
    hold!(sum != 0, "what was written is read");
    Ok(())
}
