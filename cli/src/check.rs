//! `check`: the bundle's reference runs.

use crate::arguments::RunOptions;
use crate::device;
use crate::error::CliError;
use crate::interrupt::Interrupt;
use crate::output::{ProgressLine, answer, table};
use std::path::Path;

pub(crate) fn run(bundle: &Path, options: &RunOptions) -> Result<(), CliError> {
    let _interrupt = Interrupt::install();
    if device::open(bundle)?.manifest.refs.is_empty() {
        return Err(CliError::NoReferences(bundle.to_owned()));
    }
    let mut loaded = device::load(bundle, options, true)?;
    let mut line = ProgressLine::new();
    let report = runtime::check::run(&mut loaded.chat, &mut |name| line.show(|| format!("checking {name}")))?;
    line.clear();
    answer(&format!("on {}\n{report}", loaded.device))?;
    if !report.to_string().ends_with('\n') {
        answer("\n")?;
    }
    if options.timing {
        let counters = loaded.chat.counters();
        table(&format!(
            "load {:.3} s, {} commands, {} ioctls for them, {} context switches\n",
            loaded.seconds, counters.commands, counters.ioctls, counters.context_switches
        ));
    }
    if report.passed() { Ok(()) } else { Err(CliError::CheckFailed) }
}
