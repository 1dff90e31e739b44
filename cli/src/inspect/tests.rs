use super::*;
use runtime::reference::{Epilogue, Format, GemmSpec, GemvSpec, Kind, Order, gemm_stream, gemv_stream};

fn gemm() -> Vec<u8> {
    let (epilogue, format) = (Epilogue::None, Format::Bfp16);
    gemm_stream(&GemmSpec { chunks: 1, k: 512, n: 128, lda: 512, c_stride: 128, bias: false, epilogue, format })
        .unwrap()
}

fn gemv() -> Vec<u8> {
    gemv_stream(&GemvSpec { m: 256, k: 512, order: Order::Stream, bias: false, format: Format::Bfp16 }).unwrap()
}

/// A stream by hand: generation 4, 6 rows, 8 columns.
fn stream(version: [u8; 2], operations: &[&[u32]]) -> Vec<u8> {
    let words = operations.concat();
    let mut out = vec![version[0], version[1], 4, 6, 8, 1, 0, 0];
    out.extend((operations.len() as u32).to_le_bytes());
    out.extend((16 + 4 * words.len() as u32).to_le_bytes());
    out.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    out
}

const FULL: [&[u32]; 6] = [
    &[1, 0, 0x0201_D020, 48, 100, 64, 0, 0, 0, 0, 0, 0x0200_0000],
    &[129, 48, 0, 0, 0, 0, 0x0201_D024, 0, 2, 0, 64, 0],
    &[3, 0, 0x0201_D200, 0, 0xF00, 0x1F00, 28],
    &[0, 0, 0x0201_D204, 0, 0x8002_0001, 24],
    &[0x0000_0106],
    &[128, 16, 0x0001_0000, 0x0001_0100],
];
const SHORT: [&[u32]; 6] = [
    &[1, 0x0201_D020, 44, 100, 64, 0, 0, 0, 0, 0, 0x0200_0000],
    &[129, 24, 0x0201_D024, 2, 64, 0],
    &[3, 0x0201_D200, 0xF00, 0x1F00],
    &[0, 0x0201_D204, 0x8002_0001],
    &[0x0000_0106],
    &[128, 16, 0x0001_0000, 0x0001_0100],
];
const TRACE: &str = concat!(
    r#"{"n":0,"file":1,"call":"open","at_us":0,"took_us":3,"errno":null,"in":{},"out":{}}"#,
    "\n",
    r#"{"n":2,"file":1,"call":"EXEC_CMD","at_us":40,"took_us":9,"errno":null,"in":{"hwctx":1,"packet":{"kernel":{"instruction_bytes":2048,"stream":"ab12"}}},"out":{"seq":7}}"#,
    "\n\n",
    r#"{"n":1,"file":1,"call":"CREATE_BO","at_us":10,"took_us":5,"errno":"EINVAL","in":{"size":0}}"#,
    "\n",
    r#"{"n":3,"file":1,"call":"CREATE_BO","at_us":60,"took_us":1,"errno":null,"in":{"size":8192},"out":{"handle":2}}"#,
    "\n",
);

fn as_text(binary: &[u8]) -> Vec<u8> {
    let words = binary.as_chunks().0.iter();
    words.map(|word| format!("{:08x}\n", u32::from_le_bytes(*word))).collect::<String>().into_bytes()
}

/// The table's line that begins with `begin`, without repeated blanks.
fn line(report: &Report, begin: &str) -> String {
    let line = report.text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    line.into_iter().find(|line| line.starts_with(begin)).unwrap_or_else(|| panic!("{begin}:\n{}", report.text))
}

/// The number behind the first `byte `, which every refusal has.
fn place(what: &str) -> usize {
    let after = what.split("byte ").nth(1).unwrap_or_else(|| panic!("no place: {what}"));
    let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("no place: {what}"))
}

#[test]
fn a_container_and_its_image() {
    let bytes = runtime::reference::xclbin(Kind::Gemm);
    let report = explain(&bytes, true).unwrap();
    assert_eq!(report.damage, None);
    assert_eq!(line(&report, "32 AIE_PARTITION").split(' ').nth(2), Some("aie_partition"));
    assert!(line(&report, "MLIR_AIE 0x901 0 MLIR_AIE:MLIRAIE 0 opcode@0 instr@8 ninstr@16 bo0@20").ends_with("bo4@52"));
    assert_eq!(line(&report, "partition"), "partition 8 columns, start at 0, 2048 operations a cycle");
    assert_eq!(line(&report, "image"), "image aie_image, id 0x1c000000, device 0x14ca8093");
    assert_eq!(line(&report, "kernel a"), "kernel a reference kernel: the software NPU runs it, cores do not");
    assert_eq!(report.json["kernels"][0]["id"], 0x901);
    assert_eq!(report.json["pdis"][0]["pdi"]["counts"]["NOP"], 3);
    assert_eq!(report.json["pdis"][0]["pdi"]["ops"].as_array().unwrap().len(), 3);

    // The image by itself.
    let (from, len) = (report.json["pdis"][0]["offset"].as_u64(), report.json["pdis"][0]["bytes"].as_u64());
    let image = &bytes[from.unwrap() as usize..][..len.unwrap() as usize];
    let alone = explain(image, false).unwrap();
    assert!(alone.text.starts_with("PDI, ") && alone.json["kind"] == "pdi");
    assert_eq!(alone.json["sha256"], report.json["pdis"][0]["sha256"]);
}

#[test]
fn a_damaged_image_is_named_with_its_place_in_the_file() {
    let mut bytes = runtime::reference::xclbin(Kind::Gemv);
    let image = bytes.windows(4).position(|word| word == 0xDD_u32.to_le_bytes()).unwrap();
    bytes[image + 0x40] ^= 1;
    let report = explain(&bytes, false).unwrap();
    let damage = report.damage.unwrap();
    assert_eq!(place(&damage), image + 0x8C, "{damage}");
    assert!(damage.starts_with("PDI 0: ") && damage.contains("checksum"));
    assert_eq!(report.json["damage"], damage);
}

#[test]
fn streams_in_every_form() {
    let full = stream([0, 1], &FULL);
    let mut captured = full.clone();
    captured[..8].copy_from_slice(&[29, 87, 87, 3, 33, 9, 1, 2]);
    for (bytes, form, text) in [
        (full.clone(), "full", false),
        (stream([1, 0], &SHORT), "optimised", false),
        (as_text(&full), "full", true),
        (as_text(&stream([1, 0], &SHORT)), "optimised", true),
        (captured, "full", false),
    ] {
        let report = explain(&bytes, true).unwrap();
        assert_eq!((&report.json["form"], &report.json["text"]), (&json!(form), &json!(text)));
        assert!(line(&report, "DDR_PATCH 129 1 ").split(' ').count() == 4);
        // Three runs of 100 words.
        assert_eq!(line(&report, "2 1 columns"), "2 1 columns 1; BDs 1 1 0 1200 0x40..0x1d0");
        assert_eq!(line(&report, "S2MM 0"), "S2MM 0 row 0, columns 1 1");
        let of = |name: &str| {
            let ops = report.json["ops"].as_array().unwrap();
            ops.iter().find(|op| op["name"] == name).unwrap()["text"].as_str().unwrap().to_owned()
        };
        assert_eq!(of("BLOCKWRITE"), "tile (1,0) BD 1: 100 words at 0x40");
        assert_eq!(of("DDR_PATCH"), "tile (1,0) BD 1 points at argument 2 + 0x40");
        assert_eq!(of("MASKWRITE"), "tile (1,0) S2MM 0 control = 0xf00 under 0x1f00");
        assert_eq!(of("WRITE32"), "tile (1,0) S2MM 0 queue takes BD 1, 3 runs, token");
        assert_eq!(of("PREEMPT"), "may give way here, saving memory tiles");
        assert_eq!(of("TCT"), "a token of S2MM 0 of tile (1,0)");
        let listed = report.text.lines().filter(|line| line.contains(" 0x0000")).count();
        assert_eq!(listed, 6, "{}", report.text);
    }
}

#[test]
fn odd_headers_are_noted_not_refused() {
    let mut captured = stream([29, 87], &FULL);
    captured[2..5].copy_from_slice(&[87, 6, 33]);
    let notes = explain(&captured, false).unwrap().json["notes"].to_string();
    assert!(notes.contains("no tool writes this version") && notes.contains("none that exists"), "{notes}");
    assert_eq!(explain(&stream([0, 1], &FULL), false).unwrap().json["notes"], json!([]));
    let unwaited = explain(&stream([0, 1], &FULL[..5]), false).unwrap().json["notes"].to_string();
    assert!(unwaited.contains("not waited for"), "{unwaited}");
}

#[test]
fn a_stream_of_no_operations_is_one() {
    let report = explain(&stream([0, 1], &[]), true).unwrap();
    assert_eq!(line(&report, "size"), "size 16 bytes, 0 operations");
    assert_eq!(report.json["ops"], json!([]));
}

#[test]
fn reference_streams_move_their_matrices() {
    let report = explain(&gemm(), false).unwrap();
    let bytes = |argument: usize, what: &str| report.json["arguments"][argument][what].as_u64().unwrap();
    assert_eq!((bytes(0, "bytes_read"), bytes(0, "end")), (256 * 512 * 2, 256 * 512 * 2));
    assert_eq!((bytes(1, "bytes_read"), bytes(1, "end")), (128 * 512 / 8 * 9, 128 * 512 / 8 * 9));
    assert_eq!((bytes(2, "bytes_written"), bytes(2, "end")), (256 * 128 * 2, 256 * 128 * 2));
    assert_eq!(report.json["waits_for_outputs"], true);
    let report = explain(&gemv(), false).unwrap();
    assert_eq!(report.json["arguments"][1]["end"], 256 * 512 / 8 * 9);
}

#[test]
fn every_cut_is_refused_with_a_place() {
    let image = {
        let bytes = runtime::reference::xclbin(Kind::Gemm);
        let report = explain(&bytes, false).unwrap();
        let from = report.json["pdis"][0]["offset"].as_u64().unwrap() as usize;
        bytes[from..from + report.json["pdis"][0]["bytes"].as_u64().unwrap() as usize].to_vec()
    };
    for whole in [
        runtime::reference::xclbin(Kind::Gemm),
        image,
        gemv(),
        stream([0, 1], &FULL),
        stream([1, 0], &SHORT),
        as_text(&stream([0, 1], &FULL)),
    ] {
        // The last newline of the text form is not missed.
        let end = whole.trim_ascii_end().len();
        for cut in 0..end.min(whole.len()) {
            let what = explain(&whole[..cut], true).map(|report| report.text).unwrap_err();
            place(&what);
        }
    }
}

#[test]
fn changed_bytes_do_not_panic() {
    for whole in [runtime::reference::xclbin(Kind::Gemv), stream([0, 1], &FULL), stream([1, 0], &SHORT)] {
        let step = if whole.len() > 1000 { 7 } else { 1 };
        for at in (0..whole.len()).step_by(step) {
            for value in [0, 0x7F, 0xFF] {
                let mut changed = whole.clone();
                changed[at] = value;
                if let Err(what) = explain(&changed, true) {
                    place(&what);
                }
            }
        }
    }
}

#[test]
fn other_files_are_refused_by_name() {
    let refusal = |bytes: &[u8]| explain(bytes, false).map(|report| report.text).unwrap_err();
    assert!(refusal(b"\x7FELF\x01\x01\x01").starts_with("byte 0: an ELF file"));
    assert!(refusal(b"version https://git-lfs.github.com/spec/v1\n").contains("git lfs pull"));
    assert!(refusal(b"\x89PNG\r\n\x1a\n").contains("--image"));
    assert!(refusal(b"").starts_with("neither xclbin nor PDI nor trace"));
    assert!(refusal(b"This is a letter, nothing else at all").starts_with("neither xclbin nor PDI nor trace"));
    let old = [0x11_u32, 0x0100_0405, 0x0100_0100, 0x0B59_0100];
    assert!(refusal(&old.map(u32::to_le_bytes).concat()).contains("NPU1 sequence of the old form"));
    let unknown = refusal(&stream([0, 1], &[&[5], &[77]]));
    assert_eq!(unknown, "instruction stream: operation 1 at byte 20: unknown operation code 77");
}

#[test]
fn traces_are_counted_and_listed_in_order_of_calls() {
    let report = explain(TRACE.as_bytes(), true).unwrap();
    assert_eq!(line(&report, "CREATE_BO 2"), "CREATE_BO 2 1 6");
    assert_eq!(line(&report, "CREATE_BO EINVAL"), "CREATE_BO EINVAL 1");
    assert_eq!(line(&report, "ab12"), "ab12 1 2048");
    assert_eq!(line(&report, "time"), "time 61 us");
    assert_eq!(line(&report, "buffers"), "buffers 8192 bytes created");
    assert_eq!(line(&report, "3 60"), "3 60 CREATE_BO size=8192 -> handle=2");
    assert_eq!(line(&report, "1 10"), "1 10 CREATE_BO EINVAL size=0");
    let listed: Vec<_> =
        report.json["ops"].as_array().unwrap().iter().map(|call| call["n"].as_u64().unwrap()).collect();
    assert_eq!(listed, [0, 1, 2, 3]);
    // A cut is told unless it falls between two lines.
    let ends: Vec<usize> = TRACE.match_indices("}\n").map(|(at, _)| at).collect();
    for cut in 1..TRACE.len() {
        match explain(&TRACE.as_bytes()[..cut], false) {
            Ok(_) => assert!(ends.iter().any(|end| cut == end + 1 || cut == end + 2 || cut == end + 3), "{cut}"),
            Err(what) => assert!(place(&what) <= cut, "{cut}: {what}"),
        }
    }
    let refusal = |text: &str| explain(text.as_bytes(), false).map(|report| report.text).unwrap_err();
    assert_eq!(refusal("{\"call\":\"open\"}\n{\"n\":1}\n"), "trace: line 2 at byte 16: expected a field `call`");
    assert_eq!(refusal("{\"call\":\"open\"}\n[]\n"), "trace: line 2 at byte 16: expected a JSON object");
    assert!(refusal("{\"a\":1}").contains("without one recorded call"));
}

#[test]
fn json_is_json_and_has_a_version() {
    for bytes in [runtime::reference::xclbin(Kind::Gemm), gemm(), stream([1, 0], &SHORT), TRACE.as_bytes().to_vec()] {
        for ops in [false, true] {
            let report = explain(&bytes, ops).unwrap();
            let parsed: Value = serde_json::from_str(&report.json.to_string()).unwrap();
            assert_eq!(parsed["version"], VERSION);
            assert_eq!(parsed["bytes"], bytes.len());
            assert_eq!(parsed["sha256"].as_str().map(str::len), Some(64));
            assert!(parsed["kind"].is_string());
        }
    }
}
