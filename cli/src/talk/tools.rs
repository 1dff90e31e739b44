//! Functions that a program runs: it gets the call as JSON on its standard input, and what it writes is the result.

use runtime::chat::ToolCall;
use serde_json::json;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// More than a context holds.
const MAX_RESULT: u64 = 1 << 20;
/// A program that takes longer is ended.
const LIMIT: Duration = Duration::from_secs(60);
const TICK: Duration = Duration::from_millis(5);

/// Runs a call.
///
/// # Errors
/// Why there is no result, fit to be told to the model.
pub(super) fn run(program: &Path, call: &ToolCall) -> Result<String, String> {
    let mut child = Command::new(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .map_err(|error| format!("it did not start: {error}"))?;
    let request = format!("{}\n", json!({"name": call.name, "arguments": call.arguments}));
    // A call is far smaller than a pipe, so this does not wait for a reader. One that reads nothing may.
    if let Some(mut stdin) = child.stdin.take() {
        let _ = stdin.write_all(request.as_bytes());
    }
    let stdout = child.stdout.take();
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(stdout) = stdout {
            let _ = stdout.take(MAX_RESULT + 1).read_to_end(&mut bytes);
        }
        bytes
    });
    let start = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            // It has written more than is read, and waits.
            Ok(None) if start.elapsed() > LIMIT => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("it was still running after {} s", LIMIT.as_secs()));
            }
            Ok(None) => std::thread::sleep(TICK),
            Err(error) => return Err(format!("it was lost: {error}")),
        }
    };
    let bytes = reader.join().unwrap_or_default();
    if !status.success() {
        return Err(format!("it ended with {status}"));
    }
    if bytes.len() as u64 > MAX_RESULT {
        return Err(format!("its result is longer than {MAX_RESULT} bytes"));
    }
    let text = String::from_utf8(bytes).map_err(|_| "its result is not UTF-8".to_owned())?;
    Ok(text.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_gets_the_call_and_gives_the_result() {
        let call = ToolCall { id: None, name: "add".into(), arguments: json!({"a": 2}).as_object().unwrap().clone() };
        assert_eq!(run(Path::new("cat"), &call), Ok(r#"{"name":"add","arguments":{"a":2}}"#.into()));
        assert_eq!(run(Path::new("false"), &call), Err("it ended with exit status: 1".into()));
        assert!(run(Path::new("/nowhere/at/all"), &call).is_err_and(|why| why.starts_with("it did not start")));
    }
}
