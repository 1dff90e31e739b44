//! Pictures on their way to the server.

use super::mock::{Mock, Request};
use super::tab::{Tab, decode};
use super::{Fault, holds, same};
use serde_json::{Value, json};
use std::path::PathBuf;

/// A picture of the browser's own making: left half red, right half blue, as base64.
fn painted(tab: &mut Tab<'_>, width: u32, height: u32, kind: &str) -> Result<Vec<u8>, Fault> {
    let url = tab.eval(&format!(
        "(() => {{ const c = document.createElement('canvas'); c.width = {width}; c.height = {height}; const p = c.getContext('2d');
        p.fillStyle = '#f00'; p.fillRect(0, 0, c.width, c.height); p.fillStyle = '#00f'; p.fillRect(c.width / 2, 0, c.width, c.height);
        return c.toDataURL('image/{kind}'); }})()"
    ))?;
    Ok(decode(url.as_str().unwrap_or_default().split(',').nth(1).unwrap_or_default()))
}

/// A JPEG with the note that a camera held on its side makes: to be turned a quarter clockwise.
fn turned(jpeg: &[u8]) -> Vec<u8> {
    let note = b"\xff\xe1\x00\x22Exif\0\0MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0";
    [&jpeg[..2], note, &jpeg[2..]].concat()
}

/// Kind, sides and the colours of the corners (left and right above, left below) of a picture that was sent.
fn looked_at(tab: &mut Tab<'_>, url: &Value) -> Result<Value, Fault> {
    tab.eval(&format!(
        "(async () => {{ const url = {url}, image = new Image(); image.src = url; await image.decode();
        const w = image.naturalWidth, h = image.naturalHeight, c = document.createElement('canvas'); c.width = w; c.height = h;
        const p = c.getContext('2d'); p.drawImage(image, 0, 0);
        const at = (x, y) => {{ const [r, g, b] = p.getImageData(x, y, 1, 1).data; return r > 200 && b < 60 ? 'red' : b > 200 && r < 60 ? 'blue' : r + g + b > 740 ? 'white' : `${{r}} ${{g}} ${{b}}`; }};
        return [url.slice(0, url.indexOf(';')), w, h, at(3, 3), at(w - 4, 3), at(3, h - 4)]; }})()"
    ))
}

/// The parts of the last message of a request.
fn parts(request: &Request) -> Vec<Value> {
    let last = request.body["messages"].as_array().and_then(|all| all.last().cloned()).unwrap_or_default();
    last["content"].as_array().cloned().unwrap_or_default()
}

fn asked(mock: &Mock) -> Result<Vec<Value>, Fault> {
    mock.requests().last().map(parts).ok_or_else(|| Fault::Wrong("nothing was asked".into()))
}

fn ready(tab: &mut Tab<'_>, count: usize) -> Result<(), Fault> {
    tab.until(
        &format!("{count} pictures wait to be sent"),
        &format!(
            "document.querySelectorAll('#shots li').length === {count} && !document.querySelector('#shots .wait')"
        ),
    )
}

fn files(tab: &mut Tab<'_>) -> Result<[PathBuf; 3], Fault> {
    let photo = turned(&painted(tab, 2400, 1200, "jpeg")?);
    let drawn = painted(tab, 300, 200, "png")?;
    let large = painted(tab, 2048, 512, "webp")?;
    Ok([tab.keep("photo.jpg", &photo)?, tab.keep("drawn.png", &drawn)?, tab.keep("large.webp", &large)?])
}

pub(super) fn photograph(tab: &mut Tab<'_>, mock: &Mock) -> Result<(), Fault> {
    tab.go("")?;
    let [photo, drawn, large] = files(tab)?;
    tab.choose("#file", &[&photo, &drawn, &large])?;
    ready(tab, 3)?;
    tab.ask("What is this?")?;
    tab.answered()?;
    let sent = asked(mock)?;
    same("parts", sent.len(), 4)?;
    same("the text comes last", sent[3].clone(), json!({"type": "text", "text": "What is this?"}))?;
    holds("pictures are parts of their kind", sent[..3].iter().all(|part| part["type"] == "image_url"))?;
    let looks = [
        json!(["data:image/jpeg", 512, 1024, "red", "red", "blue"]),
        json!(["data:image/png", 300, 200, "red", "blue", "red"]),
        json!(["data:image/png", 1024, 256, "red", "blue", "red"]),
    ];
    for (part, expected) in sent.iter().zip(looks) {
        let found = looked_at(tab, &part["image_url"]["url"])?;
        same("kind, sides and corners", found, expected)?;
    }
    let first = sent[0]["image_url"]["url"].as_str().unwrap_or_default();
    let bytes = decode(first.split(',').nth(1).unwrap_or_default());
    holds("a camera's notes stay here", !bytes.windows(4).any(|at| at == b"Exif"))?;
    tab.reload()?;
    same(
        "pictures after a reload",
        tab.eval(
            "[...document.querySelectorAll('.user .shots img')].filter(i => i.src.startsWith('data:image/')).length",
        )?,
        3,
    )?;
    tab.ask("And now?")?;
    tab.until("a second answer", "document.querySelectorAll('.assistant').length === 2")?;
    tab.answered()?;
    let again = mock.requests().pop().map(|request| request.body["messages"][0]["content"].clone());
    same("the pictures go along again, the same to a byte", again, Value::from(sent))?;
    // A picture alone is a question.
    tab.choose("#file", &[&drawn])?;
    ready(tab, 1)?;
    tab.click("#send")?;
    tab.until("a third answer", "document.querySelectorAll('.assistant').length === 3")?;
    tab.answered()?;
    same("the words for a picture alone", asked(mock)?[1]["text"].clone(), "What do you see?")
}

/// Puts a small picture into an event as the system would.
const CARRY: &str = "const c = document.createElement('canvas'); c.width = 40; c.height = 30; const p = c.getContext('2d'); p.fillRect(0, 0, 9, 9);
    const blob = await new Promise(done => c.toBlob(done)), carried = new DataTransfer();
    carried.items.add(new File([blob], 'x.png', {type: 'image/png'}));";

pub(super) fn paste_and_drop(tab: &mut Tab<'_>, mock: &Mock) -> Result<(), Fault> {
    tab.go("")?;
    let paste = format!(
        "(async () => {{ {CARRY} document.getElementById('text').dispatchEvent(new ClipboardEvent('paste',
            {{clipboardData: carried, bubbles: true, cancelable: true}})); }})()"
    );
    tab.eval(&paste)?;
    ready(tab, 1)?;
    let drag = |name: &str| {
        format!(
            "(async () => {{ {CARRY} return !document.querySelector('main').dispatchEvent(new DragEvent('{name}',
                {{dataTransfer: carried, bubbles: true, cancelable: true}})); }})()"
        )
    };
    tab.eval(&drag("dragenter"))?;
    holds("it is shown where to drop", tab.sees("#drop")?)?;
    holds("the page takes what is dragged over it", tab.eval(&drag("dragover"))? == true)?;
    holds("the page takes what is dropped", tab.eval(&drag("drop"))? == true)?;
    ready(tab, 2)?;
    holds("the place to drop has gone", !tab.sees("#drop")?)?;
    // At most four go with a question.
    for _ in 0..3 {
        tab.eval(&paste)?;
    }
    ready(tab, 4)?;
    tab.told("At most 4 pictures go with a question.")?;
    tab.shot("pictures")?;
    for left in [3, 2, 1] {
        tab.click("#shots li:first-child button")?;
        ready(tab, left)?;
    }
    tab.reload()?;
    ready(tab, 1)?;
    tab.ask("one")?;
    tab.answered()?;
    let sent = asked(mock)?;
    same("parts", sent.len(), 2)?;
    let looks = looked_at(tab, &sent[0]["image_url"]["url"])?;
    same("what is transparent is white", looks[4].clone(), "white")
}

pub(super) fn no_picture(tab: &mut Tab<'_>, mock: &Mock) -> Result<(), Fault> {
    tab.go("")?;
    let text = tab.keep("no-picture.jpg", b"this is a text")?;
    let empty = tab.keep("empty.png", b"")?;
    let photo = painted(tab, 600, 400, "jpeg")?;
    let cut = tab.keep("cut.jpg", &photo[..40])?;
    for (file, name) in [(text, "no-picture.jpg"), (empty, "empty.png"), (cut, "cut.jpg")] {
        tab.choose("#file", &[&file])?;
        tab.told(&format!("{name} cannot be read as a picture."))?;
        ready(tab, 0)?;
    }
    tab.ask("words")?;
    tab.answered()?;
    same("the question", mock.requests().pop().map(|r| r.body["messages"][0]["content"].clone()), "words")
}

/// The browser's own make-believe camera.
pub(super) fn camera(tab: &mut Tab<'_>, mock: &Mock) -> Result<(), Fault> {
    tab.go("?kiosk&idle=0")?;
    tab.click("#shoot")?;
    tab.until("the camera's picture is seen", "document.getElementById('view').videoWidth > 0")?;
    tab.shot("kiosk-camera")?;
    tab.click("#finder [type=submit]")?;
    ready(tab, 1)?;
    tab.until("the camera is let go", "document.getElementById('view').srcObject === null")?;
    tab.click("#send")?;
    tab.answered()?;
    let sent = asked(mock)?;
    let looks = looked_at(tab, &sent[0]["image_url"]["url"])?;
    same("a photograph's kind", looks[0].clone(), "data:image/jpeg")?;
    tab.click("#shoot")?;
    tab.until("the camera is open", "document.getElementById('finder').open")?;
    tab.click("#no-shot")?;
    tab.until("the camera is let go", "document.getElementById('view').srcObject === null")?;
    // Phones have a camera of their own behind a file field.
    same(
        "the field",
        tab.eval(
            "[document.getElementById('camera').accept, document.getElementById('camera').getAttribute('capture')]",
        )?,
        json!(["image/*", "environment"]),
    )
}

pub(super) fn too_many_to_keep(tab: &mut Tab<'_>, mock: &Mock) -> Result<(), Fault> {
    tab.go("")?;
    // Noise is the hardest to pack: a million bytes a picture and more.
    let noise = "(async () => { const c = document.createElement('canvas'); c.width = c.height = 1024; const p = c.getContext('2d'), d = p.createImageData(1024, 1024);
        for (let i = 0; i < d.data.length; i += 65536) crypto.getRandomValues(d.data.subarray(i, i + 65536)); for (let i = 3; i < d.data.length; i += 4) d.data[i] = 255;
        p.putImageData(d, 0, 0); const blob = await new Promise(done => c.toBlob(done, 'image/jpeg', .9)), carried = new DataTransfer();
        carried.items.add(new File([blob], 'noise.jpg', {type: 'image/jpeg'}));
        document.dispatchEvent(new ClipboardEvent('paste', {clipboardData: carried, bubbles: true})); })()";
    for turn in 1..=5 {
        for n in 1..=2 {
            tab.eval(noise)?;
            ready(tab, n)?;
        }
        tab.ask("noise")?;
        tab.until("an answer", &format!("document.querySelectorAll('.assistant').length === {turn}"))?;
        tab.answered()?;
    }
    same(
        "pictures that are sent",
        mock.requests().pop().map(|r| r.body.to_string().matches("image_url\":{").count()),
        10,
    )?;
    let kept = tab.eval("sessionStorage.getItem('qwen35.talk').length")?;
    holds(
        &format!("what is kept is bounded, not {kept}"),
        kept.as_u64().is_some_and(|kept| (1_000_000..=4_000_000).contains(&kept)),
    )?;
    tab.reload()?;
    same("messages after a reload", tab.eval("document.querySelectorAll('#talk > li').length")?, 10)?;
    let (kept, gone) = (
        tab.eval("document.querySelectorAll('.user .shots img').length")?,
        tab.eval("document.querySelectorAll('.user .gone').length")?,
    );
    holds(&format!("the newest pictures are kept ({kept}), the oldest are not ({gone})"), kept.as_u64() > Some(0) && gone.as_u64() > Some(0)
        && tab.eval("!!document.querySelector('#talk > li:first-child .gone') && !document.querySelector('#talk > li:nth-last-child(2) .gone')")? == true)?;
    tab.ask("on")?;
    tab.until("an answer", "document.querySelectorAll('.assistant').length === 6")?;
    tab.answered()
}
