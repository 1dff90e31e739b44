//! Command chains.

use amdxdna_ioctl::Errno;

use super::Expect::Same;
use super::ctx::Ctx;
use super::exec::{all_ones, expect_untouched};
use super::ready::{CMD_CHAIN, COMPLETED, ERROR, NEW, Packet, Ready, START_NPU, header};
use super::verdict::Verdict;

cases! { Chain;
    one: Same("a chain of one command completes");
    completes: Same("a chain completes and leaves its packets alone");
    order: Same("a chain of 24 with one bad command last runs the 23 before it");
    start_npu: Same("a chain of START_NPU commands completes");
    error: Same("a chain stops at its first error: error_index, all ones in its first packet alone");
    first_error: Same("an error in the first command: error_index 0");
    refused: Same("a chain that the driver refuses stays NEW");
    mixed: Same("START_CU and START_NPU in one chain: NEW");
    nested: Same("a chain in a chain: NEW");
    length: Same("36 IRON commands fit, 61 do not in any layout");
    thirty_seven: Same("37 IRON commands: one too many for the slots of firmware 6.15 and newer");
    same_packet: Same("one packet may stand in a chain many times");
    closed_packet: Same("a packet closed before its chain ran: NEW, or done before it was gone");
    after_error: Same("after an error a rebuilt chain runs");
    between: Same("chains and single commands take turns in order");
    many_in_flight: Same("four chains in flight, all complete");
}

fn chain_of(ready: &Ready, handles: &[u32]) -> Result<Packet, Errno> {
    ready.client.packet(&chain_words(handles))
}

/// Good packets.
fn goods(ready: &Ready, n: usize) -> Result<Vec<Packet>, Errno> {
    (0..n).map(|_| ready.good()).collect()
}

fn handles(packets: &[Packet]) -> Vec<u32> {
    packets.iter().map(|packet| packet.handle).collect()
}

fn one(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let chain = chain_of(&ready, &handles(&goods(&ready, 1)?))?;
    same!(ready.run(chain)?, COMPLETED);
    Ok(())
}

fn order(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let mut packets = goods(&ready, 23)?;
    packets.push(ready.client.packet(&ready.words(0x0700_0000, 16))?);
    let chain = chain_of(&ready, &handles(&packets))?;
    same!(ready.run(chain)?, ERROR);
    same!(chain.map.word(3), 23, "error_index");
    Ok(())
}

fn npu_words(ready: &Ready) -> [u32; 6] {
    [header(START_NPU, 5), 1, ready.stream_addr as u32, (ready.stream_addr >> 32) as u32, 16, 0]
}

fn start_npu(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let packets = [ready.client.packet(&npu_words(&ready))?, ready.client.packet(&npu_words(&ready))?];
    let chain = chain_of(&ready, &handles(&packets))?;
    same!(ready.run(chain)?, COMPLETED);
    Ok(())
}

fn first_error(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let bad = ready.client.packet(&ready.words(0x0700_0000, 16))?;
    let chain = chain_of(&ready, &[bad.handle, ready.good()?.handle])?;
    chain.map.set_word(3, 9);
    same!(ready.run(chain)?, ERROR);
    same!(chain.map.word(3), 0, "error_index");
    all_ones(bad, 1)
}

fn mixed(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let (cu, npu) = (ready.good()?, ready.client.packet(&npu_words(&ready))?);
    expect_untouched(&ready, &[chain_words(&[cu.handle, npu.handle]), chain_words(&[npu.handle, cu.handle])])
}

fn nested(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let inner = chain_of(&ready, &[ready.good()?.handle])?;
    expect_untouched(&ready, &[chain_words(&[inner.handle]), chain_words(&[inner.handle, inner.handle])])
}

fn thirty_seven(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let packet = ready.good()?;
    let chain = chain_of(&ready, &[packet.handle; 37])?;
    let state = ready.run(chain)?;
    // 68 bytes a slot before 6.15, where 60 fit.
    let older = ctx.in_process().is_some_and(|config| config.protocol < (6, 15));
    hold!(state == NEW || state == COMPLETED && (older || ctx.in_process().is_none()), "state {state}");
    ctx.note(format!("37 commands: state {state}"));
    Ok(())
}

fn same_packet(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let packet = ready.good()?;
    let chain = chain_of(&ready, &[packet.handle; 24])?;
    same!(ready.run(chain)?, COMPLETED);
    same!(packet.state(), NEW);
    Ok(())
}

fn closed_packet(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    for _ in 0..8 {
        let packets = goods(&ready, 2)?;
        let chain = chain_of(&ready, &handles(&packets))?;
        let seq = ready.submit(chain)?;
        ready.client.close(packets[1].handle)?;
        ready.wait(seq)?;
        hold!([NEW, COMPLETED].contains(&chain.state()), "state {}", chain.state());
    }
    let closed = ready.good()?;
    ready.client.close(closed.handle)?;
    expect_untouched(&ready, &[chain_words(&[closed.handle])])?;
    ready.still_works()
}

fn after_error(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let packets = goods(&ready, 3)?;
    let words = chain_words(&handles(&packets));
    let chain = ready.client.packet(&words)?;
    for _ in 0..3 {
        packets[2].map.set_words(&ready.words(0x0700_0000, 16));
        same!(ready.run(chain)?, ERROR);
        packets.iter().for_each(|packet| ready.rebuild(*packet));
        chain.map.set_words(&words);
        same!(ready.run(chain)?, COMPLETED);
    }
    Ok(())
}

fn between(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let parts = goods(&ready, 3)?;
    let chain = chain_of(&ready, &handles(&parts))?;
    let single = ready.good()?;
    let mut last = 0;
    for _ in 0..10 {
        last = ready.submit(chain)?;
        same!(ready.submit(single)?, last + 1);
        ready.wait(last + 1)?;
        same!((chain.state(), single.state()), (COMPLETED, COMPLETED));
    }
    same!(last, 18, "a chain takes one number");
    Ok(())
}

fn many_in_flight(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let parts = goods(&ready, 24)?;
    let chains = (0..4).map(|_| chain_of(&ready, &handles(&parts))).collect::<Result<Vec<_>, _>>()?;
    for _ in 0..5 {
        let mut last = 0;
        for chain in &chains {
            last = ready.submit(*chain)?;
        }
        ready.wait(last)?;
        for chain in &chains {
            same!(chain.state(), COMPLETED);
        }
    }
    Ok(())
}

/// A chain of the given packets.
fn chain_words(packets: &[u32]) -> Vec<u32> {
    let n = packets.len() as u32;
    let mut words = vec![header(CMD_CHAIN, 6 + 2 * n), n, 0, 0, 0, 0, 0];
    words.extend(packets.iter().flat_map(|&handle| [handle, 0]));
    words
}

fn completes(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let packets = [ready.good()?, ready.good()?, ready.good()?];
    let chain = ready.client.packet(&chain_words(&packets.map(|packet| packet.handle)))?;
    let before = packets[1].map.words(0, 17);
    same!(ready.run(chain)?, COMPLETED);
    same!(packets[1].map.words(0, 17), before, "a chain's packets keep their state");
    Ok(())
}

fn error(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let bad = ready.client.packet(&ready.words(0x0700_0000, 16))?;
    let packets = [ready.good()?, ready.good()?, bad, ready.good()?];
    let chain = ready.client.packet(&chain_words(&packets.map(|packet| packet.handle)))?;
    same!(ready.run(chain)?, ERROR);
    same!(chain.map.word(3), 2, "error_index");
    same!(chain.map.word(1), 4, "the rest of the chain packet stays");
    all_ones(packets[0], 1)?;
    same!(packets[0].state(), NEW, "its header stays");
    same!(bad.map.word(2), 3, "the one that failed is not touched");
    Ok(())
}

fn refused(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let one = ready.good()?;
    let mut short = chain_words(&[one.handle, one.handle]);
    short[0] = header(CMD_CHAIN, 8);
    expect_untouched(
        &ready,
        &[chain_words(&[]), chain_words(&[one.handle, 500]), chain_words(&[one.handle, ready.pdi]), short],
    )?;
    Ok(())
}

fn length(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let packet = ready.good()?;
    // 112 bytes a slot; 68 in the older layout, where 60 would fit.
    let chain = ready.client.packet(&chain_words(&[packet.handle; 36]))?;
    same!(ready.run(chain)?, COMPLETED);
    chain.map.set_words(&chain_words(&[packet.handle; 61]));
    same!(ready.run(chain)?, NEW);
    Ok(())
}
