//! The server's page in a real browser: Chromium without a screen, driven over its debugging pipe, against a server of this
//! stage's own that does what each case needs, errors and broken streams included; and in the end against the program itself.
//!
//! Screenshots go to `target/page`; they are for eyes and compared with nothing.

mod axe;
mod cases;
mod cdp;
mod chromium;
mod conversation;
mod kiosk;
mod looks;
mod mock;
mod pictures;
mod served;
mod tab;
mod trouble;

use super::{Outcome, Tally};
use crate::vm;
use cdp::Browser;
use mock::Mock;
use serde_json::Value;
use std::path::{Path, PathBuf};
use tab::Tab;

/// The page, from the root of the repository.
const PAGE: &str = "cli/src/serve/page/index.html";

/// Why a case has failed.
#[derive(Debug, thiserror::Error)]
enum Fault {
    /// The browser does not run.
    #[error("{program} cannot be used: {what}")]
    Chromium {
        /// What was started.
        program: String,
        /// Why not.
        what: String,
    },
    /// The browser refuses what it was told.
    #[error("the browser was told {method} and said {said}")]
    Refused {
        /// The method of the protocol.
        method: String,
        /// The answer.
        said: String,
    },
    /// Something did not come about.
    #[error("waited in vain until {what}; the page shows: {shown}")]
    Late {
        /// What was to come.
        what: String,
        /// The page's text.
        shown: String,
    },
    /// Something else is there than was expected.
    #[error("{what}: expected {expected}, found {found}")]
    Differs {
        /// What was looked at.
        what: String,
        /// What it should be.
        expected: String,
        /// What it is.
        found: String,
    },
    /// Something is wrong that needs more words.
    #[error("{0}")]
    Wrong(String),
    /// A file or a socket.
    #[error("{what}: {error}")]
    Io {
        /// What was tried.
        what: String,
        /// What the system said.
        error: std::io::Error,
    },
}

/// Says so unless two things are the same.
fn same<A: Into<Value>, B: Into<Value>>(what: &str, found: A, expected: B) -> Result<(), Fault> {
    let (found, expected) = (found.into(), expected.into());
    if found == expected {
        return Ok(());
    }
    Err(Fault::Differs { what: what.to_owned(), expected: expected.to_string(), found: found.to_string() })
}

/// Says so unless something holds.
fn holds(what: &str, is: bool) -> Result<(), Fault> {
    if is { Ok(()) } else { Err(Fault::Wrong(format!("it does not hold that {what}"))) }
}

/// What cases work with.
struct Stage {
    browser: Browser,
    mock: Mock,
    /// Where pictures of the page go, and files that are given to it.
    folder: PathBuf,
}

type Case = fn(&mut Tab<'_>, &Mock) -> Result<(), Fault>;

pub(super) fn run(root: &Path) -> Outcome {
    let folder = vm::target_directory(root).join("page");
    let page = match std::fs::read_to_string(root.join(PAGE)) {
        Ok(page) => page,
        Err(error) => return Outcome::Fail(Tally::ONE_FAILED, format!("{PAGE}: {error}")),
    };
    if let Err(error) = std::fs::create_dir_all(&folder) {
        return Outcome::Fail(Tally::ONE_FAILED, format!("{}: {error}", folder.display()));
    }
    let program = match chromium::found(root) {
        Ok(program) => program,
        Err(why) => return Outcome::Skip(why),
    };
    if let Err(why) = axe::fetched(&folder) {
        crate::print(&format!("without axe-core: {why}\n"));
    }
    let begun = Browser::start(&program, &folder).and_then(|browser| {
        let mock = Mock::start(page).map_err(|error| Fault::Io { what: "a server for the page".into(), error })?;
        Ok(Stage { browser, mock, folder })
    });
    match begun {
        Ok(mut stage) => stage.all(root),
        Err(why) => Outcome::Fail(Tally::ONE_FAILED, why.to_string()),
    }
}

impl Stage {
    fn all(&mut self, root: &Path) -> Outcome {
        let wanted = std::env::var("QWEN35_PAGE_CASE").unwrap_or_default();
        let (mut tally, mut failed) = (Tally::default(), Vec::new());
        let mut count = |name: &'static str, outcome: Result<(), Fault>| match outcome {
            Ok(()) => tally.passed += 1,
            Err(why) => {
                crate::print(&format!("page: {name}: FAILED: {why}\n"));
                tally.failed += 1;
                failed.push(name);
            }
        };
        for (name, case) in cases::ALL.iter().filter(|(name, _)| name.contains(&wanted)) {
            self.mock.reset();
            count(name, self.one(name, *case));
        }
        if served::NAME.contains(&wanted) {
            count(served::NAME, served::run(root, self.mock.page(), &mut self.browser, &self.folder));
        }
        crate::print(&format!("{}; screenshots in {}\n", self.browser.version, self.folder.display()));
        if failed.is_empty() { Outcome::Pass(tally) } else { Outcome::Fail(tally, failed.join("; ")) }
    }

    /// A case in a profile of its own. What the page's script threw is a failure, whatever else went well.
    fn one(&mut self, name: &str, case: Case) -> Result<(), Fault> {
        let mut tab = Tab::open(&mut self.browser, self.mock.address(), &self.folder)?;
        let outcome = case(&mut tab, &self.mock);
        if outcome.is_err() {
            let _ = tab.shot(&format!("failed-{}", name.replace(|c: char| !c.is_ascii_alphanumeric(), "-")));
        }
        let complaints = tab.complaints();
        tab.close();
        outcome?;
        if complaints.is_empty() { Ok(()) } else { Err(Fault::Wrong(complaints.join("; "))) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> String {
        std::fs::read_to_string(super::super::root().join(PAGE)).unwrap()
    }

    #[test]
    fn the_page_is_one_file_that_asks_nobody_else() {
        let page = page();
        for forbidden in ["http://", "https://", "//cdn", "@import", "url(", "<script src", "<link rel=\"stylesheet\""]
        {
            assert!(!page.contains(forbidden), "{forbidden}");
        }
        assert!(page.len() < 80 << 10, "{} bytes", page.len());
    }

    #[test]
    fn nothing_that_a_model_says_can_become_markup() {
        let page = page();
        for forbidden in
            ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "srcdoc"]
        {
            assert!(!page.contains(forbidden), "{forbidden}");
        }
    }

    /// Words stand in the script's table, so that they can be read and translated in one place.
    #[test]
    fn the_markup_has_no_words_of_its_own() {
        let page = page();
        let body = page.split_once("<body>").unwrap().1.split_once("<script>").unwrap().0;
        let (before, after) = body.split_once("<noscript>").unwrap();
        let body = [before, after.split_once("</noscript>").unwrap().1].concat();
        for text in body.split('<').filter_map(|tag| tag.split_once('>')).map(|(_, text)| text.trim()) {
            assert!(text.is_empty(), "{text}");
        }
        for attribute in ["aria-label=\"", " placeholder=\"", " title=\"", " alt=\""] {
            assert!(!body.contains(attribute), "{attribute}");
        }
        // Every word that the markup asks for is in the table.
        for name in ["data-text=\"", "data-label=\"", "data-placeholder=\""] {
            for used in body.split(name).skip(1).map(|rest| rest.split('"').next().unwrap()) {
                assert!(page.contains(&format!(" {used}: ")), "{used}");
            }
        }
    }
}
