//! Runs the binary, with a deadline: what hangs has failed.
#![allow(dead_code, reason = "each test file uses its part")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

pub(crate) const DEADLINE: Duration = Duration::from_secs(120);

/// What a run left behind.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// The binary, with nothing on its standard input.
pub(crate) fn command<S: AsRef<std::ffi::OsStr>>(arguments: &[S]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_qwen35-direct"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env_remove("QWEN35_DEMO_BUNDLE");
    command
}

pub(crate) fn run<S: AsRef<std::ffi::OsStr>>(arguments: &[S]) -> Run {
    finish(command(arguments).spawn().unwrap())
}

/// Runs with `input` on standard input.
pub(crate) fn run_with_input<S: AsRef<std::ffi::OsStr>>(arguments: &[S], input: &[u8]) -> Run {
    let mut child = command(arguments).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let writer = std::thread::spawn(move || std::io::Write::write_all(&mut stdin, &input));
    let run = finish(child);
    // A program that does not read its input closes the pipe; that is its right.
    let _ = writer.join().unwrap();
    run
}

/// Waits for the end, and kills what does not end.
pub(crate) fn finish(mut child: Child) -> Run {
    fn drain(pipe: Option<impl std::io::Read + Send + 'static>) -> std::thread::JoinHandle<String> {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            if let Some(mut pipe) = pipe {
                let _ = pipe.read_to_end(&mut bytes);
            }
            String::from_utf8(bytes).expect("output is UTF-8")
        })
    }
    let (stdout, stderr) = (drain(child.stdout.take()), drain(child.stderr.take()));
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if start.elapsed() > DEADLINE {
            child.kill().unwrap();
            panic!("still running after {DEADLINE:?}");
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    Run { code: status.code(), stdout: stdout.join().unwrap(), stderr: stderr.join().unwrap() }
}

/// This test binary's own folder, emptied once.
pub(crate) fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let name = std::env::current_exe().unwrap().file_stem().unwrap().to_owned();
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        folder
    })
}

/// The bundle of the tiny model, made once.
pub(crate) fn bundle() -> &'static Path {
    static BUNDLE: OnceLock<PathBuf> = OnceLock::new();
    BUNDLE.get_or_init(|| driver_tests::tiny::bundle(&folder().join("tiny")).unwrap())
}

/// A copy of the tiny bundle to break; large files are hard links, so `edit` must replace, not write into, them.
pub(crate) fn broken(name: &str, edit: impl FnOnce(&Path)) -> PathBuf {
    let to = folder().join(name);
    copy(bundle(), &to);
    edit(&to);
    to
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::hard_link(entry.path(), target).unwrap();
        }
    }
}

/// Replaces a file by what `edit` makes of its bytes.
pub(crate) fn rewrite(file: &Path, edit: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(file).unwrap();
    edit(&mut bytes);
    std::fs::remove_file(file).unwrap();
    std::fs::write(file, bytes).unwrap();
}

/// Replaces a text file by what `edit` makes of it.
pub(crate) fn rewrite_text(file: &Path, edit: impl FnOnce(&str) -> String) {
    rewrite(file, |bytes| {
        let text = edit(std::str::from_utf8(bytes).unwrap());
        assert_ne!(text.as_bytes(), bytes.as_slice(), "{} is unchanged: the case tests nothing", file.display());
        *bytes = text.into_bytes();
    });
}

pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/images").join(name)
}

/// The tiny bundle with kernels that the software NPU does not recognise as ours, as if they were for a real array.
pub(crate) fn opaque() -> &'static Path {
    static OPAQUE: OnceLock<PathBuf> = OnceLock::new();
    OPAQUE.get_or_init(|| {
        broken("opaque", |folder| {
            for entry in std::fs::read_dir(folder.join("kernels")).unwrap() {
                let path = entry.unwrap().path();
                if path.extension().is_some_and(|end| end == "xclbin") {
                    rewrite(&path, |bytes| {
                        let marker = driver_tests::tiny::MARKER;
                        let at = bytes.windows(marker.len()).position(|part| part == marker).unwrap();
                        bytes[at..at + marker.len()].fill(0x55);
                    });
                }
            }
        })
    })
}
