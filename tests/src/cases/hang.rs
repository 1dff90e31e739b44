//! Commands that never end, on any device: their stream waits for a token that no transfer will give.
//!
//! Each case has to wait for the driver's hang detection, which looks after two seconds.

use amdxdna_ioctl::Errno;
use amdxdna_ioctl::abi::query;
use runtime::reference::Kind;

use super::Expect::Same;
use super::client::{CMD, FOR_SUBMIT, now};
use super::ctx::Ctx;
use super::ready::{ABORT, CMD_CHAIN, COMPLETED, EMPTY_STREAM, ERROR, NEW, Packet, Ready, TIMEOUT, header, in_heap};
use super::reset::goods;
use super::verdict::{Stop, Verdict};

cases! { Fault;
    hang: Same("a command that never ends: TIMEOUT, and the context runs the next one");
    hang_queue: Same("a hang in the queue: COMPLETED before it, ABORT behind it");
    hang_chain: Same("a hang in a chain: TIMEOUT, error_index, the command's own packet as it was");
    hang_deadline: Same("the client's own deadline comes first: ETIME while the packet is still NEW");
    hang_again: Same("a context survives two hangs in a row, and its numbers go on");
    hang_destroy: Same("DESTROY_HWCTX with a hung command: ABORT or TIMEOUT, and its fence signals");
    // Seen to block for ever in 7.3.4: hang detection cannot make the context again once its buffers are gone.
    hang_close danger true: Same("closing the file with a hung command: it ends, and the slot is free again");
    hang_beside: Same("another context's commands complete, before or after the hang is cleared");
    hang_unmap: Same("munmap of a hung command's buffer returns once the command has ended");
    hang_race: Same("commands sent while the context is made again end well or in an error, and then it works");
    hang_data: Same("after a hang the context computes as before");
}

/// A stream of one wait: S2MM channel 0 of column 0, one token.
const WAIT_FOR_EVER: [u32; 8] = [0x0604_0100, 0x0000_0108, 1, 32, 128, 16, 0, 1 << 16 | 1 << 8];

/// A packet whose stream never ends.
fn endless(ready: &Ready) -> Result<Packet, Errno> {
    let bytes: Vec<u8> = WAIT_FOR_EVER.iter().flat_map(|word| word.to_le_bytes()).collect();
    let stream = ready.client.dev_with(ready.heap, &bytes)?;
    ready.client.packet(&ready.words(ready.client.address(stream)?, bytes.len() as u32))
}

fn hang(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let hung = endless(&ready)?;
    let started = now();
    same!(ready.run(hung)?, TIMEOUT);
    ctx.note(format!("a hang took {:.1} s", (now() - started) as f64 / 1e9));
    let behind = hung.map.words(9, 1015);
    same!(behind, vec![u32::MAX; 1015], "words behind the health record");
    hold!(hung.map.word(1) == 1 || hung.map.word(1) == u32::MAX, "a health record of version 1, or none");
    let lost = ready.recovers()?;
    ctx.note(format!("{lost} commands lost before the context ran again"));
    ready.still_works()
}

fn hang_queue(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let (first, hung, behind) = (ready.good()?, endless(&ready)?, goods::<2>(&ready)?);
    let mut last = 0;
    for packet in [first, hung, behind[0], behind[1]] {
        last = ready.submit(packet)?;
    }
    ready.wait(last)?;
    let states = [first, hung, behind[0], behind[1]].map(|packet| packet.state());
    same!(states, [COMPLETED, TIMEOUT, ABORT, ABORT]);
    same!(behind[1].map.words(1, 100), vec![u32::MAX; 100]);
    same!(ready.submit(first)?, 4, "numbers go on");
    ready.wait(4)?;
    ready.recovers()?;
    ready.still_works()
}

fn hang_chain(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let parts = [ready.good()?, endless(&ready)?, ready.good()?];
    let mut words = vec![header(CMD_CHAIN, 12), 3, 0, 0, 0, 0, 0];
    words.extend(parts.iter().flat_map(|packet| [packet.handle, 0]));
    let chain = ready.client.packet(&words)?;
    same!(ready.run(chain)?, TIMEOUT);
    same!(parts[1].map.word(2), 3, "the packet that hung");
    ctx.note(format!("error_index {} of a hang at 1", chain.map.word(3)));
    ready.recovers()?;
    Ok(())
}

fn hang_deadline(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let hung = endless(&ready)?;
    let seq = ready.submit(hung)?;
    let wait = ready.client.wait_points(&[(ready.syncobj, seq)], FOR_SUBMIT, now() + 50_000_000);
    same!((wait, hung.state()), (Err(Errno::TIME), NEW));
    ready.wait(seq)?;
    same!(hung.state(), TIMEOUT);
    Ok(())
}

fn hang_again(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let mut next = 0;
    for round in 0..2 {
        let hung = endless(&ready)?;
        same!(ready.submit(hung)?, next, "numbers go on");
        ready.wait(next)?;
        same!(hung.state(), TIMEOUT, "round {round}");
        next += 2 + u64::from(ready.recovers()?);
    }
    ready.still_works()
}

/// How a command ends that was hung when its context went: at the hands of whoever came first.
fn ended(packet: Packet) -> Verdict {
    hold!([ABORT, TIMEOUT].contains(&packet.state()), "state {}", packet.state());
    Ok(())
}

fn hang_destroy(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let hung = endless(&ready)?;
    let seq = ready.submit(hung)?;
    ready.client.destroy_hwctx(ready.context)?;
    ended(hung)?;
    same!(ready.client.wait_points(&[(ready.syncobj, seq)], 0, 0), Ok(0));
    Ok(())
}

fn hang_close(ctx: &Ctx) -> Verdict {
    let other = ctx.open()?;
    let before = ctx.room(&other)?.1;
    let ready = ctx.open()?.ready()?;
    ready.submit(endless(&ready)?)?;
    same!(ctx.room(&other)?.1, before + 1);
    // The kernel closes a file when its last mapping is gone as well.
    drop(ready);
    ctx.emptied(&other, before)?;
    other.ready()?.still_works()
}

fn hang_beside(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let hanging = client.ready()?;
    let other = client.ready_in(hanging.heap, Kind::Gemm)?;
    let hung = endless(&hanging)?;
    let seq = hanging.submit(hung)?;
    let packet = other.good()?;
    let mut during = 0;
    for _ in 0..10 {
        same!(other.run(packet)?, COMPLETED);
        during += u32::from(hung.state() == NEW);
    }
    ctx.note(format!("{during} of 10 commands completed beside the hang"));
    hanging.wait(seq)?;
    same!(hung.state(), TIMEOUT);
    Ok(())
}

fn hang_unmap(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let hung = endless(&ready)?;
    let bo = ready.client.create_bo(CMD, 4096)?;
    let map = ready.client.map(bo, 4096)?;
    let seq = ready.client.exec(ready.context, hung.handle, &[bo])?;
    ready.client.unmap(map);
    if ctx.sva() {
        same!(hung.state(), TIMEOUT, "it was over before the mapping was gone");
    }
    ready.wait(seq)?;
    ready.recovers()?;
    Ok(())
}

fn hang_race(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let hung = endless(&ready)?;
    let seq = ready.submit(hung)?;
    while hung.state() < COMPLETED {
        std::hint::spin_loop();
    }
    // From here on the driver may still be making the context again.
    let mut tally = [0; 16];
    for _ in 0..20 {
        let packet = ready.good()?;
        let state = ready.run(packet)?;
        hold!([NEW, COMPLETED, ERROR, ABORT, TIMEOUT].contains(&state), "state {state}");
        tally[state as usize] += 1;
    }
    ready.wait(seq)?;
    same!(hung.state(), TIMEOUT);
    ctx.note(format!(
        "of 20 commands {} completed, {} in error, {} aborted, {} timed out, {} not sent",
        tally[4], tally[5], tally[6], tally[8], tally[1]
    ));
    ready.recovers()?;
    ready.still_works()
}

fn hang_data(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let product = super::exec::Product::new(&ready)?;
    product.run(&ready)?;
    same!(ready.run(endless(&ready)?)?, TIMEOUT);
    ready.recovers()?;
    product.run(&ready)?;
    // The heap is the context's again too.
    let stream = in_heap(ready.heap, ready.stream_addr, 16);
    same!(stream.words(0, 4), EMPTY_STREAM);
    let info: query::ResourceInfo = ready.client.get(12)?;
    hold!(info.npu_task_curr > 0, "{info:?}");
    ready.still_works().map_err(|_| Stop::fail("an empty stream, afterwards"))
}
