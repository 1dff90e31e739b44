//! Everything that can be wrong from outside: one line on standard error that says what, nothing on standard output,
//! exit code 1 (failed) or 2 (wrong use), nothing hung and nothing half-written.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test that cannot go on has failed"
)]

mod common;

use common::{
    Run, broken, bundle, command, finish, fixture, folder, opaque, rewrite, rewrite_text, run, run_with_input,
};
use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Asserts one line on standard error that holds each of `words`, and prints it for the record.
fn refused(what: &str, run: &Run, code: i32, words: &[&str]) {
    let lines: Vec<&str> = run.stderr.lines().collect();
    println!("{what}\n  [{:?}] {}", run.code, run.stderr.trim_end());
    assert_eq!(run.code, Some(code), "{what}: {run:?}");
    assert_eq!(lines.len(), 1, "{what}: {run:?}");
    assert_eq!(run.stdout, "", "{what}");
    for word in words {
        assert!(lines[0].contains(word), "{what}: {word:?} is not in {:?}", lines[0]);
    }
}

/// Asks `bundle` something on the software NPU.
fn ask(bundle: &Path, more: &[&str]) -> Run {
    let mut arguments: Vec<OsString> = vec![bundle.into()];
    let base = ["--device", "model", "--max-ctx", "512", "--max-new", "2"];
    arguments.extend(base.iter().map(OsString::from));
    if !more.iter().any(|word| word.starts_with("--prompt")) {
        arguments.extend(["--prompt", "hi"].map(OsString::from));
    }
    arguments.extend(more.iter().map(OsString::from));
    run(&arguments)
}

fn with_image(image: &Path) -> Run {
    ask(bundle(), &["--image", image.to_str().unwrap()])
}

#[test]
fn the_whole_bundle_is_fine() {
    let run = ask(bundle(), &[]);
    assert_eq!(run.code, Some(0), "{run:?}");
}

#[test]
fn wrong_use() {
    let tiny = bundle().to_str().unwrap();
    for (arguments, words) in [
        (vec![tiny, "--prompt", "x", "--frobnicate"], vec!["unknown flag --frobnicate"]),
        (vec![tiny, "--prompt", "x", "--max-new", "0"], vec!["--max-new 0", "1 or more"]),
        (vec![tiny, "--prompt", "x", "--max-new", "many"], vec!["--max-new many"]),
        (vec![tiny, "--prompt", "x", "--max-ctx", "0"], vec!["--max-ctx 0"]),
        (vec![tiny, "--prompt", "x", "--max-ctx", "99999999999999999999999"], vec!["--max-ctx 9999"]),
        (vec![tiny], vec!["--prompt"]),
        (vec![tiny, "--prompt"], vec!["--prompt"]),
        (vec![tiny, "second", "--prompt", "x"], vec!["one argument too many", "second"]),
        (vec![tiny, "--prompt", "x", "--device", "gpu"], vec!["--device gpu"]),
        (vec!["check"], vec!["<bundle> is missing"]),
        (vec!["check", tiny, "--image", "x"], vec!["--image", "check"]),
        (vec!["export", "a"], vec!["<bundle> is missing"]),
        (
            vec!["dmeo", "--prompt", "x"],
            vec!["`dmeo` is neither a command (check, export, eval, verify, demo", "directory"],
        ),
        (vec!["export", "a", "b", "--vision", "w16"], vec!["--vision w16"]),
    ] {
        refused(&format!("{arguments:?}"), &run(&arguments), 2, &words);
    }
}

#[test]
fn bundles_that_are_not_there() {
    refused("no such directory", &ask(&folder().join("nowhere"), &[]), 1, &["nowhere"]);
    let empty = folder().join("empty");
    fs::create_dir_all(&empty).unwrap();
    refused("an empty directory", &ask(&empty, &[]), 1, &["empty", "not a bundle"]);
    let file = folder().join("file");
    fs::write(&file, "hello").unwrap();
    refused("a file", &ask(&file, &[]), 1, &["file"]);
    refused("check of nothing", &run(&["check", "/nowhere/at/all"]), 1, &["/nowhere/at/all"]);
}

/// Every file of a bundle, missing, empty, cut at several places, or a pointer.
#[test]
fn files_of_a_bundle_missing_empty_cut_or_pointers() {
    let mut files =
        vec!["manifest.txt".to_owned(), "tensors.txt".into(), "tensors.bin".into(), "tokenizer.json".into()];
    let mut kernels: Vec<String> = fs::read_dir(bundle().join("kernels"))
        .unwrap()
        .map(|entry| format!("kernels/{}", entry.unwrap().file_name().to_str().unwrap()))
        .collect();
    kernels.sort();
    assert!(kernels.len() > 4);
    // A stream of each kind and every container are enough: they all pass the same reader.
    kernels.retain(|name| name.ends_with(".xclbin") || name.contains("v_fc1.x1.") || name.contains("head"));
    files.extend(kernels);
    for file in &files {
        let case = |what: &str, edit: &dyn Fn(&Path)| {
            let name = format!("{}-{what}", file.replace('/', "-"));
            let path = broken(&name, |folder| edit(&folder.join(file)));
            let run = ask(&path, &[]);
            fs::remove_dir_all(&path).unwrap();
            (format!("{file}, {what}"), run)
        };
        let short = Path::new(file).file_name().unwrap().to_str().unwrap();
        let (what, run) = case("missing", &|path| fs::remove_file(path).unwrap());
        refused(&what, &run, 1, &[short]);
        let (what, run) = case("empty", &|path| rewrite(path, Vec::clear));
        refused(&what, &run, 1, &[]);
        let (what, run) = case("a pointer", &|path| {
            rewrite(path, |bytes| {
                *bytes = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n".to_vec();
            });
        });
        refused(&what, &run, 1, &["LFS", short]);
        for (name, numerator) in [("cut to a tenth", 1), ("cut to a half", 5), ("cut to nine tenths", 9)] {
            let (what, run) = case(name, &|path| rewrite(path, |bytes| bytes.truncate(bytes.len() * numerator / 10)));
            refused(&what, &run, 1, &[]);
        }
        let (what, run) = case("cut by a byte", &|path| {
            rewrite(path, |bytes| {
                let end = bytes.iter().rposition(|byte| !byte.is_ascii_whitespace()).unwrap_or(0);
                bytes.truncate(end);
            });
        });
        // Less a digit or a bracket of the last line: text may stay meaningful, and must then still answer.
        if run.code != Some(0) {
            refused(&what, &run, 1, &[]);
        }
    }
}

#[test]
fn manifests_and_indices_that_contradict_themselves() {
    let last = |text: &str, tag: &str| -> String {
        text.lines()
            .rfind(|line| line.starts_with(tag))
            .unwrap_or_else(|| panic!("no line starts with {tag}"))
            .to_owned()
    };
    let manifest = |what: &str, words: &[&str], edit: &dyn Fn(&str) -> String| {
        let path = broken(&what.replace(' ', "-"), |folder| rewrite_text(&folder.join("manifest.txt"), edit));
        refused(what, &ask(&path, &[]), 1, words);
    };
    manifest("wrong version", &["version", "7"], &|text| text.replace("version 1\n", "version 7\n"));
    manifest("no version", &["version"], &|text| text.replace("version 1\n", ""));
    manifest("version twice", &["version"], &|text| format!("{text}version 1\n"));
    manifest("param twice", &["D"], &|text| format!("{text}param D 512\n"));
    manifest("param missing", &["vocab"], &|text| text.replace("param vocab ", "param vocabulary "));
    manifest("param no number", &["heads"], &|text| text.replace("param heads 8", "param heads eight"));
    manifest("xclbin twice", &["xclbin"], &|text| format!("{text}{}\n", last(text, "xclbin")));
    manifest("gemv twice", &["gemv"], &|text| format!("{text}{}\n", last(text, "gemv ")));
    manifest("mismatched width", &[], &|text| text.replace("param D 512", "param D 1024"));
    manifest("mismatched heads", &[], &|text| text.replace("param heads 8", "param heads 16"));
    manifest("mismatched layers", &[], &|text| text.replace("layer_types lin,att", "layer_types lin,att,att"));
    manifest("path outside", &["leaves the bundle"], &|text| {
        text.replace(" kernels/gemv.xclbin ", " kernels/../../gemv.xclbin ")
    });
    let index = |what: &str, words: &[&str], edit: &dyn Fn(&str) -> String| {
        let path = broken(&what.replace(' ', "-"), |folder| rewrite_text(&folder.join("tensors.txt"), edit));
        refused(what, &ask(&path, &[]), 1, words);
    };
    index("tensor twice", &["ln_f"], &|text| format!("{text}{}\n", last(text, "ln_f ")));
    index("tensor missing", &["ln_f"], &|text| text.replace("ln_f ", "ln_g "));
    index("tensor past the end", &["ln_f"], &|text| {
        let line = last(text, "ln_f ");
        let mut words: Vec<&str> = line.split(' ').collect();
        words[3] = "1099511627776";
        text.replace(&line, &words.join(" "))
    });
    index("tensor at an impossible offset", &["tensors.txt", "18446744073709551608"], &|text| {
        let line = last(text, "ln_f ");
        let mut words: Vec<&str> = line.split(' ').collect();
        words[3] = "18446744073709551608";
        text.replace(&line, &words.join(" "))
    });
    index("tensor of another type", &["ln_f"], &|text| text.replace("ln_f f32", "ln_f i32"));
    index("tensor of another shape", &["ln_f"], &|text| text.replace("ln_f f32 512 ", "ln_f f32 511 "));
}

#[test]
fn pictures() {
    let bad = |name: &str, bytes: &[u8]| {
        let path = folder().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let jpeg = fs::read(fixture("444.jpg")).unwrap();
    let png = fs::read(fixture("rgb.png")).unwrap();
    refused("no such picture", &with_image(Path::new("/nowhere.png")), 1, &["/nowhere.png", "No such file"]);
    refused("a directory", &with_image(folder()), 1, &["directory"]);
    refused("0 bytes", &with_image(&bad("zero.jpg", b"")), 1, &["zero.jpg", "empty"]);
    refused("text", &with_image(&bad("text.png", b"I am no picture")), 1, &["text.png", "not a picture"]);
    refused("WebP", &with_image(&bad("w.webp", b"RIFF\x10\0\0\0WEBPVP8 ")), 1, &["WebP", "JPEG and PNG"]);
    refused("GIF", &with_image(&bad("g.gif", b"GIF89a\x01\0\x01\0")), 1, &["GIF"]);
    refused("HEIC", &with_image(&bad("h.heic", b"\0\0\0\x18ftypheic\0\0\0\0")), 1, &["HEIC"]);
    refused("JPEG, cut", &with_image(&bad("cut.jpg", &jpeg[..jpeg.len() / 2])), 1, &["cut.jpg", "cut short"]);
    refused("PNG, cut", &with_image(&bad("cut.png", &png[..png.len() / 2])), 1, &["cut.png", "cut short"]);
    let pipe = folder().join("pipe.png");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    refused("a pipe", &with_image(&pipe), 1, &["pipe.png", "not a regular file"]);
    let mut huge = jpeg.clone();
    let at = huge.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap();
    huge[at + 5..at + 9].copy_from_slice(&[0xea, 0x60, 0xea, 0x60]);
    refused("60000 x 60000", &with_image(&bad("huge.jpg", &huge)), 1, &["60000 x 60000"]);
    refused("aspect ratio over 200", &with_image(&fixture("thin.png")), 1, &["200"]);
    let endless = with_image(Path::new("/dev/zero"));
    refused("a device", &endless, 1, &["/dev/zero", "not a regular file"]);
}

#[test]
fn a_picture_of_one_pixel_is_fine() {
    let run = with_image(&fixture("one-pixel.png"));
    assert_eq!(run.code, Some(0), "{run:?}");
}

#[test]
fn prompts() {
    let invalid = folder().join("latin1.txt");
    fs::write(&invalid, b"caf\xe9").unwrap();
    let invalid = invalid.to_str().unwrap();
    refused(
        "a prompt file that is not UTF-8",
        &ask(bundle(), &["--prompt-file", invalid]),
        1,
        &["latin1.txt", "UTF-8"],
    );
    refused("no prompt file", &ask(bundle(), &["--prompt-file", "/nowhere.txt"]), 1, &["/nowhere.txt"]);
    refused("a directory", &ask(bundle(), &["--prompt-file", "/"]), 1, &["directory"]);
    refused("an empty prompt", &ask(bundle(), &["--prompt", " "]), 1, &["command line", "empty"]);
    let blank = folder().join("blank.txt");
    fs::write(&blank, "\n").unwrap();
    let blank = blank.to_str().unwrap();
    refused("an empty prompt file", &ask(bundle(), &["--prompt-file", blank]), 1, &["blank.txt", "empty"]);
    let long = "7 ".repeat(600);
    let over = ask(bundle(), &["--prompt", &long]);
    refused("a prompt longer than the context", &over, 1, &["512", "--max-ctx"]);
    let piped =
        run_with_input(&[bundle().to_str().unwrap(), "--device", "model", "--prompt-file", "-"], b"\xff\xfe\x00");
    refused("standard input that is not UTF-8", &piped, 1, &["standard input", "UTF-8"]);
}

#[test]
fn a_driver_check_of_no_case_is_wrong_use() {
    let none = run(&["driver-check", "--device", "model", "--group", "bo", "--case", "open::set_state"]);
    refused("no case at all", &none, 2, &["no case", "--list"]);
}

#[test]
fn a_driver_check_ends_when_nobody_reads_it() {
    let mut child = command(&["driver-check", "--device", "model", "--tap"]).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 16]).unwrap();
    drop(stdout);
    let run = finish(child);
    assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""));
}

#[test]
fn devices() {
    let tiny = bundle().to_str().unwrap();
    let on = |device: &str| run(&[tiny, "--prompt", "hi", "--max-new", "1", "--device", device]);
    // Without an NPU its absence is the reason; with one, that this bundle is not for it.
    refused("an NPU that is not there, or not for this bundle", &on("npu"), 1, &["NPU"]);
    let real = opaque();
    let node = |device: &Path| {
        let mut arguments: Vec<OsString> = vec![real.into()];
        arguments.extend(["--prompt", "hi", "--device"].map(OsString::from));
        arguments.push(device.into());
        command(&arguments)
    };
    let on_node = |device: &Path| finish(node(device).spawn().unwrap());
    refused("a node that is not there", &on_node(Path::new("/dev/accel/accel97")), 1, &["/dev/accel/accel97"]);
    refused("a node of another driver", &on_node(Path::new("/dev/null")), 1, &["/dev/null", "amdxdna"]);
    let closed = folder().join("accel0");
    fs::write(&closed, "").unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).unwrap();
    let mut asked = node(&closed);
    // Root may open anything, so it has to be somebody else, who has to be let in as far as the bundle.
    let root = Command::new("test").args(["-r".as_ref(), closed.as_os_str()]).status().unwrap().success();
    let nobody = 65534;
    let mut reach = Command::new("test");
    reach.arg("-r").arg(real.join("manifest.txt"));
    if root && !reach.uid(nobody).status().is_ok_and(|status| status.success()) {
        println!("no permission: not tried, since the bundle is out of reach for others");
    } else {
        if root {
            asked.uid(nobody);
        }
        refused("no permission", &finish(asked.spawn().unwrap()), 1, &["permission", "accel0"]);
    }

    let auto = on("auto");
    assert_eq!(auto.code, Some(0), "{auto:?}");
    assert!(auto.stderr.lines().next().unwrap().contains("software NPU"), "{auto:?}");
}

#[test]
fn exports_leave_nothing_behind() {
    let out = folder().join("out");
    let export = |checkpoint: &Path, more: &[&str]| {
        let mut arguments: Vec<OsString> = vec!["export".into(), checkpoint.into(), out.clone().into()];
        arguments.extend(more.iter().map(OsString::from));
        run(&arguments)
    };
    let good = folder().join("tiny/checkpoint");
    let _ = bundle();
    let without = |name: &str, edit: &dyn Fn(&Path)| {
        let to = folder().join(format!("checkpoint-{name}"));
        fs::create_dir_all(&to).unwrap();
        for entry in fs::read_dir(&good).unwrap() {
            let entry = entry.unwrap();
            fs::hard_link(entry.path(), to.join(entry.file_name())).unwrap();
        }
        edit(&to);
        to
    };
    refused("no checkpoint", &export(Path::new("/nowhere"), &[]), 1, &["/nowhere"]);
    for file in ["config.json", "tokenizer.json", "model.safetensors"] {
        let checkpoint = without(&format!("without-{file}"), &|path| fs::remove_file(path.join(file)).unwrap());
        refused(&format!("no {file}"), &export(&checkpoint, &[]), 1, &[file]);
        let checkpoint = without(&format!("cut-{file}"), &|path| {
            rewrite(&path.join(file), |bytes| bytes.truncate(bytes.len() / 2));
        });
        refused(&format!("{file}, cut"), &export(&checkpoint, &[]), 1, &[]);
    }
    refused("no references", &export(&good, &["--refs", "/nowhere"]), 1, &["/nowhere"]);
    refused("no kernels", &export(&good, &["--kernels-from", "/nowhere"]), 1, &["/nowhere"]);
    let leftovers: Vec<_> = fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_str().unwrap().to_owned())
        .filter(|name| name.starts_with("out") || name.starts_with(".out"))
        .collect();
    assert!(leftovers.is_empty(), "{leftovers:?}");
    fs::create_dir(&out).unwrap();
    refused("a bundle that exists", &export(&good, &[]), 1, &["out"]);
    assert_eq!(fs::read_dir(&out).unwrap().count(), 0);
}
