//! Plain text in columns.

use std::fmt::{Display, Write};

/// Text under construction.
#[derive(Debug, Default)]
pub(super) struct Sheet {
    text: String,
}

/// Columns of a label.
const LABEL: usize = 12;

impl Sheet {
    /// A line.
    pub(super) fn line(&mut self, line: impl Display) -> &mut Self {
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "{line}");
        self
    }

    /// A line behind a label.
    pub(super) fn row(&mut self, label: &str, value: impl Display) -> &mut Self {
        self.line(format_args!("{label:LABEL$}{value}"))
    }

    /// A table after an empty line; columns whose cells are all numbers lean right. Nothing without rows.
    pub(super) fn table<const N: usize>(&mut self, head: [&str; N], rows: &[[String; N]]) -> &mut Self {
        if rows.is_empty() {
            return self;
        }
        self.line("");
        let width: [usize; N] = std::array::from_fn(|i| {
            rows.iter().map(|row| row[i].chars().count()).max().unwrap_or(0).max(head[i].len())
        });
        let right: [bool; N] =
            std::array::from_fn(|i| rows.iter().all(|row| row[i].chars().all(|c| c.is_ascii_digit() || c == '-')));
        let mut cells = |row: [&str; N]| {
            let mut line = String::new();
            for (i, cell) in row.into_iter().enumerate() {
                let width = width[i];
                let _ = if right[i] { write!(line, "{cell:>width$}  ") } else { write!(line, "{cell:width$}  ") };
            }
            let _ = writeln!(self.text, "{}", line.trim_end());
        };
        cells(head);
        for row in rows {
            cells(std::array::from_fn(|i| row[i].as_str()));
        }
        self
    }

    pub(super) fn finish(self) -> String {
        self.text
    }
}

/// `0-3, 5` for sorted numbers.
pub(super) fn ranges(numbers: impl IntoIterator<Item = u32>) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last == number => {}
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let run = |(first, last): &(u32, u32)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    runs.iter().map(run).collect::<Vec<_>>().join(", ")
}

/// `1 run`, `2 runs`.
pub(super) fn count(number: u64, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let mut sheet = Sheet::default();
        sheet.row("uuid", "x").table(["what", "n"], &[["a".into(), "1".into()], ["long one".into(), "20".into()]]);
        assert_eq!(sheet.finish(), "uuid        x\n\nwhat       n\na          1\nlong one  20\n");
    }

    #[test]
    fn ranges_are_short() {
        assert_eq!(ranges([0, 1, 2, 2, 4, 6, 7]), "0-2, 4, 6-7");
        assert_eq!(ranges([]), "");
    }
}
