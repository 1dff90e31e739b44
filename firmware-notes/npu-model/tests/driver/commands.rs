//! EXEC_CMD and what becomes of packets.

use amdxdna_ioctl::Errno;
use amdxdna_ioctl::abi::{self, request};
use bytemuck::Zeroable;

use super::Case;
use super::harness::{CMD_CHAIN, COMPLETED, ERROR, Map, NEW, Node, Packet, Ready, START_CU, START_NPU, header};

pub const CASES: &[Case] = &[
    ("EXEC_CMD: which check comes first", order_of_checks),
    ("a buffer listed twice gives EALREADY", listed_twice),
    ("sequence numbers begin at 0 and only successes count", sequence),
    ("a good command completes", completes),
    ("a length in words is taken as well", length_in_words),
    ("START_NPU", start_npu),
    ("a packet that the driver refuses stays NEW", refused_packets),
    ("a packet without payload: START_CU runs with nothing", no_payload),
    ("a firmware error: state 5 and all ones", firmware_error),
    ("a stream that leaves its buffer", long_stream),
    ("before CONFIG_CU commands fail", unconfigured),
    ("a unit that is not configured", unknown_unit),
    ("a chain completes and leaves its packets alone", chain),
    ("a chain stops at the first error", chain_error),
    ("chains that the driver refuses", refused_chains),
    ("a chain of 36 IRON commands fits, 37 do not", chain_length),
    ("many in flight, in order", in_order),
    ("buffers closed in flight live on", closed_in_flight),
    ("a state above 15 is kept off the other header bits", header_bits),
];

fn order_of_checks(node: &Node) {
    let ready = node.open().ready();
    let client = &ready.client;
    let packet = ready.good();
    let good = abi::ExecCmd {
        hwctx: ready.context,
        cmd_handles: u64::from(packet.handle),
        cmd_count: 1,
        ..Zeroable::zeroed()
    };
    let exec = |a: abi::ExecCmd| client.call(request::EXEC_CMD, &mut { a });
    let nowhere = abi::ExecCmd { arg_count: 1, ..good };
    for (what, a, errno) in [
        ("ext", abi::ExecCmd { ext: 1, ..nowhere }, Errno::INVAL),
        ("ext_flags", abi::ExecCmd { ext_flags: 1, ..nowhere }, Errno::INVAL),
        ("dependency", abi::ExecCmd { r#type: 1, ..nowhere }, Errno::INVAL),
        ("signal", abi::ExecCmd { r#type: 2, ..nowhere }, Errno::INVAL),
        ("4096 arguments", abi::ExecCmd { arg_count: 4096, ..nowhere }, Errno::INVAL),
        ("no command", abi::ExecCmd { cmd_count: 0, ..nowhere }, Errno::INVAL),
        ("two commands", abi::ExecCmd { cmd_count: 2, ..nowhere }, Errno::INVAL),
        ("arguments nowhere, and no command buffer", abi::ExecCmd { cmd_handles: 0, ..nowhere }, Errno::FAULT),
        ("command handle 0", abi::ExecCmd { cmd_handles: 0, ..good }, Errno::INVAL),
        ("a DEV buffer", abi::ExecCmd { cmd_handles: u64::from(ready.pdi), ..good }, Errno::INVAL),
        ("the heap", abi::ExecCmd { cmd_handles: 1, ..good }, Errno::INVAL),
        ("no context", abi::ExecCmd { hwctx: 9, ..good }, Errno::INVAL),
    ] {
        assert_eq!(exec(a), Err(errno), "{what}");
    }
    assert_eq!(client.exec(9, packet.handle, &[99]), Err(Errno::NOENT), "an unknown argument comes before the context");
    assert_eq!(client.exec(ready.context, packet.handle, &[]), Ok(0), "no arguments are fine");
    client.wait(ready.syncobj, 0);
    client.unmap(packet.map);
}

fn listed_twice(node: &Node) {
    let ready = node.open().ready();
    let packet = ready.good();
    let exec = |args: &[u32]| ready.client.exec(ready.context, packet.handle, args);
    assert_eq!(exec(&[ready.stream, ready.pdi, ready.stream]), Err(Errno::ALREADY));
    assert_eq!(exec(&[ready.stream, ready.pdi]), Ok(0));
    ready.client.wait(ready.syncobj, 0);
    ready.client.unmap(packet.map);
}

fn sequence(node: &Node) {
    let ready = node.open().ready();
    let packet = ready.good();
    for seq in 0..3 {
        assert_eq!(ready.client.exec(ready.context, packet.handle, &[77]), Err(Errno::NOENT));
        assert_eq!(ready.client.exec(ready.context, packet.handle, &[]), Ok(seq));
        ready.client.wait(ready.syncobj, seq);
    }
    ready.client.unmap(packet.map);
}

fn completes(node: &Node) {
    let ready = node.open().ready();
    let packet = ready.good();
    let before = packet.map.words(1, 20);
    assert_eq!(ready.run(packet), COMPLETED);
    assert_eq!(packet.map.words(1, 20), before, "nothing but the state changes");
    assert_eq!(packet.map.word(0), 0x3001_0004);
    ready.client.unmap(packet.map);
}

fn length_in_words(node: &Node) {
    let ready = node.open().ready();
    let packet = ready.client.packet(&ready.words(ready.stream_addr, 4));
    assert_eq!(ready.run(packet), COMPLETED);
    ready.client.unmap(packet.map);
}

fn start_npu(node: &Node) {
    let ready = node.open().ready();
    let addr = ready.stream_addr as u32;
    let packet = ready.client.packet(&[header(START_NPU, 7), 1, addr, 0, 16, 0, 0, 0]);
    assert_eq!(ready.run(packet), COMPLETED);
    let mut too_long = vec![header(START_NPU, 5 + 35), 1, addr, 0, 16, 0];
    too_long.extend([0; 35]);
    packet.map.set_words(&too_long);
    assert_eq!(ready.run(packet), NEW, "35 words are too many in every layout");
    ready.client.unmap(packet.map);
}

/// Runs packets that the driver must drop: the fence signals and the packet says nothing.
fn expect_untouched(ready: &Ready, packets: &[Vec<u32>]) {
    for words in packets {
        let packet = ready.client.packet(words);
        assert_eq!(ready.run(packet), NEW, "{words:x?}");
        assert_eq!(packet.map.words(0, words.len()), *words);
        ready.client.unmap(packet.map);
    }
}

fn refused_packets(node: &Node) {
    let ready = node.open().ready();
    let mut no_unit = ready.words(ready.stream_addr, 16);
    no_unit[1] = 0;
    let mut long = vec![header(START_CU, 1100), 1, 3, 0];
    long.resize(1024, 0);
    expect_untouched(
        &ready,
        &[
            vec![header(18, 16), 1, 0, 0],
            vec![header(5, 16), 1, 0, 0],
            no_unit,
            vec![header(START_NPU, 1), 1],
            vec![header(START_NPU, 4), 1, 0, 0, 0],
            vec![header(CMD_CHAIN, 0)],
        ],
    );
    // Longer than its buffer: the payload is as good as absent, and START_CU runs without arguments.
    let packet = ready.client.packet(&long);
    assert_eq!(ready.run(packet), COMPLETED);
    ready.client.unmap(packet.map);
}

fn no_payload(node: &Node) {
    let ready = node.open().ready();
    let packet = ready.client.packet(&[header(START_CU, 1), 1]);
    assert_eq!(ready.run(packet), COMPLETED);
    ready.client.unmap(packet.map);
}

fn assert_all_ones(packet: Packet, from: usize) {
    assert_eq!(packet.map.words(from, 1024 - from), vec![u32::MAX; 1024 - from]);
}

fn firmware_error(node: &Node) {
    let ready = node.open().ready();
    let packet = ready.client.packet(&ready.words(0x0400_0000 + (60 << 20), 16));
    assert_eq!(ready.run(packet), ERROR, "no stream there");
    assert_eq!(packet.map.word(0) >> 4, 0x0300_1000);
    assert_all_ones(packet, 1);
    packet.map.set_words(&ready.words(ready.stream_addr, 16));
    assert_eq!(ready.run(packet), COMPLETED, "the context goes on");
    ready.client.unmap(packet.map);
}

fn long_stream(node: &Node) {
    let ready = node.open().ready();
    let map = ready.heap.part((ready.stream_addr - abi::HEAP_BASE) as usize);
    for (size, told) in [(4100, 4100), (u32::MAX, u32::MAX), (4096, 4100), (12, 12)] {
        map.set_word(3, size);
        ready.client.flush(Map { len: 16, ..map });
        let packet = ready.client.packet(&ready.words(ready.stream_addr, told));
        assert_eq!(ready.run(packet), ERROR, "{size} by its header, {told} by its packet");
        ready.client.unmap(packet.map);
    }
}

fn unconfigured(node: &Node) {
    let client = node.open();
    let ready = client.ready();
    let (context, syncobj) = client.create_hwctx().unwrap();
    let packet = ready.good();
    let seq = client.exec(context, packet.handle, &[]).unwrap();
    client.wait(syncobj, seq);
    assert_eq!(packet.state(), ERROR);
    client.unmap(packet.map);
}

fn unknown_unit(node: &Node) {
    let ready = node.open().ready();
    let mut words = ready.words(ready.stream_addr, 16);
    words[1] = 1 << 5;
    let packet = ready.client.packet(&words);
    assert_eq!(ready.run(packet), ERROR);
    ready.client.unmap(packet.map);
}

/// A chain of the given packets.
fn chain_words(packets: &[u32]) -> Vec<u32> {
    let n = packets.len() as u32;
    let mut words = vec![header(CMD_CHAIN, 6 + 2 * n), n, 0, 0, 0, 0, 0];
    words.extend(packets.iter().flat_map(|&handle| [handle, 0]));
    words
}

fn chain(node: &Node) {
    let ready = node.open().ready();
    let packets = [ready.good(), ready.good(), ready.good()];
    let chain = ready.client.packet(&chain_words(&packets.map(|packet| packet.handle)));
    let before = packets[1].map.words(0, 17);
    assert_eq!(ready.run(chain), COMPLETED);
    assert_eq!(packets[1].map.words(0, 17), before, "a chain's packets keep their state");
    for packet in packets.iter().chain([&chain]) {
        ready.client.unmap(packet.map);
    }
}

fn chain_error(node: &Node) {
    let ready = node.open().ready();
    let bad = ready.client.packet(&ready.words(0x0700_0000, 16));
    let packets = [ready.good(), ready.good(), bad, ready.good()];
    let chain = ready.client.packet(&chain_words(&packets.map(|packet| packet.handle)));
    assert_eq!(ready.run(chain), ERROR);
    assert_eq!(chain.map.word(3), 2, "error_index");
    assert_eq!(chain.map.word(1), 4, "the rest of the chain packet stays");
    assert_all_ones(packets[0], 1);
    assert_eq!(packets[0].state(), NEW, "its header stays");
    assert_eq!(bad.map.word(2), 3, "the one that failed is not touched");
    for packet in packets.iter().chain([&chain]) {
        ready.client.unmap(packet.map);
    }
}

fn refused_chains(node: &Node) {
    let ready = node.open().ready();
    let one = ready.good();
    let npu = ready.client.packet(&[header(START_NPU, 5), 1, ready.stream_addr as u32, 0, 16, 0]);
    let inner = ready.client.packet(&chain_words(&[one.handle]));
    let mut short = chain_words(&[one.handle, one.handle]);
    short[0] = header(CMD_CHAIN, 8);
    expect_untouched(
        &ready,
        &[
            chain_words(&[]),
            chain_words(&[one.handle, 500]),
            chain_words(&[one.handle, ready.pdi]),
            chain_words(&[one.handle, npu.handle]),
            chain_words(&[inner.handle]),
            short,
        ],
    );
    for packet in [one, npu, inner] {
        ready.client.unmap(packet.map);
    }
}

fn chain_length(node: &Node) {
    let ready = node.open().ready();
    let packet = ready.good();
    // 112 bytes a slot; 68 in the older layout, where 60 would fit.
    let chain = ready.client.packet(&chain_words(&[packet.handle; 36]));
    assert_eq!(ready.run(chain), COMPLETED);
    chain.map.set_words(&chain_words(&[packet.handle; 61]));
    assert_eq!(ready.run(chain), NEW);
    ready.client.unmap(chain.map);
    ready.client.unmap(packet.map);
}

fn in_order(node: &Node) {
    let ready = node.open().ready();
    let packets: Vec<Packet> = (0..12).map(|_| ready.good()).collect();
    for (seq, packet) in packets.iter().enumerate() {
        assert_eq!(ready.client.exec(ready.context, packet.handle, &[ready.stream]), Ok(seq as u64));
    }
    ready.client.wait(ready.syncobj, 11);
    for packet in packets {
        assert_eq!(packet.state(), COMPLETED);
        ready.client.unmap(packet.map);
    }
}

fn closed_in_flight(node: &Node) {
    let ready = node.open().ready();
    let packets: Vec<Packet> = (0..4).map(|_| ready.good()).collect();
    for packet in &packets {
        ready.client.exec(ready.context, packet.handle, &[ready.stream]).unwrap();
        ready.client.close(packet.handle).unwrap();
    }
    // The stream's buffer goes when the last command that lists it is over.
    ready.client.close(ready.stream).unwrap();
    ready.client.wait(ready.syncobj, 3);
    for packet in packets {
        assert_eq!(packet.state(), COMPLETED);
        ready.client.unmap(packet.map);
    }
}

fn header_bits(node: &Node) {
    let ready = node.open().ready();
    let mut words = ready.words(ready.stream_addr, 16);
    words[0] |= 0x3f0;
    let packet = ready.client.packet(&words);
    assert_eq!(ready.run(packet), COMPLETED);
    assert_eq!(packet.map.word(0), 0x3001_03f4);
    ready.client.unmap(packet.map);
}
