//! What the exporter makes of checkpoints.

use std::collections::BTreeSet;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use crate::common::{Checkpoint, Shape, Weights};
use half::bf16;
use host_ops::pack::{BStream, Rows};
use runtime::bundle::{Bundle, DType, GemmRecord, LayerKind, WeightFormat};
use runtime::export::{ExportError, ExportOptions, Summary, VisionExport, export};

fn run(options: &ExportOptions) -> Result<Summary, ExportError> {
    export(options, &mut |_| ControlFlow::Continue(()))
}

fn options(checkpoint: &Checkpoint, name: &str) -> ExportOptions {
    let mut options = ExportOptions::new(checkpoint.dir.clone(), checkpoint.folder.join(name));
    options.threads = 1;
    options.max_prompt = Some(512);
    options
}

/// A packed tensor decoded to `[n, k]`, and its biases.
fn unpacked(bundle: &Bundle, name: &str, gemm: &GemmRecord) -> (Vec<f32>, Vec<f32>) {
    let layout = BStream::new(gemm.format.packing(), gemm.k, gemm.n, gemm.bias).unwrap();
    let bytes = bundle.tensor(name).unwrap().bytes;
    let bias = if gemm.bias { layout.unpack_bias(bytes).unwrap() } else { vec![0.0; gemm.n] };
    (layout.unpack(bytes).unwrap(), bias)
}

/// Asserts that `[n, k]` decoded values are the wanted ones, within half a step of an eight-value block, or a step of a
/// sixteen-value one: its best encoding may cut the largest value.
#[track_caller]
fn close(found: &[f32], wanted: &[f32], k: usize, format: WeightFormat, what: &str) {
    assert_eq!(found.len(), wanted.len(), "{what}");
    let block = if format == WeightFormat::Bfp6s { 16 } else { 8 };
    for (index, (found, wanted)) in found.chunks(block).zip(wanted.chunks(block)).enumerate() {
        let largest = wanted.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
        let limit = match format {
            WeightFormat::F32 => 0.0,
            WeightFormat::Bfp16 => largest / 127.0,
            WeightFormat::Bfp6s => largest / 16.0,
        };
        for (found, wanted) in found.iter().zip(wanted) {
            let at = (index * block / k, index * block % k);
            assert!((found - wanted).abs() <= limit, "{what} at {at:?}: {found} instead of {wanted}");
        }
    }
}

/// Rows of `columns` values, padded with zeros to `[n, k]` from input `from`.
fn padded(rows: &[f32], columns: usize, n: usize, k: usize, from: usize) -> Vec<f32> {
    let mut out = vec![0.0; n * k];
    for (row, out) in rows.chunks(columns).zip(out.chunks_mut(k)) {
        let there = columns.saturating_sub(from).min(k);
        out[..there].copy_from_slice(&row[from..from + there]);
    }
    out
}

/// Every tensor of an exported bundle against the checkpoint's weights.
fn compare(bundle: &Bundle, weights: &Weights, shape: &Shape, format: WeightFormat) {
    let (text, gemms) = (&bundle.manifest.text, &bundle.manifest.gemms);
    let lm = |name: &str| weights.values(&format!("model.language_model.{name}"));
    let (d, i) = (shape.hidden, shape.intermediate);
    let check = |name: String, key: &str, rows: &[f32], columns: usize, from: usize| {
        let gemm = &gemms[key];
        let (found, bias) = unpacked(bundle, &name, gemm);
        close(&found, &padded(rows, columns, gemm.n, gemm.k, from), gemm.k, format, &name);
        assert!(bias.iter().all(|bias| *bias == 0.0), "{name}");
    };
    for (index, kind) in shape.layers.iter().enumerate() {
        let of = |name: &str| lm(&format!("layers.{index}.{name}"));
        let host = |part: &str| bundle.f32s(&format!("l{index}.h.{part}")).unwrap();
        if *kind == LayerKind::Linear {
            let rows = [of("linear_attn.in_proj_qkv.weight"), of("linear_attn.in_proj_z.weight")].concat();
            check(format!("l{index}.g.in"), "lin", &rows, d, 0);
            check(format!("l{index}.g.o"), "o", &of("linear_attn.out_proj.weight"), text.o_k, 0);
            let gates = [of("linear_attn.in_proj_b.weight"), of("linear_attn.in_proj_a.weight")].concat();
            assert_eq!(host("ba"), gates);
            let decay: Vec<f32> = of("linear_attn.A_log").iter().map(|log| -log.exp()).collect();
            assert_eq!(host("A"), decay);
            assert_eq!(host("dt_bias"), of("linear_attn.dt_bias"));
            assert_eq!(host("conv"), of("linear_attn.conv1d.weight"));
            assert_eq!(host("norm"), of("linear_attn.norm.weight"));
        } else {
            let parts = ["q_proj", "k_proj", "v_proj"].map(|part| of(&format!("self_attn.{part}.weight")));
            check(format!("l{index}.g.in"), "att", &parts.concat(), d, 0);
            check(format!("l{index}.g.o"), "o", &of("self_attn.o_proj.weight"), text.o_k, 0);
            assert_eq!(host("q_norm"), of("self_attn.q_norm.weight"));
            assert_eq!(host("k_norm"), of("self_attn.k_norm.weight"));
        }
        assert_eq!(host("ln1"), of("input_layernorm.weight"));
        assert_eq!(host("ln2"), of("post_attention_layernorm.weight"));
        let (gate, up) = (of("mlp.gate_proj.weight"), of("mlp.up_proj.weight"));
        let pairs = gate.chunks(32 * d).zip(up.chunks(32 * d));
        let paired: Vec<f32> = pairs.flat_map(|(gate, up)| [gate, up].concat()).collect();
        check(format!("l{index}.g.gu"), "gu", &paired, d, 0);
        for slice in 0..text.down_slices {
            let name = format!("l{index}.g.down{slice}");
            check(name, "down", &of("mlp.down_proj.weight"), i, slice * text.down_k);
        }
    }
    assert_eq!(bundle.f32s("ln_f").unwrap(), lm("norm.weight"));
    let embedding = lm("embed_tokens.weight");
    let head = if shape.tied { embedding.clone() } else { weights.values("lm_head.weight") };
    let mut matrices = vec![("head", head)];
    if !shape.tied {
        matrices.push(("embed", embedding));
    }
    assert_eq!(text.format, format);
    let layout = Rows::new(format.packing(), text.head_rows, d).unwrap();
    for (name, matrix) in matrices {
        let mut found = Vec::new();
        for part in 0..text.head_parts {
            found.extend(layout.unpack(bundle.tensor(&format!("{name}{part}")).unwrap().bytes).unwrap());
        }
        close(&found, &padded(&matrix, d, text.head_rows * text.head_parts, d, 0), d, format, name);
    }
    compare_tower(bundle, weights, shape, format == WeightFormat::F32);
}

fn compare_tower(bundle: &Bundle, weights: &Weights, shape: &Shape, exact: bool) {
    let Some(vision) = &bundle.manifest.vision else { return };
    let of = |name: &str| weights.values(&format!("model.visual.{name}"));
    let (d, i) = (vision.hidden, vision.intermediate);
    let linear = |ours: &str, key: &str, rows: &[f32], bias: &[f32], columns: usize, slices: Option<usize>| {
        let gemm = &bundle.manifest.gemms[key];
        let factors = bundle.f32s(&format!("{ours}.f")).unwrap();
        for slice in 0..slices.unwrap_or(1) {
            let name = slices.map_or(ours.to_owned(), |_| format!("{ours}.{slice}"));
            let (mut found, mut found_bias) = unpacked(bundle, &name, gemm);
            for (row, factor) in found.chunks_mut(gemm.k).zip(factors) {
                assert!((1.0..2.0).contains(factor));
                row.iter_mut().for_each(|value| *value *= factor);
            }
            found_bias.iter_mut().zip(factors).for_each(|(bias, factor)| *bias *= factor);
            let wanted = padded(rows, columns, gemm.n, gemm.k, slice * gemm.k);
            // Eight bits for the largest value of a row.
            for ((row, found), wanted) in found.chunks(gemm.k).enumerate().zip(wanted.chunks(gemm.k)) {
                let largest = rows.chunks(columns).nth(row).unwrap_or(&[]).iter().fold(0.0_f32, |m, v| m.max(v.abs()));
                let limit = if exact { 0.0 } else { largest / 126.0 };
                for (found, wanted) in found.iter().zip(wanted) {
                    assert!((found - wanted).abs() <= limit, "{name} row {row}: {found} instead of {wanted}");
                }
            }
            for (n, found) in found_bias.iter().enumerate() {
                let wanted = if slice == 0 { bias.get(n).copied().unwrap_or(0.0) } else { 0.0 };
                let limit = if exact { 0.0 } else { wanted.abs() / 250.0 };
                assert!((found - wanted).abs() <= limit, "{name} bias {n}: {found} instead of {wanted}");
            }
        }
    };
    let patch = of("patch_embed.proj.weight");
    let area = vision.patch * vision.patch;
    let summed: Vec<f32> = patch
        .chunks(2 * area)
        .flat_map(|frames| (0..area).map(|at| frames[at] + frames[area + at]).collect::<Vec<_>>())
        .collect();
    linear("vis.patch", "v_patch", &summed, &of("patch_embed.proj.bias"), vision.patch_values(), None);
    for block in 0..vision.depth {
        let name = |part: &str| format!("vis.b{block}.{part}");
        let theirs =
            |part: &str| (of(&format!("blocks.{block}.{part}.weight")), of(&format!("blocks.{block}.{part}.bias")));
        for (ours, key, part, columns, slices) in [
            ("qkv", "v_qkv", "attn.qkv", d, None),
            ("proj", "v_proj", "attn.proj", d, None),
            ("fc1", "v_fc1", "mlp.linear_fc1", d, None),
            ("fc2", "v_fc2", "mlp.linear_fc2", i, Some(vision.fc2_slices)),
        ] {
            let (weight, bias) = theirs(part);
            linear(&name(ours), key, &weight, &bias, columns, slices);
        }
        assert_eq!(bundle.f32s(&name("ln1_w")).unwrap(), theirs("norm1").0);
        assert_eq!(bundle.f32s(&name("ln2_b")).unwrap(), theirs("norm2").1);
    }
    for (ours, part) in [("m1", "fc1"), ("m2", "fc2")] {
        let weight = of(&format!("merger.linear_{part}.weight"));
        let bias = of(&format!("merger.linear_{part}.bias"));
        linear(&format!("vis.{ours}"), &format!("v_{ours}"), &weight, &bias, 4 * d, Some(vision.merger_slices));
    }
    assert_eq!(bundle.f32s("vis.pos").unwrap(), of("pos_embed.weight"));
    assert_eq!(shape.vision.unwrap().hidden, d);
}

#[test]
fn every_weight_arrives_in_f32() {
    for shape in [Shape::plain(), Shape::grouped()] {
        let checkpoint = Checkpoint::new("f32", &shape);
        let mut options = options(&checkpoint, "bundle");
        options.format = WeightFormat::F32;
        options.tower_slice = Some(512);
        run(&options).unwrap();
        let bundle = Bundle::open(&options.out).unwrap();
        let slices = bundle.manifest.vision.as_ref().unwrap().fc2_slices;
        assert_eq!(slices, shape.vision.unwrap().intermediate.div_ceil(512));
        compare(&bundle, &checkpoint.weights, &shape, WeightFormat::F32);
    }
}

#[test]
fn every_weight_arrives_in_blocks_and_eight_bits() {
    for shape in [Shape::plain(), Shape::grouped()] {
        let checkpoint = Checkpoint::new("bfp16", &shape);
        let options = options(&checkpoint, "bundle");
        let summary = run(&options).unwrap();
        assert_eq!(summary.out, options.out);
        assert_eq!(summary.bytes, fs::metadata(options.out.join("tensors.bin")).unwrap().len());
        let bundle = Bundle::open(&options.out).unwrap();
        compare(&bundle, &checkpoint.weights, &shape, WeightFormat::Bfp16);
        assert!(bundle.manifest.vision.is_some());
        let index = fs::read_to_string(options.out.join("tensors.txt")).unwrap();
        assert_eq!(index.lines().count(), summary.tensors);
        for line in index.lines() {
            let offset: u64 = line.split(' ').nth(3).unwrap().parse().unwrap();
            assert!(offset.is_multiple_of(64), "{line}");
        }
    }
}

#[test]
fn every_weight_arrives_in_six_bits() {
    for shape in [Shape::light(), Shape::grouped()] {
        let checkpoint = Checkpoint::new("bfp6s", &shape);
        let mut options = options(&checkpoint, "bundle");
        options.format = WeightFormat::Bfp6s;
        run(&options).unwrap();
        let bundle = Bundle::open(&options.out).unwrap();
        compare(&bundle, &checkpoint.weights, &shape, WeightFormat::Bfp6s);
        // The tower's stay as they are.
        assert!(bundle.manifest.gemms.values().all(|gemm| {
            gemm.format == if gemm.key.starts_with("v_") { WeightFormat::Bfp16 } else { WeightFormat::Bfp6s }
        }));
        assert!(bundle.manifest.gemvs.values().all(|gemv| gemv.format == WeightFormat::Bfp6s));
        let lin = &bundle.manifest.gemms["lin"];
        assert_eq!(bundle.tensor_bytes("l0.g.in"), Some(lin.k * lin.n / 16 * 13));
    }
}

#[test]
fn any_number_of_threads_writes_the_same_bytes() {
    for format in [WeightFormat::Bfp16, WeightFormat::Bfp6s] {
        same_bytes(format);
    }
}

fn same_bytes(format: WeightFormat) {
    let checkpoint = Checkpoint::new("threads", &Shape::light());
    let mut options = options(&checkpoint, "one");
    options.format = format;
    run(&options).unwrap();
    let one = fs::read(options.out.join("tensors.bin")).unwrap();
    options.out = checkpoint.folder.join("three");
    options.threads = 3;
    run(&options).unwrap();
    assert_eq!(fs::read(options.out.join("tensors.bin")).unwrap(), one);
}

#[test]
fn shards_and_other_number_types_give_the_same_values() {
    let shape = Shape::light();
    let checkpoint = Checkpoint::new("shards", &shape);
    let mut options = options(&checkpoint, "one");
    options.format = WeightFormat::F32;
    run(&options).unwrap();
    let one = fs::read(options.out.join("tensors.bin")).unwrap();
    checkpoint.split_in_two();
    options.out = checkpoint.folder.join("two");
    run(&options).unwrap();
    assert_eq!(fs::read(options.out.join("tensors.bin")).unwrap(), one);
    checkpoint.write_as("F32", |value| value.to_le_bytes().to_vec());
    options.out = checkpoint.folder.join("f32");
    run(&options).unwrap();
    assert_eq!(fs::read(options.out.join("tensors.bin")).unwrap(), one);
}

#[test]
fn the_error_of_every_weight_is_measured() {
    let shape = Shape::grouped();
    let checkpoint = Checkpoint::new("measured", &shape);
    let mut options = options(&checkpoint, "bundle");
    options.threads = 3;
    let summary = run(&options).unwrap();
    let bundle = Bundle::open(&options.out).unwrap();
    let of = |tensor: &str| summary.quantisation.iter().find(|one| one.tensor == tensor).unwrap();
    // From what the bundle holds, by another way than the exporter's.
    let gemm = &bundle.manifest.gemms["lin"];
    let (found, _) = unpacked(&bundle, "l0.g.in", gemm);
    let weights = |name: &str| checkpoint.weights.values(&format!("model.language_model.layers.0.linear_attn.{name}"));
    let wanted = [weights("in_proj_qkv.weight"), weights("in_proj_z.weight")].concat();
    let (mut error, mut largest, mut squared) = (0.0, 0.0_f32, 0.0);
    for (found, wanted) in found.iter().zip(&wanted) {
        error += f64::from(found - wanted).powi(2);
        squared += f64::from(*wanted).powi(2);
        largest = largest.max((found - wanted).abs());
    }
    let one = of("l0.g.in");
    assert_eq!((one.values, one.largest), ((gemm.n * gemm.k) as u64, largest));
    assert!((one.squared_error - error).abs() < 1e-9 * error && (one.squared - squared).abs() < 1e-9 * squared);
    // A step of a block is a 64th to a 127th of its largest value, and errs by 0.29 steps on average.
    for one in &summary.quantisation {
        let relative = one.relative_rms();
        assert!(one.squared == 0.0 || (0.001..0.01).contains(&relative), "{}: {relative}", one.tensor);
    }
    assert_eq!(of("vis.b0.fc1").kind(), "vis.fc1");
    let packed = bundle.tensor_names().filter(|name| bundle.tensor(name).unwrap().dtype == DType::U8).count();
    assert_eq!(summary.quantisation.len(), packed);
    let text = fs::read_to_string(options.out.join("quantisation.txt")).unwrap();
    assert_eq!(text.lines().count(), packed + 1);
}

#[test]
fn what_a_killed_export_leaves_is_no_bundle() {
    let checkpoint = Checkpoint::new("killed", &Shape::light());
    let options = options(&checkpoint, "bundle");
    let partial = checkpoint.folder.join(format!(".bundle.partial-{}", std::process::id()));
    let mut looked = 0;
    let result = export(&options, &mut |_| {
        assert!(Bundle::open(&partial).is_err() && !options.out.exists());
        looked += 1;
        ControlFlow::Continue(())
    });
    assert!(looked > 10);
    result.unwrap();
    assert!(Bundle::open(&options.out).is_ok() && !partial.exists());
}

#[test]
fn a_negative_zero_stays_a_zero() {
    let shape = Shape::light();
    let mut checkpoint = Checkpoint::new("zero", &shape);
    let name = "model.language_model.layers.0.mlp.down_proj.weight";
    let row = &mut checkpoint.weights.0.iter_mut().find(|(other, ..)| other == name).unwrap().2;
    row[..8].copy_from_slice(&[bf16::NEG_ZERO; 8]);
    row[0] = bf16::ONE;
    checkpoint.write();
    let options = options(&checkpoint, "bundle");
    run(&options).unwrap();
    let bundle = Bundle::open(&options.out).unwrap();
    let (found, _) = unpacked(&bundle, "l0.g.down0", &bundle.manifest.gemms["down"]);
    assert_eq!(found[..8], [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
}

#[test]
fn without_the_tower() {
    let checkpoint = Checkpoint::new("text", &Shape::light());
    let mut options = options(&checkpoint, "bundle");
    options.vision = VisionExport::None;
    run(&options).unwrap();
    let bundle = Bundle::open(&options.out).unwrap();
    assert!(bundle.manifest.vision.is_none());
    assert!(!bundle.manifest.xclbins.contains_key("vis"));
    assert!(!bundle.has_tensor("vis.patch"));
}

#[test]
fn the_manifest_says_what_it_was_made_from() {
    let checkpoint = Checkpoint::new("render", &Shape::grouped());
    let options = options(&checkpoint, "bundle");
    run(&options).unwrap();
    let text = fs::read_to_string(options.out.join("manifest.txt")).unwrap();
    let manifest = runtime::bundle::Manifest::parse(&text).unwrap();
    assert_eq!(manifest.render(), text);
    let text = &manifest.text;
    assert_eq!((text.lin_key_heads, text.lin_value_heads, text.o_k), (4, 8, 1024));
    assert_eq!((text.down_slices, text.down_k), (1, 1024));
    assert!(text.untied);
    assert_eq!(text.stop, [302, 300]);
    assert_eq!(text.head_parts * text.head_rows, 320);
    let vision = manifest.vision.unwrap();
    assert_eq!((vision.fc2_slices, vision.merger_slices), (1, 1));
    let gemm = |key: &str| &manifest.gemms[key];
    assert_eq!((gemm("v_qkv").k, gemm("v_qkv").n, gemm("v_qkv").lda), (512, 384, 512));
    assert_eq!((gemm("v_patch").k, gemm("v_patch").n), (1024, 128));
    assert_eq!(gemm("v_fc1").c_stride, gemm("v_fc2").lda);
}

#[test]
fn references_come_along() {
    let checkpoint = Checkpoint::new("refs", &Shape::light());
    let mut options = options(&checkpoint, "bundle");
    options.refs = Some(checkpoint.references());
    let summary = run(&options).unwrap();
    assert_eq!(summary.refs, 4);
    let bundle = Bundle::open(&options.out).unwrap();
    let refs = &bundle.manifest.refs;
    let found: Vec<_> = refs.iter().map(|one| (one.name.as_str(), one.images, one.system.as_deref())).collect();
    assert_eq!(found, [("plain", 0, None), ("image", 1, None), ("two", 2, None), ("system", 0, Some(" Be brief. "))]);
    assert_eq!(refs[0].prompt, "Grüße\n");
    assert!(refs[0].thinking);
    assert_eq!(bundle.i32s("ref.plain.tokens").unwrap(), [5, 6]);
    assert_eq!(bundle.i32s("ref.plain.positions").unwrap(), [0, 0, 0, 1, 1, 1, 2, 2, 2]);
    assert_eq!(bundle.tensor("ref.image.rgb").unwrap().shape, [2, 3, 3]);
    assert_eq!(bundle.tensor(&refs[2].image_tensor("patches", 1)).unwrap().shape, [4, 768]);
    assert_eq!(bundle.manifest.tokcases[0].ids, [] as [u32; 0]);
    assert_eq!(bundle.manifest.tokcases[1].ids, [120, 121]);
    // Another reader of the format sees only what the format itself can say.
    let text = fs::read_to_string(options.out.join("manifest.txt")).unwrap();
    assert_eq!(text.lines().filter(|line| line.starts_with("ref ")).count(), 2);
    options.vision = VisionExport::None;
    options.out = checkpoint.folder.join("text");
    assert_eq!(run(&options).unwrap().refs, 2);
}

#[test]
fn kernels_of_another_bundle() {
    let checkpoint = Checkpoint::new("kernels", &Shape::light());
    let mut base = options(&checkpoint, "base");
    base.head_parts = Some(2);
    run(&base).unwrap();
    // The container's uuid means nothing to anybody.
    let kernel = base.out.join("kernels/gemv.xclbin");
    let mut marked = fs::read(&kernel).unwrap();
    marked[0x1A0..0x1B0].copy_from_slice(b"somebody else's.");
    fs::write(&kernel, &marked).unwrap();

    let mut tuned = options(&checkpoint, "tuned");
    tuned.kernels_from = Some(base.out.clone());
    tuned.max_prompt = Some(1024);
    run(&tuned).unwrap();
    let (base_bundle, bundle) = (Bundle::open(&base.out).unwrap(), Bundle::open(&tuned.out).unwrap());
    assert_eq!(bundle.manifest.gemms, base_bundle.manifest.gemms);
    assert_eq!(bundle.manifest.text.max_prompt, 512);
    assert_eq!(bundle.manifest.text.head_parts, 2);
    assert_eq!(fs::read(tuned.out.join("kernels/gemv.xclbin")).unwrap(), marked);

    let refused = |shape: &Shape, from: &Path, change: &dyn Fn(&mut ExportOptions)| {
        let checkpoint = Checkpoint::new("kernels-refused", shape);
        let mut options = options(&checkpoint, "bundle");
        options.kernels_from = Some(from.to_owned());
        change(&mut options);
        run(&options).unwrap_err().0
    };
    let wider = Shape { intermediate: 1024, ..Shape::light() };
    let message = refused(&wider, &base.out, &|_| ());
    assert!(message.contains("do not fit: I is 1024 in the checkpoint and 512 there"), "{message}");
    let heads = Shape { kv_heads: 4, ..Shape::light() };
    let message = refused(&heads, &base.out, &|_| ());
    assert!(message.contains("N of `gemm att` is 1280; expected 1536"), "{message}");
    let message = refused(&Shape::light(), &base.out, &|options| options.format = WeightFormat::F32);
    assert!(message.contains("they take bfp16 weights, this export writes f32"), "{message}");
    let mut blind = options(&checkpoint, "blind");
    blind.vision = VisionExport::None;
    run(&blind).unwrap();
    let message = refused(&Shape::light(), &blind.out, &|_| ());
    assert!(message.contains("they have no vision tower; export with `--vision none`"), "{message}");
}

/// What lies in a folder, by name.
fn listing(folder: &Path) -> BTreeSet<String> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_failed_export_leaves_nothing() {
    let checkpoint = Checkpoint::new("failed", &Shape::light());
    let options = options(&checkpoint, "bundle");
    let before = listing(&checkpoint.folder);
    let mut calls = 0;
    let broken_off = export(&options, &mut |progress| {
        calls += 1;
        assert!(progress.done <= progress.total);
        if calls == 10 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert_eq!(broken_off.unwrap_err().0, "interrupted");
    assert_eq!(listing(&checkpoint.folder), before);

    let weights = checkpoint.dir.join("model.safetensors");
    let whole = fs::read(&weights).unwrap();
    fs::write(&weights, &whole[..whole.len() - 10]).unwrap();
    let message = run(&options).unwrap_err().0;
    assert!(message.contains("the file is cut short"), "{message}");
    assert_eq!(listing(&checkpoint.folder), before);
    fs::write(&weights, b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n").unwrap();
    let message = run(&options).unwrap_err().0;
    assert!(message.contains("Git LFS pointer"), "{message}");
    fs::write(&weights, &whole).unwrap();

    fs::create_dir(&options.out).unwrap();
    let message = run(&options).unwrap_err().0;
    assert!(message.contains("exists already; remove it or choose another name"), "{message}");
    fs::remove_dir(&options.out).unwrap();

    let tokenizer = checkpoint.dir.join("tokenizer.json");
    fs::write(&tokenizer, "{").unwrap();
    let message = run(&options).unwrap_err().0;
    assert!(message.starts_with("tokenizer.json: not JSON"), "{message}");
    fs::remove_file(&tokenizer).unwrap();
    let message = run(&options).unwrap_err().0;
    assert!(message.starts_with("cannot read ") && message.contains("tokenizer.json"), "{message}");
    assert_eq!(listing(&checkpoint.folder), before);
}

#[test]
fn checkpoints_that_contradict_themselves() {
    let checkpoint = Checkpoint::new("contradiction", &Shape { kv_heads: 4, ..Shape::light() });
    Checkpoint::write_config(&checkpoint.dir, &Shape::light());
    let message = run(&options(&checkpoint, "bundle")).unwrap_err().0;
    assert!(message.contains("k_proj.weight` is [256, 512]; the configuration says [128, 512]"), "{message}");
    let missing = ExportOptions::new(checkpoint.folder.join("nothing"), checkpoint.folder.join("bundle"));
    assert!(run(&missing).unwrap_err().0.contains("is not a directory with a checkpoint"));
}

/// The oracle's two checkpoints with their references, where `QWEN35_ORACLE` names its folder.
#[test]
#[ignore = "needs QWEN35_ORACLE, a folder of reference runs"]
fn the_oracle_exports() {
    let oracle = PathBuf::from(std::env::var_os("QWEN35_ORACLE").unwrap());
    for (model, refs) in [("tiny-qwen35", 12), ("tiny-qwen35-gva", 12)] {
        let folder = crate::common::folder(&format!("oracle-{model}"));
        for format in [WeightFormat::Bfp16, WeightFormat::F32] {
            let mut options = ExportOptions::new(oracle.join(model).join("checkpoint"), folder.join(format.name()));
            options.refs = Some(oracle.join(model).join("A"));
            options.format = format;
            assert_eq!(run(&options).unwrap().refs, refs);
            let bundle = Bundle::open(&options.out).unwrap();
            assert_eq!(bundle.manifest.refs.iter().filter(|one| one.is_plain()).count(), 10);
            assert_eq!(bundle.manifest.text.head_parts, 2);
        }
        fs::remove_dir_all(folder).unwrap();
    }
}
