//! Reference kernels: the xclbins and instruction streams that the exporter puts into a bundle.
//!
//! No AIE cores are compiled here. A reference xclbin is a valid container whose PDI holds a marker, and a reference
//! stream states everything that the kernel has to know in runtime parameters, descriptors and patches, so that the
//! software NPU can run it. A bundle for real hardware takes real kernels in their place.

mod gemm;
mod gemv;
mod parameters;
mod pdi;
mod schedule;
mod txn;
mod xclbin;

pub use gemm::{GemmSpec, gemm_stream};
pub use gemv::{GemvSpec, gemv_stream};
pub use host_ops::pack::Format;
pub use pdi::is_reference;
pub use xclbin::xclbin;

/// Which reference kernel an xclbin holds. One xclbin is one hardware context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Matrix times matrix: the prompt's projections and the vision tower.
    Gemm,
    /// Matrix times vector: one token's projections and the head.
    Gemv,
}

/// What a GEMM does to its f32 accumulator, after the bias and before the one rounding of the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Epilogue {
    /// Nothing.
    #[default]
    None,
    /// GELU, tanh form.
    GeluTanh,
    /// x * sigmoid(x).
    Silu,
    /// Each 64-column block holds 32 gate and 32 up columns and gives 32 results, silu(gate) * up.
    PairedSwiglu,
}

/// In which order a GEMV's weights lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Order {
    /// The GEMM's stream order: 64-column blocks, so that prompt and decode share one buffer.
    Stream,
    /// Groups of eight rows, each with its blocks in k order: the head.
    Rows,
}

/// Why a reference kernel for a shape cannot be written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// A size is zero, too large or not a multiple of what the kernel's tiles need.
    #[error("reference kernel: {what} is {value}, must be {rule}")]
    Size {
        /// The parameter.
        what: &'static str,
        /// Its value.
        value: usize,
        /// The rule it breaks.
        rule: &'static str,
    },
}

/// Version of the reference kernels: of the marker in the PDI and of the layout of the runtime parameters.
const VERSION: u32 = 1;

/// Bytes of an activation, result or bias value.
const fn element_bytes(format: Format) -> usize {
    match format {
        Format::Bfp16 | Format::Bfp6s => 2,
        Format::F32 => 4,
    }
}

/// Checks a size.
fn multiple(what: &'static str, value: usize, of: usize, rule: &'static str) -> Result<(), SpecError> {
    if value > 0 && value <= 1 << 20 && value.is_multiple_of(of) {
        Ok(())
    } else {
        Err(SpecError::Size { what, value, rule })
    }
}
