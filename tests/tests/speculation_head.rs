//! The head for speculation that published checkpoints bring along (`mtp.*`): exported where it is asked for, and nothing
//! to a reader that does not know it.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use driver_tests::checkpoint::{Form, ODD, Size, TINY};
use host_ops::pack::{BStream, Format, Paired};
use runtime::bundle::{Bundle, WeightFormat};
use runtime::export::{ExportOptions, VisionExport, export};

/// The tensors of a checkpoint's one file that are of the head: bf16, which f32 holds exactly.
fn weights(checkpoint: &Path) -> HashMap<String, Vec<f32>> {
    let file = std::fs::read(checkpoint.join("model.safetensors")).unwrap();
    let (length, rest) = file.split_first_chunk::<8>().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let header: serde_json::Value = serde_json::from_slice(header).unwrap();
    let mut all = HashMap::new();
    for (name, entry) in header.as_object().unwrap().iter().filter(|(name, _)| name.starts_with("mtp.")) {
        assert_eq!(entry["dtype"], "BF16");
        let [from, to] = [0, 1].map(|i| entry["data_offsets"][i].as_u64().unwrap() as usize);
        let words = data[from..to].as_chunks::<2>().0.iter();
        all.insert(name.clone(), words.map(|w| half::bf16::from_le_bytes(*w).to_f32()).collect());
    }
    all
}

fn folder(name: &str) -> PathBuf {
    let own = Path::new(env!("CARGO_TARGET_TMPDIR")).join("speculation-head").join(name);
    let _ = std::fs::remove_dir_all(&own);
    own
}

fn exported(size: &Size, own: &Path, format: WeightFormat, speculation: bool) -> PathBuf {
    let checkpoint = own.join("checkpoint");
    if !checkpoint.exists() {
        size.write(&checkpoint, Form::USUAL).unwrap();
    }
    let out = own.join(format!("{format:?}-{speculation}"));
    let options = ExportOptions::new(checkpoint, out);
    let options = ExportOptions { format, speculation, vision: VisionExport::None, ..options };
    export(&options, &mut |_| ControlFlow::Continue(())).unwrap().out
}

/// Every weight stands where the kernel of its shape reads it; slices of `fc` are padded to that kernel's inputs.
#[test]
fn every_weight_comes_out_as_the_checkpoint_has_it() {
    for size in [&TINY, &ODD[0], &ODD[1]] {
        let own = folder(size.name);
        let bundle = Bundle::open(&exported(size, &own, WeightFormat::F32, true)).unwrap();
        let (weights, manifest) = (weights(&own.join("checkpoint")), &bundle.manifest);
        let (d, i) = (size.hidden, size.intermediate);
        let unpacked = |name: &str, key: &str| {
            let gemm = &manifest.gemms[key];
            let layout = BStream::new(Format::F32, gemm.k, gemm.n, false).unwrap();
            (gemm.k, layout.unpack(bundle.tensor(name).unwrap().bytes).unwrap())
        };
        let key = manifest.speculation_kernel().unwrap();
        for slice in 0..2 {
            let (k, found) = unpacked(&format!("mtp.g.fc{slice}"), key);
            for (row, wanted) in found.chunks_exact(k).zip(weights["mtp.fc.weight"].chunks_exact(2 * d)) {
                assert!(row[..d] == wanted[slice * d..][..d] && row[d..].iter().all(|x| *x == 0.0));
            }
        }
        let layer = |name: &str| &weights[&format!("mtp.layers.0.{name}.weight")][..];
        let [q, k, v] = ["q", "k", "v"].map(|name| layer(&format!("self_attn.{name}_proj")));
        assert!(unpacked("mtp.g.in", "att").1 == [q, k, v].concat());
        assert!(unpacked("mtp.g.o", "o").1 == layer("self_attn.o_proj"));
        let (_, gu) = unpacked("mtp.g.gu", "gu");
        for (column, found) in gu.chunks_exact(d).enumerate() {
            let wanted = match Paired::of(column) {
                Paired::Gate(row) => &layer("mlp.gate_proj")[row * d..][..d],
                Paired::Up(row) => &layer("mlp.up_proj")[row * d..][..d],
            };
            assert!(found == wanted, "{column}");
        }
        for slice in 0..manifest.text.down_slices {
            let (k, found) = unpacked(&format!("mtp.g.down{slice}"), "down");
            let there = k.min(i - slice * k);
            for (row, wanted) in found.chunks_exact(k).zip(layer("mlp.down_proj").chunks_exact(i)) {
                assert!(row[..there] == wanted[slice * k..][..there]);
            }
        }
        for (name, from) in [
            ("ln1", "layers.0.input_layernorm"),
            ("ln2", "layers.0.post_attention_layernorm"),
            ("q_norm", "layers.0.self_attn.q_norm"),
            ("k_norm", "layers.0.self_attn.k_norm"),
            ("ln_e", "pre_fc_norm_embedding"),
            ("ln_h", "pre_fc_norm_hidden"),
            ("ln_f", "norm"),
        ] {
            assert_eq!(
                bundle.f32s(&format!("mtp.h.{name}")).unwrap(),
                weights[&format!("mtp.{from}.weight")],
                "{name}"
            );
        }
    }
}

#[test]
fn readers_that_do_not_know_it_see_the_same_bundle() {
    let own = folder("readers");
    let [with, without] = [true, false].map(|head| exported(&TINY, &own, WeightFormat::Bfp16, head));
    let read = |path: &Path, name: &str| std::fs::read(path.join(name)).unwrap();
    assert!(read(&with, "manifest.txt") == read(&without, "manifest.txt"));
    let [a, b] = [&with, &without].map(|path| Bundle::open(path).unwrap());
    for name in ["l0.g.in", "l1.g.down0", "head0"] {
        assert!(a.tensor(name).unwrap().bytes == b.tensor(name).unwrap().bytes);
    }
    assert!(b.tensor("mtp.g.in").is_err());
    let theirs = taconite_bundle::Manifest::load(&with, 1).unwrap();
    assert_eq!(theirs.param_as::<usize>("D").unwrap(), 512);
    let tensors = taconite_bundle::Store::load(&with).unwrap();
    assert_eq!(tensors.bytes("l0.g.in").unwrap(), a.tensor("l0.g.in").unwrap().bytes);
    assert_eq!(tensors.f32("mtp.h.ln_e").unwrap(), a.f32s("mtp.h.ln_e").unwrap());
}

#[test]
fn half_of_it_is_refused_by_name() {
    let own = folder("half");
    let bundle = exported(&TINY, &own, WeightFormat::Bfp16, true);
    let index = std::fs::read_to_string(bundle.join("tensors.txt")).unwrap();
    for name in ["mtp.g.fc1", "mtp.g.o", "mtp.h.ln_h", "mtp.h.k_norm"] {
        let less: String =
            index.lines().filter(|line| !line.starts_with(&format!("{name} "))).map(|l| format!("{l}\n")).collect();
        assert!(less.len() < index.len());
        std::fs::write(bundle.join("tensors.txt"), less).unwrap();
        let said = Bundle::open(&bundle).unwrap_err().to_string();
        assert!(said.contains(name), "{said}");
    }
    let checkpoint = own.join("checkpoint");
    let options = ExportOptions {
        speculation: true,
        vision: VisionExport::None,
        ..ExportOptions::new(checkpoint.clone(), own.join("x"))
    };
    let file = checkpoint.join("model.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    let at = bytes.windows(13).position(|w| w == b"mtp.fc.weight").unwrap();
    bytes[at..at + 3].copy_from_slice(b"mtq");
    std::fs::write(&file, bytes).unwrap();
    let said = export(&options, &mut |_| ControlFlow::Continue(())).unwrap_err().to_string();
    assert!(said.contains("has no tensor `mtp.fc.weight`"), "{said}");
    export(&ExportOptions { speculation: false, ..options }, &mut |_| ControlFlow::Continue(())).unwrap();
}
