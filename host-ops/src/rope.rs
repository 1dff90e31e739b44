//! Rotary embeddings, half-split: pair `j` of a vector is `(x[j], x[j + half])`.

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

    /// Turns the first `2 * half` values of `x` by row `i`; the rest passes through.
    ///
    /// # Panics
    /// If there is no such row or `x` is shorter than `2 * half`.
    pub fn rotate(&self, i: usize, x: &mut [f32]) {
        let _ = (i, x);
        todo!()
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
        let _ = (rope_dim, theta, sections);
        todo!()
    }

    /// Fills `table` with the rows of `positions`, each (t, h, w).
    pub fn fill(&self, positions: &[[u32; 3]], table: &mut Table) {
        let _ = (positions, table, &self.inverse, &self.axis);
        todo!()
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
        let _ = (head_dim, theta);
        todo!()
    }

    /// Fills `table` for the patches of a grid `[rows, columns]` in merge-block order.
    pub fn fill(&self, grid: [usize; 2], merge: usize, table: &mut Table) {
        let _ = (grid, merge, table, &self.inverse);
        todo!()
    }
}
