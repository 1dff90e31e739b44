//! The table of `--timing`.

use crate::device::Loaded;
use crate::error::one_line;
use runtime::Outcome;
use runtime::model::{Projection, Stage};

/// Where the time of a turn went.
pub(super) fn text(outcome: &Outcome, pictures: usize, loaded: &Loaded, total: f64) -> String {
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
    out += &row("prompt", outcome.prompt_tokens - outcome.reused_tokens, "tokens", prefill);
    if outcome.reused_tokens > 0 {
        out += &format!("reused     {:>7} tokens of the prompt were there\n", outcome.reused_tokens);
    }
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
