//! Text and pictures in, text out: the template, the tokenizer, greedy generation and the stream of its text.

mod accept;
mod error;
mod generate;
mod guard;
mod machine;
mod marks;
mod message;
mod options;
mod picture;
mod state;
mod stream;
mod template;
mod tokenizer;
#[cfg(test)]
mod toy;

use std::ops::ControlFlow;
use std::time::Instant;

pub use error::ChatError;
pub use guard::{ControlTokens, Rendered};
pub use marks::MarkLimits;
pub use message::{Message, MessageError, Part, Role, ToolCall};
pub use options::{Event, Outcome, Stop, Timing, Turn};
pub use picture::Picture;
pub use stream::TextStream;
pub use template::{Request, Template, TemplateError, prompt};
pub use tokenizer::Tokenizer;

pub use crate::model::{LoadOptions, Progress};

use self::generate::{Decoder, Limits, generate};
use crate::bundle::Bundle;
use crate::image::Rgb;
use crate::model::{Input, Model, ModelError, Positions};
use crate::npu::{Counters, Npu, NpuError};

/// A loaded bundle, ready for turns.
#[derive(Debug)]
pub struct Chat {
    model: Model,
    tokenizer: Tokenizer,
    stop: Vec<u32>,
}

/// A prompt in tokens, its pictures encoded.
#[derive(Clone, Debug)]
pub struct Prompt {
    /// The tokens.
    pub ids: Vec<u32>,
    /// Their rotary positions.
    pub positions: Positions,
    /// Rows of the vision tower, `[image tokens, D]`.
    pub vision: Vec<f32>,
    /// Tokens that stand for pictures.
    pub image_tokens: usize,
}

impl Chat {
    /// Loads a bundle onto an NPU: contexts, streams, weights and buffers, in the order that is known to work.
    ///
    /// # Errors
    /// What the bundle, the device or the tokenizer refused, each by name.
    pub fn load(
        bundle: Bundle,
        npu: Npu,
        options: LoadOptions,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Chat, ChatError> {
        progress(Progress::Tokenizer);
        let tokenizer = Tokenizer::from_json(&bundle.tokenizer_json()?)?;
        if let Some(vision) = &bundle.manifest.vision {
            for (token, id) in [
                (template::IMAGE_PAD, vision.image_token),
                (template::VISION_START, vision.vision_start),
                (template::VISION_END, vision.vision_end),
            ] {
                if tokenizer.id(token) != Some(id) {
                    let found = tokenizer.id(token).map_or("none".to_owned(), |id| id.to_string());
                    let what = format!("`{token}` is token {found}, the manifest says {id}");
                    return Err(ChatError::Tokenizer(what));
                }
            }
        }
        let text = &bundle.manifest.text;
        if tokenizer.vocab() > text.vocab {
            let what = format!("it has {} tokens, the model knows {}", tokenizer.vocab(), text.vocab);
            return Err(ChatError::Tokenizer(what));
        }
        let stop = text.stop.clone();
        let model = Model::load(bundle, npu, &options, progress)?;
        progress(Progress::Ready);
        Ok(Chat { model, tokenizer, stop })
    }

    /// Answers one turn from an empty state. Every piece of finished text goes to `event` as soon as it is certain, and
    /// so does every token without one; breaking from `event` ends the turn after the work at hand, with [`Stop::Cancelled`].
    ///
    /// # Errors
    /// A prompt longer than the context, images that the bundle cannot take, and failures of the device. Another turn
    /// may follow.
    pub fn turn(
        &mut self,
        turn: &Turn<'_>,
        event: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<Outcome, ChatError> {
        if turn.max_new == 0 {
            return Err(ChatError::NothingToSay);
        }
        let before = (self.model.profile(), self.model.counters());
        let mut timing = Timing::default();
        let mut outcome = Outcome {
            prompt_tokens: 0,
            image_tokens: 0,
            tokens: Vec::new(),
            text: String::new(),
            stop: Stop::Cancelled,
            timing,
        };
        // No command fails of an error that the array raises, so it has to be asked for; what was there before is none of
        // this turn's.
        let known = self.model.npu().array_error();
        let started = Instant::now();
        let prompt = self.prompt(turn, event)?;
        timing.vision = started.elapsed();
        if let Some(prompt) = prompt {
            (outcome.prompt_tokens, outcome.image_tokens) = (prompt.ids.len(), prompt.image_tokens);
            self.answer(&prompt, turn.max_new, event, &mut outcome, &mut timing)?;
        }
        if let Some(error) = self.model.npu().array_error().filter(|error| Some(error.ts_us) != known.map(|k| k.ts_us))
        {
            return Err(NpuError::Array(error).into());
        }
        timing.profile = self.model.profile().since(&before.0);
        timing.counters = self.model.counters().since(&before.1);
        outcome.timing = timing;
        Ok(outcome)
    }

    fn answer(
        &mut self,
        prompt: &Prompt,
        max_new: usize,
        event: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
        outcome: &mut Outcome,
        timing: &mut Timing,
    ) -> Result<(), ChatError> {
        let started = Instant::now();
        let total = prompt.ids.len();
        let mut cancelled = false;
        self.model.reset();
        let input = Input { ids: &prompt.ids, positions: &prompt.positions, vision: &prompt.vision };
        self.model.prefill(&input, &mut |done| {
            let flow = event(Event::Prompt { done, total });
            cancelled = flow.is_break();
            flow
        })?;
        if cancelled {
            timing.prefill = started.elapsed();
            return Ok(());
        }
        let first = choose(self.model.logits()?)?;
        timing.prefill = started.elapsed();

        let started = Instant::now();
        let room = self.model.max_ctx() - total;
        let (mut stream, tokenizer) = (TextStream::new(), &self.tokenizer);
        let mut steps = Steps { model: &mut self.model, taken: 0 };
        let limits = Limits { stop: &self.stop, max_new, room };
        let Outcome { tokens, text, stop, .. } = outcome;
        *stop = generate(&mut steps, first, &limits, &mut |token| {
            tokens.push(token);
            let at = text.len();
            stream.push(tokenizer.bytes(token), text);
            match &text[at..] {
                "" => event(Event::Silent(token)),
                fresh => event(Event::Text(fresh)),
            }
        })?;
        timing.steps = steps.taken;
        let at = text.len();
        stream.finish(text);
        if text.len() > at {
            let _ = event(Event::Text(&text[at..]));
        }
        timing.decode = started.elapsed();
        Ok(())
    }

    /// The tokens of a turn, with its pictures encoded. `None` if `event` broke off.
    ///
    /// # Errors
    /// A prompt longer than the context, images that the bundle cannot take, and failures of the device.
    pub fn prompt(
        &mut self,
        turn: &Turn<'_>,
        event: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<Option<Prompt>, ChatError> {
        if !turn.images.is_empty() && !self.model.sees() {
            return Err(ChatError::NoVision { images: turn.images.len() });
        }
        let patches = turn.images.iter().map(|rgb| self.model.prepare(rgb)).collect::<Result<Vec<_>, _>>()?;
        let tokens = patches.iter().map(|p| self.model.image_tokens(p)).collect::<Result<Vec<_>, _>>()?;
        let image_tokens = tokens.iter().sum();
        let max_ctx = self.model.max_ctx();
        // Told before a picture is encoded or a long text is spelled out.
        if image_tokens > max_ctx {
            return Err(ChatError::PromptTooLong { prompt: image_tokens, max_ctx });
        }
        let ids = self.tokenizer.encode(&prompt(turn.system, &tokens, turn.text, turn.thinking))?;
        if ids.len() > max_ctx {
            return Err(ChatError::PromptTooLong { prompt: ids.len(), max_ctx });
        }
        let grids: Vec<[usize; 2]> = patches.iter().map(|p| p.grid).collect();
        self.model.reset();
        let positions = self.model.positions(&ids, &grids)?;
        let mut vision = Vec::new();
        for (index, (patches, tokens)) in patches.iter().zip(tokens).enumerate() {
            let rows =
                self.model.encode_with(patches, &mut |done, total| event(Event::Patches { index, done, total }))?;
            let Some(rows) = rows else { return Ok(None) };
            vision.extend(rows);
            if event(Event::Image { index, tokens }).is_break() {
                return Ok(None);
            }
        }
        Ok(Some(Prompt { ids, positions, vision, image_tokens }))
    }

    /// Whether the bundle has a vision tower that was loaded.
    #[must_use]
    pub fn sees(&self) -> bool {
        self.model.sees()
    }

    /// The most tokens that a prompt and its answer may have together.
    #[must_use]
    pub fn max_ctx(&self) -> usize {
        self.model.max_ctx()
    }

    /// What has been asked of the device since the bundle was loaded.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.model.counters()
    }

    /// The model underneath.
    #[must_use]
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The model underneath, to run by hand.
    #[must_use]
    pub fn model_mut(&mut self) -> &mut Model {
        &mut self.model
    }

    /// The tokenizer.
    #[must_use]
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// A picture as a prompt would have it: its patches.
    ///
    /// # Errors
    /// A picture that cannot be prepared, and a bundle without a tower.
    pub fn prepare(&self, image: &Rgb) -> Result<host_ops::image::Patches, ChatError> {
        Ok(self.model.prepare(image)?)
    }
}

/// The largest logit's token, the lowest of equals.
fn choose(logits: &[f32]) -> Result<u32, ModelError> {
    host_ops::sample::argmax(logits).map(|token| token as u32).ok_or(ModelError::NoNumbers)
}

struct Steps<'a> {
    model: &'a mut Model,
    taken: usize,
}

impl Decoder for Steps<'_> {
    type Error = ModelError;

    fn next(&mut self, token: u32) -> Result<u32, ModelError> {
        self.taken += 1;
        choose(self.model.decode(token)?)
    }
}
