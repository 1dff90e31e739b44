use super::*;
use crate::bfp16;
use crate::simd::{Level, at_level, plain};
use crate::testing::{Random, bits};

/// Random blocks of every exponent that matters, and activations to go with them.
fn packed(random: &mut Random, format: Format, values: usize) -> Vec<u8> {
    match format {
        Format::Bfp16 => (0..values / 8)
            .flat_map(|_| {
                let mut block: [u8; 9] = std::array::from_fn(|_| random.next() as u8);
                block[0] = match random.next() % 16 {
                    0 => 0,
                    1 => (random.next() % 12) as u8,
                    _ => 110 + (random.next() % 24) as u8,
                };
                block
            })
            .collect(),
        Format::Bfp6s => (0..values / 1024)
            .flat_map(|_| {
                let mut unit: [u8; 832] = std::array::from_fn(|_| random.next() as u8);
                for scale in &mut unit[768..] {
                    if !random.next().is_multiple_of(16) {
                        *scale = (30 + random.next() % 20) as u8 * 4 + *scale % 4;
                    }
                }
                unit
            })
            .collect(),
        Format::F32 => random.normal(values).iter().flat_map(|x| x.to_le_bytes()).collect(),
    }
}

/// Value (k, output) of a unit of bfp6s, by the format's description.
fn unit_value(unit: &[u8], k: usize, output: usize) -> f32 {
    let (tile, lane, second) = (k / 16, 8 * output + k % 8, k % 16 / 8);
    let (low, high) = (unit[96 * tile + lane], unit[96 * tile + 64 + lane % 32]);
    let u = (low >> (4 * second) & 15) | (high >> (2 * (lane / 32) + 4 * second) & 3) << 4;
    let scale = unit[768 + 8 * tile + output];
    let mantissa = (f64::from(i32::from(u) - 32) * f64::from(5 + scale % 4) / 2.0).round_ties_even();
    (mantissa * 2f64.powi(i32::from(scale / 4) + 80 - 133)) as f32
}

/// The value of (k, column) of a column block, by the layout's formula.
fn stream_value(format: Format, packed: &[u8], k: usize, column: usize) -> f32 {
    if format == Format::Bfp6s {
        return unit_value(&packed[(k / 128 * 8 + column / 8) * 832..], k % 128, column % 8);
    }
    let block = format.bytes((((k / 128 * 8 + column / 8) * 16 + k % 128 / 8) * 8 + column % 8) * 8);
    value(format, &packed[block..], k % 8)
}

fn value(format: Format, block: &[u8], k: usize) -> f32 {
    match format {
        Format::Bfp16 => (f64::from(block[1 + k] as i8) * 2f64.powi(i32::from(block[0]) - 133)) as f32,
        Format::Bfp6s => unreachable!("units are not blocks"),
        Format::F32 => f32::from_le_bytes(block[4 * k..4 * k + 4].try_into().unwrap()),
    }
}

fn split_of(format: Format, x: &[f32]) -> Vec<f32> {
    let mut x = x.to_vec();
    if format != Format::F32 {
        split(&mut x);
    }
    x
}

#[test]
fn split_is_two_rounds_of_the_block_format() {
    let mut random = Random::new(7);
    for round in 0..2000 {
        let mut x: [f32; 8] =
            std::array::from_fn(|_| random.normal(1)[0] * 2f32.powi((random.next() % 40) as i32 - 30));
        if round % 3 == 0 {
            x = x.map(|x| half::bf16::from_f32(x).to_f32());
        }
        match round % 10 {
            1 => x[3] = -0.0,
            2 => x[5] = -1e-20,
            3 => x = x.map(|x| x * 1e-37),
            4 => x = [0.0, -0.0, 0.0, 0.0, -0.0, 0.0, 0.0, 0.0],
            5 => x = x.map(|x| x * 1e37),
            _ => {}
        }
        let q = |x: &[f32; 8]| bfp16::decode_block(&bfp16::encode_block(x));
        let hi = q(&x);
        let lo = q(&std::array::from_fn(|i| x[i] - hi[i]));
        let expected: [f32; 8] = std::array::from_fn(|i| hi[i] + lo[i]);
        let mut wide = x;
        split(&mut wide);
        let mut narrow = x;
        plain(|| split(&mut narrow));
        assert_eq!(bits(&wide), bits(&expected), "{x:?}");
        assert_eq!(bits(&narrow), bits(&expected), "{x:?}");
    }
}

#[test]
fn bf16_values_of_like_size_split_without_loss() {
    let mut random = Random::new(8);
    for _ in 0..500 {
        let x: [f32; 8] = std::array::from_fn(|_| half::bf16::from_f32(1.0 + 7.0 * random.uniform()).to_f32());
        let mut y = x;
        split(&mut y);
        assert_eq!(x, y);
    }
}

#[test]
fn products_are_chains_of_fused_additions_in_every_kernel() {
    let mut random = Random::new(9);
    for format in [Format::Bfp16, Format::Bfp6s, Format::F32] {
        for (k, rows) in [(128, 4), (512, 8), (640, 64)] {
            let a = random.normal(rows * k);
            let b = packed(&mut random, format, k * 64);
            let mut expected = Vec::new();
            for row in split_of(format, &a).chunks_exact(k) {
                for column in 0..64 {
                    let w = |k| stream_value(format, &b, k, column);
                    expected.push(row.iter().enumerate().fold(0.0, |acc: f32, (k, x)| x.mul_add(w(k), acc)));
                }
            }
            let run = || {
                let (mut tiles, mut panels, mut c) = (vec![0.0; rows * k], vec![0.0; k * 64], vec![1.0; rows * 64]);
                pack_rows(format, &a, k, &mut tiles);
                unpack_block(format, &b, k, &mut panels);
                gemm(&tiles, &panels, k, &mut c);
                let mut y = [2.0; 64];
                gemv_block(format, &b, &split_of(format, &a[..k]), &mut y);
                (c, y)
            };
            for (c, y) in [run(), plain(run), at_level(Level::Avx2, run)] {
                assert_eq!(bits(&c), bits(&expected), "{format:?} k {k} rows {rows}");
                assert_eq!(bits(&y), bits(&expected[..64]), "{format:?} k {k}");
            }
        }
    }
}

#[test]
fn row_layout_products_are_the_same_chains() {
    let mut random = Random::new(10);
    for format in [Format::Bfp16, Format::Bfp6s, Format::F32] {
        let odd = [(8, 8), (64, 40), (520, 56)].into_iter().filter(|_| format != Format::Bfp6s);
        for (k, rows) in odd.chain([(512, 96), (384, 56), (128, 8)]) {
            let x = random.normal(k);
            let w = packed(&mut random, format, rows * k);
            let split = split_of(format, &x);
            let block = |r: usize, k8: usize| ((r / 8) * (k / 8) + k8) * 8 + r % 8;
            let expected: Vec<f32> = (0..rows)
                .map(|r| {
                    let w = |i: usize| match format {
                        Format::Bfp6s => unit_value(&w[(r / 8 * k + i / 128 * 128) / 16 * 8 * 13..], i % 128, r % 8),
                        _ => value(format, &w[format.bytes(8 * block(r, i / 8))..], i % 8),
                    };
                    split.iter().enumerate().fold(0.0, |acc: f32, (i, x)| x.mul_add(w(i), acc))
                })
                .collect();
            let run = || {
                let mut y = vec![3.0; rows];
                gemv_rows(format, &w, &split, &mut y);
                y
            };
            assert_eq!(bits(&run()), bits(&expected), "{format:?} k {k} rows {rows}");
            assert_eq!(bits(&plain(run)), bits(&expected), "{format:?} k {k} rows {rows}");
            assert_eq!(bits(&at_level(Level::Avx2, run)), bits(&expected), "{format:?} k {k} rows {rows}");
        }
    }
}

/// The plain chain of a column: what any kernel has to give, bit for bit.
fn chain_of(packed: &[u8], x: &[f32], column: usize) -> f32 {
    let w = |k| stream_value(Format::Bfp16, packed, k, column);
    x.iter().enumerate().fold(0.0, |acc: f32, (k, x)| x.mul_add(w(k), acc))
}

/// The vector kernel scales accumulators instead of weights where that cannot be seen. These are weights and
/// activations on both sides of every bound it has, with much cancellation.
#[test]
fn scaled_accumulators_are_never_seen() {
    let mut random = Random::new(11);
    let k = 256;
    let exponents: [&[u8]; 7] =
        [&[100, 125], &[90, 140], &[89, 120], &[141, 120], &[90, 91, 1], &[0, 115], &[255, 90, 128]];
    let powers: [&[i32]; 6] = [&[0], &[-60, 0], &[-61, -59], &[19, -60], &[21, 0], &[-120, -149, 100]];
    for exponents in exponents {
        for powers in powers {
            for rare in [1, 40, 3000] {
                let mut packed = packed(&mut random, Format::Bfp16, k * 64);
                for block in packed.as_chunks_mut::<9>().0 {
                    // The last of the exponents is rare or not; the first is the usual one.
                    let which =
                        if random.next().is_multiple_of(rare) { random.next() as usize % exponents.len() } else { 0 };
                    block[0] = exponents[which];
                    // Often small or no mantissas: sums that cancel to nothing.
                    if random.next().is_multiple_of(3) {
                        block[1..].iter_mut().for_each(|m| *m = (*m as i8 / 64) as u8);
                    }
                }
                let mut x: Vec<f32> = (0..k)
                    .map(|_| {
                        let power = powers[random.next() as usize % powers.len()];
                        let mantissa = 1.0 + (random.next() % 128) as f32 / 128.0;
                        let sign = if random.next().is_multiple_of(2) { 1.0 } else { -1.0 };
                        sign * mantissa * 2f32.powi(power / 2) * 2f32.powi(power - power / 2)
                    })
                    .collect();
                for i in (0..k).step_by(5) {
                    x[i] = if i % 2 == 0 { 0.0 } else { -0.0 };
                }
                if rare == 40 {
                    // Each value meets its negative: the sum is zero in between.
                    (0..k / 2).for_each(|i| x[2 * i + 1] = -x[2 * i]);
                }
                let expected: Vec<f32> = (0..64).map(|column| chain_of(&packed, &x, column)).collect();
                let mut y = [0.0; 64];
                gemv_block(Format::Bfp16, &packed, &x, &mut y);
                assert_eq!(bits(&y), bits(&expected), "exponents {exponents:?}, powers {powers:?}, 1 in {rare}");
                // The same bytes as eight rows.
                let mut y = [0.0; 64];
                gemv_rows(Format::Bfp16, &packed, &x, &mut y);
                let mut same = [0.0; 64];
                plain(|| gemv_rows(Format::Bfp16, &packed, &x, &mut same));
                assert_eq!(bits(&y), bits(&same), "rows, exponents {exponents:?}, powers {powers:?}, 1 in {rare}");
            }
        }
    }
}

#[test]
fn activations_that_are_not_finite_give_the_same_everywhere() {
    let mut random = Random::new(12);
    let packed = packed(&mut random, Format::Bfp16, 128 * 64);
    for odd in [f32::INFINITY, f32::NAN, f32::MAX, f32::MIN_POSITIVE / 4.0] {
        let mut x = random.normal(128);
        x[77] = odd;
        let run = || {
            let mut y = [0.0; 64];
            gemv_block(Format::Bfp16, &packed, &x, &mut y);
            y.map(|y| if y.is_nan() { 1 } else { y.to_bits() })
        };
        assert_eq!(run(), plain(run), "{odd}");
    }
}
