//! The doctor and a run, on a device that has each fault: they have to agree.

use super::report::{Findings, Verdict};
use super::*;
use crate::error::CliError;
use npu_model::{Beside, Config, Faults, Model};
use runtime::npu::Npu;
use runtime::{Chat, ChatError, LoadOptions};
use std::time::Duration;

const NODE: &str = "/dev/accel/accel0";

fn bundle() -> &'static Path {
    static BUNDLE: std::sync::OnceLock<std::path::PathBuf> = std::sync::OnceLock::new();
    BUNDLE.get_or_init(|| {
        let folder = std::env::temp_dir().join(format!("qwen35-doctor-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        driver_tests::tiny::bundle(&folder).unwrap()
    })
}

fn load(model: &Arc<Model>, path: &Path) -> Result<Loaded, CliError> {
    let npu = Npu::open(&**model, Path::new(NODE)).map_err(ChatError::from)?;
    let options = LoadOptions { max_ctx: 256, deadline: Duration::from_secs(5), ..LoadOptions::default() };
    let chat = Chat::load(places::open(path)?, npu, options, &mut |_| {})?;
    Ok(Loaded { chat, device: NODE.into(), seconds: 0.0, model: None })
}

/// What a run would come to.
fn run_works(model: &Arc<Model>, path: &Path) -> bool {
    let Ok(mut loaded) = load(model, path) else { return false };
    let turn = Turn { system: None, images: &[], text: "Hi", thinking: false, max_new: 1 };
    loaded.chat.turn(&turn, &mut |_| ControlFlow::Continue(())).is_ok()
}

fn doctor(model: &Arc<Model>, path: &Path) -> Findings {
    let mut findings = Findings::default();
    let open = || {
        let npu = Npu::open(&**model, Path::new(NODE)).map_err(ChatError::from)?;
        Ok(npu.device().clone())
    };
    examine(&mut findings, false, &open, Some(path), &|path| load(model, path));
    findings
}

#[test]
fn it_agrees_with_a_run_about_every_fault() {
    let quick = || Config { tdr_ms: 200, destroy_wait_ms: 50, ..Config::default() };
    let fault = |faults: Faults| Config { faults, ..quick() };
    let none = Faults::default;
    // Loading runs some commands and can do without the fastest way; what comes after them is the answer.
    let loading = load(&Model::new(quick()), bundle()).unwrap().chat.counters().commands;
    let late = Some(loading + 2);
    let cases = [
        ("none", quick(), true),
        ("open", fault(Faults { open: Some(amdxdna_ioctl::Errno::ACCESS), ..none() }), false),
        ("no context", fault(Faults { no_context: true, ..none() }), false),
        ("a silent firmware", fault(Faults { management_silent: true, ..none() }), false),
        ("memory", fault(Faults { memory_limit: Some(1 << 20), ..none() }), false),
        ("the first command hangs", fault(Faults { hang_command: Some(0), ..none() }), true),
        ("the first command fails", fault(Faults { fail_command: Some(0), ..none() }), true),
        ("a late command hangs", fault(Faults { hang_command: late, ..none() }), false),
        ("a late command fails", fault(Faults { fail_command: late, ..none() }), false),
        ("commands beside each other are dropped", fault(Faults { beside: Some(Beside::Dropped), ..none() }), true),
        ("commands beside each other fail", fault(Faults { beside: Some(Beside::Failed), ..none() }), true),
        ("an error of the array", fault(Faults { async_error: late, ..none() }), false),
        ("signals", fault(Faults { interrupt_every: Some(2), ..none() }), true),
        ("another protocol", Config { protocol: (5, 0), ..quick() }, false),
        ("no slots", Config { slots: 1, ..quick() }, true),
    ];
    for (name, config, wanted) in cases {
        // Each has a device of its own: counts of commands go on.
        let works = run_works(&Model::new(config.clone()), bundle());
        let findings = doctor(&Model::new(config), bundle());
        let passed = findings.count(Verdict::Fail) == 0;
        assert_eq!(works, wanted, "{name}: a run");
        assert_eq!(passed, works, "{name}:\n{}", findings.text());
        if !works {
            let failed = findings.0.iter().find(|finding| finding.verdict == Verdict::Fail).unwrap();
            assert!(failed.text.len() > 20, "{name}: {}", failed.text);
        }
    }
}

/// One that had slept did not answer at first; the run after the doctor worked, and the doctor had said that none would.
#[test]
fn a_device_that_answers_when_asked_again_is_a_warning() {
    let model = Model::new(Config::default());
    let asked = std::cell::Cell::new(0);
    let open = || {
        asked.set(asked.get() + 1);
        if asked.get() == 1 {
            return Err(CliError::Device("GET_INFO failed with ETIME".into()));
        }
        let npu = Npu::open(&*model, Path::new(NODE)).map_err(ChatError::from)?;
        Ok(npu.device().clone())
    };
    let mut findings = Findings::default();
    examine(&mut findings, false, &open, Some(bundle()), &|path| load(&model, path));
    assert_eq!((findings.count(Verdict::Fail), findings.count(Verdict::Warn)), (0, 1), "{}", findings.text());
    assert!(findings.0[0].text.contains("ETIME"), "{}", findings.text());
}

/// A firmware that is silent was well, in all that the driver remembers of it, as long as no bundle was named.
#[test]
fn a_firmware_that_gives_no_context_is_found_without_a_bundle() {
    for faults in
        [Faults { no_context: true, ..Faults::default() }, Faults { management_silent: true, ..Faults::default() }]
    {
        let model = Model::new(Config { faults, ..Config::default() });
        let open = || Ok(Npu::open(&*model, Path::new(NODE)).map_err(ChatError::from)?.device().clone());
        let no_load = |_: &Path| -> Result<Loaded, CliError> { Err(CliError::Closed) };
        let mut findings = Findings::default();
        examine(&mut findings, false, &open, None, &no_load);
        assert_eq!(findings.count(Verdict::Fail), 1, "{}", findings.text());
        // Where a run would take the software NPU, that is nothing that fails.
        let mut findings = Findings::default();
        examine(&mut findings, true, &open, None, &no_load);
        assert_eq!((findings.count(Verdict::Fail), findings.count(Verdict::Warn)), (0, 1), "{}", findings.text());
    }
}

/// The same trouble was told twice, as the device's and as loading's.
#[test]
fn what_keeps_the_device_from_being_used_is_told_once() {
    let model = Model::new(Config {
        faults: Faults { open: Some(amdxdna_ioctl::Errno::ACCESS), ..Faults::default() },
        ..Config::default()
    });
    let findings = doctor(&model, bundle());
    assert_eq!(findings.count(Verdict::Fail), 1, "{}", findings.text());
}

/// A byte that has changed was told with two checksums, and without a word of what to do.
#[test]
fn a_changed_byte_has_a_remedy() {
    let folder = std::env::temp_dir().join(format!("qwen35-doctor-byte-{}", std::process::id()));
    let path = driver_tests::tiny::bundle(&folder).unwrap();
    let mut bytes = std::fs::read(path.join("tensors.bin")).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(path.join("tensors.bin"), bytes).unwrap();
    let findings = doctor(&Model::new(Config::default()), &path);
    let bundle = findings.0.iter().find(|finding| finding.what == "bundle").unwrap();
    assert!(bundle.verdict == Verdict::Fail && bundle.remedy.contains("again"), "{}", findings.text());
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_fallback_is_a_warning() {
    let faults = Faults { beside: Some(Beside::Dropped), ..Faults::default() };
    let findings = doctor(&Model::new(Config { faults, ..Config::default() }), bundle());
    let dispatch = findings.0.iter().find(|finding| finding.what == "dispatch").unwrap();
    assert_eq!((dispatch.verdict, findings.count(Verdict::Fail)), (Verdict::Warn, 0), "{}", findings.text());
}

#[test]
fn a_bundle_that_is_not_whole_is_not_loaded() {
    let findings = doctor(&Model::new(Config::default()), Path::new("/nowhere/at/all"));
    let of = |what: &str| findings.0.iter().find(|finding| finding.what == what).map(|finding| finding.verdict);
    assert_eq!((of("bundle"), of("token")), (Some(Verdict::Fail), Some(Verdict::Skip)), "{}", findings.text());
    assert_eq!(findings.json()["passed"], false);
}
