//! A tab, used as a person would: keys, clicks at places, files.

use super::cdp::Browser;
use super::{Fault, holds};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long something may take that has to come. Nothing is judged by how fast it comes.
const PATIENCE: Duration = Duration::from_secs(40);
const TICK: Duration = Duration::from_millis(40);

/// A tab in a profile of its own.
pub(super) struct Tab<'a> {
    browser: &'a mut Browser,
    session: String,
    context: String,
    /// The server's address.
    base: String,
    folder: PathBuf,
}

impl<'a> Tab<'a> {
    /// An empty tab of a desktop's size.
    pub(super) fn open(browser: &'a mut Browser, base: String, folder: &Path) -> Result<Self, Fault> {
        let context = text(&browser.call(None, "Target.createBrowserContext", json!({}))?["browserContextId"]);
        let made = json!({"url": "about:blank", "browserContextId": context});
        let target = browser.call(None, "Target.createTarget", made)?;
        let attached = json!({"targetId": target["targetId"], "flatten": true});
        let session = text(&browser.call(None, "Target.attachToTarget", attached)?["sessionId"]);
        let mut tab = Self { browser, session, context, base, folder: folder.to_owned() };
        for domain in ["Page.enable", "Runtime.enable", "Log.enable", "DOM.enable"] {
            tab.call(domain, json!({}))?;
        }
        tab.size(1100, 800, false)?;
        Ok(tab)
    }

    /// Where pictures go.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn close(self) {
        let _ = self.browser.call(None, "Target.disposeBrowserContext", json!({"browserContextId": self.context}));
    }

    pub(super) fn call(&mut self, method: &str, params: Value) -> Result<Value, Fault> {
        self.browser.call(Some(&self.session), method, params)
    }

    /// What the page's script has thrown, and what its policy has forbidden.
    pub(super) fn complaints(&mut self) -> Vec<String> {
        let complaint = |event: &Value| match event["method"].as_str()? {
            "Runtime.exceptionThrown" => {
                let details = &event["params"]["exceptionDetails"];
                Some(format!("the script threw {} {}", details["text"], details["exception"]["description"]))
            }
            "Log.entryAdded" => {
                let entry = &event["params"]["entry"];
                let counts = entry["level"] == "error" && entry["source"] != "network";
                counts.then(|| format!("the browser complained: {}", entry["text"]))
            }
            _ => None,
        };
        self.browser.events(&self.session).iter().filter_map(complaint).collect()
    }

    /// Opens the page; `query` comes behind its address.
    pub(super) fn go(&mut self, query: &str) -> Result<(), Fault> {
        let url = format!("{}/{query}", self.base);
        self.call("Page.navigate", json!({"url": url}))?;
        self.ready()
    }

    /// Loads the page anew, as the key for it does.
    pub(super) fn reload(&mut self) -> Result<(), Fault> {
        self.eval("window.before = true")?;
        self.call("Page.reload", json!({}))?;
        self.ready()
    }

    fn ready(&mut self) -> Result<(), Fault> {
        let ready =
            "!window.before && document.readyState === 'complete' && (!!document.title || location.pathname !== '/')";
        self.until("the page is there", ready)?;
        // Short words come and go: they are kept for those who look late.
        let watch = "window.toasts = []; const toast = document.getElementById('toast');
            if (toast) new MutationObserver(() => toasts.push(toast.innerText)).observe(toast, {childList: true});";
        self.eval(&format!("(() => {{ {watch} }})()")).map(|_| ())
    }

    /// Waits until something was said in a short-lived message.
    pub(super) fn told(&mut self, text: &str) -> Result<(), Fault> {
        self.until(&format!("it is said: {text}"), &format!("toasts.includes({})", json!(text)))
    }

    /// The value of an expression in the page.
    pub(super) fn eval(&mut self, script: &str) -> Result<Value, Fault> {
        let asked = json!({"expression": script, "returnByValue": true, "awaitPromise": true, "userGesture": true});
        let mut got = self.call("Runtime.evaluate", asked)?;
        if got["exceptionDetails"].is_object() {
            let said = got["exceptionDetails"]["exception"]["description"].to_string();
            return Err(Fault::Refused { method: script.chars().take(120).collect(), said });
        }
        Ok(got["result"]["value"].take())
    }

    /// Waits until an expression holds.
    pub(super) fn until(&mut self, what: &str, script: &str) -> Result<(), Fault> {
        let end = Instant::now() + PATIENCE;
        loop {
            // While a page is being loaded there may be nothing to ask.
            if self.eval(script).is_ok_and(|value| value == true) {
                return Ok(());
            }
            if Instant::now() > end {
                let shown = self.eval("document.body.innerText.slice(0, 600)").unwrap_or_default();
                return Err(Fault::Late { what: what.to_owned(), shown: shown.to_string() });
            }
            std::thread::sleep(TICK);
        }
    }

    /// The text of the first element that a selector finds, as it is shown.
    pub(super) fn text(&mut self, selector: &str) -> Result<String, Fault> {
        Ok(text(&self.eval(&format!("document.querySelector({})?.innerText ?? ''", json!(selector)))?))
    }

    /// Whether an element can be seen.
    pub(super) fn sees(&mut self, selector: &str) -> Result<bool, Fault> {
        let script =
            format!("!!document.querySelector({})?.checkVisibility({{visibilityProperty: true}})", json!(selector));
        Ok(self.eval(&script)? == true)
    }

    /// Waits until an answer is there.
    pub(super) fn answered(&mut self) -> Result<(), Fault> {
        self.until(
            "the answer is there",
            "document.getElementById('stop').hidden && !!document.querySelector('.assistant')",
        )
    }

    /// Puts text where the focus is.
    pub(super) fn write(&mut self, text: &str) -> Result<(), Fault> {
        self.call("Input.insertText", json!({"text": text})).map(|_| ())
    }

    /// Writes a question and sends it with the keyboard.
    pub(super) fn ask(&mut self, question: &str) -> Result<(), Fault> {
        self.eval("document.getElementById('text').focus()")?;
        self.write(question)?;
        self.key("Enter", false)
    }

    /// Presses and lets go of a key.
    pub(super) fn key(&mut self, key: &str, shift: bool) -> Result<(), Fault> {
        let (code, text) = match key {
            "Enter" => (13, "\r"),
            "Escape" => (27, ""),
            "Tab" => (9, ""),
            " " => (32, " "),
            _ => return Err(Fault::Wrong(format!("no test knows the key {key}"))),
        };
        let name = if key == " " { "Space" } else { key };
        let mut event = json!({"type": "keyDown", "key": key, "code": name, "windowsVirtualKeyCode": code,
            "modifiers": if shift { 8 } else { 0 }});
        if !text.is_empty() {
            event["text"] = text.into();
        }
        self.call("Input.dispatchKeyEvent", event.clone())?;
        event["type"] = "keyUp".into();
        self.call("Input.dispatchKeyEvent", event).map(|_| ())
    }

    /// Clicks in the middle of an element, which nothing else may cover.
    pub(super) fn click(&mut self, selector: &str) -> Result<(), Fault> {
        let script = format!(
            "(() => {{ const e = document.querySelector({}); if (!e) return null; e.scrollIntoView({{block: 'nearest'}});
            const r = e.getBoundingClientRect(), x = r.x + r.width / 2, y = r.y + r.height / 2;
            return {{x, y, free: e.contains(document.elementFromPoint(x, y))}}; }})()",
            json!(selector)
        );
        let at = self.eval(&script)?;
        holds(&format!("{selector} can be clicked"), at["free"] == true)?;
        for kind in ["mousePressed", "mouseReleased"] {
            let event = json!({"type": kind, "x": at["x"], "y": at["y"], "button": "left", "clickCount": 1});
            self.call("Input.dispatchMouseEvent", event)?;
        }
        Ok(())
    }

    /// Chooses files where a file dialog would.
    pub(super) fn choose(&mut self, selector: &str, files: &[&Path]) -> Result<(), Fault> {
        let document = self.call("DOM.getDocument", json!({"depth": 0}))?;
        let root = &document["root"]["nodeId"];
        let node = self.call("DOM.querySelector", json!({"nodeId": root, "selector": selector}))?;
        self.call("DOM.setFileInputFiles", json!({"nodeId": node["nodeId"], "files": files})).map(|_| ())
    }

    /// A screen of this size; a phone has fingers and more dots.
    pub(super) fn size(&mut self, width: u32, height: u32, phone: bool) -> Result<(), Fault> {
        let scale = if phone { 2 } else { 1 };
        let metrics = json!({"width": width, "height": height, "deviceScaleFactor": scale, "mobile": phone});
        self.call("Emulation.setDeviceMetricsOverride", metrics)?;
        self.call("Emulation.setTouchEmulationEnabled", json!({"enabled": phone})).map(|_| ())
    }

    /// What the person has set in the system: `prefers-color-scheme` and its like.
    pub(super) fn prefer(&mut self, name: &str, value: &str) -> Result<(), Fault> {
        let features = json!({"features": [{"name": name, "value": value}]});
        self.call("Emulation.setEmulatedMedia", features).map(|_| ())
    }

    /// A picture of what is on the screen.
    pub(super) fn shot(&mut self, name: &str) -> Result<(), Fault> {
        let got = self.call("Page.captureScreenshot", json!({"format": "png"}))?;
        let bytes = decode(got["data"].as_str().unwrap_or_default());
        self.keep(&format!("{name}.png"), &bytes).map(|_| ())
    }

    /// Leaves a file beside the pictures.
    pub(super) fn keep(&mut self, name: &str, bytes: &[u8]) -> Result<PathBuf, Fault> {
        let path = self.folder.join(name);
        let path = std::path::absolute(&path).unwrap_or(path);
        std::fs::write(&path, bytes).map_err(|error| Fault::Io { what: format!("write {}", path.display()), error })?;
        Ok(path)
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Base64, as the browser gives it.
pub(super) fn decode(text: &str) -> Vec<u8> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let digits: Vec<u8> = text.bytes().filter_map(digit).collect();
    let mut out = Vec::with_capacity(digits.len() * 3 / 4);
    for group in digits.chunks(4) {
        let word = group.iter().enumerate().fold(0_u32, |word, (i, d)| word | u32::from(*d) << (18 - 6 * i));
        out.extend_from_slice(&word.to_be_bytes()[1..group.len().max(1)]);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::decode;

    /// RFC 4648's own examples.
    #[test]
    fn base64_is_read_as_its_definition_says() {
        for (text, bytes) in [("", ""), ("Zg==", "f"), ("Zm8=", "fo"), ("Zm9v", "foo"), ("Zm9vYg==", "foob")] {
            assert_eq!(decode(text), bytes.as_bytes());
        }
    }
}
