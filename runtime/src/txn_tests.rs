use super::dma::reach;
use super::*;
use crate::reference::{Epilogue, Format, GemmSpec, GemvSpec, Order, gemm_stream, gemv_stream};

fn stream(version: [u8; 2], operations: &[&[u32]]) -> Vec<u8> {
    let words = operations.concat();
    let mut out = vec![version[0], version[1], 4, 6, 8, 1, 0, 0];
    out.extend((operations.len() as u32).to_le_bytes());
    out.extend((16 + 4 * words.len() as u32).to_le_bytes());
    out.extend(words.iter().flat_map(|w| w.to_le_bytes()));
    out
}

const FULL: [&[u32]; 7] = [
    &[1, 0, 0x0201_D020, 48, 100, 64, 0, 0, 0, 0, 0, 0x0200_0000],
    &[129, 48, 0, 0, 0, 0, 0x0201_D024, 0, 2, 0, 64, 0],
    &[3, 0, 0x0201_D200, 0, 0xF00, 0x1F00, 28],
    &[0, 0, 0x0201_D204, 0, 0x8000_0001, 24],
    &[0x0000_0106],
    &[8 | 3 << 16, 368, 0, 0],
    &[128, 16, 0x0001_0000, 0x0001_0100],
];
const SHORT: [&[u32]; 7] = [
    &[1, 0x0201_D020, 44, 100, 64, 0, 0, 0, 0, 0, 0x0200_0000],
    &[129, 24, 0x0201_D024, 2, 64, 0],
    &[3, 0x0201_D200, 0xF00, 0x1F00],
    &[0, 0x0201_D204, 0x8000_0001],
    &[0x0000_0106],
    &[8 | 3 << 16, 368, 0, 0],
    &[128, 16, 0x0001_0000, 0x0001_0100],
];

#[test]
fn both_forms_and_the_text_form_say_the_same() {
    let full = Stream::parse(&stream([0, 1], &FULL)).unwrap();
    let short = Stream::parse(&stream([1, 0], &SHORT)).unwrap();
    let kinds = |s: &Stream| s.operations().iter().map(|o| o.kind).collect::<Vec<_>>();
    assert_eq!(kinds(&full), kinds(&short));
    assert_eq!((full.form(), short.form()), (Form::Full, Form::Optimised));
    assert_eq!(kinds(&full)[1], OperationKind::Patch { register: 0x0201_D024, argument: 2, offset: 64 });
    assert_eq!(
        kinds(&full)[4..6],
        [OperationKind::Preempt { level: 1 }, OperationKind::LoadPdi { id: 3, size: 368, address: 0 }]
    );
    assert_eq!(full.extents(), [0, 0, 464]);
    assert_eq!(full.operations()[2].offset, 16 + 48 + 48);
    assert!(full.waits_for_outputs());

    let text: String =
        full.bytes().as_chunks().0.iter().map(|w| format!("{:08X}\r\n", u32::from_le_bytes(*w))).collect();
    let from_text = Stream::parse(text.as_bytes()).unwrap();
    assert!(from_text.was_text() && from_text.bytes() == full.bytes());
    assert_eq!(Stream::parse(b"00000100\n12\n").unwrap_err(), TxnError::Text { line: 2, offset: 9 });
}

#[test]
fn captured_headers_are_read_and_empty_streams_are_legal() {
    let mut captured = stream([29, 87], &FULL);
    captured[2..8].copy_from_slice(&[87, 1, 33, 9, 9, 9]);
    assert_eq!(Stream::parse(&captured).unwrap().operations().len(), 7);
    assert!(Stream::parse(&stream([0, 1], &[])).unwrap().operations().is_empty());
}

#[test]
fn every_truncation_is_an_error_that_says_where() {
    for (version, operations) in [([0, 1], FULL), ([1, 0], SHORT)] {
        let whole = stream(version, &operations);
        for len in 0..whole.len() {
            assert!(Stream::parse(&whole[..len]).is_err(), "{len}");
            let mut lying = whole[..len].to_vec();
            if let Some(size) = lying.get_mut(12..16) {
                size.copy_from_slice(&(len as u32).to_le_bytes());
            }
            assert!(Stream::parse(&lying).is_err(), "{len}, header adjusted");
        }
    }
}

#[test]
fn errors_by_name() {
    let parse = |file: &[u8]| Stream::parse(file).unwrap_err().to_string();
    assert!(parse(b"version https://git-lfs.github.com/spec/v1\n").contains("git lfs pull"));
    assert_eq!(
        parse(&[]),
        "no instruction stream: it ends at byte 0; expected a 16-byte header and whole 32-bit words"
    );
    assert!(parse(&[0x11, 0, 0, 0, 5, 4, 0, 1, 0, 1, 0, 1, 0, 1, 0x59, 0xB]).contains("NPU1"));
    let one = |words: &[u32]| parse(&stream([0, 1], &[&[5], words]));
    assert_eq!(one(&[2, 0]), "operation 1 at byte 20: operation code 2, whose layout is not published");
    assert_eq!(one(&[77]), "operation 1 at byte 20: unknown operation code 77");
    assert!(one(&[0, 0, 0, 1, 0, 24]).contains("beyond 32 bits"));
    assert!(one(&[0, 0, 0, 0, 0, 28]).contains("says it has 28 bytes, not 24"));
    assert!(one(&[129, 48, 0, 0, 0, 0, 0x1D004, 0, 5, 0, 0, 0]).contains("buffer argument 5"));
    assert!(one(&[129, 48, 0, 0, 0, 0, 0x1D008, 0, 0, 0, 0, 0]).contains("not word 1"));
    assert!(one(&[128, 20, 0, 0, 0]).contains("size of 20 bytes"));
    let mut trailing = stream([0, 1], &[&[5], &[5]]);
    trailing[8] = 1;
    assert_eq!(parse(&trailing), "byte 20: 4 bytes follow the last of 1 operations");
    let mut longer = stream([0, 1], &[&[5]]);
    longer.push(0);
    assert!(parse(&longer).contains("byte 21"));
}

/// By brute force.
fn farthest(words: &[u32; 8], runs: u64) -> u64 {
    let f = |word: usize, shift: u32, bits: u32| u64::from(words[word] >> shift & ((1 << bits) - 1));
    let mut end = 0;
    for run in 0..runs {
        let base = (f(6, 26, 6) + run) % (f(6, 20, 6) + 1) * (f(6, 0, 20) + 1);
        for x in 0..u64::from(words[0]) {
            let (w0, w1) = (f(3, 20, 10), f(4, 20, 10));
            let mut at = x * (f(3, 0, 20) + 1);
            if w0 > 0 {
                at = x % w0 * (f(3, 0, 20) + 1);
                let t = x / w0;
                at += if w1 == 0 {
                    t * (f(4, 0, 20) + 1)
                } else {
                    t % w1 * (f(4, 0, 20) + 1) + t / w1 * (f(5, 0, 20) + 1)
                };
            }
            end = end.max(4 * (base + at + 1));
        }
    }
    end
}

#[test]
fn reach_is_the_farthest_word_of_the_walk() {
    let mut seed = 5u32;
    let mut random = move |below: u32| {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 8) % below
    };
    for _ in 0..3000 {
        let words = [
            1 + random(90),
            0,
            0,
            random(7) << 20 | random(40),
            random(5) << 20 | random(60),
            random(300),
            random(4) << 26 | 3 << 20 | random(500),
            0x0200_0000,
        ];
        let runs = 1 + u64::from(random(6));
        let (got, exact) = (reach(&words, runs), farthest(&words, runs));
        // Executions that start in the middle of the iterations may wrap before the last: an upper bound then.
        assert!(got >= exact && (words[6] >> 26 != 0 || got == exact), "{words:x?} {runs}: {got} {exact}");
    }
}

#[test]
fn extents_of_reference_streams_are_the_buffers() {
    for chunks in [1, 3] {
        for (k, n, lda, c_stride) in
            [(512, 64, 512, 64), (1024, 576, 4096, 640), (2048, 1216, 8192, 1216), (512, 192, 9216, 9000)]
        {
            for (epilogue, columns) in [(Epilogue::None, n), (Epilogue::PairedSwiglu, n / 2)] {
                let spec = GemmSpec { chunks, k, n, lda, c_stride, bias: chunks == 3, epilogue, format: Format::Bfp16 };
                let stream = Stream::parse(&gemm_stream(&spec).unwrap()).unwrap();
                assert_eq!(stream.array(), (4, 6, 8));
                assert!(stream.waits_for_outputs());
                let rows = 256 * chunks;
                let bias = if chunks == 3 { 9216 } else { 0 };
                let expected =
                    [((rows - 1) * lda + k) * 2, n / 64 * (72 * k + bias), ((rows - 1) * c_stride + columns) * 2];
                assert_eq!(stream.extents(), expected.map(|e| e as u64), "{spec:?}");
            }
        }
    }
    let spec = GemvSpec { m: 1048, k: 2048, order: Order::Rows, bias: false, format: Format::Bfp16 };
    let stream = Stream::parse(&gemv_stream(&spec).unwrap()).unwrap();
    assert_eq!(stream.extents(), [2048 * 2, 1048 * 2048 / 8 * 9, 1048 * 2]);
}

#[test]
fn traffic_is_what_the_tasks_move() {
    let stream_ = Stream::parse(&stream([0, 1], &FULL)).unwrap();
    let expected = Traffic {
        patches: 1,
        descriptors: [(1, 1)].into(),
        tasks: 1,
        written: 400,
        start: 64,
        end: 464,
        ..Traffic::default()
    };
    assert_eq!(stream_.traffic(), [Traffic::default(), Traffic::default(), expected]);
    // Every result is written once, and A, B and C are patched once a descriptor.
    let spec = GemmSpec {
        chunks: 2,
        k: 512,
        n: 576,
        lda: 512,
        c_stride: 640,
        bias: false,
        epilogue: Epilogue::None,
        format: Format::Bfp16,
    };
    let gemm = Stream::parse(&gemm_stream(&spec).unwrap()).unwrap();
    let [a, b, c] = gemm.traffic() else { panic!() };
    assert_eq!((c.written, c.read, a.written, b.written), (512 * 576 * 2, 0, 0, 0));
    // Nine column blocks: two sweeps over the columns, each with all of A.
    assert_eq!(a.read, 2 * 512 * 512 * 2);
    assert!(b.read >= 512 * 576 / 8 * 9 && b.read % (72 * 512) == 0);
    let patches = gemm.operations().iter().filter(|o| matches!(o.kind, OperationKind::Patch { .. })).count();
    assert_eq!(a.patches + b.patches + c.patches, patches as u64);
}

#[test]
fn more_arguments_than_a_dispatch_has_can_be_looked_at() {
    let mut operations = FULL;
    let patch = [129, 48, 0, 0, 0, 0, 0x0201_D024, 0, 6, 0, 0x8000_0040, 0];
    operations[1] = &patch;
    let bytes = stream([0, 1], &operations);
    assert!(Stream::parse(&bytes).is_err());
    let read = Stream::read(&bytes).unwrap();
    assert_eq!((read.traffic().len(), read.traffic()[6].start, read.extents()[6]), (7, 0x40, 464));
    let patch = [129, 48, 0, 0, 0, 0, 0x0201_D024, 0, u32::MAX, 0, 0, 0];
    operations[1] = &patch;
    assert!(Stream::read(&stream([0, 1], &operations)).is_err());
}

#[test]
fn tasks_on_descriptors_of_the_image_are_counted_as_unknown() {
    let words = stream([0, 1], &FULL[1..]);
    let read = Stream::read(&words).unwrap();
    assert_eq!((read.traffic()[2].tasks, read.traffic()[2].unknown, read.extents()), (1, 1, &[0, 0, 0][..]));
    assert_eq!(read.words(&read.operations()[1]).collect::<Vec<_>>(), FULL[2]);
    assert_eq!((read.code(&read.operations()[0]), code_name(129)), (129, "DDR_PATCH"));
}
