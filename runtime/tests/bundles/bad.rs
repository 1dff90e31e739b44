//! What the reader refuses, and how it says so. Each case spoils one thing of a good bundle and puts it back.

use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::common::{Checkpoint, Shape};
use runtime::bundle::{Bundle, BundleError};
use runtime::export::{ExportOptions, export};

/// A good bundle with reference runs; lives as long as its checkpoint.
pub(crate) fn good(name: &str) -> (Checkpoint, PathBuf) {
    let checkpoint = Checkpoint::new(name, &Shape::light());
    let mut options = ExportOptions::new(checkpoint.dir.clone(), checkpoint.folder.join("bundle"));
    options.max_prompt = Some(512);
    options.threads = 1;
    options.refs = Some(checkpoint.references());
    export(&options, &mut |_| ControlFlow::Continue(())).unwrap();
    (checkpoint, options.out)
}

/// The error of opening the bundle with `name` replaced by `bytes`; the file is put back.
fn with(bundle: &Path, name: &str, bytes: &[u8]) -> String {
    let path = bundle.join(name);
    let before = fs::read(&path).unwrap();
    fs::write(&path, bytes).unwrap();
    let outcome = Bundle::open(bundle);
    fs::write(&path, before).unwrap();
    outcome.map(|_| ()).expect_err(name).to_string()
}

/// The same for a text file of which `from` became `to`.
fn edited(bundle: &Path, name: &str, from: &str, to: &str) -> String {
    let text = fs::read_to_string(bundle.join(name)).unwrap();
    assert!(text.contains(from), "{name} has no {from:?}");
    with(bundle, name, text.replacen(from, to, 1).as_bytes())
}

#[track_caller]
fn says(message: &str, expected: &str) {
    assert!(message.contains(expected), "{message:?} does not say {expected:?}");
    assert!(!message.contains('\n'), "more than a line: {message:?}");
}

/// The line of the manifest that begins with `start`.
fn line(bundle: &Path, name: &str, start: &str) -> String {
    let text = fs::read_to_string(bundle.join(name)).unwrap();
    text.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("no line {start:?}")).to_owned()
}

#[test]
fn manifests() {
    let (_checkpoint, bundle) = good("manifests");
    let edited = |from: &str, to: &str| edited(&bundle, "manifest.txt", from, to);
    for (from, to, expected) in [
        ("version 1\n", "version 2\n", "manifest.txt:1: version `2`; this runtime reads version 1"),
        ("version 1\n", "\n", "no `version`"),
        ("version 1\n", "version 1\nversion 1\n", "manifest.txt:2: a second `version`"),
        ("param D 512\n", "param D 512\nparam D 512\n", "a second `param D`"),
        ("param D 512\n", "", "`param D` is missing"),
        ("param D 512\n", "param D 5l2\n", "`param D 5l2`: expected a whole number"),
        ("param D 512\n", "param D 99999999999999999999999\n", "expected a whole number"),
        ("param D 512\n", "param D 1024\n", "`o` takes 1024 inputs"),
        ("param eps 0.000001\n", "param eps NaN\n", "`param eps NaN`: expected a positive number"),
        ("layer_types lin,att", "layer_types lin,odd", "expected 1 to 1024 of `lin` and `att`"),
        ("param heads 8\n", "param heads 7\n", "heads 7 is no multiple of kv_heads 2"),
        ("param rope_dim 16\n", "param rope_dim 15\n", "rope_dim 15; expected an even number"),
        ("mrope_section 0,0,0", "mrope_section 1,2,3", "mrope_section adds up to 6; expected rope_dim / 2, which is 8"),
        ("mrope_section 0,0,0", "mrope_section 1,2", "expected three counts"),
        ("param vocab 320\n", "param vocab 321\n", "1 head parts of 320 rows do not just hold a vocabulary of 321"),
        ("param stop 302,300\n", "param stop 302,320\n", "stop token 320 is not below vocab 320"),
        ("param stop 302,300\n", "param stop x\n", "expected a comma-separated list of token ids"),
        ("param max_prompt 512\n", "param max_prompt 1024\n", "has streams for 2 chunks of 256; expected 1024 rows"),
        ("param n_down 1\n", "param n_down 2\n", "expected room for 2 slices of 512"),
        ("gemv_format bfp16", "gemv_format int4", "expected bfp16, bfp6s or f32"),
        (
            "gemv_format bfp16",
            "gemv_format bfp6s",
            // Nine bits a weight are more than six and a half need, which alone would say nothing against them.
            "takes as many in bfp16, but `param gemv_format` says bfp6s",
        ),
        ("param v.out 512\n", "param v.out 256\n", "v.out is 256; expected the text model's D, 512"),
        ("param v.heads 2\n", "param v.heads 3\n", "v.D 128 in 3 heads"),
        ("param v.image_token 304\n", "param v.image_token 320\n", "v.image_token 320 is not below vocab"),
        ("xclbin gemm ", "xclbin gemv ", "a second `xclbin gemv`"),
        ("xclbin gemm ", "xclbin other ", "there is no `xclbin gemm`"),
        ("gemm o ctx=gemm", "gemm lin ctx=gemm", "a second `gemm lin`"),
        ("gemm o ctx=gemm", "gemm p ctx=gemm", "no `gemm o` above this line"),
        ("gemm o ctx=gemm M=256 K=512", "gemm o ctx=gemm M=256 K=500", "K 500 and N 512; expected multiples"),
        (
            "gemm o ctx=gemm M=256 K=512 N=512 lda=512",
            "gemm o ctx=gemm M=256 K=512 N=512 lda=511",
            "lda 511 is less than K 512",
        ),
        ("gemm o ctx=gemm M=256 K=512 N=512", "gemm o ctx=gemm K=512 N=512", "`gemm` needs `M=`"),
        (
            "gemm o ctx=gemm M=256",
            "gemm o ctx=gemm M=18446744073709551615",
            "`M=18446744073709551615`: expected a whole number",
        ),
        ("bias=0", "bias=2", "`bias=2`: expected 0 or 1"),
        ("bias=0", "bias=1", "`gemv lin` is 2048 x 512 and `gemm lin` 2048 x 512; they read the same weights"),
        ("gemm_chunks lin 2", "gemm_chunks lin 3", "chunks `3`; expected 2, one more than the record before"),
        ("a_elems=262144", "a_elems=262143", "a_elems 262143 for 512 rows of stride 512; expected at least 262144"),
        ("gemv o ctx=gemv M=512", "gemv o ctx=gemv M=1024", "they read the same weights"),
        (
            "gemv head ctx=gemv M=320 K=512 w_words=46080",
            "gemv head ctx=gemv M=256 K=512 w_words=36864",
            "expected head_rows x D, 320 x 512",
        ),
        ("tokcase - ,", "tokcase zz ,", "`zz`: expected UTF-8 text in hex, or `-`"),
        ("tokcase 7879 120,121", "tokcase 7879 120,x", "expected comma-separated token ids"),
        ("tokcase 7879 120,121", "tokcase 7879", "`tokcase` needs a list of ids as field 2"),
        ("ref image ", "ref plain ", "a second reference run `plain`"),
        ("thinking=1", "thinking=yes", "`thinking=yes`: expected 0 or 1"),
        ("images=2", "images=2000", "expected at most 64"),
        ("images=2", "images=3", "tensor `ref.two.rgb.2`: missing from tensors.txt"),
    ] {
        let message = edited(from, to);
        assert!(message.contains(expected), "{from:?} -> {to:?}: {message:?} does not say {expected:?}");
    }
    says(&with(&bundle, "manifest.txt", b""), "no `version`");
    says(&with(&bundle, "manifest.txt", b"version 1\n\xff\n"), "byte 10 is not UTF-8 text");
    let vision = line(&bundle, "manifest.txt", "gemm v_fc1 ");
    let other = vision.replace("lda=512", "lda=1024").replace("a_elems=131072", "a_elems=262144");
    says(&edited(&vision, &other), "lda of `gemm v_fc1` is 1024; expected that of `gemm v_qkv`, 512");
    assert!(Bundle::open(&bundle).is_ok());
}

/// Replaces the value of every `key=` of the manifest.
fn with_values(bundle: &Path, key: &str, value: impl Fn(usize) -> usize) {
    let path = bundle.join("manifest.txt");
    let text = fs::read_to_string(&path).unwrap();
    let word = |word: &str| match word.strip_prefix(&format!("{key}=")) {
        Some(number) => format!("{key}={}", value(number.parse().unwrap())),
        None => word.to_owned(),
    };
    let line = |line: &str| line.split(' ').map(word).collect::<Vec<_>>().join(" ") + "\n";
    let other: String = text.lines().map(line).collect();
    assert_ne!(other, text, "no {key}");
    fs::write(path, other).unwrap();
}

/// The fault: sizes that other writers may reckon in another way were compared with our own reckoning.
#[test]
fn sizes_that_nothing_depends_on_refuse_no_bundle() {
    let (_checkpoint, bundle) = good("other-sizes");
    let before = Bundle::open(&bundle).unwrap().manifest;
    // Elements for bytes, bytes for words, nothing at all; views with rows to spare.
    with_values(&bundle, "b_bytes", |bytes| bytes * 8 / 9);
    with_values(&bundle, "w_words", |words| words * 4);
    with_values(&bundle, "a_elems", |elems| elems + 512);
    with_values(&bundle, "c_elems", |elems| elems * 2);
    let after = Bundle::open(&bundle).unwrap().manifest;
    for (key, gemm) in &before.gemms {
        assert_eq!(
            (gemm.b_bytes, gemm.bias),
            (after.gemms[key].b_bytes, after.gemms[key].bias),
            "{key}: as its tensors"
        );
        assert_eq!(gemm.chunks[0].a_elems + 512, after.gemms[key].chunks[0].a_elems, "{key}: as its line");
    }
    for (key, gemv) in &before.gemvs {
        assert_eq!((gemv.w_words, gemv.bias), (after.gemvs[key].w_words, after.gemvs[key].bias), "{key}");
    }
    with_values(&bundle, "b_bytes", |_| 0);
    with_values(&bundle, "w_words", |_| 0);
    assert!(Bundle::open(&bundle).is_ok());
}

#[test]
fn without_a_word_on_biases_the_tensors_tell() {
    let (_checkpoint, bundle) = good("no-bias");
    let path = bundle.join("manifest.txt");
    let text = fs::read_to_string(&path).unwrap();
    let said = Bundle::open(&bundle).unwrap().manifest;
    fs::write(&path, text.replace(" bias=0", "").replace(" bias=1", "")).unwrap();
    with_values(&bundle, "b_bytes", |bytes| bytes + 1);
    let told = Bundle::open(&bundle).unwrap().manifest;
    assert!(told.gemms["v_qkv"].bias && !told.gemms["lin"].bias);
    let biases = |manifest: &runtime::bundle::Manifest| -> Vec<bool> {
        manifest.gemms.values().map(|gemm| gemm.bias).chain(manifest.gemvs.values().map(|gemv| gemv.bias)).collect()
    };
    assert_eq!(biases(&said), biases(&told));
}

/// The stream's own reach is the bound, and nothing else about its shape.
#[test]
fn a_view_that_its_stream_reaches_past_is_refused() {
    let (_checkpoint, bundle) = good("short-view");
    let stream = fs::read(bundle.join("kernels/o.x2.insts.bin")).unwrap();
    says(&with(&bundle, "kernels/o.x1.insts.bin", &stream), "by the manifest; the stream belongs to another shape");
    // Views with room for it are no longer in its way.
    with_values(&bundle, "a_elems", |elems| elems * 2);
    with_values(&bundle, "c_elems", |elems| elems * 2);
    fs::write(bundle.join("kernels/o.x1.insts.bin"), &stream).unwrap();
    assert!(Bundle::open(&bundle).is_ok());
}

#[test]
fn every_cut_manifest_is_an_error_or_whole() {
    let (_checkpoint, bundle) = good("cut-manifest");
    let text = fs::read_to_string(bundle.join("manifest.txt")).unwrap();
    let step = (text.len() / 97).max(1);
    for end in (0..text.len() - 1).step_by(step) {
        match runtime::bundle::Manifest::parse(&text[..end]) {
            Err(error) => assert!(!error.to_string().is_empty()),
            // A cut in the list of test cases leaves a manifest.
            Ok(manifest) => assert!(manifest.gemvs.contains_key("head"), "{end}"),
        }
    }
}

#[test]
fn indices() {
    let (_checkpoint, bundle) = good("indices");
    let name = "tensors.txt";
    let (first, norm) = (line(&bundle, name, "l0.g.in "), line(&bundle, name, "ln_f "));
    let spoiled = |from: &str, to: &str| edited(&bundle, name, from, to);
    let size = fs::metadata(bundle.join("tensors.bin")).unwrap().len();
    says(&spoiled(&format!("{norm}\n"), ""), "tensor `ln_f`: missing from tensors.txt, but the manifest needs it");
    says(&spoiled(&norm, &norm.replace("f32", "i32")), "tensor `ln_f`: i32 [512]; expected f32 [512]");
    says(&spoiled(&norm, &norm.replace(" 512 ", " 511 ")), "but 511 elements of 4 bytes make 2044");
    says(&spoiled(&norm, &norm.replace(" 512 ", " 256 ").replace(" 2048", " 1024")), "f32 [256]; expected f32 [512]");
    says(&spoiled(&norm, &norm.replace("ln_f", "l0.g.in")), "a second tensor `l0.g.in`");
    let moved = |offset: u64| {
        let mut words: Vec<String> = norm.split(' ').map(str::to_owned).collect();
        words[3] = offset.to_string();
        words.join(" ")
    };
    says(&spoiled(&norm, &moved(size.next_multiple_of(64))), "but tensors.bin has");
    says(&spoiled(&norm, &moved(u64::MAX - 7)), "expected a whole number below 2^48");
    says(&spoiled(&norm, &moved(4)), "expected a multiple of 8");
    says(&spoiled(&norm, &moved(0)), "overlaps");
    let shorter = first.replace("1179648", "1179584");
    says(
        &spoiled(&first, &shorter),
        "tensor `l0.g.in`: 1179584 bytes; `gemm lin`, 512 x 2048, takes at least 1179648 bytes in bfp16",
    );
    says(&spoiled(&norm, "ln_f"), "1 words; expected `name dtype d0,d1,... offset bytes`");
    says(&with(&bundle, name, b""), "tensor `l0.g.in`: missing");
    assert!(Bundle::open(&bundle).is_ok());
}

#[test]
fn reference_tensors() {
    let (_checkpoint, bundle) = good("reference-tensors");
    let name = "tensors.txt";
    let spoiled = |start: &str, from: &str, to: &str| {
        let line = line(&bundle, name, start);
        edited(&bundle, name, &line, &line.replace(from, to))
    };
    says(&spoiled("ref.plain.tokens ", " i32 ", " f32 "), "f32 [2]; expected i32");
    says(&spoiled("ref.plain.top_ids ", " 2,2 ", " 1,2 "), "make 8");
    says(&spoiled("ref.image.rgb ", " 2,3,3 ", " 2,9 "), "u8 [2, 9]; expected u8 [H, W, 3]");
    says(&spoiled("ref.image.patches ", " 4,768 ", " 8,384 "), "f32 [8, 384]; expected f32 [4, 768]");
    // Bytes of the data itself.
    let data = bundle.join("tensors.bin");
    let whole = fs::read(&data).unwrap();
    let at = |start: &str| line(&bundle, name, start).split(' ').nth(3).unwrap().parse::<usize>().unwrap();
    for (tensor, value, expected) in [
        ("ref.plain.ids ", -1_i32, "token -1 is not in a vocabulary of 320"),
        ("ref.plain.top_ids ", 320, "token 320 is not in a vocabulary of 320"),
        ("ref.image.grid ", 3, "expected rows and columns of patches that merge by 2"),
        ("ref.image.grid ", 4, "expected f32 [8, 768]"),
        ("ref.image.grid ", i32::MAX, "expected rows and columns of patches that merge by 2"),
    ] {
        let mut bytes = whole.clone();
        bytes[at(tensor)..][..4].copy_from_slice(&value.to_le_bytes());
        says(&with(&bundle, "tensors.bin", &bytes), expected);
    }
}

const POINTER: &[u8] = b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 12345\n";

#[test]
fn files_cut_short_and_pointers() {
    let (_checkpoint, bundle) = good("cut-files");
    let files = ["tensors.bin", "kernels/gemm.xclbin", "kernels/lin.x1.insts.bin", "kernels/gemv_head.insts.bin"];
    for name in files {
        let whole = fs::read(bundle.join(name)).unwrap();
        for end in [0, 1, 7, 16, 17, whole.len() / 2, whole.len() - 4, whole.len() - 1] {
            let message = with(&bundle, name, &whole[..end]);
            assert!(message.contains(name) || message.starts_with("tensors.txt:"), "{message}");
        }
    }
    for name in files.into_iter().chain(["manifest.txt", "tensors.txt", "tokenizer.json"]) {
        let message = with(&bundle, name, POINTER);
        says(&message, name);
        says(&message, "is a Git LFS pointer, not the file itself; fetch the large files");
    }
    // A stream of another shape would read and write past its buffers.
    let wide = fs::read(bundle.join("kernels/gu.x2.insts.bin")).unwrap();
    says(&with(&bundle, "kernels/o.x1.insts.bin", &wide), "the stream belongs to another shape");
    says(&with(&bundle, "kernels/gemv.xclbin", &wide), "does not begin with `xclbin2`");
    assert!(Bundle::open(&bundle).is_ok());
}

#[test]
fn directories_that_are_no_bundles() {
    let (checkpoint, bundle) = good("directories");
    let message = |path: &Path| Bundle::open(path).map(|_| ()).unwrap_err().to_string();
    says(&message(&checkpoint.folder.join("nothing")), "is not a bundle: there is nothing of that name");
    says(&message(&bundle.join("manifest.txt")), "it is a file; a bundle is a directory");
    says(&message(&bundle.join("kernels")), "it has no manifest.txt");
    says(&message(&checkpoint.dir), "it has no manifest.txt");
    for name in [
        "manifest.txt",
        "tensors.txt",
        "tensors.bin",
        "tokenizer.json",
        "kernels/gemm.xclbin",
        "kernels/o.x2.insts.bin",
    ] {
        let (there, away) = (bundle.join(name), checkpoint.folder.join("away"));
        fs::rename(&there, &away).unwrap();
        says(&message(&bundle), name);
        fs::create_dir(&there).unwrap();
        assert!(Bundle::open(&bundle).is_err());
        fs::remove_dir(&there).unwrap();
        fs::rename(&away, &there).unwrap();
    }
    assert!(Bundle::open(&bundle).is_ok());
}

#[test]
fn paths_stay_inside() {
    let (checkpoint, bundle) = good("paths");
    let name = "kernels/gemv.xclbin";
    for path in ["../bundle/kernels/gemv.xclbin", "/etc/hostname", "kernels/../kernels/gemv.xclbin"] {
        let message = edited(&bundle, "manifest.txt", name, path);
        says(&message, &format!("`{path}` leaves the bundle"));
        says(&message, "manifest.txt:");
    }
    let insts = "insts=kernels/o.x2.insts.bin";
    says(&edited(&bundle, "manifest.txt", insts, "insts=../o.bin"), "`../o.bin` leaves the bundle");
    let (there, away) = (bundle.join(name), checkpoint.folder.join("elsewhere"));
    fs::rename(&there, &away).unwrap();
    symlink(&away, &there).unwrap();
    let message = Bundle::open(&bundle).map(|_| ()).unwrap_err().to_string();
    says(&message, "`kernels/gemv.xclbin` leaves the bundle");
    fs::remove_file(&there).unwrap();
    // A link inside is a file like any other.
    fs::rename(&away, bundle.join("kernels/real")).unwrap();
    symlink("real", &there).unwrap();
    assert!(Bundle::open(&bundle).is_ok());
    // The Hugging Face cache keeps the files of snapshots/<revision> in blobs.
    let (snapshot, blobs) = (checkpoint.folder.join("snapshots/main"), checkpoint.folder.join("blobs"));
    fs::create_dir_all(snapshot.parent().unwrap()).unwrap();
    fs::create_dir(&blobs).unwrap();
    fs::rename(&bundle, &snapshot).unwrap();
    for name in ["manifest.txt", "tensors.bin"] {
        fs::rename(snapshot.join(name), blobs.join(name)).unwrap();
        symlink(format!("../../blobs/{name}"), snapshot.join(name)).unwrap();
    }
    assert!(Bundle::open(&snapshot).is_ok());
}

#[test]
fn a_file_that_shrinks_while_open() {
    let (_checkpoint, path) = good("shrinks");
    let bundle = Bundle::open(&path).unwrap();
    let whole = bundle.tensor("ln_f").unwrap().bytes.to_vec();
    let mut read = vec![0; whole.len()];
    bundle.reader().read_into("ln_f", &mut read).unwrap();
    assert_eq!(read, whole);
    bundle.read_at("ln_f", 4, &mut read[..8]).unwrap();
    assert_eq!(read[..8], whole[4..12]);
    assert!(bundle.read_at("ln_f", whole.len() - 4, &mut read[..8]).is_err());
    assert!(
        bundle
            .reader()
            .read_into("ln_f", &mut [0; 5])
            .unwrap_err()
            .to_string()
            .contains("2048 bytes, but the buffer has 5")
    );
    assert!(bundle.reader().read_into("nothing", &mut [0; 5]).unwrap_err().to_string().contains("missing"));
    fs::OpenOptions::new().write(true).open(path.join("tensors.bin")).unwrap().set_len(100).unwrap();
    assert!(matches!(bundle.tensor("ln_f"), Err(BundleError::Changed { found: 100, .. })));
    assert!(matches!(bundle.reader().read_into("ln_f", &mut read), Err(BundleError::Changed { found: 100, .. })));
}

/// The form in which published bundles come: comments, other spellings of numbers, keys that nobody reads, records of
/// other tools, no `bias=`, Windows line ends.
#[test]
fn manifests_of_other_writers() {
    let (_checkpoint, bundle) = good("others");
    let text = fs::read_to_string(bundle.join("manifest.txt")).unwrap();
    let text = text.replace("bias=0 ", "").replace("bias=1 ", "").replace("param eps 0.000001", "param eps 1e-06");
    let text = text.replace("param rope_theta 10000000", "param rope_theta 10000000.0").replace("ctx=gemm ", "");
    let text = text.replace("gemm lin ", "gemm lin made_by=somebody ").replace('\n', "\r\n");
    let text = format!("# made by hand\r\n\r\n{text}step 1 2 three=4\r\nparam v.extra a b c\r\n");
    fs::write(bundle.join("manifest.txt"), text).unwrap();
    let other = Bundle::open(&bundle).unwrap();
    assert!(other.manifest.gemms["v_qkv"].bias && !other.manifest.gemms["lin"].bias);
    assert_eq!(other.manifest.text.rope_theta, 1e7);
}
