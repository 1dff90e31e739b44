//! `cargo xtask vm`'s own command line.

use std::ffi::OsString;
use std::path::PathBuf;

use super::step::{self, Step};
use super::{boot, fetch, guest};

/// What `cargo xtask vm` was asked for.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) given: fetch::Given,
    pub(super) npu: npu_model::Npu,
    pub(super) protocol: (u32, u32),
    pub(super) addressing: boot::Addressing,
    pub(super) memory_mib: u32,
    pub(super) seconds: u64,
    pub(super) binary: Option<PathBuf>,
    pub(super) program: guest::Program,
    pub(super) trees: Vec<(String, PathBuf)>,
    pub(super) device: bool,
    pub(super) faults: npu_model::Faults,
    pub(super) steps: Vec<Step>,
}

pub(crate) const HELP: &str = "\
cargo xtask vm --image [DIR] [--stay] [--append WORDS] [--disk FILE]
                        the image of `cargo xtask image`, asked from outside, and when what happened; --stay: it serves
                        until Enter is pressed; --append: words for its kernel; --disk: its /dev/vda, only read
cargo xtask vm [options] -- <arguments of qwen35-direct>
  --npu 4|5|6           the virtual part (default 4: Strix Point)
  --protocol M.N        firmware protocol (default 6.18)
  --carveout            contiguous buffers in a reserved range instead of force_iova=1
  --no-device           boot without an NPU
  --fault FAULT         makes the NPU misbehave (repeatable): hang=N or fail=N, its command number N never ends, or
                        ends with an error; silent=N, from command N on its firmware answers nothing at all;
                        async=N, command N raises an asynchronous error; no-resume, it does not wake from its first
                        suspend; no-context, it has no context to give
  --put HOST=GUEST      copies a file or directory of the host into the machine (repeatable)
  --xrt                 runs xrt-smi of Debian's XRT instead: `cargo xtask vm --xrt -- examine`
  --program FILE        runs this program of the host instead, dynamic or not, with Debian's C and C++ libraries
  --memory MIB          the machine's memory (default 2048)
  --seconds N           limit for the whole boot (default 300)
  --binary FILE         a static qwen35-direct (default: built for x86_64-unknown-linux-musl, release)
  --qemu FILE           a QEMU of at least 10.1 (default: the system's, else fetched)
  --kernel FILE --modules DIR   an image and its `kernel/` module tree (default: fetched)
  --mirror URL          Debian mirror to fetch from (default: that of the host's apt)";

impl Default for Request {
    fn default() -> Self {
        Self {
            given: fetch::Given::default(),
            npu: npu_model::Npu::Npu4,
            protocol: (6, 18),
            addressing: boot::Addressing::Iova,
            memory_mib: 2048,
            seconds: 300,
            binary: None,
            program: guest::Program::Ours,
            trees: Vec::new(),
            device: true,
            faults: npu_model::Faults::default(),
            steps: Vec::new(),
        }
    }
}

impl Request {
    pub(super) fn parse(arguments: &[OsString]) -> Result<Self, String> {
        use lexopt::prelude::*;
        let mut parser = lexopt::Parser::from_args(arguments.iter().cloned());
        let mut r = Self::default();
        let bad = |e: lexopt::Error| format!("{e}\n{HELP}");
        let mut command = Vec::new();
        while let Some(arg) = parser.next().map_err(bad)? {
            match arg {
                Long("npu") => {
                    r.npu = match parser.value().map_err(bad)?.to_str() {
                        Some("4") => npu_model::Npu::Npu4,
                        Some("5") => npu_model::Npu::Npu5,
                        Some("6") => npu_model::Npu::Npu6,
                        _ => return Err(format!("--npu wants 4, 5 or 6\n{HELP}")),
                    };
                }
                Long("protocol") => {
                    let text = parser.value().map_err(bad)?.string().map_err(bad)?;
                    let parsed = text.split_once('.').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
                    r.protocol = parsed.ok_or_else(|| format!("--protocol wants MAJOR.MINOR, not {text:?}\n{HELP}"))?;
                }
                Long("carveout") => r.addressing = boot::Addressing::Carveout,
                Long("no-device") => r.device = false,
                Long("fault") => {
                    let text = parser.value().map_err(bad)?.string().map_err(bad)?;
                    fault(&mut r.faults, &text).ok_or_else(|| format!("--fault: no fault {text:?}\n{HELP}"))?;
                }
                Long("put") => {
                    let text = parser.value().map_err(bad)?.string().map_err(bad)?;
                    let (host, guest) =
                        text.split_once('=').ok_or_else(|| format!("--put wants HOST=GUEST, not {text:?}\n{HELP}"))?;
                    r.trees.push((guest.trim_matches('/').to_owned(), PathBuf::from(host)));
                }
                Long("xrt") => r.program = guest::Program::Xrt,
                Long("program") => r.program = guest::Program::Host(parser.value().map_err(bad)?.into()),
                Long("memory") => r.memory_mib = parser.value().map_err(bad)?.parse().map_err(bad)?,
                Long("seconds") => r.seconds = parser.value().map_err(bad)?.parse().map_err(bad)?,
                Long("binary") => r.binary = Some(parser.value().map_err(bad)?.into()),
                Long("qemu") => r.given.qemu = Some(parser.value().map_err(bad)?.into()),
                Long("kernel") => r.given.kernel = Some(parser.value().map_err(bad)?.into()),
                Long("modules") => r.given.modules = Some(parser.value().map_err(bad)?.into()),
                Long("mirror") => r.given.mirror = Some(parser.value().map_err(bad)?.string().map_err(bad)?),
                Long("help") => return Err(format!("{HELP}\n{}", step::HELP)),
                Value(first) => {
                    command.push(first.string().map_err(bad)?);
                    for word in parser.raw_args().map_err(bad)? {
                        command.push(word.string().map_err(bad)?);
                    }
                }
                other => return Err(format!("{}\n{HELP}", other.unexpected())),
            }
        }
        r.steps = Step::parse(&command)?;
        if let Some(path) = r.program.path() {
            for step in &mut r.steps {
                if let Step::Run(words) = step {
                    *step = Step::Program([&[path.to_owned()], &words[..]].concat());
                }
            }
        }
        Ok(r)
    }
}

/// Reads `name` or `name=N` into the faults.
fn fault(faults: &mut npu_model::Faults, text: &str) -> Option<()> {
    let (name, number) = match text.split_once('=') {
        Some((name, number)) => (name, Some(number.parse::<u64>().ok()?)),
        None => (text, None),
    };
    match (name, number) {
        ("hang", Some(n)) => faults.hang_command = Some(n),
        ("fail", Some(n)) => faults.fail_command = Some(n),
        ("silent", Some(n)) => faults.silent_from = Some(n),
        ("async", Some(n)) => faults.async_error = Some(n),
        ("no-resume", None) => faults.no_resume = true,
        ("no-context", None) => faults.no_context = true,
        _ => return None,
    }
    Some(())
}
