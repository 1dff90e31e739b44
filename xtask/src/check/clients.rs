//! Clients by others against a server of the demo model: the official Python client of OpenAI's interface, litellm, and
//! schemathesis, which asks everything that the server's own description allows and forbids.
//!
//! They are installed from their registry into `target/clients`; without Python or a network the stage is skipped.

use super::{Outcome, Tally};
use crate::server::{Server, program};
use crate::timed::{output, timed};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const PACKAGES: [&str; 3] = ["openai==3.57.0", "litellm==1.110.2", "schemathesis==4.32.5"];
/// For download and installation.
const INSTALL: Duration = Duration::from_secs(15 * 60);
/// For one client's whole run.
const RUN: Duration = Duration::from_secs(10 * 60);

pub(super) fn run(root: &Path) -> Outcome {
    let python = match installed(&root.join("target/clients")) {
        Ok(python) => python,
        Err(why) => return Outcome::Skip(why),
    };
    let program = match program(root) {
        Ok(program) => program,
        Err(why) => return Outcome::Fail(Tally::ONE_FAILED, why),
    };
    let (mut tally, mut failures) = (Tally::default(), Vec::new());
    for (name, client) in [("openai", openai as Client), ("litellm", litellm), ("schemathesis", schemathesis)] {
        match client(root, &python, &program) {
            Ok(said) => {
                crate::print(&said);
                tally.passed += 1;
            }
            Err(why) => {
                crate::print(&format!("{name}: {why}\n"));
                tally.failed += 1;
                failures.push(name);
            }
        }
    }
    if failures.is_empty() { Outcome::Pass(tally) } else { Outcome::Fail(tally, failures.join(", ")) }
}

type Client = fn(&Path, &Path, &Path) -> Result<String, String>;

/// The interpreter of an environment with the clients.
fn installed(folder: &Path) -> Result<PathBuf, String> {
    let python = folder.join("bin/python");
    // Written last: an installation that was cut short is begun anew.
    let mark = folder.join("installed.txt");
    let wanted = PACKAGES.join("\n");
    if std::fs::read_to_string(&mark).is_ok_and(|installed| installed == wanted) {
        return Ok(python);
    }
    let _ = std::fs::remove_dir_all(folder);
    let ended = output(Command::new("python3").args(["-m", "venv"]).arg(folder), INSTALL)?;
    if !ended.status.success() {
        return Err(format!("python3 -m venv: {}", last_line(&ended.stdout, &ended.stderr)));
    }
    let mut pip = Command::new(&python);
    let ended = output(pip.args(["-m", "pip", "install", "--quiet"]).args(PACKAGES), INSTALL)?;
    if !ended.status.success() {
        return Err(format!("the clients cannot be installed: {}", last_line(&ended.stdout, &ended.stderr)));
    }
    std::fs::write(&mark, wanted).map_err(|error| format!("{}: {error}", mark.display()))?;
    Ok(python)
}

fn last_line(stdout: &[u8], stderr: &[u8]) -> String {
    let text = [stdout, stderr].concat();
    String::from_utf8_lossy(&text).lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no word").to_owned()
}

fn server(root: &Path, program: &Path, more: &[&str]) -> Result<Server, String> {
    Server::start(program, &root.join("cli/demo/bundle"), &[&["--device", "model", "--max-ctx", "2048"], more].concat())
}

fn openai(root: &Path, python: &Path, program: &Path) -> Result<String, String> {
    let server = server(root, program, &[])?;
    let mut client = Command::new(python);
    client.arg(root.join("xtask/src/check/clients/openai_client.py"));
    client.arg(format!("http://{}/v1", server.at)).arg(root.join("cli/demo/samples"));
    timed(&mut client, RUN)
}

fn litellm(root: &Path, python: &Path, program: &Path) -> Result<String, String> {
    let server = server(root, program, &[])?;
    let mut client = Command::new(python);
    client.arg(root.join("xtask/src/check/clients/litellm_client.py")).arg(format!("http://{}/v1", server.at));
    timed(&mut client, RUN)
}

fn schemathesis(root: &Path, python: &Path, program: &Path) -> Result<String, String> {
    // Answers are kept short: what is looked at is their form.
    let server = server(root, program, &["--max-new", "200", "--deadline", "30"])?;
    let mut client = Command::new(python.with_file_name("schemathesis"));
    client.current_dir(root.join("target/clients")).arg("run").arg(format!("http://{}/openapi.json", server.at));
    client.args(["--max-examples", "25", "--seed", "1", "--continue-on-failure", "--request-timeout", "60"]);
    client.args(["--generation-database", "none", "--no-color"]);
    // A description cannot say that a choice names one of the functions, or that a text fits the context.
    client.args(["--exclude-checks", "positive_data_acceptance"]);
    let said = timed(&mut client, RUN)?;
    let at = said.find("= SUMMARY =").map_or(0, |at| said[..at].rfind('\n').unwrap_or(0));
    server.stop()?;
    Ok(said[at..].trim_start().to_owned())
}
