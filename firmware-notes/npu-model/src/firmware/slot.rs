//! Command slots, as the driver packs them into a chain's buffer (`aie2_msg_priv.h`).

use super::run::ChainKind;
use super::status;

/// Bytes of a slot before its arguments, where the slot says what it is.
pub(crate) const NPU_HEAD: usize = 52;
/// The same of the older START_NPU slot.
pub(crate) const DPU_HEAD: usize = 24;
/// The same of the older START_CU slot.
pub(crate) const CF_HEAD: usize = 8;

/// What a command wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Command {
    /// Compute unit.
    pub(super) cu: u32,
    /// Address and bytes of the instruction stream.
    pub(super) stream: (u64, u32),
    /// Buffer addresses for the stream's patches.
    pub(super) args: Vec<u64>,
}

fn word(bytes: &[u8], at: usize) -> Result<u32, u32> {
    let bytes = at.checked_add(4).and_then(|end| bytes.get(at..end)).ok_or(status::RTOS_INVALID_PARAM)?;
    Ok(bytes.iter().rev().fold(0, |word, &byte| word << 8 | u32::from(byte)))
}

fn long(bytes: &[u8], at: usize) -> Result<u64, u32> {
    Ok(u64::from(word(bytes, at)?) | u64::from(word(bytes, at + 4)?) << 32)
}

/// Reads the slot at the front of `bytes`: the command (none if it does nothing) and the bytes it took.
pub(super) fn parse(kind: ChainKind, bytes: &[u8]) -> Result<(Option<Command>, usize), u32> {
    let (cu_at, count_at, args_at) = match kind {
        ChainKind::Cf => (0, 4, CF_HEAD),
        ChainKind::Dpu => (16, 20, DPU_HEAD),
        ChainKind::Npu => (44, 48, NPU_HEAD),
    };
    let cu = word(bytes, cu_at)?;
    let words = word(bytes, count_at)? as usize;
    let end = words.checked_mul(4).and_then(|n| n.checked_add(args_at)).filter(|&end| end <= bytes.len());
    let end = end.ok_or(status::RTOS_INVALID_PARAM)?;
    let args = &bytes[args_at..end];
    let command = match (kind, word(bytes, 0)?) {
        (ChainKind::Cf, _) | (ChainKind::Npu, 1) => start_cu(cu, args)?,
        (ChainKind::Dpu, _) => Some(with_stream(cu, (long(bytes, 0)?, word(bytes, 8)?), word(bytes, 12)?, args)),
        (ChainKind::Npu, 2 | 3) => Some(with_stream(cu, (long(bytes, 4)?, word(bytes, 28)?), word(bytes, 40)?, args)),
        // A full ELF brings its own configuration; its arguments are patched in by the host.
        (ChainKind::Npu, 4) => Some(with_stream(0, (long(bytes, 4)?, word(bytes, 28)?), u32::MAX, args)),
        (ChainKind::Npu, _) => return Err(status::APP_INVALID_INSTRUCTION),
    };
    Ok((command, end))
}

/// START_CU as IRON's kernels have it: operation 3, stream, its bytes, buffers.
fn start_cu(cu: u32, args: &[u8]) -> Result<Option<Command>, u32> {
    if args.is_empty() {
        return Ok(None);
    }
    if long(args, 0)? != 3 {
        return Err(status::APP_INVALID_INSTRUCTION);
    }
    Ok(Some(Command { cu, stream: (long(args, 8)?, word(args, 16)?), args: addresses(args.get(20..).unwrap_or(&[])) }))
}

fn with_stream(cu: u32, stream: (u64, u32), properties: u32, args: &[u8]) -> Command {
    let skip = (properties as usize).saturating_mul(4);
    Command { cu, stream, args: addresses(args.get(skip..).unwrap_or(&[])) }
}

fn addresses(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).map(|chunk| chunk.iter().rev().fold(0, |long, &byte| long << 8 | u64::from(byte))).collect()
}

#[cfg(test)]
mod tests {
    use super::{ChainKind, Command, parse};
    use crate::firmware::status;

    fn bytes(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn an_npu_slot_of_a_kernel_with_five_buffers() {
        let mut words = vec![1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 15];
        words.extend([3, 0, 0x0402_0000, 0, 64]);
        for buffer in 1..=5u32 {
            words.extend([buffer << 12, 0x7f00]);
        }
        let (command, end) = parse(ChainKind::Npu, &bytes(&words)).unwrap();
        assert_eq!(end, 112, "52 bytes and 15 words");
        let args = (1..=5u64).map(|buffer| 0x7f00_0000_0000 | buffer << 12).collect();
        assert_eq!(command, Some(Command { cu: 2, stream: (0x0402_0000, 64), args }));
    }

    #[test]
    fn slots_that_cannot_be() {
        assert_eq!(parse(ChainKind::Npu, &[0; 51]), Err(status::RTOS_INVALID_PARAM));
        let too_many = bytes(&[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, u32::MAX]);
        assert_eq!(parse(ChainKind::Npu, &too_many), Err(status::RTOS_INVALID_PARAM));
        let unknown = bytes(&[9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(parse(ChainKind::Npu, &unknown), Err(status::APP_INVALID_INSTRUCTION));
        let operation = bytes(&[0, 2, 4, 0]);
        assert_eq!(parse(ChainKind::Cf, &operation), Err(status::APP_INVALID_INSTRUCTION));
    }
}
