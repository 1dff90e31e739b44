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
    /// A command of qwen35-direct as a user of this number, who is in no other group.
    As(u32, Vec<String>),
    /// A limit of all commands from here on: `memlock` or `nofile`.
    Limit(&'static str, u64),
    /// A file's permission bits.
    Mode(u32, String),
    /// Gives a file another name.
    Move(String, String),
    /// A file's text; `{device}` in its name is the device's address.
    Write(String, String),
    /// Turns the byte of a file at this place around.
    Flip(u64, String),
    /// Cuts a file off after so many bytes.
    Cut(u64, String),
}

pub(super) const HELP: &str = "\
after --, steps of one boot are parted by `--then`; a step is a command, or one of
  @unload @load @unbind @bind @reset @sleep MS
  @start ARGUMENTS...   a command beside the steps that follow, until
  @finish SECONDS
  @program PATH ARGUMENTS...   a program that --put has put there
  @as USER ARGUMENTS...   a command as the user of this number, in no group but its own
  @memlock BYTES @nofile N   limits of all commands from there on
  @mode OCTAL PATH   permissions of a file, such as /dev/accel/accel0
  @move FROM TO   of a file, such as the driver's firmware
  @write PATH TEXT   into a file; {device} in its path is the NPU's address on its bus
  @flip PLACE PATH @cut PLACE PATH   turns a byte of a file around; cuts it off there";

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
            "memlock" => return number().map(|bytes| Self::Limit("memlock", bytes.into())),
            "nofile" => return number().map(|files| Self::Limit("nofile", files.into())),
            "as" => {
                let wrong = || "@as wants a user's number and a command".to_owned();
                let (user, words) = rest.split_first().ok_or_else(wrong)?;
                return Ok(Self::As(user.parse().map_err(|_| wrong())?, words.to_vec()));
            }
            "mode" => {
                let wrong = || "@mode wants permissions in octal and a path".to_owned();
                let [mode, path] = rest else { return Err(wrong()) };
                return Ok(Self::Mode(u32::from_str_radix(mode, 8).map_err(|_| wrong())?, path.clone()));
            }
            "move" | "write" | "flip" | "cut" => {
                let [one, two] = rest else { return Err(format!("{first} wants two words")) };
                let place = || one.parse().map_err(|_| format!("{first} wants a number, not {one:?}"));
                return Ok(match verb {
                    "move" => Self::Move(one.clone(), two.clone()),
                    "write" => Self::Write(one.clone(), two.clone()),
                    "flip" => Self::Flip(place()?, two.clone()),
                    _ => Self::Cut(place()?, two.clone()),
                });
            }
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
            Self::As(user, words) => {
                let _ = writeln!(script, "user {user}");
                (&words[..], "run".to_owned())
            }
            Self::Start(words) => (&words[..], "start".to_owned()),
            Self::Finish(seconds) => (&[][..], format!("finish {seconds}")),
            Self::Unload => (&[][..], "unload amdxdna".to_owned()),
            Self::Load => (&[][..], "load".to_owned()),
            Self::Unbind => (&[][..], "unbind".to_owned()),
            Self::Bind => (&[][..], "bind".to_owned()),
            Self::Reset => (&[][..], "reset".to_owned()),
            Self::Sleep(milliseconds) => (&[][..], format!("sleep {milliseconds}")),
            Self::Limit(what, value) => (&[][..], format!("limit {what} {value}")),
            Self::Mode(mode, path) => (&[][..], format!("mode {mode:o} {path}")),
            Self::Move(from, to) => (&[][..], format!("move {from} {to}")),
            Self::Write(path, text) => (&[][..], format!("write {path} {text}")),
            Self::Flip(place, path) => (&[][..], format!("flip {place} {path}")),
            Self::Cut(place, path) => (&[][..], format!("cut {place} {path}")),
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
        matches!(self, Self::Run(_) | Self::As(..) | Self::Program(_) | Self::Start(_))
    }
}

/// What became of one step.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Done {
    pub(crate) step: Step,
    /// A command's exit code; `None` for the others, and for a command that was started.
    pub(crate) exit: Option<i32>,
    /// By the machine's clock.
    pub(crate) seconds: f64,
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
            Step::As(user, w) => write!(f, "as {user} {:?}", words(w)),
            Step::Start(w) => write!(f, "started {:?}", words(w)),
            other => write!(f, "{other:?}"),
        }?;
        match (&self.failed, self.exit) {
            (Some(why), _) => write!(f, ": {why}"),
            (None, Some(exit)) => write!(f, ": exit code {exit} after {:.1} s", self.seconds),
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
        // `run after 1.5 s ended with 0`
        let (_, how) = line.split_once(" after ")?;
        let (seconds, how) = how.split_once(" s ")?;
        let (stdout, stderr) = if step.speaks() { outputs.next().unwrap_or_default() } else { Default::default() };
        let exit = how.strip_prefix("ended with ").and_then(|code| code.parse().ok());
        let failed = how.strip_prefix("failed: ").map(str::to_owned);
        let seconds = seconds.parse().unwrap_or_default();
        Some(Done { step: step.clone(), exit, seconds, failed, stdout, stderr })
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
        for wrong in [
            "@jump",
            "@sleep",
            "@sleep x",
            "@unload now",
            "@program",
            "@as me",
            "@as",
            "@mode 8 /a",
            "@nofile",
            "@move /a",
            "@flip x /a",
        ] {
            assert!(Step::parse(&words(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_script_holds_words_in_hexadecimal() {
        let mut script = String::new();
        Step::Program(words("/a b")).write(&mut script);
        Step::Sleep(5).write(&mut script);
        Step::As(7, words("b")).write(&mut script);
        Step::Mode(0o640, "/a".into()).write(&mut script);
        assert_eq!(script, "program 2f61\nargument 62\nrun\nsleep 5\nuser 7\nargument 62\nrun\nmode 640 /a\n");
    }

    #[test]
    fn progress_is_no_message() {
        let text = "\r\x1b[Kloading 3 %\r\x1b[Kloading 9 %\r\x1b[Kit failed\nsaid\n\r\x1b[K";
        assert_eq!(without_progress(text), "it failed\nsaid\n");
    }

    #[test]
    fn outcomes_belong_to_their_steps() {
        let steps = [Step::Run(words("a")), Step::Unload, Step::Run(words("b")), Step::Load];
        let console = "noise\nqwen35-init: step run after 2.5 s ended with 0\r\nqwen35-init: step unload after 0.0 s failed: busy\n\
                       [ 1.0] qwen35-init: step run after 0.1 s ended with 3\n";
        let done = outcomes(&steps, console, b"one\x1etwo", b"\x1eoops");
        let brief: Vec<_> = done.iter().map(|d| (d.exit, d.failed.as_deref(), &d.stdout[..], &d.stderr[..])).collect();
        assert!((done[0].seconds - 2.5).abs() < 1e-9);
        // The machine ended before the last step.
        assert_eq!(brief, [(Some(0), None, "one", ""), (None, Some("busy"), "", ""), (Some(3), None, "two", "oops")]);
    }
}
