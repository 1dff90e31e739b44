//! Rotary embeddings, half-split: pair `j` of a vector is `(x[j], x[j + half])`.

use crate::{image::block_order, simd::kernel};
use std::ops::Range;

/// Cosines and sines of some rows: `[rows, half]` each. Filled once for a batch of positions, used by every layer and
/// head.
#[derive(Debug, Clone, Default)]
pub struct Table {
    half: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Table {
    /// An empty table; filling it keeps its memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// Rows it holds.
    pub fn rows(&self) -> usize {
        self.cos.len().checked_div(self.half).unwrap_or(0)
    }

    /// Pairs a row.
    pub fn half(&self) -> usize {
        self.half
    }

    /// Cosines and sines of row `i`, `half` each.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&self, i: usize) -> (&[f32], &[f32]) {
        let at = i * self.half..(i + 1) * self.half;
        (&self.cos[at.clone()], &self.sin[at])
    }

    /// Makes it some rows of another.
    ///
    /// # Panics
    /// If there are no such rows.
    pub fn copy_rows(&mut self, from: &Table, rows: Range<usize>) {
        let at = rows.start * from.half..rows.end * from.half;
        self.half = from.half;
        self.cos.clear();
        self.cos.extend_from_slice(&from.cos[at.clone()]);
        self.sin.clear();
        self.sin.extend_from_slice(&from.sin[at]);
    }

    /// Turns the first `2 * half` values of `x` by row `i`; the rest passes through.
    ///
    /// # Panics
    /// If there is no such row or `x` is shorter than `2 * half`.
    pub fn rotate(&self, i: usize, x: &mut [f32]) {
        let (cos, sin) = self.row(i);
        let (a, rest) = x.split_at_mut(self.half);
        turn(a, &mut rest[..self.half], cos, sin);
    }

    fn clear(&mut self, half: usize, rows: usize) {
        self.half = half;
        for part in [&mut self.cos, &mut self.sin] {
            part.clear();
            part.reserve(half * rows);
        }
    }

    fn push(&mut self, angle: f32) {
        // In f64, so that the f32 sine of the f32 angle is right to the last bit on any platform.
        let (sin, cos) = f64::from(angle).sin_cos();
        self.cos.push(cos as f32);
        self.sin.push(sin as f32);
    }
}

kernel! {
    fn turn<V>(a: &mut [f32], b: &mut [f32], cos: &[f32], sin: &[f32]) {
        for (((a, b), &cos), &sin) in a.iter_mut().zip(b).zip(cos).zip(sin) {
            (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
        }
    }
}

/// Interleaved multi-axis RoPE of the text model.
#[derive(Debug, Clone)]
pub struct Text {
    inverse: Vec<f32>,
    axis: Vec<u8>,
}

impl Text {
    /// `rope_dim` values of a head are turned (even). `sections` are the pairs of the axes t, h, w: pair `j` follows h
    /// if `j % 3 == 1 && j < 3 * sections[1]`, w if `j % 3 == 2 && j < 3 * sections[2]`, else t; `[0, 0, 0]` is plain
    /// RoPE.
    ///
    /// # Panics
    /// If `rope_dim` is odd.
    pub fn new(rope_dim: usize, theta: f32, sections: [usize; 3]) -> Self {
        assert!(rope_dim.is_multiple_of(2), "an odd number of values has no pairs");
        let axis = |j: usize| match j % 3 {
            1 if j < 3 * sections[1] => 1,
            2 if j < 3 * sections[2] => 2,
            _ => 0,
        };
        Text { inverse: inverse_frequencies(rope_dim, theta), axis: (0..rope_dim / 2).map(axis).collect() }
    }

    /// Fills `table` with the rows of `positions`, each (t, h, w).
    pub fn fill(&self, positions: &[[u32; 3]], table: &mut Table) {
        table.clear(self.inverse.len(), positions.len());
        for position in positions {
            for (&inverse, &axis) in self.inverse.iter().zip(&self.axis) {
                table.push(position[usize::from(axis)] as f32 * inverse);
            }
        }
    }
}

/// Two-dimensional RoPE of the vision tower, over the whole head: the first quarter of the head's values turns with
/// the row, the second with the column.
#[derive(Debug, Clone)]
pub struct Vision {
    inverse: Vec<f32>,
}

impl Vision {
    /// For heads of `head_dim` values (a multiple of 4).
    ///
    /// # Panics
    /// If `head_dim % 4 != 0`.
    pub fn new(head_dim: usize, theta: f32) -> Self {
        assert!(head_dim.is_multiple_of(4), "a head of {head_dim} values has no pairs for both axes");
        Vision { inverse: inverse_frequencies(head_dim / 2, theta) }
    }

    /// Fills `table` for the patches of a grid `[rows, columns]` in merge-block order.
    pub fn fill(&self, grid: [usize; 2], merge: usize, table: &mut Table) {
        table.clear(2 * self.inverse.len(), grid[0] * grid[1]);
        for (row, column) in block_order(grid, merge) {
            for at in [row, column] {
                self.inverse.iter().for_each(|inverse| table.push(at as f32 * inverse));
            }
        }
    }
}

/// `1 / theta^(2j / width)` for each pair, rounded to f32 where the reference rounds.
fn inverse_frequencies(width: usize, theta: f32) -> Vec<f32> {
    let power = |j: usize| f64::from(theta).powf(f64::from((2 * j) as f32 / width as f32)) as f32;
    (0..width / 2).map(|j| 1.0 / power(j)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Random, bits, max_difference};

    const QWEN: [usize; 3] = [11, 11, 10];

    #[test]
    fn axes_of_the_released_models() {
        let rope = Text::new(64, 1e7, QWEN);
        let of = |axis| rope.axis.iter().filter(|&&a| a == axis).count();
        assert_eq!([of(0), of(1), of(2)], QWEN);
        assert_eq!(rope.axis[..6], [0, 1, 2, 0, 1, 2]);
        assert_eq!(rope.axis[30..], [0, 1]);
        assert_eq!(Text::new(16, 1e7, [5, 1, 2]).axis, [0, 1, 2, 0, 0, 2, 0, 0]);
        assert!(Text::new(64, 1e7, [0; 3]).axis.iter().all(|&a| a == 0));
    }

    #[test]
    fn equal_axes_are_plain_rope() {
        let (mut sections, mut plain) = (Table::new(), Table::new());
        Text::new(64, 1e7, QWEN).fill(&[[17; 3], [5; 3]], &mut sections);
        Text::new(64, 1e7, [0; 3]).fill(&[[17, 1, 2], [5, 0, 0]], &mut plain);
        assert_eq!(bits(&sections.cos), bits(&plain.cos));
        assert_eq!((sections.rows(), sections.half()), (2, 32));
        // Pair 1: theta^(-1/32) = 10^(-7/32).
        assert!((f64::from(plain.row(0).0[1]) - (17.0 * 10f64.powf(-7.0 / 32.0)).cos()).abs() < 1e-5);
    }

    #[test]
    fn turning_keeps_lengths_and_scores_depend_on_distance() {
        let rope = Text::new(32, 1e4, [0; 3]);
        let mut table = Table::new();
        rope.fill(&[[0; 3], [7; 3], [100; 3], [107; 3]], &mut table);
        let mut random = Random::new(13);
        let (q, k) = (random.normal(40), random.normal(40));
        let turned = |x: &[f32], i| {
            let mut x = x.to_vec();
            table.rotate(i, &mut x);
            x
        };
        let mut part = Table::new();
        part.copy_rows(&table, 1..3);
        assert_eq!((part.rows(), part.row(1)), (2, table.row(2)));
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        assert_eq!(turned(&q, 0), q);
        assert_eq!(turned(&q, 2)[32..], q[32..]);
        assert!((dot(&turned(&q, 2), &turned(&q, 2)) - dot(&q, &q)).abs() < 1e-4);
        assert!((dot(&turned(&q, 1), &turned(&k, 0)) - dot(&turned(&q, 3), &turned(&k, 2))).abs() < 1e-4);
        let (cos, sin) = table.row(1);
        let expected: Vec<f32> = (0..16)
            .map(|j| q[j] * cos[j] - q[j + 16] * sin[j])
            .chain((0..16).map(|j| q[j + 16] * cos[j] + q[j] * sin[j]))
            .collect();
        assert!(max_difference(&turned(&q, 1)[..32], &expected) < 1e-6);
    }

    /// The last position of the longest context. The reference rounds frequency and angle to f32; more is not lost, and
    /// the first pair, whose angle is the position, loses nothing.
    #[test]
    fn the_last_position_is_as_far_round_as_f32_angles_can_tell() {
        let rope = Text::new(64, 1e7, QWEN);
        let mut table = Table::new();
        for position in [262_143_u32, 262_142, 131_071] {
            rope.fill(&[[position; 3]], &mut table);
            let (cos, sin) = table.row(0);
            for j in 0..32 {
                let angle = f64::from(position) * 10f64.powf(-7.0 * j as f64 / 32.0);
                let unsure = if j == 0 { 1e-7 } else { angle * 2.0_f64.powi(-23) + 1e-7 };
                let off = (f64::from(cos[j]) - angle.cos()).hypot(f64::from(sin[j]) - angle.sin());
                assert!(off <= unsure, "{position}, pair {j}: off by {off}, expected {unsure} at most");
            }
        }
        // Neighbours stay apart.
        rope.fill(&[[262_142; 3], [262_143; 3]], &mut table);
        let ((a, b), (c, d)) = (table.row(0), table.row(1));
        let turn = f64::from(a[0] * c[0] + b[0] * d[0]);
        assert!((turn - 1f64.cos()).abs() < 1e-6, "{turn}");
    }

    #[test]
    fn vision_turns_by_row_and_column_in_block_order() {
        let rope = Vision::new(64, 1e4);
        let mut table = Table::new();
        rope.fill([4, 6], 2, &mut table);
        assert_eq!((table.rows(), table.half()), (24, 32));
        // Patch 5 is block 1, second column of its first row: row 0, column 3.
        let (cos, sin) = table.row(5);
        assert_eq!(cos[..16], [1.0; 16]);
        assert!((sin[16] - 3f32.sin()).abs() < 1e-7);
        // Patch 14: first block of the second block row (patches 12..16), second row of it: row 3, column 0.
        let (cos, sin) = table.row(14);
        assert!((cos[0] - 3f32.cos()).abs() < 1e-7);
        assert_eq!(sin[16..], [0.0; 16]);
        // 18 frequencies an axis, as the largest model has.
        assert_eq!(Vision::new(72, 1e4).inverse.len(), 18);
    }
}
