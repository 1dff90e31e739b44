//! One bar chart a group: ours and the peer's beside each other, on a logarithmic axis, as SVG.

use super::report::{Report, Row, figure};

const LEFT: f64 = 330.0;
const WIDTH: f64 = 460.0;
const RIGHT: f64 = 90.0;
const BAR: f64 = 13.0;
const STEP: f64 = 40.0;
const TOP: f64 = 64.0;

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn text(x: f64, y: f64, anchor: &str, class: &str, content: &str) -> String {
    let content = escaped(content);
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" class=\"{class}\">{content}</text>\n")
}

fn bar(y: f64, width: f64, class: &str, label: &str) -> String {
    let end = LEFT + width + 5.0;
    format!("<rect x=\"{LEFT}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{BAR}\" class=\"{class}\"/>\n")
        + &text(end, y + BAR - 2.5, "start", "value", label)
}

/// The chart of a group; `None` where nothing was measured in it.
pub(super) fn chart(report: &Report, group: &str) -> Option<String> {
    let rows: Vec<&Row> = report.rows.iter().filter(|row| row.group == group && row.ours().is_some()).collect();
    let values = rows.iter().flat_map(|row| [row.ours(), row.peer(), row.bound.as_ref().map(|b| b.0)]).flatten();
    let (least, most) = values.filter(|v| *v > 0.0).fold((f64::INFINITY, 0f64), |(l, m), v| (l.min(v), m.max(v)));
    if rows.is_empty() || !least.is_finite() {
        return None;
    }
    let (low, high) = ((least / 2.0).log10().floor(), most.log10().ceil());
    let along = |value: f64| ((value.log10() - low) / (high - low).max(1.0)).clamp(0.0, 1.0) * WIDTH;
    let (width, height) = (LEFT + WIDTH + RIGHT, TOP + STEP * rows.len() as f64 + 30.0);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\">\n\
         <style>text{{font:12px sans-serif;fill:#222}}.title{{font-size:15px;font-weight:bold}}.small,.value{{font-size:11px;fill:#555}}\
         .ours{{fill:#1b7f5c}}.peer{{fill:#c9803a}}.grid{{stroke:#ddd}}.limit{{stroke:#333;stroke-width:2}}</style>\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>\n"
    );
    out += &text(12.0, 22.0, "start", "title", &format!("{group}: less is better, logarithmic"));
    out += &text(12.0, 40.0, "start", "small", &report.machine.line());
    out += &format!("<rect x=\"{LEFT}\" y=\"46\" width=\"10\" height=\"10\" class=\"ours\"/>\n");
    out += &text(LEFT + 14.0, 55.0, "start", "small", "ours");
    out += &format!("<rect x=\"{:.1}\" y=\"46\" width=\"10\" height=\"10\" class=\"peer\"/>\n", LEFT + 60.0);
    out += &text(LEFT + 74.0, 55.0, "start", "small", "peer");
    out += &text(LEFT + 120.0, 55.0, "start", "small", "| the machine's or device's limit");
    let mut decade = low;
    while decade <= high {
        let x = LEFT + along(10f64.powf(decade));
        out +=
            &format!("<line x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{:.1}\" class=\"grid\"/>\n", height - 26.0);
        out += &text(x, height - 12.0, "middle", "small", &format!("1e{decade}"));
        decade += 1.0;
    }
    for (i, row) in rows.iter().enumerate() {
        let y = TOP + STEP * i as f64 + 4.0;
        out += &text(LEFT - 8.0, y + BAR, "end", "name", &format!("{}, {}", row.name, row.unit));
        if let Some(ours) = row.ours() {
            out += &bar(y, along(ours), "ours", &figure(ours));
        }
        if let Some(peer) = row.peer() {
            let ratio = row.ratio().map_or(String::new(), |ratio| format!(" ({}x)", figure(ratio)));
            out += &bar(y + BAR + 1.0, along(peer), "peer", &format!("{}{ratio}", figure(peer)));
        }
        if let Some((limit, _)) = &row.bound {
            let x = LEFT + along(*limit);
            let (from, to) = (y - 2.0, y + BAR + 2.0);
            out += &format!("<line x1=\"{x:.1}\" y1=\"{from:.1}\" x2=\"{x:.1}\" y2=\"{to:.1}\" class=\"limit\"/>\n");
        }
    }
    Some(out + "</svg>\n")
}
