//! axe-core, a collection of rules of accessibility by others, where npm can fetch it. Nothing of it is kept in the tree.

use super::tab::Tab;
use super::{Fault, holds};
use crate::timed;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const VERSION: &str = "4.14.1";
/// For a download of half a megabyte.
const LIMIT: Duration = Duration::from_secs(120);

/// Its script below the stage's folder.
fn script(folder: &Path) -> PathBuf {
    folder.join(format!("axe-{VERSION}/package/axe.min.js"))
}

/// Gets it if it is not there; else why the rules are not looked at.
pub(super) fn fetched(folder: &Path) -> Result<(), String> {
    let there = script(folder);
    if there.is_file() {
        return Ok(());
    }
    let to = folder.join(format!("axe-{VERSION}"));
    std::fs::create_dir_all(&to).map_err(|error| error.to_string())?;
    let package = format!("axe-core@{VERSION}");
    let pack = ["pack", "--silent", "--ignore-scripts", &package];
    let unpack = ["xzf", &format!("axe-core-{VERSION}.tgz")[..], "package/axe.min.js"];
    for (program, words) in [("npm", &pack[..]), ("tar", &unpack[..])] {
        let out = timed::output(Command::new(program).args(words).current_dir(&to), LIMIT)?;
        if !out.status.success() {
            let said = String::from_utf8_lossy(&out.stderr);
            return Err(format!("{program}: {}", said.lines().next().unwrap_or("no message")));
        }
    }
    if there.is_file() { Ok(()) } else { Err(format!("{package} has no axe.min.js")) }
}

/// Looks at what the page shows, by all rules that it has for WCAG and good practice, if it is there.
pub(super) fn look(tab: &mut Tab<'_>, name: &str) -> Result<(), Fault> {
    let Ok(script) = std::fs::read_to_string(script(tab.folder())) else { return Ok(()) };
    if tab.eval("typeof axe === 'undefined'")? == true {
        tab.eval(&format!("{script}; 1"))?;
    }
    let found = tab.eval(
        "axe.run(document, {resultTypes: ['violations']}).then(result => [result.passes.length,
            result.violations.map(v => `${v.id}: ${v.help}: ${v.nodes.map(n => n.target.join(' ')).join(', ')}`)])",
    )?;
    holds(&format!("{name}: axe-core looked at something"), found[0].as_u64() > Some(5))?;
    holds(&format!("{name}: axe-core finds nothing, but for {}", found[1]), found[1] == json!([]))
}
