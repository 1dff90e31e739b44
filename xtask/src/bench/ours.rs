//! Our runtime, timed: on a device of this process, or on the node that a supervisor plays. The same reports as the
//! peer's program makes, one `name value` a line.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use amdxdna_ioctl::KernelOpener;
use npu_model::{Config, Counts, Model as Device, Timing};
use runtime::LoadOptions;
use runtime::bundle::{Bundle, Manifest};
use runtime::export::{ExportError, write_kernels};
use runtime::image::Rgb;
use runtime::model::{Hybrid, Input, Model, Part, Profile};
use runtime::npu::{Buffer, Element, Kernels, Npu};
use runtime::xclbin::Xclbin;

use super::allocations;

/// What a run said.
#[derive(Clone, Debug, Default)]
pub(super) struct Lines(Vec<(String, f64)>);

impl Lines {
    /// Reads `name value...` lines; others are passed over.
    pub(super) fn parse(text: &str) -> Self {
        let line = |line: &str| {
            let (name, value) = line.split_once(' ')?;
            Some((name.to_owned(), value.trim().parse().ok()?))
        };
        Self(text.lines().filter_map(line).collect())
    }

    pub(super) fn say(&mut self, name: &str, value: f64) {
        self.0.push((name.to_owned(), value));
    }

    /// All values of a name.
    pub(super) fn all(&self, name: &str) -> Vec<f64> {
        self.0.iter().filter(|(known, _)| known == name).map(|(_, value)| *value).collect()
    }

    /// The middle of them.
    pub(super) fn median(&self, name: &str) -> Option<f64> {
        super::measure::median(&self.all(name))
    }

    pub(super) fn text(&self) -> String {
        self.0.iter().map(|(name, value)| format!("{name} {value}\n")).collect()
    }
}

/// Where a run finds its device.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    /// A model in this process.
    Here(Option<Timing>),
    /// The node.
    Node,
}

const NODE: &str = "/dev/accel/accel0";

fn open(place: Place) -> Result<(Npu, Option<std::sync::Arc<Device>>), String> {
    let node = Path::new(NODE);
    let words = |error: runtime::npu::NpuError| error.to_string();
    match place {
        Place::Here(timing) => {
            let device = Device::new(Config { timing, ..Config::default() });
            Ok((Npu::open(&*device, node).map_err(words)?, Some(device)))
        }
        Place::Node => Ok((Npu::open(&KernelOpener, node).map_err(words)?, None)),
    }
}

/// A model without a tower, and its device.
pub(super) fn loaded(
    place: Place,
    bundle: &Path,
    ctx: usize,
) -> Result<(Model, Option<std::sync::Arc<Device>>), String> {
    let (npu, device) = open(place)?;
    Ok((load_model(npu, bundle, ctx, false, Hybrid::Off)?, device))
}

fn load_model(npu: Npu, bundle: &Path, ctx: usize, vision: bool, hybrid: Hybrid) -> Result<Model, String> {
    let bundle = Bundle::open(bundle).map_err(|error| error.to_string())?;
    let options = LoadOptions { max_ctx: ctx, vision, hybrid, ..LoadOptions::default() };
    Model::load(bundle, npu, &options, &mut |_| {}).map_err(|error| error.to_string())
}

/// A token that both runtimes take, the same ones in the same places.
pub(super) fn id(i: usize) -> u32 {
    (i * 37 % 1900) as u32
}

/// Loads a bundle for conversations.
pub(super) fn load(place: Place, bundle: &Path) -> Result<Lines, String> {
    let (npu, _device) = open(place)?;
    let start = Instant::now();
    let opened = Bundle::open(bundle).map_err(|error| error.to_string())?;
    let options = LoadOptions { max_ctx: 4096, ..LoadOptions::default() };
    let chat = runtime::Chat::load(opened, npu, options, &mut |_| {}).map_err(|error| error.to_string())?;
    let mut lines = Lines::default();
    lines.say("load", start.elapsed().as_secs_f64());
    drop(chat);
    Ok(lines)
}

/// What happened between two looks.
struct Watch<'a> {
    device: Option<&'a Device>,
    start: Instant,
    profile: Profile,
    counts: Option<Counts>,
    allocations: u64,
}

impl<'a> Watch<'a> {
    fn new(model: &Model, device: Option<&'a Device>) -> Self {
        Self {
            device,
            profile: model.profile(),
            counts: device.map(Device::counts),
            allocations: allocations::count(),
            start: Instant::now(),
        }
    }

    fn end(self, kind: &str, model: &Model, lines: &mut Lines) {
        let total = self.start.elapsed();
        let allocated = allocations::count() - self.allocations;
        let profile = model.profile().since(&self.profile);
        let mut say = |name: &str, value: f64| lines.say(&format!("{kind}.{name}"), value);
        say("total", total.as_secs_f64());
        say("allocations", allocated as f64);
        say("mixer", profile.part(Part::Mixer).1.as_secs_f64());
        say("npu", profile.part(Part::Npu).1.as_secs_f64());
        if let (Some(device), Some(before)) = (self.device, self.counts) {
            let now = device.counts();
            let ioctls = |counts: &Counts| counts.ioctls.values().sum::<u64>();
            say("device", (now.device_ns - before.device_ns) as f64 / 1e9);
            say("array", (now.array_ns - before.array_ns) as f64 / 1e9);
            say("ioctls", (ioctls(&now) - ioctls(&before)) as f64);
            say("packets", (now.packets - before.packets) as f64);
            say("flushed", (now.flushed_bytes - before.flushed_bytes) as f64);
            say("switches", (now.context_switches - before.context_switches) as f64);
            say("read", (now.bytes_read - before.bytes_read) as f64);
        }
    }
}

/// A prompt, then tokens.
pub(super) fn text(place: Place, bundle: &Path, ctx: usize, prompt: usize, tokens: usize) -> Result<Lines, String> {
    shared_text(place, bundle, ctx, prompt, tokens, Hybrid::Off)
}

/// As [`text`], with a share of the products for the host.
pub(super) fn shared_text(
    place: Place,
    bundle: &Path,
    ctx: usize,
    prompt: usize,
    tokens: usize,
    hybrid: Hybrid,
) -> Result<Lines, String> {
    let words = |error: runtime::model::ModelError| error.to_string();
    let (npu, device) = open(place)?;
    let mut model = load_model(npu, bundle, ctx, false, hybrid)?;
    let mut lines = Lines::default();
    let (head, down) = model.shared();
    lines.say("share.head", head as f64);
    lines.say("share.down", down as f64);
    let ids: Vec<u32> = (0..prompt).map(id).collect();
    let positions = model.positions(&ids, &[]).map_err(words)?;
    let input = Input { ids: &ids, positions: &positions, vision: &[] };
    let watch = Watch::new(&model, device.as_deref());
    model.prefill(&input, &mut |_| ControlFlow::Continue(())).map_err(words)?;
    model.logits().map_err(words)?;
    watch.end("prompt", &model, &mut lines);
    for i in 0..tokens {
        let watch = Watch::new(&model, device.as_deref());
        let logits = model.decode(id(i)).map_err(words)?;
        std::hint::black_box(host_ops::sample::argmax(logits));
        watch.end("token", &model, &mut lines);
    }
    Ok(lines)
}

/// A picture of so many patches.
pub(super) fn drawn([rows, columns]: [usize; 2]) -> Rgb {
    let (width, height) = (16 * columns, 16 * rows);
    let data = (0..width * height * 3).map(|i| (i * i / 7 % 251) as u8).collect();
    Rgb { width, height, data }
}

/// A picture of so many patches, through a tower that is loaded.
pub(super) fn picture(place: Place, bundle: &Path, [rows, columns]: [usize; 2]) -> Result<Lines, String> {
    let words = |error: runtime::model::ModelError| error.to_string();
    let (npu, device) = open(place)?;
    let mut model = load_model(npu, bundle, 512, true, Hybrid::Off)?;
    let prepared = |model: &Model, [rows, columns]: [usize; 2]| {
        let patches = model.prepare(&drawn([rows, columns])).map_err(words)?;
        if patches.grid != [rows, columns] {
            return Err(format!("a picture of {rows} x {columns} patches became one of {:?}", patches.grid));
        }
        Ok(patches)
    };
    // The tower comes with the first picture, which is part of loading.
    let small = prepared(&model, [16, 16])?;
    model.encode(&small).map_err(words)?;
    let patches = prepared(&model, [rows, columns])?;
    let mut lines = Lines::default();
    let watch = Watch::new(&model, device.as_deref());
    model.encode(&patches).map_err(words)?;
    watch.end("picture", &model, &mut lines);
    Ok(lines)
}

/// Dispatches of the smallest kernel, one after the other: what one takes.
pub(super) fn probe(place: Place, bundle: &Path) -> Result<Lines, String> {
    let words = |error: runtime::npu::NpuError| error.to_string();
    let (npu, _device) = open(place)?;
    let manifest = Bundle::open(bundle).map_err(|error| error.to_string())?.manifest;
    let kernel = smallest(&manifest)?;
    let mut kernels = Kernels::new(npu.clone(), 1, Duration::from_secs(10));
    let xclbin = Xclbin::parse(&kernel.xclbin, "MLIR_AIE").map_err(|error| error.to_string())?;
    let context = kernels.add_context("probe", xclbin, 0).map_err(words)?;
    let stream = kernels.add_stream(context, "probe", &kernel.stream).map_err(words)?;
    let buffer = |bytes: usize| Buffer::new(npu.device(), Element::Bf16, bytes.div_ceil(2));
    let buffers = kernel.buffers.map(buffer);
    let [x, w, y] = buffers;
    let (x, w, y) = (x.map_err(words)?, w.map_err(words)?, y.map_err(words)?);
    let views = [x.input(0), w.input(0), y.output()];
    let [x, w, y] = views.map(|view| view.map_err(words));
    let command = kernels.bind(stream, &[x?, w?, y?]).map_err(words)?;
    let mut lines = Lines::default();
    for _ in 0..500 {
        let start = Instant::now();
        kernels.run(&[command]).map_err(words)?;
        lines.say("dispatch", start.elapsed().as_secs_f64());
    }
    Ok(lines)
}

struct Smallest {
    xclbin: Vec<u8>,
    stream: Vec<u8>,
    /// Bytes of x, W, y.
    buffers: [usize; 3],
}

fn smallest(manifest: &Manifest) -> Result<Smallest, String> {
    let gemv = manifest.gemvs.values().min_by_key(|gemv| gemv.m * gemv.k).ok_or("a bundle without a GEMV")?;
    let path = &manifest.xclbins.get(&gemv.ctx).ok_or("a GEMV without an xclbin")?.path;
    let (mut xclbin, mut stream) = (Vec::new(), Vec::new());
    write_kernels(manifest, &mut |name: &str, bytes: &[u8]| {
        if name == path {
            xclbin = bytes.to_vec();
        } else if name == gemv.insts {
            stream = bytes.to_vec();
        }
        Ok::<(), ExportError>(())
    })
    .map_err(|error| error.to_string())?;
    Ok(Smallest { xclbin, stream, buffers: [2 * gemv.k, 4 * gemv.w_words, 2 * gemv.m] })
}

/// A run in a process of its own, on the node.
pub(super) fn child(words: &[String]) -> Result<(), String> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let number = |word: &str| word.parse::<usize>().map_err(|_| format!("{word:?} is no number"));
    let lines = match words[..] {
        ["load", bundle] => load(Place::Node, Path::new(bundle))?,
        ["probe", bundle] => probe(Place::Node, Path::new(bundle))?,
        ["probe-here", bundle] => {
            let timing = Timing { bandwidth: u64::MAX, rate: u64::MAX, ..Timing::default() };
            probe(Place::Here(Some(timing)), Path::new(bundle))?
        }
        ["text-here", bundle, ctx, prompt, tokens] => {
            let timing = Some(Timing::default());
            text(Place::Here(timing), Path::new(bundle), number(ctx)?, number(prompt)?, number(tokens)?)?
        }
        ["text", bundle, ctx, prompt, tokens] => {
            text(Place::Node, Path::new(bundle), number(ctx)?, number(prompt)?, number(tokens)?)?
        }
        ["speculate-here", bundle] => super::speculate::measure(Path::new(bundle), Timing::default())?,
        ["contexts-here", bundle] => super::speculate::contexts(Path::new(bundle), Timing::default())?,
        _ => return Err(format!("unknown run {words:?}")),
    };
    crate::print(&lines.text());
    Ok(())
}
