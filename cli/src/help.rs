//! `--help`, from the tables.

use crate::flags::{COMMANDS, Command, CommandSpec, FLAGS, FlagSpec, command_spec};
use std::fmt::Write;

pub(crate) const NAME: &str = "qwen35-direct";

/// Columns of a terminal that has not been widened.
const WIDTH: usize = 79;
const INDENT: usize = 24;

/// The help of one command, or of the whole program.
pub(crate) fn text(command: Option<Command>) -> String {
    let mut out = String::new();
    match command {
        None => {
            let _ = writeln!(out, "Qwen3.5 on AMD Ryzen AI NPUs, through the Linux driver alone.\n");
            for spec in COMMANDS {
                let _ = writeln!(out, "  {}", synopsis(spec));
                wrapped(&mut out, 8, 8, spec.help);
            }
            let _ = writeln!(out);
            for spec in FLAGS {
                flag(&mut out, spec);
            }
        }
        Some(command) => {
            let spec = command_spec(command);
            let _ = writeln!(out, "{}\n", synopsis(spec));
            wrapped(&mut out, 0, 0, &format!("{}.\n", capitalised(spec.help)));
            let _ = writeln!(out);
            for spec in FLAGS.iter().filter(|spec| spec.commands.contains(&command)) {
                flag(&mut out, spec);
            }
        }
    }
    let _ = writeln!(out, "\nExit code: 0 fine, 1 failed, 2 wrong use, 130 interrupted.");
    out
}

/// `qwen35-direct check <bundle> [options]`.
fn synopsis(spec: &CommandSpec) -> String {
    let mut line = NAME.to_owned();
    if !spec.word.is_empty() {
        line = format!("{line} {}", spec.word);
    }
    for positional in spec.positional {
        line = format!("{line} <{positional}>");
    }
    for optional in spec.optional {
        line = format!("{line} [{optional}]");
    }
    line + " [options]"
}

fn flag(out: &mut String, spec: &FlagSpec) {
    let mut head = format!("  --{}", spec.name);
    if let Some(value) = spec.value {
        head = format!("{head} {value}");
    }
    if head.len() + 2 > INDENT {
        let _ = writeln!(out, "{head}");
        wrapped(out, INDENT, INDENT, spec.help);
    } else {
        let _ = write!(out, "{head:INDENT$}");
        wrapped(out, 0, INDENT, spec.help);
    }
}

/// Words, broken at [`WIDTH`]; the first line starts after `first` blanks, the others after `rest`.
fn wrapped(out: &mut String, first: usize, rest: usize, text: &str) {
    let mut line = " ".repeat(first);
    let mut room = WIDTH - rest.max(first);
    let mut empty = true;
    for word in text.split_whitespace() {
        if !empty && word.len() + 1 > room {
            let _ = writeln!(out, "{line}");
            line = " ".repeat(rest);
            room = WIDTH - rest;
            empty = true;
        }
        if !empty {
            line.push(' ');
            room -= 1;
        }
        line.push_str(word);
        room = room.saturating_sub(word.len());
        empty = false;
    }
    let _ = writeln!(out, "{line}");
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_names_every_flag_and_fits_a_terminal() {
        let all = text(None);
        for spec in FLAGS {
            assert!(all.contains(&format!("--{}", spec.name)), "{}", spec.name);
        }
        for spec in COMMANDS {
            let own = text(Some(spec.command));
            for line in all.lines().chain(own.lines()) {
                assert!(line.len() <= WIDTH, "{line}");
            }
            for flag in FLAGS {
                let listed =
                    own.contains(&format!("  --{} ", flag.name)) || own.contains(&format!("  --{}\n", flag.name));
                assert_eq!(listed, flag.commands.contains(&spec.command), "{} {}", spec.word, flag.name);
            }
        }
    }
}
