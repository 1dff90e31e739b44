//! The arithmetic of Qwen3.5 around the commands of the NPU.
//!
//! A [`Model`] holds one sequence. Its state only grows: [`Model::prefill`] and [`Model::decode`] append tokens, and
//! [`Model::reset`] starts over. [`Model::snapshot`] marks a place that [`Model::restore`] comes back to. Nothing here
//! knows text.

mod decode;
mod embedding;
mod error;
mod head;
mod hybrid;
mod keep;
mod kernels;
mod layer;
mod lookup;
mod options;
mod pipeline;
mod positions;
mod prefill;
mod probe;
mod profile;
mod rows;
mod run;
mod sequence;
mod shared;
mod sight;
mod speculate;
mod state;
mod text;
mod tower;
mod trace;
mod trial;
mod vision;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use host_ops::image::Patches;
use host_ops::pool::Pool;

pub use error::ModelError;
pub use layer::LayerState;
pub use lookup::{Guesses, Speculate, Speculator};
pub use options::{Fallback, Hybrid, KvFormat, LoadOptions, Progress};
pub use positions::{Positions, positions};
pub use probe::{Tap, Watch};
pub use profile::{Asked, Part, Profile, Projection, Stage};
pub use rows::Foretold;
pub use sequence::{OtherModel, Sequence, Snapshot};
pub use state::StateError;
pub use trace::Trace;

use self::keep::Keep;
use self::kernels::{Table, Uploader};
use self::prefill::Row;
use self::probe::Probe;
use self::run::{Recorder, Run};
use self::sequence::Marks;
use self::sight::Sight;
use self::text::Text;
use crate::bundle::{Bundle, WeightFormat};
use crate::image::Rgb;
use crate::npu::{Counters, Kernels, Npu};

/// Tokens to append, in one go.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// The tokens.
    pub ids: &'a [u32],
    /// Rotary position of each, and the one that follows.
    pub positions: &'a Positions,
    /// Rows of the vision tower, `[image tokens, D]`: they stand in for the image tokens among `ids`, in order.
    pub vision: &'a [f32],
}

static MODELS: AtomicU64 = AtomicU64::new(0);

/// A model on a device, and one sequence.
#[derive(Debug)]
pub struct Model {
    // Dropped first: nothing is in flight when the buffers go.
    kernels: Kernels,
    text: Text,
    sight: Option<Sight>,
    bundle: Bundle,
    pool: Pool,
    probe: Probe,
    recorder: Recorder,
    max_ctx: usize,
    max_piece: usize,
    fallback: Option<Fallback>,
    len: usize,
    next_position: u32,
    /// No other model of the process has it.
    id: u64,
    /// Tokens of the run that was appended last and can still be cut short, and the states before it.
    run: Option<usize>,
    base: Vec<host_ops::delta::State>,
}

impl Model {
    /// Loads a bundle: contexts with their streams, weights, buffers, in the order that is known to work. The weights
    /// and buffers of the vision tower come with the first picture.
    ///
    /// # Errors
    /// What the bundle lacks or the device refuses.
    pub fn load(
        bundle: Bundle,
        npu: Npu,
        options: &LoadOptions,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Model, ModelError> {
        let mut in_flight = options.commands_in_flight.clamp(1, 4);
        let mut spin = options.spin;
        let mut kernels = Kernels::new(npu.clone(), in_flight, options.deadline);
        let wanted = bundle.manifest.vision.clone().filter(|_| options.vision);
        let mut table = Table::load(&bundle, wanted.is_some(), &mut kernels, progress)?;
        let (mut fallback, mut known) = (None, BTreeMap::new());
        if options.trial && (in_flight > 1 || !spin.is_zero()) {
            let tried = trial::run(&bundle, &table, &mut kernels, spin)?;
            (fallback, known) = (tried.fallback, tried.weights);
        }
        if let Some(why) = fallback {
            progress(Progress::Fallback(why));
            (in_flight, spin) = (1, Duration::ZERO);
            // Whatever has become of the contexts: they end, and others are made.
            drop(kernels);
            kernels = Kernels::new(npu, in_flight, options.deadline);
            table = Table::load(&bundle, wanted.is_some(), &mut kernels, progress)?;
        }
        kernels.set_spin(spin);
        let kv = options.kv.unwrap_or(match bundle.manifest.text.format {
            WeightFormat::F32 => KvFormat::F32,
            _ => KvFormat::Half,
        });
        let mut up = Uploader::new(&bundle, &kernels, kv, text_bytes(&bundle), progress);
        up.take_over(known);
        let text = Text::load(&table, &mut up, in_flight)?;
        let sight = wanted.map(|params| Sight::new(params, &table)).transpose()?;
        let mut model = Model {
            kernels,
            text,
            sight,
            bundle,
            pool: Pool::new(options.threads),
            probe: Probe::default(),
            recorder: Recorder::new(spin),
            max_ctx: options.max_ctx,
            max_piece: usize::MAX,
            fallback,
            len: 0,
            next_position: 0,
            id: MODELS.fetch_add(1, Ordering::Relaxed),
            run: None,
            base: Vec::new(),
        };
        let Model { kernels, text, pool, probe, recorder, .. } = &mut model;
        text.tune(&mut Run { kernels, pool, recorder, probe }, options.hybrid)?;
        Ok(model)
    }

    /// Tells models of this process apart.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Why commands go one at a time though they were to go together; `None` where they go as they were to.
    #[must_use]
    pub fn fallback(&self) -> Option<Fallback> {
        self.fallback
    }

    /// Parts of the head, and slices of each layer's `down`, that the host multiplies itself.
    #[must_use]
    pub fn shared(&self) -> (usize, usize) {
        (self.text.share.head.parts, self.text.share.down.parts)
    }

    /// The bundle that was loaded.
    #[must_use]
    pub fn bundle(&self) -> &Bundle {
        &self.bundle
    }

    /// The device.
    #[must_use]
    pub fn npu(&self) -> &Npu {
        self.kernels.npu()
    }

    /// Threads of the host math.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Whether there is a vision tower.
    #[must_use]
    pub fn sees(&self) -> bool {
        self.sight.is_some()
    }

    /// The most tokens that the sequence can have.
    #[must_use]
    pub fn max_ctx(&self) -> usize {
        self.max_ctx
    }

    /// Tokens of the sequence.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the sequence has no tokens.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Position of the next token.
    #[must_use]
    pub fn next_position(&self) -> u32 {
        self.next_position
    }

    /// What has been asked of the device.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.kernels.counters()
    }

    /// Where the time went.
    #[must_use]
    pub fn profile(&self) -> Profile {
        self.recorder.profile
    }

    /// Records what happens from now on, or stops. Gives what has been recorded.
    pub fn set_trace(&mut self, trace: Option<Trace>) -> Option<Trace> {
        std::mem::replace(&mut self.recorder.trace, trace)
    }

    /// Shows hidden states to `watch` from now on, or to nobody.
    pub fn watch(&mut self, watch: Option<Watch>) {
        self.probe.set(watch);
    }

    /// What a layer remembers.
    #[must_use]
    pub fn layer_state(&self, layer: usize) -> Option<LayerState<'_>> {
        self.text.layer(layer).map(|l| l.mixer.state())
    }

    /// Cuts prompts into units of at most `rows` tokens, or of what a lane takes. Any cut gives the same bits.
    pub fn set_max_piece(&mut self, rows: usize) {
        self.max_piece = rows.max(1);
    }

    /// Forgets the sequence. Some of its memory stays, for the next one.
    pub fn reset(&mut self) {
        self.text.reset();
        (self.len, self.next_position, self.run) = (0, 0, None);
    }

    /// A picture as the tower wants it.
    ///
    /// # Errors
    /// A picture that cannot be prepared, and a bundle without a tower.
    pub fn prepare(&self, image: &Rgb) -> Result<Patches, ModelError> {
        let params = &self.sight.as_ref().ok_or(ModelError::NoVision)?.params;
        let config = vision::config(params);
        Ok(host_ops::image::preprocess(&self.pool, &image.data, image.height, image.width, &config)?)
    }

    /// Tokens that a picture takes in a prompt.
    ///
    /// # Errors
    /// A bundle without a tower.
    pub fn image_tokens(&self, patches: &Patches) -> Result<usize, ModelError> {
        let params = &self.sight.as_ref().ok_or(ModelError::NoVision)?.params;
        Ok(patches.grid[0] * patches.grid[1] / params.merged())
    }

    /// Loads the vision tower, unless it is there. The first picture would do so, too; here `progress` hears of the
    /// [`Progress::Weights`].
    ///
    /// # Errors
    /// What the bundle lacks or the device refuses, and no tower.
    pub fn load_tower(&mut self, progress: &mut dyn FnMut(Progress)) -> Result<(), ModelError> {
        self.kernels.usable()?;
        let Model { kernels, sight, bundle, .. } = self;
        sight.as_mut().ok_or(ModelError::NoVision)?.loaded(bundle, kernels, progress).map(|_| ())
    }

    /// The tower's rows for a picture: `[tokens, D]`. The first picture loads the tower.
    ///
    /// # Errors
    /// What the bundle lacks or the device refuses at the first picture, more patches than the tower takes, no tower, and failures of the device.
    pub fn encode(&mut self, patches: &Patches) -> Result<Vec<f32>, ModelError> {
        let rows = self.encode_with(patches, &mut |_, _| ControlFlow::Continue(()))?;
        Ok(rows.unwrap_or_default())
    }

    /// As [`Model::encode`]. `progress` gets the share of the work that has been done, as a number of steps of all, and
    /// may break off: then there are no rows.
    ///
    /// # Errors
    /// As [`Model::encode`].
    pub fn encode_with(
        &mut self,
        patches: &Patches,
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    ) -> Result<Option<Vec<f32>>, ModelError> {
        self.kernels.usable()?;
        let Model { kernels, sight, bundle, pool, probe, recorder, .. } = self;
        let vision = sight.as_mut().ok_or(ModelError::NoVision)?.loaded(bundle, kernels, &mut |_| {})?;
        vision.encode(&mut Run { kernels, pool, recorder, probe }, patches, progress)
    }

    /// Positions of tokens that are appended now. `grids` are the patch rows and columns of their pictures.
    ///
    /// # Errors
    /// Image tokens that are not exactly those of the pictures.
    pub fn positions(&self, ids: &[u32], grids: &[[usize; 2]]) -> Result<Positions, ModelError> {
        let params = self.bundle.manifest.vision.as_ref();
        positions(ids, self.next_position, params.map(|v| v.image_token), grids, params.map_or(1, |v| v.merge))
    }

    /// Appends tokens. `progress` gets how many of them the work done so far amounts to, after every layer of every unit
    /// of a prompt, and may break off there. Gives the number of tokens that were appended: all, or none if it was broken
    /// off before its end. The sequence is empty then, since its layers have come to different tokens, and so it is after
    /// a failure; a snapshot of a place before can be [restored](Model::restore).
    ///
    /// # Errors
    /// More tokens than the context holds, unknown tokens, too few or too many vision rows, failures of the device.
    pub fn prefill(
        &mut self,
        input: &Input<'_>,
        progress: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> Result<usize, ModelError> {
        Ok(self.append(input, Keep::Nothing, Marks::default(), progress)?.map_or(0, |_| input.ids.len()))
    }

    /// As [`Model::prefill`], and gives snapshots of places inside: `marks` are ascending numbers of the input's tokens
    /// before each. They have the bits of a prompt that ends there, and cost the device at most the last layer for the
    /// units that they are in. None if it was broken off. A place between the tokens of a picture has no position to go
    /// on at.
    ///
    /// # Errors
    /// As [`Model::prefill`]; marks that are not ascending or past the end.
    pub fn prefill_marked(
        &mut self,
        input: &Input<'_>,
        marks: &[usize],
        progress: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> Result<Option<Vec<Snapshot>>, ModelError> {
        if !marks.is_sorted_by(|a, b| a < b) || marks.last().is_some_and(|last| *last > input.ids.len()) {
            return Err(ModelError::Marks { marks: marks.to_vec(), tokens: input.ids.len() });
        }
        let before = (marks.first() == Some(&0)).then(|| self.snapshot());
        let passing = self.marks(marks, input.positions);
        let passed = self.append(input, Keep::Nothing, passing, progress)?;
        Ok(passed.map(|passed| before.into_iter().chain(Model::passed(passed)).collect()))
    }

    /// Appends tokens; `None` if it was broken off.
    fn append(
        &mut self,
        input: &Input<'_>,
        keep: Keep,
        marks: Marks,
        progress: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> Result<Option<Marks>, ModelError> {
        self.kernels.usable()?;
        let tokens = self.len + input.ids.len();
        if tokens > self.max_ctx {
            return Err(ModelError::ContextFull { tokens, max_ctx: self.max_ctx });
        }
        let d = self.text.params.hidden;
        let image = self.bundle.manifest.vision.as_ref().map(|v| v.image_token);
        let stands = |id: u32| !input.vision.is_empty() && Some(id) == image;
        let found = input.ids.iter().filter(|&&id| stands(id)).count();
        if found * d != input.vision.len() || input.positions.tokens.len() != input.ids.len() {
            return Err(ModelError::ImageTokens { found, expected: input.vision.len() / d, images: 0 });
        }
        let mut vision = input.vision.chunks_exact(d);
        let row = |&id| match stands(id).then(|| vision.next()).flatten() {
            Some(image) => Row::Image(image),
            None => Row::Token(id),
        };
        let rows: Vec<Row<'_>> = input.ids.iter().map(row).collect();
        self.run = None;
        let Model { kernels, text, pool, probe, recorder, bundle, max_piece, .. } = self;
        let mut run = Run { kernels, pool, recorder, probe };
        (text.prefill.keep, text.prefill.marks) = (keep, marks);
        let done = text.prompt(&mut run, bundle, &rows, &input.positions.tokens, *max_piece, progress);
        let marks = std::mem::take(&mut text.prefill.marks);
        match done {
            Ok(true) => {}
            other => {
                self.reset();
                return other.map(|_| None);
            }
        }
        self.len = tokens;
        self.next_position = input.positions.next;
        Ok(Some(marks))
    }

    /// Appends one token, and gives the logits of the one that follows: `[vocab]`.
    ///
    /// # Errors
    /// A full context, an unknown token: the sequence stays as it was. Failures of the device: it is empty, or, where only
    /// the logits failed, whole and one token longer; [`Model::len`] tells.
    pub fn decode(&mut self, id: u32) -> Result<&[f32], ModelError> {
        self.kernels.usable()?;
        if self.len >= self.max_ctx {
            return Err(ModelError::ContextFull { tokens: self.len + 1, max_ctx: self.max_ctx });
        }
        self.run = None;
        let position = self.next_position;
        let Model { kernels, text, pool, probe, recorder, bundle, .. } = self;
        let awake = pool.stay_awake();
        let result = text.token(&mut Run { kernels, pool, recorder, probe }, bundle, id, position);
        drop(awake);
        if let Err(error) = result {
            if !matches!(error, ModelError::NoSuchToken { .. }) {
                // Some layers have taken the token in, others have not; and where the host failed, the NPU may be at work.
                let _ = self.kernels.drain();
                self.recorder.clear();
                self.reset();
            }
            return Err(error);
        }
        self.len += 1;
        self.next_position += 1;
        self.logits()
    }

    /// Logits of the token that follows the sequence: `[vocab]`.
    ///
    /// # Errors
    /// Failures of the device.
    pub fn logits(&mut self) -> Result<&[f32], ModelError> {
        self.kernels.usable()?;
        let Model { kernels, text, pool, probe, recorder, .. } = self;
        if let Err(error) = text.logits(&mut Run { kernels, pool, recorder, probe }) {
            // Where the host failed, the NPU may be at work. The first error is the one to tell.
            let _ = self.kernels.drain();
            self.recorder.clear();
            return Err(error);
        }
        Ok(&self.text.logits[..self.text.params.vocab])
    }
}

/// Bytes of the packed weights of the text model, for a progress bar.
fn text_bytes(bundle: &Bundle) -> u64 {
    let size = |name: &str| bundle.tensor_bytes(name).map_or(0, |bytes| bytes as u64);
    let text = &bundle.manifest.text;
    let slices = (0..text.down_slices).map(|j| format!("g.down{j}"));
    let names: Vec<String> = ["g.in", "g.o", "g.gu"].map(str::to_owned).into_iter().chain(slices).collect();
    let layers = (0..text.layers.len()).flat_map(|i| names.iter().map(move |n| format!("l{i}.{n}")));
    let heads = (0..text.head_parts).map(|j| format!("head{j}"));
    layers.chain(heads).map(|n| size(&n)).sum()
}
