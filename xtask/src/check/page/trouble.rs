//! What goes wrong, and what people are told.

use super::mock::{Answer, End, Health, Mock, Stream};
use super::tab::Tab;
use super::{Fault, holds, same};
use serde_json::json;

const ERROR: &str = "[...document.querySelectorAll('.error')].filter(e => e.checkVisibility()).at(-1)?.innerText";

pub(super) fn busy(tab: &mut Tab<'_>, mock: &Mock) -> Result<(), Fault> {
    tab.go("")?;
    mock.will([Answer::Refuse(503, 2, "3 requests are waiting already"), Answer::Refuse(429, 1, "slow down")]);
    tab.ask("hello")?;
    tab.until(
        "it is said that the server is busy",
        "document.querySelector('.doing')?.innerText.startsWith('The server is busy. Trying again in')",
    )?;
    tab.until(
        "the answer comes all the same",
        "document.querySelector('.assistant .said')?.innerText === 'That is a short answer.'",
    )?;
    tab.answered()?;
    let asked = mock.requests();
    same("requests", asked.len(), 3)?;
    same("the same question each time", asked[2].body.clone(), asked[0].body.clone())?;
    // Waiting can be stopped.
    mock.will([Answer::Refuse(503, 30, "full")]);
    tab.ask("more")?;
    tab.until("it waits", "[...document.querySelectorAll('.doing')].at(-1).innerText.includes('Trying again')")?;
    tab.key("Escape", false)?;
    tab.answered()?;
    same("requests", mock.requests().len(), 4)
}

pub(super) fn broken(tab: &mut Tab<'_>, mock: &Mock) -> Result<(), Fault> {
    tab.go("")?;
    mock.will([Answer::Refuse(400, 0, "the conversation is <b>too</b> long")]);
    tab.ask("hello")?;
    tab.answered()?;
    same("a refusal", tab.eval(ERROR)?, "The server refused (400): the conversation is <b>too</b> long")?;

    let mut failed = Stream::words("An answer that");
    failed.raw("data: {\"error\": {\"message\": \"the NPU failed under this answer: timeout\", \"type\": \"server_error\"}}\n\n");
    let mut rubbish = Stream::words("An answer that");
    rubbish.raw("data: <html>\n\n");
    let mut nothing = Stream::words("An answer that");
    nothing.raw("data: null\n\n");
    let cut = "The connection ended before the answer was complete.";
    let breaks = "The answer broke off: what came was no answer of this interface";
    let broken = [
        (Stream::words("An answer that").ends(End::Cut), cut),
        (Stream::words("An answer that"), cut),
        (failed, "The answer broke off: the NPU failed under this answer: timeout"),
        (rubbish, breaks),
        (nothing, breaks),
    ];
    for (stream, why) in broken {
        mock.streams(stream);
        tab.click(".assistant .foot button:last-child")?;
        tab.until("what came is shown", "document.querySelector('.assistant .said').innerText === 'An answer that'")?;
        mock.cut();
        tab.answered()?;
        same("what came is shown", tab.text(".assistant .said")?, "An answer that")?;
        same("and what went wrong", tab.eval(ERROR)?, why)?;
    }
    mock.streams(Stream::words("It fits no").done("length"));
    tab.click(".assistant .foot button:last-child")?;
    tab.until(
        "a note is there",
        "document.querySelector('.note').innerText === 'The answer reached the limit of its length.'",
    )?;
    mock.streams(Stream::new(&[]).done("stop"));
    tab.click(".assistant .foot button:last-child")?;
    tab.until("a note is there", "document.querySelector('.note').innerText === 'The model gave an empty answer.'")?;
    tab.click(".assistant .foot button:last-child")?;
    tab.until("all is well", "document.querySelector('.assistant .said').innerText === 'That is a short answer.'")?;
    holds("nothing of the trouble is left", tab.eval(&format!("{ERROR} === undefined"))? == true)?;
    let all = mock.requests();
    holds("it was the same question all the time", all.iter().all(|request| request.body == all[0].body))
}

pub(super) fn gone(tab: &mut Tab<'_>, mock: &Mock) -> Result<(), Fault> {
    tab.go("")?;
    tab.until(
        "it is said that the server is well",
        "document.getElementById('health').innerText === 'Ready: qwen3.5-2b'",
    )?;
    holds("no banner is there", !tab.sees("#banner")?)?;
    mock.health(Health::Gone);
    tab.ask("are you there?")?;
    tab.answered()?;
    same("what is said", tab.eval(ERROR)?, "The server cannot be reached. Your question is kept.")?;
    tab.until("a banner is there", "document.getElementById('banner').checkVisibility() && document.getElementById('banner').innerText.startsWith('The server cannot be reached. Trying again')")?;
    same("the state in a word", tab.text("#health")?, "Offline")?;
    tab.until("it has tried again", "/in [2-9]\\d* s/.test(document.getElementById('banner').innerText)")?;
    tab.shot("offline")?;
    mock.health(Health::ok());
    tab.click("#try")?;
    tab.until("the banner goes", "!document.getElementById('banner').checkVisibility()")?;
    tab.click(".assistant .foot button:last-child")?;
    tab.until(
        "the answer comes",
        "document.querySelector('.assistant .said')?.innerText === 'That is a short answer.'",
    )?;
    mock.will([Answer::Vanish]);
    tab.ask("still?")?;
    tab.until("an error is there", "document.querySelectorAll('.error:not([hidden])').length === 1")
}

pub(super) fn unwell(tab: &mut Tab<'_>, mock: &Mock) -> Result<(), Fault> {
    mock.health(Health::not("loading", ""));
    tab.go("")?;
    tab.until(
        "it is being loaded",
        "document.getElementById('banner').innerText.startsWith('The model is being loaded')",
    )?;
    mock.health(Health::not("unhealthy", "the <b>device</b> hangs"));
    tab.until("what is wrong is said", "document.getElementById('banner').innerText === 'The NPU cannot be used at the moment: the <b>device</b> hangs. The server tries to load it again.'")?;
    same("the state in a word", tab.text("#health")?, "Out of order")?;
    mock.health(Health::Says(200, json!("rubbish")));
    tab.until("rubbish is no server", "document.getElementById('health').innerText === 'Offline'")?;
    mock.health(Health::Says(200, json!({"status": "ok", "model": "m", "vision": false})));
    tab.until("it is well", "document.getElementById('health').innerText === 'Ready: m'")?;
    holds("a model that does not see gets no pictures", !tab.sees("#add")? && !tab.sees("#shoot")?)
}

pub(super) fn key(tab: &mut Tab<'_>, mock: &Mock) -> Result<(), Fault> {
    mock.wants_key("secret-1");
    tab.go("")?;
    tab.ask("hello")?;
    tab.until(
        "the key is asked for",
        "document.getElementById('settings').open && document.getElementById('wants-key').checkVisibility()",
    )?;
    same("where the keys go", tab.eval("document.activeElement.id")?, "key")?;
    tab.shot("key")?;
    tab.write("wrong")?;
    tab.key("Enter", false)?;
    tab.until(
        "it is asked for again",
        "document.getElementById('settings').open && document.getElementById('key').value === 'wrong'",
    )?;
    tab.eval("document.getElementById('key').value = ''")?;
    tab.write("secret-1")?;
    tab.key("Enter", false)?;
    tab.until(
        "the answer comes",
        "document.querySelector('.assistant .said')?.innerText === 'That is a short answer.'",
    )?;
    tab.answered()?;
    same("questions that came through", mock.requests().len(), 1)?;
    same("the header", mock.requests().pop().and_then(|request| request.key), "Bearer secret-1")?;
    same("what the device remembers", tab.eval("localStorage.getItem('qwen35.key')")?, json!(null))?;
    holds(
        "the key is not shown",
        tab.eval(
            "!document.body.innerText.includes('secret-1') && document.getElementById('key').type === 'password'",
        )? == true,
    )?;
    tab.reload()?;
    tab.ask("again")?;
    tab.until("the tab remembers it", "document.querySelectorAll('.assistant').length === 2")?;
    tab.answered()?;
    tab.click("#open-settings")?;
    tab.click("#remember")?;
    tab.click("#settings [type=submit]")?;
    same("what the device remembers", tab.eval("localStorage.getItem('qwen35.key')")?, "secret-1")
}
