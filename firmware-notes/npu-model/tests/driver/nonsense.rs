//! Nonsense: whatever comes, an errno or a state comes back, and the next good command runs.

use amdxdna_ioctl::Errno;
use npu_model::{AddressMode, Config, Model};

use super::harness::{CMD_CHAIN, COMPLETED, Client, NEW, Node, Ready, START_CU, START_NPU, header};

/// A generator that is the same on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Mostly small, sometimes huge, sometimes near a border.
    fn odd(&mut self) -> u64 {
        let raw = self.next();
        match raw % 8 {
            0 => u64::MAX - raw % 3,
            1 => raw,
            2 => 1 << (raw >> 8 & 63),
            3 => 0,
            _ => raw >> 8 & 15,
        }
    }
}

fn ready(config: Config) -> (std::sync::Arc<Model>, Ready) {
    let model = Model::new(config);
    let ready = Node { opener: &*model }.open().ready();
    (model, ready)
}

#[test]
fn packets_of_random_words() {
    let (_model, ready) = ready(Config { threads: 1, ..Config::default() });
    let packet = ready.good();
    let sub = ready.good();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut outcomes = [0u32; 16];
    for _ in 0..3000 {
        let mut words = ready.words(ready.stream_addr, 16);
        let opcode = [START_CU, START_NPU, 21, 22, CMD_CHAIN, random.next() as u32 & 31][random.next() as usize % 6];
        words[0] = header(opcode, random.next() as u32 % 40) | random.next() as u32 & 0xc00;
        for _ in 0..random.next() % 4 {
            let at = 1 + random.next() as usize % 16;
            words[at] = [random.odd() as u32, sub.handle, ready.stream_addr as u32][random.next() as usize % 3];
        }
        packet.map.set_words(&words);
        let state = ready.run(packet);
        outcomes[state as usize] += 1;
        sub.map.set_words(&ready.words(ready.stream_addr, 16));
    }
    let [new, completed, error] = [NEW, COMPLETED, 5].map(|state| outcomes[state as usize]);
    assert_eq!(new + completed + error, 3000, "{outcomes:?}");
    assert!(new > 100 && completed > 10 && error > 100, "all three ends are seen: {outcomes:?}");
    packet.map.set_words(&ready.words(ready.stream_addr, 16));
    assert_eq!(ready.run(packet), COMPLETED);
}

/// Offsets of the words of each argument that are pointers; all others are fair game.
const POINTERS: &[(u32, usize, &[usize])] = &[
    (0x40, 56, &[16]),
    (0x41, 8, &[]),
    (0x42, 24, &[8]),
    (0x43, 32, &[8]),
    (0x44, 48, &[]),
    (0x45, 24, &[]),
    (0x46, 56, &[32]),
    (0x47, 16, &[8]),
    (0x48, 16, &[8]),
    (0x49, 16, &[]),
    (0x4a, 24, &[16]),
    (0x00, 64, &[24, 40, 56]),
    (0x09, 8, &[]),
    (0x0c, 16, &[]),
    (0xbf, 8, &[]),
    (0xc0, 8, &[]),
    (0xc3, 40, &[0]),
    (0xca, 48, &[0, 8]),
    (0xcb, 24, &[0, 8]),
    (0xcc, 32, &[]),
    (0xcd, 24, &[0, 8]),
    (0xd1, 16, &[8]),
];

fn random_calls(client: &Client, random: &mut Random, scratch: &mut [u64]) {
    let at = scratch.as_mut_ptr().addr() as u64;
    for _ in 0..20_000 {
        let (nr, size, pointers) = POINTERS[random.next() as usize % POINTERS.len()];
        let mut argument = vec![0u8; size];
        for chunk in argument.chunks_exact_mut(4) {
            chunk.copy_from_slice(&(random.odd() as u32).to_le_bytes());
        }
        for &offset in pointers {
            let pointer = [at, at, at, 0, 8, u64::MAX - 100][random.next() as usize % 6];
            argument[offset..offset + 8].copy_from_slice(&pointer.to_le_bytes());
        }
        if matches!(nr, 0xc3 | 0xca) {
            // No deadline of the far future, and none that TRANSFER would wait for.
            let offset = if nr == 0xc3 { 8 } else { 16 };
            argument[offset..offset + 8].copy_from_slice(&(random.next() % 1000).to_le_bytes());
        }
        if nr == 0xcc {
            argument[24] &= !2;
        }
        scratch[..64].fill(0);
        let request = 3 << 30 | (size as u32) << 16 | 0x6400 | nr;
        // SAFETY: all pointers lead to the scratch memory, which is larger than anything that is read or written
        // there, or to addresses that are refused.
        let result = unsafe { client.door.ioctl(request, &mut argument) };
        assert_ne!(result, Err(Errno::NOSYS));
    }
}

#[test]
fn ioctls_of_random_words() {
    let base = Config { threads: 1, ..Config::default() };
    for config in [base.clone(), Config { coherent: false, mode: AddressMode::Iova, ..base }] {
        let (model, ready) = ready(config);
        let mut random = Random(0x2545_f491_4f6c_dd1d);
        // MOST handles of one call, twice over.
        let mut scratch = vec![0u64; 1 << 20];
        random_calls(&ready.client, &mut random, &mut scratch);
        drop(ready);
        let counts = model.counts();
        assert_eq!((counts.buffers_live, counts.bytes_live), (0, 0));
        assert_eq!(counts.contexts_created, counts.contexts_destroyed);
        assert!(counts.ioctls.len() > 20);
    }
}
