//! Questions and answers.

use super::mock::{End, Mock, Stream};
use super::tab::Tab;
use super::{Fault, holds, same};
use serde_json::{Value, json};
use std::time::Duration;

/// Two, three and four bytes a character, and a character of several.
const WORDS: &str = "Grüße, 你好 und 👩‍🔬 – fertig.";
const SAID: &str = ".assistant .said";

/// Every cut of a character and of a line is met: one byte at a time, and other sizes.
pub(super) fn pieces(tab: &mut Tab<'_>, mock: &Mock) -> Result<(), Fault> {
    tab.go("")?;
    for sizes in [&[1][..], &[2, 3], &[7, 1, 64]] {
        mock.streams(Stream::words(WORDS).done("stop").cut(sizes, Duration::from_millis(2)));
        tab.ask("hello")?;
        tab.answered()?;
        tab.until(
            "the answer is whole",
            &format!("[...document.querySelectorAll('{SAID}')].at(-1).innerText === {}", json!(WORDS)),
        )?;
        holds("nothing went wrong", !tab.sees(".assistant .error")? && !tab.sees(".assistant .note")?)?;
    }
    let asked = mock.requests();
    same("questions", asked.len(), 3)?;
    let body = &asked[0].body;
    same(
        "the body",
        body.clone(),
        json!({"stream": true, "stream_options": {"include_usage": true},
        "messages": [{"role": "user", "content": "hello"}]}),
    )?;
    let last = &asked[2].body["messages"];
    same("messages of the third question", last.as_array().map_or(0, Vec::len), 5)?;
    same("the answer goes back as it came", last[3].clone(), json!({"role": "assistant", "content": WORDS}))
}

pub(super) fn line_ends(tab: &mut Tab<'_>, mock: &Mock) -> Result<(), Fault> {
    tab.go("")?;
    for (n, end) in ["\n", "\r\n", "\r"].into_iter().enumerate() {
        let mut stream = Stream::words("one two three");
        stream.raw(": a comment\nevent: message\nid: 7\n\n");
        // One event in two lines of data, and a line without the space.
        stream.raw("data:{\"choices\":[{\"delta\":\ndata: {\"content\":\" four\"}}]}\n\n");
        mock.streams(stream.done("stop").lines_end(end).cut(&[1], Duration::from_millis(3)));
        tab.ask("count")?;
        tab.until("a further answer", &format!("document.querySelectorAll('.assistant').length === {}", n + 1))?;
        tab.answered()?;
        same(&format!("lines that end with {end:?}"), last(tab)?, "one two three four")?;
    }
    Ok(())
}

/// The text of the last answer.
fn last(tab: &mut Tab<'_>) -> Result<String, Fault> {
    Ok(tab
        .eval(&format!("[...document.querySelectorAll('{SAID}')].at(-1).innerText"))?
        .as_str()
        .unwrap_or("")
        .to_owned())
}

pub(super) fn markdown(tab: &mut Tab<'_>, mock: &Mock) -> Result<(), Fault> {
    let text = "# A title\n\n<u>Some</u> **bold** and *slanted* and `a < b` text, 2 * 3 * 4, snake_case_name.\nA second line.\n\n1. \
                first\n   - inner\n2. second\n- below it\n3. third\n\n```rust\nlet x = \"**no bold**\";\n\n<b>no tag</b>\n```\n\n\
                <img src=x onerror=\"window.hurt = 1\"><script>window.hurt = 2</script> [link](javascript:window.hurt=3) ** open";
    tab.go("")?;
    mock.streams(Stream::words(text).done("stop").cut(&[90], Duration::from_millis(15)));
    tab.ask("<b>show</b> **it**")?;
    tab.answered()?;
    let shape = "(() => { const walk = n => n.nodeType === 3 ? n.data : [n.tagName.toLowerCase(), ...[...n.childNodes].map(walk)];
        return [...document.querySelector('.assistant .said').childNodes].map(walk); })()";
    let expected = json!([
        ["h3", "A title"],
        [
            "p",
            "<u>Some</u> ",
            ["strong", "bold"],
            " and ",
            ["em", "slanted"],
            " and ",
            ["code", "a < b"],
            " text, 2 * 3 * 4, snake_case_name.\nA second line."
        ],
        ["ol", ["li", "first", ["ul", ["li", "inner"]]], ["li", "second", ["ul", ["li", "below it"]]], ["li", "third"]],
        ["pre", ["code", "let x = \"**no bold**\";\n\n<b>no tag</b>"]],
        [
            "p",
            "<img src=x onerror=\"window.hurt = 1\"><script>window.hurt = 2</script> [link](javascript:window.hurt=3) ** open"
        ]
    ]);
    // Nodes beside each other that are text may be several.
    let found = tab.eval(&format!("(document.querySelector('.assistant .said').normalize(), {shape})"))?;
    same("the answer's nodes", without_empty(found), expected)?;
    same("the question is as it was written", tab.text(".user .said")?, "<b>show</b> **it**")?;
    same("what a script in it did", tab.eval("window.hurt ?? 0")?, 0)
}

fn without_empty(value: Value) -> Value {
    match value {
        Value::Array(items) => items.into_iter().filter(|item| *item != "").map(without_empty).collect(),
        other => other,
    }
}

pub(super) fn reasoning(tab: &mut Tab<'_>, mock: &Mock) -> Result<(), Fault> {
    tab.go("")?;
    let thought = [json!({"reasoning_content": "Let me "}), json!({"reasoning_content": "see.\n<i>Hm.</i>"})];
    mock.streams(Stream::new(&thought).ends(End::Hold));
    tab.ask("why?")?;
    tab.until("it is said that it thinks", "document.querySelector('.think summary')?.innerText === 'Thinking'")?;
    holds("reasoning is folded while it comes", !tab.sees(".think > div")?)?;
    tab.key("Escape", false)?;
    tab.answered()?;
    let mut deltas = thought.to_vec();
    deltas.push(json!({"content": "Therefore."}));
    mock.streams(Stream::new(&deltas).done("stop"));
    tab.click(".assistant .foot button:last-child")?;
    tab.until("the answer is there", "document.querySelector('.assistant .said').innerText === 'Therefore.'")?;
    tab.answered()?;
    holds("reasoning is folded", !tab.sees(".think > div")?)?;
    holds("its summary says how long", tab.text(".think summary")?.starts_with("Thought for "))?;
    tab.click(".think summary")?;
    tab.until("reasoning unfolds", "document.querySelector('.think > div').innerText === 'Let me see.\\n<i>Hm.</i>'")?;
    tab.ask("and?")?;
    tab.until("a second answer", "document.querySelectorAll('.assistant').length === 2")?;
    tab.answered()?;
    let sent = mock.requests().pop().map(|request| request.body["messages"][1].clone());
    same(
        "reasoning goes back as it came",
        sent,
        json!({"role": "assistant", "content": "Therefore.",
        "reasoning_content": "Let me see.\n<i>Hm.</i>"}),
    )
}

pub(super) fn statistics(tab: &mut Tab<'_>, mock: &Mock) -> Result<(), Fault> {
    tab.go("")?;
    mock.streams(Stream::words("a b c d e f g h").cut(&[40], Duration::from_millis(30)).ends(End::Hold));
    tab.ask("count")?;
    tab.until(
        "tokens are counted while they come",
        "/^~8 tokens · ~[\\d.]+ tokens\\/s · first after [\\d.]+ s$/.test(document.querySelector('.stats')?.innerText)",
    )?;
    tab.click("#stop")?;
    tab.answered()?;
    mock.streams(Stream::words("a b c").done("stop"));
    tab.click(".assistant .foot button:last-child")?;
    tab.until("the server's numbers are there", "document.querySelector('.stats')?.innerText.startsWith('42')")?;
    same(
        "statistics",
        tab.text(".stats")?,
        "42 tokens · 8.4 tokens/s · first after 0.34 s · 210 read, 180 of them reused",
    )
}

/// A screen reader hears sentences: not one change for each token, and nothing twice.
pub(super) fn read_out(tab: &mut Tab<'_>, mock: &Mock) -> Result<(), Fault> {
    tab.go("")?;
    tab.eval(
        "window.heard = []; new MutationObserver(() => heard.push(document.getElementById('say').textContent))
            .observe(document.getElementById('say'), {childList: true, characterData: true, subtree: true}); 1",
    )?;
    let text = "This is **one** sentence. Here comes another one. ".repeat(20);
    mock.streams(Stream::words(text.trim()).done("stop").cut(&[120], Duration::from_millis(40)));
    tab.ask("tell")?;
    tab.answered()?;
    tab.until("the end is told", "document.getElementById('say').textContent.endsWith('complete.')")?;
    let heard = tab.eval("heard")?;
    let heard: Vec<&str> =
        heard.as_array().map(|all| all.iter().filter_map(Value::as_str).collect()).unwrap_or_default();
    holds(&format!("160 tokens make few announcements, not {}", heard.len()), heard.len() <= 12)?;
    let sentences = heard.iter().map(|said| said.matches("another one.").count()).max().unwrap_or(0);
    holds("an announcement has whole sentences", sentences >= 1 && !heard.iter().any(|said| said.contains('*')))?;
    holds(
        "the transcript is not read out by itself",
        tab.eval("!document.querySelector('main [aria-live], #talk[role=log]')")? == true,
    )
}

pub(super) fn stop_and_retry(tab: &mut Tab<'_>, mock: &Mock) -> Result<(), Fault> {
    tab.go("")?;
    mock.streams(Stream::words("half an ans").ends(End::Hold));
    tab.ask("tell me")?;
    tab.until("the answer comes", "document.querySelector('.assistant .said')?.innerText === 'half an ans'")?;
    holds("the send button has made room for the stop button", tab.sees("#stop")? && !tab.sees("#send")?)?;
    // What is written meanwhile stays, and Enter does not send it.
    tab.write("next")?;
    tab.key("Enter", false)?;
    tab.key("Escape", false)?;
    tab.answered()?;
    same("the note", tab.text(".assistant .note")?, "Stopped.")?;
    same("the answer", tab.text(SAID)?, "half an ans")?;
    same("what was written meanwhile", tab.eval("document.getElementById('text').value")?, "next")?;
    let end = std::time::Instant::now() + Duration::from_secs(20);
    while mock.left() == 0 && std::time::Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
    }
    same("streams that were left", mock.left(), 1)?;
    tab.click(".assistant .foot button:last-child")?;
    tab.until("another answer", "document.querySelector('.assistant .said')?.innerText === 'That is a short answer.'")?;
    tab.answered()?;
    holds("the note has gone", !tab.sees(".assistant .note")?)?;
    let asked = mock.requests();
    same("questions", asked.len(), 2)?;
    same("the same question again", asked[1].body.clone(), asked[0].body.clone())?;
    // A stop before anything came.
    mock.streams(Stream::new(&[]).ends(End::Hold));
    tab.key("Enter", false)?;
    tab.until("the question is out", "!document.getElementById('stop').hidden")?;
    tab.click("#stop")?;
    tab.answered()?;
    same(
        "the note",
        tab.eval("[...document.querySelectorAll('.note')].at(-1).innerText")?,
        "Stopped before an answer came.",
    )?;
    same("where the keys go", tab.eval("document.activeElement.id")?, "text")?;
    tab.ask("on")?;
    tab.until("a third answer", "document.querySelectorAll('.assistant').length === 3")?;
    tab.answered()?;
    let roles =
        mock.requests().pop().map(|r| r.body["messages"].as_array().cloned().unwrap_or_default()).unwrap_or_default();
    let roles: Vec<Value> = roles.iter().map(|message| message["role"].clone()).collect();
    same("an answer that did not come is not sent", roles, json!(["user", "assistant", "user", "user"]))
}

pub(super) fn reload(tab: &mut Tab<'_>, mock: &Mock) -> Result<(), Fault> {
    tab.go("")?;
    tab.ask("first")?;
    tab.answered()?;
    mock.streams(Stream::words("not to the").ends(End::Hold));
    tab.ask("second")?;
    tab.until("half an answer", "[...document.querySelectorAll('.said')].at(-1).innerText === 'not to the'")?;
    tab.write("a draft")?;
    tab.reload()?;
    let shown = "[...document.querySelectorAll('.said')].map(e => e.innerText)";
    same("the conversation", tab.eval(shown)?, json!(["first", "That is a short answer.", "second", "not to the"]))?;
    same("the draft", tab.eval("document.getElementById('text').value")?, "a draft")?;
    same("the note", tab.text(".note:not([hidden])")?, "Stopped.")?;
    tab.key("Enter", false)?;
    tab.until("a third answer", "document.querySelectorAll('.assistant').length === 3")?;
    tab.answered()?;
    let asked = mock.requests().pop().map(|request| request.body["messages"].clone()).unwrap_or_default();
    same("what is sent after a reload", asked[3]["content"].clone(), "not to the")?;
    same("what is sent after a reload", asked[4]["content"].clone(), "a draft")?;
    // What another program left there is no conversation, and breaks nothing.
    for left in ["{", "null", "{\"talk\": [1, null, {\"role\": \"user\"}]}", "{\"talk\": 5}"] {
        tab.go("health")?;
        tab.eval(&format!("sessionStorage.setItem('qwen35.talk', {})", json!(left)))?;
        tab.go("")?;
        holds("a page that finds rubbish starts empty", tab.sees("#empty")?)?;
    }
    Ok(())
}

pub(super) fn edit(tab: &mut Tab<'_>, mock: &Mock) -> Result<(), Fault> {
    tab.go("")?;
    for question in ["one", "two"] {
        tab.ask(question)?;
        tab.answered()?;
    }
    tab.click(".user .foot button")?;
    same("the question comes back", tab.eval("document.getElementById('text').value")?, "one")?;
    holds("it is said what will happen", tab.sees("#editing")?)?;
    tab.key("Escape", false)?;
    holds(
        "Escape leaves all as it was",
        !tab.sees("#editing")? && tab.eval("document.getElementById('text').value")? == "",
    )?;
    same("messages", tab.eval("document.querySelectorAll('#talk > li').length")?, 4)?;
    tab.click(".user .foot button")?;
    tab.write(" and a half")?;
    tab.key("Enter", false)?;
    tab.until("the rest is replaced", "document.querySelectorAll('#talk > li').length === 2")?;
    tab.answered()?;
    let asked = mock.requests().pop().map(|request| request.body["messages"].clone());
    same("what was asked", asked, json!([{"role": "user", "content": "one and a half"}]))
}

pub(super) fn anew(tab: &mut Tab<'_>, mock: &Mock) -> Result<(), Fault> {
    tab.go("")?;
    tab.ask("one")?;
    tab.answered()?;
    mock.streams(Stream::words("endless").ends(End::Hold));
    tab.ask("two")?;
    tab.until("an answer comes", "[...document.querySelectorAll('.said')].at(-1).innerText === 'endless'")?;
    tab.click("#new")?;
    holds(
        "nothing is left",
        tab.sees("#empty")? && tab.eval("!document.querySelector('#talk > li') && !sessionStorage.length")? == true,
    )?;
    tab.click("#toast button")?;
    same("messages that came back", tab.eval("document.querySelectorAll('#talk > li').length")?, 4)?;
    tab.answered()?;
    tab.click("#new")?;
    tab.reload()?;
    holds("nothing is left after a reload", tab.sees("#empty")?)?;
    tab.ask("three")?;
    tab.answered()?;
    let asked = mock.requests().pop().map(|request| request.body["messages"].clone());
    same("what was asked", asked, json!([{"role": "user", "content": "three"}]))
}

pub(super) fn settings(tab: &mut Tab<'_>, mock: &Mock) -> Result<(), Fault> {
    tab.go("")?;
    tab.click("#open-settings")?;
    tab.until("settings are open", "document.getElementById('settings').open")?;
    tab.write("Be brief.")?;
    tab.eval("document.getElementById('thinking').value = 'off'")?;
    tab.click("#settings [type=submit]")?;
    tab.ask("hello")?;
    tab.answered()?;
    tab.reload()?;
    tab.ask("again")?;
    tab.until("a second answer", "document.querySelectorAll('.assistant').length === 2")?;
    tab.answered()?;
    for request in mock.requests() {
        same("instructions", request.body["messages"][0].clone(), json!({"role": "system", "content": "Be brief."}))?;
        same("thinking", request.body["chat_template_kwargs"].clone(), json!({"enable_thinking": false}))?;
    }
    Ok(())
}

/// Everything can be reached and used without a pointer, and it is seen where one is.
pub(super) fn keyboard(tab: &mut Tab<'_>, mock: &Mock) -> Result<(), Fault> {
    tab.go("")?;
    same("where the keys go first", tab.eval("document.activeElement.id")?, "text")?;
    tab.write("one")?;
    tab.key("Enter", true)?;
    tab.write("two")?;
    same("a line in the question", tab.eval("document.getElementById('text').value")?, "one\ntwo")?;
    same("questions", mock.requests().len(), 0)?;
    tab.key("Tab", false)?;
    same("behind the text", tab.eval("document.activeElement.id")?, "send")?;
    tab.key(" ", false)?;
    tab.answered()?;
    same("the question", mock.requests().pop().map(|r| r.body["messages"][0]["content"].clone()), "one\ntwo")?;
    same("where the keys go then", tab.eval("document.activeElement.id")?, "text")?;
    let mut seen = Vec::new();
    for _ in 0..14 {
        tab.key("Tab", false)?;
        let at = tab.eval(
            "(() => { const e = document.activeElement, r = e.getBoundingClientRect(), s = getComputedStyle(e);
                return {name: e.id || e.textContent.trim(), shown: e === document.body || r.width > 0 && r.bottom > 0 && r.top < innerHeight,
                ring: e === document.body || s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 2}; })()",
        )?;
        let name = at["name"].as_str().unwrap_or("").to_owned();
        holds(&format!("{name} is on the screen where the focus is on it"), at["shown"] == true)?;
        holds(&format!("{name} shows that the focus is on it"), at["ring"] == true)?;
        seen.push(name);
    }
    for wanted in ["new", "open-settings", "main", "Edit", "Copy", "Answer again", "add", "text", "send"] {
        holds(&format!("Tab reaches {wanted}, in {seen:?}"), seen.iter().any(|name| name == wanted))?;
    }
    Ok(())
}
