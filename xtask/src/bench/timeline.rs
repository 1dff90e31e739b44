//! `cargo xtask bench --timeline DIR`: one token, one prompt and one picture on the timing device, as a drawing of what
//! the host and the NPU did when, and as a table of where the time went.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use npu_model::{Config, Model as Device, Timing};
use runtime::LoadOptions;
use runtime::bundle::Bundle;
use runtime::model::{Input, Model, Profile, Stage, Trace};
use runtime::npu::Npu;
use serde_json::Value;

use super::host::GRID;
use super::ours::{drawn, id};

/// Events of a prompt or a picture.
const EVENTS: usize = 1 << 20;
const PROMPT: usize = 778;
const CONTEXT: usize = 1024;

/// One thing that was watched.
struct Watched {
    name: &'static str,
    file: &'static str,
    svg: String,
    profile: Profile,
    total: f64,
}

/// Watches all three and writes `timeline.md` and a drawing of each.
///
/// # Errors
/// What could not be loaded, run or written.
pub(super) fn run(bundle: &Path, folder: &Path) -> Result<(), String> {
    let watched = [token(bundle)?, prompt(bundle)?, picture(bundle)?];
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
    };
    for one in &watched {
        write(one.file, &one.svg)?;
    }
    let text = report(&watched);
    write("timeline.md", &text)?;
    crate::print(&text);
    Ok(())
}

/// The table of where the time went, and the drawings.
fn report(watched: &[Watched]) -> String {
    let mut out = "# Where the time goes\n\n`cargo xtask bench --timeline docs/bench`: the 2B model on the timing device \
                   (65 us a command, 50 GB/s, 12 * 10^12 operations a second), the second of its kind after loading. Milliseconds \
                   of the host's main thread.\n\n| stage |"
        .to_owned();
    for one in watched {
        out += &format!(" {} |", one.name);
    }
    out += &format!("\n|---|{}\n", "---|".repeat(watched.len()));
    for stage in Stage::ALL {
        let times: Vec<f64> = watched.iter().map(|one| 1e3 * one.profile.stage(stage).1.as_secs_f64()).collect();
        if times.iter().any(|ms| *ms >= 0.001) {
            out += &format!("| {} |", stage.name());
            times.iter().for_each(|ms| out += &format!(" {ms:.2} |"));
            out += "\n";
        }
    }
    out += "| **all** |";
    watched.iter().for_each(|one| out += &format!(" **{:.2}** |", one.total));
    out += "\n\nIn the drawings a command of the NPU begins where the one before it ended, if it had been handed over by then.\n";
    for one in watched {
        out += &format!("\n![{}]({})\n", one.name, one.file);
    }
    out
}

fn load(bundle: &Path, vision: bool) -> Result<Model, String> {
    let device = Device::new(Config { timing: Some(Timing::default()), ..Config::default() });
    let npu = Npu::open(&*device, Path::new("/dev/accel/accel0")).map_err(|error| error.to_string())?;
    let bundle = Bundle::open(bundle).map_err(|error| error.to_string())?;
    let options = LoadOptions { max_ctx: 4096, vision, ..LoadOptions::default() };
    Model::load(bundle, npu, &options, &mut |_| {}).map_err(|error| error.to_string())
}

/// Runs something and looks at it.
fn watch(
    model: &mut Model,
    (name, file): (&'static str, &'static str),
    run: impl FnOnce(&mut Model) -> Result<(), String>,
) -> Result<Watched, String> {
    let before = model.profile();
    model.set_trace(Some(Trace::new(EVENTS)));
    let started = std::time::Instant::now();
    run(model)?;
    let total = 1e3 * started.elapsed().as_secs_f64();
    let trace = model.set_trace(None).ok_or("the trace is gone")?;
    let mut json = Vec::new();
    trace.write(&mut json).map_err(|error| error.to_string())?;
    let json: Value = serde_json::from_slice(&json).map_err(|error| error.to_string())?;
    let svg = draw(&format!("{name}: {total:.1} ms"), &json);
    Ok(Watched { name, file, svg, profile: model.profile().since(&before), total })
}

fn fill(model: &mut Model, tokens: usize) -> Result<(), String> {
    let words = |error: runtime::model::ModelError| error.to_string();
    let ids: Vec<u32> = (0..tokens).map(id).collect();
    model.reset();
    let positions = model.positions(&ids, &[]).map_err(words)?;
    let input = Input { ids: &ids, positions: &positions, vision: &[] };
    model.prefill(&input, &mut |_| ControlFlow::Continue(())).map_err(words)?;
    model.logits().map(|_| ()).map_err(words)
}

fn token(bundle: &Path) -> Result<Watched, String> {
    let mut model = load(bundle, false)?;
    fill(&mut model, CONTEXT)?;
    let decode = |model: &mut Model| {
        let logits = model.decode(id(1)).map_err(|error| error.to_string())?;
        std::hint::black_box(host_ops::sample::argmax(logits));
        Ok(())
    };
    for _ in 0..8 {
        decode(&mut model)?;
    }
    watch(&mut model, ("a token at 1024", "token.svg"), decode)
}

fn prompt(bundle: &Path) -> Result<Watched, String> {
    let mut model = load(bundle, false)?;
    fill(&mut model, PROMPT)?;
    watch(&mut model, ("a prompt of 778 tokens", "prompt.svg"), |model| fill(model, PROMPT))
}

fn picture(bundle: &Path) -> Result<Watched, String> {
    let mut model = load(bundle, true)?;
    let patches = model.prepare(&drawn(GRID)).map_err(|error| error.to_string())?;
    let encode = |model: &mut Model| model.encode(&patches).map(|_| ()).map_err(|error| error.to_string());
    encode(&mut model)?;
    watch(&mut model, ("a picture of 1040 patches", "picture.svg"), encode)
}

const LEFT: f64 = 60.0;
const WIDTH: f64 = 1100.0;
const TRACK: f64 = 34.0;
const TOP: f64 = 34.0;
/// What is narrower is drawn with its neighbours.
const LEAST: f64 = 0.15;
const COLOURS: [&str; 12] = [
    "#1b7f5c", "#c9803a", "#3b6ea8", "#a83b5e", "#7d5ba6", "#5c8a1b", "#b8a000", "#4aa3a2", "#8c6d46", "#d0607f",
    "#5b5b8f", "#909090",
];

/// A stretch of time on a track, in microseconds.
#[derive(Clone, Debug, PartialEq)]
struct Span {
    name: String,
    from: f64,
    to: f64,
}

/// Stages of the host and commands of the NPU out of Chrome's trace events.
fn spans(trace: &Value) -> [Vec<Span>; 2] {
    let (mut host, mut npu): (Vec<Span>, Vec<Span>) = (Vec::new(), Vec::new());
    let mut last = 0.0f64;
    let mut begun = std::collections::BTreeMap::new();
    for event in trace["traceEvents"].as_array().into_iter().flatten() {
        let (name, at) = (event["name"].as_str().unwrap_or_default(), event["ts"].as_f64().unwrap_or_default());
        match event["ph"].as_str() {
            Some("X") => {
                let to = at + event["dur"].as_f64().unwrap_or_default();
                host.push(Span { name: name.to_owned(), from: at, to });
            }
            Some("b") => {
                begun.insert(event["id"].as_u64(), at);
            }
            Some("e") => {
                if let Some(from) = begun.remove(&event["id"].as_u64()) {
                    npu.push(Span { name: name.to_owned(), from: from.max(last).min(at), to: at });
                    last = last.max(at);
                }
            }
            _ => {}
        }
    }
    // A stage is told when it ends, so one inside of another comes first.
    host.sort_by(|a, b| a.from.total_cmp(&b.from));
    [host, npu]
}

/// Both tracks as an SVG.
fn draw(title: &str, trace: &Value) -> String {
    let tracks = spans(trace);
    let all = || tracks.iter().flatten();
    let (start, end) = all().fold((f64::INFINITY, 0f64), |(from, to), span| (from.min(span.from), to.max(span.to)));
    let scale = WIDTH / (end - start).max(1.0);
    let mut names: Vec<&str> = Vec::new();
    for span in all() {
        if !names.contains(&span.name.as_str()) {
            names.push(&span.name);
        }
    }
    let colour = |name: &str| match name {
        "wait" => "#e4e4e4",
        _ => COLOURS[names.iter().position(|known| *known == name).unwrap_or(0) % COLOURS.len()],
    };
    let rows = names.len().div_ceil(8) as f64;
    let height = TOP + 2.0 * TRACK + 34.0 + 16.0 * rows;
    let full = LEFT + WIDTH + 40.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{full}\" height=\"{height}\" viewBox=\"0 0 {full} {height}\">\n\
         <style>text{{font:12px sans-serif;fill:#222}}</style>\n<rect width=\"{full}\" height=\"{height}\" fill=\"#fff\"/>\n\
         <text x=\"12\" y=\"20\" font-weight=\"bold\">{title}</text>\n"
    );
    for (at, (name, track)) in ["host", "NPU"].into_iter().zip(&tracks).enumerate() {
        let y = TOP + TRACK * at as f64;
        out += &format!("<text x=\"12\" y=\"{:.0}\">{name}</text>\n", y + 18.0);
        let mut drawn = f64::NEG_INFINITY;
        for span in track {
            let (from, to) = (LEFT + (span.from - start) * scale, LEFT + (span.to - start) * scale);
            // A sliver inside what has been drawn already would not be seen.
            if to - drawn < LEAST {
                continue;
            }
            let from = from.max(drawn);
            out += &format!(
                "<path d=\"M{from:.2} {y:.0}V{:.0}H{to:.2}V{y:.0}z\" fill=\"{}\"/>\n",
                y + TRACK - 8.0,
                colour(&span.name)
            );
            drawn = to;
        }
    }
    let axis = TOP + 2.0 * TRACK;
    for tick in 0..=10 {
        let x = LEFT + WIDTH * f64::from(tick) / 10.0;
        let ms = (end - start).max(0.0) / 1e4 * f64::from(tick);
        out += &format!("<text x=\"{x:.0}\" y=\"{:.0}\" text-anchor=\"middle\">{ms:.1} ms</text>\n", axis + 12.0);
    }
    for (at, name) in names.iter().enumerate() {
        let (x, y) = (LEFT + 138.0 * (at % 8) as f64, axis + 22.0 + 16.0 * (at / 8) as f64);
        out += &format!("<rect x=\"{x:.0}\" y=\"{y:.0}\" width=\"10\" height=\"10\" fill=\"{}\"/>\n", colour(name));
        out += &format!("<text x=\"{:.0}\" y=\"{:.0}\">{name}</text>\n", x + 14.0, y + 9.0);
    }
    out + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_command_begins_where_the_one_before_it_ended() {
        let trace = json!({"traceEvents": [
            {"ph": "M", "name": "thread_name"},
            {"ph": "X", "name": "submit", "ts": 2.0, "dur": 0.5},
            {"ph": "X", "name": "norm", "ts": 1.0, "dur": 2.0},
            {"ph": "b", "id": 1, "name": "gu", "ts": 3.0},
            {"ph": "b", "id": 2, "name": "down", "ts": 4.0},
            {"ph": "e", "id": 1, "name": "gu", "ts": 10.0},
            {"ph": "e", "id": 2, "name": "down", "ts": 15.0},
        ]});
        let span = |name: &str, from, to| Span { name: name.to_owned(), from, to };
        let [host, npu] = spans(&trace);
        assert_eq!(host, [span("norm", 1.0, 3.0), span("submit", 2.0, 2.5)]);
        assert_eq!(npu, [span("gu", 3.0, 10.0), span("down", 10.0, 15.0)]);
        let svg = draw("t", &trace);
        assert_eq!(svg.matches("<path").count(), 3);
        assert!(!draw("nothing", &json!({})).contains("NaN"));
    }
}
