//! GET_INFO and GET_ARRAY.

use amdxdna_ioctl::Errno;
use amdxdna_ioctl::abi::{GetArray, GetInfo};
use amdxdna_ioctl::abi::{query, request};
use bytemuck::{Pod, Zeroable};

use super::Case;
use super::harness::{Client, Node};

pub const CASES: &[Case] = &[
    ("the array's geometry", metadata),
    ("a short buffer gets a part, without an error", short_buffer),
    ("unknown parameters give EOPNOTSUPP", unknown),
    ("resources count the contexts of all clients", resources),
    ("contexts: the size comes back as what is left", contexts),
    ("clocks and power mode", clocks),
    ("telemetry: sizes and kinds", telemetry),
    ("GET_ARRAY: arguments", array_arguments),
    ("GET_ARRAY: contexts", array_contexts),
    ("GET_ARRAY: bytes of buffers", usage),
];

fn get<T: Pod>(client: &Client, param: u32) -> Result<T, Errno> {
    let mut value = T::zeroed();
    let buffer = std::ptr::from_mut(&mut value).addr() as u64;
    let mut a = GetInfo { param, buffer_size: size_of::<T>() as u32, buffer };
    client.call(request::GET_INFO, &mut a).map(|()| value)
}

fn metadata(node: &Node) {
    let client = node.open();
    let array: query::QueryAieMetadata = get(&client, 1).unwrap();
    assert_eq!((array.cols, array.rows), (8, 6));
    assert_eq!((array.core.row_count, array.core.row_start), (4, 2));
    assert_eq!((array.mem.row_count, array.mem.row_start), (1, 1));
    assert_eq!((array.shim.row_count, array.shim.row_start), (1, 0));
    let version: query::QueryAieVersion = get(&client, 2).unwrap();
    assert_eq!(version, array.version);
}

fn short_buffer(node: &Node) {
    let client = node.open();
    let mut words = [u32::MAX; 4];
    let mut a = GetInfo { param: 1, buffer_size: 6, buffer: words.as_mut_ptr().addr() as u64 };
    client.call(request::GET_INFO, &mut a).unwrap();
    assert_eq!((words[1], words[2], a.buffer_size), (0xffff_0008, u32::MAX, 6));
    let mut nowhere = GetInfo { param: 1, buffer_size: 64, buffer: 0 };
    assert_eq!(client.call(request::GET_INFO, &mut nowhere), Err(Errno::FAULT));
}

fn unknown(node: &Node) {
    let client = node.open();
    for param in [6, 7, 14, 99] {
        assert_eq!(get::<u64>(&client, param), Err(Errno::OPNOTSUPP), "{param}");
    }
}

fn resources(node: &Node) {
    let (client, other) = (node.open(), node.open());
    let _heaps = (client.heap(), other.heap());
    client.create_hwctx().unwrap();
    let (context, _) = other.create_hwctx().unwrap();
    let info: query::ResourceInfo = get(&client, 12).unwrap();
    assert_eq!((info.npu_task_curr, info.npu_task_max), (2, 16));
    // 4096 operations a column and cycle, 8 columns, 1800 MHz.
    assert_eq!((info.npu_clk_max, info.npu_tops_max), (1800, 58));
    other.destroy_hwctx(context).unwrap();
    let info: query::ResourceInfo = get(&client, 12).unwrap();
    assert_eq!(info.npu_task_curr, 1);
}

fn contexts(node: &Node) {
    let ready = node.open().ready();
    let packet = ready.good();
    ready.run(packet);
    let mut entries = [query::QueryHwctx::zeroed(); 3];
    let buffer = entries.as_mut_ptr().addr() as u64;
    let mut a = GetInfo { param: 5, buffer_size: 192, buffer };
    ready.client.call(request::GET_INFO, &mut a).unwrap();
    assert_eq!(a.buffer_size, 128, "room for two more");
    let entry = entries[0];
    assert_eq!((entry.context_id, entry.pid), (ready.context, i64::from(std::process::id())));
    assert_eq!((entry.start_col, entry.num_col), (0, 8), "all columns, shared in time");
    assert_eq!((entry.command_submissions, entry.command_completions, entry.errors), (1, 1, 0));
    ready.client.unmap(packet.map);
}

fn clocks(node: &Node) {
    let client = node.open();
    let clocks: query::QueryClockMetadata = get(&client, 3).unwrap();
    assert!(clocks.h_clock.name.starts_with(b"H Clock\0"));
    assert!(clocks.mp_npu_clock.name.starts_with(b"MP-NPU Clock\0"));
    assert_eq!(get::<query::GetPowerMode>(&client, 9).unwrap().power_mode, 0);
}

fn telemetry(node: &Node) {
    let client = node.open();
    let mut words = [0u32; 24];
    let mut ask = |kind, buffer_size| {
        words[2] = kind;
        let mut a = GetInfo { param: 10, buffer_size, buffer: words.as_mut_ptr().addr() as u64 };
        client.call(request::GET_INFO, &mut a)
    };
    assert_eq!(ask(1, 16 + 64), Err(Errno::INVAL), "header and map alone");
    assert_eq!(ask(5, 96), Err(Errno::INVAL));
    assert_eq!(ask(1, 96), Ok(()));
    assert_eq!(words[3], 16, "map entries");
}

fn array(client: &Client, param: u32, element_size: u32, num_element: u32, buffer: u64) -> Result<GetArray, Errno> {
    let mut a = GetArray { param, element_size, num_element, pad: 0, buffer };
    client.call(request::GET_ARRAY, &mut a).map(|()| a)
}

fn array_arguments(node: &Node) {
    let client = node.open();
    let mut buffer = [0u8; 4096];
    let at = buffer.as_mut_ptr().addr() as u64;
    let mut padded = GetArray { param: 0, element_size: 144, num_element: 1, pad: 1, buffer: at };
    assert_eq!(client.call(request::GET_ARRAY, &mut padded), Err(Errno::INVAL));
    assert_eq!(array(&client, 0, 0, 1, at).unwrap_err(), Errno::INVAL);
    assert_eq!(array(&client, 0, 144, 0, at).unwrap_err(), Errno::INVAL);
    assert_eq!(array(&client, 0, 4097, 1, at).unwrap_err(), Errno::INVAL);
    assert_eq!(array(&client, 0, 144, 1025, at).unwrap_err(), Errno::INVAL);
    assert_eq!(array(&client, 60, 144, 1, at).unwrap_err(), Errno::OPNOTSUPP);
    assert_eq!(array(&client, 0, 144, 4, at).unwrap().num_element, 0, "no contexts yet");
}

fn array_contexts(node: &Node) {
    let client = node.open();
    let _heap = client.heap();
    let handles = [client.create_hwctx().unwrap().0, client.create_hwctx().unwrap().0];
    let mut words = [0u32; 80];
    let at = words.as_mut_ptr().addr() as u64;
    let a = array(&client, 0, 4, 8, at).unwrap();
    assert_eq!((a.element_size, a.num_element), (4, 2), "the first word of each");
    assert_eq!(words[..2], handles);
    let a = array(&client, 0, 160, 1, at).unwrap();
    assert!(a.element_size == 144 || a.element_size == 160);
    assert_eq!(a.num_element, 1, "silently cut");
}

fn usage(node: &Node) {
    let client = node.open();
    let _heap = client.heap();
    client.share(8192);
    client.create_bo(4, 4096).unwrap();
    client.dev(4096).unwrap();
    let pid = i64::from(std::process::id());
    let ask = |pid, num_element| {
        let mut usage = query::BoUsage { pid, ..Zeroable::zeroed() };
        let at = std::ptr::from_mut(&mut usage).addr() as u64;
        array(&client, 6, 32, num_element, at).map(|_| usage)
    };
    assert_eq!(ask(pid, 2).unwrap_err(), Errno::INVAL);
    assert_eq!(ask(0, 1).unwrap_err(), Errno::INVAL);
    let usage = ask(pid, 1).unwrap();
    let heap = 64 << 20;
    assert_eq!((usage.total_usage, usage.internal_usage, usage.heap_usage), (heap + 12288, heap + 4096, 4096));
    assert_eq!(ask(1, 1).unwrap().total_usage, 0, "another process has none");
}
