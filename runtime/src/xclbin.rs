//! The xclbin container (AXLF): what of it a hardware context needs.

/// What a container says about its kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Xclbin {
    /// Name of the kernel (`MLIR_AIE`).
    pub kernel: String,
    /// The kernel's id, as the partition's groups list it.
    pub kernel_id: u16,
    /// The `cu_func` of the kernel's compute unit: 0 for a DPU kernel.
    pub cu_func: u8,
    /// Buffer arguments a command may carry (after opcode, instructions and their length).
    pub buffers: usize,
    /// Columns of the array that the kernel occupies, 1..=8.
    pub column_width: u16,
    /// Operations per cycle, a hint for the driver.
    pub ops_per_cycle: u32,
    /// The device image that configures the array.
    pub pdi: Vec<u8>,
}

/// A malformed container.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a usable xclbin: {0}")]
pub struct XclbinError(pub String);

impl Xclbin {
    /// Parses a container and finds `kernel` in it.
    ///
    /// # Errors
    /// Anything malformed, no kernel of that name, or no device image for it.
    pub fn parse(_bytes: &[u8], _kernel: &str) -> Result<Self, XclbinError> {
        todo!()
    }
}
