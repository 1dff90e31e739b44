//! Matrix kernels over the packed formats.
