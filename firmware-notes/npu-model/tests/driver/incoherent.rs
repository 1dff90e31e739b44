//! Memory in two copies: what is not flushed is not seen.

use amdxdna_ioctl::abi::{self, request};
use npu_model::{Config, Model};

use super::harness::{COMPLETED, ERROR, Map, Node, PAGE};

fn config() -> Config {
    Config { coherent: false, threads: 1, ..Config::default() }
}

#[test]
fn a_stream_that_was_not_flushed_is_not_there() {
    let model = Model::new(config());
    let ready = Node { opener: &*model }.open().ready();
    let client = &ready.client;
    let fresh = client.dev(PAGE as u64).unwrap();
    let addr = client.address(fresh);
    let map = ready.heap.part((addr - abi::HEAP_BASE) as usize);
    map.set_words(&super::harness::EMPTY_STREAM);
    let packet = client.packet(&ready.words(addr, 16));
    assert_eq!(ready.run(packet), ERROR, "the device reads zeroes");
    client.flush(Map { len: 16, ..map });
    packet.map.set_words(&ready.words(addr, 16));
    assert_eq!(ready.run(packet), COMPLETED);
    // SYNC_BO does the same.
    map.set_words(&[0; 4]);
    packet.map.set_words(&ready.words(addr, 16));
    assert_eq!(ready.run(packet), COMPLETED, "the device still has the stream");
    let mut sync = abi::SyncBo { handle: fresh, direction: 0, offset: 0, size: PAGE as u64 };
    client.call(request::SYNC_BO, &mut sync).unwrap();
    packet.map.set_words(&ready.words(addr, 16));
    assert_eq!(ready.run(packet), ERROR);
    let counts = model.counts();
    assert_eq!((counts.flushes, counts.flushed_bytes), (3, 2 * PAGE as u64 + 64));
    client.unmap(packet.map);
}
