//! Activations and results in memory: little-endian bf16 or f32.

use super::Format;

/// Reads values; `raw` has exactly the bytes of `out`.
pub(super) fn load(format: Format, raw: &[u8], out: &mut [f32]) {
    match format {
        Format::Bfp16 | Format::Bfp6s => {
            for (raw, out) in raw.as_chunks::<2>().0.iter().zip(out) {
                *out = f32::from_bits(u32::from(u16::from_le_bytes(*raw)) << 16);
            }
        }
        Format::F32 => {
            for (raw, out) in raw.as_chunks().0.iter().zip(out) {
                *out = f32::from_le_bytes(*raw);
            }
        }
    }
}

/// Writes values, bf16 rounded to the nearest, ties to even; `raw` has exactly the bytes of `values`.
pub(super) fn store(format: Format, values: &[f32], raw: &mut [u8]) {
    match format {
        Format::Bfp16 | Format::Bfp6s => {
            for (value, raw) in values.iter().zip(raw.as_chunks_mut().0) {
                *raw = round(*value).to_le_bytes();
            }
        }
        Format::F32 => {
            for (value, raw) in values.iter().zip(raw.as_chunks_mut().0) {
                *raw = value.to_le_bytes();
            }
        }
    }
}

/// To bf16, nearest even; a NaN stays one.
fn round(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    (bits.wrapping_add(0x7FFF + (bits >> 16 & 1)) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_to_nearest_even_and_keeps_nan() {
        for (value, expected) in [
            (1.0, 0x3F80),
            (1.0 + 1.0 / 256.0, 0x3F80), // a tie: to even
            (1.0 + 3.0 / 256.0, 0x3F82), // a tie: to even
            (1.0 + 1.01 / 256.0, 0x3F81),
            (-0.0, 0x8000),
            (f32::MAX, 0x7F80),
            (f32::INFINITY, 0x7F80),
        ] {
            assert_eq!(round(value), expected, "{value}");
        }
        let nan = round(f32::from_bits(0x7F80_0001));
        assert!(f32::from_bits(u32::from(nan) << 16).is_nan());
    }
}
