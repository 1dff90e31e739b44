//! The runtime's reference kernels on the software NPU's array: two readings of one contract, written apart, have to
//! agree, and the numbers have to be those of plain loops over decoded weights.
#![allow(clippy::unwrap_used, reason = "a test")]

use host_ops::bfp16;
use npu_model::bench::Bench;
use runtime::reference::{
    Epilogue, Format, GemmSpec, GemvSpec, Kind, Order, gemm_stream, gemv_stream, is_reference, xclbin,
};
use runtime::txn::{OperationKind, Stream};
use runtime::xclbin::Xclbin;

/// A splitmix64 generator.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// Between -1 and 1.
    fn value(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    fn elements(&mut self, format: Format, n: usize) -> Vec<u8> {
        let values: Vec<f32> = (0..n).map(|_| self.value()).collect();
        match format {
            Format::Bfp16 | Format::Bfp6s => {
                values.iter().flat_map(|x| half::bf16::from_f32(*x).to_le_bytes()).collect()
            }
            Format::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
        }
    }

    /// A unit of bfp6s with weights of about the size that the other formats get.
    fn unit(&mut self) -> Vec<u8> {
        let mut unit: Vec<u8> = (0..832).map(|_| self.next() as u8).collect();
        unit[768..].iter_mut().for_each(|scale| *scale = (40 + self.below(6)) as u8 * 4 + *scale % 4);
        unit
    }

    fn blocks(&mut self, format: Format, n: usize) -> Vec<u8> {
        if format == Format::Bfp6s {
            return (0..n / 128).flat_map(|_| self.unit()).collect();
        }
        (0..n)
            .flat_map(|_| match format {
                Format::Bfp6s => unreachable!("made of units"),
                Format::Bfp16 => {
                    let mut block: Vec<u8> = (0..9).map(|_| self.next() as u8).collect();
                    block[0] = 120 + self.below(6) as u8;
                    block
                }
                Format::F32 => self.elements(format, 8),
            })
            .collect()
    }
}

fn element(format: Format, bytes: &[u8], i: usize) -> f32 {
    match format {
        Format::Bfp16 | Format::Bfp6s => half::bf16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]).to_f32(),
        Format::F32 => f32::from_le_bytes(bytes[4 * i..4 * i + 4].try_into().unwrap()),
    }
}

/// A weight of a block; blocks of bfp6s lie in units of eight outputs by sixteen.
fn weight(format: Format, bytes: &[u8], block: usize, k: usize) -> f32 {
    if format == Format::Bfp6s {
        return unit_weight(&bytes[block / 128 * 832..], block % 128 / 8 * 8 + k, block % 8);
    }
    let block = &bytes[format.bytes(8 * block)..][..format.bytes(8)];
    match format {
        Format::Bfp6s => unreachable!("made of units"),
        Format::Bfp16 => (f64::from(block[1 + k] as i8) * 2f64.powi(i32::from(block[0]) - 133)) as f32,
        Format::F32 => element(format, block, k),
    }
}

/// The weight of (k, output) in a unit: a tile holds sixteen k, the low halves of its codes before the high quarters,
/// and behind all tiles stand the scales.
fn unit_weight(unit: &[u8], k: usize, output: usize) -> f32 {
    let (tile, lane, second) = (k / 16, 8 * output + k % 8, k % 16 / 8);
    let (low, high) = (unit[96 * tile + lane], unit[96 * tile + 64 + lane % 32]);
    let code = (low >> (4 * second) & 15) | (high >> (2 * (lane / 32) + 4 * second) & 3) << 4;
    let scale = unit[768 + 8 * tile + output];
    let mantissa = (f64::from(i32::from(code) - 32) * f64::from(5 + scale % 4) / 2.0).round_ties_even();
    (mantissa * 2f64.powi(i32::from(scale / 4) + 80 - 133)) as f32
}

/// Bytes of a bias chunk, in blocks.
const BIAS_BLOCKS: usize = 128 * 64 / 8;

/// The weight of (k, n) and the bias of n in a stream.
fn stream_weight(format: Format, b: &[u8], (k_all, bias): (usize, bool), k: usize, n: usize) -> f32 {
    let start = n / 64 * column_block(k_all, bias) + if bias { BIAS_BLOCKS } else { 0 };
    weight(format, b, start + ((k / 128 * 8 + n % 64 / 8) * 16 + k % 128 / 8) * 8 + n % 8, k % 8)
}

fn stream_bias(format: Format, b: &[u8], (k_all, bias): (usize, bool), n: usize) -> f32 {
    let start = n / 64 * format.bytes(8 * column_block(k_all, bias));
    if bias { element(format, &b[start..], n % 64) } else { 0.0 }
}

/// Blocks of one 64-column block.
fn column_block(k: usize, bias: bool) -> usize {
    8 * k + if bias { BIAS_BLOCKS } else { 0 }
}

/// What the cores make of a row of activations.
fn activations(format: Format, row: &[f32]) -> Vec<f32> {
    if format == Format::F32 {
        return row.to_vec();
    }
    let q = |x: &[f32; 8]| bfp16::decode_block(&bfp16::encode_block(x));
    row.as_chunks::<8>()
        .0
        .iter()
        .flat_map(|x| {
            let hi = q(x);
            let lo = q(&std::array::from_fn(|i| x[i] - hi[i]));
            std::array::from_fn::<f32, 8, _>(|i| hi[i] + lo[i])
        })
        .collect()
}

fn load(kind: Kind, threads: usize) -> Bench {
    let container = Xclbin::parse(&xclbin(kind), "MLIR_AIE").unwrap();
    Bench::new(&container.pdi, threads).unwrap()
}

/// A GEMM's buffers.
struct Gemm {
    spec: GemmSpec,
    a: Vec<u8>,
    b: Vec<u8>,
    /// B decoded, `[n, k]`.
    weights: Vec<f32>,
}

const UNTOUCHED: u8 = 0xA5;

impl Gemm {
    fn new(spec: GemmSpec, random: &mut Random) -> Self {
        let rows = 256 * spec.chunks;
        let a = random.elements(spec.format, (rows - 1) * spec.lda + spec.k);
        let mut b = Vec::new();
        for _ in 0..spec.n / 64 {
            if spec.bias {
                b.extend(random.elements(spec.format, 64));
                b.resize(b.len() + spec.format.bytes(8 * BIAS_BLOCKS) - 64 * spec.format.element_bytes(), 0);
            }
            b.extend(random.blocks(spec.format, spec.k * 8));
        }
        let GemmSpec { k, n, bias, format, .. } = spec;
        let weights = (0..n * k).map(|i| stream_weight(format, &b, (k, bias), i % k, i / k)).collect();
        Self { spec, a, b, weights }
    }

    fn columns(&self) -> usize {
        if self.spec.epilogue == Epilogue::PairedSwiglu { self.spec.n / 2 } else { self.spec.n }
    }

    fn run(&self, bench: &mut Bench) -> Vec<u8> {
        let stream = gemm_stream(&self.spec).unwrap();
        let elements = (256 * self.spec.chunks - 1) * self.spec.c_stride + self.columns();
        let mut c = vec![UNTOUCHED; elements * self.spec.format.element_bytes()];
        bench.run(&stream, &mut [&mut self.a.clone(), &mut self.b.clone(), &mut c]).unwrap();
        c
    }

    /// The accumulator of (row, stream column), bias included.
    fn accumulator(&self, row: &[f32], n: usize) -> f32 {
        let GemmSpec { k, bias, format, .. } = self.spec;
        let weights = &self.weights[n * k..(n + 1) * k];
        let sum = row.iter().zip(weights).fold(0.0, |acc: f32, (x, w)| x.mul_add(*w, acc));
        sum + stream_bias(format, &self.b, (k, bias), n)
    }

    /// Checks some rows (first, last, around the seams, a few others) in all columns, and that gaps are untouched.
    fn check(&self, c: &[u8], random: &mut Random) {
        let GemmSpec { chunks, k, lda, c_stride, format, epilogue, .. } = self.spec;
        let (rows, element_size) = (256 * chunks, format.element_bytes());
        for row in 0..rows - 1 {
            let gap = &c[(row * c_stride + self.columns()) * element_size..(row + 1) * c_stride * element_size];
            assert!(gap.iter().all(|b| *b == UNTOUCHED), "row {row} of {:?}", self.spec);
        }
        for row in [0, 1, 63, 64, rows - 1, random.below(rows), random.below(rows)] {
            let a: Vec<f32> = (0..k).map(|i| element(format, &self.a, row * lda + i)).collect();
            let a = activations(format, &a);
            for column in 0..self.columns() {
                let got = element(format, c, row * c_stride + column);
                let silu = |x: f64| x / (1.0 + (-x).exp());
                let x = |n| f64::from(self.accumulator(&a, n));
                let exact = match epilogue {
                    Epilogue::None => {
                        let x = self.accumulator(&a, column);
                        let x = if format != Format::F32 { half::bf16::from_f32(x).to_f32() } else { x };
                        assert_eq!(got.to_bits(), x.to_bits(), "({row}, {column}) of {:?}", self.spec);
                        continue;
                    }
                    Epilogue::Silu => silu(x(column)),
                    Epilogue::GeluTanh => {
                        let x = x(column);
                        0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
                    }
                    Epilogue::PairedSwiglu => {
                        let n = column / 32 * 64 + column % 32;
                        silu(x(n)) * x(n + 32)
                    }
                };
                let tolerance = if format != Format::F32 { 0.004 } else { 3e-6 };
                let error = (f64::from(got) - exact).abs();
                assert!(
                    error <= tolerance * exact.abs() + 1e-6,
                    "({row}, {column}): {got}, not {exact}; {:?}",
                    self.spec
                );
            }
        }
    }
}

const PLAIN: GemmSpec = GemmSpec {
    chunks: 1,
    k: 512,
    n: 64,
    lda: 512,
    c_stride: 64,
    bias: false,
    epilogue: Epilogue::None,
    format: Format::Bfp16,
};

#[test]
fn gemms_of_many_shapes() {
    let mut random = Random(1);
    let f32 = GemmSpec { format: Format::F32, ..PLAIN };
    let six = GemmSpec { format: Format::Bfp6s, ..PLAIN };
    let specs = [
        PLAIN,
        GemmSpec { chunks: 3, k: 1024, n: 576, lda: 1024, c_stride: 576, ..PLAIN },
        GemmSpec { chunks: 2, n: 512, lda: 1536, c_stride: 514, bias: true, ..PLAIN },
        GemmSpec { n: 192, c_stride: 200, bias: true, epilogue: Epilogue::GeluTanh, ..PLAIN },
        GemmSpec { n: 128, c_stride: 128, epilogue: Epilogue::Silu, ..PLAIN },
        GemmSpec { chunks: 2, n: 640, c_stride: 512, epilogue: Epilogue::PairedSwiglu, ..PLAIN },
        GemmSpec { n: 64, c_stride: 32, bias: true, epilogue: Epilogue::PairedSwiglu, ..PLAIN },
        // More k than the memory tiles keep: B comes once a chunk.
        GemmSpec { chunks: 2, k: 4608, n: 128, lda: 4608, c_stride: 128, ..PLAIN },
        // Rows too far apart for the iteration of one descriptor: a task a chunk, and waits for room in the queue.
        GemmSpec { chunks: 6, n: 1088, lda: 9216, c_stride: 1088, ..PLAIN },
        f32,
        GemmSpec { chunks: 2, k: 1024, n: 576, lda: 1100, c_stride: 600, bias: true, ..f32 },
        GemmSpec { chunks: 3, n: 128, c_stride: 64, epilogue: Epilogue::PairedSwiglu, ..f32 },
        GemmSpec { n: 128, c_stride: 128, bias: true, epilogue: Epilogue::GeluTanh, ..f32 },
        six,
        GemmSpec { chunks: 2, k: 1024, n: 576, lda: 1100, c_stride: 600, bias: true, ..six },
        GemmSpec { chunks: 3, n: 128, c_stride: 64, epilogue: Epilogue::PairedSwiglu, ..six },
        // A column block that memory tiles keep in this format and would not in bfp16.
        GemmSpec { chunks: 2, k: 4608, n: 128, lda: 4608, c_stride: 128, ..six },
    ];
    let mut benches = [1, 2, 3].map(|threads| load(Kind::Gemm, threads));
    for spec in specs {
        let gemm = Gemm::new(spec, &mut random);
        let [c, others @ ..] = benches.each_mut().map(|bench| gemm.run(bench));
        gemm.check(&c, &mut random);
        assert!(others.iter().all(|other| *other == c), "threads change the result of {spec:?}");
    }
}

#[test]
fn more_sweeps_than_one_descriptor_can_iterate() {
    let mut random = Random(2);
    let n = 64 * 8 * 66;
    let gemm = Gemm::new(GemmSpec { n, c_stride: n, ..PLAIN }, &mut random);
    let c = gemm.run(&mut load(Kind::Gemm, 2));
    let a: Vec<f32> = (0..512).map(|i| element(Format::Bfp16, &gemm.a, 255 * 512 + i)).collect();
    let a = activations(Format::Bfp16, &a);
    for column in [0, 511, 512, 64 * 512 - 1, 64 * 512, n - 1] {
        let expected = half::bf16::from_f32(gemm.accumulator(&a, column)).to_f32();
        assert_eq!(element(Format::Bfp16, &c, 255 * n + column), expected, "{column}");
    }
}

/// A GEMV's x and weights.
fn gemv_inputs(spec: &GemvSpec, random: &mut Random) -> [Vec<u8>; 2] {
    let GemvSpec { m, k, order, bias, format } = *spec;
    let mut w = Vec::new();
    match order {
        Order::Rows => w = random.blocks(format, m * k / 8),
        Order::Stream => {
            for _ in 0..m / 64 {
                if bias {
                    w.extend(random.elements(format, 64));
                    w.resize(w.len() + format.bytes(8 * BIAS_BLOCKS) - 64 * format.element_bytes(), 7);
                }
                w.extend(random.blocks(format, k * 8));
            }
        }
    }
    [random.elements(format, k), w]
}

/// A GEMV's result.
fn gemv(spec: &GemvSpec, threads: usize, [x, w]: &[Vec<u8>; 2]) -> Vec<u8> {
    let mut y = vec![UNTOUCHED; spec.m * spec.format.element_bytes()];
    let stream = gemv_stream(spec).unwrap();
    load(Kind::Gemv, threads).run(&stream, &mut [&mut x.clone(), &mut w.clone(), &mut y]).unwrap();
    y
}

/// A GEMV's result by plain loops, before its rounding.
fn plain_gemv(spec: &GemvSpec, [x, w]: &[Vec<u8>; 2]) -> Vec<f32> {
    let GemvSpec { m, k, order, bias, format } = *spec;
    let row: Vec<f32> = (0..k).map(|i| element(format, x, i)).collect();
    let row = activations(format, &row);
    (0..m)
        .map(|n| {
            let weight = |i: usize| match order {
                Order::Stream => stream_weight(format, w, (k, bias), i, n),
                Order::Rows => weight(format, w, (n / 8 * (k / 8) + i / 8) * 8 + n % 8, i % 8),
            };
            let sum = row.iter().enumerate().fold(0.0, |acc: f32, (i, x)| x.mul_add(weight(i), acc));
            sum + if order == Order::Stream { stream_bias(format, w, (k, bias), n) } else { 0.0 }
        })
        .collect()
}

#[test]
fn gemvs_of_many_shapes() {
    for (m, k, order, bias) in [
        (64, 512, Order::Stream, false),
        (576, 1024, Order::Stream, true),
        (192, 4608, Order::Stream, false),
        (640, 512, Order::Rows, false),
        (1032, 1024, Order::Rows, false),
        (8, 512, Order::Rows, false),
    ] {
        for format in [Format::Bfp16, Format::Bfp6s, Format::F32] {
            let spec = GemvSpec { m, k, order, bias, format };
            let inputs = gemv_inputs(&spec, &mut Random(3));
            let y = gemv(&spec, 1, &inputs);
            for (i, expected) in plain_gemv(&spec, &inputs).into_iter().enumerate() {
                let expected = if format != Format::F32 { half::bf16::from_f32(expected).to_f32() } else { expected };
                assert_eq!(element(format, &y, i).to_bits(), expected.to_bits(), "{i} of {spec:?}");
            }
            for threads in [2, 3] {
                assert!(gemv(&spec, threads, &inputs) == y, "{threads} threads change {spec:?}");
            }
        }
    }
}

#[test]
fn a_row_of_a_gemm_is_the_gemv_of_it() {
    let spec = GemmSpec { n: 576, c_stride: 576, bias: true, ..PLAIN };
    let gemm = Gemm::new(spec, &mut Random(4));
    let c = gemm.run(&mut load(Kind::Gemm, 1));
    let stream =
        gemv_stream(&GemvSpec { m: 576, k: 512, order: Order::Stream, bias: true, format: Format::Bfp16 }).unwrap();
    let mut bench = load(Kind::Gemv, 1);
    for row in [0, 100, 255] {
        let (mut x, mut y) = (gemm.a[row * 1024..(row + 1) * 1024].to_vec(), vec![0; 1152]);
        bench.run(&stream, &mut [&mut x, &mut gemm.b.clone(), &mut y]).unwrap();
        assert!(y == c[row * 1152..(row + 1) * 1152], "row {row}");
    }
}

#[test]
fn the_golden_stream_multiplies_like_the_matrix_it_was_packed_from() {
    let file = |name: &str| {
        std::fs::read(format!("{}/../host-ops/tests/fixtures/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
    };
    let (b, bias) = (file("gemm.b.f32"), file("gemm.bias.f32"));
    let mut gemm = Gemm::new(GemmSpec { n: 128, c_stride: 128, bias: true, ..PLAIN }, &mut Random(5));
    gemm.b = file("gemm.stream.u8");
    let c = gemm.run(&mut load(Kind::Gemm, 1));
    for row in [0, 77, 255] {
        for n in 0..128 {
            let (mut sum, mut mass) = (f64::from(element(Format::F32, &bias, n)), 0.0);
            for k in 0..512 {
                let product = f64::from(element(Format::Bfp16, &gemm.a, row * 512 + k))
                    * f64::from(element(Format::F32, &b, k * 128 + n));
                (sum, mass) = (sum + product, mass + product.abs());
            }
            let error = (f64::from(element(Format::Bfp16, &c, row * 128 + n)) - sum).abs();
            assert!(error < 2e-3 * mass + sum.abs() / 256.0, "({row}, {n}): off by {error} of {mass}");
        }
    }
}

#[test]
fn contracts_of_opaque_kernels_compute_the_same() {
    use npu_model::{Contract, GemmContract, GemvContract};
    let opaque = vec![7; 4096];
    let spec = GemmSpec { chunks: 2, n: 640, lda: 600, c_stride: 400, epilogue: Epilogue::PairedSwiglu, ..PLAIN };
    let gemm = Gemm::new(spec, &mut Random(6));
    let mut bench = Bench::new(&opaque, 2).unwrap();
    let refused = bench.run(&gemm_stream(&spec).unwrap(), &mut [&mut [0; 64], &mut [0; 64], &mut [0; 64]]).unwrap_err();
    assert!(refused.contains("nothing says what this stream"), "{refused}");
    bench.teach(Contract::Gemm(GemmContract {
        m: 256,
        chunks: 2,
        k: 512,
        n: 640,
        lda: 600,
        c_stride: 400,
        bias: false,
        epilogue: npu_model::Epilogue::PairedSwiglu,
        format: Format::Bfp16,
    }));
    assert!(gemm.run(&mut bench) == gemm.run(&mut load(Kind::Gemm, 1)));

    let spec = GemvSpec { m: 1032, k: 512, order: Order::Rows, bias: false, format: Format::Bfp16 };
    let inputs = gemv_inputs(&spec, &mut Random(7));
    let y = gemv(&spec, 1, &inputs);
    let [mut x, mut w] = inputs;
    let order = npu_model::Order::Rows;
    bench.teach(Contract::Gemv(GemvContract { m: 1032, k: 512, order, bias: false, format: Format::Bfp16 }));
    let mut got = vec![0; y.len()];
    bench.run(&gemv_stream(&spec).unwrap(), &mut [&mut x, &mut w, &mut got]).unwrap();
    assert!(got == y);
    // A stream without operations does nothing, whatever the kernel.
    let empty = [0u32.to_le_bytes(), [4, 6, 8, 1], 0u32.to_le_bytes(), 16u32.to_le_bytes()].concat();
    assert_eq!(Bench::new(&opaque, 1).unwrap().run(&empty, &mut []).unwrap().ops, 0);
}

/// Takes a stream apart, changes its operations and puts it together.
fn edit(stream: &[u8], change: impl FnOnce(&mut Vec<Vec<u8>>)) -> Vec<u8> {
    let parsed = Stream::parse(stream).unwrap();
    let mut operations: Vec<Vec<u8>> =
        parsed.operations().iter().map(|op| stream[op.offset..op.offset + op.size].to_vec()).collect();
    change(&mut operations);
    let mut out = stream[..8].to_vec();
    out.extend((operations.len() as u32).to_le_bytes());
    out.extend((16 + operations.iter().map(Vec::len).sum::<usize>() as u32).to_le_bytes());
    out.extend(operations.concat());
    out
}

/// The place of the first operation of a kind.
fn find(stream: &[u8], is: impl Fn(&OperationKind) -> bool) -> usize {
    Stream::parse(stream).unwrap().operations().iter().position(|op| is(&op.kind)).unwrap()
}

#[test]
fn streams_that_break_the_rules_fail_with_the_rule() {
    let spec = GemmSpec { n: 128, c_stride: 128, ..PLAIN };
    let gemm = Gemm::new(spec, &mut Random(8));
    let stream = gemm_stream(&spec).unwrap();
    let size = 256 * 128 * 2;
    let run = |stream: &[u8], kind, c: usize| {
        let (mut a, mut b, mut c) = (gemm.a.clone(), gemm.b.clone(), vec![0; c]);
        load(kind, 1).run(stream, &mut [&mut a, &mut b, &mut c]).unwrap_err()
    };
    let check = |what: &str, stream: Vec<u8>, expected: &str| {
        let error = run(&stream, Kind::Gemm, size);
        assert!(error.contains(expected), "{what}: {error}");
    };
    let last = Stream::parse(&stream).unwrap().operations().len() - 1;
    let patch = find(&stream, |op| matches!(op, OperationKind::Patch { .. }));
    let push = patch + 1;
    let word = |op: &mut Vec<u8>, at: usize, value: u32| op[4 * at..4 * at + 4].copy_from_slice(&value.to_le_bytes());
    check("no wait", edit(&stream, |ops| drop(ops.pop())), "ends without a wait for its output on S2MM 0 of column 1");
    check("a wait too many", edit(&stream, |ops| ops.push(ops[last].clone())), "can never be satisfied");
    check(
        "waits before the inputs",
        edit(&stream, |ops| {
            let wait = ops.pop().unwrap();
            ops.insert(push + 1, wait);
        }),
        "can never be satisfied: the kernel finds too little queued on MM2S 0 of column 0",
    );
    check("a full queue", edit(&stream, |ops| (0..4).for_each(|_| ops.insert(push, ops[push].clone()))), "overflows");
    check("no patch", edit(&stream, |ops| drop(ops.remove(patch))), "no patched address");
    check("no descriptor", edit(&stream, |ops| drop(ops.remove(patch - 1))), "which this stream did not write");
    check("a changed descriptor", edit(&stream, |ops| ops.insert(push + 1, ops[patch].clone())), "queued task uses it");
    check("an odd offset", edit(&stream, |ops| word(&mut ops[patch], 10, 2)), "not a multiple of 4");
    check("a fourth argument", edit(&stream, |ops| word(&mut ops[patch], 8, 3)), "with argument 3, the command has 3");
    check("another column's N", edit(&stream, |ops| word(&mut ops[2], 4 + 3, 192)), "other runtime parameters");
    check("no parameters", edit(&stream, |ops| drop(ops.remove(0))), "released without runtime parameters");
    check("31 cores", edit(&stream, |ops| drop(ops.drain(..2))), "needs all 32 cores");
    check("column 8", edit(&stream, |ops| word(&mut ops[1], 2, 8 << 25 | 0x1F0A0)), "in no tile");
    check("a memory tile", edit(&stream, |ops| word(&mut ops[1], 2, 1 << 20 | 0xC0000)), "no reference kernel has");
    check(
        "a longer A",
        edit(&stream, |ops| {
            let at = ops.iter().rposition(|op| op[0] == 1).unwrap();
            word(&mut ops[at], 4, 64 * 512 / 2 + 1);
        }),
        "never takes 1 of the words queued on MM2S 0 of column 6",
    );
    let error = run(&stream, Kind::Gemm, size - 4);
    assert!(error.contains("hits no single buffer object"), "{error}");
    assert!(run(&stream, Kind::Gemv, size).contains("runtime parameters start with"));
    assert!(error.starts_with(&format!("operation {last}")) || error.starts_with("operation "), "{error}");
}

#[test]
fn damaged_streams_end_in_an_error_or_a_result_and_never_worse() {
    let gemm = Gemm::new(PLAIN, &mut Random(9));
    let streams = [
        (Kind::Gemm, gemm_stream(&PLAIN).unwrap()),
        (
            Kind::Gemv,
            gemv_stream(&GemvSpec { m: 64, k: 512, order: Order::Stream, bias: false, format: Format::Bfp16 }).unwrap(),
        ),
    ];
    let mut random = Random(10);
    for (kind, stream) in streams {
        let mut bench = load(kind, 1);
        let (mut a, mut b, mut c) = (gemm.a.clone(), gemm.b.clone(), vec![0; 256 * 128]);
        let mut run = |stream: &[u8]| bench.run(stream, &mut [&mut a, &mut b, &mut c]);
        run(&stream).unwrap();
        for len in 0..stream.len() {
            let mut cut = stream[..len].to_vec();
            assert!(run(&cut).is_err(), "{len} bytes");
            if let Some(size) = cut.get_mut(12..16) {
                size.copy_from_slice(&(len as u32).to_le_bytes());
                assert!(run(&cut).is_err(), "{len} bytes, header adjusted");
            }
        }
        let (mut good, mut bad) = (0, 0);
        for _ in 0..4000 {
            let mut damaged = stream.clone();
            for _ in 0..1 + random.below(3) {
                let at = 4 * random.below(stream.len() / 4);
                let word = match random.below(4) {
                    0 => random.next() as u32,
                    1 => 0,
                    _ => u32::from_le_bytes(stream[at..at + 4].try_into().unwrap()) ^ 1 << random.below(32),
                };
                damaged[at..at + 4].copy_from_slice(&word.to_le_bytes());
            }
            match run(&damaged) {
                Ok(_) => good += 1,
                Err(_) => bad += 1,
            }
            // The runtime's own reader may not fall over either.
            drop(Stream::parse(&damaged));
        }
        assert!(good > 0 && bad > good, "{kind:?}: {good} ran, {bad} did not");
    }
}

#[test]
fn containers_are_valid_and_say_which_kernel_they_hold() {
    for kind in [Kind::Gemm, Kind::Gemv] {
        let file = xclbin(kind);
        assert!(file == xclbin(kind) && file.len() < 8192);
        let container = Xclbin::parse(&file, "MLIR_AIE").unwrap();
        assert_eq!((container.column_width, container.buffers, container.kernel_id), (8, 5, 0x901));
        assert!(is_reference(&container.pdi) && !is_reference(&file[..0x1C8]));

        // As a reader goes that knows fixed offsets only.
        let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap()) as usize;
        assert_eq!((word(0x130), word(448)), (file.len(), 7));
        let sections: Vec<_> =
            (0..7).map(|i| 456 + 40 * i).map(|at| (word(at), word(at + 24), word(at + 32))).collect();
        assert_eq!(sections.iter().map(|s| s.0).collect::<Vec<_>>(), [6, 32, 2, 8, 7, 27, 26]);
        assert!(sections.iter().all(|s| s.1 % 8 == 0 && s.1 >= 0x2E0 && s.1 + s.2 <= file.len()));
        let start = sections[1].1;
        assert_eq!((word(start + 32), word(start + 120)), (8, 1));
        let entry = start + word(start + 124);
        let image = start + word(entry + 20);
        let pdi = &file[image..image + word(entry + 16)];
        assert!(pdi == container.pdi && (image - start) % 16 == 0);

        let word = |at: usize| u32::from_le_bytes(pdi[at..at + 4].try_into().unwrap());
        let sum = |range: std::ops::Range<usize>| !range.step_by(4).fold(0u32, |sum, at| sum.wrapping_add(word(at)));
        for (table, checksum) in [(0x10, 0x8C), (0x90, 0xCC), (0xD0, 0x14C)] {
            assert_eq!(word(checksum), sum(table..checksum), "{table:#x}");
        }
        assert_eq!(word(0x160), sum(0x150..0x160));
        assert_eq!(pdi.len(), 0x150 + 4 * word(0xD8) as usize);
        assert_eq!(word(0x15C) as usize, (pdi.len() - 0x164) / 4);
    }
}
