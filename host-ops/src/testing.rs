//! What the tests share: a small random generator, bit patterns, fixtures.

/// A splitmix64 generator.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in 0..1.
    pub(crate) fn uniform(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// About normal: a sum of twelve uniforms.
    pub(crate) fn normal(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| (0..12).map(|_| self.uniform()).sum::<f32>() - 6.0).collect()
    }
}

/// Bit patterns, to compare floats exactly.
pub(crate) fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// The largest absolute difference.
#[track_caller]
pub(crate) fn max_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, |m, d| if d.is_nan() || d > m { d } else { m })
}

/// A file of `tests/fixtures`.
pub(crate) fn fixture(name: &str) -> Vec<u8> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/").to_owned() + name;
    std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// A fixture of little-endian f32.
pub(crate) fn fixture_f32(name: &str) -> Vec<f32> {
    fixture(name).as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}
