//! Guesses change nothing but the time.

use super::*;
use runtime::bundle::WeightFormat;
use runtime::export::{ExportOptions, VisionExport, export};
use runtime::model::Speculate;
use serde_json::Value;

/// How far sums in another order may lie apart.
const APART: f32 = 1e-3;

/// The first control token of the tiny tokenizer.
const CONTROL: usize = 260;

/// A bundle of the format that rounds nothing.
fn exact(checkpoint: &Path, out: PathBuf) -> PathBuf {
    let options = ExportOptions {
        vision: VisionExport::None,
        format: WeightFormat::F32,
        ..ExportOptions::new(checkpoint.to_owned(), out)
    };
    export(&options, &mut |_| ControlFlow::Continue(())).unwrap().out
}

/// Makes what was said before matter little to a checkpoint: it goes on as it did behind the same word, and so repeats
/// itself. Control tokens it would never say.
fn calm(checkpoint: &Path) {
    let file = checkpoint.join("model.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    let (length, rest) = bytes.split_first_chunk_mut::<8>().unwrap();
    let (head, data) = rest.split_at_mut(u64::from_le_bytes(*length) as usize);
    let head: Value = serde_json::from_slice(head).unwrap();
    let mut calmed = 0;
    for (name, tensor) in head.as_object().unwrap() {
        let at = |end: usize| tensor["data_offsets"][end].as_u64().unwrap() as usize;
        let mixer = name.ends_with("self_attn.o_proj.weight") || name.ends_with("linear_attn.out_proj.weight");
        if mixer && name.contains("language_model") {
            assert_eq!(tensor["dtype"], "BF16");
            for value in data[at(0)..at(1)].chunks_exact_mut(2) {
                let old = f32::from_bits(u32::from(u16::from_le_bytes([value[0], value[1]])) << 16);
                value.copy_from_slice(&((old / 4096.0).to_bits() >> 16).to_le_bytes()[..2]);
            }
            calmed += 1;
        }
        if name.ends_with("embed_tokens.weight") {
            let width = 2 * tensor["shape"][1].as_u64().unwrap() as usize;
            data[at(0) + CONTROL * width..at(1)].fill(0);
        }
    }
    assert_eq!(calmed, 2);
    std::fs::write(file, bytes).unwrap();
}

/// What was said to `questions`, without guesses and with them; how many were made, and how many were right.
///
/// What the model would say next is the same, but for `apart`; where it rounds more coarsely nobody looks.
fn with_and_without_guesses(
    bundle: &Path,
    questions: &[(&str, usize, Option<&str>)],
    apart: Option<f32>,
) -> (usize, usize) {
    let mut runs = Vec::new();
    for speculate in [Speculate::Off, Speculate::Lookup] {
        let options = LoadOptions { speculate, max_ctx: 2048, ..LoadOptions::default() };
        let (mut chat, _device) = load_bundle(bundle, options);
        let (mut session, mut said, mut logits) = (Session::new(), Vec::new(), Vec::new());
        let (mut guessed, mut accepted) = (0, 0);
        for &(question, max_new, stop) in questions {
            let stop: Vec<String> = stop.into_iter().map(str::to_owned).collect();
            let ask = Ask { stop: &stop, ..ask(max_new) };
            let outcome = chat.send(&mut session, [asks(question)], &ask, &mut go).unwrap();
            guessed += outcome.timing.guesses.guessed;
            accepted += outcome.timing.guesses.accepted;
            logits.push(chat.with_state(&mut session, |model| model.logits().unwrap().to_vec()));
            let read = (outcome.prompt_tokens, outcome.reused_tokens, session.tokens());
            said.push((outcome.tokens, outcome.stop, outcome.text, read));
        }
        runs.push((said, guessed, accepted, logits));
    }
    if let Some(apart) = apart {
        for (plain, guessed) in runs[0].3.iter().flatten().zip(runs[1].3.iter().flatten()) {
            assert!((plain - guessed).abs() <= apart, "{plain} without guesses, {guessed} with them");
        }
    }
    assert_eq!(runs[0].0, runs[1].0);
    assert_eq!((runs[0].1, runs[0].2), (0, 0));
    (runs[1].1, runs[1].2)
}

/// In f32 only the order of sums differs, so tokens are the same. A random model hardly repeats itself: guesses are wrong,
/// and taken back.
#[test]
fn wrong_guesses_leave_the_answers_as_they_are() {
    let folder = bundle().parent().unwrap();
    let out = exact(&folder.join("checkpoint"), folder.join("f32"));
    let questions = [("Go on", 400, None), ("and on", 90, None), ("and end", 90, Some("7"))];
    let (guessed, accepted) = with_and_without_guesses(&out, &questions, Some(APART));
    assert!(guessed > accepted + 8, "{accepted} of {guessed}");
}

/// The demo model answers the same question in the same words.
#[test]
fn right_guesses_leave_the_answers_as_they_are() {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cli/demo/bundle");
    let question = "What is 3 + 4?";
    let questions = [(question, 60, None), (question, 60, None), (question, 60, None), (question, 60, Some("= "))];
    let (guessed, accepted) = with_and_without_guesses(&demo, &questions, None);
    assert!(accepted > 4, "{accepted} of {guessed}");
}

/// The same where nothing is rounded, so that what the model would say next can be compared, too.
#[test]
fn right_guesses_in_f32_leave_the_numbers_as_they_are() {
    let folder = bundle().parent().unwrap().join("calm");
    std::fs::create_dir_all(&folder).unwrap();
    tiny::checkpoint(&folder.join("checkpoint")).unwrap();
    calm(&folder.join("checkpoint"));
    let out = exact(&folder.join("checkpoint"), folder.join("bundle"));
    let questions = [("Go on", 150, None), ("and on", 90, None), ("and end", 90, None)];
    let (guessed, accepted) = with_and_without_guesses(&out, &questions, Some(APART));
    println!("{accepted} of {guessed}");
    assert!(accepted > 100, "{accepted} of {guessed}");
}
