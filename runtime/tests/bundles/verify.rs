//! `verify` on a good bundle and on everything that becomes of one.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use crate::bad::good;
use runtime::verify::{KernelKind, Problem, Sums, Verification, verify};

fn look(bundle: &Path) -> Verification {
    verify(bundle, &mut |_| ControlFlow::Continue(())).unwrap().unwrap()
}

/// What is said of the bundle with `name` replaced by `bytes`, or removed; the file is put back.
fn with(bundle: &Path, name: &str, bytes: Option<&[u8]>) -> Vec<String> {
    let path = bundle.join(name);
    let before = fs::read(&path).unwrap();
    match bytes {
        Some(bytes) => fs::write(&path, bytes).unwrap(),
        None => fs::remove_file(&path).unwrap(),
    }
    let found = look(bundle);
    fs::write(&path, before).unwrap();
    assert!(!found.passed());
    found.problems.iter().map(|problem| format!("{}: {problem}", problem.name())).collect()
}

#[track_caller]
fn says(messages: &[String], expected: &[&str]) {
    assert_eq!(messages.len(), expected.len(), "{messages:#?}");
    for (message, expected) in messages.iter().zip(expected) {
        assert!(message.contains(expected) && !message.contains('\n'), "{message:?} does not say {expected:?}");
    }
}

#[test]
fn good_and_broken_bundles() {
    let (checkpoint, bundle) = good("verified");
    let found = look(&bundle);
    assert!(found.passed() && found.unlisted.is_empty(), "{found:#?}");
    let files = fs::read_dir(&bundle).unwrap().count() + fs::read_dir(bundle.join("kernels")).unwrap().count();
    // The folder `kernels` is no file, and the list does not hold itself.
    let Sums::Compared { files: compared, bytes } = found.sums else { panic!("{:?}", found.sums) };
    assert_eq!(compared, files - 2);
    assert!(bytes > fs::metadata(bundle.join("tensors.bin")).unwrap().len());
    let identity = found.identity.unwrap();
    assert_eq!((identity.kernels, identity.published()), (KernelKind::Reference, None));
    assert_eq!(
        identity.to_string(),
        "a model of no published size, 2 layers, text in bfp16, vision in w8, kernels for the software NPU"
    );

    // A byte of a weight: nothing that loading looks at.
    let mut weights = fs::read(bundle.join("tensors.bin")).unwrap();
    let half = weights[..weights.len() / 2].to_vec();
    weights[4711] ^= 1;
    says(&with(&bundle, "tensors.bin", Some(&weights)), &["changed: tensors.bin: other contents than when"]);
    // Half a download, in the ways that downloads end.
    says(&with(&bundle, "tensors.bin", Some(&half)), &["changed: tensors.bin", "but tensors.bin has"]);
    says(&with(&bundle, "tensors.bin", None), &["missing: tensors.bin: not there, but checksums.txt names it"]);
    says(&with(&bundle, "kernels/gemv_o.insts.bin", None), &["missing: kernels/gemv_o.insts.bin: not there"]);
    fs::write(bundle.join("tensors.bin.incomplete"), b"x").unwrap();
    let unfinished = look(&bundle);
    fs::remove_file(bundle.join("tensors.bin.incomplete")).unwrap();
    assert_eq!(unfinished.problems, [Problem::Unfinished { file: "tensors.bin.incomplete".into() }]);
    assert_eq!(unfinished.unlisted, ["tensors.bin.incomplete"]);
    // A clone without its large files.
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 12345\n";
    let expected = "pointer: kernels/gemm.xclbin: a Git LFS pointer, not the file itself, which has 12345 bytes";
    says(&with(&bundle, "kernels/gemm.xclbin", Some(pointer)), &[expected]);
    says(&with(&bundle, "tensors.bin", Some(pointer)), &["pointer: tensors.bin: a Git LFS pointer"]);
    says(&with(&bundle, "checksums.txt", Some(pointer)), &["pointer: checksums.txt: a Git LFS pointer"]);
    // Files that somebody edited.
    let manifest = fs::read_to_string(bundle.join("manifest.txt")).unwrap();
    let edited = manifest.replace("param heads 8\n", "param heads 7\n");
    let expected = ["changed: manifest.txt", "refused: manifest.txt: heads 7 is no multiple of kv_heads 2"];
    says(&with(&bundle, "manifest.txt", Some(edited.as_bytes())), &expected);
    let tokenizer = fs::read_to_string(bundle.join("tokenizer.json")).unwrap();
    says(&with(&bundle, "tokenizer.json", Some(&tokenizer.as_bytes()[1..])), &["changed", "refused: tokenizer.json"]);
    let sums = fs::read_to_string(bundle.join("checksums.txt")).unwrap();
    says(&with(&bundle, "checksums.txt", Some(&sums.as_bytes()[1..])), &["refused: checksums.txt:1: expected 64"]);
    let outside = sums.replacen("kernels/", "../", 1);
    says(&with(&bundle, "checksums.txt", Some(outside.as_bytes())), &["leaves the bundle"]);

    // What others publish has no checksums; everything else is still looked at.
    fs::remove_file(bundle.join("checksums.txt")).unwrap();
    let found = look(&bundle);
    assert!(found.passed(), "{found:#?}");
    assert_eq!(found.sums, Sums::Absent);
    for name in runtime::bundle::OWN_FILES {
        let expected = format!("missing: {name}: not there, but every bundle has it");
        says(&with(&bundle, name, None), &[&expected]);
    }
    let missing = with(&bundle, "kernels/gemv_o.insts.bin", None);
    says(&missing, &["missing: kernels/gemv_o.insts.bin: not there, but manifest.txt names it"]);
    says(&with(&bundle, "tensors.bin", Some(&half)), &["refused: tensors.txt"]);
    let edited = manifest.replace("tokcase 7879 120,121", "tokcase 7879 120,122");
    let expected = ["1 of 2 test cases of the manifest become other tokens"];
    says(&with(&bundle, "manifest.txt", Some(edited.as_bytes())), &expected);
    let index = fs::read_to_string(bundle.join("tensors.txt")).unwrap();
    let norm = index.lines().find(|line| line.starts_with("ln_f ")).unwrap();
    let at: usize = norm.split(' ').nth(3).unwrap().parse().unwrap();
    weights[at + 8..at + 12].copy_from_slice(&f32::NAN.to_le_bytes());
    let expected = ["not_finite: tensor `ln_f`: value 2 is not a finite number"];
    says(&with(&bundle, "tensors.bin", Some(&weights)), &expected);

    assert!(look(&bundle).passed());
    for (path, expected) in [
        (checkpoint.folder.join("nothing"), "there is nothing of that name"),
        (bundle.join("manifest.txt"), "it is a file; a bundle is a directory"),
    ] {
        let error = verify(&path, &mut |_| ControlFlow::Continue(())).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    // A checkpoint is no bundle: it has a tokenizer, and nothing else of one.
    let missing = look(&checkpoint.dir).problems;
    assert_eq!(missing.iter().map(Problem::name).collect::<Vec<_>>(), ["missing"; 3]);
}

#[test]
fn a_verification_that_is_broken_off() {
    let (_checkpoint, bundle) = good("verification-broken-off");
    assert!(verify(&bundle, &mut |_| ControlFlow::Break(())).unwrap().is_none());
}

/// A word of the image table, which its checksum covers.
#[test]
fn a_damaged_pdi_is_told() {
    let (_checkpoint, bundle) = good("damaged-pdi");
    fs::remove_file(bundle.join("checksums.txt")).unwrap();
    let container = fs::read(bundle.join("kernels/gemm.xclbin")).unwrap();
    let start = [0xdd, 0, 0, 0, 0x44, 0x33, 0x22, 0x11];
    let image = container.windows(8).position(|bytes| bytes == start).unwrap();
    let mut damaged = container.clone();
    damaged[image + 0x60] ^= 1;
    says(
        &with(&bundle, "kernels/gemm.xclbin", Some(&damaged)),
        &["refused: kernels/gemm.xclbin: damaged PDI: byte 140: checksum"],
    );
}

/// Revision and digests of the two places where Hugging Face's client leaves them.
#[test]
fn a_download_is_held_against_what_it_noted() {
    let (checkpoint, bundle) = good("downloaded");
    let sums = fs::read_to_string(bundle.join("checksums.txt")).unwrap();
    fs::remove_file(bundle.join("checksums.txt")).unwrap();
    let revision = "0123456789abcdef0123456789abcdef01234567";
    let digest = |name: &str| sums.lines().find(|line| line.ends_with(name)).unwrap()[..64].to_owned();

    // The cache: a folder called after the revision, links to blobs called after their digests.
    let cache = checkpoint.folder.join("cache");
    let snapshot = cache.join("snapshots").join(revision);
    fs::create_dir_all(snapshot.join("kernels")).unwrap();
    fs::create_dir_all(cache.join("blobs")).unwrap();
    for line in sums.lines() {
        let (digest, name) = line.split_once("  ").unwrap();
        let blob = cache.join("blobs").join(digest);
        fs::copy(bundle.join(name), &blob).unwrap();
        std::os::unix::fs::symlink(blob, snapshot.join(name)).unwrap();
    }
    let found = look(&snapshot);
    assert!(found.passed(), "{found:#?}");
    assert_eq!(found.origin.unwrap().revision, revision);
    assert!(matches!(found.sums, Sums::Downloaded { files, .. } if files == sums.lines().count()));
    let weights = cache.join("blobs").join(digest("tensors.bin"));
    let mut bytes = fs::read(&weights).unwrap();
    bytes[4711] ^= 1;
    fs::write(&weights, &bytes).unwrap();
    let found = look(&snapshot);
    assert!(matches!(&found.problems[..], [Problem::Changed { file, .. }] if file == "tensors.bin"), "{found:#?}");

    // A folder of the user's: a note for each file. The digest of a small one is of another kind.
    let notes = bundle.join(".cache/huggingface/download");
    fs::create_dir_all(&notes).unwrap();
    let note = |name: &str, revision: &str, digest: &str| {
        fs::write(notes.join(format!("{name}.metadata")), format!("{revision}\n{digest}\n1764500000.5\n")).unwrap();
    };
    note("tensors.bin", revision, &digest("tensors.bin"));
    note("manifest.txt", revision, revision);
    let found = look(&bundle);
    assert!(found.passed(), "{found:#?}");
    assert!(matches!(found.sums, Sums::Downloaded { files: 1, .. }));
    assert_eq!(found.origin.unwrap().revision, revision);
    fs::write(bundle.join("tensors.bin"), &bytes).unwrap();
    assert!(matches!(&look(&bundle).problems[..], [Problem::Changed { file, .. }] if file == "tensors.bin"));
    // Files of two revisions are of none.
    note("manifest.txt", &revision.replace('0', "f"), revision);
    let found = look(&bundle);
    assert_eq!((found.origin, found.sums), (None, Sums::Absent));
}
