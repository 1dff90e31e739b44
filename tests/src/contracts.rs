//! What a bundle's instruction streams compute, told to the software NPU.
//!
//! Streams of our own exporter say it themselves. Streams for the real array do so only to the AIE cores' programs, so
//! the software NPU has to know each by its hash.

use npu_model::{Contract, Epilogue, GemmContract, GemvContract, Model, Order};
use runtime::bundle::{Bundle, BundleError, GemmRecord, GemvRecord};
use sha2::{Digest, Sha256};

/// A bundle that the software NPU cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ContractError {
    /// Weights whose order only the kernels know.
    #[error(
        "`gemm {0}` keeps a high and a low part of every weight (v.weights bfp16x2); how the two interleave in the stream \
         is known to its kernels alone, so only an NPU can run it, not the software NPU"
    )]
    TwoParts(String),
    /// A stream cannot be read.
    #[error(transparent)]
    Bundle(#[from] BundleError),
}

/// Teaches the model every stream of the bundle.
///
/// # Errors
/// Weights that the model cannot read, or a stream that cannot be read. What was taught before stays taught.
pub fn teach(model: &Model, bundle: &Bundle) -> Result<(), ContractError> {
    for gemm in bundle.manifest.gemms.values() {
        for (index, stream) in gemm.chunks.iter().enumerate() {
            let contract = gemm_contract(gemm, index + 1, bundle)?;
            model.teach(Sha256::digest(bundle.stream(&stream.insts)?).into(), Contract::Gemm(contract));
        }
    }
    for gemv in bundle.manifest.gemvs.values() {
        let contract = gemv_contract(gemv);
        model.teach(Sha256::digest(bundle.stream(&gemv.insts)?).into(), Contract::Gemv(contract));
    }
    Ok(())
}

fn gemm_contract(gemm: &GemmRecord, chunks: usize, bundle: &Bundle) -> Result<GemmContract, ContractError> {
    if gemm.in_two_parts() {
        return Err(ContractError::TwoParts(gemm.key.clone()));
    }
    let epilogue = match gemm.key.as_str() {
        // Gate and up columns alternate in blocks of 32, and only their product is stored.
        "gu" => Epilogue::PairedSwiglu,
        // With a factor a column, in all blocks or in none, GELU has to wait for the host.
        "v_fc1" if bundle.has_tensor("vis.b0.fc1.f") => Epilogue::None,
        "v_fc1" => Epilogue::GeluTanh,
        _ => Epilogue::None,
    };
    Ok(GemmContract {
        m: gemm.m,
        chunks,
        k: gemm.k,
        n: gemm.n,
        lda: gemm.lda,
        c_stride: gemm.c_stride,
        bias: gemm.bias,
        epilogue,
        format: gemm.format.packing(),
    })
}

fn gemv_contract(gemv: &GemvRecord) -> GemvContract {
    let order = if gemv.key == "head" { Order::Rows } else { Order::Stream };
    GemvContract { m: gemv.m, k: gemv.k, order, bias: gemv.bias, format: gemv.format.packing() }
}
