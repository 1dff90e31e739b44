//! The one door for developers: `cargo xtask help` names its commands.

mod abi;
mod bench;
mod check;
mod dist;
mod image;
mod load;
mod server;
mod supervise;
mod synth;
mod timed;
mod vm;

use std::ffi::OsString;
use std::process::ExitCode;

const HELP: &str = "\
cargo xtask <command>

  check [STAGE]...   everything that has to hold before a change lands; without a stage, all of them:
                     fmt hygiene notes clippy docs abi tests oracle peer readme bench demo page clients load dist xrt
                     driver image; and, only where it is named, driver-others: the table on other firmware, parts and address
                     modes
  check --device NODE [--bundle B]
                     this machine's NPU: the table of driver cases, none of the dangerous ones, and the bundle's
                     references; leaves the device as it found it
  abi [--header H]   the crate's ABI tables against the kernel's header: this machine's, else Debian's
  bench [OPTION]...  our runtime and a runtime by others, measured in turn, beside the machine's limits; `bench --help`
                     for more
  load [OPTION]...   a server under clients that ask, go away, talk nonsense and read slowly; `load --help` for more
  dist               what a user downloads: a static binary, a Debian package, manual page, completions, units, checksums
  image [OPTION]...  what a machine boots to answer questions and nothing else: Debian's kernel and an initial file system;
                     `image --help` for more
  supervise -- PROGRAM [ARGUMENT]...
                     a program that uses the driver, on the software NPU; `supervise --help` for more
  synth-bundle <out> [--size 2b|0.8b|4b|9b|tiny] [--layers N]
                     a bundle of a real size with random weights
  vm -- ARGUMENTS    qwen35-direct in a virtual machine with the real driver on a virtual NPU; `vm --help` for more
  help               this text
";

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let mut command = arguments.next().unwrap_or_else(|| OsString::from("help"));
    let mut rest: Vec<OsString> = arguments.collect();
    // `help vm` is `vm --help`.
    if command == "help" && !rest.is_empty() {
        command = rest.remove(0);
        rest = vec![OsString::from("--help")];
    }
    // Words after `--` are another program's.
    let own = rest.iter().take_while(|word| *word != "--");
    if let Some(text) = help_of(&command.to_string_lossy())
        && own.into_iter().any(|word| word == "--help" || word == "-h")
    {
        print(&format!("{}\n", text.trim_end()));
        return ExitCode::SUCCESS;
    }
    let result = match command.to_string_lossy().as_ref() {
        "abi" => abi::run(&rest),
        "bench" => bench::run(&rest),
        "check" => check::run(&rest),
        "load" => load::run(&rest),
        "dist" => dist::run(&rest),
        "image" => image::run(&rest),
        "supervise" => supervise::run(&rest),
        "synth-bundle" => synth::run(&rest),
        "vm" => vm::run(&rest),
        "help" | "--help" | "-h" => {
            print(HELP);
            Ok(true)
        }
        other => Err(format!("unknown command {other:?}: try `cargo xtask help`")),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::from(2)
        }
    }
}

/// The help of a command.
fn help_of(command: &str) -> Option<&'static str> {
    Some(match command {
        "abi" => abi::HELP,
        "bench" => bench::HELP,
        "check" => check::HELP,
        "load" => load::HELP,
        "dist" => dist::HELP,
        "image" => image::HELP,
        "supervise" => supervise::HELP,
        "synth-bundle" => synth::HELP,
        "vm" => vm::HELP,
        _ => return None,
    })
}

/// The one place that writes to stdout; a reader that has gone away is not an error.
fn print(text: &str) {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
