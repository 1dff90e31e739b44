//! Shim tile DMA: descriptors, the addresses that they generate, channels with their task queues and tokens.

use std::collections::VecDeque;

use super::memory::Piece;

/// Columns of the array.
pub(super) const COLUMNS: usize = 8;
/// Descriptors of a shim tile.
pub(crate) const DESCRIPTORS: usize = 16;
/// Tasks that a channel's queue holds.
pub(crate) const QUEUE_DEPTH: usize = 4;
/// Where the shim's DMA sees memory that the host and the device heap call address 0.
pub(super) const DDR_OFFSET: u64 = 0x8000_0000;
/// A descriptor holds 48 bits of an address, so the window's offset wraps there: the IOMMU hands out addresses from the
/// top of its 48-bit space downwards.
pub(super) const ADDRESS_MASK: u64 = (1 << 48) - 1;

/// What one execution of a descriptor walks through. Lengths, wraps and steps in 32-bit words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Walk {
    /// Byte address of the first word of the first iteration.
    pub(super) base: u64,
    /// Words of one execution.
    pub(super) length: u64,
    /// Wrap (0: none) and step of the innermost dimension.
    pub(super) d0: (u64, u64),
    /// Wrap (0: none) and step of the next.
    pub(super) d1: (u64, u64),
    /// Step of the outermost.
    pub(super) d2: u64,
    /// Iterations until the base is back, and the step between them.
    pub(super) iteration: (u64, u64),
    /// The iteration that the first execution finds.
    pub(super) current: u64,
}

impl Walk {
    /// One contiguous run of `length` words.
    pub(super) fn linear(base: u64, length: u64) -> Self {
        Self { base, length, d0: (0, 1), d1: (0, 1), d2: 1, iteration: (1, 1), current: 0 }
    }

    /// Reads the eight words of a descriptor; the address is the shim's, with its offset.
    pub(super) fn decode(words: &[u32; 8]) -> Result<Self, String> {
        let field = |word: usize, shift: u32, bits: u32| u64::from(words[word] >> shift & ((1 << bits) - 1));
        let flaw = if field(7, 25, 1) == 0 {
            "is not valid (bit 25 of word 7)"
        } else if field(7, 26, 1) != 0 {
            "chains to another, which no reference kernel does"
        } else if field(7, 12, 1) != 0 {
            "acquires a lock, which no reference kernel does"
        } else if field(7, 31, 1) != 0 {
            "suppresses TLAST, which no reference kernel does"
        } else if field(2, 30, 1) != 0 {
            "sends packets, which no reference kernel does"
        } else if words[0] == 0 {
            "has length 0"
        } else {
            ""
        };
        if !flaw.is_empty() {
            return Err(flaw.to_owned());
        }
        let address = u64::from(words[2] & 0xFFFF) << 32 | u64::from(words[1] & !3);
        let base = address.wrapping_sub(DDR_OFFSET) & ADDRESS_MASK;
        Ok(Self {
            base,
            length: u64::from(words[0]),
            d0: (field(3, 20, 10), field(3, 0, 20) + 1),
            d1: (field(4, 20, 10), field(4, 0, 20) + 1),
            d2: field(5, 0, 20) + 1,
            iteration: (field(6, 20, 6) + 1, field(6, 0, 20) + 1),
            current: field(6, 26, 6),
        })
    }

    /// Appends the bytes of words `from..from + count` of execution `execution`, as contiguous runs.
    pub(super) fn pieces(&self, execution: u64, from: u64, count: u64, out: &mut Vec<Piece>) {
        let iteration = (self.current + execution) % self.iteration.0;
        let base = self.base + 4 * iteration * self.iteration.1;
        let (mut x, end) = (from, from + count);
        while x < end {
            let (offset, left) = match self.d0 {
                (0, 1) => (x, end - x),
                (0, step) => (x * step, 1),
                (wrap, step) => {
                    let (i, t) = (x % wrap, x / wrap);
                    let outer = match self.d1 {
                        (0, step) => t * step,
                        (wrap, step) => t % wrap * step + t / wrap * self.d2,
                    };
                    (i * step + outer, if step == 1 { wrap - i } else { 1 })
                }
            };
            let run = left.min(end - x);
            let piece = Piece { addr: base + 4 * offset, len: 4 * run };
            match out.last_mut() {
                Some(last) if last.addr + last.len == piece.addr => last.len += piece.len,
                _ => out.push(piece),
            }
            x += run;
        }
    }
}

/// A queue entry: executions of one descriptor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Task {
    /// What each execution walks through.
    pub(super) walk: Walk,
    /// Executions.
    pub(super) runs: u64,
    /// Whether its end gives a token.
    pub(super) token: bool,
    /// The descriptor it came from.
    pub(super) descriptor: usize,
}

/// A DMA channel: the queue, how far its first task has come, and tokens that nobody has taken yet.
#[derive(Debug, Default)]
pub(super) struct Lane {
    tasks: VecDeque<Task>,
    execution: u64,
    word: u64,
    pushed: u64,
    finished: u64,
    /// For each token, how many tasks were finished when it was given.
    tokens: VecDeque<u64>,
    /// How many tasks are known to be finished, from tokens taken.
    known: u64,
}

impl Lane {
    /// As new, with the memory it had.
    fn clear(&mut self) {
        self.tasks.clear();
        self.tokens.clear();
        let (tasks, tokens) = (std::mem::take(&mut self.tasks), std::mem::take(&mut self.tokens));
        *self = Self { tasks, tokens, ..Self::default() };
    }

    /// Whether the queue is full.
    pub(super) fn full(&self) -> bool {
        self.tasks.len() >= QUEUE_DEPTH
    }

    /// Queues a task.
    pub(super) fn push(&mut self, task: Task) {
        self.pushed += 1;
        self.tasks.push_back(task);
    }

    /// Whether a task that is not finished uses this descriptor.
    pub(super) fn uses(&self, descriptor: usize) -> bool {
        self.tasks.iter().any(|task| task.descriptor == descriptor)
    }

    /// Words queued and not moved yet.
    pub(super) fn available(&self) -> u64 {
        let queued: u64 = self.tasks.iter().map(|task| task.walk.length * task.runs).sum();
        let moved = self.tasks.front().map_or(0, |task| self.execution * task.walk.length + self.word);
        queued - moved
    }

    /// Moves the next `words` words, of which there are enough; `out` becomes the memory they lie in, in order.
    pub(super) fn take(&mut self, mut words: u64, out: &mut Vec<Piece>) {
        out.clear();
        while words > 0 {
            let Some(task) = self.tasks.front() else { break };
            let count = words.min(task.walk.length - self.word);
            task.walk.pieces(self.execution, self.word, count, out);
            words -= count;
            self.word += count;
            if self.word < task.walk.length {
                break;
            }
            (self.word, self.execution) = (0, self.execution + 1);
            if self.execution == task.runs {
                let token = task.token;
                self.execution = 0;
                self.tasks.pop_front();
                self.finished += 1;
                if token {
                    self.tokens.push_back(self.finished);
                }
            }
        }
    }

    /// Takes a token, if there is one.
    pub(super) fn take_token(&mut self) -> bool {
        self.tokens.pop_front().is_some_and(|finished| {
            self.known = finished;
            true
        })
    }

    /// Whether every task is known to be finished.
    pub(super) fn settled(&self) -> bool {
        self.known == self.pushed
    }
}

/// Which way a channel moves data, seen from the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// Array to memory.
    S2mm,
    /// Memory to array.
    Mm2s,
}

/// The channels of all shim tiles.
#[derive(Debug, Default)]
pub(super) struct Lanes([[Lane; 4]; COLUMNS]);

impl Lanes {
    /// A channel, by column, direction and index 0 or 1.
    pub(super) fn get(&mut self, column: usize, direction: Direction, index: usize) -> &mut Lane {
        &mut self.0[column][index % 2 + if direction == Direction::Mm2s { 2 } else { 0 }]
    }

    /// For the next dispatch: nothing queued, no tokens.
    pub(super) fn clear(&mut self) {
        self.0.iter_mut().flatten().for_each(Lane::clear);
    }

    /// Every channel, with its name.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, Direction, usize, &Lane)> {
        self.0.iter().enumerate().flat_map(|(column, lanes)| {
            lanes.iter().enumerate().map(move |(i, lane)| {
                let direction = if i < 2 { Direction::S2mm } else { Direction::Mm2s };
                (column, direction, i % 2, lane)
            })
        })
    }

    /// Whether a task of this column that is not finished uses the descriptor.
    pub(super) fn uses(&self, column: usize, descriptor: usize) -> bool {
        self.0[column].iter().any(|lane| lane.uses(descriptor))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The word offsets of a task, by the plain definition.
    fn words(descriptor: [u32; 8], runs: u64) -> Vec<u64> {
        let mut lane = Lane::default();
        let walk = Walk::decode(&descriptor).unwrap();
        lane.push(Task { walk, runs, token: false, descriptor: 0 });
        let total = lane.available();
        let mut out = Vec::new();
        // In uneven bites, as a kernel might take them.
        let (mut bite, mut taken) = (1, Vec::new());
        while lane.available() > 0 {
            let n = lane.available().min(bite);
            lane.take(n, &mut taken);
            for piece in &taken {
                out.extend((0..piece.len / 4).map(|i| (piece.addr - walk.base) / 4 + i));
            }
            bite = bite * 3 + 1;
        }
        assert_eq!(out.len() as u64, total);
        out
    }

    /// Found under the real driver with an IOMMU domain of its own, whose first addresses end at 1 << 48.
    #[test]
    fn an_iommu_address_near_the_top_wraps_in_the_descriptor() {
        let bus: u64 = 0xffff_f616_3000;
        let held = bus.wrapping_add(DDR_OFFSET) & ADDRESS_MASK;
        let walk = Walk::decode(&[4, held as u32, (held >> 32) as u32, 0, 0, 0, 0, 0x0200_0000]).unwrap();
        assert_eq!(walk.base, bus);
    }

    /// An NPU1 GEMM 256x256x256 of 16-bit values, as mlir-aie's tools emit it.
    #[test]
    fn a_of_a_real_gemm_is_read_in_tiles_eight_times() {
        let bd = [0x1000, 0x8000_0000, 0, 0x0100_0000, 0x8200_007F, 0x0200_000F, 0, 0x0200_0000];
        let got = words(bd, 8);
        let mut expected = Vec::new();
        for _ in 0..8 {
            for tile in 0..8 {
                for row in 0..32 {
                    expected.extend((0..16).map(|i| tile * 16 + row * 128 + i));
                }
            }
        }
        assert_eq!(got, expected);
    }

    #[test]
    fn c_of_a_real_gemm_covers_every_word_of_its_rows_once() {
        let bd = [0x2000, 0x8000_0000, 0, 0x0200_0000, 0x8200_00FF, 0x0200_001F, 0x0010_1FFF, 0x0200_0000];
        let got = words(bd, 2);
        // 32-word rows of a 128-word wide matrix: step 256 words between rows, tiles 32 words apart, 8192 between runs.
        let mut expected = Vec::new();
        for run in 0..2 {
            for tile in 0..8 {
                for row in 0..32 {
                    expected.extend((0..32).map(|i| run * 8192 + tile * 32 + row * 256 + i));
                }
            }
        }
        assert_eq!(got, expected);
        let mut sorted = got.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), got.len());
    }

    #[test]
    fn iterations_wrap_and_go_on_from_the_current_one() {
        // Two words a run; three iterations 100 words apart, starting at the third.
        let bd = [2, 0x8000_0000, 0, 0, 0, 0, 2 << 26 | 2 << 20 | 99, 0x0200_0000];
        assert_eq!(words(bd, 4), [200, 201, 0, 1, 100, 101, 200, 201]);
    }

    #[test]
    fn strided_words_and_an_unbounded_second_dimension() {
        let bd = [5, 0x8000_0000, 0, 2 << 20 | 2, 9, 0, 0, 0x0200_0000];
        assert_eq!(words(bd, 1), [0, 3, 10, 13, 20]);
        let bd = [3, 0x8000_0000, 0, 4, 0, 0, 0, 0x0200_0000];
        assert_eq!(words(bd, 1), [0, 5, 10]);
    }

    #[test]
    fn descriptors_that_cannot_run_are_refused() {
        let good = [1, 0x8000_0000, 0, 0, 0, 0, 0, 0x0200_0000];
        assert!(Walk::decode(&good).is_ok());
        for (word, value) in [(0, 0), (2, 1 << 30), (7, 0), (7, 3 << 25), (7, 0x0200_1000)] {
            let mut bad = good;
            bad[word] = value;
            assert!(Walk::decode(&bad).is_err(), "word {word} = {value:#x}");
        }
    }

    #[test]
    fn tokens_come_in_the_order_of_tasks_and_settle_what_they_prove() {
        let mut lane = Lane::default();
        for token in [false, true, true] {
            lane.push(Task { walk: Walk::linear(0, 4), runs: 2, token, descriptor: 3 });
        }
        assert!(!lane.take_token() && lane.uses(3));
        let mut taken = Vec::new();
        lane.take(16, &mut taken);
        assert_eq!(taken.iter().map(|p| p.len).sum::<u64>(), 64);
        assert!(lane.take_token() && !lane.settled() && !lane.take_token());
        lane.take(8, &mut taken);
        assert!(lane.take_token() && lane.settled() && !lane.uses(3));
        lane.push(Task { walk: Walk::linear(0, 4), runs: 1, token: true, descriptor: 3 });
        lane.take(4, &mut taken);
        lane.clear();
        assert!(lane.settled() && !lane.take_token() && lane.available() == 0);
    }
}
