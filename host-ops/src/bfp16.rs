//! bfp16ebs8: 8 values in 9 bytes, an exponent and eight signed mantissas. `value = mantissa * 2^(exponent - 133)`.

/// Bytes of a block.
pub const BLOCK_BYTES: usize = 9;
/// Values of a block.
pub const BLOCK_VALUES: usize = 8;

/// Encodes 8 values as the AIE core does in its `conv_even` mode, quirk included: a negative value (negative zero too)
/// 2^32 or more below the block's largest becomes -1, not 0. Add `0.0` first if negative zeros may occur.
pub fn encode_block(x: &[f32; 8]) -> [u8; 9] {
    let _ = x;
    todo!()
}

/// Decodes a block.
pub fn decode_block(block: &[u8; 9]) -> [f32; 8] {
    let _ = block;
    todo!()
}

/// Encodes blocks: `x.len() % 8 == 0`, `out.len() == x.len() / 8 * 9`.
///
/// # Panics
/// If the lengths do not fit.
pub fn encode(x: &[f32], out: &mut [u8]) {
    let _ = (x, out);
    todo!()
}

/// Decodes blocks: `out.len() % 8 == 0`, `bytes.len() == out.len() / 8 * 9`.
///
/// # Panics
/// If the lengths do not fit.
pub fn decode(bytes: &[u8], out: &mut [f32]) {
    let _ = (bytes, out);
    todo!()
}

/// `out = decode(encode(x))` without the bytes.
///
/// # Panics
/// If the lengths differ or are no multiple of 8.
pub fn quantise(x: &[f32], out: &mut [f32]) {
    let _ = (x, out);
    todo!()
}
