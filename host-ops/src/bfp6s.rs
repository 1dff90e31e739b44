//! bfp6s16: sixteen values in thirteen bytes, a scale and sixteen codes of six bits.
//!
//! A code u in 0..64 of a scale byte s stands for the mantissa `round_half_even((u - 32) * c / 2)` with
//! `c = 5 + (s & 3)` under the exponent `(s >> 2) + 80`: exactly what a block of [`crate::bfp16`] can hold. So cores
//! need no other arithmetic for it than for bfp16, only an expansion first, and that is what happens here.
//!
//! Codes lie in *units* of 8 outputs x 128 k: eight tiles of 16 k with 96 bytes of codes each, then for each tile a
//! scale byte for each output.

use crate::bfp16;
use crate::simd::kernel;

/// Bytes of a unit.
pub const UNIT_BYTES: usize = 832;
/// Values along k in a unit.
pub const UNIT_K: usize = 128;
/// Outputs of a unit.
pub const UNIT_OUTPUTS: usize = 8;
/// Values that share a scale.
pub const BLOCK_VALUES: usize = 16;

/// Bytes of the codes of a tile: 64 with the low halves of two codes each, 32 with the high quarters of four.
const TILE_CODES: usize = 96;
/// Where the scales begin.
const SCALES: usize = 8 * TILE_CODES;
/// The least exponent a scale can say, and the largest.
const EXPONENTS: [i32; 2] = [80, 143];

/// A unit as atoms of bfp16: for each 8 k the blocks of the eight outputs.
pub(crate) type Atoms = [[u8; 72]; 16];

/// Sixteen values of an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// The scale byte.
    pub scale: u8,
    /// The codes, in k order.
    pub codes: [u8; BLOCK_VALUES],
}

/// Expands a unit.
#[inline(always)]
pub(crate) fn expand(unit: &[u8; UNIT_BYTES], atoms: &mut Atoms) {
    let (codes, scales) = unit.split_at(SCALES);
    let tiles = codes.as_chunks::<TILE_CODES>().0.iter().zip(scales.as_chunks::<8>().0);
    for ((codes, scales), atoms) in tiles.zip(atoms.as_chunks_mut::<2>().0) {
        let (low, high) = codes.split_at(64);
        // Codes of the first 8 k and of the second; lanes are outputs times 8 plus k.
        let mut u = [[0; 64]; 2];
        for half in 0..2 {
            for lane in 0..32 {
                let (low, high) = (low[32 * half + lane], high[lane] >> (2 * half));
                u[0][32 * half + lane] = low & 0xF | (high & 3) << 4;
                u[1][32 * half + lane] = low >> 4 | high & 0x30;
            }
        }
        for (u, atom) in u.iter().zip(atoms) {
            let columns = u.as_chunks::<8>().0.iter().zip(scales).zip(atom.as_chunks_mut::<9>().0);
            for ((u, scale), out) in columns {
                let c = 5 + i16::from(scale & 3);
                out[0] = (scale >> 2) + EXPONENTS[0] as u8;
                for (u, out) in u.iter().zip(&mut out[1..]) {
                    let twice = (i16::from(*u) - 32) * c;
                    // Half of it, ties to even.
                    *out = ((twice >> 1) + (twice & (twice >> 1) & 1)) as u8;
                }
            }
        }
    }
}

/// Puts a block into a unit that holds zeros there: sixteen values of `output`, from k `16 * tile`.
pub(crate) fn put(unit: &mut [u8; UNIT_BYTES], output: usize, tile: usize, block: &Block) {
    unit[SCALES + 8 * tile + output] = block.scale;
    let (low, high) = unit[TILE_CODES * tile..][..TILE_CODES].split_at_mut(64);
    for k in 0..8 {
        let (lane, first, second) = (8 * output + k, block.codes[k], block.codes[8 + k]);
        low[lane] = first & 0xF | second << 4;
        high[lane % 32] |= (first >> 4 | second & 0x30) << (2 * (lane / 32));
    }
}

/// The code nearest to each of eight values given in units of the mantissa, and the squares of what is missing.
#[inline(always)]
fn nearest(y: &[f32; 8], c: f32) -> ([f32; 8], [f32; 8]) {
    let (mut codes, mut errors) = ([0.0; 8], [0.0; 8]);
    for i in 0..8 {
        // Mantissas are off the even grid of c / 2 by a half at most: the nearest is one of these two.
        let below = (y[i] * (2.0 / c)).floor().clamp(-32.0, 31.0);
        let above = (below + 1.0).min(31.0);
        let low = (y[i] - (below * (0.5 * c)).round_ties_even()).abs();
        let high = (y[i] - (above * (0.5 * c)).round_ties_even()).abs();
        codes[i] = if high < low { above } else { below };
        let error = if high < low { high } else { low };
        errors[i] = error * error;
    }
    (codes, errors)
}

/// The block with the least squared error, over every scale that can have it.
///
/// Infinities and NaN have no encoding; what comes out for them is unspecified.
#[inline(always)]
fn encode_block(x: &[f32; 16]) -> Block {
    let largest = x.iter().fold(0f32, |m, x| m.max(x.abs()));
    let field = (largest.to_bits() >> 23) as i32;
    // One lower, and the largest value would be cut to half of it or less, which costs more than what the others could
    // win by it; seven higher, and every code but zero is too large.
    let [least, most] = EXPONENTS;
    let exponents = (field - 1).clamp(least, most)..=(field + 6).clamp(least, most);
    let halves = |e: i32| -> [[f32; 8]; 2] {
        let up = f32::from_bits(((260 - e) as u32) << 23);
        let y = x.map(|x| (x * up).clamp(-4096.0, 4096.0));
        let (first, second) = y.split_at(8);
        std::array::from_fn(|half| std::array::from_fn(|i| if half == 0 { first[i] } else { second[i] }))
    };
    let (mut best, mut found) = (f32::INFINITY, (least, 0));
    for e in exponents {
        let y = halves(e);
        let down = f32::from_bits(((e - 6) as u32) << 23);
        for step in 0..4 {
            let c = 5.0 + step as f32;
            let ((_, a), (_, b)) = (nearest(&y[0], c), nearest(&y[1], c));
            let mut sum: [f32; 8] = std::array::from_fn(|i| a[i] + b[i]);
            for width in [4, 2, 1] {
                for i in 0..width {
                    sum[i] += sum[i + width];
                }
            }
            let error = sum[0] * (down * down);
            if error < best {
                (best, found) = (error, (e, step));
            }
        }
        if best == 0.0 {
            break;
        }
    }
    let (e, step) = found;
    let y = halves(e);
    let codes = y.map(|y| nearest(&y, 5.0 + step as f32).0);
    Block {
        scale: ((e - least) << 2 | step) as u8,
        codes: std::array::from_fn(|i| (codes[i / 8][i % 8] as i32 + 32) as u8),
    }
}

kernel! {
    /// Encodes blocks of sixteen values each, with the least squared error that the format has for them.
    ///
    /// # Panics
    /// If the lengths do not fit.
    pub fn encode<V>(x: &[f32], out: &mut [Block]) {
        assert!(x.len() == BLOCK_VALUES * out.len());
        for (x, out) in x.as_chunks().0.iter().zip(out) {
            *out = encode_block(x);
        }
    }
}

impl Block {
    /// An empty block: zeros.
    pub const ZERO: Block = Block { scale: 0, codes: [32; BLOCK_VALUES] };

    /// The values.
    pub fn decode(&self) -> [f32; BLOCK_VALUES] {
        let c = 5 + i16::from(self.scale & 3);
        let exponent = i32::from(self.scale >> 2) + EXPONENTS[0];
        let scale = f32::from_bits(((exponent - 6) as u32) << 23);
        self.codes.map(|u| {
            let twice = (i16::from(u) - 32) * c;
            f32::from((twice >> 1) + (twice & (twice >> 1) & 1)) * scale
        })
    }
}

/// `out = decode(encode(x))`.
///
/// # Panics
/// If the lengths differ or are no multiple of 16.
pub fn quantise(x: &[f32], out: &mut [f32]) {
    assert!(x.len() == out.len() && x.len().is_multiple_of(BLOCK_VALUES));
    let mut blocks = vec![Block::ZERO; x.len() / BLOCK_VALUES];
    encode(x, &mut blocks);
    for (block, out) in blocks.iter().zip(out.as_chunks_mut().0) {
        *out = block.decode();
    }
}

/// Decodes one output of a unit.
pub(crate) fn decode_output(unit: &[u8; UNIT_BYTES], output: usize, out: &mut [f32; UNIT_K]) {
    let mut atoms = [[0; 72]; 16];
    expand(unit, &mut atoms);
    for (atom, out) in atoms.iter().zip(out.as_chunks_mut::<8>().0) {
        *out = bfp16::decode_block(&atom.as_chunks().0[output]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::plain;
    use crate::testing::{Random, bits, fixture};

    const ROWS: usize = 16;
    const K: usize = 384;

    /// The value of a code, as the format is defined.
    fn value(scale: u8, code: u8) -> f64 {
        let mantissa = (f64::from(i32::from(code) - 32) * f64::from(5 + (scale & 3)) / 2.0).round_ties_even();
        mantissa * 2f64.powi(i32::from(scale >> 2) + 80 - 133)
    }

    #[test]
    fn golden_rows_expand_to_their_mantissas_and_exponents() {
        let (bytes, mantissas, exponents) =
            (fixture("bfp6s.bytes.u8"), fixture("bfp6s.mantissa.i8"), fixture("bfp6s.exponent.u8"));
        let units = bytes.as_chunks::<UNIT_BYTES>().0;
        assert_eq!(units.len(), ROWS / 8 * K / UNIT_K);
        for (i, unit) in units.iter().enumerate() {
            let (group, from) = (i / (K / UNIT_K), i % (K / UNIT_K) * UNIT_K);
            let mut atoms = [[0; 72]; 16];
            expand(unit, &mut atoms);
            for (a, atom) in atoms.iter().enumerate() {
                for (output, block) in atom.as_chunks::<9>().0.iter().enumerate() {
                    let (row, k) = (8 * group + output, from + 8 * a);
                    assert_eq!(block[0], exponents[row * (K / 16) + k / 16], "row {row}, k {k}");
                    assert_eq!(block[1..], mantissas[row * K + k..][..8], "row {row}, k {k}");
                }
            }
        }
    }

    #[test]
    fn what_is_put_comes_out() {
        let mut random = Random::new(1);
        let blocks: Vec<Block> = (0..64)
            .map(|_| Block { scale: random.next() as u8, codes: std::array::from_fn(|_| (random.next() % 64) as u8) })
            .collect();
        let mut unit = [0; UNIT_BYTES];
        for (i, block) in blocks.iter().enumerate() {
            put(&mut unit, i / 8, i % 8, block);
        }
        for output in 0..8 {
            let mut row = [0.0; UNIT_K];
            decode_output(&unit, output, &mut row);
            for (tile, values) in row.as_chunks::<16>().0.iter().enumerate() {
                let block = &blocks[8 * output + tile];
                assert_eq!(values, &block.decode());
                for (found, code) in values.iter().zip(block.codes) {
                    assert_eq!(f64::from(*found), value(block.scale, code));
                }
            }
        }
    }

    /// Sums of squares of what is missing, in f64.
    fn error(x: &[f32; 16], block: &Block) -> f64 {
        x.iter().zip(block.codes).map(|(x, code)| (f64::from(*x) - value(block.scale, code)).powi(2)).sum()
    }

    /// Blocks of all sorts: normal, one that stands out, few values, sizes at both ends.
    fn samples(random: &mut Random) -> Vec<[f32; 16]> {
        (0..400)
            .map(|i| {
                let size = 2f32.powi([0, -4, 9, -50, 16, -3][i % 6]) * (0.5 + random.uniform());
                let mut x: [f32; 16] = random.normal(16).try_into().unwrap();
                match i % 5 {
                    1 => x[3] *= 6.0,
                    2 => x.iter_mut().skip(2).for_each(|x| *x = 0.0),
                    3 => x.iter_mut().for_each(|x| *x = (*x * 2.0).round()),
                    4 => x = x.map(|x| x.abs() + 0.1),
                    _ => {}
                }
                x.map(|x| x * size)
            })
            .collect()
    }

    fn encoded(x: &[f32; 16]) -> Block {
        let mut out = [Block::ZERO];
        encode(x, &mut out);
        out[0]
    }

    #[test]
    fn no_scale_and_no_code_is_better() {
        for x in samples(&mut Random::new(2)) {
            let best: f64 = (0..=255_u8)
                .map(|scale| {
                    let missing = |x: f32, code| (f64::from(x) - value(scale, code)).powi(2);
                    let least = |x: f32| (0..64).map(|code| missing(x, code)).fold(f64::INFINITY, f64::min);
                    x.iter().map(|x| least(*x)).sum()
                })
                .fold(f64::INFINITY, f64::min);
            let ours = error(&x, &encoded(&x));
            assert!(ours <= best * (1.0 + 1e-5) + 1e-40, "{x:?}: {ours:e}, best {best:e}");
        }
    }

    /// The least step that reaches the largest value, and the nearest multiple of it.
    fn simple(x: &[f32; 16]) -> Block {
        let most = f64::from(x.iter().fold(0f32, |m, x| m.max(x.abs())));
        let scale = (0..=255_u8).find(|scale| value(*scale, 63) >= most).unwrap_or(255);
        let step = f64::from(5 + (scale & 3)) / 2.0 * 2f64.powi(i32::from(scale >> 2) + 80 - 133);
        Block { scale, codes: x.map(|x| ((f64::from(x) / step).round().clamp(-32.0, 31.0) + 32.0) as u8) }
    }

    #[test]
    fn never_worse_than_the_simple_encoder() {
        for x in samples(&mut Random::new(3)) {
            let (best, plain) = (error(&x, &encoded(&x)), error(&x, &simple(&x)));
            assert!(best <= plain * (1.0 + 1e-6), "{x:?}");
        }
        // What the search is for: less error in the mean.
        let (mut ours, mut theirs, mut random) = (0.0, 0.0, Random::new(6));
        for _ in 0..200 {
            let x = random.normal(16).try_into().unwrap();
            (ours, theirs) = (ours + error(&x, &encoded(&x)), theirs + error(&x, &simple(&x)));
        }
        assert!(ours < 0.85 * theirs, "{ours} of {theirs}");
    }

    #[test]
    fn decoded_values_encode_to_themselves() {
        let mut random = Random::new(4);
        for x in samples(&mut random) {
            let once = encoded(&x).decode();
            assert_eq!(bits(&encoded(&once).decode()), bits(&once), "{x:?}");
        }
        // Whatever a file may hold, as long as it is one block's.
        for _ in 0..2000 {
            let spread = 1 + random.next() % 32;
            let code = |random: &mut Random| (32 + random.next() % (2 * spread) - spread) as u8;
            let block = Block { scale: random.next() as u8, codes: std::array::from_fn(|_| code(&mut random)) };
            let values = block.decode();
            assert_eq!(bits(&encoded(&values).decode()), bits(&values), "{block:?}");
        }
    }

    #[test]
    fn vectors_and_plain_code_choose_alike() {
        let mut random = Random::new(5);
        let x: Vec<f32> = samples(&mut random).concat();
        let run = || {
            let mut out = vec![Block::ZERO; x.len() / 16];
            encode(&x, &mut out);
            out
        };
        assert_eq!(run(), plain(run));
    }

    #[test]
    fn values_beyond_the_format_are_cut_and_nothing_panics() {
        let largest = value(255, 63) as f32;
        for odd in [0.0, -0.0, 1e-30, 1e30, -1e38, f32::MAX, f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            let mut x = [0.0; 16];
            x[5] = odd;
            let back = encoded(&x).decode();
            assert!(back.iter().enumerate().all(|(i, x)| i == 5 || *x == 0.0), "{odd}: {back:?}");
            if odd.is_finite() && odd >= largest {
                assert_eq!(back[5], largest);
            }
        }
        assert_eq!(bits(&encoded(&[-0.0; 16]).decode()), [0; 16]);
    }
}
