//! Qwen3.5 chat on AMD Ryzen AI NPUs through the amdxdna driver alone.
#![deny(unsafe_code)]

mod arguments;
mod check;
mod demo;
mod device;
mod doctor;
mod driver_check;
mod error;
mod eval;
mod export;
mod flags;
mod help;
mod init;
mod inspect;
mod interrupt;
mod npu;
mod output;
mod picture;
mod prompt;
mod serve;
mod shell;
mod talk;
mod top;
mod verify;
mod wishes;

use arguments::{Request, UsageError};
use error::CliError;
use runtime::export::{ExportOptions, VisionExport};
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    if init::is_init() {
        init::run();
    }
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if !matches!(error, CliError::Closed) {
                output::note(&error);
            }
            ExitCode::from(error.exit_code())
        }
    }
}

fn run() -> Result<(), CliError> {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    // A first word that is neither a command nor there was more likely meant as a command: said before anything else.
    if let Some(word) = words.first().map(Path::new)
        && arguments::is_stray(word)
    {
        return Err(UsageError::no_command(word).into());
    }
    match arguments::parse(words)? {
        Request::Chat { bundle, talk } => talk::run(&bundle, &talk),
        Request::Demo { talk } => talk::run(&demo::bundle()?, &talk),
        Request::Check { bundle, json, run } => check::run(&bundle, json, &run),
        Request::Export { checkpoint, bundle, refs, vision, format, kernels_from, speculation, threads } => {
            let options = ExportOptions {
                refs,
                vision: if vision { VisionExport::W8 } else { VisionExport::None },
                format,
                kernels_from,
                speculation,
                threads,
                ..ExportOptions::new(checkpoint, bundle)
            };
            export::run(&options)
        }
        Request::Eval { bundle, file, json, run } => eval::run(&bundle, &file, json, &run),
        Request::Verify { bundle, json } => verify::run(&bundle, json),
        Request::Doctor { bundle, json, run } => doctor::run(bundle.as_deref(), json, &run),
        Request::Top { once, json, run } => top::run(once, json, &run),
        Request::Devices => npu::list(),
        Request::Inspect { path, json, ops } => inspect::run(&path, json, ops),
        Request::DriverCheck(options) => driver_check::run(&options),
        Request::Serve { bundle, serve } => serve::run(&bundle, &serve),
        Request::Manual => output::answer(&shell::manual()),
        Request::Completions(shell) => output::answer(&shell::completions(shell)),
        Request::Help(command) => output::answer(&help::text(command)),
        Request::Version => output::answer(&format!("{} {}\n", help::NAME, env!("CARGO_PKG_VERSION"))),
    }
}
