//! The command line, parsed and checked.

use crate::driver_check::{self, Style};
use crate::flags::{COMMANDS, Command, CommandSpec, Flag, FlagSpec, command_spec, flag_named};
use crate::serve::{self, ServeOptions};
use crate::shell::Shell;
use crate::talk::{Asked, Style as Shown};
use crate::wishes::{self, Wishes};
use runtime::bundle::WeightFormat;
use runtime::model::{KvFormat, Speculate};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Where to run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum DeviceChoice {
    /// An NPU that works, else the software NPU.
    #[default]
    Auto,
    /// An NPU, or an error.
    Npu,
    /// The software NPU.
    Model,
    /// The software NPU, which computes nothing and takes as long as a real one.
    Timing,
    /// A device node whose NPU is a software one, in a virtual machine; or an error.
    Virtual,
    /// This device node, or an error.
    Node(PathBuf),
}

/// Where prompts come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PromptSource {
    /// The texts and pictures of one question, in the order of the command line.
    Asked(Vec<Asked>),
    /// `-` is standard input.
    File(PathBuf),
    Interactive,
}

/// What all commands that run a model share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RunOptions {
    pub(crate) device: DeviceChoice,
    pub(crate) max_ctx: usize,
    /// 0 takes what the machine has.
    pub(crate) threads: usize,
    /// None leaves it to the bundle.
    pub(crate) kv: Option<KvFormat>,
    pub(crate) speculate: Speculate,
    pub(crate) hybrid: bool,
    pub(crate) timing: bool,
}

/// A conversation.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TalkOptions {
    pub(crate) prompt: PromptSource,
    pub(crate) system: Option<String>,
    /// Pictures of the first question, where it does not have them itself.
    pub(crate) images: Vec<PathBuf>,
    pub(crate) wishes: Wishes,
    pub(crate) style: Shown,
    /// The conversation's file.
    pub(crate) session: Option<PathBuf>,
    /// Where what happened when goes.
    pub(crate) trace: Option<PathBuf>,
    pub(crate) run: RunOptions,
}

/// What was asked.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Request {
    Chat {
        bundle: PathBuf,
        talk: TalkOptions,
    },
    Demo {
        talk: TalkOptions,
    },
    Check {
        bundle: PathBuf,
        json: bool,
        run: RunOptions,
    },
    Export {
        checkpoint: PathBuf,
        bundle: PathBuf,
        refs: Option<PathBuf>,
        vision: bool,
        format: WeightFormat,
        kernels_from: Option<PathBuf>,
        speculation: bool,
        threads: usize,
    },
    Eval {
        bundle: PathBuf,
        file: PathBuf,
        json: bool,
        run: RunOptions,
    },
    Verify {
        bundle: PathBuf,
        json: bool,
    },
    Doctor {
        bundle: Option<PathBuf>,
        json: bool,
        run: RunOptions,
    },
    Top {
        once: bool,
        json: bool,
        run: RunOptions,
    },
    Devices,
    Inspect {
        path: PathBuf,
        json: bool,
        ops: bool,
    },
    DriverCheck(driver_check::Options),
    Serve {
        bundle: PathBuf,
        serve: ServeOptions,
    },
    Manual,
    Completions(Shell),
    Help(Option<Command>),
    Version,
}

const DEFAULT_MAX_CTX: usize = 8192;
/// What Qwen3.5 was trained for.
const MAX_CTX: usize = 262_144;
const MAX_THREADS: usize = 1024;

/// A command line that means nothing.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum UsageError {
    #[error("{0}")]
    Syntax(String),
    #[error("unknown flag --{0}")]
    UnknownFlag(String),
    #[error("--{flag} means nothing to `{command}`")]
    NotHere { flag: &'static str, command: &'static str },
    #[error("--{0} was given twice")]
    Twice(&'static str),
    #[error("--{flag} {given}: expected {expected}")]
    Value { flag: &'static str, given: String, expected: &'static str },
    #[error("--{flag} {given}: expected {expected}")]
    Setting { flag: String, given: String, expected: String },
    #[error("--{0} needs --{1}")]
    Needs(&'static str, &'static str),
    #[error("<{0}> is missing")]
    Missing(&'static str),
    #[error("one argument too many: {0:?}")]
    TooMany(OsString),
    #[error("no case `{0}`: see `driver-check --list`")]
    NoCase(String),
    #[error("no case is in these groups and has these names: see `driver-check --list`")]
    NoCases,
    #[error("nothing to ask: give --prompt, --prompt-file or --interactive")]
    NoPrompt,
    #[error("completions for `{0}`: there are bash, zsh and fish")]
    NoShell(String),
    #[error("no text to foretell: give --file")]
    NoText,
    #[error("--{0} and --{1} exclude each other")]
    Exclusive(&'static str, &'static str),
    #[error("`{word}` is neither a command ({commands}) nor a bundle's directory")]
    NoCommand { word: String, commands: String },
}

impl UsageError {
    /// `word` stands where a command or a bundle's directory should, and is neither.
    pub(crate) fn no_command(word: &Path) -> Self {
        let words = COMMANDS.iter().map(|spec| spec.word).filter(|word| !word.is_empty());
        Self::NoCommand { word: word.display().to_string(), commands: words.collect::<Vec<_>>().join(", ") }
    }
}

impl From<lexopt::Error> for UsageError {
    fn from(error: lexopt::Error) -> Self {
        Self::Syntax(error.to_string())
    }
}

/// Everything as given, before it is known to belong together.
#[derive(Default)]
struct Given {
    asked: Vec<Asked>,
    prompt_file: Option<PathBuf>,
    system: Option<String>,
    wishes: wishes::Given,
    session: Option<PathBuf>,
    jsonl: bool,
    once: bool,
    max_ctx: Option<usize>,
    interactive: bool,
    timing: bool,
    trace: Option<PathBuf>,
    device: DeviceChoice,
    threads: usize,
    kv: Option<KvFormat>,
    speculate: Speculate,
    hybrid: bool,
    refs: Option<PathBuf>,
    file: Option<PathBuf>,
    vision: Option<bool>,
    format: Option<WeightFormat>,
    kernels_from: Option<PathBuf>,
    mtp: bool,
    json: bool,
    ops: bool,
    groups: Vec<driver_tests::cases::Group>,
    cases: Vec<String>,
    list: bool,
    tap: bool,
    danger: bool,
    serve: serve::Given,
}

/// Parses what follows the program's name.
pub(crate) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Request, UsageError> {
    use lexopt::Arg;
    let mut parser = lexopt::Parser::from_args(arguments);
    let mut command: Option<Command> = None;
    let mut positional: Vec<OsString> = Vec::new();
    let mut given = Given::default();
    let mut seen: Vec<&'static FlagSpec> = Vec::new();
    while let Some(argument) = parser.next()? {
        match argument {
            Arg::Value(word) => {
                if command.is_none() {
                    if word == "help" {
                        let about = parser.next()?.and_then(|about| match about {
                            Arg::Value(word) => named(&word),
                            _ => None,
                        });
                        return Ok(Request::Help(about.map(|spec| spec.command)));
                    }
                    let named = named(&word);
                    command = Some(named.map_or(Command::Chat, |spec| spec.command));
                    if named.is_some() {
                        continue;
                    }
                }
                positional.push(word);
            }
            Arg::Short('h') => return Ok(Request::Help(command)),
            Arg::Short('V') => return Ok(Request::Version),
            Arg::Short(letter) => return Err(UsageError::Syntax(format!("unknown flag -{letter}"))),
            Arg::Long(name) => {
                let Some(spec) = flag_named(name) else { return Err(UsageError::UnknownFlag(name.to_owned())) };
                match spec.flag {
                    Flag::Help => return Ok(Request::Help(command)),
                    Flag::Version => return Ok(Request::Version),
                    _ => {}
                }
                if !spec.repeats && seen.iter().any(|other| other.flag == spec.flag) {
                    return Err(UsageError::Twice(spec.name));
                }
                seen.push(spec);
                let value = if spec.value.is_some() { parser.value()? } else { OsString::new() };
                given.take(spec, value)?;
            }
        }
    }
    let Some(command) = command else {
        return if seen.is_empty() { Ok(Request::Help(None)) } else { Err(UsageError::Missing("bundle")) };
    };
    let spec = command_spec(command);
    if let Some(flag) = seen.iter().find(|flag| !flag.commands.contains(&command)) {
        let command = if spec.word.is_empty() { "<bundle>" } else { spec.word };
        return Err(UsageError::NotHere { flag: flag.name, command });
    }
    if let Some(extra) = positional.get(spec.positional.len() + spec.optional.len()) {
        return Err(UsageError::TooMany(extra.clone()));
    }
    if let Some(missing) = spec.positional.get(positional.len()) {
        return Err(UsageError::Missing(missing));
    }
    let mut positional = positional.into_iter().map(PathBuf::from);
    let mut next = || positional.next().unwrap_or_default();
    Ok(match command {
        Command::Chat => Request::Chat { bundle: next(), talk: given.talk()? },
        Command::Demo => Request::Demo { talk: given.talk()? },
        Command::Check => Request::Check { bundle: next(), json: given.json, run: given.run() },
        Command::Export => Request::Export {
            checkpoint: next(),
            bundle: next(),
            refs: given.refs,
            vision: given.vision.unwrap_or(true),
            format: given.format.unwrap_or(WeightFormat::Bfp16),
            kernels_from: given.kernels_from,
            speculation: given.mtp,
            threads: given.threads,
        },
        Command::Eval => {
            let run = given.run();
            let file = given.file.ok_or(UsageError::NoText)?;
            Request::Eval { bundle: next(), file, json: given.json, run }
        }
        Command::Verify => Request::Verify { bundle: next(), json: given.json },
        Command::Doctor => Request::Doctor { json: given.json, run: given.run(), bundle: positional.next() },
        Command::Top => Request::Top { once: given.once, json: given.json, run: given.run() },
        Command::Manual => Request::Manual,
        Command::Completions => {
            let name = next();
            let shell = name.to_str().and_then(Shell::from_name);
            Request::Completions(shell.ok_or_else(|| UsageError::NoShell(name.display().to_string()))?)
        }
        Command::Devices => Request::Devices,
        Command::Inspect => Request::Inspect { path: next(), json: given.json, ops: given.ops },
        Command::DriverCheck => Request::DriverCheck(given.driver_check()?),
        Command::Serve => {
            let run = given.run();
            let max_new = given.wishes.max_new();
            Request::Serve { bundle: next(), serve: given.serve.options(run, max_new, given.wishes.wishes()?) }
        }
    })
}

/// Whether a line's first word is one bare word, no command, and no file or directory either.
pub(crate) fn is_stray(word: &Path) -> bool {
    let flag = word.as_os_str().as_encoded_bytes().starts_with(b"-");
    let known = word == Path::new("help") || named(word.as_os_str()).is_some();
    !flag && !known && word.components().count() == 1 && !word.exists()
}

/// The command of this word.
fn named(word: &OsStr) -> Option<&'static CommandSpec> {
    COMMANDS.iter().find(|spec| !spec.word.is_empty() && word == spec.word)
}

impl Given {
    fn take(&mut self, spec: &'static FlagSpec, value: OsString) -> Result<(), UsageError> {
        match spec.flag {
            Flag::Prompt => self.asked.push(Asked::Text(text(spec, value)?)),
            Flag::PromptFile => self.prompt_file = Some(value.into()),
            Flag::System => self.system = Some(text(spec, value)?),
            Flag::Image => self.asked.push(Asked::Image(value.into())),
            Flag::Session => self.session = Some(value.into()),
            Flag::Once => self.once = true,
            Flag::JsonLines => self.jsonl = true,
            Flag::MaxCtx => self.max_ctx = Some(bounded(spec, value, MAX_CTX, "a whole number from 1 to 262144")?),
            Flag::Interactive => self.interactive = true,
            Flag::Timing => self.timing = true,
            Flag::Trace => self.trace = Some(value.into()),
            Flag::Device => {
                self.device = match text(spec, value)?.as_str() {
                    "auto" => DeviceChoice::Auto,
                    "npu" => DeviceChoice::Npu,
                    "model" => DeviceChoice::Model,
                    "timing" => DeviceChoice::Timing,
                    "virtual" => DeviceChoice::Virtual,
                    node if node.starts_with('/') => DeviceChoice::Node(node.into()),
                    other => {
                        return Err(wrong(
                            spec,
                            other,
                            "auto, npu, virtual, model, timing or the path of a device node",
                        ));
                    }
                }
            }
            Flag::Threads => self.threads = bounded(spec, value, MAX_THREADS, "a whole number from 1 to 1024")?,
            Flag::Kv => {
                self.kv =
                    Some(if either(spec, value, "f32", "16", "16 or f32")? { KvFormat::F32 } else { KvFormat::Half });
            }
            Flag::Speculate => {
                self.speculate = match text(spec, value)?.as_str() {
                    "off" => Speculate::Off,
                    "lookup" => Speculate::Lookup,
                    "auto" => Speculate::Auto,
                    other => return Err(wrong(spec, other, "lookup, auto or off")),
                }
            }
            Flag::Hybrid => self.hybrid = true,
            Flag::File => self.file = Some(value.into()),
            Flag::Refs => self.refs = Some(value.into()),
            Flag::Vision => self.vision = Some(either(spec, value, "w8", "none", "w8 or none")?),
            Flag::Format => {
                let value = text(spec, value)?;
                let expected = "bfp16, bfp6s or f32";
                let format = WeightFormat::from_name(&value);
                self.format = Some(format.ok_or_else(|| wrong(spec, &value, expected))?);
            }
            Flag::KernelsFrom => self.kernels_from = Some(value.into()),
            Flag::Mtp => self.mtp = true,
            Flag::Json => self.json = true,
            Flag::Ops => self.ops = true,
            Flag::Group => {
                let name = text(spec, value)?;
                let group = driver_tests::cases::Group::named(&name);
                self.groups.push(group.ok_or_else(|| wrong(spec, &name, "a group that --help names"))?);
            }
            Flag::Case => self.cases.push(text(spec, value)?),
            Flag::List => self.list = true,
            Flag::Tap => self.tap = true,
            Flag::Danger => self.danger = true,
            Flag::Listen
            | Flag::ApiKeyFile
            | Flag::Anyone
            | Flag::Cors
            | Flag::Queue
            | Flag::Sessions
            | Flag::SessionMemory
            | Flag::Deadline
            | Flag::StopLimit
            | Flag::MaxBody
            | Flag::LogFormat
            | Flag::ModelName => self.serve.take(spec, value)?,
            // Answered before anything else is looked at.
            Flag::Help | Flag::Version => {}
            _ => self.wishes.take(spec, value)?,
        }
        Ok(())
    }

    fn run(&self) -> RunOptions {
        RunOptions {
            device: self.device.clone(),
            max_ctx: self.max_ctx.unwrap_or(DEFAULT_MAX_CTX),
            threads: self.threads,
            kv: self.kv,
            speculate: self.speculate,
            hybrid: self.hybrid,
            timing: self.timing,
        }
    }

    fn talk(self) -> Result<TalkOptions, UsageError> {
        let run = self.run();
        let is_text = |asked: &Asked| matches!(asked, Asked::Text(_));
        let mut images = Vec::new();
        let prompt = match (self.asked.iter().any(is_text), self.prompt_file, self.interactive) {
            (true, None, false) => PromptSource::Asked(self.asked),
            (true, Some(_), _) => return Err(UsageError::Exclusive("prompt", "prompt-file")),
            (true, None, true) => return Err(UsageError::Exclusive("prompt", "interactive")),
            (false, Some(_), true) => return Err(UsageError::Exclusive("prompt-file", "interactive")),
            (false, None, false) => return Err(UsageError::NoPrompt),
            (false, file, _) => {
                images.extend(self.asked.into_iter().filter_map(|asked| match asked {
                    Asked::Image(path) => Some(path),
                    Asked::Text(_) => None,
                }));
                file.map_or(PromptSource::Interactive, PromptSource::File)
            }
        };
        let style = match (self.json, self.jsonl) {
            (true, true) => return Err(UsageError::Exclusive("json", "jsonl")),
            (true, false) => Shown::Json,
            (false, true) => Shown::Lines,
            (false, false) => Shown::Text,
        };
        let (system, trace, session, wishes) = (self.system, self.trace, self.session, self.wishes.wishes()?);
        Ok(TalkOptions { prompt, system, images, wishes, style, session, trace, run })
    }

    fn driver_check(self) -> Result<driver_check::Options, UsageError> {
        let style = match (self.tap, self.json) {
            (true, true) => return Err(UsageError::Exclusive("tap", "json")),
            (true, false) => Style::Tap,
            (false, true) => Style::Json,
            (false, false) => Style::Table,
        };
        Ok(driver_check::Options {
            device: self.device,
            groups: self.groups,
            cases: self.cases,
            list: self.list,
            style,
            danger: self.danger,
        })
    }
}

pub(crate) fn wrong(spec: &'static FlagSpec, given: &str, expected: &'static str) -> UsageError {
    UsageError::Value { flag: spec.name, given: given.to_owned(), expected }
}

pub(crate) fn text(spec: &'static FlagSpec, value: OsString) -> Result<String, UsageError> {
    value.into_string().map_err(|raw| wrong(spec, &raw.to_string_lossy(), "UTF-8 text"))
}

pub(crate) fn bounded(
    spec: &'static FlagSpec,
    value: OsString,
    most: usize,
    expected: &'static str,
) -> Result<usize, UsageError> {
    let word = text(spec, value)?;
    match word.parse::<usize>() {
        Ok(number) if (1..=most).contains(&number) => Ok(number),
        _ => Err(wrong(spec, &word, expected)),
    }
}

/// Whether the value is `yes` rather than `no`.
fn either(
    spec: &'static FlagSpec,
    value: OsString,
    yes: &str,
    no: &str,
    expected: &'static str,
) -> Result<bool, UsageError> {
    let word = text(spec, value)?;
    if word == yes {
        Ok(true)
    } else if word == no {
        Ok(false)
    } else {
        Err(wrong(spec, &word, expected))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Result<Request, UsageError> {
        parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn a_full_line_is_understood() {
        let request = words(
            "b --prompt hello --system be --image a.png --image b.jpg --thinking --max-new 7 --max-ctx=99 --timing \
             --trace t.json --device /dev/accel/accel3 --threads 2 --kv f32 --speculate auto \
             --hybrid",
        );
        let run = RunOptions {
            device: DeviceChoice::Node("/dev/accel/accel3".into()),
            max_ctx: 99,
            threads: 2,
            kv: Some(KvFormat::F32),
            speculate: Speculate::Auto,
            hybrid: true,
            timing: true,
        };
        let asked = vec![Asked::Text("hello".into()), Asked::Image("a.png".into()), Asked::Image("b.jpg".into())];
        let talk = TalkOptions {
            prompt: PromptSource::Asked(asked),
            system: Some("be".into()),
            images: Vec::new(),
            wishes: Wishes { thinking: runtime::chat::Thinking::On, max_new: 7, ..Wishes::default() },
            style: Shown::Text,
            session: None,
            trace: Some("t.json".into()),
            run,
        };
        assert_eq!(request, Ok(Request::Chat { bundle: "b".into(), talk }));
    }

    #[test]
    fn a_driver_check_is_understood() {
        use driver_tests::cases::Group;
        let options = driver_check::Options {
            device: DeviceChoice::Model,
            groups: vec![Group::Bo, Group::Exec],
            cases: vec!["bo::handles".into()],
            style: Style::Tap,
            danger: true,
            ..driver_check::Options::default()
        };
        let line = "driver-check --device model --group bo --group exec --case bo::handles --tap --danger";
        assert_eq!(words(line), Ok(Request::DriverCheck(options)));
        assert_eq!(words("driver-check --tap --json"), Err(UsageError::Exclusive("tap", "json")));
        assert!(words("driver-check --group nothing").is_err());
    }

    #[test]
    fn defaults_are_finite() {
        let Ok(Request::Demo { talk }) = words("demo --prompt-file -") else { panic!() };
        assert_eq!((talk.wishes.max_new, talk.run.max_ctx, talk.run.kv), (1024, 8192, None));
        assert_eq!(talk.run.device, DeviceChoice::Auto);
        assert_eq!(talk.prompt, PromptSource::File("-".into()));
    }

    #[test]
    fn wrong_lines_say_what_is_wrong() {
        for (line, message) in [
            ("b --prompt x --frobnicate", "unknown flag --frobnicate"),
            ("b --prompt x -q", "unknown flag -q"),
            ("b", "nothing to ask: give --prompt, --prompt-file or --interactive"),
            ("b --prompt x --max-new 0", "--max-new 0: expected a whole number, 1 or more"),
            ("b --prompt x --max-new -3", "--max-new -3: expected a whole number, 1 or more"),
            ("b --prompt x --max-ctx 1e3", "--max-ctx 1e3: expected a whole number from 1 to 262144"),
            ("b --prompt x --system y --system z", "--system was given twice"),
            ("b --prompt x --json --jsonl", "--json and --jsonl exclude each other"),
            ("b --prompt x --top-p 1.5", "--top-p 1.5: expected above 0, to 1 (all)"),
            ("b --prompt x --interactive", "--prompt and --interactive exclude each other"),
            ("b c --prompt x", "one argument too many: \"c\""),
            ("--prompt x", "<bundle> is missing"),
            ("check", "<bundle> is missing"),
            ("export a", "<bundle> is missing"),
            ("check b --prompt x", "--prompt means nothing to `check`"),
            ("export a b --vision w16", "--vision w16: expected w8 or none"),
            ("export a b --format int4", "--format int4: expected bfp16, bfp6s or f32"),
            (
                "b --prompt x --device gpu",
                "--device gpu: expected auto, npu, virtual, model, timing or the path of a device node",
            ),
        ] {
            assert_eq!(words(line).map_err(|error| error.to_string()), Err(message.to_owned()), "{line}");
        }
        assert!(words("b --prompt").is_err());
    }

    #[test]
    fn help_needs_nothing_else() {
        assert_eq!(words(""), Ok(Request::Help(None)));
        assert_eq!(words("--help"), Ok(Request::Help(None)));
        assert_eq!(words("export --help"), Ok(Request::Help(Some(Command::Export))));
        assert_eq!(words("help"), Ok(Request::Help(None)));
        assert_eq!(words("help demo"), Ok(Request::Help(Some(Command::Demo))));
        assert_eq!(words("--version"), Ok(Request::Version));
    }
}
