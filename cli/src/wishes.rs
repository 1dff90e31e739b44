//! How answers are wanted: what the flags say of it, refused by name before anything is loaded, and the files they name.

use crate::arguments::{UsageError, bounded, text, wrong};
use crate::error::CliError;
use crate::flags::{Flag, FlagSpec};
use crate::prompt;
use runtime::chat::{
    Ask, Hold, Overflow, Preset, Sampling, SamplingError, StopStream, Template, Thinking, ToolChoice, Tools,
};
use serde_json::Value;
use std::ffi::OsString;
use std::hash::{BuildHasher, Hasher};
use std::path::{Path, PathBuf};

const DEFAULT_MAX_NEW: usize = 1024;

/// Whether the model may call functions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Choice {
    /// Where it likes.
    #[default]
    Auto,
    /// It is not told of any.
    None,
    /// It has to call one.
    Required,
    /// It has to call this one.
    Function(String),
}

/// How answers are wanted.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Wishes {
    pub(crate) sampling: Sampling,
    pub(crate) thinking: Thinking,
    pub(crate) show_thinking: bool,
    pub(crate) max_new: usize,
    pub(crate) stop: Vec<String>,
    pub(crate) tools: Option<PathBuf>,
    pub(crate) choice: Choice,
    pub(crate) tool_command: Option<PathBuf>,
    pub(crate) schema: Option<PathBuf>,
    pub(crate) object: bool,
    pub(crate) drop_oldest: bool,
    pub(crate) raw: bool,
    pub(crate) template: Option<PathBuf>,
}

impl Default for Wishes {
    fn default() -> Self {
        Self {
            sampling: Sampling::default(),
            thinking: Thinking::Off,
            show_thinking: false,
            max_new: DEFAULT_MAX_NEW,
            stop: Vec::new(),
            tools: None,
            choice: Choice::Auto,
            tool_command: None,
            schema: None,
            object: false,
            drop_oldest: false,
            raw: false,
            template: None,
        }
    }
}

/// The flags as they were given.
#[derive(Debug, Default)]
pub(crate) struct Given {
    preset: Option<Preset>,
    temperature: Option<f32>,
    top_k: Option<usize>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    repetition: Option<f32>,
    presence: Option<f32>,
    frequency: Option<f32>,
    bias: Vec<(u32, f32)>,
    seed: Option<u64>,
    logprobs: Option<usize>,
    switched: bool,
    thinking: Option<Thinking>,
    max_new: Option<usize>,
    wishes: Wishes,
}

impl Given {
    /// Takes a flag of this room; others are passed over.
    pub(crate) fn take(&mut self, spec: &'static FlagSpec, value: OsString) -> Result<(), UsageError> {
        let wishes = &mut self.wishes;
        match spec.flag {
            Flag::Preset => {
                let name = text(spec, value)?;
                let expected = "thinking, thinking-coding, instruct, instruct-reasoning or instruct-small";
                self.preset = Some(Preset::from_name(&name).map_err(|_| wrong(spec, &name, expected))?);
            }
            Flag::Temperature => self.temperature = Some(number(spec, value)?),
            Flag::TopK => self.top_k = Some(whole(spec, value)?),
            Flag::TopP => self.top_p = Some(number(spec, value)?),
            Flag::MinP => self.min_p = Some(number(spec, value)?),
            Flag::RepetitionPenalty => self.repetition = Some(number(spec, value)?),
            Flag::PresencePenalty => self.presence = Some(number(spec, value)?),
            Flag::FrequencyPenalty => self.frequency = Some(number(spec, value)?),
            Flag::LogitBias => self.bias.push(bias(spec, value)?),
            Flag::Seed => self.seed = Some(whole(spec, value)?),
            Flag::Logprobs => self.logprobs = Some(whole(spec, value)?),
            Flag::Thinking => self.switched = true,
            Flag::Think => self.thinking = Some(thinking(spec, &text(spec, value)?)?),
            Flag::ShowThinking => wishes.show_thinking = true,
            Flag::MaxNew => self.max_new = Some(bounded(spec, value, usize::MAX, "a whole number, 1 or more")?),
            Flag::Stop => wishes.stop.push(text(spec, value)?),
            Flag::Tools => wishes.tools = Some(value.into()),
            Flag::ToolChoice => {
                wishes.choice = match text(spec, value)?.as_str() {
                    "auto" => Choice::Auto,
                    "none" => Choice::None,
                    "required" => Choice::Required,
                    "" => return Err(wrong(spec, "", "auto, none, required or a function's name")),
                    name => Choice::Function(name.to_owned()),
                }
            }
            Flag::ToolCommand => wishes.tool_command = Some(value.into()),
            Flag::JsonSchema => wishes.schema = Some(value.into()),
            Flag::JsonObject => wishes.object = true,
            Flag::DropOldest => wishes.drop_oldest = true,
            Flag::Raw => wishes.raw = true,
            Flag::ChatTemplate => wishes.template = Some(value.into()),
            _ => {}
        }
        Ok(())
    }

    /// The most tokens of an answer, if that was given.
    pub(crate) fn max_new(&self) -> Option<usize> {
        self.max_new
    }

    /// What they come to together.
    pub(crate) fn wishes(self) -> Result<Wishes, UsageError> {
        let base = self.preset.map(Preset::sampling).unwrap_or_default();
        let mut sampling = Sampling {
            temperature: self.temperature.unwrap_or(base.temperature),
            top_k: self.top_k.unwrap_or(base.top_k),
            top_p: self.top_p.unwrap_or(base.top_p),
            min_p: self.min_p.unwrap_or(base.min_p),
            repetition_penalty: self.repetition.unwrap_or(base.repetition_penalty),
            presence_penalty: self.presence.unwrap_or(base.presence_penalty),
            frequency_penalty: self.frequency.unwrap_or(base.frequency_penalty),
            logit_bias: self.bias,
            seed: self.seed.unwrap_or(0),
            logprobs: self.logprobs,
        };
        // How many tokens there are is known once a model is loaded.
        sampling.check(u32::MAX as usize).map_err(|error| match error {
            SamplingError::Setting { what, value, allowed } => {
                UsageError::Setting { flag: what.replace('_', "-"), given: value, expected: allowed }
            }
            other => UsageError::Syntax(other.to_string()),
        })?;
        if self.seed.is_none() && !sampling.is_greedy() {
            // Another one each time; `--json` and `--timing` tell which.
            sampling.seed = any_seed();
        }
        let thinking = match (self.switched, self.thinking) {
            (true, Some(_)) => return Err(UsageError::Exclusive("thinking", "think")),
            (true, None) => Thinking::On,
            (false, thinking) => thinking.unwrap_or_default(),
        };
        let wishes = Wishes { sampling, thinking, max_new: self.max_new.unwrap_or(DEFAULT_MAX_NEW), ..self.wishes };
        StopStream::new(wishes.stop.clone()).map_err(|error| UsageError::Syntax(format!("--stop: {error}")))?;
        if wishes.schema.is_some() && wishes.object {
            return Err(UsageError::Exclusive("json-schema", "json-object"));
        }
        let alone = [("tool-choice", wishes.choice != Choice::Auto), ("tool-command", wishes.tool_command.is_some())];
        if let Some((flag, _)) = alone.into_iter().find(|(_, given)| *given && wishes.tools.is_none()) {
            return Err(UsageError::Needs(flag, "tools"));
        }
        Ok(wishes)
    }
}

/// A seed that nobody knows beforehand, of so few bits that every reader of JSON takes it for what it is.
pub(crate) fn any_seed() -> u64 {
    std::hash::RandomState::new().build_hasher().finish() >> 12
}

fn number(spec: &'static FlagSpec, value: OsString) -> Result<f32, UsageError> {
    let word = text(spec, value)?;
    word.parse().map_err(|_| wrong(spec, &word, "a number"))
}

fn whole<T: std::str::FromStr>(spec: &'static FlagSpec, value: OsString) -> Result<T, UsageError> {
    let word = text(spec, value)?;
    word.parse().map_err(|_| wrong(spec, &word, "a whole number, 0 or more"))
}

/// `TOKEN=BIAS`.
fn bias(spec: &'static FlagSpec, value: OsString) -> Result<(u32, f32), UsageError> {
    let word = text(spec, value)?;
    let parsed = word.split_once('=').and_then(|(token, bias)| Some((token.parse().ok()?, bias.parse().ok()?)));
    parsed.ok_or_else(|| wrong(spec, &word, "TOKEN=NUMBER, such as 42=-inf"))
}

fn thinking(spec: &'static FlagSpec, word: &str) -> Result<Thinking, UsageError> {
    parse_thinking(word).ok_or_else(|| wrong(spec, word, "on, off or the most tokens of it"))
}

/// `on`, `off` or a budget.
pub(crate) fn parse_thinking(word: &str) -> Option<Thinking> {
    match word {
        "on" => Some(Thinking::On),
        "off" => Some(Thinking::Off),
        budget => budget.parse().ok().map(Thinking::Budget),
    }
}

/// Wishes with the files that they name.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) wishes: Wishes,
    tools: Option<Tools>,
    choice: ToolChoice,
    schema: Option<Value>,
}

impl Wishes {
    /// Reads the files.
    pub(crate) fn prepare(&self) -> Result<Prepared, CliError> {
        let mut tools = None;
        if let Some(path) = &self.tools {
            let read = Tools::from_json(&read("tools", path)?).map_err(|error| bad("tools", path, &error))?;
            if let Choice::Function(name) = &self.choice
                && !read.tools().iter().any(|tool| tool.name == *name)
            {
                return Err(bad("tools", path, &format_args!("it has no function `{name}` (--tool-choice)")));
            }
            if self.choice == Choice::Required && read.is_empty() {
                return Err(bad("tools", path, &"it has no function to call (--tool-choice required)"));
            }
            tools = Some(read).filter(|_| self.choice != Choice::None);
        }
        let choice = match &self.choice {
            Choice::Auto | Choice::None => ToolChoice::Auto,
            Choice::Required => ToolChoice::Required,
            Choice::Function(name) => ToolChoice::Function(name.clone()),
        };
        let schema = self.schema.as_ref().map(|path| {
            let text = read("json-schema", path)?;
            serde_json::from_str(&text).map_err(|error| bad("json-schema", path, &format_args!("not JSON: {error}")))
        });
        let schema = schema.transpose()?.or_else(|| self.object.then(|| serde_json::json!({"type": "object"})));
        Ok(Prepared { wishes: self.clone(), tools, choice, schema })
    }

    /// The template that takes the place of the bundle's.
    pub(crate) fn template(&self) -> Result<Option<Template>, CliError> {
        let Some(path) = &self.template else { return Ok(None) };
        let source = read("chat-template", path)?;
        Template::from_jinja(&source).map(Some).map_err(|error| bad("chat-template", path, &error))
    }
}

impl Prepared {
    /// As the library takes it. Behind a function's result nothing has to be called again.
    pub(crate) fn ask(&self, answers_result: bool) -> Ask<'_> {
        let wishes = &self.wishes;
        let tools = self.tools.as_ref().filter(|tools| !tools.is_empty());
        let choice = if answers_result { ToolChoice::Auto } else { self.choice.clone() };
        let hold = match (tools, &self.schema) {
            (Some(_), Some(schema)) if choice == ToolChoice::Auto => Hold::CallsOr(schema),
            (Some(_), _) => Hold::Calls(choice),
            (None, Some(schema)) => Hold::Schema(schema),
            (None, None) => Hold::Free,
        };
        Ask {
            sampling: wishes.sampling.clone(),
            thinking: wishes.thinking,
            max_new: wishes.max_new,
            stop: &wishes.stop,
            tools: self.tools.as_ref(),
            hold,
            overflow: if wishes.drop_oldest { Overflow::DropOldest } else { Overflow::Refuse },
            raw: wishes.raw,
            ..Ask::default()
        }
    }
}

fn read(flag: &'static str, path: &Path) -> Result<String, CliError> {
    prompt::text_of(path).map_err(|what| bad(flag, path, &what))
}

fn bad(flag: &'static str, path: &Path, what: &dyn std::fmt::Display) -> CliError {
    CliError::Wish { flag, path: path.to_owned(), what: what.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::flag_named;

    fn given(flags: &[(&str, &str)]) -> Result<Wishes, String> {
        let mut given = Given::default();
        for (name, value) in flags {
            given.take(flag_named(name).unwrap(), value.into()).map_err(|error| error.to_string())?;
        }
        given.wishes().map_err(|error| error.to_string())
    }

    #[test]
    fn a_preset_is_where_flags_begin() {
        let found = given(&[("preset", "instruct"), ("top-p", "0.5"), ("seed", "7"), ("think", "30")]).unwrap();
        let wanted = Sampling { top_p: 0.5, seed: 7, ..Preset::Instruct.sampling() };
        assert_eq!((found.sampling, found.thinking, found.max_new), (wanted, Thinking::Budget(30), 1024));
    }

    #[test]
    fn greedy_answers_have_no_seed_and_others_another_one_each_time() {
        assert_eq!(given(&[]).unwrap(), Wishes::default());
        let drawn = || given(&[("temperature", "1")]).unwrap().sampling.seed;
        assert_ne!(drawn(), drawn());
    }

    #[test]
    fn bad_values_are_refused_by_their_flag() {
        for (name, value, said) in [
            ("temperature", "hot", "--temperature hot: expected a number"),
            ("temperature", "-1", "--temperature -1: expected 0 to 100"),
            ("temperature", "nan", "--temperature NaN: expected 0 to 100"),
            ("top-k", "-1", "--top-k -1: expected a whole number, 0 or more"),
            ("top-p", "0", "--top-p 0: expected above 0, to 1 (all)"),
            ("min-p", "2", "--min-p 2: expected 0 to 1"),
            ("repetition-penalty", "0", "--repetition-penalty 0: expected 0.01 to 100"),
            ("presence-penalty", "inf", "--presence-penalty inf: expected -100 to 100"),
            ("frequency-penalty", "-101", "--frequency-penalty -101: expected -100 to 100"),
            ("logit-bias", "7", "--logit-bias 7: expected TOKEN=NUMBER, such as 42=-inf"),
            ("logit-bias", "7=nan", "--logit-bias NaN: expected a number, or -inf to forbid the token"),
            ("logprobs", "21", "--logprobs 21: expected 0 to 20 tokens"),
            ("seed", "1.5", "--seed 1.5: expected a whole number, 0 or more"),
            ("stop", "", "--stop: stop string 0 is empty: it would end every answer at once"),
            ("max-new", "0", "--max-new 0: expected a whole number, 1 or more"),
            ("think", "maybe", "--think maybe: expected on, off or the most tokens of it"),
            ("tool-choice", "", "--tool-choice : expected auto, none, required or a function's name"),
        ] {
            assert_eq!(given(&[(name, value)]), Err(said.to_owned()), "{name}");
        }
        let preset = given(&[("preset", "warm")]).unwrap_err();
        assert!(preset.starts_with("--preset warm: expected thinking,"), "{preset}");
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
        for (flags, said) in [
            (vec![("thinking", ""), ("think", "on")], "--thinking and --think exclude each other"),
            (vec![("json-schema", "a"), ("json-object", "")], "--json-schema and --json-object exclude each other"),
            (vec![("tool-choice", "required")], "--tool-choice needs --tools"),
            (vec![("tool-command", "x")], "--tool-command needs --tools"),
        ] {
            assert_eq!(given(&flags), Err(said.to_owned()));
        }
    }
}
