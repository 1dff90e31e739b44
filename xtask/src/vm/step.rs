//! What one boot does, step by step: the words after `--`, cut at `--then`.

use std::fmt::Write;

/// A step of a boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// A command of qwen35-direct, to its end.
    Run(Vec<String>),
    /// Another program and its words, to its end.
    Program(Vec<String>),
    /// A command beside the steps that follow.
    Start(Vec<String>),
    /// Its end, within so many seconds.
    Finish(u32),
    /// `rmmod amdxdna`.
    Unload,
    /// `insmod`, with the parameters of before.
    Load,
    /// Takes the device from the driver.
    Unbind,
    /// Gives it back.
    Bind,
    /// Resets the device as a PCI function.
    Reset,
    /// So many milliseconds.
    Sleep(u32),
}

pub(super) const HELP: &str = "\
after --, steps of one boot are parted by `--then`; a step is a command, or one of
  @unload @load @unbind @bind @reset @sleep MS
  @start ARGUMENTS...   a command beside the steps that follow, until
  @finish SECONDS
  @program PATH ARGUMENTS...   a program that --put has put there";

impl Step {
    /// Reads the steps.
    pub(super) fn parse(words: &[String]) -> Result<Vec<Self>, String> {
        words.split(|word| word == "--then").map(Self::one).collect()
    }

    fn one(words: &[String]) -> Result<Self, String> {
        let Some((first, rest)) = words.split_first() else { return Ok(Self::Run(Vec::new())) };
        let Some(verb) = first.strip_prefix('@') else { return Ok(Self::Run(words.to_vec())) };
        let number = || match rest {
            [one] => one.parse().map_err(|_| format!("{first} wants a number, not {one:?}")),
            _ => Err(format!("{first} wants one number")),
        };
        let step = match verb {
            "start" => return Ok(Self::Start(rest.to_vec())),
            "program" if !rest.is_empty() => return Ok(Self::Program(rest.to_vec())),
            "sleep" => return number().map(Self::Sleep),
            "finish" => return number().map(Self::Finish),
            "unload" => Self::Unload,
            "load" => Self::Load,
            "unbind" => Self::Unbind,
            "bind" => Self::Bind,
            "reset" => Self::Reset,
            _ => return Err(format!("unknown step {first}\n{HELP}")),
        };
        match rest {
            [] => Ok(step),
            _ => Err(format!("{first} takes nothing")),
        }
    }

    /// Its lines in init's script.
    pub(super) fn write(&self, script: &mut String) {
        let (words, verb) = match self {
            Self::Run(words) | Self::Program(words) => (&words[..], "run".to_owned()),
            Self::Start(words) => (&words[..], "start".to_owned()),
            Self::Finish(seconds) => (&[][..], format!("finish {seconds}")),
            Self::Unload => (&[][..], "unload amdxdna".to_owned()),
            Self::Load => (&[][..], "load".to_owned()),
            Self::Unbind => (&[][..], "unbind".to_owned()),
            Self::Bind => (&[][..], "bind".to_owned()),
            Self::Reset => (&[][..], "reset".to_owned()),
            Self::Sleep(milliseconds) => (&[][..], format!("sleep {milliseconds}")),
        };
        let mut kind = if matches!(self, Self::Program(_)) { "program" } else { "argument" };
        for word in words {
            let hex = word.bytes().fold(String::new(), |mut hex, byte| {
                let _ = write!(hex, "{byte:02x}");
                hex
            });
            let _ = writeln!(script, "{kind} {hex}");
            kind = "argument";
        }
        let _ = writeln!(script, "{verb}");
    }

    /// Whether it is a command, with an output of its own.
    fn speaks(&self) -> bool {
        matches!(self, Self::Run(_) | Self::Program(_) | Self::Start(_))
    }
}

/// What became of one step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) step: Step,
    /// A command's exit code; `None` for the others, and for a command that was started.
    pub(crate) exit: Option<i32>,
    /// Why it failed, for what is no command.
    pub(crate) failed: Option<String>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Done {
    /// Whether it went well: a command with exit code 0, anything else without an error.
    pub(crate) fn is_fine(&self) -> bool {
        self.failed.is_none() && self.exit.unwrap_or(0) == 0
    }
}

impl std::fmt::Display for Done {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let words = |words: &[String]| words.join(" ");
        match &self.step {
            Step::Run(w) | Step::Program(w) => write!(f, "{:?}", words(w)),
            Step::Start(w) => write!(f, "started {:?}", words(w)),
            other => write!(f, "{other:?}"),
        }?;
        match (&self.failed, self.exit) {
            (Some(why), _) => write!(f, ": {why}"),
            (None, Some(exit)) => write!(f, ": exit code {exit}"),
            (None, None) => write!(f, ": done"),
        }
    }
}

/// The line by which init reports a step.
const MARK: &str = "qwen35-init: step ";
/// What init puts between the outputs of two commands.
pub(super) const SEPARATOR: u8 = 0x1e;

/// Clears a terminal's line.
const CLEAR: &str = "\x1b[K";

/// Puts together what init said on the console of each step and what the commands wrote.
pub(super) fn outcomes(steps: &[Step], console: &str, stdout: &[u8], stderr: &[u8]) -> Vec<Done> {
    let pieces = |bytes: &[u8]| -> Vec<String> {
        bytes.split(|b| *b == SEPARATOR).map(|piece| String::from_utf8_lossy(piece).into_owned()).collect()
    };
    let messages = pieces(stderr).into_iter().map(|text| without_progress(&text));
    let mut outputs = pieces(stdout).into_iter().zip(messages);
    let mut said = console.lines().filter_map(|line| line.split_once(MARK)).map(|(_, said)| said.trim());
    let told = |step: &Step| -> Option<Done> {
        let line = said.next()?;
        let (_, how) = line.split_once(' ')?;
        let (stdout, stderr) = if step.speaks() { outputs.next().unwrap_or_default() } else { Default::default() };
        let exit = how.strip_prefix("ended with ").and_then(|code| code.parse().ok());
        let failed = how.strip_prefix("failed: ").map(str::to_owned);
        Some(Done { step: step.clone(), exit, failed, stdout, stderr })
    };
    steps.iter().map_while(told).collect()
}

/// The text without what a terminal has wiped out again: the machine's serial line is one, so commands show progress.
fn without_progress(text: &str) -> String {
    text.split_inclusive('\n').map(|line| line.rsplit(CLEAR).next().unwrap_or_default()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn steps_are_cut_at_then() {
        let steps = Step::parse(&words("devices --then @unload --then @start chat b --then @finish 9")).unwrap();
        let expected = [Step::Run(words("devices")), Step::Unload, Step::Start(words("chat b")), Step::Finish(9)];
        assert_eq!(steps, expected);
        for wrong in ["@jump", "@sleep", "@sleep x", "@unload now", "@program"] {
            assert!(Step::parse(&words(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_script_holds_words_in_hexadecimal() {
        let mut script = String::new();
        Step::Program(words("/a b")).write(&mut script);
        Step::Sleep(5).write(&mut script);
        assert_eq!(script, "program 2f61\nargument 62\nrun\nsleep 5\n");
    }

    #[test]
    fn progress_is_no_message() {
        let text = "\r\x1b[Kloading 3 %\r\x1b[Kloading 9 %\r\x1b[Kit failed\nsaid\n\r\x1b[K";
        assert_eq!(without_progress(text), "it failed\nsaid\n");
    }

    #[test]
    fn outcomes_belong_to_their_steps() {
        let steps = [Step::Run(words("a")), Step::Unload, Step::Run(words("b")), Step::Load];
        let console = "noise\nqwen35-init: step run ended with 0\r\nqwen35-init: step unload failed: busy\n\
                       [ 1.0] qwen35-init: step run ended with 3\n";
        let done = outcomes(&steps, console, b"one\x1etwo", b"\x1eoops");
        let brief: Vec<_> = done.iter().map(|d| (d.exit, d.failed.as_deref(), &d.stdout[..], &d.stderr[..])).collect();
        // The machine ended before the last step.
        assert_eq!(brief, [(Some(0), None, "one", ""), (None, Some("busy"), "", ""), (Some(3), None, "two", "oops")]);
    }
}
