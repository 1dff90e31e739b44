//! What everyone can read and use: contrast as computed from styles, names of controls, nothing beyond the screen's edge.

use super::mock::{Answer, End, Mock, Stream};
use super::tab::Tab;
use super::{Fault, axe, holds};
use serde_json::{Value, json};
use std::time::Duration;

/// Texts whose contrast against what is painted behind them is below 4.5, as WCAG 2 has it, whatever their size.
const FAINT: &str = r"(() => {
  const pen = Object.assign(document.createElement('canvas'), {width: 1, height: 1}).getContext('2d', {willReadFrequently: true});
  const colour = text => { pen.clearRect(0, 0, 1, 1); pen.fillStyle = '#000'; pen.fillStyle = text; pen.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data; return [r, g, b, a / 255]; };
  const over = (top, under) => [0, 1, 2].map(i => top[i] * top[3] + under[i] * (1 - top[3])).concat(1);
  const light = c => c.slice(0, 3).map(v => v / 255).map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const behind = node => { const layers = [];
    for (let at = node; at; at = at.parentElement) { layers.push(colour(getComputedStyle(at).backgroundColor)); if (layers.at(-1)[3] === 1) break; }
    return layers.reduceRight((under, top) => over(top, under), [255, 255, 255, 1]); };
  const found = [];
  let looked = 0;
  const look = (node, style, what) => {
    const back = behind(node), ink = over(colour(style.color), back), [a, b] = [light(ink), light(back)].sort((x, y) => y - x);
    looked++;
    if ((a + .05) / (b + .05) < 4.5) found.push(`${what}: ${((a + .05) / (b + .05)).toFixed(2)}`);
  };
  for (const node of document.body.querySelectorAll('*')) {
    if (!node.checkVisibility({visibilityProperty: true}) || node.closest('.apart, script')) continue;
    const style = getComputedStyle(node), own = [...node.childNodes].filter(n => n.nodeType === 3 && n.data.trim()).map(n => n.data.trim()).join(' ');
    if (own || node.value || node.querySelector(':scope > svg')) look(node, style, own.slice(0, 40) || node.id || node.tagName);
    if (node.placeholder) look(node, getComputedStyle(node, '::placeholder'), `placeholder ${node.placeholder}`);
  }
  return {found, looked};
})()";

/// Roles of things that are used.
const CONTROLS: [&str; 9] =
    ["button", "textbox", "combobox", "checkbox", "link", "menuitem", "listbox", "DisclosureTriangle", "dialog"];

/// Looks at what is on the screen, and keeps a picture of it.
fn look(tab: &mut Tab<'_>, name: &str) -> Result<(), Fault> {
    tab.shot(name)?;
    axe::look(tab, name)?;
    let contrast = tab.eval(FAINT)?;
    holds(&format!("{name}: texts were looked at"), contrast["looked"].as_u64() > Some(8))?;
    holds(&format!("{name}: all texts stand out, but for {}", contrast["found"]), contrast["found"] == json!([]))?;
    let tree = tab.call("Accessibility.getFullAXTree", json!({}))?;
    let nodes = tree["nodes"].as_array().cloned().unwrap_or_default();
    let controls: Vec<&Value> = nodes
        .iter()
        .filter(|node| node["ignored"] != true && CONTROLS.iter().any(|role| node["role"]["value"] == *role))
        .collect();
    holds(&format!("{name}: controls were found"), controls.len() >= 2)?;
    for node in controls
        .iter()
        .chain(&nodes.iter().filter(|n| n["role"]["value"] == "image" && n["ignored"] != true).collect::<Vec<_>>())
    {
        let named = node["name"]["value"].as_str().is_some_and(|name| !name.trim().is_empty());
        holds(&format!("{name}: a {} has a name: {}", node["role"]["value"], node["properties"]), named)?;
    }
    let wide = tab.eval(
        "[document.documentElement, document.getElementById('main'), document.querySelector('footer')].every(e => e.scrollWidth <= e.clientWidth)
            && document.documentElement.scrollHeight <= innerHeight && document.querySelector('footer').getBoundingClientRect().bottom === innerHeight",
    )?;
    holds(
        &format!("{name}: nothing reaches beyond the edges, and the field for questions stands at the bottom"),
        wide == true,
    )
}

/// A conversation with everything in it.
fn conversation(tab: &mut Tab<'_>, mock: &Mock) -> Result<(), Fault> {
    let mut deltas = vec![json!({"reasoning_content": "The picture has three shapes; they want to know which."})];
    let text = "There are **three shapes** in the picture:\n\n1. a red circle on the left,\n2. a blue star in the middle,\n3. a green \
                square on the right.\n\nTo count them in Python:\n\n```python\nshapes = [\"circle\", \"star\", \"square\"]\nprint(len(shapes), \
                \"shapes, and a line that is longer than a telephone is wide\")\n```\n\nThe background is `white`.";
    deltas.extend(text.split_inclusive(' ').map(|word| json!({"content": word})));
    let sample = super::super::root().join("cli/demo/samples/three-shapes.png");
    tab.choose("#file", &[&sample])?;
    tab.until("the picture is there", "!!document.querySelector('#shots img')")?;
    mock.streams(Stream::new(&deltas).done("stop"));
    tab.ask("What do you see, and how would I count it?")?;
    tab.answered()?;
    tab.eval("document.querySelector('.think').open = true; document.getElementById('toast').replaceChildren()")?;
    Ok(())
}

pub(super) fn all(tab: &mut Tab<'_>, mock: &Mock) -> Result<(), Fault> {
    for (name, query, width, height, phone) in
        [("desktop", "", 1100, 800, false), ("phone", "", 390, 780, true), ("kiosk", "?kiosk&idle=0", 1080, 1400, true)]
    {
        tab.size(width, height, phone)?;
        for scheme in ["light", "dark"] {
            tab.prefer("prefers-color-scheme", scheme)?;
            tab.go(query)?;
            tab.until("the server is well", "document.getElementById('health').className === 'ok'")?;
            look(tab, &format!("{name}-{scheme}-empty"))?;
            conversation(tab, mock)?;
            look(tab, &format!("{name}-{scheme}"))?;
            mock.will([Answer::Refuse(400, 0, "the conversation has 9000 tokens, more than 8192")]);
            tab.ask("And then?")?;
            tab.answered()?;
            mock.streams(Stream::words("Half an answer").ends(End::Hold));
            tab.ask("Go on")?;
            tab.until(
                "it comes",
                "[...document.querySelectorAll('.assistant .said')].at(-1).innerText === 'Half an answer'",
            )?;
            look(tab, &format!("{name}-{scheme}-running"))?;
            tab.click("#stop")?;
            tab.answered()?;
            if query.is_empty() {
                tab.click("#open-settings")?;
                look(tab, &format!("{name}-{scheme}-settings"))?;
                tab.click("#no-settings")?;
            }
            tab.eval("sessionStorage.clear(); document.getElementById('new').click()")?;
        }
    }
    tab.size(320, 480, true)?;
    tab.go("")?;
    look(tab, "small")?;
    motion(tab, mock)
}

/// Who wants nothing to move sees nothing move.
fn motion(tab: &mut Tab<'_>, mock: &Mock) -> Result<(), Fault> {
    for (wish, moving) in [("no-preference", true), ("reduce", false)] {
        tab.prefer("prefers-reduced-motion", wish)?;
        tab.go("")?;
        mock.streams(Stream::new(&[]).cut(&[9], Duration::from_millis(1)).ends(End::Hold));
        tab.ask("wait")?;
        tab.until("it waits", "!!document.querySelector('.doing')?.innerText")?;
        let moves = tab.eval("document.getAnimations().length > 0")?;
        holds(&format!("with {wish} it is {moving} that something moves"), moves == moving)?;
        tab.eval("document.getElementById('new').click()")?;
    }
    Ok(())
}
