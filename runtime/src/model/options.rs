//! How a model is loaded, what is said meanwhile, and where time went.

use std::time::{Duration, Instant};

pub use host_ops::attention::KvFormat;

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
    /// How long a wait looks at a command's state word before it asks the driver; zero to ask at once.
    pub spin: Duration,
    /// Whether the vision tower is loaded where the bundle has one.
    pub vision: bool,
    /// What keys and values are kept as. None: 16 bits where activations are bf16 anyway (their values lose nothing
    /// then), f32 in bundles of the f32 format.
    pub kv: Option<KvFormat>,
}

impl Default for LoadOptions {
    fn default() -> Self {
        LoadOptions {
            max_ctx: 8192,
            commands_in_flight: 4,
            threads: 0,
            deadline: Duration::from_secs(10),
            spin: Duration::from_micros(50),
            vision: true,
            kv: None,
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

/// What the host spends time on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Decoding embeddings, norms, residual adds.
    Norm,
    /// DeltaNet, attention, activations.
    Mixer,
    /// Conversions into and out of buffers, with their cache lines.
    Transfer,
    /// Submitting commands and waiting for them.
    Npu,
}

impl Part {
    /// All of them, in the order of a report.
    pub const ALL: [Part; 4] = [Part::Norm, Part::Mixer, Part::Transfer, Part::Npu];

    /// A word for a report.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Part::Norm => "norms",
            Part::Mixer => "mixers",
            Part::Transfer => "transfers",
            Part::Npu => "npu",
        }
    }
}

/// Time by part, since a model was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    parts: [(u64, Duration); 4],
}

impl Profile {
    /// Times that a part was entered, and how long it took in all.
    #[must_use]
    pub fn part(&self, part: Part) -> (u64, Duration) {
        self.parts[part as usize]
    }

    /// What was spent since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Profile) -> Profile {
        let mut parts = self.parts;
        for (now, then) in parts.iter_mut().zip(&earlier.parts) {
            *now = (now.0 - then.0, now.1.saturating_sub(then.1));
        }
        Profile { parts }
    }

    /// Adds the time since `started` and gives the present time.
    pub(super) fn add(&mut self, part: Part, started: Instant) -> Instant {
        let now = Instant::now();
        let (count, time) = &mut self.parts[part as usize];
        *count += 1;
        *time += now - started;
        now
    }
}
