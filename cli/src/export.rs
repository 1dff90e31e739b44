//! `export`: a checkpoint to a bundle.

use crate::error::CliError;
use crate::interrupt::Interrupt;
use crate::output::{ProgressLine, answer};
use runtime::export::{ExportOptions, export};
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
    answer(&format!(
        "{}: {} tensors, {} bytes, {} instruction streams, {} reference runs\n",
        summary.out.display(),
        summary.tensors,
        summary.bytes,
        summary.streams,
        summary.refs
    ))
}
