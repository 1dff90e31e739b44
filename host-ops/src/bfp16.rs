//! bfp16ebs8: 8 values in 9 bytes, an exponent and eight signed mantissas. `value = mantissa * 2^(exponent - 133)`.
//!
//! The exponent is the float32 exponent field of the block's largest value, so that one has a mantissa of 64 to 127.

use crate::simd::kernel;

/// Bytes of a block.
pub const BLOCK_BYTES: usize = 9;
/// Values of a block.
pub const BLOCK_VALUES: usize = 8;

/// Below this exponent the scaling by floats would leave their range; such blocks are encoded with integers.
const SMALL: u32 = 32;

/// Encodes 8 values as the AIE core does in its `conv_even` mode, quirk included: a negative value (negative zero too)
/// 2^32 or more below the block's largest becomes -1, not 0. Add `0.0` first if negative zeros may occur.
///
/// Infinities and NaN have no encoding; what comes out for them is unspecified.
#[inline(always)]
pub fn encode_block(x: &[f32; 8]) -> [u8; 9] {
    let bits = x.map(f32::to_bits);
    let exponent = bits.iter().fold(0, |e, b| e.max((b >> 23) & 0xff));
    let mut out = [0; 9];
    out[0] = exponent as u8;
    if exponent < SMALL {
        for (o, b) in out[1..].iter_mut().zip(bits) {
            *o = small_mantissa(b, exponent) as u8;
        }
        return out;
    }
    let scale = f32::from_bits((260 - exponent) << 23);
    for ((o, &x), b) in out[1..].iter_mut().zip(x).zip(bits) {
        // Adding 1.5 * 2^23 rounds to nearest even and leaves the integer in the low bits.
        let scaled = if x * scale < 127.0 { x * scale } else { 127.0 };
        let near = (scaled + 12_582_912.0).to_bits() as u8;
        let far = if b >> 31 != 0 { 0xff } else { 0 };
        *o = if ((b >> 23) & 0xff) + 32 <= exponent { far } else { near };
    }
    out
}

/// The mantissa of the value with bits `b` under a small block exponent, in integers.
fn small_mantissa(b: u32, exponent: u32) -> i8 {
    let own = (b >> 23) & 0xff;
    let significand = (b & 0x7f_ffff) | if own > 0 { 0x80_0000 } else { 0 };
    let shift = 17 + exponent - own;
    let (whole, rest, half) =
        if shift < 32 { (significand >> shift, significand & ((1 << shift) - 1), 1 << (shift - 1)) } else { (0, 0, 1) };
    let rounded = (whole + u32::from(rest > half || (rest == half && whole & 1 == 1))) as i32;
    let signed = if b >> 31 != 0 { -rounded } else { rounded };
    signed.clamp(-128, 127) as i8
}

/// Decodes a block.
#[inline(always)]
pub fn decode_block(block: &[u8; 9]) -> [f32; 8] {
    let e = u32::from(block[0]);
    // 2^(e - 133); the smallest seven are subnormal.
    let scale = f32::from_bits(if e > 6 { (e - 6) << 23 } else { 1 << (e + 16) });
    std::array::from_fn(|i| f32::from(block[i + 1] as i8) * scale)
}

kernel! {
    /// Encodes blocks: `x.len() % 8 == 0`, `out.len() == x.len() / 8 * 9`.
    ///
    /// # Panics
    /// If the lengths do not fit.
    pub fn encode<V>(x: &[f32], out: &mut [u8]) {
        assert!(x.len().is_multiple_of(8) && out.len() == x.len() / 8 * 9);
        for (x, out) in x.as_chunks().0.iter().zip(out.as_chunks_mut().0) {
            *out = encode_block(x);
        }
    }
}

kernel! {
    /// Decodes blocks: `out.len() % 8 == 0`, `bytes.len() == out.len() / 8 * 9`.
    ///
    /// # Panics
    /// If the lengths do not fit.
    pub fn decode<V>(bytes: &[u8], out: &mut [f32]) {
        assert!(out.len().is_multiple_of(8) && bytes.len() == out.len() / 8 * 9);
        for (block, out) in bytes.as_chunks().0.iter().zip(out.as_chunks_mut().0) {
            *out = decode_block(block);
        }
    }
}

kernel! {
    /// `out = decode(encode(x))` without the bytes.
    ///
    /// # Panics
    /// If the lengths differ or are no multiple of 8.
    pub fn quantise<V>(x: &[f32], out: &mut [f32]) {
        assert!(x.len().is_multiple_of(8) && out.len() == x.len());
        for (x, out) in x.as_chunks().0.iter().zip(out.as_chunks_mut().0) {
            *out = decode_block(&encode_block(x));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        simd::plain,
        testing::{Random, bits, fixture, fixture_f32},
    };

    #[test]
    fn golden_blocks() {
        let (x, bytes, values) =
            (fixture_f32("bfp16.x.f32"), fixture("bfp16.bytes.u8"), fixture_f32("bfp16.values.f32"));
        let mut encoded = vec![0; bytes.len()];
        encode(&x, &mut encoded);
        for (i, (ours, golden)) in encoded.chunks(9).zip(bytes.chunks(9)).enumerate() {
            assert_eq!(ours, golden, "block {i}: {:?}", &x[8 * i..8 * i + 8]);
        }
        let mut decoded = vec![0.0; x.len()];
        decode(&bytes, &mut decoded);
        assert_eq!(decoded, values);
        quantise(&x, &mut decoded);
        assert_eq!(decoded, values);
    }

    #[test]
    fn hardware_check_values() {
        // From IRON: what the AIE core made of this block.
        let block = encode_block(&[64.0, 14.9375, 106.5, 94.5, 0.0, -1.5, -2.5, 3.0]);
        assert_eq!(block.map(|b| b as i8), [133_u8 as i8, 64, 15, 106, 94, 0, -2, -2, 3]);
    }

    /// The definition, in f64: round half even of x / 2^(e - 133), cut to a byte.
    fn defined(x: &[f32; 8]) -> [u8; 9] {
        let exponent = |x: f32| (x.to_bits() >> 23) & 0xff;
        let e = x.iter().map(|&x| exponent(x)).max().unwrap();
        let mut out = [e as u8; 9];
        for (o, &x) in out[1..].iter_mut().zip(x) {
            // An exponent field of 0 stands for 2^-126 without the implicit one, yet is scaled as 2^-127.
            let scaled = f64::from(x) * if exponent(x) == 0 { 0.5 } else { 1.0 } * 2f64.powi(133 - e as i32);
            let far = e - exponent(x) >= 32;
            let m = if far { -f64::from(u8::from(x.is_sign_negative())) } else { scaled.round_ties_even() };
            *o = m.clamp(-128.0, 127.0) as i8 as u8;
        }
        out
    }

    #[test]
    fn follows_the_definition_everywhere() {
        let mut random = Random::new(8);
        for round in 0..50_000 {
            // Exponents within a window, so that values of a block meet; all of the range over the rounds.
            let (base, spread) = (random.next() % 255, 1 + random.next() % [3, 12, 40, 254][round % 4]);
            let x: [f32; 8] = std::array::from_fn(|_| {
                let exponent = base.saturating_sub(random.next() % spread) as u32;
                let mantissa = random.next() as u32 & [0x7f_ffff, 0x7f_0000, 0x7e_0000][round % 3];
                f32::from_bits(((random.next() as u32) << 31) | (exponent << 23) | mantissa)
            });
            assert_eq!(encode_block(&x), defined(&x), "{x:?}");
        }
    }

    #[test]
    fn decoded_values_encode_to_themselves_and_err_by_half_a_step() {
        let mut random = Random::new(9);
        let x = random.normal(8000);
        let (mut once, mut twice, mut narrow) = (vec![0.0; 8000], vec![0.0; 8000], vec![0.0; 8000]);
        quantise(&x, &mut once);
        quantise(&once, &mut twice);
        plain(|| quantise(&x, &mut narrow));
        assert_eq!(bits(&once), bits(&narrow));
        for ((x, q), again) in x.chunks(8).zip(once.chunks(8)).zip(twice.chunks(8)) {
            let largest = x.iter().fold(0f32, |m, x| m.max(x.abs()));
            // A mantissa of -128 is the next exponent's -64: such a block has a coarser step the second time.
            let coarser = encode_block(x.try_into().unwrap())[1..].contains(&0x80);
            for i in 0..8 {
                assert!((x[i] - q[i]).abs() <= largest / 128.0);
                assert!(coarser || q[i] == again[i]);
            }
        }
    }

    #[test]
    fn every_byte_pattern_decodes() {
        for e in 0..=255 {
            for m in [0x80, 0xff, 0, 1, 0x7f] {
                let value = decode_block(&[e, m, 0, 0, 0, 0, 0, 0, 0])[0];
                assert_eq!(value, (f64::from(m as i8) * 2f64.powi(i32::from(e) - 133)) as f32);
            }
        }
        let _ = encode_block(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, 1.0, -0.0, 0.0]);
    }
}
