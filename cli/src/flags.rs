//! Every command and every flag, once. Parsing, `--help` and the manual page come from these tables.

/// What the program is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Command {
    Chat,
    Check,
    Export,
    Eval,
    Verify,
    Demo,
    Doctor,
    Top,
    Devices,
    Inspect,
    DriverCheck,
    Serve,
    Manual,
    Completions,
}

/// A command, its words and its place in the help.
pub(crate) struct CommandSpec {
    pub(crate) command: Command,
    /// The first word; empty for the command that has none.
    pub(crate) word: &'static str,
    /// Positional arguments that are required.
    pub(crate) positional: &'static [&'static str],
    /// Positional arguments that may follow.
    pub(crate) optional: &'static [&'static str],
    pub(crate) help: &'static str,
}

pub(crate) const COMMANDS: &[CommandSpec] = &[
    CommandSpec {
        command: Command::Chat,
        word: "",
        positional: &["bundle"],
        optional: &[],
        help: "answers: one question or a conversation, with or without pictures",
    },
    CommandSpec {
        command: Command::Check,
        word: "check",
        positional: &["bundle"],
        optional: &[],
        help: "runs the bundle's reference conversations and compares: tokenizer, pictures, logits",
    },
    CommandSpec {
        command: Command::Export,
        word: "export",
        positional: &["checkpoint", "bundle"],
        optional: &[],
        help: "makes a bundle of a Hugging Face checkpoint: a directory with config.json, tokenizer.json and the weights, \
               model.safetensors or shards of it with their index",
    },
    CommandSpec {
        command: Command::Eval,
        word: "eval",
        positional: &["bundle"],
        optional: &[],
        help: "says how well the model foretells a text: its perplexity",
    },
    CommandSpec {
        command: Command::Verify,
        word: "verify",
        positional: &["bundle"],
        optional: &[],
        help: "says which bundle a directory is and whether it is whole: checksums, everything that loading checks, \
               what a broken download leaves",
    },
    CommandSpec {
        command: Command::Demo,
        word: "demo",
        positional: &[],
        optional: &[],
        help: "answers with the small model that comes with the program",
    },
    CommandSpec {
        command: Command::Doctor,
        word: "doctor",
        positional: &[],
        optional: &["bundle"],
        help: "looks at everything that a run needs, from the hardware to one token, and says what is wrong and what to do",
    },
    CommandSpec {
        command: Command::Top,
        word: "top",
        positional: &[],
        optional: &[],
        help: "shows what the NPU is doing: contexts by process, commands, errors, clocks, power",
    },
    CommandSpec {
        command: Command::Devices,
        word: "devices",
        positional: &[],
        optional: &[],
        help: "lists the NPUs of this machine, and what keeps them from being used",
    },
    CommandSpec {
        command: Command::Inspect,
        word: "inspect",
        positional: &["file"],
        optional: &[],
        help: "explains an xclbin, a PDI, an instruction stream, a recorded trace or a bundle, or says where it is \
               damaged",
    },
    CommandSpec {
        command: Command::DriverCheck,
        word: "driver-check",
        positional: &[],
        optional: &[],
        help: "runs the table of driver cases: what a client may expect of a device node, rule by rule",
    },
    CommandSpec {
        command: Command::Serve,
        word: "serve",
        positional: &["bundle"],
        optional: &[],
        help: "answers many clients over OpenAI's interface, and shows a page to talk to",
    },
    CommandSpec {
        command: Command::Manual,
        word: "manual",
        positional: &[],
        optional: &[],
        help: "writes the manual page: `qwen35-direct manual | man -l -`",
    },
    CommandSpec {
        command: Command::Completions,
        word: "completions",
        positional: &["shell"],
        optional: &[],
        help: "writes what bash, zsh or fish reads to complete command lines",
    },
];

/// What a flag is, for the parser's `match`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flag {
    Prompt,
    PromptFile,
    System,
    Image,
    Thinking,
    Think,
    ShowThinking,
    MaxNew,
    Stop,
    Preset,
    Temperature,
    TopK,
    TopP,
    MinP,
    RepetitionPenalty,
    PresencePenalty,
    FrequencyPenalty,
    LogitBias,
    Seed,
    Logprobs,
    Tools,
    ToolChoice,
    ToolCommand,
    JsonSchema,
    JsonObject,
    Session,
    DropOldest,
    ChatTemplate,
    Raw,
    JsonLines,
    Once,
    MaxCtx,
    Interactive,
    Timing,
    Trace,
    Device,
    Threads,
    Kv,
    Speculate,
    Hybrid,
    File,
    Refs,
    Vision,
    Format,
    KernelsFrom,
    Mtp,
    Json,
    Ops,
    Group,
    Case,
    List,
    Tap,
    Danger,
    Listen,
    ApiKeyFile,
    Anyone,
    Cors,
    Queue,
    Sessions,
    SessionMemory,
    Deadline,
    StopLimit,
    MaxBody,
    LogFormat,
    ModelName,
    Help,
    Version,
}

/// A flag, its value and its place in the help.
pub(crate) struct FlagSpec {
    pub(crate) flag: Flag,
    pub(crate) name: &'static str,
    /// What its value is called; `None` for a switch.
    pub(crate) value: Option<&'static str>,
    pub(crate) repeats: bool,
    pub(crate) help: &'static str,
    /// Where it means something.
    pub(crate) commands: &'static [Command],
}

const TALKS: &[Command] = &[Command::Chat, Command::Demo];
const RUNS: &[Command] = &[Command::Chat, Command::Demo, Command::Check];
const FILLS: &[Command] =
    &[Command::Chat, Command::Demo, Command::Check, Command::Eval, Command::Doctor, Command::Serve];
const COMPUTES: &[Command] =
    &[Command::Chat, Command::Demo, Command::Check, Command::Export, Command::Eval, Command::Doctor, Command::Serve];
const EXPORTS: &[Command] = &[Command::Export];
const INSPECTS: &[Command] = &[Command::Inspect];
const OPENS: &[Command] = &[
    Command::Chat,
    Command::Demo,
    Command::Check,
    Command::Eval,
    Command::Doctor,
    Command::Top,
    Command::DriverCheck,
    Command::Serve,
];
const ANSWERS: &[Command] = &[Command::Chat, Command::Demo, Command::Serve];
const REPORTS: &[Command] = &[
    Command::Chat,
    Command::Demo,
    Command::Check,
    Command::Eval,
    Command::Verify,
    Command::Doctor,
    Command::Top,
    Command::Inspect,
    Command::DriverCheck,
];
const DRIVER: &[Command] = &[Command::DriverCheck];
const SERVES: &[Command] = &[Command::Serve];
const ALL: &[Command] = &[
    Command::Chat,
    Command::Check,
    Command::Export,
    Command::Eval,
    Command::Verify,
    Command::Demo,
    Command::Doctor,
    Command::Top,
    Command::Devices,
    Command::Inspect,
    Command::DriverCheck,
    Command::Serve,
    Command::Manual,
    Command::Completions,
];

const fn switch(flag: Flag, name: &'static str, commands: &'static [Command], help: &'static str) -> FlagSpec {
    FlagSpec { flag, name, value: None, repeats: false, help, commands }
}

const fn valued(
    flag: Flag,
    name: &'static str,
    value: &'static str,
    commands: &'static [Command],
    help: &'static str,
) -> FlagSpec {
    FlagSpec { flag, name, value: Some(value), repeats: false, help, commands }
}

const fn repeated(
    flag: Flag,
    name: &'static str,
    value: &'static str,
    commands: &'static [Command],
    help: &'static str,
) -> FlagSpec {
    FlagSpec { flag, name, value: Some(value), repeats: true, help, commands }
}

pub(crate) const FLAGS: &[FlagSpec] = &[
    repeated(
        Flag::Prompt,
        "prompt",
        "TEXT",
        TALKS,
        "what to ask; given several times, texts and pictures make up one question in their order",
    ),
    valued(Flag::PromptFile, "prompt-file", "FILE", TALKS, "read the prompt from a UTF-8 file; - is standard input"),
    valued(Flag::System, "system", "TEXT", TALKS, "a system message before the prompt"),
    repeated(
        Flag::Image,
        "image",
        "FILE",
        TALKS,
        "show a JPEG or PNG picture before the prompt; - is standard input; may be given several times",
    ),
    switch(Flag::Thinking, "thinking", ANSWERS, "let the model think before it answers: --think on"),
    valued(Flag::Think, "think", "WHEN", ANSWERS, "on, off, or N: think for N tokens at most, then answer [off]"),
    switch(
        Flag::ShowThinking,
        "show-thinking",
        TALKS,
        "write what the model thinks to standard error, even where that is no terminal",
    ),
    valued(
        Flag::MaxNew,
        "max-new",
        "N",
        ANSWERS,
        "end the answer after N tokens at the latest [1024; of a server: what the context holds]",
    ),
    repeated(Flag::Stop, "stop", "TEXT", TALKS, "end the answer before this text; may be given several times"),
    valued(
        Flag::Preset,
        "preset",
        "NAME",
        ANSWERS,
        "settings that Qwen3.5's model cards recommend: thinking, thinking-coding, instruct, instruct-reasoning or \
         instruct-small; the flags below change them one by one",
    ),
    valued(Flag::Temperature, "temperature", "T", ANSWERS, "draw tokens; 0 takes the most probable one [0]"),
    valued(Flag::TopK, "top-k", "K", ANSWERS, "draw from the K most probable tokens; 0 is all [0]"),
    valued(Flag::TopP, "top-p", "P", ANSWERS, "draw from the most probable tokens that have P together [1]"),
    valued(Flag::MinP, "min-p", "P", ANSWERS, "draw from tokens at least P times as probable as the first [0]"),
    valued(
        Flag::RepetitionPenalty,
        "repetition-penalty",
        "X",
        ANSWERS,
        "make tokens of the prompt and the answer less probable; 1 is off [1]",
    ),
    valued(Flag::PresencePenalty, "presence-penalty", "X", ANSWERS, "taken off a token that the answer has [0]"),
    valued(Flag::FrequencyPenalty, "frequency-penalty", "X", ANSWERS, "taken off each time that it has it [0]"),
    repeated(
        Flag::LogitBias,
        "logit-bias",
        "TOKEN=X",
        TALKS,
        "added to a token's logit; -inf forbids it; may be given several times",
    ),
    valued(Flag::Seed, "seed", "N", TALKS, "the same seed draws the same answer [another one each time]"),
    valued(Flag::Logprobs, "logprobs", "N", TALKS, "tell each token's log probability and N others', in JSON"),
    valued(Flag::Tools, "tools", "FILE", TALKS, "functions that the model may call, as OpenAI's interface has them"),
    valued(
        Flag::ToolChoice,
        "tool-choice",
        "WHEN",
        TALKS,
        "auto: where the model likes; none; required; or the name of the function to call [auto]",
    ),
    valued(
        Flag::ToolCommand,
        "tool-command",
        "PROGRAM",
        TALKS,
        "run this for each call: it reads {\"name\", \"arguments\"} as JSON from standard input, and what it writes is \
         the result",
    ),
    valued(
        Flag::JsonSchema,
        "json-schema",
        "FILE",
        TALKS,
        "hold answers to this JSON schema, token by token; with --tools, those that call nothing",
    ),
    switch(
        Flag::JsonObject,
        "json-object",
        TALKS,
        "hold answers to being a JSON object; with --tools, those that call nothing",
    ),
    valued(
        Flag::Session,
        "session",
        "FILE",
        TALKS,
        "go on with the conversation in this file, if it is there, and keep it there after every answer",
    ),
    switch(
        Flag::DropOldest,
        "drop-oldest",
        ANSWERS,
        "leave the oldest questions and answers out when the context is full, a quarter of it at once, instead of refusing",
    ),
    valued(Flag::ChatTemplate, "chat-template", "FILE", ANSWERS, "a Jinja template in place of the bundle's"),
    switch(Flag::Raw, "raw", TALKS, "take control tokens that are written out in texts for what they say"),
    valued(Flag::MaxCtx, "max-ctx", "N", FILLS, "room for N tokens of prompt and answer together [8192]"),
    switch(
        Flag::Interactive,
        "interactive",
        TALKS,
        "a conversation: prompts from the terminal or, one a line, from standard input; `/help` in it shows what else \
         a line can ask for",
    ),
    switch(Flag::Timing, "timing", RUNS, "show on standard error where the time went"),
    valued(
        Flag::Trace,
        "trace",
        "FILE",
        TALKS,
        "write what the host and the NPU did when, as trace events in JSON, which Perfetto shows",
    ),
    valued(
        Flag::Device,
        "device",
        "DEVICE",
        OPENS,
        "auto: an NPU that works, else the software NPU; npu: an NPU or an error; model: the software NPU; virtual: a \
         software NPU behind the driver, in a virtual machine; timing: the software NPU computes nothing and takes as \
         long as a real one, for measurements; or a device node such as /dev/accel/accel0 [auto]",
    ),
    valued(Flag::Threads, "threads", "N", COMPUTES, "threads for the host's part [one a core]"),
    valued(
        Flag::Kv,
        "kv",
        "KIND",
        FILLS,
        "what attention keeps of a token: 16 (bits a number) or f32, twice as much [16; f32 with an f32 bundle]",
    ),
    valued(
        Flag::Speculate,
        "speculate",
        "KIND",
        ANSWERS,
        "lookup: guess what follows wherever the text so far repeats, and check the guesses together; auto: as long as \
         that is faster; off. Takes as much memory again as the head, and may change a token by rounding [off]",
    ),
    switch(
        Flag::Hybrid,
        "hybrid",
        FILLS,
        "let the host multiply a share of what the NPU would, beside it: as much as makes a token faster, which is \
         measured when the bundle is loaded",
    ),
    valued(Flag::File, "file", "FILE", &[Command::Eval], "the UTF-8 text to foretell"),
    valued(Flag::Refs, "refs", "DIR", EXPORTS, "take reference runs along, for `check`"),
    valued(Flag::Vision, "vision", "KIND", EXPORTS, "w8: 8-bit vision weights; none: text only [w8]"),
    valued(
        Flag::Format,
        "format",
        "FORMAT",
        EXPORTS,
        "bfp16: nine bits a weight; bfp6s: six and a half for the text model, less exact and less to read; f32: for \
         comparisons on the software NPU [bfp16]",
    ),
    valued(
        Flag::KernelsFrom,
        "kernels-from",
        "BUNDLE",
        EXPORTS,
        "take kernels and shapes from this bundle, so that a fine-tune runs on published kernels",
    ),
    switch(
        Flag::Mtp,
        "mtp",
        EXPORTS,
        "take the checkpoint's head for speculation along (mtp.*), which nothing runs yet",
    ),
    switch(Flag::Json, "json", REPORTS, "say it in JSON"),
    switch(Flag::JsonLines, "jsonl", TALKS, "say what happens as it does, in JSON, an event a line"),
    switch(Flag::Once, "once", &[Command::Top], "show it once, and leave"),
    switch(Flag::Ops, "ops", INSPECTS, "list every operation, command or call, one a line"),
    repeated(
        Flag::Group,
        "group",
        "GROUP",
        DRIVER,
        "run the cases of this group only: open, query, bo, heap, context, exec, chain, fence, fault, power, share, \
               multi or perf; may be given several times",
    ),
    repeated(
        Flag::Case,
        "case",
        "NAME",
        DRIVER,
        "run the case of this name only, such as bo::handles; may be given several times",
    ),
    switch(Flag::List, "list", DRIVER, "list the cases and what they expect, and run none"),
    switch(Flag::Tap, "tap", DRIVER, "write the outcomes in the Test Anything Protocol"),
    switch(
        Flag::Danger,
        "danger",
        DRIVER,
        "run the cases too that change power modes, wait for the device to sleep, or have been seen to stop a driver",
    ),
    valued(
        Flag::Listen,
        "listen",
        "WHERE",
        SERVES,
        "an address and a port, of which 0 is any; or unix:PATH [127.0.0.1:8080]",
    ),
    valued(
        Flag::ApiKeyFile,
        "api-key-file",
        "FILE",
        SERVES,
        "answer only who sends the key in this file as a bearer token; the variable QWEN35_API_KEY does the same",
    ),
    switch(Flag::Anyone, "anyone", SERVES, "let other machines in without a key"),
    repeated(
        Flag::Cors,
        "cors",
        "ORIGIN",
        SERVES,
        "answer pages of this origin, such as https://example.org, in browsers; * for all; may be given several \
               times",
    ),
    valued(Flag::Queue, "queue", "N", SERVES, "let N requests wait; one more is told to come again [32]"),
    valued(Flag::Sessions, "sessions", "N", SERVES, "keep what was read of the last N conversations [8]"),
    valued(Flag::SessionMemory, "session-memory", "MIB", SERVES, "keep no more than so much of it [1024]"),
    valued(Flag::Deadline, "deadline", "S", SERVES, "end a request after S seconds, waiting included [600]"),
    valued(Flag::StopLimit, "stop-limit", "S", SERVES, "let running answers go on for S seconds after a signal [30]"),
    valued(Flag::MaxBody, "max-body", "MIB", SERVES, "take bodies of so many MiB [32]"),
    valued(Flag::LogFormat, "log-format", "FORMAT", SERVES, "text or json, a line an event, on standard error [text]"),
    valued(
        Flag::ModelName,
        "model-name",
        "NAME",
        SERVES,
        "what clients call the model [the name of the bundle's directory]",
    ),
    switch(Flag::Help, "help", ALL, "show this"),
    switch(Flag::Version, "version", ALL, "show the version"),
];

pub(crate) fn flag_named(name: &str) -> Option<&'static FlagSpec> {
    FLAGS.iter().find(|spec| spec.name == name)
}

pub(crate) fn command_spec(command: Command) -> &'static CommandSpec {
    // Every command has its row: the test below holds it.
    COMMANDS.iter().find(|spec| spec.command == command).unwrap_or(&COMMANDS[0])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_every_command_has_its_row() {
        let names: BTreeSet<_> = FLAGS.iter().map(|spec| spec.name).collect();
        assert_eq!(names.len(), FLAGS.len());
        let words: BTreeSet<_> = COMMANDS.iter().map(|spec| spec.word).collect();
        assert_eq!(words.len(), COMMANDS.len());
        for command in ALL {
            assert_eq!(command_spec(*command).command, *command);
        }
    }

    #[test]
    fn every_flag_says_what_it_does_and_where() {
        for spec in FLAGS {
            assert!(!spec.help.is_empty() && !spec.commands.is_empty(), "{}", spec.name);
            assert!(spec.value.is_some() || !spec.repeats, "{}", spec.name);
        }
    }
}
