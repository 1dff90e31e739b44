//! Our bundles in the reader that other runtimes of the format use, `taconite-bundle`.

use std::path::Path;

use taconite_bundle::{Manifest, Store};

#[test]
fn another_reader_loads_what_we_export() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("other-reader");
    let bundle = driver_tests::tiny::bundle(&folder).unwrap();
    let ours = runtime::bundle::Bundle::open(&bundle).unwrap();
    let theirs = Manifest::load(&bundle, 1).unwrap();
    let text = &ours.manifest.text;
    for (name, value) in [("D", text.hidden), ("I", text.intermediate), ("vocab", text.vocab), ("chunk", text.chunk)] {
        assert_eq!(theirs.param_as::<usize>(name).unwrap(), value, "{name}");
    }
    assert_eq!(theirs.param_as::<f32>("eps").unwrap(), text.eps);
    assert_eq!(theirs.list::<u32>("stop").unwrap(), text.stop);
    assert_eq!(theirs.xclbins().count(), ours.manifest.xclbins.len());
    for record in theirs.tagged("gemm") {
        let gemm = &ours.manifest.gemms[record.field(0).unwrap()];
        for (key, value) in
            [("M", gemm.m), ("K", gemm.k), ("N", gemm.n), ("lda", gemm.lda), ("c_stride", gemm.c_stride)]
        {
            assert_eq!(record.get::<usize>(key).unwrap(), value, "{} {key}", gemm.key);
        }
        assert!(theirs.path(record.str("insts").unwrap()).is_file());
        let chunks = theirs.tagged("gemm_chunks").filter(|chunk| chunk.field(0).unwrap() == gemm.key).count();
        assert_eq!(chunks + 1, gemm.chunks.len());
    }
    assert_eq!(theirs.tagged("gemv").count(), ours.manifest.gemvs.len());
    let tensors = Store::load(&bundle).unwrap();
    assert_eq!(tensors.f32("ln_f").unwrap(), ours.f32s("ln_f").unwrap());
    assert_eq!(tensors.bytes("l0.g.in").unwrap(), ours.tensor("l0.g.in").unwrap().bytes);
    std::fs::remove_dir_all(folder).unwrap();
}
