//! What a bundle's instruction streams compute, told to the software NPU.
//!
//! Streams of our own exporter say it themselves. Streams for the real array do so only to the AIE cores' programs, so
//! the software NPU has to know each by its hash.

use npu_model::{Contract, Epilogue, Format, GemmContract, GemvContract, Model, Order};
use runtime::bundle::{Bundle, BundleError, GemmRecord, GemvRecord, WeightFormat};
use sha2::{Digest, Sha256};

/// A bundle that the software NPU cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ContractError {
    /// A format of weights that only real kernels know.
    #[error("its weights are {0}, which the software NPU does not compute with")]
    Format(&'static str),
    /// A stream cannot be read.
    #[error(transparent)]
    Bundle(#[from] BundleError),
}

/// Teaches the model every stream of the bundle.
///
/// # Errors
/// A format that the model does not know, or a stream that cannot be read. What was taught before stays taught.
pub fn teach(model: &Model, bundle: &Bundle) -> Result<(), ContractError> {
    for gemm in bundle.manifest.gemms.values() {
        for (index, stream) in gemm.chunks.iter().enumerate() {
            let contract = gemm_contract(gemm, index + 1, bundle)?;
            model.teach(Sha256::digest(bundle.stream(&stream.insts)?).into(), Contract::Gemm(contract));
        }
    }
    for gemv in bundle.manifest.gemvs.values() {
        let contract = gemv_contract(gemv)?;
        model.teach(Sha256::digest(bundle.stream(&gemv.insts)?).into(), Contract::Gemv(contract));
    }
    Ok(())
}

fn gemm_contract(gemm: &GemmRecord, chunks: usize, bundle: &Bundle) -> Result<GemmContract, ContractError> {
    let epilogue = match gemm.key.as_str() {
        // Gate and up columns alternate in blocks of 32, and only their product is stored.
        "gu" => Epilogue::PairedSwiglu,
        // With a factor a column, GELU has to wait for the host.
        "v_fc1" if !bundle.has_tensor("vis.b0.fc1.f") => Epilogue::GeluTanh,
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
        format: format(gemm.format)?,
    })
}

fn gemv_contract(gemv: &GemvRecord) -> Result<GemvContract, ContractError> {
    let order = if gemv.key == "head" { Order::Rows } else { Order::Stream };
    Ok(GemvContract { m: gemv.m, k: gemv.k, order, bias: gemv.bias, format: format(gemv.format)? })
}

fn format(format: WeightFormat) -> Result<Format, ContractError> {
    match format {
        WeightFormat::Bfp16 => Ok(Format::Bfp16),
        WeightFormat::F32 => Ok(Format::F32),
        other => Err(ContractError::Format(other.name())),
    }
}
