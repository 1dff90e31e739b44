//! CREATE_HWCTX, DESTROY_HWCTX, CONFIG_HWCTX.

use amdxdna_ioctl::Errno;
use amdxdna_ioctl::abi::{self, QosInfo, request};
use bytemuck::Zeroable;

use super::Case;
use super::harness::{Client, Node, addr_of, cu_table};

pub const CASES: &[Case] = &[
    ("CREATE_HWCTX: which check comes first", order_of_checks),
    ("a context: handles, doorbell, four hidden buffers in the heap", created),
    ("what the array cannot do is refused", quality_of_service),
    ("sixteen contexts and no more, whoever has them", slots),
    ("DESTROY_HWCTX", destroy),
    ("CONFIG_CU: each way to be wrong", config_cu_arguments),
    ("CONFIG_CU happens once", config_cu_once),
    ("CONFIG_HWCTX: other parameters", config_arguments),
    ("debug buffers", debug_buffers),
    ("a context's id is its client's", foreign_handles),
];

fn create(client: &Client, a: abi::CreateHwctx) -> Result<abi::CreateHwctx, Errno> {
    let mut a = a;
    client.call(request::CREATE_HWCTX, &mut a).map(|()| a)
}

fn order_of_checks(node: &Node) {
    let client = node.open();
    let qos = QosInfo::zeroed();
    let nothing = abi::CreateHwctx::zeroed();
    // Everything is wrong with the first; each next one has one fault fewer.
    assert_eq!(create(&client, abi::CreateHwctx { ext: 1, ..nothing }), Err(Errno::INVAL));
    assert_eq!(create(&client, abi::CreateHwctx { ext_flags: 1, ..nothing }), Err(Errno::INVAL));
    assert_eq!(create(&client, nothing), Err(Errno::FAULT), "qos_p is null");
    let with_qos = abi::CreateHwctx { qos_p: addr_of(&qos), ..nothing };
    assert_eq!(create(&client, with_qos), Err(Errno::NOENT), "no heap, though num_tiles is wrong too");
    let _heap = client.heap();
    assert_eq!(create(&client, with_qos), Err(Errno::INVAL), "no tiles");
    assert_eq!(create(&client, abi::CreateHwctx { num_tiles: 3, ..with_qos }), Err(Errno::INVAL), "no whole column");
    assert_eq!(create(&client, abi::CreateHwctx { num_tiles: 36, ..with_qos }), Err(Errno::INVAL), "nine columns");
    assert!(create(&client, abi::CreateHwctx { num_tiles: 35, ..with_qos }).is_ok(), "eight, and three tiles dropped");
}

fn created(node: &Node) {
    let client = node.open();
    let _heap = client.heap();
    let qos = QosInfo::zeroed();
    let wanted = abi::CreateHwctx { qos_p: addr_of(&qos), num_tiles: 32, max_opc: 2048, ..Zeroable::zeroed() };
    let a = create(&client, wanted).unwrap();
    assert_eq!((a.handle, a.syncobj_handle, a.umq_doorbell), (1, 1, u32::MAX));
    let pdi = client.dev(4096).unwrap();
    assert_eq!(client.address(pdi), 0x0402_0000, "behind four buffers of 32 KiB each");
    client.destroy_hwctx(a.handle).unwrap();
    let next = client.dev(4096).unwrap();
    assert_eq!(client.address(next), 0x0400_0000, "which the context gave back");
}

fn quality_of_service(node: &Node) {
    let client = node.open();
    let _heap = client.heap();
    let with = |gops, fps, latency| {
        let qos = QosInfo { gops, fps, latency, ..Zeroable::zeroed() };
        create(&client, abi::CreateHwctx { qos_p: addr_of(&qos), num_tiles: 4, ..Zeroable::zeroed() }).map(drop)
    };
    // One column: 4096 operations at 1800 MHz, halved.
    assert_eq!(with(122, 30, 0), Ok(()), "2 x 30 x 122 = 7320");
    assert_eq!(with(123, 30, 0), Err(Errno::INVAL), "2 x 30 x 123 = 7380 > 7372");
    assert_eq!(with(123, 1, 33), Err(Errno::INVAL), "33 ms is 30 frames a second");
    assert_eq!(with(123, 0, 2000), Ok(()), "a slow frame counts as one a second");
}

fn slots(node: &Node) {
    let (client, other) = (node.open(), node.open());
    let _heaps = (client.heap(), other.heap());
    for i in 0..16u32 {
        let who = if i % 2 == 0 { &client } else { &other };
        assert_eq!(who.create_hwctx().unwrap().1, i / 2 + 1, "syncobj handles count for each client");
    }
    assert_eq!(client.create_hwctx(), Err(Errno::INVAL));
    assert_eq!(node.open().create_hwctx(), Err(Errno::NOENT));
    drop(other);
    assert!(client.create_hwctx().is_ok(), "a closed client's contexts are gone");
}

fn destroy(node: &Node) {
    let client = node.open();
    let _heap = client.heap();
    let (context, syncobj) = client.create_hwctx().unwrap();
    let mut bad = abi::DestroyHwctx { handle: context, pad: 1 };
    assert_eq!(client.call(request::DESTROY_HWCTX, &mut bad), Err(Errno::INVAL));
    client.destroy_hwctx(context).unwrap();
    assert_eq!(client.destroy_hwctx(context), Err(Errno::INVAL));
    assert_eq!(client.exec(context, 1, &[]), Err(Errno::INVAL));
    assert_eq!(client.wait_points(&[(syncobj, 0)], 0, 0), Err(Errno::INVAL), "its syncobj lives, without a point");
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

fn config_cu_arguments(node: &Node) {
    let client = node.open();
    let _heap = client.heap();
    let (context, _) = client.create_hwctx().unwrap();
    let (pdi, share) = (client.dev(4096).unwrap(), client.share(4096));
    let good = cu_table(&[pdi]);
    let refused = |table: &[u32], errno| {
        assert_eq!(config(&client, context, table, table.len() as u32 * 4), Err(errno), "{table:x?}");
    };
    assert_eq!(config(&client, context, &good, 4097), Err(Errno::TOOBIG));
    let mut null = abi::ConfigHwctx { handle: context, param_val_size: 16, ..Zeroable::zeroed() };
    assert_eq!(client.call(request::CONFIG_HWCTX, &mut null), Err(Errno::FAULT));
    let mut padded = abi::ConfigHwctx { handle: context, pad: 1, ..Zeroable::zeroed() };
    assert_eq!(client.call(request::CONFIG_HWCTX, &mut padded), Err(Errno::INVAL));
    refused(&[0, 0, pdi, 0], Errno::INVAL);
    refused(&[1 | 1 << 16, 0, pdi, 0], Errno::INVAL);
    refused(&[2, 0, pdi, 0], Errno::INVAL);
    refused(&cu_table(&[pdi; 33]), Errno::INVAL);
    refused(&[1, 0, pdi, 1 << 8], Errno::INVAL);
    refused(&[1, 0, share, 0], Errno::INVAL);
    refused(&[1, 0, 99, 0], Errno::INVAL);
    assert_eq!(client.config_cu(context + 1, &[pdi]), Err(Errno::INVAL));
    assert_eq!(client.config_cu(context, &[pdi; 32]), Ok(()), "32 are fine, after all these");
}

fn config_cu_once(node: &Node) {
    let client = node.open();
    let _heap = client.heap();
    let (context, _) = client.create_hwctx().unwrap();
    let pdi = client.dev(4096).unwrap();
    client.config_cu(context, &[pdi]).unwrap();
    assert_eq!(client.config_cu(context, &[pdi]), Err(Errno::INVAL));
}

fn config_arguments(node: &Node) {
    let client = node.open();
    let _heap = client.heap();
    let (context, _) = client.create_hwctx().unwrap();
    let mut a = abi::ConfigHwctx { handle: context, param_type: 3, ..Zeroable::zeroed() };
    assert_eq!(client.call(request::CONFIG_HWCTX, &mut a), Err(Errno::INVAL));
}

fn debug_buffers(node: &Node) {
    let client = node.open();
    let _heap = client.heap();
    let (context, _) = client.create_hwctx().unwrap();
    let (dev, share) = (client.dev(4096).unwrap(), client.share(4096));
    let config = |param_type, bo: u32| {
        let mut a = abi::ConfigHwctx { handle: context, param_type, param_val: u64::from(bo), ..Zeroable::zeroed() };
        client.call(request::CONFIG_HWCTX, &mut a)
    };
    assert_eq!(config(1, share), Err(Errno::INVAL));
    assert_eq!(config(2, dev), Err(Errno::INVAL), "not assigned");
    assert_eq!(config(1, dev), Ok(()));
    assert_eq!(config(1, dev), Err(Errno::BUSY));
    assert_eq!(config(2, dev), Ok(()));
    let packet = client.packet(&[0]);
    assert_eq!(client.exec(context, packet.handle, &[]), Ok(2), "both took a sequence number");
    client.destroy_hwctx(context).unwrap();
}

fn foreign_handles(node: &Node) {
    let (client, other) = (node.open(), node.open());
    let _heap = client.heap();
    let (context, _) = client.create_hwctx().unwrap();
    assert_eq!(other.destroy_hwctx(context), Err(Errno::INVAL));
    assert_eq!(client.destroy_hwctx(context), Ok(()));
}
