//! The f32 math of Qwen3.5 that runs on the host, and the packed number formats.
//!
//! Slices in, slices out, row-major. Nothing here knows a file, a device or a model: shapes come as arguments, weights
//! as slices, and the state that survives a call (recurrent state, convolution state, KV cache) lives in small structs
//! that own their memory.
//!
//! # Same bits, always
//!
//! Every function gives the same bits for any number of threads and for any cutting of a prompt into pieces: a
//! reduction's order depends on the width of what is reduced or on absolute positions, never on how many rows came in
//! one call. The vector kernels and their plain counterparts are one source compiled several times (see `simd`), so
//! they agree bit for bit as well.
//!
//! # Panics
//!
//! Lengths that do not fit a documented shape are a programming error and panic; what can come from a file or a user
//! (image sizes, weight shapes) returns an error.
//!
//! # Unsafe
//!
//! In `simd` and `wide` (intrinsics, and the switch to code compiled for AVX2 or AVX-512), in the block decoders of
//! [`gemm`] and in [`pool`] (a loop's body and its slices cross threads without `'static`).

#![deny(unsafe_code)]

pub mod act;
pub mod attention;
pub mod bf16;
pub mod bfp16;
pub mod bfp6s;
pub mod delta;
pub mod gemm;
pub mod image;
pub mod limits;
pub mod norm;
pub mod pack;
#[allow(unsafe_code)]
pub mod pool;
pub mod rope;
pub mod rows;
pub mod sample;
#[allow(unsafe_code)]
mod simd;
#[cfg(test)]
mod testing;
pub mod w8;
#[allow(unsafe_code)]
mod wide;
