//! `export`: a checkpoint to a bundle.

use crate::error::CliError;
use crate::output::{ProgressLine, answer};
use runtime::export::{ExportOptions, export};

pub(crate) fn run(options: &ExportOptions) -> Result<(), CliError> {
    let mut line = ProgressLine::new();
    let summary = export(options, &mut |progress| line.share("exporting", progress.done, progress.total))?;
    line.clear();
    answer(&format!(
        "{}: {} tensors, {} bytes, {} instruction streams, {} reference runs\n",
        summary.out.display(),
        summary.tensors,
        summary.bytes,
        summary.streams,
        summary.refs
    ))
}
