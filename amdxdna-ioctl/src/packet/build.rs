//! Packets as values: each can be encoded and read back.

use super::{Header, IRON_BUFFERS, IRON_OPCODE, Opcode, PacketError, TYPE_CU};

/// Something that can be written into a command BO.
pub trait Encode {
    /// Writes the packet to the start of `words`, state NEW, and returns how many words it has.
    ///
    /// # Errors
    /// [`PacketError`] if it does not fit or cannot be said; then nothing useful is in `words`.
    fn encode(&self, words: &mut [u32]) -> Result<usize, PacketError>;
}

/// START_CU: words that the driver passes on as they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartCu {
    /// Index of the CU in the context's configuration.
    pub cu: u32,
    /// Argument words.
    pub args: Vec<u32>,
}

/// START_CU with the arguments of an `MLIR_AIE` kernel (mlir-aie, IRON): 17 words, the first 0x3001_0001.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IronKernel {
    /// Index of the CU in the context's configuration.
    pub cu: u32,
    /// Device address of the instruction stream, in a DEV BO.
    pub instructions: u64,
    /// Its length in bytes.
    pub instruction_bytes: u32,
    /// Device addresses of the kernel's buffers; unused ones are 0.
    pub buffers: [u64; IRON_BUFFERS],
}

/// START_NPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartNpu {
    /// Index of the CU in the context's configuration.
    pub cu: u32,
    /// Device address of the instruction stream.
    pub instructions: u64,
    /// Its length in bytes.
    pub instruction_bytes: u32,
    /// Property words, before the arguments.
    pub properties: Vec<u32>,
    /// Argument words.
    pub args: Vec<u32>,
}

/// START_NPU_PREEMPT and, with `elf`, START_NPU_PREEMPT_ELF (whose mask the driver ignores and whose arguments it does
/// not send).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartNpuPreempt {
    /// Index of the CU in the context's configuration.
    pub cu: u32,
    /// Device address of the instruction stream.
    pub instructions: u64,
    /// Device address of the stream that saves the array's state.
    pub save: u64,
    /// Device address of the stream that restores it.
    pub restore: u64,
    /// Length of `instructions` in bytes.
    pub instruction_bytes: u32,
    /// Length of `save` in bytes.
    pub save_bytes: u32,
    /// Length of `restore` in bytes.
    pub restore_bytes: u32,
    /// Property words, before the arguments.
    pub properties: Vec<u32>,
    /// Argument words.
    pub args: Vec<u32>,
    /// Opcode 22 instead of 21.
    pub elf: bool,
}

/// CMD_CHAIN: commands of one opcode, run in order, stopped at the first failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CmdChain {
    /// GEM handles of the commands' BOs.
    pub commands: Vec<u32>,
    /// Where to start; 0.
    pub submit_index: u32,
    /// Written by the driver: the command that failed.
    pub error_index: u32,
}

/// Any packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packet {
    /// Opcode 0.
    StartCu(StartCu),
    /// Opcode 20.
    StartNpu(StartNpu),
    /// Opcodes 21 and 22.
    StartNpuPreempt(StartNpuPreempt),
    /// Opcode 19.
    CmdChain(CmdChain),
}

/// Cursor over the words of a packet that is being written; the header comes last.
struct Writer<'a> {
    words: &'a mut [u32],
    at: usize,
}

impl<'a> Writer<'a> {
    fn new(words: &'a mut [u32]) -> Self {
        Writer { words, at: 1 }
    }

    fn word(&mut self, word: u32) {
        if let Some(slot) = self.words.get_mut(self.at) {
            *slot = word;
        }
        self.at += 1;
    }

    fn long(&mut self, value: u64) {
        self.word(value as u32);
        self.word((value >> 32) as u32);
    }

    fn all(&mut self, words: &[u32]) {
        for &word in words {
            self.word(word);
        }
    }

    fn mask(&mut self, cu: u32) -> Result<(), PacketError> {
        self.word(1u32.checked_shl(cu).ok_or(PacketError::Cu(cu))?);
        Ok(())
    }

    fn finish(self, opcode: Opcode, r#type: u8) -> Result<usize, PacketError> {
        let header = Header::new(opcode, r#type, self.at - 1)?;
        let too_long = PacketError::TooLong { words: self.at, room: self.words.len() };
        if self.at > self.words.len() {
            return Err(too_long);
        }
        self.words[0] = header.0;
        Ok(self.at)
    }
}

/// Length of a word list as the packet says it.
fn words_u32(words: &[u32]) -> u32 {
    u32::try_from(words.len()).unwrap_or(u32::MAX)
}

impl Encode for StartCu {
    fn encode(&self, words: &mut [u32]) -> Result<usize, PacketError> {
        let mut out = Writer::new(words);
        out.mask(self.cu)?;
        out.all(&self.args);
        out.finish(Opcode::StartCu, TYPE_CU)
    }
}

impl Encode for IronKernel {
    fn encode(&self, words: &mut [u32]) -> Result<usize, PacketError> {
        let mut out = Writer::new(words);
        out.mask(self.cu)?;
        out.long(IRON_OPCODE);
        out.long(self.instructions);
        out.word(self.instruction_bytes);
        for &buffer in &self.buffers {
            out.long(buffer);
        }
        out.finish(Opcode::StartCu, TYPE_CU)
    }
}

impl IronKernel {
    /// Reads the arguments of a START_CU as those of an `MLIR_AIE` kernel; `None` if they are not.
    #[must_use]
    pub fn read(packet: &StartCu) -> Option<IronKernel> {
        let args: &[u32; 3 + 2 + 2 * IRON_BUFFERS] = packet.args.as_slice().try_into().ok()?;
        if long(args, 0)? != IRON_OPCODE {
            return None;
        }
        let mut buffers = [0; IRON_BUFFERS];
        for (i, buffer) in buffers.iter_mut().enumerate() {
            *buffer = long(args, 5 + 2 * i)?;
        }
        Some(IronKernel { cu: packet.cu, instructions: long(args, 2)?, instruction_bytes: args[4], buffers })
    }
}

impl Encode for StartNpu {
    fn encode(&self, words: &mut [u32]) -> Result<usize, PacketError> {
        let mut out = Writer::new(words);
        out.mask(self.cu)?;
        out.long(self.instructions);
        out.word(self.instruction_bytes);
        out.word(words_u32(&self.properties));
        out.all(&self.properties);
        out.all(&self.args);
        out.finish(Opcode::StartNpu, TYPE_CU)
    }
}

impl Encode for StartNpuPreempt {
    fn encode(&self, words: &mut [u32]) -> Result<usize, PacketError> {
        let mut out = Writer::new(words);
        out.mask(self.cu)?;
        out.long(self.instructions);
        out.long(self.save);
        out.long(self.restore);
        out.word(self.instruction_bytes);
        out.word(self.save_bytes);
        out.word(self.restore_bytes);
        out.word(words_u32(&self.properties));
        out.all(&self.properties);
        out.all(&self.args);
        out.finish(if self.elf { Opcode::StartNpuPreemptElf } else { Opcode::StartNpuPreempt }, TYPE_CU)
    }
}

impl CmdChain {
    /// A chain of the commands in these BOs.
    #[must_use]
    pub fn new(commands: Vec<u32>) -> Self {
        CmdChain { commands, submit_index: 0, error_index: 0 }
    }
}

impl Encode for CmdChain {
    fn encode(&self, words: &mut [u32]) -> Result<usize, PacketError> {
        if self.commands.is_empty() {
            return Err(PacketError::EmptyChain);
        }
        let mut out = Writer::new(words);
        out.word(words_u32(&self.commands));
        out.word(self.submit_index);
        out.word(self.error_index);
        out.all(&[0; 3]);
        for &handle in &self.commands {
            out.long(u64::from(handle));
        }
        out.finish(Opcode::CmdChain, 0)
    }
}

impl Encode for Packet {
    fn encode(&self, words: &mut [u32]) -> Result<usize, PacketError> {
        match self {
            Packet::StartCu(packet) => packet.encode(words),
            Packet::StartNpu(packet) => packet.encode(words),
            Packet::StartNpuPreempt(packet) => packet.encode(words),
            Packet::CmdChain(packet) => packet.encode(words),
        }
    }
}

fn long(words: &[u32], at: usize) -> Option<u64> {
    Some(u64::from(*words.get(at)?) | u64::from(*words.get(at + 1)?) << 32)
}

impl Packet {
    /// Reads the packet at the start of `words`, as strictly as a builder would write it; the state is not looked at.
    ///
    /// # Errors
    /// [`PacketError`]: what is wrong with it. The driver takes some such packets (an empty payload of START_CU).
    pub fn read(words: &[u32]) -> Result<Packet, PacketError> {
        let &first = words.first().ok_or(PacketError::TooShort { words: 0, needed: 1 })?;
        let header = Header(first);
        let opcode = Opcode::try_from(header.opcode_bits()).map_err(PacketError::Opcode)?;
        let end = header.count() + 1;
        let packet = words.get(..end).ok_or(PacketError::TooShort { words: words.len(), needed: end })?;
        if opcode == Opcode::CmdChain {
            return read_chain(packet).map(Packet::CmdChain);
        }
        let masks = 1 + header.extra_cu_masks();
        let (mask, payload) =
            packet[1..].split_at_checked(masks).ok_or(PacketError::TooShort { words: end, needed: 1 + masks })?;
        // The index counts from the first word that has a bit, whichever it is, as the driver does.
        let cu = mask.iter().find(|&&m| m != 0).map(|m| m.trailing_zeros());
        let short = |needed: usize| PacketError::TooShort { words: end, needed: 1 + masks + needed };
        match opcode {
            Opcode::StartCu => {
                Ok(Packet::StartCu(StartCu { cu: cu.ok_or(PacketError::NoCu)?, args: payload.to_vec() }))
            }
            Opcode::StartNpu => {
                let (head, tail) = payload.split_at_checked(4).ok_or(short(4))?;
                let (properties, args) = split_properties(head[3], tail)?;
                Ok(Packet::StartNpu(StartNpu {
                    cu: cu.ok_or(PacketError::NoCu)?,
                    instructions: long(head, 0).ok_or(short(4))?,
                    instruction_bytes: head[2],
                    properties,
                    args,
                }))
            }
            _ => {
                let elf = opcode == Opcode::StartNpuPreemptElf;
                let (head, tail) = payload.split_at_checked(10).ok_or(short(10))?;
                let (properties, args) = split_properties(head[9], tail)?;
                Ok(Packet::StartNpuPreempt(StartNpuPreempt {
                    cu: if elf { cu.unwrap_or(0) } else { cu.ok_or(PacketError::NoCu)? },
                    instructions: long(head, 0).ok_or(short(10))?,
                    save: long(head, 2).ok_or(short(10))?,
                    restore: long(head, 4).ok_or(short(10))?,
                    instruction_bytes: head[6],
                    save_bytes: head[7],
                    restore_bytes: head[8],
                    properties,
                    args,
                    elf,
                }))
            }
        }
    }
}

fn split_properties(count: u32, tail: &[u32]) -> Result<(Vec<u32>, Vec<u32>), PacketError> {
    let error = PacketError::Properties { properties: count as usize, words: tail.len() };
    let (properties, args) = tail.split_at_checked(count as usize).ok_or(error)?;
    Ok((properties.to_vec(), args.to_vec()))
}

fn read_chain(packet: &[u32]) -> Result<CmdChain, PacketError> {
    let short = |needed: usize| PacketError::TooShort { words: packet.len(), needed };
    let head = packet.get(1..7).ok_or(short(7))?;
    let count = head[0] as usize;
    if count == 0 {
        return Err(PacketError::EmptyChain);
    }
    let needed = count.saturating_mul(2).saturating_add(7);
    let handles = packet.get(7..needed).ok_or(short(needed))?;
    Ok(CmdChain {
        commands: handles.chunks_exact(2).map(|pair| pair[0]).collect(),
        submit_index: head[1],
        error_index: head[2],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::State;

    /// The form of a packet recorded at the ioctl boundary of a program that is known to run on the hardware.
    #[test]
    fn iron_kernel_is_the_recorded_packet() {
        let kernel = IronKernel {
            cu: 0,
            instructions: 0x0402_8000,
            instruction_bytes: 0x1_2340,
            buffers: [0x7f12_3456_7000, 0x7f22_0000_0000, 0x7f32_0000_1000, 0, 0],
        };
        let mut words = [0xdead_beef; 20];
        assert_eq!(kernel.encode(&mut words), Ok(17));
        assert_eq!(
            words[..17],
            [
                0x3001_0001,
                1,
                3,
                0,
                0x0402_8000,
                0,
                0x1_2340,
                0x3456_7000,
                0x7f12,
                0,
                0x7f22,
                0x1000,
                0x7f32,
                0,
                0,
                0,
                0
            ]
        );
        assert_eq!(words[17..], [0xdead_beef; 3], "nothing is written behind the packet");
        let Ok(Packet::StartCu(read)) = Packet::read(&words) else { panic!("not a START_CU") };
        assert_eq!(IronKernel::read(&read), Some(kernel));
    }

    #[test]
    fn header_fields_are_where_ert_h_has_them() {
        let header = Header(0x3001_0001);
        assert_eq!((header.state(), header.count(), header.extra_cu_masks()), (Some(State::New), 16, 0));
        assert_eq!((header.opcode(), header.r#type()), (Some(Opcode::StartCu), 3));
        // A chain of two: count 6 + 4 words, opcode 19, type 0.
        let mut words = [0; 16];
        assert_eq!(CmdChain::new(vec![5, 9]).encode(&mut words), Ok(11));
        assert_eq!(words[0], 19 << 23 | 10 << 12 | 1);
        assert_eq!(words[1..11], [2, 0, 0, 0, 0, 0, 5, 0, 9, 0]);
        assert_eq!(header.with_state(State::Timeout).0, 0x3001_0008);
    }

    #[test]
    fn every_packet_reads_back() {
        let preempt = StartNpuPreempt {
            cu: 31,
            instructions: 1 << 40 | 7,
            save: 2 << 40,
            restore: 3 << 40,
            instruction_bytes: 4,
            save_bytes: 5,
            restore_bytes: 6,
            properties: vec![7],
            args: vec![8, 9],
            elf: false,
        };
        let packets = [
            Packet::StartCu(StartCu { cu: 3, args: vec![1, 2, 3] }),
            Packet::StartNpu(StartNpu {
                cu: 1,
                instructions: u64::MAX - 1,
                instruction_bytes: 16,
                properties: vec![1, 2],
                args: vec![3],
            }),
            Packet::StartNpuPreempt(StartNpuPreempt { elf: true, ..preempt.clone() }),
            Packet::StartNpuPreempt(preempt),
            Packet::CmdChain(CmdChain::new(vec![1, 2, 3])),
        ];
        for packet in packets {
            let mut words = [0; 64];
            let n = packet.encode(&mut words).unwrap();
            assert_eq!(Packet::read(&words).unwrap(), packet);
            assert_eq!(Packet::read(&words[..n]).unwrap(), packet);
            // Cut anywhere, it is an error and not a panic.
            for cut in 0..n {
                assert!(matches!(Packet::read(&words[..cut]), Err(PacketError::TooShort { .. })));
                let mut copy = words;
                assert!(packet.encode(&mut copy[..cut]).is_err());
            }
        }
    }

    #[test]
    fn nonsense_is_refused() {
        assert_eq!(StartCu { cu: 32, args: vec![] }.encode(&mut [0; 8]), Err(PacketError::Cu(32)));
        assert_eq!(CmdChain::new(vec![]).encode(&mut [0; 8]), Err(PacketError::EmptyChain));
        let long = StartCu { cu: 0, args: vec![0; 2047] };
        assert_eq!(long.encode(&mut [0; 4096]), Err(PacketError::TooLong { words: 2049, room: 2048 }));
        assert_eq!(Packet::read(&[18 << 23 | 1 << 12 | 1, 1]), Err(PacketError::Opcode(18)));
        assert_eq!(Packet::read(&[1 << 12 | 1, 0]), Err(PacketError::NoCu));
        // A property count beyond the packet, at every size up to the largest.
        for count in [2, u32::MAX] {
            let words = [20 << 23 | 6 << 12 | 1, 1, 0, 0, 0, count, 0];
            assert_eq!(
                Packet::read(&words),
                Err(PacketError::Properties { properties: count as usize, words: 1 }),
                "{count}"
            );
        }
        let chain = [19 << 23 | 6 << 12 | 1, u32::MAX, 0, 0, 0, 0, 0];
        assert!(matches!(Packet::read(&chain), Err(PacketError::TooShort { .. })));
    }
}
