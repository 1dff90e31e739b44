//! The references of a bundle: does this machine say what transformers said?
//!
//! A reference is a prompt, what transformers answered in float32, and the logits that it chose by. The answer is
//! replayed with its own tokens, so that one different choice does not spoil the rest. Weights in blocks of 8 bits make
//! near ties fall either way; a different choice counts only where the reference was sure ([`REAL_MARGIN`]).

use std::fmt;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use crate::bundle::{BundleError, DType, RefRecord};
use crate::chat::{Chat, ChatError, Prompt, Turn};
use crate::image::Rgb;
use crate::model::Input;
use crate::npu::Counters;

/// A flip counts where the reference's first two logits are at least this far apart.
pub const REAL_MARGIN: f32 = 0.5;
/// An image's embedding has to be at least this near to the reference's: the bar that the exporter of the published
/// bundles holds its own kernels to.
pub const IMAGE_COSINE: f64 = 0.999;
/// Patches have to be at least this near.
pub const PATCH_DIFFERENCE: f32 = 1e-6;

/// One step of a reference whose first choice differed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flip {
    /// Step, from 0.
    pub step: usize,
    /// What the reference chose.
    pub expected: u32,
    /// What this run chose.
    pub chosen: u32,
    /// How far apart the reference's first two logits were.
    pub margin: f32,
}

/// How the pictures of a reference came out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ImageReport {
    /// All grids and patches were the reference's.
    pub patches_equal: bool,
    /// Lowest cosine between a picture's rows and the reference's.
    pub cosine: f64,
    /// Largest root of the mean square difference, in units of the reference's.
    pub relative_rms: f64,
}

/// How one reference came out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CaseReport {
    /// Its name in the bundle.
    pub name: String,
    /// It was not run, since its pictures need a vision tower that was not loaded.
    pub skipped: bool,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Whether the template and the tokenizer gave the reference's prompt.
    pub prompt_equal: bool,
    /// Whether the rotary positions were the reference's, where it recorded them.
    pub positions_equal: Option<bool>,
    /// Its pictures, if it has any.
    pub images: Option<ImageReport>,
    /// Steps that were compared.
    pub steps: usize,
    /// Steps whose first choice differed.
    pub flips: Vec<Flip>,
    /// Largest difference of a logit among the reference's top k.
    pub max_dlogit: f32,
    /// Time of the prompt, to the first logits.
    pub prefill: Duration,
    /// Time of a decode step.
    pub step: Duration,
    /// What the prompt asked of the device.
    pub prompt_counters: Counters,
    /// What a decode step asked of the device.
    pub step_counters: Counters,
}

impl CaseReport {
    /// Steps with the reference's first choice.
    #[must_use]
    pub fn top1_equal(&self) -> usize {
        self.steps - self.flips.len()
    }

    /// Tokens that a free greedy run has in common with the reference from the start: up to its first flip both runs
    /// are the same.
    #[must_use]
    pub fn free_prefix(&self) -> usize {
        self.flips.first().map_or(self.steps, |f| f.step)
    }

    /// Flips where the reference was sure.
    pub fn real_flips(&self) -> impl Iterator<Item = &Flip> {
        self.flips.iter().filter(|f| f.margin >= REAL_MARGIN)
    }

    /// Whether everything that has to agree does.
    #[must_use]
    pub fn passed(&self) -> bool {
        let images = self.images.is_none_or(|i| i.patches_equal && i.cosine >= IMAGE_COSINE);
        let positions = self.positions_equal != Some(false);
        self.skipped || (self.prompt_equal && positions && images && self.real_flips().next().is_none())
    }
}

/// How all references came out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Tokenizer cases.
    pub tokenizer_cases: usize,
    /// Their texts whose tokens differ.
    pub tokenizer_wrong: Vec<String>,
    /// The reference runs.
    pub cases: Vec<CaseReport>,
}

impl Report {
    /// Whether everything that has to agree does, and there was something to compare.
    #[must_use]
    pub fn passed(&self) -> bool {
        let compared = self.cases.iter().any(|c| !c.skipped);
        compared && self.tokenizer_wrong.is_empty() && self.cases.iter().all(CaseReport::passed)
    }
}

/// Runs every reference of the bundle that `chat` was loaded from; `progress` gets each case's name before it starts.
///
/// # Errors
/// Failures to run at all. A difference is no error: it is in the report.
pub fn run(chat: &mut Chat, progress: &mut dyn FnMut(&str)) -> Result<Report, ChatError> {
    let manifest = &chat.model().bundle().manifest;
    let (cases, refs) = (manifest.tokcases.clone(), manifest.refs.clone());
    let mut report = Report { tokenizer_cases: cases.len(), ..Report::default() };
    for case in cases {
        if chat.tokenizer().encode(&case.text)? != case.ids {
            report.tokenizer_wrong.push(case.text);
        }
    }
    for record in &refs {
        progress(&record.name);
        report.cases.push(run_case(chat, record)?);
    }
    Ok(report)
}

fn run_case(chat: &mut Chat, record: &RefRecord) -> Result<CaseReport, ChatError> {
    let mut report = CaseReport { name: record.name.clone(), ..CaseReport::default() };
    if record.images > 0 && !chat.sees() {
        report.skipped = true;
        return Ok(report);
    }
    let images = (0..record.images).map(|i| picture(chat, record, i)).collect::<Result<Vec<_>, _>>()?;
    let turn = Turn {
        system: record.system.as_deref(),
        images: &images,
        text: &record.prompt,
        thinking: record.thinking,
        max_new: 1,
    };
    let Some(prompt) = chat.prompt(&turn, &mut |_| ControlFlow::Continue(()))? else { return Ok(report) };
    let expected = tokens(chat, record, "ids")?;
    report.prompt_tokens = prompt.ids.len();
    report.prompt_equal = prompt.ids == expected;
    report.positions_equal = positions(chat, record, &prompt)?;
    if !images.is_empty() {
        report.images = Some(compare_images(chat, record, &images, &prompt.vision)?);
    }
    replay(chat, record, &prompt, &mut report)?;
    Ok(report)
}

/// Prefill, then the reference's own tokens one by one.
fn replay(chat: &mut Chat, record: &RefRecord, prompt: &Prompt, report: &mut CaseReport) -> Result<(), ChatError> {
    let answer = tokens(chat, record, "tokens")?;
    let top_ids = tokens(chat, record, "top_ids")?;
    let top_logits = floats(chat, record, "top_logits")?;
    let k = top_ids.len().checked_div(answer.len()).unwrap_or(0);
    if k < 2 || top_ids.len() != k * answer.len() || top_logits.len() != top_ids.len() {
        let what = format!("{} ids and {} logits for {} steps", top_ids.len(), top_logits.len(), answer.len());
        return Err(malformed(record, "top_ids", what).into());
    }
    let model = chat.model_mut();
    let (counters, started) = (model.counters(), Instant::now());
    model.reset();
    let input = Input { ids: &prompt.ids, positions: &prompt.positions, vision: &prompt.vision };
    model.prefill(&input, &mut |_| ControlFlow::Continue(()))?;
    for (step, &expected) in answer.iter().enumerate() {
        let before = model.counters();
        let logits = match step {
            0 => model.logits()?,
            _ => model.decode(answer[step - 1])?,
        };
        let (ids, reference) = (&top_ids[step * k..][..k], &top_logits[step * k..][..k]);
        for (&id, reference) in ids.iter().zip(reference) {
            let difference = logits.get(id as usize).map_or(f32::INFINITY, |l| (l - reference).abs());
            report.max_dlogit = report.max_dlogit.max(if difference.is_nan() { f32::INFINITY } else { difference });
        }
        let chosen = host_ops::sample::argmax(logits).map_or(u32::MAX, |i| i as u32);
        if chosen != expected {
            report.flips.push(Flip { step, expected, chosen, margin: reference[0] - reference[1] });
        }
        if step == 0 {
            report.prefill = started.elapsed();
            report.prompt_counters = model.counters().since(&counters);
        } else {
            report.step_counters = model.counters().since(&before);
        }
    }
    report.steps = answer.len();
    let decodes = u32::try_from(answer.len().saturating_sub(1)).unwrap_or(u32::MAX).max(1);
    report.step = started.elapsed().saturating_sub(report.prefill) / decodes;
    Ok(())
}

fn positions(chat: &Chat, record: &RefRecord, prompt: &Prompt) -> Result<Option<bool>, ChatError> {
    if !chat.model().bundle().has_tensor(&record.tensor("positions")) {
        return Ok(None);
    }
    let expected = tokens(chat, record, "positions")?;
    let mut equal = prompt.positions.tokens.as_flattened() == expected;
    if chat.model().bundle().has_tensor(&record.tensor("next_pos")) {
        equal &= tokens(chat, record, "next_pos")? == [prompt.positions.next];
    }
    Ok(Some(equal))
}

fn compare_images(chat: &Chat, record: &RefRecord, images: &[Rgb], vision: &[f32]) -> Result<ImageReport, ChatError> {
    let mut report = ImageReport { patches_equal: true, cosine: 1.0, relative_rms: 0.0 };
    let mut rest = vision;
    for (index, image) in images.iter().enumerate() {
        let bundle = chat.model().bundle();
        let found = chat.prepare(image)?;
        let grid = bundle.i32s(&record.image_tensor("grid", index))?;
        let patches = bundle.f32s(&record.image_tensor("patches", index))?;
        let near = |(a, b): (&f32, &f32)| (a - b).abs() < PATCH_DIFFERENCE;
        report.patches_equal &= found.grid.map(|side| side as i64)[..]
            == *grid.iter().map(|&g| i64::from(g)).collect::<Vec<_>>()
            && found.data.len() == patches.len()
            && found.data.iter().zip(patches).all(near);
        let expected = bundle.f32s(&record.image_tensor("vision", index))?;
        let Some((rows, after)) = rest.split_at_checked(expected.len()) else {
            report.cosine = -1.0;
            continue;
        };
        rest = after;
        let (cosine, relative) = likeness(rows, expected);
        report.cosine = report.cosine.min(cosine);
        report.relative_rms = report.relative_rms.max(relative);
    }
    if !rest.is_empty() {
        report.cosine = -1.0;
    }
    Ok(report)
}

/// Cosine, and the root mean square of the difference in units of `b`'s.
fn likeness(a: &[f32], b: &[f32]) -> (f64, f64) {
    let (mut ab, mut aa, mut bb, mut difference) = (0.0, 0.0, 0.0, 0.0);
    for (&a, &b) in a.iter().zip(b) {
        let (a, b) = (f64::from(a), f64::from(b));
        (ab, aa, bb, difference) = (ab + a * b, aa + a * a, bb + b * b, difference + (a - b) * (a - b));
    }
    let cosine = if aa > 0.0 && bb > 0.0 { ab / (aa * bb).sqrt() } else { 0.0 };
    (cosine, if bb > 0.0 { (difference / bb).sqrt() } else { f64::INFINITY })
}

fn picture(chat: &Chat, record: &RefRecord, index: usize) -> Result<Rgb, ChatError> {
    let name = record.image_tensor("rgb", index);
    let tensor = chat.model().bundle().tensor(&name)?;
    match *tensor.shape {
        [height, width, 3] if tensor.dtype == DType::U8 => Ok(Rgb { width, height, data: tensor.bytes.to_vec() }),
        _ => Err(BundleError::Tensor { name, what: "wanted u8 [height, width, 3]".into() }.into()),
    }
}

fn tokens(chat: &Chat, record: &RefRecord, what: &str) -> Result<Vec<u32>, ChatError> {
    let values = chat.model().bundle().i32s(&record.tensor(what))?;
    let ids: Result<Vec<u32>, _> = values.iter().map(|&id| u32::try_from(id)).collect();
    ids.map_err(|_| malformed(record, what, "a negative number".into()).into())
}

fn floats(chat: &Chat, record: &RefRecord, what: &str) -> Result<Vec<f32>, ChatError> {
    Ok(chat.model().bundle().f32s(&record.tensor(what))?.to_vec())
}

fn malformed(record: &RefRecord, what: &str, found: String) -> BundleError {
    BundleError::Tensor { name: record.tensor(what), what: found }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let right = self.tokenizer_cases - self.tokenizer_wrong.len();
        writeln!(f, "tokenizer: {right} of {} texts as the reference", self.tokenizer_cases)?;
        for text in self.tokenizer_wrong.iter().take(5) {
            writeln!(f, "  differs: {text:?}")?;
        }
        let width = self.cases.iter().map(|c| c.name.len()).max().unwrap_or(0).max(4);
        writeln!(
            f,
            "{:width$}  tokens  prompt  positions  patches  cosine    top-1    max dlogit  free  s/prompt  ms/step  flips (margin)",
            "case"
        )?;
        for case in &self.cases {
            case.row(f, width)?;
        }
        let (steps, equal) =
            self.cases.iter().fold((0, 0), |(steps, equal), c| (steps + c.steps, equal + c.top1_equal()));
        let real: usize = self.cases.iter().map(|c| c.real_flips().count()).sum();
        writeln!(
            f,
            "top-1 {equal} of {steps}; {real} flips where the reference was sure (margin {REAL_MARGIN} or more)"
        )?;
        if self.cases.iter().any(|c| c.images.is_some()) {
            writeln!(f, "pictures pass with a cosine of {IMAGE_COSINE} or more")?;
        }
        if let Some(case) = self.cases.iter().find(|c| c.steps > 1) {
            let (prompt, step) = (case.prompt_counters, case.step_counters);
            writeln!(
                f,
                "a prompt takes {} commands in {} ioctls, a token {} in {}",
                prompt.commands, prompt.ioctls, step.commands, step.ioctls
            )?;
        }
        f.write_str(if self.passed() { "PASS" } else { "FAIL" })
    }
}

impl CaseReport {
    fn row(&self, f: &mut fmt::Formatter<'_>, width: usize) -> fmt::Result {
        if self.skipped {
            return writeln!(f, "{:width$}  skipped: it has pictures, and no vision tower is loaded", self.name);
        }
        let word = |equal: Option<bool>| match equal {
            Some(true) => "equal",
            Some(false) => "DIFFER",
            None => "-",
        };
        let cosine = self.images.map_or("-".to_owned(), |i| format!("{:.5}", i.cosine));
        let flips: Vec<String> = self.flips.iter().map(|f| format!("{:.3}", f.margin)).collect();
        writeln!(
            f,
            "{:width$}  {:>6}  {:6}  {:9}  {:7}  {cosine:8}  {:>2} of {:>2}  {:>10.5}  {:>4}  {:>8.2}  {:>7.1}  {}",
            self.name,
            self.prompt_tokens,
            word(Some(self.prompt_equal)),
            word(self.positions_equal),
            word(self.images.map(|i| i.patches_equal)),
            self.top1_equal(),
            self.steps,
            self.max_dlogit,
            self.free_prefix(),
            self.prefill.as_secs_f64(),
            self.step.as_secs_f64() * 1e3,
            flips.join(" ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flip(step: usize, margin: f32) -> Flip {
        Flip { step, expected: 1, chosen: 2, margin }
    }

    fn case() -> CaseReport {
        CaseReport { name: "a".into(), prompt_equal: true, steps: 4, ..CaseReport::default() }
    }

    #[test]
    fn a_flip_counts_only_where_the_reference_was_sure() {
        let near = CaseReport { flips: vec![flip(2, 0.499)], ..case() };
        assert!(near.passed());
        assert_eq!((near.top1_equal(), near.free_prefix()), (3, 2));
        assert!(!CaseReport { flips: vec![flip(0, 0.5)], ..case() }.passed());
    }

    #[test]
    fn every_difference_fails_a_case() {
        let image = ImageReport { patches_equal: true, cosine: 0.999, relative_rms: 0.1 };
        assert!(CaseReport { images: Some(image), positions_equal: Some(true), ..case() }.passed());
        assert!(!CaseReport { prompt_equal: false, ..case() }.passed());
        assert!(!CaseReport { positions_equal: Some(false), ..case() }.passed());
        let shown = Report { cases: vec![CaseReport { images: Some(image), ..case() }], ..Report::default() };
        assert!(shown.to_string().contains("a cosine of 0.999 or more"), "{shown}");
        for bad in [ImageReport { patches_equal: false, ..image }, ImageReport { cosine: 0.9989, ..image }] {
            assert!(!CaseReport { images: Some(bad), ..case() }.passed());
        }
    }

    #[test]
    fn a_report_that_compared_nothing_is_no_pass() {
        let report = |cases| Report { cases, ..Report::default() };
        assert!(!report(vec![]).passed());
        assert!(!report(vec![CaseReport { skipped: true, ..case() }]).passed());
        assert!(report(vec![case()]).passed());
        let wrong = Report { tokenizer_cases: 1, tokenizer_wrong: vec!["x".into()], ..report(vec![case()]) };
        assert!(!wrong.passed());
        assert!(wrong.to_string().ends_with("FAIL"));
        assert!(report(vec![case()]).to_string().ends_with("PASS"));
    }

    #[test]
    fn likeness_of_a_vector_with_itself_and_its_opposite() {
        assert_eq!(likeness(&[3.0, 4.0], &[3.0, 4.0]), (1.0, 0.0));
        assert_eq!(likeness(&[-3.0, -4.0], &[3.0, 4.0]), (-1.0, 2.0));
        assert_eq!(likeness(&[0.0], &[1.0]).0, 0.0);
    }
}
