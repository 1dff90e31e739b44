//! Several threads, several clients.

use amdxdna_ioctl::Errno;
use runtime::reference::Kind;

use super::Expect::Same;
use super::ctx::Ctx;
use super::ready::{COMPLETED, Ready};
use super::verdict::{Stop, Verdict};

cases! { Multi;
    threads_one_context: Same("eight threads on one context: every command completes, every number is used once");
    threads_contexts: Same("six threads on three contexts of one client");
    clients: Same("four clients with a context each run at once");
    threads_buffers: Same("eight threads make, map, unmap and close buffers of one client");
    threads_heap: Same("eight threads take and give back DEV buffers: no two overlap");
    threads_contexts_churn: Same("four threads make and destroy contexts while a fifth runs commands");
    waiters: Same("eight threads wait for the same command");
    open_close: Same("eight threads open, use and close clients");
    close_beside: Same("a client that is closed with work in flight does not touch another one's");
    destroy_beside: Same("a context destroyed with work in flight does not touch another one's");
    error_beside: Same("errors of one context do not touch another one");
    wait_over_close: Same("a wait in one thread ends when another destroys the context");
}

/// Runs the body in `n` threads; the first failure is the case's.
fn in_threads(n: usize, body: impl Fn(usize) -> Verdict + Sync) -> Verdict {
    let body = &body;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..n).map(|i| scope.spawn(move || body(i))).collect();
        let mut verdict = Ok(());
        for thread in threads {
            let result = thread.join().unwrap_or_else(|_| Err(Stop::fail("a thread panicked")));
            verdict = verdict.and(result);
        }
        verdict
    })
}

fn run_some(ready: &Ready, n: usize) -> Verdict {
    let packet = ready.good()?;
    for i in 0..n {
        same!(ready.run(packet)?, COMPLETED, "command {i}");
    }
    Ok(())
}

fn threads_one_context(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let seen = std::sync::Mutex::new(Vec::new());
    in_threads(8, |_| {
        let packet = ready.good()?;
        for _ in 0..25 {
            let seq = ready.submit(packet)?;
            ready.wait(seq)?;
            same!(packet.state(), COMPLETED);
            seen.lock().map_err(|_| Stop::fail("poisoned"))?.push(seq);
        }
        Ok(())
    })?;
    let mut seen = seen.into_inner().map_err(|_| Stop::fail("poisoned"))?;
    seen.sort_unstable();
    same!(seen, (0..200).collect::<Vec<_>>());
    Ok(())
}

fn threads_contexts(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let first = client.ready()?;
    let contexts = [first.clone(), client.ready_in(first.heap, Kind::Gemm)?, client.ready_in(first.heap, Kind::Gemv)?];
    in_threads(6, |i| {
        let ready = &contexts[i % 3];
        let packet = ready.good()?;
        for _ in 0..25 {
            same!(ready.run(packet)?, COMPLETED);
            let bo = client.share(8192)?;
            client.unmap(client.map(bo, 8192)?);
            client.close(bo)?;
        }
        Ok(())
    })
}

fn clients(ctx: &Ctx) -> Verdict {
    in_threads(4, |_| run_some(&ctx.open()?.ready()?, 25))
}

fn threads_buffers(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    in_threads(8, |i| {
        for round in 0..50u32 {
            let len = 4096 * (1 + (i + round as usize) % 7);
            let bo = client.share(len as u64)?;
            let map = client.map(bo, len)?;
            same!(map.word(len / 4 - 1), 0, "new pages are zero");
            map.set_word(len / 4 - 1, round);
            same!(map.word(len / 4 - 1), round);
            client.unmap(map);
            client.close(bo)?;
        }
        Ok(())
    })?;
    same!(client.share(4096)?, 1, "nothing is left");
    Ok(())
}

fn threads_heap(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let heap = client.heap()?;
    in_threads(8, |i| {
        for _ in 0..50 {
            let bo = client.dev(4096)?;
            let map = super::ready::in_heap(heap, client.address(bo)?, 4096);
            map.set_words(&[i as u32; 1024]);
            std::thread::yield_now();
            same!(map.words(0, 1024), vec![i as u32; 1024]);
            client.close(bo)?;
        }
        Ok(())
    })
}

fn threads_contexts_churn(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let ready = client.ready()?;
    in_threads(5, |i| {
        if i == 0 {
            return run_some(&ready, 100);
        }
        for _ in 0..8 {
            let (context, _) = client.create_hwctx()?;
            client.config_cu(context, &[ready.pdi])?;
            client.destroy_hwctx(context)?;
        }
        Ok(())
    })
}

fn waiters(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let packet = ready.good()?;
    for seq in 0..5 {
        in_threads(9, |i| {
            if i == 8 {
                same!(ready.submit(packet)?, seq);
            }
            ready.wait(seq)?;
            same!(packet.state(), COMPLETED);
            Ok(())
        })?;
    }
    Ok(())
}

fn open_close(ctx: &Ctx) -> Verdict {
    in_threads(8, |_| {
        for _ in 0..10 {
            let client = ctx.open()?;
            let bo = client.share(4096)?;
            same!(bo, 1);
            client.map(bo, 4096)?.set_word(0, 1);
        }
        Ok(())
    })
}

fn close_beside(ctx: &Ctx) -> Verdict {
    let stays = ctx.open()?.ready()?;
    for _ in 0..5 {
        let goes = ctx.open()?.ready()?;
        let packets = [goes.good()?, goes.good()?, goes.good()?, goes.good()?];
        for packet in packets {
            goes.submit(packet)?;
        }
        drop(goes);
        run_some(&stays, 3)?;
    }
    Ok(())
}

fn destroy_beside(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let stays = client.ready()?;
    let packet = stays.good()?;
    for _ in 0..5 {
        let (context, syncobj) = client.create_hwctx()?;
        client.config_cu(context, &[stays.pdi])?;
        let mine = stays.good()?;
        let last = client.exec(context, mine.handle, &[stays.stream])?;
        client.destroy_hwctx(context)?;
        same!(client.wait_points(&[(syncobj, last)], 0, 0), Ok(0));
        same!(stays.run(packet)?, COMPLETED);
    }
    Ok(())
}

fn error_beside(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let good = client.ready()?;
    let bad = client.ready_in(good.heap, Kind::Gemv)?;
    in_threads(2, |i| {
        if i == 0 {
            return run_some(&good, 25);
        }
        for _ in 0..25 {
            let packet = client.packet(&bad.words(0x0700_0000, 16))?;
            hold!(bad.run(packet)? > COMPLETED, "an error");
        }
        bad.still_works()
    })
}

fn wait_over_close(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let packet = ready.good()?;
    let seq = ready.submit(packet)?;
    in_threads(2, |i| {
        if i == 0 {
            ready.wait(seq)?;
        } else {
            ready.client.destroy_hwctx(ready.context)?;
        }
        Ok(())
    })?;
    same!(ready.client.exec(ready.context, packet.handle, &[]), Err(Errno::INVAL));
    Ok(())
}
