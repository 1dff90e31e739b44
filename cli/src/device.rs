//! Which NPU a bundle runs on.

use crate::arguments::{DeviceChoice, RunOptions};
use crate::error::{CliError, one_line};
use crate::npu;
use crate::output::{ProgressLine, note};
use amdxdna_ioctl::Device;
use driver_tests::contracts;
use npu_model::{Config, Model, Timing};
use runtime::bundle::Bundle;
use runtime::model::Hybrid;
use runtime::npu::Npu;
use runtime::{Chat, ChatError, LoadOptions, Progress};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A loaded model, and where it runs.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) chat: Chat,
    /// A device node, or the software NPU.
    pub(crate) device: String,
    /// Seconds that loading took.
    pub(crate) seconds: f64,
    /// Keeps the software NPU alive, and lets it be asked.
    pub(crate) model: Option<Arc<Model>>,
}

/// The software NPU has no node; this is what its opener is asked for.
const SOFTWARE: &str = "the software NPU";
const TIMED: &str = "a software NPU that computes nothing: its answers mean nothing";
/// A real NPU needs a second for the longest command; a processor that stands in for it, minutes.
const SOFTWARE_DEADLINE: Duration = Duration::from_secs(1800);

/// Opens the bundle and loads it where `run` says. `vision` is whether pictures will be shown.
pub(crate) fn load(path: &Path, run: &RunOptions, vision: bool) -> Result<Loaded, CliError> {
    let bundle = open(path)?;
    match &run.device {
        DeviceChoice::Model | DeviceChoice::Timing => on_model(path, bundle, run, vision),
        DeviceChoice::Node(node) => npu::fits(&bundle).and_then(|()| on_npu(bundle, npu::open(node)?, run, vision)),
        DeviceChoice::Npu => npu::fits(&bundle).and_then(|()| on_npu(bundle, npu::first()?, run, vision)),
        DeviceChoice::Virtual => on_npu(bundle, npu::first()?, run, vision),
        DeviceChoice::Auto if npu::is_for_software(&bundle)? => {
            note(&format_args!("running on {SOFTWARE}: this bundle's kernels are made for it alone"));
            on_model(path, bundle, run, vision)
        }
        DeviceChoice::Auto => match npu::first().and_then(|device| on_npu(bundle, device, run, vision)) {
            Err(reason) if reason.is_device() => {
                note(&format_args!("running on {SOFTWARE}, which is slow: {}", one_line(&reason)));
                on_model(path, open(path)?, run, vision)
            }
            other => other,
        },
    }
}

/// The software NPU as a device, to be asked.
pub(crate) fn software_device() -> Result<Arc<Device>, CliError> {
    let npu = Npu::open(&*Model::new(Config::default()), Path::new(SOFTWARE)).map_err(ChatError::from)?;
    Ok(npu.device().clone())
}

pub(crate) fn open(path: &Path) -> Result<Bundle, CliError> {
    Bundle::open(path).map_err(|source| CliError::Bundle { path: path.to_owned(), source })
}

fn on_npu(bundle: Bundle, device: Arc<Device>, run: &RunOptions, vision: bool) -> Result<Loaded, CliError> {
    let start = Instant::now();
    let node = device.node().display().to_string();
    let chat = chat(bundle, Npu::from_device(device), run, vision, LoadOptions::default().deadline)?;
    Ok(Loaded { chat, device: node, seconds: start.elapsed().as_secs_f64(), model: None })
}

fn on_model(path: &Path, bundle: Bundle, run: &RunOptions, vision: bool) -> Result<Loaded, CliError> {
    let start = Instant::now();
    let mut config = Config::default();
    if run.threads > 0 {
        config.threads = run.threads;
    }
    let timed = run.device == DeviceChoice::Timing;
    config.timing = timed.then(Timing::default);
    let model = Model::new(config);
    if npu::has_opaque_kernels(&bundle)? {
        contracts::teach(&model, &bundle)
            .map_err(|error| CliError::Device(format!("bundle {}: {error}", path.display())))?;
    }
    let npu = Npu::open(&*model, Path::new(SOFTWARE)).map_err(ChatError::from)?;
    let chat = chat(bundle, npu, run, vision, SOFTWARE_DEADLINE)?;
    let seconds = start.elapsed().as_secs_f64();
    let device = if timed { TIMED } else { SOFTWARE };
    Ok(Loaded { chat, device: device.into(), seconds, model: Some(model) })
}

fn chat(bundle: Bundle, npu: Npu, run: &RunOptions, vision: bool, deadline: Duration) -> Result<Chat, CliError> {
    let options = LoadOptions {
        max_ctx: run.max_ctx,
        threads: run.threads,
        kv: run.kv,
        speculate: run.speculate,
        hybrid: if run.hybrid { Hybrid::Measured } else { Hybrid::Off },
        vision,
        deadline,
        ..LoadOptions::default()
    };
    let path = bundle.dir().to_owned();
    let mut line = ProgressLine::new();
    Chat::load(bundle, npu, options, &mut |progress| match progress {
        Progress::Tokenizer => line.show(|| "loading the tokenizer".into()),
        Progress::Kernels { done, total } => line.share("loading kernels", done as u64, total as u64),
        Progress::Weights { done, total } => line.bytes("loading weights", done, total),
        Progress::Fallback(why) => {
            line.clear();
            note(&format_args!("{why}: they go one at a time, as is known to work, which is slower"));
        }
        Progress::Ready => line.clear(),
    })
    .map_err(|error| match error {
        ChatError::Bundle(source) => CliError::Bundle { path, source },
        source @ ChatError::Tokenizer(_) => CliError::Tokenizer { path, source },
        other => other.into(),
    })
}
