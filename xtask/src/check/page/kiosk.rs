//! The page where people walk by.

use super::mock::{End, Health, Mock, Stream};
use super::tab::Tab;
use super::{Fault, holds, same};

/// Twelve seconds: long enough for a loaded machine to get a question in.
const QUERY: &str = "?kiosk&idle=0.2";

pub(super) fn resets(tab: &mut Tab<'_>, mock: &Mock) -> Result<(), Fault> {
    tab.go(QUERY)?;
    tab.ask("mine alone")?;
    tab.answered()?;
    tab.until("it is asked whether somebody is there", "document.getElementById('idle').open")?;
    tab.shot("kiosk-idle")?;
    tab.click("#idle button")?;
    same("messages", tab.eval("document.querySelectorAll('#talk > li').length")?, 2)?;
    holds("the question has gone", tab.eval("document.getElementById('idle').open")? == false)?;
    tab.until("the conversation goes", "document.getElementById('empty').checkVisibility()")?;
    holds(
        "nothing is kept",
        tab.eval("!sessionStorage.length && !localStorage.length && !document.getElementById('idle').open")? == true,
    )?;
    holds("nothing brings it back", !tab.sees("#toast button")?)?;
    tab.reload()?;
    holds("a reload neither", tab.sees("#empty")?)?;
    // A long answer is no absence.
    mock.streams(Stream::words("It is long").ends(End::Hold));
    tab.ask("a long one")?;
    tab.until("the answer comes", "document.querySelector('.said + *, .assistant .said')?.innerText !== ''")?;
    tab.eval("new Promise(done => setTimeout(done, 13000))")?;
    holds("an answer under way keeps the conversation", tab.sees(".assistant")? && !tab.sees("#idle")?)?;
    tab.click("#new")?;
    holds("a large button clears at once", tab.sees("#empty")? && !tab.sees("#toast button")?)?;
    // What the last person left when the machine was switched off is old.
    tab.ask("left behind")?;
    tab.answered()?;
    tab.eval(
        "addEventListener('pagehide', () => { const kept = JSON.parse(sessionStorage.getItem('qwen35.talk')); kept.at -= 3600e3;
            sessionStorage.setItem('qwen35.talk', JSON.stringify(kept)); })",
    )?;
    tab.reload()?;
    holds("an old conversation is not shown", tab.sees("#empty")?)
}

pub(super) fn closed(tab: &mut Tab<'_>, mock: &Mock) -> Result<(), Fault> {
    tab.go("?kiosk&idle=0")?;
    holds("there are no settings", !tab.sees("#open-settings")?)?;
    mock.wants_key("k");
    tab.ask("hello")?;
    tab.answered()?;
    holds("a key is not asked of people who walk by", tab.eval("document.getElementById('settings').open")? == false)?;
    holds("who keeps the kiosk is told what to do", tab.text(".error:not([hidden])")?.contains("without ?kiosk"))?;
    mock.reset();
    mock.health(Health::not("unhealthy", "EIO in ioctl 7"));
    tab.until("it is out of order", "document.getElementById('health').innerText === 'Out of order'")?;
    holds("details are for others", !tab.text("body")?.contains("ioctl"))?;
    mock.health(Health::ok());
    let small = tab.eval(
        "[...document.querySelectorAll('button')].filter(b => b.checkVisibility() && !b.classList.contains('quiet'))
            .filter(b => Math.min(b.offsetHeight, b.offsetWidth) < 48).map(b => b.id || b.textContent)",
    )?;
    same("buttons that are too small for a finger", small, serde_json::json!([]))?;
    holds(
        "type is large",
        tab.eval("parseFloat(getComputedStyle(document.getElementById('text')).fontSize) >= 24")? == true,
    )
}
