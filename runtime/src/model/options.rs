//! How a model is loaded, and what is said meanwhile.

use std::time::Duration;

pub use host_ops::attention::KvFormat;

use super::lookup::Speculate;

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
        }
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
