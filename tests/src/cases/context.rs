//! CREATE_HWCTX, DESTROY_HWCTX, CONFIG_HWCTX.

use amdxdna_ioctl::Errno;
use amdxdna_ioctl::abi::{self, HEAP_BASE, QosInfo, request};
use bytemuck::Zeroable;

use super::Expect::Same;
use super::client::{Client, addr_of, cu_table};
use super::ctx::Ctx;
use super::ready::COMPLETED;
use super::verdict::{Stop, Verdict};

cases! { Context;
    order_of_checks: Same("CREATE_HWCTX: extensions EINVAL, QoS EFAULT, heap ENOENT, tiles EINVAL, in this order");
    created: Same("a context: handle, syncobj, no doorbell, four hidden buffers of 32 KiB in the heap");
    columns: Same("every width from one to eight columns is taken");
    ignored: Same("fields that only user-mode queues have are ignored");
    priorities: Same("every priority is taken, unknown ones too");
    quality_of_service: Same("what the array cannot do is refused: EINVAL");
    slots since 4: Same("as many contexts as the firmware has slots and no more, whoever has them: EINVAL");
    slots_return since 4: Same("a closed client gives its slots back");
    again_and_again: Same("fifty contexts, one after the other");
    destroy: Same("DESTROY_HWCTX: padding, twice, use afterwards EINVAL; its syncobj stays");
    destroy_busy: Same("a context goes with its work done, and the fences of all of it signalled");
    config_cu_arguments: Same("CONFIG_CU: each way to be wrong has its errno, and the 32nd unit is the last");
    config_cu_once: Same("CONFIG_CU happens once: EINVAL");
    config_cu_copies: Same("the table of CONFIG_CU may be changed after the call");
    config_arguments: Same("CONFIG_HWCTX: an unknown parameter EINVAL");
    debug_buffers since 3: Same("debug buffers: DEV alone, once, removed by whom they were given to; each takes a number");
    foreign_handles: Same("a context's id is its client's");
    two_units: Same("a context with two units runs either");
}

fn columns(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let _heap = client.heap()?;
    let qos = QosInfo::zeroed();
    for columns in 1..=8u32 {
        let a = abi::CreateHwctx { qos_p: addr_of(&qos), num_tiles: 4 * columns, ..Zeroable::zeroed() };
        let made = create(&client, a);
        hold!(made.is_ok(), "{columns} columns: {made:?}");
        client.destroy_hwctx(made?.handle)?;
    }
    Ok(())
}

fn ignored(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let _heap = client.heap()?;
    let qos = QosInfo::zeroed();
    let a = abi::CreateHwctx {
        qos_p: addr_of(&qos),
        num_tiles: 32,
        umq_bo: 1234,
        log_buf_bo: 1234,
        mem_size: u32::MAX,
        ..Zeroable::zeroed()
    };
    same!(create(&client, a)?.umq_doorbell, u32::MAX);
    Ok(())
}

fn priorities(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let _heap = client.heap()?;
    for priority in [0, 0x100, 0x180, 0x200, 0x280, 7, u32::MAX] {
        let qos = QosInfo { priority, ..Zeroable::zeroed() };
        let a = abi::CreateHwctx { qos_p: addr_of(&qos), num_tiles: 32, ..Zeroable::zeroed() };
        client.destroy_hwctx(create(&client, a)?.handle)?;
    }
    Ok(())
}

/// Fills the device with contexts of the clients in turn; how many it took.
fn fill(ctx: &Ctx, clients: &[&Client]) -> Result<u32, Stop> {
    let most = ctx.alone(clients[0])? as u32;
    let mut made = 0;
    loop {
        let i = made as usize;
        match clients[i % clients.len()].create_hwctx() {
            Ok((_, syncobj)) => {
                same!(syncobj, 1 + (i / clients.len()) as u32, "syncobj handles count for each client");
                made += 1;
            }
            Err(errno) => {
                same!(errno, Errno::INVAL, "context {}", made + 1);
                hold!(made > 0 && made <= most, "{made} contexts, the driver says {most}");
                return Ok(made);
            }
        }
    }
}

fn slots(ctx: &Ctx) -> Verdict {
    let (client, other) = (ctx.open()?, ctx.open()?);
    let _heaps = (client.heap()?, other.heap()?);
    let slots = fill(ctx, &[&client, &other])?;
    same!((client.create_hwctx(), other.create_hwctx()), (Err(Errno::INVAL), Err(Errno::INVAL)));
    same!(ctx.open()?.create_hwctx(), Err(Errno::NOENT), "no heap comes before no slot");
    same!(ctx.room(&client)?.1, u64::from(slots));
    ctx.note(format!("{slots} contexts"));
    Ok(())
}

fn slots_return(ctx: &Ctx) -> Verdict {
    let (client, other) = (ctx.open()?, ctx.open()?);
    let _heaps = (client.heap()?, other.heap()?);
    let slots = fill(ctx, &[&other])?;
    drop(other);
    same!(fill(ctx, &[&client])?, slots);
    Ok(())
}

fn again_and_again(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let _heap = client.heap()?;
    for _ in 0..50 {
        let (context, _) = client.create_hwctx()?;
        client.destroy_hwctx(context)?;
    }
    same!(client.address(client.dev(4096)?)?, HEAP_BASE, "nothing is left in the heap");
    Ok(())
}

fn destroy_busy(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let packets = [ready.good()?, ready.good()?, ready.good()?, ready.good()?];
    let mut last = 0;
    for packet in packets {
        last = ready.submit(packet)?;
    }
    ready.client.destroy_hwctx(ready.context)?;
    same!(ready.client.wait_points(&[(ready.syncobj, last)], 0, 0), Ok(0), "the fence of the last");
    for packet in packets {
        same!(packet.state(), COMPLETED, "what the firmware had was waited for");
    }
    Ok(())
}

fn config_cu_copies(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let heap = client.heap()?;
    let ready = client.ready_in(heap, runtime::reference::Kind::Gemm)?;
    let (context, syncobj) = client.create_hwctx()?;
    let mut table = cu_table(&[ready.pdi]);
    config(&client, context, &table, table.len() as u32 * 4)?;
    table.fill(u32::MAX);
    let packet = ready.good()?;
    let seq = client.exec(context, packet.handle, &[ready.stream])?;
    client.wait(syncobj, seq)?;
    same!(packet.state(), COMPLETED);
    Ok(())
}

fn two_units(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let ready = client.ready()?;
    let other = client.dev_with(ready.heap, &super::ready::pdi_of(runtime::reference::Kind::Gemm)?)?;
    let (context, syncobj) = client.create_hwctx()?;
    client.config_cu(context, &[ready.pdi, other])?;
    for unit in [0, 1, 0] {
        let mut words = ready.words(ready.stream_addr, 16);
        words[1] = 1 << unit;
        let packet = client.packet(&words)?;
        let seq = client.exec(context, packet.handle, &[ready.stream])?;
        client.wait(syncobj, seq)?;
        same!(packet.state(), COMPLETED, "unit {unit}");
    }
    Ok(())
}

fn create(client: &Client, a: abi::CreateHwctx) -> Result<abi::CreateHwctx, Errno> {
    let mut a = a;
    client.call(request::CREATE_HWCTX, &mut a).map(|()| a)
}

fn order_of_checks(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let qos = QosInfo::zeroed();
    let nothing = abi::CreateHwctx::zeroed();
    // Everything is wrong with the first; each next one has one fault fewer.
    same!(create(&client, abi::CreateHwctx { ext: 1, ..nothing }), Err(Errno::INVAL));
    same!(create(&client, abi::CreateHwctx { ext_flags: 1, ..nothing }), Err(Errno::INVAL));
    same!(create(&client, nothing), Err(Errno::FAULT), "qos_p is null");
    let with_qos = abi::CreateHwctx { qos_p: addr_of(&qos), ..nothing };
    same!(create(&client, with_qos), Err(Errno::NOENT), "no heap, though num_tiles is wrong too");
    let _heap = client.heap()?;
    same!(create(&client, with_qos), Err(Errno::INVAL), "no tiles");
    same!(create(&client, abi::CreateHwctx { num_tiles: 3, ..with_qos }), Err(Errno::INVAL), "no whole column");
    same!(create(&client, abi::CreateHwctx { num_tiles: 36, ..with_qos }), Err(Errno::INVAL), "nine columns");
    hold!(create(&client, abi::CreateHwctx { num_tiles: 35, ..with_qos }).is_ok(), "eight, and three tiles dropped");
    Ok(())
}

fn created(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let _heap = client.heap()?;
    let qos = QosInfo::zeroed();
    let wanted = abi::CreateHwctx { qos_p: addr_of(&qos), num_tiles: 32, max_opc: 2048, ..Zeroable::zeroed() };
    let a = create(&client, wanted)?;
    same!((a.syncobj_handle, a.umq_doorbell), (1, u32::MAX));
    // Newer drivers count for all clients of the device together.
    hold!(a.handle == 1 || ctx.newer() && a.handle > 0, "handle {}", a.handle);
    let pdi = client.dev(4096)?;
    same!(client.address(pdi)?, 0x0402_0000, "behind four buffers of 32 KiB each");
    client.destroy_hwctx(a.handle)?;
    let next = client.dev(4096)?;
    same!(client.address(next)?, 0x0400_0000, "which the context gave back");
    Ok(())
}

fn quality_of_service(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let _heap = client.heap()?;
    let with = |gops, fps, latency| {
        let qos = QosInfo { gops, fps, latency, ..Zeroable::zeroed() };
        create(&client, abi::CreateHwctx { qos_p: addr_of(&qos), num_tiles: 4, ..Zeroable::zeroed() }).map(drop)
    };
    // One column: 4096 operations at 1800 MHz, halved.
    same!(with(122, 30, 0), Ok(()), "2 x 30 x 122 = 7320");
    same!(with(123, 30, 0), Err(Errno::INVAL), "2 x 30 x 123 = 7380 > 7372");
    same!(with(123, 1, 33), Err(Errno::INVAL), "33 ms is 30 frames a second");
    same!(with(123, 0, 2000), Ok(()), "a slow frame counts as one a second");
    Ok(())
}

fn destroy(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let _heap = client.heap()?;
    let (context, syncobj) = client.create_hwctx()?;
    let mut bad = abi::DestroyHwctx { handle: context, pad: 1 };
    same!(client.call(request::DESTROY_HWCTX, &mut bad), Err(Errno::INVAL));
    client.destroy_hwctx(context)?;
    same!(client.destroy_hwctx(context), Err(Errno::INVAL));
    same!(client.exec(context, 1, &[]), Err(Errno::INVAL));
    same!(client.wait_points(&[(syncobj, 0)], 0, 0), Err(Errno::INVAL), "its syncobj lives, without a point");
    Ok(())
}

fn config(client: &Client, context: u32, table: &[u32], size: u32) -> Result<(), Errno> {
    let mut a = abi::ConfigHwctx {
        handle: context,
        param_val: table.as_ptr().addr() as u64,
        param_val_size: size,
        ..Zeroable::zeroed()
    };
    client.call(request::CONFIG_HWCTX, &mut a)
}

fn config_cu_arguments(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let _heap = client.heap()?;
    let (context, _) = client.create_hwctx()?;
    let (pdi, share) = (client.dev(4096)?, client.share(4096)?);
    let good = cu_table(&[pdi]);
    let refused = |table: &[u32]| -> Verdict {
        same!(config(&client, context, table, table.len() as u32 * 4), Err(Errno::INVAL), "{table:x?}");
        Ok(())
    };
    same!(config(&client, context, &good, 4097), Err(Errno::TOOBIG));
    let mut null = abi::ConfigHwctx { handle: context, param_val_size: 16, ..Zeroable::zeroed() };
    same!(client.call(request::CONFIG_HWCTX, &mut null), Err(Errno::FAULT));
    let mut padded = abi::ConfigHwctx { handle: context, pad: 1, ..Zeroable::zeroed() };
    same!(client.call(request::CONFIG_HWCTX, &mut padded), Err(Errno::INVAL));
    refused(&[0, 0, pdi, 0])?;
    refused(&[1 | 1 << 16, 0, pdi, 0])?;
    refused(&[2, 0, pdi, 0])?;
    refused(&cu_table(&[pdi; 33]))?;
    refused(&[1, 0, pdi, 1 << 8])?;
    refused(&[1, 0, share, 0])?;
    refused(&[1, 0, 99, 0])?;
    same!(client.config_cu(context + 100, &[pdi]), Err(Errno::INVAL));
    same!(client.config_cu(context, &[pdi; 32]), Ok(()), "32 are fine, after all these");
    Ok(())
}

fn config_cu_once(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let _heap = client.heap()?;
    let (context, _) = client.create_hwctx()?;
    let pdi = client.dev(4096)?;
    client.config_cu(context, &[pdi])?;
    same!(client.config_cu(context, &[pdi]), Err(Errno::INVAL));
    Ok(())
}

fn config_arguments(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let _heap = client.heap()?;
    let (context, _) = client.create_hwctx()?;
    let mut a = abi::ConfigHwctx { handle: context, param_type: 3, ..Zeroable::zeroed() };
    same!(client.call(request::CONFIG_HWCTX, &mut a), Err(Errno::INVAL));
    Ok(())
}

fn debug_buffers(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let _heap = client.heap()?;
    let (context, _) = client.create_hwctx()?;
    let (dev, share) = (client.dev(4096)?, client.share(4096)?);
    let config = |param_type, bo: u32| {
        let mut a = abi::ConfigHwctx { handle: context, param_type, param_val: u64::from(bo), ..Zeroable::zeroed() };
        client.call(request::CONFIG_HWCTX, &mut a)
    };
    same!(config(1, share), Err(Errno::INVAL));
    same!(config(2, dev), Err(Errno::INVAL), "not assigned");
    same!(config(1, dev), Ok(()));
    same!(config(1, dev), Err(Errno::BUSY));
    same!(config(2, dev), Ok(()));
    let packet = client.packet(&[0])?;
    same!(client.exec(context, packet.handle, &[]), Ok(2), "both took a sequence number");
    client.destroy_hwctx(context)?;
    Ok(())
}

fn foreign_handles(ctx: &Ctx) -> Verdict {
    let (client, other) = (ctx.open()?, ctx.open()?);
    let _heap = client.heap()?;
    let (context, _) = client.create_hwctx()?;
    same!(other.destroy_hwctx(context), Err(Errno::INVAL));
    same!(client.destroy_hwctx(context), Ok(()));
    Ok(())
}
