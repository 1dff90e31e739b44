//! A context that can run commands: the reference kernels' container, an empty stream, packets.

use amdxdna_ioctl::Errno;
use amdxdna_ioctl::abi::{HEAP_BASE, HEAP_CHUNK};
use runtime::reference::{Kind, xclbin};
use runtime::xclbin::Xclbin;

use super::client::{CMD, Client, Map, PAGE};
use super::verdict::{Stop, Verdict};

pub(super) const NEW: u32 = 1;
pub(super) const COMPLETED: u32 = 4;
pub(super) const ERROR: u32 = 5;
pub(super) const ABORT: u32 = 6;
pub(super) const TIMEOUT: u32 = 8;
pub(super) const START_CU: u32 = 0;
pub(super) const CMD_CHAIN: u32 = 19;
pub(super) const START_NPU: u32 = 20;

/// The header of an instruction stream of no operations, for an array of 8 columns.
pub(super) const EMPTY_STREAM: [u32; 4] = [0x0604_0100, 0x0000_0108, 0, 16];

pub(super) fn header(opcode: u32, count: u32) -> u32 {
    opcode << 23 | count << 12 | NEW
}

/// A buffer that may hold a packet, mapped.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet {
    pub(super) handle: u32,
    pub(super) map: Map,
}

impl Packet {
    pub(super) fn state(&self) -> u32 {
        self.map.word(0) & 0xf
    }
}

/// A context with a heap, one configured CU and a stream without operations.
#[derive(Clone, Debug)]
pub(super) struct Ready {
    pub(super) client: Client,
    pub(super) heap: Map,
    pub(super) context: u32,
    pub(super) syncobj: u32,
    pub(super) pdi: u32,
    pub(super) stream: u32,
    pub(super) stream_addr: u64,
}

/// The configuration of a reference kernel.
pub(super) fn pdi_of(kind: Kind) -> Result<Vec<u8>, Stop> {
    Xclbin::parse(&xclbin(kind), "MLIR_AIE").map(|container| container.pdi).map_err(Stop::fail)
}

impl Client {
    /// A DEV buffer with these bytes, flushed.
    pub(super) fn dev_with(&self, heap: Map, bytes: &[u8]) -> Result<u32, Errno> {
        let handle = self.dev(bytes.len() as u64)?;
        let map = in_heap(heap, self.address(handle)?, bytes.len());
        map.set_bytes(bytes);
        self.flush(map);
        Ok(handle)
    }

    pub(super) fn packet(&self, words: &[u32]) -> Result<Packet, Errno> {
        let handle = self.create_bo(CMD, PAGE as u64)?;
        let map = self.map(handle, PAGE)?;
        map.set_words(words);
        Ok(Packet { handle, map })
    }

    /// Heap, context, CU and stream.
    pub(super) fn ready(&self) -> Result<Ready, Stop> {
        let heap = self.heap()?;
        self.ready_in(heap, Kind::Gemv)
    }

    /// As `ready`, with a heap that is there.
    pub(super) fn ready_in(&self, heap: Map, kind: Kind) -> Result<Ready, Stop> {
        let (context, syncobj) = self.create_hwctx()?;
        let pdi = self.dev_with(heap, &pdi_of(kind)?)?;
        self.config_cu(context, &[pdi])?;
        let bytes: Vec<u8> = EMPTY_STREAM.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut page = vec![0; PAGE];
        page[..16].copy_from_slice(&bytes);
        let stream = self.dev_with(heap, &page)?;
        let stream_addr = self.address(stream)?;
        Ok(Ready { client: self.clone(), heap, context, syncobj, pdi, stream, stream_addr })
    }
}

/// The mapping of a DEV buffer in a heap of one chunk.
pub(super) fn in_heap(heap: Map, addr: u64, len: usize) -> Map {
    heap.part(addr.saturating_sub(HEAP_BASE).min(HEAP_CHUNK) as usize, len)
}

impl Ready {
    /// An IRON packet that runs a stream.
    pub(super) fn words(&self, stream: u64, bytes: u32) -> Vec<u32> {
        self.words_with(stream, bytes, &[])
    }

    /// An IRON packet that runs a stream on up to five buffers.
    pub(super) fn words_with(&self, stream: u64, bytes: u32, buffers: &[u64]) -> Vec<u32> {
        let mut words = vec![header(START_CU, 16) | 3 << 28, 1, 3, 0, stream as u32, (stream >> 32) as u32, bytes];
        for i in 0..5 {
            let addr = buffers.get(i).copied().unwrap_or(0);
            words.extend([addr as u32, (addr >> 32) as u32]);
        }
        words
    }

    /// A packet that does nothing, and does it well.
    pub(super) fn good(&self) -> Result<Packet, Errno> {
        self.client.packet(&self.words(self.stream_addr, 16))
    }

    /// Makes a packet good again, whatever an error left of it.
    pub(super) fn rebuild(&self, packet: Packet) {
        packet.map.set_words(&self.words(self.stream_addr, 16));
    }

    pub(super) fn submit(&self, packet: Packet) -> Result<u64, Errno> {
        self.client.exec(self.context, packet.handle, &[self.stream])
    }

    pub(super) fn wait(&self, seq: u64) -> Result<(), Errno> {
        self.client.wait(self.syncobj, seq)
    }

    /// Runs a packet and gives its state.
    pub(super) fn run(&self, packet: Packet) -> Result<u32, Errno> {
        let seq = self.submit(packet)?;
        self.wait(seq)?;
        Ok(packet.state())
    }

    /// Runs good packets until one completes. While the driver makes a context again after a hang it may drop commands
    /// (the fence signals, the packet stays NEW), the firmware may refuse them, or the reset that is under way may take
    /// them along (TIMEOUT); how many were lost comes back.
    pub(super) fn recovers(&self) -> Result<u32, Stop> {
        for lost in 0..200 {
            let packet = self.good()?;
            let state = self.run(packet)?;
            self.client.unmap(packet.map);
            self.client.close(packet.handle)?;
            match state {
                COMPLETED => return Ok(lost),
                NEW | ERROR | TIMEOUT => std::thread::sleep(std::time::Duration::from_millis(10)),
                other => return Err(Stop::fail(format_args!("a command after a hang: state {other}"))),
            }
        }
        Err(Stop::fail("the context does not run again"))
    }

    /// Runs a good packet of its own.
    pub(super) fn still_works(&self) -> Verdict {
        let packet = self.good()?;
        same!(self.run(packet)?, COMPLETED, "a good command, afterwards");
        self.client.unmap(packet.map);
        self.client.close(packet.handle)?;
        Ok(())
    }
}
