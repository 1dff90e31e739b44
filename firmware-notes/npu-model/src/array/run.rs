//! One dispatch of a reference kernel: the controller's operations in order, the registers they hit, and the kernel
//! that moves as far as a wait demands and no further.
//!
//! Nothing is done ahead of a wait: a stream that works here does not depend on how fast the DMA happens to be.

use host_ops::pool::Pool;

use super::kernel::{BARRIER, Kind, PARAMETER_ADDRESS, PARAMETERS, job};
use super::memory::DeviceMemory;
use super::shim::{ADDRESS_MASK, COLUMNS, DDR_OFFSET, DESCRIPTORS, Direction, Lanes, Task, Walk};
use super::step::{Buffers, Engine, Progress, Scratch, Traffic};
use super::txn::Op;

/// Rows of the array: shim, memory tile, four of cores.
pub(super) const ROWS: usize = 6;
/// First row of cores.
pub(super) const CORE_ROW: usize = 2;
/// Buffer arguments whose addresses the firmware itself moves into the shim's window.
const PATCHED_BY_FIRMWARE: usize = 5;

/// A tile and a place in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) column: usize,
    pub(super) row: usize,
    pub(super) offset: u32,
}

impl Place {
    /// Takes an address apart; the column must be one of the partition's.
    pub(super) fn of(addr: u32) -> Result<Self, String> {
        let place = Self { column: (addr >> 25) as usize, row: (addr >> 20 & 0x1F) as usize, offset: addr & 0xF_FFFF };
        if place.column >= COLUMNS || place.row >= ROWS || !addr.is_multiple_of(4) {
            return Err(format!("register {addr:#x} is in no tile of an array of {COLUMNS} columns and {ROWS} rows"));
        }
        Ok(place)
    }
}

/// A shim descriptor's words, and what this stream did to them.
#[derive(Clone, Copy, Debug, Default)]
struct Descriptor {
    words: [u32; 8],
    /// Bit i: word i was written.
    written: u8,
    /// Whether an address was put in after word 1 was written.
    patched: bool,
}

/// The state of a dispatch.
pub(super) struct Run<'a> {
    kind: Kind,
    args: &'a [u64],
    memory: &'a dyn DeviceMemory,
    pool: &'a Pool,
    buffers: &'a mut Buffers,
    descriptors: [[Descriptor; DESCRIPTORS]; COLUMNS],
    lanes: &'a mut Lanes,
    /// The words of each core's data memory that it reads as its runtime parameters.
    parameters: [[[Option<u32>; PARAMETERS]; 4]; COLUMNS],
    /// Runtime parameters of each released core.
    released: [[Option<[u32; PARAMETERS]>; 4]; COLUMNS],
    engine: Option<Engine>,
    /// Whether a wait was met that hardware would wait in for ever.
    pub(super) hangs: bool,
    pub(super) traffic: Traffic,
}

impl<'a> Run<'a> {
    pub(super) fn new(
        kind: Kind,
        args: &'a [u64],
        memory: &'a dyn DeviceMemory,
        pool: &'a Pool,
        scratch: &'a mut Scratch,
    ) -> Self {
        scratch.lanes.clear();
        Self {
            kind,
            args,
            memory,
            pool,
            buffers: &mut scratch.buffers,
            descriptors: Default::default(),
            lanes: &mut scratch.lanes,
            parameters: Default::default(),
            released: Default::default(),
            engine: None,
            hangs: false,
            traffic: Traffic::default(),
        }
    }

    /// Does one operation.
    pub(super) fn op(&mut self, op: Op<'_>) -> Result<(), String> {
        match op {
            Op::Write { addr, value } => self.write(addr, value),
            Op::BlockWrite { addr, data } => {
                for (i, word) in data.as_chunks().0.iter().enumerate() {
                    self.write(addr.wrapping_add(4 * i as u32), u32::from_le_bytes(*word))?;
                }
                Ok(())
            }
            Op::MaskWrite { addr, value, mask } => {
                let place = Place::of(addr)?;
                match channel(place) {
                    Some((.., Register::Control)) if mask & !0xFF00 == 0 || value & mask & !0xFF00 == 0 => Ok(()),
                    _ => Err(format!("masked write of {value:#x} (mask {mask:#x}) to register {addr:#x}")),
                }
            }
            Op::MaskPoll { addr } => Err(format!("poll of register {addr:#x}, which no reference kernel does")),
            Op::Nothing => Ok(()),
            Op::Wait { direction, row, column, rows, columns, channel } => {
                self.wait(direction, row, column, rows, columns, channel)
            }
            Op::Patch { register, argument, offset } => self.patch(register, argument, offset),
            Op::Foreign(name) => Err(format!("{name}, which no reference kernel does")),
        }
    }

    /// After the last operation: nothing may be under way.
    pub(super) fn finish(&mut self) -> Result<(), String> {
        for (column, direction, index, lane) in self.lanes.iter() {
            if direction == Direction::S2mm && !lane.settled() {
                return Err(format!(
                    "the stream ends without a wait for its output on {}",
                    name(column, direction, index)
                ));
            }
        }
        for (column, direction, index, lane) in self.lanes.iter() {
            let left = lane.available();
            if left > 0 {
                let name = name(column, direction, index);
                return Err(format!("the kernel never takes {left} of the words queued on {name}"));
            }
        }
        if self.engine.is_some() || self.released.iter().flatten().any(Option::is_some) {
            return Err("the stream ends while the kernel still has work to do".to_owned());
        }
        Ok(())
    }

    fn write(&mut self, addr: u32, value: u32) -> Result<(), String> {
        let place = Place::of(addr)?;
        let unknown = || Err(format!("write of {value:#x} to register {addr:#x}, which no reference kernel has"));
        match (place.row, place.offset) {
            (0, 0x1D000..0x1D200) => {
                let (id, word) = ((place.offset as usize - 0x1D000) / 32, place.offset as usize / 4 % 8);
                let descriptor = self.descriptor(place.column, id)?;
                descriptor.words[word] = value;
                descriptor.written |= 1 << word;
                descriptor.patched &= word != 1;
                Ok(())
            }
            (0, _) => match channel(place) {
                Some((direction, index, Register::Queue)) => self.push(place.column, direction, index, value),
                Some((.., Register::Control)) if value & !0xFF00 == 0 => Ok(()),
                _ => unknown(),
            },
            (CORE_ROW..ROWS, 0..0x10000) => {
                self.idle(place)?;
                let word = place.offset.wrapping_sub(PARAMETER_ADDRESS) as usize / 4;
                // No kernel reads anything else.
                if let Some(word) = self.parameters[place.column][place.row - CORE_ROW].get_mut(word) {
                    *word = Some(value);
                }
                Ok(())
            }
            (CORE_ROW..ROWS, BARRIER) if value == 1 => self.release(place),
            _ => unknown(),
        }
    }

    /// A descriptor that may be changed now.
    fn descriptor(&mut self, column: usize, id: usize) -> Result<&mut Descriptor, String> {
        if self.lanes.uses(column, id) {
            return Err(format!("descriptor {id} of column {column} changes while a queued task uses it"));
        }
        Ok(&mut self.descriptors[column][id])
    }

    /// Refuses to touch a core that runs.
    fn idle(&self, place: Place) -> Result<(), String> {
        match self.released[place.column][place.row - CORE_ROW] {
            Some(_) => Err(format!("core ({}, {}) is written to while it runs", place.column, place.row)),
            None => Ok(()),
        }
    }

    fn release(&mut self, place: Place) -> Result<(), String> {
        self.idle(place)?;
        if self.engine.is_some() {
            return Err(format!("core ({}, {}) is released while the kernel runs", place.column, place.row));
        }
        let mut words = [0; PARAMETERS];
        for (word, written) in words.iter_mut().zip(self.parameters[place.column][place.row - CORE_ROW]) {
            *word = written.ok_or_else(|| {
                format!("core ({}, {}) is released without runtime parameters", place.column, place.row)
            })?;
        }
        self.released[place.column][place.row - CORE_ROW] = Some(words);
        Ok(())
    }

    fn patch(&mut self, register: u32, argument: usize, offset: u64) -> Result<(), String> {
        let place = Place::of(register)?;
        let at = place.offset.wrapping_sub(0x1D000) as usize;
        if place.row != 0 || at >= 0x200 || at % 32 != 4 {
            return Err(format!("address patch of register {register:#x}, which is not word 1 of a shim descriptor"));
        }
        let Some(&base) = self.args.get(argument) else {
            return Err(format!("address patch with argument {argument}, the command has {}", self.args.len()));
        };
        let id = at / 32;
        let column = place.column;
        // The compiler folds the window's offset into patches of the arguments that the firmware does not move.
        let window = if argument < PATCHED_BY_FIRMWARE { DDR_OFFSET } else { 0 };
        if base > ADDRESS_MASK {
            return Err(format!("argument {argument} at {base:#x} is no 48-bit address"));
        }
        let address = base.wrapping_add(offset).wrapping_add(window) & ADDRESS_MASK;
        if !address.is_multiple_of(4) {
            return Err(format!("argument {argument} at {base:#x} plus {offset:#x} is not a multiple of 4"));
        }
        let descriptor = self.descriptor(column, id)?;
        if descriptor.written != 0xFF {
            return Err(format!(
                "address patch of descriptor {id} of column {column}, which this stream did not write"
            ));
        }
        descriptor.words[1] = address as u32;
        descriptor.words[2] = descriptor.words[2] & 0xFFFF_0000 | (address >> 32) as u32;
        descriptor.patched = true;
        Ok(())
    }

    fn push(&mut self, column: usize, direction: Direction, index: usize, value: u32) -> Result<(), String> {
        let name = || name(column, direction, index);
        let (id, runs) = ((value & 0xF) as usize, u64::from(value >> 16 & 0xFF) + 1);
        if value & 0x7F00_FFF0 != 0 {
            return Err(format!("task {value:#x} for {} has unknown bits", name()));
        }
        let descriptor = &mut self.descriptors[column][id];
        if descriptor.written != 0xFF || !descriptor.patched {
            return Err(format!("task for {} with descriptor {id}, which has no patched address", name()));
        }
        let walk = Walk::decode(&descriptor.words).map_err(|flaw| format!("descriptor {id} for {} {flaw}", name()))?;
        let current = (walk.current + runs) % walk.iteration.0;
        descriptor.words[6] = descriptor.words[6] & 0x03FF_FFFF | (current as u32) << 26;
        let lane = self.lanes.get(column, direction, index);
        if lane.full() {
            return Err(format!("the task queue of {} overflows: four tasks and no wait that ends one", name()));
        }
        lane.push(Task { walk, runs, token: value >> 31 != 0, descriptor: id });
        Ok(())
    }

    fn wait(
        &mut self,
        direction: u8,
        row: usize,
        column: usize,
        rows: usize,
        columns: usize,
        index: usize,
    ) -> Result<(), String> {
        let direction = match direction {
            0 => Direction::S2mm,
            1 => Direction::Mm2s,
            other => return Err(format!("wait for a token of direction {other}")),
        };
        if row != 0 || rows != 1 || columns == 0 || column + columns > COLUMNS || index > 1 {
            return Err(format!(
                "wait for channel {index} of {rows} x {columns} tiles from ({column}, {row}); only the shim row of \
                 {COLUMNS} columns gives tokens"
            ));
        }
        for column in column..column + columns {
            while !self.lanes.get(column, direction, index).take_token() {
                self.advance().map_err(|why| {
                    format!("the wait for {} can never be satisfied: {why}", name(column, direction, index))
                })?;
            }
        }
        Ok(())
    }

    /// Lets the kernel do one step.
    fn advance(&mut self) -> Result<(), String> {
        let engine = match &mut self.engine {
            Some(engine) => engine,
            None if self.released.iter().flatten().all(Option::is_none) => {
                self.hangs = true;
                return Err("no core has been released".to_owned());
            }
            None => self.engine.insert(Engine::new(job(self.kind, &self.released)?)),
        };
        let progress = engine
            .step(self.lanes, self.memory, self.pool, self.buffers, &mut self.traffic)
            .map_err(|fault| fault.to_string())?;
        match progress {
            Progress::Stepped => Ok(()),
            Progress::Finished => {
                self.engine = None;
                self.released = Default::default();
                Ok(())
            }
            Progress::Starved { column, direction, index } => {
                self.hangs = true;
                Err(format!("the kernel finds too little queued on {}", name(column, direction, index)))
            }
        }
    }
}

/// A channel's registers.
enum Register {
    Control,
    Queue,
}

/// The channel that a register of the shim belongs to.
fn channel(place: Place) -> Option<(Direction, usize, Register)> {
    let at = place.offset.checked_sub(0x1D200).filter(|&at| place.row == 0 && at < 0x20)?;
    let direction = if at < 0x10 { Direction::S2mm } else { Direction::Mm2s };
    let register = if at % 8 == 0 { Register::Control } else { Register::Queue };
    Some((direction, (at / 8 % 2) as usize, register))
}

/// A channel's name in messages.
fn name(column: usize, direction: Direction, index: usize) -> String {
    let direction = match direction {
        Direction::S2mm => "S2MM",
        Direction::Mm2s => "MM2S",
    };
    format!("{direction} {index} of column {column}")
}
