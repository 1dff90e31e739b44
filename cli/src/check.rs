//! `check`: the bundle's reference runs.

use crate::arguments::RunOptions;
use crate::device;
use crate::error::CliError;
use crate::interrupt::Interrupt;
use crate::output::{ProgressLine, answer, table};
use runtime::check::{CaseReport, IMAGE_COSINE, REAL_MARGIN, Report};
use serde_json::{Value, json};
use std::path::Path;

/// Of the report in JSON; counts up when a field changes its meaning or goes.
const VERSION: u32 = 1;

pub(crate) fn run(bundle: &Path, json: bool, options: &RunOptions) -> Result<(), CliError> {
    let _interrupt = Interrupt::install();
    if device::open(bundle)?.manifest.refs.is_empty() {
        return Err(CliError::NoReferences(bundle.to_owned()));
    }
    let mut loaded = device::load(bundle, options, true)?;
    let mut line = ProgressLine::new();
    let report = runtime::check::run(&mut loaded.chat, &mut |name| line.show(|| format!("checking {name}")))?;
    line.clear();
    if json {
        answer(&format!("{:#}\n", as_json(&loaded.device, &report)))?;
    } else {
        answer(&format!("on {}\n{report}", loaded.device))?;
        if !report.to_string().ends_with('\n') {
            answer("\n")?;
        }
    }
    if options.timing {
        let counters = loaded.chat.counters();
        table(&format!(
            "load {:.3} s, {} commands, {} ioctls for them, {} context switches\n",
            loaded.seconds, counters.commands, counters.ioctls, counters.context_switches
        ));
    }
    if report.passed() { Ok(()) } else { Err(CliError::CheckFailed) }
}

fn as_json(device: &str, report: &Report) -> Value {
    json!({
        "version": VERSION,
        "device": device,
        "passed": report.passed(),
        "limits": {"margin": REAL_MARGIN, "cosine": IMAGE_COSINE},
        "tokenizer": {"cases": report.tokenizer_cases, "wrong": report.tokenizer_wrong},
        "cases": report.cases.iter().map(case).collect::<Vec<_>>(),
    })
}

/// A difference that is no number came of logits that are none; JSON has no word for it but null.
fn case(case: &CaseReport) -> Value {
    if case.skipped {
        return json!({"name": case.name, "skipped": true});
    }
    let flips = case.flips.iter().map(|flip| {
        json!({
            "step": flip.step, "expected": flip.expected, "chosen": flip.chosen, "margin": flip.margin,
            "counts": flip.margin >= REAL_MARGIN,
        })
    });
    let images = case.images.map(|images| {
        json!({
            "patches_equal": images.patches_equal, "cosine": images.cosine, "relative_rms": images.relative_rms,
        })
    });
    json!({
        "name": case.name,
        "skipped": false,
        "passed": case.passed(),
        "prompt_tokens": case.prompt_tokens,
        "prompt_equal": case.prompt_equal,
        "positions_equal": case.positions_equal,
        "images": images,
        "steps": case.steps,
        "top1_equal": case.top1_equal(),
        "free_prefix": case.free_prefix(),
        "flips": flips.collect::<Vec<_>>(),
        "max_dlogit": case.max_dlogit,
        "prefill_seconds": case.prefill.as_secs_f64(),
        "step_seconds": case.step.as_secs_f64(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::check::{Flip, ImageReport};

    #[test]
    fn a_report_says_the_same_in_json() {
        let image = ImageReport { patches_equal: true, cosine: 0.5, relative_rms: 0.25 };
        let seen = CaseReport {
            name: "a".into(),
            prompt_tokens: 9,
            prompt_equal: true,
            images: Some(image),
            steps: 4,
            flips: vec![Flip { step: 2, expected: 7, chosen: 8, margin: 0.5 }],
            max_dlogit: f32::INFINITY,
            ..CaseReport::default()
        };
        let skipped = CaseReport { name: "b".into(), skipped: true, ..CaseReport::default() };
        let report = Report { tokenizer_cases: 3, tokenizer_wrong: vec!["x".into()], cases: vec![seen, skipped] };
        let found = as_json("somewhere", &report);
        assert_eq!(found["passed"], false);
        assert_eq!(found["tokenizer"], json!({"cases": 3, "wrong": ["x"]}));
        let one = &found["cases"][0];
        assert_eq!((&one["steps"], &one["top1_equal"], &one["free_prefix"]), (&json!(4), &json!(3), &json!(2)));
        let flip = json!({"step": 2, "expected": 7, "chosen": 8, "margin": 0.5, "counts": true});
        assert_eq!(one["flips"], json!([flip]));
        assert_eq!(one["images"]["cosine"], 0.5);
        assert_eq!((&one["max_dlogit"], &one["positions_equal"]), (&Value::Null, &Value::Null));
        assert_eq!(found["cases"][1], json!({"name": "b", "skipped": true}));
    }
}
