//! Faults that a device shows when told to: full slots, silence, errors, limits.

use std::os::fd::AsRawFd;

use amdxdna_ioctl::abi::{self, HEAP_CHUNK, drm, query, request};
use amdxdna_ioctl::{Errno, Opener};
use bytemuck::Zeroable;
use npu_model::{AddressMode, DriverVersion, Faults};
use runtime::reference::Kind;

use super::Expect::Same;
use super::client::{HEAP, Pages, SHARE, addr_of};
use super::ctx::{Ctx, client_of};
use super::ready::{COMPLETED, ERROR};
use super::reset::goods;
use super::verdict::Verdict;

cases! { Fault;
    open_fails: Same("an errno of open is given as it is");
    firmware_refused: Same("firmware that the driver does not know leaves no node: ENOENT");
    unplugged: Same("an unplugged device gives ENODEV for everything");
    no_room: Same("firmware without room refuses contexts: EINVAL, and the hidden buffers are given back");
    silent_firmware: Same("silent firmware: ETIME, then ENODEV for all that needs it");
    command_fails: Same("one command of three fails, the others do not");
    memory_ends: Same("memory has an end: ENOMEM, and room again after GEM_CLOSE");
    memlock: Same("user pages count against RLIMIT_MEMLOCK: EPERM without any, ENOMEM past it");
    ids_run_out: Same("context ids run out at 255: EBUSY");
    ids_not_reused: Same("from driver 0.16 on a context's id is not used again at once");
    second_chunk: Same("a second heap chunk needs firmware 6.18: EOPNOTSUPP before");
    turns: Same("contexts take turns on the array; each loads its units once");
    carveout: Same("a carve-out has an end, and SYNC_BO refuses it: EOPNOTSUPP");
    imported_flush: Same("SYNC_BO of an imported buffer: EOPNOTSUPP before driver 0.16");
}

fn open_fails(ctx: &Ctx) -> Verdict {
    let model = ctx.twin(|config| config.faults.open = Some(Errno::ACCESS))?;
    same!(model.open(ctx.node()).map(drop), Err(Errno::ACCESS));
    model.set_faults(Faults::default());
    hold!(model.open(ctx.node()).is_ok());
    Ok(())
}

fn firmware_refused(ctx: &Ctx) -> Verdict {
    for protocol in [(5, 9), (6, 11), (8, 0)] {
        let model = ctx.twin(|config| config.protocol = protocol)?;
        same!(model.open(ctx.node()).map(drop), Err(Errno::NOENT), "{protocol:?}");
    }
    for protocol in [(6, 12), (6, 24), (7, 0)] {
        let model = ctx.twin(|config| config.protocol = protocol)?;
        hold!(model.open(ctx.node()).is_ok(), "{protocol:?}");
    }
    Ok(())
}

fn unplugged(ctx: &Ctx) -> Verdict {
    let model = ctx.twin(|_| ())?;
    let client = client_of(&model);
    model.unplug();
    same!(client.create_bo(SHARE, 4096), Err(Errno::NODEV));
    same!(model.open(ctx.node()).map(drop), Err(Errno::NODEV));
    Ok(())
}

fn no_room(ctx: &Ctx) -> Verdict {
    let model = ctx.twin(|config| config.faults.no_context = true)?;
    let client = client_of(&model);
    let _heap = client.heap()?;
    same!(client.create_hwctx(), Err(Errno::INVAL));
    let dev = client.dev(4096)?;
    same!(client.address(dev)?, 0x0400_0000, "the hidden buffers are given back");
    model.set_faults(Faults::default());
    hold!(client.create_hwctx().is_ok());
    Ok(())
}

fn silent_firmware(ctx: &Ctx) -> Verdict {
    let model = ctx.twin(|config| config.faults.management_silent = true)?;
    let client = client_of(&model);
    let _heap = client.heap()?;
    same!(client.create_hwctx(), Err(Errno::TIME));
    same!(client.create_hwctx(), Err(Errno::NODEV));
    same!(client.get::<query::ResourceInfo>(12), Err(Errno::NODEV));
    Ok(())
}

fn command_fails(ctx: &Ctx) -> Verdict {
    let model = ctx.twin(|config| config.faults.fail_command = Some(1))?;
    let ready = client_of(&model).ready()?;
    let packets = goods::<3>(&ready)?;
    same!(packets.map(|packet| ready.run(packet)), [Ok(COMPLETED), Ok(ERROR), Ok(COMPLETED)]);
    let counts = model.counts();
    same!((counts.packets, counts.commands, counts.failed_commands), (3, 3, 1));
    hold!(model.last_fault().is_some());
    Ok(())
}

fn memory_ends(ctx: &Ctx) -> Verdict {
    let model = ctx.twin(|config| config.faults.memory_limit = Some(10 << 20))?;
    let client = client_of(&model);
    let first = client.create_bo(SHARE, 8 << 20)?;
    same!(client.create_bo(SHARE, 4 << 20), Err(Errno::NOMEM));
    same!(client.create_bo(HEAP, HEAP_CHUNK), Err(Errno::NOMEM));
    client.close(first)?;
    hold!(client.create_bo(SHARE, 4 << 20).is_ok());
    same!(client.create_bo(SHARE, u64::MAX), Err(Errno::NOMEM));
    Ok(())
}

fn memlock(ctx: &Ctx) -> Verdict {
    let pages = Pages::new(8192, true)?;
    for (memlock, expected) in [(0, Err(Errno::PERM)), (4096, Err(Errno::NOMEM)), (8192, Ok(()))] {
        let model = ctx.twin(|config| {
            config.memlock = memlock;
            config.faults.privileged = false;
            config.mode = AddressMode::Sva;
        })?;
        let client = client_of(&model);
        let table = [u64::from(u32::MAX) | 1 << 32, pages.map().addr(), 8192];
        let mut a = abi::CreateBo { vaddr: addr_of(&table), r#type: SHARE, ..Zeroable::zeroed() };
        same!(client.call(request::CREATE_BO, &mut a), expected, "a limit of {memlock} bytes");
    }
    Ok(())
}

fn ids_run_out(ctx: &Ctx) -> Verdict {
    let model = ctx.twin(|config| {
        config.slots = 2000;
        config.driver = DriverVersion::L7_3_4;
    })?;
    let client = client_of(&model);
    let _heap = client.heap()?;
    for id in 1..256 {
        same!(client.create_hwctx()?.0, id);
    }
    same!(client.create_hwctx(), Err(Errno::BUSY));
    Ok(())
}

fn ids_not_reused(ctx: &Ctx) -> Verdict {
    let model = ctx.twin(|config| config.driver = DriverVersion::Aug2026)?;
    let client = client_of(&model);
    let _heap = client.heap()?;
    let (first, _) = client.create_hwctx()?;
    client.destroy_hwctx(first)?;
    same!(client.create_hwctx()?.0, first + 1);
    Ok(())
}

fn second_chunk(ctx: &Ctx) -> Verdict {
    for (protocol, expected) in [((6, 15), Err(Errno::OPNOTSUPP)), ((6, 18), Ok(()))] {
        let model = ctx.twin(|config| config.protocol = protocol)?;
        let client = client_of(&model);
        let room = client.reserve(2 * HEAP_CHUNK as usize)?;
        let heap = client.heap_chunk(room)?;
        let ready = client.ready_in(heap, Kind::Gemv)?;
        client.heap_chunk(room.after(HEAP_CHUNK as usize))?;
        same!(ready.client.dev(4096).map(drop), expected, "a DEV buffer with {protocol:?}");
        same!(ready.client.create_hwctx().map(drop), expected, "a context with {protocol:?}");
    }
    Ok(())
}

fn turns(ctx: &Ctx) -> Verdict {
    let model = ctx.twin(|_| ())?;
    let (a, b) = (client_of(&model).ready()?, client_of(&model).ready()?);
    let (packet_a, packet_b) = (a.good()?, b.good()?);
    for _ in 0..2 {
        same!((a.run(packet_a)?, a.run(packet_a)?, b.run(packet_b)?), (COMPLETED, COMPLETED, COMPLETED));
    }
    let counts = model.counts();
    same!((counts.context_switches, counts.pdi_loads, counts.commands), (3, 2, 6));
    same!(counts.ioctls["EXEC_CMD"], 6);
    same!(counts.opens, 2);
    Ok(())
}

fn carveout(ctx: &Ctx) -> Verdict {
    let model = ctx.twin(|config| config.mode = AddressMode::Carveout(1 << 20))?;
    let client = client_of(&model);
    let bo = client.share(512 << 10)?;
    same!(client.create_bo(SHARE, 1 << 20), Err(Errno::NOMEM));
    let mut sync = abi::SyncBo { handle: bo, size: 4096, ..Zeroable::zeroed() };
    same!(client.call(request::SYNC_BO, &mut sync), Err(Errno::OPNOTSUPP));
    same!(client.create_bo(SHARE, 0), Err(Errno::INVAL));
    Ok(())
}

fn imported_flush(ctx: &Ctx) -> Verdict {
    for (driver, expected) in [(DriverVersion::L7_3_4, Err(Errno::OPNOTSUPP)), (DriverVersion::Aug2026, Ok(()))] {
        let model = ctx.twin(|config| {
            config.driver = driver;
            config.mode = AddressMode::Sva;
        })?;
        let client = client_of(&model);
        let file = rustix::fs::memfd_create("another driver's", rustix::fs::MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&file, 5000)?;
        let mut a = drm::PrimeHandle { handle: 0, flags: 0, fd: file.as_raw_fd() };
        client.call(request::PRIME_FD_TO_HANDLE, &mut a)?;
        client.map(a.handle, 8192)?;
        let mut sync = abi::SyncBo { handle: a.handle, size: 4096, ..Zeroable::zeroed() };
        same!(client.call(request::SYNC_BO, &mut sync), expected, "{driver:?}");
    }
    Ok(())
}
