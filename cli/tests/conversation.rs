//! Whole conversations on the software NPU, seen from outside the process.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod common;

use common::{DEADLINE, Run, bundle, command, finish, fixture, folder, opaque, run, run_with_input};
use std::io::Read;
use std::process::Stdio;
use std::time::Instant;

fn tiny() -> &'static str {
    bundle().to_str().unwrap()
}

fn ask(more: &[&str]) -> Run {
    let base = [tiny(), "--device", "model", "--max-ctx", "512"];
    let run = run(&[&base[..], more].concat());
    assert_eq!(run.code, Some(0), "{run:?}");
    run
}

#[test]
fn an_answer_is_text_and_nothing_else_on_standard_output() {
    let first = ask(&["--prompt", "the cat", "--max-new", "12"]);
    assert!(first.stdout.ends_with('\n') && first.stdout.len() > 4, "{first:?}");
    assert_eq!(first, ask(&["--prompt", "the cat", "--max-new", "12"]));
    // Where the prompt comes from changes nothing.
    let file = folder().join("prompt.txt");
    std::fs::write(&file, "\u{feff}the cat\r\n").unwrap();
    let from_file = ask(&["--prompt-file", file.to_str().unwrap(), "--max-new", "12"]);
    assert_eq!(from_file.stdout, first.stdout);
    let piped = run_with_input(
        &[tiny(), "--device", "model", "--max-ctx", "512", "--max-new", "12", "--prompt-file", "-"],
        b"the cat\n",
    );
    assert_eq!(piped.stdout, first.stdout);
}

#[test]
fn everything_said_changes_the_answer() {
    let plain = ask(&["--prompt", "the cat", "--max-new", "12"]).stdout;
    let variants = [
        ask(&["--prompt", "the dog", "--max-new", "12"]).stdout,
        ask(&["--prompt", "the cat", "--max-new", "12", "--system", "in the"]).stdout,
        ask(&["--prompt", "the cat", "--max-new", "12", "--thinking"]).stdout,
        ask(&["--prompt", "the cat", "--max-new", "12", "--image", fixture("rgb.png").to_str().unwrap()]).stdout,
    ];
    for variant in &variants {
        assert_ne!(*variant, plain);
    }
}

#[test]
fn orientation_is_applied_before_the_model_looks() {
    let see = |name: &str| {
        ask(&["--prompt", "the cat", "--max-new", "12", "--image", fixture(name).to_str().unwrap()]).stdout
    };
    let upright = see("oriented-1.jpg");
    // The same stored pixels with another orientation are another picture.
    assert_ne!(upright, see("oriented-3.jpg"));
}

#[test]
fn kernels_that_say_nothing_are_taught_from_the_manifest() {
    let picture = fixture("rgb.png");
    let more = ["--prompt", "the cat", "--max-new", "12", "--image", picture.to_str().unwrap()];
    let base = [opaque().to_str().unwrap(), "--device", "model", "--max-ctx", "512"];
    let taught = run(&[&base[..], &more].concat());
    assert_eq!(taught.code, Some(0), "{taught:?}");
    assert_eq!(taught.stdout, ask(&more).stdout);
}

#[test]
fn an_interactive_session_survives_what_is_wrong_with_a_line() {
    let picture = fixture("rgb.png");
    let long = "7 ".repeat(600);
    let lines = format!(
        "the cat\n\n/image /nowhere.png\nthe dog\n{long}\n/image /elsewhere.png\n/image {}\nthe cat\nthe cat\n",
        picture.to_str().unwrap()
    );
    let mut input = lines.into_bytes();
    input.splice(0..0, b"\xff\xfe\n".iter().copied());
    let session =
        run_with_input(&[tiny(), "--device", "model", "--max-ctx", "512", "--max-new", "12", "--interactive"], &input);
    assert_eq!(session.code, Some(0), "{session:?}");
    let errors: Vec<&str> = session.stderr.lines().filter(|line| !line.contains("--max-new")).collect();
    assert_eq!(errors.len(), 5, "{session:?}");
    assert!(errors[0].contains("UTF-8"), "{errors:?}");
    assert!(errors[1].contains("/nowhere.png"), "{errors:?}");
    assert!(errors[2].contains("/nowhere.png") && errors[2].contains("not answered"), "{errors:?}");
    assert!(errors[3].contains("--max-ctx"), "{errors:?}");
    assert!(errors[4].contains("/elsewhere.png"), "{errors:?}");
    // What was wrong left nothing behind: only the three lines that were right are in the conversation.
    let right = format!("the cat\n/image {}\nthe cat\nthe cat\n", picture.to_str().unwrap());
    let alone = run_with_input(
        &[tiny(), "--device", "model", "--max-ctx", "512", "--max-new", "12", "--interactive"],
        right.as_bytes(),
    );
    assert_eq!(session.stdout, alone.stdout);
    let plain = ask(&["--prompt", "the cat", "--max-new", "12"]).stdout;
    assert!(session.stdout.starts_with(&plain) && session.stdout.len() > 2 * plain.len(), "{session:?}");
}

#[test]
fn a_closed_standard_output_ends_quietly() {
    let mut child =
        command(&[tiny(), "--device", "model", "--prompt", "the cat", "--max-ctx", "8192", "--max-new", "4000"])
            .spawn()
            .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut first = [0; 1];
    stdout.read_exact(&mut first).unwrap();
    drop(stdout);
    let start = Instant::now();
    let run = finish(child);
    assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""));
    assert!(start.elapsed() < DEADLINE);
}

#[test]
fn an_interrupt_ends_a_generation_cleanly() {
    let mut child =
        command(&[tiny(), "--device", "model", "--prompt", "the cat", "--max-ctx", "8192", "--max-new", "4000"])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut first = [0; 1];
    stdout.read_exact(&mut first).unwrap();
    let killed = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let mut rest = Vec::new();
    stdout.read_to_end(&mut rest).unwrap();
    let run = finish(child);
    assert_eq!(run.code, Some(130), "{run:?}");
    assert_eq!(run.stderr, "qwen35-direct: interrupted\n");
    assert_eq!(rest.last(), Some(&b'\n'), "the answer's last line is ended");
}

#[test]
fn help_and_version_need_nothing() {
    let help = run(&["--help"]);
    assert!(help.code == Some(0) && help.stdout.contains("--kernels-from") && help.stderr.is_empty());
    assert_eq!(run(&["help"]).stdout, help.stdout);
    assert_eq!(run(&["help", "demo"]).stdout, run(&["demo", "--help"]).stdout);
    let version = run(&["--version"]);
    assert_eq!(version.stdout, format!("qwen35-direct {}\n", env!("CARGO_PKG_VERSION")));
}
