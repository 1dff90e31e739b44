//! `eval`: the perplexity of a text.

use crate::arguments::RunOptions;
use crate::device;
use crate::error::CliError;
use crate::interrupt::Interrupt;
use crate::output::{ProgressLine, answer};
use runtime::{ChatError, eval, files};
use serde_json::json;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

pub(crate) fn run(bundle: &Path, file: &Path, json: bool, options: &RunOptions) -> Result<(), CliError> {
    let interrupt = Interrupt::install();
    let wrong = |what: String| CliError::Text { path: file.to_owned(), what };
    let text = files::read(file).map_err(|error| wrong(error.to_string()))?;
    let text = String::from_utf8(text)
        .map_err(|error| wrong(format!("byte {} is not UTF-8 text", error.utf8_error().valid_up_to())))?;
    let mut loaded = device::load(bundle, options, false)?;
    let ids = loaded.chat.tokenizer().encode(&text)?;
    if ids.len() < 2 {
        return Err(wrong(format!("{} tokens; a text of two or more is needed", ids.len())));
    }
    let mut line = ProgressLine::new();
    let started = Instant::now();
    let found = interrupt.guarded(|| {
        eval::run(loaded.chat.model_mut(), &ids, options.max_ctx, &mut |done| {
            line.share("foretelling", done as u64, ids.len() as u64);
            if interrupt.asked() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
    });
    line.clear();
    let Some(found) = found.map_err(ChatError::from)? else { return Err(CliError::Interrupted) };
    let seconds = started.elapsed().as_secs_f64();
    let per_byte = found.loss / std::f64::consts::LN_2 / text.len() as f64;
    if json {
        return answer(&format!(
            "{:#}\n",
            json!({
                "device": loaded.device, "tokens": found.tokens, "predicted": found.predicted, "bytes": text.len(),
                "loss": found.loss, "perplexity": found.perplexity(), "bits_per_byte": per_byte, "seconds": seconds,
            })
        ));
    }
    answer(&format!(
        "perplexity {:.4}, {per_byte:.4} bits a byte; {} of {} tokens foretold in {seconds:.1} s on {}\n",
        found.perplexity(),
        found.predicted,
        found.tokens,
        loaded.device
    ))
}
