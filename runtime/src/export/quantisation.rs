//! What a format takes from the weights: the difference between a checkpoint's values and what a bundle holds of them.

use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};

use host_ops::pack::Format;

/// How far a packed tensor is from the checkpoint's.
#[derive(Debug, Clone, PartialEq)]
pub struct Quantisation {
    /// The tensor of the bundle.
    pub tensor: String,
    /// Weights in it, those that only pad it not counted where they are whole rows.
    pub values: u64,
    /// Sum of the squares of the differences.
    pub squared_error: f64,
    /// Sum of the squares of the checkpoint's values.
    pub squared: f64,
    /// The largest difference of one value.
    pub largest: f32,
}

impl Quantisation {
    /// Root mean square of the differences in units of the weights'; 0 for a tensor of zeros.
    #[must_use]
    pub fn relative_rms(&self) -> f64 {
        if self.squared > 0.0 { (self.squared_error / self.squared).sqrt() } else { 0.0 }
    }

    /// The tensor's name without the numbers of layer, block, part and slice: what such tensors have in common.
    #[must_use]
    pub fn kind(&self) -> String {
        let numbered = |part: &&str| {
            let digits = part.trim_start_matches(['l', 'b']);
            digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit())
        };
        let parts: Vec<&str> = self.tensor.split('.').filter(|part| *part != "g").filter(numbered).collect();
        let name = parts.join(".");
        let trimmed = name.trim_end_matches(|c: char| c.is_ascii_digit());
        // The merger's two linears differ by their number, which stays.
        if name.starts_with("vis.m") || name.starts_with("vis.fc") { name } else { trimmed.to_owned() }
    }
}

/// The text that an export leaves in the bundle.
pub(super) fn render(all: &[Quantisation]) -> String {
    let mut out = "# tensor, weights, RMS of the error / RMS of the weights, largest error\n".to_owned();
    for one in all {
        // Writing to a string does not fail.
        let _ = writeln!(out, "{} {} {:.6e} {:.6e}", one.tensor, one.values, one.relative_rms(), one.largest);
    }
    out
}

/// Gathers differences row by row, from any thread; the sums do not depend on the order.
#[derive(Debug)]
pub(super) struct Meter {
    rows: Mutex<Vec<Row>>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Row {
    values: u64,
    squared_error: f64,
    squared: f64,
    largest: f32,
}

impl Meter {
    /// For a tensor of so many rows.
    pub(super) fn new(rows: usize) -> Self {
        Self { rows: Mutex::new(vec![Row::default(); rows]) }
    }

    /// Takes in a row: what was wanted, and what is stored.
    pub(super) fn note(&self, index: usize, wanted: &[f32], stored: impl Iterator<Item = f32>) {
        let mut row = Row { values: wanted.len() as u64, ..Row::default() };
        for (&wanted, stored) in wanted.iter().zip(stored) {
            let difference = wanted - stored;
            row.squared_error += f64::from(difference) * f64::from(difference);
            row.squared += f64::from(wanted) * f64::from(wanted);
            row.largest = row.largest.max(difference.abs());
        }
        if let Some(place) = self.rows.lock().unwrap_or_else(PoisonError::into_inner).get_mut(index) {
            *place = row;
        }
    }

    /// Takes in a row that is about to be packed in `format`.
    pub(super) fn packed(&self, index: usize, wanted: &[f32], format: Format) {
        match format {
            Format::F32 => self.note(index, wanted, wanted.iter().copied()),
            Format::Bfp16 | Format::Bfp6s => {
                let mut stored = vec![0.0; wanted.len()];
                if format == Format::Bfp16 {
                    host_ops::bfp16::quantise(wanted, &mut stored);
                } else {
                    host_ops::bfp6s::quantise(wanted, &mut stored);
                }
                self.note(index, wanted, stored.into_iter());
            }
        }
    }

    /// All rows together.
    pub(super) fn total(self, tensor: &str) -> Quantisation {
        let rows = self.rows.into_inner().unwrap_or_else(PoisonError::into_inner);
        let sum = |value: fn(&Row) -> f64| rows.iter().map(value).sum();
        Quantisation {
            tensor: tensor.to_owned(),
            values: rows.iter().map(|row| row.values).sum(),
            squared_error: sum(|row| row.squared_error),
            squared: sum(|row| row.squared),
            largest: rows.iter().fold(0.0, |most, row| most.max(row.largest)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_over_rows() {
        let meter = Meter::new(3);
        meter.note(2, &[3.0, 4.0], [3.0, 3.0].into_iter());
        meter.packed(0, &[1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], Format::Bfp16);
        let total = meter.total("x");
        assert_eq!((total.values, total.squared_error, total.squared, total.largest), (10, 1.0, 26.0, 1.0));
        assert!((total.relative_rms() - (1.0_f64 / 26.0).sqrt()).abs() < 1e-12);
        assert_eq!(Meter::new(2).total("zero").relative_rms(), 0.0);
        assert_eq!(render(&[total]).lines().nth(1), Some("x 10 1.961161e-1 1.000000e0"));
    }

    #[test]
    fn kinds() {
        for (tensor, kind) in [
            ("l12.g.in", "in"),
            ("l0.g.down2", "down"),
            ("head4", "head"),
            ("embed0", "embed"),
            ("vis.patch", "vis.patch"),
            ("vis.b11.qkv", "vis.qkv"),
            ("vis.b0.fc1", "vis.fc1"),
            ("vis.b3.fc2.3", "vis.fc2"),
            ("vis.m1.0", "vis.m1"),
        ] {
            let one = Quantisation { tensor: tensor.into(), values: 0, squared_error: 0.0, squared: 0.0, largest: 0.0 };
            assert_eq!(one.kind(), kind, "{tensor}");
        }
    }
}
