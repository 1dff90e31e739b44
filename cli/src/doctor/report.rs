//! What was found, for people and for programs.

use serde_json::{Value, json};
use std::fmt::Write;

/// Of the JSON; counts up when a field changes its meaning or goes.
const VERSION: u32 = 1;

/// What to think of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// As it should be.
    Ok,
    /// A run works, but not as well as it could.
    Warn,
    /// A run does not work.
    Fail,
    /// It was not looked at.
    Skip,
}

impl Verdict {
    pub(super) fn name(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Warn => "warn",
            Verdict::Fail => "fail",
            Verdict::Skip => "skip",
        }
    }
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) what: &'static str,
    pub(super) verdict: Verdict,
    pub(super) text: String,
    /// What to do. Most failures' messages have it in themselves.
    pub(super) remedy: String,
}

/// All lines.
#[derive(Debug, Default)]
pub(super) struct Findings(pub(super) Vec<Finding>);

impl Findings {
    pub(super) fn ok(&mut self, what: &'static str, text: &str) {
        self.add(what, Verdict::Ok, text, "");
    }

    pub(super) fn warn(&mut self, what: &'static str, text: &str, remedy: &str) {
        self.add(what, Verdict::Warn, text, remedy);
    }

    pub(super) fn fail(&mut self, what: &'static str, text: &str) {
        self.add(what, Verdict::Fail, text, "");
    }

    pub(super) fn skip(&mut self, what: &'static str, text: &str) {
        self.add(what, Verdict::Skip, text, "");
    }

    /// Says what to do about the last one.
    pub(super) fn remedy(&mut self, remedy: &str) {
        if let Some(last) = self.0.last_mut() {
            remedy.clone_into(&mut last.remedy);
        }
    }

    /// What would be failures are none that a run cannot do without: this remedy says how.
    pub(super) fn soften(&mut self, remedy: &str) {
        for finding in self.0.iter_mut().filter(|finding| finding.verdict == Verdict::Fail) {
            finding.verdict = Verdict::Warn;
            remedy.clone_into(&mut finding.remedy);
        }
    }

    fn add(&mut self, what: &'static str, verdict: Verdict, text: &str, remedy: &str) {
        self.0.push(Finding { what, verdict, text: text.to_owned(), remedy: remedy.to_owned() });
    }

    pub(super) fn count(&self, verdict: Verdict) -> usize {
        self.0.iter().filter(|finding| finding.verdict == verdict).count()
    }

    /// The verdict of them all.
    fn verdict(&self) -> &'static str {
        match (self.count(Verdict::Fail), self.count(Verdict::Warn)) {
            (0, 0) => "all is well",
            (0, _) => "it works, and could be better",
            _ => "it does not work",
        }
    }

    pub(super) fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a string does not fail.
        for Finding { what, verdict, text, remedy } in &self.0 {
            let _ = writeln!(out, "{:<5}{what:<11} {text}", verdict.name());
            if !remedy.is_empty() {
                let _ = writeln!(out, "{:<5}{:<11} -> {remedy}", "", "");
            }
        }
        let _ = writeln!(out, "{}", self.verdict());
        out
    }

    pub(super) fn json(&self) -> Value {
        let findings: Vec<Value> = self
            .0
            .iter()
            .map(|f| {
                json!({
                    "what": f.what, "verdict": f.verdict.name(), "text": f.text,
                    "remedy": if f.remedy.is_empty() { Value::Null } else { json!(f.remedy) },
                })
            })
            .collect();
        json!({"version": VERSION, "passed": self.count(Verdict::Fail) == 0, "findings": findings})
    }
}
