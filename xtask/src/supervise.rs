//! `cargo xtask supervise -- <program>`: an unmodified program that uses the amdxdna driver, on the software NPU.

use std::ffi::OsString;
use std::fs::File;
use std::io::BufWriter;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::time::Duration;

use driver_tests::contracts;
use lexopt::{Arg, Parser, ValueExt};
use npu_model::supervise::Supervisor;
use npu_model::trace::Trace;
use npu_model::{AddressMode, Config, DriverVersion, Npu, Timing};
use runtime::bundle::Bundle;
use runtime::reference::is_reference;

pub(crate) const HELP: &str = "\
cargo xtask supervise [OPTION]... -- PROGRAM [ARGUMENT]...

Runs a program, unmodified, dynamic or static, with the software NPU behind its device node. The exit code is the
program's.

  --bundle DIR       the bundle whose kernels the program will use: says what they compute. Not needed for kernels of
                     our own exporter
  --trace FILE       record every call as a line of JSON
  --counts           at the end, how often each call was made
  --node PATH        the node, there or not                                    [/dev/accel/accel0]
  --npu 4|5|6        the part                                                  [4]
  --driver 7.3|2026-08
                     the driver whose rules apply: Linux 7.3.4 or August 2026  [7.3]
  --protocol X.Y     protocol of the firmware                                  [6.18]
  --mode sva|iova    how the device addresses memory                           [sva]
  --slots N          context slots of the firmware                             [16]
  --tdr-ms N         the driver's tdr_timeout_ms                               [2000]
  --threads N        threads of the arithmetic                                 [all]
  --timing [LATENCY,BANDWIDTH,RATE]
                     compute nothing: each command takes LATENCY microseconds plus the longer of its bytes at
                     BANDWIDTH GB/s and its operations at RATE TFLOP/s         [65,50,12]
                     What supervising costs is measured first and taken off the latency
";

struct Options {
    bundle: Option<PathBuf>,
    trace: Option<PathBuf>,
    counts: bool,
    node: PathBuf,
    config: Config,
    program: Vec<OsString>,
}

/// True if the program ended well.
pub(crate) fn run(arguments: &[OsString]) -> Result<bool, String> {
    let options = match parse(arguments).map_err(|error| error.to_string())? {
        Some(options) => options,
        None => {
            crate::print(HELP);
            return Ok(true);
        }
    };
    let status = supervise(&options)?;
    match status.code() {
        Some(0) => Ok(true),
        Some(code) => std::process::exit(code),
        None => Err(format!("{} was ended by signal {}", options.program[0].display(), status.signal().unwrap_or(0))),
    }
}

fn supervise(options: &Options) -> Result<ExitStatus, String> {
    let mut config = options.config.clone();
    if let Some(timing) = &mut config.timing {
        let overhead = crate::bench::overhead()?;
        eprintln!("supervise: {} us a command are supervision's own, taken off the latency", overhead.as_micros());
        timing.latency = timing.latency.saturating_sub(overhead);
    }
    let mut supervisor = Supervisor::new(config, &options.node).map_err(|error| error.to_string())?;
    if let Some(path) = &options.bundle {
        let bundle = Bundle::open(path).map_err(|error| format!("bundle {}: {error}", path.display()))?;
        if has_opaque_kernels(&bundle).map_err(|error| format!("bundle {}: {error}", path.display()))? {
            contracts::teach(supervisor.model(), &bundle)
                .map_err(|error| format!("bundle {}: {error}", path.display()))?;
        }
    }
    let trace = options.trace.as_deref().map(|path| create(path).map(|file| Trace::to_lines(BufWriter::new(file))));
    let trace = trace.transpose()?;
    if let Some(trace) = &trace {
        supervisor = supervisor.with_trace(Arc::clone(trace));
    }
    Supervisor::ignore_interrupts();
    let mut command = Command::new(&options.program[0]);
    command.args(&options.program[1..]);
    let status = supervisor.run(&mut command).map_err(|error| error.to_string())?;
    if let Some(trace) = trace {
        trace.finish().map_err(|error| format!("writing the trace: {error}"))?;
    }
    if let Some(fault) = supervisor.model().last_fault() {
        eprintln!("supervise: the last command that failed: {fault}");
    }
    if options.counts {
        let counts = supervisor.model().counts();
        for (name, count) in &counts.ioctls {
            eprintln!("supervise: {name} {count}");
        }
        eprintln!("supervise: {} commands, {} failed", counts.commands, counts.failed_commands);
        if options.config.timing.is_some() {
            let ms = |ns: u64| ns as f64 / 1e6;
            let (array, device) = (ms(counts.array_ns), ms(counts.device_ns));
            eprintln!("supervise: {array:.1} ms of the array's time, {device:.1} ms with the latencies that showed");
            eprintln!("supervise: {} changes between contexts", counts.context_switches);
        }
    }
    Ok(status)
}

fn create(path: &Path) -> Result<File, String> {
    File::create(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn has_opaque_kernels(bundle: &Bundle) -> Result<bool, runtime::bundle::BundleError> {
    for key in bundle.manifest.xclbins.keys() {
        if !is_reference(&bundle.xclbin(key)?.pdi) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// `None` where help was asked for.
fn parse(arguments: &[OsString]) -> Result<Option<Options>, lexopt::Error> {
    let mut options = Options {
        bundle: None,
        trace: None,
        counts: false,
        node: "/dev/accel/accel0".into(),
        config: Config::default(),
        program: Vec::new(),
    };
    options.config.faults.privileged = rustix::process::geteuid().is_root();
    let mut parser = Parser::from_args(arguments);
    while let Some(argument) = parser.next()? {
        match argument {
            Arg::Long("bundle") => options.bundle = Some(parser.value()?.into()),
            Arg::Long("trace") => options.trace = Some(parser.value()?.into()),
            Arg::Long("counts") => options.counts = true,
            Arg::Long("node") => options.node = parser.value()?.into(),
            Arg::Long("npu") => {
                options.config.npu = parser.value()?.parse_with(|text| match text {
                    "4" => Ok(Npu::Npu4),
                    "5" => Ok(Npu::Npu5),
                    "6" => Ok(Npu::Npu6),
                    _ => Err("there are 4, 5 and 6"),
                })?;
            }
            Arg::Long("driver") => {
                options.config.driver = parser.value()?.parse_with(|text| match text {
                    "7.3" => Ok(DriverVersion::L7_3_4),
                    "2026-08" => Ok(DriverVersion::Aug2026),
                    _ => Err("there are 7.3 and 2026-08"),
                })?;
            }
            Arg::Long("protocol") => options.config.protocol = parser.value()?.parse_with(protocol)?,
            Arg::Long("mode") => {
                options.config.mode = parser.value()?.parse_with(|text| match text {
                    "sva" => Ok(AddressMode::Sva),
                    "iova" => Ok(AddressMode::Iova),
                    _ => Err("there are sva and iova"),
                })?;
            }
            Arg::Long("slots") => options.config.slots = parser.value()?.parse()?,
            Arg::Long("tdr-ms") => options.config.tdr_ms = parser.value()?.parse()?,
            Arg::Long("threads") => options.config.threads = parser.value()?.parse()?,
            Arg::Long("timing") => {
                let given = match parser.optional_value() {
                    Some(value) => Some(value),
                    // A value of its own word: what follows is a program otherwise.
                    None => {
                        let mut words = parser.raw_args()?;
                        words.next_if(|word| word.to_str().is_some_and(|word| timing(word).is_ok()))
                    }
                };
                options.config.timing = Some(match given {
                    Some(value) => value.parse_with(timing)?,
                    None => Timing::default(),
                });
            }
            Arg::Long("help") | Arg::Short('h') => return Ok(None),
            Arg::Value(program) => {
                options.program.push(program);
                options.program.extend(parser.raw_args()?);
            }
            other => return Err(other.unexpected()),
        }
    }
    if options.program.is_empty() {
        return Err("no program to run: `cargo xtask supervise -- PROGRAM`".into());
    }
    Ok(Some(options))
}

fn protocol(text: &str) -> Result<(u32, u32), String> {
    let wrong = || format!("{text:?} is not of the form 6.18");
    let (major, minor) = text.split_once('.').ok_or_else(wrong)?;
    Ok((major.parse().map_err(|_| wrong())?, minor.parse().map_err(|_| wrong())?))
}

/// `65,50,12`: microseconds, GB/s, TFLOP/s.
pub(crate) fn timing(text: &str) -> Result<Timing, String> {
    let numbers: Vec<f64> = text.split(',').map_while(|word| word.trim().parse().ok()).collect();
    let &[latency, bandwidth, rate] = &numbers[..] else {
        return Err(format!("{text:?} is not of the form 65,50,12: microseconds, GB/s, TFLOP/s"));
    };
    let possible = |number: f64, most: f64| number.is_finite() && (0.0..=most).contains(&number);
    if !possible(latency, 1e9) || !possible(bandwidth, 1e6) || !possible(rate, 1e6) || bandwidth * rate == 0.0 {
        return Err(format!("{text:?}: no device is like that"));
    }
    Ok(Timing {
        latency: Duration::from_nanos((latency * 1e3) as u64),
        bandwidth: (bandwidth * 1e9) as u64,
        rate: (rate * 1e12) as u64,
        ..Timing::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timing_is_three_numbers() {
        assert_eq!(timing("65,50,12"), Ok(Timing::default()));
        for wrong in ["", "65", "65,50", "65,50,12,1", "65,0,12", "-1,50,12", "a,b,c", "nan,50,12", "65,50,inf"] {
            assert!(timing(wrong).is_err(), "{wrong}");
        }
        let words = |words: &[&str]| parse(&words.iter().map(OsString::from).collect::<Vec<_>>());
        let plain = words(&["--timing", "--", "program"]).unwrap().unwrap();
        assert_eq!((plain.config.timing, plain.program), (Some(Timing::default()), vec!["program".into()]));
        let slow = words(&["--timing", "65,25,12", "program", "-x"]).unwrap().unwrap();
        assert_eq!(slow.config.timing.map(|timing| timing.bandwidth), Some(25_000_000_000));
        assert_eq!(slow.program, ["program", "-x"]);
    }
}
