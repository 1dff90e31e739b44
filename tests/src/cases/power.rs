//! Power: modes, clocks, suspend and resume.

use std::time::Duration;

use amdxdna_ioctl::Errno;
use amdxdna_ioctl::abi::{self, query, request};
use npu_model::DriverVersion;

use super::Expect::Same;
use super::client::{Client, addr_of};
use super::ctx::{Ctx, client_of};
use super::ready::{COMPLETED, ERROR};
use super::verdict::{Stop, Verdict};

cases! { Power;
    default_mode: Same("nobody has set a power mode: 0, and a clock of at least the lowest level");
    levels: Same("clocks are a pair of the part's table");
    root_sets_mode: Same("POWER_MODE as root: range, padding, turbo with a live context EINVAL; clocks follow");
    modes danger true: Same("POWER_MODE 0 to 3 are taken and read back; clocks do not fall from low to high");
    preempt danger true: Same("FORCE_PREEMPT and FRAME_BOUNDARY_PREEMPT are taken and read back; 2 is EINVAL");
    suspend_keeps: Same("a context survives suspend and resume, with its numbers and buffers");
    suspend_loses_pdi: Same("a PDI whose buffer was closed is lost by suspend before driver 0.16");
    autosuspend danger true: Same("seven idle seconds, in which the device may suspend, and the context runs again");
    autosuspend_query danger true: Same("seven idle seconds, and a query wakes the device");
}

/// MP-NPU and H clock of each level (`npu4_regs.c`).
const LEVELS: [(u32, u32); 7] =
    [(396, 792), (600, 1056), (792, 1152), (975, 1267), (1056, 1408), (1152, 1584), (1267, 1800)];

fn clocks(client: &Client) -> Result<(u32, u32), Errno> {
    let clocks: query::QueryClockMetadata = client.get(3)?;
    Ok((clocks.mp_npu_clock.freq_mhz, clocks.h_clock.freq_mhz))
}

fn set(client: &Client, param: u32, value: u64) -> Result<(), Errno> {
    let mut a = abi::SetState { param, buffer_size: 8, buffer: addr_of(&value) };
    client.call(request::SET_STATE, &mut a)
}

fn mode(client: &Client) -> Result<u8, Errno> {
    Ok(client.get::<query::GetPowerMode>(9)?.power_mode)
}

fn default_mode(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    match mode(&client)? {
        0 => {}
        other => return Err(Stop::skip(format!("power mode {other} is set"))),
    }
    hold!(clocks(&client)?.1 >= LEVELS[0].1, "{:?}", clocks(&client)?);
    Ok(())
}

fn levels(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let pair = clocks(&ready.client)?;
    hold!(LEVELS.contains(&pair), "{pair:?} is no level");
    ctx.note(format!("{} / {} MHz with a context", pair.0, pair.1));
    Ok(())
}

fn root_sets_mode(ctx: &Ctx) -> Verdict {
    let model = ctx.twin(|config| {
        config.faults.privileged = true;
        config.driver = DriverVersion::L7_3_4;
    })?;
    let client = client_of(&model);
    same!(set(&client, 0, 5), Err(Errno::INVAL));
    same!(set(&client, 0, 1 | 1 << 8), Err(Errno::INVAL));
    same!(set(&client, 1, 0), Err(Errno::OPNOTSUPP));
    same!(set(&client, 3, 2), Err(Errno::INVAL));
    same!(set(&client, 0, 1), Ok(()));
    same!(clocks(&client), Ok((396, 792)));
    let _heap = client.heap()?;
    client.create_hwctx()?;
    same!(set(&client, 0, 4), Err(Errno::INVAL), "no turbo with a live context");
    same!(set(&client, 0, 3), Ok(()));
    Ok(())
}

/// Skips the case where SET_STATE is not for us, or where somebody works.
fn may_set(ctx: &Ctx, client: &Client) -> Verdict {
    ctx.alone(client)?;
    match set(client, 0, u64::from(mode(client)?)) {
        Err(Errno::ACCESS) => Err(Stop::skip("SET_STATE is for root")),
        result => Ok(result?),
    }
}

fn modes(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    may_set(ctx, &client)?;
    let before = mode(&client)?;
    let result = (|| -> Verdict {
        let mut last = 0;
        for value in 1..4 {
            same!(set(&client, 0, value), Ok(()), "mode {value}");
            same!(u64::from(mode(&client)?), value);
            let (_, h) = clocks(&client)?;
            hold!(h >= last, "mode {value}: {h} MHz after {last}");
            last = h;
        }
        same!(set(&client, 0, 5), Err(Errno::INVAL));
        Ok(())
    })();
    set(&client, 0, u64::from(before))?;
    result
}

fn preempt(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    may_set(ctx, &client)?;
    for (write, read) in [(3, 11), (4, 13)] {
        let before: u64 = client.get(read)?;
        let result = (|| -> Verdict {
            for value in [1, 0] {
                match set(&client, write, value) {
                    Err(Errno::OPNOTSUPP) => return Err(Stop::skip("the firmware has no preemption")),
                    done => same!(done, Ok(())),
                }
                same!(client.get::<u64>(read)?, value);
            }
            same!(set(&client, write, 2), Err(Errno::INVAL));
            Ok(())
        })();
        let _ = set(&client, write, before & 1);
        result?;
    }
    Ok(())
}

fn suspend_keeps(ctx: &Ctx) -> Verdict {
    let model = ctx.twin(|_| ())?;
    let ready = client_of(&model).ready()?;
    let packet = ready.good()?;
    for seq in 0..4 {
        same!(ready.submit(packet)?, seq);
        ready.wait(seq)?;
        same!(packet.state(), COMPLETED);
        model.suspend();
    }
    Ok(())
}

fn suspend_loses_pdi(ctx: &Ctx) -> Verdict {
    for (driver, close, state) in [
        (DriverVersion::L7_3_4, false, COMPLETED),
        (DriverVersion::L7_3_4, true, ERROR),
        (DriverVersion::Aug2026, true, COMPLETED),
    ] {
        let model = ctx.twin(|config| config.driver = driver)?;
        let ready = client_of(&model).ready()?;
        let packet = ready.good()?;
        same!(ready.run(packet)?, COMPLETED);
        if close {
            ready.client.close(ready.pdi)?;
        }
        model.suspend();
        same!(ready.run(packet)?, state, "{driver:?}, closed: {close}");
    }
    Ok(())
}

/// Longer than the five seconds after which an idle device suspends.
const IDLE: Duration = Duration::from_secs(7);

fn idles(ctx: &Ctx) -> Verdict {
    if ctx.in_process().is_some() {
        return Err(Stop::skip("the software NPU does not suspend by itself"));
    }
    std::thread::sleep(IDLE);
    Ok(())
}

fn autosuspend(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let packet = ready.good()?;
    for seq in 0..2 {
        same!(ready.submit(packet)?, seq);
        ready.wait(seq)?;
        same!(packet.state(), COMPLETED);
        idles(ctx)?;
    }
    ready.still_works()
}

fn autosuspend_query(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    client.get::<query::ResourceInfo>(12)?;
    idles(ctx)?;
    client.get::<query::ResourceInfo>(12)?;
    Ok(())
}
