//! Rows of f32 or of bf16, as buffers hold them: what a mixer reads and writes without a copy in between.

use crate::{
    bf16::{self, bf16 as Bf16},
    pool::Pool,
};
use std::ops::Range;

/// Rows to read, each as many elements after the one before.
#[derive(Debug, Clone, Copy)]
pub enum Rows<'a> {
    /// In f32, with their stride.
    Full(&'a [f32], usize),
    /// In bf16, with their stride.
    Half(&'a [Bf16], usize),
}

impl<'a> Rows<'a> {
    /// Columns of a row, widened: exact.
    ///
    /// # Panics
    /// If there is no such row, or `out` is not as long as `columns`.
    pub fn read(&self, row: usize, columns: Range<usize>, out: &mut [f32]) {
        match *self {
            Rows::Full(x, stride) => out.copy_from_slice(&x[row * stride..][columns]),
            Rows::Half(x, stride) => bf16::to_f32(&x[row * stride..][columns], out),
        }
    }

    /// Those from `row` on.
    ///
    /// # Panics
    /// If there are not so many.
    #[must_use]
    pub fn from(&self, row: usize) -> Rows<'a> {
        match *self {
            Rows::Full(x, stride) => Rows::Full(&x[row * stride..], stride),
            Rows::Half(x, stride) => Rows::Half(&x[row * stride..], stride),
        }
    }

    /// Whether there are `n` rows of `width`.
    pub(crate) fn holds(&self, n: usize, width: usize) -> bool {
        let (len, stride) = match *self {
            Rows::Full(x, stride) => (x.len(), stride),
            Rows::Half(x, stride) => (x.len(), stride),
        };
        fits(len, stride, n, width)
    }
}

/// Rows to write.
#[derive(Debug)]
pub enum RowsMut<'a> {
    /// In f32, with their stride.
    Full(&'a mut [f32], usize),
    /// In bf16, rounded to nearest even, with their stride.
    Half(&'a mut [Bf16], usize),
}

/// One of them.
#[derive(Debug)]
pub enum RowMut<'a> {
    /// In f32.
    Full(&'a mut [f32]),
    /// In bf16.
    Half(&'a mut [Bf16]),
}

impl RowMut<'_> {
    /// Writes the first values; what stands behind them stays.
    ///
    /// # Panics
    /// If there are more than a row has.
    pub fn put(&mut self, x: &[f32]) {
        match self {
            RowMut::Full(out) => out[..x.len()].copy_from_slice(x),
            RowMut::Half(out) => bf16::from_f32(x, &mut out[..x.len()]),
        }
    }
}

impl RowsMut<'_> {
    /// Whether there are `n` rows of `width`.
    pub(crate) fn holds(&self, n: usize, width: usize) -> bool {
        let (len, stride) = match self {
            RowsMut::Full(x, stride) => (x.len(), *stride),
            RowsMut::Half(x, stride) => (x.len(), *stride),
        };
        fits(len, stride, n, width)
    }

    /// Those from `row` on.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn from(&mut self, row: usize) -> RowsMut<'_> {
        match self {
            RowsMut::Full(x, stride) => RowsMut::Full(&mut x[row * *stride..], *stride),
            RowsMut::Half(x, stride) => RowsMut::Half(&mut x[row * *stride..], *stride),
        }
    }

    /// Calls `body(slot, i, rows i * group and on, as many as there are of the group)` for the first `n` rows in groups.
    pub(crate) fn each_group<S: Send>(
        &mut self,
        pool: &Pool,
        slots: &mut [S],
        (n, group): (usize, usize),
        body: &(dyn Fn(&mut S, usize, RowsMut<'_>) + Sync),
    ) {
        // The last row may end before its stride does.
        let end = |len: usize, stride: usize| (n * stride).min(len);
        match self {
            RowsMut::Full(x, stride) => {
                let (len, stride) = (end(x.len(), *stride), *stride);
                pool.run_chunks_with(slots, (&mut x[..len], group * stride), &|slot, i, x| {
                    body(slot, i, RowsMut::Full(x, stride));
                });
            }
            RowsMut::Half(x, stride) => {
                let (len, stride) = (end(x.len(), *stride), *stride);
                pool.run_chunks_with(slots, (&mut x[..len], group * stride), &|slot, i, x| {
                    body(slot, i, RowsMut::Half(x, stride));
                });
            }
        }
    }

    /// Writes the first values of a row.
    pub(crate) fn put(&mut self, row: usize, x: &[f32]) {
        self.put_at(row, 0, x);
    }

    /// Writes values of a row from a column on.
    pub(crate) fn put_at(&mut self, row: usize, column: usize, x: &[f32]) {
        match self {
            RowsMut::Full(out, stride) => out[row * *stride + column..][..x.len()].copy_from_slice(x),
            RowsMut::Half(out, stride) => bf16::from_f32(x, &mut out[row * *stride + column..][..x.len()]),
        }
    }
}

fn fits(len: usize, stride: usize, n: usize, width: usize) -> bool {
    width <= stride && n.checked_sub(1).is_none_or(|last| last * stride + width <= len)
}
