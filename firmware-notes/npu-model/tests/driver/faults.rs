//! What only a model can be told to do: errors of open, full slots, silence, hangs, interrupts, limits.

use std::path::Path;
use std::sync::Arc;

use amdxdna_ioctl::abi::{self, HEAP_CHUNK, drm, query, request};
use amdxdna_ioctl::{Errno, Opener};
use bytemuck::Zeroable;
use npu_model::{AddressMode, Config, DriverVersion, Faults, Model};

use super::harness::{
    ABORT, CMD_CHAIN, COMPLETED, Client, ERROR, NEW, Node, Packet, Ready, TIMEOUT, addr_of, aligned, header, reserve,
};

fn model(change: impl FnOnce(&mut Config)) -> Arc<Model> {
    let mut config = Config { threads: 1, tdr_ms: 30, destroy_wait_ms: 30, ..Config::default() };
    change(&mut config);
    Model::new(config)
}

fn client(model: &Model) -> Client {
    Node { opener: model, sva: true }.open()
}

#[test]
fn open_fails_as_told() {
    let model = model(|config| config.faults.open = Some(Errno::ACCESS));
    assert_eq!(model.open(Path::new("/dev/accel/accel0")).unwrap_err(), Errno::ACCESS);
    model.set_faults(Faults::default());
    assert!(model.open(Path::new("/dev/accel/accel0")).is_ok());
}

#[test]
fn firmware_that_the_driver_refuses_leaves_no_node() {
    for protocol in [(5, 9), (6, 11), (8, 0)] {
        let model = model(|config| config.protocol = protocol);
        assert_eq!(model.open(Path::new("/dev/accel/accel0")).unwrap_err(), Errno::NOENT, "{protocol:?}");
    }
    for protocol in [(6, 12), (6, 24), (7, 0)] {
        assert!(model(|config| config.protocol = protocol).open(Path::new("/dev/accel/accel0")).is_ok());
    }
}

#[test]
fn an_unplugged_device_gives_enodev() {
    let model = model(|_| ());
    let client = client(&model);
    model.unplug();
    assert_eq!(client.create_bo(1, 4096), Err(Errno::NODEV));
    assert_eq!(model.open(Path::new("/dev/accel/accel0")).unwrap_err(), Errno::NODEV);
}

#[test]
fn a_firmware_without_room_refuses_contexts() {
    let model = model(|config| config.faults.no_context = true);
    let client = client(&model);
    let _heap = client.heap();
    assert_eq!(client.create_hwctx(), Err(Errno::INVAL));
    let dev = client.dev(4096).unwrap();
    assert_eq!(client.address(dev), 0x0400_0000, "the hidden buffers are given back");
    model.set_faults(Faults::default());
    assert!(client.create_hwctx().is_ok());
}

#[test]
fn a_silent_firmware_loses_its_management_channel() {
    let model = model(|config| config.faults.management_silent = true);
    let client = client(&model);
    let _heap = client.heap();
    assert_eq!(client.create_hwctx(), Err(Errno::TIME));
    assert_eq!(client.create_hwctx(), Err(Errno::NODEV));
    let mut info = query::ResourceInfo::zeroed();
    let buffer = std::ptr::from_mut(&mut info).addr() as u64;
    let mut a = abi::GetInfo { param: 12, buffer_size: 40, buffer };
    assert_eq!(client.call(request::GET_INFO, &mut a), Err(Errno::NODEV));
}

fn exec(ready: &Ready, packet: Packet) -> u64 {
    ready.client.exec(ready.context, packet.handle, &[ready.stream]).unwrap()
}

const HEALTH: [u32; 8] = [1, 0, u32::MAX, 0, 0, 0, 0, 0];

#[test]
fn a_hang_ends_in_a_timeout_and_takes_the_queue_along() {
    // A timer long enough for the other two to be queued before it fires, however busy the machine.
    let model = model(|config| {
        config.faults.hang_command = Some(1);
        config.tdr_ms = 2000;
    });
    let ready = client(&model).ready();
    let packets = [(); 4].map(|()| ready.good());
    for packet in packets {
        exec(&ready, packet);
    }
    ready.client.wait(ready.syncobj, 3);
    assert_eq!(packets.map(|packet| packet.state()), [COMPLETED, TIMEOUT, ABORT, ABORT]);
    assert_eq!(packets[1].map.words(1, 8), HEALTH);
    assert_eq!(packets[1].map.words(9, 100), vec![u32::MAX; 100]);
    assert_eq!(packets[2].map.words(1, 100), vec![u32::MAX; 100]);
    let next = ready.good();
    assert_eq!(exec(&ready, next), 4, "numbers go on");
    ready.client.wait(ready.syncobj, 4);
    assert_eq!(next.state(), COMPLETED, "on a new context, with its unit");
    let counts = model.counts();
    assert_eq!((counts.resets, counts.contexts_created, counts.contexts_destroyed), (1, 2, 1));
}

#[test]
fn a_refused_packet_behind_a_hang_stays_new() {
    let model = model(|config| config.faults.hang_command = Some(0));
    let ready = client(&model).ready();
    let (hung, bad) = (ready.good(), ready.client.packet(&[header(18, 4), 1]));
    exec(&ready, hung);
    exec(&ready, bad);
    ready.client.wait(ready.syncobj, 1);
    assert_eq!((hung.state(), bad.state(), bad.map.word(1)), (TIMEOUT, NEW, 1));
}

#[test]
fn a_hang_in_a_chain_is_told_in_its_first_packet() {
    let model = model(|config| config.faults.hang_command = Some(2));
    let ready = client(&model).ready();
    let packets = [(); 4].map(|()| ready.good());
    let mut words = vec![header(CMD_CHAIN, 14), 4, 0, 0, 0, 0, 0];
    words.extend(packets.iter().flat_map(|packet| [packet.handle, 0]));
    let chain = ready.client.packet(&words);
    assert_eq!(ready.run(chain), TIMEOUT);
    assert_eq!(chain.map.word(3), 2);
    assert_eq!(packets[0].map.words(1, 8), HEALTH);
    assert_eq!(packets[2].map.word(2), 3);
}

#[test]
fn older_firmware_leaves_no_health_record() {
    let model = model(|config| {
        config.faults.hang_command = Some(0);
        config.protocol = (6, 15);
    });
    let ready = client(&model).ready();
    let packet = ready.good();
    assert_eq!(ready.run(packet), TIMEOUT);
    assert_eq!(packet.map.words(1, 8), [u32::MAX; 8]);
}

#[test]
fn the_fifth_command_blocks() {
    let model = model(|config| {
        config.faults.hang_command = Some(0);
        config.tdr_ms = 0;
    });
    let ready = client(&model).ready();
    let packets = [(); 5].map(|()| ready.good());
    for packet in &packets[..4] {
        exec(&ready, *packet);
    }
    let hanging = Faults { interrupt_every: Some(1), ..Faults::default() };
    model.set_faults(hanging);
    let fifth = || ready.client.exec(ready.context, packets[4].handle, &[]);
    assert_eq!(fifth(), Err(Errno::INTR), "a signal where it would block");
    assert_eq!(ready.client.wait_points(&[(ready.syncobj, 0)], 0, i64::MAX), Err(Errno::INTR));
    model.set_faults(Faults::default());
    assert_eq!(ready.client.wait_points(&[(ready.syncobj, 3)], 0, 0), Err(Errno::TIME));
    ready.client.destroy_hwctx(ready.context).unwrap();
    assert_eq!(fifth(), Err(Errno::INVAL));
}

#[test]
fn a_blocked_fifth_command_goes_when_there_is_room() {
    let model = model(|config| config.faults.hang_command = Some(0));
    let ready = client(&model).ready();
    let packets = [(); 5].map(|()| ready.good());
    for packet in packets {
        exec(&ready, packet);
    }
    ready.client.wait(ready.syncobj, 4);
    assert_eq!(packets[4].state(), COMPLETED, "it came after the reset");
}

#[test]
fn point_zero_waits_for_everything_submitted() {
    let model = model(|config| {
        config.faults.hang_command = Some(1);
        config.tdr_ms = 0;
    });
    let ready = client(&model).ready();
    let (first, hung) = (ready.good(), ready.good());
    ready.run(first);
    assert_eq!(ready.client.wait_points(&[(ready.syncobj, 0)], 0, 0), Ok(0), "it is all there is");
    exec(&ready, hung);
    assert_eq!(ready.client.wait_points(&[(ready.syncobj, 0)], 0, 0), Err(Errno::TIME), "now the head is another");
    assert_eq!(first.state(), COMPLETED, "the packet tells");
}

#[test]
fn destroying_a_context_aborts_what_hangs() {
    let model = model(|config| {
        config.faults.hang_command = Some(0);
        config.tdr_ms = 0;
    });
    let ready = client(&model).ready();
    let packets = [(); 3].map(|()| ready.good());
    for packet in packets {
        exec(&ready, packet);
    }
    ready.client.destroy_hwctx(ready.context).unwrap();
    assert_eq!(packets.map(|packet| packet.state()), [ABORT; 3]);
    assert_eq!(packets[2].map.word(1), u32::MAX);
    assert_eq!(ready.client.wait_points(&[(ready.syncobj, 2)], 0, 0), Ok(0), "its points are signalled");
}

#[test]
fn closing_the_file_ends_everything() {
    let model = model(|config| {
        config.faults.hang_command = Some(1);
        config.tdr_ms = 0;
    });
    let ready = client(&model).ready();
    let packets = [(); 3].map(|()| ready.good());
    for packet in packets {
        exec(&ready, packet);
    }
    drop(ready);
    assert_eq!(packets.map(|packet| packet.state()), [COMPLETED, ABORT, ABORT], "mappings outlive the file");
    let counts = model.counts();
    assert_eq!((counts.buffers_live, counts.bytes_live, counts.contexts_destroyed), (0, 0, 1));
}

#[test]
fn a_command_fails_as_told() {
    let model = model(|config| config.faults.fail_command = Some(1));
    let ready = client(&model).ready();
    let packets = [(); 3].map(|()| ready.good());
    assert_eq!(packets.map(|packet| ready.run(packet)), [COMPLETED, ERROR, COMPLETED]);
    let counts = model.counts();
    assert_eq!((counts.packets, counts.commands, counts.failed_commands), (3, 3, 1));
    assert!(model.last_fault().is_some());
}

#[test]
fn munmap_waits_for_the_commands_of_a_buffer() {
    let model = model(|config| config.faults.hang_command = Some(0));
    let ready = client(&model).ready();
    let packet = ready.good();
    let bo = ready.client.share(4096);
    let map = ready.client.map(bo, 4096);
    ready.client.exec(ready.context, packet.handle, &[bo]).unwrap();
    ready.client.unmap(map);
    assert_eq!(packet.state(), TIMEOUT, "it is over");
}

#[test]
fn memory_has_an_end() {
    let model = model(|config| config.faults.memory_limit = Some(10 << 20));
    let client = client(&model);
    let first = client.create_bo(1, 8 << 20).unwrap();
    assert_eq!(client.create_bo(1, 4 << 20), Err(Errno::NOMEM));
    assert_eq!(client.create_bo(2, HEAP_CHUNK), Err(Errno::NOMEM));
    client.close(first).unwrap();
    assert!(client.create_bo(1, 4 << 20).is_ok());
    assert_eq!(client.create_bo(1, u64::MAX), Err(Errno::NOMEM));
}

#[test]
fn user_pages_count_against_memlock() {
    let pin = |memlock| {
        let model = model(|config| config.memlock = memlock);
        let client = client(&model);
        let source = client.share(8192);
        let map = client.map(source, 8192);
        let table = [u64::from(u32::MAX) | 1 << 32, map.addr(), 8192];
        let mut a = abi::CreateBo { vaddr: addr_of(&table), r#type: 1, ..Zeroable::zeroed() };
        client.call(request::CREATE_BO, &mut a)
    };
    assert_eq!(pin(0), Err(Errno::PERM));
    assert_eq!(pin(4096), Err(Errno::NOMEM));
    assert_eq!(pin(8192), Ok(()));
}

#[test]
fn root_may_set_the_power_mode() {
    let model = model(|config| config.faults.privileged = true);
    let client = client(&model);
    let set = |param, value: u64| {
        let mut a = abi::SetState { param, buffer_size: 8, buffer: addr_of(&value) };
        client.call(request::SET_STATE, &mut a)
    };
    assert_eq!(set(0, 5), Err(Errno::INVAL));
    assert_eq!(set(0, 1 | 1 << 8), Err(Errno::INVAL));
    assert_eq!(set(1, 0), Err(Errno::OPNOTSUPP));
    assert_eq!(set(3, 2), Err(Errno::INVAL));
    assert_eq!(set(0, 1), Ok(()));
    let mut clocks = query::QueryClockMetadata::zeroed();
    let buffer = std::ptr::from_mut(&mut clocks).addr() as u64;
    client.call(request::GET_INFO, &mut abi::GetInfo { param: 3, buffer_size: 48, buffer }).unwrap();
    assert_eq!((clocks.mp_npu_clock.freq_mhz, clocks.h_clock.freq_mhz), (396, 792));
    let _heap = client.heap();
    client.create_hwctx().unwrap();
    assert_eq!(set(0, 4), Err(Errno::INVAL), "no turbo with a live context");
    assert_eq!(set(0, 3), Ok(()));
}

#[test]
fn context_ids_run_out() {
    let with_slots = |driver| {
        let model = model(|config| {
            config.slots = 2000;
            config.driver = driver;
        });
        let client = client(&model);
        let _heap = client.heap();
        let mut ids = 0;
        loop {
            match client.create_hwctx() {
                Ok((id, _)) => {
                    ids += 1;
                    assert_eq!(id, ids);
                }
                Err(errno) => break (ids, errno),
            }
        }
    };
    assert_eq!(with_slots(DriverVersion::L7_3_4), (255, Errno::BUSY));
}

#[test]
fn newer_drivers_do_not_reuse_a_context_id_at_once() {
    let model = model(|config| config.driver = DriverVersion::Aug2026);
    let client = client(&model);
    let _heap = client.heap();
    let (first, _) = client.create_hwctx().unwrap();
    client.destroy_hwctx(first).unwrap();
    assert_eq!(client.create_hwctx().unwrap().0, first + 1);
}

#[test]
fn a_heap_off_its_boundary_is_the_firmwares_to_refuse() {
    let model = model(|_| ());
    let client = client(&model);
    let base = aligned(reserve(3 * HEAP_CHUNK as usize));
    // SAFETY: inside the reservation.
    client.heap_chunk(unsafe { base.add(4096) });
    assert_eq!(client.create_hwctx(), Err(Errno::INVAL));
}

#[test]
fn a_second_chunk_needs_firmware_that_can_add_it() {
    let grow = |protocol| {
        let model = model(|config| config.protocol = protocol);
        let ready = client(&model).ready();
        let base = aligned(reserve(2 * HEAP_CHUNK as usize));
        ready.client.heap_chunk(base);
        (ready.client.dev(4096).map(drop), ready.client.create_hwctx().map(drop))
    };
    assert_eq!(grow((6, 15)), (Err(Errno::OPNOTSUPP), Err(Errno::OPNOTSUPP)));
    assert_eq!(grow((6, 18)), (Ok(()), Ok(())));
}

#[test]
fn suspend_loses_a_pdi_whose_buffer_was_closed() {
    let after = |driver, close: bool| {
        let model = model(|config| config.driver = driver);
        let ready = client(&model).ready();
        let packet = ready.good();
        assert_eq!(ready.run(packet), COMPLETED);
        if close {
            ready.client.close(ready.pdi).unwrap();
        }
        model.suspend();
        ready.run(packet)
    };
    assert_eq!(after(DriverVersion::L7_3_4, false), COMPLETED);
    assert_eq!(after(DriverVersion::L7_3_4, true), ERROR);
    assert_eq!(after(DriverVersion::Aug2026, true), COMPLETED);
}

#[test]
fn contexts_take_turns_on_the_array() {
    let model = model(|_| ());
    let (a, b) = (client(&model).ready(), client(&model).ready());
    let (packet_a, packet_b) = (a.good(), b.good());
    for _ in 0..2 {
        assert_eq!((a.run(packet_a), a.run(packet_a), b.run(packet_b)), (COMPLETED, COMPLETED, COMPLETED));
    }
    let counts = model.counts();
    assert_eq!((counts.context_switches, counts.pdi_loads, counts.commands), (3, 2, 6));
    assert_eq!(counts.ioctls["EXEC_CMD"], 6);
    assert_eq!(counts.opens, 2);
}

#[test]
fn a_fence_handed_on_signals_with_its_command() {
    let model = model(|config| config.faults.hang_command = Some(0));
    let ready = client(&model).ready();
    let client = &ready.client;
    let mut mine = drm::SyncobjCreate::zeroed();
    client.call(request::SYNCOBJ_CREATE, &mut mine).unwrap();
    let packet = ready.good();
    exec(&ready, packet);
    let mut transfer = drm::SyncobjTransfer {
        src_handle: ready.syncobj,
        dst_handle: mine.handle,
        src_point: 0,
        dst_point: 7,
        ..Zeroable::zeroed()
    };
    client.call(request::SYNCOBJ_TRANSFER, &mut transfer).unwrap();
    assert_eq!(client.wait_points(&[(mine.handle, 7)], 4, 0), Ok(0), "it has a fence");
    client.wait(mine.handle, 7);
    assert_eq!(packet.state(), TIMEOUT);
}

#[test]
fn a_carveout_is_small_and_not_flushed_by_ioctl() {
    let model = model(|config| config.mode = AddressMode::Carveout(1 << 20));
    let client = client(&model);
    let bo = client.share(512 << 10);
    assert_eq!(client.create_bo(1, 1 << 20), Err(Errno::NOMEM));
    let mut sync = abi::SyncBo { handle: bo, size: 4096, ..Zeroable::zeroed() };
    assert_eq!(client.call(request::SYNC_BO, &mut sync), Err(Errno::OPNOTSUPP));
    assert_eq!(client.create_bo(1, 0), Err(Errno::INVAL));
}

#[test]
fn a_busy_context_hides_anothers_hang() {
    use std::time::{Duration, Instant};
    // A timer so long that the busy context's thread gets its turn within it on any machine.
    let model = model(|config| {
        config.faults.hang_command = Some(0);
        config.tdr_ms = 1000;
    });
    let (hanging, busy) = (client(&model).ready(), client(&model).ready());
    let hung = hanging.good();
    exec(&hanging, hung);
    while model.counts().commands == 0 {
        std::thread::yield_now();
    }
    let packet = busy.good();
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(1500) {
        assert_eq!(busy.run(packet), COMPLETED);
        assert_eq!(hung.state(), NEW, "one and a half timeouts, and the driver sees a device at work");
    }
    hanging.client.wait(hanging.syncobj, 0);
    assert_eq!(hung.state(), TIMEOUT);
}

#[test]
fn older_drivers_do_not_flush_imported_buffers() {
    use std::os::fd::AsRawFd;
    let sync = |driver| {
        let model = model(|config| config.driver = driver);
        let client = client(&model);
        let file = rustix::fs::memfd_create("another driver's", rustix::fs::MemfdFlags::empty()).unwrap();
        rustix::fs::ftruncate(&file, 5000).unwrap();
        let mut a = drm::PrimeHandle { handle: 0, flags: 0, fd: file.as_raw_fd() };
        client.call(request::PRIME_FD_TO_HANDLE, &mut a).unwrap();
        client.unmap(client.map(a.handle, 8192));
        let mut sync = abi::SyncBo { handle: a.handle, size: 4096, ..Zeroable::zeroed() };
        client.call(request::SYNC_BO, &mut sync)
    };
    assert_eq!(sync(DriverVersion::L7_3_4), Err(Errno::OPNOTSUPP));
    assert_eq!(sync(DriverVersion::Aug2026), Ok(()));
}
