//! `export`: a checkpoint to a bundle.

use crate::error::CliError;
use crate::interrupt::Interrupt;
use crate::output::{ProgressLine, answer, table};
use runtime::export::{ExportOptions, Quantisation, export};
use std::fmt::Write;
use std::ops::ControlFlow;

pub(crate) fn run(options: &ExportOptions) -> Result<(), CliError> {
    let interrupt = Interrupt::install();
    let mut line = ProgressLine::new();
    let result = interrupt.guarded(|| {
        export(options, &mut |progress| {
            line.share("exporting", progress.done, progress.total);
            if interrupt.asked() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
    });
    line.clear();
    if result.is_err() && interrupt.asked() {
        return Err(CliError::Interrupted);
    }
    let summary = result?;
    table(&losses(&summary.quantisation));
    answer(&format!(
        "{}: {} tensors, {} bytes, {} instruction streams, {} reference runs\n",
        summary.out.display(),
        summary.tensors,
        summary.bytes,
        summary.streams,
        summary.refs
    ))
}

/// What the format took from the weights, by kind of weight.
fn losses(all: &[Quantisation]) -> String {
    let mut kinds: Vec<(String, Vec<&Quantisation>)> = Vec::new();
    for one in all {
        let kind = one.kind();
        match kinds.iter_mut().find(|(other, _)| *other == kind) {
            Some((_, members)) => members.push(one),
            None => kinds.push((kind, vec![one])),
        }
    }
    let mut out = format!("{:10} {:>7} {:>12}  RMS error  largest  worst\n", "weights", "tensors", "values");
    for (kind, members) in kinds {
        let sum = |value: fn(&Quantisation) -> f64| members.iter().map(|one| value(one)).sum::<f64>();
        let (error, squared) = (sum(|one| one.squared_error), sum(|one| one.squared));
        let relative = if squared > 0.0 { (error / squared).sqrt() } else { 0.0 };
        let values: u64 = members.iter().map(|one| one.values).sum();
        let largest = members.iter().fold(0.0_f32, |most, one| most.max(one.largest));
        let worst = members.iter().max_by(|a, b| a.relative_rms().total_cmp(&b.relative_rms()));
        let worst = worst.map_or(String::new(), |one| format!("{} {:.3} %", one.tensor, 100.0 * one.relative_rms()));
        // Writing to a string does not fail.
        let _ = writeln!(
            out,
            "{kind:10} {:>7} {values:>12}  {:>7.3} %  {largest:>7.5}  {worst}",
            members.len(),
            100.0 * relative
        );
    }
    out
}
