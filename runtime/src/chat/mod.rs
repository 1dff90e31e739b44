//! Text and pictures in, text out: the template, the tokenizer, greedy generation and the stream of its text.

mod accept;
mod answer;
mod ask;
mod encoding;
mod error;
mod generate;
mod grammar;
mod guard;
mod machine;
mod marks;
mod message;
mod on_model;
mod options;
mod picture;
mod plan;
mod room;
mod sampler;
mod schema;
mod session;
mod state;
mod stops;
mod store;
mod stream;
mod template;
mod thinking;
mod tokenizer;
mod tools;
#[cfg(test)]
mod toy;
mod writer;

use std::ops::ControlFlow;

pub use ask::{Ask, Cancel, Hold, Overflow, Thinking};
pub use error::ChatError;
pub use grammar::{Constraint, GrammarError, Grammars, ToolChoice};
pub use guard::{ControlTokens, Rendered};
pub use marks::MarkLimits;
pub use message::{Message, MessageError, Part, Role, ToolCall, kind_name};
pub use options::{Event, Outcome, Stop, Timing, TokenLogprob, Turn};
pub use picture::Picture;
pub use sampler::{Chosen, MAX_LOGPROBS, Preset, Sampler, Sampling, SamplingError, TokenSet};
pub use session::{Said, Session};
pub use stops::{Circle, LoopGuard, LoopLimits, MAX_STOP_BYTES, MAX_STOPS, StopError, StopStream};
pub use store::{Restored, StoreError};
pub use stream::TextStream;
pub use template::{Request, Template, TemplateError, prompt};
pub use thinking::{Channel, ThinkingBudget, ThinkingSplit};
pub use tokenizer::Tokenizer;
pub use tools::{Tool, ToolError, ToolEvent, ToolParser, Tools, tool_result};

pub use crate::model::{LoadOptions, Progress};

use crate::bundle::Bundle;
use crate::image::Rgb;
use crate::model::{Model, Positions, Speculate, Speculator};
use crate::npu::{Counters, Npu};

/// A loaded bundle, ready for turns.
#[derive(Debug)]
pub struct Chat {
    model: Model,
    tokenizer: Tokenizer,
    template: Template,
    stop: Vec<u32>,
    /// That of the last answer.
    sampler: Option<Sampler>,
    speculator: Speculator,
    /// Made with the first answer that is held to something.
    grammars: Option<Grammars>,
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
        let template = Template::of(&bundle)?;
        // Neither is ever appended to an answer.
        let image = bundle.manifest.vision.as_ref().map(|vision| vision.image_token);
        let never: Vec<u32> = stop.iter().copied().chain(image).collect();
        let mut model = Model::load(bundle, npu, &options, progress)?;
        if options.speculate != Speculate::Off {
            model.widen_head()?;
        }
        let speculator = Speculator::new(options.speculate, &never);
        progress(Progress::Ready);
        Ok(Chat { model, tokenizer, template, stop, sampler: None, speculator, grammars: None })
    }

    /// Answers one turn from an empty state: a conversation of one question. Every piece of finished text goes to `event`
    /// as soon as it is certain; breaking from `event` ends the turn after the work at hand, with [`Stop::Cancelled`].
    ///
    /// # Errors
    /// A prompt longer than the context, images that the bundle cannot take, and failures of the device. Another turn
    /// may follow.
    pub fn turn(
        &mut self,
        turn: &Turn<'_>,
        event: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<Outcome, ChatError> {
        let mut session = Session::new();
        session.set_system(turn.system.map(str::to_owned));
        let images = turn.images.iter().map(|_| Part::Image { source: None });
        let parts = images.chain([Part::Text(turn.text.to_owned())]).collect();
        let pictures = turn.images.iter().cloned().map(Picture::new).collect();
        session.push_with(Message::parts(Role::User, parts), pictures);
        let thinking = if turn.thinking { Thinking::On } else { Thinking::Off };
        let ask = Ask { thinking, max_new: turn.max_new, ..Ask::default() };
        self.answer(&mut session, &ask, event)
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
        if !patches.is_empty() && tower(&mut self.model, event)?.is_break() {
            return Ok(None);
        }
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

    /// How conversations become prompts.
    #[must_use]
    pub fn template(&self) -> &Template {
        &self.template
    }

    /// Takes another template than the bundle's. Gives the one before.
    pub fn set_template(&mut self, template: Template) -> Template {
        std::mem::replace(&mut self.template, template)
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

/// Loads the vision tower, unless it is there.
fn tower(model: &mut Model, event: &mut writer::Listener<'_>) -> Result<ControlFlow<()>, ChatError> {
    let mut going = ControlFlow::Continue(());
    model.load_tower(&mut |progress| {
        if let (Progress::Weights { done, total }, ControlFlow::Continue(())) = (progress, going) {
            going = event(Event::Tower { done, total });
        }
    })?;
    Ok(going)
}
