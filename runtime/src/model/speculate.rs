//! Several tokens of an answer at once: a guess goes through the kernels of a prompt, and as much of it stays as the model
//! would have said itself.
//!
//! All layers have taken the whole guess in by the time its logits are known. Keys and values past the accepted ones are
//! dropped. A recurrence cannot be taken back, but what went into it is kept: its state before the run takes the accepted
//! rows in once more, on the host alone.

use std::ops::ControlFlow;

use super::error::ModelError;
use super::head::Piece;
use super::keep::Keep;
use super::layer::{Mixer, MixerScratch};
use super::run::Run;
use super::sequence::Marks;
use super::{Input, Model, Positions};

impl Model {
    /// The longest run that [`Model::decode_run`] takes.
    #[must_use]
    pub fn longest_run(&self) -> usize {
        self.text.prefill.chunk().min(self.max_ctx.saturating_sub(self.len))
    }

    /// Appends the first token of `ids` and as many of the others as are chosen anyway. `choose` gets the logits after
    /// each token in turn and says what follows; where that is not the next of `ids`, or when those end, the run ends.
    /// Gives what was chosen, never nothing: all but the last of it has been appended, after the first of `ids`.
    ///
    /// Logits and states come out of the kernels of a prompt, which round in other places than those of a token do. With
    /// one token in `ids` it is [`Model::decode`].
    ///
    /// # Errors
    /// More tokens than [`Model::longest_run`], unknown tokens, what `choose` says, failures of the device. After all but
    /// the first the sequence is empty; with one token it is as [`Model::decode`] leaves it.
    pub fn decode_run(
        &mut self,
        ids: &[u32],
        choose: &mut dyn FnMut(&[f32]) -> Result<u32, ModelError>,
    ) -> Result<Vec<u32>, ModelError> {
        if let [id] = ids {
            return Ok(vec![choose(self.decode(*id)?)?]);
        }
        let most = self.longest_run();
        if ids.is_empty() || ids.len() > most {
            return Err(ModelError::Run { tokens: ids.len(), most });
        }
        self.remember();
        let positions = Positions::text(self.next_position, ids.len());
        let input = Input { ids, positions: &positions, vision: &[] };
        self.append(&input, Keep::Inputs, Marks::default(), &mut |_| ControlFlow::Continue(()))?;
        let chosen = self.choose_run(ids, choose);
        match chosen {
            Ok(chosen) => {
                self.run = Some(ids.len());
                self.shorten(chosen.len());
                Ok(chosen)
            }
            Err(error) => {
                self.reset();
                Err(error)
            }
        }
    }

    /// Takes back the last `tokens` of what [`Model::decode_run`] has just appended, if nothing has happened since: an
    /// answer may end before all of a run has been said. Gives whether it could be done; the first token of a run stays.
    pub fn take_back(&mut self, tokens: usize) -> bool {
        let left = self.run.and_then(|run| run.checked_sub(tokens)).filter(|left| *left > 0);
        if let Some(left) = left {
            self.shorten(left);
        }
        left.is_some()
    }

    fn choose_run(
        &mut self,
        ids: &[u32],
        choose: &mut dyn FnMut(&[f32]) -> Result<u32, ModelError>,
    ) -> Result<Vec<u32>, ModelError> {
        let vocab = self.text.params.vocab;
        let Model { kernels, text, pool, probe, recorder, .. } = self;
        let mut run = Run { kernels, pool, recorder, probe };
        let mut all = std::mem::take(&mut text.run_logits);
        if text.wide.is_some() {
            all.resize(ids.len() * vocab, 0.0);
            text.logits_of_rows(&mut run, 0..ids.len(), &mut |_, rows, Piece { first, width, logits }| {
                for (row, logits) in rows.zip(logits.chunks_exact(width)) {
                    all[row * vocab + first..][..width].copy_from_slice(logits);
                }
            })?;
        }
        let mut chosen = Vec::with_capacity(ids.len());
        let d = text.params.hidden;
        for row in 0..ids.len() {
            let logits = match text.wide.is_some() {
                true => &all[row * vocab..][..vocab],
                false => {
                    text.last.copy_from_slice(&text.prefill.kept.outputs[row * d..][..d]);
                    text.logits(&mut run)?
                }
            };
            chosen.push(choose(logits)?);
            if chosen.last() != ids.get(row + 1) {
                break;
            }
        }
        text.run_logits = all;
        Ok(chosen)
    }

    /// Keeps the states of the recurrences, in memory that stays.
    fn remember(&mut self) {
        let states = self.text.layers.iter().filter_map(|layer| match &layer.mixer {
            Mixer::Linear { state, .. } => Some(state),
            Mixer::Attention { .. } => None,
        });
        for (i, state) in states.enumerate() {
            match self.base.get_mut(i) {
                Some(own) => own.clone_from(state),
                None => self.base.push(state.clone()),
            }
        }
    }

    /// Cuts the run that was appended last to `left` tokens.
    fn shorten(&mut self, left: usize) {
        let Some(run) = self.run.filter(|run| left < *run) else { return };
        let before = self.len - run;
        let Model { text, pool, base, .. } = self;
        let kept = &text.prefill.kept;
        let (d, mut scratch, mut out) = (text.params.hidden, MixerScratch::default(), Vec::new());
        let mut base = base.iter();
        // A recurrence looks at no positions.
        let rope = host_ops::rope::Table::default();
        for (layer, inputs) in text.layers.iter_mut().zip(&kept.inputs) {
            let (input, width) = (layer.mixer.input_width(), layer.mixer.output_width());
            match &mut layer.mixer {
                Mixer::Attention { cache, .. } => cache.truncate(before + left),
                Mixer::Linear { state, .. } => {
                    base.next().into_iter().for_each(|before| state.clone_from(before));
                    out.resize(left * width, 0.0);
                    let (normed, projected) = (&inputs.normed[..left * d], &inputs.projected[..left * input]);
                    layer.mixer.forward(pool, &rope, normed, projected, &mut out[..left * width], &mut scratch);
                }
            }
        }
        text.last.copy_from_slice(&kept.outputs[(left - 1) * d..][..d]);
        self.next_position -= (run - left) as u32;
        (self.len, self.run) = (before + left, Some(left));
    }
}
