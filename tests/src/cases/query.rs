//! GET_INFO and GET_ARRAY.

use amdxdna_ioctl::Errno;
use amdxdna_ioctl::abi::{GetArray, GetInfo, query, request};
use bytemuck::Zeroable;

use super::Expect::Same;
use super::client::{CMD, Client};
use super::ctx::Ctx;
use super::verdict::{Stop, Verdict};

cases! { Query;
    metadata: Same("the array of an NPU4 to NPU6: 8 columns of 6 rows, shim, memory tile, four of cores");
    aie_version: Same("AIE_VERSION and the metadata name an array");
    aie_status: Same("AIE_STATUS fills the inner buffer and gives a bitmap of columns in use");
    firmware_version: Same("the firmware's version is not 0.0.0.0");
    short_buffer: Same("a short buffer gets the first part, without an error; a bad pointer EFAULT");
    empty_buffer: Same("a buffer of no bytes is left alone");
    long_buffer: Same("a buffer longer than the answer keeps its rest");
    unknown: Same("unknown parameters give EOPNOTSUPP");
    unknown_first: Same("an unknown parameter with a bad pointer gives EOPNOTSUPP");
    resources since 4: Same("RESOURCE_INFO counts the contexts of all clients");
    resources_clock since 4: Same("clocks and TOPS of RESOURCE_INFO belong together");
    contexts: Same("HW_CONTEXTS: the size comes back as what is left; columns, pid and counts of each");
    clocks: Same("two clocks with their names; power mode default");
    sensors: Same("SENSORS: entries and their bytes, or an errno where nothing can be sensed");
    preemption since 6: Same("both preemption states are 0 or 1");
    telemetry since 5: Same("telemetry: a header-only buffer and unknown kinds EINVAL, else a map entry a slot");
    array_arguments since 1: Same("GET_ARRAY: padding, empty and oversized elements EINVAL, unknown parameters EOPNOTSUPP");
    array_contexts since 1: Same("HW_CONTEXT_ALL: as many as there are, elements cut to the size asked for");
    array_more since 1: Same("HW_CONTEXT_ALL with little room is silently cut");
    array_counts since 1: Same("HW_CONTEXT_ALL counts submissions and completions");
    array_quality since 1: Same("HW_CONTEXT_ALL repeats the quality of service that was asked for");
    async_error since 2: Same("LAST_ASYNC_ERR is readable, from many threads too");
    usage since 8: Same("BO_USAGE by process: all, internal, in the heap; process 0 EINVAL");
    usage_falls since 8: Same("BO_USAGE falls when buffers go");
    nothing_wakes_up_wrong: Same("a thousand queries in a row all succeed");
}

fn aie_version(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let version: query::QueryAieVersion = client.get(2)?;
    let array: query::QueryAieMetadata = client.get(1)?;
    hold!(version.major > 0 && array.version.major > 0, "{version:?}, {:?}", array.version);
    Ok(())
}

fn aie_status(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let array: query::QueryAieMetadata = ready.client.get(1)?;
    let mut inner = vec![0u64; (array.col_size as usize * usize::from(array.cols)).div_ceil(8).max(1)];
    let mut status = query::QueryAieStatus {
        buffer: inner.as_mut_ptr().addr() as u64,
        buffer_size: inner.len() as u32 * 8,
        cols_filled: 0,
    };
    let buffer = std::ptr::from_mut(&mut status).addr() as u64;
    let mut a = GetInfo { param: 0, buffer_size: size_of_val(&status) as u32, buffer };
    ready.client.call(request::GET_INFO, &mut a)?;
    same!(status.cols_filled, 0xff, "all eight columns belong to the context");
    Ok(())
}

fn firmware_version(ctx: &Ctx) -> Verdict {
    let version: query::QueryFirmwareVersion = ctx.open()?.get(8)?;
    hold!(version != Zeroable::zeroed(), "{version:?}");
    Ok(())
}

fn empty_buffer(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let mut words = [7u32; 2];
    let mut a = GetInfo { param: 1, buffer_size: 0, buffer: words.as_mut_ptr().addr() as u64 };
    client.call(request::GET_INFO, &mut a)?;
    same!(words, [7; 2]);
    Ok(())
}

fn long_buffer(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let mut words = [u32::MAX; 8];
    let mut a = GetInfo { param: 2, buffer_size: 32, buffer: words.as_mut_ptr().addr() as u64 };
    client.call(request::GET_INFO, &mut a)?;
    hold!(words[0] != u32::MAX, "the answer is there");
    same!(words[2..], [u32::MAX; 6]);
    Ok(())
}

fn unknown_first(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let mut a = GetInfo { param: 99, buffer_size: 64, buffer: 8 };
    same!(client.call(request::GET_INFO, &mut a), Err(Errno::OPNOTSUPP));
    Ok(())
}

fn resources_clock(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let info: query::ResourceInfo = client.get(12)?;
    let array: query::QueryAieMetadata = client.get(1)?;
    // 4096 operations a column and cycle.
    same!(info.npu_tops_max, 4096 * u64::from(array.cols) * info.npu_clk_max / 1_000_000);
    hold!(info.npu_tops_curr <= info.npu_tops_max, "{info:?}");
    Ok(())
}

fn sensors(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let mut bytes = [0u64; 21 * 32];
    let whole = size_of_val(&bytes) as u32;
    let mut a = GetInfo { param: 4, buffer_size: whole, buffer: bytes.as_mut_ptr().addr() as u64 };
    match client.call(request::GET_INFO, &mut a) {
        Ok(()) => hold!(a.buffer_size.is_multiple_of(168) && a.buffer_size <= whole, "{} bytes", a.buffer_size),
        // Without the platform's power driver.
        Err(Errno::OPNOTSUPP | Errno::NODEV) => ctx.note("no sensors".into()),
        Err(other) => return Err(other.into()),
    }
    Ok(())
}

fn preemption(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    for param in [11, 13] {
        let state: u64 = client.get(param)?;
        hold!(state <= 1, "parameter {param} is {state:#x}");
    }
    Ok(())
}

fn array_more(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let _heap = client.heap()?;
    client.create_hwctx()?;
    client.create_hwctx()?;
    let mut words = [u32::MAX; 80];
    let at = words.as_mut_ptr().addr() as u64;
    let a = array(&client, 0, 160, 1, at)?;
    hold!(a.element_size == 144 || a.element_size == 160, "{a:?}");
    same!(a.num_element, 1);
    same!(words[a.element_size as usize / 4], u32::MAX, "nothing behind the first");
    Ok(())
}

/// The entry of a context.
fn entry(client: &Client, context: u32) -> Result<[u32; 36], Stop> {
    let mut words = [0u32; 36 * 32];
    let a = array(client, 0, 144, 32, words.as_mut_ptr().addr() as u64)?;
    let pid = std::process::id();
    let mine = |entry: &&[u32; 36]| entry[0] == context && entry[4] == pid;
    let entries = words.as_chunks().0;
    entries.iter().take(a.num_element as usize).find(mine).copied().ok_or_else(|| Stop::fail("context not listed"))
}

fn array_counts(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let packet = ready.good()?;
    for _ in 0..3 {
        ready.run(packet)?;
    }
    let entry = entry(&ready.client, ready.context)?;
    same!((entry[1], entry[2]), (0, 8), "start column, columns");
    same!((entry[6], entry[8]), (3, 3), "submissions, completions");
    Ok(())
}

fn array_quality(ctx: &Ctx) -> Verdict {
    use amdxdna_ioctl::abi::{CreateHwctx, QosInfo};
    let client = ctx.open()?;
    let _heap = client.heap()?;
    let qos = QosInfo { gops: 10, fps: 20, dma_bandwidth: 30, latency: 40, frame_exec_time: 50, priority: 0x180 };
    let at = super::client::addr_of(&qos);
    let mut a = CreateHwctx { qos_p: at, max_opc: 2048, num_tiles: 32, ..Zeroable::zeroed() };
    client.call(request::CREATE_HWCTX, &mut a)?;
    let entry = entry(&client, a.handle)?;
    same!(entry[24..29], [10, 20, 30, 40, 50]);
    same!(entry[16], 0x180, "priority");
    Ok(())
}

fn async_error(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let ask = || {
        let mut error = [0u64; 3];
        array(&client, 2, 24, 1, error.as_mut_ptr().addr() as u64).map(drop)
    };
    let failed = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| (0..50).find_map(|_| ask().err()))).collect();
        threads.into_iter().find_map(|thread| thread.join().unwrap_or(Some(Errno::IO)))
    });
    same!(failed, None);
    Ok(())
}

fn usage_falls(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let ask = || {
        let mut usage = query::BoUsage { pid: i64::from(std::process::id()), ..Zeroable::zeroed() };
        let at = std::ptr::from_mut(&mut usage).addr() as u64;
        array(&client, 6, 32, 1, at).map(|_| usage.total_usage)
    };
    let before = ask()?;
    let bo = client.share(1 << 20)?;
    same!(ask()?, before + (1 << 20));
    client.close(bo)?;
    same!(ask()?, before);
    Ok(())
}

fn nothing_wakes_up_wrong(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    for _ in 0..250 {
        client.get::<query::QueryAieMetadata>(1)?;
        client.get::<query::QueryClockMetadata>(3)?;
        client.get::<query::GetPowerMode>(9)?;
        client.get::<query::ResourceInfo>(12)?;
    }
    Ok(())
}

fn metadata(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let array: query::QueryAieMetadata = client.get(1)?;
    same!((array.cols, array.rows), (8, 6));
    same!((array.core.row_count, array.core.row_start), (4, 2));
    same!((array.mem.row_count, array.mem.row_start), (1, 1));
    same!((array.shim.row_count, array.shim.row_start), (1, 0));
    Ok(())
}

fn short_buffer(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let mut words = [u32::MAX; 4];
    let mut a = GetInfo { param: 1, buffer_size: 6, buffer: words.as_mut_ptr().addr() as u64 };
    client.call(request::GET_INFO, &mut a)?;
    same!((words[1], words[2], a.buffer_size), (0xffff_0008, u32::MAX, 6));
    let mut nowhere = GetInfo { param: 1, buffer_size: 64, buffer: 0 };
    same!(client.call(request::GET_INFO, &mut nowhere), Err(Errno::FAULT));
    Ok(())
}

fn unknown(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    for param in [6, 7, 14, 99] {
        same!(client.get::<u64>(param), Err(Errno::OPNOTSUPP), "{param}");
    }
    Ok(())
}

fn resources(ctx: &Ctx) -> Verdict {
    let (client, other) = (ctx.open()?, ctx.open()?);
    ctx.alone(&client)?;
    let _heaps = (client.heap()?, other.heap()?);
    client.create_hwctx()?;
    let (context, _) = other.create_hwctx()?;
    let info: query::ResourceInfo = client.get(12)?;
    same!(info.npu_task_curr, 2);
    other.destroy_hwctx(context)?;
    let info: query::ResourceInfo = client.get(12)?;
    same!(info.npu_task_curr, 1);
    Ok(())
}

fn contexts(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    ctx.alone(&client)?;
    let ready = client.ready()?;
    let packet = ready.good()?;
    ready.run(packet)?;
    let mut entries = [query::QueryHwctx::zeroed(); 3];
    let buffer = entries.as_mut_ptr().addr() as u64;
    let mut a = GetInfo { param: 5, buffer_size: 192, buffer };
    ready.client.call(request::GET_INFO, &mut a)?;
    same!(a.buffer_size, 128, "room for two more");
    let entry = entries[0];
    same!((entry.context_id, entry.pid), (ready.context, i64::from(std::process::id())));
    same!((entry.start_col, entry.num_col), (0, 8), "all columns, shared in time");
    same!((entry.command_submissions, entry.command_completions, entry.errors), (1, 1, 0));
    ready.client.unmap(packet.map);
    Ok(())
}

fn clocks(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let clocks: query::QueryClockMetadata = client.get(3)?;
    hold!(clocks.h_clock.name.starts_with(b"H Clock\0"));
    hold!(clocks.mp_npu_clock.name.starts_with(b"MP-NPU Clock\0"));
    same!(client.get::<query::GetPowerMode>(9)?.power_mode, 0);
    Ok(())
}

fn telemetry(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let slots = ctx.room(&client)?.0 as u32;
    let head = 16 + 4 * slots;
    let mut words = vec![0u32; head as usize / 4 + 4];
    let mut ask = |kind, buffer_size| {
        words[2] = kind;
        let mut a = GetInfo { param: 10, buffer_size, buffer: words.as_mut_ptr().addr() as u64 };
        client.call(request::GET_INFO, &mut a)
    };
    same!(ask(1, head), Err(Errno::INVAL), "header and map alone");
    same!(ask(5, head + 16), Err(Errno::INVAL));
    same!(ask(1, head + 16), Ok(()));
    same!(words[3], slots, "map entries");
    Ok(())
}

fn array(client: &Client, param: u32, element_size: u32, num_element: u32, buffer: u64) -> Result<GetArray, Errno> {
    let mut a = GetArray { param, element_size, num_element, pad: 0, buffer };
    client.call(request::GET_ARRAY, &mut a).map(|()| a)
}

fn array_arguments(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    ctx.alone(&client)?;
    let mut buffer = [0u8; 4096];
    let at = buffer.as_mut_ptr().addr() as u64;
    let mut padded = GetArray { param: 0, element_size: 144, num_element: 1, pad: 1, buffer: at };
    same!(client.call(request::GET_ARRAY, &mut padded), Err(Errno::INVAL));
    same!(array(&client, 0, 0, 1, at).map(drop), Err(Errno::INVAL));
    same!(array(&client, 0, 144, 0, at).map(drop), Err(Errno::INVAL));
    same!(array(&client, 0, 4097, 1, at).map(drop), Err(Errno::INVAL));
    same!(array(&client, 0, 144, 1025, at).map(drop), Err(Errno::INVAL));
    same!(array(&client, 60, 144, 1, at).map(drop), Err(Errno::OPNOTSUPP));
    same!(array(&client, 0, 144, 4, at)?.num_element, 0, "no contexts yet");
    Ok(())
}

fn array_contexts(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    ctx.alone(&client)?;
    let _heap = client.heap()?;
    let handles = [client.create_hwctx()?.0, client.create_hwctx()?.0];
    let mut words = [0u32; 80];
    let at = words.as_mut_ptr().addr() as u64;
    let a = array(&client, 0, 4, 8, at)?;
    same!((a.element_size, a.num_element), (4, 2), "the first word of each");
    same!(words[..2], handles);
    Ok(())
}

fn usage(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let _heap = client.heap()?;
    client.share(8192)?;
    client.create_bo(CMD, 4096)?;
    client.dev(4096)?;
    let pid = i64::from(std::process::id());
    let ask = |pid, num_element| {
        let mut usage = query::BoUsage { pid, ..Zeroable::zeroed() };
        let at = std::ptr::from_mut(&mut usage).addr() as u64;
        array(&client, 6, 32, num_element, at).map(|_| usage)
    };
    same!(ask(pid, 2).map(drop), Err(Errno::INVAL));
    same!(ask(0, 1).map(drop), Err(Errno::INVAL));
    let usage = ask(pid, 1)?;
    let heap = 64 << 20;
    same!((usage.total_usage, usage.internal_usage, usage.heap_usage), (heap + 12288, heap + 4096, 4096));
    same!(ask(1, 1)?.total_usage, 0, "another process has none");
    Ok(())
}
