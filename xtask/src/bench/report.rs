//! Rows, targets, and how they are shown: a table, JSON, plots.

use serde_json::{Value, json};

use super::machine::Machine;
use super::measure::median;

/// Groups of rows, in the order of the table.
pub(super) const GROUPS: [&str; 5] = ["host", "stage", "dispatch", "load", "npu"];

/// One thing that was measured, by us and by the peer.
#[derive(Clone, Debug, Default)]
pub(super) struct Row {
    pub(super) group: &'static str,
    /// Told apart by name.
    pub(super) name: String,
    pub(super) unit: &'static str,
    /// One a round.
    pub(super) ours: Vec<f64>,
    pub(super) peer: Vec<f64>,
    /// What the best possible would be, in the same unit, and why.
    pub(super) bound: Option<(f64, String)>,
    /// How it was measured, where that is not plain.
    pub(super) note: String,
}

impl Row {
    pub(super) fn ours(&self) -> Option<f64> {
        median(&self.ours)
    }

    pub(super) fn peer(&self) -> Option<f64> {
        median(&self.peer)
    }

    /// How many times the peer's figure is ours.
    pub(super) fn ratio(&self) -> Option<f64> {
        Some(self.peer()? / self.ours()?).filter(|ratio| ratio.is_finite())
    }

    /// The part of the best possible that we reach; all rows that have one are times.
    pub(super) fn reached(&self) -> Option<f64> {
        Some(self.bound.as_ref()?.0 / self.ours()?).filter(|part| part.is_finite())
    }
}

/// A figure that has to be reached.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) what: &'static str,
    pub(super) wanted: String,
    pub(super) measured: String,
    /// `None` where it was not measured.
    pub(super) met: Option<bool>,
}

/// All that a run gave.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) machine: Machine,
    pub(super) rows: Vec<Row>,
    pub(super) targets: Vec<Target>,
    /// What could not be measured, and why.
    pub(super) gaps: Vec<String>,
    pub(super) peer: String,
    pub(super) rounds: usize,
}

/// Three digits that count.
pub(super) fn figure(value: f64) -> String {
    let digits = match value.abs() {
        100.0.. => 0,
        10.0.. => 1,
        1.0.. => 2,
        0.1.. => 3,
        _ => 4,
    };
    format!("{value:.digits$}")
}

fn shown(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), figure)
}

impl Report {
    /// The row of a name, or a new one.
    pub(super) fn row(&mut self, group: &'static str, name: &str, unit: &'static str) -> &mut Row {
        let found = self.rows.iter().position(|row| row.group == group && row.name == name);
        let at = found.unwrap_or_else(|| {
            self.rows.push(Row { group, name: name.to_owned(), unit, ..Row::default() });
            self.rows.len() - 1
        });
        &mut self.rows[at]
    }

    /// What was measured under a name.
    pub(super) fn find(&self, group: &str, name: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.group == group && row.name == name)
    }

    /// The table, as Markdown.
    pub(super) fn table(&self) -> String {
        let mut out = format!("{}\npeer: {}; medians of {} rounds\n", self.machine.text(), self.peer, self.rounds);
        for group in GROUPS {
            let rows: Vec<&Row> = self.rows.iter().filter(|row| row.group == group).collect();
            if rows.is_empty() {
                continue;
            }
            out += &format!("\n## {group}\n\n| what | unit | ours | peer | peer / ours | of the limit |\n");
            out += "|---|---|---|---|---|---|\n";
            for row in &rows {
                let reached = row.reached().map_or("-".to_owned(), |part| format!("{:.0} %", 100.0 * part));
                let (ours, peer, ratio) = (shown(row.ours()), shown(row.peer()), shown(row.ratio()));
                out += &format!("| {} | {} | {ours} | {peer} | {ratio} | {reached} |\n", row.name, row.unit);
            }
            let mut notes: Vec<String> = Vec::new();
            for row in rows {
                let limit = row.bound.as_ref().map(|(value, why)| format!("limit {} = {why}", figure(*value)));
                let parts: Vec<String> =
                    limit.into_iter().chain(Some(row.note.clone()).filter(|note| !note.is_empty())).collect();
                if !parts.is_empty() {
                    notes.push(format!("* {}: {}", row.name, parts.join("; ")));
                }
            }
            if !notes.is_empty() {
                out += &format!("\n{}\n", notes.join("\n"));
            }
        }
        if !self.targets.is_empty() {
            out += "\n## targets\n\n| what | target | measured | |\n|---|---|---|---|\n";
            for target in &self.targets {
                let met = target.met.map_or("not measured", |met| if met { "met" } else { "not met" });
                out += &format!("| {} | {} | {} | {met} |\n", target.what, target.wanted, target.measured);
            }
        }
        if !self.gaps.is_empty() {
            out += &format!("\nNot measured:\n\n* {}\n", self.gaps.join("\n* "));
        }
        out
    }

    /// Everything, for other programs.
    pub(super) fn json(&self) -> Value {
        let rows: Vec<Value> = self
            .rows
            .iter()
            .map(|row| {
                json!({
                    "group": row.group, "name": row.name, "unit": row.unit, "ours": row.ours(), "peer": row.peer(),
                    "ours_rounds": row.ours, "peer_rounds": row.peer, "ratio": row.ratio(),
                    "limit": row.bound.as_ref().map(|(value, _)| value),
                    "limit_is": row.bound.as_ref().map(|(_, why)| why), "note": row.note,
                })
            })
            .collect();
        let targets: Vec<Value> = self
            .targets
            .iter()
            .map(|t| json!({"what": t.what, "target": t.wanted, "measured": t.measured, "met": t.met}))
            .collect();
        json!({
            "machine": self.machine.json(), "peer": self.peer, "rounds": self.rounds, "rows": rows,
            "targets": targets, "not_measured": self.gaps,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_knows_its_ratio_and_how_far_it_is_from_the_limit() {
        let mut row = Row { ours: vec![2.0, 4.0, 3.0], peer: vec![30.0], ..Row::default() };
        assert_eq!((row.ratio(), row.reached()), (Some(10.0), None));
        row.bound = Some((1.5, String::new()));
        assert_eq!(row.reached(), Some(0.5));
        row.ours.clear();
        assert_eq!((row.ratio(), row.reached()), (None, None));
    }

    #[test]
    fn figures_have_three_digits() {
        let figures: Vec<String> = [1234.6, 12.34, 1.234, 0.1234, 0.01234].map(figure).into();
        assert_eq!(figures, ["1235", "12.3", "1.23", "0.123", "0.0123"]);
    }
}
