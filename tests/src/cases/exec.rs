//! EXEC_CMD and what becomes of single packets.

use amdxdna_ioctl::Errno;
use amdxdna_ioctl::abi::{self, HEAP_BASE, request};
use bytemuck::Zeroable;
use runtime::reference::{Format, GemvSpec, Order, gemv_stream};

use super::Expect::Same;
use super::client::{Client, Map, PAGE, SHARE};
use super::ctx::Ctx;
use super::ready::{CMD_CHAIN, COMPLETED, ERROR, NEW, Packet, Ready, START_CU, START_NPU, header, in_heap};
use super::verdict::{Stop, Verdict};

cases! { Exec;
    order_of_checks: Same("EXEC_CMD: which check comes first, and each one's errno");
    arguments: Same("4095 argument handles are no mistake in themselves, 4096 are");
    listed_twice: Same("a buffer listed twice: EALREADY");
    sequence: Same("numbers begin at 0, one a success; failures take none");
    completes: Same("a good command: state 4, every other word as it was");
    share_packet: Same("a SHARE buffer holds a packet as well as a CMD one");
    multiplies: Same("a matrix times a vector through shim DMA gives the product");
    multiplies_again: Same("the same packet and buffers run again and give the same bytes");
    unlisted: Same("buffers that EXEC_CMD does not list are read all the same");
    length_in_words: Same("a stream's length in words is taken as well");
    start_npu: Same("START_NPU runs a stream; 35 words of arguments are too many");
    refused_packets: Same("a packet that the driver refuses signals its fence and stays NEW");
    no_payload: Same("START_CU without a payload runs with nothing");
    firmware_error: Same("a firmware error: state 5, every word behind the header all ones; the next command runs");
    wild_address: Same("a stream that reads where no buffer is ends in state 5, and the next command runs");
    long_stream: Same("a stream whose header and packet disagree, or that leaves its buffer: state 5");
    unconfigured: Same("before CONFIG_CU commands end in state 5");
    unknown_unit: Same("a unit that is not configured: state 5");
    in_order: Same("twelve commands at once end in order");
    polled: Same("the state can be polled without any wait");
    closed_in_flight: Same("buffers closed in flight live until their command is over");
    unmapped_in_flight: Same("munmap waits for the commands that list the buffer");
    header_bits: Same("bits 4 to 9 of the header stay");
    type_bits: Same("the type in bits 28 to 31 is ignored");
    thousand: Same("a thousand commands, no more than four under way");
}

/// A GEMV's buffers and streams: y = W x with W of 64 x 512.
pub(super) struct Product {
    packet: Packet,
    y: Map,
    buffers: [u32; 4],
    want: Vec<f32>,
}

const ROWS: usize = 64;
const COLUMNS: usize = 512;

impl Product {
    pub(super) fn new(ready: &Ready) -> Result<Self, Stop> {
        let spec = GemvSpec { m: ROWS, k: COLUMNS, order: Order::Rows, bias: false, format: Format::F32 };
        let stream = gemv_stream(&spec).map_err(Stop::fail)?;
        let client = &ready.client;
        let stream_bo = client.dev_with(ready.heap, &stream)?;
        let x: Vec<f32> = (0..COLUMNS).map(|i| (i % 7) as f32 - 3.0).collect();
        // Small whole numbers: sums are exact in any order.
        let weight = |row: usize, column: usize| ((row * 31 + column * 17) % 11) as f32 - 5.0;
        let mut w = Vec::with_capacity(ROWS * COLUMNS);
        for group in 0..ROWS / 8 {
            for block in 0..COLUMNS / 8 {
                for row in 0..8 {
                    w.extend((0..8).map(|i| weight(group * 8 + row, block * 8 + i)));
                }
            }
        }
        let want = (0..ROWS).map(|r| (0..COLUMNS).map(|c| weight(r, c) * x[c]).sum()).collect();
        let (x, w) = (shared(client, &x)?, shared(client, &w)?);
        let y = shared(client, &[f32::NAN; ROWS])?;
        let addresses = [client.address(x.0)?, client.address(w.0)?, client.address(y.0)?];
        let words = ready.words_with(client.address(stream_bo)?, stream.len() as u32, &addresses);
        Ok(Self { packet: client.packet(&words)?, y: y.1, buffers: [stream_bo, x.0, w.0, y.0], want })
    }

    /// Runs it with every buffer listed, and checks the product.
    pub(super) fn run(&self, ready: &Ready) -> Verdict {
        self.run_with(ready, &self.buffers)
    }

    fn run_with(&self, ready: &Ready, args: &[u32]) -> Verdict {
        self.y.set_words(&[f32::NAN.to_bits(); ROWS]);
        ready.client.flush(self.y);
        let seq = ready.client.exec(ready.context, self.packet.handle, args)?;
        ready.wait(seq)?;
        same!(self.packet.state(), COMPLETED);
        ready.client.flush(self.y);
        let got: Vec<f32> = self.y.words(0, ROWS).into_iter().map(f32::from_bits).collect();
        same!(got, self.want);
        Ok(())
    }
}

/// A SHARE buffer with these numbers, flushed.
fn shared(client: &Client, values: &[f32]) -> Result<(u32, Map), Stop> {
    let len = (values.len() * 4).next_multiple_of(PAGE);
    let bo = client.share(len as u64)?;
    let map = client.map(bo, len)?;
    map.set_words(&values.iter().map(|x| x.to_bits()).collect::<Vec<_>>());
    client.flush(map);
    Ok((bo, map))
}

fn multiplies(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let product = Product::new(&ready)?;
    product.run(&ready)
}

fn multiplies_again(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let product = Product::new(&ready)?;
    for _ in 0..5 {
        product.run(&ready)?;
    }
    Ok(())
}

fn unlisted(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let product = Product::new(&ready)?;
    product.run_with(&ready, &[])
}

fn arguments(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let packet = ready.good()?;
    let exec = |count: usize| ready.client.exec(ready.context, packet.handle, &vec![u32::MAX; count]);
    same!(exec(4096), Err(Errno::INVAL));
    same!(exec(4095), Err(Errno::NOENT), "no such buffers, but not too many");
    let handles = (0..64).map(|_| ready.client.share(4096)).collect::<Result<Vec<_>, _>>()?;
    same!(ready.client.exec(ready.context, packet.handle, &handles), Ok(0));
    ready.wait(0)?;
    same!(packet.state(), COMPLETED);
    Ok(())
}

fn share_packet(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let handle = ready.client.create_bo(SHARE, PAGE as u64)?;
    let packet = Packet { handle, map: ready.client.map(handle, PAGE)? };
    ready.rebuild(packet);
    same!(ready.run(packet)?, COMPLETED);
    Ok(())
}

fn wild_address(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    // Below the heap's window, above it, and far from anything.
    for addr in [0x1000, HEAP_BASE - 4096, HEAP_BASE + (512 << 20), 0x7fff_dead_b000] {
        let packet = ready.client.packet(&ready.words(addr, 16))?;
        same!(ready.run(packet)?, ERROR, "a stream at {addr:#x}");
    }
    ready.still_works()
}

fn polled(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let packet = ready.good()?;
    ready.submit(packet)?;
    // The runner's deadline ends this if the state never comes.
    while packet.state() < COMPLETED {
        std::thread::yield_now();
    }
    same!(packet.state(), COMPLETED);
    Ok(())
}

fn unmapped_in_flight(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let product = Product::new(&ready)?;
    for _ in 0..4 {
        let seq = ready.client.exec(ready.context, product.packet.handle, &product.buffers)?;
        let bo = ready.client.share(4096)?;
        let map = ready.client.map(bo, 4096)?;
        let packet = ready.good()?;
        let next = ready.client.exec(ready.context, packet.handle, &[bo])?;
        ready.client.unmap(map);
        if ctx.sva() {
            same!(packet.state(), COMPLETED, "over before the mapping was gone");
        }
        ready.wait(seq)?;
        ready.wait(next)?;
        same!((product.packet.state(), packet.state()), (COMPLETED, COMPLETED));
    }
    Ok(())
}

fn type_bits(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    for kind in [0u32, 1, 4, 15] {
        let mut words = ready.words(ready.stream_addr, 16);
        words[0] = words[0] & 0x0fff_ffff | kind << 28;
        let packet = ready.client.packet(&words)?;
        same!(ready.run(packet)?, COMPLETED, "type {kind}");
    }
    Ok(())
}

fn thousand(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let packets = [ready.good()?, ready.good()?, ready.good()?, ready.good()?];
    let mut points = [None; 4];
    for i in 0..1000 {
        if let Some(seq) = points[i % 4] {
            ready.wait(seq)?;
            same!(packets[i % 4].state(), COMPLETED, "command {i}");
        }
        points[i % 4] = Some(ready.submit(packets[i % 4])?);
    }
    same!(points[3], Some(999));
    ready.wait(999)?;
    Ok(())
}

fn order_of_checks(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let client = &ready.client;
    let packet = ready.good()?;
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
        ("no context", abi::ExecCmd { hwctx: ready.context + 100, ..good }, Errno::INVAL),
    ] {
        same!(exec(a), Err(errno), "{what}");
    }
    same!(
        client.exec(ready.context + 100, packet.handle, &[99]),
        Err(Errno::NOENT),
        "an unknown argument comes before the context"
    );
    same!(client.exec(ready.context, packet.handle, &[]), Ok(0), "no arguments are fine");
    client.wait(ready.syncobj, 0)?;
    Ok(())
}

fn listed_twice(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let packet = ready.good()?;
    let exec = |args: &[u32]| ready.client.exec(ready.context, packet.handle, args);
    same!(exec(&[ready.stream, ready.pdi, ready.stream]), Err(Errno::ALREADY));
    same!(exec(&[ready.stream, ready.pdi]), Ok(0));
    ready.client.wait(ready.syncobj, 0)?;
    Ok(())
}

fn sequence(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let packet = ready.good()?;
    for seq in 0..3 {
        same!(ready.client.exec(ready.context, packet.handle, &[77]), Err(Errno::NOENT));
        same!(ready.client.exec(ready.context, packet.handle, &[]), Ok(seq));
        ready.client.wait(ready.syncobj, seq)?;
    }
    Ok(())
}

fn completes(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let packet = ready.good()?;
    let before = packet.map.words(1, 20);
    same!(ready.run(packet)?, COMPLETED);
    same!(packet.map.words(1, 20), before, "nothing but the state changes");
    same!(packet.map.word(0), 0x3001_0004);
    Ok(())
}

fn length_in_words(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let packet = ready.client.packet(&ready.words(ready.stream_addr, 4))?;
    same!(ready.run(packet)?, COMPLETED);
    Ok(())
}

fn start_npu(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let addr = ready.stream_addr as u32;
    let packet = ready.client.packet(&[header(START_NPU, 7), 1, addr, 0, 16, 0, 0, 0])?;
    same!(ready.run(packet)?, COMPLETED);
    let mut too_long = vec![header(START_NPU, 5 + 35), 1, addr, 0, 16, 0];
    too_long.extend([0; 35]);
    packet.map.set_words(&too_long);
    same!(ready.run(packet)?, NEW, "35 words are too many in every layout");
    Ok(())
}

/// Runs packets that the driver must drop: the fence signals and the packet says nothing.
pub(super) fn expect_untouched(ready: &Ready, packets: &[Vec<u32>]) -> Verdict {
    for words in packets {
        let packet = ready.client.packet(words)?;
        same!(ready.run(packet)?, NEW, "{words:x?}");
        same!(packet.map.words(0, words.len()), *words);
    }
    Ok(())
}

fn refused_packets(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
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
    )?;
    // Longer than its buffer: the payload is as good as absent, and START_CU runs without arguments.
    let packet = ready.client.packet(&long)?;
    same!(ready.run(packet)?, COMPLETED);
    Ok(())
}

fn no_payload(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let packet = ready.client.packet(&[header(START_CU, 1), 1])?;
    same!(ready.run(packet)?, COMPLETED);
    Ok(())
}

/// Whether an error overwrote a packet from a word on.
pub(super) fn all_ones(packet: Packet, from: usize) -> Verdict {
    same!(packet.map.words(from, 1024 - from), vec![u32::MAX; 1024 - from], "words of a packet that failed");
    Ok(())
}

fn firmware_error(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let packet = ready.client.packet(&ready.words(0x0400_0000 + (60 << 20), 16))?;
    same!(ready.run(packet)?, ERROR, "no stream there");
    same!(packet.map.word(0) >> 4, 0x0300_1000);
    all_ones(packet, 1)?;
    ready.rebuild(packet);
    same!(ready.run(packet)?, COMPLETED, "the context goes on");
    Ok(())
}

fn long_stream(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let map = in_heap(ready.heap, ready.stream_addr, 16);
    // A device behind a bus does not know where a buffer ends in the heap; the model's driver layer does.
    let past = if ctx.in_process().is_some() { 4100 } else { 128 << 20 };
    for (size, told) in [(past, past), (u32::MAX, u32::MAX), (4096, 4100), (12, 12)] {
        map.set_word(3, size);
        ready.client.flush(map);
        let packet = ready.client.packet(&ready.words(ready.stream_addr, told))?;
        same!(ready.run(packet)?, ERROR, "{size} by its header, {told} by its packet");
    }
    Ok(())
}

fn unconfigured(ctx: &Ctx) -> Verdict {
    let client = ctx.open()?;
    let ready = client.ready()?;
    let (context, syncobj) = client.create_hwctx()?;
    let packet = ready.good()?;
    let seq = client.exec(context, packet.handle, &[])?;
    client.wait(syncobj, seq)?;
    same!(packet.state(), ERROR);
    Ok(())
}

fn unknown_unit(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let mut words = ready.words(ready.stream_addr, 16);
    words[1] = 1 << 5;
    let packet = ready.client.packet(&words)?;
    same!(ready.run(packet)?, ERROR);
    Ok(())
}

fn in_order(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let packets = (0..12).map(|_| ready.good()).collect::<Result<Vec<_>, _>>()?;
    for (seq, packet) in packets.iter().enumerate() {
        same!(ready.client.exec(ready.context, packet.handle, &[ready.stream]), Ok(seq as u64));
    }
    ready.client.wait(ready.syncobj, 11)?;
    for packet in packets {
        same!(packet.state(), COMPLETED);
    }
    Ok(())
}

fn closed_in_flight(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let packets = (0..4).map(|_| ready.good()).collect::<Result<Vec<_>, _>>()?;
    for packet in &packets {
        ready.client.exec(ready.context, packet.handle, &[ready.stream])?;
        ready.client.close(packet.handle)?;
    }
    // The stream's buffer goes when the last command that lists it is over.
    ready.client.close(ready.stream)?;
    ready.client.wait(ready.syncobj, 3)?;
    for packet in packets {
        same!(packet.state(), COMPLETED);
    }
    Ok(())
}

fn header_bits(ctx: &Ctx) -> Verdict {
    let ready = ctx.open()?.ready()?;
    let mut words = ready.words(ready.stream_addr, 16);
    words[0] |= 0x3f0;
    let packet = ready.client.packet(&words)?;
    same!(ready.run(packet)?, COMPLETED);
    same!(packet.map.word(0), 0x3001_03f4);
    Ok(())
}
