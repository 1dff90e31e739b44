//! Loading the 2.5 GB bundle: how long, and how much memory at most. Both runtimes under supervision, with nothing of
//! the bundle in the page cache.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use npu_model::Timing;
use runtime::bundle::Bundle;
use rustix::fs::Advice;

use super::machine::memory;
use super::{Bench, supervised};
use crate::synth::Sample;

pub(super) const SECONDS: &str = "loading 2.5 GB";
pub(super) const MEMORY: &str = "peak memory";

const TENSORS: &str = "tensors.bin";

/// Forgets what the page cache holds of a bundle.
fn forget(bundle: &Path) -> Result<(), String> {
    let path = bundle.join(TENSORS);
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let file = File::open(&path).map_err(failed)?;
    file.sync_all().map_err(failed)?;
    rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).map_err(|error| failed(error.into()))
}

/// Seconds to read a bundle's tensors once.
fn read(bundle: &Path) -> Result<f64, String> {
    let path = bundle.join(TENSORS);
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let start = Instant::now();
    let mut file = File::open(&path).map_err(failed)?;
    let mut piece = vec![0; 8 << 20];
    while file.read(&mut piece).map_err(failed)? > 0 {}
    Ok(start.elapsed().as_secs_f64())
}

/// Runs something while the machine's memory in use is watched: what it gave, and the growth at its largest.
fn watched<T>(work: impl FnOnce() -> T) -> (T, u64) {
    // Device buffers and the bundle's pages are both in the page cache's count.
    let used = || memory("AnonPages") + memory("Cached");
    let (before, most, done) = (used(), AtomicU64::new(0), AtomicBool::new(false));
    let result = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                most.fetch_max(used(), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        let result = work();
        done.store(true, Ordering::Relaxed);
        result
    });
    (result, most.into_inner().saturating_sub(before))
}

pub(super) fn run(bench: &mut Bench) {
    let sample = if bench.effort.quick { Sample::Tiny } else { Sample::Whole };
    let bundle = match bench.bundle(sample) {
        Ok(bundle) => bundle,
        Err(why) => return bench.gap("loading", why),
    };
    for _ in 0..bench.effort.rounds {
        if let Err(why) = round(bench, &bundle) {
            return bench.gap("loading", why);
        }
    }
    let note = "growth of anonymous memory and page cache of the whole machine, sampled; device buffers are in it";
    bench.report.row("load", MEMORY, "GB").note = note.into();
}

fn round(bench: &mut Bench, bundle: &Path) -> Result<(), String> {
    forget(bundle)?;
    let reading = read(bundle)?;
    let own = supervised::own()?;
    let weights = Bundle::open(bundle).map_err(|error| error.to_string())?;
    let weights: usize = weights.tensor_names().filter_map(|name| weights.tensor_bytes(name)).sum();
    let first = ["bench", "--child", "load"].map(OsStr::new);
    let ours: Vec<&OsStr> = [&first[..], &[bundle.as_os_str()]].concat();
    let theirs = [OsStr::new("load"), bundle.as_os_str()];
    for (program, words, mine) in [(Some(own), &ours[..], true), (bench.peer.clone(), &theirs[..], false)] {
        let Some(program) = program else { continue };
        forget(bundle)?;
        let (ran, peak) = watched(|| supervised::run(Timing::default(), &program, words));
        let ran = match ran {
            Ok(ran) => ran,
            Err(why) if mine => return Err(why),
            Err(why) => {
                bench.gap("the peer's loading", why);
                continue;
            }
        };
        let mut add = |name: &str, unit: &'static str, value: Option<f64>| {
            let row = bench.report.row("load", name, unit);
            if mine { &mut row.ours } else { &mut row.peer }.extend(value);
        };
        add(SECONDS, "s", ran.lines.median("load"));
        add(MEMORY, "GB", Some(peak as f64 / 1e9));
    }
    let why = "reading the file once".to_owned();
    let best = bench.report.row("load", SECONDS, "s").bound.take().map_or(reading, |(best, _)| best.min(reading));
    bench.report.row("load", SECONDS, "s").bound = Some((best, why));
    bench.report.row("load", MEMORY, "GB").bound = Some((weights as f64 / 1e9, "the bundle's tensors".into()));
    Ok(())
}
