//! How a model is loaded, and what is said meanwhile.

use std::time::Duration;

pub use host_ops::attention::KvFormat;

use super::lookup::Speculate;

/// Which parts of a token's products the host multiplies itself, while the NPU multiplies the others: parts of the head
/// and slices of `down`, which are commands of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hybrid {
    /// None.
    #[default]
    Off,
    /// As many as make a token faster, which is measured when the model is loaded; none if none do.
    Measured,
    /// So many, at most all.
    Fixed {
        /// Parts of the head.
        head: usize,
        /// Slices of each layer's `down`.
        down: usize,
    },
}

/// How a bundle is loaded.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// The most tokens of prompt and answer together.
    pub max_ctx: usize,
    /// Commands that may be in flight a hardware context, 1 to 4.
    pub commands_in_flight: usize,
    /// Threads of the host math; 0 takes what the machine has.
    pub threads: usize,
    /// How long one command may take before it counts as lost.
    pub deadline: Duration,
    /// The longest wait that looks at a command's state word until it is over, where it is known how long it will be;
    /// a longer one asks the driver, which sleeps. Zero to ask always.
    pub spin: Duration,
    /// Whether the vision tower is loaded where the bundle has one.
    pub vision: bool,
    /// What keys and values are kept as. None: 16 bits where activations are bf16 anyway (their values lose nothing
    /// then), f32 in bundles of the f32 format.
    pub kv: Option<KvFormat>,
    /// Whether answers are guessed at. It takes a copy of the head on the device.
    pub speculate: Speculate,
    /// Which parts of a token's products the host takes.
    pub hybrid: Hybrid,
    /// Whether the ways that go beyond the sequence known to work on hardware (several commands in flight, looking at
    /// state words, prompts in lanes) are tried out before they are used. Where they give other results than one
    /// command at a time, or fail, the known sequence is used, and [`Progress::Fallback`] tells.
    pub trial: bool,
}

impl Default for LoadOptions {
    fn default() -> Self {
        LoadOptions {
            max_ctx: 8192,
            commands_in_flight: 4,
            threads: 0,
            deadline: Duration::from_secs(10),
            spin: Duration::from_micros(700),
            vision: true,
            kv: None,
            speculate: Speculate::Off,
            hybrid: Hybrid::Off,
            trial: true,
        }
    }
}

/// Why a model runs by the sequence that is known to work, one command at a time, though it was to go beyond it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallback {
    /// Several commands in flight gave other results than one at a time.
    Differs,
    /// A command failed.
    Failed,
    /// A command did not end in time.
    TimedOut,
}

impl std::fmt::Display for Fallback {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Fallback::Differs => "several commands in flight gave other results than one at a time",
            Fallback::Failed => "a command failed while several were in flight",
            Fallback::TimedOut => "a command did not end while several were in flight",
        })
    }
}

/// Where loading stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The tokenizer is being read.
    Tokenizer,
    /// Contexts and instruction streams are being made; `done` of `total` streams.
    Kernels {
        /// Streams that are in place.
        done: usize,
        /// Streams that are wanted.
        total: usize,
    },
    /// A trial of several commands in flight has failed: they go one at a time from here on, which is slower.
    Fallback(Fallback),
    /// Weights are being copied; bytes.
    Weights {
        /// Bytes that are in place.
        done: u64,
        /// Bytes in all.
        total: u64,
    },
    /// All is in place.
    Ready,
}
