//! The page as the server gives it out, with the demo model behind it.

use super::cdp::Browser;
use super::tab::Tab;
use super::{Fault, holds, same};
use crate::server::{Server, program};
use std::path::Path;

pub(super) const NAME: &str = "the server itself";

/// What the demo model says of its picture.
const SEEN: &str = "There is a red circle on the left, a blue star in the middle and a green square on the right. The background is \
                    white.";

pub(super) fn run(root: &Path, page: &str, browser: &mut Browser, folder: &Path) -> Result<(), Fault> {
    let server = program(root)
        .and_then(|program| Server::start(&program, &root.join("cli/demo/bundle"), &[]))
        .map_err(Fault::Wrong)?;
    let mut tab = Tab::open(browser, format!("http://{}", server.at), folder)?;
    let outcome = talk(&mut tab, root, page).and_then(|()| {
        server.stop().map_err(Fault::Wrong)?;
        tab.click("#new")?;
        tab.ask("Are you there?")?;
        tab.until("it is said that the server has gone", "document.getElementById('health').innerText === 'Offline'")
    });
    let complaints = tab.complaints();
    tab.close();
    outcome?;
    if complaints.is_empty() { Ok(()) } else { Err(Fault::Wrong(complaints.join("; "))) }
}

fn talk(tab: &mut Tab<'_>, root: &Path, page: &str) -> Result<(), Fault> {
    tab.go("")?;
    let given = tab.eval("fetch('/').then(response => response.text())")?;
    holds("the program gives out the page of this tree", given.as_str() == Some(page))?;
    tab.until("the server is well", "document.getElementById('health').className === 'ok'")?;
    tab.choose("#file", &[&root.join("cli/demo/samples/three-shapes.png")])?;
    tab.until("the picture is there", "!!document.querySelector('#shots img')")?;
    tab.ask("What do you see?")?;
    tab.until("the answer begins", "!!document.querySelector('.assistant .said')?.innerText")?;
    tab.answered()?;
    same("the answer", tab.text(".assistant .said")?, SEEN)?;
    tab.ask("What colour is the star?")?;
    let second = "[...document.querySelectorAll('.assistant')]";
    tab.until(
        "a second answer begins",
        &format!("{second}.length === 2 && !!{second}[1].querySelector('.said').innerText"),
    )?;
    tab.answered()?;
    let said = tab.eval(&format!("{second}[1].querySelector('.said').innerText"))?;
    holds(&format!("the star is blue: {said}"), said.as_str().is_some_and(|said| said.ends_with("The star is blue.")))?;
    let stats = tab.eval(&format!("{second}[1].querySelector('.stats').innerText"))?;
    let numbers = "/^\\d+ tokens? · [\\d.]+ tokens\\/s · first after [\\d.]+ s · \\d+ read, [1-9]\\d* of them reused$/";
    holds(
        &format!("the server's numbers are shown, and what was read is not read again: {stats}"),
        tab.eval(&format!("{numbers}.test({stats})"))? == true,
    )?;
    pictures(tab, root)
}

/// The pictures that docs/page.md has.
fn pictures(tab: &mut Tab<'_>, root: &Path) -> Result<(), Fault> {
    tab.eval("document.getElementById('toast').replaceChildren()")?;
    tab.shot("served")?;
    tab.size(390, 780, true)?;
    tab.prefer("prefers-color-scheme", "dark")?;
    tab.reload()?;
    tab.until("the server is well", "document.getElementById('health').className === 'ok'")?;
    tab.shot("served-phone")?;
    tab.size(900, 1100, false)?;
    tab.prefer("prefers-color-scheme", "light")?;
    tab.go("?kiosk&idle=0")?;
    tab.until("the server is well", "document.getElementById('health').className === 'ok'")?;
    holds("a kiosk does not show what was said without it", tab.sees("#empty")?)?;
    tab.choose("#file", &[&root.join("cli/demo/samples/two-shapes.png")])?;
    tab.until("the picture is there", "!!document.querySelector('#shots img')")?;
    tab.ask("What do you see?")?;
    tab.until("the answer begins", "!!document.querySelector('.assistant .said')?.innerText")?;
    tab.answered()?;
    tab.eval("document.getElementById('toast').replaceChildren()")?;
    tab.shot("served-kiosk")
}
