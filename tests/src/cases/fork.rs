//! Several processes: fork, exit and kill with a client open.

use std::time::Duration;

use amdxdna_ioctl::abi::query;

use super::Expect::Same;
use super::client::{Client, Map, in_child};
use super::ctx::Ctx;
use super::ready::COMPLETED;
use super::verdict::{Stop, Verdict};

cases! { Multi;
    fork_queries: Same("a child's calls on an inherited descriptor reach the parent's client");
    fork_bytes: Same("a child sees the bytes of an inherited mapping, and the parent sees the child's");
    fork_exit: Same("a child that ends does not close the parent's client");
    fork_own: Same("a child opens a client of its own and runs commands");
    fork_both: Same("parent and child run commands at once, each on its own client");
    fork_leaves: Same("a process that ends with work in flight gives back its context");
    fork_killed: Same("a process that is killed with work in flight gives back its context");
    fork_many: Same("four processes, one after the other and all at once, leave nothing behind");
}

/// The software NPU in this process would be copied with it.
fn needs_kernel(ctx: &Ctx) -> Verdict {
    match ctx.in_process() {
        Some(_) => Err(Stop::skip("the software NPU lives in this process and cannot be shared with a child")),
        None => Ok(()),
    }
}

/// 0 for a case's success in a child.
fn code(verdict: Verdict) -> u8 {
    u8::from(verdict.is_err())
}

fn run_some(client: &Client, n: usize) -> Verdict {
    let ready = client.ready()?;
    let packet = ready.good()?;
    for _ in 0..n {
        same!(ready.run(packet)?, COMPLETED);
    }
    Ok(())
}

fn fork_queries(ctx: &Ctx) -> Verdict {
    needs_kernel(ctx)?;
    let client = ctx.open()?;
    let bo = client.share(4096)?;
    let child = in_child(|| {
        code((|| {
            client.info(bo)?;
            client.get::<query::ResourceInfo>(12)?;
            Ok(())
        })())
    })?;
    same!(child.wait(), Ok(Some(0)));
    Ok(())
}

fn fork_bytes(ctx: &Ctx) -> Verdict {
    needs_kernel(ctx)?;
    let client = ctx.open()?;
    let map: Map = client.map(client.share(4096)?, 4096)?;
    map.set_word(0, 11);
    let child = in_child(|| {
        let seen = map.word(0);
        map.set_word(1, 22);
        seen as u8
    })?;
    same!(child.wait(), Ok(Some(11)));
    same!(map.word(1), 22);
    Ok(())
}

fn fork_exit(ctx: &Ctx) -> Verdict {
    needs_kernel(ctx)?;
    let ready = ctx.open()?.ready()?;
    same!(in_child(|| 0)?.wait(), Ok(Some(0)));
    ready.still_works()
}

fn fork_own(ctx: &Ctx) -> Verdict {
    needs_kernel(ctx)?;
    let child = in_child(|| code(ctx.open().and_then(|client| run_some(&client, 5))))?;
    same!(child.wait(), Ok(Some(0)));
    Ok(())
}

fn fork_both(ctx: &Ctx) -> Verdict {
    needs_kernel(ctx)?;
    let child = in_child(|| code(ctx.open().and_then(|client| run_some(&client, 50))))?;
    run_some(&ctx.open()?, 50)?;
    same!(child.wait(), Ok(Some(0)));
    Ok(())
}

/// Makes a context and keeps four commands under way on it.
fn busy(ctx: &Ctx) -> Result<super::ready::Ready, Stop> {
    let ready = ctx.open()?.ready()?;
    let packet = ready.good()?;
    for _ in 0..4 {
        ready.submit(packet)?;
    }
    Ok(ready)
}

fn fork_leaves(ctx: &Ctx) -> Verdict {
    needs_kernel(ctx)?;
    let client = ctx.open()?;
    let before = ctx.room(&client)?.1;
    for _ in 0..3 {
        // Without destructors: the kernel cleans up.
        let child = in_child(|| match busy(ctx) {
            Ok(ready) => {
                std::mem::forget(ready);
                0
            }
            Err(_) => 1,
        })?;
        same!(child.wait(), Ok(Some(0)));
        ctx.emptied(&client, before)?;
    }
    run_some(&client, 3)
}

fn fork_killed(ctx: &Ctx) -> Verdict {
    needs_kernel(ctx)?;
    let client = ctx.open()?;
    let before = ctx.room(&client)?.1;
    let child = in_child(|| {
        let Ok(ready) = busy(ctx) else { return 1 };
        let Ok(packet) = ready.good() else { return 2 };
        while ready.submit(packet).is_ok() {}
        3
    })?;
    let mut tries = 0;
    while ctx.room(&client)?.1 == before {
        hold!(tries < 1000, "the child makes a context");
        tries += 1;
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(100));
    child.kill()?;
    same!(child.wait(), Ok(None), "ended by the signal");
    ctx.emptied(&client, before)?;
    run_some(&client, 3)
}

fn fork_many(ctx: &Ctx) -> Verdict {
    needs_kernel(ctx)?;
    let client = ctx.open()?;
    let before = ctx.room(&client)?.1;
    let body = || code(ctx.open().and_then(|client| run_some(&client, 5)));
    for _ in 0..4 {
        same!(in_child(body)?.wait(), Ok(Some(0)));
    }
    let children = (0..4).map(|_| in_child(body)).collect::<Result<Vec<_>, _>>()?;
    for child in children {
        same!(child.wait(), Ok(Some(0)));
    }
    ctx.emptied(&client, before)?;
    Ok(())
}
