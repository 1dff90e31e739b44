//! The manual page and what shells complete, from the tables of commands and flags.

use crate::flags::{COMMANDS, Command, CommandSpec, FLAGS, FlagSpec};
use crate::help::NAME;
use std::fmt::Write;

/// A shell that can complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shell {
    Bash,
    Zsh,
    Fish,
}

impl Shell {
    pub(crate) fn from_name(name: &str) -> Option<Shell> {
        Some(match name {
            "bash" => Shell::Bash,
            "zsh" => Shell::Zsh,
            "fish" => Shell::Fish,
            _ => return None,
        })
    }
}

fn words() -> impl Iterator<Item = &'static CommandSpec> {
    COMMANDS.iter().filter(|spec| !spec.word.is_empty())
}

/// Flags that mean something to a command.
fn flags(command: Command) -> impl Iterator<Item = &'static FlagSpec> {
    FLAGS.iter().filter(move |spec| spec.commands.contains(&command))
}

/// Whether a flag's value is a file or a directory.
fn takes_path(spec: &FlagSpec) -> bool {
    spec.value.is_some_and(|value| matches!(value, "FILE" | "DIR" | "BUNDLE" | "PROGRAM"))
}

/// The page of section 1, in roff's man macros.
pub(crate) fn manual() -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(out, ".TH QWEN35\\-DIRECT 1 \"\" \"{NAME} {}\" \"User Commands\"", env!("CARGO_PKG_VERSION"));
    let _ = writeln!(out, ".SH NAME\n{} \\- Qwen3.5 chat on AMD Ryzen AI NPUs", roff(NAME));
    let _ = writeln!(out, ".SH SYNOPSIS");
    for spec in COMMANDS {
        let _ = write!(out, ".B {}", roff(NAME));
        if !spec.word.is_empty() {
            let _ = write!(out, " {}", roff(spec.word));
        }
        let _ = writeln!(out);
        let required = spec.positional.iter().map(|name| format!("\\fI{name}\\fR"));
        let optional = spec.optional.iter().map(|name| format!("[\\fI{name}\\fR]"));
        let rest: Vec<String> = required.chain(optional).chain(Some("[\\fIoptions\\fR]".to_owned())).collect();
        let _ = writeln!(out, "{}\n.br", rest.join(" "));
    }
    let _ = writeln!(
        out,
        ".SH DESCRIPTION\nRuns Qwen3.5 on the NPU of AMD Ryzen AI processors through the Linux amdxdna driver alone, or on a software\nNPU \
         where there is none. A\n.I bundle\nis a directory with kernels, packed weights and a tokenizer."
    );
    let _ = writeln!(out, ".SH COMMANDS");
    for spec in COMMANDS {
        let head = if spec.word.is_empty() { "<bundle>" } else { spec.word };
        let _ = writeln!(out, ".TP\n.B {}\n{}.", roff(head), roff(&capitalised(spec.help)));
    }
    let _ = writeln!(out, ".SH OPTIONS");
    for spec in FLAGS {
        let value = spec.value.map_or_else(String::new, |value| format!(" \\fI{}\\fR", roff(value)));
        let of: Vec<&str> = COMMANDS
            .iter()
            .filter(|command| spec.commands.contains(&command.command))
            .map(|command| if command.word.is_empty() { "<bundle>" } else { command.word })
            .collect();
        let of = if of.len() == COMMANDS.len() { String::new() } else { format!(" ({})", of.join(", ")) };
        let _ = writeln!(
            out,
            ".TP\n\\fB\\-\\-{}\\fR{value}\n{}.{}",
            roff(spec.name),
            roff(&capitalised(spec.help)),
            roff(&of)
        );
    }
    let _ = writeln!(out, ".SH EXIT STATUS\n0 fine, 1 failed, 2 wrong use, 130 interrupted.");
    let _ =
        writeln!(out, ".SH ENVIRONMENT\n.TP\n.B QWEN35_DEMO_BUNDLE\nThe directory of the demo model, for\n.BR demo .");
    out
}

/// Text as roff takes it for what it is.
fn roff(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

/// What a shell reads to complete our lines.
pub(crate) fn completions(shell: Shell) -> String {
    match shell {
        Shell::Bash => bash(),
        Shell::Zsh => zsh(),
        Shell::Fish => fish(),
    }
}

fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.collect::<Vec<_>>().join(" ")
}

fn long(command: Command) -> String {
    flags(command).map(|spec| format!("--{}", spec.name)).collect::<Vec<_>>().join(" ")
}

fn bash() -> String {
    let paths = FLAGS.iter().filter(|spec| takes_path(spec)).map(|spec| format!("--{}", spec.name));
    let values = FLAGS.iter().filter(|s| s.value.is_some() && !takes_path(s)).map(|spec| format!("--{}", spec.name));
    let mut out = format!(
        "_qwen35_direct() {{\n    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} flags\n    COMPREPLY=()\n    \
         case $before in\n        {}) COMPREPLY=($(compgen -f -- \"$word\")); return ;;\n        {}) return ;;\n    esac\n    \
         case ${{COMP_WORDS[1]}} in\n",
        paths.collect::<Vec<_>>().join("|"),
        values.collect::<Vec<_>>().join("|")
    );
    for spec in words() {
        let _ = writeln!(out, "        {}) flags=\"{}\" ;;", spec.word, long(spec.command));
    }
    let _ = writeln!(out, "        *) flags=\"{}\" ;;\n    esac", long(Command::Chat));
    let _ = write!(
        out,
        "    if [[ $word == -* ]]; then\n        COMPREPLY=($(compgen -W \"$flags\" -- \"$word\"))\n    elif [[ $COMP_CWORD -eq 1 ]]; then\n        \
         COMPREPLY=($(compgen -W \"{}\" -- \"$word\") $(compgen -d -- \"$word\"))\n    else\n        COMPREPLY=($(compgen -f -- \"$word\"))\n    fi\n}}\n\
         complete -o filenames -F _qwen35_direct {NAME}\n",
        listed(words().map(|spec| spec.word))
    );
    out
}

/// A description inside of brackets and quotes.
fn described(text: &str) -> String {
    text.replace(['[', ']', '\'', '`', '"', ':'], "").chars().take(70).collect()
}

fn zsh() -> String {
    let mut out = format!("#compdef {NAME}\n_qwen35_direct() {{\n    local -a commands flags\n    commands=(\n");
    for spec in words() {
        let _ = writeln!(out, "        '{}:{}'", spec.word, described(spec.help));
    }
    let _ = writeln!(out, "    )\n    case $words[2] in");
    let row = |spec: &FlagSpec| {
        let value = match spec.value {
            None => String::new(),
            Some(value) if takes_path(spec) => format!(":{}:_files", value.to_lowercase()),
            Some(value) => format!(":{}:", described(&value.to_lowercase())),
        };
        format!("'{}--{}[{}]{value}'", if spec.repeats { "*" } else { "" }, spec.name, described(spec.help))
    };
    for (pattern, command) in words().map(|spec| (spec.word, spec.command)).chain(Some(("*", Command::Chat))) {
        let rows: Vec<String> = flags(command).map(row).collect();
        let _ = writeln!(out, "        {pattern}) flags=({}) ;;", rows.join(" "));
    }
    out + "    esac\n    if (( CURRENT == 2 )); then\n        _describe command commands\n        _files -/\n    else\n        \
           _arguments $flags '*:file:_files'\n    fi\n}\n_qwen35_direct \"$@\"\n"
}

fn fish() -> String {
    let mut out = String::new();
    for spec in words() {
        let (word, what) = (spec.word, described(spec.help));
        let _ = writeln!(out, "complete -c {NAME} -n __fish_use_subcommand -a {word} -d '{what}'");
    }
    let known = listed(words().map(|spec| spec.word));
    for spec in FLAGS {
        let of: Vec<&str> = words().filter(|w| spec.commands.contains(&w.command)).map(|w| w.word).collect();
        let mut when = Vec::new();
        if spec.commands.contains(&Command::Chat) {
            when.push(format!("not __fish_seen_subcommand_from {known}"));
        }
        if !of.is_empty() {
            when.push(format!("__fish_seen_subcommand_from {}", of.join(" ")));
        }
        let value = match spec.value {
            None => "",
            Some(_) if takes_path(spec) => " -r -F",
            Some(_) => " -x",
        };
        let (name, what) = (spec.name, described(spec.help));
        let _ = writeln!(out, "complete -c {NAME} -n '{}' -l {name}{value} -d '{what}'", when.join("; or "));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flag_and_command_is_in_all_of_them() {
        let page = manual();
        for spec in FLAGS {
            assert!(page.contains(&format!("\\-\\-{}\\fR", roff(spec.name))), "{}", spec.name);
            assert!(bash().contains(&format!("--{}", spec.name)), "{}", spec.name);
            assert!(zsh().contains(&format!("--{}[", spec.name)), "{}", spec.name);
            assert!(fish().contains(&format!("-l {} ", spec.name)), "{}", spec.name);
        }
        for spec in words() {
            assert!(page.contains(&format!(".B {}\n", roff(spec.word))), "{}", spec.word);
            for shell in [bash(), zsh(), fish()] {
                assert!(shell.contains(spec.word), "{}", spec.word);
            }
        }
    }

    #[test]
    fn roff_says_what_it_is_given() {
        assert_eq!((roff("a-b\\c"), roff(".x")), ("a\\-b\\ec".to_owned(), "\\&.x".to_owned()));
    }
}
