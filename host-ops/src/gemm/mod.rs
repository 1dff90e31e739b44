//! Matrix kernels over packed weights: what a GEMM or GEMV kernel of the NPU computes, bit for bit reproducible.
//!
//! Every output has one f32 accumulator that starts at zero and takes one fused multiply-add per k, k ascending.
//! Nothing else touches it before the bias, so GEMM and GEMV, scalar code and SIMD code, and any number of threads
//! give the same bits.
