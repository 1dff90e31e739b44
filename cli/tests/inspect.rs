//! `inspect` on a whole bundle and on its files, by the binary.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod common;

use common::{broken, bundle, folder, rewrite, run};
use std::ffi::OsString;
use std::fs;
use std::path::Path;

fn inspect(path: &Path, more: &[&str]) -> common::Run {
    let mut arguments: Vec<OsString> = vec!["inspect".into(), path.into()];
    arguments.extend(more.iter().map(OsString::from));
    run(&arguments)
}

fn json(path: &Path, more: &[&str]) -> serde_json::Value {
    let run = inspect(path, &[&["--json"], more].concat());
    assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""), "{run:?}");
    serde_json::from_str(&run.stdout).expect("JSON on standard output")
}

#[test]
fn a_bundle_and_each_of_its_kernel_files() {
    let report = json(bundle(), &[]);
    assert_eq!((&report["version"], &report["kind"]), (&1.into(), &"bundle".into()));
    let streams = report["streams"].as_array().unwrap();
    assert!(streams.len() > 4);
    for stream in streams {
        // What the bundle says of a stream is what the file says of itself.
        let alone = json(&bundle().join(stream["path"].as_str().unwrap()), &["--ops"]);
        assert_eq!(alone["kind"], "stream");
        assert_eq!(alone["arguments"], stream["arguments"]);
        assert_eq!(alone["sha256"], stream["sha256"]);
        assert_eq!(alone["ops"].as_array().map(Vec::len), stream["operations"].as_u64().map(|n| n as usize));
    }
    for context in report["contexts"].as_array().unwrap() {
        let alone = json(&bundle().join(context["path"].as_str().unwrap()), &[]);
        assert_eq!((&alone["kind"], &alone["pdis"][0]["sha256"]), (&"xclbin".into(), &context["pdi_sha256"]));
        assert_eq!(context["reference"], true);
    }
    let text = inspect(bundle(), &["--ops"]);
    assert_eq!((text.code, text.stderr.as_str()), (Some(0), ""));
    assert!(text.stdout.starts_with("bundle\ntext ") && text.stdout.contains("points at argument 1 + 0x0"));
}

#[test]
fn names_say_nothing() {
    let from = bundle().join("kernels/gemm.xclbin");
    let to = folder().join("insts.txt");
    fs::copy(from, &to).unwrap();
    assert!(inspect(&to, &[]).stdout.starts_with("xclbin, "));
}

#[test]
fn damage_is_one_line_that_says_where() {
    let cut = |file: &mut Vec<u8>| file.truncate(file.len() - 4);
    let damaged = broken("cut-stream", |bundle| rewrite(&bundle.join("kernels/gemv_head.insts.bin"), cut));
    for (path, words) in [
        (damaged.clone(), &["gemv_head.insts.bin", "byte 12"][..]),
        (damaged.join("kernels/gemv_head.insts.bin"), &["instruction stream: byte 12: the header claims"]),
        (bundle().join("tokenizer.json"), &["byte "]),
        (bundle().join("nothing"), &["nothing: No such file"]),
        (bundle().join("manifest.txt"), &["neither xclbin nor PDI nor trace", "byte "]),
    ] {
        let run = inspect(&path, &[]);
        assert_eq!((run.code, run.stdout.as_str(), run.stderr.lines().count()), (Some(1), "", 1), "{run:?}");
        for word in words {
            assert!(run.stderr.contains(word), "{word:?} is not in {:?}", run.stderr);
        }
    }
    // The container can be told, its image cannot.
    let image = broken("spoiled-image", |bundle| {
        rewrite(&bundle.join("kernels/gemm.xclbin"), |file| {
            let at = file.windows(4).position(|word| word == [0xDD, 0, 0, 0]).unwrap();
            file[at + 0x2C] ^= 1;
        });
    });
    let run = inspect(&image.join("kernels/gemm.xclbin"), &[]);
    assert_eq!(run.code, Some(1));
    assert!(run.stdout.contains("damaged") && run.stderr.contains("PDI 0: byte "), "{run:?}");
}
