//! Commands that never end: hang detection, resets, and the end of a context with work in flight.
//!
//! These show the hang on a device of their own, so that nothing else of the table has to wait for it. The cases of
//! `hang` need no such device.

use amdxdna_ioctl::Errno;
use amdxdna_ioctl::abi::{drm, request};
use bytemuck::Zeroable;
use npu_model::Faults;

use super::Expect::Same;
use super::ctx::{Ctx, client_of};
use super::ready::{ABORT, CMD_CHAIN, COMPLETED, NEW, Packet, Ready, TIMEOUT, header};
use super::verdict::{Stop, Verdict};

cases! { Fault;
    takes_the_queue_along: Same("a hang: TIMEOUT for the command, ABORT for those behind it, then the context runs again");
    refused_behind_hang: Same("a packet behind a hang that the driver would have refused stays NEW");
    hang_in_chain: Same("a hang in a chain: error_index, and the health record in the chain's first packet");
    no_health_record: Same("firmware before 6.18 leaves all ones where the health record would be");
    fifth_blocks: Same("the fifth command blocks; a signal there, or in a wait, gives EINTR");
    fifth_goes: Same("a blocked fifth command goes when there is room");
    point_zero: Same("point 0 waits for everything submitted");
    destroy_aborts: Same("DESTROY_HWCTX aborts what hangs, and signals its fences");
    close_aborts: Same("closing the file with work in flight ends it: ABORT, and nothing is left alive");
    munmap_waits: Same("munmap waits for the commands of a buffer");
    fence_handed_on: Same("a fence moved to another syncobj signals when its command times out");
    busy_hides_hang: Same("a busy context hides another one's hang");
}

/// The health record of a command that never said where it is.
pub(super) const HEALTH: [u32; 8] = [1, 0, u32::MAX, 0, 0, 0, 0, 0];

pub(super) fn goods<const N: usize>(ready: &Ready) -> Result<[Packet; N], Stop> {
    let packets = (0..N).map(|_| ready.good()).collect::<Result<Vec<_>, _>>()?;
    packets.try_into().map_err(|_| Stop::fail("packets"))
}

fn takes_the_queue_along(ctx: &Ctx) -> Verdict {
    // A timer long enough for the other two to be queued before it fires, however busy the machine.
    let model = ctx.twin(|config| {
        config.protocol = (6, 18);
        config.faults.hang_command = Some(1);
        config.tdr_ms = 2000;
    })?;
    let ready = client_of(&model).ready()?;
    let packets = goods::<4>(&ready)?;
    for packet in packets {
        ready.submit(packet)?;
    }
    ready.wait(3)?;
    same!(packets.map(|packet| packet.state()), [COMPLETED, TIMEOUT, ABORT, ABORT]);
    same!(packets[1].map.words(1, 8), HEALTH);
    same!(packets[1].map.words(9, 100), vec![u32::MAX; 100]);
    same!(packets[2].map.words(1, 100), vec![u32::MAX; 100]);
    let next = ready.good()?;
    same!(ready.submit(next)?, 4, "numbers go on");
    ready.wait(4)?;
    same!(next.state(), COMPLETED, "on a new context, with its unit");
    let counts = model.counts();
    same!((counts.resets, counts.contexts_created, counts.contexts_destroyed), (1, 2, 1));
    Ok(())
}

fn refused_behind_hang(ctx: &Ctx) -> Verdict {
    let model = ctx.twin(|config| config.faults.hang_command = Some(0))?;
    let ready = client_of(&model).ready()?;
    let (hung, bad) = (ready.good()?, ready.client.packet(&[header(18, 4), 1])?);
    ready.submit(hung)?;
    ready.submit(bad)?;
    ready.wait(1)?;
    same!((hung.state(), bad.state(), bad.map.word(1)), (TIMEOUT, NEW, 1));
    Ok(())
}

fn hang_in_chain(ctx: &Ctx) -> Verdict {
    let model = ctx.twin(|config| {
        config.protocol = (6, 18);
        config.faults.hang_command = Some(2);
    })?;
    let ready = client_of(&model).ready()?;
    let packets = goods::<4>(&ready)?;
    let mut words = vec![header(CMD_CHAIN, 14), 4, 0, 0, 0, 0, 0];
    words.extend(packets.iter().flat_map(|packet| [packet.handle, 0]));
    let chain = ready.client.packet(&words)?;
    same!(ready.run(chain)?, TIMEOUT);
    same!(chain.map.word(3), 2);
    same!(packets[0].map.words(1, 8), HEALTH);
    same!(packets[2].map.word(2), 3);
    Ok(())
}

fn no_health_record(ctx: &Ctx) -> Verdict {
    let model = ctx.twin(|config| {
        config.faults.hang_command = Some(0);
        config.protocol = (6, 15);
    })?;
    let ready = client_of(&model).ready()?;
    let packet = ready.good()?;
    same!(ready.run(packet)?, TIMEOUT);
    same!(packet.map.words(1, 8), [u32::MAX; 8]);
    Ok(())
}

fn fifth_blocks(ctx: &Ctx) -> Verdict {
    let model = ctx.twin(|config| {
        config.faults.hang_command = Some(0);
        config.tdr_ms = 0;
    })?;
    let ready = client_of(&model).ready()?;
    let packets = goods::<5>(&ready)?;
    for packet in &packets[..4] {
        ready.submit(*packet)?;
    }
    let hanging = Faults { interrupt_every: Some(1), ..Faults::default() };
    model.set_faults(hanging);
    let fifth = || ready.client.exec(ready.context, packets[4].handle, &[]);
    same!(fifth(), Err(Errno::INTR), "a signal where it would block");
    same!(ready.client.wait_points(&[(ready.syncobj, 0)], 0, i64::MAX), Err(Errno::INTR));
    model.set_faults(Faults::default());
    same!(ready.client.wait_points(&[(ready.syncobj, 3)], 0, 0), Err(Errno::TIME));
    ready.client.destroy_hwctx(ready.context)?;
    same!(fifth(), Err(Errno::INVAL));
    Ok(())
}

fn fifth_goes(ctx: &Ctx) -> Verdict {
    let model = ctx.twin(|config| config.faults.hang_command = Some(0))?;
    let ready = client_of(&model).ready()?;
    let packets = goods::<5>(&ready)?;
    for packet in packets {
        ready.submit(packet)?;
    }
    ready.wait(4)?;
    same!(packets[4].state(), COMPLETED, "it came after the reset");
    Ok(())
}

fn point_zero(ctx: &Ctx) -> Verdict {
    let model = ctx.twin(|config| {
        config.faults.hang_command = Some(1);
        config.tdr_ms = 0;
    })?;
    let ready = client_of(&model).ready()?;
    let (first, hung) = (ready.good()?, ready.good()?);
    ready.run(first)?;
    same!(ready.client.wait_points(&[(ready.syncobj, 0)], 0, 0), Ok(0), "it is all there is");
    ready.submit(hung)?;
    same!(ready.client.wait_points(&[(ready.syncobj, 0)], 0, 0), Err(Errno::TIME), "now the head is another");
    same!(first.state(), COMPLETED, "the packet tells");
    // Without hang detection, unmapping would wait for ever.
    ready.client.destroy_hwctx(ready.context)?;
    Ok(())
}

fn destroy_aborts(ctx: &Ctx) -> Verdict {
    let model = ctx.twin(|config| {
        config.faults.hang_command = Some(0);
        config.tdr_ms = 0;
    })?;
    let ready = client_of(&model).ready()?;
    let packets = goods::<3>(&ready)?;
    for packet in packets {
        ready.submit(packet)?;
    }
    ready.client.destroy_hwctx(ready.context)?;
    same!(packets.map(|packet| packet.state()), [ABORT; 3]);
    same!(packets[2].map.word(1), u32::MAX);
    same!(ready.client.wait_points(&[(ready.syncobj, 2)], 0, 0), Ok(0), "its points are signalled");
    Ok(())
}

fn close_aborts(ctx: &Ctx) -> Verdict {
    let model = ctx.twin(|config| {
        config.faults.hang_command = Some(1);
        config.tdr_ms = 0;
    })?;
    let ready = client_of(&model).ready()?;
    let packets = goods::<3>(&ready)?;
    for packet in packets {
        ready.submit(packet)?;
    }
    let Ready { client, .. } = ready;
    let left = client.close_file();
    same!(packets.map(|packet| packet.state()), [COMPLETED, ABORT, ABORT], "mappings outlive the file");
    drop(left);
    let counts = model.counts();
    same!((counts.buffers_live, counts.bytes_live, counts.contexts_destroyed), (0, 0, 1));
    Ok(())
}

fn munmap_waits(ctx: &Ctx) -> Verdict {
    let model = ctx.twin(|config| config.faults.hang_command = Some(0))?;
    let ready = client_of(&model).ready()?;
    let packet = ready.good()?;
    let bo = ready.client.share(4096)?;
    let map = ready.client.map(bo, 4096)?;
    ready.client.exec(ready.context, packet.handle, &[bo])?;
    ready.client.unmap(map);
    same!(packet.state(), TIMEOUT, "it is over");
    Ok(())
}

fn fence_handed_on(ctx: &Ctx) -> Verdict {
    let model = ctx.twin(|config| config.faults.hang_command = Some(0))?;
    let ready = client_of(&model).ready()?;
    let client = &ready.client;
    let mut mine = drm::SyncobjCreate::zeroed();
    client.call(request::SYNCOBJ_CREATE, &mut mine)?;
    let packet = ready.good()?;
    ready.submit(packet)?;
    let mut transfer = drm::SyncobjTransfer {
        src_handle: ready.syncobj,
        dst_handle: mine.handle,
        src_point: 0,
        dst_point: 7,
        ..Zeroable::zeroed()
    };
    client.call(request::SYNCOBJ_TRANSFER, &mut transfer)?;
    same!(client.wait_points(&[(mine.handle, 7)], 4, 0), Ok(0), "it has a fence");
    client.wait(mine.handle, 7)?;
    same!(packet.state(), TIMEOUT);
    Ok(())
}

fn busy_hides_hang(ctx: &Ctx) -> Verdict {
    use std::time::{Duration, Instant};
    // A timer so long that the busy context's thread gets its turn within it on any machine.
    let model = ctx.twin(|config| {
        config.faults.hang_command = Some(0);
        config.tdr_ms = 1000;
    })?;
    let (hanging, busy) = (client_of(&model).ready()?, client_of(&model).ready()?);
    let hung = hanging.good()?;
    hanging.submit(hung)?;
    while model.counts().commands == 0 {
        std::thread::yield_now();
    }
    let packet = busy.good()?;
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(1500) {
        same!(busy.run(packet)?, COMPLETED);
        same!(hung.state(), NEW, "one and a half timeouts, and the driver sees a device at work");
    }
    hanging.wait(0)?;
    same!(hung.state(), TIMEOUT);
    Ok(())
}
