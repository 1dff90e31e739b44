//! A conversation: one prompt, or one after another.

use crate::arguments::{PromptSource, TalkOptions};
use crate::device::{self, Loaded};
use crate::error::{CliError, one_line};
use crate::interrupt::Interrupt;
use crate::output::{ProgressLine, answer, note, table};
use crate::picture;
use crate::prompt::{self, Line};
use runtime::image::Rgb;
use runtime::model::{Projection, Stage, Trace};
use runtime::{Event, Outcome, Stop, Turn};
use std::fs::File;
use std::io::{BufWriter, IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

/// Events of a trace: 32 MB of them, some minutes of an answer. What comes later is counted.
const TRACED: usize = 1 << 20;

/// Answers what `talk` asks with the model in `bundle`.
pub(crate) fn run(bundle: &Path, talk: &TalkOptions) -> Result<(), CliError> {
    let interrupt = Interrupt::install();
    if let Some(path) = &talk.trace {
        // Now, not after the answer.
        File::create(path).map_err(|source| CliError::Trace { path: path.clone(), source })?;
    }
    // What can be wrong without a model is said before one is loaded.
    let prompt = match &talk.prompt {
        PromptSource::Text(text) => Some(text.clone()),
        PromptSource::File(path) => Some(prompt::read(path)?),
        PromptSource::Interactive => None,
    };
    let Some(prompt) = prompt else {
        let mut loaded = device::load(bundle, &talk.run, true)?;
        begin_trace(&mut loaded, talk);
        return session(&mut loaded, talk, &interrupt);
    };
    if prompt.trim().is_empty() && talk.images.is_empty() {
        let from = match &talk.prompt {
            PromptSource::File(path) if path != Path::new("-") => path.display().to_string(),
            PromptSource::File(_) => "standard input".into(),
            _ => "the command line".into(),
        };
        return Err(CliError::Prompt { from, what: "it is empty".into() });
    }
    let pictures = picture::read_all(&talk.images)?;
    let mut loaded = device::load(bundle, &talk.run, !pictures.is_empty())?;
    begin_trace(&mut loaded, talk);
    let turn = Turn {
        system: talk.system.as_deref(),
        images: &pictures,
        text: &prompt,
        thinking: talk.thinking,
        max_new: talk.max_new,
    };
    one(&mut loaded, &turn, talk, &interrupt)
}

/// Prompts from standard input, each on its own. What goes wrong with one costs that one.
fn session(loaded: &mut Loaded, talk: &TalkOptions, interrupt: &Interrupt) -> Result<(), CliError> {
    let human = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
    let mut extra: Vec<Rgb> = Vec::new();
    // A picture that could not be read costs the turn it was meant for, unless another is shown instead.
    let mut missing = None;
    loop {
        if human {
            table("> ");
        }
        let line = match prompt::next_line() {
            Ok(None) => return Ok(()),
            Ok(Some(line)) => line,
            Err(_) if interrupt.asked() => return Err(CliError::Interrupted),
            Err(error) => {
                note(&error);
                continue;
            }
        };
        let text = match line {
            Line::Blank => continue,
            Line::Image(path) => {
                // Read now, so that what is wrong is said now.
                match picture::read_all(std::slice::from_ref(&path)) {
                    Ok(pictures) => {
                        extra.extend(pictures);
                        missing = None;
                    }
                    Err(error) => {
                        note(&error);
                        missing = Some(path);
                    }
                }
                continue;
            }
            Line::Prompt(text) => text,
        };
        let shown = std::mem::take(&mut extra);
        if let Some(path) = missing.take() {
            note(&CliError::Picture {
                path,
                what: "it was meant for this prompt, which is not answered without".into(),
            });
            continue;
        }
        // Read for every turn: the file may be a camera's latest picture.
        let turned = picture::read_all(&talk.images).and_then(|mut pictures| {
            pictures.extend(shown);
            let turn = Turn {
                system: talk.system.as_deref(),
                images: &pictures,
                text: &text,
                thinking: talk.thinking,
                max_new: talk.max_new,
            };
            one(loaded, &turn, talk, interrupt)
        });
        match turned {
            Ok(()) => {}
            Err(error @ (CliError::Closed | CliError::Output(_))) => return Err(error),
            // Commands that may still run own the model's buffers: no later turn could be trusted.
            Err(error) if error.ends_session() => return Err(error),
            Err(error) => note(&error),
        }
    }
}

/// One turn, its text to standard output as it comes.
fn one(loaded: &mut Loaded, turn: &Turn<'_>, talk: &TalkOptions, interrupt: &Interrupt) -> Result<(), CliError> {
    let mut progress = ProgressLine::new();
    let mut failed = None;
    let mut fresh = true;
    let start = Instant::now();
    let outcome = interrupt.guarded(|| {
        loaded.chat.turn(turn, &mut |event| {
            match event {
                Event::Patches { index, done, total } => {
                    let what = format!("looking at picture {} of {}", index + 1, turn.images.len());
                    progress.share(&what, done as u64, total as u64);
                }
                Event::Tower { done, total } => progress.bytes("loading the vision tower", done, total),
                Event::Image { .. } => {}
                Event::Prompt { done, total } => progress.share("reading the prompt", done as u64, total as u64),
                Event::Text(text) => {
                    progress.clear();
                    fresh = text.ends_with('\n');
                    failed = answer(text).err();
                }
                _ => {}
            }
            if interrupt.asked() || failed.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
    });
    progress.clear();
    write_trace(loaded, talk)?;
    if let Some(error) = failed {
        return Err(error);
    }
    let outcome = outcome?;
    if !fresh {
        answer("\n")?;
    }
    match outcome.stop {
        Stop::Token(_) => {}
        Stop::Budget => note(&format_args!("the answer was cut at {} tokens (--max-new)", outcome.tokens.len())),
        Stop::Context => note(&format_args!("the answer was cut: the context is full (--max-ctx)")),
        Stop::Cancelled => return Err(CliError::Interrupted),
        other => note(&format_args!("the answer ended: {other:?}")),
    }
    if talk.run.timing {
        table(&timing(&outcome, turn.images.len(), loaded, start.elapsed().as_secs_f64()));
    }
    Ok(())
}

fn begin_trace(loaded: &mut Loaded, talk: &TalkOptions) {
    if talk.trace.is_some() {
        loaded.chat.model_mut().set_trace(Some(Trace::new(TRACED)));
    }
}

/// Writes what has been recorded so far, over what was written before: when it is interrupted, the turns before are there.
fn write_trace(loaded: &mut Loaded, talk: &TalkOptions) -> Result<(), CliError> {
    let Some(path) = &talk.trace else { return Ok(()) };
    let model = loaded.chat.model_mut();
    let Some(trace) = model.set_trace(None) else { return Ok(()) };
    let written = File::create(path).and_then(|file| {
        let mut out = BufWriter::new(file);
        trace.write(&mut out)?;
        out.flush()
    });
    if trace.lost() > 0 {
        note(&format_args!("--trace: there was no room for the last {} events", trace.lost()));
    }
    model.set_trace(Some(trace));
    written.map_err(|source| CliError::Trace { path: path.clone(), source })
}

/// The table of `--timing`.
fn timing(outcome: &Outcome, pictures: usize, loaded: &Loaded, total: f64) -> String {
    let timing = &outcome.timing;
    let [vision, prefill, decode] = [timing.vision, timing.prefill, timing.decode].map(|d| d.as_secs_f64());
    let rate = |count: usize, seconds: f64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
    let row = |what: &str, count: usize, of: &str, seconds: f64| {
        format!("{what:<10} {count:>7} {of:<8} {seconds:9.3} s {:9.2} /s\n", rate(count, seconds))
    };
    let counters = &timing.counters;
    let mut out = format!("device     {}\n", one_line(&loaded.device));
    out += &format!("load       {:>26.3} s\n", loaded.seconds);
    if let Some(why) = loaded.chat.model().fallback() {
        out += &format!("fallback   one command at a time: {why}\n");
    }
    let (head, down) = loaded.chat.model().shared();
    if head + down > 0 {
        out += &format!("by host    {head} parts of the head, {down} slices of each down\n");
    }
    out += &row("pictures", pictures, "", vision);
    out += &row("prompt", outcome.prompt_tokens, "tokens", prefill);
    out += &row("answer", timing.steps, "steps", decode);
    let guesses = &timing.guesses;
    if guesses.runs > 0 {
        out += &format!(
            "guesses    {} of {} accepted, in {} runs of {:.3} s; {} single steps of {:.3} s\n",
            guesses.accepted,
            guesses.guessed,
            guesses.runs,
            guesses.run_time.as_secs_f64(),
            guesses.steps,
            guesses.step_time.as_secs_f64()
        );
    }
    out += &format!("turn       {total:>26.3} s\n");
    let profile = &timing.profile;
    for (stage, (count, time)) in Stage::ALL.map(|stage| (stage, profile.stage(stage))) {
        if count > 0 {
            out += &format!("  {:<16} {count:>7} times  {:9.3} s\n", stage.name(), time.as_secs_f64());
        }
    }
    for (projection, asked) in Projection::ALL.map(|projection| (projection, profile.projection(projection))) {
        if asked.commands + asked.taken > 0 {
            let (name, waited) = (projection.name(), asked.waited.as_secs_f64());
            out += &format!("  {name:<16} {:>7} commands {waited:7.3} s waited", asked.commands);
            if asked.taken > 0 {
                out += &format!(", {} parts by the host", asked.taken);
            }
            out.push('\n');
        }
    }
    out += &format!(
        "overlap    {:.3} s of work while commands were in flight, of {:.3} s\n",
        profile.overlap().as_secs_f64(),
        profile.in_flight().as_secs_f64()
    );
    out += &format!(
        "commands   {}, with {} ioctls and {:.3} s of waiting; {} context switches\n",
        counters.commands,
        counters.ioctls,
        counters.waiting.as_secs_f64(),
        counters.context_switches
    );
    if let Some(model) = &loaded.model {
        let counts = model.counts();
        let ioctls: Vec<String> = counts.ioctls.iter().map(|(name, count)| format!("{name} {count}")).collect();
        out += &format!("driver     {}\n", ioctls.join(", "));
        out += &format!(
            "moved      {} bytes read, {} written by the array; {} bytes of cache lines written back\n",
            counts.bytes_read, counts.bytes_written, counts.flushed_bytes
        );
    }
    out
}
